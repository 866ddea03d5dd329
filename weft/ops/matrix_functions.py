"""Functions of matrices that are iterations of products: the exponential, and the nearest orthogonal matrix.

How often a product is repeated follows from the shape alone, so nothing is read on the way: both work lazily and inside
compiled functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.base.dtypes import float32, int32, int64
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.body import close, final_state, make_loop
from weft.graph.build import add, mul, select, sub
from weft.graph.node import Node, placeholder
from weft.ops.common import in_float32, need_float
from weft.ops.floats import frexp, power_of_two
from weft.ops.linalg import matmul
from weft.ops.registry import operation

TAYLOR_TERMS = {"float32": 18, "float64": 24}  # of e^A, |A| < 2: a multiple of 3; the next is below 1e-11 and 1e-17
MAX_SQUARINGS = 32  # e^A is right for |A| up to 2^33


@operation("weft method")
@in_float32
def matrix_exp(input: Node) -> Node:
    """The exponential of square matrices [..., n, n], by a Taylor polynomial of A / 2^s, squared s times.

    >>> weft.matrix_exp(weft.zeros(2, 2))
    tensor([[1., 0.],
            [0., 1.]])
    """
    need_float("matrix_exp", input)
    if len(input.shape) < 2 or input.shape[-1] != input.shape[-2]:
        raise problem(ShapeError, "matrix_exp", f"shape {input.shape}", "square matrices")
    if not input.size:
        return input
    last = len(input.shape) - 1
    sums = build.reduce("reduce_sum", build.unary("abs", build.stop_gradient(input)), (last - 1,), True)
    exponent = sub(frexp(build.reduce("reduce_max", sums, (last,), True)).exponent, 1)  # |A| < 2^(exponent + 1)
    halvings = build.binary("min", build.binary("max", exponent, 0), MAX_SQUARINGS)
    wide = build.cast(halvings, int32 if input.dtype is float32 else int64)
    small = mul(input, build.expand(power_of_two(build.neg(wide), input.dtype), input.shape))

    def square(state: Node, remaining: Node) -> tuple[Node, Node]:
        again = build.expand(build.lt(0, remaining), state.shape)
        return build.select(again, matmul(state, state), state), sub(remaining, 1)

    return _repeat(square, (_taylor(small), halvings), MAX_SQUARINGS)


def _repeat(step: Callable[..., tuple[Node, ...]], starts: tuple[Node, ...], times: int) -> Node:
    """The first state after a number of steps, of which one is compiled."""
    states = [placeholder(one.shape, one.dtype, one.device) for one in starts]
    body, constants, _ = close(states, [], list(step(*states)), [])
    return final_state(make_loop(body, [*starts, *constants], times, False), 0)


def _taylor(x: Node) -> Node:
    """1 + x + x^2 / 2 + ..., grouped by powers of x^3."""
    terms = TAYLOR_TERMS[x.dtype.name]
    second = matmul(x, x)
    third = matmul(second, x)

    def group(first: int) -> Node:
        """The terms of x^first, x^(first + 1) and x^(first + 2), over x^first."""
        zeroth, linear, square = (1.0 / math.factorial(first + one) for one in range(3))
        return add(add(mul(second, square), mul(x, linear)), _diagonal(x, zeroth))

    result = mul(third, 1.0 / math.factorial(terms))
    for first in range(terms - 3, 0, -3):
        result = matmul(add(result, group(first)), third)
    return add(result, group(0))


def _diagonal(x: Node, value: float) -> Node:
    """`value` on the diagonals of matrices of the shape of `x`."""
    rank = len(x.shape)
    positions = [build.iota(x.shape, axis, x.device) for axis in (rank - 2, rank - 1)]
    return select(build.binary("eq", *positions), build.like(x, value), build.like(x, 0.0))


# Odd polynomials x (a + b x^2 + c x^4) of singular values. The first lifts small ones by `LIFT` and keeps all of them
# within [0.6, 1.25] once they are there; the second converges to 1 from there, with the third power of the error.
LIFTING = (3.4445, -4.7750, 2.0315)
LIFT = LIFTING[0]
CONVERGING = (1.875, -1.25, 0.375)
CONVERGING_STEPS = 5
RARE = 1e-10  # probability that a singular value is smaller than is expected here


def orthogonal_factor(x: Node) -> Node:
    """The matrix with orthonormal columns that is nearest to `x` [m, n], m >= n, a matrix of independent normal
    numbers: U V for the singular value decomposition U S V. Its distribution is uniform (that of Haar), since it is
    turned by whatever turns `x`.

    Singular values are brought to 1 by polynomials of x^T x. How often depends on the smallest one, which lies near
    sqrt(m) - sqrt(n), and of square matrices above RARE / sqrt(n) except with a probability of RARE.
    """
    m, n = x.shape
    largest = math.sqrt(m) + math.sqrt(n) + 8.0  # larger ones have a probability below 1e-13
    smallest = max(math.sqrt(m) - math.sqrt(n) - 8.0, RARE / math.sqrt(n))
    lifts = math.ceil(math.log(largest / smallest) / math.log(LIFT))

    def step(coefficients: tuple[float, float, float]) -> Callable[[Node], tuple[Node]]:
        constant, square, fourth = coefficients

        def apply(state: Node) -> tuple[Node]:
            gram = matmul(build.swap_last(state), state)
            factor = add(mul(gram, square), mul(matmul(gram, gram), fourth))
            return (add(mul(state, constant), matmul(state, factor)),)

        return apply

    lifted = _repeat(step(LIFTING), (mul(x, 1.0 / largest),), lifts)
    return _repeat(step(CONVERGING), (lifted,), CONVERGING_STEPS)
