"""Segment columns: reductions over rows of wide tables, a lane taking a few contiguous columns of a point.

What is the same for all columns (where a segment begins, which row an element is) is computed once for these, and
contiguous elements move in one access. Each column is reduced in order by itself, as in every schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.base.dtypes import DType
from weft.kernels.gpu.statements import (
    BEGIN,
    END,
    are_aligned,
    flatten_axes,
    make_kernel,
    name_values,
    scale_bound,
    serial,
)
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import Tile, VectorAccess, loads_in, replace_loads
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import (
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
from weft.kernels.ir.nest import COMBINE, Nest
from weft.kernels.ir.rewrite import parts_of, replace_parts, substitute
from weft.kernels.math.summation import add_compensation, rounding_error
from weft.kernels.numerics import CHAIN, shares_lanes


def schedule_segment_columns(nest: Nest, target: Target) -> Kernel | None:
    """A nest that reduces each column of a wide lane axis; None for others."""
    lane = nest.lane
    if lane is None or not nest.stages or not shares_lanes(nest.points.extent, lane.extent):
        return None
    values = [value for stage in nest.stages for _, value in stage]
    stores = (*nest.point_stores, *nest.inner_stores)
    reduced = {accumulator.name for stage in nest.stages for accumulator, _ in stage}
    masks = [store.mask for store in stores if store.mask is not None]
    if any(_uses(value, lane) for value in nest.definitions.values()) or reduced & {
        part.name for part in parts_of(masks) if isinstance(part, Var)
    }:
        return None
    widest = max([load.dtype.itemsize for load in loads_in([*values, *[store.value for store in stores]])], default=4)
    vector_width = max(target.access_bytes // max(widest, 4), 1)
    if vector_width == 1 or lane.extent % vector_width:
        return None
    groups = lane.extent // vector_width
    tile = Tile(target.independent_lanes, 1, vector_width)
    flat, parts = flatten_axes("i", (nest.points, Axis("group", groups)))
    group = parts.pop(Axis("group", groups))
    nest = substitute(nest, {**parts, lane: group * vector_width + tile.vector_axis})
    body = _SegmentColumns(nest, tile).body()
    loop = Loop(flat, scale_bound(BEGIN, groups), scale_bound(END, groups), "grid", body, tile.lanes)
    return make_kernel(nest, (loop,), Geometry(tile.lanes, groups))


def _uses(value: Expr, lane: Axis) -> bool:
    return any(ix.depends(part.index, lane) for part in parts_of([value]) if isinstance(part, Load | IndexValue))


class _SegmentColumns:
    """The body of one lane; running reductions are arrays with an element for each of its columns."""

    def __init__(self, nest: Nest, tile: Tile):
        self.nest, self.tile = nest, tile
        self.vectors = VectorAccess(tile, tile.slot, tile.vector_width)
        self.arrays: list[Local] = []
        self.running: dict[str, Accumulator] = {}

    def body(self) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stage in self.nest.stages:
            running = [accumulator for accumulator, _ in stage]
            for accumulator in running:
                self.arrays.append(Local(_running_name(accumulator), accumulator.dtype, self.tile.vector_width, "lane"))
            first = [Store(_running_name(a), self.tile.slot, Literal(a.identity, a.dtype)) for a in running]
            steps = []
            ends: list[Stmt] = []
            for accumulator, value in stage:
                before = Load(_running_name(accumulator), self.tile.slot, accumulator.dtype)
                joined_ = Op(COMBINE[accumulator.op], (value, before), accumulator.dtype)
                steps.append(Store(_running_name(accumulator), self.tile.slot, joined_))
                if self.is_compensated(accumulator):
                    error = f"{_running_name(accumulator)}_error"
                    self.arrays.append(Local(error, accumulator.dtype, self.tile.vector_width, "lane"))
                    first.append(Store(error, self.tile.slot, Literal(0, accumulator.dtype)))
                    lost = Load(error, self.tile.slot, accumulator.dtype)
                    rounded_off = rounding_error(before, value, joined_)
                    steps.append(Store(error, self.tile.slot, lost + rounded_off))
                    ends.append(Store(_running_name(accumulator), self.tile.slot, add_compensation(before, lost)))
            out += [
                *self.tile.unroll_vector(first),
                *serial(self.nest.inner, self.vectorize(steps)),
                *self.tile.unroll_vector(ends),
            ]
            self.running.update({accumulator.name: accumulator for accumulator in running})
        out += self.vectorize(self.nest.point_stores)
        if self.nest.inner_stores:
            out += serial(self.nest.inner, self.vectorize(self.nest.inner_stores))
        return (*self.arrays, *out)

    def is_compensated(self, accumulator: Accumulator) -> bool:
        """Whether a sum may be long, and adds up what it rounds off."""
        many = math.prod([span.axis.extent for span in self.nest.inner]) > CHAIN
        return many and accumulator.op == "sum" and accumulator.dtype.kind == "f"

    def vectorize(self, stores: Sequence[Store]) -> tuple[Stmt, ...]:
        """These stores for all columns of the lane: contiguous elements are loaded before and stored after them."""
        stores = [replace(store, value=value) for store, value in zip(stores, self.values_of(stores), strict=True)]
        vectors, values = self.vectors, [store.value for store in stores]
        fast: list[Stmt] = []
        slow: list[Stmt] = []
        fetched: list[tuple[str, DType]] = []
        known: dict[tuple, Expr] = {}
        for load in loads_in(values):
            if load.mask is None and load.buffer not in self.own and vectors.is_contiguous(load.index):
                array = vectors.array(load.buffer, load.dtype)
                self.arrays.append(array)
                fast.append(vectors.load_vector(array, load))
                slow.append(vectors.load_element(array, load))
                fetched.append((load.buffer, load.dtype))
                known[load.buffer, load.index] = vectors.read(array)
        along = [s.mask is None and s.buffer not in self.own and vectors.is_contiguous(s.index) for s in stores]
        pairs = zip(replace_loads(values, known), along, strict=True)
        lets, outs = name_values([vectors.defer_rounding(value) if moves else value for value, moves in pairs])
        inner: list[Stmt] = list(lets)
        fast_out: list[Stmt] = []
        slow_out: list[Stmt] = []
        stored: list[tuple[str, DType]] = []
        for store, out, moves in zip(stores, outs, along, strict=True):
            if moves:
                array = vectors.array(store.buffer, out.dtype)
                self.arrays.append(array)
                inner.append(Store(array.name, self.tile.slot, out))
                fast_out.append(vectors.store_vector(array, store))
                slow_out.append(vectors.store_element(array, store))
                stored.append((store.buffer, store.value.dtype))
            else:
                inner.append(Store(store.buffer, store.index, out, store.mask))
        before, behind = (
            self.branch_on_alignment(fetched, fast, slow),
            self.branch_on_alignment(stored, fast_out, slow_out),
        )
        return (*before, *self.tile.unroll_vector(inner), *behind)

    def branch_on_alignment(
        self, buffers: list[tuple[str, DType]], fast: list[Stmt], slow: list[Stmt]
    ) -> tuple[Stmt, ...]:
        """In one access each, where the buffers are aligned; else one by one."""
        if not buffers:
            return ()
        nbytes = max(self.tile.vector_width * dtype.itemsize for _, dtype in buffers)
        return (If(are_aligned(buffers, nbytes), tuple(fast), self.tile.unroll_vector(slow)),)

    @property
    def own(self) -> set[str]:
        return {array.name for array in self.arrays}

    def values_of(self, stores: Sequence[Store]) -> list[Expr]:
        """The values of stores, with finished reductions read from their arrays."""
        values = [store.value for store in stores]
        finished = [part for part in parts_of(values) if isinstance(part, Var) and part.name in self.running]
        swaps: dict[Expr, Expr] = {
            part: Load(_running_name(self.running[part.name]), self.tile.slot, part.dtype) for part in finished
        }
        return replace_parts(values, swaps) if swaps else values


def _running_name(accumulator: Accumulator) -> str:
    return f"{accumulator.name}_running"
