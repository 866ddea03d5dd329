"""How many buffers the kernel of a region binds, on devices where that is limited (`Limits.storage_buffers`).

A region binds what it reads, what it stores, and the status words where it checks indices. The fuser adds to a region
only while it stays within the limit; `Bindings.store_excess` stores values, before anything is fused, so that each root
alone stays within it. A reduction is stored only if another region reads it, which is known at the end. So reductions
are not counted at first; where that was wrong (`Bindings.exceeds`), the fuser begins again with strict bindings: all
reductions count, and what regions stored the first time because others would have to compute it again is a root from
the start; no region stores anything else for that reason. A value that is too large for one binding
(`Limits.binding_bytes`) counts as often as it is bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.base.capabilities import Limits
from weft.compiler.fusion.draft import Draft
from weft.compiler.fusion.region import Domain, is_reduction
from weft.compiler.fusion.views import base_of, under_movement
from weft.graph.node import Node
from weft.graph.primitives import results_of

CHECKING_FORMS = frozenset({"scatter", "segment", "put"})  # regions that record indices outside of their axis


@dataclass(frozen=True, slots=True)
class Bindings:
    """At most `limits.storage_buffers` bindings for each kernel."""

    limits: Limits
    is_strict: bool
    spans: Mapping[Node, int]  # bytes from the first to the last element of values that are stored inside others

    def fits(self, draft: Draft, reads: Collection[Node], stores: Iterable[Node], is_checking: bool) -> bool:
        """Whether a kernel for `draft` may read and store so much in all."""
        stored = [node for node in stores if self.is_strict or not is_reduction(node)]
        return self._count(draft.domain, [*reads, *stored], is_checking) <= self.limits.storage_buffers

    def exceeds(self, drafts: Iterable[Draft], stored: Collection[Node]) -> bool:
        """Whether one of all regions binds more than it may. `stored` are values that are in memory even if no region
        reads them."""
        every = list(drafts)
        read = {node for draft in every for node in draft.reads}
        for draft in every:
            if draft.domain.form == "loop":
                continue  # kernels of its body are regions of a program of their own
            results = [one for one in draft.roots if not is_reduction(one) or one in read or one in stored]
            bound = [*draft.reads, *results, *draft.partials]
            if self._count(draft.domain, bound, draft.is_checking) > self.limits.storage_buffers:
                return True
        return False

    def _count(self, domain: Domain, bound: Iterable[Node], is_checking: bool) -> int:
        again = 0  # a template binds a value once for each source that is a view of it
        if domain.anchor is not None and domain.template is not None:
            again = max(len(domain.anchor.srcs) - len(domain.template.reads), 0)
            again *= max([self.count(node) for node in domain.template.reads], default=1)
        return self.count(*bound) + again + (is_checking or domain.form in CHECKING_FORMS)

    def count(self, *nodes: Node) -> int:
        """The bindings of values."""
        if not self.limits.binding_bytes:
            return len(nodes)
        return self.limits.count_total_bindings([self.spans.get(node, node.nbytes) for node in nodes])

    def store_excess(self, nodes: Sequence[Node], leaves: Collection[Node], roots: set[Node]) -> bool:
        """Add values to `roots` until a kernel for any single root stays within the limit: its results, the status
        words and what it reads. Whether there were any."""
        before, count = len(roots), -1
        while count != len(roots):  # what is stored may be read beside what it is made of, by values looked at before
            count = len(roots)
            bound: dict[Node, frozenset[Node]] = {}
            for node in nodes:
                sources = () if node in leaves else node.srcs
                # What is not stored itself belongs to a kernel that stores something: one buffer at least.
                results = self.count(*results_of(node) or [node]) if node in roots else 1
                allowed = self.limits.storage_buffers - results - 1
                needed = _union(bound, sources)
                while sources and self.count(*needed) > allowed:
                    largest = max(sources, key=lambda source: len(bound[source]))
                    if len(bound[largest]) < 2:
                        break  # all are in memory
                    base = under_movement(largest, leaves)
                    roots.add(base)
                    for source in sources:
                        if under_movement(source, leaves) is base:
                            bound[source] = frozenset((base,))
                    needed = _union(bound, sources)
                is_window = node.op == "slice" and bound[node.srcs[0]] == {node.srcs[0]}
                is_bound = node in leaves or node in roots or is_window or node.op == "scratch"
                bound[node] = frozenset((node,)) if is_bound else needed
        return len(roots) > before


def bindings_of(nodes: Sequence[Node], limits: Limits, is_strict: bool) -> Bindings | None:
    """The bindings of the kernels of a graph; None where they are not limited."""
    if not limits.storage_buffers:
        return None
    wholes = [node for node in nodes if node.op == "concat"] if limits.binding_bytes else []
    return Bindings(limits, is_strict, {base_of(part): whole.nbytes for whole in wholes for part in whole.srcs})


def _union(bound: dict[Node, frozenset[Node]], sources: Sequence[Node]) -> frozenset[Node]:
    return frozenset().union(*[bound[source] for source in sources])
