"""Permutes float up: an operation on permuted values is done in their order in memory, and permuted afterwards.

Convolutions work with channels last while users hold [N, C, H, W]. Were each result brought back into the user's order,
a network would spend its time on transposing. So where a node has permuted sources, `make_canonical` makes it of the
values below and puts the permute on top, where it meets the inverse permute of the next convolution. This is a rule
about single nodes, not about programs: the layout of a value in memory, and with it the order of additions in a
sum over it, does not depend on where a program begins or ends.
"""

from __future__ import annotations

from typing import Any

from weft.base.dtypes import DType
from weft.graph import primitives
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive

_MAY_FLOAT = frozenset({"permute", "expand"})  # sources that `_order` finds a permute in
_FIXED = frozenset({"variable"})  # markers that must stay the node that was made
MAX_COUNTED_NODES = 64  # nodes that are looked at to see whether a value is made of constants


def make_canonical(
    op: str | Primitive,
    srcs: tuple[Node, ...] = (),
    attrs: tuple = (),
    *,
    dtype: DType | None = None,
    device: Any = None,
    site: str | None = None,
) -> Node:
    """`primitives.make_node`, with permutes moved from the sources to the result where that is free."""
    row = PRIMITIVES[op] if isinstance(op, str) else op
    for source in srcs:
        if source.op in _MAY_FLOAT:
            order = _order(row, srcs)
            floated = None if order is None else _float(row, srcs, attrs, order)
            if floated is not None:
                return floated
            break
    return primitives.make_node(row, srcs, attrs, dtype=dtype, device=device, site=site)


def _order(row: Primitive, srcs: tuple[Node, ...]) -> tuple[int, ...] | None:
    """The order of the first source that is permuted; else, of what is computed element by element, of the first that
    repeats something permuted."""
    for source in srcs:
        if source.op == "permute":
            return source.attrs.order
    for source in srcs if row.kind == "elementwise" else ():
        if source.op == "expand" and source.srcs[0].op == "permute":
            return source.srcs[0].attrs.order
    return None


def permute_value(x: Node, order: tuple[int, ...]) -> Node:
    """`x` with its axes in another order, over whatever permute it has already."""
    if x.op == "permute":
        inner = x.attrs.order
        x, order = x.srcs[0], tuple([inner[axis] for axis in order])
    return x if order == tuple(range(len(order))) else primitives.make_node("permute", (x,), (order,))


def _float(row: Primitive, srcs: tuple[Node, ...], values: tuple, order: tuple[int, ...]) -> Node | None:
    op = row.name
    attrs: Any = values if type(values) is row.attributes else tuple.__new__(row.attributes, values)
    if row.kind == "elementwise" and op not in _FIXED:
        below = _below(srcs, order)
        return None if below is None else permute_value(primitives.make_node(row, below, attrs), order)
    if row.kind == "reduce":
        return _reduce(row, srcs[0].srcs[0], attrs.axes, order)
    if op == "permute":
        return permute_value(srcs[0], attrs.order)
    if op in ("slice", "pad"):
        moved = tuple([to_source_order(part, order) if isinstance(part, tuple) else part for part in attrs])
        return permute_value(primitives.make_node(op, (srcs[0].srcs[0],), moved), order)
    if op == "flip":
        return permute_value(
            primitives.make_node(op, (srcs[0].srcs[0],), (tuple(sorted(order[k] for k in attrs.axes)),)), order
        )
    if op == "reshape":
        return _reshape(srcs[0].srcs[0], attrs.shape, order)
    if op == "unfold":
        return _unfold(srcs[0].srcs[0], attrs, order)
    if op == "fold":
        return _fold(srcs[0].srcs[0], attrs, order)
    if op == "update_slice":
        return _update(srcs, attrs, order)
    if op == "concat" and all(source.op == "permute" and source.attrs.order == order for source in srcs):
        parts = tuple([source.srcs[0] for source in srcs])
        return permute_value(primitives.make_node(op, parts, (order[attrs.axis],)), order)
    return None


def _below(srcs: tuple[Node, ...], order: tuple[int, ...]) -> tuple[Node, ...] | None:
    """The sources in the order below the permutes; None if one of them is in memory in another order."""
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    below: list[Node] = []
    for source in srcs:
        if source.op == "permute":
            if source.attrs.order != order:
                return None
            below.append(source.srcs[0])
        elif source.op == "expand":  # reads little memory, in whatever order
            small = permute_value(source.srcs[0], inverse)
            below.append(primitives.make_node("expand", (small,), (to_source_order(source.shape, order),)))
        elif _is_counted(source):
            below.append(permute_value(source, inverse))
        else:
            return None
    return tuple(below)


def _is_counted(node: Node) -> bool:
    """Whether a value is made of constants and counts alone (of few nodes): it is not in memory, so it has no order."""
    seen: set[Node] = set()
    pending = [node]
    while pending:
        one = pending.pop()
        kind = one.primitive.kind
        if one in seen or kind == "generate":
            continue
        seen.add(one)
        if kind not in ("elementwise", "movement") or one.op in _FIXED or len(seen) > MAX_COUNTED_NODES:
            return False
        pending.extend(one.srcs)
    return True


def to_source_order(values: tuple, order: tuple[int, ...]) -> tuple:
    """Per-axis values of a permuted node for the axes of the node below."""
    out: list = [None] * len(order)
    for position, axis in enumerate(order):
        out[axis] = values[position]
    return tuple(out)


def _reduce(row: Primitive, x: Node, axes: tuple[int, ...], order: tuple[int, ...]) -> Node:
    """A reduction over the axes below; what is left is brought into the order that was asked for."""
    below = primitives.make_node(row, (x,), (tuple(sorted(order[axis] for axis in axes)),))
    left = [order[axis] for axis in range(len(order)) if axis not in axes]
    return permute_value(below, tuple([sorted(left).index(axis) for axis in left]))


def _reshape(x: Node, shape: tuple[int, ...], order: tuple[int, ...]) -> Node | None:
    """A reshape that splits axes, or merges axes that are adjacent below, done below; None for any other."""
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
    moved = primitives.make_node("reshape", (x,), (tuple([shape[axis] for axis in below]),))
    return permute_value(moved, tuple([below.index(axis) for axis in range(len(shape))]))


def _update(srcs: tuple[Node, ...], attrs: tuple, order: tuple[int, ...]) -> Node | None:
    """A write into a permuted value is done below; the value that is written is brought into that order."""
    x, value = srcs
    if x.op != "permute":
        return None
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    moved = tuple([to_source_order(part, order) for part in attrs])
    return permute_value(primitives.make_node("update_slice", (x.srcs[0], permute_value(value, inverse)), moved), order)


def _unfold(x: Node, attrs: tuple, order: tuple[int, ...]) -> Node:
    """Windows along the axis below; the axis of positions in a window comes after it here as there."""
    axis, *rest = attrs
    along = order[axis]
    moved = [below + (below > along) for below in order]
    moved.insert(axis + 1, along + 1)
    return permute_value(primitives.make_node("unfold", (x,), (along, *rest)), tuple(moved))


def _fold(x: Node, attrs: tuple, order: tuple[int, ...]) -> Node | None:
    axis, *rest = attrs
    along = order[axis]
    if order[axis + 1] != along + 1:
        return None
    moved = [below - (below > along) for position, below in enumerate(order) if position != axis + 1]
    return permute_value(primitives.make_node("fold", (x,), (along, *rest)), tuple(moved))
