"""Template primitives composed from the others: for devices without the template, and for gradients of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.dtypes import bool_, float32
from weft.graph import build
from weft.graph.attention import Attrs, keep_threshold
from weft.graph.node import Node
from weft.graph.primitives import make

MINUS_INFINITY = float("-inf")


def _wide(srcs: Sequence[Node]) -> list[Node]:
    """Sources with 16-bit floats as float32: what stands between them and the result is rounded only there."""
    return [build.cast(source, float32) if source.dtype.is_narrow else source for source in srcs]


def scores(srcs: Sequence[Node], attrs: tuple) -> Node:
    """scale * q kᵀ + bias, [B, H, Tq, Tk], minus infinity where a query does not see a key."""
    form = Attrs(*attrs)
    q, k = srcs[:2]
    out = build.mul(build.dot(q, build.swap_last(_repeated(k, q))), form.scale)
    if form.masked:
        mask = srcs[3]
        out = build.select(mask, out, MINUS_INFINITY) if mask.dtype is bool_ else build.add(out, mask)
    if form.diagonal is not None:
        last = build.add(build.iota(out.shape, 2, q.device), form.diagonal)
        out = build.select(make("le", (build.iota(out.shape, 3, q.device), last)), out, MINUS_INFINITY)
    return out


def _repeated(x: Node, q: Node) -> Node:
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


def _dropped(x: Node, srcs: Sequence[Node], attrs: tuple) -> Node:
    """`x` with what dropout removes set to 0 and the rest scaled up."""
    form = Attrs(*attrs)
    if not form.dropout:
        return x
    bits = make("random", (srcs[3 + form.masked],), (x.shape, form.draw, 16))
    return build.select(build.lt(bits, keep_threshold(form.dropout)), build.mul(x, 1.0 / (1.0 - form.dropout)), 0.0)


def _merged(x: Node) -> Node:
    """[B, heads, T, width] as [B, T, heads, width]."""
    return build.permute(x, (0, 2, 1, 3))


def attention(srcs: Sequence[Node], attrs: tuple) -> tuple[Node, ...]:
    """The results of the primitive `attention`."""
    dtype, srcs = srcs[0].dtype, _wide(srcs)
    weights, logs = _softmax(scores(srcs, attrs))
    out = build.dot(_dropped(weights, srcs, attrs), _repeated(srcs[2], srcs[0]))
    return build.cast(_merged(out), dtype), logs


def attention_backward(srcs: Sequence[Node], attrs: tuple) -> tuple[Node, ...]:
    """The results of the primitive `attention_backward`, from q, k, v, the mask and the gradient alone."""
    dtype, srcs = srcs[0].dtype, _wide(srcs)
    (q, k, v), g = srcs[:3], srcs[-1]
    weights, _ = _softmax(scores(srcs, attrs))
    in_scores = score_gradient(weights, srcs, attrs)
    in_values = build.dot(build.swap_last(_dropped(weights, srcs, attrs)), g)
    scaled = build.mul(in_scores, Attrs(*attrs).scale)
    parts = [
        build.dot(scaled, _repeated(k, q)),
        _summed(build.dot(build.swap_last(scaled), q), k),
        _summed(in_values, v),
    ]
    return tuple([build.cast(_merged(part), dtype) for part in parts])


def score_gradient(weights: Node, srcs: Sequence[Node], attrs: tuple) -> Node:
    """The gradient of `scores`: weights * (gradient of weights - its weighted sum)."""
    q, v, g = srcs[0], srcs[2], srcs[-1]
    in_weights = _dropped(build.dot(g, build.swap_last(_repeated(v, q))), srcs, attrs)
    mean = build.reduce("reduce_sum", build.mul(weights, in_weights), (3,), True)
    return build.mul(weights, build.sub(in_weights, build.expand(mean, weights.shape)))


def bias_gradient(srcs: Sequence[Node], attrs: tuple) -> Node:
    """The gradient of an additive bias, [B, H, Tq, Tk]; `srcs` as for `attention_backward`."""
    dtype, srcs = srcs[0].dtype, _wide(srcs)
    return build.cast(score_gradient(_softmax(scores(srcs, attrs))[0], srcs, attrs), dtype)


def _summed(part: Node, source: Node) -> Node:
    """The heads of a group added up."""
    if part.shape == source.shape:
        return part
    batch, heads, length, width = source.shape
    apart = build.reshape(part, (batch, heads, part.shape[1] // heads, length, width))
    return build.reduce("reduce_sum", apart, (2,))


COMPOSED: dict[str, Callable[[Sequence[Node], tuple], tuple[Node, ...]]] = {
    "attention": attention,
    "attention_backward": attention_backward,
}
