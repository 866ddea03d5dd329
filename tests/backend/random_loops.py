"""Loops for random graphs (see `random_graphs`)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

import weft
from weft.graph import build
from weft.graph.body import Body, body, close, final_state, make_loop, stack
from weft.graph.node import Node, placeholder
from weft.graph.primitives import make_node

HOME = weft.get_device("null")


def looped(builder):
    """A state of which each iteration keeps a quarter; what is added may be a product with a constant."""
    x = builder.some(lambda value: value.kind == "f" and value.node.size and value.node.shape)
    if x is None or x.node.shape[0] > 65 or x.node.dtype.is_16_bit:
        return None
    length, *rest = x.node.shape
    shape, dtype, eps = tuple(rest), x.node.dtype, float(np.finfo(x.node.dtype.numpy).eps)
    state, now = placeholder(shape, dtype, HOME), placeholder(shape, dtype, HOME)
    bound = max(2.0, x.bound)
    error = 2 * x.error + 8 * eps * bound
    new = build.add(build.mul(state, 0.25), build.mul(build.mul(now, builder.leaf(shape, dtype).node), 0.25))
    if len(shape) == 2 and builder.chance(2):
        inside = shape[1]
        weight = builder.leaf((inside, inside), dtype).node
        weight = build.swap_last(weight) if builder.chance(2) else weight
        new = build.add(new, build.mul(build.dot(state, weight), 0.125 / inside))
        error += (8 + 2 * math.sqrt(inside)) * eps * bound
    seen = builder.pick([new, state, build.binary("max", new, now)])
    if shape and builder.chance(3):
        seen = build.mul(build.reduce("reduce_sum", seen, (len(shape) - 1,)), 1.0 / shape[-1])
        error += (4 + math.sqrt(shape[-1])) * eps * bound
    inner, constants, position = close([state], [now], [new], [seen])
    node = make_loop(inner, [builder.leaf(shape, dtype).node, x.node, *constants], length, builder.chance(2))
    if builder.chance(3):
        builder.values.append(replace(x, node=final_state(node, 0), bound=bound, error=error))
    return replace(x, node=stack(node, position[seen]), bound=bound, error=error)


def transplanted_body(inner: Body, device) -> Body:
    """The same body on another device."""
    new: dict[Node, Node] = {node: placeholder(node.shape, node.dtype, device) for node in inner.inputs}
    for node in inner.nodes:
        if node not in new:
            attrs = node.attrs
            if node.op == "loop":
                attrs = attrs._replace(body=transplanted_body(attrs.body, device))
            sources = tuple(new[source] for source in node.srcs)
            new[node] = make_node(node.op, sources, attrs, dtype=node.dtype, device=device, site=node.site)
    parts = (inner.states, inner.xs, inner.constants, inner.results, inner.others)
    return body(*[[new[node] for node in part] for part in parts])[0]
