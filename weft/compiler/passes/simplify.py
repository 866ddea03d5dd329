"""The same values from fewer nodes.

Markers are removed, constants fold, chains of movement merge, identities vanish, empty values become constants. Every
rule keeps the bits of the result: nothing here reassociates floating-point arithmetic. Nodes are interned, so
rebuilding a graph also merges common subexpressions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_

import numpy as np

from weft.graph.build import const, expand
from weft.graph.evaluations import identity
from weft.graph.node import Node, scalar_of
from weft.graph.primitives import make_node
from weft.graph.reference import run_reference
from weft.kernels.math.functions import FUNCTIONS

# Folded constants must have the bits that a kernel would compute, so only operations exact to the last bit fold.
INEXACT = frozenset(FUNCTIONS) - {"mod", "floor_divide"}
MARKERS = frozenset(
    {"variable", "stop_gradient", "surrogate", "checkpoint", "result", "keep"}
)  # worth their first source
KEPT = MARKERS | {"in_range"}  # not folded, whatever their sources
IDENTITY = {"reduce_sum": 0, "reduce_prod": 1, "reduce_max": -np.inf, "reduce_min": np.inf}


def simplify(nodes: Sequence[Node], outputs: Sequence[Node], leaves: Mapping[Node, Node]) -> list[Node]:
    """The outputs, rebuilt in simpler form. `nodes` is topologically sorted; `leaves` maps each leaf to its
    placeholder.

    Placeholders are opaque: a plan serves every program of the same form, so nothing may depend on what a leaf once
    was.
    """
    new: dict[Node, Node] = {}
    for node in nodes:
        stand_in = leaves.get(node)
        if stand_in is not None:
            new[node] = stand_in
        elif not node.srcs:
            new[node] = node
        else:
            new[node] = _rewrite(node, tuple([new[source] for source in node.srcs]))
    return [new[node] for node in outputs]


def _rewrite(node: Node, srcs: tuple[Node, ...]) -> Node:
    """One node over simplified sources, with the rules applied until none fits."""
    if not node.size:
        return fill_like(0, node)
    kind = node.primitive.kind
    exact = kind == "elementwise" and node.op not in KEPT and (node.op not in INEXACT or node.dtype.kind != "f")
    if exact and all(scalar_of(source) is not None for source in srcs):
        return _fold(node, srcs)
    rule = _RULES.get(node.op)
    if rule is not None:
        out = rule(node, srcs)
        if out is not None:
            return out
    if all(map(is_, srcs, node.srcs)):
        return node
    return make_node(node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)


def fill_like(value: float | int | bool, like: Node) -> Node:
    """A node of `like`'s shape and dtype with `value` everywhere."""
    return spread(const(value, like.dtype, like.device), like.shape)


def spread(scalar: Node, shape: tuple[int, ...]) -> Node:
    """A scalar repeated over `shape`."""
    if not shape:
        return scalar
    return expand(make_node("reshape", (scalar,), ((1,) * len(shape),)), shape)


