"""Emission: the statements of one pass over a row, from its ownership (the loops) and its staging (the accesses).

`emit_pass` takes a function that begins a pass and gives two lists: loads that come before everything else of the pass,
and the pass itself; a reduction puts the second into its `Reduction`. There is one emission for each ownership:

- `StridedEmission`: one loop over the elements of the lane;
- `TileEmission`: all loads of the row, then its elements, then all stores, each in unrolled steps;
- `RoundEmission`: the same for every round; rounds at the edges of the row test which elements are the row's.

An emission knows nothing of stages, reductions or launches: `rows.RowKernel` puts passes together.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from weft.kernels.gpu.one_hot import assume_unequal, find_compared_numbers
from weft.kernels.gpu.row_ownership import RoundElements, StridedElements, TileElements
from weft.kernels.gpu.row_staging import RowPass, Staging
from weft.kernels.gpu.shared_staging import SharedStaging
from weft.kernels.gpu.statements import are_aligned, serial
from weft.kernels.gpu.tile import Tile, loads_in
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import AwaitCopies, Copy, Expr, If, IndexValue, Let, Load, Op, Stmt, Store, Update, Var
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.rewrite import indices_of, parts_of

BeginPass = Callable[[bool], RowPass]  # given whether its elements are retained between passes


class Emission(Protocol):
    """The statements of a row that passes are made of."""

    def emit_prologue(self) -> list[Stmt]:
        """What is done before the first pass over a row."""

    def emit_pass(self, begin: BeginPass) -> tuple[list[Stmt], list[Stmt]]:
        """What a pass loads before its first element, and the pass."""


@dataclass(frozen=True, slots=True, eq=False)
class StridedEmission:
    """A pass is one loop; nothing is staged."""

    elements: StridedElements

    def emit_prologue(self) -> list[Stmt]:
        return []

    def emit_pass(self, begin: BeginPass) -> tuple[list[Stmt], list[Stmt]]:
        return [], list(self.elements.for_each(begin(False).body))


@dataclass(frozen=True, slots=True, eq=False)
class TileEmission:
    """A pass loads the lane's part of the row, goes through its elements, and stores."""

    elements: TileElements
    aligned: Expr  # whether all buffers are aligned to vectors

    def emit_prologue(self) -> list[Stmt]:
        return []

    def emit_pass(self, begin: BeginPass) -> tuple[list[Stmt], list[Stmt]]:
        row_pass, elements = begin(True), self.elements
        stores = self.branch_on_alignment(
            elements.for_each_vector(row_pass.vector_stores), elements.for_each(row_pass.unaligned_stores)
        )
        return self.emit_loads(row_pass), [*elements.for_each(row_pass.body), *stores]

    def emit_loads(self, row_pass: RowPass) -> list[Stmt]:
        elements = self.elements
        loads = self.branch_on_alignment(
            elements.for_each_vector(row_pass.vector_loads), elements.for_each(row_pass.unaligned_loads)
        )
        return [*row_pass.arrays, *loads, *elements.for_each(row_pass.element_loads)]

    def branch_on_alignment(self, fast: Sequence[Stmt], slow: Sequence[Stmt]) -> list[Stmt]:
        """`fast` where all buffers are aligned, else `slow`."""
        return _branch(self.aligned, fast, slow)


