"""Variant: a function traced under one set of guards, with its plan, its memory and its slot table.

`build` makes one from a finished trace. What a replay needs lies ready in it: `Compiled` only compares, fills in
addresses and runs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import tree
from weft.backends.base import Buffer, Device, HostWords, Slab
from weft.compiler import program as programs
from weft.compiler.cells import call_steady, groups_of, retire, settle, steady_copy
from weft.compiler.evaluate import Entry, check_live, entry_for, evaluate, plan_for
from weft.compiler.memorymap import MemoryReport, memory_report, size_text, too_large
from weft.compiler.trace import Cell, Trace
from weft.dtypes import DType
from weft.errors import DeviceError, GraphError, OutOfMemoryError, problem
from weft.graph.node import Node, placeholder
from weft.locks import WriteGroup, call_holding, locks_of, new_lock
from weft.state import SETTINGS, STATE, VERSION
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.guards import Guards
    from weft.inputs import Inputs

MAX_SPARE_BYTES = 1024  # of results up to which a second piece of memory is kept for them


class ResultMemory:
    """Memory for the results of one slot, used again once nobody holds what was handed out.

    Each run hands out a new `Slab` for the memory. All that reads a result holds that slab: tensors, views, values that
    wait for it, NumPy arrays, capsules. So the memory is free when the weak reference to the slab is dead. Small
    results have two pieces: `loss = step(x)` holds a loss until the next is there, and the two take turns.
    """

    __slots__ = ("pieces", "slot")

    def __init__(self, slot: int):
        self.slot = slot
        self.pieces: list[Piece] = []  # small results: two at most, else one

    def add_piece(self, slab: Slab) -> None:
        """Keep another piece of memory, which `slab` was handed out for; the oldest goes where there are enough."""
        most = 2 if slab.nbytes <= MAX_SPARE_BYTES else 1
        self.pieces = [*self.pieces[len(self.pieces) - most + 1 :], Piece(slab)]


class Piece:
    """One allocation, and the slab that was handed out for it last."""

    __slots__ = ("form", "handed_out")

    def __init__(self, slab: Slab):
        self.form = (slab.device, slab.nbytes, slab.pointer, slab.owner)
        self.handed_out = weakref.ref(slab)


class Variant:
    """What one trace became. `spec` is (structure, forms) of the arguments; lists are in the order of the trace."""

    def __init__(
        self, name: str, spec: tuple, captured: Guards, inputs: Inputs, device: Device, entry: Entry, table: Any
    ):
        self.name = name
        self.spec = spec
        self.captured = captured  # what the function reads from Python's own variables
        self.numbers = inputs or None  # those that the host computes before each run
        self.check = captured.check if captured.guards or captured.once else None
        self.is_fresh = True  # no run was made yet: what the function assigns, its trace has assigned
        self.device = device
        self.entry = entry
        self.table = table
        self.run: Callable[[Any], None] = entry.executable.run
        self.watch: Callable[[Slab, Any], None] = device.backend.watch
        self.grad_enabled = STATE.grad_enabled
        self.autocast = STATE.autocast
        self.precision = programs.product_precision(device)
        self.default_dtype = SETTINGS.default_dtype
        self.version = -1
        self.guards: list[tuple[Callable[[], Any], Any]] = []
        self.grads_before: list[tuple[Any, Any]] = []  # (tensor, its .grad as the function saw it first)
        self.grads_after: list[tuple[Any, Any]] = []  # (tensor, .grad to leave behind)
        self.grads_made: list[Any] = []  # those of them whose memory the plan rewrites
        self.cells: list[tuple[Any, Buffer, int, bool]] = []  # (tensor, memory, slot or -1, written)
        self.forms: list[tuple[Any, tuple]] = []  # captured tensors and what is taken for granted of them
        self.arguments: list[tuple[int, int]] = []  # (position among flat arguments, slot)
        self.words: HostWords | None = None  # what the host writes before each run: numbers, states of generators
        self.draws: list[tuple[Any, np.ndarray, int]] = []  # (generator, memory of its state, draws per run)
        # (memory, or None where it is that of output number `first`, first, offset, nbytes, shape, dtype) each
        self.outputs: list[tuple[ResultMemory | None, int, int, int, tuple[int, ...], DType]] = []
        # Held from the check of the version to the end of a run: the lock of the first group, and those of the others.
        self.lock: Any = new_lock()
        self.other_locks: tuple[Any, ...] = ()
        self.groups: set[WriteGroup] = set()  # of the memory that a run writes in place, or reads while others write it
        self.results: list[Any] = []  # leaves of the result: constants, numbers, and TENSOR where an output goes
        self.structure: Any = None
        self.single = False  # the result is one tensor
        self.status: Slab | None = None
        # For each argument of a plain call (slot, shape, dtype, device, requires_grad), or for one that is no tensor
        # (None, type, value, whether any value will do, None).
        self.fast: list[tuple] | None = None
        self.leaf_buffers: list[Buffer | None] = []  # the memory of each leaf of the program; None for an argument
        self.program: programs.Program | None = None  # kept only for `testing.verify`
        self.retained: list[Any] = []  # memory that must live as long as the variant

    def matches(self, spec: tuple, flat: list[Any]) -> bool:
        """Whether every guard holds; if so, the inputs of the plan are written."""
        return (
            self.spec[0] == spec[0]
            and all(map(_fits, self.spec[1], spec[1]))
            and self.grad_enabled == STATE.grad_enabled
            and self.autocast is STATE.autocast
            and self.precision == programs.product_precision(self.device)
            and self.default_dtype is SETTINGS.default_dtype
            and self.grads_match()
            and all(read() == value for read, value in self.guards)
            and all(cell_form(tensor) == form for tensor, form in self.forms)
            and self.captured.verify()
            and (self.numbers is None or self.numbers.update(flat))
        )

    def replaces(self, other: Variant) -> bool:
        """Whether this variant serves every call that `other` does: the same arguments, of which some are any number
        here, and nothing that depends on the values of numbers."""
        return (
            self.numbers is not None
            and self.numbers.is_general
            and self.spec[0] == other.spec[0]
            and all(map(_fits, self.spec[1], other.spec[1]))
            and self.grad_enabled == other.grad_enabled
            and self.autocast is other.autocast
            and self.precision == other.precision
            and self.default_dtype is other.default_dtype
            and {guard.path for guard in self.captured.guards} <= {guard.path for guard in other.captured.guards}
            and [id(tensor) for tensor, _ in self.forms] == [id(tensor) for tensor, _ in other.forms]
        )

    def assign_effects(self) -> None:
        """Assign what the function assigns to variables, attributes and items that it reads."""
        for guard, value in self.captured.effects:
            guard.put(value if self.numbers is None else self.numbers.plain(value))
        if self.captured.assigns_to_modules:  # other compiled functions are to look
            current = self.version == VERSION.value
            self.captured.bump_modules()
            if current:
                self.version = VERSION.value

    def take_back_effects(self) -> None:
        """What the trace assigned is as it was, since no run follows: the next run assigns it."""
        for guard, _ in reversed(self.captured.effects):
            guard.put(guard.value)
        self.is_fresh = False

    def grads_match(self) -> bool:
        """Whether each .grad that the function looked at is None, or not, as it was then."""
        return all((tensor._grad is None) == (before is None) for tensor, before in self.grads_before)

    def difference(self, spec: tuple, flat: Sequence[Any]) -> str:
        """In words, the first guard that does not hold."""
        if spec[0] != self.spec[0]:
            return "the arguments have another structure"
        for position, (old, new) in enumerate(zip(self.spec[1], spec[1], strict=True)):
            if not _fits(old, new):
                return f"argument {position} was {_words(old)} and is {_words(new)}"
        if self.grad_enabled != STATE.grad_enabled:
            return f"gradients are {'on' if STATE.grad_enabled else 'off'} now"
        if self.autocast is not STATE.autocast:
            return f"it was traced {self.autocast or 'without autocast'} and runs {STATE.autocast or 'without it'}"
        if self.precision != programs.product_precision(self.device):
            return f"the precision of float32 products was {self.precision!r}"
        if self.default_dtype is not SETTINGS.default_dtype:
            return f"the default dtype was {self.default_dtype.name}"
        if not self.grads_match():
            return "a .grad that was None is not, or the other way round"
        if any(read() != value for read, value in self.guards):
            return "a value that the function branches on has changed"
        if any(cell_form(tensor) != form for tensor, form in self.forms):
            return "a captured tensor has another shape, dtype, device or requires_grad"
        reason = self.captured.difference()
        return reason or ("nothing has changed" if self.numbers is None else self.numbers.difference(flat))

    def resolve(self, flat: list[Any]) -> None:
        """Compute what the run will read, and put the memory of each argument in its place in `flat`: it is kept until
        the call is done, whatever becomes of the tensor. Called without the lock, as other groups may be read."""
        evaluate([flat[position].node for position, _ in self.arguments])
        for position, _ in self.arguments:
            node = flat[position].node
            check_live(node.buffer)
            flat[position] = steady_copy(node)
        for tensor, before in self.grads_before:
            grad = tensor._grad
            if before is not None and grad is not before:  # another gradient: its value moves into the captured one
                before._assign(grad.node)
                tensor._grad = before
        pending = [tensor._node for tensor, _, _, _ in self.cells]
        evaluate([node for node in pending if node is not None and node.buffer is None])

    def _relock(self) -> None:
        """Make the locks cover the memory in which the captured tensors lie now."""
        groups = self._groups_now()
        if groups != self.groups:
            locks = locks_of(groups) or (new_lock(),)
            self.lock, self.other_locks = locks[0], locks[1:]
            self.groups = groups  # last: an interrupt before leaves this to be done

    def _groups_now(self) -> set[WriteGroup]:
        return groups_of(itertools.chain([tensor for tensor, _, _, _ in self.cells], self.grads_made))

    def call_bound(self, flat: list[Any], function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)` with arguments and captured tensors bound, under the locks."""

        def call() -> tuple[bool, Any]:
            return (True, function(*args)) if self._bind(flat) else (False, None)

        while True:
            self._relock()
            is_done, result = call_holding((self.lock, *self.other_locks), call)
            if is_done:
                return result

    def _bind(self, flat: list[Any]) -> bool:
        """Put the addresses of arguments and of rebound cells into the slot table, under the lock. False where another
        thread moved a captured tensor to memory that the lock does not cover."""
        if not self._groups_now() <= self.groups:
            return False
        retire(self.groups)
        if self.numbers is not None and self.is_fresh:  # else `matches` wrote them
            self.numbers.write()
        for position, slot in self.arguments:
            self.table[slot] = flat[position].pointer
        for number, (tensor, buffer, slot, written) in enumerate(self.cells):
            settle(tensor)
            place = tensor._buffer
            if place is not buffer:
                if place.slab.pinned is not None and place.slab.pinned not in self.groups:
                    return False
                self.cells[number] = (tensor, place, slot, written)
                if slot >= 0:
                    self.table[slot] = place.pointer
        retire(self.groups)  # leaves that the lines above made
        return True

    def send(self) -> None:
        """Put scalars and the generators' present state where the plan reads them, and count this run's draws."""
        assert self.words is not None
        for generator, state, count in self.draws:
            if STATE.generator is not None:
                generator = generator._present()
            state[0], state[1] = generator.key, generator.counter & 0xFFFFFFFF
            generator.counter += count
        self.words.send()

    def take_back(self) -> None:
        """The draws of a run that did not take place."""
        for generator, _, count in self.draws:
            generator._present().counter -= count

    def inputs(self, flat: Sequence[Any]) -> dict[int, Buffer]:
        """The memory of each leaf before the next run, inside `call_bound(flat, ...)` or after it."""
        for generator, state, _ in self.draws:
            generator = generator._present()
            state[0], state[1] = generator.key, generator.counter & 0xFFFFFFFF
        if self.words is not None:
            self.words.send()
        found = {slot: buffer for slot, buffer in enumerate(self.leaf_buffers) if buffer is not None}
        found |= {slot: buffer for _, buffer, slot, _ in self.cells if slot >= 0}
        return found | {slot: flat[position] for position, slot in self.arguments}

    def new_result(self, memory: ResultMemory) -> Slab:
        """More memory for results, where somebody holds all that there is."""
        slab = self.allocate(memory.slot)
        memory.add_piece(slab)
        return slab

    def allocate(self, slot: int) -> Slab:
        """Memory for a slot of the plan; where there is none, the error says what the whole plan takes."""
        backend, form = self.device.backend, self.entry.plan.slots[slot]
        with contextlib.suppress(OutOfMemoryError):
            return (backend.arena if form.kind == "arena" else backend.allocate)(form.nbytes)
        raise self.too_large()

    def too_large(self) -> Exception:
        """The error for a device without the memory for a run; the results' memory is given up."""
        for memory, *_ in self.outputs:
            if memory is not None:
                memory.pieces = []
        shapes = [form[1] for form in self.spec[1] if form[0] == "tensor"]
        return too_large(self.name, self.entry.plan, self.names(), self.device, shapes)

    def spoil(self, state: str) -> None:
        """Note that the memory which a run writes in place has no value: reading it raises."""
        written = [buffer for _, buffer, _, is_written in self.cells if is_written]
        for buffer in [*written, *[grad._buffer for grad in self.grads_made]]:
            buffer.state = state

    def names(self) -> dict[int, str]:
        """What people call the inputs: tensors by their names, arguments by their positions."""
        found = {slot: f"argument {position}" for position, slot in self.arguments}
        for tensor, _, slot, written in self.cells:
            shape, dtype, _ = tensor._form_now()
            found[slot] = tensor.name or f"{'updated' if written else 'captured'} {dtype.name}{list(shape)}"
        for slot, whole in enumerate(self.leaf_buffers):
            if whole is not None and slot not in found:
                for kind, buffers in self._captured().items():
                    count = sum(part.slab is whole.slab for part in buffers)
                    if count:
                        found[slot] = f"{count} {kind} in one piece"
        return found

    def _captured(self) -> dict[str, list[Buffer]]:
        """The memory of what the function keeps, by kind."""
        return {
            "captured tensors": [buffer for _, buffer, _, written in self.cells if not written],
            "updated tensors": [buffer for _, buffer, _, written in self.cells if written],
            "gradients": [grad._buffer for grad in self.grads_made],
        }

    def leave_grads(self) -> None:
        """Set the gradients that the function leaves behind; what was assigned to them meanwhile is overwritten."""
        for grad in self.grads_made:
            grad._forget_node()
        for tensor, grad in self.grads_after:
            if tensor._grad is not grad:
                tensor._grad = grad
                VERSION.bump()

    def result(self, tensors: list[Tensor]) -> Any:
        """What the function returns, with this run's tensors in it."""
        values = iter(tensors)
        leaves = [next(values) if leaf is TENSOR else leaf for leaf in self.results]
        if self.numbers is not None:
            leaves = list(map(self.numbers.plain, leaves))
        return tree.unflatten(self.structure, leaves)


