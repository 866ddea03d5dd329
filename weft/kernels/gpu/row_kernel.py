"""RowKernel: the kernel of a nest with reductions along rows, composed of ownership, staging and emission.

See the package's docstring for how the three work together and for the path of one reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.kernels.gpu.row_combination import Combination
from weft.kernels.gpu.row_emission import Emission
from weft.kernels.gpu.row_ownership import Ownership
from weft.kernels.gpu.row_staging import RowPass, Staging
from weft.kernels.gpu.statements import BEGIN, END, make_kernel, number, scale_bound
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import (
    Accumulator,
    Barrier,
    Expr,
    Geometry,
    If,
    Kernel,
    Literal,
    Load,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
)
from weft.kernels.ir.nest import COMBINE, Nest, store_after_evaluation


@dataclass(frozen=True, slots=True, eq=False)
class RowKernel:
    """How the rows of a nest are computed: who owns elements, where they are staged, how passes are emitted, and how
    partial results are combined. The nest that it is given has the row's axis where the ownership places it."""

    elements: Ownership
    staging: Staging
    emission: Emission
    combination: Combination

    # --- one row ---

    def emit_row(self, nest: Nest) -> tuple[Stmt, ...]:
        """What is done at one point: reduce stage by stage, store, pass over the row again for what needs the
        results."""
        body = self.emit_reductions(nest)
        if nest.inner_stores:
            loads, stores = self.emission.emit_pass(lambda retained: self._begin_stores(nest, retained))
            body += [*loads, *stores]
        return tuple(self.end_row(nest, body))

    def emit_reductions(self, nest: Nest) -> list[Stmt]:
        """All stages of a row, and the stores of its results."""
        body = self.emission.emit_prologue()
        for position, stage in enumerate(nest.stages):
            body += self._emit_stage(stage, position)
        if nest.point_stores:
            body.append(If(number(self.elements.lane).eq(0), store_after_evaluation(nest.point_stores)))
        return body

    def _emit_stage(self, stage: Sequence[tuple[Accumulator, Expr]], position: int) -> list[Stmt]:
        """One pass, in which every lane has partial results, and their combination."""
        parts = tuple([replace(acc, name=f"{acc.name}_part") for acc, _ in stage])

        def begin(retained: bool) -> RowPass:
            row_pass, values = self.staging.begin_pass([value for _, value in stage], position, retained)
            row_pass.body += [Update(part.name, value) for part, value in zip(parts, values, strict=True)]
            return row_pass

        loads, updates = self.emission.emit_pass(begin)
        return [*loads, Reduction(parts, tuple(updates)), *self.combination.combine([acc for acc, _ in stage])]

    def _begin_stores(self, nest: Nest, retained: bool) -> RowPass:
        """The pass that stores elements, the last one."""
        values = [store.value for store in nest.inner_stores]
        row_pass, values = self.staging.begin_pass(values, len(nest.stages), retained)
        self.staging.store(row_pass, nest.inner_stores, values)
        return row_pass

    def end_row(self, nest: Nest, body: list[Stmt]) -> list[Stmt]:
        """`body`, after which the arrays in which partial results meet may be written again."""
        return [*body, Barrier()] if self.combination.needs_barrier(len(nest.stages)) else body

    # --- rows of a chunk, with running sums in memory ---

    def emit_row_with_columns(self, nest: Nest, chunk: Axis) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
        """What is done before the first row of a chunk, and at each: the running column sums lie in memory."""
        clear: list[Stmt] = []
        final: list[Stmt] = list(store_after_evaluation(nest.inner_stores))
        for column in nest.columns:
            position = chunk * column.width + column.index
            acc = column.accumulator
            clear.append(Store(column.buffer, position, Literal(acc.identity, acc.dtype)))
            running = Op(COMBINE[acc.op], (Load(column.buffer, position, acc.dtype), column.value), acc.dtype)
            final.append(Store(column.buffer, position, running))
        body = [*self.emit_reductions(nest), *self.elements.for_each(final)]
        return self.elements.for_each(clear), tuple(self.end_row(nest, body))

    # --- the launch ---

    def launch(self, nest: Nest, body: tuple[Stmt, ...], each: Axis, workgroup_size: int) -> Kernel:
        """The kernel that does `body` for `each` row or chunk of rows; subgroups that take them are in workgroups of so
        many lanes."""
        arrays, lanes = (*self.combination.arrays, *self.staging.arrays), self.elements.lanes
        if self.elements.by_subgroup:
            size = max(workgroup_size, lanes)
            lane = Axis("i", each.extent * lanes)
            definitions = {**nest.definitions, each.name: number(lane // lanes), "thread": number(lane % lanes)}
            loop = Loop(lane, scale_bound(BEGIN, lanes), scale_bound(END, lanes), "grid", body, size)
            nest = replace(nest, definitions=definitions)
            return make_kernel(nest, (*arrays, loop), Geometry(size, lanes))
        loop = Loop(each, BEGIN, END, "task", body)
        workgroup = Loop(Axis("thread", lanes), 0, lanes, "lanes", (loop,), lanes)
        geometry = Geometry(lanes, lanes, min_resident=self.staging.workgroups_per_processor)
        return make_kernel(nest, (*arrays, workgroup), geometry)
