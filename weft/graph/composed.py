"""Template primitives composed from the others: for devices without the template, and for gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.base.dtypes import bool_, float32
from weft.graph import build
from weft.graph.attention import keep_threshold
from weft.graph.attributes import Attention
from weft.graph.node import Node
from weft.graph.primitives import make_node

MINUS_INFINITY = float("-inf")


def _widen_sources(srcs: Sequence[Node]) -> list[Node]:
    """Sources with 16-bit floats as float32: values between them and the result are not rounded."""
    return [build.cast(source, float32) if source.dtype.is_16_bit else source for source in srcs]


def scores(srcs: Sequence[Node], attrs: Attention) -> Node:
    """scale * q kᵀ + bias, [B, H, Tq, Tk], minus infinity where a query does not see a key."""
    q, k = srcs[:2]
    out = build.mul(build.dot(q, build.swap_last(_repeat(k, q))), attrs.scale)
    if attrs.masked:
        mask = srcs[3]
        out = build.select(mask, out, MINUS_INFINITY) if mask.dtype is bool_ else build.add(out, mask)
    if attrs.diagonal is not None:
        last = build.add(build.iota(out.shape, 2, q.device), attrs.diagonal)
        out = build.select(make_node("le", (build.iota(out.shape, 3, q.device), last)), out, MINUS_INFINITY)
    return out


def _repeat(x: Node, q: Node) -> Node:
    """Keys or values with one head for each head of `q`."""
    batch, heads, length, width = x.shape
    group = q.shape[1] // heads
    if group == 1:
        return x
    wide = build.expand(build.reshape(x, (batch, heads, 1, length, width)), (batch, heads, group, length, width))
    return build.reshape(wide, (batch, q.shape[1], length, width))


def _softmax(scored: Node) -> tuple[Node, Node]:
    """Weights and log-sum-exp over the last axis; a row of minus infinities has weights 0 and plus infinity."""
    axis = (len(scored.shape) - 1,)
    top = build.stop_gradient(build.reduce("reduce_max", scored, axis, True))
    top = build.select(build.eq(top, MINUS_INFINITY), 0.0, top)
    exponentials = build.unary("exp_rounded", build.sub(scored, build.expand(top, scored.shape)))
    total = build.reduce("reduce_sum", exponentials, axis, True)
    nothing = build.eq(total, 0.0)
    total = build.select(nothing, 1.0, total)
    logs = build.select(nothing, float("inf"), build.add(top, build.unary("log", total)))
    return build.div(exponentials, build.expand(total, scored.shape)), build.reshape(logs, scored.shape[:-1])


def _drop(x: Node, srcs: Sequence[Node], attrs: Attention) -> Node:
    """`x` with what dropout removes set to 0 and the rest scaled up."""
    if not attrs.dropout:
        return x
    bits = make_node("random", (srcs[3 + attrs.masked],), (x.shape, attrs.draw, 16))
    return build.select(build.lt(bits, keep_threshold(attrs.dropout)), build.mul(x, 1.0 / (1.0 - attrs.dropout)), 0.0)


def _merge(x: Node) -> Node:
    """[B, heads, T, width] as [B, T, heads, width]."""
    return build.permute(x, (0, 2, 1, 3))


def attention(srcs: Sequence[Node], attrs: Attention) -> tuple[Node, ...]:
    """The results of the primitive `attention`."""
    dtype, srcs = srcs[0].dtype, _widen_sources(srcs)
    weights, logs = _softmax(scores(srcs, attrs))
    out = build.dot(_drop(weights, srcs, attrs), _repeat(srcs[2], srcs[0]))
    return build.cast(_merge(out), dtype), logs


def attention_backward(srcs: Sequence[Node], attrs: Attention) -> tuple[Node, ...]:
    """The results of the primitive `attention_backward`, from q, k, v, the mask and the gradient alone."""
    dtype, srcs = srcs[0].dtype, _widen_sources(srcs)
    (q, k, v), g = srcs[:3], srcs[-1]
    weights, _ = _softmax(scores(srcs, attrs))
    in_scores = score_gradient(weights, srcs, attrs)
    in_values = build.dot(build.swap_last(_drop(weights, srcs, attrs)), g)
    scaled = build.mul(in_scores, attrs.scale)
    parts = [
        build.dot(scaled, _repeat(k, q)),
        _sum_to(build.dot(build.swap_last(scaled), q), k),
        _sum_to(in_values, v),
    ]
    return tuple([build.cast(_merge(part), dtype) for part in parts])


def score_gradient(weights: Node, srcs: Sequence[Node], attrs: Attention) -> Node:
    """The gradient of `scores`: weights * (gradient of weights - its weighted sum)."""
    q, v, g = srcs[0], srcs[2], srcs[-1]
    in_weights = _drop(build.dot(g, build.swap_last(_repeat(v, q))), srcs, attrs)
    mean = build.reduce("reduce_sum", build.mul(weights, in_weights), (3,), True)
    return build.mul(weights, build.sub(in_weights, build.expand(mean, weights.shape)))


def bias_gradient(srcs: Sequence[Node], attrs: Attention) -> Node:
    """The gradient of an additive bias, [B, H, Tq, Tk]; `srcs` as for `attention_backward`."""
    dtype, srcs = srcs[0].dtype, _widen_sources(srcs)
    return build.cast(score_gradient(_softmax(scores(srcs, attrs))[0], srcs, attrs), dtype)


def _sum_to(part: Node, source: Node) -> Node:
    """The heads of a group added up."""
    if part.shape == source.shape:
        return part
    batch, heads, length, width = source.shape
    apart = build.reshape(part, (batch, heads, part.shape[1] // heads, length, width))
    return build.reduce("reduce_sum", apart, (2,))


COMPOSED: dict[str, Callable[[Sequence[Node], Attention], tuple[Node, ...]]] = {
    "attention": attention,
    "attention_backward": attention_backward,
}
