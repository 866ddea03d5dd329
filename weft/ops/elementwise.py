"""Elementwise operations: arithmetic, comparison, selection, functions. Each is a few primitives.

Operands broadcast and promote.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.dtypes import DType, bool_, float32, int64
from weft.errors import DTypeError, RangeError, problem
from weft.graph import build
from weft.graph.layout import make
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    broadcast_shapes,
    in_float32,
    meet,
    need_bits,
    number_kind,
    result_dtype,
    same_device,
    spread,
    to_float,
)  # fmt: skip


def cast(x: Node, dtype: DType) -> Node:
    """`x` in another dtype: float to integer truncates, anything to bool is `!= 0`."""
    return build.cast(x, dtype)


# ---- arithmetic -------------------------------------------------------------------------------------------------


def _binary(op: str, who: str, a: Operand, b: Operand) -> Node:
    return make(op, meet(who, a, b))


def _arithmetic(op: str, who: str, a: Operand, b: Operand) -> Node:
    pair = meet(who, a, b)
    if pair[0].dtype is bool_:
        raise problem(DTypeError, who, "bool tensors", "numbers", "use & | ^ for logic, or cast with .int()")
    return make(op, pair)


def add(a: Operand, b: Operand, *, alpha: float | int = 1) -> Node:
    """a + alpha * b. Two bool tensors: logical or.

    >>> weft.add(weft.tensor([1.0, 2.0]), weft.tensor([10.0, 20.0]), alpha=2)
    tensor([21., 42.])
    """
    if alpha != 1:
        return _add_scaled(a, b, alpha)
    pair = meet("add", a, b)
    return make("or" if pair[0].dtype is bool_ else "add", pair)


@in_float32
def _add_scaled(a: Operand, b: Operand, alpha: float | int) -> Node:
    return add(a, mul(b, alpha) if isinstance(b, Node) else b * alpha)


def sub(a: Operand, b: Operand, *, alpha: float | int = 1) -> Node:
    """a - alpha * b."""
    if alpha != 1:
        return _add_scaled(a, b, -alpha)
    return _arithmetic("sub", "sub", a, b)


def rsub(b: Operand, a: Operand) -> Node:
    """a - b with the operands exchanged: what `number - tensor` calls."""
    return sub(a, b)


def mul(a: Operand, b: Operand) -> Node:
    """a * b. Two bool tensors: logical and."""
    pair = meet("mul", a, b)
    return make("and" if pair[0].dtype is bool_ else "mul", pair)


def div(a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Node:
    """a / b; integers divide as float32. `rounding_mode` is None, 'floor' or 'trunc'.

    >>> weft.div(weft.tensor([7, -7]), 2, rounding_mode="trunc")
    tensor([ 3, -3])
    """
    if rounding_mode is None:
        dtype = result_dtype("div", (a, b)) if isinstance(a, Node) or isinstance(b, Node) else float32
        return make("div", meet("div", a, b, dtype=dtype if dtype.kind == "f" else float32))
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode != "trunc":
        raise problem(RangeError, "div", f"rounding_mode={rounding_mode!r}", "None, 'floor' or 'trunc'")
    a, b = meet("div", a, b)
    if a.dtype.kind == "f":
        return trunc(make("div", (a, b)))
    quotient = make("div", (build.unary("abs", a), build.unary("abs", b)))
    return build.select(build.lt(make("xor", (a, b)), 0), build.neg(quotient), quotient)


def rdiv(b: Operand, a: Operand) -> Node:
    """a / b with the operands exchanged."""
    return div(a, b)


@in_float32
def floor_divide(a: Operand, b: Operand) -> Node:
    """The quotient rounded down. Integer division by zero gives 0."""
    pair = meet("floor_divide", a, b)
    quotient = make("div", pair)
    return build.unary("floor", quotient) if quotient.dtype.kind == "f" else quotient


def rfloor_divide(b: Operand, a: Operand) -> Node:
    """a // b with the operands exchanged."""
    return floor_divide(a, b)


def remainder(a: Operand, b: Operand) -> Node:
    """a - b * floor(a / b): the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where the
    signs differ."""
    rest = _arithmetic("mod", "remainder", a, b)
    if rest.dtype.kind != "f" or (isinstance(b, (int, float)) and b not in (math.inf, -math.inf)):
        return rest
    a, b = meet("remainder", a, b)
    differ = make("xor", (build.lt(a, 0.0), build.lt(b, 0.0)))
    beyond = build.select(make("and", (differ, make("ne", (a, build.like(a, 0.0))))), b, a)
    return build.select(_endless(a, b), beyond, rest)


