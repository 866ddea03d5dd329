"""Folds over rows of wide tables on a GPU, as segments have them: a thread takes a few neighbouring columns of a point.

What is the same for all columns (where a segment begins, which row an element is) is computed once for these, and
neighbours that lie side by side move in one access. Each column is folded in order by itself, as in every placement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.dtypes import DType
from weft.kernels import index as ix
from weft.kernels.cascade import CHAIN, compensated, rounding_error
from weft.kernels.gpu_tile import (
    BEGIN,
    END,
    Near,
    Target,
    Tile,
    aligned,
    at,
    joined,
    kernel,
    loads_in,
    named,
    serial,
    times,
    with_loads,
)  # fmt: skip
from weft.kernels.index import Axis
from weft.kernels.language import (
    Accumulator,
    Expr,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Var,
)
from weft.kernels.nest import COMBINE, Nest
from weft.kernels.substitute import parts_of, replaced, substitute

BLOCK = 256
WIDE = 32  # columns from which neighbours share a thread
MANY = 1 << 18  # elements from which there are threads enough even so


def lanes(nest: Nest, target: Target) -> Kernel | None:
    """A nest that folds for each column of a wide lane axis; None for others."""
    lane = nest.lane
    if lane is None or not nest.stages or lane.extent < WIDE or nest.points.extent * lane.extent < MANY:
        return None
    values = [value for stage in nest.stages for _, value in stage]
    stores = (*nest.point_stores, *nest.inner_stores)
    folded = {accumulator.name for stage in nest.stages for accumulator, _ in stage}
    masks = [store.mask for store in stores if store.mask is not None]
    if any(_uses(value, lane) for value in nest.definitions.values()) or folded & {
        part.name for part in parts_of(masks) if isinstance(part, Var)
    }:
        return None
    widest = max([load.dtype.itemsize for load in loads_in([*values, *[store.value for store in stores]])], default=4)
    near = max(target.vector_bytes // max(widest, 4), 1)
    if near == 1 or lane.extent % near:
        return None
    groups = lane.extent // near
    tile = Tile(min(BLOCK, target.threads), 1, near)
    flat, parts = joined("i", (nest.points, Axis("group", groups)))
    group = parts.pop(Axis("group", groups))
    nest = substitute(nest, {**parts, lane: ix.add(ix.scale(group, near), at(tile.lane))})
    body = _Lanes(nest, tile).body()
    loop = Loop(flat, times(BEGIN, groups), times(END, groups), "grid", body, tile.threads)
    return kernel(nest, (loop,), Geometry(tile.threads, groups))


def _uses(value: Expr, lane: Axis) -> bool:
    return any(ix.depends(part.index, lane) for part in parts_of([value]) if isinstance(part, Load | IndexValue))


class _Lanes:
    """The body of one thread; running folds are arrays with a place for each of its columns."""

    def __init__(self, nest: Nest, tile: Tile):
        self.nest, self.tile = nest, tile
        self.near = Near(tile, tile.slot, tile.near)
        self.arrays: list[Local] = []
        self.folds: dict[str, Accumulator] = {}

    def body(self) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stage in self.nest.stages:
            running = [accumulator for accumulator, _ in stage]
            for accumulator in running:
                self.arrays.append(Local(_running(accumulator), accumulator.dtype, self.tile.near, "thread"))
            first = [Store(_running(a), self.tile.slot, Literal(a.identity, a.dtype)) for a in running]
            steps = []
            ends: list[Stmt] = []
            for accumulator, value in stage:
                before = Load(_running(accumulator), self.tile.slot, accumulator.dtype)
                joined_ = Op(COMBINE[accumulator.op], (value, before), accumulator.dtype)
                steps.append(Store(_running(accumulator), self.tile.slot, joined_))
                if self.compensated(accumulator):
                    error = f"{_running(accumulator)}_error"
                    self.arrays.append(Local(error, accumulator.dtype, self.tile.near, "thread"))
                    first.append(Store(error, self.tile.slot, Literal(0, accumulator.dtype)))
                    lost = Load(error, self.tile.slot, accumulator.dtype)
                    rounded_off = rounding_error(before, value, joined_)
                    steps.append(Store(error, self.tile.slot, Op("add", (lost, rounded_off), accumulator.dtype)))
                    ends.append(Store(_running(accumulator), self.tile.slot, compensated(before, lost)))
            out += [*self.tile.lanes(first), *serial(self.nest.inner, self.moved(steps)), *self.tile.lanes(ends)]
            self.folds.update({accumulator.name: accumulator for accumulator in running})
        out += self.moved(self.nest.point_stores)
        if self.nest.inner_stores:
            out += serial(self.nest.inner, self.moved(self.nest.inner_stores))
        return (*self.arrays, *out)

    def compensated(self, accumulator: Accumulator) -> bool:
        """Whether a sum may be long, and adds up what it rounds off."""
        many = math.prod([span.axis.extent for span in self.nest.inner]) > CHAIN
        return many and accumulator.op == "sum" and accumulator.dtype.kind == "f"

    def moved(self, stores: Sequence[Store]) -> tuple[Stmt, ...]:
        """These stores for all columns of the thread: what lies side by side is fetched before and put behind them."""
        stores = [replace(store, value=value) for store, value in zip(stores, self.known(stores), strict=True)]
        near, values = self.near, [store.value for store in stores]
        fast: list[Stmt] = []
        slow: list[Stmt] = []
        fetched: list[tuple[str, DType]] = []
        known: dict[tuple, Expr] = {}
        for load in loads_in(values):
            if load.mask is None and load.buffer not in self.own and near.moves(load.index):
                array = near.array(load.buffer, load.dtype)
                self.arrays.append(array)
                fast.append(near.fetch(array, load))
                slow.append(near.fetch_one(array, load))
                fetched.append((load.buffer, load.dtype))
                known[load.buffer, load.index] = near.kept(array)
        along = [s.mask is None and s.buffer not in self.own and near.moves(s.index) for s in stores]
        pairs = zip(with_loads(values, known), along, strict=True)
        lets, outs = named([near.leaving(value) if moves else value for value, moves in pairs])
        inner: list[Stmt] = list(lets)
        fast_out: list[Stmt] = []
        slow_out: list[Stmt] = []
        stored: list[tuple[str, DType]] = []
        for store, out, moves in zip(stores, outs, along, strict=True):
            if moves:
                array = near.array(store.buffer, out.dtype)
                self.arrays.append(array)
                inner.append(Store(array.name, self.tile.slot, out))
                fast_out.append(near.put(array, store))
                slow_out.append(near.put_one(array, store))
                stored.append((store.buffer, store.value.dtype))
            else:
                inner.append(Store(store.buffer, store.index, out, store.mask))
        before, behind = self.either(fetched, fast, slow), self.either(stored, fast_out, slow_out)
        return (*before, *self.tile.lanes(inner), *behind)

    def either(self, buffers: list[tuple[str, DType]], fast: list[Stmt], slow: list[Stmt]) -> tuple[Stmt, ...]:
        """In one access each, where the buffers lie so; else one by one."""
        if not buffers:
            return ()
        nbytes = max(self.tile.near * dtype.itemsize for _, dtype in buffers)
        return (If(aligned(buffers, nbytes), tuple(fast), self.tile.lanes(slow)),)

    @property
    def own(self) -> set[str]:
        return {array.name for array in self.arrays}

    def known(self, stores: Sequence[Store]) -> list[Expr]:
        """The values of stores, with finished folds read from where they run."""
        values = [store.value for store in stores]
        finished = [part for part in parts_of(values) if isinstance(part, Var) and part.name in self.folds]
        swaps: dict[Expr, Expr] = {
            part: Load(_running(self.folds[part.name]), self.tile.slot, part.dtype) for part in finished
        }
        return replaced(values, swaps) if swaps else values


def _running(accumulator: Accumulator) -> str:
    return f"{accumulator.name}_running"
