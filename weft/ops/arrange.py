"""Diagonals, grids, rotations, repeats and stacks. All of it is index arithmetic, no copies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from weft.base.dtypes import int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops import reduce
from weft.ops.common import as_int, normal_axis, same_device
from weft.ops.einsum import diagonal_of
from weft.ops.indexing import user_site, wrap_negative
from weft.ops.movement import cat, split, transpose
from weft.ops.registry import operation


def two_axes(who: str, rank: int, dim1: int, dim2: int) -> tuple[int, int]:
    first, second = normal_axis(who, dim1, rank), normal_axis(who, dim2, rank)
    if first == second or rank < 2:
        raise problem(ShapeError, who, f"axes {dim1} and {dim2} of {rank}", "two different axes")
    return first, second


@operation(view="diagonal")
def diagonal(input: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """The elements with indices (i, i + offset) on two axes, which become the last axis.

    >>> weft.diagonal(weft.tensor([[1, 2], [3, 4]]))
    tensor([1, 4])
    """
    first, second = two_axes("diagonal", len(input.shape), dim1, dim2)
    shift = as_int("diagonal", offset, "offset")
    low, high = max(-shift, 0), max(shift, 0)
    extent = max(min(input.shape[first] - low, input.shape[second] - high), 0)
    if not extent:
        low = high = 0
    square = build.narrow(build.narrow(input, first, low, low + extent), second, high, high + extent)
    return diagonal_of(square, first, second)


@operation()
def diag_embed(input: Node, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """The last axis laid along a diagonal of two new axes, zeros elsewhere.

    >>> weft.diag_embed(weft.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]])
    """
    if not input.shape:
        raise problem(ShapeError, "diag_embed", "a scalar", "at least one axis")
    rank, shift = len(input.shape) + 1, as_int("diag_embed", offset, "offset")
    first, second = two_axes("diag_embed", rank, dim1, dim2)
    *outer, extent = input.shape
    zeros = (0,) * len(outer)
    apart = build.pad(build.reshape(input, (*outer, extent, 1)), (*zeros, 0, 0), (*zeros, 0, extent))
    flat = build.narrow(build.reshape(apart, (*outer, extent * (extent + 1))), len(outer), 0, extent * extent)
    square = build.reshape(flat, (*outer, extent, extent))
    low, high = max(-shift, 0), max(shift, 0)
    wide = build.pad(square, (*zeros, low, high), (*zeros, high, low))
    order = list(range(len(outer)))
    for axis, source in sorted([(first, rank - 2), (second, rank - 1)]):
        order.insert(axis, source)
    return build.permute(wide, order)


@operation()
def diag(input: Node, diagonal: int = 0) -> Node:
    """A vector as the diagonal of a matrix; the diagonal of a matrix as a vector."""
    if len(input.shape) not in (1, 2):
        raise problem(ShapeError, "diag", f"shape {input.shape}", "a vector or a matrix", "use diagonal or diag_embed")
    return diag_embed(input, diagonal) if len(input.shape) == 1 else _diagonal(input, diagonal)


_diagonal = diagonal


@operation()
def trace(input: Node) -> Node:
    """The sum of a matrix's diagonal."""
    if len(input.shape) != 2 or input.dtype.kind == "b":
        raise problem(ShapeError, "trace", f"{input.dtype.name}{list(input.shape)}", "a matrix of numbers")
    return reduce.sum(diagonal(input))