def _endless(a: Node, b: Node) -> Node:
    """Where the divisor is infinite and the dividend is not."""
    return make("and", (build.eq(build.unary("abs", b), math.inf), build.lt(build.unary("abs", a), math.inf)))


def rremainder(b: Operand, a: Operand) -> Node:
    """a % b with the operands exchanged."""
    return remainder(a, b)


@in_float32
def fmod(a: Operand, b: Operand) -> Node:
    """a - b * trunc(a / b): the sign of the dividend.

    >>> weft.fmod(weft.tensor([-7.0, 7.0]), 3)
    tensor([-1.,  1.])
    """
    a, b = meet("fmod", a, b)
    rest = make("mod", (build.unary("abs", a), build.unary("abs", b)))
    if a.dtype.kind == "f":
        rest = build.select(_endless(a, b), build.unary("abs", a), rest)
    return build.select(build.lt(a, 0), build.neg(rest), rest)


@in_float32
def pow(a: Operand, b: Operand) -> Node:
    """a to the power b. Small whole exponents, 0.5 and -1 become products, roots and quotients.

    >>> weft.tensor([1.0, 2.0, 3.0]) ** 2
    tensor([1., 4., 9.])
    """
    if isinstance(a, Node) and not isinstance(b, Node):
        number_kind("pow", b)
        dtype = result_dtype("pow", (a, b))
        if dtype.kind in "iu" and b < 0:
            raise problem(
                DTypeError, "pow", f"{a.dtype.name} to the power {b}", "an exponent of 0 or more", "use x.float()"
            )
        x = build.cast(a, dtype)
        if b in (1, 2, 3):
            return x if b == 1 else build.mul(x, x) if b == 2 else build.mul(build.mul(x, x), x)
        if b in (0.5, -0.5, -1):
            return build.unary("sqrt", x) if b == 0.5 else rsqrt(x) if b == -0.5 else reciprocal(x)
    base, exponent = meet("pow", a, b)
    return make("pow", (base, exponent)) if base.dtype.kind == "f" else _integer_pow(base, exponent)


def _integer_pow(base: Node, exponent: Node) -> Node:
    """Six squarings. Exponents above 63 keep their parity only, which is exact for the bases -1, 0 and 1 (all others
    have overflowed by then); a negative exponent gives the truncated quotient 1 / base^-exponent."""
    if base.dtype is bool_:
        raise problem(DTypeError, "pow", "bool tensors", "numbers", "cast one with .int()")
    negative = build.lt(exponent, 0)
    size = build.select(negative, build.neg(exponent), exponent)
    size = build.select(build.lt(63, size), build.add(build.binary("and", size, 1), 62), size)
    result, square_of = build.like(base, 1), base
    for bit in range(6):
        odd = build.binary("ne", build.binary("and", size, 1 << bit), 0)
        result = build.select(odd, build.mul(result, square_of), result)
        square_of = build.mul(square_of, square_of)
    is_unit = build.eq(build.unary("abs", base), 1)
    return make("select", (negative, build.select(is_unit, result, 0), result))


def rpow(b: Operand, a: Operand) -> Node:
    """a ** b with the operands exchanged."""
    return pow(a, b)


def maximum(a: Operand, b: Operand) -> Node:
    """The larger of the two; NaN if either is. On ties each side gets half the gradient."""
    return _binary("max", "maximum", a, b)


def minimum(a: Operand, b: Operand) -> Node:
    """The smaller of the two; NaN if either is. On ties each side gets half the gradient."""
    return _binary("min", "minimum", a, b)


@in_float32
def addcmul(x: Node, a: Node, b: Node, *, value: float | int = 1) -> Node:
    """x + value * a * b."""
    return add(x, mul(a, b), alpha=value)


@in_float32
def addcdiv(x: Node, a: Node, b: Node, *, value: float | int = 1) -> Node:
    """x + value * a / b."""
    return add(x, div(a, b), alpha=value)


@in_float32
def lerp(a: Node, b: Node, weight: Operand) -> Node:
    """a + weight * (b - a).

    >>> weft.lerp(weft.tensor([0.0]), weft.tensor([10.0]), 0.25)
    tensor([2.5000])
    """
    return add(a, mul(sub(b, a), weight))


# ---- comparison and logic ---------------------------------------------------------------------------------------


def lt(a: Operand, b: Operand) -> Node:
    """a < b, bool."""
    return _binary("lt", "lt", a, b)


def le(a: Operand, b: Operand) -> Node:
    """a <= b, bool."""
    return _binary("le", "le", a, b)


def gt(a: Operand, b: Operand) -> Node:
    """a > b, bool."""
    a, b = meet("gt", a, b)
    return make("lt", (b, a))


