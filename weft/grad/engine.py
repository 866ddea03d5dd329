"""The reverse traversal: from outputs back to the nodes asked for, one rule at a time, adding where paths meet.

No gradient passes `stop_gradient` or a node that is not a float. It goes on below nodes whose value is known
already: a value that was read still has a history.

Two things change it. From a `checkpoint` down, rules see copies of the nodes, computed again. A `call` has a rule
of its own, which is given the gradients of all its results at once, as have loops and other nodes with several results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from weft.base.state import STATE
from weft.grad.checkpoint import Segment, recompute
from weft.grad.loop import loop_gradients
from weft.grad.rules import RULES, SEVERAL, Gradients
from weft.graph.build import add, concat
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
    outputs: Sequence[Node],
    seeds: Sequence[Node],
    wrt: Sequence[Node],
    order: Sequence[Node] | None = None,
    hooks: Mapping[Node, Callable[[Node], Node]] | None = None,
    same: Mapping[Node, Node] | None = None,
) -> list[Node | None]:
    """The gradient of sum(outputs * seeds) in each node of `wrt`; None where no path leads there.

    `seeds[i]` has the shape and dtype of `outputs[i]`. `order`, if the caller has it, is `history(outputs)`. `hooks`
    replace the gradients of some nodes, once each, before anything else is done with them. Where nodes are the `same`
    leaf at different times, their gradient is that of the one that `same` gives; the others have none.
    """
    order = history(outputs) if order is None else order
    traversal = _Traversal({*wrt, *(same or ())}, hooks or {}, same or {})
    for output, seed in zip(outputs, seeds, strict=True):
        traversal.add_part(output, seed)
    traversal.run(order)
    return [traversal.sum_parts(node) if node in traversal.parts else None for node in wrt]


class _Traversal:
    """One reverse traversal: the parts of gradients that were found so far, and what is computed again."""

    def __init__(
        self, targets: set[Node], hooks: Mapping[Node, Callable[[Node], Node]], same: Mapping[Node, Node]
    ):  # fmt: skip
        self.targets, self.hooks, self.same = targets, hooks, same
        self.parts: dict[Node, list[Node]] = {}
        self.picked: dict[Node, dict[Node, Node]] = {}  # of each node with several results, the gradients of its picks
        self.results: dict[Node, dict[int, Node]] = {}  # of each call: the gradient of every result that has one
        self.copies: dict[Node, Node] = {}
        self.covers: dict[Node, dict[Segment, None]] = {}  # checkpoints that a gradient passed on its way to a node
        self.recomputed: set[Segment] = set()
        self.hooked: set[Node] = set()  # nodes whose hooks were called
        self.origins = None if STATE.trace is None else STATE.trace.origins

    def run(self, order: Sequence[Node]) -> None:
        """From the last node of `order` back to the first, through the nodes between the targets and the outputs."""
        between = set()  # the nodes on a path from the targets to the outputs
        for node in order:
            if node in self.targets or any(src in between for src in node.srcs):
                between.add(node)
        for node in reversed(order) if self.origins is None else self.origins.iterate_reversed(order):
            if node not in between or not any(src in between for src in node.srcs):
                continue
            found = self._of_sources(node)
            if found is None:
                continue
            for src, part in zip(node.srcs, found, strict=True):
                if part is not None and src in between:
                    assert part.shape == src.shape and part.dtype is src.dtype, (node, src, part)
                    self.add_part(src, part)

    def add_part(self, node: Node, part: Node) -> None:
        """Add a part to a node's gradient. Parts pass checkpoints, so they add up as if there were none."""
        passed = []
        while node.op == "checkpoint" and node not in self.targets and node not in self.hooks:
            passed.append(node.attrs.segment)
            node = node.srcs[0]
        node = self.same.get(node, node)
        if passed:
            self.covers.setdefault(node, {}).update(dict.fromkeys(passed))
        self.parts.setdefault(node, []).append(part)

    def sum_parts(self, node: Node) -> Node:
        """The gradient of a node that all parts are known of."""
        g = total(self.parts[node])
        if node in self.hooks and node not in self.hooked:
            self.hooked.add(node)
            g = self.hooks[node](g)
            self.parts[node] = [g]
        return g

    def _of_sources(self, node: Node) -> Gradients | None:
        """The gradients of a node's sources; None where none reached it, or where they wait for its other results."""
        copies = self.copies
        if node in self.results:
            return tuple(node.attrs.rule(copies.get(node, node), self.results.pop(node), copies))
        if node in self.picked:
            picked = self.picked.pop(node)
            if node.op == "loop":
                return loop_gradients(copies.get(node, node), picked, gradients)
            return SEVERAL[node.op](copies.get(node, node), {pick.attrs.number: g for pick, g in picked.items()})
        if node not in self.parts:
            return None
        g = self.sum_parts(node)
        if node not in self.targets:
            del self.parts[node]
        self._recompute(node, g)
        if node.op == "result":
            self.results.setdefault(node.srcs[1], {})[node.attrs.number] = g
            return None
        if node.op == "pick":
            self.picked.setdefault(node.srcs[0], {})[node] = g
            return None
        return RULES[node.op](copies.get(node, node), g)

    def _recompute(self, node: Node, g: Node) -> None:
        """Copy what the checkpoints above `node` cover, to be computed once `g` is known."""
        for segment in self.covers.get(node, (node.attrs.segment,) if node.op == "checkpoint" else ()):
            if segment not in self.recomputed:
                self.recomputed.add(segment)
                again = recompute(segment, self.copies, g)
                self.copies.update(again)
                if self.origins is not None:
                    self.origins.note_copies(again)


def total(parts: Sequence[Node]) -> Node:
    """The sum of gradients that meet at a node, in order; those of slices that make up the whole are concatenated."""
    parts = _concatenate(parts) if len(parts) > 1 else parts
    return functools.reduce(add, parts)


def _concatenate(parts: Sequence[Node]) -> Sequence[Node]:
    """`parts` with those that are a value in a field of zeros joined, where together they fill an axis."""
    fields = [part for part in parts if part.op == "pad" and part.attrs.value == 0]
    borders = [zip(field.attrs.lows, field.attrs.highs, strict=True) for field in fields]
    axes = {axis for border in borders for axis, pair in enumerate(border) if any(pair)}
    if len(fields) < 2 or len(axes) != 1:
        return parts
    (axis,) = axes
    fields.sort(key=lambda field: field.attrs.lows[axis])
    end = 0
    for field in fields:
        if field.attrs.lows[axis] != end:
            return parts
        end += field.srcs[0].shape[axis]
    if end != fields[0].shape[axis]:
        return parts
    return [concat([field.srcs[0] for field in fields], axis), *[part for part in parts if part not in fields]]
