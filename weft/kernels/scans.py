"""Running reductions on the CPU, each row, or each column, in order; and values put into rows at given places."""

from __future__ import annotations

import math

from weft.dtypes import DType, bool_, int64
from weft.kernels import index as ix
from weft.kernels import math as kernel_math
from weft.kernels.cpu import LANES, lanes
from weft.kernels.index import Axis, Index
from weft.kernels.language import Accumulator, Expr, IndexValue, Let, Literal, Load, Local, Loop, Op, Stmt, Store, Var
from weft.kernels.nest import COMBINE

BLOCK = 256  # elements of a row that are computed in lanes before they are added up one by one
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


def running(accumulator: Accumulator, value: Expr, out: Store) -> tuple[Stmt, ...]:
    """One step: combine `value` into the running result and store it."""
    before = Load("running", ix.ZERO, accumulator.dtype)
    total = Let("total", combine(accumulator.op, before, value))
    result = Var("total", accumulator.dtype)
    return total, Store("running", ix.ZERO, result), Store(out.buffer, out.index, result)


def start(accumulator: Accumulator, scope: str = "block") -> tuple[Stmt, ...]:
    """The running result before the first element, in memory of that scope."""
    first = Store("running", ix.ZERO, Literal(neutral(accumulator.op, accumulator.dtype), accumulator.dtype))
    return Local("running", accumulator.dtype, 1, scope), first


def neutral(op: str, dtype: DType) -> float | int | bool:
    """The value that changes nothing when combined."""
    return -math.inf if op == "logaddexp" else Accumulator("", op, dtype).identity


def scan_rows(row: Axis, step: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]) -> Stmt:
    """Rows whose values are cheap: `out.value` is the value at `step`."""
    body = (*checks, *running(accumulator, out.value, out))
    walk = Loop(step, 0, EXTENT, "serial", body)
    return Loop(row, BEGIN, END, "task", (*start(accumulator), walk))


def scan_blocks(
    row: Axis, block: Axis, inside: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]
) -> Stmt:
    """Rows whose values cost something: BLOCK of them at a time, in lanes, then the sums."""
    dtype: DType = accumulator.dtype
    place = ix.axis_index(inside)
    first = Op("mul", (IndexValue(ix.axis_index(block), int64), Literal(BLOCK, int64)), int64)
    count = Op("min", (Literal(BLOCK, int64), Op("sub", (EXTENT, first), int64)), int64)
    compute = Loop(inside, 0, count, "vector", (Store("values", place, out.value), *checks), LANES)
    walk = Loop(inside, 0, count, "serial", running(accumulator, Load("values", place, dtype), out))
    blocks = Op("div", (Op("add", (EXTENT, Literal(BLOCK - 1, int64)), int64), Literal(BLOCK, int64)), int64)
    every = Loop(block, 0, blocks, "serial", (compute, walk))
    return Loop(row, BEGIN, END, "task", (Local("values", dtype, BLOCK), *start(accumulator), every))


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
