"""lower for tables of rows: rows scattered into a table by index, and rows folded by segments of a sorted list."""

from __future__ import annotations

import math

from weft.compiler.lower import Group, Lowered, kernel_name, merge, nest_of
from weft.compiler.region import Region
from weft.compiler.values import Builder
from weft.dtypes import bool_, int64
from weft.graph.primitives import PRIMITIVES
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index
from weft.kernels.language import Accumulator, Expr, IndexValue, Literal, Op, Store
from weft.kernels.nest import Nest, Span

LANES = 32  # features up to which an inner axis shares its vectors with the one around it


def lower_segment(region: Region) -> Lowered:
    """One row of the table per point (and per outer feature); its elements are walked in order, features in lanes."""
    groups = [group for group in merge(region, 2) if group.extent > 1]
    if groups and LANES % groups[-1].extent == 0:
        groups = [Group(2, region.shape[2:])]  # what is the same for neighbouring lanes is loaded once and spread
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
    """Where the elements of `row` begin and end, kept inside the data; pointers that do not rise are recorded."""
    pointers, (count, elements) = region.pointers, region.shape[:2]
    assert pointers is not None
    rows, most = builder.whole("rows", count), builder.whole("elements", elements)
    zero, number = Literal(0, int64), IndexValue(row, int64)
    start = builder.int64_of(builder.value(pointers, (row,), ()))
    stop = builder.int64_of(builder.value(pointers, (ix.add(row, ix.const(1)),), ()))
    rises = [
        Op("le", (zero, start), bool_),
        Op("le", (start, stop), bool_),
        Op("le", (stop, most), bool_),
        Op("or", (Op("ne", (number, zero), bool_), Op("eq", (start, zero), bool_)), bool_),
        Op(
            "or",
            (Op("lt", (Op("add", (number, Literal(1, int64)), int64), rows), bool_), Op("eq", (stop, most), bool_)),
            bool_,
        ),
    ]
    good: Expr = rises[0]
    for other in rises[1:]:
        good = Op("and", (good, other), bool_)
    if not all(sink.attrs == ("known",) for sink in region.sinks if PRIMITIVES[sink.op].kind == "segment"):
        site = next((sink.site for sink in region.sinks if sink.site), None)
        message = f"{site or 'an unknown line'}: row pointers that do not rise from 0 to {elements}"
        builder.record(Op("not", (good,), bool_), False, message)
    inside = [Op("max", (Op("min", (bound, most), int64), zero), int64) for bound in (start, stop)]
    return inside[0], inside[1]


def lower_scatter(region: Region) -> Lowered:
    """Rows folded into a table: points are the table's rows, the inner axes are (source row, columns).

    The template in `kernels.scatter` gives each worker a range of table rows, which it clears and then fills by walking
    all source rows in order; so each sum has one order whatever the number of workers.
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
    builder.check(node, target, count, builder.whole("rows", count), True, ())
    builder.definitions["target"] = target
    value = builder.value(source, index, ())
    place = Index(
        ((Axis("target", count, "value"), columns), (col, 1))
        if columns > 1
        else ((Axis("target", count, "value"), 1),),
        0,
    )
    table = builder.buffer(node, written=True)
    walked = Span(row, 0, builder.whole("sources", row.extent))
    scalars = list(builder.scalars.values())
    of_target, *checks = [check for check, _ in builder.checks]
    kind = node.op[len("scatter_") :]
    fold = Accumulator("table", {"add": "sum", "parts": "sum"}.get(kind, kind), node.dtype)
    names = tuple([builder.buffer(table_of, written=True) for table_of in scratch])
    nest = Nest(
        kernel_name(region), Axis("row", count), "scatter", col, (walked,), (((fold, value),),), (),
        (Store(table, place, value), *checks), (), tuple(builder.buffers.values()),
        tuple([param for param, _ in scalars]), builder.definitions, (of_target,), names,
    )  # fmt: skip
    flops = (builder.flops + 1) * math.prod(region.shape)
    return Lowered(nest, tuple(builder.buffers), tuple([v for _, v in scalars]), count, flops, tuple(builder.sites))
