"""lower for scans and sorts: the values they work on as expressions, given to the loops in `kernels`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.compiler.lower import kernel_name
from weft.compiler.order import SHORT, on_stack
from weft.compiler.plan import Scalar
from weft.compiler.region import Region
from weft.compiler.values import Builder
from weft.dtypes import int64
from weft.graph.node import Node
from weft.kernels import index as ix
from weft.kernels import scans, sorts
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Accumulator,
    Geometry,
    IndexValue,
    Kernel,
    Literal,
    Op,
    ScalarParam,
    Stmt,
    Store,
)


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel, the node behind each of its buffers, the values of its scalars, and how many points it has."""

    kernel: Kernel
    uses: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    points: int
    flops: int
    sites: tuple[str, ...]
    in_lanes: bool  # points lie in vector lanes


def finish(
    builder: Builder, body: tuple[Stmt, ...], extent: int | None, points: int, flops: int, in_lanes: bool = False,
    geometry: Geometry | None = None,
) -> Template:  # fmt: skip
    """The kernel around `body`; `extent`, if given, is a scalar of that name."""
    scalars = list(builder.scalars.values())
    if extent is not None:
        scalars.append((ScalarParam("extent", int64), extent))
    kernel = Kernel(
        kernel_name(builder.source), tuple(builder.buffers.values()), tuple([param for param, _ in scalars]),
        LAUNCH_RANGES, body, builder.definitions, geometry,
    )  # fmt: skip
    values = tuple([value for _, value in scalars])
    return Template(kernel, tuple(builder.buffers), values, points, flops, tuple(builder.sites), in_lanes)


