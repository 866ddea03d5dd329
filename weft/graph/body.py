"""Body: what one iteration of a `loop` computes, and the builders of `loop` and `pick` nodes.

A loop node holds its inputs and its body but has no value of its own: `pick` nodes say what is wanted of it, the stack
of any value of the body over time or the last value of a state. More can be asked of a loop later (a gradient asks for
what it needs to go backwards); all picks of a loop are computed in one pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.graph.attributes import Loop, Pick
from weft.graph.node import Node, placeholder, scalar_of, toposort
from weft.graph.primitives import make_node

_bodies: weakref.WeakValueDictionary[tuple, Body] = weakref.WeakValueDictionary()

# The picks of each loop that are still referred to: reading one of them computes them all in one pass.
PICKS: weakref.WeakKeyDictionary[Node, weakref.WeakSet[Node]] = weakref.WeakKeyDictionary()


class Body:
    """One iteration: placeholders of states, of slices of inputs and of constants; the new states; other values.

    Bodies of one form are one object, whatever nodes they were first made of. A value is named by its position in
    `nodes`.
    """

    __slots__ = (
        "__weakref__", "constants", "form", "hash", "key", "nodes", "others", "position", "results", "states", "xs",
    )  # fmt: skip

    states: tuple[Node, ...]
    xs: tuple[Node, ...]
    constants: tuple[Node, ...]
    results: tuple[Node, ...]  # the new states
    others: tuple[Node, ...]  # values that are neither states nor needed for one
    nodes: tuple[Node, ...]
    position: dict[Node, int]
    key: tuple  # what makes two bodies one
    form: tuple  # what plans depend on: the key without names
    hash: int

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Body) and self.hash == other.hash and self.key == other.key)

    def __repr__(self) -> str:
        return f"<body of {len(self.states)} states, {len(self.xs)} inputs, {len(self.nodes)} nodes>"

    @property
    def inputs(self) -> tuple[Node, ...]:
        """All placeholders, in the order of a loop's sources."""
        return (*self.states, *self.xs, *self.constants)


def body(
    states: Sequence[Node], xs: Sequence[Node], constants: Sequence[Node], results: Sequence[Node],
    others: Sequence[Node] = (),
) -> tuple[Body, dict[Node, int]]:  # fmt: skip
    """The body with these placeholders and values, and the position of each node in it (the body may be an equal one,
    made of other nodes). Nothing but placeholders and generated values is below it."""
    made = Body()
    made.states, made.xs, made.constants = tuple(states), tuple(xs), tuple(constants)
    made.results, made.others = tuple(results), tuple(others)
    made.nodes = tuple(toposort([*made.inputs, *made.results, *made.others], lambda node: False))
    made.position = {node: number for number, node in enumerate(made.nodes)}
    form = []
    for node in made.nodes:
        sources = tuple([made.position[src] for src in node.srcs])
        form.append((node.op, sources, form_of(node), node.shape, node.dtype))
    counts = (len(made.states), len(made.xs), len(made.constants))
    roots = tuple([made.position[node] for node in (*made.results, *made.others)])
    made.form = (*counts, tuple(form), roots)
    # A gradient written by the user, or a checkpoint, knows the nodes it was made with: such bodies are like no other.
    named = tuple([node.attrs for node in made.nodes if node.op in ("call", "checkpoint", "loop")])
    made.key = (made.form, named, made.nodes[0].device)
    made.hash = hash(made.key)
    return _bodies.setdefault(made.key, made), made.position


def form_of(node: Node) -> Any:
    """The attributes of a node as far as a plan depends on them."""
    if node.op == "const":
        return repr(node.attrs.value)
    if node.op == "loop":
        return node.attrs._replace(body=node.attrs.body.form)
    if node.op == "custom":
        return node.attrs._replace(definition=None)  # its digest says what it computes
    return () if node.op in ("input", "variable", "call", "checkpoint") else node.attrs


def make_loop(body: Body, srcs: Sequence[Node], length: int, reverse: bool) -> Node:
    """The loop node; `srcs` are the first states, the inputs with time as first axis, and the constants."""
    return make_node("loop", tuple(srcs), Loop(body, length, reverse))


def stack(loop: Node, position: int) -> Node:
    """Value number `position` of the body at every iteration, [length, ...]; where time is an index into the inputs."""
    return _pick(loop, Pick("stack", position))


def final_state(loop: Node, state: int) -> Node:
    """State number `state` after the last iteration."""
    return _pick(loop, Pick("final", state))


def _pick(loop: Node, attrs: Pick) -> Node:
    node = make_node("pick", (loop,), attrs)
    PICKS.setdefault(loop, weakref.WeakSet()).add(node)
    return node


def find_loop_picks(roots: Iterable[Node]) -> list[Node]:
    """Picks, not computed yet, of the loops below `roots`."""
    if not PICKS:
        return []
    loops = [node for node in toposort(roots) if node.op == "loop"]
    found = [sorted(PICKS.get(loop, ()), key=lambda pick: pick.serial) for loop in loops]
    return [pick for picks in found for pick in picks if pick.buffer is None]


def close(
    states: Sequence[Node], xs: Sequence[Node], results: Sequence[Node], others: Sequence[Node]
) -> tuple[Body, list[Node], dict[Node, int]]:
    """The body whose values are given as nodes over placeholders and over anything from outside.

    What does not depend on the placeholders is a constant of the loop, computed once; movement of constants stays
    inside, where it is free. Returns the body, the constants' nodes outside, and the position of each given value.
    """
    inside = set(states) | set(xs)
    order = toposort([*results, *others], lambda node: node.buffer is not None or node in inside)
    for node in order:
        if any(src in inside for src in node.srcs):
            inside.add(node)
    constants: dict[Node, Node] = {}  # outside -> placeholder

    def constant(node: Node) -> Node:
        kind = node.primitive.kind
        if kind == "movement" and (node.buffer is None or scalar_of(node) is not None):  # as `compiler.program.locate`
            return rebuild_node(node, (constant(node.srcs[0]),))
        if kind == "generate" and not node.srcs:
            return node
        if node not in constants:
            constants[node] = placeholder(node.shape, node.dtype, node.device)
        return constants[node]

    new: dict[Node, Node] = {node: node for node in (*states, *xs)}
    for node in order:
        if node in inside and node not in new:
            for src in node.srcs:
                if src not in new:
                    new[src] = constant(src)
            new[node] = rebuild_node(node, tuple([new[src] for src in node.srcs]))
    for node in (*results, *others):
        if node not in new:
            new[node] = constant(node)
    made, position = body(
        states, xs, list(constants.values()), [new[node] for node in results], [new[node] for node in others]
    )
    return made, list(constants), {node: position[new[node]] for node in (*results, *others)}


def rebuild_node(node: Node, srcs: tuple[Node, ...]) -> Node:
    """The same operation over other sources."""
    if all(a is b for a, b in zip(srcs, node.srcs, strict=True)):
        return node
    return make_node(node.primitive, srcs, node.attrs, dtype=node.dtype, device=node.device, site=node.site)


def substitute(order: Iterable[Node], known: Mapping[Node, Node], leave: Callable[[Node], Any]) -> dict[Node, Node]:
    """Each node of `order` (sources first) over the nodes in `known`; `leave` gives another node's replacement or None
    to rebuild it."""
    new: dict[Node, Node] = dict(known)
    for node in order:
        if node not in new:
            kept = leave(node)
            new[node] = rebuild_node(node, tuple([new[src] for src in node.srcs])) if kept is None else kept
    return new
