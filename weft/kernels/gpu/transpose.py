"""Transposes: elementwise nests on a GPU that read memory along the points and write it along the lane axis.

A workgroup takes square tiles of (points, lane). First its lanes go along the points and bring what is contiguous that
way into shared memory; then they go along the lane axis, compute and store. So adjacent lanes access adjacent elements
both times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.kernels.gpu.statements import BEGIN, END, make_kernel, name_values, number, unroll
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import loads_in, replace_loads
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index, Remainder
from weft.kernels.ir.language import Barrier, Expr, Geometry, If, Kernel, Load, Local, Loop, Stmt, Store
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.rewrite import substitute

SIDE = 32  # of a tile
MAX_LANES = 256


def schedule_transpose(nest: Nest, target: Target) -> Kernel | None:
    """A nest without reductions as a kernel of square tiles; None where no load is transposed."""
    rows, cols, lanes = nest.points, nest.lane, min(MAX_LANES, target.workgroup_size)
    if (
        cols is None
        or nest.stages
        or nest.inner
        or rows.extent * cols.extent <= target.tuning.min_transposed_elements
        or rows.extent < SIDE // 2
        or lanes < SIDE
    ):
        return None
    values = [store.value for store in nest.point_stores]
    across = [
        load for load in loads_in(values) if _is_transposed(load, rows, cols, target.tuning.min_transposed_stride)
    ]
    arrays = [Local(f"{load.buffer}_turned{k or ''}", load.dtype, SIDE * (SIDE + 1)) for k, load in enumerate(across)]
    if not across or sum([array.size * array.dtype.itemsize for array in arrays]) > target.shared_bytes:
        return None
    wide = -(-cols.extent // SIDE)
    tile, lane = Axis("tile", -(-rows.extent // SIDE) * wide), Axis("thread", lanes)
    step = Axis("step", SIDE * SIDE // lanes)
    fast = lane % SIDE
    slow = step * (lanes // SIDE) + lane // SIDE
    row0, col0 = tile // wide * SIDE, tile % wide * SIDE

    def inside(row: Index, col: Index) -> Expr:
        bounded = _wide(row) < END
        return bounded if cols.extent % SIDE == 0 else bounded & (number(col) < cols.extent)

    def each(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return unroll(step, 0, step.extent, body)

    positions = {rows: row0 + fast, cols: col0 + slow}
    bring: tuple[Stmt, ...] = tuple(
        [
            Store(array.name, slow * (SIDE + 1) + fast, _at_position(load, positions))
            for array, load in zip(arrays, across, strict=True)
        ]
    )
    whole_tile = inside(row0 + (SIDE - 1), col0 + (SIDE - 1))
    first = If(whole_tile, each(bring), each((If(inside(*positions.values()), bring),)))
    back = fast * (SIDE + 1) + slow
    point = {rows: row0 + slow, cols: col0 + fast}
    known: dict[tuple, Expr] = {
        (load.buffer, load.index): Load(array.name, back, load.dtype)
        for array, load in zip(arrays, across, strict=True)
    }
    stores = tuple(
        [
            Store(store.buffer, store.index, value, store.mask)
            for store, value in zip(nest.point_stores, replace_loads(values, known), strict=True)
        ]
    )
    nest = substitute(replace(nest, point_stores=stores), point)
    second = each((If(inside(*point.values()), _compute_and_store(nest.point_stores)),))
    begun, ended = ((bound + (SIDE - 1) >> SIDE.bit_length() - 1) * wide for bound in (BEGIN, END))
    loop = Loop(tile, begun, ended, "task", (first, Barrier(), *second, Barrier()))
    each_lane = Loop(lane, 0, lanes, "lanes", (loop,), lanes)
    return make_kernel(nest, (*arrays, each_lane), Geometry(lanes, wide * SIDE, tile=SIDE * SIDE))


def _compute_and_store(stores: Sequence[Store]) -> tuple[Stmt, ...]:
    """All values before the first store."""
    lets, values = name_values([store.value for store in stores])
    return (*lets, *[replace(store, value=value) for store, value in zip(stores, values, strict=True)])


def _is_transposed(load: Load, rows: Axis, cols: Axis, min_stride: int) -> bool:
    """Whether adjacent points are contiguous in memory, and adjacent elements of the lane axis far apart."""
    index = load.index
    if load.mask is not None or not index.is_linear_in(cols) or abs(index.coefficient(cols)) < min_stride:
        return False
    if any(axis.kind == "value" for axis in ix.axes_of(index)):
        return False
    own = Index(((rows, 1),), 0)
    return any(
        factor == 1 and (atom == rows or (isinstance(atom, Remainder) and atom.value == own and atom.divisor >= SIDE))
        for atom, factor in index.terms
    )


def _at_position(load: Load, positions: dict[Axis, Index]) -> Load:
    return Load(load.buffer, ix.substitute(load.index, positions), load.dtype)


def _wide(index: Index) -> Expr:
    return number(index).cast(END.dtype)
