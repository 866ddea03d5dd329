"""Activations. Each is written so that values and gradients stay finite wherever the true ones are."""

from __future__ import annotations

import math

from weft.base.dtypes import DType
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import add, div, expand, lt, mul, neg, reduce, select, stop_gradient, sub, unary
from weft.graph.gelu import gelu as tanh_gelu
from weft.graph.gelu import gelu_gradient
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import in_float32, need_float, normal_axis, to_float
from weft.ops.elementwise import clamp
from weft.ops.registry import operation


@operation("weft functional method inplace flag")
def relu(input: Node) -> Node:
    """max(x, 0), with slope 0 at 0; NaN stays NaN.

    >>> weft.relu(weft.tensor([-1.0, 0.0, 2.0]))
    tensor([0., 0., 2.])
    """
    return select(make_canonical("le", (input, build.like(input, 0))), 0, input)


@operation("functional flag")
def relu6(input: Node) -> Node:
    """min(max(x, 0), 6)."""
    return hardtanh(input, 0.0, 6.0)


@operation("functional flag")
def hardtanh(input: Node, min_val: float = -1.0, max_val: float = 1.0) -> Node:
    """`input` clamped between two numbers, with slope 0 at and beyond them; NaN stays NaN."""
    if min_val > max_val:
        raise problem(RangeError, "hardtanh", f"min_val={min_val!r} and max_val={max_val!r}", "min_val <= max_val")
    low = select(make_canonical("le", (input, build.like(input, min_val))), min_val, input)
    return select(make_canonical("le", (build.like(input, max_val), input)), max_val, low)


@operation("functional flag")
@in_float32
def leaky_relu(input: Node, negative_slope: float = 0.01) -> Node:
    """x above 0, negative_slope * x below."""
    need_float("leaky_relu", input)
    return select(lt(0.0, input), input, mul(input, negative_slope))


@operation("functional flag")
@in_float32
def elu(input: Node, alpha: float = 1.0) -> Node:
    """x above 0, alpha * (e^x - 1) below."""
    need_float("elu", input)
    return _elu(input, alpha, 1.0)


def _elu(x: Node, alpha: float, rate: float) -> Node:
    """x above 0 and at NaN (with slope 1), alpha * (e^(rate x) - 1) below, whose slope is alpha * rate * e^(rate x)."""
    below = make_canonical("le", (x, build.like(x, 0.0)))
    scaled = select(below, x, 0.0) if rate == 1.0 else mul(select(below, x, 0.0), rate)
    value = select(below, mul(unary("expm1", scaled), alpha), x)
    return build.surrogate(value, select(below, mul(unary("exp", scaled), alpha), x))


