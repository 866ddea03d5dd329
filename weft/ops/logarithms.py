"""Functions with logarithms that have cases: logit, logaddexp, xlogy, entr."""

from __future__ import annotations

import math

from weft.graph import build
from weft.graph.build import add, div, eq, lt, mul, neg, select, sub, unary
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.activation import sigmoid
from weft.ops.common import Operand, in_float32, meet, need_float, need_tensors, number_kind, to_float
from weft.ops.elementwise import clamp
from weft.ops.registry import operation

Rates = tuple[Node, ...]


def _of_logit(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    inside = make_canonical(
        "and", (make_canonical("le", (build.like(x, 0.0), x)), make_canonical("le", (x, build.like(x, 1.0))))
    )
    return (select(inside, div(g, mul(x, sub(1.0, x))), math.nan),)


@operation("weft special method inplace")
@in_float32
def logit(input: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), the inverse of `sigmoid`; NaN outside of [0, 1]. With `eps`, of x clamped to [eps, 1 - eps].

    >>> weft.logit(weft.tensor([0.0, 0.5, 0.75]), eps=0.25)
    tensor([-1.0986,  0.0000,  1.0986])
    """
    x = to_float(input)
    if eps is not None:
        number_kind("logit", eps)
        x = clamp(x, eps, 1.0 - eps)
    near = make_canonical("and", (lt(0.25, x), lt(x, 0.75)))  # log(x / (1 - x)) there, from the distance to 1/2
    distance = mul(sub(select(near, x, 0.5), 0.5), 2.0)
    value = select(
        near,
        sub(unary("log1p", distance), unary("log1p", neg(distance))),
        sub(unary("log", x), unary("log1p", neg(x))),
    )
    return build.with_gradient(value, (x,), _of_logit)


def _of_logaddexp(sources: Rates, g: Node) -> Rates:
    a, b = sources
    same = eq(a, b)  # also where both are infinite
    apart = select(same, 0.0, sub(a, b))
    return mul(g, sigmoid(apart)), mul(g, sigmoid(neg(apart)))


@operation()
@in_float32
def logaddexp(input: Operand, other: Operand) -> Node:
    """log(e^a + e^b) without overflow.

    >>> weft.logaddexp(weft.tensor([1000.0]), weft.tensor([1000.0]))
    tensor([1000.6932])
    """
    need_tensors("logaddexp", input, other)
    a, b = meet("logaddexp", input, other)
    need_float("logaddexp", a)
    apart = select(eq(a, b), 0.0, unary("abs", sub(a, b)))
    value = add(make_canonical("max", (a, b)), unary("log1p", unary("exp", neg(apart))))
    return build.with_gradient(value, (a, b), _of_logaddexp)


def _of_logaddexp2(sources: Rates, g: Node) -> Rates:
    a, b = sources
    return _of_logaddexp((mul(a, math.log(2.0)), mul(b, math.log(2.0))), g)


@operation()
@in_float32
def logaddexp2(input: Operand, other: Operand) -> Node:
    """log2(2^a + 2^b) without overflow."""
    need_tensors("logaddexp2", input, other)
    a, b = meet("logaddexp2", input, other)
    need_float("logaddexp2", a)
    apart = select(eq(a, b), 0.0, unary("abs", sub(a, b)))
    rest = unary("log1p", unary("exp", mul(apart, -math.log(2.0))))
    value = add(make_canonical("max", (a, b)), mul(rest, 1.0 / math.log(2.0)))
    return build.with_gradient(value, (a, b), _of_logaddexp2)


def _product(x: Node, factor: Node, y: Node) -> Node:
    """x times a logarithm of y: 0 at x = 0 whatever the logarithm, unless y is NaN."""
    empty = make_canonical("and", (eq(x, 0.0), eq(y, y)))
    return select(empty, 0.0, mul(x, factor))


def _of_xlogy(sources: Rates, g: Node) -> Rates:
    x, y = sources
    nothing = make_canonical("and", (eq(x, 0.0), make_canonical("le", (y, build.like(y, 0.0)))))
    return select(nothing, 0.0, mul(g, unary("log", y))), div(mul(g, x), y)


@operation("weft special method inplace")
@in_float32
def xlogy(input: Operand, other: Operand) -> Node:
    """x log(y), and 0 where x is 0 and y is not NaN.

    >>> weft.xlogy(weft.tensor([0.0, 2.0]), weft.tensor([0.0, 1.0]))
    tensor([0., 0.])
    """
    x, y = (to_float(one) for one in meet("xlogy", input, other))
    return build.with_gradient(_product(x, unary("log", y), y), (x, y), _of_xlogy)


def _of_xlog1py(sources: Rates, g: Node) -> Rates:
    x, y = sources
    nothing = make_canonical("and", (eq(x, 0.0), make_canonical("le", (y, build.like(y, -1.0)))))
    return select(nothing, 0.0, mul(g, unary("log1p", y))), div(mul(g, x), add(y, 1.0))


@operation("special")
@in_float32
def xlog1py(input: Operand, other: Operand) -> Node:
    """x log(1 + y), and 0 where x is 0 and y is not NaN."""
    x, y = (to_float(one) for one in meet("xlog1py", input, other))
    return build.with_gradient(_product(x, unary("log1p", y), y), (x, y), _of_xlog1py)


def _of_entr(sources: Rates, g: Node) -> Rates:
    (x,) = sources
    return (mul(g, sub(neg(unary("log", x)), 1.0)),)


@operation("special")
@in_float32
def entr(input: Node) -> Node:
    """-x log(x), 0 at 0 and -inf below."""
    x = to_float(input)
    value = select(eq(x, 0.0), 0.0, neg(mul(x, unary("log", x))))
    return build.with_gradient(select(lt(x, 0.0), -math.inf, value), (x,), _of_entr)
