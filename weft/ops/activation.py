"""Activations. Each is written so that values and gradients stay finite wherever the true ones are."""

from __future__ import annotations

import math

from weft.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import add, div, expand, lt, mul, neg, reduce, select, stop_gradient, sub, unary
from weft.graph.gelu import gelu as tanh_gelu
from weft.graph.gelu import gelu_gradient
from weft.graph.layout import make
from weft.graph.node import Node
from weft.ops.common import in_float32, need_float, normal_axis, to_float
from weft.ops.elementwise import clamp


def relu(x: Node) -> Node:
    """max(x, 0), with slope 0 at 0; NaN stays NaN.

    >>> weft.relu(weft.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    return select(make("le", (x, build.like(x, 0))), 0, x)


def relu6(x: Node) -> Node:
    """min(max(x, 0), 6)."""
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """`x` held between two numbers, with slope 0 at and beyond them; NaN stays NaN."""
    low = select(make("le", (x, build.like(x, min_val))), min_val, x)
    return select(make("le", (build.like(x, max_val), x)), max_val, low)


@in_float32
def leaky_relu(x: Node, negative_slope: float = 0.01) -> Node:
    """x above 0, negative_slope * x below."""
    need_float("leaky_relu", x)
    return select(lt(0.0, x), x, mul(x, negative_slope))


@in_float32
def elu(x: Node, alpha: float = 1.0) -> Node:
    """x above 0, alpha * (e^x - 1) below."""
    need_float("elu", x)
    return _elu(x, alpha, 1.0)


def _elu(x: Node, alpha: float, rate: float) -> Node:
    """x above 0 and at NaN (with slope 1), alpha * (e^(rate x) - 1) below, whose slope is alpha * rate * e^(rate x)."""
    below = make("le", (x, build.like(x, 0.0)))
    scaled = select(below, x, 0.0) if rate == 1.0 else mul(select(below, x, 0.0), rate)
    value = select(below, mul(unary("expm1", scaled), alpha), x)
    return build.surrogate(value, select(below, mul(unary("exp", scaled), alpha), x))


@in_float32
def selu(x: Node) -> Node:
    """The scaled `elu` that keeps mean 0 and variance 1."""
    return mul(elu(x, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946)


def _minus_abs(x: Node) -> Node:
    """-|x|, with slope -1 at 0: `abs` has slope 0 there, which would be wrong for sums that are smooth at 0."""
    return select(lt(x, 0.0), x, neg(x))


@in_float32
def sigmoid(x: Node) -> Node:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows.

    >>> weft.sigmoid(weft.tensor([-1000.0, 0.0, 1000.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    x = to_float(x)
    small = unary("exp", _minus_abs(x))
    return div(select(lt(x, 0.0), small, 1.0), add(small, 1.0))


@in_float32
def logsigmoid(x: Node) -> Node:
    """log(sigmoid(x)) without overflow."""
    need_float("logsigmoid", x)
    return sub(select(lt(x, 0.0), x, 0.0), unary("log1p", unary("exp", _minus_abs(x))))


@in_float32
def softplus(x: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + e^(beta x)) / beta; x itself where beta x > threshold."""
    need_float("softplus", x)
    scaled = mul(x, beta)
    linear = lt(threshold, scaled)
    curve = unary("log1p", unary("exp", select(linear, 0.0, scaled)))
    return select(linear, x, mul(curve, 1.0 / beta))


@in_float32
def silu(x: Node) -> Node:
    """x * sigmoid(x)."""
    need_float("silu", x)
    return mul(x, sigmoid(x))


@in_float32
def mish(x: Node) -> Node:
    """x * tanh(softplus(x))."""
    return mul(x, unary("tanh", softplus(x)))


