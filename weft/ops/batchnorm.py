"""Normalisation by channel and by group: [N, C, ...] brought to mean 0 and variance 1 over some of its axes.

Variances are means of squared differences from the mean (`ops.moments`). `weft.functional.running_statistics` keeps the
statistics that a network uses when it is not training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.base.dtypes import float32, int64
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops.common import in_float32, need_float, to_float
from weft.ops.moments import mean_and_variance
from weft.ops.reduce import mean
from weft.ops.registry import operation


class Statistics(NamedTuple):
    """A normalised value, and the mean and unbiased variance of each channel that it was normalised by."""

    value: Node
    mean: Node
    variance: Node


def _channels(who: str, x: Node, *vectors: Node | None, least: int = 2) -> None:
    need_float(who, x)
    if len(x.shape) < least:
        raise problem(ShapeError, who, f"shape {x.shape}", "[N, C, ...]")
    for vector in vectors:
        if vector is not None and vector.shape != x.shape[1:2]:
            raise problem(
                ShapeError, who, f"a vector of shape {vector.shape}", f"one number per channel: {x.shape[1:2]}"
            )


def _per_channel(vector: Node, x: Node) -> Node:
    """One number per channel of `x`, everywhere."""
    wide = build.reshape(build.cast(vector, x.dtype), (1, vector.size, *(1,) * (len(x.shape) - 2)))
    return build.expand(wide, x.shape)


def _affine(y: Node, weight: Node | None, bias: Node | None) -> Node:
    y = y if weight is None else build.mul(y, _per_channel(weight, y))
    return y if bias is None else build.add(y, _per_channel(bias, y))


def _normalise(x: Node, axes: Sequence[int], eps: float) -> tuple[Node, Node, Node]:
    """(x - mean) / sqrt(variance + eps) over `axes`, and both statistics with extent 1 there."""
    middle, variance = mean_and_variance(x, axes)
    centred = build.sub(x, build.expand(middle, x.shape))
    scale = build.div(1.0, build.unary("sqrt", build.add(variance, eps)))
    return build.mul(centred, build.expand(scale, x.shape)), middle, variance


def batch_norm_training(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Statistics:
    """Each channel normalised over the batch and all positions."""
    _channels("batch_norm", x, weight, bias)
    axes = (0, *range(2, len(x.shape)))
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 1:
        given = f"shape {x.shape} in training"
        raise problem(ShapeError, "batch_norm", given, "more than one element per channel", "use a larger batch")
    wide = build.cast(x, float32) if x.dtype.is_16_bit else x
    y, middle, variance = _normalise(wide, axes, eps)
    unbiased = build.mul(variance, count / (count - 1)) if count else variance
    shape = x.shape[1:2]
    value = build.cast(_affine(y, weight, bias), x.dtype)
    return Statistics(value, build.reshape(middle, shape), build.reshape(unbiased, shape))


@in_float32
def batch_norm_inference(
    x: Node, running_mean: Node, running_var: Node, weight: Node | None, bias: Node | None, eps: float
) -> Node:
    """Each channel normalised by given statistics: one multiplication and one addition for each element."""
    _channels("batch_norm", x, running_mean, running_var, weight, bias)
    scale = build.div(1.0, build.unary("sqrt", build.add(running_var, eps)))
    scale = scale if weight is None else build.mul(scale, build.cast(weight, scale.dtype))
    shift = build.neg(build.mul(running_mean, scale))
    shift = shift if bias is None else build.add(shift, build.cast(bias, shift.dtype))
    return build.add(build.mul(x, _per_channel(scale, x)), _per_channel(shift, x))


def instance_norm_training(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Statistics:
    """Each channel of each sample normalised over its positions; the statistics are means over the batch."""
    _channels("instance_norm", x, weight, bias, least=3)
    axes = tuple(range(2, len(x.shape)))
    count = math.prod(x.shape[2:])
    if count == 1:
        given = f"shape {x.shape} in training"
        raise problem(ShapeError, "instance_norm", given, "more than one element per channel")
    wide = build.cast(x, float32) if x.dtype.is_16_bit else x
    y, middle, variance = _normalise(wide, axes, eps)
    unbiased = build.mul(variance, count / (count - 1)) if count else variance
    over = tuple(axis for axis in range(len(x.shape)) if axis != 1)
    value = build.cast(_affine(y, weight, bias), x.dtype)
    return Statistics(value, mean(middle, over), mean(unbiased, over))


@operation("weft functional")
@in_float32
def group_norm(
    input: Node, num_groups: int, weight: Node | None = None, bias: Node | None = None, eps: float = 1e-5
) -> Node:
    """Each of `num_groups` groups of channels of each sample of [N, C, ...] normalised; `weight` and `bias` [C].

    >>> weft.nn.functional.group_norm(weft.tensor([[[1.0], [3.0], [5.0], [5.0]]]), 2, eps=1e-9).flatten()
    tensor([-1.,  1.,  0.,  0.])
    """
    _channels("group_norm", input, weight, bias)
    n, c = input.shape[:2]
    if num_groups < 1 or c % num_groups:
        given = f"num_groups={num_groups} for {c} channels"
        raise problem(ShapeError, "group_norm", given, "groups of equal size")
    rows = build.reshape(input, (n, num_groups, c // num_groups, *input.shape[2:]))
    y, _, _ = _normalise(rows, tuple(range(2, len(rows.shape))), eps)
    return _affine(build.reshape(y, input.shape), weight, bias)


@operation("functional")
@in_float32
def local_response_norm(input: Node, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Node:
    """x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta; channels beyond the ends count as 0.

    >>> weft.nn.functional.local_response_norm(weft.ones(1, 1, 1), 1, alpha=3.0, beta=0.5)
    tensor([[[0.5000]]])
    """
    if input.dtype is not int64:
        need_float("local_response_norm", input)
    if len(input.shape) < 3 or size < 1:
        given = f"shape {input.shape} and size={size}"
        raise problem(
            ShapeError, "local_response_norm", given, "[N, C, ...] with at least three axes, and a size of at least 1"
        )
    if not input.size:
        return input
    rank = len(input.shape)
    lows, highs = [0] * rank, [0] * rank
    lows[1], highs[1] = size // 2, (size - 1) // 2
    squares = build.pad(build.mul(input, input), tuple(lows), tuple(highs))
    total = build.narrow(squares, 1, 0, input.shape[1])
    for step in range(1, size):
        total = build.add(total, build.narrow(squares, 1, step, step + input.shape[1]))
    if input.dtype is int64:  # the mean of whole numbers is a whole number, as in `avg_pool2d`
        input, mean_square = to_float(input), to_float(build.div(total, size))
        power = build.add(build.mul(mean_square, alpha), k)
    else:
        power = build.add(build.mul(total, alpha / size), k)
    return build.div(input, build.binary("pow", power, float(beta)))
