"""Scratch memory of regions, and one arena with offsets by liveness for all temporaries."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from weft.base.dtypes import bool_
from weft.compiler.fusion.index_map import row_major
from weft.compiler.fusion.region import Region
from weft.compiler.memory.storage import ALIGN, Allocation, Storage, label_of, stored_results
from weft.compiler.options import Options
from weft.graph.node import Node, placeholder
from weft.plan.plan import Interval


def reserve_scratch(allocation: Allocation, options: Options) -> Allocation:
    """Give regions memory that only they use while they run, as one more root which no other region reads: what a
    template asks for, and the arena of a loop's body. A matrix product that only its epilogue reads is computed in the
    memory of a result."""
    storage = allocation.storage
    inside = dict(storage.inside)
    regions = []
    for region in allocation.regions:
        scratch = 0
        if region.form == "loop":
            scratch = allocation.bodies[region.number].plan.arena_bytes
        elif region.template is not None and region.template.scratch is not None:
            scratch = region.template.scratch(region)
        elif region.form == "dot":
            _share_product_memory(region, storage, inside)
        if scratch:
            region = replace(region, roots=(*region.roots, placeholder((scratch,), bool_, options.device)))
        regions.append(region)
    return replace(allocation, regions=tuple(regions), storage=replace(storage, inside=MappingProxyType(inside)))


def _share_product_memory(region: Region, storage: Storage, inside: dict[Node, tuple[Node, int]]) -> None:
    """Let a matrix product that only its epilogue reads share the memory of a result of the epilogue."""
    product = region.anchor
    assert product is not None
    if product in region.retained:
        return
    for root in region.roots:
        is_whole = region.strides.get(root) in (None, row_major(root.shape))
        if root is not product and root.dtype is product.dtype and root.size == product.size and is_whole:
            value, offset = storage.locate(root)
            if not any(storage.locate(read)[0] is value for read in region.reads):
                inside[product] = value, offset
                return


def lay_out_arena(allocation: Allocation, options: Options) -> Allocation:
    """Give every value without memory so far an offset in the arena. Where the size of an allocation is limited, the
    arena consists of several, and no value is in two of them."""
    storage, fixed = allocation.storage, allocation.outside_arena()
    first, last = _lifetimes(allocation)
    live = [value for value in first if value not in fixed]
    live.sort(key=lambda value: (-value.nbytes, first[value]))
    arena: dict[Node, int] = {}
    intervals: list[Interval] = []
    arena_bytes, step_group, most = 0, options.device.tuning.step_group, options.device.limits.allocation_bytes
    blocks: dict[int, list[tuple[int, int, int, int]]] = {}  # by the groups of steps that a value lives in
    for value in live:
        need = -(-max(value.nbytes, 1) // ALIGN) * ALIGN
        groups = range(first[value] // step_group, last[value] // step_group + 1)
        overlapping = {block for group in groups for block in blocks.get(group, ())}
        busy = sorted([(a, b) for a, b, start, end in overlapping if start <= last[value] and first[value] <= end])
        at = 0
        for a, b in busy:
            if at + need <= a:
                break
            if b > at:
                at = _avoid_border(b, need, most) if most else b
        for group in groups:
            blocks.setdefault(group, []).append((at, at + need, first[value], last[value]))
        arena[value] = at
        arena_bytes = max(arena_bytes, at + need)
        label = label_of(value) if value.op != "input" else "scratch of a loop"
        intervals.append(Interval(label, at, value.nbytes, first[value], last[value]))
    arena_view = MappingProxyType(arena)
    storage = replace(storage, arena=arena_view, arena_bytes=arena_bytes, intervals=tuple(intervals))
    return replace(allocation, storage=storage)


def _avoid_border(at: int, need: int, most: int) -> int:
    """The first offset from `at` on where `need` bytes are in one of the arena's allocations of `most` bytes."""
    return -(-at // most) * most if at % most + need > most else at


def _lifetimes(allocation: Allocation) -> tuple[dict[Node, int], dict[Node, int]]:
    """The first and the last step that touches each value; what is copied at the end lives until then."""
    storage, regions = allocation.storage, allocation.regions
    first: dict[Node, int] = {}
    last: dict[Node, int] = {}
    for step, region in enumerate(regions):
        for node in stored_results(region):
            value = storage.locate(node)[0]
            first.setdefault(value, step)
            last[value] = max(last.get(value, step), step)
        for node in region.reads:
            value = storage.locate(node)[0]
            last[value] = max(last.get(value, step), step)
    for node, _, _ in storage.copies:
        value = storage.locate(node)[0]
        last[value] = max(last.get(value, 0), len(regions))
    return first, last
