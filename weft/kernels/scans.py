"""Running reductions on the CPU, each row, or each column, in order; and values put into rows at given places.

A long sum of floats is one of parts of `CHAIN` elements, each from 0 on; what stands before a part is a compensated sum
that is added to each of its own (`cascade` says why).
"""

from __future__ import annotations

import math

from weft.dtypes import DType, bool_, int64
from weft.kernels import index as ix
from weft.kernels import math as kernel_math
from weft.kernels.cascade import CHAIN, compensated, rounding_error
from weft.kernels.cpu import LANES, lanes
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import Accumulator, Expr, IndexValue, Let, Literal, Load, Local, Loop, Op, Stmt, Store, Var
from weft.kernels.nest import COMBINE

BLOCK = 256  # elements of a row that are computed in lanes before they are added up one by one
STRIP = 2048  # columns of a task, where sums down columns are long: narrower ones would read memory in short pieces
BEGIN, END = Var("begin", int64), Var("end", int64)
EXTENT = Var("extent", int64)  # of the scanned axis


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """Two results joined. 'logaddexp' is log(exp(a) + exp(b)), shifted by the larger."""
    dtype = a.dtype
    if op in COMBINE:
        return Op(COMBINE[op], (a, b), dtype)
    high, low = Op("max", (a, b), dtype), Op("min", (a, b), dtype)
    less = kernel_math.build("exp", (Op("sub", (low, high), dtype),), dtype)
    total = Op("add", (high, kernel_math.build("log1p", (less,), dtype)), dtype)
    finite = Op("lt", (Op("abs", (high,), dtype), Literal(math.inf, dtype)), bool_)
    return Op("select", (finite, total, high), dtype)


