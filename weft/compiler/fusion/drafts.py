"""Drafts: the regions of a graph while it is divided, what they store and read, and in which order they must run."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from weft.compiler.fusion.bindings import Bindings
from weft.compiler.fusion.draft import Draft, Traversal
from weft.compiler.fusion.index_map import MOVEMENT, Indices
from weft.compiler.fusion.region import Domain
from weft.compiler.fusion.roots import Roots
from weft.compiler.fusion.views import Window
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, results_of


class Drafts:
    """The regions so far. `stored` has the nodes that are in memory, with the regions that write them."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Node], roots: Roots, bindings: Bindings | None = None):
        self.bindings = bindings  # None: kernels may bind any number of buffers
        self.leaves = set(leaves)
        self.roots = roots
        self.tuning = roots.tuning
        self.regions: list[Draft] = []
        self.stored: dict[Node, tuple[Draft, ...]] = dict.fromkeys(leaves, ())
        self.windows: dict[Node, Window] = {}
        self.position = {node: number for number, node in enumerate(nodes)}
        self.users: dict[Node, list[Draft]] = {}  # regions that read or compute a node
        self.written_by: dict[Draft, dict[Node, None]] = {}  # what each region stores, with what that is a part of
        self._numbers = itertools.count()
        self._preceding = 0  # bit set of all regions that some other region had to wait for

    def next_number(self) -> int:
        return next(self._numbers)

    def store(self, node: Node, writers: tuple[Draft, ...]) -> None:
        """`node` is in memory once `writers` have run."""
        self.stored[node] = writers
        for writer in writers:
            self.written_by.setdefault(writer, {})[node] = None

    def traverse(self, draft: Draft) -> Traversal:
        """A traversal that finds out what `draft` would read."""
        return Traversal(draft, self.stored, self.find_owner, self.roots.other_indices)

    def commit(self, draft: Draft, node: Node, traversal: Traversal) -> None:
        """Make `node`, for which `traversal` found what is read, a member of `draft`."""
        self.add_member(draft, node)
        for result in (node, *results_of(node)):
            self.store(result, (draft,))
        self.absorb(draft, traversal)

    def add_member(self, draft: Draft, node: Node) -> None:
        """Enter `node` among what `draft` computes."""
        if is_column_partial(node):
            draft.partials.append(node)
            return
        draft.roots.extend(results_of(node) or [node])
        kind, domain = node.primitive.kind, draft.domain
        if kind in ("dot", "template"):
            draft.known_at[node] = domain.index
        elif kind in ("reduce", "segment"):
            draft.known_at[node] = tuple([domain.index[k] for k in domain.kept])

    def absorb(self, draft: Draft, traversal: Traversal) -> None:
        """Enter what `traversal` found into `draft`: memory read, values computed inline, and the regions that have to
        run before."""
        for read, owner in traversal.reads.items():
            if owner is not None and read not in self.stored:  # expensive: stored by the first region
                owner.roots.append(read)
                self.store(read, (owner,))
            draft.reads[read] = None
        draft.accesses.update(traversal.accesses)
        draft.computed_at.update(traversal.computed_at)
        draft.operations += self.added_operations(draft, traversal)
        draft.cost += self.added_cost(draft, traversal)
        draft.is_checking |= traversal.is_checking
        for source, at in traversal.inlined.items():
            draft.inlined.setdefault(source, at)
        for writer in self.writers(traversal, draft):
            draft.before |= writer.before | writer.bit
        self._preceding |= draft.before
        if self._preceding & draft.bit:
            for other in self.regions:
                if other.before & draft.bit:
                    other.before |= draft.before
        for source in (*traversal.reads, *traversal.inlined):
            users = self.users.setdefault(source, [])
            if draft not in users:
                users.append(draft)

    def replace(self, trial: Draft, drafts: Sequence[Draft]) -> None:
        """Replace `drafts` by `trial` everywhere."""
        removed = sum(draft.bit for draft in drafts)
        if self._preceding & removed:
            self._preceding |= trial.bit
        self.regions = [draft for draft in self.regions if draft not in drafts] + [trial]
        for draft in self.regions:
            if draft.before & removed:
                draft.before = (draft.before & ~removed) | (trial.bit if draft is not trial else 0)
        old = set(drafts)
        for source in {source for draft in drafts for source in (*draft.reads, *draft.inlined)}:
            users = self.users[source]
            users[:] = list(dict.fromkeys([trial if user in old else user for user in users]))
        for stored in dict.fromkeys([node for draft in drafts for node in self.written_by.pop(draft, ())]):
            writers = self.stored.get(stored)
            if writers is not None:
                self.store(stored, tuple(dict.fromkeys([trial if w in old else w for w in writers])))

    def remove(self, draft: Draft) -> None:
        """Remove a region whose results are not read."""
        self.regions.remove(draft)
        for root in draft.roots:
            del self.stored[root]
        for other in self.regions:
            other.before &= ~draft.bit
        for node, writers in self.stored.items():
            self.stored[node] = tuple([writer for writer in writers if writer is not draft])

    # --- what a traversal found -------------------------------------------------------------------------------------

    def writers(self, traversal: Traversal, draft: Draft) -> list[Draft]:
        """Regions that must run before `draft` for what `traversal` reads."""
        found: dict[Draft, None] = {}
        for read, owner in traversal.reads.items():
            for writer in self.stored.get(read, () if owner is None else (owner,)):
                if writer is not draft:
                    found[writer] = None
        return list(found)

    def has_capacity(self, draft: Draft, traversal: Traversal, node: Node) -> bool:
        """Whether one kernel may compute what `draft` has and `node`, for which `traversal` found what is read: code of
        bounded size, and as many buffers as a kernel may bind."""
        values = draft.reads.keys() | traversal.reads.keys()
        if not self.can_bind(draft, traversal, results_of(node) or [node]):
            return False
        if len(values) + len(draft.roots) + len(draft.partials) >= self.tuning.max_values:
            return False
        if draft.cost + self.added_cost(draft, traversal) > self.tuning.max_cost:
            return False
        return draft.operations + self.added_operations(draft, traversal) <= self.tuning.max_operations

    def can_bind(self, draft: Draft, traversal: Traversal, added: Sequence[Node] = ()) -> bool:
        """Whether a kernel may have the buffers of `draft`, of what `traversal` found and of the results `added`."""
        if self.bindings is None:
            return True
        reads, stores = draft.reads.keys() | traversal.reads.keys(), (*draft.roots, *draft.partials, *added)
        return self.bindings.fits(draft, reads, stores, draft.is_checking or traversal.is_checking)

    def added_operations(self, draft: Draft, traversal: Traversal) -> int:
        """The elementwise operations that `traversal` adds to those of `draft`."""
        return sum([node not in draft.inlined and node.op not in MOVEMENT for node in traversal.inlined])

    def added_cost(self, draft: Draft, traversal: Traversal) -> int:
        """The arithmetic per element that `traversal` adds to that of `draft`."""
        added = [node for node in traversal.inlined if node not in draft.inlined]
        return sum([node.primitive.cost for node in added]) + PRIMITIVES["random"].cost * len(traversal.random_numbers)

    # --- expensive values -------------------------------------------------------------------------------------------

    def find_owner(self, node: Node, draft: Draft) -> Draft | None:
        """The earlier region that should store `node` because it is expensive to compute again; None to compute it
        in `draft`, too."""
        users = self.users.get(node)
        if not users or draft in users or (self.bindings is not None and self.bindings.is_strict):
            return None
        if len(self.roots.reads[node]) < 2 and self.roots.cost[node] < self.tuning.recompute_cost:
            return None
        if not self._is_expensive(node):
            return None
        for other in users:
            at = other.inlined.get(node)
            fits = at is not None and node.size > 1 and at == other.domain.indices_for(node.shape)
            if not fits or other.before & draft.bit or other.domain.joins == "nothing":
                continue
            if self.can_bind(other, self.traverse(other), (node,)):
                return other
        return None

    def find_owner_outside(self, node: Node, drafts: Sequence[Draft]) -> Draft | None:
        """`find_owner` for a region that replaces `drafts`."""
        if any(draft in self.users.get(node, ()) for draft in drafts):
            return None
        return self.find_owner(node, drafts[-1])

    def _is_expensive(self, node: Node) -> bool:
        """Whether computing `node` once more, from what is stored by now, takes two large reads or much arithmetic."""
        stack, seen, cost, reads = [node], {node}, 0, 0
        while stack:
            at = stack.pop()
            if at is not node and (at in self.stored or at.primitive.kind == "gather"):
                reads += 2 * at.size >= node.size
                continue
            cost += at.primitive.cost
            for source in at.srcs:
                if source not in seen:
                    seen.add(source)
                    stack.append(source)
        return reads >= 2 or cost >= self.tuning.recompute_cost

    def read_only_among(self, drafts: Sequence[Draft], results: Collection[Node]) -> set[Node]:
        """Values that were stored only for others of `drafts` to read: together they need no memory."""

        def is_read_outside(result: Node) -> bool:
            return any(result in user.reads and user not in drafts for user in self.users.get(result, ()))

        return {result for result in results if result not in self.roots.nodes and not is_read_outside(result)}


