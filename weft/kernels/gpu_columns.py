"""Columns on a GPU: what is folded over rows, each thread keeping the columns that are its own.

*Column sums* over chunks of rows: a thread takes a few neighbouring columns of one chunk and adds up its rows in order;
or, of columns that a subgroup would walk along, those rows that are its turn, as `gpu_chunks` has it, and the members'
sums are added in order of members. So a sum has the same bits beside folds of rows and alone.
*Folds down columns*: a block takes a strip of columns; its threads stand in groups, of which each takes every so
manieth row, and one place per group in shared memory joins them, in order of groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.kernels import index as ix
from weft.kernels.gpu_chunks import Turns, members_of
from weft.kernels.gpu_rows import tile_for
from weft.kernels.gpu_tile import (
    BEGIN,
    END,
    Near,
    Target,
    Tile,
    aligned,
    at,
    gathered,
    joined,
    kernel,
    loads_in,
    named,
    number,
    pieces,
    scaled,
    test,
    whole,
    with_loads,
)  # fmt: skip
from weft.kernels.index import Axis
from weft.kernels.language import (
    Accumulator,
    Barrier,
    Expr,
    Fetch,
    Fetched,
    Fold,
    Geometry,
    If,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.nest import COMBINE, Nest, together
from weft.kernels.substitute import substitute

BLOCK = 256
STRIP = 32  # columns of a block
FEW_ROWS = 32  # rows that one thread folds as well
MANY_ROWS = 256  # rows from which a block has all the threads that it may
MANY = 1 << 16  # columns that keep a GPU busy with one thread each
UNROLLED = 8  # rows under way at once
AHEAD = 8192  # bytes of coming rows that a block has under way, if `MOST_STAGES` are enough
MOST_STAGES = 16
SHARING = 4  # blocks that should find room side by side
AT_ONCE = 2  # blocks of a processor that also store elements: rows that are read and written side by side
ROOM = 2  # times the registers of a thread where a processor holds all it can: for several elements under way at once


# --- sums over chunks of rows ----------------------------------------------------------------------------------------


def column_sums(nest: Nest, target: Target) -> Kernel:
    """Column sums alone, with what is stored at each element on the way: a block takes a strip of a chunk's columns."""
    axes = tuple([span.axis for span in nest.inner])
    width = math.prod([axis.extent for axis in axes])
    row = tile_for(width, target)
    members = members_of(nest.columns, row.size, target) if row.threads == target.subgroup else 1
    tile = _tile(nest, width, members, target)
    groups = width // tile.near
    strips = -(-groups // tile.threads)
    task, places = joined("task", (Axis("chunk", nest.points.extent), Axis("strip", strips)))
    chunk, strip = places.values()
    thread = at(replace(tile.thread, kind="value")) if members > 1 else at(tile.thread)
    group = ix.add(ix.scale(strip, tile.threads), thread)
    column = ix.add(ix.scale(group, tile.near), at(tile.lane))
    shape = tuple([axis.extent for axis in axes])
    nest = substitute(nest, dict(zip(axes, ix.delinearise(column, shape), strict=True)))
    inside = test("lt", number(group), groups) if strips * tile.threads != groups else None
    walk = _Columns(nest, tile, chunk, thread, target, members, inside)
    loop = Loop(task, scaled(BEGIN, strips), scaled(END, strips), "task", walk.body())
    threads = Axis("number", members * tile.threads) if members > 1 else tile.thread
    block = Loop(threads, 0, threads.extent, "threads", (loop,), threads.extent)
    definitions: dict[str, Expr] = dict(walk.turns.definitions)
    if members > 1:
        definitions["thread"] = number(ix.remainder(at(threads), tile.threads))
        definitions["member"] = number(ix.floordiv(at(threads), tile.threads))
    nest = replace(walk.nest, definitions={**walk.nest.definitions, **definitions})
    beside = target.resident // (ROOM * max(threads.extent, target.subgroup))
    at_once = AT_ONCE if strips > 1 and nest.inner_stores else 0
    geometry = Geometry(threads.extent, strips * threads.extent, beside=beside, at_once=at_once)
    return kernel(nest, (*walk.arrays(), block), geometry)


def _tile(nest: Nest, width: int, members: int, target: Target) -> Tile:
    """Threads for a strip of one member, and neighbours for one access of the widest element."""
    values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
    fetched = [load.dtype.itemsize for load in loads_in(values) if ix.depends(load.index, nest.points)]
    widest = max([*fetched, *[store.value.dtype.itemsize for store in nest.inner_stores]], default=4)
    near = next(n for n in (8, 4, 2, 1) if (n == 1 or n * widest <= target.vector_bytes) and width % n == 0)
    if members > 1 and width <= 32 * near:
        return Tile(width // near, 1, near)  # members stand side by side in a subgroup
    groups = -(-width // (near * 32))
    fewest = -(-groups * 32 * members // BLOCK)
    strips = next((n for n in range(fewest, 2 * fewest) if groups % n == 0), fewest)
    return Tile(-(-groups // strips) * 32, 1, near)


def _stages(row: int, target: Target) -> int:
    """How many rows of so many bytes a block holds: this one and those that come; 0 where two find no room."""
    most, stages = target.shared_bytes // SHARING, 2
    while stages < MOST_STAGES and (stages - 1) * row < AHEAD and 2 * stages * row <= most:
        stages *= 2
    return stages if 0 < stages * row <= most else 0


class _Columns:
    """A thread's way down its columns of a chunk, row after row: that of each turn of its member. What the next rows
    hold is fetched into shared memory meanwhile, where the device can do that by the side: of turn t, each thread finds
    its own elements in stage t % stages. Where buffers are not aligned, all elements go one by one. Threads that are
    not `inside` have no columns."""

    def __init__(
        self, nest: Nest, tile: Tile, chunk: ix.Index, thread: ix.Index, target: Target, members: int,
        inside: Expr | None,
    ):  # fmt: skip
        self.tile, self.thread, self.target, self.members, self.inside = tile, thread, target, members, inside
        self.member = at(Axis("member", members, "value")) if members > 1 else ix.ZERO
        self.turns = Turns(nest.points, chunk, members, self.member)
        self.nest = nest = substitute(nest, {nest.points: at(self.turns.row)})
        self.near = Near(tile, at(tile.lane), tile.near)
        self.sums = [Local(f"sum{k}", c.accumulator.dtype, tile.near, "thread") for k, c in enumerate(nest.columns)]
        self.ends = [
            Store(c.buffer, ix.add(ix.scale(chunk, c.width), c.index), self.near.kept(total))
            for total, c in zip(self.sums, nest.columns, strict=True)
        ]
        self.values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        self.moving = [
            load
            for load in loads_in(self.values)
            if load.mask is None and tile.near > 1 and self.near.moves(load.index)
        ]
        ahead = [load for load in self.moving if ix.depends(load.index, self.turns.row) and not gathered(load, nest)]
        ahead = [load for load in ahead if target.fetches and tile.near * load.dtype.itemsize in (4, 8, 16)]
        self.stages = _stages(members * tile.size * sum([load.dtype.itemsize for load in ahead]), target)
        self.coming = ahead if self.stages else []
        self.kinds = [load.dtype for load in self.coming]

    def arrays(self) -> list[Local]:
        """Where rows that come ahead lie, all those of a dtype in one array: its address is computed once. And where
        members leave their sums."""
        size, kinds = self.members * self.tile.size, dict.fromkeys(self.kinds)
        ahead = [Local(f"{kind.name}_ahead", kind, self.kinds.count(kind) * self.stages * size) for kind in kinds]
        left = dict.fromkeys([total.dtype for total in self.sums]) if self.members > 1 else ()
        return [*ahead, *[Local(f"{kind.name}_sums", kind, size) for kind in left]]

    def body(self) -> tuple[Stmt, ...]:
        tile, nest = self.tile, self.nest
        pairs = zip(self.sums, nest.columns, strict=True)
        clear = [Store(s.name, self.near.slot, Literal(c.accumulator.identity, s.dtype)) for s, c in pairs]
        begun = (*self.sums, *tile.lanes(clear))
        at_once = UNROLLED if tile.near == 1 else 1
        one_by_one = Loop(self.turns.turn, 0, self.turns.count, "serial", self.row({}, False), at_once)
        slow = (*begun, *self.walked([one_by_one], tile.lanes(self.ends)))
        if tile.near == 1:
            return slow
        buffers = [(load.buffer, load.dtype) for load in loads_in(self.values)]
        buffers += [(store.buffer, store.value.dtype) for store in (*nest.inner_stores, *self.ends)]
        widest = max([dtype.itemsize for _, dtype in buffers])
        inside = aligned(buffers, min(tile.near * widest, self.target.vector_bytes))
        return (If(inside, (*begun, *self.walked(self.by_neighbours(), self.stored())), slow),)

    def walked(self, rows: Sequence[Stmt], stored: Sequence[Stmt]) -> list[Stmt]:
        """What is done with the rows of a chunk; then members join their sums, in order, and the first stores them."""
        if self.members == 1:
            return self.where_inside([*rows, *stored])
        out, tile, giver = self.where_inside(rows), self.tile, Axis("giver", self.members)
        mine, given = (
            ix.scale(ix.add(ix.scale(member, tile.threads), self.thread), tile.near)
            for member in (self.member, at(giver))
        )
        for k, (total, column) in enumerate(zip(self.sums, self.nest.columns, strict=True)):
            array, kept = f"{total.dtype.name}_sums", self.near.kept(total)
            other = Load(array, ix.add(given, at(tile.lane)), total.dtype)
            joined_up = Op(COMBINE[column.accumulator.op], (kept, other), total.dtype)
            one = tile.lanes([Store(total.name, self.near.slot, joined_up)])
            out += tile.lanes([Store(array, ix.add(mine, at(tile.lane)), kept)])
            out += [Barrier(), Loop(giver, 1, self.members, "unrolled", one)]
            if k + 1 < len(self.sums):
                out.append(Barrier())
        first = test("eq", number(self.member), 0)
        return [*out, If(first, tuple(self.where_inside(stored))), Barrier()]

    def where_inside(self, body: Sequence[Stmt]) -> list[Stmt]:
        return list(body) if self.inside is None else [If(self.inside, tuple(body))]

    def by_neighbours(self) -> list[Stmt]:
        """All rows of the chunk; what they share is read before."""
        near = self.near
        shared: list[Stmt] = []
        known: dict[tuple, Expr] = {}
        for load in self.moving:
            if not ix.depends(load.index, self.turns.row):
                array = near.array(load.buffer, load.dtype)
                shared += [array, *pieces(near.fetch(array, load), self.target.vector_bytes)]
                known[load.buffer, load.index] = near.kept(array)
        early, ahead = self.fetched_ahead()
        return [*early, *shared, Loop(self.turns.turn, 0, self.turns.count, "serial", (*ahead, *self.row(known, True)))]

    def fetched_ahead(self) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: the row that comes `stages - 1` turns later is asked for, and
        this one is waited for."""
        if not self.coming:
            return [], []
        early = Axis("early", self.stages - 1)
        one, ahead = self.asked(at(early)), self.asked(ix.add(at(self.turns.turn), ix.const(self.stages - 1)))
        return [Loop(early, 0, early.extent, "serial", (one, Fetched(self.stages)))], [ahead, Fetched(self.stages - 1)]

    def asked(self, turn: ix.Index) -> Stmt:
        """Begin to fetch what the row of a turn holds, if there is one."""
        row, near, count = at(self.turns.taken(turn)), self.tile.near, number(turn)
        here = {self.turns.row: row, self.tile.lane: ix.ZERO}
        fetches = [
            Fetch(*self.staged(load, turn), load.buffer, ix.substitute(load.index, here), near, near, True)
            for load in self.coming
        ]
        return If(test("lt", count, Op("cast", (self.turns.count,), count.dtype)), tuple(fetches))

    def staged(self, load: Load, turn: ix.Index) -> tuple[str, ix.Index]:
        """In which array, and where, a thread's neighbours of the row of a turn lie."""
        before = self.kinds[: self.coming.index(load)].count(load.dtype) * self.stages
        place = ix.add(ix.remainder(turn, self.stages), ix.const(before))
        place = ix.add(ix.scale(place, self.members), self.member)
        group = ix.add(ix.scale(place, self.tile.threads), self.thread)
        return f"{load.dtype.name}_ahead", ix.scale(group, self.tile.near)

    def stored(self) -> list[Stmt]:
        out: list[Stmt] = []
        for total, end in zip(self.sums, self.ends, strict=True):
            together = self.near.moves(end.index)
            put = pieces(self.near.put(total, end), self.target.vector_bytes)
            out += put if together else self.tile.lanes([end])
        return out

    def row(self, shared: dict[tuple, Expr], by_neighbours: bool) -> tuple[Stmt, ...]:
        """What is done in a row, beside what is `shared` by all."""
        tile, near, nest = self.tile, self.near, self.nest
        before: list[Stmt] = []
        known = dict(shared)
        for load in self.moving if by_neighbours else ():
            if (load.buffer, load.index) not in known:
                array = near.array(load.buffer, load.dtype)
                copy = near.fetch(array, load)
                if load in self.coming:
                    source, place = self.staged(load, at(self.turns.turn))
                    copy = replace(copy, source=source, index=place)
                before += [array, copy]
                known[load.buffer, load.index] = near.kept(array)
        stores = nest.inner_stores
        along = [by_neighbours and store.mask is None and near.moves(store.index) for store in stores]
        values = with_loads(self.values, known)
        moved = [near.leaving(value) if moves else value for value, moves in zip(values, along, strict=False)]
        lets, outs = named([*moved, *values[len(moved) :]])
        inner: list[Stmt] = list(lets)
        puts: list[Stmt] = []
        for store, out, moves in zip(stores, outs, along, strict=False):
            if moves:
                array = near.array(store.buffer, out.dtype)
                before.append(array)
                inner.append(Store(array.name, near.slot, out))
                puts.append(near.put(array, store))
            else:
                inner.append(replace(store, value=out))
        for total, column, out in zip(self.sums, nest.columns, outs[len(stores) :], strict=True):
            running = Op(COMBINE[column.accumulator.op], (near.kept(total), out), total.dtype)
            inner.append(Store(total.name, near.slot, running))
        return (*before, *tile.lanes(inner), *puts)


# --- folds down columns ----------------------------------------------------------------------------------------------


def column_folds(nest: Nest, target: Target) -> Kernel | None:
    """Folds over rows with columns side by side; None where one thread to a column is as well."""
    axes = (nest.points,) if nest.lane is None else (nest.points, nest.lane)
    flat, values = joined("i", axes)
    if len(nest.inner) != 1 or nest.inner[0].start != 0 or flat.extent > MANY or not nest.stages:
        return None
    (span,) = nest.inner
    if span.axis.extent < FEW_ROWS:
        return None
    most = BLOCK if span.axis.extent < MANY_ROWS else 1024
    groups = min(most, target.threads) // STRIP
    strip = Axis("strip", -(-flat.extent // STRIP))
    lane, group = Axis("lane", STRIP, "value"), Axis("group", groups, "value")
    step = Axis("step", -(-span.axis.extent // groups))
    thread = Axis("thread", STRIP * groups)
    place = ix.add(ix.scale(at(strip), STRIP), at(lane))
    row = ix.add(ix.scale(at(step), groups), at(group))
    nest = substitute(substitute(nest, values), {flat: place, span.axis: row})
    items = nest.lane.extent if nest.lane is not None else 1
    inside = test("lt", replace(number(place), dtype=END.dtype), scaled(END, items))
    last = whole("add", 0, span.stop) if isinstance(span.stop, int) else span.stop
    left = whole("add", whole("sub", last, replace(number(at(group)), dtype=END.dtype)), groups - 1)
    stop = whole("shr", whole("max", left, 0), groups.bit_length() - 1)

    def along(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return (If(inside, (Loop(step, 0, stop, "serial", body, UNROLLED),)),)

    arrays: list[Local] = []
    body: list[Stmt] = []
    for stage in nest.stages:
        parts = tuple([replace(acc, name=f"{acc.name}_part") for acc, _ in stage])
        updates = tuple([Update(part.name, value) for part, (_, value) in zip(parts, stage, strict=True)])
        body.append(Fold(parts, along(updates)))
        given, fold = _joined([acc for acc, _ in stage], arrays, at(lane), at(group), groups)
        body += [*given, Barrier(), fold]
    last_fold, stores = body.pop(), together(nest.point_stores)
    first_group = test("and", inside, test("eq", number(at(group)), 0))
    if nest.inner_stores:
        body += [last_fold, *([If(first_group, stores)] if stores else ()), *along(together(nest.inner_stores))]
    else:
        body.append(If(first_group, (last_fold, *stores)))
    body.append(Barrier())
    definitions = {
        **nest.definitions,
        "lane": number(ix.remainder(at(thread), STRIP)),
        "group": number(ix.floordiv(at(thread), STRIP)),
    }
    shift = STRIP.bit_length() - 1
    first, end = (
        whole("shr", scaled(BEGIN, items), shift),
        whole("shr", whole("add", scaled(END, items), STRIP - 1), shift),
    )
    loop = Loop(strip, first, end, "task", tuple(body))
    threads = Loop(thread, 0, thread.extent, "threads", (loop,), thread.extent)
    geometry = Geometry(thread.extent, items, tile=STRIP)
    return kernel(replace(nest, definitions=definitions), (*arrays, threads), geometry)


def _joined(
    accumulators: Sequence[Accumulator], arrays: list[Local], lane: ix.Index, group: ix.Index, groups: int
) -> tuple[list[Stmt], Fold]:
    """What the groups give, and what any thread of a column makes of it behind a barrier."""
    each = Axis("k", groups)
    stores: list[Stmt] = []
    updates: list[Stmt] = []
    for acc in accumulators:
        arrays.append(Local(f"{acc.name}_groups", acc.dtype, groups * STRIP))
        stores.append(Store(arrays[-1].name, ix.add(ix.scale(group, STRIP), lane), Var(f"{acc.name}_part", acc.dtype)))
        given = Load(arrays[-1].name, ix.add(ix.scale(at(each), STRIP), lane), acc.dtype)
        updates.append(Update(acc.name, given))
    return stores, Fold(tuple(accumulators), (Loop(each, 0, groups, "serial", tuple(updates)),))
