"""Comparisons, logic, bits, and where floats are infinite or NaN."""

from __future__ import annotations

import math

from weft.base.dtypes import DType, bool_, promote
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    meet,
    need_bits,
    need_integer,
    need_tensors,
    side_of_range,
)  # fmt: skip
from weft.ops.registry import operation


def _compare(op: str, who: str, a: Operand, b: Operand) -> Node:
    """A comparison by value: integers are compared with numbers that their dtype does not hold, and with tensors
    without axes of a wider one, as if it did. `gt` and `ge` are `lt` and `le` with the operands exchanged."""
    need_tensors(who, a)
    dtype: DType | None = None
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Node) and x.dtype.kind in "iu":
            if not isinstance(y, Node):
                side = side_of_range(y, x.dtype)
                if side:
                    smaller = side > 0 if x is a else side < 0
                    value = who == "ne" or (who != "eq" and (who in ("lt", "le")) is smaller)
                    return build.full(x.shape, value, bool_, x.device)
            elif y.dtype is not x.dtype and y.dtype.kind in "iu" and not (x.shape and y.shape):
                dtype = promote(x.dtype, y.dtype)
                break
    pair = meet(who, a, b, dtype=dtype)
    return make_canonical(op, pair if who == op else pair[::-1])


@operation("weft method inplace", aliases="less cmplt", operators="__lt__")
def lt(input: Operand, other: Operand) -> Node:
    """a < b, bool."""
    return _compare("lt", "lt", input, other)


@operation("weft method inplace", aliases="less_equal", operators="__le__")
def le(input: Operand, other: Operand) -> Node:
    """a <= b, bool."""
    return _compare("le", "le", input, other)


@operation("weft method inplace", aliases="greater", operators="__gt__")
def gt(input: Operand, other: Operand) -> Node:
    """a > b, bool."""
    return _compare("lt", "gt", input, other)


@operation("weft method inplace", aliases="greater_equal", operators="__ge__")
def ge(input: Operand, other: Operand) -> Node:
    """a >= b, bool."""
    return _compare("le", "ge", input, other)


@operation("weft method inplace")
def eq(input: Operand, other: Operand) -> Node:
    """a == b, bool; NaN equals nothing."""
    return _compare("eq", "eq", input, other)


@operation("weft method inplace", aliases="not_equal")
def ne(input: Operand, other: Operand) -> Node:
    """a != b, bool."""
    return _compare("ne", "ne", input, other)


@operation("weft method inplace")
def logical_and(input: Operand, other: Operand) -> Node:
    """Both not zero."""
    need_tensors("logical_and", input, other)
    return make_canonical("and", meet("logical_and", input, other, dtype=bool_))


@operation("weft method inplace")
def logical_or(input: Operand, other: Operand) -> Node:
    """Either not zero."""
    need_tensors("logical_or", input, other)
    return make_canonical("or", meet("logical_or", input, other, dtype=bool_))


@operation("weft method inplace")
def logical_xor(input: Operand, other: Operand) -> Node:
    """Exactly one not zero."""
    need_tensors("logical_xor", input, other)
    return make_canonical("xor", meet("logical_xor", input, other, dtype=bool_))


@operation("weft method inplace")
def logical_not(input: Node) -> Node:
    """Equal to zero."""
    return build.unary("not", build.cast(input, bool_))


def _bitwise(op: str, who: str, a: Operand, b: Operand) -> Node:
    pair = meet(who, a, b)
    need_bits(who, pair[0])
    return make_canonical(op, pair)


@operation("weft method inplace", operators="__and__ __rand__ __iand__")
def bitwise_and(input: Operand, other: Operand) -> Node:
    """a & b for bool and integer tensors."""
    return _bitwise("and", "bitwise_and", input, other)


@operation("weft method inplace", operators="__or__ __ror__ __ior__")
def bitwise_or(input: Operand, other: Operand) -> Node:
    """a | b for bool and integer tensors."""
    return _bitwise("or", "bitwise_or", input, other)


@operation("weft method inplace", operators="__xor__ __rxor__ __ixor__")
def bitwise_xor(input: Operand, other: Operand) -> Node:
    """a ^ b for bool and integer tensors."""
    return _bitwise("xor", "bitwise_xor", input, other)


def _shift(op: str, who: str, a: Operand, b: Operand) -> Node:
    pair = meet(who, a, b)
    need_integer(who, pair[0])
    return make_canonical(op, pair)


@operation("weft method inplace", operators="__lshift__ __ilshift__")
def bitwise_left_shift(input: Operand, other: Operand) -> Node:
    """a << b for integer tensors."""
    return _shift("shl", "bitwise_left_shift", input, other)


@operation("weft method inplace", operators="__rshift__ __irshift__")
def bitwise_right_shift(input: Operand, other: Operand) -> Node:
    """a >> b for integer tensors; the sign stays."""
    return _shift("shr", "bitwise_right_shift", input, other)


@operation("", operators="__rlshift__")
def rlshift(b: Operand, a: Operand) -> Node:
    """a << b with the operands exchanged."""
    return bitwise_left_shift(a, b)


@operation("", operators="__rrshift__")
def rrshift(b: Operand, a: Operand) -> Node:
    """a >> b with the operands exchanged."""
    return bitwise_right_shift(a, b)


@operation("weft method inplace", operators="__invert__")
def bitwise_not(input: Node) -> Node:
    """~x for bool and integer tensors."""
    need_bits("bitwise_not", input)
    return build.unary("not", input)


@operation()
def isnan(input: Node) -> Node:
    """Where x is not a number."""
    return make_canonical("ne", (input, input))


@operation()
def isinf(input: Node) -> Node:
    """Where x is infinite."""
    return eq(build.unary("abs", input), math.inf) if input.dtype.kind == "f" else make_canonical("ne", (input, input))


@operation()
def isfinite(input: Node) -> Node:
    """Where x is neither infinite nor NaN."""
    return lt(build.unary("abs", input), math.inf) if input.dtype.kind == "f" else make_canonical("eq", (input, input))
