"""Scaled-dot-product attention: what the user gave, brought into the form of the primitive."""

from __future__ import annotations

import math

from weft.base.dtypes import bool_, float32
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.attributes import Attention
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.graph.primitives import make_node, results_of
from weft.ops.common import broadcast_shapes, need_float, same_device

WHO = "scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: Node,
    key: Node,
    value: Node,
    attn_mask: Node | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    causal: str | None = None,
    state: Node | None = None,
    draw: int = 0,
) -> Node:
    """softmax(scale * query @ keyᵀ + mask) @ value; see `weft.nn.functional.scaled_dot_product_attention`."""
    if not enable_gqa and len({len(node.shape) for node in (query, key, value)}) > 1:
        rank = max(len(node.shape) for node in (query, key, value))
        query, key, value = (_with_rank(node, rank) for node in (query, key, value))
    nodes = [query, key, value] + ([] if attn_mask is None else [attn_mask])
    same_device(WHO, nodes)
    need_float(WHO, query)
    aligned = _alignment(is_causal, causal)
    lead, kv_heads = _leading_axes(query, key, value, enable_gqa)
    dtype = query.dtype
    if attn_mask is not None and attn_mask.dtype not in (bool_, dtype):
        raise problem(
            DTypeError, WHO, f"attn_mask of {attn_mask.dtype.name}", f"bool or {dtype.name}", "cast it with .to"
        )
    if dtype.itemsize < 4 and not query.device.features.float16_attention:
        q, k, v = (build.cast(node, float32) for node in (query, key, value))
        mask = attn_mask if attn_mask is None or attn_mask.dtype is bool_ else build.cast(attn_mask, float32)
        wide = scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, causal, state, draw)
        return build.cast(wide, dtype)
    queries, keys, width = query.shape[-2], key.shape[-2], query.shape[-1]
    heads = lead[-1] if len(lead) > 1 else 1
    batch = math.prod(lead[:-1]) if len(lead) > 1 else math.prod(lead)
    kv_lead = (*lead[:-1], kv_heads) if len(lead) > 1 else lead
    q = build.reshape(build.expand_to(query, lead + query.shape[-2:]), (batch, heads, queries, width))
    k, v = (
        build.reshape(build.expand_to(x, kv_lead + x.shape[-2:]), (batch, kv_heads, keys, x.shape[-1]))
        for x in (key, value)
    )
    factor = 1.0 / math.sqrt(max(width, 1)) if scale is None else float(scale)
    if not width:  # all scores are 0
        q, k = (build.pad(x, (0, 0, 0, 0), (0, 0, 0, 1)) for x in (q, k))
    if not keys or not q.size or not v.size:
        return _of_nothing(q, k, v, lead)
    srcs = [q, k, v]
    if attn_mask is not None:
        shape = (*lead, queries, keys)
        if broadcast_shapes(WHO, [shape, attn_mask.shape]) != shape:
            raise problem(ShapeError, WHO, f"attn_mask of shape {attn_mask.shape}", f"one that broadcasts to {shape}")
        srcs.append(build.reshape(build.expand_to(attn_mask, shape), (batch, heads, queries, keys)))
    if dropout_p:
        assert state is not None
        srcs.append(state)
    diagonal = {None: None, "top_left": 0, "bottom_right": keys - queries}[aligned]
    attrs = Attention(factor, diagonal, attn_mask is not None, float(dropout_p), draw if dropout_p else 0)
    out, logs = results_of(make_node("attention", tuple(srcs), attrs))
    out = make_node("keep", (out, logs))
    return build.reshape(build.permute(out, (0, 2, 1, 3)), (*lead, queries, v.shape[3]))


def _with_rank(node: Node, rank: int) -> Node:
    """`node` with axes of extent 1 in front, which broadcast."""
    return build.reshape(node, (*(1,) * (rank - len(node.shape)), *node.shape)) if len(node.shape) > 1 else node


def _alignment(is_causal: bool, causal: str | None) -> str | None:
    """Where the diagonal of a causal mask begins or ends; None without one."""
    if causal not in (None, "top_left", "bottom_right"):
        raise problem(RangeError, WHO, f"causal={causal!r}", "None, 'top_left' or 'bottom_right'")
    if is_causal and causal == "bottom_right":
        given = "is_causal=True, which is causal='top_left', with causal='bottom_right'"
        raise problem(RangeError, WHO, given, "one of them", "leave is_causal out")
    return "top_left" if is_causal else causal


def _leading_axes(query: Node, key: Node, value: Node, grouped: bool) -> tuple[Shape, int]:
    """The axes before the last two in which all three meet, and the number of heads of keys and values."""
    shapes = [node.shape for node in (query, key, value)]
    given = f"query {shapes[0]}, key {shapes[1]} and value {shapes[2]}"
    expected = "[..., Tq, D], [..., Tk, D] and [..., Tk, Dv]"
    rank = min(len(shape) for shape in shapes)
    if rank < 2:
        raise problem(ShapeError, WHO, given, f"{expected}, of rank 2 at least")
    if shapes[0][-1] != shapes[1][-1] or shapes[1][-2] != shapes[2][-2]:
        raise problem(ShapeError, WHO, given, expected)
    if query.dtype is not key.dtype or query.dtype is not value.dtype:
        names = ", ".join(node.dtype.name for node in (query, key, value))
        raise problem(DTypeError, WHO, names, "one float dtype for query, key and value", "cast with .to")
    if grouped and rank > 2:
        heads, kv_heads = shapes[0][-3], shapes[1][-3]
        if shapes[2][-3] != kv_heads or not kv_heads or heads % kv_heads:
            raise problem(ShapeError, WHO, given, "heads of key and value that divide those of query (axis -3)")
        outer = broadcast_shapes(WHO, [shape[:-3] for shape in shapes])
        return (*outer, heads), kv_heads if len(outer) else 1
    if rank > 2 and shapes[1][-3] not in (1, shapes[0][-3]) and shapes[0][-3] % max(shapes[1][-3], 1) == 0:
        raise problem(
            ShapeError, WHO, given, "as many heads (axis -3) in all three", "pass enable_gqa=True to share heads"
        )
    lead = broadcast_shapes(WHO, [shape[:-2] for shape in shapes])
    return lead, lead[-1] if len(lead) > 1 else 1


def _of_nothing(q: Node, k: Node, v: Node, lead: Shape) -> Node:
    """Attention over no keys: zeros (or no elements), with a path for gradients."""
    group = q.shape[1] // max(k.shape[1], 1)
    if group > 1:
        k, v = (build.concat([x] * group, 1) for x in (k, v))
    weights = build.mul(build.dot(q, build.swap_last(k)), 0.0)
    out = build.dot(weights, v)
    return build.reshape(out, (*lead, *out.shape[-2:]))
