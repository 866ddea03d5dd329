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
from weft.kernels.gpu_rows import points_of
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
from weft.kernels.substitute import substitute

BLOCK = 256
STRIP = 32  # columns of a block
FEW_ROWS = 32  # rows that one thread folds as well
MANY_ROWS = 256  # rows from which a block has all the threads that it may
MANY = 1 << 16  # columns that keep a GPU busy with one thread each
UNROLLED = 4  # rows under way at once


# --- sums over chunks of rows ----------------------------------------------------------------------------------------


def column_sums(nest: Nest, target: Target) -> Kernel:
    """Column sums alone, with what is stored at each element on the way."""
    axes = tuple([span.axis for span in nest.inner])
    width = math.prod([axis.extent for axis in axes])
    near = next(count for count in (4, 2, 1) if width % count == 0)
    tile = Tile(1, 1, near)
    chunk = Axis("chunk", nest.points.extent)
    flat, places = joined("i", (chunk, Axis("group", width // near)))
    which, group = places.values()
    column = ix.add(ix.scale(group, near), at(tile.lane))
    shape = tuple([axis.extent for axis in axes])
    nest = substitute(nest, dict(zip(axes, ix.delinearise(column, shape), strict=True)))
    sums = [Local(f"sum{k}", column.accumulator.dtype, near, "thread") for k, column in enumerate(nest.columns)]
    fast, slow = _walk(nest, tile, which, sums, True), _walk(nest, tile, which, sums, False)
    body: tuple[Stmt, ...] = slow
    if near > 1:
        values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        buffers = [(load.buffer, load.dtype) for load in loads_in(values)]
        buffers += [(store.buffer, store.value.dtype) for store in nest.inner_stores]
        buffers += [(column.buffer, column.accumulator.dtype) for column in nest.columns]
        most = max([dtype.itemsize for _, dtype in buffers])
        body = (If(aligned(buffers, near * most), fast, slow),)
    items = width // near
    loop = Loop(flat, scaled(BEGIN, items), scaled(END, items), "grid", body, BLOCK)
    return kernel(nest, (loop,), Geometry(BLOCK, items))


def _walk(nest: Nest, tile: Tile, chunk: ix.Index, sums: Sequence[Local], by_neighbours: bool) -> tuple[Stmt, ...]:
    """A thread's way down its columns of a chunk."""
    near = Near(tile, at(tile.lane), tile.near)
    values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
    arrays: list[Stmt] = []
    fetches: list[Stmt] = []
    known: dict[tuple, Expr] = {}
    for load in loads_in(values) if by_neighbours else ():
        if load.mask is None and near.moves(load.index):
            array = near.array(load.buffer, load.dtype)
            arrays.append(array)
            fetches.append(near.fetch(array, load))
            known[load.buffer, load.index] = near.kept(array)
    along = [by_neighbours and store.mask is None and near.moves(store.index) for store in nest.inner_stores]
    values = with_loads(values, known)
    moved = [near.leaving(value) if moves else value for value, moves in zip(values, along, strict=False)]
    lets, outs = named([*moved, *values[len(moved) :]])
    inner: list[Stmt] = list(lets)
    puts: list[Stmt] = []
    for store, out, moves in zip(nest.inner_stores, outs, along, strict=False):
        if moves:
            array = near.array(store.buffer, out.dtype)
            arrays.append(array)
            inner.append(Store(array.name, near.slot, out))
            puts.append(near.put(array, store))
        else:
            inner.append(replace(store, value=out))
    clear: list[Stmt] = []
    ends: list[Stmt] = []
    for k, (total, column) in enumerate(zip(sums, nest.columns, strict=True), len(nest.inner_stores)):
        acc = column.accumulator
        running = Op(COMBINE[acc.op], (near.kept(total), Var(f"out{k}", acc.dtype)), acc.dtype)
        inner.append(Store(total.name, near.slot, running))
        clear.append(Store(total.name, near.slot, Literal(acc.identity, acc.dtype)))
        end = Store(column.buffer, ix.add(ix.scale(chunk, column.width), column.index), near.kept(total))
        ends += [near.put(total, end)] if by_neighbours and near.moves(end.index) else tile.lanes([end])
    rows = Loop(nest.points, *points_of(chunk), "serial", (*arrays, *fetches, *tile.lanes(inner), *puts), UNROLLED)
    return (*sums, *tile.lanes(clear), rows, *ends)


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
    most = BLOCK if span.axis.extent < MANY_ROWS else max(BLOCK, min(target.threads, 1024))
    groups = most // STRIP
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
