"""Permutes float up: an operation on permuted values is done in the order in which they lie, and permuted afterwards.

Convolutions work with channels last while users hold [N, C, H, W]. Were each result brought back into the user's order,
a network would spend its time on transposing. So where a node is made of permuted values, `make` makes it of the values
below and puts the permute on top, where it meets the inverse permute of the next convolution. This is a rule about
single nodes, not about programs: what a value's memory looks like, and with it the order of additions in a
sum over it, does not depend on where a program begins or ends.
"""

from __future__ import annotations

from typing import Any

from weft.dtypes import DType
from weft.graph import primitives
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES

_FIXED = frozenset({"variable"})  # markers that must stay the very node that was asked for
FEW = 64  # nodes that are looked at to see whether a value is made of constants


def make(
    op: str,
    srcs: tuple[Node, ...] = (),
    attrs: tuple = (),
    *,
    dtype: DType | None = None,
    device: Any = None,
    site: str | None = None,
) -> Node:
    """`primitives.make`, with permutes moved from the sources to the result where that is free."""
    order = _order(op, srcs)
    floated = None if order is None else _float(op, srcs, attrs, order)
    return primitives.make(op, srcs, attrs, dtype=dtype, device=device, site=site) if floated is None else floated


def _order(op: str, srcs: tuple[Node, ...]) -> tuple[int, ...] | None:
    """The order of the first source that is permuted; else, of what is computed element by element, of the first that
    repeats something permuted."""
    for source in srcs:
        if source.op == "permute":
            return source.attrs[0]
    for source in srcs if PRIMITIVES[op].kind == "elementwise" else ():
        if source.op == "expand" and source.srcs[0].op == "permute":
            return source.srcs[0].attrs[0]
    return None


def permuted(x: Node, order: tuple[int, ...]) -> Node:
    """`x` with its axes in another order, over whatever permute it has already."""
    if x.op == "permute":
        inner = x.attrs[0]
        x, order = x.srcs[0], tuple([inner[axis] for axis in order])
    return x if order == tuple(range(len(order))) else primitives.make("permute", (x,), (order,))


def _float(op: str, srcs: tuple[Node, ...], attrs: tuple, order: tuple[int, ...]) -> Node | None:
    kind = PRIMITIVES[op].kind
    if kind == "elementwise" and op not in _FIXED:
        below = _below(srcs, order)
        return None if below is None else permuted(primitives.make(op, below, attrs), order)
    if kind == "reduce":
        return _reduced(op, srcs[0].srcs[0], attrs[0], order)
    if op == "permute":
        return permuted(srcs[0], attrs[0])
    if op in ("slice", "pad"):
        moved = tuple([unordered(part, order) if isinstance(part, tuple) else part for part in attrs])
        return permuted(primitives.make(op, (srcs[0].srcs[0],), moved), order)
    if op == "flip":
        return permuted(primitives.make(op, (srcs[0].srcs[0],), (tuple(sorted(order[k] for k in attrs[0])),)), order)
    if op == "reshape":
        return _reshaped(srcs[0].srcs[0], attrs[0], order)
    if op == "unfold":
        return _unfolded(srcs[0].srcs[0], attrs, order)
    if op == "fold":
        return _folded(srcs[0].srcs[0], attrs, order)
    if op == "update_slice":
        return _updated(srcs, attrs, order)
    if op == "concat" and all(source.op == "permute" and source.attrs[0] == order for source in srcs):
        parts = tuple([source.srcs[0] for source in srcs])
        return permuted(primitives.make(op, parts, (order[attrs[0]],)), order)
    return None


def _below(srcs: tuple[Node, ...], order: tuple[int, ...]) -> tuple[Node, ...] | None:
    """The sources in the order below the permutes; None if one of them lies in memory in another order."""
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    below: list[Node] = []
    for source in srcs:
        if source.op == "permute":
            if source.attrs[0] != order:
                return None
            below.append(source.srcs[0])
        elif source.op == "expand":  # reads little memory, in whatever order
            small = permuted(source.srcs[0], inverse)
            below.append(primitives.make("expand", (small,), (unordered(source.shape, order),)))
        elif _is_counted(source):
            below.append(permuted(source, inverse))
        else:
            return None
    return tuple(below)


