"""Elementwise operations: arithmetic and selection. Each is a few primitives.

Operands broadcast and promote.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.base.dtypes import DType, as_dtype, bool_, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.base.state import SETTINGS
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    broadcast_shapes,
    in_float32,
    meet,
    need_float,
    need_numbers,
    need_tensors,
    number_kind,
    result_dtype,
    same_device,
    spread,
)  # fmt: skip
from weft.ops.logic import (
    ge,
    gt,
    isnan,
    le,
    logical_or,
    lt,
)
from weft.ops.registry import operation
from weft.ops.unary_functions import reciprocal, rsqrt, trunc


@operation("method")
def cast(input: Node, dtype: DType) -> Node:
    """`input` in another dtype: float to integer truncates, anything to bool is `!= 0`."""
    return build.cast(input, as_dtype("to", dtype))


@operation()
def clone(input: Node) -> Node:
    """The same value in a tensor of its own; gradients pass."""
    return input


# ---- arithmetic -------------------------------------------------------------------------------------------------


def _binary(op: str, who: str, a: Operand, b: Operand) -> Node:
    return make_canonical(op, meet(who, a, b))


def _arithmetic(op: str, who: str, a: Operand, b: Operand) -> Node:
    pair = meet(who, a, b)
    need_numbers(who, pair[0])
    return make_canonical(op, pair)


@operation("weft method inplace", operators="__add__ __radd__ __iadd__")
def add(input: Operand, other: Operand, *, alpha: float | int = 1) -> Node:
    """a + alpha * b. Two bool tensors: logical or.

    >>> weft.add(weft.tensor([1.0, 2.0]), weft.tensor([10.0, 20.0]), alpha=2)
    tensor([21., 42.])
    """
    if alpha != 1 or alpha is True:
        dtype = _check_alpha("add", input, other, alpha)
        if dtype is bool_:  # the product of bools is a bool
            other, alpha = (other if alpha else False), 1
        else:
            return _add_scaled(input, other, alpha)
    pair = meet("add", input, other)
    return make_canonical("or" if pair[0].dtype is bool_ else "add", pair)


@in_float32
def _add_scaled(a: Operand, b: Operand, alpha: float | int) -> Node:
    return add(a, mul(b, alpha) if isinstance(b, Node) else b * alpha)


@in_float32
def _sub_scaled(a: Operand, b: Operand, alpha: float | int) -> Node:
    return sub(a, mul(b, alpha) if isinstance(b, Node) else b * alpha)


def _check_alpha(who: str, a: Operand, b: Operand, alpha: float | int) -> DType | None:
    """The dtype of a + alpha * b. Integers take no float for `alpha`, numbers no bool, as in PyTorch."""
    if not isinstance(a, Node) and not isinstance(b, Node):
        return None
    dtype = result_dtype(who, (a, b))
    kind = number_kind(who, alpha)
    if (kind == "f" and dtype.kind != "f") or (kind == "b" and dtype is not bool_):
        given = f"a factor of {alpha!r} for {dtype.name}"
        raise problem(DTypeError, who, given, "one of the same kind as the result", "cast the tensor with .float()")
    return dtype


@operation("weft method inplace", aliases="subtract", operators="__sub__ __isub__")
def sub(input: Operand, other: Operand, *, alpha: float | int = 1) -> Node:
    """a - alpha * b."""
    if alpha != 1 or alpha is True:
        if _check_alpha("sub", input, other, alpha) is bool_:
            need_numbers("sub", meet("sub", input, other)[0])
        return _sub_scaled(input, other, alpha)
    return _arithmetic("sub", "sub", input, other)


@operation("weft", operators="__rsub__")
def rsub(input: Operand, other: Operand, *, alpha: float | int = 1) -> Node:
    """other - alpha * input: what `number - tensor` calls."""
    need_tensors("rsub", input)
    return sub(other, input, alpha=alpha)


@operation("weft method inplace", aliases="multiply", operators="__mul__ __rmul__ __imul__")
def mul(input: Operand, other: Operand) -> Node:
    """a * b. Two bool tensors: logical and."""
    pair = meet("mul", input, other)
    return make_canonical("and" if pair[0].dtype is bool_ else "mul", pair)


@operation("weft method inplace", aliases="divide", operators="__truediv__ __itruediv__")
def div(input: Operand, other: Operand, *, rounding_mode: str | None = None) -> Node:
    """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'.

    >>> weft.div(weft.tensor([7, -7]), 2, rounding_mode="trunc")
    tensor([ 3, -3])
    """
    if rounding_mode is None:
        default = SETTINGS.default_dtype
        dtype = result_dtype("div", (input, other)) if isinstance(input, Node) or isinstance(other, Node) else default
        return make_canonical("div", meet("div", input, other, dtype=dtype if dtype.kind == "f" else default))
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise problem(RangeError, "div", f"rounding_mode={rounding_mode!r}", "None, 'floor' or 'trunc'")
    input, other = meet("div", input, other)
    need_numbers("div", input)
    if input.dtype.kind == "f":
        return trunc(make_canonical("div", (input, other)))
    down = make_canonical("div", (input, other))
    return down if input.dtype.kind == "u" else build.select(_signs_part(input, other), build.add(down, 1), down)


def _signs_part(a: Node, b: Node) -> Node:
    """Where integer division has a rest and the signs differ: there rounding down and towards 0 differ."""
    uneven = build.binary("ne", make_canonical("mod", (a, b)), 0)
    return make_canonical("and", (uneven, make_canonical("xor", (build.lt(a, 0), build.lt(b, 0)))))


@operation("weft method inplace")
def true_divide(input: Operand, other: Operand) -> Node:
    """`div` without rounding."""
    return div(input, other)


@operation("", operators="__rtruediv__")
def rdiv(b: Operand, a: Operand) -> Node:
    """a / b with the operands exchanged."""
    return div(a, b)


@operation("weft method inplace", operators="__floordiv__ __ifloordiv__")
@in_float32
def floor_divide(input: Operand, other: Operand) -> Node:
    """The quotient rounded down, from the exact remainder. Integer division by zero gives 0, and the least integer by
    -1 itself.

    >>> weft.tensor([7.0, -5.0, float("inf")]) // weft.tensor([2.0, float("inf"), 2.0])
    tensor([ 3., -1., nan])
    """
    pair = meet("floor_divide", input, other)
    need_numbers("floor_divide", pair[0])
    return make_canonical("floor_divide" if pair[0].dtype.kind == "f" else "div", pair)


@operation("", operators="__rfloordiv__")
def rfloor_divide(b: Operand, a: Operand) -> Node:
    """a // b with the operands exchanged."""
    return floor_divide(a, b)


