"""What all GPU backends share. A backend adds a `Driver`, the few calls of its vendor's runtime; plans are run on
it by `backends.gpu.execution`.

Work is put on the device's one stream by one thread at a time (`GpuBackend.call_in_order`); nothing waits. Memory is
allocated and freed in order with the runs around it. The temporaries of all plans share one arena, as runs follow each
other. What Python drops is noted wherever the collector happens to run, and given back by the next call: no finaliser
calls a driver or waits for a lock.

A run's end is known when something is read back: status words then say which indices left their axes, in memory
that host and device both see, where there is such memory. An error that comes late names what ran since the device was
last waited for; `WEFT_SYNC=1` waits after every step instead, and names the kernel.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.backends.gpu.driver import Driver
from weft.backends.gpu.execution import GpuExecutable
from weft.backends.gpu.limits import check_kernel, check_plan, check_whole_buffers
from weft.backends.gpu.opened import close_on_failure
from weft.base.counters import COUNTERS
from weft.base.dtypes import DType, uint8
from weft.base.errors import DeviceError, OutOfMemoryError, problem
from weft.base.locks import new_lock
from weft.kernels.ir.language import Kernel
from weft.kernels.ir.normalize import normalise
from weft.plan.device import (
    Buffer,
    Device,
    DeviceLost,
    Explain,
    HostWords,
    MemoryCounts,
    Slab,
    empty_array,
    raise_bad_index,
)  # fmt: skip
from weft.plan.plan import Code, Plan, code_of, iterate_steps
from weft.render.clike import module as clike_module
from weft.render.dialects.tables import Dialect

MAX_PENDING_RUNS = 256  # runs whose status words are not checked yet
MAX_RECENT_PLANS = 8  # plans that are remembered until the device is waited for
MAX_NAMED_KERNELS = 12  # kernels that an error names


class ForkedOrder:
    """The stream lock of a device that a forked process has from its parent: GPU runtimes do not survive a fork."""

    def __init__(self, backend: GpuBackend):
        self._name = str(backend.device)

    def __enter__(self) -> None:
        given = "a process that was forked after this GPU was used"
        fix = "start processes anew: multiprocessing.get_context('spawn')"
        raise problem(DeviceError, self._name, given, "the process that used it, or one that shares nothing", fix)

    def __exit__(self, *_: Any) -> None:
        """Never entered."""


# --- memory ----------------------------------------------------------------------------------------------------------


class _Block:
    """One allocation, freed when nothing refers to it."""

    __slots__ = ("backend", "nbytes", "pointer")

    def __init__(self, backend: GpuBackend, pointer: int, nbytes: int):
        self.backend, self.pointer, self.nbytes = backend, pointer, nbytes
        backend.memory_counts.take(nbytes, nbytes)

    def __del__(self) -> None:
        self.backend.dropped.append((self.backend.driver.free, self.pointer, self.nbytes))


class _Words:
    """A piece of memory for status words; reused by size."""

    __slots__ = ("free", "pointer")

    def __init__(self, pointer: int, free: list[int]):
        self.pointer, self.free = pointer, free

    def __del__(self) -> None:
        self.free.append(self.pointer)


class _SentWords(HostWords):
    """Host numbers that are sent with every run."""

    __slots__ = ("address", "backend")

    def __init__(self, slab: Slab, array: np.ndarray, backend: GpuBackend):
        super().__init__(slab, array)
        self.backend, self.address = backend, array.ctypes.data

    def send(self) -> None:
        backend = self.backend
        backend.call_in_order(backend.driver.upload, self.slab.pointer, self.address, self.slab.nbytes)


class GpuBackend:
    """One GPU. Subclasses give the driver, the dialect that kernels are printed in, and the device's description."""

    dialect: Dialect
    device: Device
    runs_ahead = True

    def __init__(self, driver: Driver):
        self.driver = driver
        self.order: Any = new_lock()  # of the stream
        self.is_enqueueing = False  # whether a plan is, by the thread that holds the lock
        self.is_capturing = False  # whether a graph is captured, by the same
        self.memory_counts = MemoryCounts()  # those of dropped memory and of the arena included
        self.dropped: deque[tuple[Callable[[Any], None], Any, int]] = deque()  # (how it is freed, what, its bytes)
        self.ran: deque[Plan] = deque(maxlen=MAX_RECENT_PLANS)  # since the device was last waited for
        self.executables: weakref.WeakSet[GpuExecutable] = weakref.WeakSet()
        self._free_words: dict[int, list[int]] = {}  # by size
        self._sees_words = False  # whether host and device share them
        self._pending: OrderedDict[Slab, tuple[Plan, Explain | None]] = OrderedDict()  # in the order of the runs
        self._arena: Slab | None = None
        _backends.add(self)

    @contextlib.contextmanager
    def opening(self, driver: Driver) -> Iterator[None]:
        """Around all that a constructor does with its driver: where it fails, the driver is closed, and the end of the
        process and forks do not look for this backend."""
        try:
            with close_on_failure(driver):
                yield
        except BaseException:
            _backends.discard(self)
            raise

    def devices(self) -> list[Device]:
        return [self.device]

    def call_in_order(self, work: Callable[..., Any], *args: Any) -> Any:
        """`work(*args)` while this thread, and no other, puts work on the device's stream. May be nested."""
        try:
            with self.order:
                self.driver.activate()
                if self.is_capturing:  # what a signal handler computes
                    return self.driver.call_outside_capture(work, *args)
                if self.dropped:
                    self.free_dropped()
                return work(*args)
        except DeviceLost as error:
            raise self.explain_loss(error) from error

    def free_dropped(self) -> None:
        """Free what Python dropped. Its order with the enqueued work is right: nothing can use it any more."""
        while self.dropped:
            release, what, nbytes = self.dropped.popleft()
            if nbytes:
                self.memory_counts.give(nbytes, nbytes)
            release(what)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of values that are retained between runs."""
        return self.call_in_order(lambda: self.memory_counts.allocated - self._idle_bytes)

    def require(self, nbytes: int) -> None:
        """Nothing: a GPU's driver gives no memory that is not there."""

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be had, and bytes in all."""
        (available, total), idle = self.call_in_order(lambda: (self.driver.memory(), self._idle_bytes))
        return available + idle, total

    def counts(self) -> tuple[MemoryCounts, int]:
        """What tensors, plans and the arena use, and what the driver keeps for this process."""
        reserved = self.call_in_order(self.driver.reserved_bytes)
        self.memory_counts.reserved_peak = max(self.memory_counts.reserved_peak, reserved)
        return self.memory_counts, reserved

    def empty_cache(self) -> None:
        """Return to the driver what no tensor uses: what was freed, the arena, and what plans keep between runs."""
        self.call_in_order(self._empty_cache)

    def _empty_cache(self) -> None:
        for executable in self.executables:
            executable.forget()
        self._arena = None
        self.free_dropped()
        self.driver.release_unused()

    def arena(self, nbytes: int) -> Slab:
        """Nothing: a run takes `shared_arena`."""
        return self.allocate(0)

    def shared_arena(self, nbytes: int) -> Slab:
        """Memory for the temporaries of a run. A run keeps it until all is enqueued; a signal handler may drop it."""
        arena = self._arena
        if arena is None or arena.nbytes < nbytes:
            self._arena = arena = None  # the new one may reuse its memory
            self.free_dropped()
            self._arena = arena = self.allocate_arena(nbytes)
        return arena

    def allocate_arena(self, nbytes: int) -> Slab:
        """Memory for temporaries, none of which is in two allocations of the device."""
        return self._allocate(nbytes, self.driver.allocate_arena)

    @property
    def _idle_bytes(self) -> int:
        """What is given up between runs where memory is short."""
        arena = self._arena.nbytes if self._arena is not None else 0
        return arena + sum(executable.idle_bytes for executable in self.executables)

    def allocate(self, nbytes: int) -> Slab:
        return self._allocate(nbytes, self.driver.allocate)

    def _allocate(self, nbytes: int, get: Callable[[int], int]) -> Slab:
        if not nbytes:
            return Slab(self.device, 0, 0, None)
        return self.call_in_order(lambda: self._slab(nbytes, self._allocate_or_evict(lambda: get(nbytes))))

    def allocate_optional(self, nbytes: int) -> Slab | None:
        """Memory that makes something faster, if it is there."""
        with contextlib.suppress(OutOfMemoryError):
            return self.call_in_order(lambda: self._slab(nbytes, self.driver.allocate(max(nbytes, 1))))
        return None

    def _slab(self, nbytes: int, pointer: int) -> Slab:
        return Slab(self.device, nbytes, pointer, _Block(self, pointer, nbytes))

    def _allocate_or_evict(self, get: Callable[[], int]) -> int:
        """What `get` allocates; where there is none, after what plans keep between runs to be faster is freed."""
        try:
            return get()
        except OutOfMemoryError:
            released = [executable.forget() for executable in self.executables]
            if not any(released) and self._arena is None:
                raise
            self._arena = None
            self.free_dropped()
        return get()

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of a contiguous array, which may change on return. Overlaps with what runs."""
        if not array.nbytes:
            return self.allocate(0)
        _count_upload(array.nbytes)
        address, nbytes = array.ctypes.data, array.nbytes
        return self.call_in_order(
            lambda: self._slab(nbytes, self._allocate_or_evict(lambda: self.driver.upload_new(address, nbytes)))
        )

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy a NumPy array of the buffer's size in."""
        if array.nbytes != buffer.nbytes:
            raise problem(DeviceError, "upload", f"an array of {array.nbytes} bytes", f"{buffer.nbytes} bytes")
        data = np.ascontiguousarray(array)
        _count_upload(data.nbytes)
        if data.nbytes:
            self.call_in_order(self.driver.upload, buffer.pointer, data.ctypes.data, data.nbytes)

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A NumPy array with the buffer's elements. Waits for what was enqueued before, and raises what went wrong."""
        array = empty_array(shape, dtype)
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += array.nbytes
        if array.nbytes:
            self.call_in_order(self._fetch, array, buffer.pointer, self._check)
        return array

    def peek(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """`download` that does not check for errors: it is used to find out about these."""
        array = empty_array(shape, dtype)
        if array.nbytes:
            self.call_in_order(self._fetch, array, buffer.pointer)
        return array

    def _fetch(self, array: np.ndarray, pointer: int, check: Callable[[], None] | None = None) -> None:
        self.driver.download(array.ctypes.data, pointer, array.nbytes)
        self.ran.clear()
        if check is not None:
            check()

    def copy(self, target: Buffer, source: Buffer) -> None:
        if source.nbytes:
            self.call_in_order(self.driver.copy, target.pointer, source.pointer, source.nbytes)

    def receive(self, buffer: Buffer) -> Slab:
        """New memory with the contents of memory of another GPU, by way of the host."""
        return self.upload_new(buffer.slab.device.backend.download(buffer, (buffer.nbytes,), uint8))

    def clear(self, buffer: Buffer) -> None:
        if buffer.nbytes:
            self.call_in_order(self.driver.clear, buffer.pointer, buffer.nbytes)

    def host_words(self, nbytes: int) -> HostWords:
        return _SentWords(self.allocate(nbytes), np.zeros(nbytes, np.uint8), self)

    # --- waiting, and what is known then ---

    def synchronise(self) -> None:
        self.call_in_order(self._synchronise)

    def _synchronise(self) -> None:
        self.driver.synchronise()
        self.ran.clear()
        self._check()

    def status(self, nbytes: int) -> Slab:
        if not nbytes:
            return self.allocate(0)
        return self.call_in_order(self._new_status, nbytes, -(-nbytes // 64) * 64)

    def _new_status(self, nbytes: int, size: int) -> Slab:
        free = self._free_words.setdefault(size, [])
        pointer = free.pop() if free else self._add_words(size, free)
        if self._sees_words:
            ctypes.memset(pointer, 0, size)
        else:
            self.driver.clear(pointer, size)
        return Slab(self.device, nbytes, pointer, _Words(pointer, free))

    def _add_words(self, size: int, free: list[int]) -> int:
        """A new piece of memory for status words. Where the host does not see them, those of many runs lie in one
        allocation: what a runtime with handles binds to a kernel is then the same for all of them."""
        pointer = self.driver.host_visible_memory(size)
        self._sees_words = pointer != 0
        if not self._sees_words:
            pointer = self._allocate_or_evict(lambda: self.driver.allocate(MAX_PENDING_RUNS * size))
            free += range(pointer + size, pointer + MAX_PENDING_RUNS * size, size)
        return pointer

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """Raise for what is known of this run already; the rest is known when something is read back."""
        self.call_in_order(self._watch, status, plan, explain)

    def _watch(self, status: Slab, plan: Plan, explain: Explain | None) -> None:
        self._pending[status] = plan, explain
        seen = self._sees_words and any(_words(status))
        if seen or len(self._pending) > MAX_PENDING_RUNS:
            self._synchronise()

    def _check(self) -> None:
        """Raise for the first finished run whose status words are set; others are reported next time."""
        while True:
            try:  # in one call: a signal handler may check runs, too
                status, (plan, explain) = self._pending.popitem(last=False)
            except KeyError:
                return
            words = self._read_status(status)
            if words.any():
                raise_bad_index(words, plan, explain)

    def _read_status(self, status: Slab) -> np.ndarray:
        if self._sees_words:
            return np.frombuffer(_words(status), np.int32)
        words = np.empty(status.nbytes // 4, np.int32)
        self._fetch(words, status.pointer)
        self.driver.clear(status.pointer, status.nbytes)
        return words

    def explain_loss(self, error: DeviceLost) -> Exception:
        """`error` with the kernels that may have caused it."""
        names = list(dict.fromkeys(step.name for plan in reversed(self.ran) for step, _ in iterate_steps(plan.steps)))
        more = f" and {len(names) - MAX_NAMED_KERNELS} more" if len(names) > MAX_NAMED_KERNELS else ""
        ran = f"\nSince it was last waited for these ran: {', '.join(names[:MAX_NAMED_KERNELS])}{more}" if names else ""
        fix = "start a new process: this one cannot use the GPU any more. WEFT_SYNC=1 names the kernel and shows it"
        return problem(DeviceError, str(self.device), f"{error}{ran}", "a device that answers", fix)

    # --- plans ---

    def slot_table(self, count: int) -> Any:
        """A table of `count` addresses for `GpuExecutable.run`; fill it by index."""
        return (ctypes.c_uint64 * max(count, 1))()

    def render(self, kernel: Kernel) -> Code:
        """`kernel` as text in the backend's dialect."""
        check_kernel(kernel, self.device)
        check_whole_buffers(kernel, self.device)
        COUNTERS.kernels_rendered += 1
        (symbol,), text = clike_module.render_with_symbols([normalise(kernel)], self.dialect)
        return code_of(kernel, symbol, text)

    def executable(self, plan: Plan) -> GpuExecutable:
        check_plan(plan, self.device)
        try:
            made = GpuExecutable(plan, self)
        except DeviceLost as error:
            raise self.explain_loss(error) from error
        self.call_in_order(self.executables.add, made)
        return made


def _count_upload(nbytes: int) -> None:
    COUNTERS.uploads += 1
    COUNTERS.upload_bytes += nbytes


def _words(status: Slab) -> Any:
    return (ctypes.c_int32 * (status.nbytes // 4)).from_address(status.pointer)


# --- the end of the process, and forks -------------------------------------------------------------------------------

_backends: weakref.WeakSet[GpuBackend] = weakref.WeakSet()


@atexit.register
def _finish() -> None:
    """Let everything finish; what is dropped later goes with the process."""
    for backend in list(_backends):
        with contextlib.suppress(DeviceError):
            backend.call_in_order(backend.driver.synchronise)


def _reset_after_fork() -> None:
    for backend in list(_backends):
        backend.order = ForkedOrder(backend)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
