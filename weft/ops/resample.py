"""Interpolation: every axis is read at new positions, each a weighted sum of a few old ones.

Forwards the few are gathered, in one kernel for all axes. Backwards the same sums are products with small matrices (old
positions by new ones), so that no gradient is scattered. Whole factors of 'nearest' are movement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType, float32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops.common import as_int, need_float
from weft.ops.registry import operation

Tap = tuple[Node, Node]  # old position (int64) and weight of each new position, both [count]
MAX_TAP_PRODUCTS = 64  # products of taps that are gathered; more are matrix products forwards too
CUBIC = -0.75  # the free coefficient of cubic convolution


def resample(x: Node, axes: Sequence[int], taps: Sequence[Sequence[Tap]], some: bool = False) -> Node:
    """`x` with each of `axes` read at new positions: the sum over its taps of weight * x[old position]. With `some`,
    taps of weight 0 are none at all: what they read may be infinite."""
    dense = x
    for axis, own in zip(axes, taps, strict=True):
        dense = _by_matrix(dense, axis, own)
    if math.prod(len(own) for own in taps) > MAX_TAP_PRODUCTS or not x.size:
        return dense

    def value(part: Node, depth: int) -> Node:
        if depth == len(axes):
            return part
        total = None
        for index, weight in taps[depth]:
            inner = value(build.gather(part, index, axes[depth], known=True), depth + 1)
            wide = _along(weight, inner.shape, axes[depth])
            term = build.mul(inner, wide)
            term = build.select(build.eq(wide, 0.0), 0.0, term) if some else term
            total = term if total is None else build.add(total, term)
        assert total is not None
        return total

    return build.surrogate(value(x, 0), dense)


def _along(vector: Node, shape: Shape, axis: int) -> Node:
    """A vector repeated over all axes of `shape` but one."""
    ones = tuple([n if k == axis else 1 for k, n in enumerate(shape)])
    return build.expand(build.reshape(vector, ones), shape)


def _by_matrix(x: Node, axis: int, taps: Sequence[Tap]) -> Node:
    """The same along one axis as a product with the matrix [old, new] of the weights."""
    old, new = x.shape[axis], taps[0][0].shape[0]
    matrix = None
    for index, weight in taps:
        hit = build.eq(build.iota((old, new), 0, x.device), build.expand_to(index, (old, new)))
        part = build.select(hit, build.expand_to(weight, (old, new)), 0.0)
        matrix = part if matrix is None else build.add(matrix, part)
    assert matrix is not None
    rank = len(x.shape)
    last = build.permute(x, (*range(axis), *range(axis + 1, rank), axis))
    rows = build.dot(build.reshape(last, (x.size // old, old)), matrix)
    back = (*range(axis), rank - 1, *range(axis, rank - 1))
    return build.permute(build.reshape(rows, (*last.shape[:-1], new)), back)


# --- new positions ---------------------------------------------------------------------------------------------------


def _scale(old: int, new: int, align_corners: bool, factor: float | None) -> float:
    """The distance between new positions, in old ones."""
    if align_corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return 1.0 / factor if factor else old / new


def _position(old: int, new: int, align_corners: bool, factor: float | None, dtype: DType, device) -> Node:
    """The real-valued old position of every new one, in torch's order of roundings."""
    scale = float(dtype.numpy.type(_scale(old, new, align_corners, factor)))
    o = build.cast(build.iota((new,), 0, device), dtype)
    if align_corners:
        return build.mul(o, scale)
    return build.sub(build.mul(build.add(o, 0.5), scale), 0.5)


def _clamp(x: Node, low: int, high: int) -> Node:
    return build.binary("min", build.binary("max", x, low), high)


def _parts(position: Node, old: int) -> tuple[Node, Node]:
    """Whole position, at most the last one, and what is left, between 0 and 1."""
    whole = build.binary("min", build.cast(build.unary("floor", position), int64), old - 1)
    rest = build.sub(position, build.cast(whole, position.dtype))
    return whole, build.binary("min", build.binary("max", rest, 0.0), 1.0)


