"""The GPU schedule: points go to threads, rows that are folded go to blocks, and every order of addition is fixed.

Three placements cover all nests. *Thread per point*: one thread computes a point (or a point and its lane) alone, in a
grid-stride loop. *Block per row*: the threads of a block stride along a row, keep partial results, and join them in two
steps through memory that they share. *Thread per column*: a thread adds up its column of a chunk of points.

Which thread adds what, and in which order partial results are joined, follows from extents alone; the number of blocks
changes nothing. There are no floating-point atomics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.dtypes import bool_, int64
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Accumulator,
    Barrier,
    Expr,
    Fold,
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
    Update,
    Var,
)
from weft.kernels.nest import COMBINE, Nest, Span, together
from weft.kernels.substitute import substitute

BLOCK = 256
SHORT = 32  # a row of at most this many elements is one thread's work

BEGIN, END = Var("begin", int64), Var("end", int64)


def schedule(nest: Nest, block: int = BLOCK) -> Kernel:
    """A nest as a kernel for blocks of at most `block` threads (a power of two) and a range of points or chunks."""
    if nest.side == "scatter":
        return _scatter(nest, block)
    nest = replace(nest, inner_stores=(*nest.inner_stores, *nest.checks), checks=())
    if nest.columns:
        return _rows_of_chunks(nest, block) if nest.stages or nest.point_stores else _thread_per_column(nest, block)
    if nest.side == "inner" and math.prod([span.axis.extent for span in nest.inner]) > SHORT:
        return _block_per_row(nest, block)
    return _thread_per_point(nest, block)


def schedule_tile(nest: Nest, batch: Axis, row: Axis, col: Axis, block: int = BLOCK) -> Kernel:
    """The epilogue of a matrix product as a kernel over all its elements, which the launch range counts."""
    flat, values = _joined("i", (batch, row, col))
    nest = substitute(nest, values)
    loop = Loop(flat, BEGIN, END, "grid", together(nest.point_stores), block)
    return _kernel(nest, (loop,), Geometry(block, 1))


# --- thread per point ------------------------------------------------------------------------------------------------


def _thread_per_point(nest: Nest, block: int) -> Kernel:
    """Neighbouring threads take neighbouring points; a lane axis makes one point many."""
    points, items = nest.points, 1
    if nest.lane is not None:
        items = nest.lane.extent
        points, values = _joined("i", (nest.points, nest.lane))
        nest = substitute(nest, values)
    body: list[Stmt] = []
    for stage in nest.stages:
        updates = tuple([Update(accumulator.name, value) for accumulator, value in stage])
        body.append(Fold(tuple([accumulator for accumulator, _ in stage]), _serial(nest.inner, updates)))
    body.extend(together(nest.point_stores))
    if nest.inner_stores:
        body.extend(_serial(nest.inner, together(nest.inner_stores)))
    loop = Loop(points, _times(BEGIN, items), _times(END, items), "grid", tuple(body), block)
    return _kernel(nest, (loop,), Geometry(block, items))


# --- block per row ---------------------------------------------------------------------------------------------------


def _block_per_row(nest: Nest, block: int) -> Kernel:
    nest, rows = _rows(nest, block)
    loop = Loop(nest.points, BEGIN, END, "task", rows.at_point(nest, together(nest.inner_stores)))
    return _kernel(nest, (*rows.locals(nest), loop), Geometry(rows.width, rows.width))


def _rows_of_chunks(nest: Nest, block: int) -> Kernel:
    """Row folds and column sums at once: a block takes a chunk of points, row after row.

    A thread meets the same columns in every row, so it alone reads and writes their running sums.
    """
    nest, rows = _rows(nest, block)
    chunk = _chunks(nest)
    clear: list[Stmt] = []
    final: list[Stmt] = list(together(nest.inner_stores))
    for column in nest.columns:
        at = ix.add(ix.scale(ix.axis_index(chunk), column.width), column.index)
        accumulator = column.accumulator
        clear.append(Store(column.buffer, at, Literal(accumulator.identity, accumulator.dtype)))
        running = Load(column.buffer, at, accumulator.dtype)
        final.append(Store(column.buffer, at, Op(COMBINE[accumulator.op], (running, column.value), accumulator.dtype)))
    walk = Loop(nest.points, *_points_of(_at(chunk)), "serial", rows.at_point(nest, tuple(final)))
    loop = Loop(chunk, BEGIN, END, "task", (*rows.along(tuple(clear)), walk))
    return _kernel(nest, (*rows.locals(nest), loop), Geometry(rows.width, rows.width))


def _rows(nest: Nest, block: int) -> tuple[Nest, _Rows]:
    """The nest with the axes that threads share joined into one: all from the last span that is not walked whole."""
    cut = max(
        [k for k, span in enumerate(nest.inner) if not (span.start == 0 and span.stop == span.axis.extent)], default=0
    )
    outer, shared = nest.inner[:cut], nest.inner[cut:]
    if len(shared) > 1:
        axis, values = _joined("r", tuple([span.axis for span in shared]))
        nest = substitute(nest, values)
        rest = axis.extent // shared[0].axis.extent
        across = Span(axis, _times(shared[0].start, rest), _times(shared[0].stop, rest))
    else:
        (across,) = shared
    width = min(max(1 << max(across.axis.extent - 1, 0).bit_length(), 32), block)
    return nest, _Rows(outer, across, width)


@dataclass(frozen=True, slots=True)
class _Rows:
    """How a block of `width` threads walks a row: serially over `outer`, side by side `across`."""

    outer: tuple[Span, ...]
    across: Span
    width: int

    def along(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        span = self.across
        return _serial(self.outer, (Loop(span.axis, span.start, span.stop, "threads", body, self.width),))

    def at_point(self, nest: Nest, final: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """What a block does at one point: fold stage by stage, store, walk the row again for what needs the folds."""
        body: list[Stmt] = []
        for stage in nest.stages:
            body.extend(self.fold(stage))
        if nest.point_stores:
            body.append(self.threads(1, together(nest.point_stores)))
        return (*body, *self.along(final)) if final else tuple(body)

    def fold(self, stage: Sequence[tuple[Accumulator, Expr]]) -> tuple[Stmt, ...]:
        """Partial results of all threads, then of `groups` threads, then one, in every thread.

        Each of the two arrays is written again only behind a barrier that all its readers have reached.
        """
        groups, each = self.groups, Axis("k", self.width // self.groups)
        among = Axis("k", groups)
        parts = tuple([Accumulator(f"{acc.name}_part", acc.op, acc.dtype) for acc, _ in stage])
        updates = tuple([Update(part.name, value) for part, (_, value) in zip(parts, stage, strict=True)])
        shared = tuple([Store(_all(acc), _at(self.thread), Var(f"{acc.name}_part", acc.dtype)) for acc, _ in stage])
        halfway: list[Stmt] = []
        joined = tuple([Accumulator(f"{acc.name}_group", acc.op, acc.dtype) for acc, _ in stage])
        place = ix.add(ix.scale(_at(each), groups), _at(self.thread))
        steps = tuple([Update(f"{acc.name}_group", Load(_all(acc), place, acc.dtype)) for acc, _ in stage])
        halfway.append(Fold(joined, (Loop(each, 0, each.extent, "serial", steps),)))
        halfway.extend([Store(_few(acc), _at(self.thread), Var(f"{acc.name}_group", acc.dtype)) for acc, _ in stage])
        last = tuple([Update(acc.name, Load(_few(acc), _at(among), acc.dtype)) for acc, _ in stage])
        return (
            Fold(parts, self.along(updates)),
            self.threads(self.width, shared),
            Barrier(),
            self.threads(groups, tuple(halfway)),
            Barrier(),
            Fold(tuple([acc for acc, _ in stage]), (Loop(among, 0, groups, "serial", last),)),
        )

    @property
    def groups(self) -> int:
        return 1 << (self.width.bit_length() // 2)

    @property
    def thread(self) -> Axis:
        return Axis("thread", self.width)

    def threads(self, count: int, body: tuple[Stmt, ...]) -> Loop:
        """The first `count` threads, once each."""
        return Loop(self.thread, 0, count, "threads", body, self.width)

    def locals(self, nest: Nest) -> list[Local]:
        """The arrays in which partial results meet, two for every accumulator."""
        every = [accumulator for stage in nest.stages for accumulator, _ in stage]
        sizes = ((_all, self.width), (_few, self.groups))
        return [Local(name(acc), acc.dtype, size) for acc in every for name, size in sizes]


def _all(accumulator: Accumulator) -> str:
    """The array with one partial result of each thread."""
    return f"{accumulator.name}_all"


def _few(accumulator: Accumulator) -> str:
    """The array with one partial result of each group."""
    return f"{accumulator.name}_few"


# --- thread per column, scatter --------------------------------------------------------------------------------------


def _thread_per_column(nest: Nest, block: int) -> Kernel:
    """Column sums alone: a thread takes one column of one chunk and adds its points in order."""
    chunk = _chunks(nest)
    axes = tuple([span.axis for span in nest.inner])
    items = math.prod([axis.extent for axis in axes])
    flat, values = _joined("i", (chunk, *axes))
    which = values[chunk]
    nest = substitute(nest, values)
    sums = tuple([Accumulator(f"sum{k}", c.accumulator.op, c.accumulator.dtype) for k, c in enumerate(nest.columns)])
    updates = [Update(total.name, column.value) for total, column in zip(sums, nest.columns, strict=True)]
    walk = Loop(nest.points, *_points_of(which), "serial", (*updates, *together(nest.inner_stores)))
    body: list[Stmt] = [Fold(sums, (walk,))]
    for total, column in zip(sums, nest.columns, strict=True):
        at = ix.add(ix.scale(which, column.width), column.index)
        body.append(Store(column.buffer, at, Var(total.name, total.dtype)))
    loop = Loop(flat, _times(BEGIN, items), _times(END, items), "grid", tuple(body), block)
    return _kernel(nest, (loop,), Geometry(block, items))


def _scatter(nest: Nest, block: int) -> Kernel:
    """A thread owns one element of the table and folds what belongs there, walking all source rows in order."""
    add, (span,), col = nest.inner_stores[0], nest.inner, nest.lane
    assert col is not None
    flat, values = _joined("i", (nest.points, col))
    nest = substitute(nest, values)
    moved, *others = nest.inner_stores
    target = IndexValue(Index(((Axis("target", nest.points.extent, "value"), 1),), 0), int64)
    mine = Op("eq", (target, IndexValue(values[nest.points], int64)), bool_)
    (((kind, _),),) = nest.stages
    total = Accumulator("total", kind.op, moved.value.dtype)
    update = If(mine, (Update(total.name, moved.value), *others))
    fold = Fold((total,), (Loop(span.axis, span.start, span.stop, "serial", (update, *nest.checks)),))
    store = Store(add.buffer, _at(flat), Var(total.name, total.dtype))
    loop = Loop(flat, _times(BEGIN, col.extent), _times(END, col.extent), "grid", (fold, store), block)
    return _kernel(nest, (loop,), Geometry(block, col.extent))


# --- small words -----------------------------------------------------------------------------------------------------


def _kernel(nest: Nest, body: tuple[Stmt, ...], geometry: Geometry) -> Kernel:
    return Kernel(nest.name, nest.buffers, nest.scalars, LAUNCH_RANGES, body, nest.definitions, geometry)


def _joined(name: str, axes: tuple[Axis, ...]) -> tuple[Axis, dict[Axis, Index]]:
    """One axis that runs through `axes` in row-major order, and each of them as an index of it."""
    shape = tuple([axis.extent for axis in axes])
    flat = Axis(name, math.prod(shape), axes[-1].kind)
    if not flat.extent:
        return flat, dict.fromkeys(axes, ix.ZERO)
    return flat, dict(zip(axes, ix.delinearise(_at(flat), shape), strict=True))


def _serial(spans: Sequence[Span], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for span in reversed(spans):
        body = (Loop(span.axis, span.start, span.stop, "serial", body),)
    return body


def _at(axis: Axis) -> Index:
    return ix.axis_index(axis)


def _times(bound: Expr | int, factor: int) -> Expr | int:
    if isinstance(bound, int):
        return bound * factor
    return bound if factor == 1 else Op("mul", (bound, Literal(factor, int64)), int64)


def _chunks(nest: Nest) -> Axis:
    """The axis that counts chunks of points."""
    return Axis("chunk", nest.points.extent)


def _points_of(chunk: Index) -> tuple[Expr, Expr]:
    """Where the points of a chunk begin and end."""
    per = Var("per_chunk", int64)
    first = Op("mul", (IndexValue(chunk, int64), per), int64)
    return first, Op("min", (Op("add", (first, per), int64), Var("points", int64)), int64)
