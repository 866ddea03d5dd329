"""All gradients, one row per primitive: `RULES[op](node, g)` gives one gradient per source, None where none flows.

`g` has the shape and dtype of the node. Rules are built from the same primitives, so gradients of gradients work.
Conventions at ties: `max`/`min` give each side half, `reduce_max`/`reduce_min` share among equal elements, maxima and
minima of scattered rows and of segments give all to the first; `abs` has slope 0 at 0 and NaN, `pow` has slope 0 in the
exponent at base 0, `floor` and comparisons have none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from weft.base.errors import GraphError, problem
from weft.grad import attention
from weft.grad.sums import sum_over
from weft.graph.build import (
    GradientRule,
    add,
    along,
    along_add,
    cast,
    div,
    dot,
    embed_slice,
    eq,
    expand,
    flip,
    fold,
    gather,
    iota,
    keepdim_shape,
    like,
    lt,
    mul,
    narrow,
    neg,
    pad,
    permute,
    reduce,
    reshape,
    scan,
    scan_winners,
    scatter,
    scatter_add,
    segment,
    segment_rows,
    select,
    slice_,
    sub,
    surrogate,
    swap_last,
    unary,
    unfold,
    update_slice,
    with_gradient,
)  # fmt: skip
from weft.graph.convolve import conv, conv_input, conv_weight
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.graph.updates import window_stops

Gradients = tuple[Node | None, ...]


def _pow(node: Node, g: Node) -> Gradients:
    base, exponent = node.srcs
    constant = exponent
    while constant.op in ("expand", "reshape"):
        constant = constant.srcs[0]
    # One less than a constant is known here: computed later, it would be a product in one program and not in another.
    less = like(exponent, constant.attrs.value - 1.0) if constant.op == "const" else sub(exponent, 1.0)
    slope = mul(exponent, make_canonical("pow", (base, less)))
    in_base = select(eq(exponent, 0.0), 0.0, mul(g, slope))
    at_zero = eq(base, 0.0)  # log(0) would make 0 * inf there
    in_exponent = select(at_zero, 0.0, mul(g, mul(node, unary("log", select(at_zero, 1.0, base)))))
    return in_base, in_exponent


def _extremum(node: Node, g: Node) -> Gradients:
    """max and min: the loser gets nothing, ties halve. With a NaN on either side both get `g`, as in PyTorch."""
    a, b = node.srcs
    low, high = (a, b) if node.op == "max" else (b, a)
    shared = select(eq(a, b), mul(g, 0.5), g)
    return select(lt(low, high), 0.0, shared), select(lt(high, low), 0.0, shared)


def _abs(node: Node, g: Node) -> Gradients:
    x = node.srcs[0]
    return (select(lt(0.0, x), g, select(lt(x, 0.0), neg(g), 0.0)),)


def _back(node: Node, g: Node) -> Node:
    """`g` of a reduction repeated over the axes that it dropped."""
    shape = node.srcs[0].shape
    return expand(reshape(g, keepdim_shape(shape, node.attrs.axes)), shape)


def _reduce_extremum(node: Node, g: Node) -> Gradients:
    x = node.srcs[0]
    hit = cast(eq(x, _back(node, node)), g.dtype)
    ties = reduce("reduce_sum", hit, node.attrs.axes)
    return (mul(hit, _back(node, div(g, ties))),)


def _reduce_prod(node: Node, g: Node) -> Gradients:
    """The product of the others: y / x where nothing is zero; with one zero in a row, only the zero has a slope.

    Its own derivative is taken of a form without division and without cases.
    """
    x = node.srcs[0]
    zero = eq(x, 0.0)
    zeros = _back(node, reduce("reduce_sum", cast(zero, g.dtype), node.attrs.axes))
    nonzero = select(zero, 1.0, x)
    product = _back(node, reduce("reduce_prod", nonzero, node.attrs.axes))
    alone = select(eq(zeros, cast(zero, g.dtype)), div(product, nonzero), 0.0)  # no zero but possibly this one
    return (mul(_back(node, g), surrogate(alone, _product_of_others(x, node.attrs.axes))),)


def _product_of_others(x: Node, axes: tuple[int, ...]) -> Node:
    """For each element the product of all others along `axes`, by a tree of pairs: up, then down with pairs swapped."""
    rank = len(x.shape)
    order = (*[axis for axis in range(rank) if axis not in axes], *axes)
    kept_shape = tuple([x.shape[axis] for axis in order[: rank - len(axes)]])
    count = math.prod(x.shape[axis] for axis in axes)
    full = 1 << max(count - 1, 0).bit_length()
    last = len(kept_shape)
    none = (0,) * last
    level = pad(reshape(permute(x, order), (*kept_shape, count)), (*none, 0), (*none, full - count), 1.0)
    pairs = []
    while level.shape[-1] > 1:
        pairs.append(reshape(level, (*kept_shape, level.shape[-1] // 2, 2)))
        left, right = narrow(pairs[-1], last + 1, 0, 1), narrow(pairs[-1], last + 1, 1, 2)
        level = reshape(mul(left, right), (*kept_shape, level.shape[-1] // 2))
    others = like(level, 1.0)
    for pair in reversed(pairs):
        wide = expand(reshape(others, (*others.shape, 1)), pair.shape)
        others = reshape(mul(wide, flip(pair, (last + 1,))), (*kept_shape, 2 * others.shape[-1]))
    cut = reshape(narrow(others, last, 0, count), tuple([x.shape[axis] for axis in order]))
    return permute(cut, sorted(range(rank), key=order.__getitem__))


def _expand(node: Node, g: Node) -> Gradients:
    shape = node.srcs[0].shape
    axes = [axis for axis, extent in enumerate(shape) if extent != node.shape[axis]]
    return (reshape(sum_over(g, axes), shape),)


def _permute(node: Node, g: Node) -> Gradients:
    order = node.attrs.order
    return (permute(g, sorted(range(len(order)), key=order.__getitem__)),)


def _slice(node: Node, g: Node) -> Gradients:
    starts, _, steps = node.attrs
    return (embed_slice(g, node.srcs[0].shape, starts, steps),)


def _update_slice(node: Node, g: Node) -> Gradients:
    value, (starts, steps) = node.srcs[1], node.attrs
    below = update_slice(g, like(value, 0.0), starts, steps)
    return below, slice_(g, starts, window_stops(starts, steps, value.shape), steps)


def _pad(node: Node, g: Node) -> Gradients:
    lows, highs, _ = node.attrs
    stops = tuple(extent - high for extent, high in zip(node.shape, highs, strict=True))
    return (slice_(g, lows, stops),)


def _unfold(node: Node, g: Node) -> Gradients:
    axis, _, step, dilation = node.attrs
    return (fold(g, axis, node.srcs[0].shape[axis], step, dilation),)


def _fold(node: Node, g: Node) -> Gradients:
    axis, _, step, dilation = node.attrs
    count, size = node.srcs[0].shape[axis : axis + 2]
    windows = unfold(g, axis, size, step, dilation)
    return (narrow(windows, axis, 0, count),)


def _concat(node: Node, g: Node) -> Gradients:
    axis, start, parts = node.attrs.axis, 0, []
    for src in node.srcs:
        parts.append(narrow(g, axis, start, start + src.shape[axis]))
        start += src.shape[axis]
    return tuple(parts)


def _gather(node: Node, g: Node) -> Gradients:
    """Add each row of `g` to the row it came from: index axes to the front, scatter, the axis back in place. Where the
    index numbers segments, their rows are adjacent."""
    x, index = node.srcs
    if index.op == "segment_rows" and node.attrs.axis == 0:
        return segment("sum", g, index.srcs[0], node.site), None
    axis, rank, depth = node.attrs.axis, len(x.shape), len(index.shape)
    order = (*range(axis, axis + depth), *range(axis), *range(axis + depth, len(g.shape)))
    rest = x.shape[:axis] + x.shape[axis + 1 :]
    rows = reshape(permute(g, order), (index.size, *rest))
    summed = scatter_add(reshape(index, (index.size,)), rows, x.shape[axis], node.site)
    return permute(summed, (*range(1, axis + 1), 0, *range(axis + 1, rank))), None


def _gather_neighbors(node: Node, g: Node) -> Gradients:
    """As `_gather`; the transposed structure says which rows of `g` belong together: they are summed by segments."""
    _, col, pointers, order = node.srcs
    if pointers.op == "iota":  # segments of one row each: a permutation and its inverse
        return make_canonical("gather_neighbors", (g, order, pointers, col)), None, None, None
    return segment("sum", gather(g, order, 0), pointers, node.site), None, None, None


def _first_hit(node: Node, g: Node, src: Node, rows: Node, fold_first: Callable[[Node], Node]) -> Node:
    """The gradient of a maximum or minimum of rows goes to the first row that has it."""
    number = iota(src.shape, 0, src.device)
    hit = eq(src, gather(node, rows, 0))
    first = fold_first(select(hit, number, src.shape[0]))
    return select(eq(number, gather(first, rows, 0)), gather(g, rows, 0), 0.0)


def _scatter_extremum(node: Node, g: Node) -> Gradients:
    index, src = node.srcs
    count = node.attrs.rows
    return None, _first_hit(node, g, src, index, lambda first: scatter("min", index, first, count, node.site))


def _scatter_prod(node: Node, g: Node) -> Gradients:
    """As `_reduce_prod`: y / x where nothing is zero; with one zero in a slot, only the zero has a slope."""
    index, src = node.srcs
    count = node.attrs.rows
    zero = eq(src, 0.0)
    is_zero, nonzero = cast(zero, g.dtype), select(zero, 1.0, src)
    zeros = gather(scatter_add(index, is_zero, count, node.site), index, 0)
    product = gather(scatter("prod", index, nonzero, count, node.site), index, 0)
    alone = select(eq(zeros, is_zero), div(product, nonzero), 0.0)
    return None, mul(gather(g, index, 0), alone)


def _segment_extremum(node: Node, g: Node) -> Gradients:
    data, pointers = node.srcs
    rows = segment_rows(pointers, data.shape[0], node.site)
    return _first_hit(node, g, data, rows, lambda first: segment("min", first, pointers, node.site)), None


def _segment_sum(node: Node, g: Node) -> Gradients:
    data, pointers = node.srcs
    return gather(g, segment_rows(pointers, data.shape[0], node.site), 0), None


def _select(node: Node, g: Node) -> Gradients:
    condition = node.srcs[0]
    return None, select(condition, g, 0.0), select(condition, 0.0, g)


def _cast(node: Node, g: Node) -> Gradients:
    return (cast(g, node.srcs[0].dtype),)


def _erf(node: Node, g: Node) -> Gradients:
    x = node.srcs[0]
    return (mul(g, mul(unary("exp", neg(mul(x, x))), 2.0 / math.sqrt(math.pi))),)


def _mod(node: Node, g: Node) -> Gradients:
    a, b = node.srcs
    return g, neg(mul(g, make_canonical("floor_divide", (a, b))))


def _scan(node: Node, g: Node) -> Gradients:
    """Sums run back. The running extremum gives to where it came from, the latest of equal elements, as in PyTorch."""
    (x,), (op, axis, reverse) = node.srcs, node.attrs
    if op == "sum":
        return (scan("sum", g, axis, not reverse),)
    if op == "prod":
        return (_scan_prod(node, g),)
    if op == "logaddexp":
        return (_weighted_sums(g, neg(node), x, axis, not reverse),)
    return (along_add(scan_winners(node), g, axis, x.shape[axis]),)


def _weighted_sums(g: Node, a: Node, b: Node, axis: int, reverse: bool) -> Node:
    """exp(b) * (running sum of g * exp(a)), computed in logarithms: what `g` has above zero and what it has below."""

    def part(g: Node) -> Node:
        nothing = make_canonical("le", (g, like(g, 0.0)))  # a NaN is none of these, so it is seen
        logs = select(nothing, -math.inf, unary("log", select(nothing, 1.0, g)))
        return unary("exp", add(scan("logaddexp", add(logs, a), axis, reverse), b))

    return with_gradient(sub(part(g), part(neg(g))), (g, a, b), _of_weighted_sums(axis, reverse))


@functools.cache
def _of_weighted_sums(axis: int, reverse: bool) -> GradientRule:
    """Linear in `g`, while its logarithms have no slope where `g` is 0."""

    def rule(sources: tuple[Node, ...], u: Node) -> Gradients:
        g, a, b = sources
        back = _weighted_sums(u, b, a, axis, not reverse)
        return back, mul(g, back), mul(u, _weighted_sums(g, a, b, axis, reverse))

    return rule


def _scan_prod(node: Node, g: Node) -> Node:
    """Before the first zero: (sum of g * y from here on) / x. At it, the products go on as if it were 1; then 0."""
    (x,), (_, axis, reverse) = node.srcs, node.attrs
    zero = eq(x, 0.0)
    zeros = scan("sum", cast(zero, g.dtype), axis, reverse)
    first = make_canonical("and", (zero, eq(zeros, 1.0)))
    beyond = scan("prod", select(first, 1.0, x), axis, reverse)
    before = div(scan("sum", mul(g, node), axis, not reverse), select(zero, 1.0, x))
    at_zero = scan("sum", mul(g, beyond), axis, not reverse)
    return select(eq(zeros, 0.0), before, select(first, at_zero, 0.0))


def _dot(node: Node, g: Node) -> Gradients:
    """The gradient of a transposed matrix is the transpose of a product, which lies as the matrix itself does."""
    a, b = node.srcs
    of_a = swap_last(dot(b, swap_last(g))) if _is_transposed(a) else dot(g, swap_last(b))
    of_b = swap_last(dot(swap_last(g), a)) if _is_transposed(b) else dot(swap_last(a), g)
    return of_a, of_b


def _is_transposed(matrix: Node) -> bool:
    rank = len(matrix.shape)
    return matrix.op == "permute" and matrix.attrs.order == (*range(rank - 2), rank - 1, rank - 2)


def _conv(node: Node, g: Node) -> Gradients:
    x, w = node.srcs
    return conv_input(g, w, x.shape[1:-1], node.attrs), conv_weight(x, g, w.shape[:-2], node.attrs)


def _conv_input(node: Node, g: Node) -> Gradients:
    outer, w = node.srcs
    how = node.attrs.geometry
    return conv(g, w, how), conv_weight(g, outer, w.shape[:-2], how)


def _conv_weight(node: Node, g: Node) -> Gradients:
    x, outer = node.srcs
    how = node.attrs.geometry
    return conv_input(outer, g, x.shape[1:-1], how), conv(x, g, how)


def _custom(node: Node, g: Node) -> Gradients:
    raise problem(
        GraphError, f"kernel {node.attrs.definition.name}", "a kernel without a gradient", "one with backward=",
        "write one, or call it on x.detach()",
    )  # fmt: skip


RULES: dict[str, Callable[[Node, Node], Gradients]] = {
    "variable": lambda node, g: (g,),
    "checkpoint": lambda node, g: (g,),
    "after": lambda node, g: (g, None),
    "surrogate": lambda node, g: (None, g),
    "keep": lambda node, g: (g, None),
    "custom": _custom,
    "neg": lambda node, g: (neg(g),),
    "abs": _abs,
    "exp": lambda node, g: (mul(g, node),),
    "log": lambda node, g: (div(g, node.srcs[0]),),
    "sqrt": lambda node, g: (div(mul(g, 0.5), node),),
    "sin": lambda node, g: (mul(g, unary("cos", node.srcs[0])),),
    "cos": lambda node, g: (neg(mul(g, unary("sin", node.srcs[0]))),),
    "tanh": lambda node, g: (mul(g, sub(1.0, mul(node, node))),),
    "erf": _erf,
    "log1p": lambda node, g: (div(g, add(node.srcs[0], 1.0)),),
    "expm1": lambda node, g: (mul(g, add(node, 1.0)),),
    "exp_rounded": lambda node, g: (mul(g, node),),
    "logistic": lambda node, g: (mul(g, mul(node, sub(1.0, node))),),
    "add": lambda node, g: (g, g),
    "sub": lambda node, g: (g, neg(g)),
    "mul": lambda node, g: (mul(g, node.srcs[1]), mul(g, node.srcs[0])),
    "div": lambda node, g: (div(g, node.srcs[1]), neg(mul(div(g, node.srcs[1]), node))),
    "pow": _pow,
    "max": _extremum,
    "min": _extremum,
    "mod": _mod,
    "select": _select,
    "cast": _cast,
    "reduce_sum": lambda node, g: (_back(node, g),),
    "reduce_max": _reduce_extremum,
    "reduce_min": _reduce_extremum,
    "reduce_prod": _reduce_prod,
    "reshape": lambda node, g: (reshape(g, node.srcs[0].shape),),
    "permute": _permute,
    "expand": _expand,
    "slice": _slice,
    "update_slice": _update_slice,
    "pad": _pad,
    "flip": lambda node, g: (flip(g, node.attrs.axes),),
    "unfold": _unfold,
    "fold": _fold,
    "concat": _concat,
    "gather": _gather,
    "gather_neighbors": _gather_neighbors,
    "scatter_add": lambda node, g: (None, gather(g, node.srcs[0], 0)),
    "scatter_max": _scatter_extremum,
    "scatter_min": _scatter_extremum,
    "scatter_prod": _scatter_prod,
    "segment_sum": _segment_sum,
    "segment_max": _segment_extremum,
    "segment_min": _segment_extremum,
    "dot": _dot,
    "conv": _conv,
    "conv_weight": _conv_weight,
    "conv_input": _conv_input,
    "floor": lambda node, g: (like(g, 0.0),),
    "floor_divide": lambda node, g: (like(g, 0.0), like(g, 0.0)),
    "scan": _scan,
    "along": lambda node, g: (along_add(node.srcs[1], g, node.attrs.axis, node.srcs[0].shape[node.attrs.axis]), None),
    "along_add": lambda node, g: (None, along(g, node.srcs[0], node.attrs.axis)),
    "bitcast": lambda node, g: (None,),
}

# Of nodes with several results: the rule is given the gradient of each that has one, by number.
SEVERAL: dict[str, Callable[[Node, dict[int, Node]], Gradients]] = {
    "attention": attention.attention,
    "attention_backward": attention.attention_backward,
}
