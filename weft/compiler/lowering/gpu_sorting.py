"""Lowering of scans and sorts on GPUs: their values as expressions, for the loops of `kernels.gpu`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import Builder
from weft.compiler.lowering.sorting import LoweredKernel, checks_of, finish, scan_position, store_of
from weft.graph.node import Node
from weft.kernels.gpu import scan as gpu_scan
from weft.kernels.gpu import sort as gpu_sort
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import Accumulator, Expr, Store
from weft.kernels.ir.rewrite import expressions_for_gpu


def lower_scan(region: Region) -> LoweredKernel:
    """Running reductions: one lane per line of three axes, or one workgroup per row of two."""
    node = region.anchor
    assert node is not None
    op, _, reverse = node.attrs
    if len(region.shape) == 3:
        outer, extent, inner = region.shape
        lines, step = Axis("i", outer * inner), Axis("step", extent)
        row, col = ix.delinearise(ix.axis_index(lines), (outer, inner))
        builder = Builder(region, (row, scan_position(ix.axis_index(step), extent, reverse), col))
        out, checks = _scan_store(builder, node)
        accumulator = Accumulator("", op, node.dtype)
        lanes = min(node.device.tuning.workgroup_size, node.device.limits.workgroup_size)
        body, geometry = gpu_scan.scan_lines(lines, step, accumulator, out, checks, lanes)
        points = lines.extent
    else:
        points, extent = region.shape
        limits = node.device.limits
        shared = min(limits.shared_bytes, limits.static_shared_bytes)
        number = Axis("row", points)
        tile = gpu_scan.Tile(extent, node.dtype, shared, limits.workgroup_size)
        builder = Builder(region, (ix.axis_index(number), scan_position(tile.position, extent, reverse)))
        out, checks = _scan_store(builder, node)
        body, geometry = gpu_scan.scan_row(number, tile, op, out, checks)
    return finish(builder, body, extent, points, (builder.flops + 4) * node.size, geometry=geometry)


def lower_sort(region: Region) -> LoweredKernel:
    """Words in sorted runs: one workgroup for one or several runs."""
    node = region.anchor
    assert node is not None
    rows, extent = region.shape
    builder = Builder(region, ())
    runs = gpu_sort.Runs(rows, extent, node.attrs.per, builder.extent_scalar("rows", rows))
    builder.domain = replace(builder.domain, index=(runs.row, runs.position))
    word, checks = _for_device(builder, builder.value(node.srcs[0], builder.domain.index, ()), node)
    out = builder.buffer(node, written=True)
    body, definitions, geometry = gpu_sort.sort_runs(runs, word, out, checks)
    builder.definitions.update(definitions)
    flops = (builder.flops + 64) * math.prod(region.shape)
    return finish(builder, body, None, runs.tasks, flops, geometry=geometry)


def _scan_store(builder: Builder, node: Node) -> tuple[Store, tuple[Store, ...]]:
    """The scanned value, to be stored, and the records of bad indices."""
    out = store_of(builder, node)
    value, checks = _for_device(builder, out.value, node)
    return replace(out, value=value), checks


def _for_device(builder: Builder, value: Expr, node: Node) -> tuple[Expr, tuple[Store, ...]]:
    """A value and the records of bad indices, with the functions that the node's device has; the builder's definitions
    get them, too."""
    native, definitions = node.device.features.native_functions, builder.definitions
    (value,), checks, builder.definitions = expressions_for_gpu(native, [value], checks_of(builder), definitions)
    return value, checks


GPU_ORDERINGS: dict[str, Callable[[Region], LoweredKernel]] = {"scan": lower_scan, "sort": lower_sort}
