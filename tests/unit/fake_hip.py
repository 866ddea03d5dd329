"""Devices that the compiler takes for AMD GPUs, without hardware: their kernels are collected, or emulated."""

from __future__ import annotations

from tests.unit.fake_cuda import Idle
from tests.unit.fake_driver import FakeDriver, FakeGpu
from tests.unit.lockstep import Lockstep
from weft.backends.hip import backend as hip_backend
from weft.base import dtypes
from weft.base.capabilities import Limits
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Device

SUBGROUP_LANES = {"gfx90a": 64, "gfx942": 64, "gfx1030": 32, "gfx1100": 32, "gfx1200": 32}


def limits_of(architecture: str) -> Limits:
    """Those of an MI210 or RX 6800, as far as kernels depend on them."""
    return Limits(
        workgroup_size=1024,
        subgroup_sizes=(SUBGROUP_LANES[architecture],),
        shared_bytes=65536,
        static_shared_bytes=65536,
        registers=hip_backend.REGISTERS,
        processors=104,
    )


class FakeHip(FakeGpu):
    """Without `runs`, results are whatever lies in memory."""

    def __init__(self, architecture: str, runs: bool = False, kind: type[FakeDriver] = FakeDriver):
        super().__init__(1 << 34, kind)
        self.dialect = hip_backend.dialect_of(architecture)
        features, limits = hip_backend.features(architecture), limits_of(architecture)
        self.device = Device("hip", 0, self, "no hardware", frozenset(dtypes.ALL), features, limits)
        self.driver.emulator = Lockstep() if runs else Idle()
        self.driver.emulator.device = self.device  # with its subgroups and matrix units

    def kernels(self) -> dict[str, Kernel]:
        """All that was rendered so far, in normal form, by symbol."""
        return {symbol: normalise(kernel) for symbol, kernel in self.driver.kernels.items()}
