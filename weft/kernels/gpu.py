"""The GPU schedule: points go to threads, rows that are folded go to blocks, and every order of addition is fixed.

*Tiles* (`gpu_map`): elementwise nests, several neighbours to a thread; square ones (`gpu_turned`) where memory is read
across. *Rows* (`gpu_rows`): the threads of a block or
of a subgroup walk along a row and join what they folded. *Columns* (`gpu_columns`): threads walk down their columns.
*Lanes* (`gpu_lanes`): a thread folds a few neighbouring columns of a wide table, such as segments have.
*Thread per point*: everything else, one thread computing a point (or a point and its lane) alone.

Which thread adds what, and in which order partial results are joined, follows from extents alone; the number of blocks
changes nothing. There are no floating-point atomics.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.dtypes import bool_, int64
from weft.kernels.cascade import cascade
from weft.kernels.gpu_columns import column_folds, column_sums
from weft.kernels.gpu_lanes import lanes
from weft.kernels.gpu_map import tiled
from weft.kernels.gpu_rows import rows, rows_of_chunks
from weft.kernels.gpu_tile import BEGIN, END, Target, at, is_short, joined, kernel, serial, target_of, times
from weft.kernels.gpu_turned import turned
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Fold,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
    shared_bytes,
)
from weft.kernels.nest import Nest, together
from weft.kernels.substitute import for_gpu, substitute

BLOCK = 256

__all__ = ["BLOCK", "Target", "schedule", "schedule_tile", "target_of"]


def schedule(nest: Nest, target: Target = Target()) -> Kernel:  # noqa: B008
    """A nest as a kernel for a target and a range of points or chunks."""
    nest = for_gpu(nest, target.functions)
    made = _placed(nest, target)
    fewer = target
    while shared_bytes(made) > target.shared_bytes:  # each thread has a part in what a block shares
        fewer = replace(fewer, threads=fewer.threads // 2)
        made = _placed(nest, fewer)
    return replace(made, body=cascade(made.body))


def _placed(nest: Nest, target: Target) -> Kernel:
    if nest.side == "scatter":
        return _scatter(nest)
    nest = replace(nest, inner_stores=(*nest.inner_stores, *nest.checks), checks=())
    if nest.columns:
        return rows_of_chunks(nest, target) if nest.stages or nest.point_stores else column_sums(nest, target)
    if nest.side == "inner" and not is_short(math.prod([span.axis.extent for span in nest.inner])):
        return rows(nest, target)
    placed = turned(nest, target) or tiled(nest, target) or column_folds(nest, target) or lanes(nest, target)
    return placed or _thread_per_point(nest)


def schedule_tile(nest: Nest, batch: Axis, row: Axis, col: Axis, target: Target = Target()) -> Kernel:  # noqa: B008
    """The epilogue of a matrix product as a kernel over all its elements, which the launch range counts."""
    flat, values = joined("i", (batch, row, col))
    nest = for_gpu(nest, target.functions)
    nest = replace(substitute(nest, values), points=flat, lane=None, inner=(), stages=())
    return tiled(nest, target) or _thread_per_point(nest)


# --- thread per point ------------------------------------------------------------------------------------------------


def _thread_per_point(nest: Nest) -> Kernel:
    """Neighbouring threads take neighbouring points; a lane axis makes one point many."""
    points, items = nest.points, 1
    if nest.lane is not None:
        items = nest.lane.extent
        points, values = joined("i", (nest.points, nest.lane))
        nest = substitute(nest, values)
    body: list[Stmt] = []
    for stage in nest.stages:
        updates = tuple([Update(accumulator.name, value) for accumulator, value in stage])
        body.append(Fold(tuple([accumulator for accumulator, _ in stage]), serial(nest.inner, updates)))
    body.extend(together(nest.point_stores))
    if nest.inner_stores:
        body.extend(serial(nest.inner, together(nest.inner_stores)))
    loop = Loop(points, times(BEGIN, items), times(END, items), "grid", tuple(body), BLOCK)
    return kernel(nest, (loop,), Geometry(BLOCK, items))


# --- scatter --------------------------------------------------------------------------------------------------------


def _scatter(nest: Nest) -> Kernel:
    """A thread owns one element of the table and folds what belongs there, walking all source rows in order."""
    add, (span,), col = nest.inner_stores[0], nest.inner, nest.lane
    assert col is not None
    flat, values = joined("i", (nest.points, col))
    nest = substitute(nest, values)
    moved, *others = nest.inner_stores
    target = IndexValue(Index(((Axis("target", nest.points.extent, "value"), 1),), 0), int64)
    mine = Op("eq", (target, IndexValue(values[nest.points], int64)), bool_)
    (((kind, _),),) = nest.stages
    total = Accumulator("total", kind.op, moved.value.dtype)
    update = If(mine, (Update(total.name, moved.value), *others))
    fold = Fold((total,), (Loop(span.axis, span.start, span.stop, "serial", (update, *nest.checks)),))
    store = Store(add.buffer, at(flat), Var(total.name, total.dtype))
    loop = Loop(flat, times(BEGIN, col.extent), times(END, col.extent), "grid", (fold, store), BLOCK)
    return kernel(nest, (loop,), Geometry(BLOCK, col.extent))
