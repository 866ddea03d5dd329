"""From a finished trace to a `Variant`: captured cells and gradients get memory, the program is compiled, and the slot
table filled. `predict` stops at the plan, to know what it takes in memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base import tree
from weft.base.errors import DeviceError, GraphError, OutOfMemoryError, problem
from weft.base.locks import WriteGroup
from weft.base.state import VERSION
from weft.compiler import program as programs
from weft.compiler.cells import call_steady, retire, write_back
from weft.compiler.memory.report import MemoryReport, memory_report, size_text
from weft.compiler.realize import entry_for, plan_for, realize_nodes
from weft.compiler.trace import Cell, Trace
from weft.graph.node import Node, placeholder
from weft.jit.result_memory import ResultMemory
from weft.jit.variant import Variant, cell_form
from weft.plan.device import Buffer, Device, HostWords, describe_available

if TYPE_CHECKING:
    from weft.jit.guards import Guards
    from weft.jit.inputs import Inputs


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
    """The memory that a plan would take."""

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
        self.device = _find_device(trace.name, nodes)
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
        self._allocate_host_words()
        program, _ = self._build_program()
        return memory_report(plan_for(program, self.device), {})

    def _build_program(self) -> tuple[programs.Program, list[Buffer | None]]:
        """What the trace computes, and the memory of its leaves, once cells have theirs."""
        for cell in self.cells:
            if cell.written:
                self._add_write(cell.node, cell.placeholder)
        self._retain_gradients()
        if not self.outputs:
            given = "a function that returns no tensor and assigns none"
            raise problem(GraphError, f"weft.compile({self.trace.name})", given, "an effect", "return a tensor")
        located = programs.locate([*self.outputs, *self.targets.values(), *self.spans], self.bindings)
        return programs.build(self.outputs, located, self.targets, self.spans)

    def variant(self, with_program: bool) -> Variant:
        buffers = self._capture()
        words, draws = self._allocate_host_words()
        program, leaf_buffers = self._build_program()
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
        self._fill_table(variant, program.leaves, leaf_buffers, buffers)
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

    def _add_write(self, value: Node, target: Node) -> None:
        """Let the program write `value` to the memory of leaf `target`."""
        self.targets[len(self.outputs)] = target
        self.outputs.append(value)

    def _allocate_pinned(self, nbytes: int) -> Buffer:
        """Memory that the plan rewrites in place."""
        with contextlib.suppress(OutOfMemoryError):
            slab = self.backend.allocate(nbytes)
            slab.pinned = self.group
            return Buffer(slab, 0, nbytes)
        given = f"{size_text(nbytes)} of parameters, state or gradients that it writes in place on {self.device}"
        expected = describe_available(self.device, nbytes)
        raise problem(OutOfMemoryError, self.trace.name, given, expected, "use fewer parameters, or a smaller dtype")

    def _capture(self) -> dict[Cell, Buffer]:
        """Give every cell fixed memory. Cells that are written move into memory that nothing else refers to."""
        realize_nodes([cell.tensor._node for cell in self.cells if cell.tensor._node is not None])
        return call_steady([cell.tensor for cell in self.cells], self._assign_memory)

    def _assign_memory(self, groups: set[WriteGroup]) -> dict[Cell, Buffer]:
        """Under the locks of the groups that the cells belong to now."""
        retire(groups)
        moving: list[Any] = []
        for cell in self.cells:
            tensor = cell.tensor
            if tensor._buffer is None:
                tensor._form = tensor._form_now()[:2]
                tensor._buffer = tensor._node.buffer
            write_back(tensor)
            if cell.written and not tensor._buffer.slab.pinned:
                moving.append(tensor)
        for tensors in _group_adjacent(moving):
            slab, start = tensors[0]._buffer.slab, tensors[0]._buffer.offset
            stop = tensors[-1]._buffer.offset + tensors[-1]._buffer.nbytes
            own = self._allocate_pinned(stop - start)
            self.backend.copy(own, Buffer(slab, start, stop - start))
            for tensor in tensors:
                tensor._buffer = Buffer(own.slab, tensor._buffer.offset - start, tensor._buffer.nbytes)
                tensor._forget_node()  # it refers to the memory before: only one group at a time is in memory twice
            VERSION.bump()
        buffers = {}
        for cell in self.cells:
            buffer = buffers[cell] = cell.tensor._buffer
            if buffer.slab.pinned:
                cell.tensor._forget_node()
            # A cell that is only read may be rebound from outside, so its address is looked up at each call.
            self.bindings[cell.placeholder] = buffer if buffer.slab.pinned else None
        return buffers

    def _allocate_host_words(self) -> tuple[HostWords | None, list[tuple[Any, np.ndarray, int]]]:
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
        self.numbers.assign_memory(words.array, starts)
        states = [
            words.array[start : start + state.nbytes].view(state.dtype.numpy)
            for (_, state, _), start in zip(draws, starts[len(numbers) :], strict=False)
        ]
        return words, [(made[0], state, made[2]) for made, state in zip(draws, states, strict=True)]

    def _retain_gradients(self) -> None:
        """Gradients that stay behind become cells: the tensors keep their identity, their memory is rewritten.

        They are stored one after the other in the order of their parameters, as an optimizer will read them.
        """
        made = [(tensor, grad, node) for tensor, grad, node in self.kept if node is not None]
        at = _sort_keys([tensor for tensor, _, _ in made])
        made.sort(key=lambda item: at[id(item[0])])
        for dtype in dict.fromkeys(node.dtype for _, _, node in made):
            together = [(grad, node) for _, grad, node in made if node.dtype is dtype]
            slab = self._allocate_pinned(sum(node.nbytes for _, node in together)).slab
            span = placeholder((slab.nbytes // dtype.itemsize,), dtype, self.device)
            self.bindings[span] = Buffer(slab, 0, slab.nbytes)
            self.spans.append(span)
            offset = 0
            for grad, node in together:
                target = placeholder(node.shape, node.dtype, node.device)
                buffer = self.bindings[target] = Buffer(slab, offset, node.nbytes)
                self._add_write(node, target)
                grad._form, grad._buffer, grad._node = (node.shape, node.dtype), buffer, None
                offset += node.nbytes

    def _fill_table(
        self,
        variant: Variant,
        leaves: Sequence[Node],
        leaf_buffers: Sequence[Buffer | None],
        buffers: dict[Cell, Buffer],
    ) -> None:
        plan, table = variant.entry.plan, variant.table
        slot_of = {node: slot for slot, node in enumerate(leaves)}
        for slot, buffer in enumerate(leaf_buffers):
            if buffer is not None:
                table[slot] = buffer.pointer
        for cell, buffer in buffers.items():
            slot = slot_of.get(cell.placeholder, -1)
            if slot >= 0:
                table[slot] = buffer.pointer
            variant.cells.append((cell.tensor, buffer, slot, cell.written))
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


def _sort_keys(tensors: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Keys that sort captured tensors, by their id, by address; others come first. Slabs count in the order of
    their first tensors, not by address: a program must be the same in every process."""
    slabs: dict[int, int] = {}
    found = {}
    for tensor in tensors:
        buffer = tensor._buffer
        number = 0 if buffer is None else slabs.setdefault(id(buffer.slab), len(slabs) + 1)
        found[id(tensor)] = (number, 0 if buffer is None else buffer.offset)
    return found


def _group_adjacent(tensors: list[Any]) -> list[list[Any]]:
    """Tensors grouped so that those of a group are in one slab in order of address, without overlap."""
    groups: list[list[Any]] = []
    at = _sort_keys(tensors)
    remaining = sorted(tensors, key=lambda tensor: at[id(tensor)])
    while remaining:
        group, rest = [remaining[0]], []
        for tensor in remaining[1:]:
            last = group[-1]._buffer
            same = tensor._buffer.slab is last.slab
            if same and tensor._buffer.offset >= last.offset + last.nbytes and last.nbytes:
                group.append(tensor)
            else:
                rest.append(tensor)
        groups.append(group)
        remaining = rest
    return groups


def _find_device(name: str, nodes: Sequence[Node]) -> Device:
    devices = {node.device for node in nodes}
    if len(devices) > 1:
        given = f"tensors on {', '.join(sorted(map(str, devices)))}"
        raise problem(DeviceError, f"weft.compile({name})", given, "one device", "move them with .to(device)")
    if not devices:
        given = "a function that uses no tensor"
        raise problem(GraphError, f"weft.compile({name})", given, "tensors", "call the plain function")
    return devices.pop()