@dataclass(frozen=True, slots=True, eq=False)
class RoundEmission:
    """A pass goes through the rounds of a row: those that are staged, then the others."""

    elements: RoundElements
    staging: Staging
    aligned: Expr
    varying: frozenset[str]  # names of what changes along the row

    def emit_prologue(self) -> list[Stmt]:
        """What is staged in shared memory is there before the first pass."""
        staging, tile = self.staging, self.elements.tile
        if not isinstance(staging, SharedStaging):
            return []
        (vectors, _), (whole, edge) = staging.copies(True), staging.copies(False)
        body = _branch(self.aligned, tile.unroll_steps(vectors), tile.unroll_steps(whole))
        return [*self.elements.for_each_round(0, staging.rounds, body, edge), AwaitCopies()]

    def emit_pass(self, begin: BeginPass) -> tuple[list[Stmt], list[Stmt]]:
        elements, out = self.elements, list[Stmt]()
        staged = self.staging.rounds if isinstance(self.staging, SharedStaging) else 0
        for first, last in itertools.pairwise(sorted({0, staged, elements.round.extent})):
            row_pass = begin(first < staged)
            out += self._hoist(row_pass)
            out += elements.for_each_round(first, last, self._whole_round(row_pass), self._edge(row_pass))
        return [], list(serial(elements.outer, tuple(out)))

    def _hoist(self, row_pass: RowPass) -> list[Stmt]:
        """What a pass reads from memory that is the same all along the row: read before it, not where its rounds
        part."""
        values = [stmt.value for stmt in row_pass.body if isinstance(stmt, Let | Update | Store)]
        names = {stmt.name for stmt in row_pass.body if isinstance(stmt, Let)}
        arrays = {array.name for array in row_pass.arrays}
        same: dict[int, bool] = {}  # whether a part is the same all along the row
        read: dict[int, bool] = {}  # and whether it is read from memory, or made of what is
        inside: set[int] = set()  # parts of others that are the same
        for part in parts_of(values):
            below = part.args if isinstance(part, Op) else ()
            same[id(part)] = all(same[id(arg)] for arg in below)
            read[id(part)] = isinstance(part, Load) or any(read[id(arg)] for arg in below)
            if isinstance(part, Var):
                same[id(part)] = part.name not in names
            elif isinstance(part, Load):
                same[id(part)] = part.mask is None and part.buffer not in arrays and self._is_constant(part.index)
            elif isinstance(part, IndexValue):
                same[id(part)] = self._is_constant(part.index)
            if same[id(part)]:
                inside.update([id(arg) for arg in below])
        found = [part for part in parts_of(values) if same[id(part)] and read[id(part)] and id(part) not in inside]
        return [Let(f"given{k}", part) for k, part in enumerate(found)]

    def _is_constant(self, index: Index) -> bool:
        """Whether an index is the same all along the row."""
        return self.varying.isdisjoint([axis.name for axis in ix.axes_of(index)])

    def _whole_round(self, row_pass: RowPass) -> list[Stmt]:
        """The steps of a round that is the row's as a whole; less is done where none of its elements is compared with
        by its number (see `one_hot`)."""
        elements, tile = self.elements, self.elements.tile
        compared = find_compared_numbers(
            row_pass.body, elements.position, lambda value: all(map(self._is_constant, indices_of(value)))
        )
        steps = self._steps(row_pass, tile.unroll_steps)
        if not compared:
            return steps
        first = elements.round * tile.size - elements.lead
        last = first + (tile.size - 1)
        numbers = {id(number): number for number in compared.values()}.values()
        here = [(IndexValue(first, k.dtype) <= k) & (k <= IndexValue(last, k.dtype)) for k in numbers]
        some = functools.reduce(operator.or_, here)
        others = replace(row_pass, body=assume_unequal(row_pass.body, list(compared)))
        return [If(some, tuple(steps), tuple(self._steps(others, tile.unroll_steps)))]

    def _edge(self, row_pass: RowPass) -> list[Stmt]:
        """One step of a round that is not the row's as a whole: by vectors where all of their elements are."""
        elements = self.elements
        step = tuple(self._steps(row_pass, tuple))
        if not elements.is_ragged:
            return [If(elements.inside, step)]
        staged, (_, unaligned) = self._split_staged(row_pass.vector_loads, row_pass.unaligned_loads)
        single = If(elements.inside, (*unaligned, *row_pass.element_loads, *row_pass.body, *row_pass.unaligned_stores))
        some = (*row_pass.arrays, *staged, *elements.tile.unroll_vector([single]))
        reached = elements.first_position < elements.axis.extent
        return [If(elements.whole_vector_inside, step, (If(reached, some),))]

    def _steps(self, row_pass: RowPass, each: Callable[[Sequence[Stmt]], tuple[Stmt, ...]]) -> list[Stmt]:
        """The steps of a pass, `each` of those there are: what is read, what is done with it, what is written."""
        vector = self.elements.tile.unroll_vector
        staged, (loads, unaligned) = self._split_staged(row_pass.vector_loads, row_pass.unaligned_loads)
        kept, (stores, unaligned_stores) = self._split_staged(row_pass.vector_stores, row_pass.unaligned_stores)
        return [
            *row_pass.arrays,
            *_branch(self.aligned, each(loads), each(vector(unaligned))),
            *each(staged),
            *each(vector(row_pass.element_loads)),
            *each(vector(row_pass.body)),
            *each(kept),
            *_branch(self.aligned, each(stores), each(vector(unaligned_stores))),
        ]

    def _split_staged(
        self, copies: Sequence[Copy], elements: Sequence[Stmt]
    ) -> tuple[list[Copy], tuple[list[Copy], list[Stmt]]]:
        """Copies from and to staged arrays, which are aligned; the others, and what takes their place element by
        element."""
        own = {array.name for array in self.staging.arrays}
        staged = [copy for copy in copies if copy.source in own or copy.target in own]
        others = [(copy, one) for copy, one in zip(copies, elements, strict=True) if copy not in staged]
        return staged, ([copy for copy, _ in others], [one for _, one in others])


def _branch(condition: Expr, fast: Sequence[Stmt], slow: Sequence[Stmt]) -> list[Stmt]:
    return [If(condition, tuple(fast), tuple(slow))] if fast else []


def aligned_to_vectors(nest: Nest, tile: Tile) -> Expr:
    """Whether all buffers that the rows of a nest access by vectors are aligned to them."""
    values = [value for stage in nest.stages for _, value in stage]
    values += [store.value for store in nest.inner_stores] + [column.value for column in nest.columns]
    buffers = [(load.buffer, load.dtype) for load in loads_in(values) if tile.is_vector_access(load)]
    buffers += [(store.buffer, store.value.dtype) for store in nest.inner_stores if tile.is_vector_access(store)]
    buffers += [(column.buffer, column.accumulator.dtype) for column in nest.columns]
    widest = max([dtype.itemsize for _, dtype in buffers], default=1)
    return are_aligned(buffers, tile.vector_width * widest)
