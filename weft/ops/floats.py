"""What floats are made of: signs, NaN and infinities, whole and fractional parts, mantissa and exponent."""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.base.dtypes import DType, bool_, finfo, float32, float64, int32
from weft.base.errors import DTypeError, problem
from weft.graph import build
from weft.graph.build import add, eq, lt, mul, neg, select, sub, unary
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import Operand, in_float32, meet, need_float, need_tensors, to_float
from weft.ops.elementwise import pow as power
from weft.ops.registry import operation
from weft.ops.series import bits_dtype, has_sign, with_sign
from weft.ops.unary_functions import sign, trunc


@operation()
def signbit(input: Node) -> Node:
    """Where the sign is minus, also of -0.0."""
    if input.dtype.kind == "f":
        return has_sign(input)
    return build.full(input.shape, False, bool_, input.device) if input.dtype is bool_ else lt(input, 0)


@operation("weft method inplace")
def sgn(input: Node) -> Node:
    """-1, 0 or 1: `sign`, as there are no complex numbers."""
    return sign(input)


@operation("weft method inplace")
def copysign(input: Operand, other: Operand) -> Node:
    """The size of `input` with the sign of `other`; signs of zeros count.

    >>> weft.copysign(weft.tensor([1.0, -2.0]), -0.0)
    tensor([-1., -2.])
    """
    need_tensors("copysign", input)
    a, b = (to_float(one) for one in meet("copysign", input, other))
    return with_sign(unary("abs", a), build.stop_gradient(b))


@operation("weft method inplace")
def heaviside(input: Node, values: Node) -> Node:
    """0 below 0 and at NaN, 1 above, `values` at 0. No gradient."""
    need_tensors("heaviside", input, values)
    if values.dtype is not input.dtype:
        given = f"{input.dtype.name} and {values.dtype.name} tensors"
        raise problem(DTypeError, "heaviside", given, "one dtype", "cast one with .to(dtype)")
    x, value = meet("heaviside", input, values)
    zero = build.like(x, 0)
    step = x if x.dtype is bool_ else build.cast(make_canonical("lt", (zero, x)), x.dtype)
    return build.stop_gradient(make_canonical("select", (make_canonical("eq", (x, zero)), value, step)))


@operation()
def isposinf(input: Node) -> Node:
    """Where x is +infinity."""
    return eq(input, math.inf) if input.dtype.kind == "f" else build.full(input.shape, False, bool_, input.device)


@operation()
def isneginf(input: Node) -> Node:
    """Where x is -infinity."""
    return eq(input, -math.inf) if input.dtype.kind == "f" else build.full(input.shape, False, bool_, input.device)


@operation()
def isreal(input: Node) -> Node:
    """True everywhere: there are no complex numbers."""
    return build.full(input.shape, True, bool_, input.device)


