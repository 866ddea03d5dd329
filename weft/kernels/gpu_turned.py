"""Elementwise nests on a GPU that read some memory across: its neighbours lie along the points, those of the result
along the lane.

A block takes square tiles of (points, lane). First its threads go along the points and bring what lies that way into
shared memory; then they go along the lane, compute and store. So both ways neighbouring threads touch neighbours.
"""

from __future__ import annotations

from dataclasses import replace

from weft.kernels import index as ix
from weft.kernels.gpu_tile import BEGIN, END, Target, at, kernel, loads_in, number, test, unrolled, whole, with_loads
from weft.kernels.index import Axis, Index, Remainder
from weft.kernels.language import Barrier, Expr, Geometry, If, Kernel, Let, Load, Local, Loop, Op, Stmt, Store, Var
from weft.kernels.nest import Nest
from weft.kernels.substitute import substitute

FEW = 1 << 14  # elements up to which it does not matter
FAR = 8  # elements between neighbours of the lane from which a load goes across
SIDE = 32  # of a tile
THREADS = 256


def turned(nest: Nest, target: Target) -> Kernel | None:
    """A nest without folds as a kernel of square tiles; None where no load goes across."""
    rows, cols = nest.points, nest.lane
    if cols is None or nest.stages or nest.inner or rows.extent * cols.extent <= FEW or rows.extent < SIDE // 2:
        return None
    values = [store.value for store in nest.point_stores]
    across = [load for load in loads_in(values) if _goes_across(load, rows, cols)]
    arrays = [Local(f"{load.buffer}_turned{k or ''}", load.dtype, SIDE * (SIDE + 1)) for k, load in enumerate(across)]
    if not across or sum([array.size * array.dtype.itemsize for array in arrays]) > target.shared_bytes:
        return None
    wide = -(-cols.extent // SIDE)
    tile, thread = Axis("tile", -(-rows.extent // SIDE) * wide), Axis("thread", THREADS)
    step = Axis("step", SIDE * SIDE // THREADS)
    fast = ix.remainder(at(thread), SIDE)
    slow = ix.add(ix.scale(at(step), THREADS // SIDE), ix.floordiv(at(thread), SIDE))
    row0, col0 = ix.scale(ix.floordiv(at(tile), wide), SIDE), ix.scale(ix.remainder(at(tile), wide), SIDE)

    def inside(row: Index, col: Index) -> Expr:
        bounded = test("lt", _wide(row), END)
        return bounded if cols.extent % SIDE == 0 else test("and", bounded, test("lt", number(col), cols.extent))

    def each(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return unrolled(step, 0, step.extent, body)

    places = {rows: ix.add(row0, fast), cols: ix.add(col0, slow)}
    bring: tuple[Stmt, ...] = tuple(
        [
            Store(array.name, ix.add(ix.scale(slow, SIDE + 1), fast), _moved(load, places))
            for array, load in zip(arrays, across, strict=True)
        ]
    )
    whole_tile = inside(ix.add(row0, ix.const(SIDE - 1)), ix.add(col0, ix.const(SIDE - 1)))
    first = If(whole_tile, each(bring), each((If(inside(*places.values()), bring),)))
    back = ix.add(ix.scale(fast, SIDE + 1), slow)
    point = {rows: ix.add(row0, slow), cols: ix.add(col0, fast)}
    known: dict[tuple, Expr] = {
        (load.buffer, load.index): Load(array.name, back, load.dtype)
        for array, load in zip(arrays, across, strict=True)
    }
    stores = tuple(
        [
            Store(store.buffer, store.index, value, store.mask)
            for store, value in zip(nest.point_stores, with_loads(values, known), strict=True)
        ]
    )
    nest = substitute(replace(nest, point_stores=stores), point)
    lets = [Let(f"out{k}", store.value) for k, store in enumerate(nest.point_stores)]
    puts = [
        Store(store.buffer, store.index, Var(f"out{k}", store.value.dtype), store.mask)
        for k, store in enumerate(nest.point_stores)
    ]
    second = each((If(inside(*point.values()), (*lets, *puts)),))
    shift = SIDE.bit_length() - 1
    begun, ended = (whole("mul", whole("shr", whole("add", bound, SIDE - 1), shift), wide) for bound in (BEGIN, END))
    loop = Loop(tile, begun, ended, "task", (first, Barrier(), *second, Barrier()))
    threads = Loop(thread, 0, THREADS, "threads", (loop,), THREADS)
    return kernel(nest, (*arrays, threads), Geometry(THREADS, wide * SIDE, tile=SIDE * SIDE))


def _goes_across(load: Load, rows: Axis, cols: Axis) -> bool:
    """Whether neighbouring points lie side by side, and neighbours of the lane far apart."""
    index = load.index
    if load.mask is not None or not index.linear_in(cols) or abs(index.coefficient(cols)) < FAR:
        return False
    if any(axis.kind == "value" for axis in ix.axes_of(index)):
        return False
    own = Index(((rows, 1),), 0)
    return any(
        factor == 1 and (atom == rows or (isinstance(atom, Remainder) and atom.value == own and atom.divisor >= SIDE))
        for atom, factor in index.terms
    )


def _moved(load: Load, places: dict[Axis, Index]) -> Load:
    return Load(load.buffer, ix.substitute(load.index, places), load.dtype)


def _wide(index: Index) -> Expr:
    return Op("cast", (number(index),), END.dtype)
