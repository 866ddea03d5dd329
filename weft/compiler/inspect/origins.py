"""Which module of the user, in which phase, created each node and so each step of a plan. For
`weft.profile` alone; without a profile nothing here runs.

Nodes count up as they are made (`Node.serial`), so the origin of a node follows from the moment it was made at.
`Origins` keeps marks: "from this serial on, nodes belong to that origin". While a function is traced, calls of modules
and optimizers set marks, and the reverse traversal of a gradient sets that of the node that it is at. While the passes
of the compiler rebuild the graph, lists made by `watch` set the mark of the node that is being rebuilt. At the end,
each step of the plan has shares: how much of its work belongs to which origin.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.compiler.fusion.region import Region
from weft.compiler.inspect.explain import stores_of
from weft.compiler.passes.simplify import MARKERS
from weft.graph.node import Node, current_serial, toposort
from weft.plan.plan import Step

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
UNCOUNTED = frozenset({"leaf", "generate", "movement", "pick"})  # kinds of nodes that are no work of their own


@dataclass(frozen=True, slots=True)
class Origin:
    """The innermost module (or optimizer) that a node was made for, None outside of any, and the phase."""

    module: Any
    phase: str


NOWHERE = Origin(None, FORWARD)
Shares = dict[Origin, float]  # parts of 1


class Origins:
    """The marks of one trace and its compilation. `roots` are the modules that were called outside of any other."""

    def __init__(self) -> None:
        self._serials: list[int] = []
        self._marks: list[Origin | None] = []
        self._copies: dict[int, Origin] = {}  # by serial, of nodes that are computed again
        self._open: list[Origin] = []
        self._entered: Any = None
        self._is_reversing = False
        self.roots: dict[int, Any] = {}
        self.steps: list[Shares] = []  # of each step of the plan, those inside a `Repeat` with it

    def _mark(self, origin: Origin | None) -> None:
        self._serials.append(current_serial())
        self._marks.append(origin)

    def _present(self) -> Origin:
        return self._open[-1] if self._open else NOWHERE

    # --- while a function is traced ---

    def is_entering(self, module: Any) -> bool:
        """Whether a call of a module starts that `call` has to make; False for the call that `call` itself makes."""
        self._entered = None if self._entered is module else module
        return self._entered is not None

    def call(self, module: Any, phase: str, function: Callable[[], Any]) -> Any:
        """Call `function` for a module or an optimizer: what it makes belongs there."""
        if not self._open and phase == FORWARD:
            self.roots.setdefault(id(module), module)
        self._open.append(Origin(module, phase))
        self._mark(self._open[-1])
        try:
            return function()
        finally:
            self._open.pop()
            self._mark(self._present())

    def iterate_reversed(self, order: Sequence[Node]) -> Iterator[Node]:
        """`order` from its end: what is made for a node is the backward phase of that node's module. The body of a loop
        is differentiated inside of this, for the loop's node."""
        if self._is_reversing:
            yield from reversed(order)
            return
        self._is_reversing = True
        try:
            for node in reversed(order):
                self._mark(Origin((self.of(node) or NOWHERE).module, BACKWARD))
                yield node
        finally:
            self._is_reversing = False
            self._mark(self._present())

    def note_copies(self, copies: Mapping[Node, Node]) -> None:
        """Nodes that a checkpoint computes again belong where the first ones did."""
        for node, copy in copies.items():
            self._copies[copy.serial] = Origin((self.of(node) or NOWHERE).module, BACKWARD)

    # --- while it is compiled ---

    def watch(self, nodes: Iterable[Node]) -> list[Node]:
        """A list that sets the mark of each node while a pass iterates over it."""
        return _Watched(self, nodes)

    def of(self, node: Node) -> Origin | None:
        """The origin of a node; None where a pass made it for no single one. Movement and markers outside of modules,
        such as those of a gradient that is assigned, belong to what they move."""
        while True:
            found = self._copies.get(node.serial)
            if found is not None:
                return found
            at = bisect.bisect_right(self._serials, node.serial)
            found = self._marks[at - 1] if at else None
            is_passed_on = node.primitive.kind == "movement" or node.op in MARKERS
            if (found is not None and found.module is not None) or not is_passed_on or not node.srcs:
                return found
            node = node.srcs[0]

    def count_shares(self, region: Region, step: Step) -> Shares:
        """How much of a region's work belongs to which origin.

        Work is counted in elements: those of each value that arithmetic computes, those that a reduction reads; and the
        operations of the step, where it is a product, a convolution, attention or another template, for that node.
        Movement is free, as it is index arithmetic.
        """
        reads = set(region.reads)
        known: dict[Node, Origin] = {}
        counted: Counter[Origin] = Counter()
        last = NOWHERE
        for node in toposort(stores_of(region), reads.__contains__):
            if node in reads:
                continue
            of_sources = [known[source] for source in node.srcs if source in known]
            origin = self.of(node) or (of_sources[-1] if of_sources else None)
            if origin is not None:
                last = known[node] = origin
                counted[origin] += max(_work(node), step.flops) if node is region.anchor else _work(node)
        total = sum(counted.values())
        return {origin: work / total for origin, work in counted.items() if work} if total else {last: 1.0}

    def join_shares(self, steps: Sequence[Step], numbers: Sequence[int]) -> Shares:
        """The shares of several steps that were made one, each counted by what it moves and computes."""
        counted: dict[Origin, float] = defaultdict(float)
        for number in numbers:
            for origin, share in self.steps[number].items():
                counted[origin] += share * (steps[number].bytes + steps[number].flops + 1)
        total = sum(counted.values())
        return {origin: work / total for origin, work in counted.items()}


class _Watched(list[Node]):
    def __init__(self, origins: Origins, nodes: Iterable[Node]):
        super().__init__(nodes)
        self._origins = origins

    def __iter__(self) -> Iterator[Node]:
        for node in super().__iter__():
            self._origins._mark(self._origins.of(node))
            yield node
        self._origins._mark(None)


def _work(node: Node) -> int:
    kind = node.primitive.kind
    if kind in UNCOUNTED:
        return 0
    return node.size if kind == "elementwise" else max([node.size, *[source.size for source in node.srcs]])
