"""Pooling: windows over the last one, two or three axes, each reduced to one number.

A window of up to FEW places is a chain of elementwise operations over slices, which fuses with all its neighbours; a
larger one is a reduction. What the gradient follows is written as sums over `unfold`ed windows, so that it is a `fold`:
no window is ever stored, forwards or backwards.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from weft.dtypes import int32, int64
from weft.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.layout import make
from weft.graph.node import Node
from weft.ops.common import Sizes, as_int, need_float, sizes
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation

FEW = 16  # places in a window up to which it is a chain


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows over the last axes of a shape lie: window o covers o*stride - low + k*dilation for all k."""

    extents: Shape
    kernel: Shape
    stride: Shape
    dilation: Shape
    lows: Shape
    counts: Shape

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def of(self, x: Node, filling: Number) -> Node:
        """The windows of `x` [..., *extents] as [..., count, size, count, size, ...], `filling` beyond the edges."""
        lead = len(x.shape) - self.rank
        ends = [
            (count - 1) * stride + dilation * (size - 1) + 1
            for count, size, stride, dilation in zip(self.counts, self.kernel, self.stride, self.dilation, strict=True)
        ]
        whole = [max(end, low + n) for end, low, n in zip(ends, self.lows, self.extents, strict=True)]
        highs = [total - low - n for total, low, n in zip(whole, self.lows, self.extents, strict=True)]
        x = build.pad(x, (0,) * lead + self.lows, (0,) * lead + tuple(highs), filling)
        for axis in reversed(range(self.rank)):
            place = lead + axis
            x = build.narrow(x, place, 0, ends[axis])
            x = build.unfold(x, place, self.kernel[axis], self.stride[axis], self.dilation[axis])
        return x

    def places(self, x: Node) -> list[tuple[Shape, Node]]:
        """The windows' places one by one, in row-major order: (k of each axis, [..., *counts])."""
        lead = len(x.shape) - 2 * self.rank
        shape = (*x.shape[:lead], *self.counts)
        found = []
        for ks in itertools.product(*map(range, self.kernel)):
            part = x
            for axis, k in enumerate(ks):
                part = build.narrow(part, lead + 2 * axis + 1, k, k + 1)
            found.append((ks, build.reshape(part, shape)))
        return found

    def reduced(self, op: str, windows: Node) -> Node:
        """All places of each window reduced; they are moved before the last axis, whose windows lie side by side."""
        lead = len(windows.shape) - 2 * self.rank
        counts = [lead + 2 * axis for axis in range(self.rank)]
        inner = [count + 1 for count in counts]
        order = (*range(lead), *counts[:-1], *inner, counts[-1])
        first = lead + self.rank - 1
        return build.reduce(op, build.permute(windows, order), range(first, first + self.rank))

    def spread(self, x: Node) -> Node:
        """One value per window [..., *counts] repeated for every place: [..., count, size, ...]."""
        lead = len(x.shape) - self.rank
        ones = tuple(n for count in self.counts for n in (count, 1))
        full = tuple(n for pair in zip(self.counts, self.kernel, strict=True) for n in pair)
        return build.expand(build.reshape(x, (*x.shape[:lead], *ones)), (*x.shape[:lead], *full))

    def numbers(self, windows: Node) -> Node:
        """The row-major number of each place in its window, int32."""
        lead = len(windows.shape) - 2 * self.rank
        number = None
        for axis, size in enumerate(self.kernel):
            k = build.iota(windows.shape, lead + 2 * axis + 1, windows.device, int32)
            number = k if number is None else build.add(build.mul(number, size), k)
        assert number is not None
        return number


