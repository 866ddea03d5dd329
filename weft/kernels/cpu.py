"""The CPU schedule: points go to workers in chunks, the axis that lies side by side in memory goes to vector lanes.

Lane counts of folds depend on the folded extent alone, so that the order of additions does not change with what else a
kernel does.
"""

from __future__ import annotations

from weft.dtypes import bool_, int32, int64
from weft.kernels import index as ix
from weft.kernels.cascade import CHAIN, cascade, compensated, rounding_error
from weft.kernels.index import MANY, Axis, Index, Quotient
from weft.kernels.language import (
    LAUNCH_RANGES,
    TILE_RANGES,
    Expr,
    Fold,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.nest import COMBINE, Nest, named, together
from weft.kernels.rowcache import RowCache
from weft.kernels.substitute import indices_of, substitute

LANES = 32
MOST_NEAR = 64
TILE_COLUMNS = 8  # tiles of a matrix product begin at multiples of this many columns


def lanes(extent: int) -> int:
    """Vector width for a loop of `extent`: the next power of two, at most LANES."""
    width = 1
    while width < min(extent, LANES):
        width *= 2
    return width


def schedule(nest: Nest) -> Kernel:
    """A nest as a kernel for one worker and a range of points (or chunks of points)."""
    begin, end = Var("begin", int64), Var("end", int64)
    if nest.side == "scatter":
        body: tuple[Stmt, ...] = _scatter(nest, begin, end)
    elif nest.columns:
        body = (_chunk_loop(nest, begin, end),)
    elif nest.side == "points":
        body = (Loop(nest.points, begin, end, "vector", _at_point(nest), LANES, LANES),)
    else:
        nest, body = _by_points(nest, begin, end)
    return Kernel(nest.name, nest.buffers, nest.scalars, LAUNCH_RANGES, cascade(body), nest.definitions)


def _by_points(nest: Nest, begin: Expr, end: Expr) -> tuple[Nest, tuple[Stmt, ...]]:
    """Point after point; neighbours that pick the same rows go through an inner loop, outside of which those stand."""
    count = picked_together(nest)
    if count == 1:
        return nest, (Loop(nest.points, begin, end, "task", _at_point(nest)),)
    outer, inner = Axis(nest.points.name, nest.points.extent // count), Axis("near", count)
    at = ix.add(ix.scale(ix.axis_index(outer), count), ix.axis_index(inner))
    nest = substitute(nest, {nest.points: at})
    first, last = [Op("div", (bound, Literal(count, int64)), int64) for bound in (begin, end)]
    return nest, (Loop(outer, first, last, "task", (Loop(inner, 0, count, "serial", _at_point(nest)),)),)


def picked_together(nest: Nest) -> int:
    """How many neighbouring points, at most MOST_NEAR, pick the same rows by loaded indices; 1 where none is loaded."""
    if nest.side != "inner" or nest.columns:
        return 1
    counts: set[int] = set()
    for definition in nest.definitions.values():
        for index in indices_of(definition):
            for atom, _ in index.terms:
                if isinstance(atom, Quotient) and atom.value == Index(((nest.points, 1),), 0):
                    counts.add(atom.divisor)
                elif ix.depends(Index(((atom, 1),), 0), nest.points):
                    return 1
    count = counts.pop() if len(counts) == 1 else 1
    return count if count <= MOST_NEAR and nest.points.extent % count == 0 else 1


def schedule_tile(nest: Nest, batch: Axis, row: Axis, col: Axis) -> Kernel:
    """The epilogue of a matrix product as a kernel over one tile; `batch` is fixed inside it."""
    ranges = [Var(name, int64) for name in TILE_RANGES]
    across = Loop(col, ranges[3], ranges[4], "vector", together(nest.point_stores), LANES, TILE_COLUMNS)
    body = Loop(row, ranges[1], ranges[2], "serial", (across,))
    once = Loop(batch, ranges[0], Op("add", (ranges[0], Literal(1, int64)), int64), "serial", (body,))
    return Kernel(nest.name, nest.buffers, nest.scalars, TILE_RANGES, (once,), nest.definitions)


def _at_point(nest: Nest) -> tuple[Stmt, ...]:
    """What happens at one point: fold by stages, store, then walk the inner axes again for what needs the folds."""
    walks = [[value for _, value in stage] for stage in nest.stages]
    last = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
    cache = RowCache(_row(nest), [*walks, last])
    body: list[Stmt] = list(cache.locals)
    for number, (stage, values) in enumerate(zip(nest.stages, walks, strict=True)):
        before, values = cache.enter(number, values)
        accumulators = tuple([accumulator for accumulator, _ in stage])
        updates = [Update(accumulator.name, value) for accumulator, value in zip(accumulators, values, strict=True)]
        checks = nest.checks if number == 0 else ()
        body.append(Fold(accumulators, _inner_loops(nest, (*before, *updates, *checks))))
    body.extend(together(nest.point_stores))
    if last:
        before, values = cache.enter(len(walks), last)
        stores = [_revalued(store, value) for store, value in zip(nest.inner_stores, values, strict=False)]
        sums = values[len(stores) :]
        final = [*before, *together(stores, sums)]
        for column, value in zip(nest.columns, named(stores, sums), strict=True):
            at = ix.add(ix.scale(ix.axis_index(CHUNK), column.width), column.index)
            dtype = column.accumulator.dtype
            running = Op(COMBINE[column.accumulator.op], (Load(column.buffer, at, dtype), value), dtype)
            final.append(Store(column.buffer, at, running))
        body.extend(_inner_loops(nest, tuple(final)))
    if nest.lane is None:
        return tuple(body)
    return (Loop(nest.lane, 0, nest.lane.extent, "vector", tuple(body), lanes(nest.lane.extent)),)


def _row(nest: Nest) -> Axis | None:
    """The axis of a row whose values may be kept between loops: the only inner one, of known extent."""
    if nest.side != "inner" or len(nest.inner) != 1 or not isinstance(nest.inner[0].stop, int):
        return None
    return nest.inner[0].axis


def _revalued(store: Store, value: Expr) -> Store:
    return Store(store.buffer, store.index, value, store.mask)


def _inner_loops(nest: Nest, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    spans = list(nest.inner)
    if nest.side == "inner":
        last = spans.pop()
        body = (Loop(last.axis, last.start, last.stop, "vector", body, lanes(last.axis.extent)),)
    for span in reversed(spans):
        body = (Loop(span.axis, span.start, span.stop, "serial", body),)
    return body


def _scatter(nest: Nest, begin: Expr, end: Expr) -> tuple[Stmt, ...]:
    """Clear this worker's rows of the table, then walk all source rows in order and fold those that belong here."""
    (add, *others), (span,), col, (((fold, _),),) = nest.inner_stores, nest.inner, nest.lane, nest.stages
    assert col is not None
    dtype, width = add.value.dtype, lanes(col.extent)
    cleared = ix.add(ix.scale(Index(((nest.points, 1),), 0), col.extent), ix.axis_index(col))
    clear = Loop(col, 0, col.extent, "vector", (Store(add.buffer, cleared, Literal(fold.identity, dtype)),), width)
    total = Op(COMBINE[fold.op], (Load(add.buffer, add.index, dtype), add.value), dtype)
    across = Loop(col, 0, col.extent, "vector", (Store(add.buffer, add.index, total), *others), width)
    target = IndexValue(Index(((Axis("target", nest.points.extent, "value"), 1),), 0), int64)
    mine = Op("and", (Op("le", (begin, target), bool_), Op("lt", (target, end), bool_)), bool_)
    if not nest.scratch:
        walk = Loop(span.axis, span.start, span.stop, "serial", (If(mine, (across,)), *nest.checks))
        return Loop(nest.points, begin, end, "task", (clear,)), walk
    parts = _Parts(nest, add, cleared)
    walk = Loop(span.axis, span.start, span.stop, "serial", (If(mine, (across, *parts.counted())), *nest.checks))
    finish = Loop(nest.points, begin, end, "serial", parts.finished())
    return Loop(nest.points, begin, end, "task", (clear, parts.cleared())), walk, finish


class _Parts:
    """What a scattered sum of many rows does beside its additions: each row of the table is counted, and the sum of
    every CHAIN rows in it goes to a compensated sum, `sums` and `errors`, from which it is completed at the end."""

    def __init__(self, nest: Nest, add: Store, place: Index):
        assert nest.lane is not None
        self.col, self.table, self.dtype = nest.lane, add.buffer, add.value.dtype
        self.counts, self.sums, self.errors = nest.scratch
        self.at, self.place = add.index, place  # of a source row's target; of a row of the table
        self.target = Index(((Axis("target", nest.points.extent, "value"), 1),), 0)
        self.row = Index(((nest.points, 1),), 0)

    def across(self, *body: Stmt) -> Loop:
        return Loop(self.col, 0, self.col.extent, "vector", body, lanes(self.col.extent))

    def load(self, buffer: str, index: Index) -> Load:
        return Load(buffer, index, self.dtype)

    def cleared(self) -> Store:
        return Store(self.counts, self.row, Literal(0, int32))

    def counted(self) -> tuple[Stmt, ...]:
        """A row more; the first part begins the sum, and others are added to it."""
        count, at, table = Var("met_rows", int32), self.at, self.load(self.table, self.at)
        before = self.load(self.sums, at)
        total = Op("add", (before, table), self.dtype)
        lost = Op("add", (self.load(self.errors, at), rounding_error(before, table, total)), self.dtype)
        zero, whole = Literal(0, self.dtype), Op("and", (count, Literal(CHAIN - 1, int32)), int32)
        empty = Store(self.table, at, zero)
        begun = self.across(Store(self.sums, at, table), Store(self.errors, at, zero), empty)
        lets = (Let("part_sum", total), Let("part_error", lost))
        kept = (
            Store(self.sums, at, Var("part_sum", self.dtype)),
            Store(self.errors, at, Var("part_error", self.dtype)),
        )
        added = self.across(*lets, *kept, empty)
        later = Op("lt", (Literal(CHAIN, int32), count), bool_)
        first = Op("eq", (count, Literal(CHAIN, int32)), bool_)
        more = Op("add", (Load(self.counts, self.target, int32), Literal(1, int32)), int32)
        full = Op("eq", (whole, Literal(0, int32)), bool_)
        return (
            Let("met_rows", more),
            Store(self.counts, self.target, count),
            If(full, (If(first, (begun,)), If(later, (added,)))),
        )

    def finished(self) -> tuple[Stmt, ...]:
        """Rows of the table in which parts met get their sum."""
        place = self.place
        total = compensated(self.load(self.sums, place), self.load(self.errors, place))
        whole = Op("add", (total, self.load(self.table, place)), self.dtype)
        met = Op("le", (Literal(CHAIN, int32), Load(self.counts, self.row, int32)), bool_)
        return (If(met, (self.across(Store(self.table, place, whole)),)),)


CHUNK = Axis("chunk", MANY)


def _chunk_loop(nest: Nest, begin: Expr, end: Expr) -> Loop:
    """Column sums: each chunk of points clears its partial sums, then adds point after point."""
    clear: list[Stmt] = []
    for column in nest.columns:
        at = ix.add(ix.scale(ix.axis_index(CHUNK), column.width), column.index)
        clear.append(Store(column.buffer, at, Literal(column.accumulator.identity, column.accumulator.dtype)))
    chunk = IndexValue(ix.axis_index(CHUNK), int64)
    per = Var("per_chunk", int64)
    first = Op("mul", (chunk, per), int64)
    last = Op("min", (Op("add", (first, per), int64), Var("points", int64)), int64)
    walk = Loop(nest.points, first, last, "serial", _at_point(nest))
    return Loop(CHUNK, begin, end, "task", (*_inner_loops(nest, tuple(clear)), walk))
