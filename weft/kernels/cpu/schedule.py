"""The CPU schedule: points go to workers in chunks, the axis that is contiguous in memory goes to vector lanes.

Lane counts of reductions depend on the reduced extent alone, so that the order of additions does not change with what
else a kernel does.
"""

from __future__ import annotations

from weft.base.dtypes import int32, int64
from weft.base.tuning import Tuning
from weft.kernels.cpu.row_cache import RowCache
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index, Quotient
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    TILE_RANGES,
    Expr,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.nest import COMBINE, Nest, store_after_evaluation, value_names
from weft.kernels.ir.rewrite import indices_of, substitute
from weft.kernels.math.summation import add_compensation, cascade, rounding_error
from weft.kernels.numerics import CHAIN, LANES

TILE_COLUMNS = 8  # tiles of a matrix product begin at multiples of this many columns


def lanes(extent: int) -> int:
    """Vector width for a loop of `extent`: the next power of two, at most LANES."""
    width = 1
    while width < min(extent, LANES):
        width *= 2
    return width


def schedule(nest: Nest, tuning: Tuning = Tuning()) -> Kernel:  # noqa: B008
    """A nest as a kernel for one worker and a range of points (or chunks of points)."""
    begin, end = Var("begin", int64), Var("end", int64)
    if nest.vector_axis == "scatter":
        body: tuple[Stmt, ...] = _scatter(nest, begin, end)
    elif nest.columns:
        body = (_chunk_loop(nest, begin, end, tuning),)
    elif nest.vector_axis == "points":
        body = (Loop(nest.points, begin, end, "vector", _at_point(nest, tuning), LANES, LANES),)
    else:
        nest, body = _by_points(nest, begin, end, tuning)
    return Kernel(nest.name, nest.buffers, nest.scalars, LAUNCH_RANGES, cascade(body), nest.definitions)


