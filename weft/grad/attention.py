"""Gradients of attention. The first ones are a primitive of their own; theirs, and the one of a bias, are composed."""

from __future__ import annotations

from weft.dtypes import bool_
from weft.graph.attention import Attrs
from weft.graph.build import narrow, permute, reshape, variable
from weft.graph.composed import COMPOSED, bias_gradient
from weft.graph.node import Node
from weft.graph.primitives import make

Gradients = tuple[Node | None, ...]


def attention(node: Node, g: Node) -> Gradients:
    """Gradients of q, k and v by one kernel. That of a bias, if anybody asks for it, is as large as the scores."""
    q, k, v = node.srcs[:3]
    batch, heads, queries, _ = q.shape
    width = v.shape[3]
    out = narrow(g, 0, 0, batch * queries * heads * width)
    out = permute(reshape(out, (batch, queries, heads, width)), (0, 2, 1, 3))
    srcs = (*node.srcs, node, out)
    flat = make("attention_backward", srcs, node.attrs)
    parts: list[Node | None] = []
    start = 0
    for source in (q, k, v):
        batch, heads, length, width = source.shape
        part = reshape(narrow(flat, 0, start, start + source.size), (batch, length, heads, width))
        parts.append(permute(part, (0, 2, 1, 3)))
        start += source.size
    form = Attrs(*node.attrs)
    if form.masked:
        parts.append(None if node.srcs[3].dtype is bool_ else bias_gradient(srcs, node.attrs))
    return *parts, *([None] if form.dropout else [])


def attention_backward(node: Node, g: Node) -> Gradients:
    """Through the composition, as a function of q, k, v, bias and gradient: the saved result follows from these."""
    from weft.grad.engine import gradients  # which is made of the rules

    saved = len(node.srcs) - 2
    wanted = [at for at, src in enumerate(node.srcs) if src.dtype.kind == "f" and at != saved]
    own = {at: variable(node.srcs[at]) for at in wanted}  # so that no path leads from one source to another
    srcs = [own.get(at, src) for at, src in enumerate(node.srcs)]
    found = gradients([COMPOSED[node.op](srcs, node.attrs)], [g], list(own.values()))
    by_place = dict(zip(wanted, found, strict=True))
    return tuple(by_place.get(at) for at in range(len(node.srcs)))
