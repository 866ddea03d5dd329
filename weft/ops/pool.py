"""Windows of pooling over the last one, two or three axes, and maximum pooling.

A window of up to MAX_UNROLLED_POSITIONS elements is a chain of elementwise operations over slices, which fuses with
what is before and after it; a larger one is a reduction. What the gradient follows is written as sums over `unfold`ed
windows, so that it is a `fold`: no window is ever stored, forwards or backwards.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from weft.base.dtypes import int32, int64
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import Sizes, sizes
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation

MAX_UNROLLED_POSITIONS = 16  # positions in a window up to which it is a chain


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
            position = lead + axis
            x = build.narrow(x, position, 0, ends[axis])
            x = build.unfold(x, position, self.kernel[axis], self.stride[axis], self.dilation[axis])
        return x

    def slices(self, x: Node) -> list[tuple[Shape, Node]]:
        """The elements of windows position by position, in row-major order: (k of each axis, [..., *counts])."""
        lead = len(x.shape) - 2 * self.rank
        shape = (*x.shape[:lead], *self.counts)
        found = []
        for ks in itertools.product(*map(range, self.kernel)):
            part = x
            for axis, k in enumerate(ks):
                part = build.narrow(part, lead + 2 * axis + 1, k, k + 1)
            found.append((ks, build.reshape(part, shape)))
        return found

    def reduce_windows(self, op: str, windows: Node) -> Node:
        """All elements of each window reduced; they are moved before the last axis, whose windows are contiguous."""
        lead = len(windows.shape) - 2 * self.rank
        counts = [lead + 2 * axis for axis in range(self.rank)]
        inner = [count + 1 for count in counts]
        order = (*range(lead), *counts[:-1], *inner, counts[-1])
        first = lead + self.rank - 1
        return build.reduce(op, build.permute(windows, order), range(first, first + self.rank))

    def spread(self, x: Node) -> Node:
        """One value per window [..., *counts] repeated for every position: [..., count, size, ...]."""
        lead = len(x.shape) - self.rank
        ones = tuple(n for count in self.counts for n in (count, 1))
        full = tuple(n for pair in zip(self.counts, self.kernel, strict=True) for n in pair)
        return build.expand(build.reshape(x, (*x.shape[:lead], *ones)), (*x.shape[:lead], *full))

    def numbers(self, windows: Node) -> Node:
        """The row-major number of each position in its window, int32."""
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


def _lowest_value(x: Node) -> Number:
    if x.dtype.kind == "f":
        return -math.inf
    return 0 if x.dtype.kind in "bu" else -(1 << (8 * x.dtype.itemsize - 1))


def _first_inside(where: Windows, like: Node) -> Node:
    """The number of each window's first position that is not padding: what a window of nothing but -inf picks."""
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


def _choose(where: Windows, x: Node, views: Node, best: Node) -> Node:
    """The position of each window's maximum: the first maximum, or the last NaN."""
    number = _first_inside(where, best)
    size = math.prod(where.kernel)
    if size > MAX_UNROLLED_POSITIONS:  # one maximum finds both: NaNs count up from `size`, maxima down to 0
        k = where.numbers(views)
        hit = build.select(build.eq(views, where.spread(best)), build.sub(size - 1, k), -1)
        rank = build.select(build.binary("ne", views, views), build.add(k, size), hit)
        top = where.reduce_windows("reduce_max", rank)
        return build.select(
            build.lt(top, size), build.binary("max", build.sub(size - 1, top), number), build.sub(top, size)
        )
    peak = build.full(best.shape, _lowest_value(x), x.dtype, x.device)
    for position, (_, part) in enumerate(where.slices(views)):
        better = build.lt(peak, part)
        if x.dtype.kind == "f":
            better = make_canonical("or", (better, make_canonical("ne", (part, part))))
        peak = build.select(better, part, peak)
        number = build.select(better, build.like(number, position), number)
    return number


def largest(where: Windows, x: Node, views: Node) -> tuple[Node, Node]:
    """The maximum of each window, with a gradient to its position, and that position's number."""
    if math.prod(where.kernel) > MAX_UNROLLED_POSITIONS:
        best = where.reduce_windows("reduce_max", views)
    else:
        best = functools.reduce(lambda a, b: build.binary("max", a, b), [part for _, part in where.slices(views)])
    number = _choose(where, x, build.stop_gradient(views), build.stop_gradient(best))
    if x.dtype.kind != "f":
        return best, number
    here = make_canonical("eq", (where.numbers(views), where.spread(number)))
    proxy = where.reduce_windows("reduce_sum", build.select(here, views, 0.0))
    return build.surrogate(best, proxy), number


def _flat_positions(where: Windows, number: Node) -> Node:
    """Place numbers in windows as positions in the flattened input plane, int64."""
    rest, shape = build.cast(number, int64), number.shape
    lead = len(shape) - where.rank
    ks: list[Node] = []
    for size in reversed(where.kernel):
        ks.insert(0, make_canonical("mod", (rest, build.like(rest, size))))
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
    """The maximum of every window over the last two axes of [N, C, H, W] or [C, H, W]. Windows are `stride` apart
    (their size unless given); `padding` adds -inf on both sides. With `return_indices` also each maximum's position in
    the flattened plane, int64. The gradient goes to the first maximum of a window in row-major order; NaN wins, and
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
    best, number = largest(where, x, where.of(x, _lowest_value(x)))
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
