"""The reverse walk: from outputs back to the nodes asked for, one rule at a time, adding where paths meet.

No gradient passes `stop_gradient` or a node that is not a float. The walk goes on below nodes whose value is known
already: a value that was read still has a history.

Two things change the walk. From a `checkpoint` down, rules see copies of the nodes, computed again. A `call` has a rule
of its own, which is given the gradients of all its results at once, as have loops and other nodes with several results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.grad.checkpoint import Segment, recompute
from weft.grad.loop import loop_gradients
from weft.grad.rules import RULES, SEVERAL, Gradients
from weft.graph.build import add, concat
from weft.graph.node import Node
from weft.state import STATE


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
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wrt: Sequence[Node],
    order: Sequence[Node] | None = None,
    hooks: Mapping[Node, Callable[[Node], Node]] | None = None,
) -> list[Node | None]:
    """The gradient of sum(outputs * seeds) in each node of `wrt`; None where no path leads there.

    `seeds[i]` has the shape and dtype of `outputs[i]`. `order`, if the caller has it, is `history(outputs)`. `hooks`
    replace the gradients of some nodes, once each, before anything else is done with them.
    """
    hooks = hooks or {}
    order = history(outputs) if order is None else order
    targets = set(wrt)
    between = set()  # the nodes on a path from `wrt` to the outputs
    for node in order:
        if node in targets or any(src in between for src in node.srcs):
            between.add(node)
    parts: dict[Node, list[Node]] = {}
    picked: dict[Node, dict[Node, Node]] = {}  # of each node with several results, the gradients of its picks
    copies: dict[Node, Node] = {}
    covers: dict[Node, dict[Segment, None]] = {}  # checkpoints that a gradient passed on its way to a node
    begun: set[Segment] = set()

    def give(node: Node, part: Node) -> None:
        """Add a part to a node's gradient. Parts pass checkpoints, so they add up as if there were none."""
        passed = []
        while node.op == "checkpoint" and node not in targets and node not in hooks:
            passed.append(node.attrs[0])
            node = node.srcs[0]
        if passed:
            covers.setdefault(node, {}).update(dict.fromkeys(passed))
        parts.setdefault(node, []).append(part)

    called: set[Node] = set()  # nodes whose hooks were called

    def whole(node: Node) -> Node:
        """The gradient of a node that all parts are known of."""
        g = total(parts[node])
        if node in hooks and node not in called:
            called.add(node)
            g = hooks[node](g)
            parts[node] = [g]
        return g

    for output, seed in zip(outputs, seeds, strict=True):
        give(output, seed)
    results: dict[Node, dict[int, Node]] = {}  # of each call: the gradient of every result that has one
    origins = None if STATE.trace is None else STATE.trace.origins
    for node in reversed(order) if origins is None else origins.reversed(order):
        if node not in between or not any(src in between for src in node.srcs):
            continue
        if node in results:
            found: Gradients = tuple(node.attrs[0](copies.get(node, node), results.pop(node), copies))
        elif node in picked and node.op == "loop":
            found = loop_gradients(copies.get(node, node), picked.pop(node), gradients)
        elif node in picked:
            found = SEVERAL[node.op](copies.get(node, node), {pick.attrs[0]: g for pick, g in picked.pop(node).items()})
        elif node in parts:
            g = whole(node)
            if node not in targets:
                del parts[node]
            for part in covers.get(node, (node.attrs[0],) if node.op == "checkpoint" else ()):
                if part not in begun:
                    begun.add(part)
                    again = recompute(part, copies, g)
                    copies.update(again)
                    if origins is not None:
                        origins.note_copies(again)
            if node.op == "result":
                results.setdefault(node.srcs[1], {})[node.attrs[0]] = g
                continue
            if node.op == "pick":
                picked.setdefault(node.srcs[0], {})[node] = g
                continue
            found = RULES[node.op](copies.get(node, node), g)
        else:
            continue
        for src, part in zip(node.srcs, found, strict=True):
            if part is not None and src in between:
                assert part.shape == src.shape and part.dtype is src.dtype, (node, src, part)
                give(src, part)
    return [whole(node) if node in parts else None for node in wrt]


def total(parts: Sequence[Node]) -> Node:
    """The sum of gradients that meet at a node, in order; those of slices that make up the whole lie side by side."""
    parts = _side_by_side(parts) if len(parts) > 1 else parts
    return functools.reduce(add, parts)


def _side_by_side(parts: Sequence[Node]) -> Sequence[Node]:
    """`parts` with those that are a value in a field of zeros joined, where together they fill an axis."""
    fields = [part for part in parts if part.op == "pad" and part.attrs[2] == 0]
    axes = {axis for field in fields for axis, pair in enumerate(zip(*field.attrs[:2], strict=True)) if any(pair)}
    if len(fields) < 2 or len(axes) != 1:
        return parts
    (axis,) = axes
    fields.sort(key=lambda field: field.attrs[0][axis])
    end = 0
    for field in fields:
        if field.attrs[0][axis] != end:
            return parts
        end += field.srcs[0].shape[axis]
    if end != fields[0].shape[axis]:
        return parts
    return [concat([field.srcs[0] for field in fields], axis), *[part for part in parts if part not in fields]]
