"""A device whose kernels are printed in OpenCL C, for tests of the texts."""

from __future__ import annotations

from tests.unit.fake_cuda import Idle
from tests.unit.fake_driver import FakeGpu
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.plan.device import Device
from weft.plan.plan import Code
from weft.render.dialects.opencl import OPENCL


class Printed(FakeGpu):
    """A device without hardware whose kernels are printed in OpenCL C; nothing is computed."""

    dialect = OPENCL

    def __init__(self) -> None:
        super().__init__(1 << 28)
        self.driver.emulator = Idle()
        limits = Limits(workgroup_size=256, shared_bytes=49152, static_shared_bytes=49152)
        features = Features(workgroups=True, scalar_arguments=True)
        self.device = Device("opencl", 0, self, "no hardware", frozenset(dtypes.ALL), features, limits)
        self.codes: list[Code] = []

    def render(self, kernel):
        self.codes.append(super().render(kernel))
        return self.codes[-1]
