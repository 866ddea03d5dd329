"""Windows and borders as the user names them: `unfold`, `fold`, padding with the tensor's own elements, and channels
that become positions (`pixel_shuffle`) or change theirs (`channel_shuffle`). All of it is movement."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.ops.common import Sizes, as_int, in_float32, normal_axis, sizes
from weft.ops.registry import operation


@operation("method", name="unfold", view="unfold")
def unfold_axis(input: Node, dimension: int, size: int, step: int) -> Node:
    """Windows of `size` elements, `step` apart, along an axis; the positions in a window are a new last axis.

    >>> weft.arange(5).unfold(0, 3, 2)
    tensor([[0, 1, 2],
            [2, 3, 4]])
    """
    if not input.shape:  # one window, which has the only axis
        return build.reshape(unfold_axis(build.reshape(input, (1,)), dimension, size, max(step, 2)), (size,))
    axis = normal_axis("unfold", dimension, len(input.shape))
    if not 0 <= size <= input.shape[axis] or step < 1:
        given = f"size={size} and step={step} for an axis of extent {input.shape[axis]}"
        raise problem(ShapeError, "unfold", given, "a size of 0 to the extent and a step of at least 1")
    if size == 0:
        shape = (*input.shape[:axis], input.shape[axis] // step + 1, *input.shape[axis + 1 :], 0)
        return build.full(shape, 0, input.dtype, input.device)
    windows = build.unfold(input, axis, size, step)
    rest = range(axis + 2, len(windows.shape))
    return build.permute(windows, (*range(axis + 1), *rest, axis + 1))


def _patches(
    who: str, extents: Shape, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> tuple[Shape, Shape, Shape, Shape, Shape]:
    """(kernel, dilation, padding, stride, counts) of patches over two axes."""
    kernel, dilations = sizes(who, kernel_size, 2, "kernel_size"), sizes(who, dilation, 2, "dilation")
    pads, strides = sizes(who, padding, 2, "padding", 0), sizes(who, stride, 2, "stride")
    rows = zip(extents, kernel, dilations, pads, strides, strict=True)
    counts = tuple([(n + 2 * low - d * (size - 1) - 1) // step + 1 for n, size, d, low, step in rows])
    if min(counts) < 1:
        given = f"a plane of {extents} with kernel_size={kernel_size!r}, padding={padding!r}, dilation={dilation!r}"
        raise problem(ShapeError, who, given, "at least one patch")
    return kernel, dilations, pads, strides, counts


@operation("functional")
def unfold(input: Node, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Node:
    """The patches of [N, C, H, W] (or [C, H, W]) as columns: [N, C*kh*kw, patches], rows in the order (c, i, j).

    >>> weft.nn.functional.unfold(weft.arange(4).float().reshape(1, 1, 2, 2), (1, 2))
    tensor([[[0., 2.],
             [1., 3.]]])
    """
    if len(input.shape) == 3:
        columns = unfold(build.reshape(input, (1, *input.shape)), kernel_size, dilation, padding, stride)
        return build.reshape(columns, columns.shape[1:])
    if len(input.shape) != 4:
        raise problem(ShapeError, "unfold", f"shape {input.shape}", "[N, C, H, W] or [C, H, W]")
    n, c = input.shape[:2]
    kernel, dilations, pads, strides, counts = _patches(
        "unfold", input.shape[2:], kernel_size, dilation, padding, stride
    )
    x = build.pad(input, (0, 0, *pads), (0, 0, *pads))
    x = build.unfold(x, 3, kernel[1], strides[1], dilations[1])
    x = build.unfold(x, 2, kernel[0], strides[0], dilations[0])  # [N, C, oh, kh, ow, kw]
    return build.reshape(build.permute(x, (0, 1, 3, 5, 2, 4)), (n, c * math.prod(kernel), math.prod(counts)))


@operation("functional")
@in_float32
def fold(
    input: Node,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Node:
    """Columns of `unfold` added back into a plane: [N, C*kh*kw, patches] to [N, C, H, W]; overlaps are summed.

    >>> weft.nn.functional.fold(weft.ones(1, 2, 2), (1, 3), (1, 2))
    tensor([[[[1., 2., 1.]]]])
    """
    if len(input.shape) == 2:
        plane = fold(build.reshape(input, (1, *input.shape)), output_size, kernel_size, dilation, padding, stride)
        return build.reshape(plane, plane.shape[1:])
    extents = sizes("fold", output_size, 2, "output_size")
    kernel, dilations, pads, strides, counts = _patches("fold", extents, kernel_size, dilation, padding, stride)
    rows, columns = math.prod(kernel), math.prod(counts)
    if len(input.shape) != 3 or input.shape[1] % rows or input.shape[2] != columns:
        raise problem(
            ShapeError, "fold", f"shape {input.shape}", f"[N, C * {rows}, {columns}]: {rows} elements, {counts} patches"
        )
    n, channels = input.shape[0], input.shape[1] // rows
    x = build.permute(build.reshape(input, (n, channels, *kernel, *counts)), (0, 1, 4, 2, 5, 3))
    x = build.fold(x, 4, extents[1] + 2 * pads[1], strides[1], dilations[1])
    x = build.fold(x, 2, extents[0] + 2 * pads[0], strides[0], dilations[0])
    stops = tuple([low + extent for low, extent in zip(pads, extents, strict=True)])
    return build.slice_(x, (0, 0, *pads), (n, channels, *stops))


# --- borders ---------------------------------------------------------------------------------------------------------


def border(x: Node, lows: Sequence[int], highs: Sequence[int], mode: str) -> Node:
    """`lows` and `highs` more elements around each axis: 'reflect', 'replicate' or 'circular'. Negative numbers cut: a
    circle before it goes round, else what was made."""
    for axis, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if mode == "circular":
            x = _cut(x, axis, low, high)
        n = x.shape[axis]
        most = {"reflect": n - 1, "circular": n}.get(mode)
        if max(low, high) > 0 and (n == 0 or (most is not None and max(low, high) > most)):
            given, expected = f"padding ({low}, {high}) of an axis of extent {n}", f"at most {max(most or 0, 0)}"
            raise problem(ShapeError, f"pad, mode='{mode}'", given, expected)
        x = _add_border(x, axis, max(low, 0), max(high, 0), mode)
        x = x if mode == "circular" else _cut(x, axis, low, high)
    return x


def _cut(x: Node, axis: int, low: int, high: int) -> Node:
    """`x` without the elements that negative numbers take from the ends of an axis."""
    start, stop = max(-low, 0), x.shape[axis] - max(-high, 0)
    if start > stop:
        given = f"padding ({low}, {high}) of an axis of extent {x.shape[axis]}"
        raise problem(ShapeError, "pad", given, "to cut no more than there is")
    return build.narrow(x, axis, start, stop)


def _add_border(x: Node, axis: int, low: int, high: int, mode: str) -> Node:
    """Three parts laid into one axis: what comes before, the tensor, what comes after."""
    n, rank = x.shape[axis], len(x.shape)
    whole = low + n + high

    def lay_out(part: Node, at: int) -> Node:
        before, after = [0] * rank, [0] * rank
        before[axis], after[axis] = at, whole - at - part.shape[axis]
        return build.pad(part, tuple(before), tuple(after))

    out = lay_out(x, low)
    position = build.iota(out.shape, axis, x.device) if low or high else None
    if low:
        assert position is not None
        out = build.select(build.lt(position, low), lay_out(_border(x, axis, low, mode, before=True), 0), out)
    if high:
        assert position is not None
        part = lay_out(_border(x, axis, high, mode, before=False), low + n)
        out = build.select(build.lt(position, low + n), out, part)
    return out


def _border(x: Node, axis: int, count: int, mode: str, before: bool) -> Node:
    n = x.shape[axis]
    if mode == "reflect":
        start = 1 if before else n - 1 - count
        return build.flip(build.narrow(x, axis, start, start + count), (axis,))
    if mode == "circular":
        return build.narrow(x, axis, n - count, n) if before else build.narrow(x, axis, 0, count)
    edge = build.narrow(x, axis, 0, 1) if before else build.narrow(x, axis, n - 1, n)
    return build.expand(edge, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


# --- channels and positions ------------------------------------------------------------------------------------------


def _planes(who: str, x: Node) -> tuple[Shape, int, int, int]:
    """(leading axes, C, H, W) of a tensor of images."""
    if len(x.shape) < 3:
        raise problem(ShapeError, who, f"shape {x.shape}", "[..., C, H, W]")
    c, h, w = x.shape[-3:]
    return x.shape[:-3], c, h, w


@operation("weft functional")
def pixel_shuffle(input: Node, upscale_factor: int) -> Node:
    """[..., C*r*r, H, W] to [..., C, H*r, W*r]: each group of r*r channels becomes an r x r block.

    >>> weft.nn.functional.pixel_shuffle(weft.arange(4).reshape(4, 1, 1), 2)
    tensor([[[0, 1],
             [2, 3]]])
    """
    r = as_int("pixel_shuffle", upscale_factor, "upscale_factor")
    lead, c, h, w = _planes("pixel_shuffle", input)
    if r < 1 or c % (r * r):
        given = f"{c} channels and upscale_factor={r}"
        raise problem(ShapeError, "pixel_shuffle", given, "channels in groups of its square")
    k = len(lead)
    x = build.reshape(input, (*lead, c // (r * r), r, r, h, w))
    x = build.permute(x, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return build.reshape(x, (*lead, c // (r * r), h * r, w * r))


@operation("weft functional")
def pixel_unshuffle(input: Node, downscale_factor: int) -> Node:
    """[..., C, H*r, W*r] to [..., C*r*r, H, W]: the inverse of `pixel_shuffle`."""
    r = as_int("pixel_unshuffle", downscale_factor, "downscale_factor")
    lead, c, h, w = _planes("pixel_unshuffle", input)
    if r < 1 or h % r or w % r:
        given = f"a plane of {(h, w)} and downscale_factor={r}"
        raise problem(ShapeError, "pixel_unshuffle", given, "a factor of both extents")
    k = len(lead)
    x = build.reshape(input, (*lead, c, h // r, r, w // r, r))
    x = build.permute(x, (*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return build.reshape(x, (*lead, c * r * r, h // r, w // r))


@operation("weft functional", aliases="native_channel_shuffle")
def channel_shuffle(input: Node, groups: int) -> Node:
    """The channels of [N, C, ...] dealt out anew: channel (g, i) of `groups` groups goes to (i, g).

    >>> weft.nn.functional.channel_shuffle(weft.arange(4).reshape(1, 4, 1), 2).flatten()
    tensor([0, 2, 1, 3])
    """
    g = as_int("channel_shuffle", groups, "groups")
    if len(input.shape) < 3 or g < 1 or input.shape[1] % g:
        raise problem(ShapeError, "channel_shuffle", f"shape {input.shape} and groups={g}", "[N, groups * k, ...]")
    n, c, *rest = input.shape
    x = build.reshape(input, (n, g, c // g, *rest))
    return build.reshape(build.permute(x, (0, 2, 1, *range(3, len(x.shape)))), input.shape)
