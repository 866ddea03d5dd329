"""gpu: what all GPU backends share. A backend adds a `Driver`, the few calls of its vendor's runtime; plans are run on
it by `backends.gpu_plan`.

Work is put on the device's one stream by one thread at a time (`GpuBackend.call_in_order`); nothing waits. Memory is
allocated and freed in order with the runs around it. The temporaries of all plans share one arena, as runs follow each
other. What Python drops is noted wherever the collector happens to run, and given back by the next call: no finaliser
calls a driver or waits for a lock.

A run's end is known when something is read back: then the status words tell of indices out of range. They lie in memory
that host and device both see, where there is such memory. An error that comes late names what ran since the device was
last waited for; `WEFT_SYNC=1` waits after every step instead, and names the kernel.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.backends.base import (
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
from weft.backends.gpu_plan import GpuExecutable
from weft.compiler.plan import Code, Plan, code_of, walk
from weft.counting import COUNTERS
from weft.dtypes import DType, uint8
from weft.errors import DeviceError, OutOfMemoryError, problem
from weft.kernels.language import Kernel
from weft.kernels.normal import normalise
from weft.locks import new_lock
from weft.render import clike
from weft.render.dialects import Dialect

MOST_PENDING = 256  # runs whose status words wait to be looked at
RECENT = 8  # plans that are remembered until the device is waited for
MOST_NAMED = 12  # kernels that an error names


class Driver(Protocol):
    """A vendor's runtime on one GPU. Everything is in order on one stream unless it says so, and called by one thread
    at a time; only `functions` and `launcher`, which enqueue nothing, are called at any time.

    Addresses are numbers that can be counted on from: a runtime with handles gives each a range of numbers of its own.
    """

    records: bool  # whether there are graphs: `record`, `replay` and `discard`

    def activate(self) -> None: ...  # the calls of this thread mean this GPU from now on
    def allocate(self, nbytes: int) -> int: ...  # OutOfMemoryError where there is none
    def free(self, pointer: int) -> None: ...
    def shared_memory(
        self, nbytes: int
    ) -> int: ...  # seen by the host at the same address; kept; 0 where there is none
    def place(self, address: int, nbytes: int) -> int: ...  # new memory with a copy of host memory; overlaps with runs
    def upload(self, pointer: int, address: int, nbytes: int) -> None: ...  # host memory may change on return
    def download(self, address: int, pointer: int, nbytes: int) -> None: ...  # waits
    def copy(self, target: int, source: int, nbytes: int) -> None: ...
    def clear(self, pointer: int, nbytes: int) -> None: ...
    def functions(self, codes: Sequence[Code]) -> list[Any]: ...  # compiled, loaded from disk or found in memory
    def launcher(
        self, function: Any, blocks: int, threads: int, shared: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]: ...  # what launches with the parameters in `words`, of which so many are addresses
    def record(self, enqueue: Callable[[], None]) -> Any: ...  # what `enqueue` enqueues as a graph, not run
    def replay(self, graph: Any) -> None: ...
    def discard(self, graph: Any) -> None: ...
    def synchronise(self) -> None: ...
    def event(self) -> Any: ...  # that `mark` and `seconds_between` take; dropped like any object
    def mark(self, event: Any) -> None: ...  # note the time when all that was enqueued before is over
    def seconds_between(self, first: Any, second: Any) -> float: ...  # of two events that are over
    def memory(self) -> tuple[int, int]: ...  # bytes that can be had, and bytes in all
    def reserved(self) -> int: ...  # bytes that this process has of the GPU, with those that wait to be used again
    def trim(self) -> None: ...  # give back what waits to be used again


class ForkedOrder:
    """The stream lock of a device that a forked process has from its parent: GPU runtimes do not survive a fork."""

    def __init__(self, backend: GpuBackend):
        self._name = str(backend.device)

    def __enter__(self) -> None:
        given = "a process that was forked after this GPU was used"
        mend = "start processes anew: multiprocessing.get_context('spawn')"
        raise problem(DeviceError, self._name, given, "the process that used it, or one that shares nothing", mend)

    def __exit__(self, *_: Any) -> None:
        """Never entered."""


# --- memory ----------------------------------------------------------------------------------------------------------


class _Block:
    """One allocation, given back when nobody holds it."""

    __slots__ = ("backend", "nbytes", "pointer")

    def __init__(self, backend: GpuBackend, pointer: int, nbytes: int):
        self.backend, self.pointer, self.nbytes = backend, pointer, nbytes
        backend.held.take(nbytes, nbytes)

    def __del__(self) -> None:
        self.backend.dead.append((self.backend.driver.free, self.pointer, self.nbytes))


class _Words:
    """A piece of the memory that host and device share, for status words; reused by size."""

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
        self.held = MemoryCounts()  # those of the dead and of the arena included
        self.dead: deque[tuple[Callable[[Any], None], Any, int]] = deque()  # (how it is given back, what, its bytes)
        self.ran: deque[Plan] = deque(maxlen=RECENT)  # since the device was last waited for
        self.executables: weakref.WeakSet[GpuExecutable] = weakref.WeakSet()
        self._free_words: dict[int, list[int]] = {}
        self._pending: dict[Slab, tuple[Plan, Explain | None]] = {}
        self._arena: Slab | None = None
        _backends.add(self)

    def devices(self) -> list[Device]:
        return [self.device]

    def call_in_order(self, work: Callable[..., Any], *args: Any) -> Any:
        """`work(*args)` while this thread, and no other, puts work on the device's stream. May be nested."""
        try:
            with self.order:
                self.driver.activate()
                if self.dead:
                    self.bury()
                return work(*args)
        except DeviceLost as error:
            raise self.lost(error) from error

    def bury(self) -> None:
        """Give back what Python dropped. Its order with the work around it is right: nobody can use it any more."""
        while self.dead:
            give_back, what, nbytes = self.dead.popleft()
            if nbytes:
                self.held.give(nbytes, nbytes)
            give_back(what)

    @property
    def bytes_in_use(self) -> int:
        """By what somebody holds, between runs."""
        return self.call_in_order(lambda: self.held.allocated - self._idle_bytes)

    def require(self, nbytes: int) -> None:
        """Nothing: a GPU's driver gives no memory that is not there."""

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be had, and bytes in all."""
        (available, total), idle = self.call_in_order(lambda: (self.driver.memory(), self._idle_bytes))
        return available + idle, total

    def counts(self) -> tuple[MemoryCounts, int]:
        """What tensors, plans and the arena hold, and what the driver keeps for this process."""
        reserved = self.call_in_order(self.driver.reserved)
        self.held.reserved_peak = max(self.held.reserved_peak, reserved)
        return self.held, reserved

    def empty_cache(self) -> None:
        """Give the driver back what no tensor holds: what was freed, the arena, and what plans keep between runs."""
        self.call_in_order(self._empty_cache)

    def _empty_cache(self) -> None:
        for executable in self.executables:
            executable.forget()
        self._arena = None
        self.bury()
        self.driver.trim()

    def arena(self, nbytes: int) -> Slab:
        """Nothing: a run takes `shared_arena`."""
        return self.allocate(0)

    def shared_arena(self, nbytes: int) -> Slab:
        """Memory for the temporaries of a run. Whoever runs holds it until all is enqueued."""
        if self._arena is None or self._arena.nbytes < nbytes:
            self._arena = None  # the new one may take its place
            self.bury()
            self._arena = self.allocate(nbytes)
        return self._arena

    @property
    def _idle_bytes(self) -> int:
        """What is given up between runs where memory is short."""
        arena = self._arena.nbytes if self._arena is not None else 0
        return arena + sum(executable.idle_bytes for executable in self.executables)

    def allocate(self, nbytes: int) -> Slab:
        if not nbytes:
            return Slab(self.device, 0, 0, None)
        return self.call_in_order(lambda: self._slab(nbytes, self._found(lambda: self.driver.allocate(nbytes))))

    def spare(self, nbytes: int) -> Slab | None:
        """Memory that makes something faster, if it is there."""
        with contextlib.suppress(OutOfMemoryError):
            return self.call_in_order(lambda: self._slab(nbytes, self.driver.allocate(max(nbytes, 1))))
        return None

    def _slab(self, nbytes: int, pointer: int) -> Slab:
        return Slab(self.device, nbytes, pointer, _Block(self, pointer, nbytes))

    def _found(self, get: Callable[[], int]) -> int:
        """What `get` allocates; where there is none, what plans keep between runs to be faster goes first."""
        try:
            return get()
        except OutOfMemoryError:
            given_back = [executable.forget() for executable in self.executables]
            if not any(given_back) and self._arena is None:
                raise
            self._arena = None
            self.bury()
        return get()

    def place(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of a contiguous array, which may change on return. Overlaps with what runs."""
        if not array.nbytes:
            return self.allocate(0)
        _count_upload(array.nbytes)
        address, nbytes = array.ctypes.data, array.nbytes
        return self.call_in_order(lambda: self._slab(nbytes, self._found(lambda: self.driver.place(address, nbytes))))

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy a NumPy array of the buffer's size in."""
        if array.nbytes != buffer.nbytes:
            raise problem(DeviceError, "upload", f"an array of {array.nbytes} bytes", f"{buffer.nbytes} bytes")
        data = np.ascontiguousarray(array)
        _count_upload(data.nbytes)
        if data.nbytes:
            self.call_in_order(self.driver.upload, buffer.pointer, data.ctypes.data, data.nbytes)

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A NumPy array with the buffer's elements. Waits for what was enqueued before, and tells what went wrong."""
        array = empty_array(shape, dtype)
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += array.nbytes
        if array.nbytes:
            self.call_in_order(self._fetch, array, buffer.pointer, self._check)
        return array

    def peek(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """`download` that tells nothing of what went wrong: it is used to find out about that."""
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
        """New memory with what lies on another GPU, by way of the host."""
        return self.place(buffer.slab.device.backend.download(buffer, (buffer.nbytes,), uint8))

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
        pointer = free.pop() if free else self.driver.shared_memory(size)
        if pointer:
            ctypes.memset(pointer, 0, size)
            return Slab(self.device, nbytes, pointer, _Words(pointer, free))
        slab = self.allocate(size)
        self.driver.clear(slab.pointer, size)
        return Slab(self.device, nbytes, slab.pointer, slab.owner)

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """Raise for what is known of this run already; the rest is known when something is read back."""
        self.call_in_order(self._watch, status, plan, explain)

    def _watch(self, status: Slab, plan: Plan, explain: Explain | None) -> None:
        self._pending[status] = plan, explain
        seen = isinstance(status.owner, _Words) and any(_words(status))
        if seen or len(self._pending) > MOST_PENDING:
            self._synchronise()

    def _check(self) -> None:
        """Raise for the first run, of those that are over, whose status words are set; others are told next time."""
        while self._pending:
            status = next(iter(self._pending))
            plan, explain = self._pending.pop(status)
            words = self._noted(status)
            if words.any():
                raise_bad_index(words, plan, explain)

    def _noted(self, status: Slab) -> np.ndarray:
        if isinstance(status.owner, _Words):
            return np.frombuffer(_words(status), np.int32)
        words = np.empty(status.nbytes // 4, np.int32)
        self._fetch(words, status.pointer)
        self.driver.clear(status.pointer, status.nbytes)
        return words

    def lost(self, error: DeviceLost) -> Exception:
        """`error` with the kernels that may have caused it."""
        names = list(dict.fromkeys(step.name for plan in reversed(self.ran) for step, _ in walk(plan.steps)))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        ran = f"\nSince it was last waited for these ran: {', '.join(names[:MOST_NAMED])}{more}" if names else ""
        mend = "start a new process: this one cannot use the GPU any more. WEFT_SYNC=1 names the kernel and shows it"
        return problem(DeviceError, str(self.device), f"{error}{ran}", "a device that answers", mend)

    # --- plans ---

    def slot_table(self, count: int) -> Any:
        """A table of `count` addresses for `GpuExecutable.run`; fill it by index."""
        return (ctypes.c_uint64 * max(count, 1))()

    def render(self, kernel: Kernel) -> Code:
        """`kernel` as text in the backend's dialect."""
        COUNTERS.kernels_rendered += 1
        (symbol,), text = clike.named([normalise(kernel)], self.dialect)
        return code_of(kernel, symbol, text)

    def executable(self, plan: Plan) -> GpuExecutable:
        made = GpuExecutable(plan, self)
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


def _forked() -> None:
    for backend in list(_backends):
        backend.order = ForkedOrder(backend)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
