"""Inverse trigonometric and hyperbolic functions, angles and distances. Precise near 0 and for large arguments.

Their slopes are given as rules: differentiating the approximations would lose digits, and cases at the ends.
"""

from __future__ import annotations

import math

from weft.graph import build
from weft.graph.build import add, div, eq, lt, mul, neg, select, sub, unary
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops import approximations
from weft.ops.common import Operand, in_float32, meet, need_float, need_tensors, to_float
from weft.ops.registry import operation
from weft.ops.series import approximate, has_sign, polynomial, sin_pi, with_sign, with_slope

Rates = tuple[Node, ...]
LOG_2 = math.log(2.0)
TAN_PI_8 = math.sqrt(2.0) - 1.0


def _arctangent(size: Node) -> Node:
    """atan of numbers from 0 on: brought below tan(pi / 8) by atan(x) = pi/4 + atan((x - 1) / (x + 1)) and
    atan(x) = pi/2 - atan(1 / x)."""
    large, middle = lt(1.0 / TAN_PI_8, size), lt(TAN_PI_8, size)
    near = select(middle, div(sub(size, 1.0), add(size, 1.0)), size)
    x = select(large, div(-1.0, size), near)
    rest = mul(x, approximate(mul(x, x), approximations.ARCTANGENT))
    return select(large, add(rest, math.pi / 2), select(middle, add(rest, math.pi / 4), rest))