@operation("weft method inplace", aliases="mod", operators="__mod__ __imod__")
def remainder(input: Operand, other: Operand) -> Node:
    """The exact rest of a / b with the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where
    the signs differ; by zero it is NaN, or 0 for integers.

    >>> weft.tensor([1e8, -7.0]) % 3
    tensor([1., 2.])
    """
    return _arithmetic("mod", "remainder", input, other)


@operation("", operators="__rmod__")
def rremainder(b: Operand, a: Operand) -> Node:
    """a % b with the operands exchanged."""
    return remainder(a, b)


@operation("weft method inplace")
@in_float32
def fmod(input: Operand, other: Operand) -> Node:
    """The exact rest of a / b with the sign of the dividend, as C's fmod.

    >>> weft.fmod(weft.tensor([-7.0, 7.0]), 3)
    tensor([-1.,  1.])
    """
    need_tensors("fmod", input)
    input, other = meet("fmod", input, other)
    need_numbers("fmod", input)
    if input.dtype.kind != "f":
        rest = make_canonical("mod", (input, other))
        return (
            rest if input.dtype.kind == "u" else build.select(_signs_part(input, other), build.sub(rest, other), rest)
        )
    rest = make_canonical("mod", (build.unary("abs", input), build.unary("abs", other)))
    at_zero = build.select(build.eq(input, 0.0), build.sub(input, rest), rest)  # -0 stays
    value = build.select(build.lt(input, 0.0), build.neg(rest), at_zero)
    whole = trunc(make_canonical("div", (input, other)))  # has no gradient
    return build.surrogate(value, build.sub(input, build.mul(other, whole)))


