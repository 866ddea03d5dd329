"""How a matrix library reads an operand: shapes decide, nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass

from weft.compiler.fusion.index_map import MOVEMENT, as_strided
from weft.graph.node import Node
from weft.graph.primitives import make_node


@dataclass(frozen=True, slots=True)
class View:
    """A matrix operand [*batch, rows, cols] as strides into the memory of `base`; `batch` holds one per batch axis."""

    base: Node
    offset: int
    transposed: bool
    leading: int
    batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operands:
    """Both operands of a product. Matrices are numbered (outer, inner), with one stride each: `strides` is
    ((outer, inner) of a, (outer, inner) of b), and `inner` counts the inner ones."""

    a: View
    b: View
    inner: int
    strides: tuple[tuple[int, int], tuple[int, int]]

    @property
    def views(self) -> tuple[View, View]:
        return self.a, self.b


def operands(product: Node, leaves: Collection[Node]) -> Operands:
    """How a library reads the sources of `product`: as views of memory that exists anyway, else copied to it first.

    A view whose `base` is the source itself may be such a copy.
    """
    a, b = product.srcs[:2]
    batch = product.shape[:-2]
    seen = [(operand_view(a, leaves), operand_view(b, leaves)), (operand_view(a, leaves), None), (None, None)]
    for left, right in seen:
        left, right = left or _as_contiguous(a), right or _as_contiguous(b)
        for cut in range(len(batch) + 1):
            strides = [_two_strides(batch, view.batch, cut) for view in (left, right)]
            if strides[0] is not None and strides[1] is not None:
                return Operands(left, right, math.prod(batch[cut:]), (strides[0], strides[1]))
    raise AssertionError("two contiguous operands always have strides")


def _as_contiguous(node: Node) -> View:
    """A source as contiguous memory of its own."""
    view = operand_view(node, {node})
    assert view is not None
    return view


def operand_view(node: Node, leaves: Collection[Node]) -> View | None:
    """`node` as a view that BLAS can read, one of its last two axes contiguous; None where it is not."""
    memory = as_strided(node, leaves)
    if memory is None:
        return None
    *batch, row_step, col_step = memory.strides
    m, n = node.shape[-2:]
    if (col_step == 1 or n == 1) and (row_step >= n or m == 1):
        return View(memory.base, memory.offset, False, row_step if m > 1 else max(n, 1), tuple(batch))
    if (row_step == 1 or m == 1) and (col_step >= m or n == 1):
        return View(memory.base, memory.offset, True, col_step if n > 1 else max(m, 1), tuple(batch))
    return None


def before_widening(node: Node, leaves: Collection[Node]) -> Node:
    """What `node` was before it was cast to float32, through movement on top of that; else the node itself."""
    chain = []
    inner = node
    while inner.op in MOVEMENT and inner not in leaves:
        chain.append(inner)
        inner = inner.srcs[0]
    if inner.op != "cast" or inner in leaves:
        return node
    narrow = inner.srcs[0]
    for step in reversed(chain):
        narrow = make_node(step.primitive, (narrow,), step.attrs)
    return narrow


def _two_strides(shape: tuple[int, ...], strides: tuple[int, ...], cut: int) -> tuple[int, int] | None:
    """One stride for the axes before `cut` and one for those after it, where both exist."""
    parts = []
    for some in (slice(None, cut), slice(cut, None)):
        steps = [(extent, stride) for extent, stride in zip(shape[some], strides[some], strict=True) if extent > 1]
        if any(outer != inner * extent for (_, outer), (extent, inner) in itertools.pairwise(steps)):
            return None
        parts.append(steps[-1][1] if steps else 0)
    return parts[0], parts[1]
