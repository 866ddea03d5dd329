"""What special functions are written in: polynomials, Chebyshev series, and how a function gets a slope of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.base.dtypes import DType, int16, int32, int64
from weft.graph import build
from weft.graph.build import add, lt, mul, neg, select, sub, unary
from weft.graph.node import Node

Coefficients = dict[str, tuple[float, ...]]  # by the name of a dtype
_INTEGERS = {2: int16, 4: int32, 8: int64}


def polynomial(x: Node, coefficients: Sequence[float]) -> Node:
    """c0 + c1 x + c2 x^2 + ..., by Horner's rule."""
    result = build.like(x, coefficients[-1])
    for number in reversed(coefficients[:-1]):
        result = add(mul(result, x), number)
    return result


def approximate(x: Node, table: Coefficients) -> Node:
    """A polynomial with as many terms as the dtype of `x` needs."""
    return polynomial(x, table[x.dtype.name])


def chebyshev(x: Node, low: float, high: float, table: Coefficients) -> Node:
    """A Chebyshev series over [low, high], by Clenshaw's rule."""
    coefficients = table[x.dtype.name]
    double = add(mul(x, 4.0 / (high - low)), -2.0 * (high + low) / (high - low))  # twice the position in [-1, 1]
    before, now = build.like(x, 0.0), build.like(x, coefficients[-1])
    for number in reversed(coefficients[1:-1]):
        before, now = now, add(sub(mul(double, now), before), number)
    return add(sub(mul(mul(double, 0.5), now), before), coefficients[0])


def with_slope(value: Node, x: Node, rule: Callable[[tuple[Node, ...], Node], Sequence[Node | None]]) -> Node:
    """The value of a function of `x` whose gradient is `rule((x,), g)`. The rule is a function of a module, so that
    equal expressions are one."""
    return build.with_gradient(value, (x,), rule)


def bits_dtype(dtype: DType) -> DType:
    """The signed integers as wide as a float."""
    return _INTEGERS[dtype.itemsize]


def has_sign(x: Node) -> Node:
    """Where the sign bit of a float is set: below 0, at -0.0 and at some NaN."""
    return lt(build.bitcast(x, bits_dtype(x.dtype)), 0)


def with_sign(size: Node, x: Node) -> Node:
    """`size`, which is not negative, with the sign of the float `x`."""
    return select(has_sign(x), neg(size), size)


def sin_pi(x: Node) -> Node:
    """sin(pi x), exact at whole and half numbers."""
    size = unary("abs", x)
    rest = sub(size, mul(unary("floor", mul(size, 0.5)), 2.0))  # in [0, 2)
    rest = select(lt(rest, 0.5), rest, select(lt(rest, 1.5), sub(1.0, rest), sub(rest, 2.0)))
    value = unary("sin", mul(rest, 3.141592653589793))
    return select(lt(x, 0.0), neg(value), value)


def cos_pi(x: Node) -> Node:
    """cos(pi x), exact at whole and half numbers."""
    size = unary("abs", x)
    return sin_pi(add(sub(size, mul(unary("floor", mul(size, 0.5)), 2.0)), 0.5))
