"""Pieces and assemblies of tensors: splits along named axes, block diagonals, products of sets, indices of elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops.arrange import diag_embed, meshgrid, split_at
from weft.ops.common import as_int, need_integer, result_dtype, same_device
from weft.ops.elementwise import floor_divide, remainder
from weft.ops.movement import split, stack
from weft.ops.registry import operation


@operation(view="basic")
def split_with_sizes(input: Node, split_sizes: Sequence[int], dim: int = 0) -> tuple[Node, ...]:
    """Pieces of the sizes listed along `dim`: `split` with a list."""
    return split(input, list(split_sizes), dim)


def _split_evenly(who: str, x: Node, indices_or_sections: int | Sequence[int], axis: int) -> tuple[Node, ...]:
    """`tensor_split` that takes a number of sections only where the parts come out equal."""
    if not isinstance(indices_or_sections, (tuple, list)):
        sections = as_int(who, indices_or_sections, "number of sections")
        if sections < 1 or x.shape[axis] % sections:
            given = f"{sections} sections of extent {x.shape[axis]}"
            raise problem(
                ShapeError, who, given, "a number that divides it", "use tensor_split for parts of other sizes"
            )
    return split_at(who, x, indices_or_sections, axis)


@operation(view="basic")
def hsplit(input: Node, indices_or_sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Equal parts of the second axis, or of a vector; or parts cut before the given indices.

    >>> weft.hsplit(weft.arange(4), 2)
    (tensor([0, 1]), tensor([2, 3]))
    """
    if not input.shape:
        raise problem(ShapeError, "hsplit", "a scalar", "at least one axis")
    return _split_evenly("hsplit", input, indices_or_sections, 0 if len(input.shape) == 1 else 1)


@operation(view="basic")
def vsplit(input: Node, indices_or_sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Equal parts of the first of at least two axes, or parts cut before the given indices."""
    if len(input.shape) < 2:
        raise problem(ShapeError, "vsplit", f"shape {input.shape}", "at least two axes")
    return _split_evenly("vsplit", input, indices_or_sections, 0)


@operation(view="basic")
def dsplit(input: Node, indices_or_sections: int | Sequence[int]) -> tuple[Node, ...]:
    """Equal parts of the third axis, or parts cut before the given indices."""
    if len(input.shape) < 3:
        raise problem(ShapeError, "dsplit", f"shape {input.shape}", "at least three axes")
    return _split_evenly("dsplit", input, indices_or_sections, 2)


@operation(view="reshape")
def ravel(input: Node) -> Node:
    """All elements in one axis.

    >>> weft.tensor([[1, 2], [3, 4]]).ravel()
    tensor([1, 2, 3, 4])
    """
    return build.reshape(input, (input.size,))


@operation()
def diagflat(input: Node, offset: int = 0) -> Node:
    """All elements, in order, on a diagonal of a matrix.

    >>> weft.diagflat(weft.tensor([[1, 2]]))
    tensor([[1, 0],
            [0, 2]])
    """
    return diag_embed(build.reshape(input, (input.size,)), offset)


def _as_list(who: str, tensors: Sequence[Any]) -> list[Node]:
    """Tensors of `f(a, b)` or `f([a, b])`; at least one."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tensors[0]
    nodes = [node for node in tensors if isinstance(node, Node)]
    if not nodes or len(nodes) != len(tensors):
        raise problem(ShapeError, who, f"{len(nodes)} tensors in {len(tensors)} arguments", "at least one tensor")
    same_device(who, nodes)
    return nodes


@operation("weft")
def block_diag(*tensors: Node) -> Node:
    """Matrices along the diagonal of one, zeros elsewhere; vectors are rows.

    >>> weft.block_diag(weft.tensor([[1, 2]]), weft.tensor(3))
    tensor([[1, 2, 0],
            [0, 0, 3]])
    """
    nodes = _as_list("block_diag", tensors)
    if any(len(node.shape) > 2 for node in nodes):
        raise problem(ShapeError, "block_diag", f"shapes {[node.shape for node in nodes]}", "at most two axes each")
    dtype = result_dtype("block_diag", nodes)
    blocks = [build.reshape(build.cast(node, dtype), (1,) * (2 - len(node.shape)) + node.shape) for node in nodes]
    width, before, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        rows.append(build.pad(block, (0, before), (0, width - before - block.shape[1])))
        before += block.shape[1]
    return build.concat(rows, 0)


@operation("weft")
def cartesian_prod(*tensors: Node) -> Node:
    """All choices of one element from each vector, as rows in the order of the last; of one vector, itself.

    >>> weft.cartesian_prod(weft.tensor([1, 2]), weft.tensor([3, 4]))
    tensor([[1, 3],
            [1, 4],
            [2, 3],
            [2, 4]])
    """
    nodes = _as_list("cartesian_prod", tensors)
    if any(len(node.shape) != 1 for node in nodes):
        raise problem(ShapeError, "cartesian_prod", f"shapes {[node.shape for node in nodes]}", "vectors")
    if len(nodes) == 1:
        return nodes[0]
    return stack([build.reshape(grid, (grid.size,)) for grid in meshgrid(*nodes)], 1)


@operation("weft")
def unravel_index(indices: Node, shape: int | Sequence[int]) -> tuple[Node, ...]:
    """Numbers of elements of a tensor of `shape`, in row-major order, as one index for each axis.

    >>> weft.unravel_index(weft.tensor([0, 5]), (2, 3))
    (tensor([0, 1]), tensor([0, 2]))
    """
    need_integer("unravel_index", indices)
    extents = [
        as_int("unravel_index", one, "shape") for one in (shape if isinstance(shape, (tuple, list)) else [shape])
    ]
    if min(extents, default=0) < 0:
        raise problem(RangeError, "unravel_index", f"shape {tuple(extents)}", "extents of at least 0")
    indices = build.cast(indices, int64)
    found = []
    for axis, extent in enumerate(extents):
        stride = math.prod(extents[axis + 1 :])
        if not stride or not extent:
            found.append(build.like(indices, 0))
            continue
        found.append(remainder(floor_divide(indices, stride), extent))
    return tuple(found)
