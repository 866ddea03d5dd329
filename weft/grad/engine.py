"""The reverse walk: from outputs back to the nodes asked for, one rule at a time, adding where paths meet.

No gradient passes `stop_gradient` or a node that is not a float. The walk goes on below nodes whose value is known
already: a value that was read still has a history.

Two things change the walk. From a `checkpoint` down, rules see copies of the nodes, computed again. A `call` has a rule
of its own, which is given the gradients of all its results at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.grad.checkpoint import Segment, recompute
from weft.grad.rules import RULES, Gradients
from weft.graph.build import add
from weft.graph.node import Node


def history(roots: Iterable[Node]) -> list[Node]:
    """Every node that a gradient of `roots` can reach, sources before users."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen and node.dtype.kind == "f" and node.op != "stop_gradient":
            seen.add(node)
            stack.append((node, True))
            stack.extend((src, False) for src in node.srcs)
    return order


def gradients(
    outputs: Sequence[Node], seeds: Sequence[Node], wrt: Sequence[Node], order: Sequence[Node] | None = None
) -> list[Node | None]:
    """The gradient of sum(outputs * seeds) in each node of `wrt`; None where no path leads there.

    `seeds[i]` has the shape and dtype of `outputs[i]`. `order`, if the caller has it, is `history(outputs)`.
    """
    order = history(outputs) if order is None else order
    targets = set(wrt)
    between = set()  # the nodes on a path from `wrt` to the outputs
    for node in order:
        if node in targets or any(src in between for src in node.srcs):
            between.add(node)
    total: dict[Node, Node] = {}
    for output, seed in zip(outputs, seeds, strict=True):
        total[output] = add(total[output], seed) if output in total else seed
    copies: dict[Node, Node] = {}
    begun: set[Segment] = set()
    results: dict[Node, dict[int, Node]] = {}  # of each call: the gradient of every result that has one
    for node in reversed(order):
        if node not in between or not any(src in between for src in node.srcs):
            continue
        if node in results:
            parts: Gradients = tuple(node.attrs[0](copies.get(node, node), results.pop(node), copies))
        elif node in total:
            g = total[node] if node in targets else total.pop(node)
            if node.op == "result":
                results.setdefault(node.srcs[1], {})[node.attrs[0]] = g
                continue
            if node.op == "checkpoint" and node.attrs[0] not in begun:
                begun.add(node.attrs[0])
                copies.update(recompute(node.attrs[0], copies, g))
            parts = RULES[node.op](copies.get(node, node), g)
        else:
            continue
        for src, part in zip(node.srcs, parts, strict=True):
            if part is not None and src in between:
                assert part.shape == src.shape and part.dtype is src.dtype, (node, src, part)
                total[src] = add(total[src], part) if src in total else part
    return [total.get(node) for node in wrt]
