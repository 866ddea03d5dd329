"""expand: heavy primitives as what a device computes: simpler nodes, or nodes that have a template there.

Runs between `simplify` and `decompose`; what it makes goes through the rest like any other node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from weft.backends.base import Device
from weft.compiler.attention import expand_attention
from weft.compiler.convolve import decompose_conv
from weft.graph.node import Node
from weft.graph.primitives import make

EXPANSIONS: dict[str, Callable[[Node, tuple[Node, ...], Device], Node]] = {
    "attention": expand_attention,
    "attention_backward": expand_attention,
    "conv": decompose_conv,
    "conv_weight": decompose_conv,
}


def expand_heavy(nodes: list[Node], outputs: list[Node], leaves: Collection[Node], device: Device) -> list[Node]:
    """The outputs with every primitive of EXPANSIONS replaced. `nodes` is topologically sorted."""
    if not any(node.op in EXPANSIONS for node in nodes):
        return outputs
    leaf_set = set(leaves)
    new: dict[Node, Node] = {}
    for node in nodes:
        if node in leaf_set or not node.srcs:
            new[node] = node
            continue
        srcs = tuple([new[source] for source in node.srcs])
        expansion = EXPANSIONS.get(node.op)
        if expansion is not None:
            new[node] = expansion(node, srcs, device)
        elif srcs == node.srcs:
            new[node] = node
        else:
            new[node] = make(node.op, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)
    return [new[node] for node in outputs]