def walk_in_order(
    step: Axis, first: Expr | int, stop: Expr, accumulator: Accumulator, value: Expr, out: Store,
    checks: tuple[Stmt, ...] = (), extent: int = MANY,
) -> tuple[Stmt, ...]:  # fmt: skip
    """Combine the values at `step` from `first` on into the running result, and store it after each of them."""
    dtype, before = accumulator.dtype, Load("running", ix.ZERO, accumulator.dtype)
    total, result = Let("total", combine(accumulator.op, before, value)), Var("total", dtype)
    if not is_carried(accumulator, extent):
        kept = (Store("running", ix.ZERO, result), Store(out.buffer, out.index, result))
        return (Loop(step, first, stop, "serial", (*checks, total, *kept)),)
    part = Axis("part", max(-(-step.extent // CHAIN), 2))
    begin = _whole("add", _whole("mul", IndexValue(ix.axis_index(part), int64), CHAIN), first)
    end = _whole("min", _whole("add", begin, CHAIN), stop)
    parts = _whole("div", _whole("add", _whole("sub", stop, first), CHAIN - 1), CHAIN)
    known = Let("known", compensated(Load("carry", ix.ZERO, dtype), Load("carry_error", ix.ZERO, dtype)))
    shown = Store(out.buffer, out.index, Op("add", (Var("known", dtype), result), dtype))
    inner = Loop(step, begin, end, "serial", (*checks, total, Store("running", ix.ZERO, result), shown))
    clear = Store("running", ix.ZERO, Literal(0, dtype))
    return (Loop(part, 0, parts, "serial", (known, clear, inner, *carried(before, ix.ZERO))),)


def is_carried(accumulator: Accumulator, extent: int) -> bool:
    """Whether a running sum may be so long that it is one of parts: each begins with 0, and what stands before it is
    a compensated sum."""
    return accumulator.op == "sum" and accumulator.dtype.kind == "f" and extent > CHAIN


def carried(total: Expr, at: Index) -> tuple[Stmt, ...]:
    """The sum of a part goes to what stands before the next one."""
    dtype = total.dtype
    before, lost = Load("carry", at, dtype), Load("carry_error", at, dtype)
    after = Op("add", (before, total), dtype)
    error = Op("add", (lost, rounding_error(before, total, after)), dtype)
    lets = (Let("carried", after), Let("carried_error", error))
    return (*lets, Store("carry", at, Var("carried", dtype)), Store("carry_error", at, Var("carried_error", dtype)))


def start(accumulator: Accumulator, extent: int, scope: str = "block") -> tuple[Stmt, ...]:
    """The running result before the first element, in memory of that scope."""
    dtype = accumulator.dtype
    names = ("carry", "carry_error") if is_carried(accumulator, extent) else ()
    first = Store("running", ix.ZERO, Literal(neutral(accumulator.op, dtype), dtype))
    arrays = [Local(name, dtype, 1, scope) for name in ("running", *names)]
    return (*arrays, first, *[Store(name, ix.ZERO, Literal(0, dtype)) for name in names])


def neutral(op: str, dtype: DType) -> float | int | bool:
    """The value that changes nothing when combined."""
    return -math.inf if op == "logaddexp" else Accumulator("", op, dtype).identity


def scan_rows(row: Axis, step: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]) -> Stmt:
    """Rows whose values are cheap: `out.value` is the value at `step`."""
    walk = walk_in_order(step, 0, EXTENT, accumulator, out.value, out, checks, step.extent)
    return Loop(row, BEGIN, END, "task", (*start(accumulator, step.extent), *walk))


def scan_blocks(
    row: Axis, block: Axis, inside: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]
) -> Stmt:
    """Rows whose values cost something: BLOCK of them at a time, in lanes, then the sums."""
    dtype: DType = accumulator.dtype
    place = ix.axis_index(inside)
    first = Op("mul", (IndexValue(ix.axis_index(block), int64), Literal(BLOCK, int64)), int64)
    count = Op("min", (Literal(BLOCK, int64), Op("sub", (EXTENT, first), int64)), int64)
    compute = Loop(inside, 0, count, "vector", (Store("values", place, out.value), *checks), LANES)
    extent = block.extent * BLOCK
    walk = walk_in_order(inside, 0, count, accumulator, Load("values", place, dtype), out, (), extent)
    blocks = Op("div", (Op("add", (EXTENT, Literal(BLOCK - 1, int64)), int64), Literal(BLOCK, int64)), int64)
    every = Loop(block, 0, blocks, "serial", (compute, *walk))
    return Loop(row, BEGIN, END, "task", (Local("values", dtype, BLOCK), *start(accumulator, extent), every))


def scan_strips(strip: Axis, step: Axis, col: Axis, columns: Expr, out: Store, checks: tuple[Stmt, ...]) -> Stmt:
    """Long sums down columns side by side: a task has a strip of them, with what `walk_in_order` keeps for each.
    `out.value` is the value at `step` of column `col` of the strip, which has so many `columns`."""
    dtype, place = out.value.dtype, ix.axis_index(col)
    names = ("running", "known", "carry", "carry_error")
    part = Axis("part", max(-(-step.extent // CHAIN), 2))

    def across(*body: Stmt) -> Loop:
        return Loop(col, 0, columns, "vector", body, lanes(col.extent))

    zero = Literal(0, dtype)
    begin = _whole("mul", IndexValue(ix.axis_index(part), int64), CHAIN)
    end = _whole("min", _whole("add", begin, CHAIN), EXTENT)
    parts = _whole("div", _whole("add", EXTENT, CHAIN - 1), CHAIN)
    known = compensated(Load("carry", place, dtype), Load("carry_error", place, dtype))
    total = Let("total", Op("add", (Load("running", place, dtype), out.value), dtype))
    result = Var("total", dtype)
    shown = Let("shown", Op("add", (Load("known", place, dtype), result), dtype))
    ends = (Store("running", place, result), Store(out.buffer, out.index, Var("shown", dtype)))
    walk = Loop(step, begin, end, "serial", (across(*checks, total, shown, *ends),))
    first = across(Store("known", place, known), Store("running", place, zero))
    last = across(*carried(Load("running", place, dtype), place))
    clear = across(*[Store(name, place, zero) for name in names[2:]])
    arrays = [Local(name, dtype, col.extent) for name in names]
    return Loop(strip, BEGIN, END, "task", (*arrays, clear, Loop(part, 0, parts, "serial", (first, walk, last))))


def scan_columns(
    points: Axis, lane: Axis | None, step: Axis, op: str, first: Store, following: Store, previous: Index,
    checks: tuple[tuple[Stmt, ...], tuple[Stmt, ...]],
) -> tuple[Stmt, ...]:  # fmt: skip
    """Columns side by side: row `step` + 1 of the result is the row before it combined with the new values.

    Without `lane`, the points are the columns.
    """
    dtype = first.value.dtype
    total = combine(op, Load(following.buffer, previous, dtype), following.value)
    steps = Op("sub", (EXTENT, Literal(1, int64)), int64)

    def across(body: tuple[Stmt, ...]) -> Loop:
        if lane is None:
            return Loop(points, BEGIN, END, "vector", body, LANES)
        return Loop(lane, 0, lane.extent, "vector", body, lanes(lane.extent))

    begin = across((*checks[0], first))
    walk = Loop(step, 0, steps, "serial", (across((*checks[1], Store(following.buffer, following.index, total))),))
    return (begin, walk) if lane is None else (Loop(points, BEGIN, END, "task", (begin, walk)),)


def put_rows(
    row: Axis, entry: Axis, place: Expr, value: Expr, out: str, extent: int, bounds: tuple[Expr, Expr],
    checks: tuple[Stmt, ...],
) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:  # fmt: skip
    """Clear a row of `out`, then add the values of its entries at their places, one after the other."""
    entries, places = bounds
    dtype = value.dtype
    base = ix.scale(Index(((row, 1),), 0), extent) if row.extent > 1 else ix.ZERO
    cleared, target = Axis("cleared", max(extent, 2)), Axis("target", max(extent, 2), "value")
    clear = Loop(
        cleared, 0, places, "vector", (Store(out, ix.add(base, ix.axis_index(cleared)), Literal(0, dtype)),), LANES
    )
    at = ix.add(base, ix.axis_index(target))
    add = Store(out, at, Op("add", (Load(out, at, dtype), value), dtype))
    last = Op("sub", (places, Literal(1, int64)), int64)
    inside = Op("max", (Op("min", (place, last), int64), Literal(0, int64)), int64)
    walk = Loop(entry, 0, entries, "serial", (add, *checks))
    return (Loop(row, BEGIN, END, "task", (clear, walk)),), {"target": inside}


def _whole(name: str, *args: Expr | int) -> Op:
    return Op(name, tuple([Literal(arg, int64) if isinstance(arg, int) else arg for arg in args]), int64)
