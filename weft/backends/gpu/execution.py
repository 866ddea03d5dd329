"""Plans on a GPU's stream.

`GpuExecutable` turns every step of the plan into an action once (a kernel with its argument words,
a library call, a loop of actions). A run puts addresses into the words and enqueues the actions. Where the same
addresses come a second time (later, for a single launch) the actions are recorded as one graph, which is replayed from
then on. Where addresses keep changing (a new batch, a result that somebody keeps), those few slots get memory of their
own and the values are copied there, so that the graph stays. Graphs and copies only make a plan faster: `forget` drops
them. Temporaries lie in the arena that all plans of a device share.

A step that a device refuses is named, with its source; so is one that fails, where `WEFT_SYNC=1` waits for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from weft.base.counters import COUNTERS
from weft.base.dtypes import DType
from weft.base.errors import DeviceError, GraphError, WeftError, problem
from weft.plan.device import DeviceLost, Slab
from weft.plan.plan import Code, Launch, LibraryCall, Number, Plan, Repeat, Step, iterate_steps

if TYPE_CHECKING:
    from weft.backends.gpu.backend import GpuBackend

MAX_GRAPHS = 4  # graphs of one plan, each for its own addresses
RUNS_BEFORE_GRAPH = 8  # runs with the same addresses after which a plan of one launch is a graph, too
RUNS_BEFORE_STAGING = 8  # runs with new addresses after which the slots that change get memory of their own
STAGED_BYTES = 1 << 20  # that may be copied for each launch that a graph saves
TIMED_ITERATIONS = 64  # of a loop that are timed step by step; the others count as these do
ENQUEUE_SECONDS = 2e-5  # that the host takes to enqueue a launch and its events
BUSY_BYTES = 64 << 20  # that are cleared again and again to keep a device busy
MAX_BUSY_LAUNCHES = 4096  # that keep a device busy

Table = Any  # addresses by slot
Action = Callable[[Table], None]


class _Kernel:
    """A launch with a word for each of its parameters."""

    __slots__ = ("_launch", "numbers", "places", "words")

    def __init__(self, launch: Launch, function: Any, backend: GpuBackend):
        geometry = launch.kernel.geometry
        assert geometry is not None
        buffers = len(launch.places)
        self.places = [(number, place.slot, place.offset) for number, place in enumerate(launch.places)]
        self.words = (ctypes.c_uint64 * (buffers + len(launch.scalars) + 2))()
        self.numbers: list[tuple[int, Number, DType]] = []
        for at, (value, param) in enumerate(zip(launch.scalars, launch.kernel.scalars, strict=True), buffers):
            if isinstance(value, Number):
                self.numbers.append((at, value, param.dtype))
            else:
                self.words[at] = _word(value, param.dtype)
        self.words[-1] = launch.extent
        limits = backend.device.limits
        workgroups = geometry.workgroups(launch.extent, limits.workgroups, limits.processors)
        self._launch = backend.driver.make_launcher(
            function, workgroups, geometry.lanes, geometry.shared, self.words, buffers
        )

    def __call__(self, table: Table) -> None:
        words = self.words
        for number, slot, offset in self.places:
            words[number] = table[slot] + offset
        self._launch()

    def set(self, numbers: Sequence[float]) -> None:
        for at, number, dtype in self.numbers:
            self.words[at] = _word(numbers[number.slot], dtype)


def _word(value: float, dtype: DType) -> int:
    """A scalar as the first bytes of a word."""
    data = np.asarray(value).astype(dtype.numpy).tobytes()
    return int.from_bytes(data.ljust(8, b"\0"), "little")


class _Graph:
    """What a driver captured, destroyed when nothing refers to it: a signal handler may have graphs dropped (`forget`)
    while one of them is about to be replayed."""

    __slots__ = ("_driver", "_dropped", "captured")

    def __init__(self, captured: Any, backend: GpuBackend):
        self.captured, self._driver, self._dropped = captured, backend.driver, backend.dropped

    def __del__(self) -> None:
        self._dropped.append((self._driver.destroy_graph, self.captured, 0))


class GpuExecutable:
    """A plan as actions on a stream, or as graphs of them."""

    def __init__(self, plan: Plan, backend: GpuBackend):
        self.plan, self.backend, self.driver = plan, backend, backend.driver
        self._graphs: OrderedDict[bytes, _Graph] = OrderedDict()
        self._staged: dict[int, Slab] = {}
        launches = [step for step, _ in iterate_steps(plan.steps) if isinstance(step, Launch) and step.extent]
        codes = {id(step.kernel): step.kernel for step in launches}
        rendered = [kernel if isinstance(kernel, Code) else backend.render(kernel) for kernel in codes.values()]
        self._functions = dict(zip(codes, self.driver.load_kernels(rendered), strict=True))
        self._kernels: list[_Kernel] = []
        waits = os.environ.get("WEFT_SYNC", "0") not in ("", "0")
        self._wait = self.driver.synchronise if waits else None
        self._actions = self._all(plan.steps)
        self._launches = sum(times for step, times in iterate_steps(plan.steps) if _runs(step))
        self._numbers = [kernel for kernel in self._kernels if kernel.numbers]
        self._at_once = not self._launches or bool(self._numbers) or waits or not self.driver.can_capture_graphs
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._enough = 1 if self._launches > 1 else RUNS_BEFORE_GRAPH
        self._last: list[int] | None = None
        self._changes = 0
        self._moved: set[int] = set()
        self._bytes = 8 * len(plan.slots)
        self._arena_bytes = plan.arena_bytes
        self._arena = next((number for number, slot in enumerate(plan.slots) if slot.kind == "arena"), -1)

    def __del__(self) -> None:
        self.forget()

    @property
    def idle_bytes(self) -> int:
        """Of the memory that slots got of their own."""
        return sum(slab.nbytes for slab in self._staged.values())

    def forget(self) -> bool:
        """Drop what makes runs faster and takes memory; whether there was any."""
        found = bool(self._graphs or self._staged)
        self._graphs.clear()
        self._staged = {}
        return found

    def run(self, slots: Table, numbers: Sequence[float] = ()) -> None:
        """Enqueue the plan with `slots`, a table from `GpuBackend.slot_table` filled with all addresses but that of the
        arena. Where there is no memory for that, nothing is enqueued."""
        self.backend.call_in_order(self._run_in_order, slots, numbers)

    def _run_in_order(self, slots: Table, numbers: Sequence[float]) -> None:
        """A finalizer or signal handler may run a plan while this thread is enqueueing one, maybe the same: that run
        has words and temporaries of its own."""
        backend = self.backend
        if backend.is_enqueueing:
            own = GpuExecutable(self.plan, backend)
            own._enqueue(slots, numbers, backend.allocate_arena(self._arena_bytes))
            return
        try:
            backend.is_enqueueing = True
            self._enqueue(slots, numbers, backend.shared_arena(self._arena_bytes) if self._arena_bytes else None)
        finally:
            backend.is_enqueueing = False

    def _enqueue(self, slots: Table, numbers: Sequence[float], arena: Slab | None) -> None:
        """`arena` is kept until all is enqueued."""
        if arena is not None and self._arena >= 0:
            slots[self._arena] = arena.pointer
        COUNTERS.plans_run += 1
        COUNTERS.launches += self._launches
        self.backend.ran.append(self.plan)
        if self._at_once:
            for kernel in self._numbers:
                kernel.set(numbers)
            _do(self._actions, slots, self._wait)
        elif self._staged:
            self._run_staged(slots)
        else:
            self._run_again(bytes(slots)[: self._bytes], slots, slots)

    def _came_before(self, key: bytes) -> bool:
        """Whether these addresses came often enough for a graph. If not, they are noted."""
        times = self._seen.pop(key, 0)
        if times >= self._enough:
            return True
        self._seen[key] = times + 1
        if len(self._seen) > MAX_GRAPHS:
            self._seen.popitem(last=False)
        return False

    def _run_again(self, key: bytes, table: Table, slots: Table) -> None:
        """Replay the graph for these addresses, or make it where they come again."""
        graph = self._graphs.get(key)
        if graph is None and not self._came_before(key):
            _do(self._actions, table, self._wait)
            self._watch_changes(slots)
            return
        if graph is None:
            graph = self._graphs[key] = self._capture(lambda: _do(self._actions, table, self._wait))
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            with contextlib.suppress(KeyError):  # of a signal handler that had the graphs dropped
                self._graphs.move_to_end(key)
        self.driver.replay_graph(graph.captured)

    def _capture(self, enqueue: Callable[[], None]) -> _Graph:
        """A graph of what `enqueue` enqueues."""
        try:
            self.backend.is_capturing = True
            return _Graph(self.driver.capture_graph(enqueue), self.backend)
        finally:
            self.backend.is_capturing = False

    # --- time ---

    def time_runs(self, slots: Table, count: int) -> float:
        """Seconds of a run, of `count` one after the other, by the device's own clock."""
        return self.backend.call_in_order(self._time_runs, slots, count)

    def _time_runs(self, slots: Table, count: int) -> float:
        driver = self.driver
        first, last = driver.create_event(), driver.create_event()
        driver.record_event(first)
        for _ in range(count):
            self.run(slots)
        driver.record_event(last)
        driver.synchronise()
        return driver.seconds_between(first, last) / count

    def time_steps(self, slots: Table) -> tuple[list[float], list[float]]:
        """Run step by step with events around each, and return the seconds of each step of `iterate_steps`. The host
        enqueues slowly, so the device is kept busy before: meanwhile the host gets ahead, and no step waits for it.
        What a pair of events takes is measured in the same way."""
        return self.backend.call_in_order(self._time_steps, slots)

    def _time_steps(self, slots: Table) -> tuple[list[float], list[float]]:
        arena = self.backend.shared_arena(self._arena_bytes)  # kept until all is over
        spans = _Spans(self.driver, sum(1 for _ in iterate_steps(self.plan.steps)))
        self._keep_busy(ENQUEUE_SECONDS * (8 + _timed_launches(self.plan.steps)), slots)
        self.run(slots)  # the caches are as after a run
        if self._arena_bytes:
            slots[self._arena] = arena.pointer
        self._time(self.plan.steps, self._actions, slots, spans, 1.0)
        return spans.seconds()

    def _keep_busy(self, seconds: float, slots: Table) -> None:
        """Enqueue work for about so long, in far less time: large memory is cleared, or the plan runs."""
        driver, memory = self.driver, self.backend.allocate_optional(BUSY_BYTES)

        def work() -> None:
            if memory is None:
                self.run(slots)
            else:
                driver.clear(memory.pointer, memory.nbytes)

        first, last = driver.create_event(), driver.create_event()
        work()
        driver.record_event(first)
        work()
        driver.record_event(last)
        driver.synchronise()
        once = max(driver.seconds_between(first, last), 1e-6)
        for _ in range(min(int(seconds / once) + 1, MAX_BUSY_LAUNCHES)):
            work()

    def _time(
        self, steps: Sequence[Step], actions: Sequence[tuple[Step, Action]], table: Table, spans: _Spans, factor: float
    ) -> None:
        following = iter(actions)
        for step in steps:
            if not isinstance(step, Repeat) and not _runs(step):
                spans.at += 1
                continue
            _, action = next(following)
            if isinstance(step, Repeat):
                assert isinstance(action, _Loop)
                self._time(step.first, action.first, table, spans, factor)
                begin, timed = spans.at, min(step.count, TIMED_ITERATIONS)
                for number in range(timed):
                    spans.at = begin
                    action.move(table, number)
                    self._time(step.steps, action.body, table, spans, factor * step.count / timed)
                spans.at = begin + sum(1 for _ in iterate_steps(step.steps))
            else:
                spans.span(functools.partial(action, table), factor)

    # --- slots with memory of their own ---

    def _watch_changes(self, slots: Table) -> None:
        """After many runs with new addresses, give slots that change memory of their own, where copying is cheap. Once
        some have it, what changes beside them will change again."""
        changed = self._changed_slots(slots)
        self._moved |= changed
        self._changes += bool(changed)
        if changed and self._launches > 1 and (self._staged or self._changes >= RUNS_BEFORE_STAGING):
            self._stage(self._moved)
            self._changes, self._moved = 0, set()

    def _changed_slots(self, slots: Table) -> set[int]:
        """The slots whose address is not that of the last call."""
        now = [0 if slot.kind == "moving" else slots[number] for number, slot in enumerate(self.plan.slots)]
        changed = {number for number, address in enumerate(now) if self._last and address != self._last[number]}
        self._last = now
        return changed

    def _stage(self, numbers: set[int]) -> None:
        """Give slots memory of their own, if all of them allow it and there is so much to spare."""
        slots = {number: self.plan.slots[number] for number in numbers - set(self._staged)}
        free = all(slot.kind == "output" or (slot.kind == "input" and not slot.written) for slot in slots.values())
        if free and sum(slot.nbytes for slot in slots.values()) <= STAGED_BYTES * self._launches:
            found = {number: self.backend.allocate_optional(slot.nbytes) for number, slot in slots.items()}
            if None not in found.values():
                self._staged = self._staged | {number: slab for number, slab in found.items() if slab is not None}

    def _run_staged(self, slots: Table) -> None:
        staged = self._staged.items()
        table = type(slots).from_buffer_copy(slots)
        for number, slab in staged:
            table[number] = slab.pointer
            if self.plan.slots[number].kind == "input" and slab.nbytes:
                self.driver.copy(slab.pointer, slots[number], slab.nbytes)
        self._run_again(bytes(table)[: self._bytes], table, slots)
        for number, slab in staged:
            if self.plan.slots[number].kind == "output" and slab.nbytes:
                self.driver.copy(slots[number], slab.pointer, slab.nbytes)

    # --- actions ---

    def _all(self, steps: Sequence[Step]) -> list[tuple[Step, Action]]:
        return [(step, self._action(step)) for step in steps if isinstance(step, Repeat) or _runs(step)]

    def _action(self, step: Step) -> Action:
        if isinstance(step, Launch):
            kernel = _Kernel(step, self._functions[id(step.kernel)], self.backend)
            self._kernels.append(kernel)
            return kernel
        if isinstance(step, LibraryCall):
            return self._call(step)
        if isinstance(step, Repeat):
            return self._repeat(step)
        given = f"the product '{step.name}', made for the CPU's library"
        raise problem(GraphError, f"compile for {self.backend.device}", given, "a plan made for this device")

    def _call(self, step: LibraryCall) -> Action:
        library = self.backend.device.libraries[step.library]
        call = library.prepare(step.config)
        places = [(place.slot, place.offset) for place in step.places]

        def action(table: Table) -> None:
            try:
                call([table[slot] + offset for slot, offset in places])
            except WeftError:
                raise
            except library.failures as error:
                raise problem(DeviceError, step.library, f"{type(error).__name__}: {error}") from error

        return action

    def _repeat(self, step: Repeat) -> Action:
        return _Loop(step, self._all(step.first), self._all(step.steps), self._wait)