def ge(a: Operand, b: Operand) -> Node:
    """a >= b, bool."""
    a, b = meet("ge", a, b)
    return make("le", (b, a))


def eq(a: Operand, b: Operand) -> Node:
    """a == b, bool; NaN equals nothing."""
    return _binary("eq", "eq", a, b)


def ne(a: Operand, b: Operand) -> Node:
    """a != b, bool."""
    return _binary("ne", "ne", a, b)


def logical_and(a: Operand, b: Operand) -> Node:
    """Both not zero."""
    return make("and", meet("logical_and", a, b, dtype=bool_))


def logical_or(a: Operand, b: Operand) -> Node:
    """Either not zero."""
    return make("or", meet("logical_or", a, b, dtype=bool_))


def logical_xor(a: Operand, b: Operand) -> Node:
    """Exactly one not zero."""
    return make("xor", meet("logical_xor", a, b, dtype=bool_))


def logical_not(x: Node) -> Node:
    """Equal to zero."""
    return build.unary("not", build.cast(x, bool_))


def _bitwise(op: str, who: str, a: Operand, b: Operand) -> Node:
    pair = meet(who, a, b)
    need_bits(who, pair[0])
    return make(op, pair)


def bitwise_and(a: Operand, b: Operand) -> Node:
    """a & b for bool and integer tensors."""
    return _bitwise("and", "bitwise_and", a, b)


def bitwise_or(a: Operand, b: Operand) -> Node:
    """a | b for bool and integer tensors."""
    return _bitwise("or", "bitwise_or", a, b)


def bitwise_xor(a: Operand, b: Operand) -> Node:
    """a ^ b for bool and integer tensors."""
    return _bitwise("xor", "bitwise_xor", a, b)


def bitwise_left_shift(a: Operand, b: Operand) -> Node:
    """a << b for integer tensors."""
    return _bitwise("shl", "bitwise_left_shift", a, b)


def bitwise_right_shift(a: Operand, b: Operand) -> Node:
    """a >> b for integer tensors; the sign stays."""
    return _bitwise("shr", "bitwise_right_shift", a, b)


def bitwise_not(x: Node) -> Node:
    """~x for bool and integer tensors."""
    need_bits("bitwise_not", x)
    return build.unary("not", x)


def isnan(x: Node) -> Node:
    """Where x is not a number."""
    return make("ne", (x, x))


def isinf(x: Node) -> Node:
    """Where x is infinite."""
    return eq(build.unary("abs", x), math.inf) if x.dtype.kind == "f" else make("ne", (x, x))


def isfinite(x: Node) -> Node:
    """Where x is neither infinite nor NaN."""
    return lt(build.unary("abs", x), math.inf) if x.dtype.kind == "f" else make("eq", (x, x))


# ---- selection --------------------------------------------------------------------------------------------------


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """`a` where the bool condition holds, else `b`; all three broadcast.

    >>> weft.where(weft.tensor([True, False]), weft.tensor([1.0, 2.0]), 0.0)
    tensor([1., 0.])
    """
    if not isinstance(condition, Node) or condition.dtype is not bool_:
        given = condition.dtype.name if isinstance(condition, Node) else type(condition).__name__
        raise problem(DTypeError, "where", f"a condition of type {given}", "a bool tensor", "write it as a comparison")
    tensors = [value for value in (a, b) if isinstance(value, Node)]
    if tensors:
        dtype = result_dtype("where", (a, b))
    else:  # two numbers: the dtype that weft.tensor would give them
        kind = max((number_kind("where", value) for value in (a, b)), key="bif".index)
        dtype = {"b": bool_, "i": int64, "f": float32}[kind]
    device = same_device("where", [condition, *tensors])
    shape = broadcast_shapes("where", [condition.shape, *(value.shape for value in tensors)])
    chosen = [spread("where", value, shape, dtype, device) for value in (a, b)]
    return make("select", (build.expand_to(condition, shape), *chosen))


def masked_fill(x: Node, mask: Node, value: Operand) -> Node:
    """`x` with `value` where the bool mask holds."""
    return build.cast(where(mask, value, x), x.dtype)


