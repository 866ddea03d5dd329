"""The null backend: compiles everything, runs nothing. For tests of the compiler; reading a value raises."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from weft.base import dtypes
from weft.base.capabilities import Features
from weft.base.dtypes import DType
from weft.base.errors import DeviceError, problem
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Buffer, Device, Explain, HostWords, Slab
from weft.plan.plan import Code, Plan, code_of
from weft.render.llvm.module import render, symbol_of


class NullExecutable:
    """A plan that was compiled; running it does nothing."""

    def __init__(self, plan: Plan):
        self.plan = plan

    def run(self, slots: list[int], numbers: Sequence[float] = ()) -> None:
        """Nothing happens."""


class NullBackend:
    """Device `null`. Memory has sizes but no contents."""

    runs_ahead = False

    def __init__(self) -> None:
        self._device = Device(
            "null", 0, self, "compiles, runs nothing", frozenset(dtypes.ALL), Features(cpu_templates=True)
        )
        self._next = 64

    def devices(self) -> list[Device]:
        return [self._device]

    def allocate(self, nbytes: int) -> Slab:
        pointer, self._next = self._next, self._next + -(-max(nbytes, 1) // 64) * 64
        return Slab(self._device, nbytes, pointer, None)

    def require(self, nbytes: int) -> None:
        """There is no end to it."""

    def memory(self) -> tuple[int, int]:
        return sys.maxsize, sys.maxsize

    def arena(self, nbytes: int) -> Slab:
        return self.allocate(nbytes)

    def slot_table(self, count: int) -> list[int]:
        return [0] * count

    def executable(self, plan: Plan) -> NullExecutable:
        return NullExecutable(plan)

    def render(self, kernel: Kernel) -> Code:
        """The kernel's text, as the CPU would compile it."""
        text = render(normalise(kernel))
        return code_of(kernel, symbol_of(text), text)

    def identity(self) -> None:
        """Plans are not kept on disk: compiling them is all that this device is for."""

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of an array."""
        slab = self.allocate(array.nbytes)
        self.upload(Buffer(slab, 0, array.nbytes), array)
        return slab

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """The bytes are dropped."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """There is nothing to copy."""

    def clear(self, buffer: Buffer) -> None:
        """There is nothing to clear."""

    def host_words(self, nbytes: int) -> HostWords:
        return HostWords(self.allocate(nbytes), np.zeros(nbytes, np.uint8))

    def status(self, nbytes: int) -> Slab:
        return self.allocate(nbytes)

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """No run notes anything."""

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        raise problem(
            DeviceError,
            "numpy()",
            "a tensor on the null device, which runs nothing",
            "a device that computes",
            "use .to('cpu')",
        )

    peek = download

    def counts(self) -> None:
        """Memory is not counted."""

    def empty_cache(self) -> None:
        """Nothing is kept for reuse."""

    def synchronise(self) -> None:
        """Nothing is ever in flight."""
