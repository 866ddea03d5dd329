"""Region: one future kernel. A loop domain, the nodes computed in it, and what it reads and stores.

The domain of a region has one axis per dimension of `shape`; the positions in `reduced` are reduce axes, the rest are
parallel. A node belongs to a region when every index it is needed at can be written in the region's axes: `Walk` finds
out by following indices down through elementwise and movement nodes to memory or to a reduction of the same region.

form   what the region is
map    elementwise values over the domain
rows   the last axis is reduced: each parallel point folds its row, in as many stages as reductions depend on each other
cols   the last axis is kept: neighbouring points fold side by side
split  a `partial_*` over rows: each chunk of the cut axis folds on its own
dot    a matrix product with elementwise epilogues over its result
scatter  rows folded into a table
segment  each row of the first axis folds its own part of the second, given by `pointers`: domain (rows, elements, ...)
template  a kernel written by hand for one primitive (`compiler.templates`)
scan   running sums, products or extrema along the middle one of three axes, or the last of two
sort   the order of the elements of each row
put    elements of each row added at places of a longer one
loop   a body repeated: `anchor` is the loop, sinks are its picks
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from weft.compiler.access import MOVEMENT, Indices, source_index
from weft.compiler.matmul import Operands
from weft.compiler.template import Template
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index


@dataclass(frozen=True, slots=True)
class Form:
    """What else may be computed in a kind of region, and how it treats memory."""

    joins: Literal["anything", "epilogues", "nothing"] = "nothing"  # epilogues: what is computed from the anchor
    merges: bool = False  # two of them over one domain may become one
    in_place: bool = False  # an element may be written over one that is read at the same point


FORMS = {
    "map": Form("anything", merges=True, in_place=True),
    "rows": Form("anything", merges=True, in_place=True),
    "cols": Form("anything", merges=True, in_place=True),
    "split": Form(in_place=True),
    "segment": Form("anything", merges=True),
    "dot": Form("epilogues"),
    "template": Form("epilogues"),  # where the template allows it
    "scatter": Form(),
    "scan": Form(),
    "sort": Form(),
    "put": Form(),
    "loop": Form(),
}


@dataclass(slots=True, eq=False)
class Region:
    """One future kernel; `form` is a key of `FORMS`."""

    number: int
    form: str
    shape: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    anchor: Node | None = None
    pointers: Node | None = None  # of a segment region: where the part of each row begins, and where the last one ends
    operands: Operands | None = None  # how a product reads its sources
    template: Template | None = None  # what a kernel written by hand reads, and its builder
    sinks: list[Node] = field(default_factory=list)  # what it stores, or folds for later stages
    partials: list[Node] = field(default_factory=list)  # column sums over its parallel axes, by chunks of rows
    index: Indices = ()
    place: dict[Node, Indices] = field(default_factory=dict)  # reductions (and the anchor) and where they are known
    reads: dict[Node, None] = field(default_factory=dict)  # memory that it reads
    inlined: dict[Node, Indices] = field(default_factory=dict)  # nodes computed on the way, at their first index
    accesses: dict[tuple[Node, Indices], None] = field(default_factory=dict)  # what is read (or counted) where
    kept_results: set[Node] = field(default_factory=set)  # folds that somebody outside reads
    strides: dict[Node, tuple[int, ...]] = field(default_factory=dict)  # of sinks that are parts of a concatenation
    operations: int = 0  # elementwise ones among `inlined`
    cost: int = 0  # their arithmetic per element, as `sinks.COST` counts it
    before: int = 0  # bit set of the regions that must run earlier, closed under "before"

    def __post_init__(self) -> None:
        if not self.index:
            axes = [
                Axis(f"d{k}", extent, "reduce" if k in self.reduced else "parallel")
                for k, extent in enumerate(self.shape)
            ]
            self.index = tuple([ix.axis_index(axis) for axis in axes])
            if self.pointers is not None:  # a row may have no elements even where there is just one
                self.index = (self.index[0], Index(((axes[1], 1),), 0), *self.index[2:])

    @property
    def bit(self) -> int:
        return 1 << self.number

    @property
    def stores(self) -> list[Node]:
        """What it computes for memory, or folds for later stages."""
        return [*self.sinks, *self.partials]

    @property
    def joins(self) -> str:
        """What else may be computed here: see `Form`."""
        if self.template is not None and not self.template.joins:
            return "nothing"
        return FORMS[self.form].joins

    @property
    def kept(self) -> tuple[int, ...]:
        """Positions of the parallel axes."""
        return tuple([k for k in range(len(self.shape)) if k not in self.reduced])

    @property
    def volume(self) -> int:
        """How often the innermost loop body runs."""
        return _prod(self.shape if self.pointers is None else self.shape[1:])

    def folded_index(self, shape: tuple[int, ...]) -> Indices | None:
        """How the region's axes index a value of `shape` that it folds."""
        return self.indices_for(shape) if self.pointers is None else self._in_segments(shape, 1)

    def _in_segments(self, shape: tuple[int, ...], axis: int) -> Indices | None:
        """A value per row (axis 0) or per element (axis 1), in a segment region."""
        if shape[:1] != (self.shape[axis],) or _prod(shape[1:]) != _prod(self.shape[2:]):
            return None
        return (self.index[axis], *ix.reshape(self.index[2:], self.shape[2:], shape[1:]))

    def row_of(self, node: Node, at: Indices) -> Index | None:
        """The row that element `at` of `node` counts, where this region walks the very segments that it numbers."""
        if self.pointers is None or node.op != "segment_rows" or node.srcs[0] is not self.pointers:
            return None
        return self.index[0] if at == (self.index[1],) else None

    def indices_for(self, shape: tuple[int, ...]) -> Indices | None:
        """How the region's axes index a value of `shape`: element by element, or once per parallel point."""
        if self.pointers is not None:
            rows, elements = self.shape[:2]
            return None if rows == elements else self._in_segments(shape, 0) or self._in_segments(shape, 1)
        if shape == self.shape:
            return self.index
        size, domain, points = _prod(shape), _prod(self.shape), _prod(tuple([self.shape[k] for k in self.kept]))
        if size == domain:
            return ix.reshape(self.index, self.shape, shape)
        if size == points and self.reduced:
            kept = tuple([self.shape[k] for k in self.kept])
            return ix.reshape(tuple([self.index[k] for k in self.kept]), kept, shape)
        return None


