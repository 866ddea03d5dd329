"""The gamma function's relatives: lgamma, digamma, polygamma.

All are reduced to arguments from 8 on, where their asymptotic series are exact to float64 after nine terms.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

from weft.base.errors import RangeError, problem
from weft.graph import build
from weft.graph.build import add, div, eq, lt, mul, neg, select, sub, unary
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops import approximations
from weft.ops.common import as_int, in_float32, to_float
from weft.ops.registry import operation
from weft.ops.series import approximate, cos_pi, has_sign, polynomial, sin_pi, with_slope

Rates = tuple[Node, ...]
LARGE = 8  # from here on asymptotic series are used


@functools.cache
def _bernoulli() -> tuple[Fraction, ...]:
    """The Bernoulli numbers B2, B4, ..., B24."""
    numbers = [Fraction(1)]
    for n in range(1, 25):
        total = sum((math.comb(n + 1, k) * numbers[k] for k in range(n)), Fraction(0))
        numbers.append(-total / (n + 1))
    return tuple(numbers[2::2])


def _is_whole(x: Node) -> Node:
    return eq(unary("floor", x), x)


# --- log gamma -------------------------------------------------------------------------------------------------------


def _large_log_gamma(x: Node) -> Node:
    """Stirling's series, for x >= 8."""
    terms = tuple([float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(_bernoulli()[:9], 1)])
    inverse = div(1.0, x)
    log = unary("log", x)
    infinite = eq(x, math.inf)
    body = add(mul(sub(x, 0.5), sub(log, 1.0)), 0.5 * math.log(2.0 * math.pi) - 0.5)
    return select(infinite, math.inf, add(body, mul(inverse, polynomial(mul(inverse, inverse), terms))))


def _small_log_gamma(x: Node) -> Node:
    """For 0 < x < 8: brought to [1.5, 3) by the recurrence, then a polynomial. Zeros at 1 and 2 stay precise."""
    below_1, below_2 = lt(x, 0.5), lt(x, 1.5)
    product, steps = build.like(x, 1.0), build.like(x, 0.0)
    for n in range(1, LARGE - 2):
        again = make_canonical("le", (build.like(x, n + 2.0), x))
        product = select(again, mul(product, sub(x, float(n))), product)
        steps = select(again, float(n), steps)
    rest = select(below_1, x, select(below_2, sub(x, 1.0), sub(sub(x, steps), 2.0)))
    value = mul(rest, approximate(rest, approximations.LOG_GAMMA))
    before = select(below_2, unary("log1p", rest), neg(unary("log", product)))  # of x + 1 where x < 0.5, or of x
    tiny = select(below_1, unary("log", select(below_1, x, 1.0)), 0.0)
    return sub(sub(value, before), tiny)


def _of_lgamma(sources: Rates, g: Node) -> Rates:
    return (mul(g, digamma(sources[0])),)


@operation("special", name="gammaln")
@operation("weft method inplace")
@in_float32
def lgamma(input: Node) -> Node:
    """The logarithm of |gamma(x)|; infinite at 0, -1, -2, ...

    >>> weft.lgamma(weft.tensor([1.0, 0.5, 5.0]))
    tensor([0.0000, 0.5724, 3.1781])
    """
    x = to_float(input)
    size = unary("abs", x)
    large = lt(float(LARGE), size)
    small = select(large, 2.0, select(eq(size, 0.0), 1.0, size))
    value = select(large, _large_log_gamma(select(large, size, float(LARGE))), _small_log_gamma(small))
    # gamma(-x) gamma(x) = -pi / (x sin(pi x))
    area = mul(unary("abs", sin_pi(size)), size)
    mirrored = sub(sub(math.log(math.pi), unary("log", area)), value)
    pole = make_canonical("and", (make_canonical("le", (x, build.like(x, 0.0))), _is_whole(x)))
    negative = select(lt(x, 0.0), mirrored, value)
    undefined = make_canonical("ne", (x, x))
    return with_slope(select(undefined, x, select(pole, math.inf, negative)), x, _of_lgamma)


@operation("special", name="multigammaln")
@operation("weft method inplace")
@in_float32
def mvlgamma(input: Node, p: int) -> Node:
    """The logarithm of the multivariate gamma function of dimension `p`."""
    p = as_int("mvlgamma", p, "dimension")
    if p < 1:
        raise problem(RangeError, "mvlgamma", f"p={p}", "a dimension of at least 1")
    x = to_float(input)
    total = build.like(x, p * (p - 1) / 4.0 * math.log(math.pi))
    for n in range(p):
        total = add(total, lgamma(sub(x, n / 2.0)))
    return total


# --- digamma and its derivatives -------------------------------------------------------------------------------------


def _positive_digamma(x: Node) -> Node:
    """For x > 0: psi(x) = psi(x + 8) - 1/x - ... - 1/(x + 7), and the asymptotic series beyond 8."""
    small = lt(x, float(LARGE))
    low = select(small, x, 1.0)
    top, bottom = build.like(x, 0.0), build.like(x, 1.0)
    for n in range(1, LARGE):
        factor = add(low, float(n))
        top, bottom = add(mul(top, factor), bottom), mul(bottom, factor)
    y = select(small, add(x, float(LARGE)), x)
    inverse = div(1.0, y)
    square = mul(inverse, inverse)
    terms = tuple([float(b / (2 * k)) for k, b in enumerate(_bernoulli()[:9], 1)])
    far = sub(sub(unary("log", y), mul(inverse, 0.5)), mul(square, polynomial(square, terms)))
    return select(small, sub(sub(far, div(top, bottom)), div(1.0, low)), far)


