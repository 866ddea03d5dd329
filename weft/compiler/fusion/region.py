"""Region: one future kernel. A loop domain, the nodes computed in it, and what it reads and stores.

The domain of a region has one axis per dimension of `shape`; the positions in `reduced` are reduce axes, the rest are
parallel. A node belongs to a region when every index it is needed at can be written in the region's axes: the fuser
finds out with a `draft.Traversal`. Regions are frozen: the fuser collects them in a `draft.Draft`, and a later pass
that knows more about a region makes a new one.

form   what the region is
map    elementwise values over the domain
rows   the last axis is reduced: each parallel point reduces its row, in as many stages as reductions depend on each
       other
cols   the last axis is kept: adjacent points are reduced together, one in each vector lane
split  a `partial_*` over rows: each chunk of the cut axis is reduced on its own
dot    a matrix product with elementwise epilogues over its result
scatter  rows reduced into a table
segment  each row of the first axis reduces its own part of the second, given by `pointers`: domain (rows, elements,
         ...)
template  a kernel written by hand for one primitive (`compiler.templates.registry`)
scan   running sums, products or extrema along the middle one of three axes, or the last of two
sort   the order of the elements of each row
put    elements of each row added at given positions of a longer one
loop   a body repeated: `anchor` is the loop, roots are its picks
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from weft.compiler.fusion.index_map import Indices
from weft.compiler.templates.matmul_layout import Operands
from weft.compiler.templates.template import Template
from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index


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


@dataclass(frozen=True, slots=True, eq=False)
class Domain:
    """The loops of a region; `form` is a key of `FORMS`. `index` are the indices that belong to the axes of `shape`:
    the axes themselves, unless something else is given."""

    number: int
    form: str
    shape: tuple[int, ...]
    reduced: tuple[int, ...] = ()
    anchor: Node | None = None
    pointers: Node | None = None  # of a segment region: where the part of each row starts, and where the last one ends
    operands: Operands | None = None  # how a product reads its sources
    template: Template | None = None  # what a kernel written by hand reads, and its builder
    index: Indices = ()

    def __post_init__(self) -> None:
        if not self.index:
            axes = [
                Axis(f"d{k}", extent, "reduce" if k in self.reduced else "parallel")
                for k, extent in enumerate(self.shape)
            ]
            index = tuple([ix.axis_index(axis) for axis in axes])
            if self.pointers is not None:  # a row may have no elements even where there is just one
                index = (index[0], Index(((axes[1], 1),), 0), *index[2:])
            object.__setattr__(self, "index", index)

    @property
    def bit(self) -> int:
        """The region in a bit set of regions."""
        return 1 << self.number

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

    def reduced_index(self, shape: tuple[int, ...]) -> Indices | None:
        """How the region's axes index a value of `shape` that it reduces."""
        return self.indices_for(shape) if self.pointers is None else self._in_segments(shape, 1)

    def _in_segments(self, shape: tuple[int, ...], axis: int) -> Indices | None:
        """A value per row (axis 0) or per element (axis 1), in a segment region."""
        if shape[:1] != (self.shape[axis],) or _prod(shape[1:]) != _prod(self.shape[2:]):
            return None
        return (self.index[axis], *ix.reshape(self.index[2:], self.shape[2:], shape[1:]))

    def row_of(self, node: Node, at: Indices) -> Index | None:
        """The row that element `at` of `node` counts, where the loops of this domain are over the segments that it
        numbers."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Region(Domain):
    """One future kernel: a domain and what is computed in it."""

    roots: tuple[Node, ...] = ()  # what it stores, or reduces for later stages
    partials: tuple[Node, ...] = ()  # column sums over its parallel axes, by chunks of rows
    reads: Mapping[Node, None] = field(default_factory=dict)  # memory that it reads, in order
    inlined: Mapping[Node, Indices] = field(default_factory=dict)  # nodes computed inline, at their first index
    accesses: Mapping[tuple[Node, Indices], None] = field(default_factory=dict)  # what is read (or counted) where
    before: int = 0  # bit set of the regions that must run earlier, closed under "before"
    retained: frozenset[Node] = frozenset()  # results that are read outside of it: `memory.allocate` finds them
    strides: Mapping[Node, tuple[int, ...]] = field(default_factory=dict)  # of roots that are parts of a concatenation

    @property
    def stores(self) -> tuple[Node, ...]:
        """What it computes for memory, or reduces for later stages."""
        return (*self.roots, *self.partials)

    def is_stored(self, node: Node) -> bool:
        """Whether a result is stored in memory: a reduction may be used up inside."""
        return not is_reduction(node) or node in self.retained

    def span_of(self, node: Node) -> int:
        """The bytes from the first to the last element of what it reads or stores."""
        strides = self.strides.get(node)
        if strides is None or not node.size:
            return node.nbytes
        last = sum([(extent - 1) * stride for extent, stride in zip(node.shape, strides, strict=True)])
        return (last + 1) * node.dtype.itemsize


def _prod(shape: tuple[int, ...]) -> int:
    out = 1
    for extent in shape:
        out *= extent
    return out


def is_reduction(node: Node) -> bool:
    """Whether `node` is reduced in loops: its result is in memory only where another region reads it."""
    return node.op.startswith("reduce_") or node.primitive.kind == "segment"