def windows(
    who: str,
    x: Node,
    rank: int,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> Windows:
    """The windows that torch's pooling arguments mean, checked."""
    if len(x.shape) not in (rank + 1, rank + 2):
        raise problem(ShapeError, who, f"shape {x.shape}", f"[batch, channels, {rank} axes], or without the batch")
    if 0 in x.shape[-rank - 1 :]:
        raise problem(ShapeError, who, f"shape {x.shape}", "elements along every axis but that of the batch")
    kernel = sizes(who, kernel_size, rank, "kernel_size")
    steps = kernel if stride is None or stride == () or stride == [] else sizes(who, stride, rank, "stride")
    lows = sizes(who, padding, rank, "padding", 0)
    dilations = sizes(who, dilation, rank, "dilation")
    if any(2 * low > size for low, size in zip(lows, kernel, strict=True)):
        raise problem(ShapeError, who, f"padding={padding!r} for kernel_size={kernel_size!r}", "at most half of it")
    extents = x.shape[-rank:]
    if 0 in x.shape[-rank - 1 :]:
        raise problem(ShapeError, who, f"shape {x.shape}", "channels and axes that are not empty; the batch may be")
    counts = []
    for n, size, step, low, dilate in zip(extents, kernel, steps, lows, dilations, strict=True):
        rest = n + 2 * low - dilate * (size - 1) - 1
        count = -(-rest // step) + 1 if ceil_mode else rest // step + 1
        if ceil_mode and (count - 1) * step >= n + low:  # a window must start inside
            count -= 1
        if count < 1:
            given = f"shape {x.shape} with kernel_size={kernel_size!r} and padding={padding!r}"
            raise problem(ShapeError, who, given, "at least one window along every axis")
        counts.append(count)
    return Windows(extents, kernel, steps, dilations, lows, tuple(counts))


# --- maxima ----------------------------------------------------------------------------------------------------------


def _least(x: Node) -> Number:
    if x.dtype.kind == "f":
        return -math.inf
    return 0 if x.dtype.kind in "bu" else -(1 << (8 * x.dtype.itemsize - 1))


def _first_inside(where: Windows, like: Node) -> Node:
    """The number of each window's first place that is not padding: what a window of nothing but -inf picks."""
    shape = like.shape
    number = build.full(shape, 0, int32, like.device)
    for axis, (low, size) in enumerate(zip(where.lows, where.kernel, strict=True)):
        number = build.mul(number, size)
        if low:
            o = build.iota(shape, len(shape) - where.rank + axis, like.device, int32)
            outside = build.binary("max", build.sub(low, build.mul(o, where.stride[axis])), 0)
            dilation = where.dilation[axis]
            number = build.add(number, build.div(build.add(outside, dilation - 1), dilation))
    return number


def _chosen(where: Windows, x: Node, views: Node, best: Node) -> Node:
    """The number of the place that each window's maximum stands at: the first maximum, or the last NaN."""
    number = _first_inside(where, best)
    size = math.prod(where.kernel)
    if size > FEW:  # one maximum finds both: NaNs count up from `size`, maxima down to 0
        k = where.numbers(views)
        hit = build.select(build.eq(views, where.spread(best)), build.sub(size - 1, k), -1)
        rank = build.select(build.binary("ne", views, views), build.add(k, size), hit)
        top = where.reduced("reduce_max", rank)
        return build.select(
            build.lt(top, size), build.binary("max", build.sub(size - 1, top), number), build.sub(top, size)
        )
    peak = build.full(best.shape, _least(x), x.dtype, x.device)
    for place, (_, part) in enumerate(where.places(views)):
        better = build.lt(peak, part)
        if x.dtype.kind == "f":
            better = make("or", (better, make("ne", (part, part))))
        peak = build.select(better, part, peak)
        number = build.select(better, build.like(number, place), number)
    return number


def largest(where: Windows, x: Node, views: Node) -> tuple[Node, Node]:
    """The maximum of each window, with a gradient to the place it stands at, and the number of that place."""
    if math.prod(where.kernel) > FEW:
        best = where.reduced("reduce_max", views)
    else:
        best = functools.reduce(lambda a, b: build.binary("max", a, b), [part for _, part in where.places(views)])
    number = _chosen(where, x, build.stop_gradient(views), build.stop_gradient(best))
    if x.dtype.kind != "f":
        return best, number
    here = make("eq", (where.numbers(views), where.spread(number)))
    proxy = where.reduced("reduce_sum", build.select(here, views, 0.0))
    return build.surrogate(best, proxy), number


def _flat_positions(where: Windows, number: Node) -> Node:
    """Place numbers in windows as positions in the flattened input plane, int64."""
    rest, shape = build.cast(number, int64), number.shape
    lead = len(shape) - where.rank
    ks: list[Node] = []
    for size in reversed(where.kernel):
        ks.insert(0, make("mod", (rest, build.like(rest, size))))
        rest = build.div(rest, size)
    position = build.like(rest, 0)
    for axis, k in enumerate(ks):
        start = build.sub(
            build.mul(build.iota(shape, lead + axis, number.device), where.stride[axis]), where.lows[axis]
        )
        at = build.add(start, build.mul(k, where.dilation[axis]))
        position = build.add(build.mul(position, where.extents[axis]), at)
    return position


def _max_pool(
    who: str,
    rank: int,
    x: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    return_indices: bool,
) -> Node | ValuesIndices:
    both = _max_pool_with_indices(who, rank, x, kernel_size, stride, padding, dilation, ceil_mode)
    return both if return_indices else both.values


@operation("weft functional")
def max_pool1d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node | ValuesIndices:
    """The maximum of every window over the last axis; see `max_pool2d`."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@operation("weft functional")
def max_pool2d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node | ValuesIndices:
    """The maximum of every window over the last two axes of [N, C, H, W] or [C, H, W]. Windows lie `stride` apart
    (their size unless given); `padding` adds -inf on both sides. With `return_indices` also the place of each maximum
    in the flattened plane, int64. The gradient goes to the first maximum of a window in row-major order; NaN wins, and
    the last of several.

    >>> weft.nn.functional.max_pool2d(weft.arange(16).float().reshape(1, 4, 4), 2)
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


@operation("weft functional")
def max_pool3d(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Node | ValuesIndices:
    """The maximum of every window over the last three axes; see `max_pool2d`."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _max_pool_with_indices(
    who: str,
    rank: int,
    x: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> ValuesIndices:
    where = windows(who, x, rank, kernel_size, stride, padding, dilation, ceil_mode)
    best, number = largest(where, x, where.of(x, _least(x)))
    return ValuesIndices(best, _flat_positions(where, number))


@operation("weft functional")
def max_pool1d_with_indices(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ValuesIndices:
    """`max_pool1d` with `return_indices`, whatever that says."""
    return _max_pool_with_indices("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)


@operation("functional")
def max_pool2d_with_indices(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ValuesIndices:
    """`max_pool2d` with `return_indices`, whatever that says."""
    return _max_pool_with_indices("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)


@operation("functional")
def max_pool3d_with_indices(
    input: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> ValuesIndices:
    """`max_pool3d` with `return_indices`, whatever that says."""
    return _max_pool_with_indices("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)


# --- averages --------------------------------------------------------------------------------------------------------


def total_of(where: Windows, x: Node) -> Node:
    """The sum of every window; padding counts as 0."""
    views = where.of(x, 0)
    total = where.reduced("reduce_sum", views)
    if math.prod(where.kernel) > FEW:
        return total
    chain = functools.reduce(build.add, [part for _, part in where.places(views)])
    return build.surrogate(chain, total) if x.dtype.kind == "f" else chain


def _covered(where: Windows, axis: int, padded: bool) -> list[int]:
    """How many elements each window along `axis` covers, the padding counted or not."""
    low, n = where.lows[axis], where.extents[axis]
    begin, end = (-low, n + low) if padded else (0, n)
    starts = [o * where.stride[axis] - low for o in range(where.counts[axis])]
    return [min(start + where.kernel[axis], end) - max(start, begin) for start in starts]


def _covered_node(where: Windows, shape: Shape, axis: int, padded: bool, like: Node) -> Node:
    """`_covered` as a tensor of `shape`, computed from the window's number."""
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
        return _divided(total, divisor_override)
    fixed, uneven = 1, []
    for axis in range(rank):
        covered = _covered(where, axis, count_include_pad)
        if len(set(covered)) == 1:
            fixed *= covered[0]
        else:
            uneven.append(_covered_node(where, total.shape, axis, count_include_pad, total))
    if x.dtype is int64:
        return _divided(total, functools.reduce(build.mul, uneven, build.like(total, fixed)))
    total = _divided(total, fixed) if fixed > 1 else total
    return build.div(total, functools.reduce(build.mul, uneven)) if uneven else total


def _divided(total: Node, count: Node | int) -> Node:
    """Sums over counts; whole numbers are rounded towards 0, as in PyTorch."""
    if total.dtype.kind == "f":
        return build.mul(total, 1.0 / count) if isinstance(count, int) else build.div(total, count)
    if isinstance(count, int) and count < 0:
        return build.neg(_divided(total, -count))
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
