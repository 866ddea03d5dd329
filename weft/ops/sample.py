"""Sampling at positions that are data: `grid_sample`, `affine_grid` and the columns of a deformable convolution.

A position between elements is a weighted sum of adjacent elements. These are gathered element by element; the gradient
adds whole rows of channels, in the order of the positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from weft.base.dtypes import int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.activation import hardtanh
from weft.ops.common import Sizes, in_float32, need_float, same_device, sizes
from weft.ops.registry import operation
from weft.ops.resample import cubic_weights


def _element_at(x: Node, indices: Sequence[Node]) -> Node:
    """x[n, c, *indices], one [N, *out] per axis, inside or not (then some other element)."""
    n, c, *extents = x.shape
    out = indices[0].shape[1:]
    flat = None
    for index, extent in zip(indices, extents, strict=True):
        inside = build.binary("min", build.binary("max", index, 0), extent - 1)
        flat = inside if flat is None else build.add(build.mul(flat, extent), inside)
    assert flat is not None
    plane = math.prod(extents)
    shape = (n, c, *out)
    wide = build.expand(build.reshape(flat, (n, 1, *out)), shape)
    number = build.add(build.mul(build.iota(shape, 0, x.device), c), build.iota(shape, 1, x.device))
    element = build.gather(build.reshape(x, (x.size,)), build.add(build.mul(number, plane), wide), 0, known=True)
    axes = range(2, len(x.shape))
    rows = build.reshape(build.permute(x, (0, *axes, 1)), (n * plane, c))
    row = build.add(build.mul(build.iota(flat.shape, 0, x.device), plane), flat)
    picked = build.gather(rows, row, 0, known=True)  # [N, *out, C]
    return build.surrogate(element, build.permute(picked, (0, len(out) + 1, *range(1, len(out) + 1))))


def _is_inside(indices: Sequence[Node], extents: Sequence[int]) -> Node:
    """Whether indices are those of elements: bool [N, *out]."""
    out = None
    for index, extent in zip(indices, extents, strict=True):
        here = make_canonical("and", (make_canonical("le", (build.like(index, 0), index)), build.lt(index, extent)))
        out = here if out is None else make_canonical("and", (out, here))
    assert out is not None
    return out


def _per_channel(value: Node, shape: Shape) -> Node:
    """[N, *out] for every channel of [N, C, *out]."""
    return build.expand(build.reshape(value, (shape[0], 1, *shape[2:])), shape)


def _floor_index(position: Node) -> Node:
    """The floor as an integer; what is no number or far away becomes an integer outside."""
    bounded = hardtanh(position, -1e9, 1e9)
    return build.cast(
        build.unary("floor", build.select(make_canonical("ne", (bounded, bounded)), -1e9, bounded)), int64
    )


def _linear(x: Node, positions: Sequence[Node]) -> Node:
    """The sum over all corners of the cell around each position; corners outside count as 0."""
    extents = x.shape[2:]
    lows = [_floor_index(position) for position in positions]
    rests = [
        build.sub(position, build.stop_gradient(build.cast(low, position.dtype)))
        for position, low in zip(positions, lows, strict=True)
    ]
    total = None
    for corner in itertools.product((0, 1), repeat=len(positions)):
        indices = [build.add(low, step) if step else low for low, step in zip(lows, corner, strict=True)]
        weight = None
        for rest, step in zip(rests, corner, strict=True):
            own = rest if step else build.sub(1.0, rest)
            weight = own if weight is None else build.mul(weight, own)
        assert weight is not None
        value = _element_at(x, indices)
        term = build.mul(value, _per_channel(weight, value.shape))
        term = build.select(_per_channel(_is_inside(indices, extents), value.shape), term, 0.0)
        total = term if total is None else build.add(total, term)
    assert total is not None
    return total


def _sample_nearest(x: Node, positions: Sequence[Node]) -> Node:
    """The nearest element; halfway, the even one."""
    indices = [_round_half_even(position) for position in positions]
    value = _element_at(x, indices)
    return build.select(_per_channel(_is_inside(indices, x.shape[2:]), value.shape), value, 0.0)


def _round_half_even(position: Node) -> Node:
    low = _floor_index(position)
    rest = build.sub(position, build.cast(low, position.dtype))
    odd = make_canonical("ne", (make_canonical("mod", (low, build.like(low, 2))), build.like(low, 0)))
    up = make_canonical("or", (build.lt(0.5, rest), make_canonical("and", (build.eq(rest, 0.5), odd))))
    return build.add(low, build.cast(up, int64))


def _reflect(position: Node, low: float, high: float) -> Node:
    """A coordinate mirrored at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return build.mul(position, 0.0)
    away = build.sub(position, low)
    away = build.select(build.lt(away, 0.0), build.neg(away), away)
    periods = build.stop_gradient(build.unary("floor", build.mul(away, 1.0 / span)))
    extra = build.sub(away, build.mul(periods, span))
    odd = make_canonical(
        "ne",
        (build.sub(periods, build.mul(build.unary("floor", build.mul(periods, 0.5)), 2.0)), build.like(periods, 0.0)),
    )
    return build.add(build.select(odd, build.sub(span, extra), extra), low)