@operation("weft method inplace", operators="__pow__ __ipow__")
@in_float32
def pow(input: Operand, exponent: Operand) -> Node:
    """a to the power b. Small whole exponents, 0.5 and -1 become products, roots and quotients.

    >>> weft.tensor([1.0, 2.0, 3.0]) ** 2
    tensor([1., 4., 9.])
    """
    if isinstance(input, Node) and not isinstance(exponent, Node):
        number_kind("pow", exponent)
        dtype = result_dtype("pow", (input, exponent))
        if dtype.kind in "iu" and exponent < 0:
            raise problem(
                DTypeError,
                "pow",
                f"{input.dtype.name} to the power {exponent}",
                "an exponent of 0 or more",
                "use x.float()",
            )
        x = build.cast(input, dtype)
        if exponent in (1, 2, 3):
            return x if exponent == 1 else build.mul(x, x) if exponent == 2 else build.mul(build.mul(x, x), x)
        if exponent in (0.5, -0.5, -1):
            return build.unary("sqrt", x) if exponent == 0.5 else rsqrt(x) if exponent == -0.5 else reciprocal(x)
    base, exponent = meet("pow", input, exponent)
    return make_canonical("pow", (base, exponent)) if base.dtype.kind == "f" else _integer_pow(base, exponent)


def _integer_pow(base: Node, exponent: Node) -> Node:
    """Six squarings. Exponents above 63 keep their parity only, which is exact for the bases -1, 0 and 1 (all others
    have overflowed by then); a negative exponent gives the truncated quotient 1 / base^-exponent."""
    if base.dtype is bool_:
        raise problem(DTypeError, "pow", "bool tensors", "numbers", "cast one with .int()")
    negative = build.lt(exponent, 0)
    size = build.select(negative, build.neg(exponent), exponent)
    size = build.select(build.lt(63, size), build.add(build.binary("and", size, 1), 62), size)
    result, square_of = build.like(base, 1), base
    for bit in range(6):
        odd = build.binary("ne", build.binary("and", size, 1 << bit), 0)
        result = build.select(odd, build.mul(result, square_of), result)
        square_of = build.mul(square_of, square_of)
    is_unit = build.eq(build.unary("abs", base), 1)
    return make_canonical("select", (negative, build.select(is_unit, result, 0), result))


@operation("", operators="__rpow__")
def rpow(b: Operand, a: Operand) -> Node:
    """a ** b with the operands exchanged."""
    return pow(a, b)


@operation()
def maximum(input: Operand, other: Operand) -> Node:
    """The larger of the two; NaN if either is. On ties each side gets half the gradient."""
    return _binary("max", "maximum", input, other)


@operation()
def minimum(input: Operand, other: Operand) -> Node:
    """The smaller of the two; NaN if either is. On ties each side gets half the gradient."""
    return _binary("min", "minimum", input, other)


@operation("weft method inplace")
@in_float32
def addcmul(input: Node, tensor1: Node, tensor2: Node, *, value: float | int = 1) -> Node:
    """x + value * a * b."""
    return add(input, mul(tensor1, tensor2), alpha=value)


@operation("weft method inplace")
@in_float32
def addcdiv(input: Node, tensor1: Node, tensor2: Node, *, value: float | int = 1) -> Node:
    """x + value * a / b, of floats."""
    if tensor1.dtype.kind != "f" and tensor2.dtype.kind != "f":
        given = f"{tensor1.dtype.name} divided by {tensor2.dtype.name}"
        raise problem(DTypeError, "addcdiv", given, "a float among them", "cast one with .float()")
    return add(input, div(tensor1, tensor2), alpha=value)


