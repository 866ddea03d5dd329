"""Average pooling, and pooling by norms: the windows of `weft.ops.pool`, each summed and divided."""

from __future__ import annotations

import functools
import math

from weft.base.dtypes import int32, int64
from weft.base.errors import RangeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops.common import Sizes, as_int, need_float
from weft.ops.pool import MAX_UNROLLED_POSITIONS, Windows, windows
from weft.ops.registry import operation


def total_of(where: Windows, x: Node) -> Node:
    """The sum of every window; padding counts as 0."""
    views = where.of(x, 0)
    total = where.reduce_windows("reduce_sum", views)
    if math.prod(where.kernel) > MAX_UNROLLED_POSITIONS:
        return total
    chain = functools.reduce(build.add, [part for _, part in where.slices(views)])
    return build.surrogate(chain, total) if x.dtype.kind == "f" else chain


def _count_covered(where: Windows, axis: int, padded: bool) -> list[int]:
    """How many elements each window along `axis` covers, the padding counted or not."""
    low, n = where.lows[axis], where.extents[axis]
    begin, end = (-low, n + low) if padded else (0, n)
    starts = [o * where.stride[axis] - low for o in range(where.counts[axis])]
    return [min(start + where.kernel[axis], end) - max(start, begin) for start in starts]


def _count_covered_node(where: Windows, shape: Shape, axis: int, padded: bool, like: Node) -> Node:
    """`_count_covered` as a tensor of `shape`, computed from the window's number."""
    low, n = where.lows[axis], where.extents[axis]
    begin, end = (-low, n + low) if padded else (0, n)
    number = build.iota(shape, len(shape) - where.rank + axis, like.device, int32)
    start = build.sub(build.mul(number, where.stride[axis]), low)
    stop = build.binary("min", build.add(start, where.kernel[axis]), end)
    return build.cast(build.sub(stop, build.binary("max", start, begin)), like.dtype)


def _avg_pool(
    who: str,
    rank: int,
    x: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None = None,
) -> Node:
    if x.dtype is not int64:
        need_float(who, x)
    where = windows(who, x, rank, kernel_size, stride, padding, 1, ceil_mode)
    total = total_of(where, x)
    if divisor_override is not None:
        if as_int(who, divisor_override, "divisor_override") == 0:
            raise problem(RangeError, who, "divisor_override=0", "an int that is not 0")
        return _divide(total, divisor_override)
    fixed, uneven = 1, []
    for axis in range(rank):
        covered = _count_covered(where, axis, count_include_pad)
        if len(set(covered)) == 1:
            fixed *= covered[0]
        else:
            uneven.append(_count_covered_node(where, total.shape, axis, count_include_pad, total))
    if x.dtype is int64:
        return _divide(total, functools.reduce(build.mul, uneven, build.like(total, fixed)))
    total = _divide(total, fixed) if fixed > 1 else total
    return build.div(total, functools.reduce(build.mul, uneven)) if uneven else total


def _divide(total: Node, count: Node | int) -> Node:
    """Sums over counts; whole numbers are rounded towards 0, as in PyTorch."""
    if total.dtype.kind == "f":
        return build.mul(total, 1.0 / count) if isinstance(count, int) else build.div(total, count)
    if isinstance(count, int) and count < 0:
        return build.neg(_divide(total, -count))
    below = build.lt(total, 0)
    quotient = build.div(build.select(below, build.neg(total), total), count)
    return build.select(below, build.neg(quotient), quotient)


@operation("weft functional")
def avg_pool1d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Node:
    """The mean of every window over the last axis; see `avg_pool2d`."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad)


@operation("functional")
def avg_pool2d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The mean of every window over the last two axes of [N, C, H, W] or [C, H, W]. The sum is divided by the elements
    that the window covers, padding among them unless `count_include_pad` is False, or by `divisor_override`.

    >>> weft.nn.functional.avg_pool2d(weft.arange(16).float().reshape(1, 4, 4), 2)
    tensor([[[ 2.5000,  4.5000],
             [10.5000, 12.5000]]])
    """
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


@operation("functional")
def avg_pool3d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Node:
    """The mean of every window over the last three axes; see `avg_pool2d`."""
    return _avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def _lp_pool(
    who: str, rank: int, x: Node, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
) -> Node:
    need_float(who, x)
    where = windows(who, x, rank, kernel_size, stride, 0, 1, ceil_mode)
    power = build.mul(x, x) if norm_type == 2 else build.binary("pow", x, float(norm_type))
    total = _avg_pool(who, rank, power, kernel_size, stride, 0, ceil_mode, True)
    total = build.mul(total, float(math.prod(where.kernel)))
    return build.binary("pow", build.select(build.eq(total, 0.0), 0.0, total), 1.0 / norm_type)


@operation("functional")
def lp_pool1d(
    input: Node, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Node:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last axis."""
    return _lp_pool("lp_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode)


@operation("functional")
def lp_pool2d(
    input: Node, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Node:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last two axes.

    >>> weft.nn.functional.lp_pool2d(weft.tensor([[[3.0, 0.0], [0.0, 4.0]]]), 2, 2)
    tensor([[[5.]]])
    """
    return _lp_pool("lp_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode)


@operation("functional")
def lp_pool3d(
    input: Node, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Node:
    """(sum of x^norm_type)^(1 / norm_type) over every window of the last three axes."""
    return _lp_pool("lp_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode)
