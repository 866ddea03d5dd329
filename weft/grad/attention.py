"""Gradients of attention. The first ones are a primitive of their own; theirs, and the one of a bias, are composed."""

from __future__ import annotations

from weft.base.dtypes import bool_
from weft.graph.attributes import Attention
from weft.graph.build import permute, variable
from weft.graph.composed import COMPOSED, bias_gradient
from weft.graph.node import Node
from weft.graph.primitives import make_node, results_of

Gradients = tuple[Node | None, ...]


def attention(node: Node, slopes: dict[int, Node]) -> Gradients:
    """Gradients of q, k and v by one kernel. That of a bias, if it is requested, is as large as the scores."""
    srcs = (*node.srcs, *results_of(node), permute(slopes[0], (0, 2, 1, 3)))
    backward = make_node("attention_backward", srcs, node.attrs)
    parts: list[Node | None] = [permute(part, (0, 2, 1, 3)) for part in results_of(backward)]
    form: Attention = node.attrs
    if form.masked:
        parts.append(None if node.srcs[3].dtype is bool_ else bias_gradient(srcs, node.attrs))
    return *parts, *([None] if form.dropout else [])


def attention_backward(node: Node, slopes: dict[int, Node]) -> Gradients:
    """Through the composition, as a function of q, k, v, bias and gradient: the saved results follow from these."""
    from weft.grad.engine import gradients  # which is made of the rules

    saved = (len(node.srcs) - 3, len(node.srcs) - 2)
    wanted = [at for at, src in enumerate(node.srcs) if src.dtype.kind == "f" and at not in saved]
    own = {at: variable(node.srcs[at]) for at in wanted}  # so that no path leads from one source to another
    srcs = [own.get(at, src) for at, src in enumerate(node.srcs)]
    composed = COMPOSED[node.op](srcs, node.attrs)
    found = gradients([composed[number] for number in slopes], list(slopes.values()), list(own.values()))
    by_place = dict(zip(wanted, found, strict=True))
    return tuple(by_place.get(at) for at in range(len(node.srcs)))
