"""How much a region moves, and how its points are divided into tasks for workers."""

from __future__ import annotations

import math

from weft.base.tuning import Tuning
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.nests import LoweredNest
from weft.compiler.lowering.sorting import LoweredKernel
from weft.graph.node import Node
from weft.kernels.cpu import schedule as cpu_schedule
from weft.kernels.ir import index as ix
from weft.kernels.numerics import LANES

COPY_MULTIPLE = 1024  # elements: chunks of a copy are multiples


def traffic_of(region: Region) -> int:
    """Bytes that a region reads and writes, each element once."""
    total = 0
    rows, *inner = region.shape or (1,)
    most = math.prod(region.shape) if region.pointers is None else max(math.prod(inner), rows * math.prod(inner[1:]))
    reached: dict[Node, int] = {}
    for node, at in region.accesses:
        if node in region.reads:
            axes = {axis for index in at for axis in ix.axes_of(index)}
            elements = min(node.size, math.prod(axis.extent for axis in axes), most)
            reached[node] = max(reached.get(node, 0), elements)
    for node in region.reads:
        total += reached.get(node, node.size) * node.dtype.itemsize
    for root in region.roots:
        is_used_up = root is region.anchor and root not in region.retained and len(region.roots) > 1
        if region.is_stored(root) and not is_used_up:
            total += root.nbytes
    return total + sum(partial.nbytes for partial in region.partials)


def points_per_task(lowered: LoweredNest, moved: int, region: Region, tuning: Tuning) -> int:
    """Points per task: enough to be worth a task of its own, few enough for all workers to have some."""
    points = lowered.points
    if region.partials:
        return 1
    work = max(moved, 2 * lowered.flops) // max(points, 1) + 1
    least = -(-tuning.min_task_bytes // work)
    if lowered.nest.vector_axis == "points":
        return even_chunk(points, least, LANES * 8, tuning)
    if lowered.nest.vector_axis == "scatter":
        assert lowered.nest.lane is not None  # every task reads all indices: that must be little beside what it adds
        return even_chunk(points, -(-points // min(max(lowered.nest.lane.extent // 8, 1), 16)), 1, tuning)
    return even_chunk(points, least, cpu_schedule.points_per_gather(lowered.nest, tuning), tuning)


def points_per_ordering_task(lowered: LoweredKernel, moved: int, tuning: Tuning) -> int:
    """The same for a scan, a sort or elements put into rows."""
    work = max(moved, 2 * lowered.flops) // max(lowered.points, 1) + 1
    least = -(-tuning.min_task_bytes // work)
    return even_chunk(lowered.points, least, LANES * 8 if lowered.in_lanes else 1, tuning)


def even_chunk(points: int, least: int, multiple: int, tuning: Tuning) -> int:
    """Task size at least `least`, a multiple of `multiple`, giving at most `tuning.max_tasks` tasks."""
    chunk = max(least, -(-points // tuning.max_tasks), 1)
    return -(-chunk // multiple) * multiple
