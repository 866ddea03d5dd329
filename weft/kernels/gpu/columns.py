"""Columns on a GPU: reductions over rows, each lane keeping the columns that are its own.

*Column sums* over chunks of rows: a lane takes a few contiguous columns of one chunk and adds up its rows in order; or,
where a subgroup would share a row of so many columns, the rows of its member (`row_sequence`), and the members' sums
are added in order of members. So a sum has the same bits beside row reductions (`chunked_rows`) and alone.
*Column reductions*: a workgroup takes a strip of columns; its lanes form groups, each of which takes a strided set
of rows, and shared memory combines the groups, in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.kernels.gpu.row_prefetch import ASYNC_COPY_BYTES
from weft.kernels.gpu.row_sequence import RowSequence, count_members
from weft.kernels.gpu.rows import tile_for
from weft.kernels.gpu.statements import (
    BEGIN,
    END,
    are_aligned,
    at,
    flatten_axes,
    int64_op,
    make_kernel,
    name_values,
    number,
    scale_value,
)
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import Tile, VectorAccess, is_gathered, loads_in, replace_loads, split_copy
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import (
    Accumulator,
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Expr,
    Geometry,
    If,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.nest import COMBINE, Nest, store_after_evaluation
from weft.kernels.ir.rewrite import substitute
from weft.kernels.numerics import COLUMN_STRIP, column_groups

LANE_GRANULE = 32  # lanes of a strip are a multiple of this
SHARING_WORKGROUPS = 4  # that should find room on one processor


# --- sums over chunks of rows ----------------------------------------------------------------------------------------


def schedule_column_sums(nest: Nest, target: Target) -> Kernel:
    """Column sums alone, with what is stored at each element: a workgroup takes a strip of a chunk's columns."""
    axes = tuple([span.axis for span in nest.inner])
    width = math.prod([axis.extent for axis in axes])
    row = tile_for(width, target)
    members = count_members(nest.columns, row.size, target) if row.lanes == target.subgroup_size else 1
    tile = _tile(nest, width, members, target)
    groups = width // tile.vector_width
    strips = -(-groups // tile.lanes)
    task, places = flatten_axes("task", (Axis("chunk", nest.points.extent), Axis("strip", strips)))
    chunk, strip = places.values()
    lane_number = at(replace(tile.lane, kind="value")) if members > 1 else at(tile.lane)
    group = strip * tile.lanes + lane_number
    column = group * tile.vector_width + tile.vector_axis
    shape = tuple([axis.extent for axis in axes])
    nest = substitute(nest, dict(zip(axes, ix.delinearise(column, shape), strict=True)))
    inside = number(group) < groups if strips * tile.lanes != groups else None
    columns_of_lane = _Columns(nest, tile, chunk, lane_number, target, members, inside)
    loop = Loop(task, scale_value(BEGIN, strips), scale_value(END, strips), "task", columns_of_lane.body())
    lane_axis = Axis("number", members * tile.lanes) if members > 1 else tile.lane
    lanes = Loop(lane_axis, 0, lane_axis.extent, "lanes", (loop,), lane_axis.extent)
    definitions: dict[str, Expr] = dict(columns_of_lane.sequence.definitions)
    if members > 1:
        definitions["thread"] = number(lane_axis % tile.lanes)
        definitions["member"] = number(lane_axis // tile.lanes)
    nest = replace(columns_of_lane.nest, definitions={**columns_of_lane.nest.definitions, **definitions})
    tuning, lanes_at_once = target.tuning, max(lane_axis.extent, target.subgroup_size)
    beside = target.resident_lanes // (tuning.column_register_factor * lanes_at_once)
    at_once = tuning.storing_workgroups if strips > 1 and nest.inner_stores else 0
    geometry = Geometry(lane_axis.extent, strips * lane_axis.extent, min_resident=beside, max_resident=at_once)
    return make_kernel(nest, (*columns_of_lane.arrays(), lanes), geometry)


def _tile(nest: Nest, width: int, members: int, target: Target) -> Tile:
    """Lanes for a strip of one member, and contiguous elements for one access of the widest element."""
    values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
    fetched = [load.dtype.itemsize for load in loads_in(values) if ix.depends(load.index, nest.points)]
    widest = max([*fetched, *[store.value.dtype.itemsize for store in nest.inner_stores]], default=4)
    vector_width = next(n for n in (8, 4, 2, 1) if (n == 1 or n * widest <= target.access_bytes) and width % n == 0)
    if members > 1 and width <= LANE_GRANULE * vector_width:
        return Tile(width // vector_width, 1, vector_width)  # a subgroup has several members
    groups = -(-width // (vector_width * LANE_GRANULE))
    fewest = -(-groups * LANE_GRANULE * members // target.independent_lanes)
    strips = next((n for n in range(fewest, 2 * fewest) if groups % n == 0), fewest)
    return Tile(-(-groups // strips) * LANE_GRANULE, 1, vector_width)


def _stages(row: int, target: Target) -> int:
    """How many rows of so many bytes a workgroup keeps: this one and the prefetched ones; 0 where two do not fit."""
    tuning, most, stages = target.tuning, target.shared_bytes // SHARING_WORKGROUPS, 2
    while (
        stages < tuning.max_column_stages
        and (stages - 1) * row < tuning.column_prefetch_bytes
        and 2 * stages * row <= most
    ):
        stages *= 2
    return stages if 0 < stages * row <= most else 0


class _Columns:
    """A lane's loop down its columns of a chunk: in each iteration, one row of its member. What the next rows
    contain is fetched into shared memory meanwhile, where the device has asynchronous copies: of iteration t, each
    lane has its own elements in stage t % stages. Where buffers are not aligned, all elements go one by one. Lanes
    that are not `inside` have no columns."""

    def __init__(
        self, nest: Nest, tile: Tile, chunk: ix.Index, lane_number: ix.Index, target: Target, members: int,
        inside: Expr | None,
    ):  # fmt: skip
        self.tile, self.lane_number, self.target, self.members, self.inside = tile, lane_number, target, members, inside
        self.member = at(Axis("member", members, "value")) if members > 1 else ix.ZERO
        self.sequence = RowSequence(nest.points, chunk, members, self.member)
        self.nest = nest = substitute(nest, {nest.points: at(self.sequence.row)})
        self.vectors = VectorAccess(tile, at(tile.vector_axis), tile.vector_width)
        self.sums = [
            Local(f"sum{k}", c.accumulator.dtype, tile.vector_width, "lane") for k, c in enumerate(nest.columns)
        ]
        self.ends = [
            Store(c.buffer, chunk * c.width + c.index, self.vectors.read(total))
            for total, c in zip(self.sums, nest.columns, strict=True)
        ]
        self.values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        self.moving = [
            load
            for load in loads_in(self.values)
            if load.mask is None and tile.vector_width > 1 and self.vectors.is_contiguous(load.index)
        ]
        ahead = [
            load for load in self.moving if ix.depends(load.index, self.sequence.row) and not is_gathered(load, nest)
        ]
        ahead = [
            load
            for load in ahead
            if target.has_async_copies and tile.vector_width * load.dtype.itemsize in ASYNC_COPY_BYTES
        ]
        self.stages = _stages(members * tile.size * sum([load.dtype.itemsize for load in ahead]), target)
        self.coming = ahead if self.stages else []
        self.kinds = [load.dtype for load in self.coming]

    def arrays(self) -> list[Local]:
        """Where prefetched rows are, all those of a dtype in one array: its address is computed once. And where
        members leave their sums."""
        size, kinds = self.members * self.tile.size, dict.fromkeys(self.kinds)
        ahead = [Local(f"{kind.name}_ahead", kind, self.kinds.count(kind) * self.stages * size) for kind in kinds]
        left = dict.fromkeys([total.dtype for total in self.sums]) if self.members > 1 else ()
        return [*ahead, *[Local(f"{kind.name}_sums", kind, size) for kind in left]]

    def body(self) -> tuple[Stmt, ...]:
        tile, nest = self.tile, self.nest
        pairs = zip(self.sums, nest.columns, strict=True)
        clear = [Store(s.name, self.vectors.slot, Literal(c.accumulator.identity, s.dtype)) for s, c in pairs]
        begun = (*self.sums, *tile.unroll_vector(clear))
        at_once = self.target.tuning.column_rows_in_flight if tile.vector_width == 1 else 1
        one_by_one = Loop(self.sequence.iteration, 0, self.sequence.count, "serial", self.row({}, False), at_once)
        slow = (*begun, *self.emit_rows([one_by_one], tile.unroll_vector(self.ends)))
        if tile.vector_width == 1:
            return slow
        buffers = [(load.buffer, load.dtype) for load in loads_in(self.values)]
        buffers += [(store.buffer, store.value.dtype) for store in (*nest.inner_stores, *self.ends)]
        widest = max([dtype.itemsize for _, dtype in buffers])
        inside = are_aligned(buffers, min(tile.vector_width * widest, self.target.access_bytes))
        return (If(inside, (*begun, *self.emit_rows(self.vectorize_rows(), self.store_sums())), slow),)

    def emit_rows(self, rows: Sequence[Stmt], stores: Sequence[Stmt]) -> list[Stmt]:
        """What is done with the rows of a chunk; then members join their sums, in order, and the first stores them."""
        if self.members == 1:
            return self.where_inside([*rows, *stores])
        out, tile, giver = self.where_inside(rows), self.tile, Axis("giver", self.members)
        mine, given = (
            (member * tile.lanes + self.lane_number) * tile.vector_width for member in (self.member, at(giver))
        )
        for k, (total, column) in enumerate(zip(self.sums, self.nest.columns, strict=True)):
            array, kept = f"{total.dtype.name}_sums", self.vectors.read(total)
            other = Load(array, given + tile.vector_axis, total.dtype)
            joined_up = Op(COMBINE[column.accumulator.op], (kept, other), total.dtype)
            one = tile.unroll_vector([Store(total.name, self.vectors.slot, joined_up)])
            out += tile.unroll_vector([Store(array, mine + tile.vector_axis, kept)])
            out += [Barrier(), Loop(giver, 1, self.members, "unrolled", one)]
            if k + 1 < len(self.sums):
                out.append(Barrier())
        first = number(self.member).eq(0)
        return [*out, If(first, tuple(self.where_inside(stores))), Barrier()]

    def where_inside(self, body: Sequence[Stmt]) -> list[Stmt]:
        return list(body) if self.inside is None else [If(self.inside, tuple(body))]

    def vectorize_rows(self) -> list[Stmt]:
        """All rows of the chunk; what they share is read before."""
        vectors = self.vectors
        shared: list[Stmt] = []
        known: dict[tuple, Expr] = {}
        for load in self.moving:
            if not ix.depends(load.index, self.sequence.row):
                array = vectors.array(load.buffer, load.dtype)
                shared += [array, *split_copy(vectors.load_vector(array, load), self.target.access_bytes)]
                known[load.buffer, load.index] = vectors.read(array)
        early, ahead = self.fetch_ahead()
        return [
            *early,
            *shared,
            Loop(self.sequence.iteration, 0, self.sequence.count, "serial", (*ahead, *self.row(known, True))),
        ]

    def fetch_ahead(self) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: the row of `stages - 1` iterations later is requested, and
        this one is waited for."""
        if not self.coming:
            return [], []
        early = Axis("early", self.stages - 1)
        one, ahead = self.request(at(early)), self.request(self.sequence.iteration + (self.stages - 1))
        return [Loop(early, 0, early.extent, "serial", (one, AwaitCopies(self.stages)))], [
            ahead,
            AwaitCopies(self.stages - 1),
        ]

    def request(self, iteration: ix.Index) -> Stmt:
        """Begin to fetch what the row of an iteration contains, if there is one."""
        row, vector_width, count = at(self.sequence.row_of(iteration)), self.tile.vector_width, number(iteration)
        here = {self.sequence.row: row, self.tile.vector_axis: ix.ZERO}
        fetches = [
            AsyncCopy(
                *self.slot_of(load, iteration),
                load.buffer,
                ix.substitute(load.index, here),
                vector_width,
                vector_width,
                True,
            )
            for load in self.coming
        ]
        return If(count < self.sequence.count.cast(count.dtype), tuple(fetches))

    def slot_of(self, load: Load, iteration: ix.Index) -> tuple[str, ix.Index]:
        """The array, and the index in it, of a lane's vector of the row of an iteration."""
        before = self.kinds[: self.coming.index(load)].count(load.dtype) * self.stages
        position = iteration % self.stages + before
        position = position * self.members + self.member
        group = position * self.tile.lanes + self.lane_number
        return f"{load.dtype.name}_ahead", group * self.tile.vector_width

    def store_sums(self) -> list[Stmt]:
        out: list[Stmt] = []
        for total, end in zip(self.sums, self.ends, strict=True):
            contiguous = self.vectors.is_contiguous(end.index)
            put = split_copy(self.vectors.store_vector(total, end), self.target.access_bytes)
            out += put if contiguous else self.tile.unroll_vector([end])
        return out

    def row(self, shared: dict[tuple, Expr], vectorized: bool) -> tuple[Stmt, ...]:
        """What is done in a row, beside what is `shared` by all."""
        tile, vectors, nest = self.tile, self.vectors, self.nest
        before: list[Stmt] = []
        known = dict(shared)
        for load in self.moving if vectorized else ():
            if (load.buffer, load.index) not in known:
                array = vectors.array(load.buffer, load.dtype)
                copy = vectors.load_vector(array, load)
                if load in self.coming:
                    source, position = self.slot_of(load, at(self.sequence.iteration))
                    copy = replace(copy, source=source, index=position)
                before += [array, copy]
                known[load.buffer, load.index] = vectors.read(array)
        stores = nest.inner_stores
        along = [vectorized and store.mask is None and vectors.is_contiguous(store.index) for store in stores]
        values = replace_loads(self.values, known)
        moved = [vectors.defer_rounding(value) if moves else value for value, moves in zip(values, along, strict=False)]
        lets, outs = name_values([*moved, *values[len(moved) :]])
        inner: list[Stmt] = list(lets)
        puts: list[Stmt] = []
        for store, out, moves in zip(stores, outs, along, strict=False):
            if moves:
                array = vectors.array(store.buffer, out.dtype)
                before.append(array)
                inner.append(Store(array.name, vectors.slot, out))
                puts.append(vectors.store_vector(array, store))
            else:
                inner.append(replace(store, value=out))
        for total, column, out in zip(self.sums, nest.columns, outs[len(stores) :], strict=True):
            running = Op(COMBINE[column.accumulator.op], (vectors.read(total), out), total.dtype)
            inner.append(Store(total.name, vectors.slot, running))
        return (*before, *tile.unroll_vector(inner), *puts)


# --- reductions down columns -----------------------------------------------------------------------------------------


def schedule_column_reductions(nest: Nest, target: Target) -> Kernel | None:
    """Reductions of columns that are contiguous in memory; None where one lane for each column is as fast."""
    axes = (nest.points,) if nest.lane is None else (nest.points, nest.lane)
    flat, values = flatten_axes("i", axes)
    if len(nest.inner) != 1 or nest.inner[0].start != 0 or not nest.stages:
        return None
    (span,) = nest.inner
    groups = column_groups(span.axis.extent, flat.extent, target.workgroup_size)
    if groups == 1:
        return None
    strip = Axis("strip", -(-flat.extent // COLUMN_STRIP))
    lane, group = Axis("lane", COLUMN_STRIP, "value"), Axis("group", groups, "value")
    step = Axis("step", -(-span.axis.extent // groups))
    lane_axis = Axis("thread", COLUMN_STRIP * groups)
    position = strip * COLUMN_STRIP + lane
    row = step * groups + group
    nest = substitute(substitute(nest, values), {flat: position, span.axis: row})
    items = nest.lane.extent if nest.lane is not None else 1
    inside = replace(number(position), dtype=END.dtype) < scale_value(END, items)
    last = int64_op("add", 0, span.stop) if isinstance(span.stop, int) else span.stop
    left = last - replace(number(at(group)), dtype=END.dtype) + (groups - 1)
    stop = left.max(0) >> groups.bit_length() - 1

    def along(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return (If(inside, (Loop(step, 0, stop, "serial", body, target.tuning.column_rows_in_flight),)),)

    arrays: list[Local] = []
    body: list[Stmt] = []
    for stage in nest.stages:
        parts = tuple([replace(acc, name=f"{acc.name}_part") for acc, _ in stage])
        updates = tuple([Update(part.name, value) for part, (_, value) in zip(parts, stage, strict=True)])
        body.append(Reduction(parts, along(updates)))
        given, reduction = _join_groups([acc for acc, _ in stage], arrays, at(lane), at(group), groups)
        body += [*given, Barrier(), reduction]
    last_reduction, stores = body.pop(), store_after_evaluation(nest.point_stores)
    first_group = inside & number(at(group)).eq(0)
    if nest.inner_stores:
        body += [
            last_reduction,
            *([If(first_group, stores)] if stores else ()),
            *along(store_after_evaluation(nest.inner_stores)),
        ]
    else:
        body.append(If(first_group, (last_reduction, *stores)))
    body.append(Barrier())
    definitions = {
        **nest.definitions,
        "lane": number(lane_axis % COLUMN_STRIP),
        "group": number(lane_axis // COLUMN_STRIP),
    }
    shift = COLUMN_STRIP.bit_length() - 1
    first, end = (
        scale_value(BEGIN, items) >> shift,
        scale_value(END, items) + (COLUMN_STRIP - 1) >> shift,
    )
    loop = Loop(strip, first, end, "task", tuple(body))
    lane_loop = Loop(lane_axis, 0, lane_axis.extent, "lanes", (loop,), lane_axis.extent)
    geometry = Geometry(lane_axis.extent, items, tile=COLUMN_STRIP)
    return make_kernel(replace(nest, definitions=definitions), (*arrays, lane_loop), geometry)


def _join_groups(
    accumulators: Sequence[Accumulator], arrays: list[Local], lane: ix.Index, group: ix.Index, groups: int
) -> tuple[list[Stmt], Reduction]:
    """What the groups give, and what any lane of a column computes from it after a barrier."""
    each = Axis("k", groups)
    stores: list[Stmt] = []
    updates: list[Stmt] = []
    for acc in accumulators:
        arrays.append(Local(f"{acc.name}_groups", acc.dtype, groups * COLUMN_STRIP))
        stores.append(Store(arrays[-1].name, group * COLUMN_STRIP + lane, Var(f"{acc.name}_part", acc.dtype)))
        given = Load(arrays[-1].name, each * COLUMN_STRIP + lane, acc.dtype)
        updates.append(Update(acc.name, given))
    return stores, Reduction(tuple(accumulators), (Loop(each, 0, groups, "serial", tuple(updates)),))
