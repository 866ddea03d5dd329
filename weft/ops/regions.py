"""Copies of a tensor with a part replaced: what a write to a slice, a row or a diagonal makes of it, as a value."""

from __future__ import annotations

from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops.arrange import diagonal, two_axes
from weft.ops.arrange import select as select_slice
from weft.ops.common import as_int, normal_axis, same_device
from weft.ops.indexing import index, set_index
from weft.ops.registry import operation


def _check(who: str, x: Node, part: Node, src: Node) -> None:
    same_device(who, [x, src])
    if src.shape != part.shape:
        raise problem(ShapeError, who, f"a source of shape {src.shape}", f"the shape of the part, {part.shape}")


@operation()
def select_scatter(input: Node, src: Node, dim: int, index: int) -> Node:
    """`input` with `src` as its slice number `index` along `dim`.

    >>> weft.zeros(2, 2).select_scatter(weft.ones(2), 0, 1)
    tensor([[0., 0.],
            [1., 1.]])
    """
    if not input.shape:
        raise problem(ShapeError, "select_scatter", "a scalar", "at least one axis")
    _check("select_scatter", input, select_slice(input, dim, index), src)
    axis = normal_axis("select_scatter", dim, len(input.shape))
    return set_index(input, (*[slice(None)] * axis, as_int("select_scatter", index, "index")), src)


@operation()
def slice_scatter(
    input: Node, src: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    """`input` with `src` in place of the slice start:end:step of `dim`.

    >>> weft.zeros(4).slice_scatter(weft.ones(2), 0, 1, 3)
    tensor([0., 1., 1., 0.])
    """
    if not input.shape or as_int("slice_scatter", step, "step") < 1:
        given = f"shape {input.shape}, step={step}"
        raise problem(ShapeError, "slice_scatter", given, "at least one axis, and a step of at least 1")
    axis = normal_axis("slice_scatter", dim, len(input.shape))
    key = (*[slice(None)] * axis, slice(start, end, step))
    _check("slice_scatter", input, index(input, key), src)
    return set_index(input, key, src)


@operation()
def diagonal_scatter(input: Node, src: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """`input` with `src` as the diagonal of two axes that `diagonal` shows.

    >>> weft.zeros(2, 2).diagonal_scatter(weft.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    part = diagonal(input, offset, dim1, dim2)
    _check("diagonal_scatter", input, part, src)
    rank = len(input.shape)
    first, second = two_axes("diagonal_scatter", rank, dim1, dim2)
    low = max(-offset, 0) if src.shape[-1] else 0
    # The source's last axis becomes the first of the two; along the second one it repeats.
    rows = build.pad(
        build.cast(src, input.dtype),
        (*[0] * (rank - 2), low),
        (*[0] * (rank - 2), input.shape[first] - low - src.shape[-1]),
    )
    position = first - (first > second)
    rows = build.permute(rows, (*range(position), rank - 2, *range(position, rank - 2)))
    filling = build.reshape(rows, build.keepdim_shape(input.shape, (second,)))
    row, column = (build.iota(input.shape, axis, input.device) for axis in (first, second))
    hit = make_node("eq", (build.add(row, offset), column))
    return make_node("select", (hit, build.expand(filling, input.shape), input))
