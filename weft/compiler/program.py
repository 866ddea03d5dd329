"""Program: a graph ready to compile, with its leaves numbered and a canonical key.

Two graphs of the same form give the same key, whatever nodes they are made of, so a Python loop that builds its graph
again each time finds its plan again. Contiguous views of computed values count as leaves: slicing a batch out of a data
set changes an address, not the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_

from weft.base.dtypes import float32, float64
from weft.base.state import SETTINGS
from weft.compiler.passes.slice_starts import MOST_OPEN, Position, open_axes, open_form
from weft.graph.body import form_of
from weft.graph.gelu import CUBIC, LINEAR
from weft.graph.node import Node, scalar_of, toposort
from weft.plan.device import Buffer, Device

_PASS_THROUGH = frozenset({"stop_gradient", "variable", "checkpoint", "result", "surrogate", "keep"})
# Floats that kernels and rules know
LITERAL = frozenset({0.0, 1.0, -1.0, 2.0, 0.5, float("inf"), float("-inf"), LINEAR, CUBIC})


@dataclass(frozen=True, slots=True)
class Write:
    """Output number `output` is to be written in place to the memory of leaf number `leaf` (donated storage)."""

    output: int
    leaf: int


@dataclass(frozen=True, slots=True)
class Program:
    """`leaves` are read from memory, `outputs` are the results, `writes` say which outputs replace which leaves.

    `nodes` are all nodes below the outputs, sources before users. `numbers` are constants whose values are passed with
    each run, so they are not part of the form, and `positions` are starts of slices that are passed after them.
    `overlaps` lists (inner leaf, outer leaf, byte offset) for leaves whose memory is inside another leaf's.
    """

    nodes: tuple[Node, ...]
    leaves: tuple[Node, ...]
    outputs: tuple[Node, ...]
    writes: tuple[Write, ...] = ()
    overlaps: tuple[tuple[int, int, int], ...] = ()
    key: tuple = ()
    numbers: tuple[Node, ...] = ()
    positions: tuple[Position, ...] = ()

    @property
    def values(self) -> list[float | int]:
        """The open numbers of a run, in order."""
        return [*[node.attrs.value for node in self.numbers], *[position.value for position in self.positions]]

    @property
    def changed_leaves(self) -> set[Node]:
        """The leaves whose memory a write changes."""
        written = {write.leaf for write in self.writes}
        for small, big, _ in self.overlaps:
            if small in written or big in written:
                written |= {small, big}
        return {self.leaves[number] for number in written}

    def with_outputs(self, outputs: Sequence[Node]) -> Program:
        """The program with other nodes in place of its outputs, one for each."""
        if all(map(is_, outputs, self.outputs)):
            return self
        nodes = tuple(toposort(outputs, set(self.leaves).__contains__))
        return replace(self, nodes=nodes, outputs=tuple(outputs))


def locate(outputs: Sequence[Node], bindings: Mapping[Node, Buffer | None]) -> dict[Node, Buffer | None]:
    """Where nodes below `outputs` already live: computed nodes, bound placeholders and contiguous views of both.

    A placeholder bound to None has memory that is known only at run time (an argument of a compiled function).
    """
    located: dict[Node, Buffer | None] = {}
    for node in toposort(outputs, lambda node: node.buffer is not None or node in bindings):
        if node.buffer is not None:
            if scalar_of(node) is None:  # else cheaper to write down than to read
                located[node] = node.buffer
        elif node in bindings:
            located[node] = bindings[node]
        elif node.op in _PASS_THROUGH or node.op == "reshape":
            source = located.get(node.srcs[0])
            if source is not None:  # a buffer of its own, so that users of the slab can be counted
                located[node] = Buffer(source.slab, source.offset, source.nbytes)
        elif node.op == "slice":
            source = located.get(node.srcs[0])
            offset = slice_offset(node) if source is not None else None
            if source is not None and offset is not None:
                located[node] = Buffer(source.slab, source.offset + offset, node.nbytes)
        elif node.op == "concat":
            joined = _locate_concatenation(node, located)
            if joined is not None:
                located[node] = joined
    return located


def slice_offset(node: Node) -> int | None:
    """Byte offset of a slice that is one contiguous run of its source, else None."""
    starts, _, steps = node.attrs
    source = node.srcs[0]
    if not node.size:
        return None
    offset, stride, run = 0, source.dtype.itemsize, True
    for axis in range(len(source.shape) - 1, -1, -1):
        extent = node.shape[axis]
        if extent != 1 and (steps[axis] != 1 or not run):
            return None
        if extent != source.shape[axis]:
            run = False  # axes further out must have extent 1
        offset += starts[axis] * stride
        stride *= source.shape[axis]
    return offset


def _locate_concatenation(node: Node, located: Mapping[Node, Buffer | None]) -> Buffer | None:
    """The memory of a concatenation along the first axis whose parts are already contiguous."""
    if node.attrs.axis != 0:
        return None
    first = located.get(node.srcs[0])
    if first is None:
        return None
    end = first.offset
    for source in node.srcs:
        buffer = located.get(source)
        if buffer is None or buffer.slab is not first.slab or buffer.offset != end:
            return None
        end += source.nbytes
    return Buffer(first.slab, first.offset, end - first.offset)


def build(
    outputs: Sequence[Node],
    located: Mapping[Node, Buffer | None],
    targets: Mapping[int, Node] | None = None,
    spans: Sequence[Node] = (),
    with_numbers: bool = False,
    with_positions: bool = False,
) -> tuple[Program, list[Buffer | None]]:
    """Number the graph under `outputs`. `targets` maps an output's position to the leaf it is to be written to; `spans`
    are leaves that no node reads but that hold several targets one after the other. `with_numbers` leaves the values
    of float constants and the positions of small writes open, `with_positions` the starts of all slices.

    Returns the program and, for each leaf, its memory (None for an argument).
    """
    targets = targets or {}
    nodes: list[Node] = []
    number: dict[Node, int] = {}
    leaves: list[Node] = []
    form: list[tuple] = []
    numbers: list[Node] = []
    opened: list[tuple[Node, int]] = []
    order = toposort([*outputs, *targets.values(), *spans], located.__contains__)
    moving = with_numbers and sum([node.op == "update_slice" for node in order]) <= MOST_OPEN
    for node in order:
        number[node] = len(nodes)
        nodes.append(node)
        if node in located:
            leaves.append(node)
            form.append(("leaf", node.shape, node.dtype))
        elif with_numbers and _is_number(node):
            form.append(("number", node.dtype))
            numbers.append(node)
        else:
            attrs = form_of(node)
            if moving and node.op in ("slice", "update_slice"):
                axes = open_axes(node, located, with_positions)
                if axes:
                    opened += [(node, axis) for axis in axes]
                    attrs = open_form(node, axes)
            sources = tuple([number[source] for source in node.srcs])
            form.append((node.op, sources, attrs, node.shape, node.dtype))
    leaf_number = {leaf: position for position, leaf in enumerate(leaves)}
    buffers = [located[leaf] for leaf in leaves]
    writes = tuple([Write(position, leaf_number[leaf]) for position, leaf in targets.items()])
    overlaps = tuple(_overlaps(buffers, leaves)) if writes else ()
    device = outputs[0].device
    written = tuple([(write.output, write.leaf) for write in writes])
    results = tuple([number[node] for node in outputs])
    key = (device, tuple(form), results, written, overlaps, product_precision(device))
    positions = tuple([Position(node, axis, slot) for slot, (node, axis) in enumerate(opened, len(numbers))])
    program = Program(tuple(nodes), tuple(leaves), tuple(outputs), writes, overlaps, key, tuple(numbers), positions)
    return program, buffers


def product_precision(device: Device) -> str:
    """How exact float32 products of a plan for `device` are: 'highest', or 'high' if that is set and available."""
    return "high" if device.libraries and SETTINGS.float32_matmul_precision != "highest" else "highest"


def _is_number(node: Node) -> bool:
    """Whether a node is a float constant on whose value nothing but the result depends."""
    if node.op != "const" or node.dtype not in (float32, float64):
        return False
    value = node.attrs.value
    return value not in LITERAL and value == value


def _overlaps(buffers: Sequence[Buffer | None], leaves: Sequence[Node]) -> list[tuple[int, int, int]]:
    """Pairs of leaves of which one is inside the other's memory."""
    by_slab: dict[int, list[tuple[int, int, int]]] = {}
    for position, (buffer, leaf) in enumerate(zip(buffers, leaves, strict=True)):
        if buffer is not None and leaf.size:
            by_slab.setdefault(id(buffer.slab), []).append((buffer.offset, buffer.offset + leaf.nbytes, position))
    pairs: list[tuple[int, int, int]] = []
    for ranges in by_slab.values():
        ranges.sort(key=lambda item: (item[0], -item[1]))
        for position, (start, stop, outer) in enumerate(ranges):
            for inner_start, inner_stop, inner in ranges[position + 1 :]:
                if inner_start >= stop:
                    break
                if inner_stop <= stop:
                    pairs.append((inner, outer, inner_start - start))
    return sorted(pairs)
