"""access: movement as index arithmetic. Where does element `indices` of a moved value come from?"""

from __future__ import annotations

from weft.graph.node import Node
from weft.kernels import index as ix
from weft.kernels.index import Index

MOVEMENT = frozenset({"reshape", "permute", "expand", "slice", "pad", "flip", "copy"})

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
        for position, axis in enumerate(node.attrs[0]):
            out[axis] = at[position]
        return tuple(out), ()
    if op == "slice":
        starts, _, steps = node.attrs
        moved = [ix.add(ix.scale(i, step), ix.const(start)) for i, start, step in zip(at, starts, steps, strict=True)]
        return tuple(moved), ()
    if op == "flip":
        axes = node.attrs[0]
        flipped = [
            ix.add(ix.scale(i, -1), ix.const(n - 1)) if axis in axes else i
            for axis, (i, n) in enumerate(zip(at, source.shape, strict=True))
        ]
        return tuple(flipped), ()
    if op == "pad":
        lows, highs, _ = node.attrs
        shifted: list[Index] = []
        conditions: list[Condition] = []
        for i, low, high, extent in zip(at, lows, highs, source.shape, strict=True):
            moved_index = ix.add(i, ix.const(-low))
            if (low or high) and not (moved_index.low >= 0 and moved_index.high < extent):
                conditions.append((moved_index, extent))
            shifted.append(moved_index)
        return tuple(shifted), tuple(conditions)
    return at, ()  # copy


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous array."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def address(at: Indices, strides: tuple[int, ...], offset: int) -> Index:
    """Element number of `at` in memory with these strides."""
    out = ix.const(offset)
    for i, stride in zip(at, strides, strict=True):
        out = ix.add(out, ix.scale(i, stride))
    return out
