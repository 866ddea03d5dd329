"""Computing again instead of keeping: what a checkpoint covers of a graph, and its copy for the reverse traversal.

Equal nodes are one, so a copy has to differ somewhere: its inputs go through `after` nodes, which wait for the gradient
that calls for the copy. The value of such a node is its input's, in its input's memory. Rules look at how a value was
moved, so movement stays above.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.graph.node import Node, toposort
from weft.graph.primitives import make_node


def _is_free(node: Node) -> bool:
    """Whether there is nothing to keep: a constant or a count, however it was moved."""
    while node.primitive.kind == "movement":
        node = node.srcs[0]
    return node.op in ("const", "iota")


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """`body` is computed again from `inputs` when the first gradient arrives; sources come before users."""

    body: tuple[Node, ...]
    inputs: tuple[Node, ...]


def segment(outputs: Sequence[Node], inputs: Collection[Node], since: int) -> Segment:
    """The nodes between `outputs` and `inputs`, and other nodes older than serial number `since`."""
    known = set(inputs)

    def is_input(node: Node) -> bool:
        return node in known or node.serial < since or not node.srcs

    body: list[Node] = []
    found: list[Node] = []
    for node in toposort(outputs, is_input):
        if not is_input(node):
            body.append(node)
        elif not _is_free(node):
            found.append(node)
    return Segment(tuple(body), tuple(found))


def recompute(part: Segment, copies: Mapping[Node, Node], g: Node) -> dict[Node, Node]:
    """A copy of every node of the segment that waits for `g`. `copies` has the inputs that are copies themselves."""
    new = {node: _wait_for(copies.get(node, node), g) for node in part.inputs}
    for node in part.body:
        srcs = tuple([new.get(source, source) for source in node.srcs])
        new[node] = make_node(node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)
    return {node: new[node] for node in part.body}


def _wait_for(node: Node, g: Node) -> Node:
    """`node` for readers that wait for `g`."""
    if node.primitive.kind != "movement":
        return make_node("after", (node, g))
    return make_node(node.primitive, (_wait_for(node.srcs[0], g),), node.attrs)