def _is_counted(node: Node) -> bool:
    """Whether a value is made of constants and counts alone (of few nodes): it lies nowhere, so has no order."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        one = pending.pop()
        kind = PRIMITIVES[one.op].kind
        if one in seen or kind == "generate":
            continue
        seen.add(one)
        if kind not in ("elementwise", "movement") or one.op in _FIXED or len(seen) > FEW:
            return False
        pending.extend(one.srcs)
    return True


def unordered(values: tuple, order: tuple[int, ...]) -> tuple:
    """Per-axis values of a permuted node for the axes of the node below."""
    out: list = [None] * len(order)
    for position, axis in enumerate(order):
        out[axis] = values[position]
    return tuple(out)


def _reduced(op: str, x: Node, axes: tuple[int, ...], order: tuple[int, ...]) -> Node:
    """A reduction over the axes below; what is left is brought into the order that was asked for."""
    below = primitives.make(op, (x,), (tuple(sorted(order[axis] for axis in axes)),))
    left = [order[axis] for axis in range(len(order)) if axis not in axes]
    return permuted(below, tuple([sorted(left).index(axis) for axis in left]))


def _reshaped(x: Node, shape: tuple[int, ...], order: tuple[int, ...]) -> Node | None:
    """A reshape that splits axes, or merges such as lie side by side below, done below; None for any other."""
    axes = [axis for axis in order if x.shape[axis] != 1]
    parts: list[tuple[int, list[int]]] = []  # (first axis below, new axes) of each part of the shape
    start = taken = 0
    if not axes or not x.size:
        return None
    while start < len(axes):
        first, old, new = start, x.shape[axes[start]], 1
        begin, start = taken, start + 1
        while old != new or (taken < len(shape) and shape[taken] == 1):
            if new < old or old == new:
                if taken == len(shape):
                    return None
                new *= shape[taken]
                taken += 1
            else:
                old *= x.shape[axes[start]]
                start += 1
        rank = sorted(axes)
        steps = [rank.index(axis) for axis in axes[first:start]]
        if steps != list(range(steps[0], steps[0] + len(steps))):
            return None
        parts.append((axes[first], list(range(begin, taken))))
    below = [axis for _, group in sorted(parts) for axis in group]
    moved = primitives.make("reshape", (x,), (tuple([shape[axis] for axis in below]),))
    return permuted(moved, tuple([below.index(axis) for axis in range(len(shape))]))


def _updated(srcs: tuple[Node, ...], attrs: tuple, order: tuple[int, ...]) -> Node | None:
    """A write into a permuted value is done below; the value that is written is brought into that order."""
    x, value = srcs
    if x.op != "permute":
        return None
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    moved = tuple([unordered(part, order) for part in attrs])
    return permuted(primitives.make("update_slice", (x.srcs[0], permuted(value, inverse)), moved), order)


def _unfolded(x: Node, attrs: tuple, order: tuple[int, ...]) -> Node:
    """Windows along the axis below; the axis of places in a window comes after it here as there."""
    axis, *rest = attrs
    along = order[axis]
    moved = [below + (below > along) for below in order]
    moved.insert(axis + 1, along + 1)
    return permuted(primitives.make("unfold", (x,), (along, *rest)), tuple(moved))


def _folded(x: Node, attrs: tuple, order: tuple[int, ...]) -> Node | None:
    axis, *rest = attrs
    along = order[axis]
    if order[axis + 1] != along + 1:
        return None
    moved = [below - (below > along) for position, below in enumerate(order) if position != axis + 1]
    return permuted(primitives.make("fold", (x,), (along, *rest)), tuple(moved))
