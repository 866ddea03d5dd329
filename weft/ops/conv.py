"""Convolutions in one to three dimensions, forward and transposed, as PyTorch names and orders them.

Inputs are [N, C, *space] or, for one sample, [C, *space]. Inside, channels come last (see `graph.convolve`); the
permutes cancel between layers.
"""

from __future__ import annotations

from weft.base.dtypes import int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.attributes import Geometry
from weft.graph.build import Shape
from weft.graph.convolve import conv, conv_input
from weft.graph.node import Node
from weft.ops.common import Sizes, same_device, sizes
from weft.ops.registry import operation


@operation("weft functional")
def conv1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation over the last axis: input [N, C, L], weight [O, C / groups, K]. `padding` adds zeros on both
    sides; 'same' keeps the length (stride 1), 'valid' adds none.

    >>> weft.nn.functional.conv1d(weft.tensor([[[1.0, 2.0, 3.0]]]), weft.tensor([[[1.0, 1.0]]]))
    tensor([[[3., 5.]]])
    """
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@operation("weft functional")
def conv_tbc(input: Node, weight: Node, bias: Node, pad: int = 0) -> Node:
    """`conv1d` with time first: input [L, N, C], weight [K, C, O], bias [O], `pad` zeros at both ends; [L', N, O].

    >>> weft.nn.functional.conv_tbc(weft.ones(3, 1, 2), weft.ones(2, 2, 4), weft.zeros(4)).shape
    (2, 1, 4)
    """
    if len(input.shape) != 3 or len(weight.shape) != 3 or bias.shape != weight.shape[2:]:
        given = f"input {input.shape}, weight {weight.shape} and bias {bias.shape}"
        raise problem(ShapeError, "conv_tbc", given, "[L, N, C], [K, C, O] and [O]")
    result = conv1d(build.permute(input, (1, 2, 0)), build.permute(weight, (2, 1, 0)), bias, padding=pad)
    return build.permute(result, (2, 0, 1))


@operation("weft functional")
def conv2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation over the last two axes: input [N, C, H, W], weight [O, C / groups, KH, KW].

    >>> weft.nn.functional.conv2d(weft.ones(1, 1, 3, 3), weft.ones(1, 1, 2, 2)).shape
    (1, 1, 2, 2)
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@operation("weft functional")
def conv3d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Node:
    """Cross-correlation over the last three axes: input [N, C, D, H, W], weight [O, C / groups, KD, KH, KW].

    >>> weft.nn.functional.conv3d(weft.ones(1, 2, 4, 4, 4), weft.ones(3, 2, 3, 3, 3), padding=1).shape
    (1, 3, 4, 4, 4)
    """
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


@operation("weft functional")
def conv_transpose1d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Node:
    """The adjoint of `conv1d`: input [N, C, L], weight [C, O / groups, K]; length (L - 1) * stride - 2 * padding +
    dilation * (K - 1) + output_padding + 1.

    >>> weft.nn.functional.conv_transpose1d(weft.ones(1, 1, 2), weft.ones(1, 1, 2), stride=2)
    tensor([[[1., 1., 1., 1.]]])
    """
    return _transpose_conv(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@operation("weft functional")
def conv_transpose2d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Node:
    """The adjoint of `conv2d`: input [N, C, H, W], weight [C, O / groups, KH, KW].

    >>> weft.nn.functional.conv_transpose2d(weft.ones(1, 1, 2, 2), weft.ones(1, 3, 2, 2), stride=2).shape
    (1, 3, 4, 4)
    """
    return _transpose_conv(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@operation("weft functional")
def conv_transpose3d(
    input: Node,
    weight: Node,
    bias: Node | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Node:
    """The adjoint of `conv3d`: input [N, C, D, H, W], weight [C, O / groups, KD, KH, KW].

    >>> weft.nn.functional.conv_transpose3d(weft.ones(1, 1, 2, 2, 2), weft.ones(1, 3, 2, 2, 2)).shape
    (1, 3, 3, 3, 3)
    """
    return _transpose_conv(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


def _conv(who, rank, x, w, bias, stride, padding, dilation, groups) -> Node:
    _check(who, rank, x, w, bias, groups, w.shape[0] if w.shape else 0)
    if x.shape[-rank - 1] != w.shape[1] * groups:
        given = f"an input of {x.shape[-rank - 1]} channels, a weight {w.shape} and groups={groups}"
        raise problem(ShapeError, who, given, f"{w.shape[1] * groups} channels (weight.shape[1] * groups)")
    if w.shape[0] % groups:
        raise problem(ShapeError, who, f"{w.shape[0]} filters and groups={groups}", "filters that divide by groups")
    strides = sizes(who, stride, rank, "stride")
    dilations = sizes(who, dilation, rank, "dilation")
    lows, highs = _paddings(who, padding, rank, w.shape[2:], strides, dilations)
    how = Geometry(strides, lows, highs, dilations, groups)
    if min(how.extents(x.shape[-rank:], w.shape[2:])) < 1:
        given = f"a kernel {w.shape[2:]} with dilation {dilations} over {x.shape[-rank:]} with padding {lows}"
        raise problem(ShapeError, who, given, "a kernel that fits", "pad more, or take a smaller kernel")
    if x.dtype is int64:
        return _of_integers(rank, x, w, bias, how)
    kernel = build.permute(w, (*range(2, rank + 2), 1, 0))
    return _channels_first(who, rank, x, lambda rows: conv(rows, kernel, how), bias)


def _of_integers(rank: int, x: Node, w: Node, bias: Node | None, how: Geometry) -> Node:
    """A convolution of whole numbers: products of windows and taps, summed."""
    single = len(x.shape) == rank + 1
    x = build.reshape(x, (1, *x.shape)) if single else x
    n, channels, *space = x.shape
    counts, kernel, groups = how.extents(tuple(space), w.shape[2:]), w.shape[2:], how.groups
    x = build.pad(x, (0, 0, *how.lows), (0, 0, *how.highs))
    for axis in reversed(range(rank)):
        x = build.unfold(x, 2 + axis, kernel[axis], how.strides[axis], how.dilations[axis])
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))  # [N, C, *counts, *kernel]
    views = build.permute(x, order)
    inner, filters = channels // groups, w.shape[0] // groups
    views = build.reshape(views, (n, groups, 1, inner, *counts, *kernel))
    taps = build.reshape(w, (1, groups, filters, inner, *(1,) * rank, *kernel))
    shape = (n, groups, filters, inner, *counts, *kernel)
    products = build.mul(build.expand(views, shape), build.expand(taps, shape))
    y = build.reduce("reduce_sum", products, (3, *range(4 + rank, 4 + 2 * rank)))
    y = build.reshape(y, (n, groups * filters, *counts))
    if bias is not None:
        y = build.add(y, build.expand(build.reshape(bias, (1, bias.size, *(1,) * rank)), y.shape))
    return build.reshape(y, y.shape[1:]) if single else y


def _transpose_conv(who, rank, x, w, bias, stride, padding, output_padding, groups, dilation) -> Node:
    _check(who, rank, x, w, bias, groups, w.shape[1] * groups if len(w.shape) > 1 else 0)
    if x.shape[-rank - 1] != w.shape[0] or w.shape[0] % groups:
        given = f"an input of {x.shape[-rank - 1]} channels, a weight {w.shape} and groups={groups}"
        raise problem(ShapeError, who, given, f"{w.shape[0]} channels (weight.shape[0]), divisible by groups")
    strides, dilations = sizes(who, stride, rank, "stride"), sizes(who, dilation, rank, "dilation")
    pads, extra = sizes(who, padding, rank, "padding", 0), sizes(who, output_padding, rank, "output_padding", 0)
    rows = zip(x.shape[-rank:], w.shape[2:], strides, pads, extra, dilations, strict=True)
    space = tuple([(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in rows])
    if min(space) < 1 or any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        given = f"input {x.shape}, weight {w.shape}, padding {pads}, output_padding {extra}"
        raise problem(ShapeError, who, given, "a result of at least 1, and output_padding below stride or dilation")
    if x.dtype is int64:
        return _transpose_integers(rank, x, w, bias, strides, pads, extra, dilations, groups)
    how = Geometry(strides, pads, pads, dilations, groups)
    kernel = build.permute(w, (*range(2, rank + 2), 1, 0))
    beyond = tuple([e // s for e, s in zip(extra, strides, strict=True)])  # windows over padding alone, which has none

    def input_of(g: Node) -> Node:
        return conv_input(build.pad(g, (0,) * (rank + 2), (0, *beyond, 0)), kernel, space, how)

    return _channels_first(who, rank, x, input_of, bias)


def _transpose_integers(rank, x, w, bias, strides, pads, extra, dilations, groups) -> Node:
    """A transposed convolution of whole numbers: a convolution of the input with zeros between its elements and the
    taps in reverse."""
    space, kernel = x.shape[-rank:], w.shape[2:]
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    wide = tuple([(n - 1) * s + 1 for n, s in zip(space, strides, strict=True)])
    lead = len(x.shape) - rank
    spread = build.embed_slice(x, (*x.shape[:lead], *wide), (0,) * len(x.shape), (1,) * lead + tuple(strides))
    lows = [r - p for r, p in zip(reach, pads, strict=True)]
    highs = [r - p + e for r, p, e in zip(reach, pads, extra, strict=True)]
    starts, stops = [max(-low, 0) for low in lows], [n - max(-high, 0) for n, high in zip(wide, highs, strict=True)]
    spread = build.slice_(spread, (*(0,) * lead, *starts), (*x.shape[:lead], *stops))
    inner, filters = w.shape[0] // groups, w.shape[1]
    taps = build.flip(build.reshape(w, (groups, inner, filters, *kernel)), range(3, 3 + rank))
    taps = build.permute(taps, (0, 2, 1, *range(3, 3 + rank)))
    taps = build.reshape(taps, (groups * filters, inner, *kernel))
    more = [tuple([max(n, 0) for n in ends]) for ends in (lows, highs)]
    return _of_integers(rank, spread, taps, bias, Geometry((1,) * rank, more[0], more[1], dilations, groups))


def _check(who: str, rank: int, x: Node, w: Node, bias: Node | None, groups: int, filters: int) -> None:
    nodes = [x, w] if bias is None else [x, w, bias]
    same_device(who, nodes)
    if any(node.dtype is not x.dtype for node in nodes) or (x.dtype.kind != "f" and x.dtype is not int64):
        given = ", ".join(node.dtype.name for node in nodes)
        raise problem(DTypeError, who, given, "float tensors of one dtype, or int64", "cast with .to")
    if len(x.shape) not in (rank + 1, rank + 2) or len(w.shape) != rank + 2:
        space = ", ".join("DHW"[-rank:]) if rank > 1 else "L"
        given = f"input {x.shape} and weight {w.shape}"
        raise problem(ShapeError, who, given, f"input [N, C, {space}] or [C, {space}] and weight of rank {rank + 2}")
    if not isinstance(groups, int) or groups < 1:
        raise problem(RangeError, who, f"groups={groups!r}", "a whole number above 0")
    if not w.size or not x.shape[-rank - 1]:
        raise problem(ShapeError, who, f"input {x.shape} and weight {w.shape}", "at least one channel and one tap")
    if bias is not None and bias.shape != (filters,):
        raise problem(ShapeError, who, f"a bias {bias.shape}", f"({filters},), one number per filter")


def _paddings(who: str, padding: Sizes | str, rank: int, kernel: Shape, strides: Shape, dilations: Shape):
    if not isinstance(padding, str):
        pads = sizes(who, padding, rank, "padding", 0)
        return pads, pads
    if padding not in ("same", "valid"):
        raise problem(RangeError, who, f"padding={padding!r}", "'same', 'valid' or numbers")
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if any(stride > 1 for stride in strides):
        raise problem(RangeError, who, f"padding='same' with stride {strides}", "stride 1", "pad by numbers")
    totals = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    return tuple([total // 2 for total in totals]), tuple([total - total // 2 for total in totals])


def _channels_first(who: str, rank: int, x: Node, function, bias: Node | None) -> Node:
    """`function` of x with channels last, plus the bias, with channels first again."""
    single = len(x.shape) == rank + 1
    if single:
        x = build.reshape(x, (1, *x.shape))
    y = function(build.permute(x, (0, *range(2, rank + 2), 1)))
    if bias is not None:
        y = build.add(y, build.expand_to(bias, y.shape))
    y = build.permute(y, (0, rank + 1, *range(1, rank + 1)))
    return build.reshape(y, y.shape[1:]) if single else y
