"""Values that are written into the memory of leaves which they replace."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.compiler.fusion.fuse import Fusion
from weft.compiler.fusion.region import FORMS, Region
from weft.compiler.fusion.views import base_of
from weft.compiler.passes.row_writes import RowsConflict, reads_own_rows
from weft.compiler.program import Program, slice_offset
from weft.graph.node import Node
from weft.kernels.ir import index as ix


class Donation:
    """Finds which outputs can be written into the leaves that they replace (`inside`), and which have to be copied
    there at the end (`copies`). `before` has the regions that must run earlier, where this adds some."""

    def __init__(self, fusion: Fusion):
        self.fusion, self.program = fusion, fusion.program
        self.inside: dict[Node, tuple[Node, int]] = {}
        self.copies: list[tuple[Node, Node, int]] = []  # (value, leaf, byte offset in the value)
        self.before: dict[Region, int] = {}
        self.readers: dict[Node, list[Region]] = {}  # regions that read each value from memory
        self.waits: list[Node] = []  # the `after` nodes, sources first

    def run(self) -> None:
        """Decide for every write of the program."""
        program, outputs = self.program, self.program.outputs
        if not program.writes:
            return
        self.before = {region: region.before for region in self.fusion.regions}
        self.waits = [node for node in self.fusion.stored if node.op == "after"]
        for region in self.fusion.regions:
            for read in region.reads:
                self.readers.setdefault(read, []).append(region)
        groups: dict[Node, list[tuple[int, int, int]]] = {}  # value -> [(leaf number, byte offset in value, bytes)]
        for write in program.writes:
            value, offset = _window(outputs[write.output], self.fusion)
            groups.setdefault(value, []).append((write.leaf, offset, outputs[write.output].nbytes))
        written = {write.output for write in program.writes}
        returned = {base_of(node) for position, node in enumerate(outputs) if position not in written}
        for value, windows in groups.items():
            if value.op == "write_rows":
                leaf = windows[0][0]
                if not self._fits_in_place(value, leaf, 0):
                    raise RowsConflict
                self.inside[value] = (program.leaves[leaf], 0)
                continue
            target = _target(program, value, windows)
            if target is not None and value not in returned and self._fits_in_place(value, *target):
                self.inside[value] = (program.leaves[target[0]], target[1])
                continue
            for leaf, offset, _ in windows:
                self.copies.append((value, program.leaves[leaf], offset))

    def _fits_in_place(self, value: Node, leaf: int, offset: int) -> bool:
        """Whether `value` may be written over the memory of `leaf` while the plan runs; adds the order that this
        needs."""
        nodes = self._nodes_in_leaf(leaf)
        writers = self.fusion.stored[value]
        readers = list(dict.fromkeys([region for node in nodes for region in self.readers.get(node, ())]))
        if not readers:
            return True
        if len(writers) != 1:
            return False
        (writer,) = writers
        for reader in readers:
            if reader is writer:
                if not _reads_what_it_writes(writer, value, nodes, offset):
                    return False
            elif self.before[reader] & writer.bit:
                return False
        for reader in readers:
            if reader is not writer and not self.before[writer] & reader.bit:
                self._add_order(reader, writer)
        return True

    def _nodes_in_leaf(self, leaf: int) -> dict[Node, int]:
        """The nodes that are stored in the memory of a leaf, each with its byte offset from the leaf's start."""
        program = self.program
        touching = {leaf: 0}
        for small, big, at in program.overlaps:
            if big == leaf:
                touching[small] = at
        for small, big, at in program.overlaps:
            if small == leaf:
                touching[big] = -at
                for other, outer, inner_at in program.overlaps:
                    if outer == big:
                        touching[other] = inner_at - at
        nodes = {program.leaves[number]: at for number, at in touching.items()}
        for node in self.waits:
            if base_of(node.srcs[0]) in nodes:
                nodes[node] = nodes[base_of(node.srcs[0])]
        return nodes

    def _add_order(self, first: Region, second: Region) -> None:
        before = self.before
        before[second] |= before[first] | first.bit
        for region in self.fusion.regions:
            if before[region] & second.bit:
                before[region] |= before[second]


def _window(node: Node, fusion: Fusion) -> tuple[Node, int]:
    """The stored value that `node` is a contiguous part of, and the byte offset of the part."""
    offset = 0
    while True:
        window = fusion.windows.get(node)
        if window is not None:
            return window.whole, offset + window.offset * node.dtype.itemsize
        if node in fusion.stored:
            return node, offset
        if node.op == "slice":
            inside = slice_offset(node)
            assert inside is not None
            offset += inside
        node = node.srcs[0]


def _target(program: Program, value: Node, windows: Sequence[tuple[int, int, int]]) -> tuple[int, int] | None:
    """(leaf, byte offset) such that writing all of `value` there puts every window into its own leaf; None if none."""
    if sum(nbytes for _, _, nbytes in windows) != value.nbytes or len({offset for _, offset, _ in windows}) != len(
        windows
    ):
        return None
    first, first_offset, _ = windows[0]
    outer = [(first, 0)] + [(big, at) for small, big, at in program.overlaps if small == first]
    inside = {(small, big): at for small, big, at in program.overlaps}
    for leaf, at in outer:
        start = at - first_offset
        fits = all((at_leaf := _offset_in(inside, number, leaf)) is not None and at_leaf - offset == start
                   for number, offset, _ in windows)  # fmt: skip
        if fits and start >= 0 and start + value.nbytes <= program.leaves[leaf].nbytes:
            return leaf, start
    return None


def _offset_in(inside: dict[tuple[int, int], int], small: int, big: int) -> int | None:
    return 0 if small == big else inside.get((small, big))


def _reads_what_it_writes(region: Region, value: Node, nodes: dict[Node, int], offset: int) -> bool:
    """Whether every access to the donated memory in the writing region is to the element that is written."""
    if value.op == "write_rows":
        return reads_own_rows(region, value, nodes, offset)
    if region.template is not None and region.template.replaces is not None:
        touched = [node for node in nodes if node in region.reads]
        return touched == [region.template.replaces] and nodes[touched[0]] == offset and value is region.anchor
    if not FORMS[region.form].in_place:
        return False
    at = region.indices_for(value.shape)
    if at is None:
        return False
    element = value.dtype.itemsize
    written = ix.linearise(at, value.shape) + offset // element
    for node, index in region.accesses:
        if node in nodes:
            if node.dtype is not value.dtype:
                return False
            read = ix.linearise(index, node.shape) + nodes[node] // element
            if read != written:
                return False
    # A value per point is stored before the loops over the inner axes run again, so nothing there may read it: neither
    # what else is stored, nor the checks of indices.
    per_element = value.size == math.prod(region.shape)
    runs_again = bool(region.partials) or any(root.size == math.prod(region.shape) for root in region.roots)
    return region.form == "map" or per_element or not (runs_again or _checks_indices(region))


def _checks_indices(region: Region) -> bool:
    """Whether the region's kernel records indices that are out of range."""
    seen: set[Node] = set(region.reads)
    stack = [node for node in region.stores if node not in seen]
    while stack:
        node = stack.pop()
        if node.op == "in_range" or (node.op == "gather" and not node.attrs.known):
            return True
        stack += [source for source in node.srcs if source not in seen]
        seen.update(node.srcs)
    return False
