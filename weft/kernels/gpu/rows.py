"""Reductions along rows on a GPU: how the lanes of a workgroup, or of one subgroup, share a row of a given length.

A row of known length is a `Tile`: every lane meets the same elements in every pass over the row. So what the first pass
read is kept by the lane itself, in private arrays while the row is short enough for them, else in shared memory (where
each lane touches its own slots only), else it is read again. The tile, and with it the order of all additions, is a
rule of `kernels.numerics`. Each long row has a workgroup of its own: its copies begin as soon as the workgroup does,
which a GPU distributes better than workgroups that stay and request their next row while they write one.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from weft.base.dtypes import DType
from weft.kernels import numerics
from weft.kernels.gpu.chunked_rows import ChunkedRows
from weft.kernels.gpu.one_hot import replace_one_hot_reductions
from weft.kernels.gpu.row_combination import TreeCombination
from weft.kernels.gpu.row_emission import RoundEmission, StridedEmission, TileEmission, aligned_to_vectors
from weft.kernels.gpu.row_kernel import RowKernel
from weft.kernels.gpu.row_ownership import RoundElements, StridedElements, TileElements
from weft.kernels.gpu.row_sequence import RowSequence
from weft.kernels.gpu.row_staging import DirectStaging, RegisterStaging, RereadStaging, Staging
from weft.kernels.gpu.shared_staging import choose_staging
from weft.kernels.gpu.statements import at, flatten_axes, scale_bound, value_index
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import Tile, loads_in
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Kernel, Loop
from weft.kernels.ir.nest import Nest, Span
from weft.kernels.ir.rewrite import names_along, substitute


def schedule_rows(nest: Nest, target: Target) -> Kernel:
    """Reductions along rows: a subgroup or a workgroup to a row."""
    nest, row = _split_row(replace_one_hot_reductions(nest), target)
    nest, row, points = _take_rows(nest, row, nest.points)
    nest, kernel = _compose(nest, row, target)
    return kernel.launch(nest, kernel.emit_row(nest), points, target.independent_lanes)


def schedule_chunked_rows(nest: Nest, target: Target) -> Kernel:
    """Row reductions and column sums at once: a workgroup or a subgroup takes a chunk of points, row after row."""
    split, row = _split_row(nest, target)
    if row.in_registers:
        assert row.tile is not None
        return ChunkedRows(split, target, row.tile, row.span.axis, row.by_subgroup).kernel()
    chunk = Axis("chunk", nest.points.extent)
    if row.by_subgroup:
        chunk = replace(chunk, kind="value")
    sequence = RowSequence(nest.points, at(chunk))
    nest = replace(substitute(nest, {nest.points: at(sequence.row)}), points=sequence.row)
    nest, kernel = _compose(*_split_row(nest, target), target)
    before, each_row = kernel.emit_row_with_columns(nest, chunk)
    loop = Loop(sequence.iteration, 0, sequence.count, "serial", each_row)
    nest = replace(nest, definitions={**nest.definitions, **sequence.definitions})
    return kernel.launch(nest, (*before, loop), chunk, target.independent_lanes)


# --- how lanes share a row -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """The inner axes of a nest: `outer` ones that every lane goes through, and the `span` that lanes share, as `tile`
    (None: its ends are known only at run time)."""

    outer: tuple[Span, ...]
    span: Span
    tile: Tile | None
    by_subgroup: bool
    in_registers: bool


def _split_row(nest: Nest, target: Target) -> tuple[Nest, _Row]:
    """The nest with the axes that lanes share joined into one: all from the last span that is not passed over whole."""
    open_ended = [k for k, span in enumerate(nest.inner) if not _is_whole(span)]
    cut = max(open_ended, default=0)
    if open_ended and math.prod([span.axis.extent for span in nest.inner[cut + 1 :]]) >= numerics.MIN_SHARED_ELEMENTS:
        cut += 1  # what is left of a row keeps a workgroup busy
    outer, shared = nest.inner[:cut], nest.inner[cut:]
    if len(shared) > 1:
        axis, values = flatten_axes("r", tuple([span.axis for span in shared]))
        nest = substitute(nest, values)
        rest = axis.extent // shared[0].axis.extent
        across = Span(axis, scale_bound(shared[0].start, rest), scale_bound(shared[0].stop, rest))
    else:
        (across,) = shared
    if not _is_whole(across):
        return nest, _Row(outer, across, None, False, False)
    tile = tile_for(across.axis.extent, target)
    in_registers = not outer and numerics.is_register_row(tile.lanes, tile.per_lane)
    return nest, _Row(outer, across, tile, tile.lanes == target.subgroup_size, in_registers)


def _is_whole(span: Span) -> bool:
    return span.start == 0 and span.stop == span.axis.extent


def _take_rows(nest: Nest, row: _Row, each: Axis) -> tuple[Nest, _Row, Axis]:
    """The nest and its row with the axis of rows as the launch counts them: where a row is one subgroup's, its number
    is a value."""
    if not row.by_subgroup:
        return nest, row, each
    number_of = replace(each, kind="value")
    nest = substitute(nest, {each: value_index(number_of)})
    return nest, replace(row, outer=nest.inner[: len(row.outer)]), number_of


def tile_for(extent: int, target: Target) -> Tile:
    """How a row of `extent` elements is shared among lanes."""
    width = numerics.row_width(extent)
    lanes = numerics.row_lanes(extent, target.subgroup_size, target.workgroup_size)
    return Tile(lanes, -(-extent // (lanes * width)), width)


# --- ownership, staging and emission of a row ------------------------------------------------------------------------


def _compose(nest: Nest, row: _Row, target: Target) -> tuple[Nest, RowKernel]:
    """The nest with its row at the elements of a lane, and the kernel of such rows."""
    if row.tile is None:
        return nest, _compose_strided(row.outer, row.span, target)
    if not row.in_registers:
        return _compose_rounds(nest, row, row.tile, target)
    elements = TileElements(row.tile, row.span.axis, row.by_subgroup)
    nest = elements.map_nest(nest)
    emission = TileEmission(elements, aligned_to_vectors(nest, row.tile))
    return nest, RowKernel(elements, RegisterStaging(elements), emission, TreeCombination(target, elements))


def _compose_strided(outer: tuple[Span, ...], span: Span, target: Target) -> RowKernel:
    lanes = numerics.open_row_lanes(span.axis.extent, target.subgroup_size, target.workgroup_size)
    elements = StridedElements(lanes, outer, span)
    return RowKernel(elements, DirectStaging(), StridedEmission(elements), TreeCombination(target, elements))


def _compose_rounds(nest: Nest, row: _Row, tile: Tile, target: Target) -> tuple[Nest, RowKernel]:
    """A long row. Where columns are added up, too, each has to stay with its lane, and no row begins early."""
    axis, points = row.span.axis, nest.points
    fixed = row.outer or nest.columns or row.by_subgroup
    contiguous = [] if fixed else _contiguous_along(nest, axis)
    width, shift = tile.vector_width, 0
    if contiguous:
        widest = max([dtype.itemsize for _, dtype in contiguous])
        width = numerics.long_row_width(target.access_bytes, widest)
        shifts = Counter([index.coefficient(points) % width for index, _ in contiguous])
        ((shift, _),) = shifts.most_common(1)
    steps = numerics.long_row_steps(tile.lanes, width)
    elements = RoundElements(Tile(tile.lanes, steps, width), row.outer, axis, row.by_subgroup, points, shift)
    mapped = elements.map_nest(nest)
    registers = RegisterStaging(elements)
    staging: Staging | None = None
    if not row.outer and not row.by_subgroup:
        staging = choose_staging(mapped, target, elements, registers)
    if staging is not None and staging.workgroups_per_processor > 1 and tile.lanes > numerics.SHARING_ROW_LANES:
        return _compose_rounds(nest, row, replace(elements.tile, lanes=numerics.SHARING_ROW_LANES), target)
    staging = staging or RereadStaging(registers)
    varying = names_along(mapped.definitions, ix.axes_of(elements.own_slot))
    emission = RoundEmission(elements, staging, aligned_to_vectors(mapped, elements.tile), varying)
    return mapped, RowKernel(elements, staging, emission, TreeCombination(target, elements))


def _contiguous_along(nest: Nest, axis: Axis) -> list[tuple[Index, DType]]:
    """What is read and written one by one along `axis`."""
    values = [value for stage in nest.stages for _, value in stage]
    values += [store.value for store in nest.inner_stores] + [column.value for column in nest.columns]
    accesses = [(load.index, load.dtype) for load in loads_in(values) if load.mask is None]
    accesses += [(store.index, store.value.dtype) for store in nest.inner_stores if store.mask is None]
    return [(index, dtype) for index, dtype in accesses if index.is_linear_in(axis) and index.coefficient(axis) == 1]