class _Marker:
    """Stands in a result's structure where a tensor goes."""


TENSOR = _Marker()


def build(
    trace: Trace,
    spec: tuple,
    bound: Sequence[tuple[int, Node]],
    results: Sequence[Node],
    kept: Sequence[tuple[Any, Any, Node | None]],
    captured: Guards,
    inputs: Inputs,
    with_program: bool = False,
) -> Variant:
    """Compile what a trace saw.

    `bound` holds (position, placeholder) of the tensors among the arguments; `results` the returned nodes; `kept` holds
    (tensor, .grad at the end, node of that gradient if it was made in the trace) for every .grad that changed.
    """
    return _Builder(trace, spec, bound, results, kept, captured, inputs).variant(with_program)


class Prediction:
    """The memory of a plan that was only made to know it."""

    def __init__(self, report: MemoryReport):
        self.report = report
        self.results: list[Any] = []
        self.structure: Any = None
        self.single = False


def predict(
    trace: Trace, spec: tuple, bound: Sequence[tuple[int, Node]], results: Sequence[Node], kept: Sequence,
    captured: Guards, inputs: Inputs, with_program: bool = False,
) -> Prediction:  # fmt: skip
    """`build` that ends with the plan: no kernel is compiled, and what the trace assigned is as it was."""
    prediction = Prediction(_Builder(trace, spec, bound, results, kept, captured, inputs).report())
    for guard, _ in reversed(captured.effects):
        guard.put(guard.value)
    return prediction


