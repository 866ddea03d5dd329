"""Lowering of tables of rows: rows scattered into a table by index, and rows reduced by segments of a sorted list."""

from __future__ import annotations

import math

from weft.base.dtypes import int64
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import Builder
from weft.compiler.lowering.nests import Group, LoweredNest, kernel_name, merge_axes, nest_of
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Accumulator, Expr, IndexValue, Literal, Store
from weft.kernels.ir.nest import Nest, Span
from weft.kernels.numerics import SEGMENT_FEATURES


def lower_segment(region: Region) -> LoweredNest:
    """One row of the table per point (and per outer feature); its elements are visited in order, features in lanes."""
    groups = [group for group in merge_axes(region, 2) if group.extent > 1]
    if groups and SEGMENT_FEATURES % groups[-1].extent == 0:
        groups = [Group(2, region.shape[2:])]  # what is the same for adjacent lanes is loaded once and spread
    lane = Axis("col", groups[-1].extent) if groups else None
    outer = groups[:-1]
    extents = (region.shape[0], *[group.extent for group in outer])
    points = Axis("row", math.prod(extents))
    row, *places = ix.delinearise(Index(((points, 1),), 0), extents)
    elements = Index(((Axis("e", region.shape[1], "reduce"), 1),), 0)
    index: list[Index] = [row, elements, *[ix.ZERO] * (len(region.shape) - 2)]
    if lane is not None:
        places.append(ix.axis_index(lane))
    for group, place in zip(groups, places, strict=True):
        index[group.first : group.first + len(group.shape)] = ix.delinearise(place, group.shape)
    builder = Builder(region, tuple(index))
    span = Span(Axis("e", region.shape[1], "reduce"), *_bounds(builder, region, row))
    return nest_of(builder, points, "lane", lane, (span,))


def _bounds(builder: Builder, region: Region, row: Index) -> tuple[Expr, Expr]:
    """First element and end of `row`, clamped to the data; pointers that do not rise are recorded."""
    pointers, (count, elements) = region.pointers, region.shape[:2]
    assert pointers is not None
    rows, most = builder.extent_scalar("rows", count), builder.extent_scalar("elements", elements)
    zero, number = Literal(0, int64), IndexValue(row, int64)
    start = builder.int64_of(builder.value(pointers, (row,), ()))
    stop = builder.int64_of(builder.value(pointers, (row + 1,), ()))
    rises = [
        zero <= start,
        start <= stop,
        stop <= most,
        number.ne(zero) | start.eq(zero),
        (number + 1 < rows) | stop.eq(most),
    ]
    good: Expr = rises[0]
    for other in rises[1:]:
        good = good & other
    if not all(root.attrs.known for root in region.roots if root.primitive.kind == "segment"):
        site = next((root.site for root in region.roots if root.site), None)
        message = f"{site or 'an unknown line'}: row pointers that do not rise from 0 to {elements}"
        builder.record(~good, False, message)
    inside = [bound.min(most).max(zero) for bound in (start, stop)]
    return inside[0], inside[1]


def lower_scatter(region: Region) -> LoweredNest:
    """Rows reduced into a table: points are the table's rows, the inner axes are (source row, columns).

    `kernels.cpu.schedule` gives each worker a range of table rows, which it clears and then fills by
    visiting all source rows in order; so each sum has one order whatever the number of workers.
    """
    node = region.anchor
    assert node is not None
    index_node, source, *scratch = node.srcs
    count, columns = node.shape[0], math.prod(node.shape[1:])
    row, col = Axis("n", source.shape[0], "reduce"), Axis("col", columns)
    index = (ix.axis_index(row), *ix.delinearise(ix.axis_index(col), source.shape[1:]))
    builder = Builder(region, index)
    target = builder.value(index_node, (ix.axis_index(row),), ())
    target = builder.int64_of(target)
    builder.check(node, target, count, builder.extent_scalar("rows", count), True, ())
    builder.definitions["target"] = target
    value = builder.value(source, index, ())
    place = Index(
        ((Axis("target", count, "value"), columns), (col, 1))
        if columns > 1
        else ((Axis("target", count, "value"), 1),),
        0,
    )
    table = builder.buffer(node, written=True)
    source_rows = Span(row, 0, builder.extent_scalar("sources", row.extent))
    scalars = list(builder.scalars.values())
    of_target, *checks = [check for check, _ in builder.checks]
    kind = node.op[len("scatter_") :]
    accumulator = Accumulator("table", {"add": "sum", "parts": "sum"}.get(kind, kind), node.dtype)
    names = tuple([builder.buffer(table_of, written=True) for table_of in scratch])
    nest = Nest(
        kernel_name(region), Axis("row", count), "scatter", col, (source_rows,), (((accumulator, value),),), (),
        (Store(table, place, value), *checks), (), tuple(builder.buffers.values()),
        tuple([param for param, _ in scalars]), builder.definitions, (of_target,), names,
    )  # fmt: skip
    flops = (builder.flops + 1) * math.prod(region.shape)
    return LoweredNest(nest, tuple(builder.buffers), tuple([v for _, v in scalars]), count, flops, tuple(builder.sites))
