"""Which nodes end a loop or must be stored in memory. What is between them the fuser computes inside its
regions.

Besides results, reductions and whatever must be read from memory, these are values that would be computed
repeatedly: under windows that overlap, for every repetition along an axis of a reduction, at many different indices, or
for many reductions one after the other.
Values above a bounded number of operations are stored, too. So the code of all kernels together grows linearly with the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from weft.base.tuning import Tuning
from weft.compiler.fusion.bindings import Bindings
from weft.compiler.fusion.index_map import MOVEMENT
from weft.compiler.fusion.views import base_of, under_movement, window, window_base
from weft.compiler.templates.matmul_layout import operands
from weft.compiler.templates.registry import TEMPLATES
from weft.graph.node import Node

# Limits on the size of a kernel's code, which a compiler has to process.
MAX_DEPTH = 200  # longest chain of nodes inside one kernel
MAX_GATHERS = 24  # longest chain of nodes below a gather that is computed in place: their code is nested
MAX_RESHAPES = 8  # that one index passes through: divisions and remainders nest
MAX_TRACKED_INDICES = 64  # different indices at which any value is computed
MAX_RECOMPUTED = 8  # stored values that a value is computed of again, for as many reductions one after the other

ROOT_KINDS = frozenset({
    "reduce", "dot", "scatter", "segment", "rows", "concat", "template", "after", "scan", "sort", "put", "loop", "pick",
})  # fmt: skip
# Kinds of nodes that read memory themselves: the values that must be there.
IN_MEMORY: dict[str, Callable[[Node, Collection[Node]], Iterable[Node]]] = {
    "dot": lambda node, leaves: [view.base for view in operands(node, leaves).views],
    "template": lambda node, leaves: TEMPLATES[node.op](node, leaves).reads,
    "scatter": lambda node, leaves: node.srcs[:1],
    "rows": lambda node, leaves: node.srcs,
    "segment": lambda node, leaves: node.srcs[1:],
    "after": lambda node, leaves: [base_of(node.srcs[0])],
    "loop": lambda node, leaves: [window(source, leaves)[0] for source in node.srcs],
    "concat": lambda node, leaves: map(base_of, node.srcs),
}
# Kinds of nodes that reduce their source in a loop of their own, and which source that is.
REDUCED_SOURCE = {"scatter": 1, "segment": 0}


class _Operations:
    """Which operations, random numbers included, a kernel would compute for each value, down to what is stored."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.sets: dict[Node, frozenset[Node]] = {}
        self.costs: dict[Node, int] = {}

    def is_large(self, node: Node) -> bool:
        """Whether there are more of them below `node`, whose sources were entered, than one kernel should have."""
        below, cost = self._nodes_below(node)
        return len(below) > self.tuning.max_operations or cost > self.tuning.max_cost

    def _nodes_below(self, node: Node) -> tuple[frozenset[Node], int]:
        if len(node.srcs) == 1:
            return self.sets[node.srcs[0]], self.costs[node.srcs[0]]
        if not node.srcs:
            return frozenset(), 0
        largest = max(node.srcs, key=lambda source: len(self.sets[source]))
        below, cost = self.sets[largest], self.costs[largest]
        for source in node.srcs:  # only what the largest set does not have is looked at
            others = self.sets[source] - below
            if others:
                below |= others
                cost += sum([operation.primitive.cost for operation in others])
        return below, cost

    def enter(self, node: Node, stored: bool, counted: bool) -> None:
        """Make `node` known, an operation if it is `counted`; what is `stored` has nothing below it."""
        below, cost = (frozenset[Node](), 0) if stored else self._nodes_below(node)
        if counted and not stored:
            below, cost = below | {node}, cost + node.primitive.cost
        self.sets[node], self.costs[node] = below, cost


