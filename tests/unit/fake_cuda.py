"""A device that the compiler takes for an NVIDIA GPU, without hardware: its kernels are collected, or emulated."""

from __future__ import annotations

import numpy as np

from tests.unit.fake_driver import FakeGpu
from weft.backends.cuda import backend as cuda_backend
from weft.base import dtypes
from weft.base.capabilities import Limits
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Device
from weft.plan.protocols import Library

HOPPER = Limits(
    workgroup_size=1024,
    subgroup_sizes=(32,),
    shared_bytes=232448,
    static_shared_bytes=cuda_backend.STATIC_SHARED_BYTES,
    registers=cuda_backend.REGISTERS,
    processors=132,
)


class Idle:
    """Launches that do nothing."""

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        pass


class FakeCuda(FakeGpu):
    """Without `runs`, results are whatever lies in memory."""

    def __init__(self, runs: bool = False, libraries: dict[str, Library] | None = None):
        super().__init__(1 << 34)
        if not runs:
            self.driver.emulator = Idle()
        everything = frozenset(dtypes.ALL)
        self.device = Device("cuda", 0, self, "no hardware", everything, cuda_backend.FEATURES, HOPPER, libraries or {})

    def kernels(self) -> dict[str, Kernel]:
        """All that was rendered so far, in normal form, by symbol."""
        return {symbol: normalise(kernel) for symbol, kernel in self.driver.kernels.items()}