def lower_scan(region: Region) -> Template:
    """Running reductions along axis 1 of two or three."""
    node = region.anchor
    assert node is not None
    op, _, reverse = node.attrs
    outer, extent = region.shape[:2]
    row = Axis("row", outer)
    if len(region.shape) == 3:
        return _scan_columns(region, node, row, op, reverse)
    accumulator = Accumulator("", op, node.dtype)
    step = Axis("step", extent)
    builder = Builder(region, (ix.axis_index(row), turned(ix.axis_index(step), extent, reverse)))
    out = stored(builder, node)
    if not builder.flops:
        body = scans.scan_rows(row, step, accumulator, out, checks_of(builder))
        return finish(builder, (body,), extent, outer, 2 * node.size)
    block, inside = Axis("block", max(-(-extent // scans.BLOCK), 2)), Axis("inside", scans.BLOCK)
    at = ix.add(ix.scale(ix.axis_index(block), scans.BLOCK), ix.axis_index(inside))
    builder = Builder(region, (ix.axis_index(row), turned(at, extent, reverse)))
    out = stored(builder, node)
    body = scans.scan_blocks(row, block, inside, accumulator, out, checks_of(builder))
    return finish(builder, (body,), extent, outer, (builder.flops + 2) * node.size)


def _scan_columns(region: Region, node: Node, row: Axis, op: str, reverse: bool) -> Template:
    outer, extent, inner = region.shape
    if scans.is_carried(Accumulator("", op, node.dtype), extent):
        return _scan_strips(region, node, reverse)
    lane = Axis("col", inner) if outer > 1 else None
    points = row if lane else Axis("i", inner)
    col = ix.axis_index(lane or points)
    step = Axis("step", max(extent - 1, 2))
    builder = Builder(region, (ix.axis_index(row), turned(ix.ZERO, extent, reverse), col))
    first = stored(builder, node)
    checks = [checks_of(builder)]
    after = ix.add(ix.axis_index(step), ix.const(1))
    index = (ix.axis_index(row), turned(after, extent, reverse), col)
    builder.region = Region(region.number, region.form, region.shape, anchor=node, index=index)
    builder.checks.clear()
    following = stored(builder, node)
    checks.append(checks_of(builder))
    previous = (ix.axis_index(row), turned(ix.axis_index(step), extent, reverse), col)
    body = scans.scan_columns(
        points, lane, step, op, first, following, ix.linearise(previous, node.shape), (checks[0], checks[1])
    )
    return finish(builder, body, extent, points.extent, (builder.flops + 1) * node.size, lane is None)


def _scan_strips(region: Region, node: Node, reverse: bool) -> Template:
    outer, extent, inner = region.shape
    size = min(scans.STRIP, inner)
    strips = -(-inner // size)
    points, step, col = Axis("i", outer * strips), Axis("step", extent), Axis("col", size)
    row, strip = ix.delinearise(ix.axis_index(points), (outer, strips))
    first = ix.scale(strip, size)
    place = ix.add(first, ix.axis_index(col))
    builder = Builder(region, (row, turned(ix.axis_index(step), extent, reverse), place))
    out = stored(builder, node)
    left = Op("sub", (Literal(inner, int64), IndexValue(first, int64)), int64)
    columns = Op("min", (left, Literal(size, int64)), int64) if inner % size else Literal(size, int64)
    body = scans.scan_strips(points, step, col, columns, out, checks_of(builder))
    return finish(builder, (body,), extent, points.extent, (builder.flops + 4) * node.size)


def turned(at: Index, extent: int, reverse: bool) -> Index:
    """A position along a scan as a position along its axis."""
    return ix.add(ix.scale(at, -1), ix.const(extent - 1)) if reverse else at


def stored(builder: Builder, node: Node) -> Store:
    """The scanned value at the builder's index, to be stored there."""
    at = builder.region.index
    value = builder.value(node.srcs[0], at, ())
    return Store(builder.buffer(node, written=True), ix.linearise(at, node.shape), value)


def checks_of(builder: Builder) -> tuple[Stmt, ...]:
    """The records of bad indices among the values so far."""
    return tuple([check for check, _ in builder.checks])


def lower_sort(region: Region) -> Template:
    """The order of every row: by counting where rows are short, else by a radix sort."""
    node = region.anchor
    assert node is not None
    keys, *scratch = node.srcs
    count, extent = region.shape
    row, at = Axis("row", count), Axis("at", extent)
    builder = Builder(region, (ix.axis_index(row), ix.axis_index(at)))
    key = builder.value(keys, builder.region.index, ())
    out = builder.buffer(node, written=True)
    names = tuple([builder.buffer(buffer, written=True) for buffer in scratch])
    assert names or extent <= SHORT or on_stack(keys)
    known = count > 1
    rows = sorts.Rows(row, at, key, checks_of(builder), out, extent, extent if known else scans.EXTENT)
    body, definitions = sorts.by_counting(rows) if extent <= SHORT else sorts.by_radix(rows, names)
    builder.definitions.update(definitions)
    work = extent if extent <= SHORT else 32
    flops = (builder.flops + work) * math.prod(region.shape)
    return finish(builder, body, None if known else extent, count, flops)


def lower_put(region: Region) -> Template:
    """Elements of each row added, in order, at places of a row of the result."""
    node = region.anchor
    assert node is not None
    if node.op == "bucket_rows":
        return _lower_buckets(region, node)
    index, source = node.srcs
    count, entries = region.shape
    row, entry = Axis("row", count), Axis("entry", entries)
    builder = Builder(region, (ix.axis_index(row), ix.axis_index(entry)))
    place = builder.int64_of(builder.value(index, builder.region.index, ()))
    value = builder.value(source, builder.region.index, ())
    out = builder.buffer(node, written=True)
    extent = node.shape[1]
    bounds = builder.whole("entries", entries), builder.whole("places", extent)
    body, definitions = scans.put_rows(row, entry, place, value, out, extent, bounds, checks_of(builder))
    builder.definitions.update(definitions)
    return finish(builder, body, None, count, (builder.flops + 8) * source.size + node.size)


def _lower_buckets(region: Region, node: Node) -> Template:
    """Entries in the order of their buckets: one task counts and places them."""
    (keys,), (count,), entries = node.srcs, node.attrs, region.shape[1]
    entry = Axis("entry", max(entries, 2))
    builder = Builder(region, (ix.ZERO, ix.axis_index(entry)))
    key = builder.value(keys, builder.region.index, ())
    out = builder.buffer(node, written=True)
    bounds = builder.whole("entries", entries), builder.whole("buckets", count)
    body, definitions = sorts.into_buckets(entry, key, out, count, bounds, checks_of(builder))
    builder.definitions.update(definitions)
    return finish(builder, body, None, 1, 8 * entries + 2 * count)


ORDERINGS = {"scan": lower_scan, "sort": lower_sort, "put": lower_put}