def _linear(old: int, new: int, align_corners: bool, factor: float | None, dtype: DType, device) -> list[Tap]:
    position = build.binary("max", _position(old, new, align_corners, factor, dtype, device), 0.0)
    whole, rest = _parts(position, old)
    after = build.binary("min", build.add(whole, 1), old - 1)
    return [(whole, build.sub(1.0, rest)), (after, rest)]


def cubic_weights(t: Node) -> list[Node]:
    """The weights of the four elements -1, 0, 1, 2 around a position `t` after element 0."""

    def near(x: Node) -> Node:  # |x| <= 1
        return build.add(build.mul(build.mul(build.sub(build.mul(x, CUBIC + 2), CUBIC + 3), x), x), 1.0)

    def far(x: Node) -> Node:  # 1 < |x| < 2
        inner = build.add(build.mul(build.sub(build.mul(x, CUBIC), 5 * CUBIC), x), 8 * CUBIC)
        return build.sub(build.mul(inner, x), 4 * CUBIC)

    return [far(build.add(t, 1.0)), near(t), near(build.sub(1.0, t)), far(build.sub(2.0, t))]


def _cubic(old: int, new: int, align_corners: bool, factor: float | None, dtype: DType, device) -> list[Tap]:
    whole, rest = _parts(_position(old, new, align_corners, factor, dtype, device), old)
    weights = cubic_weights(rest)
    return [(_clamp(build.add(whole, step - 1), 0, old - 1), weight) for step, weight in enumerate(weights)]


