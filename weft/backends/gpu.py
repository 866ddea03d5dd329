"""gpu: what all GPU backends share. A backend adds a `Driver`, the few calls of its vendor's runtime.

The walk of a run: `GpuExecutable` turns every step of a plan into an action once (a kernel with its argument words, a
library call, a loop of actions). A run puts addresses into the words and enqueues the actions on the device's one
stream; nothing waits. Where the same addresses come a second time the actions are recorded as one graph, which is
replayed from then on. Where addresses keep changing (a new batch, a loss that somebody keeps), those few slots get
memory of their own and the values are copied there, so that the graph stays.

Memory is allocated and freed in order with the runs around it. A run's end is known when something is read back: then
the status words, which lie in memory that host and device both see, tell of indices out of range. `WEFT_SYNC=1` waits
after every step instead, so that an error of the device names the kernel that made it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from weft.backends.base import Buffer, Device, HostWords, Slab, raise_bad_index
from weft.compiler.plan import Code, Launch, LibraryCall, Number, Plan, Repeat, Step, code_of, walk
from weft.counting import COUNTERS
from weft.dtypes import DType
from weft.errors import DeviceError, GraphError, problem
from weft.kernels.language import Kernel
from weft.kernels.normal import normalise
from weft.render import clike
from weft.render.dialects import Dialect

MOST_GRAPHS = 4  # graphs of one plan, each for its own addresses
PATIENCE = 8  # runs with new addresses after which the slots that change get memory of their own
STAGED_BYTES = 1 << 20  # that may be copied for each launch that a graph saves
MOST_PENDING = 256  # runs whose status words wait to be looked at

Table = Any  # addresses by slot
Action = Callable[[Table], None]


class Driver(Protocol):
    """A vendor's runtime on one GPU. Addresses are integers; everything is in order on one stream unless it says so."""

    def allocate(self, nbytes: int) -> int: ...  # OutOfMemoryError where there is none
    def free(self, pointer: int) -> None: ...
    def shared_memory(self, nbytes: int) -> int: ...  # that host and device see at the same address; never freed
    def place(self, address: int, nbytes: int) -> int: ...  # new memory with a copy of host memory; overlaps with runs
    def upload(self, pointer: int, address: int, nbytes: int) -> None: ...  # host memory may change on return
    def download(self, address: int, pointer: int, nbytes: int) -> None: ...  # waits
    def copy(self, target: int, source: int, nbytes: int) -> None: ...
    def clear(self, pointer: int, nbytes: int) -> None: ...
    def functions(self, codes: Sequence[Code]) -> list[Any]: ...  # compiled, loaded from disk or found in memory
    def launch(self, function: Any, blocks: int, threads: int, shared: int, parameters: int) -> None: ...
    def record(self, enqueue: Callable[[], None]) -> Any: ...  # what `enqueue` enqueues as a graph, not run
    def replay(self, graph: Any) -> None: ...
    def discard(self, graph: Any) -> None: ...
    def synchronise(self) -> None: ...
    def memory(self) -> tuple[int, int]: ...  # bytes that can be had, and bytes in all


# --- memory ----------------------------------------------------------------------------------------------------------


class _Block:
    """One allocation, given back when nobody holds it."""

    __slots__ = ("backend", "nbytes", "pointer")

    def __init__(self, backend: GpuBackend, pointer: int, nbytes: int):
        self.backend, self.pointer, self.nbytes = backend, pointer, nbytes
        backend.bytes_in_use += nbytes
        backend.peak_bytes = max(backend.peak_bytes, backend.bytes_in_use)

    def __del__(self) -> None:
        with self.backend.order:
            self.backend.bytes_in_use -= self.nbytes
            self.backend.driver.free(self.pointer)


class _Words:
    """A piece of the memory that host and device share, for status words; reused by size."""

    __slots__ = ("free", "nbytes", "pointer")

    def __init__(self, backend: GpuBackend, nbytes: int):
        self.free = backend.free_words.setdefault(nbytes, [])
        self.nbytes = nbytes
        self.pointer = self.free.pop() if self.free else backend.driver.shared_memory(nbytes)
        ctypes.memset(self.pointer, 0, nbytes)

    def __del__(self) -> None:
        self.free.append(self.pointer)


class _SentWords(HostWords):
    """Host numbers that are sent with every run."""

    __slots__ = ("address", "backend")

    def __init__(self, slab: Slab, array: np.ndarray, backend: GpuBackend):
        super().__init__(slab, array)
        self.backend, self.address = backend, array.ctypes.data

    def send(self) -> None:
        with self.backend.order:
            self.backend.driver.upload(self.slab.pointer, self.address, self.slab.nbytes)