class _Loop:
    """A `Repeat` as an action."""

    __slots__ = ("_moving", "_wait", "body", "count", "first")

    def __init__(
        self, step: Repeat, first: list[tuple[Step, Action]], body: list[tuple[Step, Action]],
        wait: Callable[[], None] | None,
    ):  # fmt: skip
        self.first, self.body, self.count, self._wait = first, body, step.count, wait
        self._moving = [(m.slot, m.place.slot, m.place.offset, m.stride) for m in step.moving]

    def __call__(self, table: Table) -> None:
        _do(self.first, table, self._wait)
        for number in range(self.count):
            self.move(table, number)
            _do(self.body, table, self._wait)

    def move(self, table: Table, number: int) -> None:
        """Set the addresses of an iteration."""
        for slot, base, offset, stride in self._moving:
            table[slot] = table[base] + offset + number * stride


class _Spans:
    """Pairs of events around actions, by the number of their step."""

    def __init__(self, driver: Any, count: int):
        self._driver, self._count = driver, count
        self._found: list[tuple[int, float, Any, Any]] = []  # (step, how often it counts, event before, event after)
        self.at = 0

    def span(self, action: Callable[[], None], factor: float) -> None:
        """Enqueue an action between two events."""
        before, after = self._driver.create_event(), self._driver.create_event()
        self._driver.record_event(before)
        action()
        self._driver.record_event(after)
        self._found.append((self.at, factor, before, after))
        self.at += 1

    def seconds(self) -> tuple[list[float], list[float]]:
        """Wait, and return the seconds between the events of each step, and how many of them the events take."""
        empty = len(self._found)
        for _ in range(4):
            self.span(lambda: None, 0.0)
        self._driver.synchronise()
        took = [self._driver.seconds_between(before, after) for _, _, before, after in self._found]
        cost = min(took[empty:])
        spent, events = [0.0] * self._count, [0.0] * self._count
        for (step, factor, _, _), time in zip(self._found[:empty], took, strict=False):
            spent[step] += factor * time
            events[step] += factor * cost
        return spent, events