def _bound(position: Node, extent: int, padding_mode: str, align_corners: bool) -> Node:
    """A coordinate brought inside, as the padding mode says."""
    if padding_mode == "zeros":
        return position
    if padding_mode == "reflection":
        low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
        position = _reflect(position, low, high)
    return hardtanh(position, 0.0, extent - 1.0)


def _cubic(x: Node, positions: Sequence[Node], padding_mode: str, align_corners: bool) -> Node:
    """Cubic convolution over the 4 x 4 adjacent elements, each brought inside on its own."""
    extents = x.shape[2:]
    lows = [build.stop_gradient(build.unary("floor", position)) for position in positions]
    weights = [cubic_weights(build.sub(position, low)) for position, low in zip(positions, lows, strict=True)]
    total = None
    for i in range(4):
        row = None
        for j in range(4):
            near = [build.add(low, float(step - 1)) for low, step in zip(lows, (i, j), strict=True)]
            inside = [
                _bound(index, extent, padding_mode, align_corners) for index, extent in zip(near, extents, strict=True)
            ]
            indices = [_floor_index(build.stop_gradient(index)) for index in inside]
            value = _element_at(x, indices)
            value = build.select(_per_channel(_is_inside(indices, extents), value.shape), value, 0.0)
            term = build.mul(value, _per_channel(weights[1][j], value.shape))
            row = term if row is None else build.add(row, term)
        assert row is not None
        term = build.mul(row, _per_channel(weights[0][i], row.shape))
        total = term if total is None else build.add(total, term)
    assert total is not None
    return total


@operation("functional")
@in_float32
def grid_sample(
    input: Node,
    grid: Node,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Node:
    """[N, C, H, W] at the positions of `grid` [N, h, w, 2] (x, y from -1 to 1): [N, C, h, w]; or [N, C, D, H, W] at
    [N, d, h, w, 3] (x, y, z). `mode` is 'bilinear', 'nearest' or 'bicubic' (planes only). Places outside are 0, or with
    `padding_mode` 'border' the edge, with 'reflection' mirrored. -1 and 1 are the outer edges of the outermost
    elements, or their centres with `align_corners`. A position that is NaN counts as outside.

    >>> weft.nn.functional.grid_sample(weft.tensor([[[[1.0, 3.0]]]]), weft.tensor([[[[0.0, 0.0]]]]), align_corners=True)
    tensor([[[[2.]]]])
    """
    who = "grid_sample"
    need_float(who, input)
    same_device(who, [input, grid])
    rank = len(input.shape) - 2
    if rank not in (2, 3) or grid.shape[:1] + grid.shape[-1:] != (input.shape[0], rank) or len(grid.shape) != rank + 2:
        given = f"input {input.shape} and grid {grid.shape}"
        raise problem(ShapeError, who, given, "[N, C, H, W] and [N, h, w, 2], or [N, C, D, H, W] and [N, d, h, w, 3]")
    if grid.dtype is not input.dtype:
        raise problem(DTypeError, who, f"{input.dtype.name} and {grid.dtype.name}", "input and grid of one dtype")
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and rank == 3):
        raise problem(RangeError, who, f"mode={mode!r} for {rank} axes", "'bilinear', 'nearest', or 'bicubic' for two")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise problem(RangeError, who, f"padding_mode={padding_mode!r}", "'zeros', 'border' or 'reflection'")
    extents, align = input.shape[2:], bool(align_corners)
    if min(extents) < 1:
        raise problem(ShapeError, who, f"input {input.shape}", "at least one element along every axis")
    positions = []
    for axis, extent in enumerate(extents):
        at = build.reshape(build.narrow(grid, rank + 1, rank - 1 - axis, rank - axis), grid.shape[:-1])
        at = build.add(at, 1.0)
        at = build.mul(at, (extent - 1) / 2) if align else build.mul(build.sub(build.mul(at, float(extent)), 1.0), 0.5)
        positions.append(at)
    if mode == "bicubic":
        return _cubic(input, positions, padding_mode, align)
    positions = [_bound(at, n, padding_mode, align) for at, n in zip(positions, extents, strict=True)]
    return (_linear if mode == "bilinear" else _sample_nearest)(input, positions)