def is_column_partial(node: Node) -> bool:
    """Whether `node` is a column sum by chunks of rows, which a region of rows may compute in addition to its own
    results."""
    return node.op.startswith("partial_") and len(node.srcs[0].shape) - 1 not in node.attrs.axes


def has_same_chunks(partials: Sequence[Node], node: Node) -> bool:
    """Whether `node` sums chunks of the same rows as `partials` do."""
    per_piece, pieces = node.attrs.per_piece, node.attrs.pieces
    return all(other.attrs.per_piece == per_piece and other.attrs.pieces == pieces for other in partials)


def domain_index(domain: Domain, node: Node) -> Indices | None:
    """The domain's axes as indices into what is visited for `node`: the source of a reduction, else itself."""
    if node.primitive.kind in ("reduce", "segment"):
        return domain.reduced_index(node.srcs[0].shape)
    return domain.reduced_index(node.shape) if node.op == "segment_rows" else domain.indices_for(node.shape)


def traversal_starts(node: Node) -> tuple[Node, ...]:
    """What a traversal visits for `node`: the sources of a reduction, else itself."""
    kind = node.primitive.kind
    return {"reduce": node.srcs, "segment": node.srcs[:1], "rows": ()}.get(kind, (node,))


def predecessors_of(writers: Sequence[Draft]) -> int:
    """The regions that run before one that needs `writers`, as a bit set."""
    before = 0
    for writer in writers:
        before |= writer.before | writer.bit
    return before


def is_delayed_by(draft: Draft, writers: Sequence[Draft]) -> bool:
    """Whether a value that needs only `writers` would have to wait for more by joining `draft`."""
    return bool(draft.before & ~predecessors_of(writers))