class _Builder:
    """Collects a program's leaves (`bindings`), outputs and in-place targets, then compiles it."""

    def __init__(
        self, trace: Trace, spec: tuple, bound: Sequence, results: Sequence[Node], kept: Sequence, captured: Guards,
        inputs: Inputs,
    ):  # fmt: skip
        self.trace, self.spec, self.bound, self.results, self.kept = trace, spec, bound, results, kept
        self.captured, self.numbers = captured, inputs
        self.cells: list[Cell] = list(trace.cells.values())
        made = [node for _, _, node in kept if node is not None]
        arguments = [node for _, node in bound]
        nodes = [*results, *made, *arguments, *inputs.nodes, *[cell.placeholder for cell in self.cells]]
        self.device = _one_device(trace.name, nodes)
        self.backend = self.device.backend
        self.bindings: dict[Node, Buffer | None] = dict.fromkeys(arguments)
        self.outputs: list[Node] = list(results)
        self.targets: dict[int, Node] = {}
        self.spans: list[Node] = []
        self.retained: list[Any] = []
        self.group = WriteGroup()  # of the memory that is pinned here

    def report(self) -> MemoryReport:
        """What the plan takes in memory."""
        self._capture()
        self._host_words()
        program, _ = self._program()
        return memory_report(plan_for(program, self.device), {})

    def _program(self) -> tuple[programs.Program, list[Buffer | None]]:
        """What the trace computes, and the memory of its leaves, after places were given."""
        for cell in self.cells:
            if cell.written:
                self._write(cell.node, cell.placeholder)
        self._keep_grads()
        if not self.outputs:
            given = "a function that returns no tensor and assigns none"
            raise problem(GraphError, f"weft.compile({self.trace.name})", given, "an effect", "return a tensor")
        located = programs.locate([*self.outputs, *self.targets.values(), *self.spans], self.bindings)
        return programs.build(self.outputs, located, self.targets, self.spans)

    def variant(self, with_program: bool) -> Variant:
        places = self._capture()
        words, draws = self._host_words()
        program, leaf_buffers = self._program()
        entry = entry_for(program, self.device)
        table = self.backend.slot_table(len(entry.plan.slots) + 1)
        variant = Variant(self.trace.name, self.spec, self.captured, self.numbers, self.device, entry, table)
        if entry.diagnosis is not None:
            messages = entry.diagnosis.messages(program)
            addresses = None if self.backend.runs_ahead else table
            explain = functools.partial(entry.diagnosis.explain, addresses=addresses, messages=messages)
            variant.watch = functools.partial(self.backend.watch, explain=explain)
        try:
            self.backend.require(entry.needs)
        except OutOfMemoryError:
            raise variant.too_large() from None
        self._fill_table(variant, program.leaves, leaf_buffers, places)
        variant.guards, variant.grads_before = self.trace.guards, self.trace.grads_read
        variant.grads_after = [(tensor, grad) for tensor, grad, _ in self.kept]
        variant.grads_made = [grad for _, grad, node in self.kept if node is not None]
        variant.forms = [(cell.tensor, cell_form(cell.tensor)) for cell in self.cells]
        variant.draws = draws
        variant.program = program if with_program else None
        variant.words = words
        slots = [slot for slot, _ in entry.outputs]
        for number, (node, (slot, offset)) in enumerate(zip(self.results, entry.outputs, strict=True)):
            first = slots.index(slot)
            memory = ResultMemory(slot) if first == number else None
            variant.outputs.append((memory, first, offset, node.nbytes, node.shape, node.dtype))
        variant.retained, variant.leaf_buffers = self.retained, leaf_buffers
        return variant

    def _write(self, value: Node, target: Node) -> None:
        """Let the program put `value` in the place of leaf `target`."""
        self.targets[len(self.outputs)] = target
        self.outputs.append(value)

    def _pinned(self, nbytes: int) -> Buffer:
        """Memory that the plan rewrites in place."""
        with contextlib.suppress(OutOfMemoryError):
            slab = self.backend.allocate(nbytes)
            slab.pinned = self.group
            return Buffer(slab, 0, nbytes)
        available, total = self.backend.memory()
        given = f"{size_text(nbytes)} of parameters, state or gradients that it writes in place on {self.device}"
        expected = f"at most {size_text(available)}, which are available of {size_text(total)}"
        raise problem(OutOfMemoryError, self.trace.name, given, expected, "use fewer or narrower parameters")

    def _capture(self) -> dict[Cell, Buffer]:
        """Give every cell a fixed place. Cells that are written move into memory that nobody else holds."""
        evaluate([cell.tensor._node for cell in self.cells if cell.tensor._node is not None])
        return call_steady([cell.tensor for cell in self.cells], self._give_places)

    def _give_places(self, groups: set[WriteGroup]) -> dict[Cell, Buffer]:
        """Under the locks of the groups in which the cells lie now."""
        retire(groups)
        moving: list[Any] = []
        for cell in self.cells:
            tensor = cell.tensor
            if tensor._buffer is None:
                tensor._form = tensor._form_now()[:2]
                tensor._buffer = tensor._node.buffer
            settle(tensor)
            if cell.written and not tensor._buffer.slab.pinned:
                moving.append(tensor)
        for tensors in _neighbours(moving):
            slab, start = tensors[0]._buffer.slab, tensors[0]._buffer.offset
            stop = tensors[-1]._buffer.offset + tensors[-1]._buffer.nbytes
            own = self._pinned(stop - start)
            self.backend.copy(own, Buffer(slab, start, stop - start))
            for tensor in tensors:
                tensor._buffer = Buffer(own.slab, tensor._buffer.offset - start, tensor._buffer.nbytes)
                tensor._forget_node()  # it holds the memory before: only one group at a time is in memory twice
            VERSION.bump()
        places = {}
        for cell in self.cells:
            place = places[cell] = cell.tensor._buffer
            if place.slab.pinned:
                cell.tensor._forget_node()
            # A cell that is only read may be rebound from outside, so its address is looked up at each call.
            self.bindings[cell.placeholder] = place if place.slab.pinned else None
        return places

    def _host_words(self) -> tuple[HostWords | None, list[tuple[Any, np.ndarray, int]]]:
        """What the host writes before each run, in one piece: all of it, and for each generator (itself, its key and
        counter, draws per run)."""
        numbers = self.numbers.nodes
        draws = list(self.trace.draws.values())
        nodes = [*numbers, *[state for _, state, _ in draws]]
        if not nodes:
            return None, []
        starts = [0, *itertools.accumulate(-(-node.nbytes // 8) * 8 for node in nodes)]
        words = self.backend.host_words(starts[-1])
        for node, start in zip(nodes, starts, strict=False):
            self.bindings[node] = Buffer(words.slab, start, node.nbytes)
        self.retained.append(words.slab)
        self.numbers.place(words.array, starts)
        states = [
            words.array[start : start + state.nbytes].view(state.dtype.numpy)
            for (_, state, _), start in zip(draws, starts[len(numbers) :], strict=False)
        ]
        return words, [(made[0], state, made[2]) for made, state in zip(draws, states, strict=True)]

    def _keep_grads(self) -> None:
        """Gradients that stay behind become cells: the tensors keep their identity, their memory is rewritten.

        They lie one after the other in the order of their parameters, as an optimizer will read them.
        """
        made = [(tensor, grad, node) for tensor, grad, node in self.kept if node is not None]
        at = _addresses([tensor for tensor, _, _ in made])
        made.sort(key=lambda item: at[id(item[0])])
        for dtype in dict.fromkeys(node.dtype for _, _, node in made):
            together = [(grad, node) for _, grad, node in made if node.dtype is dtype]
            slab = self._pinned(sum(node.nbytes for _, node in together)).slab
            span = placeholder((slab.nbytes // dtype.itemsize,), dtype, self.device)
            self.bindings[span] = Buffer(slab, 0, slab.nbytes)
            self.spans.append(span)
            offset = 0
            for grad, node in together:
                place = placeholder(node.shape, node.dtype, node.device)
                buffer = self.bindings[place] = Buffer(slab, offset, node.nbytes)
                self._write(node, place)
                grad._form, grad._buffer, grad._node = (node.shape, node.dtype), buffer, None
                offset += node.nbytes

    def _fill_table(
        self,
        variant: Variant,
        leaves: Sequence[Node],
        leaf_buffers: Sequence[Buffer | None],
        places: dict[Cell, Buffer],
    ) -> None:
        plan, table = variant.entry.plan, variant.table
        slot_of = {node: slot for slot, node in enumerate(leaves)}
        for slot, buffer in enumerate(leaf_buffers):
            if buffer is not None:
                table[slot] = buffer.pointer
        for cell, place in places.items():
            slot = slot_of.get(cell.placeholder, -1)
            if slot >= 0:
                table[slot] = place.pointer
            variant.cells.append((cell.tensor, place, slot, cell.written))
        for position, node in self.bound:
            if node in slot_of:
                variant.arguments.append((position, slot_of[node]))
        arena, status = variant.allocate(len(plan.slots) - 2), self.backend.status(plan.slots[-1].nbytes)
        table[len(plan.slots) - 2], table[len(plan.slots) - 1] = arena.pointer, status.pointer
        self.retained += [arena, status]
        if plan.sites:
            variant.status = status
        structure, forms = self.spec
        plain = structure == tree.flatten((tuple(range(len(forms))), {}))[1]
        if plain and all(form[:2] != ("static", float) for form in forms):
            slots = dict(variant.arguments)
            spare = len(plan.slots)  # where the address of an argument goes that the program does not read
            variant.fast = [
                (slots.get(k, spare), *form[1:])
                if form[0] == "tensor"
                else (None, form[1], form[2] if form[0] == "static" else None, form[0] == "number", None)
                for k, form in enumerate(forms)
            ]


def _addresses(tensors: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """What sorts captured tensors, by their id, by where they lie; others come first. Slabs count in the order of their
    first tensors, not by address: a program must be the same in every process."""
    slabs: dict[int, int] = {}
    found = {}
    for tensor in tensors:
        buffer = tensor._buffer
        number = 0 if buffer is None else slabs.setdefault(id(buffer.slab), len(slabs) + 1)
        found[id(tensor)] = (number, 0 if buffer is None else buffer.offset)
    return found


def cell_form(tensor: Tensor) -> tuple:
    """What a variant takes for granted of a captured tensor."""
    return (*tensor._form_now(), tensor._requires_grad)


def _fits(known: tuple, form: tuple) -> bool:
    """Whether an argument of a form is what a trace took for granted: the form itself, or any number of a type."""
    return known == form or (known[0] == "number" and form[0] == "static" and form[1] is known[1])


def _words(form: tuple) -> str:
    """A form of an argument for people."""
    if form[0] == "tensor":
        return f"{form[2].name}{list(form[1])} on {form[3]}" + (" with grad" if form[4] else "")
    if form[0] == "number":
        return f"a number of type {form[1].__name__}"
    return "a float" if form[1] is float else repr(form[2])


def _neighbours(tensors: list[Any]) -> list[list[Any]]:
    """Tensors grouped so that those of a group lie in one slab in order of address, without overlap."""
    groups: list[list[Any]] = []
    at = _addresses(tensors)
    waiting = sorted(tensors, key=lambda tensor: at[id(tensor)])
    while waiting:
        group, rest = [waiting[0]], []
        for tensor in waiting[1:]:
            last = group[-1]._buffer
            same = tensor._buffer.slab is last.slab
            if same and tensor._buffer.offset >= last.offset + last.nbytes and last.nbytes:
                group.append(tensor)
            else:
                rest.append(tensor)
        groups.append(group)
        waiting = rest
    return groups


def _one_device(name: str, nodes: Sequence[Node]) -> Device:
    devices = {node.device for node in nodes}
    if len(devices) > 1:
        given = f"tensors on {', '.join(sorted(map(str, devices)))}"
        raise problem(DeviceError, f"weft.compile({name})", given, "one device", "move them with .to(device)")
    if not devices:
        given = "a function that uses no tensor"
        raise problem(GraphError, f"weft.compile({name})", given, "tensors", "call the plain function")
    return devices.pop()
