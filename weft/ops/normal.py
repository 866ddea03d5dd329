"""The error function's relatives and the normal distribution: erfc, erfcx, erfinv, ndtr, ndtri, log_ndtr."""

from __future__ import annotations

import math

from weft.graph.build import add, div, eq, lt, mul, neg, select, sub, unary
from weft.graph.node import Node
from weft.ops import approximations
from weft.ops.common import in_float32, to_float
from weft.ops.registry import operation
from weft.ops.series import approximate, chebyshev, with_slope

Rates = tuple[Node, ...]
TWO_OVER_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _bell(x: Node) -> Node:
    """exp(-x^2). The square is split: of a whole number of 64ths it is exact, the rest is small."""
    x = select(lt(64.0, unary("abs", x)), 64.0, x)  # 0 from there on
    coarse = mul(unary("floor", mul(x, 64.0)), 1.0 / 64.0)
    rest = mul(sub(coarse, x), add(coarse, x))
    return mul(unary("exp", neg(mul(coarse, coarse))), unary("exp", rest))


def _scaled_erfc(size: Node) -> Node:
    """exp(x^2) erfc(x) of numbers from 0 on: a polynomial in (x - 4) / (x + 4), over 1 + 2x."""
    infinite = eq(size, math.inf)
    position = select(infinite, 1.0, div(sub(size, 4.0), add(size, 4.0)))
    return div(approximate(position, approximations.SCALED_ERFC), add(mul(size, 2.0), 1.0))


def _of_erfc(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, mul(unary("exp", neg(mul(x, x))), -TWO_OVER_ROOT_PI)),)


@operation("weft special method inplace")
@in_float32
def erfc(input: Node) -> Node:
    """1 - erf(x), precise where it is small.

    >>> weft.erfc(weft.tensor([0.0, 9.0]))
    tensor([1.0000e+00, 4.1370e-37])
    """
    x = to_float(input)
    far = lt(0.5, x)
    size = select(far, x, 1.0)
    value = select(far, mul(_bell(size), _scaled_erfc(size)), sub(1.0, unary("erf", x)))
    return with_slope(value, x, _of_erfc)


def _of_erfcx(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, sub(mul(mul(x, erfcx(x)), 2.0), TWO_OVER_ROOT_PI)),)


@operation("special")
@in_float32
def erfcx(input: Node) -> Node:
    """exp(x^2) erfc(x)."""
    x = to_float(input)
    value = _scaled_erfc(unary("abs", x))
    below = select(lt(x, 0.0), x, 0.0)
    return with_slope(select(lt(x, 0.0), sub(mul(div(1.0, _bell(below)), 2.0), value), value), x, _of_erfcx)


def _inverse_erf(x: Node, depth: Node, extreme: bool) -> Node:
    """The inverse of erf at `x`, by `depth` = -log(1 - x^2): x times a function of it. `extreme` reaches beyond what
    1 - x^2 can be in `x`'s dtype."""
    root = unary("sqrt", depth)
    outer = chebyshev(root, 2.5, 6.125, approximations.INVERSE_ERF_OUTER)
    if extreme:
        far = chebyshev(root, 6.125, 27.375, approximations.INVERSE_ERF_EXTREME)
        outer = select(lt(6.125, root), far, outer)
    central = chebyshev(depth, 0.0, 6.25, approximations.INVERSE_ERF_CENTRAL)
    return mul(x, select(lt(depth, 6.25), central, outer))


def _of_erfinv(sources: Rates, g: Node) -> Rates:
    value = erfinv(sources[0])
    return (mul(g, mul(unary("exp", mul(value, value)), 1.0 / TWO_OVER_ROOT_PI)),)


@operation("weft special method inplace")
@in_float32
def erfinv(input: Node) -> Node:
    """The number whose error function is x; infinite at 1, NaN beyond."""
    x = to_float(input)
    end, inside = eq(unary("abs", x), 1.0), lt(unary("abs", x), 1.0)
    y = select(inside, x, 0.0)
    value = _inverse_erf(y, neg(unary("log", mul(sub(1.0, y), add(y, 1.0)))), extreme=False)
    outside = select(end, mul(x, math.inf), math.nan)
    return with_slope(select(inside, value, outside), x, _of_erfinv)


def _of_ndtr(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, mul(unary("exp", mul(mul(x, x), -0.5)), 1.0 / math.sqrt(2.0 * math.pi))),)


@operation("special")
@in_float32
def ndtr(input: Node) -> Node:
    """The distribution function of the standard normal distribution."""
    x = to_float(input)
    return with_slope(mul(erfc(mul(x, -math.sqrt(0.5))), 0.5), x, _of_ndtr)


def _of_ndtri(sources: Rates, g: Node) -> Rates:
    value = ndtri(sources[0])
    return (mul(g, mul(unary("exp", mul(mul(value, value), 0.5)), math.sqrt(2.0 * math.pi))),)


@operation("special")
@in_float32
def ndtri(input: Node) -> Node:
    """The inverse of `ndtr`: the quantiles of the standard normal distribution; NaN outside of [0, 1]."""
    p = to_float(input)
    inside = lt(0.0, mul(p, sub(1.0, p)))
    q = select(inside, p, 0.5)
    centred = mul(sub(q, 0.5), 2.0)
    depth = neg(add(unary("log", q), unary("log", mul(sub(1.0, q), 4.0))))
    # log(q) + log(4 (1 - q)) cancels near 1/2, where it is better from 1 - x^2
    near = neg(unary("log", mul(sub(1.0, centred), add(centred, 1.0))))
    depth = select(lt(unary("abs", centred), 0.75), near, depth)
    value = mul(_inverse_erf(centred, depth, extreme=True), math.sqrt(2.0))
    ends = select(eq(p, 0.0), -math.inf, select(eq(p, 1.0), math.inf, mul(p, math.nan)))
    return with_slope(select(inside, value, ends), p, _of_ndtri)


def _of_log_ndtr(sources: Rates, g: Node) -> Rates:
    """The slope is the density over the distribution function, whose exponentials cancel below 0."""
    (x,) = sources
    low = lt(x, 1.0)
    scaled = erfcx(mul(select(low, x, 0.0), -math.sqrt(0.5)))
    high = select(low, 0.0, x)
    density = mul(unary("exp", mul(mul(high, high), -0.5)), math.sqrt(2.0 / math.pi))
    far = div(density, erfc(mul(high, -math.sqrt(0.5))))
    return (mul(g, select(low, div(math.sqrt(2.0 / math.pi), scaled), far)),)


@operation("special")
@in_float32
def log_ndtr(input: Node) -> Node:
    """log(ndtr(x)) without underflow."""
    x = to_float(input)
    scaled = mul(x, -math.sqrt(0.5))
    low = lt(x, -1.0)
    tail = select(low, scaled, 1.0)
    below = sub(unary("log", mul(_scaled_erfc(tail), 0.5)), mul(tail, tail))
    above = unary("log1p", mul(erfc(neg(select(low, 1.0, scaled))), -0.5))
    return with_slope(select(low, below, above), x, _of_log_ndtr)