class Roots:
    """The roots of a graph, and what the fuser has to know about the nodes between them."""

    def __init__(
        self,
        nodes: Sequence[Node],
        outputs: Sequence[Node],
        leaves: set[Node],
        written: Collection[int],
        tuning: Tuning,
        bindings: Bindings | None = None,
        stored: Collection[Node] = (),
    ):
        self.tuning = tuning
        self.leaves = leaves
        self.nodes: set[Node] = set()
        self.single_index: set[Node] = set()  # stored, and read from memory by the windows over them
        self.slices: dict[Node, list[Node]] = {}  # the slices of a value that may be read as memory of their own
        self.picks: dict[Node, list[Node]] = {}  # the results used of each loop
        self.reads: dict[Node, frozenset[Node]] = {}  # large memory behind an elementwise node
        self.cost: dict[Node, int] = {}  # operations behind one element of a node
        for position, node in enumerate(outputs):
            base = window_base(node, leaves) if position in written else base_of(node)
            assert base not in leaves, "an output that is a leaf must be copied"
            self.nodes.add(base)
        self.results = frozenset(self.nodes)
        self.nodes.update([node for node in stored if node not in leaves and node.primitive.kind == "elementwise"])
        depth: dict[Node, int] = {}
        below = _Operations(tuning)
        reshapes: dict[Node, int] = {}
        for node in nodes:
            kind = "leaf" if node in leaves else node.primitive.kind
            depth[node] = 0 if kind == "leaf" else 1 + max([depth[source] for source in node.srcs], default=-1)
            large = kind == "elementwise" and (depth[node] > MAX_DEPTH or below.is_large(node))
            if kind == "gather" and depth[node] > MAX_GATHERS:
                large = True
                self.single_index.add(node)
            if kind in ROOT_KINDS or large:
                self.nodes.add(node)
                depth[node] = 0
            if kind != "leaf":
                self._needs(node, kind)
            reshapes[node] = self._count_reshapes(node, reshapes)
            below.enter(node, kind == "leaf" or node in self.nodes, kind == "elementwise" or node.op == "random")
            self._measure(node, kind)
        if self._store_at_many_indices(nodes) | self._store_between_many_reductions(nodes):
            for node in nodes:
                self._measure(node, "leaf" if node in leaves else node.primitive.kind)
        if bindings is not None and bindings.store_excess(nodes, leaves, self.nodes):
            for node in nodes:
                self._measure(node, "leaf" if node in leaves else node.primitive.kind)

    def _count_reshapes(self, node: Node, before: dict[Node, int]) -> int:
        """How many reshapes an index passes through from `node` down to what is stored; past MAX_RESHAPES, what the
        last one is a reshape of is stored."""
        if node in self.nodes or node in self.leaves:
            return 0
        count = max([before[source] for source in node.srcs if source not in self.nodes], default=0)
        if node.op != "reshape":
            return count
        if count >= MAX_RESHAPES:
            base = base_of(node)
            self._store([base])
            if base not in self.leaves:
                self.single_index.add(base)
            return 1
        return count + 1

    def _store_at_many_indices(self, nodes: Sequence[Node]) -> bool:
        """Store values that kernels would compute at many different indices; whether there are any.

        An index form is a path of movement between a value and the root that it is computed for. Reshapes keep the
        order of elements and do not count, nor do the terms of one `fold`, whose values `_under_windows` stores. Users
        come before their sources here, so a value that is stored has one form, and what it is made of starts from that.
        """
        forms: dict[Node, set[int]] = {}
        numbers: dict[tuple[int, tuple], int] = {}
        own = {0}  # the form of what is stored: element by element
        added = False
        for node in reversed(nodes):
            found = forms.pop(node, own)
            if node in self.leaves or not node.srcs:
                continue
            kind = node.primitive.kind
            if node in self.nodes:
                found = own
            elif kind == "elementwise" and self._is_repeated(node, len(found)):
                self.nodes.add(node)
                self.single_index.add(node)
                found, added = own, True
            is_term = node.op == "slice" and node.srcs[0].op == "fold_terms"
            if node.op in MOVEMENT and node.op not in ("reshape", "copy") and not is_term:
                step = (node.op, node.attrs, node.srcs[0].shape)
                found = {numbers.setdefault((form, step), len(numbers) + 1) for form in found}
            elif kind not in ("elementwise", "gather", "movement"):
                found = own
            for source in node.srcs:
                before = forms.get(source)
                if before is None:
                    forms[source] = found
                elif found is not before and len(before) < MAX_TRACKED_INDICES:
                    forms[source] = before | found
        return added

    def _store_between_many_reductions(self, nodes: Sequence[Node]) -> bool:
        """Store values that many reductions, each of which needs the one before, would compute again; whether there are
        any. The states of `x = x + f(x @ w)` are such values where the product is a loop of a kernel: the last of n
        kernels would compute n of them, and no kernel would be like another."""
        depth: dict[Node, int] = {}  # how many roots one after the other are below a node, itself included
        for node in nodes:
            depth[node] = max([depth[source] for source in node.srcs], default=0) + (node in self.nodes)
        users: dict[Node, set[int]] = {}  # the depths of the roots that a node is computed for
        added = False
        for node in reversed(nodes):
            found = users.pop(node, set())
            if node in self.leaves:
                continue
            if node in self.nodes:
                found = {depth[node]}
            elif node.primitive.kind == "elementwise" and min(len(found), len(self.reads[node])) > MAX_RECOMPUTED:
                self.nodes.add(node)
                found, added = {depth[node]}, True
            for source in node.srcs:
                before = users.get(source)
                if before is None or len(found) > MAX_RECOMPUTED:  # more are not counted
                    users[source] = found
                elif found is not before and len(before) <= MAX_RECOMPUTED:
                    users[source] = before | found
        return added

    def _is_repeated(self, node: Node, indices: int) -> bool:
        """Whether `node` is better stored than computed at so many different indices."""
        if indices <= self.tuning.max_indices:
            return False
        return indices * self.cost[node] > self.tuning.max_repeated_cost or indices >= MAX_TRACKED_INDICES

    def other_indices(self, node: Node) -> int | None:
        """At how many indices other than its own a region that stores `node` may compute it; None: it is no root."""
        if node in self.single_index:
            return 0
        return self.tuning.max_indices if node in self.nodes else None

    def _needs(self, node: Node, kind: str) -> None:
        """Enter what must be stored because of `node`."""
        if kind in IN_MEMORY:
            self._store(IN_MEMORY[kind](node, self.leaves))
        if kind in REDUCED_SOURCE:
            self._keep_repeated(node.srcs[REDUCED_SOURCE[kind]])
        if kind == "gather":
            base = under_movement(node.srcs[0], self.leaves)
            if not self._find_in_place(node, base):
                self._store([base])
        elif kind == "pick":
            self.picks.setdefault(node.srcs[0], []).append(node)
        elif node.op in ("unfold", "fold_terms"):
            least = self.tuning.repeated_window_cost
            expensive = [value for value in self._under_windows(node) if self.cost[value] >= least]
            self._store(expensive)
            self.single_index.update([value for value in expensive if value not in self.leaves])
        elif node.op == "expand" and node.device.features.workgroups:
            self._store_shared(node)
        elif node.op == "slice":
            source = node.srcs[0]
            if source.primitive.kind == "template" or self.tuning.min_slice_ratio * node.size <= source.size:
                self.slices.setdefault(source, []).append(node)

    def _store_shared(self, node: Node) -> None:
        """Store what `node` repeats where a lane for every few elements would compute it again, such as the powers in
        Adam's rate. (A worker of a CPU computes it once.)"""
        base = under_movement(node.srcs[0], self.leaves)
        if self.tuning.min_sharing_elements * base.size <= node.size and self.cost[base] >= self.tuning.shared_cost:
            self._store([base])
            self._measure(base, base.primitive.kind)

    def _store(self, values: Iterable[Node]) -> None:
        self.nodes.update([value for value in values if value not in self.leaves])

    def _under_windows(self, node: Node) -> list[Node]:
        """Values that windows would compute repeatedly: what overlaps, and what all elements of a window share."""
        if node.op == "unfold":
            _, size, step, _ = node.attrs
            return [under_movement(node.srcs[0], self.leaves)] if size > step else []
        found, seen = [], set()
        stack = [node.srcs[0]]
        while stack:
            source = stack.pop()
            if source in seen or source in self.leaves:
                continue
            seen.add(source)
            if source.op == "expand":
                found.append(under_movement(source.srcs[0], self.leaves))
            elif source.op in MOVEMENT or source.primitive.kind == "elementwise":
                stack.extend(source.srcs)
        return found

    def _find_in_place(self, node: Node, base: Node) -> bool:
        """Whether a gather may compute what it picks: another pick, or a little arithmetic that it does not repeat."""
        if base in self.leaves:
            return False
        kind = base.primitive.kind
        if kind == "gather":
            return True
        reads = self.reads[base]
        is_cheap = self.cost[base] < self.tuning.recompute_cost
        is_cheap = is_cheap and (len(reads) <= 1 or all(read.op == "gather" for read in reads))
        return kind == "elementwise" and node.size <= base.size and is_cheap

    def _keep_repeated(self, node: Node) -> None:
        """Store what the reduction of `node` would compute over and over: expensive values that are repeated along an
        axis."""
        stack, seen = [node], set()
        while stack:
            node = stack.pop()
            if node in seen or node in self.nodes or node in self.leaves or node.primitive.kind == "gather":
                continue
            seen.add(node)
            if node.op == "expand":
                base = under_movement(node, self.leaves)
                if 2 * base.size <= node.size and self.cost[base] >= self.tuning.repeated_reduction_cost:
                    self.nodes.add(base)
                    continue
            stack.extend(node.srcs)

    def _measure(self, node: Node, kind: str) -> None:
        """How much memory and arithmetic one element of `node` needs if it is computed in place."""
        if kind in ("leaf", "gather") or node in self.nodes:
            self.reads[node] = frozenset((node,)) if node.size > 1 else frozenset()
            self.cost[node] = 0
            return
        found: frozenset[Node] = frozenset()
        cost = node.primitive.cost
        for source in node.srcs:
            found |= self.reads[source]
            cost += self.cost[source]
        self.reads[node] = frozenset([leaf for leaf in found if 2 * leaf.size >= node.size])
        self.cost[node] = cost
