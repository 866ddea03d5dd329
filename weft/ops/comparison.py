"""Comparison with tolerances, extrema that ignore NaN, and the divisors of integers."""

from __future__ import annotations

from weft.base.dtypes import float32
from weft.base.errors import DTypeError, RangeError, problem
from weft.graph import build
from weft.graph.body import close, final_state, make_loop
from weft.graph.build import add, eq, mul, select, sub, unary
from weft.graph.layout import make_canonical
from weft.graph.node import Node, placeholder
from weft.ops.common import Operand, meet, need_integer, need_tensors
from weft.ops.logic import isfinite
from weft.ops.registry import operation


@operation()
def isclose(input: Node, other: Node, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Node:
    """Where two tensors of one dtype are equal, or finite with |a - b| <= atol + rtol * |b|.

    >>> weft.isclose(weft.tensor([1.0, 2.0]), weft.tensor([1.0 + 1e-7, 2.1]))
    tensor([ True, False])
    """
    if input.dtype is not other.dtype:
        given = f"{input.dtype.name} and {other.dtype.name} tensors"
        raise problem(DTypeError, "isclose", given, "one dtype", "cast one with .to(dtype)")
    for name, value in (("rtol", rtol), ("atol", atol)):
        if value < 0:
            raise problem(RangeError, "isclose", f"{name}={value}", "a number of at least 0")
    a, b = meet("isclose", input, other)
    close = make_canonical("eq", (a, b))
    if equal_nan and a.dtype.kind == "f":
        close = make_canonical(
            "or", (close, make_canonical("and", (make_canonical("ne", (a, a)), make_canonical("ne", (b, b)))))
        )
    if not rtol and not atol:
        return close
    narrow = a.dtype.is_16_bit or a.dtype.kind != "f"
    a, b = (build.cast(one, float32) for one in (a, b)) if narrow else (a, b)
    error, allowed = unary("abs", sub(a, b)), add(unary("abs", mul(b, rtol)), atol)
    near = make_canonical("and", (isfinite(error), make_canonical("le", (error, allowed))))
    return make_canonical("or", (close, near))


def _of_extremum(first: Node, second: Node, wins: Node, g: Node) -> tuple[Node, Node]:
    """All to the first unless the second is better, or alone a number."""
    chosen = make_canonical("or", (wins, make_canonical("ne", (second, second))))
    return select(chosen, g, 0.0), select(chosen, 0.0, g)


def _of_fmax(sources: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    a, b = sources
    return _of_extremum(a, b, make_canonical("le", (b, a)), g)


def _of_fmin(sources: tuple[Node, ...], g: Node) -> tuple[Node, ...]:
    a, b = sources
    return _of_extremum(a, b, make_canonical("le", (a, b)), g)


def _extremum(op: str, a: Node, b: Node) -> Node:
    """max or min, of the one that is a number where the other is NaN."""
    if a.dtype.kind != "f":
        return make_canonical(op, (a, b))
    return make_canonical(
        "select",
        (
            make_canonical("ne", (a, a)),
            b,
            make_canonical("select", (make_canonical("ne", (b, b)), a, make_canonical(op, (a, b)))),
        ),
    )


@operation()
def fmax(input: Operand, other: Operand) -> Node:
    """The larger of the two; of a number and NaN the number. On ties the first gets the gradient."""
    need_tensors("fmax", input, other)
    a, b = meet("fmax", input, other)
    value = _extremum("max", a, b)
    return build.with_gradient(value, (a, b), _of_fmax) if a.dtype.kind == "f" else value


@operation()
def fmin(input: Operand, other: Operand) -> Node:
    """The smaller of the two; of a number and NaN the number. On ties the first gets the gradient."""
    need_tensors("fmin", input, other)
    a, b = meet("fmin", input, other)
    value = _extremum("min", a, b)
    return build.with_gradient(value, (a, b), _of_fmin) if a.dtype.kind == "f" else value


_DIVISIONS = {1: 13, 2: 24, 4: 47, 8: 93}  # that Euclid's algorithm needs at most, by the size of an integer
_DIVISIONS_PER_ITERATION = 4


@operation("weft method inplace")
def gcd(input: Operand, other: Operand) -> Node:
    """The greatest common divisor of integers; 0 of two zeros.

    >>> weft.gcd(weft.tensor([12, -9, 0]), weft.tensor([18, 6, 5]))
    tensor([6, 3, 5])
    """
    need_tensors("gcd", input, other)
    a, b = meet("gcd", input, other)
    need_integer("gcd", a)
    states = [placeholder(a.shape, a.dtype, a.device) for _ in range(2)]
    first, second = states
    for _ in range(_DIVISIONS_PER_ITERATION):
        done = eq(second, 0)
        first, second = (
            make_canonical("select", (done, first, second)),
            select(done, 0, make_canonical("mod", (first, second))),
        )
    body, constants, _ = close(states, [], [first, second], [])
    length = -(-_DIVISIONS[a.dtype.itemsize] // _DIVISIONS_PER_ITERATION)
    return final_state(make_loop(body, [unary("abs", a), unary("abs", b), *constants], length, False), 0)


@operation("weft method inplace")
def lcm(input: Operand, other: Operand) -> Node:
    """The least common multiple of integers; 0 if one is 0."""
    need_tensors("lcm", input, other)
    a, b = meet("lcm", input, other)
    divisor = gcd(a, b)
    return unary("abs", mul(make_canonical("div", (a, select(eq(divisor, 0), 1, divisor))), b))
