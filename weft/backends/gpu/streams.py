"""A `Driver` over a runtime with streams, stream-ordered memory, events, modules and graphs: CUDA's driver and HIP's
runtime, which have the same functions under two prefixes.

Two streams: everything runs on `stream`; `upload_new` copies new data on a second one, from pinned memory, and `stream`
waits only for that copy. Memory comes from the GPU's stream-ordered pool, which keeps what is freed. A subclass gives
the functions (`function`, `call`), the compiler, and what differs.
"""

from __future__ import annotations

import contextlib
import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.gpu.backend import GpuBackend
from weft.backends.gpu.opened import close_on_failure
from weft.base.counters import COUNTERS
from weft.base.errors import DeviceError, OutOfMemoryError, out_of_memory, problem
from weft.base.locks import new_lock
from weft.plan.device import Buffer, Slab
from weft.plan.plan import Code

COPY_BYTES = 16  # bytes of the largest copy of a lane
MIN_PINNED_BYTES = 1 << 16  # bytes of pinned memory that are allocated at a time, at least
MAX_STAGED_BYTES = 64 << 20  # larger arrays are copied without pinned memory
NON_BLOCKING = 1  # a stream that does not wait for the default stream
HOST_MAPPED = 2  # pinned memory that the device sees, too
WITHOUT_TIMING = 2  # of an event


class _Staging:
    """A piece of pinned memory and the event after which it may be used again."""

    __slots__ = ("event", "nbytes", "pointer")

    def __init__(self, gpu: StreamDriver, nbytes: int):
        self.nbytes = nbytes
        self.pointer = int(gpu.call("MemHostAlloc", nbytes, 0))
        self.event = gpu.call("EventCreate", WITHOUT_TIMING)


class _Event:
    """An event with a time. Destroyed where it is dropped, which enqueues nothing and waits for nothing."""

    __slots__ = ("_destroy", "handle")

    def __init__(self, gpu: StreamDriver) -> None:
        self.handle = gpu.call("EventCreate", 0)
        self._destroy = gpu.function("EventDestroy")

    def __del__(self) -> None:
        self._destroy(self.handle)


