"""Primitives with templates as what a device computes: simpler nodes, or nodes that have a template there.

Runs between `simplify` and `decompose`; its results pass through the rest like any other node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.compiler.passes.library_calls import ask_libraries
from weft.compiler.passes.simplify import permute_source
from weft.compiler.passes.slice_starts import Starts, chains_of, expand_chain, expand_slice, expand_update
from weft.compiler.templates import gpu_attention
from weft.compiler.templates.convolution import TILES, decompose_conv, long_product, share_padding
from weft.graph.convolve import compose_input
from weft.graph.node import Node, toposort
from weft.graph.primitives import make_node
from weft.plan.device import Device

EXPANSIONS: dict[str, Callable[[Node, tuple[Node, ...], Device], Node]] = {
    "conv": decompose_conv,
    "conv_weight": decompose_conv,
}
# Of nodes with several results: what replaces each of them.
SEVERAL: dict[str, Callable[[Node, tuple[Node, ...], Device], Sequence[Node]]] = {
    "attention": gpu_attention.expand,
    "attention_backward": gpu_attention.expand,
}


def expand_slice_updates(
    nodes: list[Node],
    outputs: Sequence[Node],
    leaves: Collection[Node],
    device: Device,
    starts: Mapping[Node, Starts] = {},
) -> Sequence[Node]:
    """The outputs with input gradients of convolutions that no library computes as convolutions, and with writes into
    slices as choices between two values, before anything is simplified. `starts` are those that come with each run."""
    if not starts and {"conv_input", "update_slice"}.isdisjoint([node.op for node in nodes]):
        return outputs
    memory = set(leaves)
    chains = {} if starts else chains_of(nodes, outputs, memory)
    inner = {node for chain in chains.values() for node in chain[:-1]}

    def compose(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node in inner:
            return new[node.srcs[0]]  # for the last of its chain
        if node in chains:
            return expand_chain(chains[node], new[node.srcs[0]], [new[one.srcs[1]] for one in chains[node]])
        if node.op == "update_slice":
            return expand_update(node, tuple([new[source] for source in node.srcs]), memory, starts.get(node, {}))
        if node in starts:
            return expand_slice(node, new[node.srcs[0]], starts[node])
        if node.op != "conv_input" or ask_libraries(node, node.srcs, device):
            return None
        return compose_input(new[node.srcs[0]], new[node.srcs[1]], node.attrs.space, node.attrs.geometry)

    return rebuild_outputs(nodes, outputs, memory, compose)


def expand_templates(
    nodes: list[Node], outputs: Sequence[Node], leaves: Collection[Node], device: Device
) -> Sequence[Node]:
    """The outputs with every such primitive replaced. `nodes` is topologically sorted."""
    expanded_ops = {*EXPANSIONS, *SEVERAL, "conv_input"}  # of the last, only what a library computes is left
    if expanded_ops.isdisjoint([node.op for node in nodes]) and all(node.op != "dot" for node in nodes):
        return outputs
    leaf_set = set(leaves)
    parts: dict[Node, Sequence[Node]] = {}  # by nodes with several results

    def expand_node(node: Node, new: Mapping[Node, Node]) -> Node | None:
        srcs = tuple([new[source] for source in node.srcs])
        if node.op == "pick" and node.srcs[0] in parts:
            return parts[node.srcs[0]][node.attrs.number]
        if node.op in SEVERAL:
            parts[node] = ask_libraries(node, srcs, device) or SEVERAL[node.op](node, srcs, device)
            return node  # whose picks are replaced, so it is not used again
        if node.op == "dot":
            return long_product(node, srcs, device)
        if node.op == "permute":
            return permute_source(srcs[0], node.attrs.order)  # of what a library computes in an order of its own
        if node.op not in expanded_ops:
            return None
        offer = ask_libraries(node, srcs, device)
        return offer[0] if offer else EXPANSIONS[node.op](node, srcs, device)

    outputs = rebuild_outputs(nodes, outputs, leaf_set, expand_node)
    nodes = toposort(outputs, leaf_set.__contains__)
    shared = share_padding(nodes, leaf_set)
    if not shared:
        return outputs

    def sharing(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node.op not in TILES:
            return None
        parts = [(shared.get(source), new[source]) for source in node.srcs]
        views = [source if part is None else part.of(new[part.inner]) for part, source in parts]
        return make_node(node.primitive, tuple(views), node.attrs)

    return rebuild_outputs(nodes, outputs, leaf_set, sharing)


def rebuild_outputs(
    nodes: list[Node],
    outputs: Sequence[Node],
    leaves: Collection[Node],
    rule: Callable[[Node, Mapping[Node, Node]], Node | None],
) -> Sequence[Node]:
    """The outputs over rebuilt sources; `rule` gives the replacement of a node, None for the node itself."""
    new: dict[Node, Node] = {}
    for node in nodes:
        if node in leaves or not node.srcs:
            new[node] = node
            continue
        srcs = tuple([new[source] for source in node.srcs])
        found = rule(node, new)
        if found is None:
            same = srcs == node.srcs
            found = (
                node
                if same
                else make_node(node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)
            )
        new[node] = found
    return [new[node] for node in outputs]
