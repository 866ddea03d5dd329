"""Divide a program into regions, each one kernel.

Visits the nodes that must exist in memory or end a loop (`roots`) in topological order and puts each into a region that
already computes what it needs, if the indices agree and no cycle arises; else it opens a new one. What is between
roots is computed inside the regions that use it; a value that would be expensive to compute again is stored by the
first region that had it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from weft.compiler.fusion.bindings import bindings_of
from weft.compiler.fusion.draft import Conflict, Draft, Traversal
from weft.compiler.fusion.drafts import (
    Drafts,
    domain_index,
    has_same_chunks,
    is_column_partial,
    is_delayed_by,
    predecessors_of,
    traversal_starts,
)
from weft.compiler.fusion.index_map import MOVEMENT, reshape_strides, row_major
from weft.compiler.fusion.merge import (
    drop_unread_reductions,
    merge_regions,
    upgrade,
)
from weft.compiler.fusion.region import FORMS, Domain, Region
from weft.compiler.fusion.roots import Roots
from weft.compiler.fusion.views import Window, base_of, window
from weft.compiler.options import Options
from weft.compiler.passes.loops import hidden_states
from weft.compiler.program import Program, slice_offset
from weft.compiler.templates.matmul_layout import operands
from weft.compiler.templates.registry import TEMPLATES
from weft.graph.node import Node

# Kinds of nodes that are the anchor of a region of their own, which has the form of that name: the region's domain.
ANCHORS: dict[str, Callable[[Node], tuple[int, ...]]] = {
    "dot": lambda node: node.shape,
    "template": lambda node: node.shape,
    "scatter": lambda node: node.srcs[1].shape,
    "scan": lambda node: node.srcs[0].shape,
    "sort": lambda node: node.srcs[0].shape,
    "put": lambda node: node.srcs[0].shape,
}


@dataclass(frozen=True, slots=True)
class Fusion:
    """A program divided into regions (see `memory.schedule` for their order): which of them store each node, and the
    nodes that are stored inside others."""

    program: Program
    regions: tuple[Region, ...]
    stored: Mapping[Node, tuple[Region, ...]]
    windows: Mapping[Node, Window]


def fuse(program: Program, options: Options) -> Fusion:
    """Divide a program into regions."""
    fuser = _Fuser(program, options)
    fusion = fuser.run()
    return _Fuser(program, options, fuser.drafts.stored).run() if fuser.exceeds() else fusion


class _Fuser:
    def __init__(self, program: Program, options: Options, stored: Collection[Node] | None = None):
        """With strict bindings where `stored` is given: what was in memory when bindings were not strict."""
        nodes, bindings = program.nodes, bindings_of(program.nodes, options.device.limits, stored is not None)
        self.program = program
        self.has_workgroups, self.tuning = options.device.features.workgroups, options.device.tuning
        written = {write.output for write in program.writes}
        self.roots = Roots(nodes, program.outputs, set(program.leaves), written, self.tuning, bindings, stored or ())
        self.drafts = Drafts(nodes, program.leaves, self.roots, bindings)

    def run(self) -> Fusion:
        changed = self.program.changed_leaves
        for leaf in self.drafts.leaves:
            if leaf in self.roots.slices and leaf not in changed:
                self._store_windows(leaf)
        for node in self.program.nodes:
            if node not in self.roots.nodes or node in self.drafts.stored:
                continue
            if not node.size:
                self.drafts.store(node, ())  # nothing to compute, nothing to wait for
            elif node.op == "concat":
                self._store_concat(node)
            elif node.op == "after":
                self._store_after(node)
            else:
                self._assign(node)
            self._store_windows(node)
        merge_regions(self.drafts, self.has_workgroups)
        drop_unread_reductions(self.drafts)
        return self._freeze()

    def exceeds(self) -> bool:
        """Whether a region has more buffers than its kernel may bind."""
        drafts = self.drafts
        bases = {base_of(node.srcs[0]) for node in drafts.stored if node.op == "after"}
        wholes = {window.whole for window in drafts.windows.values()}
        stored = self.roots.results | drafts.windows.keys() | wholes | bases
        return drafts.bindings is not None and drafts.bindings.exceeds(drafts.regions, stored)

    def _freeze(self) -> Fusion:
        final = {draft: draft.freeze() for draft in self.drafts.regions}
        stored = {node: tuple(map(final.__getitem__, writers)) for node, writers in self.drafts.stored.items()}
        return Fusion(
            self.program, tuple(final.values()), MappingProxyType(stored), MappingProxyType(self.drafts.windows)
        )

    # --- putting a root into a region --------------------------------------------------------------------------------

    def _assign(self, node: Node) -> None:
        kind = node.primitive.kind
        if kind in ANCHORS:
            self._open_anchored(node, kind)
        elif kind == "loop":
            self._open_loop(node)
        elif kind in ("segment", "rows"):
            self._assign_segment(node, kind)
        elif node.op.startswith("partial_"):
            self._assign_partial(node)
        elif kind == "reduce":
            shape, reduced = node.srcs[0].shape, node.attrs.axes
            self._assign_reduction(node, "rows" if len(shape) - 1 in reduced else "cols", shape, reduced)
        elif not self._join(self._candidates(node), node):
            self._open(Domain(self.drafts.next_number(), "map", node.shape), node)

    def _assign_segment(self, node: Node, kind: str) -> None:
        pointers = node.srcs[-1]
        shape = (pointers.size - 1, *(node.srcs[0] if kind == "segment" else node).shape)
        alike = [
            draft
            for draft in self._candidates(node)
            if (draft.domain.pointers, draft.domain.shape) == (pointers, shape)
        ]
        if kind == "rows" or not self._join(alike, node):
            self._open(Domain(self.drafts.next_number(), "segment", shape, (1,), pointers=pointers), node)

    def _assign_partial(self, node: Node) -> None:
        shape, (reduced, *_) = node.srcs[0].shape, node.attrs
        if len(shape) - 1 not in reduced:  # columns: computed with a region that iterates over the same rows
            columns = tuple([k for k in range(len(shape)) if k not in reduced])
            self._assign_reduction(node, "rows", shape, columns)
        else:
            self._open(Domain(self.drafts.next_number(), "split", shape, reduced), node)

    def _assign_reduction(self, node: Node, form: str, shape: tuple[int, ...], reduced: tuple[int, ...]) -> None:
        """Add a reduction to a region of that form, to an elementwise one that can become it, or to a new one."""
        candidates = self._candidates(node)
        key = (form, shape, reduced)
        same = [draft for draft in candidates if (draft.domain.form, draft.domain.shape, draft.domain.reduced) == key]
        if self._join(same, node):
            return
        for draft in candidates:
            if draft.domain.form == "map":
                domain = Domain(draft.domain.number, form, shape, reduced)
                if upgrade(self.drafts, draft, domain, node):
                    return
        self._open(Domain(self.drafts.next_number(), form, shape, reduced), node)

    def _candidates(self, node: Node) -> list[Draft]:
        """Regions that compute or read something that `node` needs, latest first."""
        found: dict[Draft, None] = {}
        stack, seen = list(node.srcs), set()
        while stack:
            source = stack.pop()
            if source in seen:
                continue
            seen.add(source)
            if 4 * source.size >= node.size or source.op not in MOVEMENT:
                for draft in self.drafts.users.get(source, ()):
                    found[draft] = None
            writers = self.drafts.stored.get(source)
            if writers is None:
                stack.extend(source.srcs)
            else:
                for draft in writers:
                    found[draft] = None
        latest = sorted(found, key=lambda draft: draft.bit, reverse=True)
        related = [draft for draft in latest if draft.domain.joins != "nothing"][: self.tuning.max_candidates]
        return related + [draft for draft in self._find_alike(node) if draft not in found]

    def _find_alike(self, node: Node) -> list[Draft]:
        """Small regions of the form that `node` would open: unrelated work of one form shares a launch."""
        if node.primitive.kind == "reduce":
            key = (node.srcs[0].shape, node.attrs.axes)
        else:
            key = (node.shape, ())
        if math.prod(key[0]) > self.tuning.small_volume:
            return []
        return [
            draft
            for draft in reversed(self.drafts.regions[-self.tuning.max_recent_candidates :])
            if (draft.domain.shape, draft.domain.reduced) == key
            and FORMS[draft.domain.form].merges
            and draft.domain.pointers is None
        ]

    def _join(self, candidates: Sequence[Draft], node: Node) -> bool:
        """Add `node` to the candidate that has to wait least for it, if there is one whose indices fit."""
        best: tuple[int, Draft, Traversal] | None = None
        for draft in candidates:
            traversal = self._fit(draft, node)
            if traversal is not None:
                waits = predecessors_of(self.drafts.writers(traversal, draft)) & ~draft.before
                if best is None or waits.bit_count() < best[0]:
                    best = (waits.bit_count(), draft, traversal)
                if not waits:
                    break
        if best is None:
            return False
        self.drafts.commit(best[1], node, best[2])
        return True

    def _fit(self, draft: Draft, node: Node) -> Traversal | None:
        """What `node` would read as a member of `draft`; None if it does not fit, makes a cycle or shares nothing."""
        at = domain_index(draft.domain, node)
        if at is None or (is_column_partial(node) and not has_same_chunks(draft.partials, node)):
            return None
        if len(draft.known_at) >= self.tuning.max_reductions and node.primitive.kind in ("reduce", "segment"):
            return None
        traversal = self.drafts.traverse(draft)
        try:
            for source in traversal_starts(node):
                traversal.visit(source, at)
        except Conflict:
            return None
        writers = self.drafts.writers(traversal, draft)
        if any(writer.before & draft.bit for writer in writers):
            return None
        if not self.drafts.has_capacity(draft, traversal, node):
            return None
        return traversal if traversal.is_related or self._may_share(draft, traversal, writers) else None

    def _may_share(self, draft: Draft, traversal: Traversal, writers: Sequence[Draft]) -> bool:
        """Whether work that uses nothing of what `draft` computes shares its kernel: where both are small, or read the
        same."""
        if draft.cost + self.drafts.added_cost(draft, traversal) > self.tuning.max_unrelated_cost:
            return False
        if draft.domain.joins == "epilogues" or is_delayed_by(draft, writers):
            return False
        if draft.domain.volume <= self.tuning.small_volume:
            return True
        if any(read in draft.reads and read.size > 1 for read in traversal.reads):
            return True
        return any(source in draft.inlined for source in traversal.inlined)

    # --- new regions -------------------------------------------------------------------------------------------------

    def _open(self, domain: Domain, node: Node) -> None:
        """A new region with `node` as its first root."""
        draft = Draft(domain)
        self.drafts.regions.append(draft)
        traversal = self.drafts.traverse(draft)
        if domain.pointers is not None:
            traversal.reads[domain.pointers] = None
        at = domain_index(domain, node)
        assert at is not None, f"{node} does not fit the region opened for it"
        for source in traversal_starts(node):
            traversal.visit(source, at)
        self.drafts.commit(draft, node, traversal)

    def _open_anchored(self, node: Node, form: str) -> None:
        """A new region whose loops are written around `node`: it reads some sources directly from memory, others at
        the points of its domain."""
        views = operands(node, self.drafts.leaves) if form == "dot" else None
        template = TEMPLATES[node.op](node, self.drafts.leaves) if form == "template" else None
        domain = Domain(self.drafts.next_number(), form, ANCHORS[form](node), (), node, None, views, template)
        draft = Draft(domain)
        self.drafts.regions.append(draft)
        memory: Collection[Node] = ()
        points: Collection[Node] = ()
        if views is not None:
            memory = [view.base for view in views.views]
        elif template is not None:
            memory = template.reads
        elif form == "scatter":
            memory, points = node.srcs[:1], node.srcs[1:2]
        else:
            points = [source for source in node.srcs if source.op != "scratch"]
        traversal = self.drafts.traverse(draft)
        traversal.reads.update(dict.fromkeys(memory))
        for source in points:
            traversal.visit(source, domain.index)
        for source in node.srcs:
            if source.op == "scratch":
                draft.roots.append(source)
                self.drafts.store(source, (draft,))
        self.drafts.commit(draft, node, traversal)

    def _open_loop(self, node: Node) -> None:
        """A region for a loop: it reads all sources from memory and stores everything that is picked."""
        draft = Draft(Domain(self.drafts.next_number(), "loop", (), anchor=node))
        self.drafts.regions.append(draft)
        traversal = self.drafts.traverse(draft)
        traversal.reads.update({window(source, self.drafts.leaves)[0]: None for source in node.srcs})
        picks = self.roots.picks[node]
        draft.roots = [*picks, *hidden_states(node, picks)]
        for pick in (node, *draft.roots):
            self.drafts.store(pick, (draft,))
        self.drafts.absorb(draft, traversal)

    # --- values inside others, and waiting ---------------------------------------------------------------------------

    def _store_concat(self, node: Node) -> None:
        """All parts were stored before (they are roots): give each its window of the whole."""
        axis, at = node.attrs.axis, 0
        strides, leading = row_major(node.shape), math.prod(node.shape[:axis]) == 1
        writers: dict[Draft, None] = {}
        for source in node.srcs:
            base = base_of(source)
            own = row_major(base.shape) if leading else reshape_strides(source.shape, strides, base.shape)
            if base is source:
                own = strides
            assert own is not None, "decompose copies what does not fit"
            self.drafts.windows[base] = Window(node, own, at * strides[axis])
            for draft in self.drafts.stored[base]:
                writers[draft] = None
            at += source.shape[axis]
        self.drafts.store(node, tuple(writers))

    def _store_windows(self, node: Node) -> None:
        """Contiguous slices of a stored value are memory of their own: kernels that read them have no offset, so that
        one kernel serves readers of different slices."""
        is_template = node.primitive.kind == "template"
        for part in self.roots.slices.get(node, ()):
            offset = slice_offset(part)
            if offset is not None and (is_template or part not in self.roots.nodes):
                self.drafts.windows[part] = Window(node, row_major(part.shape), offset // node.dtype.itemsize)
                self.drafts.store(part, self.drafts.stored[node])

    def _store_after(self, node: Node) -> None:
        """The memory of its first source, for readers that run after all that the second is computed from."""
        stored = self.drafts.stored
        writers = dict.fromkeys(stored[base_of(node.srcs[0])])
        stack, seen = [node.srcs[1]], set()
        while stack:
            source = stack.pop()
            if source not in seen:
                seen.add(source)
                if source in stored:
                    writers.update(dict.fromkeys(stored[source]))
                else:
                    stack.extend(source.srcs)
        self.drafts.store(node, tuple(writers))
