"""What the compiler does with `loop` nodes, before fusing and after.

`rebuild_loops` removes what is not picked, simplifies bodies, and gives every state whose values are stacked one block
of length + 1 entries in order of time, so that what an iteration reads and what it writes are adjacent and nothing is
copied. `Relocation` puts the plan of a body into the plan around it: places become places of the outer plan, and what
differs between iterations becomes a moving slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.compiler.passes.simplify import simplify
from weft.compiler.program import Program, Write
from weft.graph.body import Body, body, make_loop, rebuild_node
from weft.graph.build import expand_to, narrow
from weft.graph.node import Node, toposort
from weft.graph.primitives import make_node
from weft.plan.plan import Gemm, Launch, LibraryCall, Moving, Place, Plan, Repeat, Step

# --- before fusing ---------------------------------------------------------------------------------------------------


def rebuild_loops(nodes: list[Node], outputs: Sequence[Node], leaves: set[Node]) -> Sequence[Node]:
    """The outputs, with every loop below them in the form that the fuser accepts. `nodes` is topologically sorted."""
    if not any(node.op == "loop" for node in nodes):
        return outputs
    picks = _live_picks(nodes, outputs)
    new: dict[Node, Node] = {}
    for node in nodes:
        if node.op == "loop":
            if node in picks:
                new.update(_RebuiltLoop(node, picks[node], new).picks())
        elif node not in new and all(src in new for src in node.srcs):
            new[node] = node if node in leaves else rebuild_node(node, tuple([new[src] for src in node.srcs]))
    return [new[node] for node in outputs]


def _live_picks(nodes: Sequence[Node], outputs: Sequence[Node]) -> dict[Node, list[Node]]:
    """The picks of each loop that lead to an output, through loops too."""
    picks: dict[Node, list[Node]] = {}
    live = set(outputs)
    for node in reversed(nodes):
        if node not in live:
            continue
        if node.op == "pick":
            picks.setdefault(node.srcs[0], []).append(node)
            live.add(node.srcs[0])
        elif node.op == "loop":
            used = _find_used(node.attrs.body, picks[node])
            live.update([src for src, inner in zip(node.srcs, node.attrs.body.inputs, strict=True) if inner in used])
        else:
            live.update(node.srcs)
    return picks


def _find_used(inner: Body, picks: Sequence[Node]) -> set[Node]:
    """What of a body the picks need; a state that is needed needs its next value."""
    next_value = dict(zip(inner.states, inner.results, strict=True))
    waiting = [inner.nodes[pick.attrs.number] for pick in picks if pick.attrs.part == "stack"]
    waiting += [inner.states[pick.attrs.number] for pick in picks if pick.attrs.part != "stack"]
    used: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in used:
            used.add(node)
            waiting.extend(node.srcs)
            if node in next_value:
                waiting.append(next_value[node])
    return used


class _RebuiltLoop:
    """One loop, rebuilt for its live picks."""

    def __init__(self, loop: Node, picks: Sequence[Node], new: dict[Node, Node]):
        self.inner, self.length, self.reverse = loop.attrs
        self.wanted = picks
        used = _find_used(self.inner, picks)
        placeholders = [node for node in self.inner.inputs if node in used]
        self.source = {node: new[src] for node, src in zip(self.inner.inputs, loop.srcs, strict=True) if node in used}
        self.kept = [number for number, state in enumerate(self.inner.states) if state in used]
        self.states = [self.inner.states[number] for number in self.kept]
        self.xs = [x for x in self.inner.xs if x in used]
        stacked = [self.inner.nodes[pick.attrs.number] for pick in picks if pick.attrs.part == "stack"]
        roots = [*[self.inner.results[number] for number in self.kept], *stacked]
        simple = simplify(list(self.inner.nodes), roots, {node: node for node in placeholders})
        leaves = set(placeholders)
        simple = list(rebuild_loops(toposort(simple, leaves.__contains__), simple, leaves))
        self.results = simple[: len(self.states)]
        self.values = dict(zip(stacked, simple[len(self.states) :], strict=True))
        computed = [value for value in dict.fromkeys(self.values.values()) if value.srcs]
        constants = [constant for constant in self.inner.constants if constant in used]
        made, self.position = body(self.states, self.xs, constants, self.results, computed)
        self.loop = make_loop(made, list(self.source.values()), self.length, self.reverse)

    def picks(self) -> dict[Node, Node]:
        """What each live pick has become."""
        found = {}
        for pick in self.wanted:
            kind, number = pick.attrs
            if kind == "stack":
                found[pick] = self._stack(self.values[self.inner.nodes[number]])
            else:
                found[pick] = make_node("pick", (self.loop,), (kind, self.kept.index(number)))
        return found

    def _stack(self, value: Node) -> Node:
        for number, (old, new) in enumerate(zip(self.states, self.results, strict=True)):
            if value in (old, new):
                after = (value is not old) is not self.reverse
                block = make_node("pick", (self.loop,), ("block", number))
                return narrow(block, 0, int(after), self.length + int(after))
        if value in self.xs:
            return self.source[value]
        if not value.srcs:
            return expand_to(self.source.get(value, value), (self.length, *value.shape))
        return make_node("pick", (self.loop,), ("stack", self.position[value]))


# --- the plan of a body ----------------------------------------------------------------------------------------------


def last_entries(picks: Sequence[Node]) -> dict[Node, tuple[Node, int]]:
    """Of the picks of loops, last states that are entries of blocks: the block and the byte offset there."""
    blocks = {(pick.srcs[0], pick.attrs.number): pick for pick in picks if pick.attrs.part == "block"}
    found = {}
    for pick in picks:
        block = blocks.get((pick.srcs[0], pick.attrs.number)) if pick.attrs.part == "final" else None
        if block is not None:
            _, length, reverse = pick.srcs[0].attrs
            found[pick] = (block, 0 if reverse else length * pick.nbytes)
    return found


def program_of(loop: Node, picks: Sequence[Node]) -> Program:
    """One iteration as a program: leaves are the body's placeholders; outputs are the new states, then what is stacked.

    A state in a block is written to the next entry; any other replaces the old one in place.
    """
    inner: Body = loop.attrs.body
    blocks = {pick.attrs.number for pick in picks if pick.attrs.part == "block"}
    outputs = [*inner.results, *[inner.nodes[pick.attrs.number] for pick in picks if pick.attrs.part == "stack"]]
    writes = [Write(number, number) for number in range(len(inner.states)) if number not in blocks]
    return Program(inner.nodes, inner.inputs, tuple(outputs), tuple(writes))


def hidden_states(loop: Node, picks: Sequence[Node]) -> list[Node]:
    """Picks for the states that have none: they need memory too."""
    known = {pick.attrs.number for pick in picks if pick.attrs.part != "stack"}
    numbers = range(len(loop.attrs.body.states))
    return [make_node("pick", (loop,), ("final", number)) for number in numbers if number not in known]


@dataclass(frozen=True, slots=True)
class LoopBody:
    """The compiled body of a loop: its plan, and the slots of the outputs that are not written in place."""

    loop: Node
    picks: tuple[Node, ...]
    plan: Plan
    outputs: tuple[int, ...]

    @property
    def moving(self) -> int:
        """How many slots of the outer plan it needs: what moves in it, what moves inside that, and a counter."""
        inside = sum(slot.kind == "moving" for slot in self.plan.slots)
        blocks = sum(pick.attrs.part == "block" for pick in self.picks)
        return inside + len(self.loop.attrs.body.xs) + len(self.outputs) + blocks + 1


class Relocation:
    """Puts the plan of an iteration into the plan around it. `place_of` gives the outer place of a pick or of a source;
    `slots` are the numbers of the outer slots that may be used."""

    def __init__(
        self, body: LoopBody, place_of: Callable[[Node], Place], arena: Place, status: Place, slots: Sequence[int]
    ):
        self.body, self.place_of = body, place_of
        self.inner, self.length, self.reverse = body.loop.attrs
        self.spare = iter(slots)
        self.moving: list[Moving] = []
        kinds = {kind: [pick for pick in body.picks if pick.attrs.part == kind] for kind in ("final", "block", "stack")}
        self.state = {pick.attrs.number: pick for pick in (*kinds["final"], *kinds["block"])}
        self.map = self._inputs()
        moved = iter(body.outputs)
        for number, state in enumerate(self.inner.states):
            if self.state[number].attrs.part == "block":
                at = self.length - 1 if self.reverse else 1
                self.map[next(moved)] = self._move(self.state[number], state.nbytes, at)
        for pick, slot in zip(kinds["stack"], moved, strict=True):
            self.map[slot] = self._move(pick, self.inner.nodes[pick.attrs.number].nbytes)
        for number, memory in enumerate(body.plan.slots):
            if memory.kind in ("moving", "arena", "status"):
                fixed = {"arena": arena, "status": status}
                self.map[number] = fixed[memory.kind] if memory.kind in fixed else Place(next(self.spare), 0)

    def _inputs(self) -> dict[int, Place]:
        """The places of the leaves of the inner plan."""
        found: dict[int, Place] = {}
        first = len(self.inner.states)
        for number, (node, source) in enumerate(zip(self.inner.inputs, self.body.loop.srcs, strict=True)):
            if number < first:
                pick = self.state[number]
                blocked = pick.attrs.part == "block"
                at = self.length if self.reverse else 0
                found[number] = self._move(pick, node.nbytes, at) if blocked else self.place_of(pick)
            elif number < first + len(self.inner.xs):
                found[number] = self._move(source, node.nbytes)
            else:
                found[number] = self.place_of(source)
        return found

    def _move(self, node: Node, nbytes: int, at: int | None = None) -> Place:
        """A slot that moves through the entries of `node`, from number `at` (the first to be used, if not given)."""
        at = at if at is not None else self.length - 1 if self.reverse else 0
        start, slot = self.place_of(node), next(self.spare)
        stride = -nbytes if self.reverse else nbytes
        self.moving.append(Moving(slot, Place(start.slot, start.offset + at * nbytes), stride))
        return Place(slot, 0)

    def first_entry(self, state: int) -> tuple[Node, Place]:
        """The source of a state's first value, and where it has to be."""
        pick, source = self.state[state], self.body.loop.srcs[state]
        start = self.place_of(pick)
        late = pick.attrs.part == "block" and self.reverse
        return source, Place(start.slot, start.offset + (self.length * source.nbytes if late else 0))

    def repeat(self, first: Sequence[Launch]) -> Repeat:
        """The loop as a step of the outer plan."""
        steps = tuple([self._step(step) for step in self.body.plan.steps])
        return Repeat(f"loop_{self.length}", tuple(first), steps, self.length, tuple(self.moving), next(self.spare))

    def _step(self, step: Step) -> Step:
        if isinstance(step, Launch):
            return self._launch(step)
        if isinstance(step, Gemm):
            epilogue = None if step.epilogue is None else self._launch(step.epilogue)
            return replace(step, a=self._at(step.a), b=self._at(step.b), c=self._at(step.c), epilogue=epilogue)
        if isinstance(step, LibraryCall):
            return replace(step, places=tuple(map(self._at, step.places)))
        moving = tuple([Moving(self.map[m.slot].slot, self._at(m.place), m.stride) for m in step.moving])
        first, steps = tuple(map(self._launch, step.first)), tuple(map(self._step, step.steps))
        return replace(step, first=first, steps=steps, moving=moving, counter=self.map[step.counter].slot)

    def _launch(self, launch: Launch) -> Launch:
        return replace(launch, places=tuple(map(self._at, launch.places)))

    def _at(self, place: Place) -> Place:
        base = self.map[place.slot]
        return Place(base.slot, base.offset + place.offset)