@operation("weft")
def meshgrid(*tensors: Node | Sequence[Node], indexing: str = "ij") -> tuple[Node, ...]:
    """Vectors spread over the grid that they span; with indexing='xy' the first two axes are exchanged.

    >>> weft.meshgrid(weft.tensor([1, 2]), weft.tensor([3, 4]), indexing="ij")[1]
    tensor([[3, 4],
            [3, 4]])
    """
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tuple(tensors[0])
    nodes = [node for node in tensors if isinstance(node, Node)]
    if not nodes or any(len(node.shape) > 1 for node in nodes) or indexing not in ("ij", "xy"):
        given = f"shapes {[node.shape for node in nodes]}, indexing={indexing!r}"
        raise problem(ShapeError, "meshgrid", given, "vectors, and 'ij' or 'xy'")
    same_device("meshgrid", nodes)
    if len({node.dtype for node in nodes}) > 1:
        raise problem(DTypeError, "meshgrid", f"{[node.dtype.name for node in nodes]}", "one dtype", "cast with .to")
    shape = tuple([node.size for node in nodes])
    out = []
    for axis, node in enumerate(nodes):
        thin = tuple([n if k == axis else 1 for k, n in enumerate(shape)])
        wide = build.expand(build.reshape(node, thin), shape)
        out.append(build.permute(wide, (1, 0, *range(2, len(shape)))) if indexing == "xy" and len(shape) > 1 else wide)
    return tuple(out)


@operation()
def rot90(input: Node, k: int = 1, dims: Sequence[int] = (0, 1)) -> Node:
    """Rotated k times by 90 degrees from the first of `dims` towards the second.

    >>> weft.rot90(weft.tensor([[1, 2], [3, 4]]))
    tensor([[2, 4],
            [1, 3]])
    """
    if len(dims) != 2:
        raise problem(ShapeError, "rot90", f"dims {tuple(dims)}", "two axes")
    first, second = two_axes("rot90", len(input.shape), *dims)
    rotations = as_int("rot90", k, "number of rotations") % 4
    order = list(range(len(input.shape)))
    order[first], order[second] = second, first
    if rotations == 0:
        return input
    if rotations == 2:
        return build.flip(input, (first, second))
    return (
        build.permute(build.flip(input, (second,)), order)
        if rotations == 1
        else build.flip(build.permute(input, order), (second,))
    )


def repeat_interleave(x: Node, repeats: int, dim: int | None = None) -> Node:
    """Every element `repeats` times in a row along `dim`; without `dim`, of the flattened tensor.

    >>> weft.repeat_interleave(weft.tensor([1, 2]), 2)
    tensor([1, 1, 2, 2])
    """
    times = as_int("repeat_interleave", repeats, "number of repeats")
    if times < 0:
        raise problem(RangeError, "repeat_interleave", f"{times} repeats", "at least 0")
    if dim is None:
        x, axis = build.reshape(x, (x.size,)), 0
    else:
        axis = normal_axis("repeat_interleave", dim, len(x.shape))
        x = x if x.shape else build.reshape(x, (1,))
    before, extent, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    wide = build.expand(build.reshape(x, (*before, extent, 1, *after)), (*before, extent, times, *after))
    return build.reshape(wide, (*before, extent * times, *after))


def at_least(x: Node, rank: int) -> Node:
    """Axes of extent 1 added as NumPy does: a vector is a row, a matrix a slice at the front of three axes."""
    if len(x.shape) >= rank:
        return x
    if rank == 3:
        x = at_least(x, 2)
        return build.reshape(x, (*x.shape, 1))
    return build.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)


@operation("weft")
def hstack(tensors: Sequence[Node]) -> Node:
    """Tensors concatenated along the second axis, vectors along their only one."""
    parts = [at_least(node, 1) for node in tensors]
    return cat(parts, 1 if parts and len(parts[0].shape) > 1 else 0)


@operation("weft", aliases="row_stack")
def vstack(tensors: Sequence[Node]) -> Node:
    """Tensors on top of each other: along the first axis, vectors as rows."""
    return cat([at_least(node, 2) for node in tensors], 0)


@operation("weft")
def dstack(tensors: Sequence[Node]) -> Node:
    """Tensors behind each other: along the third axis."""
    return cat([at_least(node, 3) for node in tensors], 2)


@operation("weft")
def column_stack(tensors: Sequence[Node]) -> Node:
    """Vectors as the columns of a matrix."""
    return cat([build.reshape(node, (node.size, 1)) if len(node.shape) < 2 else node for node in tensors], 1)


