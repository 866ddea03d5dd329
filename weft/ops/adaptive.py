"""Adaptive pooling: as many windows as asked for, window o from floor(o * n / count) up to ceil((o + 1) * n / count).

Where the count divides the extent these are plain windows. Else means are a resampling of each axis, and maxima are
taken over gathered windows of the longest length, in which the last element of a shorter one repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.base.dtypes import float32, int64
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.average_pool import total_of
from weft.ops.common import Sizes, as_int, need_float, need_integer, sizes
from weft.ops.pool import Windows, largest
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation
from weft.ops.resample import area
from weft.ops.scatter import gather, scatter

Counts = int | None | Sequence[int | None]


def _counts(who: str, x: Node, rank: int, output_size: Counts) -> Shape:
    """How many windows along each axis; None keeps the extent."""
    if len(x.shape) not in (rank + 1, rank + 2):
        raise problem(ShapeError, who, f"shape {x.shape}", f"[batch, channels, {rank} axes], or without the batch")
    given = list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * rank
    extents = x.shape[-rank:]
    if len(given) != rank or min(extents) < 1:
        expected = f"{rank} axes with elements and a count for each"
        raise problem(ShapeError, who, f"output_size={output_size!r} for shape {x.shape}", expected)
    counts = tuple(
        n if count is None else as_int(who, count, "output_size") for count, n in zip(given, extents, strict=True)
    )
    if min(counts) < 1:
        raise problem(ShapeError, who, f"output_size={output_size!r}", "at least one window along every axis")
    return counts


def _regular_windows(extents: Shape, counts: Shape) -> Windows | None:
    """Plain windows, where every count divides its extent."""
    if any(n % count for n, count in zip(extents, counts, strict=True)):
        return None
    kernel = tuple([n // count for n, count in zip(extents, counts, strict=True)])
    return Windows(extents, kernel, kernel, (1,) * len(kernel), (0,) * len(kernel), counts)


def _mean(who: str, rank: int, x: Node, output_size: Counts) -> Node:
    need_float(who, x)
    counts = _counts(who, x, rank, output_size)
    if x.dtype.is_16_bit:
        return build.cast(_mean(who, rank, build.cast(x, float32), output_size), x.dtype)
    where = _regular_windows(x.shape[-rank:], counts)
    if where is not None:
        return build.mul(total_of(where, x), 1.0 / math.prod(where.kernel))
    return area(x, range(len(x.shape) - rank, len(x.shape)), counts)


def _positions(n: int, count: int, device) -> Node:
    """The elements of each window, int64 [count, longest]; shorter windows repeat their last."""
    longest = max(-(-(o + 1) * n // count) - o * n // count for o in range(count))
    shape = (count, longest)
    o, k = build.iota(shape, 0, device), build.iota(shape, 1, device)
    start = build.div(build.mul(o, n), count)
    stop = build.div(build.add(build.mul(build.add(o, 1), n), count - 1), count)
    return build.binary("min", build.add(start, k), build.sub(stop, 1))


def _max(who: str, rank: int, x: Node, output_size: Counts, return_indices: bool) -> Node | ValuesIndices:
    counts = _counts(who, x, rank, output_size)
    lead, extents = len(x.shape) - rank, x.shape[-rank:]
    positions = [_positions(n, count, x.device) for n, count in zip(extents, counts, strict=True)]
    where = _regular_windows(extents, counts)
    if where is not None:
        views = where.of(x, 0)
    else:
        views = x
        for axis in reversed(range(rank)):
            views = build.gather(views, positions[axis], lead + axis, known=True)
        kernel = tuple([position.shape[1] for position in positions])
        where = Windows(extents, kernel, (1,) * rank, (1,) * rank, (0,) * rank, counts)
    best, number = largest(where, x, views)
    if not return_indices:
        return best
    rest = build.cast(number, int64)
    ks: list[Node] = []
    for size in reversed(where.kernel):
        ks.insert(0, make_canonical("mod", (rest, build.like(rest, size))))
        rest = build.div(rest, size)
    position = build.like(rest, 0)
    for axis, (k, n, count) in enumerate(zip(ks, extents, counts, strict=True)):
        o = build.iota(best.shape, lead + axis, x.device)
        start = build.div(build.mul(o, n), count)
        stop = build.div(build.add(build.mul(build.add(o, 1), n), count - 1), count)
        at = build.binary("min", build.add(start, k), build.sub(stop, 1))
        position = build.add(build.mul(position, n), at)
    return ValuesIndices(best, position)


@operation("weft functional")
def adaptive_avg_pool1d(input: Node, output_size: Counts) -> Node:
    """Means of `output_size` windows over the last axis; see `adaptive_avg_pool2d`."""
    return _mean("adaptive_avg_pool1d", 1, input, output_size)


@operation("functional")
def adaptive_avg_pool2d(input: Node, output_size: Counts) -> Node:
    """Means of `output_size` windows over each of the last two axes of [N, C, H, W] or [C, H, W]; None keeps an extent.

    >>> weft.nn.functional.adaptive_avg_pool2d(weft.arange(6).float().reshape(1, 2, 3), 1)
    tensor([[[2.5000]]])
    """
    return _mean("adaptive_avg_pool2d", 2, input, output_size)


@operation("functional")
def adaptive_avg_pool3d(input: Node, output_size: Counts) -> Node:
    """Means of `output_size` windows over each of the last three axes; see `adaptive_avg_pool2d`."""
    return _mean("adaptive_avg_pool3d", 3, input, output_size)


@operation("functional")
def adaptive_max_pool1d(input: Node, output_size: Counts, return_indices: bool = False) -> Node | ValuesIndices:
    """Maxima of `output_size` windows over the last axis; see `adaptive_max_pool2d`."""
    return _max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@operation("functional")
def adaptive_max_pool2d(input: Node, output_size: Counts, return_indices: bool = False) -> Node | ValuesIndices:
    """Maxima of `output_size` windows over each of the last two axes, with gradients and indices as `max_pool2d`.

    >>> weft.nn.functional.adaptive_max_pool2d(weft.arange(6).float().reshape(1, 2, 3), (1, 2))
    tensor([[[4., 5.]]])
    """
    return _max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@operation("functional")
def adaptive_max_pool3d(input: Node, output_size: Counts, return_indices: bool = False) -> Node | ValuesIndices:
    """Maxima of `output_size` windows over each of the last three axes; see `adaptive_max_pool2d`."""
    return _max("adaptive_max_pool3d", 3, input, output_size, return_indices)


@operation("functional")
def adaptive_max_pool1d_with_indices(input: Node, output_size: Counts, return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool1d` with `return_indices`, whatever that says."""
    both = _max("adaptive_max_pool1d", 1, input, output_size, True)
    assert isinstance(both, ValuesIndices)
    return both