@operation("weft method inplace")
@in_float32
def lerp(input: Node, end: Node, weight: Operand) -> Node:
    """a + weight * (b - a).

    >>> weft.lerp(weft.tensor([0.0]), weft.tensor([10.0]), 0.25)
    tensor([2.5000])
    """
    for node in (input, end, weight):
        if isinstance(node, Node):
            need_float("lerp", node)
            if node.dtype is not input.dtype:
                given = f"{input.dtype.name} and {node.dtype.name} tensors"
                raise problem(DTypeError, "lerp", given, "one dtype", "cast one with .to(dtype)")
    return add(input, mul(sub(end, input), weight))


# ---- selection --------------------------------------------------------------------------------------------------


def where(condition: Node, input: Operand, other: Operand) -> Node:
    """`input` where the bool condition holds, else `other`; all three broadcast."""
    if not isinstance(condition, Node) or condition.dtype is not bool_:
        given = condition.dtype.name if isinstance(condition, Node) else type(condition).__name__
        raise problem(DTypeError, "where", f"a condition of type {given}", "a bool tensor", "write it as a comparison")
    tensors = [value for value in (input, other) if isinstance(value, Node)]
    if tensors:
        dtype = result_dtype("where", (input, other))
    else:  # two numbers: the dtype that weft.tensor would give them
        kind = max((number_kind("where", value) for value in (input, other)), key="bif".index)
        dtype = {"b": bool_, "i": int64, "f": SETTINGS.default_dtype}[kind]
    device = same_device("where", [condition, *tensors])
    shape = broadcast_shapes("where", [condition.shape, *(value.shape for value in tensors)])
    chosen = [spread("where", value, shape, dtype, device) for value in (input, other)]
    return make_canonical("select", (build.expand_to(condition, shape), *chosen))


@operation("method", name="where")
def where_of(input: Node, condition: Node, other: Operand) -> Node:
    """`input` where the bool condition holds, else `other`; all three broadcast."""
    return where(condition, input, other)


@operation("weft method inplace")
def masked_fill(input: Node, mask: Node, value: Operand) -> Node:
    """`input` with `value`, a number or a tensor without axes, where the bool mask holds."""
    if isinstance(value, Node) and value.shape:
        given = f"a value of shape {value.shape}"
        raise problem(
            ShapeError, "masked_fill", given, "a number or a tensor of shape ()", "use where or masked_scatter"
        )
    return build.cast(where(mask, value, input), input.dtype)


@operation("weft method inplace", aliases="clip")
def clamp(input: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    """`input` clamped between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none.

    >>> weft.clamp(weft.tensor([-2.0, 0.5, 2.0]), -1, 1)
    tensor([-1.0000,  0.5000,  1.0000])
    """
    if min is None and max is None:
        raise problem(DTypeError, "clamp", "neither min nor max", "at least one of them")
    if isinstance(min, Node) and isinstance(max, Node):
        min = where(lt(min, max), min, build.stop_gradient(min))  # the lower bound has a slope only below the upper
    if min is not None:
        input = _bound(input, min, lt, ge)
    return input if max is None else _bound(input, max, gt, le)


@operation("weft method inplace")
def clamp_min(input: Node, min: Operand) -> Node:
    """`input` where it is larger than `min`, else `min`."""
    return _bound(input, min, lt, ge)


@operation("weft method inplace")
def clamp_max(input: Node, max: Operand) -> Node:
    """`input` where it is smaller than `max`, else `max`."""
    return _bound(input, max, gt, le)


def _bound(x: Node, bound: Operand, beyond: Callable[..., Node], within: Callable[..., Node]) -> Node:
    """`bound` where `x` lies beyond it, and where it is NaN. An `x` that is NaN stays and has no gradient."""
    outside = beyond(x, bound)
    if isinstance(bound, Node) and bound.dtype.kind == "f":
        outside = logical_or(outside, isnan(bound))
    value = where(outside, bound, x)
    if x.dtype.kind != "f" or value.dtype.kind != "f":
        return value
    return build.surrogate(value, where(within(x, bound), x, where(outside, bound, build.like(value, 0.0))))