def _by_points(nest: Nest, begin: Expr, end: Expr, tuning: Tuning) -> tuple[Nest, tuple[Stmt, ...]]:
    """Point after point; adjacent points that gather the same rows are an inner loop, with the gathers outside."""
    count = points_per_gather(nest, tuning)
    if count == 1:
        return nest, (Loop(nest.points, begin, end, "task", _at_point(nest, tuning)),)
    outer, inner = Axis(nest.points.name, nest.points.extent // count), Axis("near", count)
    at = outer * count + inner
    nest = substitute(nest, {nest.points: at})
    first, last = [bound // count for bound in (begin, end)]
    return nest, (Loop(outer, first, last, "task", (Loop(inner, 0, count, "serial", _at_point(nest, tuning)),)),)


def points_per_gather(nest: Nest, tuning: Tuning) -> int:
    """How many adjacent points gather the same rows by loaded indices; 1 where none is loaded, or many do."""
    if nest.vector_axis != "inner" or nest.columns:
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
    return count if count <= tuning.max_gather_points and nest.points.extent % count == 0 else 1


def schedule_tile(nest: Nest, batch: Axis, row: Axis, col: Axis) -> Kernel:
    """The epilogue of a matrix product as a kernel over one tile; `batch` is fixed inside it."""
    ranges = [Var(name, int64) for name in TILE_RANGES]
    across = Loop(col, ranges[3], ranges[4], "vector", store_after_evaluation(nest.point_stores), LANES, TILE_COLUMNS)
    body = Loop(row, ranges[1], ranges[2], "serial", (across,))
    once = Loop(batch, ranges[0], ranges[0] + 1, "serial", (body,))
    return Kernel(nest.name, nest.buffers, nest.scalars, TILE_RANGES, (once,), nest.definitions)


def _at_point(nest: Nest, tuning: Tuning) -> tuple[Stmt, ...]:
    """What happens at one point: reduce in stages, store, then iterate over the inner axes again for what needs the
    results."""
    loops = [[value for _, value in stage] for stage in nest.stages]
    last = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
    cache = RowCache(_row(nest), [*loops, last], tuning)
    body: list[Stmt] = list(cache.locals)
    for number, (stage, values) in enumerate(zip(nest.stages, loops, strict=True)):
        before, values = cache.enter(number, values)
        accumulators = tuple([accumulator for accumulator, _ in stage])
        updates = [Update(accumulator.name, value) for accumulator, value in zip(accumulators, values, strict=True)]
        checks = nest.checks if number == 0 else ()
        body.append(Reduction(accumulators, _inner_loops(nest, (*before, *updates, *checks))))
    body.extend(store_after_evaluation(nest.point_stores))
    if last:
        before, values = cache.enter(len(loops), last)
        stores = [_with_value(store, value) for store, value in zip(nest.inner_stores, values, strict=False)]
        sums = values[len(stores) :]
        final = [*before, *store_after_evaluation(stores, sums)]
        for column, value in zip(nest.columns, value_names(stores, sums), strict=True):
            at = CHUNK * column.width + column.index
            dtype = column.accumulator.dtype
            running = Op(COMBINE[column.accumulator.op], (Load(column.buffer, at, dtype), value), dtype)
            final.append(Store(column.buffer, at, running))
        body.extend(_inner_loops(nest, tuple(final)))
    if nest.lane is None:
        return tuple(body)
    return (Loop(nest.lane, 0, nest.lane.extent, "vector", tuple(body), lanes(nest.lane.extent)),)


def _row(nest: Nest) -> Axis | None:
    """The axis of a row whose values may be kept between loops: the only inner one, of known extent."""
    if nest.vector_axis != "inner" or len(nest.inner) != 1 or not isinstance(nest.inner[0].stop, int):
        return None
    return nest.inner[0].axis


def _with_value(store: Store, value: Expr) -> Store:
    return Store(store.buffer, store.index, value, store.mask)


def _inner_loops(nest: Nest, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    spans = list(nest.inner)
    if nest.vector_axis == "inner":
        last = spans.pop()
        body = (Loop(last.axis, last.start, last.stop, "vector", body, lanes(last.axis.extent)),)
    for span in reversed(spans):
        body = (Loop(span.axis, span.start, span.stop, "serial", body),)
    return body


def _scatter(nest: Nest, begin: Expr, end: Expr) -> tuple[Stmt, ...]:
    """Clear this worker's rows of the table, then iterate over all source rows in order and reduce those that belong
    here."""
    (add, *others), (span,), col, (((accumulator, _),),) = nest.inner_stores, nest.inner, nest.lane, nest.stages
    assert col is not None
    dtype, width = add.value.dtype, lanes(col.extent)
    cleared = Index(((nest.points, 1),), 0) * col.extent + col
    clear = Loop(
        col, 0, col.extent, "vector", (Store(add.buffer, cleared, Literal(accumulator.identity, dtype)),), width
    )
    total = Op(COMBINE[accumulator.op], (Load(add.buffer, add.index, dtype), add.value), dtype)
    across = Loop(col, 0, col.extent, "vector", (Store(add.buffer, add.index, total), *others), width)
    target = IndexValue(Index(((Axis("target", nest.points.extent, "value"), 1),), 0), int64)
    mine = (begin <= target) & (target < end)
    if not nest.scratch:
        source_rows = Loop(span.axis, span.start, span.stop, "serial", (If(mine, (across,)), *nest.checks))
        return Loop(nest.points, begin, end, "task", (clear,)), source_rows
    parts = _CompensatedRows(nest, add, cleared)
    source_rows = Loop(
        span.axis, span.start, span.stop, "serial", (If(mine, (across, *parts.count_row())), *nest.checks)
    )
    finish = Loop(nest.points, begin, end, "serial", parts.finish_row())
    return Loop(nest.points, begin, end, "task", (clear, parts.clear_count())), source_rows, finish


class _CompensatedRows:
    """The compensation of a scattered sum of many rows: each row of the table counts what was added to it, and after
    every CHAIN additions its sum goes to a compensated sum, `sums` and `errors`, from which it is completed at the
    end."""

    def __init__(self, nest: Nest, add: Store, position: Index):
        assert nest.lane is not None
        self.col, self.table, self.dtype = nest.lane, add.buffer, add.value.dtype
        self.counts, self.sums, self.errors = nest.scratch
        self.at, self.position = add.index, position  # of a source row's target; of a row of the table
        self.target = Index(((Axis("target", nest.points.extent, "value"), 1),), 0)
        self.row = Index(((nest.points, 1),), 0)

    def loop_columns(self, *body: Stmt) -> Loop:
        return Loop(self.col, 0, self.col.extent, "vector", body, lanes(self.col.extent))

    def load(self, buffer: str, index: Index) -> Load:
        return Load(buffer, index, self.dtype)

    def clear_count(self) -> Store:
        return Store(self.counts, self.row, Literal(0, int32))

    def count_row(self) -> tuple[Stmt, ...]:
        """One row more; the first part initializes the compensated sum, and later parts are added to it."""
        count, at, table = Var("met_rows", int32), self.at, self.load(self.table, self.at)
        before = self.load(self.sums, at)
        total = before + table
        lost = self.load(self.errors, at) + rounding_error(before, table, total)
        zero, whole = Literal(0, self.dtype), count & (CHAIN - 1)
        empty = Store(self.table, at, zero)
        initialize = self.loop_columns(Store(self.sums, at, table), Store(self.errors, at, zero), empty)
        lets = (Let("part_sum", total), Let("part_error", lost))
        stores = (
            Store(self.sums, at, Var("part_sum", self.dtype)),
            Store(self.errors, at, Var("part_error", self.dtype)),
        )
        accumulate = self.loop_columns(*lets, *stores, empty)
        later = CHAIN < count
        first = count.eq(CHAIN)
        more = Load(self.counts, self.target, int32) + 1
        full = whole.eq(0)
        return (
            Let("met_rows", more),
            Store(self.counts, self.target, count),
            If(full, (If(first, (initialize,)), If(later, (accumulate,)))),
        )

    def finish_row(self) -> tuple[Stmt, ...]:
        """Rows of the table with a compensated sum get it."""
        position = self.position
        total = add_compensation(self.load(self.sums, position), self.load(self.errors, position))
        whole = total + self.load(self.table, position)
        met = CHAIN <= Load(self.counts, self.row, int32)
        return (If(met, (self.loop_columns(Store(self.table, position, whole)),)),)


CHUNK = Axis("chunk", MAX_EXTENT)


def _chunk_loop(nest: Nest, begin: Expr, end: Expr, tuning: Tuning) -> Loop:
    """Column sums: each chunk of points clears its partial sums, then adds point after point."""
    clear: list[Stmt] = []
    for column in nest.columns:
        at = CHUNK * column.width + column.index
        clear.append(Store(column.buffer, at, Literal(column.accumulator.identity, column.accumulator.dtype)))
    chunk = IndexValue(ix.axis_index(CHUNK), int64)
    per = Var("per_chunk", int64)
    first = chunk * per
    last = (first + per).min(Var("points", int64))
    points = Loop(nest.points, first, last, "serial", _at_point(nest, tuning))
    return Loop(CHUNK, begin, end, "task", (*_inner_loops(nest, tuple(clear)), points))