@operation("weft method inplace")
def nan_to_num(input: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Node:
    """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the largest and least finite numbers).

    >>> weft.nan_to_num(weft.tensor([float("nan"), float("inf"), 1.0]), posinf=9.0)
    tensor([0., 9., 1.])
    """
    if input.dtype.kind != "f":
        return input
    limits = finfo(input.dtype)
    finite = select(eq(input, math.inf), limits.max if posinf is None else posinf, input)
    finite = select(eq(input, -math.inf), limits.min if neginf is None else neginf, finite)
    return select(make_canonical("ne", (input, input)), 0.0 if nan is None else nan, finite)


@operation("weft method inplace")
@in_float32
def frac(input: Node) -> Node:
    """The part after the point, with the sign of x; the gradient is that of x."""
    need_float("frac", input)
    return sub(input, trunc(input))


@operation()
def positive(input: Node) -> Node:
    """+x, which is x."""
    if input.dtype is bool_:
        raise problem(DTypeError, "positive", "a bool tensor", "numbers", "cast it with .int()")
    return input


@operation("weft method inplace")
def float_power(input: Operand, exponent: Operand) -> Node:
    """a to the power b, in float64.

    >>> weft.float_power(weft.tensor([2, 3]), 2)
    tensor([4., 9.], dtype=weft.float64)
    """
    base, exponent = (build.cast(one, float64) if isinstance(one, Node) else one for one in (input, exponent))
    return power(base, exponent)


@operation("weft method inplace")
@in_float32
def ldexp(input: Operand, other: Operand) -> Node:
    """a times 2 to the power b."""
    need_tensors("ldexp", input, other)
    a, b = (to_float(one) for one in meet("ldexp", input, other))
    return mul(a, power(2.0, b))


class Frexp(NamedTuple):
    """What `frexp` returns."""

    mantissa: Node
    exponent: Node


_MANTISSA = {4: 23, 8: 52}  # bits, by the size of a float
_SCALE = 64  # powers of two by which subnormal numbers are lifted


@operation()
def frexp(input: Node) -> Frexp:
    """Each number as mantissa * 2^exponent with 0.5 <= |mantissa| < 1; the exponent is int32, of 0, NaN and infinities
    it is 0.

    >>> weft.frexp(weft.tensor([6.0, 0.0])).exponent
    tensor([3, 0], dtype=weft.int32)
    """
    need_float("frexp", input)
    x = build.cast(input, float32) if input.dtype.is_16_bit else input
    bits, width = bits_dtype(x.dtype), _MANTISSA[x.dtype.itemsize]
    tiny = lt(unary("abs", x), finfo(x.dtype).tiny)
    lifted = select(tiny, mul(x, 2.0**_SCALE), x)
    field = build.binary("shr", build.bitcast(unary("abs", lifted), bits), width)
    bias = _bias(x.dtype) - 1
    exponent = select(tiny, sub(field, bias + _SCALE), sub(field, bias))
    regular = make_canonical("and", (lt(0.0, unary("abs", x)), lt(unary("abs", x), math.inf)))
    exponent = select(regular, exponent, 0)
    # 2^-exponent in two factors: it may be too large, or subnormal, as one
    half = build.binary("shr", exponent, 1)
    mantissa = mul(mul(x, power_of_two(neg(half), x.dtype)), power_of_two(sub(half, exponent), x.dtype))
    mantissa = build.surrogate(select(regular, mantissa, x), mantissa)
    return Frexp(build.cast(mantissa, input.dtype), build.cast(exponent, int32))


def _bias(dtype: DType) -> int:
    """What is added to the exponent of a float in its bits."""
    return (1 << (8 * dtype.itemsize - _MANTISSA[dtype.itemsize] - 2)) - 1


def power_of_two(n: Node, dtype: DType) -> Node:
    """2^n in float32 or float64, exactly, for integers as wide that are exponents of normal numbers."""
    field = build.binary("shl", add(n, _bias(dtype)), _MANTISSA[dtype.itemsize])
    return build.bitcast(field, dtype)


@operation("weft method inplace")
def nextafter(input: Node, other: Node) -> Node:
    """The next float after `input` in the direction of `other`: `other` itself where both are equal, NaN where one is
    NaN. The gradient is that of `input`, and 0 where both are equal.

    >>> weft.nextafter(weft.tensor([1.0, 0.0]), weft.tensor([2.0, 0.0])) - 1
    tensor([ 1.1921e-07, -1.0000e+00])
    """
    need_tensors("nextafter", input, other)
    x, other = meet("nextafter", input, other)
    need_float("nextafter", x)
    a, b = build.stop_gradient(x), build.stop_gradient(other)
    whole = bits_dtype(a.dtype)
    bits = build.bitcast(a, whole)
    is_away = make_canonical("eq", (lt(0.0, a), make_canonical("lt", (a, b))))  # from zero: the size grows
    stepped = build.bitcast(add(bits, select(is_away, build.like(bits, 1), build.like(bits, -1))), a.dtype)
    least = build.bitcast(build.like(bits, 1), a.dtype)
    stepped = make_canonical("select", (eq(a, 0.0), make_canonical("select", (lt(b, 0.0), neg(least), least)), stepped))
    moved = make_canonical("select", (make_canonical("eq", (a, b)), b, stepped))
    is_nan = make_canonical("or", (make_canonical("ne", (a, a)), make_canonical("ne", (b, b))))
    return build.surrogate(select(is_nan, math.nan, moved), select(make_canonical("eq", (a, b)), 0.0, x))