def reshape(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else _reshape_of(node, shape)


def is_scalar(node: Node, value: float) -> bool:
    """Whether a node is `value` everywhere (the sign of zero counts)."""
    found = scalar_of(node)
    return found is not None and found == value and (value != 0 or str(found)[0] != "-")


def _fold(node: Node, srcs: tuple[Node, ...]) -> Node:
    arrays = [np.array(scalar_of(source), dtype=source.dtype.numpy) for source in srcs]
    scalars = tuple(
        [const(array.item(), source.dtype, source.device) for array, source in zip(arrays, srcs, strict=True)]
    )
    small = make_node(node.primitive, scalars, node.attrs, dtype=node.dtype, device=node.device)
    with np.errstate(all="ignore"):
        value = run_reference(small, arrays)
    return spread(const(np.asarray(value).item(), node.dtype, node.device), node.shape)


def _drop(node: Node, srcs: tuple[Node, ...]) -> Node:
    return srcs[0]


def _after(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """The order counts for what is read from memory: nothing waits for a constant, and movement comes afterwards."""
    source, first = srcs
    if source.op in ("const", "iota") or scalar_of(first) is not None:
        return source
    if source.primitive.kind != "movement":
        return None
    inner = _after(node, (source.srcs[0], first)) or make_node("after", (source.srcs[0], first))
    return make_node(source.primitive, (inner,), source.attrs)


def _cast(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    return srcs[0] if srcs[0].dtype is node.dtype else None


def _neg(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    return srcs[0].srcs[0] if srcs[0].op == "neg" else None


def _add(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    a, b = srcs
    if node.dtype.kind != "f":
        if is_scalar(b, 0):
            return a
        if is_scalar(a, 0):
            return b
    if b.op == "neg":
        return make_node("sub", (a, b.srcs[0]))
    return None


def _sub(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    return srcs[0] if is_scalar(srcs[1], 0) else None


def _mul(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    a, b = srcs
    if is_scalar(b, 1):
        return a
    if is_scalar(a, 1):
        return b
    return None


def _div(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    return srcs[0] if is_scalar(srcs[1], 1) else None


def _pow(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    a, b = srcs
    if is_scalar(b, 1):
        return a
    if is_scalar(b, 2):
        return make_node("mul", (a, a))
    return None


def _select(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    condition, a, b = srcs
    if a is b:
        return a
    value = scalar_of(condition)
    return None if value is None else a if value else b


def _reshape(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    return _reshape_of(srcs[0], node.shape)


def _reshape_of(source: Node, shape: tuple[int, ...]) -> Node:
    while source.op == "reshape":
        source = source.srcs[0]
    if source.shape == shape:
        return source
    value = scalar_of(source)
    if value is not None and source.op != "const":
        return spread(const(value, source.dtype, source.device), shape)
    return make_node("reshape", (source,), (shape,))


def _permute(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    value = scalar_of(srcs[0])
    return permute_source(srcs[0], node.attrs.order) if value is None else fill_like(value, node)


def permute_source(source: Node, order: tuple[int, ...]) -> Node:
    """`source` with its axes in another order, over whatever permute it is already."""
    if source.op == "permute":
        inner = source.attrs.order
        order = tuple([inner[axis] for axis in order])
        source = source.srcs[0]
    if order == tuple(range(len(order))):
        return source
    if order == _swapped_order(len(order)) and source.device.features.workgroups:
        # (AB)ᵀ = BᵀAᵀ, below a cast, too. Not on CPUs: the bits of OpenBLAS's products change with it.
        if source.op == "dot":
            return _transpose_product(source)
        if source.op == "cast" and source.srcs[0].op == "dot":
            return make_node("cast", (_transpose_product(source.srcs[0]),), source.attrs)
    moved = [axis for axis in order if source.shape[axis] != 1]
    if moved == sorted(moved):  # only axes of extent 1 move, so memory order stays
        return _reshape_of(source, tuple([source.shape[axis] for axis in order]))
    return make_node("permute", (source,), (order,))


def _swapped_order(rank: int) -> tuple[int, ...]:
    """The order that exchanges the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


def _transpose_product(product: Node) -> Node:
    """The transpose of a matrix product, as a product."""
    a, b = product.srcs
    return make_node("dot", (transpose(b), transpose(a)))


def transpose(node: Node) -> Node:
    order = _swapped_order(len(node.shape))
    if node.op == "permute" and node.attrs.order == order:
        return node.srcs[0]
    return make_node("permute", (node,), (order,))


def _expand(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    source = srcs[0]
    if source.op == "expand":
        source = source.srcs[0]
    return expand(source, node.shape)


def _slice(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    source = srcs[0]
    if node.shape == source.shape:
        return source
    value = scalar_of(source)
    if value is not None:
        return fill_like(value, node)
    if source.op == "pad":
        return _slice_of_pad(node, source)
    return _slice_of_concat(node, source) if source.op == "concat" else None


def _slice_of_pad(node: Node, source: Node) -> Node | None:
    """A slice that meets no padding reads what was padded."""
    inner, lows = source.srcs[0], source.attrs.lows
    starts = tuple([start - low for start, low in zip(node.attrs.starts, lows, strict=True)])
    stops = tuple([stop - low for stop, low in zip(node.attrs.stops, lows, strict=True)])
    if any(start < 0 or stop > extent for start, stop, extent in zip(starts, stops, inner.shape, strict=True)):
        return None
    return _slice_of(inner, starts, stops, node.attrs.steps)


def _slice_of_concat(node: Node, source: Node) -> Node | None:
    """A slice that stays within one part reads that part alone."""
    starts, stops, steps = node.attrs
    axis, offset = source.attrs.axis, 0
    for part in source.srcs:
        extent = part.shape[axis]
        if offset <= starts[axis] and stops[axis] <= offset + extent:
            starts = (*starts[:axis], starts[axis] - offset, *starts[axis + 1 :])
            stops = (*stops[:axis], stops[axis] - offset, *stops[axis + 1 :])
            return _slice_of(part, starts, stops, steps)
        offset += extent
    return None


def _slice_of(source: Node, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]) -> Node:
    whole = all(a == 0 and b == n and s == 1 for a, b, s, n in zip(starts, stops, steps, source.shape, strict=True))
    return source if whole else make_node("slice", (source,), (starts, stops, steps))


def _pad(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    lows, highs, value = node.attrs
    if not any(lows) and not any(highs):
        return srcs[0]
    if not srcs[0].size:
        return fill_like(value, node)
    return None


def _concat(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    axis = node.attrs.axis
    parts = [source for source in srcs if source.shape[axis]]
    if len(parts) == 1:
        return parts[0]
    whole = _join_slices(parts, axis)
    if whole is not None:
        return whole
    return make_node("concat", tuple(parts), (axis,)) if len(parts) < len(srcs) else None


def _join_slices(parts: list[Node], axis: int) -> Node | None:
    """Slices that together make up their source, in order, are that source."""
    source, end = None, 0
    for part in parts:
        while part.op == "reshape":
            part = part.srcs[0]
        if part.op != "slice" or len(part.shape) != 1 or (source is not None and part.srcs[0] is not source):
            return None
        source = part.srcs[0]
        (start,), (stop,), (step,) = part.attrs
        if start != end or step != 1:
            return None
        end = stop
    return source if source is not None and end == source.shape[0] and axis == 0 else None


def _reduce(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    source, axes = srcs[0], node.attrs.axes
    if not source.size:
        value = IDENTITY[node.op]
        return fill_like(value if node.dtype.kind == "f" or abs(value) < 2 else 0, node)
    if all(source.shape[axis] == 1 for axis in axes):
        return _reshape_of(source, node.shape)
    return None


def _gather(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """Rows of a constant are constant; where the user gave the index, it is looked at all the same."""
    value = scalar_of(srcs[0])
    is_checked = node.op == "gather" and node.site is not None and not node.attrs.known
    return None if value is None or is_checked else fill_like(value, node)


def _gather_neighbors(node: Node, srcs: tuple[Node, ...]) -> Node:
    """The transposed structure was for the gradient."""
    return _gather(node, srcs) or make_node("gather", srcs[:2], (0, False), site=node.site)


def _empty(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """A product over no elements is zero."""
    return None if srcs[1].size else fill_like(0, node)


def _empty_reduction(node: Node, srcs: tuple[Node, ...]) -> Node | None:
    """Slots and segments without entries are the identity of their reduction."""
    family, reduction = node.op.split("_")
    if srcs[family == "scatter"].size:
        return None
    return fill_like(identity("sum" if reduction == "add" else reduction, node.dtype.numpy), node)


_RULES: dict[str, Callable[[Node, tuple[Node, ...]], Node | None]] = {
    **dict.fromkeys(MARKERS, _drop),
    "after": _after,
    "cast": _cast,
    "neg": _neg,
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "select": _select,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "concat": _concat,
    "gather": _gather,
    "dot": _empty,
    "conv_weight": _empty,
    "gather_neighbors": _gather_neighbors,
    "scatter_add": _empty_reduction,
    "scatter_max": _empty_reduction,
    "scatter_min": _empty_reduction,
    "scatter_prod": _empty_reduction,
    "segment_sum": _empty_reduction,
    "segment_max": _empty_reduction,
    "segment_min": _empty_reduction,
    "reduce_sum": _reduce,
    "reduce_prod": _reduce,
    "reduce_max": _reduce,
    "reduce_min": _reduce,
}
