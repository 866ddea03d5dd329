"""A twin of a device that renders the same kernels and runs none, to collect the kernels of many programs at once.

Compilers of emulated devices take most of their time for each program rather than each kernel: what a twin collected is
compiled in bulk, and found in the driver's table when the programs run on the device itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.unit.fake_cuda import Idle
from tests.unit.fake_driver import FakeGpu
from weft.backends.gpu.backend import GpuBackend
from weft.kernels.ir.language import Kernel
from weft.plan.device import Device
from weft.plan.plan import Code

BULK = 48  # kernels that are compiled at a time


class Twin(FakeGpu):
    """Results are whatever lies in memory."""

    def __init__(self, device: Device):
        super().__init__(1 << 34)
        self.driver.emulator = Idle()
        assert isinstance(device.backend, GpuBackend)
        self.original = device.backend
        self.device = replace(device, backend=self)
        self.codes: dict[str, Code] = {}

    def render(self, kernel: Kernel) -> Code:
        code = self.original.render(kernel)
        self.codes[code.symbol] = code
        self.driver.kernels[code.symbol] = kernel
        return code

    def compile_collected(self) -> None:
        """Compile everything for the device itself."""
        codes = list(self.codes.values())
        for first in range(0, len(codes), BULK):
            self.original.driver.load_kernels(codes[first : first + BULK])


def compile_programs(device: Device, programs: Iterable[Callable[[Device], object]]) -> None:
    """Compile the kernels of many programs, functions of a device, together. Where the numbers that a program reads
    decide what it computes next, a twin cannot know it: what it missed is compiled when it runs."""
    twin = Twin(device)
    for program in programs:
        program(twin.device)
        twin.synchronise()
    twin.compile_collected()
