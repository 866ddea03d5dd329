"""The GPU schedule: points go to lanes, rows that are reduced go to workgroups, and every order of addition is fixed.

*Tiles* (`elementwise`): several contiguous elements to a lane; square ones (`transpose`) where memory is read across.
*Rows* (`rows`, `chunked_rows`): the lanes of a workgroup or of a subgroup share a row and combine partial results.
*Columns* (`columns`): lanes go down their columns. *Segment columns* (`segment_columns`): a lane reduces a few
contiguous columns of a wide table. *Lane per point*: everything else, one lane computing a point (or a point and its
element of the lane axis) alone.

Which lane adds what, and in which order partial results are combined, are rules of `kernels.numerics`; the number of
workgroups changes nothing. There are no floating-point atomics.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.base.dtypes import int64
from weft.kernels.gpu.columns import schedule_column_reductions, schedule_column_sums
from weft.kernels.gpu.elementwise import schedule_tiles
from weft.kernels.gpu.rows import schedule_chunked_rows, schedule_rows
from weft.kernels.gpu.segment_columns import schedule_segment_columns
from weft.kernels.gpu.statements import (
    BEGIN,
    END,
    assign_shared_memory,
    at,
    flatten_axes,
    make_kernel,
    scale_bound,
    serial,
)
from weft.kernels.gpu.target import Target, target_of
from weft.kernels.gpu.transpose import schedule_transpose
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Loop,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
    shared_bytes,
)
from weft.kernels.ir.nest import Nest, store_after_evaluation
from weft.kernels.ir.rewrite import for_gpu, substitute
from weft.kernels.math.summation import cascade
from weft.kernels.numerics import is_serial_row

__all__ = ["Target", "schedule", "schedule_tile", "target_of"]


def schedule(nest: Nest, target: Target = Target()) -> Kernel:  # noqa: B008
    """A nest as a kernel for a target and a range of points or chunks."""
    nest = for_gpu(nest, target.functions)
    made = _schedule_nest(nest, target)
    fewer = target
    while shared_bytes(made) > target.shared_bytes:  # each lane has a part of the shared memory
        fewer = replace(fewer, workgroup_size=fewer.workgroup_size // 2)
        made = _schedule_nest(nest, fewer)
    made = assign_shared_memory(made, target.static_shared_bytes)
    return replace(made, body=cascade(made.body))


def _schedule_nest(nest: Nest, target: Target) -> Kernel:
    if nest.vector_axis == "scatter":
        return _scatter(nest, target.independent_lanes)
    nest = replace(nest, inner_stores=(*nest.inner_stores, *nest.checks), checks=())
    if nest.columns:
        return (
            schedule_chunked_rows(nest, target)
            if nest.stages or nest.point_stores
            else schedule_column_sums(nest, target)
        )
    if nest.vector_axis == "inner" and not is_serial_row(math.prod([span.axis.extent for span in nest.inner])):
        return schedule_rows(nest, target)
    placed = (
        schedule_transpose(nest, target)
        or schedule_tiles(nest, target)
        or schedule_column_reductions(nest, target)
        or schedule_segment_columns(nest, target)
    )
    return placed or _lane_per_point(nest, target.independent_lanes)


def schedule_tile(nest: Nest, batch: Axis, row: Axis, col: Axis, target: Target = Target()) -> Kernel:  # noqa: B008
    """The epilogue of a matrix product as a kernel over all its elements, which the launch range counts."""
    flat, values = flatten_axes("i", (batch, row, col))
    nest = for_gpu(nest, target.functions)
    nest = replace(substitute(nest, values), points=flat, lane=None, inner=(), stages=())
    return schedule_tiles(nest, target) or _lane_per_point(nest, target.independent_lanes)


# --- lane per point --------------------------------------------------------------------------------------------------


def _lane_per_point(nest: Nest, lanes: int) -> Kernel:
    """Adjacent lanes take adjacent points; a lane axis multiplies the points."""
    points, items = nest.points, 1
    if nest.lane is not None:
        items = nest.lane.extent
        points, values = flatten_axes("i", (nest.points, nest.lane))
        nest = substitute(nest, values)
    body: list[Stmt] = []
    for stage in nest.stages:
        updates = tuple([Update(accumulator.name, value) for accumulator, value in stage])
        body.append(Reduction(tuple([accumulator for accumulator, _ in stage]), serial(nest.inner, updates)))
    body.extend(store_after_evaluation(nest.point_stores))
    if nest.inner_stores:
        body.extend(serial(nest.inner, store_after_evaluation(nest.inner_stores)))
    loop = Loop(points, scale_bound(BEGIN, items), scale_bound(END, items), "grid", tuple(body), lanes)
    return make_kernel(nest, (loop,), Geometry(lanes, items))


# --- scatter --------------------------------------------------------------------------------------------------------


def _scatter(nest: Nest, lanes: int) -> Kernel:
    """A lane owns one element of the table and reduces what belongs there, reading all source rows in order."""
    add, (span,), col = nest.inner_stores[0], nest.inner, nest.lane
    assert col is not None
    flat, values = flatten_axes("i", (nest.points, col))
    nest = substitute(nest, values)
    moved, *others = nest.inner_stores
    target = IndexValue(Index(((Axis("target", nest.points.extent, "value"), 1),), 0), int64)
    mine = target.eq(IndexValue(values[nest.points], int64))
    (((kind, _),),) = nest.stages
    total = Accumulator("total", kind.op, moved.value.dtype)
    update = If(mine, (Update(total.name, moved.value), *others))
    reduction = Reduction((total,), (Loop(span.axis, span.start, span.stop, "serial", (update, *nest.checks)),))
    store = Store(add.buffer, at(flat), Var(total.name, total.dtype))
    loop = Loop(flat, scale_bound(BEGIN, col.extent), scale_bound(END, col.extent), "grid", (reduction, store), lanes)
    return make_kernel(nest, (loop,), Geometry(lanes, col.extent))