@operation(view="basic")
def swapaxes(input: Node, axis0: int, axis1: int) -> Node:
    """Two axes exchanged: `transpose`."""
    return transpose(input, axis0, axis1)


def narrow(input: Node, dim: int, start: int, length: int) -> Node:
    """`weft.narrow` from a number on."""
    axis, extent, count = check_narrow(input, dim, length)
    first = as_int("narrow", start, "start")
    if not -extent <= first <= extent:
        raise problem(ShapeError, "narrow", f"start {start} of extent {extent}", f"{-extent} to {extent}")
    first = first + extent if first < 0 else first
    if first + count > extent:
        raise problem(ShapeError, "narrow", f"start {start}, length {length} of extent {extent}", "a part of it")
    return build.narrow(input, axis, first, first + count)


def narrow_at(input: Node, dim: int, start: Node, length: int) -> Node:
    """`weft.narrow` from where an integer tensor says; a part that leaves the axis raises when it is computed."""
    axis, extent, count = check_narrow(input, dim, length)
    first = build.reshape(wrap_negative(start, extent), (1,))
    positions = build.add(build.expand(build.cast(first, int64), (count,)), build.iota((count,), 0, input.device))
    return build.gather(input, positions, axis, user_site())


def check_narrow(x: Node, dim: int, length: int) -> tuple[int, int, int]:
    """The axis, its extent, and the length of the part of it, checked."""
    if not x.shape:
        raise problem(ShapeError, "narrow", "a scalar", "at least one axis")
    axis = normal_axis("narrow", dim, len(x.shape))
    extent, count = x.shape[axis], as_int("narrow", length, "length")
    if not 0 <= count <= extent:
        raise problem(ShapeError, "narrow", f"length {length} of extent {extent}", "a part of it")
    return axis, extent, count


@operation(view="basic")
def select(input: Node, dim: int, index: int) -> Node:
    """One slice along `dim`, without that axis."""
    axis, number = normal_axis("select", dim, len(input.shape)), as_int("select", index, "index")
    extent = input.shape[axis] if input.shape else 0
    if not -extent <= number < extent:
        raise problem(ShapeError, "select", f"index {number} of extent {extent}", f"{-extent} to {extent - 1}")
    one = build.narrow(input, axis, number % extent, number % extent + 1)
    return build.reshape(one, input.shape[:axis] + input.shape[axis + 1 :])


@operation()
def fliplr(input: Node) -> Node:
    """The second axis reversed."""
    if len(input.shape) < 2:
        raise problem(ShapeError, "fliplr", f"shape {input.shape}", "at least two axes")
    return build.flip(input, (1,))


@operation()
def flipud(input: Node) -> Node:
    """The first axis reversed."""
    if not input.shape:
        raise problem(ShapeError, "flipud", "a scalar", "at least one axis")
    return build.flip(input, (0,))


def split_at(who: str, x: Node, indices_or_sections: int | Sequence[int], axis: int) -> tuple[Node, ...]:
    """Parts of an axis, as many as asked for, or cut before the given indices."""
    extent = x.shape[axis]
    if isinstance(indices_or_sections, (tuple, list)):
        numbers = [as_int(who, cut, "index") for cut in indices_or_sections]
        cuts = [min(max(cut + extent if cut < 0 else cut, 0), extent) for cut in numbers]
        bounds = [0, *cuts, extent]
        return tuple([build.narrow(x, axis, low, max(low, high)) for low, high in itertools.pairwise(bounds)])
    sections = as_int(who, indices_or_sections, "number of sections")
    if sections < 1:
        raise problem(ShapeError, who, f"{sections} sections", "at least 1")
    sizes = [extent // sections + (k < extent % sections) for k in range(sections)]
    return split(x, sizes, axis)


def tensor_split(input: Node, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    """`weft.tensor_split` by numbers."""
    if not input.shape:
        raise problem(ShapeError, "tensor_split", "a scalar", "at least one axis")
    return split_at("tensor_split", input, indices_or_sections, normal_axis("tensor_split", dim, len(input.shape)))
