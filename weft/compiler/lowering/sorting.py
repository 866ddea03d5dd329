"""Lowering of scans and sorts: their values as expressions, for the loops of `kernels.cpu`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.base.dtypes import int64
from weft.compiler.fusion.region import Domain, Region
from weft.compiler.lowering.expressions import Builder
from weft.compiler.lowering.nests import kernel_name
from weft.compiler.passes.sorting import fits_on_stack, is_counted
from weft.graph.node import Node
from weft.kernels.cpu import scan as cpu_scan
from weft.kernels.cpu import sort as cpu_sort
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    Geometry,
    IndexValue,
    Kernel,
    Literal,
    ScalarParam,
    Stmt,
    Store,
)
from weft.kernels.numerics import SCAN_BLOCK
from weft.plan.plan import Scalar


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel, the node behind each of its buffers, the values of its scalars, and how many points it has."""

    kernel: Kernel
    uses: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    points: int
    flops: int
    sites: tuple[str, ...]
    in_lanes: bool  # points are in vector lanes


def finish(
    builder: Builder, body: tuple[Stmt, ...], extent: int | None, points: int, flops: int, in_lanes: bool = False,
    geometry: Geometry | None = None,
) -> LoweredKernel:  # fmt: skip
    """The kernel around `body`; `extent`, if given, is a scalar of that name."""
    scalars = list(builder.scalars.values())
    if extent is not None:
        scalars.append((ScalarParam("extent", int64), extent))
    kernel = Kernel(
        kernel_name(builder.source), tuple(builder.buffers.values()), tuple([param for param, _ in scalars]),
        LAUNCH_RANGES, body, builder.definitions, geometry,
    )  # fmt: skip
    values = tuple([value for _, value in scalars])
    return LoweredKernel(kernel, tuple(builder.buffers), values, points, flops, tuple(builder.sites), in_lanes)


