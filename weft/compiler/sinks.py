"""sinks: which nodes end a loop or must lie in memory. What is between them the fuser computes inside its regions.

Beside results, reductions and whatever only memory can hand over, these are values that would be computed again and
again: under windows that overlap, or for every repetition along an axis of a fold.
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


class Choice:
    """The sinks of a graph, and what the fuser has to know about the nodes between them."""

    def __init__(self, nodes: Sequence[Node], outputs: Sequence[Node], leaves: set[Node], written: Collection[int]):
        self.leaves = leaves
        self.sinks: set[Node] = set()
        self.apart: set[Node] = set()  # stored, and read from memory by the windows over them
        self.slices: dict[Node, list[Node]] = {}  # the slices of a template's result
        self.picks: dict[Node, list[Node]] = {}  # what is wanted of each loop
        self.reads: dict[Node, frozenset[Node]] = {}  # large memory behind an elementwise node
        self.cost: dict[Node, int] = {}  # operations behind one element of a node
        for position, node in enumerate(outputs):
            base = window_base(node, leaves) if position in written else base_of(node)
            assert base not in leaves, "an output that is a leaf must be copied"
            self.sinks.add(base)
        self.results = frozenset(self.sinks)
        depth: dict[Node, int] = {}
        for node in nodes:
            kind = "leaf" if node in leaves else PRIMITIVES[node.op].kind
            depth[node] = 0 if kind == "leaf" else 1 + max([depth[source] for source in node.srcs], default=-1)
            if kind in SINKS or (depth[node] > DEEP and kind == "elementwise"):
                self.sinks.add(node)
                depth[node] = 0
            if kind != "leaf":
                self._needs(node, kind)
            self._weigh(node, kind)

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
        elif node.op == "slice" and PRIMITIVES[node.srcs[0].op].kind == "template":
            self.slices.setdefault(node.srcs[0], []).append(node)

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
