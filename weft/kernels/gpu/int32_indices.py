"""Index arithmetic in 32 bits, for devices whose 64-bit integers are slow or do not exist.

Kernels count in int64: ranges of a launch, loop variables, positions. On these devices a launch has fewer than 2**31
points and no buffer has more elements, so all of that fits in int32. `use_int32_indices` changes a kernel in normal
form: what follows from ranges, axes and 32-bit values, and provably fits, becomes int32; int64 data keeps its dtype,
and meets the rest through casts. Renderers of such devices print int64 as the device computes it, by pairs of words if
need be.

A value that is computed from the launch range is a bound of a loop or a position, and is taken to fit. Others fit where
the ranges of their operands prove it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.base.dtypes import bool_, int32, int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import (
    AsyncCopy,
    Copy,
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
    TileLoad,
    TileProduct,
    Update,
    Var,
)

LOW, HIGH = -(2**31), 2**31 - 1
MAX_KNOWN_EXTENT = 1 << 30  # longer axes are those whose extent a kernel does not know
SMALL_OFFSET = 1 << 24  # what may be added to a position of unknown range
POSITION, BOUND = 1, 2


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of an integer that fits in 32 bits. `kind`: POSITION where it follows from an axis of unknown extent, to
    which small numbers may be added; BOUND where it follows from the launch range, and so do its products."""

    low: int
    high: int
    kind: int = 0


def use_int32_indices(kernel: Kernel) -> Kernel:
    """`kernel`, in normal form, with its index arithmetic in int32."""
    return replace(kernel, body=_Narrowing(kernel).block(kernel.body))


