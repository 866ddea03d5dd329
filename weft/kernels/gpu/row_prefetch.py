"""PrefetchStaging: the next rows of a chunk are read while a row is computed.

Where registers hold two rows, the next row is loaded into private arrays. Where they do not, the workgroups of a
processor hide each other's latency; subgroups, of which fewer share a processor, copy the next rows into shared memory
where copies are asynchronous: of the row of iteration t, each lane finds its own elements in stage t % stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from weft.kernels.gpu.row_ownership import TileElements
from weft.kernels.gpu.row_sequence import RowSequence
from weft.kernels.gpu.row_staging import RegisterStaging, RowPass
from weft.kernels.gpu.statements import at, number64
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import is_gathered
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import AsyncCopy, AwaitCopies, Copy, Expr, If, Load, Local, Stmt, Store
from weft.kernels.ir.nest import Nest

STAGES = (2, 4)
RESERVED_BYTES = 18432  # of shared memory for what members add up
SHARING_WORKGROUPS = 2  # that should find room on one processor
ASYNC_COPY_BYTES = (4, 8, 16)  # that one copy into shared memory may have


@dataclass(slots=True, eq=False)
class PrefetchStaging:
    """Registers for the row at hand, and arrays for rows to come."""

    elements: TileElements
    registers: RegisterStaging
    sequence: RowSequence
    members: int  # subgroups that share the chunk
    member: Index  # which of them this is
    coming: dict[tuple, Local] = field(default_factory=dict)  # arrays of loads that come ahead, by (buffer, index)
    stages: int = 0  # rows that these hold, in shared memory; 0: one, in registers
    workgroups_per_processor: ClassVar[int] = 0

    @property
    def arrays(self) -> Sequence[Local]:
        return list(self.coming.values()) if self.stages else ()

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        row_pass, values = self.registers.begin_pass(values, number, retained)
        tile = self.elements.tile
        coming = {(buffer, tile.first(index)): array for (buffer, index), array in self.coming.items()}
        row_pass.vector_loads = [
            self._redirect(copy, coming.get((copy.source, copy.index))) for copy in row_pass.vector_loads
        ]
        return row_pass, values

    def _redirect(self, copy: Copy, array: Local | None) -> Copy:
        """A copy that takes what came ahead, if its source did."""
        if array is None:
            return copy
        return replace(copy, source=array.name, index=self._slot(at(self.sequence.iteration)))

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        self.registers.store(row_pass, stores, values)

    # --- what comes ahead ---

    def comes_ahead(self, load: Load, nest: Nest) -> bool:
        """Whether a load is of the row itself, in accesses that may be asynchronous copies."""
        tile = self.elements.tile
        fits = tile.vector_width * load.dtype.itemsize in ASYNC_COPY_BYTES
        is_vector = fits and not is_gathered(load, nest) and tile.is_vector_access(load)
        return is_vector and ix.depends(load.index, self.sequence.row)

    def keep_in_registers(self, loads: Sequence[Load]) -> None:
        """The next row waits in private arrays."""
        size = self.elements.tile.per_lane
        self._add_arrays(loads, size, "lane")

    def keep_in_shared_memory(self, loads: Sequence[Load], target: Target) -> None:
        """As many of the next rows as should be in flight wait in shared memory; none where there is no room."""
        size = self.members * self.elements.tile.size
        row = sum([size * load.dtype.itemsize for load in loads])
        most = target.shared_bytes // SHARING_WORKGROUPS - RESERVED_BYTES
        fitting = [stages for stages in STAGES if stages * row <= most]
        if fitting:
            self.stages = next((n for n in fitting if (n - 1) * row >= target.tuning.min_prefetch_bytes), fitting[-1])
            self._add_arrays(loads, self.stages * size, "launch")

    def _add_arrays(self, loads: Sequence[Load], size: int, scope: str) -> None:
        for k, load in enumerate(loads):
            self.coming[load.buffer, load.index] = Local(f"ahead{k}", load.dtype, size, scope)

    def prefetch_shared(self) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: the row that comes in `stages - 1` iterations is requested,
        and this one is waited for."""
        early: list[Stmt] = []
        for k in range(self.stages - 1):
            early += [self.request(ix.const(k)), AwaitCopies(self.stages)]
        ahead = self.request(self.sequence.iteration + (self.stages - 1))
        return early, [ahead, AwaitCopies(self.stages - 1)]

    def request(self, iteration: Index) -> If:
        """Begin to read the row of `iteration`, if there is one."""
        elements = self.elements
        width, row = elements.tile.vector_width, at(self.sequence.row_of(iteration))
        copies: list[Stmt] = []
        for (buffer, index), array in self.coming.items():
            slot, source = self._slot(iteration), elements.tile.first(ix.substitute(index, {self.sequence.row: row}))
            if self.stages:
                copies.append(AsyncCopy(array.name, slot, buffer, source, width, width, True))
            else:
                copies.append(Copy(array.name, slot, buffer, source, width, array.dtype))
        exists = number64(iteration) < self.sequence.count
        return If(exists, tuple(elements.for_each_vector(copies)))

    def _slot(self, iteration: Index) -> Index:
        """Where a lane's vector of the row of `iteration` lies."""
        tile = self.elements.tile
        if not self.stages:
            return tile.first(self.registers.registers.slot)
        stage = iteration % self.stages * self.members + self.member
        return stage * tile.size + tile.first(self.elements.position)
