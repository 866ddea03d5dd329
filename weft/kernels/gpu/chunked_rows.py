"""Chunks of rows on a GPU: row reductions and column sums at once, of rows that registers hold.

A lane meets the same columns in every row, so it alone keeps their running sums, in registers. A short row is one
subgroup's: the members of a workgroup take the rows of a chunk alternately (`row_sequence`), and add up their sums at
the end, in order of members. The next rows are read while a row is computed (`row_prefetch`). What all rows reduce with
is read once, and alignment is tested before the first row, so that no row tests it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.kernels.gpu.row_combination import Combination, OrderedCombination, TreeCombination
from weft.kernels.gpu.row_emission import TileEmission, aligned_to_vectors
from weft.kernels.gpu.row_kernel import RowKernel
from weft.kernels.gpu.row_ownership import TileElements
from weft.kernels.gpu.row_prefetch import SHARING_WORKGROUPS, PrefetchStaging
from weft.kernels.gpu.row_sequence import RowSequence, count_members
from weft.kernels.gpu.row_staging import RegisterStaging
from weft.kernels.gpu.statements import BEGIN, END, at, make_kernel, number, resolve_condition
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import Tile, is_gathered, loads_in
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Barrier,
    Copy,
    Geometry,
    If,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.nest import COMBINE, ColumnSum, Nest
from weft.kernels.ir.rewrite import substitute
from weft.kernels.numerics import MAX_CHUNK_MEMBERS, is_serial_row


class ChunkedRows:
    """The rows of a chunk, one after the other, by a workgroup or by each of its subgroups."""

    def __init__(self, nest: Nest, target: Target, tile: Tile, axis: Axis, by_subgroup: bool):
        self.target, self.tile, self.axis, self.by_subgroup = target, tile, axis, by_subgroup
        self.columns = nest.columns  # with the row's axis, which the nest has no more
        self.elements = TileElements(tile, axis, by_subgroup)
        nest = self.elements.map_nest(nest)
        self.members = count_members(self.columns, tile.size, target) if by_subgroup else 1
        self.member = at(Axis("member", MAX_CHUNK_MEMBERS, "value")) if self.members > 1 else ix.ZERO
        self.chunk = Axis("chunk", nest.points.extent)
        self.lane = Axis("number", self.members * tile.lanes) if by_subgroup else tile.lane  # of the workgroup
        self.sequence = RowSequence(nest.points, at(self.chunk), self.members, self.member)
        self.emission = TileEmission(self.elements, aligned_to_vectors(nest, tile))
        self.nest = substitute(nest, {nest.points: at(self.sequence.row)})
        registers = RegisterStaging(self.elements)
        self.registers = registers.registers
        self.staging = PrefetchStaging(self.elements, registers, self.sequence, self.members, self.member)
        combination: Combination = TreeCombination(target, self.elements)
        if is_serial_row(axis.extent):  # a lane has one element at most
            combination = OrderedCombination(self.elements, axis.extent)
        self.row = RowKernel(self.elements, self.staging, self.emission, combination)
        self.arrays: list[Local] = []

    @property
    def registers_per_lane(self) -> int:
        """Registers of a lane where `SHARING_WORKGROUPS` share a processor; 0 where that is not known."""
        lanes = SHARING_WORKGROUPS * self.members * self.tile.lanes
        return self.target.resident_registers * self.target.resident_lanes // lanes

    def kernel(self) -> Kernel:
        """The kernel: workgroups take chunks, members their rows."""
        self._choose_prefetch()
        early, ahead = self._emit_prefetch()
        once = self._read_once()
        clear, body, sums = self._emit_row()
        loop = Loop(self.sequence.iteration, 0, self.sequence.count, "serial", (*ahead, *body))
        chunk_body: tuple[Stmt, ...] = (*clear, *early, *once, loop, *self._store_sums(sums))
        if self.tile.vector_width > 1:
            condition = self.emission.aligned
            fast, slow = (resolve_condition(chunk_body, condition, truth) for truth in (True, False))
            chunk_body = (If(condition, fast, slow),)
        tasks = Loop(self.chunk, BEGIN, END, "task", chunk_body)
        lanes = self.lane.extent
        workgroup = Loop(self.lane, 0, lanes, "lanes", (tasks,), lanes)
        arrays = [*self.row.combination.arrays, *self.arrays, *self.staging.arrays]
        sharing = SHARING_WORKGROUPS if self.registers_per_lane >= self.target.tuning.chunk_registers else 0
        definitions = dict(self.nest.definitions)
        if self.by_subgroup:
            definitions["thread"] = number(self.lane % self.tile.lanes)
            definitions["member"] = number(self.lane // self.tile.lanes)
        nest = replace(self.nest, definitions={**definitions, **self.sequence.definitions})
        return make_kernel(nest, (*arrays, workgroup), Geometry(lanes, lanes, min_resident=sharing))

    # --- what is read, and when ---

    def _loads(self) -> list[Load]:
        """All that is read along a row."""
        nest = self.nest
        values = [value for stage in nest.stages for _, value in stage]
        values += [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        return [load for load in loads_in(values) if self.elements.is_own(load)]

    def _fits_registers(self, ahead: Iterable[Load]) -> bool:
        """Whether registers hold running sums, a row, what all rows use, and what is read `ahead`."""
        each = sum([load.dtype.itemsize for load in (*self._loads(), *ahead)])
        each += sum([column.accumulator.dtype.itemsize for column in self.nest.columns])
        least = self.target.tuning.chunk_registers
        registers = min(max(self.registers_per_lane, least), self.target.registers or least)
        return self.tile.per_lane * each <= self.target.tuning.staged_bytes_per_register * registers

    def _choose_prefetch(self) -> None:
        """Choose what is read while the rows before are computed, how many rows, and where they wait."""
        loads = [load for load in self._loads() if self.staging.comes_ahead(load, self.nest)]
        ahead = list({(load.buffer, load.index): load for load in loads}.values())
        if self._fits_registers(ahead):
            self.staging.keep_in_registers(ahead)
        elif self.by_subgroup and self.target.has_async_copies:
            self.staging.keep_in_shared_memory(ahead, self.target)

    def _emit_prefetch(self) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: what was read ahead is this row, and the next is read."""
        staging, either = self.staging, self.emission.branch_on_alignment
        if staging.stages:
            early, ahead = staging.prefetch_shared()
            return either(early, ()), either(ahead, ())
        if not staging.coming:
            return [], []
        loads = [load for load in self._loads() if (load.buffer, load.index) in staging.coming]
        row_pass, _ = staging.begin_pass(loads, 0, True)
        first, following = (
            either([staging.request(iteration)], ()) for iteration in (ix.ZERO, self.sequence.iteration + 1)
        )
        return [*staging.coming.values(), *first], [*self.emission.emit_loads(row_pass), *following]

    def _read_once(self) -> list[Stmt]:
        """What all rows reduce with stays in registers from one row to the next, and is read before the first."""
        loads = loads_in([value for stage in self.nest.stages for _, value in stage])
        own = [load for load in loads if self.elements.is_own(load)]
        same = [load for load in own if not ix.depends(load.index, self.sequence.row)]
        row_pass, _ = self.staging.begin_pass([load for load in same if not is_gathered(load, self.nest)], 0, True)
        return self.emission.emit_loads(row_pass)

    # --- running sums ---

    def _emit_row(self) -> tuple[list[Stmt], list[Stmt], list[Local]]:
        """What is done before the first row and at each, and the running sums."""
        nest, registers = self.nest, self.registers
        body = self.row.emit_reductions(nest)
        values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        row_pass, values = self.staging.begin_pass(values, len(nest.stages), True)
        self.staging.store(row_pass, nest.inner_stores, values)
        sums: list[Local] = []
        clear: list[Stmt] = []
        for k, column in enumerate(nest.columns):
            acc = column.accumulator
            sums.append(Local(f"sum{k}", acc.dtype, self.tile.per_lane, "lane"))
            total, out = registers.read(sums[-1]), Var(f"out{len(nest.inner_stores) + k}", acc.dtype)
            clear.append(Store(sums[-1].name, registers.slot, Literal(acc.identity, acc.dtype)))
            running = Op(COMBINE[acc.op], (total, out), acc.dtype)
            row_pass.body.append(Store(sums[-1].name, registers.slot, running))
        loads, rest = self.emission.emit_pass(lambda _: row_pass)
        body += [*loads, *rest]
        before = [*sums, *self.tile.unroll_steps(self.tile.unroll_vector(clear))]
        return before, self.row.end_row(nest, body), sums

    def _store_sums(self, sums: Sequence[Local]) -> list[Stmt]:
        """Running sums go to memory; those of several members are added up before, in order of members."""
        return self._add_members(sums) if self.members > 1 else self._store_own(sums)

    def _index_of(self, column: ColumnSum, element: Index) -> Index:
        return self.chunk * column.width + ix.substitute(column.index, {self.axis: element})

    def _store_own(self, sums: Sequence[Local]) -> list[Stmt]:
        stores = [
            Store(column.buffer, self._index_of(column, self.elements.position), self.registers.read(total))
            for total, column in zip(sums, self.columns, strict=True)
        ]
        is_vector = self.tile.is_vector_access
        vectors = [(total, store) for total, store in zip(sums, stores, strict=True) if is_vector(store)]
        others = [store for store in stores if not is_vector(store)]
        fast = self.elements.for_each_vector([self.registers.store_vector(total, store) for total, store in vectors])
        slow = self.elements.for_each([store for _, store in vectors])
        return [*self.emission.branch_on_alignment(fast, slow), *self.elements.for_each(others)]

    def _add_members(self, sums: Sequence[Local]) -> list[Stmt]:
        """Every lane adds up some columns. The members' sums of one column sum lie in shared memory at a time."""
        tile, members, extent = self.tile, self.members, self.axis.extent
        lanes = members * tile.lanes
        part, giver = Axis("part", -(-extent // lanes)), Axis("giver", members)
        element = part * lanes + self.lane
        slot, position = tile.first(self.registers.slot), tile.first(self.elements.position)
        out: list[Stmt] = []
        kinds = dict.fromkeys([total.dtype for total in sums])
        self.arrays = [Local(f"{kind.name}_sums", kind, members * tile.size) for kind in kinds]
        for total, column in zip(sums, self.columns, strict=True):
            array, acc = f"{total.dtype.name}_sums", replace(column.accumulator, name=f"{total.name}_all")
            value = Load(array, giver * tile.size + element, total.dtype)
            reduction = Reduction((acc,), (Loop(giver, 0, members, "serial", (Update(acc.name, value),)),))
            store = Store(column.buffer, self._index_of(column, element), Var(acc.name, acc.dtype))
            one: tuple[Stmt, ...] = (reduction, store)
            if part.extent * lanes != extent:
                one = (If(number(element) < extent, one),)
            own = self.member * tile.size + position
            out += self.elements.for_each_vector([Copy(array, own, total.name, slot, tile.vector_width, total.dtype)])
            out += [Barrier(), Loop(part, 0, part.extent, "serial", one), Barrier()]
        return out