@operation("weft functional flag")
@in_float32
def selu(input: Node) -> Node:
    """The scaled `elu` that keeps mean 0 and variance 1."""
    return mul(elu(input, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946)


def _minus_abs(x: Node) -> Node:
    """-|x|, with slope -1 at 0: `abs` has slope 0 there, which would be wrong for sums that are smooth at 0."""
    return select(lt(x, 0.0), x, neg(x))


@operation("special", name="expit")
@operation("weft functional method inplace")
@in_float32
def sigmoid(input: Node) -> Node:
    """1 / (1 + e^-x), from e^-|x| so that nothing overflows.

    >>> weft.sigmoid(weft.tensor([-1000.0, 0.0, 1000.0]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    input = to_float(input)
    small = unary("exp", _minus_abs(input))
    return div(select(lt(input, 0.0), small, 1.0), add(small, 1.0))


@operation("functional")
@in_float32
def logsigmoid(input: Node) -> Node:
    """log(sigmoid(x)) without overflow."""
    need_float("logsigmoid", input)
    return sub(select(lt(input, 0.0), input, 0.0), unary("log1p", unary("exp", _minus_abs(input))))


@operation("functional")
@in_float32
def softplus(input: Node, beta: float = 1.0, threshold: float = 20.0) -> Node:
    """log(1 + e^(beta x)) / beta; x itself where beta x > threshold."""
    need_float("softplus", input)
    scaled = mul(input, beta)
    linear = lt(threshold, scaled)
    curve = unary("log1p", unary("exp", select(linear, 0.0, scaled)))
    return select(linear, input, mul(curve, 1.0 / beta))


@operation("functional flag")
@in_float32
def silu(input: Node) -> Node:
    """x * sigmoid(x)."""
    need_float("silu", input)
    return mul(input, sigmoid(input))


@operation("functional flag")
@in_float32
def mish(input: Node) -> Node:
    """x * tanh(softplus(x))."""
    return mul(input, unary("tanh", softplus(input)))


@operation("functional")
@in_float32
def gelu(input: Node, approximate: str = "none") -> Node:
    """x * Phi(x) with the normal distribution function; `approximate="tanh"` is the tanh form.

    >>> weft.nn.functional.gelu(weft.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1587,  0.0000,  0.8413])
    """
    need_float("gelu", input)
    if approximate == "none":
        return mul(mul(input, 0.5), add(unary("erf", mul(input, math.sqrt(0.5))), 1.0))
    if approximate == "tanh":
        return build.with_gradient(tanh_gelu(input), (input,), gelu_gradient)
    raise problem(RangeError, "gelu", f"approximate={approximate!r}", "'none' or 'tanh'")


@operation("functional flag")
@in_float32
def hardsigmoid(input: Node) -> Node:
    """(x + 3) / 6 clamped between 0 and 1, with slope 0 from there on and at NaN."""
    need_float("hardsigmoid", input)
    value = mul(hardtanh(add(input, 3.0), 0.0, 6.0), 1.0 / 6.0)
    inside = make_canonical("and", (lt(-3.0, input), lt(input, 3.0)))
    return build.surrogate(value, select(inside, mul(input, 1.0 / 6.0), 0.0))


@operation("functional flag")
@in_float32
def hardswish(input: Node) -> Node:
    """x * clip(x + 3, 0, 6) / 6, with slope 0 up to -3, and 1 from 3 on and at NaN."""
    need_float("hardswish", input)
    value = mul(mul(input, clamp(add(input, 3.0), 0.0, 6.0)), 1.0 / 6.0)
    low, inside = make_canonical("le", (input, build.like(input, -3.0))), lt(input, 3.0)
    bent = select(
        make_canonical("and", (inside, build.unary("not", low))), input, 0.0
    )  # NaN and infinities would spoil the slope
    slope = select(inside, mul(mul(bent, add(bent, 3.0)), 1.0 / 6.0), input)
    return build.surrogate(value, select(low, 0.0, slope))


@operation("functional")
@in_float32
def softsign(input: Node) -> Node:
    """x / (1 + |x|)."""
    input = to_float(input)
    return div(input, add(unary("abs", input), 1.0))


def subtract_maximum(who: str, x: Node, dim: int) -> tuple[Node, tuple[int, ...]]:
    """`x` less its maximum along `dim` (which no gradient passes), and the axes: the common start of the softmaxes."""
    need_float(who, x)
    if not x.shape:
        return sub(x, stop_gradient(x)), ()
    axes = (normal_axis(who, dim, len(x.shape)),)
    if not x.size:
        return x, axes
    peak = stop_gradient(reduce("reduce_max", x, axes, keepdim=True))
    return sub(x, expand(peak, x.shape)), axes


def usual_dim(x: Node) -> int:
    """The axis of softmaxes without one, as PyTorch has it."""
    return 0 if len(x.shape) in (0, 1, 3) else 1


@operation("functional", name="softmax")
def softmax_or_usual(input: Node, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """`softmax`; without `dim`, along axis 0 of tensors of rank 0, 1 and 3, else along axis 1."""
    return softmax(input, usual_dim(input) if dim is None else dim, dtype)


@operation("weft special method")
def softmax(input: Node, dim: int, dtype: DType | None = None) -> Node:
    """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row.

    >>> weft.softmax(weft.tensor([1000.0, 1000.0]), 0)
    tensor([0.5000, 0.5000])
    """
    return _softmax(input if dtype is None else build.cast(input, dtype), dim)


@in_float32
def _softmax(x: Node, dim: int) -> Node:
    z, axes = subtract_maximum("softmax", x, dim)
    e = unary("exp_rounded", z)
    return mul(e, expand(div(1.0, reduce("reduce_sum", e, axes, keepdim=True)), x.shape))


@operation("functional", name="log_softmax")
def log_softmax_or_usual(input: Node, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """`log_softmax`; without `dim`, along axis 0 of tensors of rank 0, 1 and 3, else along axis 1."""
    return log_softmax(input, usual_dim(input) if dim is None else dim, dtype)


@operation("weft special method")
def log_softmax(input: Node, dim: int, dtype: DType | None = None) -> Node:
    """log(softmax(x)) without overflow."""
    return _log_softmax(input if dtype is None else build.cast(input, dtype), dim)


@in_float32
def _log_softmax(x: Node, dim: int) -> Node:
    z, axes = subtract_maximum("log_softmax", x, dim)
    total = reduce("reduce_sum", unary("exp_rounded", z), axes, keepdim=True)
    return sub(z, expand(unary("log", total), x.shape))


@operation("weft functional flag")
@in_float32
def celu(input: Node, alpha: float = 1.0) -> Node:
    """x above 0, alpha * (e^(x / alpha) - 1) below."""
    need_float("celu", input)
    if alpha == 0:
        raise problem(RangeError, "celu", "alpha=0", "any other number", "use relu, the limit of small alpha")
    return _elu(input, alpha, 1.0 / alpha)


@operation("weft functional flag")
def threshold(input: Node, threshold: float, value: float) -> Node:
    """x above `threshold`, `value` at and below it; NaN stays NaN."""
    return select(make_canonical("le", (input, build.like(input, threshold))), value, input)


@operation("weft functional method")
def hardshrink(input: Node, lambd: float = 0.5) -> Node:
    """x outside [-lambd, lambd], 0 inside; NaN stays NaN."""
    need_float("hardshrink", input)
    return select(make_canonical("le", (unary("abs", input), build.like(input, lambd))), 0.0, input)


@operation("functional")
@in_float32
def softshrink(input: Node, lambd: float = 0.5) -> Node:
    """x moved towards 0 by lambd, and 0 where it would pass it; NaN stays NaN."""
    need_float("softshrink", input)
    if not lambd >= 0:
        raise problem(RangeError, "softshrink", f"lambd={lambd!r}", "at least 0")
    above = select(lt(lambd, input), sub(input, lambd), mul(input, 0.0))
    inside = make_canonical("le", (unary("abs", input), build.like(input, lambd)))
    return build.surrogate(select(lt(input, -lambd), add(input, lambd), above), select(inside, 0.0, input))


@operation("functional")
@in_float32
def tanhshrink(input: Node) -> Node:
    """x - tanh(x)."""
    input = to_float(input)
    return sub(input, unary("tanh", input))


@operation("functional")
def softmin(input: Node, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Node:
    """`softmax` of -x."""
    return softmax_or_usual(neg(input), dim, dtype=dtype)


@operation("functional")
@in_float32
def glu(input: Node, dim: int = -1) -> Node:
    """The first half along `dim` times the sigmoid of the second.

    >>> weft.nn.functional.glu(weft.tensor([3.0, 0.0]))
    tensor([1.5000])
    """
    need_float("glu", input)
    axis = normal_axis("glu", dim, len(input.shape))
    if not input.shape or input.shape[axis] % 2:
        raise problem(ShapeError, "glu", f"shape {input.shape} along axis {dim}", "an even extent")
    half = input.shape[axis] // 2
    return mul(build.narrow(input, axis, 0, half), sigmoid(build.narrow(input, axis, half, 2 * half)))


@operation("weft functional method")
@in_float32
def prelu(input: Node, weight: Node) -> Node:
    """x above 0, weight * x below; one weight, or one for each channel (axis 1)."""
    need_float("prelu", input)
    channels = input.shape[1] if len(input.shape) > 1 else 1
    if len(weight.shape) > 1 or weight.size not in (1, channels):
        raise problem(ShapeError, "prelu", f"a weight of shape {weight.shape}", f"(1,) or ({channels},)")
    if weight.dtype is not input.dtype:
        raise problem(DTypeError, "prelu", f"{input.dtype.name} and {weight.dtype.name}", "tensors of one dtype")
    shape = tuple([weight.size if axis == 1 else 1 for axis in range(len(input.shape))])
    slope = build.expand(build.reshape(build.cast(weight, input.dtype), shape if input.shape else ()), input.shape)
    return select(lt(0.0, input), input, mul(input, slope))