def _of_digamma(sources: Rates, g: Node) -> Rates:
    return (mul(g, _polygamma(1, sources[0])),)


@operation("special", name="psi")
@operation("weft special method inplace")
@in_float32
def digamma(input: Node) -> Node:
    """The derivative of `lgamma`. At 0 it is infinite, with the sign of -x; NaN at -1, -2, ..."""
    x = to_float(input)
    negative = lt(x, 0.0)
    whole = _is_whole(x)
    at_zero = select(has_sign(x), math.inf, build.like(x, -math.inf))
    regular = lt(0.0, unary("abs", x))
    size = select(regular, select(negative, sub(1.0, x), x), 1.0)
    value = _positive_digamma(size)
    # psi(1 - x) - psi(x) = pi cot(pi x)
    sine = select(make_canonical("or", (whole, unary("not", negative))), 1.0, sin_pi(x))
    mirrored = sub(value, div(mul(cos_pi(x), math.pi), sine))
    below = select(whole, math.nan, mirrored)
    value = select(regular, select(negative, below, value), select(eq(x, 0.0), at_zero, x))
    return with_slope(value, x, _of_digamma)


def _hurwitz_zeta(s: Node, q: Node) -> Node:
    """sum over k >= 0 of (q + k)^-s for s > 1, q > 0, by Euler's and Maclaurin's formula from k = 9 on."""
    minus = neg(s)
    total = make_canonical("pow", (q, minus))
    for k in range(1, 10):
        total = add(total, make_canonical("pow", (add(q, float(k)), minus)))
    last = add(q, 9.0)
    term = make_canonical("pow", (last, minus))
    total = sub(add(total, div(mul(term, last), sub(s, 1.0))), mul(term, 0.5))
    inverse = div(1.0, last)
    square = mul(inverse, inverse)
    factor = mul(mul(term, inverse), s)  # s (s + 1) ... (s + 2k - 2) last^(-s - 2k + 1)
    for k, b in enumerate(_bernoulli(), 1):
        total = add(total, mul(factor, float(b / math.factorial(2 * k))))
        factor = mul(mul(factor, square), mul(add(s, 2.0 * k - 1.0), add(s, 2.0 * k)))
    return total


@functools.cache
def _cotangent_derivative(n: int) -> tuple[float, ...]:
    """The n-th derivative of the cotangent as a polynomial in the cotangent: c' = -(1 + c^2)."""
    numbers = [0.0, 1.0]
    for _ in range(n):
        slope = [power * number for power, number in enumerate(numbers)][1:]
        numbers = [0.0] * (len(slope) + 2)
        for power, number in enumerate(slope):
            numbers[power] -= number
            numbers[power + 2] -= number
    return tuple(numbers)


@functools.cache
def _of_polygamma(n: int) -> Callable[[Rates, Node], Rates]:
    def rule(sources: Rates, g: Node) -> Rates:
        return (mul(g, _polygamma(n + 1, sources[0])),)

    return rule


@in_float32
def _polygamma(n: int, x: Node) -> Node:
    if n == 0:
        return digamma(x)
    sign = 1.0 if n % 2 else -1.0
    negative, whole = lt(x, 0.0), _is_whole(x)
    size = select(lt(0.0, unary("abs", x)), select(negative, sub(1.0, x), x), 1.0)
    value = mul(_hurwitz_zeta(build.like(x, n + 1.0), size), sign * math.factorial(n))
    # psi_n(x) = (-1)^n psi_n(1 - x) - pi d^n/dx^n cot(pi x)
    inner = make_canonical("and", (negative, unary("not", whole)))
    cotangent = div(cos_pi(x), select(inner, sin_pi(x), 1.0))
    mirror = mul(polynomial(cotangent, _cotangent_derivative(n)), math.pi ** (n + 1))
    mirrored = sub(value if n % 2 == 0 else neg(value), mirror)
    pole = make_canonical("and", (make_canonical("le", (x, build.like(x, 0.0))), whole))
    pole = make_canonical("and", (pole, lt(-math.inf, x)))
    value = select(pole, sign * math.inf, select(negative, mirrored, value))
    value = select(eq(x, math.inf), 0.0, select(make_canonical("ne", (x, x)), x, value))
    return with_slope(value, x, _of_polygamma(n))


@operation("weft special", overloads=("(n: int, input: Tensor) -> Tensor",))
def polygamma(n: int, input: Node) -> Node:
    """The n-th derivative of `digamma`."""
    n = as_int("polygamma", n, "order")
    if n < 0:
        raise problem(RangeError, "polygamma", f"n={n}", "an order of at least 0")
    return _polygamma(n, to_float(input))


@operation("method inplace", name="polygamma")
def polygamma_of(input: Node, n: int) -> Node:
    """The n-th derivative of `digamma`."""
    return polygamma(n, input)
