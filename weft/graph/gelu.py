"""The tanh form of GELU, written down once: for operations, which make it, and for the compiler, which looks for it.

x (1 + tanh(u)) / 2 is x / (1 + e^-2u), with 2u = LINEAR * x + CUBIC * x^3.
"""

from __future__ import annotations

import math

from weft.graph.build import add, mul, sub, unary
from weft.graph.node import Node

LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = 0.044715 * LINEAR


def gelu(x: Node) -> Node:
    return mul(x, _weight(x))


def gelu_gradient(sources: tuple[Node, ...], g: Node) -> tuple[Node]:
    """w (1 + x (1 - w) (2u)') for the weight w: half of what the chain rule takes, and with w as a factor it vanishes
    with the function."""
    (x,) = sources
    weight = _weight(x)
    slope = add(mul(mul(x, x), 3.0 * CUBIC), LINEAR)
    inner = mul(mul(x, sub(1.0, weight)), slope)
    return (mul(g, mul(weight, add(inner, 1.0))),)


def _weight(x: Node) -> Node:
    return unary("logistic", mul(x, add(mul(mul(x, x), CUBIC), LINEAR)))
