"""Running reductions (scans) on the CPU, along rows or down columns, in order; and values added into rows at indices.

A long sum of floats is split into parts of `CHAIN` elements, each of which starts from 0; the sum of all parts before
is a compensated sum that is added to each running sum of the part (`kernels.math.summation` says why).
"""

from __future__ import annotations

import math

from weft.base.dtypes import DType, int64
from weft.kernels.cpu.schedule import lanes
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Expr,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Var,
)
from weft.kernels.ir.nest import COMBINE
from weft.kernels.math import functions as kernel_math
from weft.kernels.math.summation import add_compensation, rounding_error
from weft.kernels.numerics import CHAIN, LANES, SCAN_BLOCK

BEGIN, END = Var("begin", int64), Var("end", int64)
EXTENT = Var("extent", int64)  # of the scanned axis


def combine(op: str, a: Expr, b: Expr) -> Expr:
    """Two results combined. 'logaddexp' is log(exp(a) + exp(b)), shifted by the larger."""
    dtype = a.dtype
    if op in COMBINE:
        return Op(COMBINE[op], (a, b), dtype)
    high, low = a.max(b), a.min(b)
    less = kernel_math.build("exp", (low - high,), dtype)
    total = high + kernel_math.build("log1p", (less,), dtype)
    return (abs(high) < math.inf).select(total, high)


