"""Draft: a region while the fuser collects it, and Traversal, which determines whether a node fits into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from weft.compiler.fusion.index_map import MOVEMENT, Indices, source_index
from weft.compiler.fusion.region import Domain, Region
from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis


@dataclass(slots=True, eq=False)
class Draft:
    """What the fuser has put into a region so far; the fields are those of `Region`."""

    domain: Domain
    before: int = 0
    roots: list[Node] = field(default_factory=list)
    partials: list[Node] = field(default_factory=list)
    known_at: dict[Node, Indices] = field(default_factory=dict)  # reductions (and the anchor): where they are known
    reads: dict[Node, None] = field(default_factory=dict)
    inlined: dict[Node, Indices] = field(default_factory=dict)
    accesses: dict[tuple[Node, Indices], None] = field(default_factory=dict)
    computed_at: dict[Node, set[Indices]] = field(default_factory=dict)  # its roots, at indices other than their own
    operations: int = 0  # elementwise ones among `inlined`
    cost: int = 0  # their arithmetic per element, by the `cost` of primitives
    is_checking: bool = False  # whether it records indices outside of their axis
    bit: int = field(init=False)

    def __post_init__(self) -> None:
        self.bit = self.domain.bit

    def freeze(self) -> Region:
        """The finished region."""
        domain = self.domain
        return Region(
            domain.number, domain.form, domain.shape, domain.reduced, domain.anchor, domain.pointers, domain.operands,
            domain.template, domain.index, tuple(self.roots), tuple(self.partials), MappingProxyType(self.reads),
            MappingProxyType(self.inlined), MappingProxyType(self.accesses), self.before,
        )  # fmt: skip


class Conflict(Exception):
    """A node is needed at an index at which the region does not compute it."""


class Traversal:
    """Follows nodes down to memory in a region's axes, without changing the region."""

    __slots__ = (
        "accesses",
        "computed_at",
        "draft",
        "find_owner",
        "inlined",
        "is_checking",
        "is_related",
        "other_indices",
        "random_numbers",
        "reads",
        "seen",
        "stored",
    )  # fmt: skip

    def __init__(
        self,
        draft: Draft,
        stored: Mapping[Node, tuple[Draft, ...]],
        find_owner: Callable[[Node, Draft], Draft | None],
        other_indices: Callable[[Node], int | None],
    ):
        self.draft = draft
        self.other_indices = other_indices  # node -> how many besides its own a region that computes it may have
        self.stored = stored  # node -> regions that store it
        self.find_owner = find_owner  # node -> region in which it should be stored rather than computed again, or None
        self.reads: dict[Node, Draft | None] = {}  # memory read; with the region that is to store it, if none does yet
        self.inlined: dict[Node, Indices] = {}
        self.accesses: dict[tuple[Node, Indices], None] = {}
        self.computed_at: dict[Node, set[Indices]] = {}
        self.random_numbers: dict[Node, None] = {}
        self.is_checking = False  # whether an index is checked
        self.is_related = False  # whether something that the region itself computes was used
        self.seen: set[tuple[Node, Indices]] = set()

    def visit(self, root: Node, at: Indices) -> None:
        """Collect what computing `root` at `at` reads. Raises Conflict where that is not possible here."""
        draft, domain = self.draft, self.draft.domain
        stack = [(root, at)]
        while stack:
            item = stack.pop()
            if item in self.seen:
                continue
            self.seen.add(item)
            node, at = item
            known_at = draft.known_at.get(node)
            if known_at is not None:
                if known_at != at:
                    raise Conflict
                self.is_related = True
                continue
            if domain.row_of(node, at) is not None:
                continue
            writers = self.stored.get(node)
            if writers is not None and (not writers or draft not in writers):
                self.reads[node] = None
                self.accesses[item] = None
                continue
            limit = self.other_indices(node)
            if limit is not None and at != domain.indices_for(node.shape):
                self._compute_again(node, at, limit)
            op = node.op
            if op in MOVEMENT:
                self.inlined.setdefault(node, at)
                stack.append((node.srcs[0], source_index(node, at)[0]))
            elif node.primitive.kind == "elementwise":
                owner = self.find_owner(node, draft)
                if owner is None:
                    self.is_checking |= op == "in_range"
                    self.inlined.setdefault(node, at)
                    stack.extend([(source, at) for source in node.srcs])
                else:
                    self.reads[node] = owner
                    self.accesses[item] = None
            else:
                stack.extend(self._read_or_generate(node, at))

    def _compute_again(self, node: Node, at: Indices, limit: int) -> None:
        """Enter that a root of the region is computed at another index, too. A few are cheaper than memory and a second
        kernel; but where each of n roots is computed at two indices of the next, the first would be at 2 ** n."""
        others = self.computed_at.setdefault(node, set(self.draft.computed_at.get(node, ())))
        others.add(at)
        if len(others) > limit:
            raise Conflict

    def _read_or_generate(self, node: Node, at: Indices) -> Sequence[tuple[Node, Indices]]:
        """The same for other nodes; returns what else has to be visited."""
        if node.op == "gather":
            return self._gather(node, at)
        if node.srcs and node.op != "random":
            raise Conflict
        if node.op in ("iota", "random"):
            self.accesses[(node, at)] = None
        if node.op == "random":
            self.reads[node.srcs[0]] = None
            self.random_numbers[node] = None
        return ()

    def _gather(self, node: Node, at: Indices) -> list[tuple[Node, Indices]]:
        axis, rank = node.attrs.axis, len(node.srcs[1].shape)
        self.is_checking |= not node.attrs.known
        own, found = at[axis : axis + rank], []
        loaded = self.draft.domain.row_of(node.srcs[1], own)
        if loaded is None:
            found.append((node.srcs[1], own))
            loaded = ix.axis_index(Axis(f"g{id(node)}", node.srcs[0].shape[axis], "value"))
        return [*found, (node.srcs[0], (*at[:axis], loaded, *at[axis + rank :]))]
