"""Normalisation over the last axes: row reductions and elementwise arithmetic only, so that each is one kernel."""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.dtypes import finfo
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops.common import in_float32, need_float
from weft.ops.elementwise import add, mul
from weft.ops.moments import mean_and_variance
from weft.ops.reduce import mean
from weft.ops.registry import operation


def _row_axes(
    who: str, x: Node, normalized_shape: Sequence[int] | int, affine: Sequence[Node | None]
) -> tuple[int, ...]:
    need_float(who, x)
    tail: Shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    rank = len(x.shape)
    if not tail or x.shape[rank - len(tail) :] != tail:
        raise problem(ShapeError, who, f"shape {x.shape} with normalized_shape {tail}", "the last axes of the input")
    for node in affine:
        if node is not None and node.shape != tail:
            raise problem(ShapeError, who, f"a weight or bias of shape {node.shape}", f"{tail}")
    return tuple(range(rank - len(tail), rank))


def _scale(x: Node, power: Node, eps: float) -> Node:
    """x / sqrt(power + eps), the power given per row."""
    return build.mul(x, build.expand(build.div(1.0, build.unary("sqrt", build.add(power, eps))), x.shape))


@operation("weft functional")
@in_float32
def layer_norm(
    input: Node,
    normalized_shape: Sequence[int] | int,
    weight: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
) -> Node:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes; the variance divides by the count.

    >>> weft.nn.functional.layer_norm(weft.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    axes = _row_axes("layer_norm", input, normalized_shape, (weight, bias))
    middle, variance = mean_and_variance(input, axes)
    y = _scale(build.sub(input, build.expand(middle, input.shape)), variance, eps)
    y = y if weight is None else mul(y, weight)
    return y if bias is None else add(y, bias)


@operation("weft functional")
@in_float32
def rms_norm(
    input: Node, normalized_shape: Sequence[int] | int, weight: Node | None = None, eps: float | None = None
) -> Node:
    """x / sqrt(mean(x^2) + eps) * weight over the last axes; `eps` is the dtype's epsilon unless given."""
    axes = _row_axes("rms_norm", input, normalized_shape, (weight,))
    small = finfo(input.dtype).eps if eps is None else eps
    y = _scale(input, mean(build.mul(input, input), axes, True), small)
    return y if weight is None else mul(y, weight)
