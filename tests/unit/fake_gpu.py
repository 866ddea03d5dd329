"""A GPU without hardware: the driver of `backends.gpu` on host memory, and a device like a CUDA one on top of it.

`HostDriver` queues what is enqueued and does it when somebody waits, as late as a real GPU may: memory that is read
before that is found out. What a launch does is `run`'s business: nothing (to collect kernels), or the emulator's.
Memory that is freed is overwritten; freeing twice and touching what was never allocated are errors.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.unit.emulator import Emulator
from tests.unit.gpu_harness import bytes_at
from weft import dtypes
from weft.backends import cuda
from weft.backends.base import Device
from weft.backends.gpu import GpuBackend
from weft.compiler.plan import Code
from weft.errors import OutOfMemoryError, problem
from weft.kernels.language import Kernel
from weft.kernels.normal import normalise
from weft.render.dialects import CUDA

HOPPER = {"threads": 1024, "subgroup": 32, "shared_bytes": 232448, "processors": 132, "vector_bytes": 16}
FREED = 0xAB

Run = Callable[[Kernel, list[np.ndarray], tuple, int], None]


def nothing(kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
    """A launch that does nothing."""


def emulated(kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
    """A launch on the emulator."""
    Emulator().launch(kernel, arrays, scalars, extent)


class HostDriver:
    """`backends.gpu.Driver` over host memory of `capacity` bytes; `calls` counts what was asked of it by name."""

    def __init__(self, run: Run = nothing, capacity: int = 1 << 30):
        self.run, self.capacity = run, capacity
        self.kernels: dict[str, Kernel] = {}  # by symbol
        self.calls: dict[str, int] = {}
        self.blocks: dict[int, np.ndarray] = {}  # what is allocated, by address
        self._queue: list[Callable[[], None]] = []
        self._recording: list[Callable[[], None]] | None = None
        self._shared: list[np.ndarray] = []

    def _count(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1

    def _enqueue(self, work: Callable[[], None]) -> None:
        (self._queue if self._recording is None else self._recording).append(work)

    # --- memory ---

    def memory(self) -> tuple[int, int]:
        return self.capacity - sum(block.nbytes for block in self.blocks.values()), self.capacity

    def allocate(self, nbytes: int) -> int:
        self._count("allocate")
        assert self._recording is None, "memory is not allocated while a graph is recorded"
        if nbytes > self.memory()[0]:
            raise problem(OutOfMemoryError, "allocate", f"{nbytes} bytes", "less")
        block = np.full(nbytes + 64, FREED, np.uint8)
        skew = -block.ctypes.data % 64
        block = block[skew : skew + nbytes]
        self.blocks[block.ctypes.data] = block
        return block.ctypes.data

    def free(self, pointer: int) -> None:
        self._count("free")
        block = self.blocks.pop(pointer)
        self._queue.append(lambda: block.fill(FREED))

    def shared_memory(self, nbytes: int) -> int:
        self._shared.append(np.zeros(nbytes, np.uint8))
        return self._shared[-1].ctypes.data

    def place(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes)
        self.upload(pointer, address, nbytes)
        return pointer

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        self._count("upload")
        data, target = bytes_at(address, nbytes).copy(), self._bytes(pointer, nbytes)
        self._enqueue(lambda: np.copyto(target, data))

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        self._count("download")
        self.synchronise()
        bytes_at(address, nbytes)[:] = self._bytes(pointer, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._count("copy")
        to, data = self._bytes(target, nbytes), self._bytes(source, nbytes)
        self._enqueue(lambda: np.copyto(to, data))

    def clear(self, pointer: int, nbytes: int) -> None:
        target = self._bytes(pointer, nbytes)
        self._enqueue(lambda: target.fill(0))

    def _bytes(self, pointer: int, nbytes: int | None = None) -> np.ndarray:
        """What is allocated from an address on: `nbytes` of it, or all to the end of its block."""
        for blocks in (self.blocks, {block.ctypes.data: block for block in self._shared}):
            starts = sorted(blocks)
            position = bisect.bisect(starts, pointer) - 1
            if position >= 0 and pointer < starts[position] + max(blocks[starts[position]].nbytes, 1):
                tail = blocks[starts[position]][pointer - starts[position] :]
                assert nbytes is None or nbytes <= tail.nbytes, "an access beyond the end of an allocation"
                return tail[:nbytes]
        raise AssertionError(f"an access to {pointer:#x}, where nothing is allocated")

    # --- kernels ---

    def functions(self, codes: Sequence[Code]) -> list[Kernel]:
        self._count("functions")
        return [self.kernels[code.symbol] for code in codes]

    def launch(self, function: Kernel, blocks: int, threads: int, shared: int, parameters: int) -> None:
        self._count("launch")
        if self.run is nothing:
            return
        count = len(function.buffers) + len(function.scalars) + len(function.ranges)
        words = [ctypes.c_uint64.from_address(at) for at in (ctypes.c_uint64 * count).from_address(parameters)]
        arrays = []
        for param, word in zip(function.buffers, words, strict=False):
            tail = self._bytes(word.value)
            arrays.append(tail[: tail.nbytes // param.dtype.itemsize * param.dtype.itemsize].view(param.dtype.numpy))
        given = words[len(arrays) : len(arrays) + len(function.scalars)]
        scalars = tuple(
            np.frombuffer(bytes(word), param.dtype.numpy, 1)[0]
            for param, word in zip(function.scalars, given, strict=True)
        )
        extent = words[-1].value
        self._enqueue(lambda: self.run(function, arrays, scalars, extent))

    # --- graphs ---

    def record(self, enqueue: Callable[[], None]) -> list[Callable[[], None]]:
        self._count("record")
        self._recording = []
        try:
            enqueue()
            return self._recording
        finally:
            self._recording = None

    def replay(self, graph: list[Callable[[], None]]) -> None:
        self._count("replay")
        self._queue.extend(graph)

    def discard(self, graph: list[Callable[[], None]]) -> None:
        self._count("discard")

    def synchronise(self) -> None:
        self._count("synchronise")
        queue, self._queue = self._queue, []
        for work in queue:
            work()


class FakeGpu(GpuBackend):
    """A device that the compiler takes for an NVIDIA GPU; all its kernels are in `host.kernels`."""

    dialect = CUDA

    def __init__(self, run: Run = nothing, capacity: int = 1 << 30, index: int = 0, libraries: dict | None = None):
        self.host = HostDriver(run, capacity)
        super().__init__(self.host)
        self.device = Device(
            "cuda", index, self, "no hardware", frozenset(dtypes.ALL), cuda.FEATURES, HOPPER, libraries or {}
        )

    def render(self, kernel: Kernel) -> Code:
        code = super().render(kernel)
        self.host.kernels[code.symbol] = normalise(kernel)
        return code

    def identity(self) -> None:
        """Plans are not kept."""

    def receive(self, buffer: Any) -> Any:
        """New memory with what lies on another such device."""
        buffer.slab.device.backend.synchronise()
        return self.place(bytes_at(buffer.pointer, buffer.nbytes))
