"""Rows on a GPU: the threads of a block, or of one subgroup, walk along a row and join what each of them folded.

A row of known length is a `Tile`: every thread meets the same elements in every walk over the row. So what the first
walk read is kept by the thread itself, in private arrays while the row is short enough for them, else in memory that
the block shares (where each thread touches its own places only), else it is read again. The tile follows from the
length of the row alone, and with it the order of all additions.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.kernels.gpu_chunks import ChunkRow, Turns
from weft.kernels.gpu_long import LongRow
from weft.kernels.gpu_picks import picked
from weft.kernels.gpu_tile import Target, Tile, at, joined, times
from weft.kernels.gpu_walk import BLOCK, PrivateRow, Row
from weft.kernels.index import Axis
from weft.kernels.language import Kernel, Loop
from weft.kernels.nest import Nest, Span
from weft.kernels.substitute import substitute

PER_THREAD = 16  # elements of a row that a thread takes, while a block has threads enough
PRIVATE = 32  # elements of a row that a thread keeps in registers, at most
SUBGROUP_ROW = 1024  # a row up to this length is one subgroup's
LONG = 4096  # elements from which a row with open ends gets all threads that a block may have
WIDE = 1024  # elements across which threads go side by side, where more axes are folded


def rows(nest: Nest, target: Target) -> Kernel:
    """Folds along rows: a subgroup or a block to a row."""
    nest, row = _row_of(picked(nest), target)
    nest, points = row.taken(nest, nest.points)
    return row.launched(nest, row.at_point(nest), points)


def rows_of_chunks(nest: Nest, target: Target) -> Kernel:
    """Row folds and column sums at once: whoever takes a chunk of points walks it row after row."""
    chosen, row = _row_of(nest, target, ChunkRow)
    if isinstance(row, ChunkRow):
        return row.launch(chosen)
    _, chunk = row.taken(chosen, Axis("chunk", nest.points.extent))
    turns = Turns(nest.points, at(chunk))
    nest, row = _row_of(replace(substitute(nest, {nest.points: at(turns.row)}), points=turns.row), target)
    before, at_point, after = row.with_columns(nest, chunk)
    walk = Loop(turns.turn, 0, turns.count, "serial", at_point)
    nest = replace(nest, definitions={**nest.definitions, **turns.definitions})
    return row.launched(nest, (*before, walk, *after), chunk)


def _row_of(nest: Nest, target: Target, short: type[PrivateRow] = PrivateRow) -> tuple[Nest, Row]:
    """The nest with the axes that threads share joined into one: all from the last span that is not walked whole.
    A row that registers hold becomes a `short` one."""
    open_ended = [k for k, span in enumerate(nest.inner) if not (span.start == 0 and span.stop == span.axis.extent)]
    cut = max(open_ended, default=0)
    if open_ended and math.prod([span.axis.extent for span in nest.inner[cut + 1 :]]) >= WIDE:
        cut += 1  # what is left of a row keeps a block busy
    outer, shared = nest.inner[:cut], nest.inner[cut:]
    if len(shared) > 1:
        axis, values = joined("r", tuple([span.axis for span in shared]))
        nest = substitute(nest, values)
        rest = axis.extent // shared[0].axis.extent
        across = Span(axis, times(shared[0].start, rest), times(shared[0].stop, rest))
    else:
        (across,) = shared
    extent = across.axis.extent
    if not (across.start == 0 and across.stop == extent):
        most = BLOCK if extent < LONG else target.threads
        width = min(max(1 << max(extent - 1, 0).bit_length(), _fewest(target)), most, target.threads)
        return nest, Row(target, Tile(width, 1, 1), outer, across)
    tile = tile_for(extent, target)
    if not outer and tile.each <= (PRIVATE if tile.threads < 1024 else PER_THREAD):
        return short.of(nest, target, tile, across)
    return LongRow.of(nest, target, tile, outer, across)


def _fewest(target: Target) -> int:
    """Threads that share a row at least: whole subgroups."""
    return max(32, target.subgroup)


def tile_for(extent: int, target: Target) -> Tile:
    """How a row of `extent` elements is shared among threads."""
    near = next(count for count in (4, 2, 1) if extent % count == 0 and (extent >= 32 * count or count == 1))
    threads = _fewest(target)
    if target.subgroup != threads or extent > SUBGROUP_ROW:
        while threads * PER_THREAD < extent and 2 * threads <= target.threads:
            threads *= 2
    return Tile(threads, -(-extent // (threads * near)), near)
