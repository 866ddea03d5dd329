"""Movement as index arithmetic. Where does element `indices` of a moved value come from?"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index

MOVEMENT = frozenset({"reshape", "permute", "expand", "slice", "pad", "flip", "unfold", "fold_terms", "copy"})
NO_VIEWS = frozenset({"pad", "fold_terms", "copy"})  # movement whose result is not all in the memory of its source

Indices = tuple[Index, ...]
Condition = tuple[Index, int]  # 0 <= index < bound


def source_index(node: Node, at: Indices) -> tuple[Indices, tuple[Condition, ...]]:
    """The element of `node.srcs[0]` that element `at` of a movement node reads, and when it reads at all (padding)."""
    op = node.op
    source = node.srcs[0]
    if op == "reshape":
        return ix.reshape(at, node.shape, source.shape), ()
    if op == "expand":
        return tuple([ix.ZERO if n == 1 else i for i, n in zip(at, source.shape, strict=True)]), ()
    if op == "permute":
        out: list[Index] = [ix.ZERO] * len(at)
        for position, axis in enumerate(node.attrs.order):
            out[axis] = at[position]
        return tuple(out), ()
    if op == "slice":
        starts, _, steps = node.attrs
        moved = [i * step + start for i, start, step in zip(at, starts, steps, strict=True)]
        return tuple(moved), ()
    if op == "flip":
        axes = node.attrs.axes
        flipped = [
            -i + (n - 1) if axis in axes else i for axis, (i, n) in enumerate(zip(at, source.shape, strict=True))
        ]
        return tuple(flipped), ()
    if op == "pad":
        lows, highs, _ = node.attrs
        shifted: list[Index] = []
        conditions: list[Condition] = []
        for i, low, high, extent in zip(at, lows, highs, source.shape, strict=True):
            moved_index = i - low
            if (low or high) and not (moved_index.low >= 0 and moved_index.high < extent):
                conditions.append((moved_index, extent))
            shifted.append(moved_index)
        return tuple(shifted), tuple(conditions)
    if op == "unfold":
        axis, _, step, dilation = node.attrs
        position = at[axis] * step + at[axis + 1] * dilation
        return (*at[:axis], position, *at[axis + 2 :]), ()
    if op == "fold_terms":
        return _fold_terms(node, at)
    return at, ()  # copy


def filling(node: Node) -> float | int | bool:
    """The value of a movement node where it reads nothing."""
    return node.attrs.value if node.op == "pad" else 0


def count_fold_terms(size: int, step: int, dilation: int) -> int:
    """How many windows of `size` elements can cover one element."""
    return -(-size // (step // math.gcd(step, dilation)))


def _fold_terms(node: Node, at: Indices) -> tuple[Indices, tuple[Condition, ...]]:
    """Element p of a fold is the sum over all (o, k) with o*step + k*dilation == p; number j of them is read here.

    Without a common divisor, k = (p / dilation mod step) + j*step, and o follows; with one, only its multiples are hit.
    """
    axis, _, step, dilation = node.attrs
    count, size = node.srcs[0].shape[axis : axis + 2]
    j, p = at[axis], at[axis + 1]
    common = math.gcd(step, dilation)
    step, dilation = step // common, dilation // common
    multiple = p // common
    inverse = pow(dilation, -1, step) if step > 1 else 0
    first = multiple * inverse % step
    k = first + j * step
    # o = (multiple - k * dilation) / step, written so that a quotient of p alone is a term where dilation is 1
    excess = (first * dilation - multiple % step) // step
    o = multiple // step - (excess + j * dilation)
    conditions = [(o, count), (k, size), (p % common, 1)]
    needed = tuple([(i, bound) for i, bound in conditions if i.low < 0 or i.high >= bound])
    return (*at[:axis], o, k, *at[axis + 2 :]), needed


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def reshape_strides(shape: tuple[int, ...], strides: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides along the axes of `other`, another shape of a value with these strides; None where there are none."""
    axes = [Axis(f"v{k}", extent) for k, extent in enumerate(other)]
    at = ix.reshape(tuple([ix.axis_index(axis) for axis in axes]), other, shape)
    position = address(at, strides, 0)
    if not all(position.is_linear_in(axis) for axis in axes):
        return None
    return tuple([position.coefficient(axis) for axis in axes])


def address(at: Indices, strides: tuple[int, ...], offset: int) -> Index:
    """Element number of `at` in memory with these strides."""
    out = ix.const(offset)
    for i, stride in zip(at, strides, strict=True):
        out = out + i * stride
    return out


@dataclass(frozen=True, slots=True)
class Strided:
    """A value as strides into the memory of `base`: element [i, j, ...] is at offset + i * strides[0] + ..."""

    base: Node
    offset: int
    strides: tuple[int, ...]


def as_strided(node: Node, leaves: Collection[Node]) -> Strided | None:
    """`node` as a view of memory that exists anyway; None where it is none."""
    axes = [Axis(f"v{k}", extent) for k, extent in enumerate(node.shape)]
    at = tuple([ix.axis_index(axis) for axis in axes])
    base = node
    while base.op in MOVEMENT - NO_VIEWS and base not in leaves:
        at = source_index(base, at)[0]
        base = base.srcs[0]
    if base not in leaves and (base.op in ("pad", "fold_terms") or base.primitive.kind == "generate"):
        return None
    position = address(at, row_major(base.shape), 0)
    if not all(position.is_linear_in(axis) for axis in axes):
        return None
    return Strided(base, position.const, tuple([position.coefficient(axis) for axis in axes]))
