"""Modified Bessel functions of the first kind, of orders 0 and 1, and these times exp(-|x|)."""

from __future__ import annotations

from weft.graph.build import div, eq, lt, mul, select, sub, unary
from weft.graph.node import Node
from weft.ops import approximations
from weft.ops.common import in_float32, to_float
from weft.ops.registry import operation
from weft.ops.series import Coefficients, chebyshev, with_sign, with_slope

Rates = tuple[Node, ...]


def _scaled_bessel(size: Node, near: Coefficients, far: Coefficients, order: int) -> Node:
    """exp(-x) I(x) of numbers from 0 on: two series, up to 8 and beyond."""
    large = lt(8.0, size)
    low = chebyshev(select(large, 0.0, size), 0.0, 8.0, near)
    beyond = select(large, size, 8.0)
    high = div(chebyshev(sub(div(16.0, beyond), 1.0), -1.0, 1.0, far), unary("sqrt", beyond))
    return select(large, high, mul(low, size) if order else low)


def _multiply_by_exp(scaled: Node, size: Node) -> Node:
    """`scaled` times exp(x), which alone may be too large."""
    root = unary("exp", mul(size, 0.5))
    return mul(mul(scaled, root), root)


def _order_0(size: Node) -> Node:
    return _scaled_bessel(size, approximations.BESSEL_0_NEAR, approximations.BESSEL_0_FAR, 0)


def _order_1(size: Node) -> Node:
    return _scaled_bessel(size, approximations.BESSEL_1_NEAR, approximations.BESSEL_1_FAR, 1)


def _of_i0(sources: Rates, g: Node) -> Rates:
    return (mul(g, i1(sources[0])),)


@operation("weft special method inplace")
@in_float32
def i0(input: Node) -> Node:
    """The modified Bessel function of the first kind, of order 0."""
    x = to_float(input)
    size = unary("abs", x)
    return with_slope(_multiply_by_exp(_order_0(size), size), x, _of_i0)


def _of_i0e(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, sub(i1e(x), mul(_sign(x), i0e(x)))),)


def _sign(x: Node) -> Node:
    return select(lt(x, 0.0), -1.0, select(lt(0.0, x), 1.0, x))


@operation("special")
@in_float32
def i0e(input: Node) -> Node:
    """exp(-|x|) `i0`(x)."""
    x = to_float(input)
    return with_slope(_order_0(unary("abs", x)), x, _of_i0e)


def _quotient(value: Node, x: Node) -> Node:
    """I1(x) / x, which is 1/2 at 0."""
    zero = eq(x, 0.0)
    return select(zero, 0.5, div(value, select(zero, 1.0, x)))


def _of_i1(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, sub(i0(x), _quotient(i1(x), x))),)


@operation("special")
@in_float32
def i1(input: Node) -> Node:
    """The modified Bessel function of the first kind, of order 1."""
    x = to_float(input)
    size = unary("abs", x)
    return with_slope(with_sign(_multiply_by_exp(_order_1(size), size), x), x, _of_i1)


def _of_i1e(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    value = i1e(x)
    slope = sub(sub(i0e(x), _quotient(value, x)), mul(_sign(x), value))
    return (mul(g, slope),)


@operation("special")
@in_float32
def i1e(input: Node) -> Node:
    """exp(-|x|) `i1`(x)."""
    x = to_float(input)
    return with_slope(with_sign(_order_1(unary("abs", x)), x), x, _of_i1e)
