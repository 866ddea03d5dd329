"""memory: where every stored value lives. Donated leaves first, then outputs, then one arena with offsets by liveness.

A value that replaces a leaf (an updated parameter) is written straight into the leaf's memory when every other reader
of that memory has run, or reads exactly the element being written; else it is computed aside and copied at the end.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from weft.compiler.fuse import Fused
from weft.compiler.loops import last_entries
from weft.compiler.plan import Interval
from weft.compiler.program import Program, slice_offset
from weft.compiler.region import FORMS, Region, is_fold
from weft.compiler.rows import RowsConflict, reads_own_rows
from weft.compiler.windows import base_of
from weft.graph.node import Node
from weft.kernels import index as ix

ALIGN = 64


@dataclass(slots=True)
class Storage:
    """For each stored node its root (leaf, output or arena) and byte offset there; copies to make at the end."""

    roots: dict[Node, tuple[Node, int]] = field(default_factory=dict)
    outputs: list[Node] = field(default_factory=list)  # roots that are output slots, in order
    arena: dict[Node, int] = field(default_factory=dict)  # root -> byte offset in the arena
    arena_bytes: int = 0
    intervals: list[Interval] = field(default_factory=list)
    copies: list[tuple[Node, Node, int]] = field(default_factory=list)  # (value, leaf, byte offset in the leaf)

    def place(self, node: Node) -> tuple[Node, int]:
        """(root, byte offset) of a stored node or a leaf."""
        offset = 0
        while node in self.roots:
            node, inside = self.roots[node]
            offset += inside
        return node, offset


def assign(fused: Fused, program: Program, outputs: Sequence[Node]) -> Storage:
    """Choose memory for all stored nodes. May add order between regions (readers before the writer of their memory)."""
    storage = Storage()
    for node, home in fused.homes.items():
        storage.roots[node] = (home.root, home.offset * node.dtype.itemsize)
    storage.roots.update({node: (base_of(node.srcs[0]), 0) for node in fused.stored if node.op == "after"})
    for region in fused.regions:
        if region.form == "loop":
            storage.roots.update(last_entries(region.sinks))
    written = {write.output for write in program.writes}
    _donate(fused, program, outputs, storage)
    wanted = [base_of(node) for position, node in enumerate(outputs) if position not in written]
    storage.outputs = list(dict.fromkeys([storage.place(node)[0] for node in wanted]))
    return storage


# --- donated leaves --------------------------------------------------------------------------------------------------


def _donate(fused: Fused, program: Program, outputs: Sequence[Node], storage: Storage) -> None:
    taken: set[Node] = set()
    groups: dict[Node, list[tuple[int, int, int]]] = {}  # value -> [(leaf number, byte offset in value, bytes)]
    for write in program.writes:
        value, offset = _window(outputs[write.output], fused)
        groups.setdefault(value, []).append((write.leaf, offset, outputs[write.output].nbytes))
    wanted = {
        base_of(node) for position, node in enumerate(outputs) if position not in {w.output for w in program.writes}
    }
    for value, windows in groups.items():
        if value.op == "write_rows":
            leaf = windows[0][0]
            if not _in_place(fused, program, value, leaf, 0):
                raise RowsConflict
            storage.roots[value] = (program.leaves[leaf], 0)
            continue
        target = _target(program, value, windows)
        if target is not None and value not in taken and value not in wanted:
            leaf, offset = target
            if _in_place(fused, program, value, leaf, offset):
                storage.roots[value] = (program.leaves[leaf], offset)
                taken.add(value)
                continue
        for leaf, offset, _ in windows:
            storage.copies.append((value, program.leaves[leaf], offset))


def _window(node: Node, fused: Fused) -> tuple[Node, int]:
    """The stored value that `node` is a contiguous part of, and the byte offset of the part."""
    offset = 0
    while True:
        home = fused.homes.get(node)
        if home is not None:
            return home.root, offset + home.offset * node.dtype.itemsize
        if node in fused.stored:
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


def _in_place(fused: Fused, program: Program, value: Node, leaf: int, offset: int) -> bool:
    """Whether `value` may be written over the memory of `leaf` while the plan runs; adds the order that this needs."""
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
    writers = fused.stored[value]
    nodes = {program.leaves[number]: at for number, at in touching.items()}
    for node in fused.waits:
        if base_of(node.srcs[0]) in nodes:
            nodes[node] = nodes[base_of(node.srcs[0])]
    readers = list(dict.fromkeys([region for node in nodes for region in fused.readers.get(node, ())]))
    if not readers:
        return True
    if len(writers) != 1:
        return False
    (writer,) = writers
    for reader in readers:
        if reader is writer:
            if not _reads_what_it_writes(writer, value, nodes, offset):
                return False
        elif reader.before & writer.bit:
            return False
    for reader in readers:
        if reader is not writer and not writer.before & reader.bit:
            _order(fused.regions, reader, writer)
    return True


def _reads_what_it_writes(region: Region, value: Node, nodes: dict[Node, int], offset: int) -> bool:
    """Every access to the donated memory in the writing region is to the very element that is written there."""
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
    written = ix.add(ix.linearise(at, value.shape), ix.const(offset // element))
    for node, index in region.accesses:
        if node in nodes:
            if node.dtype is not value.dtype:
                return False
            read = ix.add(ix.linearise(index, node.shape), ix.const(nodes[node] // element))
            if read != written:
                return False
    # A value per point is stored before the inner axes are walked again, so nothing there may read it.
    per_element = value.size == math.prod(region.shape)
    walks_again = bool(region.partials) or any(sink.size == math.prod(region.shape) for sink in region.sinks)
    return region.form == "map" or per_element or not walks_again


def _order(regions: Sequence[Region], first: Region, second: Region) -> None:
    second.before |= first.before | first.bit
    for region in regions:
        if region.before & second.bit:
            region.before |= second.before


# --- the order of steps ----------------------------------------------------------------------------------------------

STEP_GROUP = 16  # steps in a row whose values are looked at together to find a free place in the arena
IN_SIGHT = 64  # regions that are ready to run among which the next one is chosen


def order(storage: Storage, fused: Fused, leaves: Sequence[Node]) -> list[Region]:
    """The regions, each after all that it depends on. Among those that are ready, the one runs next that leaves the
    arena smallest: what frees memory goes before what takes some; otherwise in order of creation."""
    fixed = set(leaves) | set(storage.outputs)
    touched: dict[Region, list[Node]] = {}
    users: dict[Node, int] = {}
    for region in fused.regions:
        made = [node for node in (*region.sinks, *region.partials) if is_kept(node, region)]
        roots = dict.fromkeys([storage.place(node)[0] for node in (*made, *region.reads)])
        touched[region] = [root for root in roots if root not in fixed]
        for root in touched[region]:
            users[root] = users.get(root, 0) + 1
    alive: set[Node] = set()
    done = 0
    out: list[Region] = []
    # Regions that are ready, by their position among all; the others wait for one that has not run, the latest of them.
    position = {region: number for number, region in enumerate(fused.regions)}
    ready: list[tuple[int, Region]] = []
    waiting: dict[int, list[Region]] = {}

    def enter(region: Region) -> None:
        missing = region.before & ~done
        if missing:
            waiting.setdefault(missing.bit_length() - 1, []).append(region)
        else:
            bisect.insort(ready, (position[region], region), key=lambda item: item[0])

    for region in fused.regions:
        enter(region)
    while len(out) < len(fused.regions):
        assert ready, "regions depend on each other in a circle"
        growth = [_growth(touched[region], alive, users) for _, region in ready[:IN_SIGHT]]
        _, best = ready.pop(growth.index(min(growth)))
        out.append(best)
        done |= best.bit
        for root in touched[best]:
            users[root] -= 1
            alive.add(root)
        for region in waiting.pop(best.number, ()):
            enter(region)
    return out


def _growth(roots: Sequence[Node], alive: set[Node], users: dict[Node, int]) -> int:
    """By how many bytes the arena grows if a region that touches `roots` runs now."""
    taken = sum(root.nbytes for root in roots if root not in alive)
    return taken - sum(root.nbytes for root in roots if users[root] == 1)


def is_kept(node: Node, region: Region) -> bool:
    """Whether what a region computes lies in memory: a fold may be used up inside."""
    return not is_fold(node) or node in region.kept_results


# --- the arena -------------------------------------------------------------------------------------------------------


def lay_out(
    storage: Storage, fused: Fused, order: Sequence[Region], leaves: Sequence[Node], extra: dict[Node, int]
) -> None:
    """Give every remaining root an offset in the arena. `extra` maps roots to a step up to which they must live."""
    fixed = set(leaves) | set(storage.outputs)
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for step, region in enumerate(order):
        for node in (*region.sinks, *region.partials):
            if not is_kept(node, region):
                continue
            root = storage.place(node)[0]
            first.setdefault(root, step)
            last[root] = max(last.get(root, step), step)
        for node in region.reads:
            root = storage.place(node)[0]
            last[root] = max(last.get(root, step), step)
    for root, step in extra.items():
        last[root] = max(last.get(root, 0), step)
    live = [root for root in first if root not in fixed]
    live.sort(key=lambda root: (-root.nbytes, first[root]))
    placed: dict[int, list[tuple[int, int, int, int]]] = {}  # by the groups of steps that a value lives in
    for root in live:
        need = -(-max(root.nbytes, 1) // ALIGN) * ALIGN
        groups = range(first[root] // STEP_GROUP, last[root] // STEP_GROUP + 1)
        beside = {block for group in groups for block in placed.get(group, ())}
        busy = sorted([(a, b) for a, b, start, end in beside if start <= last[root] and first[root] <= end])
        at = 0
        for a, b in busy:
            if at + need <= a:
                break
            at = max(at, b)
        for group in groups:
            placed.setdefault(group, []).append((at, at + need, first[root], last[root]))
        storage.arena[root] = at
        storage.arena_bytes = max(storage.arena_bytes, at + need)
        storage.intervals.append(
            Interval(
                label(root) if root.op != "input" else "scratch of a loop", at, root.nbytes, first[root], last[root]
            )
        )


def label(node: Node) -> str:
    """A name for people: what the value is."""
    return f"{node.op} {node.dtype.name}{list(node.shape)}"
