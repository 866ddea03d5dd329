"""Movement: the same elements in another arrangement. On nodes nothing aliases: every result is a new value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.errors import DTypeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import (
    as_int,
    fit_number,
    normal_axes,
    normal_axis,
    normal_shape,
    number_kind,
    result_dtype,
    same_device,
)
from weft.ops.registry import operation
from weft.ops.windows import border


@operation(view="reshape")
def reshape(input: Node, *shape: int | Sequence[int]) -> Node:
    """The elements in row-major order under another shape; one extent may be -1.

    >>> weft.arange(6).reshape(2, -1)
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    wanted = normal_shape("reshape", shape)
    unknown = wanted.count(-1)
    known = math.prod(extent for extent in wanted if extent != -1)
    fits = known == input.size if not unknown else unknown == 1 and known > 0 and input.size % known == 0
    if not fits or min(wanted, default=0) < -1:
        raise problem(
            ShapeError,
            "reshape",
            f"shape {input.shape} ({input.size} elements) to {wanted}",
            "as many elements",
            "use -1 for one axis",
        )
    return build.reshape(input, tuple(input.size // known if extent == -1 else extent for extent in wanted))


@operation("method", view="basic")
def view(input: Node, *size: int | Sequence[int]) -> Node:
    """`reshape`; what is written to the result is written to `input`."""
    return reshape(input, *size)


@operation(view="basic")
def permute(input: Node, *dims: int | Sequence[int]) -> Node:
    """The axes in another order."""
    order = normal_shape("permute", dims)
    rank = len(input.shape)
    axes = [normal_axis("permute", axis, rank) for axis in order]
    if sorted(axes) != list(range(rank)):
        raise problem(ShapeError, "permute", f"axes {order} for shape {input.shape}", f"each of the {rank} axes once")
    return build.permute(input, axes)


@operation(view="basic", aliases="swapdims")
def transpose(input: Node, dim0: int, dim1: int) -> Node:
    """Two axes exchanged."""
    rank = len(input.shape)
    first, second = normal_axis("transpose", dim0, rank), normal_axis("transpose", dim1, rank)
    order = list(range(rank))
    if rank:
        order[first], order[second] = order[second], order[first]
    return build.permute(input, order)


@operation(view="basic")
def t(input: Node) -> Node:
    """The transpose of a matrix; vectors and scalars stay."""
    if len(input.shape) > 2:
        raise problem(
            ShapeError, "t", f"shape {input.shape}", "at most two axes", "use .mT for the last two axes or permute"
        )
    return build.permute(input, range(len(input.shape))[::-1])


@operation(name="adjoint", view="basic")
def matrix_transpose(input: Node) -> Node:
    """The last two axes exchanged: `x.mT`."""
    if len(input.shape) < 2:
        raise problem(ShapeError, "mT", f"shape {input.shape}", "at least two axes")
    return build.swap_last(input)


@operation(view="basic", aliases="moveaxis")
def movedim(input: Node, source: int | Sequence[int], destination: int | Sequence[int]) -> Node:
    """Axes taken out and put in at other positions; the others keep their order.

    >>> weft.zeros(2, 3, 4).movedim((0, 1), (-1, 0)).shape
    (3, 4, 2)
    """
    rank = len(input.shape)
    froms, tos = (list(axes) if isinstance(axes, (tuple, list)) else [axes] for axes in (source, destination))
    if len(froms) != len(tos):
        raise problem(ShapeError, "movedim", f"{len(froms)} axes to {len(tos)} positions", "as many of both")
    targets = {
        normal_axis("movedim", to, rank): normal_axis("movedim", axis, rank)
        for axis, to in zip(froms, tos, strict=True)
    }
    if len(targets) != len(tos) or len(set(targets.values())) != len(froms):
        raise problem(ShapeError, "movedim", f"axes {source} to {destination}", "each axis and each position once")
    if not rank:
        return input
    others = iter([axis for axis in range(rank) if axis not in targets.values()])
    return build.permute(input, [targets[to] if to in targets else next(others) for to in range(rank)])


@operation("method", view="expand")
def expand(input: Node, *size: int | Sequence[int]) -> Node:
    """Repeat axes of extent 1 and add leading axes; -1 keeps an extent.

    >>> weft.tensor([[1.0], [2.0]]).expand(-1, 3)
    tensor([[1., 1., 1.],
            [2., 2., 2.]])
    """
    wanted = normal_shape("expand", size)
    extra = len(wanted) - len(input.shape)
    old = (1,) * extra + input.shape
    new = tuple(
        have if want == -1 and axis >= extra else want
        for axis, (want, have) in enumerate(zip(wanted, old, strict=False))
    )
    if extra < 0 or any(have not in (1, want) or want < 0 for want, have in zip(new, old, strict=True)):
        raise problem(
            ShapeError, "expand", f"shape {input.shape} to {wanted}", "axes of extent 1 where the extent changes"
        )
    return build.expand_to(input, new)


@operation(view="expand")
def broadcast_to(input: Node, size: Sequence[int]) -> Node:
    """`input` broadcast to a shape."""
    return expand(input, tuple(size))


@operation(view="basic")
def squeeze(input: Node, dim: int | Sequence[int] | None = None) -> Node:
    """Drop axes of extent 1: all of them, or those of `dim` that have extent 1."""
    if isinstance(dim, (tuple, list)) and not dim:
        return input
    axes = range(len(input.shape)) if dim is None else normal_axes("squeeze", dim, len(input.shape))
    return build.reshape(
        input, tuple(extent for axis, extent in enumerate(input.shape) if axis not in axes or extent != 1)
    )


@operation(view="basic")
def unsqueeze(input: Node, dim: int) -> Node:
    """A new axis of extent 1 at `dim`."""
    axis = normal_axis("unsqueeze", dim, len(input.shape) + 1)
    return build.reshape(input, (*input.shape[:axis], 1, *input.shape[axis:]))


@operation(view="reshape")
def flatten(input: Node, start_dim: int = 0, end_dim: int = -1) -> Node:
    """The axes from `start_dim` to `end_dim` made one."""
    rank = len(input.shape)
    start, end = normal_axis("flatten", start_dim, rank), normal_axis("flatten", end_dim, rank)
    if start > end:
        raise problem(ShapeError, "flatten", f"start_dim {start_dim} after end_dim {end_dim}", "them in order")
    return build.reshape(
        input, (*input.shape[:start], math.prod(input.shape[start : end + 1]), *input.shape[end + 1 :])
    )


@operation(view="basic")
def unflatten(input: Node, dim: int, sizes: Sequence[int]) -> Node:
    """One axis made several; one of `sizes` may be -1."""
    axis = normal_axis("unflatten", dim, len(input.shape))
    return reshape(
        input, (*input.shape[:axis], *_fill_in("unflatten", input.shape[axis], sizes), *input.shape[axis + 1 :])
    )


def _fill_in(who: str, extent: int, sizes: Sequence[int]) -> Shape:
    known = math.prod(size for size in sizes if size != -1)
    filled = tuple(extent // known if size == -1 and known else size for size in sizes)
    if math.prod(filled) != extent:
        raise problem(ShapeError, who, f"extent {extent} to {tuple(sizes)}", "sizes with that product")
    return filled


@operation()
def flip(input: Node, *dims: int | Sequence[int]) -> Node:
    """The order of elements reversed along `dims`."""
    axes = normal_shape("flip", dims)
    return build.flip(input, normal_axes("flip", axes, len(input.shape)) if axes else ())


@operation()
def roll(input: Node, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Node:
    """Elements moved by `shifts` along `dims`, those pushed out coming in at the other end; without `dims`, of the
    flattened tensor.

    >>> weft.roll(weft.arange(4), 1)
    tensor([3, 0, 1, 2])
    """
    if dims is None:
        return build.reshape(roll(build.reshape(input, (input.size,)), shifts, 0), input.shape)
    shift_list: list[Any] = list(shifts) if isinstance(shifts, (tuple, list)) else [shifts]
    dim_list: list[Any] = list(dims) if isinstance(dims, (tuple, list)) else [dims]
    if len(shift_list) != len(dim_list):
        raise problem(ShapeError, "roll", f"{len(shift_list)} shifts for {len(dim_list)} dims", "as many of both")
    for shift, dim in zip(shift_list, dim_list, strict=True):
        axis = normal_axis("roll", dim, len(input.shape))
        extent = input.shape[axis]
        cut = -as_int("roll", shift, "shift") % extent if extent else 0
        if cut:
            input = build.concat([build.narrow(input, axis, cut, extent), build.narrow(input, axis, 0, cut)], axis)
    return input


@operation("functional")
def pad(input: Node, pad: Sequence[int], mode: str = "constant", value: Number | None = None) -> Node:
    """Elements of `value` around the last axes: `pad` is (low, high) of the last axis, then of the one before, ...
    Negative numbers cut off. Instead of a value, `mode` takes the tensor's own elements: 'reflect' mirrors them at the
    edge, 'replicate' repeats the edge, 'circular' goes on at the other end; these leave the first axis alone.

    >>> weft.nn.functional.pad(weft.ones(2), (1, 2))
    tensor([0., 1., 1., 0., 0.])
    """
    rank = len(input.shape)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise problem(ShapeError, "pad", f"mode={mode!r}", "'constant', 'reflect', 'replicate' or 'circular'")
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise problem(
            ShapeError,
            "pad",
            f"{tuple(pad)} for shape {input.shape}",
            "a low and a high number for some of the last axes",
        )
    lows, highs = [0] * rank, [0] * rank
    for number in range(len(pad) // 2):
        lows[rank - 1 - number], highs[rank - 1 - number] = (
            as_int("pad", n, "padding") for n in pad[2 * number : 2 * number + 2]
        )
    if any(low + high + extent < 0 for low, high, extent in zip(lows, highs, input.shape, strict=True)):
        raise problem(ShapeError, "pad", f"{tuple(pad)} for shape {input.shape}", "extents that stay at least 0")
    if mode != "constant":
        if value or rank not in (len(pad) // 2 + 1, len(pad) // 2 + 2):
            given = f"shape {input.shape}, {len(pad)} numbers and value={value}"
            raise problem(ShapeError, f"pad, mode='{mode}'", given, "all axes but one or two padded, and no value")
        return border(input, lows, highs, mode)
    starts = tuple(max(-low, 0) for low in lows)
    stops = tuple(extent - max(-high, 0) for extent, high in zip(input.shape, highs, strict=True))
    inner = build.slice_(input, starts, stops)
    filling = 0 if value is None else value
    number_kind("pad", filling)
    lows, highs = [max(low, 0) for low in lows], [max(high, 0) for high in highs]
    return build.pad(inner, tuple(lows), tuple(highs), fit_number("pad", filling, input.dtype))


def _need_tensors(who: str, tensors: Sequence[Any]) -> None:
    for one in tensors:
        if not isinstance(one, Node):
            raise problem(
                DTypeError, who, f"a {type(one).__name__} in the list", "tensors", "convert it with weft.tensor"
            )


@operation("weft", aliases="concat concatenate")
def cat(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Tensors one after the other along `dim`; the other extents are equal, the dtypes promote. Empty vectors count for
    their dtype alone, whatever the rank of the others.

    >>> weft.cat([weft.ones(1, 2), weft.zeros(1, 2)])
    tensor([[1., 1.],
            [0., 0.]])
    """
    if not tensors:
        raise problem(ShapeError, "cat", "no tensors", "at least one")
    _need_tensors("cat", tensors)
    same_device("cat", tensors)
    dtype = result_dtype("cat", tensors)
    tensors = [node for node in tensors if node.shape != (0,)] or tensors[:1]
    first = tensors[0]
    if not first.shape:
        raise problem(ShapeError, "cat", "a scalar", "tensors with at least one axis", "use stack")
    axis = normal_axis("cat", dim, len(first.shape))
    for node in tensors:
        if len(node.shape) != len(first.shape) or build.keepdim_shape(node.shape, (axis,)) != build.keepdim_shape(
            first.shape, (axis,)
        ):
            given = f"shapes {first.shape} and {node.shape} along axis {axis}"
            raise problem(
                ShapeError, "cat", given, "equal extents on the other axes", "reshape one of them or use stack"
            )
    return build.concat([build.cast(node, dtype) for node in tensors], axis)


@operation("weft")
def stack(tensors: Sequence[Node], dim: int = 0) -> Node:
    """Tensors of one shape along a new axis `dim`."""
    if not tensors:
        raise problem(ShapeError, "stack", "no tensors", "at least one")
    _need_tensors("stack", tensors)
    for node in tensors:
        if node.shape != tensors[0].shape:
            raise problem(ShapeError, "stack", f"shapes {tensors[0].shape} and {node.shape}", "equal shapes", "use cat")
    axis = normal_axis("stack", dim, len(tensors[0].shape) + 1)
    return cat([unsqueeze(node, axis) for node in tensors], axis)


@operation(view="basic")
def shrink(input: Node, *bounds: Sequence[int] | None) -> Node:
    """The part from `start` to before `end` of every axis, given as a pair for each; None keeps an axis. The gradient
    is padded with zeros.

    >>> weft.arange(6).reshape(2, 3).shrink((0, 1), (1, 3))
    tensor([[1, 2]])
    """
    pairs: Sequence[Any] = bounds
    if len(pairs) == 1 and isinstance(pairs[0], (tuple, list)) and not all(isinstance(one, int) for one in pairs[0]):
        pairs = pairs[0]  # shrink(((0, 1), (1, 3)))
    _need_one_per_axis("shrink", pairs, "bounds", input)
    starts, ends = [], []
    for axis, (pair, extent) in enumerate(zip(pairs, input.shape, strict=True)):
        if pair is None:
            pair = (0, extent)
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise problem(ShapeError, "shrink", f"{pair!r} for axis {axis}", "a pair (start, end), or None")
        start, end = (as_int("shrink", one, "bounds") for one in pair)
        if not 0 <= start <= end <= extent:
            raise problem(ShapeError, "shrink", f"({start}, {end}) for axis {axis}", f"0 <= start <= end <= {extent}")
        starts.append(start)
        ends.append(end)
    return build.slice_(input, tuple(starts), tuple(ends))


@operation(view="basic")
def subsample(input: Node, *strides: int | Sequence[int]) -> Node:
    """Every s-th element of every axis, from the first on: an extent n becomes n / s, rounded up. The gradient is 0
    between them.

    >>> weft.arange(5).subsample(2)
    tensor([0, 2, 4])
    """
    steps = normal_shape("subsample", strides)
    _need_one_per_axis("subsample", steps, "strides", input)
    if min(steps, default=1) < 1:
        raise problem(
            ShapeError, "subsample", f"strides {steps}", "whole numbers from 1 on", "use flip to reverse an axis"
        )
    return build.slice_(input, (0,) * len(steps), input.shape, steps)


def _need_one_per_axis(who: str, given: Sequence[Any], what: str, input: Node) -> None:
    if len(given) != len(input.shape):
        raise problem(ShapeError, who, f"{len(given)} {what} for shape {input.shape}", "one for each axis")


@operation(view="basic")
def split(tensor: Node, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    """Pieces along `dim`: of one size (the last may be smaller), or of the sizes listed."""
    axis = normal_axis("split", dim, len(tensor.shape))
    extent = tensor.shape[axis] if tensor.shape else 0
    if isinstance(split_size_or_sections, (tuple, list)):
        sizes = list(split_size_or_sections)
    else:
        size = as_int("split", split_size_or_sections, "size")
        if size < 1:
            raise problem(ShapeError, "split", f"the size {size}", "at least 1")
        sizes = [min(size, extent - start) for start in range(0, extent, size)] or [0]
    if sum(sizes) != extent or not tensor.shape:
        raise problem(ShapeError, "split", f"sections {sizes} of extent {extent}", "sections that add up to it")
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return tuple(build.narrow(tensor, axis, start, start + size) for start, size in zip(starts, sizes, strict=True))


@operation(view="basic")
def chunk(input: Node, chunks: int, dim: int = 0) -> tuple[Node, ...]:
    """At most `chunks` pieces of equal size along `dim` (the last may be smaller)."""
    axis = normal_axis("chunk", dim, len(input.shape))
    if chunks < 1 or not input.shape:
        raise problem(
            ShapeError, "chunk", f"{chunks} chunks of shape {input.shape}", "at least 1 chunk of at least one axis"
        )
    extent = input.shape[axis]
    return split(input, -(-extent // chunks) if extent else [0] * chunks, axis)


@operation(view="basic")
def unbind(input: Node, dim: int = 0) -> tuple[Node, ...]:
    """Every slice along `dim`, without that axis."""
    if not input.shape:
        raise problem(ShapeError, "unbind", "a scalar", "at least one axis")
    axis = normal_axis("unbind", dim, len(input.shape))
    rest = input.shape[:axis] + input.shape[axis + 1 :]
    return tuple(build.reshape(build.narrow(input, axis, n, n + 1), rest) for n in range(input.shape[axis]))


@operation("method")
def repeat(input: Node, *repeats: int | Sequence[int]) -> Node:
    """The whole tensor `repeats[i]` times along axis i; more numbers than axes add leading ones.

    >>> weft.tensor([1, 2]).repeat(2, 2)
    tensor([[1, 2, 1, 2],
            [1, 2, 1, 2]])
    """
    times = normal_shape("repeat", repeats)
    extra = len(times) - len(input.shape)
    if extra < 0 or min(times, default=0) < 0:
        raise problem(ShapeError, "repeat", f"{times} for shape {input.shape}", "a count of at least 0 for every axis")
    shape = (1,) * extra + input.shape
    apart = build.reshape(input, tuple(n for extent in shape for n in (1, extent)))
    wide = build.expand(apart, tuple(n for pair in zip(times, shape, strict=True) for n in pair))
    return build.reshape(wide, tuple(count * extent for count, extent in zip(times, shape, strict=True)))


@operation()
def tile(input: Node, *dims: int | Sequence[int]) -> Node:
    """`repeat` that also takes fewer counts than axes."""
    times = normal_shape("tile", dims)
    return repeat(input, (1,) * (len(input.shape) - len(times)) + times)


def _triangle(who: str, x: Node, diagonal: int, keep_low: bool) -> Node:
    rank = len(x.shape)
    if rank < 2:
        raise problem(ShapeError, who, f"shape {x.shape}", "at least two axes")
    row, column = build.iota(x.shape, rank - 2, x.device), build.iota(x.shape, rank - 1, x.device)
    limit = build.add(row, as_int(who, diagonal, "diagonal"))
    keep = make_canonical("le", (column, limit) if keep_low else (limit, column))
    return build.select(keep, x, 0)


@operation("weft method inplace")
def tril(input: Node, diagonal: int = 0) -> Node:
    """The elements on and below a diagonal, zeros above."""
    return _triangle("tril", input, diagonal, True)


@operation("weft method inplace")
def triu(input: Node, diagonal: int = 0) -> Node:
    """The elements on and above a diagonal, zeros below."""
    return _triangle("triu", input, diagonal, False)