def scan_in_order(
    step: Axis, first: Expr | int, stop: Expr, accumulator: Accumulator, value: Expr, out: Store,
    checks: tuple[Stmt, ...] = (), extent: int = MAX_EXTENT,
) -> tuple[Stmt, ...]:  # fmt: skip
    """Combine the values at `step` from `first` on into the running result, and store it after each of them."""
    dtype, before = accumulator.dtype, Load("running", ix.ZERO, accumulator.dtype)
    total, result = Let("total", combine(accumulator.op, before, value)), Var("total", dtype)
    if not is_carried(accumulator, extent):
        kept = (Store("running", ix.ZERO, result), Store(out.buffer, out.index, result))
        return (Loop(step, first, stop, "serial", (*checks, total, *kept)),)
    part = Axis("part", max(-(-step.extent // CHAIN), 2))
    begin = IndexValue(ix.axis_index(part), int64) * CHAIN + first
    end = (begin + CHAIN).min(stop)
    parts = (stop - first + (CHAIN - 1)) // CHAIN
    known = Let("known", add_compensation(Load("carry", ix.ZERO, dtype), Load("carry_error", ix.ZERO, dtype)))
    visible = Store(out.buffer, out.index, Var("known", dtype) + result)
    inner = Loop(step, begin, end, "serial", (*checks, total, Store("running", ix.ZERO, result), visible))
    clear = Store("running", ix.ZERO, Literal(0, dtype))
    return (Loop(part, 0, parts, "serial", (known, clear, inner, *update_carry(before, ix.ZERO))),)


def is_carried(accumulator: Accumulator, extent: int) -> bool:
    """Whether a running sum may be so long that it is split into parts: each starts from 0, and the sum of those before
    it is a compensated sum."""
    return accumulator.op == "sum" and accumulator.dtype.kind == "f" and extent > CHAIN


def update_carry(total: Expr, at: Index) -> tuple[Stmt, ...]:
    """The sum of a part is added to the compensated sum of all parts before the next one."""
    dtype = total.dtype
    before, lost = Load("carry", at, dtype), Load("carry_error", at, dtype)
    after = before + total
    error = lost + rounding_error(before, total, after)
    lets = (Let("carried", after), Let("carried_error", error))
    return (*lets, Store("carry", at, Var("carried", dtype)), Store("carry_error", at, Var("carried_error", dtype)))


def initial_state(accumulator: Accumulator, extent: int, scope: str = "workgroup") -> tuple[Stmt, ...]:
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
    """Rows whose values are cheap to compute: `out.value` is the value at `step`."""
    steps_in_order = scan_in_order(step, 0, EXTENT, accumulator, out.value, out, checks, step.extent)
    return Loop(row, BEGIN, END, "task", (*initial_state(accumulator, step.extent), *steps_in_order))


def scan_blocks(
    row: Axis, block: Axis, inside: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]
) -> Stmt:
    """Rows whose values are expensive: SCAN_BLOCK of them at a time, in vector lanes, then the sums."""
    dtype: DType = accumulator.dtype
    position = ix.axis_index(inside)
    first = IndexValue(ix.axis_index(block), int64) * SCAN_BLOCK
    count = Literal(SCAN_BLOCK, int64).min(EXTENT - first)
    compute = Loop(inside, 0, count, "vector", (Store("values", position, out.value), *checks), LANES)
    extent = block.extent * SCAN_BLOCK
    steps_in_order = scan_in_order(inside, 0, count, accumulator, Load("values", position, dtype), out, (), extent)
    blocks = (EXTENT + (SCAN_BLOCK - 1)) // SCAN_BLOCK
    every = Loop(block, 0, blocks, "serial", (compute, *steps_in_order))
    values = Local("values", dtype, SCAN_BLOCK)
    return Loop(row, BEGIN, END, "task", (values, *initial_state(accumulator, extent), every))


def scan_strips(strip: Axis, step: Axis, col: Axis, columns: Expr, out: Store, checks: tuple[Stmt, ...]) -> Stmt:
    """Long sums down contiguous columns: a task has a strip of them, with the state of `scan_in_order` for each.
    `out.value` is the value at `step` of column `col` of the strip, which has so many `columns`."""
    dtype, position = out.value.dtype, ix.axis_index(col)
    names = ("running", "known", "carry", "carry_error")
    part = Axis("part", max(-(-step.extent // CHAIN), 2))

    def across(*body: Stmt) -> Loop:
        return Loop(col, 0, columns, "vector", body, lanes(col.extent))

    zero = Literal(0, dtype)
    begin = IndexValue(ix.axis_index(part), int64) * CHAIN
    end = (begin + CHAIN).min(EXTENT)
    parts = (EXTENT + (CHAIN - 1)) // CHAIN
    known = add_compensation(Load("carry", position, dtype), Load("carry_error", position, dtype))
    total = Let("total", Load("running", position, dtype) + out.value)
    result = Var("total", dtype)
    visible = Let("shown", Load("known", position, dtype) + result)
    ends = (Store("running", position, result), Store(out.buffer, out.index, Var("shown", dtype)))
    steps_in_order = Loop(step, begin, end, "serial", (across(*checks, total, visible, *ends),))
    first = across(Store("known", position, known), Store("running", position, zero))
    last = across(*update_carry(Load("running", position, dtype), position))
    clear = across(*[Store(name, position, zero) for name in names[2:]])
    arrays = [Local(name, dtype, col.extent) for name in names]
    return Loop(
        strip, BEGIN, END, "task", (*arrays, clear, Loop(part, 0, parts, "serial", (first, steps_in_order, last)))
    )


def scan_columns(
    points: Axis, lane: Axis | None, step: Axis, op: str, first: Store, following: Store, previous: Index,
    checks: tuple[tuple[Stmt, ...], tuple[Stmt, ...]],
) -> tuple[Stmt, ...]:  # fmt: skip
    """Scans down contiguous columns: row `step` + 1 of the result is the row before it combined with the new values.

    Without `lane`, the points are the columns.
    """
    dtype = first.value.dtype
    total = combine(op, Load(following.buffer, previous, dtype), following.value)
    steps = EXTENT - 1

    def across(body: tuple[Stmt, ...]) -> Loop:
        if lane is None:
            return Loop(points, BEGIN, END, "vector", body, LANES)
        return Loop(lane, 0, lane.extent, "vector", body, lanes(lane.extent))

    begin = across((*checks[0], first))
    steps_in_order = Loop(
        step, 0, steps, "serial", (across((*checks[1], Store(following.buffer, following.index, total))),)
    )
    return (begin, steps_in_order) if lane is None else (Loop(points, BEGIN, END, "task", (begin, steps_in_order)),)


def put_rows(
    row: Axis, entry: Axis, position: Expr, value: Expr, out: str, extent: int, bounds: tuple[Expr, Expr],
    checks: tuple[Stmt, ...],
) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:  # fmt: skip
    """Clear a row of `out`, then add the values of its entries at their indices, one after the other."""
    entries, positions = bounds
    dtype = value.dtype
    base = row * extent if row.extent > 1 else ix.ZERO
    cleared, target = Axis("cleared", max(extent, 2)), Axis("target", max(extent, 2), "value")
    clear = Loop(cleared, 0, positions, "vector", (Store(out, base + cleared, Literal(0, dtype)),), LANES)
    at = base + target
    add = Store(out, at, Load(out, at, dtype) + value)
    last = positions - 1
    inside = position.min(last).max(0)
    steps_in_order = Loop(entry, 0, entries, "serial", (add, *checks))
    return (Loop(row, BEGIN, END, "task", (clear, steps_in_order)),), {"target": inside}