@operation("functional")
def adaptive_max_pool2d_with_indices(input: Node, output_size: Counts, return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool2d` with `return_indices`, whatever that says."""
    both = _max("adaptive_max_pool2d", 2, input, output_size, True)
    assert isinstance(both, ValuesIndices)
    return both


@operation("functional")
def adaptive_max_pool3d_with_indices(input: Node, output_size: Counts, return_indices: bool = False) -> ValuesIndices:
    """`adaptive_max_pool3d` with `return_indices`, whatever that says."""
    both = _max("adaptive_max_pool3d", 3, input, output_size, True)
    assert isinstance(both, ValuesIndices)
    return both


# --- the way back ----------------------------------------------------------------------------------------------------


def _unpool(
    who: str,
    rank: int,
    x: Node,
    indices: Node,
    kernel_size: Sizes,
    stride: Sizes | None,
    padding: Sizes,
    output_size: Sequence[int] | None,
) -> Node:
    """Values put where `indices` say they came from, zeros elsewhere. Windows that overlap may name one place twice,
    with one value; the gradient there goes to both, as in PyTorch."""
    if len(x.shape) not in (rank + 1, rank + 2) or indices.shape != x.shape:
        given = f"shapes {x.shape} and {indices.shape}"
        raise problem(ShapeError, who, given, f"two equal ones, [batch, channels, {rank} axes] or without the batch")
    need_integer(who, indices)
    kernel = sizes(who, kernel_size, rank, "kernel_size")
    steps = kernel if stride is None else sizes(who, stride, rank, "stride")
    lows = sizes(who, padding, rank, "padding", 0)
    rows = zip(x.shape[-rank:], kernel, steps, lows, strict=True)
    extents = tuple([(n - 1) * step - 2 * low + size for n, size, step, low in rows])
    if output_size is not None:
        wanted = tuple([as_int(who, n, "output_size") for n in output_size])[-rank:]
        near = [abs(n - default) < step for n, default, step in zip(wanted, extents, steps, strict=True)]
        if len(wanted) != rank or not all(near):
            raise problem(ShapeError, who, f"output_size={tuple(output_size)}", f"less than a stride from {extents}")
        extents = wanted
    lead = x.shape[:-rank]
    planes = math.prod(lead)
    flat = (planes, x.size // planes if planes else 0)
    empty = build.full((planes, math.prod(extents)), 0, x.dtype, x.device)
    values, positions = build.reshape(x, flat), build.reshape(indices, flat)
    filled = build.with_gradient(scatter(empty, 1, positions, values), (values, positions), _from_positions)
    return build.reshape(filled, (*lead, *extents))


def _from_positions(sources: tuple[Node, ...], g: Node) -> tuple[Node, None]:
    return gather(g, 1, sources[1]), None


@operation("functional")
def max_unpool1d(
    input: Node,
    indices: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Node:
    """The inverse of `max_pool1d` with its indices; see `max_unpool2d`."""
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@operation("functional")
def max_unpool2d(
    input: Node,
    indices: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Node:
    """Maxima put back where `max_pool2d(..., return_indices=True)` found them, zeros elsewhere. `output_size` chooses
    among the sizes that pool to this one. Of several values for one place the last stays.

    >>> pooled, where = weft.nn.functional.max_pool2d(weft.arange(4).float().reshape(1, 2, 2), 2, return_indices=True)
    >>> weft.nn.functional.max_unpool2d(pooled, where, 2)
    tensor([[[0., 0.],
             [0., 3.]]])
    """
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@operation("functional")
def max_unpool3d(
    input: Node,
    indices: Node,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Node:
    """The inverse of `max_pool3d` with its indices; see `max_unpool2d`."""
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)
