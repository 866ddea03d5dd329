"""Columns on a GPU: what is folded over rows, each thread keeping the columns that are its own.

*Column sums* over chunks of rows: a thread takes a few neighbouring columns of one chunk and adds up its rows in order.
*Folds down columns*: a block takes a strip of columns; its threads stand in groups, of which each takes every so
manieth row, and one place per group in shared memory joins them, in order of groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.kernels import index as ix
from weft.kernels.gpu_chunks import points_of
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
from weft.kernels.substitute import indices_of, parts_of, substitute

BLOCK = 256
STRIP = 32  # columns of a block
FEW_ROWS = 32  # rows that one thread folds as well
MANY_ROWS = 256  # rows from which a block has all the threads that it may
MANY = 1 << 16  # columns that keep a GPU busy with one thread each
UNROLLED = 8  # rows under way at once
IN_FLIGHT = 64  # bytes that a thread asks for before it uses the first
MOST_ROWS = 8  # that a thread reads before it uses the first
MOST_OPERATIONS = 2048  # that are copied out for one thread


# --- sums over chunks of rows ----------------------------------------------------------------------------------------


def column_sums(nest: Nest, target: Target) -> Kernel:
    """Column sums alone, with what is stored at each element on the way: a block takes a strip of a chunk's columns."""
    axes = tuple([span.axis for span in nest.inner])
    width = math.prod([axis.extent for axis in axes])
    tile = _tile(nest, width, target)
    groups = width // tile.near
    strips = -(-groups // tile.threads)
    task, places = joined("task", (Axis("chunk", nest.points.extent), Axis("strip", strips)))
    chunk, strip = places.values()
    group = ix.add(ix.scale(strip, tile.threads), at(tile.thread))
    column = ix.add(ix.scale(group, tile.near), at(tile.lane))
    shape = tuple([axis.extent for axis in axes])
    nest = substitute(nest, dict(zip(axes, ix.delinearise(column, shape), strict=True)))
    walk = _Columns(nest, tile, chunk, target.vector_bytes)
    body = walk.body()
    if strips * tile.threads != groups:
        body = (If(test("lt", number(group), groups), body),)
    loop = Loop(task, scaled(BEGIN, strips), scaled(END, strips), "task", body)
    block = Loop(tile.thread, 0, tile.threads, "threads", (loop,), tile.threads)
    nest = replace(nest, definitions={**nest.definitions, **walk.definitions})
    return kernel(nest, (block,), Geometry(tile.threads, strips * tile.threads))


def _tile(nest: Nest, width: int, target: Target) -> Tile:
    """Threads for a strip, rows that have enough under way, neighbours for one access of the widest element."""
    values = _values(nest)
    fetched = [load.dtype.itemsize for load in loads_in(values) if ix.depends(load.index, nest.points)]
    widest = max([*fetched, *[store.value.dtype.itemsize for store in nest.inner_stores]], default=4)
    near = next(n for n in (8, 4, 2, 1) if (n == 1 or n * widest <= target.vector_bytes) and width % n == 0)
    work = sum(isinstance(part, Op) for part in parts_of(values))
    by_row = any(ix.depends(index, nest.points) for value in nest.definitions.values() for index in indices_of(value))
    rows = 1
    while rows < MOST_ROWS and near * rows * sum(fetched) < IN_FLIGHT and 2 * near * rows * work <= MOST_OPERATIONS:
        rows *= 2
    groups = -(-width // (near * 32))
    fewest = -(-groups * 32 // BLOCK)
    strips = next((n for n in range(fewest, 2 * fewest) if groups % n == 0), fewest)
    return Tile(-(-groups // strips) * 32, 1 if near == 1 or by_row else rows, near)


def _values(nest: Nest) -> list[Expr]:
    return [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]


class _Columns:
    """A thread's way down its columns of a chunk, `tile.steps` rows at a time: what they read is all asked for before
    the first use. Rows that are left over, and all rows where buffers are not aligned, go one by one."""

    def __init__(self, nest: Nest, tile: Tile, chunk: ix.Index, nbytes: int):
        self.nest, self.tile, self.nbytes = nest, tile, nbytes
        self.first, self.last = points_of(chunk)
        self.begun = Axis("first", nest.points.extent, "value")
        self.definitions = {self.begun.name: Op("cast", (self.first,), number(at(self.begun)).dtype)}
        self.near = Near(replace(tile, steps=1), at(tile.lane), tile.near)
        self.sums = [Local(f"sum{k}", c.accumulator.dtype, tile.near, "thread") for k, c in enumerate(nest.columns)]
        self.ends = [
            Store(c.buffer, ix.add(ix.scale(chunk, c.width), c.index), self.near.kept(total))
            for total, c in zip(self.sums, nest.columns, strict=True)
        ]

    def body(self) -> tuple[Stmt, ...]:
        tile, nest = self.tile, self.nest
        pairs = zip(self.sums, nest.columns, strict=True)
        clear = [Store(s.name, self.near.slot, Literal(c.accumulator.identity, s.dtype)) for s, c in pairs]
        begun = (*self.sums, *tile.lanes(clear))
        at_once = UNROLLED if tile.near == 1 else 1
        one_by_one = Loop(nest.points, self.first, self.last, "serial", self.rows(nest, self.near, None), at_once)
        slow = (*begun, one_by_one, *tile.lanes(self.ends))
        if tile.near == 1:
            return slow
        values = _values(nest)
        buffers = [(load.buffer, load.dtype) for load in loads_in(values)]
        buffers += [(store.buffer, store.value.dtype) for store in (*nest.inner_stores, *self.ends)]
        widest = max([dtype.itemsize for _, dtype in buffers])
        inside = aligned(buffers, min(tile.near * widest, self.nbytes))
        return (If(inside, (*begun, *self.by_neighbours(), *self.stored()), slow),)

    def by_neighbours(self) -> list[Stmt]:
        """All rows of the chunk, `tile.steps` of them at a time; what they share is read before."""
        tile, nest, near = self.tile, self.nest, self.near
        shared: list[Stmt] = []
        known: dict[tuple, Expr] = {}
        for load in loads_in(_values(nest)):
            if load.mask is None and near.moves(load.index) and not ix.depends(load.index, nest.points):
                array = near.array(load.buffer, load.dtype)
                shared += [array, *pieces(near.fetch(array, load), self.nbytes)]
                known[load.buffer, load.index] = near.kept(array)
        if tile.steps == 1:
            return [*shared, Loop(nest.points, self.first, self.last, "serial", self.rows(nest, near, known))]
        turn, shift = Axis("turn", -(-nest.points.extent // tile.steps)), tile.steps.bit_length() - 1
        turns = whole("shr", whole("sub", self.last, self.first), shift)
        row = ix.add(ix.add(at(self.begun), ix.scale(at(turn), tile.steps)), at(tile.step))
        several = Near(tile, tile.slot, tile.each, set(near.names))
        left = whole("add", self.first, whole("mul", turns, tile.steps))
        return [
            *shared,
            Loop(turn, 0, turns, "serial", self.rows(substitute(nest, {nest.points: row}), several, known)),
            Loop(nest.points, left, self.last, "serial", self.rows(nest, near, known)),
        ]

    def stored(self) -> list[Stmt]:
        out: list[Stmt] = []
        for total, end in zip(self.sums, self.ends, strict=True):
            together = self.near.moves(end.index)
            out += pieces(self.near.put(total, end), self.nbytes) if together else self.tile.lanes([end])
        return out

    def rows(self, nest: Nest, near: Near, shared: dict[tuple, Expr] | None) -> tuple[Stmt, ...]:
        """What is done in the rows of `near`, by neighbours if there is something `shared`, if only an empty dict."""
        tile, values = near.tile, _values(nest)
        arrays: list[Stmt] = []
        fetches: list[Stmt] = []
        known = dict(shared or {})
        for load in loads_in(values) if shared is not None else ():
            if load.mask is None and near.moves(load.index) and (load.buffer, load.index) not in known:
                array = near.array(load.buffer, load.dtype)
                arrays.append(array)
                fetches.append(near.fetch(array, load))
                known[load.buffer, load.index] = near.kept(array)
        stores = nest.inner_stores
        along = [shared is not None and store.mask is None and near.moves(store.index) for store in stores]
        values = with_loads(values, known)
        moved = [near.leaving(value) if moves else value for value, moves in zip(values, along, strict=False)]
        lets, outs = named([*moved, *values[len(moved) :]])
        inner: list[Stmt] = list(lets)
        puts: list[Stmt] = []
        for store, out, moves in zip(stores, outs, along, strict=False):
            if moves:
                array = near.array(store.buffer, out.dtype)
                arrays.append(array)
                inner.append(Store(array.name, near.slot, out))
                puts.append(near.put(array, store))
            else:
                inner.append(replace(store, value=out))
        for total, column, out in zip(self.sums, nest.columns, outs[len(stores) :], strict=True):
            running = Op(COMBINE[column.accumulator.op], (self.near.kept(total), out), total.dtype)
            inner.append(Store(total.name, self.near.slot, running))
        each = tile.each_step((*tile.lanes(inner), *puts))
        return (*arrays, *tile.each_step(fetches), *each)


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
        body += _joined([acc for acc, _ in stage], arrays, at(lane), at(group), groups)
    if nest.point_stores:
        body.append(If(test("and", inside, test("eq", number(at(group)), 0)), together(nest.point_stores)))
    if nest.inner_stores:
        body += along(together(nest.inner_stores))
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
) -> list[Stmt]:
    """One result for each column, in all its threads, from those of the groups."""
    each = Axis("k", groups)
    stores: list[Stmt] = []
    updates: list[Stmt] = []
    for acc in accumulators:
        arrays.append(Local(f"{acc.name}_groups", acc.dtype, groups * STRIP))
        stores.append(Store(arrays[-1].name, ix.add(ix.scale(group, STRIP), lane), Var(f"{acc.name}_part", acc.dtype)))
        given = Load(arrays[-1].name, ix.add(ix.scale(at(each), STRIP), lane), acc.dtype)
        updates.append(Update(acc.name, given))
    return [*stores, Barrier(), Fold(tuple(accumulators), (Loop(each, 0, groups, "serial", tuple(updates)),))]