@operation("functional")
@in_float32
def affine_grid(theta: Node, size: Sequence[int], align_corners: bool | None = None) -> Node:
    """Positions for `grid_sample` by affine maps: `theta` [N, 2, 3] and size (N, C, H, W) to [N, H, W, 2], or
    [N, 3, 4] and (N, C, D, H, W) to [N, D, H, W, 3].

    >>> identity = weft.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> weft.nn.functional.affine_grid(identity, (1, 1, 1, 2), align_corners=True)
    tensor([[[[-1.,  0.],
              [ 1.,  0.]]]])
    """
    who = "affine_grid"
    need_float(who, theta)
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1) or min(size) < 1:
        given = f"theta {theta.shape} and size {tuple(size)}"
        raise problem(ShapeError, who, given, "[N, 2, 3] and (N, C, H, W), or [N, 3, 4] and (N, C, D, H, W)")
    n, extents = size[0], tuple(size[2:])
    shape = (n, *extents, rank)

    def column(k: int) -> Node:
        part = build.reshape(build.narrow(theta, 2, k, k + 1), (n, *(1,) * rank, rank))
        return build.expand(part, shape)

    total = column(rank)
    for k in range(rank):  # x runs along the last axis
        axis = rank - k
        extent = shape[axis]
        at = build.cast(build.iota(shape, axis, theta.device), theta.dtype)
        if align_corners:
            at = build.sub(build.mul(at, 2.0 / (extent - 1)), 1.0) if extent > 1 else build.mul(at, 0.0)
        else:
            at = build.sub(build.mul(build.add(build.mul(at, 2.0), 1.0), 1.0 / extent), 1.0)
        total = build.add(total, build.mul(column(k), at))
    return total


@operation("functional")
@in_float32
def deform_unfold(
    input: Node,
    offset: Node,
    mask: Node | None = None,
    kernel_size: Sizes = 3,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
) -> Node:
    """The columns of a deformable convolution, [N, C, kh*kw, oh, ow]: `unfold` with every tap moved by its offset.

    `offset` is [N, 2*g*kh*kw, oh, ow], (dy, dx) for each tap of each of g groups of channels, in torchvision's order;
    `mask` [N, g*kh*kw, oh, ow] scales each. Between elements it is bilinear, outside 0. A deformable convolution is the
    product of the weight [out, C*kh*kw] with these columns.

    >>> x = weft.arange(4).float().reshape(1, 1, 2, 2)
    >>> weft.nn.functional.deform_unfold(x, weft.full((1, 2, 2, 2), 0.5), kernel_size=1).flatten()
    tensor([1.5000, 1.0000, 1.2500, 0.7500])
    """
    who = "deform_unfold"
    need_float(who, input)
    same_device(who, [input, offset, *([mask] if mask is not None else [])])
    if len(input.shape) != 4:
        raise problem(ShapeError, who, f"shape {input.shape}", "[N, C, H, W]")
    n, c, *extents = input.shape
    kernel, strides = sizes(who, kernel_size, 2, "kernel_size"), sizes(who, stride, 2, "stride")
    pads, dilations = sizes(who, padding, 2, "padding", 0), sizes(who, dilation, 2, "dilation")
    rows = zip(extents, kernel, strides, pads, dilations, strict=True)
    counts = tuple([(e + 2 * low - d * (k - 1) - 1) // step + 1 for e, k, step, low, d in rows])
    taps = math.prod(kernel)
    groups = offset.shape[1] // (2 * taps) if len(offset.shape) == 4 else 0
    if groups < 1 or c % groups or offset.shape != (n, 2 * groups * taps, *counts):
        expected = f"[{n}, groups * {2 * taps}, {counts[0]}, {counts[1]}] with groups that divide {c} channels"
        raise problem(ShapeError, who, f"an offset of shape {offset.shape}", expected)
    if mask is not None and mask.shape != (n, groups * taps, *counts):
        raise problem(ShapeError, who, f"a mask of shape {mask.shape}", f"{(n, groups * taps, *counts)}")
    shape = (n * groups, taps, *counts)
    moved = build.reshape(build.cast(offset, input.dtype), (n * groups, taps, 2, *counts))
    positions = []
    for axis in range(2):
        own = build.reshape(build.narrow(moved, 2, axis, axis + 1), shape)
        number = build.iota(shape, 1, input.device)
        k = (
            build.div(number, kernel[1])
            if axis == 0
            else make_canonical("mod", (number, build.like(number, kernel[1])))
        )
        start = build.sub(build.mul(build.iota(shape, 2 + axis, input.device), strides[axis]), pads[axis])
        positions.append(build.add(build.cast(build.add(start, build.mul(k, dilations[axis])), input.dtype), own))
    grouped = build.reshape(input, (n * groups, c // groups, *extents))
    columns = _linear(grouped, positions)
    if mask is not None:
        columns = build.mul(columns, _per_channel(build.reshape(build.cast(mask, input.dtype), shape), columns.shape))
    return build.reshape(columns, (n, c, taps, *counts))