@in_float32
def gelu(x: Node, approximate: str = "none") -> Node:
    """x * Phi(x) with the normal distribution function; `approximate="tanh"` is the tanh form.

    >>> weft.nn.functional.gelu(weft.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    need_float("gelu", x)
    if approximate == "none":
        return mul(mul(x, 0.5), add(unary("erf", mul(x, math.sqrt(0.5))), 1.0))
    if approximate == "tanh":
        return build.with_gradient(tanh_gelu(x), (x,), gelu_gradient)
    raise problem(RangeError, "gelu", f"approximate={approximate!r}", "'none' or 'tanh'")


@in_float32
def hardsigmoid(x: Node) -> Node:
    """(x + 3) / 6 held between 0 and 1, with slope 0 from there on and at NaN."""
    need_float("hardsigmoid", x)
    value = mul(hardtanh(add(x, 3.0), 0.0, 6.0), 1.0 / 6.0)
    inside = make("and", (lt(-3.0, x), lt(x, 3.0)))
    return build.surrogate(value, select(inside, mul(x, 1.0 / 6.0), 0.0))


@in_float32
def hardswish(x: Node) -> Node:
    """x * clip(x + 3, 0, 6) / 6, with slope 0 up to -3, and 1 from 3 on and at NaN."""
    need_float("hardswish", x)
    value = mul(mul(x, clamp(add(x, 3.0), 0.0, 6.0)), 1.0 / 6.0)
    low, inside = make("le", (x, build.like(x, -3.0))), lt(x, 3.0)
    bent = select(make("and", (inside, build.unary("not", low))), x, 0.0)  # NaN and infinities would spoil the slope
    slope = select(inside, mul(mul(bent, add(bent, 3.0)), 1.0 / 6.0), x)
    return build.surrogate(value, select(low, 0.0, slope))


@in_float32
def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    need_float("softsign", x)
    return div(x, add(unary("abs", x), 1.0))


def shifted(who: str, x: Node, dim: int) -> tuple[Node, tuple[int, ...]]:
    """`x` less its maximum along `dim` (which no gradient passes), and the axes: the common start of the softmaxes."""
    need_float(who, x)
    if not x.shape:
        return sub(x, stop_gradient(x)), ()
    axes = (normal_axis(who, dim, len(x.shape)),)
    if not x.size:
        return x, axes
    peak = stop_gradient(reduce("reduce_max", x, axes, keepdim=True))
    return sub(x, expand(peak, x.shape)), axes


@in_float32
def softmax(x: Node, dim: int) -> Node:
    """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row.

    >>> weft.softmax(weft.tensor([1000.0, 1000.0]), 0)
    tensor([0.5000, 0.5000])
    """
    z, axes = shifted("softmax", x, dim)
    e = unary("exp_rounded", z)
    return mul(e, expand(div(1.0, reduce("reduce_sum", e, axes, keepdim=True)), x.shape))


@in_float32
def log_softmax(x: Node, dim: int) -> Node:
    """log(softmax(x)) without overflow."""
    z, axes = shifted("log_softmax", x, dim)
    total = reduce("reduce_sum", unary("exp_rounded", z), axes, keepdim=True)
    return sub(z, expand(unary("log", total), x.shape))


@in_float32
def celu(x: Node, alpha: float = 1.0) -> Node:
    """x above 0, alpha * (e^(x / alpha) - 1) below."""
    need_float("celu", x)
    return _elu(x, alpha, 1.0 / alpha)


def threshold(x: Node, threshold: float, value: float) -> Node:
    """x above `threshold`, `value` at and below it; NaN stays NaN."""
    return select(make("le", (x, build.like(x, threshold))), value, x)


def hardshrink(x: Node, lambd: float = 0.5) -> Node:
    """x outside [-lambd, lambd], 0 inside; NaN stays NaN."""
    need_float("hardshrink", x)
    return select(make("le", (unary("abs", x), build.like(x, lambd))), 0.0, x)


@in_float32
def softshrink(x: Node, lambd: float = 0.5) -> Node:
    """x moved towards 0 by lambd, and 0 where it would pass it; NaN stays NaN."""
    need_float("softshrink", x)
    above = select(lt(lambd, x), sub(x, lambd), mul(x, 0.0))
    inside = make("le", (unary("abs", x), build.like(x, lambd)))
    return build.surrogate(select(lt(x, -lambd), add(x, lambd), above), select(inside, 0.0, x))


@in_float32
def tanhshrink(x: Node) -> Node:
    """x - tanh(x)."""
    need_float("tanhshrink", x)
    return sub(x, unary("tanh", x))


@in_float32
def softmin(x: Node, dim: int) -> Node:
    """`softmax` of -x."""
    return softmax(neg(x), dim)


@in_float32
def glu(x: Node, dim: int = -1) -> Node:
    """The first half along `dim` times the sigmoid of the second.

    >>> weft.nn.functional.glu(weft.tensor([3.0, 0.0]))
    tensor([1.5000])
    """
    need_float("glu", x)
    axis = normal_axis("glu", dim, len(x.shape))
    if not x.shape or x.shape[axis] % 2:
        raise problem(ShapeError, "glu", f"shape {x.shape} along axis {dim}", "an even extent")
    half = x.shape[axis] // 2
    return mul(build.narrow(x, axis, 0, half), sigmoid(build.narrow(x, axis, half, 2 * half)))


@in_float32
def prelu(x: Node, weight: Node) -> Node:
    """x above 0, weight * x below; one weight, or one for each channel (axis 1)."""
    need_float("prelu", x)
    channels = x.shape[1] if len(x.shape) > 1 else 1
    if len(weight.shape) > 1 or weight.size not in (1, channels):
        raise problem(ShapeError, "prelu", f"a weight of shape {weight.shape}", f"(1,) or ({channels},)")
    shape = tuple([weight.size if axis == 1 else 1 for axis in range(len(x.shape))])
    slope = build.expand(build.reshape(build.cast(weight, x.dtype), shape if x.shape else ()), x.shape)
    return select(lt(0.0, x), x, mul(x, slope))