def clamp(x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    """`x` held between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none.

    >>> weft.clamp(weft.tensor([-2.0, 0.5, 2.0]), -1, 1)
    tensor([-1.0000,  0.5000,  1.0000])
    """
    if min is None and max is None:
        raise problem(DTypeError, "clamp", "neither min nor max", "at least one of them")
    if min is not None:
        x = _held(x, min, lt, ge)
    return x if max is None else _held(x, max, gt, le)


def _held(x: Node, bound: Operand, beyond: Callable[..., Node], within: Callable[..., Node]) -> Node:
    """`bound` where `x` lies beyond it. NaN, which is neither beyond nor within, stays and has no gradient."""
    outside = beyond(x, bound)
    value = where(outside, bound, x)
    if x.dtype.kind != "f" or value.dtype.kind != "f":
        return value
    return build.surrogate(value, where(within(x, bound), x, where(outside, bound, build.like(value, 0.0))))


# ---- functions of one operand -----------------------------------------------------------------------------------


def neg(x: Node) -> Node:
    """-x."""
    if x.dtype is bool_:
        raise problem(DTypeError, "neg", "a bool tensor", "numbers", "use ~x")
    return build.neg(x)


def abs(x: Node) -> Node:
    """|x|; the gradient at 0 is 0."""
    return build.unary("abs", x)


def sign(x: Node) -> Node:
    """-1, 0 or 1; NaN gives 0. No gradient."""
    up = build.cast(make("lt", (build.like(x, 0), x)), x.dtype)
    if x.dtype.kind == "u":
        return up
    down = build.cast(make("lt", (x, build.like(x, 0))), x.dtype)
    return build.sub(up, down)


def exp(x: Node) -> Node:
    """e to the power x.

    >>> weft.exp(weft.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """
    return build.unary("exp", to_float(x))


@in_float32
def exp2(x: Node) -> Node:
    """2 to the power x."""
    return build.unary("exp", build.mul(to_float(x), math.log(2.0)))


def expm1(x: Node) -> Node:
    """exp(x) - 1, precise near 0."""
    return build.unary("expm1", to_float(x))


def log(x: Node) -> Node:
    """The natural logarithm; -inf at 0, NaN below."""
    return build.unary("log", to_float(x))


@in_float32
def log2(x: Node) -> Node:
    """The logarithm to base 2."""
    return build.mul(build.unary("log", to_float(x)), 1.0 / math.log(2.0))


@in_float32
def log10(x: Node) -> Node:
    """The logarithm to base 10."""
    return build.mul(build.unary("log", to_float(x)), 1.0 / math.log(10.0))


def log1p(x: Node) -> Node:
    """log(1 + x), precise near 0."""
    return build.unary("log1p", to_float(x))


def sqrt(x: Node) -> Node:
    """The square root; NaN below 0."""
    return build.unary("sqrt", to_float(x))


@in_float32
def rsqrt(x: Node) -> Node:
    """1 / sqrt(x)."""
    return build.div(1.0, build.unary("sqrt", to_float(x)))


def reciprocal(x: Node) -> Node:
    """1 / x."""
    return build.div(1.0, to_float(x))


def square(x: Node) -> Node:
    """x * x."""
    return build.mul(x, x)


def sin(x: Node) -> Node:
    """The sine of x in radians."""
    return build.unary("sin", to_float(x))


def cos(x: Node) -> Node:
    """The cosine of x in radians."""
    return build.unary("cos", to_float(x))


@in_float32
def tan(x: Node) -> Node:
    """The tangent of x in radians."""
    return build.div(sin(x), cos(x))


@in_float32  # for the gradient: 1 - tanh(x)^2 of a rounded tanh(x) would have lost its digits
def tanh(x: Node) -> Node:
    """The hyperbolic tangent."""
    return build.unary("tanh", to_float(x))


def erf(x: Node) -> Node:
    """The error function."""
    return build.unary("erf", to_float(x))


def floor(x: Node) -> Node:
    """The largest whole number not above x; the gradient is 0."""
    return build.unary("floor", x) if x.dtype.kind == "f" else x


def ceil(x: Node) -> Node:
    """The smallest whole number not below x; the gradient is 0."""
    return build.neg(build.unary("floor", build.neg(x))) if x.dtype.kind == "f" else x


def trunc(x: Node) -> Node:
    """The whole part of x, towards 0; the gradient is 0."""
    return build.select(build.lt(x, 0), ceil(x), floor(x)) if x.dtype.kind == "f" else x


def round(x: Node) -> Node:
    """The nearest whole number, ties to even; the gradient is 0.

    >>> weft.round(weft.tensor([0.5, 1.5, 2.4]))
    tensor([0., 2., 2.])
    """
    if x.dtype.kind != "f":
        return x
    low = build.unary("floor", x)
    rest = build.sub(x, low)
    odd = build.eq(build.binary("mod", low, 2.0), 1.0)
    up = make("or", (build.lt(0.5, rest), make("and", (build.eq(rest, 0.5), odd))))
    return build.select(up, build.add(low, 1.0), low)