def _prod(shape: tuple[int, ...]) -> int:
    out = 1
    for extent in shape:
        out *= extent
    return out


def is_fold(node: Node) -> bool:
    """Whether `node` is folded in loops: its result is in memory only where somebody else asks for it."""
    return node.op.startswith("reduce_") or PRIMITIVES[node.op].kind == "segment"


class Conflict(Exception):
    """A node is needed at an index at which the region does not know it."""


class Walk:
    """Follows one node down to memory in a region's axes, without changing the region."""

    __slots__ = (
        "accesses",
        "apart",
        "dear",
        "drawn",
        "inlined",
        "reads",
        "region",
        "seen",
        "stored",
        "touched",
    )

    def __init__(self, region: Region, stored, dear, apart):
        self.region = region
        self.apart = apart  # nodes that a region which computes them must not compute at a second index
        self.stored = stored  # node -> regions that store it
        self.dear = dear  # node -> region in which it should be stored rather than computed again, or None
        self.reads: dict[Node, Region | None] = {}  # memory read; with the region that is to store it, if none does yet
        self.inlined: dict[Node, Indices] = {}
        self.accesses: dict[tuple[Node, Indices], None] = {}
        self.drawn: dict[Node, None] = {}  # random numbers
        self.touched = False  # whether something of the region itself was used
        self.seen: set[tuple[Node, Indices]] = set()

    def visit(self, root: Node, at: Indices) -> None:
        """Collect what computing `root` at `at` reads. Raises Conflict where that is not possible here."""
        region = self.region
        stack = [(root, at)]
        while stack:
            item = stack.pop()
            if item in self.seen:
                continue
            self.seen.add(item)
            node, at = item
            place = region.place.get(node)
            if place is not None:
                if place != at:
                    raise Conflict
                self.touched = True
                continue
            if region.row_of(node, at) is not None:
                continue
            writers = self.stored.get(node)
            if writers is not None and (not writers or region not in writers):
                self.reads[node] = None
                self.accesses[item] = None
                continue
            if node in self.apart and at != region.indices_for(node.shape):
                raise Conflict
            if not node.srcs:
                if node.op == "iota":
                    self.accesses[item] = None
                continue
            op = node.op
            if op in MOVEMENT:
                stack.append((node.srcs[0], source_index(node, at)[0]))
                self.inlined.setdefault(node, at)
            elif op == "gather":
                axis, rank = node.attrs[0], len(node.srcs[1].shape)
                loaded = region.row_of(node.srcs[1], at[axis : axis + rank])
                if loaded is None:
                    stack.append((node.srcs[1], at[axis : axis + rank]))
                    loaded = ix.axis_index(Axis(f"g{id(node)}", node.srcs[0].shape[axis], "value"))
                stack.append((node.srcs[0], (*at[:axis], loaded, *at[axis + rank :])))
            elif op == "random":
                self.reads[node.srcs[0]] = None
                self.accesses[item] = None
                self.drawn[node] = None
            elif PRIMITIVES[op].kind == "elementwise":
                home = self.dear(node, region)
                if home is not None:
                    self.reads[node] = home
                    self.accesses[item] = None
                    continue
                self.inlined.setdefault(node, at)
                stack.extend([(source, at) for source in node.srcs])
            else:
                raise Conflict
