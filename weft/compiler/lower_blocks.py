"""lower for scans and sorts on devices with blocks: the values they work on, given to the loops in `kernels`."""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.compiler.lower_order import Template, checks_of, finish, stored, turned
from weft.compiler.region import Region
from weft.compiler.values import Builder
from weft.kernels import block_scans, block_sorts
from weft.kernels import index as ix
from weft.kernels.gpu_tile import target_of
from weft.kernels.index import Axis
from weft.kernels.language import Accumulator


def lower_scan(region: Region) -> Template:
    """Running reductions: a thread to a line of three axes, or a block to a row of two."""
    node = region.anchor
    assert node is not None
    op, _, reverse = node.attrs
    if len(region.shape) == 3:
        outer, extent, inner = region.shape
        lines, step = Axis("i", outer * inner), Axis("step", extent)
        row, col = ix.delinearise(ix.axis_index(lines), (outer, inner))
        builder = Builder(region, (row, turned(ix.axis_index(step), extent, reverse), col))
        out = stored(builder, node)
        accumulator = Accumulator("", op, node.dtype)
        body, geometry = block_scans.scan_lines(lines, step, accumulator, out, checks_of(builder))
        points = lines.extent
    else:
        points, extent = region.shape
        shared = target_of(node.device.features, node.device.limits).shared_bytes
        number, tile = Axis("row", points), block_scans.Tile(extent, node.dtype, shared)
        builder = Builder(region, (ix.axis_index(number), turned(tile.position, extent, reverse)))
        out = stored(builder, node)
        body, geometry = block_scans.scan_row(number, tile, op, out, checks_of(builder))
    return finish(builder, body, extent, points, (builder.flops + 4) * node.size, geometry=geometry)


def lower_sort(region: Region) -> Template:
    """Words in sorted runs: a block to each, or to several."""
    node = region.anchor
    assert node is not None
    rows, extent = region.shape
    builder = Builder(region, ())
    runs = block_sorts.Runs(rows, extent, node.attrs[0], builder.whole("rows", rows))
    builder.region.index = (runs.row, runs.position)
    word = builder.value(node.srcs[0], builder.region.index, ())
    out = builder.buffer(node, written=True)
    body, definitions, geometry = block_sorts.sort_runs(runs, word, out, checks_of(builder))
    builder.definitions.update(definitions)
    flops = (builder.flops + 64) * math.prod(region.shape)
    return finish(builder, body, None, runs.tasks, flops, geometry=geometry)


BLOCK_ORDERINGS: dict[str, Callable[[Region], Template]] = {"scan": lower_scan, "sort": lower_sort}
