"""A GPU in the host's memory: the driver that `backends.gpu.backend` needs, with kernels run by the emulator.

Work is queued as on a stream and done when a caller waits, so a test sees what would go wrong if anything relied on a
run being over when `run` returns. Freed memory is overwritten in order with the work around it. As with CUDA's
contexts, the calls of a thread mean the GPU that the thread activated last.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.unit.lockstep import Lockstep
from weft.backends.gpu.backend import GpuBackend
from weft.base import dtypes
from weft.base.capabilities import Features
from weft.base.errors import OutOfMemoryError, problem
from weft.jit import code_loads
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import Device
from weft.plan.plan import Code
from weft.render.dialects.tables import CUDA

code_loads.add_library(__file__)  # a trace that asks for memory does not depend on the driver's own state
FREED = 0xA5
normal_form = functools.cache(normalise)
_current = threading.local()


class FakeDriver:
    """Memory of `total` bytes. `log` holds the names of what was put on the stream, in order."""

    can_capture_graphs = True

    def __init__(self, total: int = 1 << 26):
        self.total, self.used = total, 0
        self.memories: dict[int, np.ndarray] = {}
        self.starts: list[int] = []
        self.queue: list[Callable[[], None]] = []
        self.recording: list[Callable[[], None]] | None = None
        self.log: list[str] = []
        self.kernels: dict[str, Kernel] = {}  # as they were scheduled
        self.emulator = Lockstep()

    # --- the stream ---

    def close(self) -> None:
        """Nothing: the host's memory is dropped with the driver."""

    def activate(self) -> None:
        _current.driver = self

    def check(self) -> None:
        assert getattr(_current, "driver", None) is self, "another GPU, or none, is current in this thread"

    def put(self, name: str, work: Callable[[], None]) -> None:
        self.check()
        self.log.append(name)
        (self.queue if self.recording is None else self.recording).append(work)

    def synchronise(self) -> None:
        self.check()
        assert self.recording is None
        queue, self.queue = self.queue, []
        for work in queue:
            work()

    def capture_graph(self, enqueue: Callable[[], None]) -> list[Callable[[], None]]:
        self.recording = []
        try:
            enqueue()
            return self.recording
        finally:
            self.recording = None
            self.log.append("record")

    def call_outside_capture(self, work: Callable[..., Any], *args: Any) -> Any:
        before = self.recording
        try:
            self.recording = None
            return work(*args)
        finally:
            self.recording = before

    def replay_graph(self, graph: list[Callable[[], None]]) -> None:
        self.put("replay", lambda: [work() for work in graph] and None)

    def destroy_graph(self, graph: Any) -> None:
        self.check()
        assert self.recording is None
        self.log.append("discard")

    # --- time ---

    def create_event(self) -> list[float]:
        return []

    def record_event(self, event: list[float]) -> None:
        self.put("mark", lambda: event.append(time.perf_counter()))

    def seconds_between(self, first: list[float], second: list[float]) -> float:
        assert self.recording is None
        return second[-1] - first[-1]

    # --- memory ---

    def reserved_bytes(self) -> int:
        self.check()
        return self.used

    def release_unused(self) -> None:
        self.check()
        self.log.append("trim")

    def allocate(self, nbytes: int) -> int:
        self.check()
        assert self.recording is None, "memory may not be allocated while a graph is recorded"
        if self.used + nbytes > self.total:
            raise problem(OutOfMemoryError, "fake", f"{nbytes} bytes")
        self.used += nbytes
        return self._memory(nbytes)

    def allocate_arena(self, nbytes: int) -> int:
        return self.allocate(nbytes)

    def _memory(self, nbytes: int) -> int:
        array = np.full(nbytes + 64, FREED, np.uint8)
        pointer = self._address(array)
        self.memories[pointer] = array
        bisect.insort(self.starts, pointer)
        return pointer

    def _address(self, array: np.ndarray) -> int:
        """What the device calls memory: here, where it lies on the host, at a multiple of 64."""
        return array.ctypes.data + -array.ctypes.data % 64

    def _host(self, pointer: int) -> int:
        """Where the host finds what the device calls `pointer`."""
        return pointer

    def free(self, pointer: int) -> None:
        assert self.recording is None, "memory may not be freed while a graph is recorded"
        self.used -= len(self.memories[pointer]) - 64
        self.put("free", lambda: self._forget(pointer))

    def _forget(self, pointer: int) -> None:
        self.memories.pop(pointer)[:] = FREED
        self.starts.remove(pointer)

    def host_visible_memory(self, nbytes: int) -> int:
        return self._memory(nbytes)

    def upload_new(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes)
        self.upload(pointer, address, nbytes)
        return pointer

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        data = ctypes.string_at(address, nbytes)
        self.put("upload", lambda: ctypes.memmove(self._host(pointer), data, nbytes) and None)

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        self.synchronise()
        ctypes.memmove(address, self._host(pointer), nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.put("copy", lambda: ctypes.memmove(self._host(target), self._host(source), nbytes) and None)

    def clear(self, pointer: int, nbytes: int) -> None:
        self.put("clear", lambda: ctypes.memset(self._host(pointer), 0, nbytes) and None)

    def memory(self) -> tuple[int, int]:
        return self.total - self.used, self.total

    # --- kernels ---

    def load_kernels(self, codes: Sequence[Code]) -> list[Kernel]:
        return [self.kernels[code.symbol] for code in codes]

    def make_launcher(
        self, function: Kernel, workgroups: int, lanes: int, shared_bytes: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        def value(at: int, dtype: dtypes.DType) -> Any:
            return np.frombuffer(ctypes.string_at(ctypes.addressof(words) + 8 * at, 8), dtype.numpy)[0]

        def launch() -> None:
            scalars = tuple([value(at, param.dtype) for at, param in enumerate(function.scalars, buffers)])
            pointers, extent = list(words[:buffers]), words[-1]
            self.put("launch", lambda: self._run(function, pointers, scalars, extent))

        return launch

    def _run(self, kernel: Kernel, pointers: list[int], scalars: tuple, extent: int) -> None:
        bound = zip(pointers, kernel.buffers, strict=True)
        self.emulator.launch(
            normal_form(kernel), [self._array(at, param.dtype) for at, param in bound], scalars, extent
        )

    def _array(self, pointer: int, dtype: dtypes.DType) -> np.ndarray:
        """Everything from an address to the end of its allocation."""
        if not pointer:
            return np.empty(0, dtype.numpy)
        memory, at = self.memories[self._start(pointer)], self._host(pointer)
        left = memory.ctypes.data + len(memory) - at
        raw = (ctypes.c_uint8 * (left // dtype.itemsize * dtype.itemsize)).from_address(at)
        return np.frombuffer(raw, np.uint8).view(dtype.numpy)

    def _start(self, pointer: int) -> int:
        """The beginning of the allocation that `pointer` lies in."""
        return self.starts[bisect.bisect_right(self.starts, pointer) - 1]


class HandleDriver(FakeDriver):
    """Less than CUDA has: no graphs, no memory that the host sees, and handles instead of addresses. Each handle has a
    range of numbers, in which the device's programs count."""

    can_capture_graphs = False

    def host_visible_memory(self, nbytes: int) -> int:
        return 0

    def _address(self, array: np.ndarray) -> int:
        return (self.starts[-1] if self.starts else 0) + (1 << 32)

    def _host(self, pointer: int) -> int:
        start = self._start(pointer)
        return super()._address(self.memories[start]) + pointer - start


class FakeGpu(GpuBackend):
    """One device: a driver, a dialect, and what kernels for the device may use."""

    dialect = CUDA

    def __init__(self, total: int = 1 << 26, kind: type[FakeDriver] = FakeDriver):
        self.driver: FakeDriver
        driver = kind(total)
        with self.opening(driver):
            super().__init__(driver)
            features = Features(workgroups=True, scalar_arguments=True)
            self.device = Device("fake", 0, self, "in the host's memory", frozenset(dtypes.ALL), features)

    def render(self, kernel: Kernel) -> Code:
        code = super().render(kernel)
        self.driver.kernels[code.symbol] = kernel
        return code

    def identity(self) -> None:
        """Plans are not kept: the driver needs the kernels themselves."""


class FakePlatform:
    """All devices of the kind `fake`: what an entry of `weft.backends.registry.BACKENDS` names."""

    reason = ""

    def __init__(self) -> None:
        self._gpus = [FakeGpu()]

    def devices(self) -> list[Device]:
        return [gpu.device for gpu in self._gpus]