def _timed_launches(steps: Sequence[Step]) -> int:
    """How many launches `GpuExecutable.time_steps` enqueues."""
    count = 0
    for step in steps:
        if isinstance(step, Repeat):
            count += len(step.first) + min(step.count, TIMED_ITERATIONS) * _timed_launches(step.steps)
        else:
            count += 1
    return count


def _do(actions: Sequence[tuple[Step, Action]], table: Table, wait: Callable[[], None] | None) -> None:
    """Enqueue actions, and `wait` after each, if that is wanted."""
    for step, action in actions:
        try:
            action(table)
            if wait is not None:
                wait()
        except DeviceError as error:
            _tell(step, error, wait is not None)


def _tell(step: Step, error: DeviceError, waited: bool) -> NoReturn:
    """Raise the error with the name and source of its step. A device that is lost was lost by an earlier step, unless
    each is waited for; and of a loop, the step inside has its name already."""
    if isinstance(step, Repeat) or (isinstance(error, DeviceLost) and not waited):
        raise error
    text = f"\n{step.kernel.text}" if isinstance(step, Launch) and isinstance(step.kernel, Code) else ""
    raise problem(DeviceError, step.name, f"{error}{text}", "a step that runs") from error


def _runs(step: Any) -> bool:
    """Whether a step has anything to do."""
    return not isinstance(step, Launch) or step.extent > 0
