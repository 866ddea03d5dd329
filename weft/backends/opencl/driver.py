"""An OpenCL device: `backends.gpu.driver.Driver` through OpenCL's own functions.

Everything runs in order on one queue. Memory objects have no addresses, so `HandleMemory` gives each a range of
integers; a launch passes a memory object and an offset for each buffer. A launch has a kernel object of its own, of
which only the arguments that changed are set again. A graph is a list of kernel objects whose arguments are all set:
replaying it is one call of native code, which enqueues them all (`backends.opencl.replay`), and a flush.

Times are those of a second queue, which records them: it takes over, in order, from the first event that is made until
the device is next waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.gpu.handles import RANGE_ALIGNMENT, HandleMemory
from weft.backends.gpu.opened import close_on_failure
from weft.backends.gpu.run_ahead import RunAhead
from weft.backends.opencl import library
from weft.backends.opencl.compile import Compiler
from weft.backends.opencl.library import call, create, make_error
from weft.backends.opencl.pocl import name_unknown_processor
from weft.backends.opencl.replay import Launches, enqueue_all
from weft.base import host_memory
from weft.base.counters import COUNTERS
from weft.base.errors import DeviceError, OutOfMemoryError, exceeds_allocation, out_of_memory, problem
from weft.base.locks import new_lock
from weft.plan.plan import Code

MAX_STAGED_BYTES = 64 << 20  # larger arrays are copied before `upload` returns
MAX_PENDING_BYTES = 256 << 20  # of copies of host memory that are on their way
MAX_PENDING_UPLOADS = 256  # such copies; a step that draws random numbers sends a small one
LAUNCHES_BEFORE_FLUSH = 16
ZERO = (ctypes.c_uint64 * 1)(0)  # the pattern that memory is cleared with


class _Function:
    """A compiled kernel: its program, and the bytes of each scalar argument."""

    __slots__ = ("name", "program", "scalar_bytes")

    def __init__(self, program: int, code: Code):
        self.program, self.name = program, code.symbol
        self.scalar_bytes = [*[param.dtype.itemsize for param in code.scalars], 8, 8]  # the last two: the range


class _Kernel:
    """A kernel object with its own arguments."""

    __slots__ = ("_driver", "_function", "_place", "_values", "buffers", "handle")

    def __init__(self, driver: OpenClDriver, function: _Function, buffers: int):
        self._driver, self._function, self.buffers = driver, function, buffers
        self.handle = 0
        self.handle = create("clCreateKernel", function.program, function.name.encode())
        self._values: list[int | None] = [None] * (buffers + len(function.scalar_bytes))
        self._place = ctypes.c_uint64()

    def __del__(self) -> None:
        if self.handle:
            self._driver.dropped.append(self.handle)

    def set_arguments(self, words: ctypes.Array) -> None:
        """Set those that changed since the last call."""
        values, buffers = self._values, self.buffers
        for number, word in enumerate(words):
            if word != values[number]:
                values[number] = None  # until it is set: a signal handler may raise meanwhile
                if number < buffers:
                    handle, offset = self._driver.pool.split(word)
                    self._set(2 * number, handle or 0, 8)
                    self._set(2 * number + 1, offset, 8)
                else:
                    self._set(buffers + number, word, self._function.scalar_bytes[number - buffers])
                values[number] = word

    def _set(self, number: int, value: int, nbytes: int) -> None:
        self._place.value = value
        call("clSetKernelArg", self.handle, number, nbytes, ctypes.addressof(self._place))


class _Event:
    """A time of the device. Released where it is dropped, which waits for nothing."""

    __slots__ = ("_release", "handle")

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        self._release = library.loader().clReleaseEvent

    def clear(self) -> None:
        if self.handle.value:
            self._release(self.handle)
            self.handle.value = None

    def __del__(self) -> None:
        self.clear()


class _Upload:
    """A copy of host memory that the device reads, and the event of that. `is_entering` until the call that enqueues it
    has returned or failed: what a signal handler computes in between does not drop it."""

    __slots__ = ("data", "event", "is_entering", "nbytes")

    def __init__(self, nbytes: int):
        self.data, self.event, self.nbytes = ctypes.create_string_buffer(nbytes), _Event(), nbytes
        self.is_entering = True


Recorded = tuple[_Kernel, int, int]  # a kernel, lanes in all, lanes of a workgroup


class _Graph:
    """What is replayed: kernels with all their arguments, and the launches of them."""

    __slots__ = ("kernels", "launches")

    def __init__(self, recorded: list[Recorded]):
        self.kernels = [kernel for kernel, _, _ in recorded]
        lanes, workgroups = [total for _, total, _ in recorded], [group for _, _, group in recorded]
        self.launches = Launches.of([kernel.handle for kernel in self.kernels], lanes, workgroups)


class OpenClDriver:
    """One device; `subgroups` says whether its kernels use them. Where opening it fails, what was opened is
    released."""

    can_capture_graphs = True

    def __init__(self, device: int, subgroups: bool = False):
        self.handle = device
        self.name: str = library.query(device, "name")
        self.largest: int = library.query(device, "largest_allocation") // RANGE_ALIGNMENT * RANGE_ALIGNMENT
        self.dropped: deque[int] = deque()  # kernel objects that nothing refers to any more
        self._pending: deque[_Upload] = deque()  # those under way
        self._since_flush = 0
        self._ahead = RunAhead(self._enqueue_mark, _wait_for)
        self._recording: list[Recorded] | None = None
        self._functions: dict[tuple, _Function] = {}
        self._loading = new_lock()
        name_unknown_processor(device)
        handles = ctypes.c_void_p(device)
        self.context = create("clCreateContext", None, 1, ctypes.addressof(handles), None, None)
        self.queue = self._plain = self._timed = self._mark = 0
        with close_on_failure(self):
            self._plain = self.queue = create("clCreateCommandQueue", self.context, device, 0)
            self.pool = HandleMemory(
                self._create_buffer, lambda handle: call("clReleaseMemObject", handle), self.synchronise,
                _memory_of(device), self.name, self.largest,
            )  # fmt: skip
            self.compiler = Compiler(self.context, device, subgroups)

    def close(self) -> None:
        if self._plain:
            call("clReleaseCommandQueue", self._plain)
        call("clReleaseContext", self.context)

    # --- the queue ---

    def activate(self) -> None:
        """Release what was dropped meanwhile: calls name the device they mean."""
        while self.dropped:
            call("clReleaseKernel", self.dropped.popleft())

    def synchronise(self) -> None:
        self._ahead.wait()
        call("clFinish", self.queue)
        self._forget_uploads()
        self._use(self._plain)

    def _use(self, queue: int) -> None:
        """What is enqueued from now on goes to `queue`, and runs after all that was enqueued before."""
        if queue == self.queue:
            return
        event = self._enqueue_mark()
        call("clFlush", self.queue)
        call("clEnqueueBarrierWithWaitList", queue, 1, ctypes.addressof(event.handle), None)
        self.queue = queue

    def _enqueue_mark(self) -> _Event:
        """An event that is complete when all that was enqueued before is."""
        event = _Event()
        call("clEnqueueMarkerWithWaitList", self.queue, 0, None, ctypes.addressof(event.handle))
        return event

    # --- memory ---

    def _create_buffer(self, nbytes: int) -> int:
        return create("clCreateBuffer", self.context, library.MEM_READ_WRITE, nbytes, None)

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.largest:
            raise exceeds_allocation(self.name, nbytes, self.largest)
        return self.allocate_arena(nbytes)

    def allocate_arena(self, nbytes: int) -> int:
        try:
            return self.pool.allocate_pieces(nbytes)
        except OutOfMemoryError:
            raise out_of_memory(self.name, nbytes, *self.memory()) from None

    def free(self, pointer: int) -> None:
        self.pool.free(pointer)

    def host_visible_memory(self, nbytes: int) -> int:
        return 0

    def memory(self) -> tuple[int, int]:
        return self.pool.memory()

    def reserved_bytes(self) -> int:
        return self.pool.reserved

    def release_unused(self) -> None:
        self.pool.release_unused()

    # --- transfers ---

    def upload_new(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes)
        try:
            self.upload(pointer, address, nbytes)
        except BaseException:
            self.free(pointer)
            raise
        return pointer

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        """From a copy of host memory, which is kept until it was read."""
        handle, offset = self.pool.split(pointer)
        if nbytes > MAX_STAGED_BYTES:
            call("clEnqueueWriteBuffer", self.queue, handle, 1, offset, nbytes, address, 0, None, None)
            return
        self._forget_uploads()
        upload = _Upload(nbytes)
        data, place = ctypes.addressof(upload.data), ctypes.addressof(upload.event.handle)
        ctypes.memmove(data, address, nbytes)
        try:
            self._pending.append(upload)  # before the call, after which a signal handler may raise
            call("clEnqueueWriteBuffer", self.queue, handle, 0, offset, nbytes, data, 0, None, place)
        finally:
            upload.is_entering = False

    def _forget_uploads(self) -> None:
        """Drop copies of host memory that were read; wait for the first where they are too many. A signal handler may
        have dropped one meanwhile."""
        status, pending = ctypes.c_int32(), self._pending
        for upload in list(pending):
            if upload.is_entering:
                return
            if upload.event.handle.value:  # else it was never enqueued
                nbytes = sum(one.nbytes for one in list(pending))
                if nbytes > MAX_PENDING_BYTES or len(pending) > MAX_PENDING_UPLOADS:
                    _wait_for(upload.event)
                place = ctypes.addressof(status)
                call("clGetEventInfo", upload.event.handle, library.EVENT_STATUS, 4, place, None)
                if status.value > library.COMPLETE:
                    return
            with contextlib.suppress(ValueError):
                pending.remove(upload)

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        handle, offset = self.pool.split(pointer)
        self._ahead.wait()
        call("clEnqueueReadBuffer", self.queue, handle, 1, offset, nbytes, address, 0, None, None)
        self._forget_uploads()  # all but those of a signal handler: the queue is in order, and was waited for

    def copy(self, target: int, source: int, nbytes: int) -> None:
        (to, to_at), (of, of_at) = self.pool.split(target), self.pool.split(source)
        call("clEnqueueCopyBuffer", self.queue, of, to, of_at, to_at, nbytes, 0, None, None)
        self._ahead.count(1)

    def clear(self, pointer: int, nbytes: int) -> None:
        handle, offset = self.pool.split(pointer)
        size = 4 if offset % 4 == nbytes % 4 == 0 else 1
        call("clEnqueueFillBuffer", self.queue, handle, ZERO, size, offset, nbytes, 0, None, None)
        self._ahead.count(1)

    # --- kernels ---

    def load_kernels(self, codes: Sequence[Code]) -> list[_Function]:
        with self._loading:  # loops in here may miss the end of the block when interrupted: see weft/base/locks.py
            return self._load_missing(codes)

    def _load_missing(self, codes: Sequence[Code]) -> list[_Function]:
        keys = [(code.symbol, code.packed) for code in codes]
        missing = {key: code for key, code in zip(keys, codes, strict=True) if key not in self._functions}
        COUNTERS.kernels_reused += len(codes) - len(missing)
        programs = self.compiler.programs(list(missing.values()))
        for (key, code), program in zip(missing.items(), programs, strict=True):
            self._functions[key] = _Function(program, code)
        return [self._functions[key] for key in keys]

    def make_launcher(
        self, function: _Function, workgroups: int, lanes: int, shared_bytes: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        kernel = self._make_kernel(function, buffers)
        handle, total, group = kernel.handle, (ctypes.c_size_t * 1)(workgroups * lanes), (ctypes.c_size_t * 1)(lanes)
        enqueue = library.loader().clEnqueueNDRangeKernel

        def launch() -> None:
            if self._recording is not None:
                fixed = self._make_kernel(function, buffers)
                fixed.set_arguments(words)
                self._recording.append((fixed, total[0], group[0]))
                return
            kernel.set_arguments(words)
            status = enqueue(self.queue, handle, 1, None, total, group, 0, None, None)
            if status:
                raise make_error("clEnqueueNDRangeKernel", status)
            self._since_flush += 1
            if self._since_flush == LAUNCHES_BEFORE_FLUSH:
                self._since_flush = 0
                call("clFlush", self.queue)
            self._ahead.count(1)

        return launch

    def _make_kernel(self, function: _Function, buffers: int) -> _Kernel:
        try:
            return _Kernel(self, function, buffers)
        except DeviceError as error:
            raise problem(DeviceError, function.name, f"a kernel that {self.name} does not load: {error}") from error

    # --- graphs ---

    def capture_graph(self, enqueue: Callable[[], None]) -> _Graph:
        recorded = self._recording = []
        try:
            enqueue()
        finally:
            self._recording = None
        return _Graph(recorded)

    def call_outside_capture(self, work: Callable[..., Any], *args: Any) -> Any:
        before = self._recording
        try:
            self._recording = None
            return work(*args)
        finally:
            self._recording = before

    def replay_graph(self, graph: _Graph) -> None:
        enqueue_all(self.queue, graph.launches)
        call("clFlush", self.queue)
        self._ahead.count(graph.launches.length)

    def destroy_graph(self, graph: _Graph) -> None:
        """Nothing: its kernel objects are released with it, and what is under way keeps them."""

    # --- time ---

    def create_event(self) -> _Event:
        self._mark = self._mark or self.pool.allocate(4)
        if not self._timed:
            self._timed = create("clCreateCommandQueue", self.context, self.handle, library.QUEUE_PROFILING)
        self._use(self._timed)
        return _Event()

    def record_event(self, event: _Event) -> None:
        """The end of a fill of four bytes: not all drivers give markers a time."""
        event.clear()
        self._use(self._timed)
        handle, place = self.pool.split(self._mark)[0], ctypes.addressof(event.handle)
        call("clEnqueueFillBuffer", self.queue, handle, ZERO, 4, 0, 4, 0, None, place)

    def seconds_between(self, first: _Event, second: _Event) -> float:
        return (_end(second) - _end(first)) * 1e-9


def _memory_of(device: int) -> int:
    """The bytes that may be allocated. A CPU says how much memory the machine has, and the process that touches more
    than is free is killed."""
    is_cpu = library.query(device, "type") & library.DEVICE_TYPE_CPU
    return min(library.query(device, "memory"), host_memory.memory()[0] if is_cpu else host_memory.UNKNOWN)


def _wait_for(event: _Event) -> None:
    call("clWaitForEvents", 1, ctypes.addressof(event.handle))


def _end(event: _Event) -> int:
    """When a command ended, in nanoseconds."""
    time = ctypes.c_uint64()
    call("clGetEventProfilingInfo", event.handle, library.PROFILING_END, 8, ctypes.addressof(time), None)
    return time.value
