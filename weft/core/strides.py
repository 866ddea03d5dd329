"""Strides of views over the memory of a contiguous base: what movements do to them, and whether PyTorch would copy."""

from __future__ import annotations

from weft.graph.node import Node

Shape = tuple[int, ...]


def contiguous_strides(shape: Shape) -> Shape:
    """Of elements in row-major order."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= max(extent, 1)
    return tuple(reversed(strides))


def strides_of_reshape(shape: Shape, strides: Shape, new_shape: Shape) -> Shape | None:
    """The strides under which the elements have another shape; None where they would have to be copied."""
    if not count_elements(shape):
        return contiguous_strides(new_shape)
    runs: list[tuple[int, int]] = []  # (elements, stride) of axes that lie as one
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    found: list[int] = []
    left, stride = runs.pop() if runs else (1, 1)
    for extent in reversed(new_shape):
        if extent != 1 and left == 1 and runs:
            left, stride = runs.pop()
        if left % extent:
            return None
        found.append(stride)
        left, stride = left // extent, stride * extent
    return tuple(reversed(found))


def movements_of(node: Node) -> list[Node]:
    """The primitives between a placeholder and `node`, in order."""
    found: list[Node] = []
    while node.srcs:
        found.append(node)
        node = node.srcs[0]
    return found[::-1]


def strides_after(move: Node, strides: Shape) -> Shape | None:
    """The strides of the result of a movement; None where its elements would have to be copied."""
    source = move.srcs[0]
    if move.op == "reshape":
        return strides_of_reshape(source.shape, strides, move.shape)
    if move.op == "permute":
        return tuple([strides[axis] for axis in move.attrs.order])
    if move.op == "slice":
        return tuple([stride * step for stride, step in zip(strides, move.attrs.steps, strict=True)])
    if move.op == "flip":
        return tuple([-stride if axis in move.attrs.axes else stride for axis, stride in enumerate(strides)])
    if move.op == "expand":
        pairs = zip(strides, source.shape, move.shape, strict=True)
        return tuple([stride if have == want else 0 for stride, have, want in pairs])
    if move.op == "unfold":
        axis, _, step, dilation = move.attrs
        return (*strides[:axis], strides[axis] * step, strides[axis] * dilation, *strides[axis + 1 :])
    return strides if move.op == "stop_gradient" else None


def count_elements(shape: Shape) -> int:
    """How many elements a shape has."""
    size = 1
    for extent in shape:
        size *= extent
    return size