class StreamDriver(ABC):
    """One GPU. `open_streams` is called in `opening`, when the GPU is current in the thread."""

    can_capture_graphs = True
    name: str
    architecture: str
    capture_mode: Any  # of captures in which other threads may use the runtime

    # --- what a subclass gives ---

    @abstractmethod
    def function(self, name: str) -> Callable[..., Any]:
        """The runtime's function `name`, without its prefix: it returns a status, 0 for success, and its results."""

    @abstractmethod
    def call(self, name: str, *args: Any) -> Any:
        """What the runtime's function returns; raises what it reports."""

    @abstractmethod
    def make_error(self, name: str, status: Any) -> Exception:
        """The error for the status that function `name` reported."""

    @abstractmethod
    def activate(self) -> None:
        """Make this GPU the one that calls of this thread mean."""

    @abstractmethod
    def pool_bytes(self, kind: str) -> int:
        """'reserved' or 'used' bytes of the pool."""

    @abstractmethod
    def compile_kernels(self, codes: Sequence[Code]) -> list[bytes]:
        """Machine code for this GPU."""

    def prepare_function(self, function: Any, code: Code) -> None:  # noqa: B027 (HIP needs nothing)
        """What a kernel needs before its first launch."""

    def opening(self) -> contextlib.AbstractContextManager[None]:
        """Around everything that opens the GPU."""
        self._streams: list[Any] = []
        return close_on_failure(self)

    def close(self) -> None:
        """Destroy the streams: nothing was enqueued."""
        while self._streams:
            self.function("StreamDestroy")(self._streams.pop())

    def open_streams(self, pool: Any) -> None:
        self.pool = pool
        for _ in range(2):
            self._streams.append(self.call("StreamCreate", NON_BLOCKING))
        self.stream, self.copies = self._streams
        self._functions: dict[tuple, Any] = {}
        self._loading = new_lock()
        self._spare, self._spare_end = 0, 0
        self._staging: list[_Staging] = []
        self._enqueue_graph = self.function("GraphLaunch")

    # --- memory ---

    def memory(self) -> tuple[int, int]:
        free, total = self.call("MemGetInfo")
        return free + self.pool_bytes("reserved") - self.pool_bytes("used"), total

    def reserved_bytes(self) -> int:
        return self.pool_bytes("reserved")

    def release_unused(self) -> None:
        self.synchronise()  # what was freed in order with runs is free when they are over
        self.call("MemPoolTrimTo", self.pool, 0)

    def allocate_arena(self, nbytes: int) -> int:
        return self.allocate(nbytes)

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        """Multiples of `COPY_BYTES` bytes. A copy may read less than that; a tool that checks accesses would report it
        as an error at the end of an allocation, as it does not know how much was asked for."""
        stream = self.stream if stream is None else stream
        whole = -(-nbytes // COPY_BYTES) * COPY_BYTES
        try:
            return int(self.call("MemAllocAsync", whole, stream))
        except OutOfMemoryError:
            self.release_unused()  # what was freed may lie in pieces
        try:
            return int(self.call("MemAllocAsync", whole, stream))
        except OutOfMemoryError:
            raise out_of_memory(self.name, nbytes, *self.memory()) from None

    def free(self, pointer: int) -> None:
        self.function("MemFreeAsync")(pointer, self.stream)  # a lost device is reported by other calls

    def host_visible_memory(self, nbytes: int) -> int:
        if self._spare + nbytes > self._spare_end:
            size = max(MIN_PINNED_BYTES, nbytes)
            self._spare = int(self.call("MemHostAlloc", size, HOST_MAPPED))
            self._spare_end = self._spare + size
        pointer, self._spare = self._spare, self._spare + nbytes
        return pointer

    def upload_new(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes, self.copies)
        if nbytes > MAX_STAGED_BYTES:
            self.call("MemcpyHtoDAsync", pointer, address, nbytes, self.copies)
            self.call("StreamSynchronize", self.copies)
            return pointer
        staging = self.copy_staged(pointer, address, nbytes, self.copies)
        self.call("StreamWaitEvent", self.stream, staging.event, 0)
        self._staging.append(staging)
        return pointer

    def copy_staged(self, pointer: int, address: int, nbytes: int, stream: Any) -> _Staging:
        """Copy host memory by way of pinned memory, which is the caller's to put back."""
        staging = self._take_staging(nbytes)
        ctypes.memmove(staging.pointer, address, nbytes)
        self.call("MemcpyHtoDAsync", pointer, staging.pointer, nbytes, stream)
        self.call("EventRecord", staging.event, stream)
        return staging

    def _take_staging(self, nbytes: int) -> _Staging:
        """Pinned memory whose last copy is over, and that nobody else takes: a signal handler may upload something,
        too."""
        is_over = self.function("EventQuery")
        for staging in list(self._staging):
            if nbytes <= staging.nbytes <= 4 * max(nbytes, MIN_PINNED_BYTES) and is_over(staging.event)[0] == 0:
                with contextlib.suppress(ValueError):  # of a signal handler that was faster
                    self._staging.remove(staging)
                    return staging
        return _Staging(self, 1 << max(nbytes - 1, MIN_PINNED_BYTES - 1).bit_length())

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        self.call("MemcpyHtoDAsync", pointer, address, nbytes, self.stream)  # pageable memory is read before it returns

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        self.call("MemcpyDtoHAsync", address, pointer, nbytes, self.stream)
        self.call("StreamSynchronize", self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.call("MemcpyDtoDAsync", target, source, nbytes, self.stream)

    @abstractmethod
    def copy_from(self, target: int, other: Any, source: int, nbytes: int) -> None:
        """From another GPU, on which nothing is under way any more."""

    def clear(self, pointer: int, nbytes: int) -> None:
        self.call("MemsetD8Async", pointer, 0, nbytes, self.stream)

    # --- kernels ---

    def load_kernels(self, codes: Sequence[Code]) -> list[Any]:
        self.activate()
        with self._loading:
            return self._load_modules(codes)

    def _load_modules(self, codes: Sequence[Code]) -> list[Any]:
        keys = [(code.symbol, code.packed, code.geometry) for code in codes]
        missing = {key: code for key, code in zip(keys, codes, strict=True) if key not in self._functions}
        COUNTERS.kernels_reused += len(codes) - len(missing)
        compiled = self.compile_kernels(list(missing.values()))
        for (key, code), image in zip(missing.items(), compiled, strict=True):
            self._functions[key] = self._load(code, image)
        return [self._functions[key] for key in keys]

    def _load(self, code: Code, image: bytes) -> Any:
        try:
            function = self.call("ModuleGetFunction", self.call("ModuleLoadData", image), code.symbol.encode())
            self.prepare_function(function, code)
        except DeviceError as error:
            given = f"a kernel that {self.name} does not load: {error}\n{code.text}"
            raise problem(DeviceError, code.name, given, "machine code for this GPU") from error
        return function

    def make_launcher(
        self, function: Any, workgroups: int, lanes: int, shared_bytes: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        start, enqueue, stream = ctypes.addressof(words), self.function("LaunchKernel"), self.stream
        parameters = (ctypes.c_void_p * len(words))(*[start + 8 * number for number in range(len(words))])
        address = ctypes.addressof(parameters)

        def launch(kept: Any = (words, parameters)) -> None:
            (status,) = enqueue(function, workgroups, 1, 1, lanes, 1, 1, shared_bytes, stream, address, 0)
            if status != 0:
                raise self.make_error("LaunchKernel", status)

        return launch

    # --- graphs ---

    def call_outside_capture(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)  # on the stream that is captured: there is no other

    def capture_graph(self, enqueue: Callable[[], None]) -> Any:
        destroy = self.function("GraphDestroy")
        try:
            self.call("StreamBeginCapture", self.stream, self.capture_mode)
            enqueue()
            graph = self.call("StreamEndCapture", self.stream)
        except BaseException:
            status, graph = self.function("StreamEndCapture")(self.stream)  # else nothing on it would ever run again
            if status == 0:
                destroy(graph)
            raise
        try:
            made = self.call("GraphInstantiate", graph, 0)
        finally:
            destroy(graph)
        self.function("GraphUpload")(made, self.stream)
        return made

    def replay_graph(self, graph: Any) -> None:
        (status,) = self._enqueue_graph(graph, self.stream)
        if status != 0:
            raise self.make_error("GraphLaunch", status)

    def destroy_graph(self, graph: Any) -> None:
        self.function("GraphExecDestroy")(graph)  # what is under way finishes

    def synchronise(self) -> None:
        self.call("StreamSynchronize", self.stream)

    # --- time ---

    def create_event(self) -> _Event:
        return _Event(self)

    def record_event(self, event: _Event) -> None:
        self.call("EventRecord", event.handle, self.stream)

    def seconds_between(self, first: _Event, second: _Event) -> float:
        return self.call("EventElapsedTime", first.handle, second.handle) * 1e-3


class StreamBackend(GpuBackend):
    """A GPU with such a driver, which reads the memory of other GPUs of its kind."""

    driver: StreamDriver

    def receive(self, buffer: Buffer) -> Slab:
        """New memory with what lies on another GPU, directly."""
        slab = self.allocate(buffer.nbytes)
        if buffer.nbytes:
            other = buffer.slab.device.backend
            assert isinstance(other, StreamBackend)
            other.synchronise()
            self.call_in_order(self.driver.copy_from, slab.pointer, other.driver, buffer.pointer, buffer.nbytes)
        return slab
