"""sinks: which nodes end a loop or must lie in memory. What is between them the fuser computes inside its regions.

Beside results, reductions and whatever only memory can hand over, these are values that would be computed again and
again: under windows that overlap, for every repetition along an axis of a fold, or at many different indices. Values
above a bounded number of operations are stored, too. So the code of all kernels together grows linearly with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from weft.compiler.access import MOVEMENT
from weft.compiler.matmul import operands
from weft.compiler.templates import TEMPLATES
from weft.compiler.windows import base_of, under_movement, window, window_base
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES

DEEP = 200  # longest chain of nodes inside one kernel
MAX_OPERATIONS = 400  # elementwise operations below one value that a kernel computes
MAX_GATHERS = 24  # longest chain of nodes below a gather that is computed in place: their code is nested
MAX_RESHAPES = 8  # that one index goes through: divisions and remainders nest
MAX_COST = 1024  # the same, as `COST` counts them
WINDOW = 4  # a contiguous slice is read as memory of its own where the whole is at least so many times as large
MAX_INDICES = 8  # different indices at which a value of some cost is computed rather than stored
MAX_TRACKED_INDICES = 64  # different indices at which any value is computed
MAX_REPEATED_COST = 128  # operations, times different indices, up to which a value is computed at each of them
WORTH_KEEPING = 8  # operations from which a value is stored rather than computed for each of its repetitions in a fold
DEAR = 60  # operations per element from which a value is stored rather than computed twice
REPEATED = 16  # operations per element from which a value is stored rather than computed for every window again
SPREAD = 24  # operations from which a value that very many elements share is stored where each thread would compute it
VERY_MANY = 256
# Terms of overlapping windows are divisions, masks and loads behind them.
COST = {"exp": 10, "log": 12, "tanh": 14, "erf": 16, "sin": 16, "cos": 16, "pow": 30, "log1p": 14, "expm1": 14,
        "exp_rounded": 10, "logistic": 14, "random": 40, "div": 4, "sqrt": 4, "mod": 6, "floor_divide": 12,
        "fold_terms": 20}  # fmt: skip

SINKS = frozenset({
    "reduce", "dot", "scatter", "segment", "rows", "concat", "template", "order", "scan", "sort", "put", "loop", "pick",
})  # fmt: skip
# Kinds of nodes that read memory themselves: the values that must lie there.
IN_MEMORY: dict[str, Callable[[Node, Collection[Node]], Iterable[Node]]] = {
    "dot": lambda node, leaves: [view.base for view in operands(node, leaves).views],
    "template": lambda node, leaves: TEMPLATES[node.op](node, leaves).reads,
    "scatter": lambda node, leaves: node.srcs[:1],
    "rows": lambda node, leaves: node.srcs,
    "segment": lambda node, leaves: node.srcs[1:],
    "order": lambda node, leaves: [base_of(node.srcs[0])],
    "loop": lambda node, leaves: [window(source, leaves)[0] for source in node.srcs],
    "concat": lambda node, leaves: map(base_of, node.srcs),
}
# Kinds of nodes that fold their source in a loop of their own, and which source that is.
FOLDED = {"scatter": 1, "segment": 0}


class _Operations:
    """Which operations, random numbers included, a kernel would compute for each value, down to what is stored."""

    def __init__(self) -> None:
        self.sets: dict[Node, frozenset[Node]] = {}
        self.costs: dict[Node, int] = {}

    def is_large(self, node: Node) -> bool:
        """Whether there are more of them below `node`, whose sources were entered, than one kernel should have."""
        below, cost = self._below(node)
        return len(below) > MAX_OPERATIONS or cost > MAX_COST

    def _below(self, node: Node) -> tuple[frozenset[Node], int]:
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
                cost += sum([Choice.own_cost(operation) for operation in others])
        return below, cost

    def enter(self, node: Node, stored: bool, counted: bool) -> None:
        """Make `node` known, an operation if it is `counted`; what is `stored` has nothing below it."""
        below, cost = (frozenset[Node](), 0) if stored else self._below(node)
        if counted and not stored:
            below, cost = below | {node}, cost + Choice.own_cost(node)
        self.sets[node], self.costs[node] = below, cost


class Choice:
    """The sinks of a graph, and what the fuser has to know about the nodes between them."""

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node], leaves: set[Node], written: Collection[int]):
        self.leaves = leaves
        self.sinks: set[Node] = set()
        self.apart: set[Node] = set()  # stored, and read from memory by the windows over them
        self.slices: dict[Node, list[Node]] = {}  # the slices of a value that may be read as memory of their own
        self.picks: dict[Node, list[Node]] = {}  # what is wanted of each loop
        self.reads: dict[Node, frozenset[Node]] = {}  # large memory behind an elementwise node
        self.cost: dict[Node, int] = {}  # operations behind one element of a node
        for position, node in enumerate(outputs):
            base = window_base(node, leaves) if position in written else base_of(node)
            assert base not in leaves, "an output that is a leaf must be copied"
            self.sinks.add(base)
        self.results = frozenset(self.sinks)
        depth: dict[Node, int] = {}
        below = _Operations()
        reshapes: dict[Node, int] = {}
        for node in nodes:
            kind = "leaf" if node in leaves else PRIMITIVES[node.op].kind
            depth[node] = 0 if kind == "leaf" else 1 + max([depth[source] for source in node.srcs], default=-1)
            large = kind == "elementwise" and (depth[node] > DEEP or below.is_large(node))
            if kind == "gather" and depth[node] > MAX_GATHERS:
                large = True
                self.apart.add(node)
            if kind in SINKS or large:
                self.sinks.add(node)
                depth[node] = 0
            if kind != "leaf":
                self._needs(node, kind)
            reshapes[node] = self._count_reshapes(node, reshapes)
            below.enter(node, kind == "leaf" or node in self.sinks, kind == "elementwise" or node.op == "random")
            self._weigh(node, kind)
        if self._store_at_many_indices(nodes):
            for node in nodes:
                self._weigh(node, "leaf" if node in leaves else PRIMITIVES[node.op].kind)

    def _count_reshapes(self, node: Node, before: dict[Node, int]) -> int:
        """How many reshapes an index goes through from `node` down to what is stored; past MAX_RESHAPES, what the last
        one is a reshape of is stored."""
        if node in self.sinks or node in self.leaves:
            return 0
        count = max([before[source] for source in node.srcs if source not in self.sinks], default=0)
        if node.op != "reshape":
            return count
        if count >= MAX_RESHAPES:
            base = base_of(node)
            self._store([base])
            if base not in self.leaves:
                self.apart.add(base)
            return 1
        return count + 1

    def _store_at_many_indices(self, nodes: Sequence[Node]) -> bool:
        """Store values that kernels would compute at many different indices; whether there are any.

        An index form is a path of movement between a value and the sink that it is computed for. Reshapes keep the
        order of elements and do not count, nor do the terms of one fold, whose values `_under_windows` stores. Users
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
            kind = PRIMITIVES[node.op].kind
            if node in self.sinks:
                found = own
            elif kind == "elementwise" and self._is_repeated(node, len(found)):
                self.sinks.add(node)
                self.apart.add(node)
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

    def _is_repeated(self, node: Node, indices: int) -> bool:
        """Whether `node` is better stored than computed at so many different indices."""
        if indices <= MAX_INDICES:
            return False
        return indices * self.cost[node] > MAX_REPEATED_COST or indices >= MAX_TRACKED_INDICES

    def _needs(self, node: Node, kind: str) -> None:
        """Enter what must be stored because of `node`."""
        if kind in IN_MEMORY:
            self._store(IN_MEMORY[kind](node, self.leaves))
        if kind in FOLDED:
            self._keep_repeated(node.srcs[FOLDED[kind]])
        if kind == "gather":
            base = under_movement(node.srcs[0], self.leaves)
            if not self._found_in_place(node, base):
                self._store([base])
        elif kind == "pick":
            self.picks.setdefault(node.srcs[0], []).append(node)
        elif node.op in ("unfold", "fold_terms"):
            dear = [value for value in self._under_windows(node) if self.cost[value] >= REPEATED]
            self._store(dear)
            self.apart.update([value for value in dear if value not in self.leaves])
        elif node.op == "expand" and "blocks" in node.device.features:
            self._store_shared(node)
        elif node.op == "slice":
            source = node.srcs[0]
            if PRIMITIVES[source.op].kind == "template" or WINDOW * node.size <= source.size:
                self.slices.setdefault(source, []).append(node)

    def _store_shared(self, node: Node) -> None:
        """Store what `node` repeats where a thread for every few elements would compute it anew, such as the powers in
        Adam's rate. (A worker of a CPU computes it once.)"""
        base = under_movement(node.srcs[0], self.leaves)
        if VERY_MANY * base.size <= node.size and self.cost[base] >= SPREAD:
            self._store([base])
            self._weigh(base, PRIMITIVES[base.op].kind)

    def _store(self, values: Iterable[Node]) -> None:
        self.sinks.update([value for value in values if value not in self.leaves])

    def _under_windows(self, node: Node) -> list[Node]:
        """Values that windows would compute again and again: what overlaps, and what all places of a window share."""
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
            elif source.op in MOVEMENT or PRIMITIVES[source.op].kind == "elementwise":
                stack.extend(source.srcs)
        return found

    def _found_in_place(self, node: Node, base: Node) -> bool:
        """Whether a gather may compute what it picks: another pick, or a little arithmetic that it does not repeat."""
        if base in self.leaves:
            return False
        kind = PRIMITIVES[base.op].kind
        if kind == "gather":
            return True
        reads = self.reads[base]
        light = self.cost[base] < DEAR and (len(reads) <= 1 or all(read.op == "gather" for read in reads))
        return kind == "elementwise" and node.size <= base.size and light

    def _keep_repeated(self, node: Node) -> None:
        """Store what the fold of `node` would compute over and over: dear values that are repeated along an axis."""
        stack, seen = [node], set()
        while stack:
            node = stack.pop()
            if node in seen or node in self.sinks or node in self.leaves or PRIMITIVES[node.op].kind == "gather":
                continue
            seen.add(node)
            if node.op == "expand":
                base = under_movement(node, self.leaves)
                if 2 * base.size <= node.size and self.cost[base] >= WORTH_KEEPING:
                    self.sinks.add(base)
                    continue
            stack.extend(node.srcs)

    @staticmethod
    def own_cost(node: Node) -> int:
        """Operations that `node` itself adds to those behind it."""
        return COST.get(node.op, 1 if PRIMITIVES[node.op].kind == "elementwise" else 0)

    def _weigh(self, node: Node, kind: str) -> None:
        """How much memory and arithmetic stand behind one element of `node` if it is computed in place."""
        if kind in ("leaf", "gather") or node in self.sinks:
            self.reads[node] = frozenset((node,)) if node.size > 1 else frozenset()
            self.cost[node] = 0
            return
        found: frozenset[Node] = frozenset()
        cost = self.own_cost(node)
        for source in node.srcs:
            found |= self.reads[source]
            cost += self.cost[source]
        self.reads[node] = frozenset([leaf for leaf in found if 2 * leaf.size >= node.size])
        self.cost[node] = cost