class GpuBackend:
    """One GPU. Subclasses give the driver, the dialect that kernels are printed in, and the device's description."""

    dialect: Dialect
    device: Device

    def __init__(self, driver: Driver):
        self.driver = driver
        self.order = threading.RLock()  # held by whoever puts work on the stream: a recording takes in all of it
        self.bytes_in_use = 0
        self.peak_bytes = 0
        self.free_words: dict[int, list[int]] = {}
        self._pending: dict[Slab, Plan] = {}

    def devices(self) -> list[Device]:
        return [self.device]

    def allocate(self, nbytes: int) -> Slab:
        with self.order:
            return self._slab(nbytes, self.driver.allocate(max(nbytes, 1)))

    def _slab(self, nbytes: int, pointer: int) -> Slab:
        return Slab(self.device, nbytes, pointer, _Block(self, pointer, nbytes))

    def place(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of a contiguous array, which may change on return. Overlaps with what runs."""
        if not array.nbytes:
            return self.allocate(0)
        _count_upload(array.nbytes)
        with self.order:
            return self._slab(array.nbytes, self.driver.place(array.ctypes.data, array.nbytes))

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy a NumPy array of the buffer's size in."""
        if array.nbytes != buffer.nbytes:
            raise problem(DeviceError, "upload", f"an array of {array.nbytes} bytes", f"{buffer.nbytes} bytes")
        data = np.ascontiguousarray(array)
        _count_upload(data.nbytes)
        if data.nbytes:
            with self.order:
                self.driver.upload(buffer.pointer, data.ctypes.data, data.nbytes)

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A NumPy array with the buffer's elements. Waits for what was enqueued before, and tells what went wrong."""
        array = np.empty(shape, dtype.numpy)
        if array.nbytes:
            with self.order:
                self.driver.download(array.ctypes.data, buffer.pointer, array.nbytes)
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += array.nbytes
        self._check()
        return array

    def copy(self, target: Buffer, source: Buffer) -> None:
        if source.nbytes:
            with self.order:
                self.driver.copy(target.pointer, source.pointer, source.nbytes)

    def clear(self, buffer: Buffer) -> None:
        if buffer.nbytes:
            with self.order:
                self.driver.clear(buffer.pointer, buffer.nbytes)

    def host_words(self, nbytes: int) -> HostWords:
        return _SentWords(self.allocate(nbytes), np.zeros(nbytes, np.uint8), self)

    def status(self, nbytes: int) -> Slab:
        words = _Words(self, max(-(-nbytes // 64) * 64, 64))
        return Slab(self.device, nbytes, words.pointer, words)

    def watch(self, status: Slab, plan: Plan) -> None:
        """Raise for what is known of this run already; the rest is known when something is read back."""
        self._pending[status] = plan
        if any(_words(status)) or len(self._pending) > MOST_PENDING:
            self.synchronise()

    def synchronise(self) -> None:
        with self.order:
            self.driver.synchronise()
        self._check()

    def _check(self) -> None:
        pending, self._pending = self._pending, {}
        for status, plan in pending.items():
            words = np.frombuffer(_words(status), np.int32)
            if words.any():
                raise_bad_index(words, plan)

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be had, and bytes in all."""
        return self.driver.memory()

    def slot_table(self, count: int) -> Table:
        """A table of `count` addresses for `GpuExecutable.run`; fill it by index."""
        return (ctypes.c_uint64 * max(count, 1))()

    def render(self, kernel: Kernel) -> Code:
        """`kernel` as text in the backend's dialect."""
        COUNTERS.kernels_rendered += 1
        ready = normalise(kernel)
        return code_of(kernel, clike.symbol(ready, self.dialect), clike.render(ready, self.dialect))

    def executable(self, plan: Plan) -> GpuExecutable:
        return GpuExecutable(plan, self)


def _count_upload(nbytes: int) -> None:
    COUNTERS.uploads += 1
    COUNTERS.upload_bytes += nbytes


def _words(status: Slab) -> Any:
    return (ctypes.c_int32 * (status.nbytes // 4)).from_address(status.pointer)


# --- plans -----------------------------------------------------------------------------------------------------------


class _Kernel:
    """A launch with its parameters: one word for each, and the addresses of the words."""

    __slots__ = (
        "_parameters",
        "address",
        "blocks",
        "driver",
        "function",
        "numbers",
        "places",
        "shared",
        "threads",
        "words",
    )

    def __init__(self, launch: Launch, function: Any, driver: Driver):
        geometry = launch.kernel.geometry
        assert geometry is not None
        self.driver, self.function = driver, function
        self.blocks, self.threads, self.shared = geometry.blocks(launch.extent), geometry.threads, geometry.shared
        self.places = [(number, place.slot, place.offset) for number, place in enumerate(launch.places)]
        count = len(launch.places) + len(launch.scalars) + 2
        self.words = (ctypes.c_uint64 * count)()
        self.numbers: list[tuple[int, Number, DType]] = []
        for number, (value, param) in enumerate(zip(launch.scalars, launch.kernel.scalars, strict=True)):
            at = len(launch.places) + number
            if isinstance(value, Number):
                self.numbers.append((at, value, param.dtype))
            else:
                self.words[at] = _word(value, param.dtype)
        self.words[count - 1] = launch.extent
        start = ctypes.addressof(self.words)
        self._parameters = (ctypes.c_void_p * count)(*[start + 8 * number for number in range(count)])
        self.address = ctypes.addressof(self._parameters)

    def __call__(self, table: Table) -> None:
        words = self.words
        for number, slot, offset in self.places:
            words[number] = table[slot] + offset
        self.again()

    def again(self) -> None:
        """Launch with the addresses of the last time."""
        self.driver.launch(self.function, self.blocks, self.threads, self.shared, self.address)

    def set(self, numbers: Sequence[float]) -> None:
        for at, number, dtype in self.numbers:
            self.words[at] = _word(numbers[number.slot], dtype)


def _word(value: float, dtype: DType) -> int:
    """A scalar as the first bytes of a word."""
    data = np.asarray(value).astype(dtype.numpy).tobytes()
    return int.from_bytes(data.ljust(8, b"\0"), "little")


class GpuExecutable:
    """A plan as actions on a stream, or as graphs of them."""

    def __init__(self, plan: Plan, backend: GpuBackend):
        self.plan, self.backend, self.driver = plan, backend, backend.driver
        launches = [step for step, _ in walk(plan.steps) if isinstance(step, Launch) and step.extent]
        codes = {id(step.kernel): step.kernel for step in launches}
        rendered = [kernel if isinstance(kernel, Code) else backend.render(kernel) for kernel in codes.values()]
        self._functions = dict(zip(codes, self.driver.functions(rendered), strict=True))
        self._kernels: list[_Kernel] = []
        self._actions = self._all(plan.steps)
        self._launches = sum(times for step, times in walk(plan.steps) if _runs(step))
        self._numbers = [kernel for kernel in self._kernels if kernel.numbers]
        self._at_once = self._launches < 2 or bool(self._numbers) or _waits()
        single = len(plan.steps) == 1 and isinstance(plan.steps[0], Launch) and not self._numbers and not _waits()
        self._alone = self._kernels[0] if single and self._kernels else None
        self._key = b""
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._last: list[int] | None = None
        self._changes = 0
        self._moved: set[int] = set()
        self._staged: dict[int, Slab] = {}
        self._bytes = 8 * len(plan.slots)

    def __del__(self) -> None:
        for graph in getattr(self, "_graphs", {}).values():
            with self.backend.order:
                self.driver.discard(graph)

    def run(self, slots: Table, numbers: Sequence[float] = ()) -> None:
        """Enqueue the plan with `slots`, a table from `GpuBackend.slot_table` filled with addresses."""
        COUNTERS.plans_run += 1
        COUNTERS.launches += self._launches
        with self.backend.order:
            if self._alone is not None:
                self._run_alone(bytes(slots)[: self._bytes], slots)
            elif self._at_once:
                for kernel in self._numbers:
                    kernel.set(numbers)
                self._enqueue(slots)
            elif self._staged:
                self._run_staged(slots)
            else:
                self._run_again(slots)

    def _run_alone(self, key: bytes, slots: Table) -> None:
        """The one kernel of a plan."""
        assert self._alone is not None
        if key == self._key:
            self._alone.again()
        else:
            self._alone(slots)
            self._key = key

    def _run_again(self, slots: Table) -> None:
        key = bytes(slots)[: self._bytes]
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            self.driver.replay(graph)
        elif key in self._seen:
            del self._seen[key]
            self._replay_new(key, slots)
        else:
            self._seen[key] = None
            if len(self._seen) > MOST_GRAPHS:
                self._seen.popitem(last=False)
            self._enqueue(slots)
            self._watch_changes(slots)

    def _replay_new(self, key: bytes, slots: Table) -> None:
        graph = self._graphs[key] = self.driver.record(lambda: self._enqueue(slots))
        if len(self._graphs) > MOST_GRAPHS:
            self.driver.discard(self._graphs.popitem(last=False)[1])
        self.driver.replay(graph)

    def _watch_changes(self, slots: Table) -> None:
        """After many runs with new addresses, give slots that change memory of their own, where copying is cheap."""
        changed = self._changed(slots)
        self._moved |= changed
        self._changes += bool(changed)
        if self._changes >= PATIENCE and changed:
            self._stage(self._moved)
            self._changes, self._moved = 0, set()

    def _changed(self, slots: Table) -> set[int]:
        """The slots whose address is not that of the last time this was asked."""
        now = [0 if slot.kind == "moving" else slots[number] for number, slot in enumerate(self.plan.slots)]
        changed = {number for number, address in enumerate(now) if self._last and address != self._last[number]}
        self._last = now
        return changed

    def _stage(self, numbers: set[int]) -> None:
        """Give slots memory of their own, if all of them allow it."""
        slots = {number: self.plan.slots[number] for number in numbers - set(self._staged)}
        free = all(slot.kind == "output" or (slot.kind == "input" and not slot.written) for slot in slots.values())
        if free and sum(slot.nbytes for slot in slots.values()) <= STAGED_BYTES * self._launches:
            self._staged |= {number: self.backend.allocate(slot.nbytes) for number, slot in slots.items()}

    def _run_staged(self, slots: Table) -> None:
        key, table = self._with_staged(slots)
        graph = self._graphs.get(key)
        if graph is None:
            self._stage(self._changed(slots))  # what changed now will change again
            key, table = self._with_staged(slots)
        for number, slab in self._staged.items():
            if self.plan.slots[number].kind == "input" and slab.nbytes:
                self.driver.copy(slab.pointer, slots[number], slab.nbytes)
        if graph is None:
            self._replay_new(key, table)
        else:
            self._graphs.move_to_end(key)
            self.driver.replay(graph)
        for number, slab in self._staged.items():
            if self.plan.slots[number].kind == "output" and slab.nbytes:
                self.driver.copy(slots[number], slab.pointer, slab.nbytes)

    def _with_staged(self, slots: Table) -> tuple[bytes, Table]:
        """The table with the addresses of staged memory, and its bytes."""
        table = type(slots).from_buffer_copy(slots)
        for number, slab in self._staged.items():
            table[number] = slab.pointer
        return bytes(table)[: self._bytes], table

    # --- actions ---

    def _enqueue(self, table: Table) -> None:
        for action in self._actions:
            action(table)

    def _all(self, steps: Sequence[Step]) -> list[Action]:
        made = [(step, self._action(step)) for step in steps if isinstance(step, Repeat) or _runs(step)]
        return [self._waiting(step, action) if _waits() else action for step, action in made]

    def _waiting(self, step: Step, action: Action) -> Action:
        """The action, and the wait for its end."""

        def wait(table: Table) -> None:
            try:
                action(table)
                self.driver.synchronise()
            except DeviceError as error:
                launch = step if isinstance(step, Launch) else None
                text = f"\n{launch.kernel.text}" if launch and isinstance(launch.kernel, Code) else ""
                raise problem(DeviceError, step.name, f"{error}{text}", "a step that runs") from error

        return wait

    def _action(self, step: Step) -> Action:
        if isinstance(step, Launch):
            kernel = _Kernel(step, self._functions[id(step.kernel)], self.driver)
            self._kernels.append(kernel)
            return kernel
        if isinstance(step, LibraryCall):
            return self._call(step)
        if isinstance(step, Repeat):
            return self._repeat(step)
        given = f"the product '{step.name}', made for the CPU's library"
        raise problem(GraphError, f"compile for {self.backend.device}", given, "a plan made for this device")

    def _call(self, step: LibraryCall) -> Action:
        call = self.backend.device.libraries[step.library].prepare(step.config)
        places = [(place.slot, place.offset) for place in step.places]

        def action(table: Table) -> None:
            call([table[slot] + offset for slot, offset in places])

        return action

    def _repeat(self, step: Repeat) -> Action:
        first, turn = self._all(step.first), self._all(step.steps)
        moving = [(m.slot, m.place.slot, m.place.offset, m.stride) for m in step.moving]

        def action(table: Table) -> None:
            for one in first:
                one(table)
            for number in range(step.count):
                for slot, base, offset, stride in moving:
                    table[slot] = table[base] + offset + number * stride
                for one in turn:
                    one(table)

        return action


def _waits() -> bool:
    return os.environ.get("WEFT_SYNC", "0") not in ("", "0")


def _runs(step: Any) -> bool:
    """Whether a step has anything to do."""
    return not isinstance(step, Launch) or step.extent > 0