def _area(old: int, new: int, dtype: DType, device) -> list[Tap]:
    """The mean from floor(o * old / new) up to, without, ceil((o + 1) * old / new)."""
    o = build.iota((new,), 0, device)
    start = build.div(build.mul(o, old), new)
    stop = build.div(build.add(build.mul(build.add(o, 1), old), new - 1), new)
    length = build.sub(stop, start)
    longest = max(-(-(k + 1) * old // new) - k * old // new for k in range(new))
    share = build.div(1.0, build.cast(length, dtype))
    return [
        (build.binary("min", build.add(start, step), old - 1), build.select(build.lt(step, length), share, 0.0))
        for step in range(longest)
    ]


def _resample_nearest(x: Node, axis: int, new: int, exact: bool, factor: float | None) -> Node:
    """One axis of nearest neighbours: movement where the factor is whole, else a gather."""
    old = x.shape[axis]
    scale = np.float32(_scale(old, new, False, factor))
    numbers = np.arange(new, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
    indices = np.minimum(np.floor(numbers * scale).astype(int), old - 1).tolist()
    if new == old and indices == list(range(old)):
        return x
    if old and new % old == 0 and indices == [o // (new // old) for o in range(new)]:
        wide = build.expand(
            build.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])),
            (*x.shape[: axis + 1], new // old, *x.shape[axis + 1 :]),
        )
        return build.reshape(wide, (*x.shape[:axis], new, *x.shape[axis + 1 :]))
    step = indices[1] - indices[0] if new > 1 else 1
    if step > 0 and indices == [indices[0] + o * step for o in range(new)]:
        starts, stops, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        starts[axis], stops[axis], steps[axis] = indices[0], indices[-1] + 1, step
        return build.slice_(x, tuple(starts), tuple(stops), tuple(steps))
    o = build.cast(build.iota((new,), 0, x.device), float32)
    position = build.mul(build.add(o, 0.5) if exact else o, float(scale))
    index = build.binary("min", build.cast(build.unary("floor", position), int64), old - 1)
    ones = build.full((new,), 1.0, x.dtype, x.device)
    return resample(x, (axis,), [[(index, ones)]])


# --- what the user calls ---------------------------------------------------------------------------------------------

_RANKS: dict[str, tuple[int, ...]] = {
    "nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "area": (1, 2, 3), "linear": (1,), "bilinear": (2,),
    "bicubic": (2,), "trilinear": (3,),
}  # fmt: skip


@operation("functional")
def interpolate(
    input: Node,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Node:
    """[N, C, ...] with one to three axes behind the channels brought to `size`, or made `scale_factor` times as long
    (rounded down). `mode` is 'nearest', 'nearest-exact', 'linear' (one axis), 'bilinear' or 'bicubic' (two),
    'trilinear' (three) or 'area' (means). With `align_corners` the outermost positions stay where they are.

    >>> weft.nn.functional.interpolate(weft.tensor([[[1.0, 2.0]]]), scale_factor=2)
    tensor([[[1., 1., 2., 2.]]])
    """
    who = "interpolate"
    need_float(who, input)
    rank = len(input.shape) - 2
    if mode not in _RANKS:
        raise problem(RangeError, who, f"mode={mode!r}", f"one of {', '.join(_RANKS)}")
    if rank not in _RANKS[mode]:
        expected = f"{' or '.join(str(one + 2) for one in _RANKS[mode])} axes"
        raise problem(ShapeError, who, f"shape {input.shape} with mode={mode!r}", expected)
    if antialias:
        raise problem(
            RangeError, who, "antialias=True", "False; this version has no antialiasing", "blur the input first"
        )
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise problem(RangeError, who, f"align_corners={align_corners} with mode={mode!r}", "a linear or cubic mode")
    sizes, factors = _targets(who, input.shape[2:], size, scale_factor)
    if recompute_scale_factor:
        factors = [None] * rank
    axes = range(2, rank + 2)
    if mode in ("nearest", "nearest-exact"):
        for axis, new, factor in zip(axes, sizes, factors, strict=True):
            input = _resample_nearest(input, axis, new, mode == "nearest-exact", factor)
        return input
    if input.dtype.is_16_bit:
        wide = interpolate(build.cast(input, float32), size, scale_factor, mode, align_corners, recompute_scale_factor)
        return build.cast(wide, input.dtype)
    if mode == "area":
        return area(input, axes, sizes)
    form: Callable[..., list[Tap]] = _cubic if mode == "bicubic" else _linear
    taps = [
        form(old, new, bool(align_corners), factor, input.dtype, input.device)
        for old, new, factor in zip(input.shape[2:], sizes, factors, strict=True)
    ]
    return resample(input, axes, taps)


def area(x: Node, axes: Sequence[int], sizes: Sequence[int]) -> Node:
    """Means over what each new position covers of the old ones."""
    taps = [_area(x.shape[a], new, x.dtype, x.device) for a, new in zip(axes, sizes, strict=True)]
    return resample(x, axes, taps, some=True)


def _targets(
    who: str, extents: Shape, size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
) -> tuple[list[int], list[float | None]]:
    """New extents, and the factors of positions (None: by the ratio of the extents)."""
    rank = len(extents)
    if (size is None) == (scale_factor is None):
        raise problem(ShapeError, who, f"size={size} and scale_factor={scale_factor}", "one of the two")
    factors: list[float | None] = [None] * rank
    if size is not None:
        given = list(size) if isinstance(size, (tuple, list)) else [size] * rank
        sizes = [as_int(who, one, "size") for one in given]
    else:
        assert scale_factor is not None
        several = isinstance(scale_factor, (tuple, list))
        scales: list[Any] = list(scale_factor) if several else [scale_factor] * rank  # type: ignore[arg-type]
        sizes = [math.floor(n * float(one)) for n, one in zip(extents, scales, strict=False)]
        factors = [float(one) for one in scales]
    if len(sizes) != rank or len(factors) != rank or min(sizes) < 1 or min(extents) < 1:
        given_text = f"size={size}, scale_factor={scale_factor} for axes {extents}"
        raise problem(ShapeError, who, given_text, f"{rank} extents of at least 1")
    return sizes, factors


@operation("functional")
def upsample(
    input: Node,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Node:
    """`interpolate` under its old name."""
    return interpolate(input, size, scale_factor, mode, align_corners)


@operation("functional")
def upsample_nearest(
    input: Node, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> Node:
    """`interpolate` with mode 'nearest'."""
    return interpolate(input, size, scale_factor, "nearest")


@operation("functional")
def upsample_bilinear(
    input: Node, size: int | Sequence[int] | None = None, scale_factor: float | Sequence[float] | None = None
) -> Node:
    """`interpolate` with mode 'bilinear' and corners aligned."""
    return interpolate(input, size, scale_factor, "bilinear", True)
