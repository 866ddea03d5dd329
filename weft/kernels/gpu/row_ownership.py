"""Ownership: which lanes share a row, which of its elements belong to each of them, and the loops over those.

- `StridedElements`: a row with ends known only at run time; lane t has elements t, t + lanes, ...
- `TileElements`: a row of known length, all of it one `Tile` whose last step may be cut off.
- `RoundElements`: a long row of known length, in rounds of one tile each, possibly begun before the row.

Every lane has the same elements in every pass over the row, so what it wrote it may read again without a barrier.
Ownership is frozen and follows from the length of the row and the target alone; it knows neither what is computed nor
where values are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

from weft.kernels.gpu.statements import at, number, serial, unroll, value_index
from weft.kernels.gpu.tile import Tile
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Expr, If, IndexValue, Literal, Load, Loop, Stmt
from weft.kernels.ir.nest import Nest, Span
from weft.kernels.ir.rewrite import Substitution, rewrite_nest, substitute


class Ownership(Protocol):
    """What the combination of partial results and the launch need to know of any row."""

    @property
    def lanes(self) -> int:
        """Lanes that share a row."""

    @property
    def lane(self) -> Index:
        """This lane among them."""

    @property
    def by_subgroup(self) -> bool:
        """Whether a row is one subgroup's, several rows to a workgroup; else it is a workgroup's."""

    def for_each(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        """`body` for every element of this lane."""


@dataclass(frozen=True, slots=True)
class StridedElements:
    """A row with ends known only at run time, shared by a workgroup."""

    lanes: int
    outer: tuple[Span, ...]  # axes around the row that every lane goes through
    span: Span
    by_subgroup: ClassVar[bool] = False

    @property
    def lane(self) -> Index:
        return at(Axis("thread", self.lanes))

    def for_each(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        span = self.span
        return serial(self.outer, (Loop(span.axis, span.start, span.stop, "lanes", tuple(body), self.lanes),))


@dataclass(frozen=True)
class TileElements:
    """A row of `extent` elements along `axis` that is one tile."""

    tile: Tile
    axis: Axis
    by_subgroup: bool

    @property
    def lanes(self) -> int:
        return self.tile.lanes

    @cached_property
    def lane(self) -> Index:
        return _lane(self.tile, self.by_subgroup)

    @cached_property
    def position(self) -> Index:
        """Of this lane's element in the row."""
        return self.tile.element(self.lane)

    @cached_property
    def _own_axes(self) -> frozenset[Axis]:
        return frozenset(ix.axes_of(self.position))

    def map_nest(self, nest: Nest) -> Nest:
        """The nest with the row's axis at this lane's element."""
        return substitute(nest, {self.axis: self.position})

    def is_own(self, load: Load) -> bool:
        """Whether a load changes along the row, and so is worth an array of a lane's own."""
        return load.mask is None and not self._own_axes.isdisjoint(ix.axes_of(load.index))

    def for_each_vector(self, body: Sequence[Stmt]) -> list[Stmt]:
        """Every step; where the last is cut off, it is for the lanes that have a part in it: a whole vector."""
        if not body:
            return []
        tile = self.tile
        full = self.axis.extent // (tile.lanes * tile.vector_width)
        inside = number(tile.first(self.position)) < self.axis.extent
        rest = (If(inside, tuple(body)),)
        return [
            *unroll(tile.step, 0, full, tuple(body)),
            *(unroll(tile.step, full, tile.steps, rest) if full < tile.steps else ()),
        ]

    def for_each(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return tuple(self.for_each_vector(self.tile.unroll_vector(body)))


@dataclass(frozen=True)
class RoundElements:
    """A row along `axis` in rounds of one tile each.

    Memory moves in vectors, from multiples of their width on. Rows of 50,257 elements do not begin there: the first
    round begins `lead` elements before its row, which follows from the number of the row (`points`, at which rows are
    `shift` elements, modulo the vector width, after the one before), and the first and the last round test which
    elements are the row's.
    """

    tile: Tile
    outer: tuple[Span, ...]
    axis: Axis
    by_subgroup: bool
    points: Axis
    shift: int

    @property
    def lanes(self) -> int:
        return self.tile.lanes

    @cached_property
    def lane(self) -> Index:
        return _lane(self.tile, self.by_subgroup)

    @cached_property
    def lead(self) -> Index:
        """Elements before the row with which its first round begins."""
        return self.points * self.shift % self.tile.vector_width

    @cached_property
    def reach(self) -> int:
        """Elements from the beginning of the first round to the end of the row, at most."""
        return self.axis.extent + self.lead.high

    @cached_property
    def round(self) -> Axis:
        return Axis("round", -(-self.reach // self.tile.size))

    @cached_property
    def own_slot(self) -> Index:
        """Of a lane's element in an array that holds all rounds."""
        return self.round * self.tile.size + self.tile.element(self.lane)

    @cached_property
    def position(self) -> Index:
        """Of this lane's element in the row; below 0 before it."""
        return self.own_slot - self.lead

    @cached_property
    def _own_axes(self) -> frozenset[Axis]:
        return frozenset(ix.axes_of(self.own_slot))

    def map_nest(self, nest: Nest) -> Nest:
        """The nest with the row's axis at this lane's element."""
        return rewrite_nest(
            nest, _SubstituteEarly(self.axis, self.position, self.points, self.tile.vector_width, self.shift)
        )

    def is_own(self, load: Load) -> bool:
        """Whether a load changes along the row, and so is worth an array of a lane's own."""
        return load.mask is None and not self._own_axes.isdisjoint(ix.axes_of(load.index))

    def for_each(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        whole = self.tile.unroll_steps(self.tile.unroll_vector(body))
        edge = self.tile.unroll_vector([If(self.inside, tuple(body))])
        return serial(self.outer, tuple(self.for_each_round(0, self.round.extent, whole, edge)))

    def for_each_round(self, begin: int, end: int, body: Sequence[Stmt], edge: Sequence[Stmt]) -> list[Stmt]:
        """`body` for every round of these that is the row's as a whole, then `edge` for each step of the others."""
        first = min(max(begin, int(self.lead is not ix.ZERO)), end)
        last = max(first, min(self.axis.extent // self.tile.size, end))
        steps = self.tile.unroll_steps(edge)
        edges = [Loop(self.round, a, b, "unrolled", steps) for a, b in ((begin, first), (last, end)) if a < b]
        whole = [Loop(self.round, first, last, "serial", tuple(body))] if first < last else []
        if self.round.extent == 1:
            return list(steps if edges else body)
        return [*whole, *edges]

    # --- which elements are the row's ---

    @property
    def is_ragged(self) -> bool:
        """Whether some elements of a vector may be the row's and others not."""
        return self.lead is not ix.ZERO or self.axis.extent % self.tile.vector_width != 0

    @cached_property
    def inside(self) -> Expr:
        """Whether an element is the row's; where rows are not ragged, the others of its vector are, too."""
        position = self.position if self.is_ragged else self.tile.first(self.position)
        before_end = number(position) < self.axis.extent
        return _and(_not_before_row(number(position)), before_end) if self.lead is not ix.ZERO else before_end

    @cached_property
    def first_position(self) -> IndexValue:
        """The position of the first element of a vector in the row."""
        return number(self.tile.first(self.position))

    @cached_property
    def whole_vector_inside(self) -> Expr:
        """Whether all elements of a vector are the row's."""
        last = self.axis.extent - self.tile.vector_width
        return _and(_not_before_row(self.first_position), self.first_position <= last)


def _lane(tile: Tile, by_subgroup: bool) -> Index:
    """This lane of a workgroup, or of a subgroup: a value that the launch defines."""
    return value_index(Axis("thread", tile.lanes, "value")) if by_subgroup else at(tile.lane)


def _not_before_row(position: Expr) -> Expr:
    return Literal(0, position.dtype) <= position


def _and(a: Expr, b: Expr) -> Expr:
    return a & b


class _SubstituteEarly(Substitution):
    """Puts the axis of a row at `position`, `lead` elements early, and sees which indices are multiples then."""

    def __init__(self, axis: Axis, position: Index, points: Axis, vector_width: int, shift: int):
        super().__init__({axis: position})
        self.points, self.vector_width, self.shift = points, vector_width, shift

    def index(self, index: Index) -> Index:
        """`shift * p - shift * p % width` is `width * (shift * p // width)`."""
        moved, ahead = ix.substitute(index, self.values), self.points * self.shift
        lead = ahead % self.vector_width
        early = moved + lead
        if len(early.terms) >= len(moved.terms) or early.coefficient(self.points) % self.vector_width != self.shift:
            return moved
        return early - ahead + ahead // self.vector_width * self.vector_width