def _of_atan(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (div(g, add(mul(x, x), 1.0)),)


@operation("weft method inplace", aliases="arctan")
@in_float32
def atan(input: Node) -> Node:
    """The angle in (-pi/2, pi/2) whose tangent is x.

    >>> weft.atan(weft.tensor([0.0, 1.0, float("inf")]))
    tensor([0.0000, 0.7854, 1.5708])
    """
    x = to_float(input)
    return with_slope(with_sign(_arctangent(unary("abs", x)), x), x, _of_atan)


def _of_asin(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (div(g, _leg(x)),)


def _leg(x: Node) -> Node:
    """sqrt(1 - x^2), precise near 1."""
    return unary("sqrt", mul(sub(1.0, x), add(x, 1.0)))


@operation("weft method inplace", aliases="arcsin")
@in_float32
def asin(input: Node) -> Node:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
    x = to_float(input)
    size = unary("abs", x)
    return with_slope(with_sign(_arctangent(div(size, _leg(size))), x), x, _of_asin)


def _of_acos(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (neg(div(g, _leg(x))),)


@operation("weft method inplace", aliases="arccos")
@in_float32
def acos(input: Node) -> Node:
    """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
    x = to_float(input)
    half = _arctangent(unary("sqrt", div(sub(1.0, x), add(x, 1.0))))
    return with_slope(mul(half, 2.0), x, _of_acos)


def _exponentials(size: Node) -> tuple[Node, Node, Node]:
    """Where e^x may be too large (22 is enough for e^-x not to count), half of it, and e^x - 1 where it is not."""
    large = lt(22.0, size)
    root = unary("exp", mul(size, 0.5))
    return large, mul(mul(root, 0.5), root), unary("expm1", select(large, 0.0, size))


def _of_sinh(sources: Rates, g: Node) -> Rates:
    return (mul(g, cosh(sources[0])),)


@operation("weft method inplace")
@in_float32
def sinh(input: Node) -> Node:
    """The hyperbolic sine, (e^x - e^-x) / 2."""
    x = to_float(input)
    large, half, less = _exponentials(unary("abs", x))
    size = select(large, half, mul(add(less, div(less, add(less, 1.0))), 0.5))
    return with_slope(with_sign(size, x), x, _of_sinh)


def _of_cosh(sources: Rates, g: Node) -> Rates:
    return (mul(g, sinh(sources[0])),)


@operation("weft method inplace")
@in_float32
def cosh(input: Node) -> Node:
    """The hyperbolic cosine, (e^x + e^-x) / 2."""
    x = to_float(input)
    large, half, less = _exponentials(unary("abs", x))
    more = add(less, 1.0)
    return with_slope(select(large, half, mul(add(more, div(1.0, more)), 0.5)), x, _of_cosh)


def _of_asinh(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (div(g, unary("sqrt", add(mul(x, x), 1.0))),)


@operation("weft method inplace", aliases="arcsinh")
@in_float32
def asinh(input: Node) -> Node:
    """The inverse of `sinh`, log(x + sqrt(x^2 + 1))."""
    x = to_float(input)
    size = unary("abs", x)
    large = lt(1e8, size)  # x^2 + 1 is x^2
    low = select(large, 0.0, size)
    square = mul(low, low)
    near = unary("log1p", add(low, div(square, add(unary("sqrt", add(square, 1.0)), 1.0))))
    return with_slope(with_sign(select(large, add(unary("log", size), LOG_2), near), x), x, _of_asinh)


def _of_acosh(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (div(g, unary("sqrt", mul(sub(x, 1.0), add(x, 1.0)))),)


@operation("weft method inplace", aliases="arccosh")
@in_float32
def acosh(input: Node) -> Node:
    """The inverse of `cosh` from 0 on, log(x + sqrt(x^2 - 1)); NaN below 1."""
    x = to_float(input)
    large = lt(1e8, x)
    low = sub(select(large, 2.0, x), 1.0)
    near = unary("log1p", add(low, unary("sqrt", mul(low, add(low, 2.0)))))
    value = select(lt(x, 1.0), math.nan, select(large, add(unary("log", x), LOG_2), near))
    return with_slope(value, x, _of_acosh)


def _of_atanh(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (div(g, mul(sub(1.0, x), add(x, 1.0))),)


@operation("weft method inplace", aliases="arctanh")
@in_float32
def atanh(input: Node) -> Node:
    """The inverse of `tanh`, log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
    x = to_float(input)
    size = unary("abs", x)
    value = mul(unary("log1p", div(mul(size, 2.0), sub(1.0, size))), 0.5)
    return with_slope(with_sign(select(lt(1.0, size), math.nan, value), x), x, _of_atanh)


def _of_atan2(sources: Rates, g: Node) -> Rates:
    y, x = sources
    square = add(mul(y, y), mul(x, x))
    rate = select(eq(square, 0.0), 0.0, div(g, square))
    return mul(rate, x), mul(rate, neg(y))


@operation("weft method inplace", aliases="arctan2")
@in_float32
def atan2(input: Operand, other: Operand) -> Node:
    """The angle of the point (x, y) = (other, input), in [-pi, pi]; the signs of zeros count.

    >>> weft.atan2(weft.tensor([1.0, -1.0]), weft.tensor([-1.0, -1.0]))
    tensor([ 2.3562, -2.3562])
    """
    need_tensors("atan2", input, other)
    y, x = (to_float(one) for one in meet("atan2", input, other))
    high, wide = unary("abs", y), unary("abs", x)
    steep = lt(wide, high)
    short, long = select(steep, wide, high), select(steep, high, wide)
    undefined = make_canonical("or", (make_canonical("ne", (x, x)), make_canonical("ne", (y, y))))
    ratio = select(eq(short, long), select(eq(long, 0.0), 0.0, build.like(x, 1.0)), div(short, long))
    angle = _arctangent(ratio)
    angle = select(steep, sub(math.pi / 2, angle), angle)
    angle = select(has_sign(x), sub(math.pi, angle), angle)
    value = select(undefined, math.nan, with_sign(angle, y))
    return build.with_gradient(value, (y, x), _of_atan2)


def _of_hypot(sources: Rates, g: Node) -> Rates:
    a, b = sources
    value = hypot(a, b)
    return mul(g, div(a, value)), mul(g, div(b, value))


@operation("weft method inplace")
@in_float32
def hypot(input: Operand, other: Operand) -> Node:
    """sqrt(a^2 + b^2) without overflow on the way."""
    need_tensors("hypot", input, other)
    a, b = meet("hypot", input, other)
    need_float("hypot", a)
    first, second = unary("abs", a), unary("abs", b)
    long, short = select(lt(first, second), second, first), select(lt(first, second), first, second)
    infinite = make_canonical("or", (eq(first, math.inf), eq(second, math.inf)))
    ratio = div(short, select(eq(long, 0.0), 1.0, long))
    value = mul(long, unary("sqrt", add(mul(ratio, ratio), 1.0)))
    return build.with_gradient(select(infinite, math.inf, value), (a, b), _of_hypot)


# (x cos x - sin x) / x^2 in powers of x^2, times x
_SINC_SLOPE = tuple([(-1.0) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 10)])


def _of_sinc(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    angle = mul(x, math.pi)
    near = mul(angle, polynomial(mul(angle, angle), _SINC_SLOPE))
    small = lt(unary("abs", angle), 1.0)
    wide = select(small, 1.0, x)
    angle = mul(wide, math.pi)
    far = div(sub(build.unary("cos", angle), sinc(wide)), wide)
    return (mul(g, select(small, mul(near, math.pi), far)),)


@operation("weft special method inplace")
@in_float32
def sinc(input: Node) -> Node:
    """sin(pi x) / (pi x), and 1 at 0."""
    x = to_float(input)
    zero = eq(x, 0.0)
    value = div(sin_pi(x), mul(select(zero, 1.0, x), math.pi))
    infinite = eq(unary("abs", x), math.inf)
    return with_slope(select(zero, 1.0, select(infinite, math.nan, value)), x, _of_sinc)


@operation("weft method inplace")
@in_float32
def deg2rad(input: Node) -> Node:
    """Degrees as radians."""
    return mul(to_float(input), math.pi / 180.0)


@operation("weft method inplace")
@in_float32
def rad2deg(input: Node) -> Node:
    """Radians as degrees."""
    return mul(to_float(input), 180.0 / math.pi)