class _Narrowing:
    def __init__(self, kernel: Kernel):
        self.ranges: dict[str, Range] = {name: Range(0, HIGH, BOUND) for name in kernel.ranges}
        self.value_axes = {axis.name: axis for index in _indices(kernel.body) for axis in ix.axes_of(index)}
        self.value_axes = {name: axis for name, axis in self.value_axes.items() if axis.kind == "value"}
        self.out: list[Stmt] = []
        self.count = 0

    # --- statements ---

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        outer, self.out = self.out, []
        for stmt in body:
            self.statement(stmt)
        made, self.out = tuple(self.out), outer
        return made

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Let(name, value):
                self.let(name, value)
            case Store(_, _, value):
                self.out.append(replace(stmt, value=self.wide(value)))
            case Update(_, value, factor):
                self.out.append(
                    replace(stmt, value=self.wide(value), factor=None if factor is None else self.wide(factor))
                )
            case Loop(axis, start, stop):
                start, stop = self.bound(start), self.bound(stop)
                self.ranges[axis.name] = _axis_range(axis)
                self.out.append(replace(stmt, start=start, stop=stop, body=self.block(stmt.body)))
            case Reduction(accumulators, body):
                for accumulator in accumulators:
                    self.ranges.pop(accumulator.name, None)
                self.out.append(replace(stmt, body=self.block(body)))
            case If(_, body, otherwise):
                self.out.append(replace(stmt, body=self.block(body), otherwise=self.block(otherwise)))
            case AsyncCopy():
                self.out.append(replace(stmt, valid=self.bound(stmt.valid)))
            case _:
                self.out.append(stmt)

    def let(self, name: str, value: Expr) -> None:
        self.ranges.pop(name, None)
        made, found = self.lower(value)
        axis = self.value_axes.get(name)
        if axis is not None and made.dtype is not int32:
            self.out.append(Let(f"{name}_value", made))
            made, found = Op("cast", (Var(f"{name}_value", made.dtype),), int32), _axis_range(axis)
        self.out.append(Let(name, made))
        if found is not None:
            self.ranges[name] = found

    def bound(self, value: Expr | int) -> Expr | int:
        """A bound of a loop, as int32."""
        if isinstance(value, int):
            return value
        if self.range_of(value) is not None:
            return self.narrow(value)
        if value.dtype is int32:
            return value
        return self.name(Op("cast", (value,), int32))

    # --- values ---

    def lower(self, value: Expr) -> tuple[Expr, Range | None]:
        """The new form of the value of a `Let`, and its range where it was int64 and is int32 now."""
        match value:
            case IndexValue(index, dtype) if dtype is int64:
                return self.index_value(index)
            case Op():
                return self.operation(value)
            case Var() | Literal() if value.dtype is int64:
                found = self.range_of(value)
                return (self.narrow(value) if found is not None else value), found
            case _:
                return value, None

    def index_value(self, index: ix.Index) -> tuple[Expr, Range | None]:
        known = all(axis.extent <= MAX_KNOWN_EXTENT for axis in ix.axes_of(index))
        if LOW <= index.low and index.high <= HIGH:
            return IndexValue(index, int32), Range(index.low, index.high)
        if not known:
            return IndexValue(index, int32), Range(LOW, HIGH, POSITION)
        total: Expr = Literal(index.const, int64)
        for atom, factor in index.terms:
            part, found = self.index_value(ix.Index(((atom, 1),), 0))
            wide = self.wide_as_named(part, found)
            total = self.name(Op("add", (total, self.name(Op("mul", (wide, Literal(factor, int64)), int64))), int64))
        return total, None

    def wide_as_named(self, part: Expr, found: Range | None) -> Expr:
        name = self.name(part)
        assert isinstance(name, Var)
        return self.name(Op("cast", (name,), int64)) if found is not None else name

    def operation(self, op: Op) -> tuple[Expr, Range | None]:
        sources = [arg for arg in op.args if arg.dtype is int64]
        if not sources and not (op.dtype is int64 and op.name == "cast"):
            return op, None
        if op.name == "cast":
            return self.cast(op)
        found = [self.range_of(arg) for arg in sources]
        if op.name in ("lt", "le", "eq", "ne") and any(one is not None for one in found):
            decided = _compare_with_large(op.name, op.args[0], op.args[1])
            if decided is not None:
                return Literal(decided, bool_), None
        if op.name != "bitcast" and None not in found:
            ranges = [one for one in found if one is not None]
            if op.dtype is not int64:
                return Op(op.name, self.narrow_all(op.args), op.dtype), None
            result = _result(op, ranges)
            if result is not None:
                return Op(op.name, self.narrow_all(op.args), int32), result
        return Op(op.name, tuple([self.wide(arg) for arg in op.args]), op.dtype), None

    def cast(self, op: Op) -> tuple[Expr, Range | None]:
        source = op.args[0]
        if source.dtype is int64:
            found = self.range_of(source)
            if found is None:
                return op, None
            return Op("cast", (self.narrow(source),), op.dtype), None
        if source.dtype.kind == "b":
            return Op("cast", op.args, int32), Range(0, 1)
        bits = 8 * source.dtype.itemsize
        if source.dtype.kind == "u" and bits < 32:
            return Op("cast", op.args, int32), Range(0, 2**bits - 1)
        if source.dtype.kind == "i" and bits <= 32:
            return Op("cast", op.args, int32), Range(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return op, None

    def range_of(self, expr: Expr) -> Range | None:
        """Of an int64 that is int32 now, or may be; None where it is data of 64 bits."""
        if isinstance(expr, Literal):
            number = int(expr.value)
            return Range(number, number) if LOW <= number <= HIGH else None
        return self.ranges.get(expr.name) if isinstance(expr, Var) else None

    def narrow_all(self, args: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple([self.narrow(arg) if arg.dtype is int64 else arg for arg in args])

    def narrow(self, expr: Expr) -> Literal | Var:
        """The int32 of a value that has a range."""
        if isinstance(expr, Literal):
            return Literal(expr.value, int32)
        assert isinstance(expr, Var)
        return Var(expr.name, int32)

    def wide(self, expr: Expr) -> Expr:
        """A value as it was: one that became int32 is cast back."""
        if expr.dtype is int64 and isinstance(expr, Var) and expr.name in self.ranges:
            return self.name(Op("cast", (Var(expr.name, int32),), int64))
        return expr

    def name(self, value: Expr) -> Expr:
        if isinstance(value, Var | Literal):
            return value
        made = Var(f"n{self.count}", value.dtype)
        self.count += 1
        self.out.append(Let(made.name, value))
        return made


def _compare_with_large(name: str, a: Expr, b: Expr) -> bool | None:
    """A comparison of which one side is a literal beyond 32 bits and the other fits in these; None for others."""
    for this, is_first in ((a, True), (b, False)):
        if isinstance(this, Literal) and not LOW <= this.value <= HIGH:
            if name in ("eq", "ne"):
                return name == "ne"
            return (this.value < 0) == is_first
    return None


def _axis_range(axis: ix.Axis) -> Range:
    return Range(0, HIGH, POSITION) if axis.extent > MAX_KNOWN_EXTENT else Range(0, max(axis.extent - 1, 0))


def _result(op: Op, ranges: list[Range]) -> Range | None:
    """The range of an int64 operation of operands in these ranges, or None where it may leave 32 bits."""
    kind = max(one.kind for one in ranges)
    match op.name:
        case "select" | "max" | "min" | "and" | "or" | "xor" | "not":
            if op.name in ("select", "max", "min"):
                return Range(min(one.low for one in ranges), max(one.high for one in ranges), kind)
            nonnegative = all(one.low >= 0 for one in ranges) and op.name == "and"
            return Range(0, min(one.high for one in ranges)) if nonnegative else Range(LOW, HIGH)
        case "shr":
            amount = op.args[1]
            if not isinstance(amount, Literal) or not 0 <= amount.value < 32:
                return None
            return Range(ranges[0].low >> int(amount.value), ranges[0].high >> int(amount.value))
        case "mod":
            bound = max(abs(ranges[1].low), abs(ranges[1].high))
            return Range(0 if ranges[1].low >= 0 else -bound, bound) if not kind else Range(LOW, HIGH, kind)
        case "add" | "sub" | "mul" | "div" | "neg" | "abs":
            return _arithmetic(op.name, ranges, kind)
    return None


def _arithmetic(name: str, ranges: list[Range], kind: int) -> Range | None:
    a, b = ranges[0], ranges[-1]
    if name == "neg":
        corners = [-a.low, -a.high]
    elif name == "abs":
        corners = [0, max(abs(a.low), abs(a.high))]
    elif name == "div":  # by 0 gives 0; rounded down
        corners = [-max(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high))]
        if a.low >= 0 and b.low >= 0:
            corners[0] = 0
    elif name == "add":
        corners = [a.low + b.low, a.high + b.high]
    elif name == "sub":
        corners = [a.low - b.high, a.high - b.low]
    else:
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = min(corners), max(corners)
    if LOW <= low and high <= HIGH:
        return Range(low, high, kind)
    small = name in ("add", "sub") and all(one.kind or max(-one.low, one.high) <= SMALL_OFFSET for one in ranges)
    fits = kind == BOUND or (kind == POSITION and small)
    return Range(max(low, LOW), min(high, HIGH), kind) if fits else None


def _indices(body: tuple[Stmt, ...]) -> list[ix.Index]:
    """All indices of the statements."""
    found: list[ix.Index] = []
    for stmt in body:
        match stmt:
            case Let(_, Load(_, index)) | Let(_, IndexValue(index)) | Store(_, index):
                found.append(index)
            case Loop() | Reduction():
                found += _indices(stmt.body)
            case If(_, inner, otherwise):
                found += _indices(inner) + _indices(otherwise)
            case Copy() | AsyncCopy() | TileLoad():
                found += [stmt.at, stmt.index]
            case TileProduct():
                found += [stmt.sums_at, stmt.a_at, stmt.b_at]
    return found
