"""expand: heavy primitives as what a device computes: simpler nodes, or nodes that have a template there.

Runs between `simplify` and `decompose`; what it makes goes through the rest like any other node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.backends.base import Device
from weft.compiler import block_attention
from weft.compiler.convolve import TILES, decompose_conv, long_product, share_padding
from weft.compiler.libraries import offered
from weft.compiler.positions import Starts, chains_of, spell_out_chain, spell_out_slice, spell_out_update
from weft.compiler.simplify import permuted
from weft.graph.convolve import Geometry, compose_input
from weft.graph.node import Node, toposort
from weft.graph.primitives import make

EXPANSIONS: dict[str, Callable[[Node, tuple[Node, ...], Device], Node]] = {
    "conv": decompose_conv,
    "conv_weight": decompose_conv,
}
# Of nodes with several results: what stands for each of them.
SEVERAL: dict[str, Callable[[Node, tuple[Node, ...], Device], Sequence[Node]]] = {
    "attention": block_attention.expand,
    "attention_backward": block_attention.expand,
}


def spell_out(
    nodes: list[Node],
    outputs: list[Node],
    leaves: Collection[Node],
    device: Device,
    starts: Mapping[Node, Starts] = {},
) -> list[Node]:
    """The outputs with input gradients of convolutions that no library computes as convolutions, and with writes into
    slices as choices between two values, before anything is simplified. `starts` are those that come with each run."""
    if not starts and {"conv_input", "update_slice"}.isdisjoint([node.op for node in nodes]):
        return outputs
    memory = set(leaves)
    chains = {} if starts else chains_of(nodes, outputs, memory)
    inner = {node for chain in chains.values() for node in chain[:-1]}

    def composed(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node in inner:
            return new[node.srcs[0]]  # for the last of its chain
        if node in chains:
            return spell_out_chain(chains[node], new[node.srcs[0]], [new[one.srcs[1]] for one in chains[node]])
        if node.op == "update_slice":
            return spell_out_update(node, tuple([new[source] for source in node.srcs]), memory, starts.get(node, {}))
        if node in starts:
            return spell_out_slice(node, new[node.srcs[0]], starts[node])
        if node.op != "conv_input" or offered(node, node.srcs, device):
            return None
        space, *how = node.attrs
        return compose_input(new[node.srcs[0]], new[node.srcs[1]], space, Geometry(*how))

    return rebuilt(nodes, outputs, memory, composed)


def expand_heavy(nodes: list[Node], outputs: list[Node], leaves: Collection[Node], device: Device) -> list[Node]:
    """The outputs with every heavy primitive replaced. `nodes` is topologically sorted."""
    heavy = {*EXPANSIONS, *SEVERAL, "conv_input"}  # of the last, only what a library computes is left
    if heavy.isdisjoint([node.op for node in nodes]) and all(node.op != "dot" for node in nodes):
        return outputs
    leaf_set = set(leaves)
    parts: dict[Node, Sequence[Node]] = {}  # by nodes with several results

    def expanded(node: Node, new: Mapping[Node, Node]) -> Node | None:
        srcs = tuple([new[source] for source in node.srcs])
        if node.op == "pick" and node.srcs[0] in parts:
            return parts[node.srcs[0]][node.attrs[0]]
        if node.op in SEVERAL:
            parts[node] = offered(node, srcs, device) or SEVERAL[node.op](node, srcs, device)
            return node  # whose picks are replaced, so nobody sees it again
        if node.op == "dot":
            return long_product(node, srcs, device)
        if node.op == "permute":
            return permuted(srcs[0], node.attrs[0])  # of what a library computes in an order of its own
        if node.op not in heavy:
            return None
        offer = offered(node, srcs, device)
        return offer[0] if offer else EXPANSIONS[node.op](node, srcs, device)

    outputs = rebuilt(nodes, outputs, leaf_set, expanded)
    nodes = toposort(outputs, leaf_set.__contains__)
    shared = share_padding(nodes, leaf_set)
    if not shared:
        return outputs

    def sharing(node: Node, new: Mapping[Node, Node]) -> Node | None:
        if node.op not in TILES:
            return None
        parts = [(shared.get(source), new[source]) for source in node.srcs]
        views = [source if part is None else part.of(new[part.inner]) for part, source in parts]
        return make(node.op, tuple(views), node.attrs)

    return rebuilt(nodes, outputs, leaf_set, sharing)


def rebuilt(
    nodes: list[Node],
    outputs: list[Node],
    leaves: Collection[Node],
    rule: Callable[[Node, Mapping[Node, Node]], Node | None],
) -> list[Node]:
    """The outputs over rebuilt sources; `rule` gives what takes a node's place, None for the node itself."""
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
                node if same else make(node.op, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)
            )
        new[node] = found
    return [new[node] for node in outputs]