def lower_scan(region: Region) -> LoweredKernel:
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
    builder = Builder(region, (ix.axis_index(row), scan_position(ix.axis_index(step), extent, reverse)))
    out = store_of(builder, node)
    if not builder.flops:
        body = cpu_scan.scan_rows(row, step, accumulator, out, checks_of(builder))
        return finish(builder, (body,), extent, outer, 2 * node.size)
    block, inside = Axis("block", max(-(-extent // SCAN_BLOCK), 2)), Axis("inside", SCAN_BLOCK)
    at = block * SCAN_BLOCK + inside
    builder = Builder(region, (ix.axis_index(row), scan_position(at, extent, reverse)))
    out = store_of(builder, node)
    body = cpu_scan.scan_blocks(row, block, inside, accumulator, out, checks_of(builder))
    return finish(builder, (body,), extent, outer, (builder.flops + 2) * node.size)


def _scan_columns(region: Region, node: Node, row: Axis, op: str, reverse: bool) -> LoweredKernel:
    outer, extent, inner = region.shape
    if cpu_scan.is_carried(Accumulator("", op, node.dtype), extent):
        return _scan_strips(region, node, reverse)
    lane = Axis("col", inner) if outer > 1 else None
    points = row if lane else Axis("i", inner)
    col = ix.axis_index(lane or points)
    step = Axis("step", max(extent - 1, 2))
    builder = Builder(region, (ix.axis_index(row), scan_position(ix.ZERO, extent, reverse), col))
    first = store_of(builder, node)
    checks = [checks_of(builder)]
    after = step + 1
    index = (ix.axis_index(row), scan_position(after, extent, reverse), col)
    builder.domain = Domain(region.number, region.form, region.shape, anchor=node, index=index)
    builder.checks.clear()
    following = store_of(builder, node)
    checks.append(checks_of(builder))
    previous = (ix.axis_index(row), scan_position(ix.axis_index(step), extent, reverse), col)
    body = cpu_scan.scan_columns(
        points, lane, step, op, first, following, ix.linearise(previous, node.shape), (checks[0], checks[1])
    )
    return finish(builder, body, extent, points.extent, (builder.flops + 1) * node.size, lane is None)


def _scan_strips(region: Region, node: Node, reverse: bool) -> LoweredKernel:
    outer, extent, inner = region.shape
    size = min(node.device.tuning.scan_strip, inner)
    strips = -(-inner // size)
    points, step, col = Axis("i", outer * strips), Axis("step", extent), Axis("col", size)
    row, strip = ix.delinearise(ix.axis_index(points), (outer, strips))
    first = strip * size
    place = first + col
    builder = Builder(region, (row, scan_position(ix.axis_index(step), extent, reverse), place))
    out = store_of(builder, node)
    left = inner - IndexValue(first, int64)
    columns = left.min(size) if inner % size else Literal(size, int64)
    body = cpu_scan.scan_strips(points, step, col, columns, out, checks_of(builder))
    return finish(builder, (body,), extent, points.extent, (builder.flops + 4) * node.size)


def scan_position(at: Index, extent: int, reverse: bool) -> Index:
    """A position along a scan as a position along its axis."""
    return -at + (extent - 1) if reverse else at


def store_of(builder: Builder, node: Node) -> Store:
    """The scanned value at the builder's index, to be stored there."""
    at = builder.domain.index
    value = builder.value(node.srcs[0], at, ())
    return Store(builder.buffer(node, written=True), ix.linearise(at, node.shape), value)


def checks_of(builder: Builder) -> tuple[Store, ...]:
    """The records of bad indices among the values so far."""
    return tuple([check for check, _ in builder.checks])


def lower_sort(region: Region) -> LoweredKernel:
    """The order of every row: by counting where rows are short, else by a radix sort."""
    node = region.anchor
    assert node is not None
    keys, *scratch = node.srcs
    count, extent = region.shape
    row, at = Axis("row", count), Axis("at", extent)
    builder = Builder(region, (ix.axis_index(row), ix.axis_index(at)))
    key = builder.value(keys, builder.domain.index, ())
    out = builder.buffer(node, written=True)
    names = tuple([builder.buffer(buffer, written=True) for buffer in scratch])
    assert names or is_counted(keys) or fits_on_stack(keys)
    known, tuning = count > 1, node.device.tuning
    rows = cpu_sort.Rows(row, at, key, checks_of(builder), out, extent, extent if known else cpu_scan.EXTENT)
    body, definitions = (
        cpu_sort.sort_by_counting(rows, tuning) if is_counted(keys) else cpu_sort.sort_by_radix(rows, names, tuning)
    )
    builder.definitions.update(definitions)
    work = extent if is_counted(keys) else 32
    flops = (builder.flops + work) * math.prod(region.shape)
    return finish(builder, body, None if known else extent, count, flops)


def lower_put(region: Region) -> LoweredKernel:
    """Elements of each row added, in order, at positions of a row of the result."""
    node = region.anchor
    assert node is not None
    if node.op == "bucket_rows":
        return _lower_buckets(region, node)
    index, source = node.srcs
    count, entries = region.shape
    row, entry = Axis("row", count), Axis("entry", entries)
    builder = Builder(region, (ix.axis_index(row), ix.axis_index(entry)))
    place = builder.int64_of(builder.value(index, builder.domain.index, ()))
    value = builder.value(source, builder.domain.index, ())
    out = builder.buffer(node, written=True)
    extent = node.shape[1]
    bounds = builder.extent_scalar("entries", entries), builder.extent_scalar("places", extent)
    body, definitions = cpu_scan.put_rows(row, entry, place, value, out, extent, bounds, checks_of(builder))
    builder.definitions.update(definitions)
    return finish(builder, body, None, count, (builder.flops + 8) * source.size + node.size)


def _lower_buckets(region: Region, node: Node) -> LoweredKernel:
    """Entries in the order of their buckets: one task counts and stores them."""
    (keys,), (count,), entries = node.srcs, node.attrs, region.shape[1]
    entry = Axis("entry", max(entries, 2))
    builder = Builder(region, (ix.ZERO, ix.axis_index(entry)))
    key = builder.value(keys, builder.domain.index, ())
    out = builder.buffer(node, written=True)
    bounds = builder.extent_scalar("entries", entries), builder.extent_scalar("buckets", count)
    body, definitions = cpu_sort.sort_into_buckets(entry, key, out, count, bounds, checks_of(builder))
    builder.definitions.update(definitions)
    return finish(builder, body, None, 1, 8 * entries + 2 * count)


ORDERINGS = {"scan": lower_scan, "sort": lower_sort, "put": lower_put}
