"""Elementwise operations for random graphs: arithmetic of floats and integers, comparisons, choices, casts, markers.

Each function draws one operation with a `random_graphs.Builder`; None where the bounds would be left.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.backend.random_values import LEAST_OVERFLOW, Value, broadcasts, unit, whole_bound
from weft.base.dtypes import SIGNED, UNSIGNED, DType, bfloat16, bool_, float16, float32, float64, int32, int64
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node

UNARY = ("neg", "abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "erf", "log1p", "expm1", "floor")
UNARY += ("exp_rounded", "logistic")


def unary(builder) -> Value | None:
    x = builder.some_float()
    if x is None:
        return None
    eps = unit(x.node.dtype)
    op = builder.pick(UNARY)
    if op in ("neg", "abs"):
        return Value(build.unary(op, x.node), x.bound, x.error)
    if op in ("sin", "cos", "tanh", "erf", "logistic"):
        slope = 1.2 if op == "erf" else 1.0
        return Value(build.unary(op, x.node), 1.0, slope * x.error + 4 * eps)
    if op in ("exp", "expm1", "exp_rounded"):
        if x.bound > 3.0:
            x = Value(build.unary("tanh", x.node), 1.0, x.error + 4 * eps)
        top = math.exp(x.bound)
        return Value(build.unary(op, x.node), top, top * (x.error + 4 * eps))
    positive = Value(build.unary("abs", x.node), x.bound, x.error)
    if op == "log1p":
        return Value(build.unary(op, positive.node), math.log1p(x.bound), x.error + 4 * eps * (1 + x.bound))
    if op == "log":
        away = build.add(positive.node, 0.5)
        return Value(build.unary(op, away), math.log(x.bound + 2.5), 2 * x.error + 8 * eps * (1 + x.bound))
    if op == "sqrt":  # right to the last bit everywhere; steep at zero, so only where the source is exact
        away = positive.node if x.exact else build.add(positive.node, 0.5)
        error = 0.0 if x.exact else x.error + 4 * eps * (1 + x.bound)
        return Value(build.unary(op, away), x.bound + 1.5, error)
    return Value(build.unary(op, x.node), x.bound + 1.0) if x.exact and not builder.smooth else None


def binary(builder) -> Value | None:
    x = builder.some_float()
    if x is None:
        return None
    y, eps = builder.partner(x), unit(x.node.dtype)
    op = builder.pick(["add", "sub", "mul", "div", "max", "min", "pow"])
    a, b = (x, y) if builder.chance(2) else (y, x)
    exact = a.exact and b.exact
    if op in ("max", "min"):
        return Value(build.binary(op, a.node, b.node), max(a.bound, b.bound), max(a.error, b.error))
    if op in ("add", "sub"):
        bound = a.bound + b.bound
        return Value(build.binary(op, a.node, b.node), bound, 0.0 if exact else a.error + b.error + eps * bound)
    if op == "mul":
        bound = a.bound * b.bound
        error = a.error * (b.bound + b.error) + b.error * a.bound + eps * bound
        return Value(build.mul(a.node, b.node), bound, 0.0 if exact else error)
    away = build.add(build.unary("abs", b.node), 0.5)
    if op == "div":
        error = 2 * a.error + 4 * a.bound * b.error + 4 * eps * a.bound
        return Value(build.div(a.node, away), 2 * a.bound, 0.0 if exact else error)
    if b.bound > 3.0:
        return None
    small = build.unary("tanh", a.node)  # pow: a base in [0.5, 3.5], an exponent in [-1, 1]
    error = 6 * (a.error + b.error + 16 * eps)
    return Value(make_node("pow", (away, small)), 4.0, error)


def whole(builder) -> Value | None:
    """Integer arithmetic. What leaves the dtype wraps around."""
    x = builder.some(lambda value: value.kind in "iu" and value.bound < 1e4)
    if x is None:
        return None
    y = builder.partner(x)
    if y.bound >= 1e4:
        return None
    op = builder.pick(
        ["add", "sub", "mul", "max", "min", "and", "or", "xor", "div", "mod", "shl", "shr", "neg", "not", "abs"]
    )
    node, bound = whole_node(builder, op, x, y)
    return Value(node, whole_bound(bound, x.node.dtype))


def whole_node(builder, op: str, x: Value, y: Value) -> tuple[Node, float]:
    bound = x.bound + y.bound
    if op in ("neg", "not", "abs"):
        return build.unary(op, x.node), x.bound + 1
    if op in ("shl", "shr"):
        return build.binary(op, x.node, builder.draw(st.integers(0, 4))), 16 * x.bound
    if op in ("div", "mod"):
        divisor = build.binary("max", build.unary("abs", y.node), 1)
        divisor = build.neg(divisor) if builder.chance(2) else divisor
        return build.binary(op, x.node, divisor), bound + 1
    if op in ("and", "or", "xor"):
        return build.binary(op, x.node, y.node), 2 * bound + 2
    return build.binary(op, x.node, y.node), x.bound * y.bound if op == "mul" else bound


def compare(builder) -> Value | None:
    x = builder.some(lambda value: value.exact and value.kind != "b")
    if x is None:
        return None
    y = builder.partner(x)
    return Value(build.binary(builder.pick(["lt", "le", "eq", "ne"]), x.node, y.node), 1.0) if y.exact else None


def logic(builder) -> Value | None:
    x = builder.some(lambda value: value.kind == "b")
    if x is None:
        return None
    op = builder.pick(["and", "or", "xor", "not", "eq", "ne"])
    return Value(build.unary(op, x.node) if op == "not" else build.binary(op, x.node, builder.partner(x).node), 1.0)


def select(builder) -> Value | None:
    x = builder.some()
    if x is None:
        return None
    shape, y = x.node.shape, builder.partner(x)
    condition = builder.some(lambda value: value.kind == "b" and broadcasts(value.node.shape, shape))
    condition = builder.leaf(shape, bool_) if condition is None else condition
    chosen = build.select(build.expand_to(condition.node, shape), x.node, y.node)
    return Value(chosen, max(x.bound, y.bound), max(x.error, y.error))


def cast(builder) -> Value | None:
    x = builder.some()
    some = builder.pick(SIGNED + UNSIGNED)
    dtypes = [float16, bfloat16, float32, float64, int32, int64, some, bool_]
    return None if x is None else cast_to(builder, x, builder.pick(dtypes))


def cast_to(builder, x: Value, dtype: DType) -> Value | None:
    if (dtype.kind in "biu" and not x.exact) or (dtype is float16 and x.bound >= LEAST_OVERFLOW):
        return None
    if dtype.kind in "iu":
        return Value(build.cast(x.node, dtype), whole_bound(max(x.bound, 1.0), dtype))
    error = x.error
    if dtype.is_16_bit and not x.exact:
        error = x.error + unit(dtype) * x.bound
    if dtype is float32 and (not x.exact or x.node.dtype is float64 or x.bound > 2**24):
        error = x.error + unit(float32) * x.bound
    if dtype is float32 and x.node.dtype is float64 and x.exact:
        error = 0.0  # one rounding of the same number
    return Value(build.cast(x.node, dtype), max(x.bound, 1.0), error)


def marker(builder) -> Value | None:
    x = builder.some()
    return (
        None
        if x is None
        else Value(
            make_node(*builder.pick([("stop_gradient", (x.node,)), ("variable", (x.node,), (builder.draws,))])),
            x.bound,
            x.error,
        )
    )
