"""Which values of a graph are ReLU or GELU (its tanh form) of another, for libraries that compute them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from weft.graph.gelu import gelu
from weft.graph.node import Node


@dataclass(frozen=True, slots=True)
class Activation:
    """`result` is `name` ('relu' or 'gelu') of `argument`; `inside` are the nodes that compute it, `result` too."""

    name: str
    argument: Node
    result: Node
    inside: frozenset[Node]


def activations(nodes: Sequence[Node], leaves: Collection[Node]) -> list[Activation]:
    """All activations of a graph. `nodes` is topologically sorted."""
    known = set(nodes)
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for source in () if node in leaves else node.srcs:
            users.setdefault(source, []).append(node)
    found = []
    for node in nodes:
        if node in leaves:
            continue
        if node.op == "select" and _is_relu(node):
            found.append(Activation("relu", node.srcs[2], node, frozenset({node, node.srcs[0]})))
        elif node.op == "logistic":
            made = _gelu(node, known, users, leaves)
            if made is not None:
                found.append(made)
    return found


def _is_relu(node: Node) -> bool:
    """select(x <= 0, 0, x)."""
    test, zero, x = node.srcs
    return test.op == "le" and test.srcs[0] is x and _is_zero(test.srcs[1]) and _is_zero(zero)


def _is_zero(node: Node) -> bool:
    while node.op in ("expand", "reshape"):
        node = node.srcs[0]
    return node.op == "const" and node.attrs.value == 0


def _gelu(
    weight: Node, known: Collection[Node], users: dict[Node, list[Node]], leaves: Collection[Node]
) -> Activation | None:
    """The GELU that `weight` is a part of. Equal nodes are one, so it is enough to write it down and look for it."""
    if weight.srcs[0].op != "mul":
        return None
    x = weight.srcs[0].srcs[0]
    result = gelu(x)
    if result not in known:
        return None
    argument = x
    if x.op == "cast" and x not in leaves and x.srcs[0].dtype.is_16_bit:  # 16-bit floats go by way of float32
        argument = x.srcs[0]
        rounded = [user for user in users.get(result, ()) if user.op == "cast" and user.dtype is argument.dtype]
        if len(rounded) != 1:
            return None
        (result,) = rounded
    return Activation("gelu", argument, result, _nodes_between(result, argument))


def _nodes_between(result: Node, argument: Node) -> frozenset[Node]:
    """The nodes from `result` down to `argument`, without the latter, and without constants."""
    found: set[Node] = set()
    stack = [result]
    while stack:
        node = stack.pop()
        if node is not argument and node not in found and node.op not in ("expand", "reshape", "const"):
            found.add(node)
            stack.extend(node.srcs)
    return frozenset(found)
