"""Functions of one operand, element by element: signs, exponentials, roots, trigonometry, rounding.

Each is a few primitives.
"""

from __future__ import annotations

import math

from weft.base.dtypes import bool_, int64
from weft.base.errors import DTypeError, ShapeError, problem
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    as_int,
    in_float32,
    need_float,
    need_numbers,
    number_kind,
    same_device,
    to_float,
)  # fmt: skip
from weft.ops.registry import operation


@operation("weft method inplace", aliases="negative", operators="__neg__")
def neg(input: Node) -> Node:
    """-x."""
    if input.dtype is bool_:
        raise problem(DTypeError, "neg", "a bool tensor", "numbers", "use ~x")
    return build.neg(input)


@operation("weft method inplace", aliases="absolute", operators="__abs__")
def abs(input: Node) -> Node:
    """|x|; the gradient at 0 is 0."""
    need_numbers("abs", input)
    return build.unary("abs", input)


@operation("weft method inplace")
def sign(input: Node) -> Node:
    """-1, 0 or 1; NaN gives 0, a bool itself. No gradient."""
    if input.dtype is bool_:
        return input
    up = build.cast(make_canonical("lt", (build.like(input, 0), input)), input.dtype)
    if input.dtype.kind == "u":
        return up
    down = build.cast(make_canonical("lt", (input, build.like(input, 0))), input.dtype)
    return build.sub(up, down)


@operation("weft method inplace")
def exp(input: Node) -> Node:
    """e to the power x.

    >>> weft.exp(weft.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """
    return build.unary("exp", to_float(input))


@operation("weft special method inplace")
@in_float32
def exp2(input: Node) -> Node:
    """2 to the power x."""
    return build.binary("pow", 2.0, to_float(input))  # exp(x log 2) would lose digits of large x


@operation("weft special method inplace")
def expm1(input: Node) -> Node:
    """exp(x) - 1, precise near 0."""
    return build.unary("expm1", to_float(input))


@operation("weft method inplace")
def log(input: Node) -> Node:
    """The natural logarithm; -inf at 0, NaN below."""
    return build.unary("log", to_float(input))


@operation("weft method inplace")
@in_float32
def log2(input: Node) -> Node:
    """The logarithm to base 2."""
    return build.mul(build.unary("log", to_float(input)), 1.0 / math.log(2.0))


@operation("weft method inplace")
@in_float32
def log10(input: Node) -> Node:
    """The logarithm to base 10."""
    return build.mul(build.unary("log", to_float(input)), 1.0 / math.log(10.0))


@operation("weft special method inplace")
def log1p(input: Node) -> Node:
    """log(1 + x), precise near 0."""
    return build.unary("log1p", to_float(input))


@operation("weft method inplace")
def sqrt(input: Node) -> Node:
    """The square root; NaN below 0."""
    return build.unary("sqrt", to_float(input))


@operation("weft method inplace")
@in_float32
def rsqrt(input: Node) -> Node:
    """1 / sqrt(x)."""
    return build.div(1.0, build.unary("sqrt", to_float(input)))


@operation("weft")
def fill(input: Node, value: Operand) -> Node:
    """`value`, a number or a tensor without axes, in the shape and dtype of `input`.

    >>> weft.fill(weft.zeros(2), 3)
    tensor([3., 3.])
    """
    if isinstance(value, Node):
        if value.shape:
            raise problem(ShapeError, "fill", f"a value of shape {value.shape}", "a number or a tensor without axes")
        same_device("fill", [input, value])
        return build.expand_to(build.cast(value, input.dtype), input.shape)
    number_kind("fill", value)
    return build.full(input.shape, value, input.dtype, input.device)


@operation("weft method inplace", aliases="recip")
def reciprocal(input: Node) -> Node:
    """1 / x."""
    return build.div(1.0, to_float(input))


@operation("weft method inplace")
def square(input: Node) -> Node:
    """x * x; of bools, as int64."""
    input = build.cast(input, int64) if input.dtype is bool_ else input
    return build.mul(input, input)


@operation("weft method inplace")
def sin(input: Node) -> Node:
    """The sine of x in radians."""
    return build.unary("sin", to_float(input))


@operation("weft method inplace")
def cos(input: Node) -> Node:
    """The cosine of x in radians."""
    return build.unary("cos", to_float(input))


@operation("weft method inplace")
@in_float32
def tan(input: Node) -> Node:
    """The tangent of x in radians."""
    return build.div(sin(input), cos(input))


@operation("weft functional method inplace")
@in_float32  # for the gradient: 1 - tanh(x)^2 of a rounded tanh(x) would have lost its digits
def tanh(input: Node) -> Node:
    """The hyperbolic tangent."""
    return build.unary("tanh", to_float(input))


@operation("weft special method inplace")
def erf(input: Node) -> Node:
    """The error function."""
    return build.unary("erf", to_float(input))


@operation("weft method inplace")
def floor(input: Node) -> Node:
    """The largest whole number not above x; the gradient is 0."""
    need_numbers("floor", input)
    return build.unary("floor", input) if input.dtype.kind == "f" else input


@operation("weft method inplace")
def ceil(input: Node) -> Node:
    """The smallest whole number not below x; the gradient is 0."""
    need_numbers("ceil", input)
    return build.neg(build.unary("floor", build.neg(input))) if input.dtype.kind == "f" else input


@operation("weft method inplace", aliases="fix")
def trunc(input: Node) -> Node:
    """The whole part of x, towards 0; the gradient is 0."""
    need_numbers("trunc", input)
    return build.select(build.lt(input, 0), ceil(input), floor(input)) if input.dtype.kind == "f" else input


@operation("weft special method inplace")
def round(input: Node, *, decimals: int = 0) -> Node:
    """The nearest whole number, ties to even; the gradient is 0. With `decimals`, the nearest with so many digits after
    the point, or with so many zeros before it if negative.

    >>> weft.round(weft.tensor([0.5, 1.5, 2.4]))
    tensor([0., 2., 2.])
    """
    decimals = as_int("round", decimals, "number of decimals")
    if decimals:
        return _round_decimals(input, decimals)
    need_numbers("round", input)
    if input.dtype.kind != "f":
        return input
    low = build.unary("floor", input)
    rest = build.sub(input, low)
    odd = build.eq(build.binary("mod", low, 2.0), 1.0)
    up = make_canonical("or", (build.lt(0.5, rest), make_canonical("and", (build.eq(rest, 0.5), odd))))
    return build.select(up, build.add(low, 1.0), low)


@in_float32
def _round_decimals(x: Node, decimals: int) -> Node:
    need_float("round", x)
    if decimals < 0:
        return build.mul(round(build.div(x, 10.0**-decimals)), 10.0**-decimals)
    return build.div(round(build.mul(x, 10.0**decimals)), 10.0**decimals)
