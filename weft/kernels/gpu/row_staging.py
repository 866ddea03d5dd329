"""Staging: where a lane finds the elements of its row again, which several passes over the row need.

- `DirectStaging`: nowhere; every pass reads memory as its values say (rows with ends known only at run time).
- `RegisterStaging`: in private arrays of the lane, for all passes.
- `RereadStaging`: in private arrays for one round of one pass; the next pass reads memory again.
- `shared_staging.SharedStaging`: in shared memory, as far as that goes; `row_prefetch.PrefetchStaging`: registers which
  are filled while the row before is computed.

A staging rewrites values: `begin_pass` takes what a pass computes and gives a `RowPass` with the loads it still needs
and the values in terms of what is staged. It knows which elements a lane has, but not how they are looped over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from weft.kernels.gpu.row_ownership import RoundElements, TileElements
from weft.kernels.gpu.statements import name_values
from weft.kernels.gpu.tile import VectorAccess, loads_in, replace_loads
from weft.kernels.ir.language import Copy, Expr, Local, Stmt, Store
from weft.kernels.ir.nest import store_after_evaluation


@dataclass(slots=True, eq=False)
class RowPass:
    """One pass over a row, for a lane: its private arrays, what fills them, what it does with each element, and what
    empties them. Vector loads and stores are for one step, everything else for one element; `unaligned` ones take the
    place of vectors where buffers are not aligned, and `element_loads` never go by vectors."""

    arrays: list[Local] = field(default_factory=list)
    vector_loads: list[Copy] = field(default_factory=list)
    unaligned_loads: list[Stmt] = field(default_factory=list)
    element_loads: list[Stmt] = field(default_factory=list)
    body: list[Stmt] = field(default_factory=list)
    vector_stores: list[Copy] = field(default_factory=list)
    unaligned_stores: list[Stmt] = field(default_factory=list)


class Staging(Protocol):
    """What the emission of a row needs of a staging."""

    @property
    def arrays(self) -> Sequence[Local]:
        """Shared arrays."""

    @property
    def workgroups_per_processor(self) -> int:
        """Workgroups that should find room on one processor; 0: that is left to the compiler."""

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        """Pass `number` over the row, which needs `values`: the loads of what is not staged yet, and the values in
        terms of what is. `retained`: over elements that stay staged between passes."""

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        """Store `values` where `stores` say; values beyond those are named only."""


class DirectStaging:
    """Memory is read where values say, again in every pass."""

    arrays: ClassVar[tuple[Local, ...]] = ()
    workgroups_per_processor: ClassVar[int] = 0

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        return RowPass(), list(values)

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        row_pass.body += store_after_evaluation(
            [replace(store, value=value) for store, value in zip(stores, values, strict=True)]
        )


@dataclass(slots=True, eq=False)
class RegisterStaging:
    """What a lane reads stays in private arrays, for all passes."""

    elements: TileElements | RoundElements
    registers: VectorAccess = field(init=False)
    known: dict[tuple, Expr] = field(default_factory=dict)  # loads that private arrays hold, by (buffer, index)
    arrays: ClassVar[tuple[Local, ...]] = ()
    workgroups_per_processor: ClassVar[int] = 0

    def __post_init__(self) -> None:
        tile = self.elements.tile
        self.registers = VectorAccess(tile, tile.slot, tile.per_lane)

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        row_pass, registers = RowPass(), self.registers
        for load in loads_in(values):
            if not self.elements.is_own(load) or (load.buffer, load.index) in self.known:
                continue
            array = registers.array(load.buffer, load.dtype)
            row_pass.arrays.append(array)
            self.known[load.buffer, load.index] = registers.read(array)
            if self.elements.tile.is_vector_access(load):
                row_pass.vector_loads.append(registers.load_vector(array, load))
                row_pass.unaligned_loads.append(registers.load_element(array, load))
            else:
                row_pass.element_loads.append(registers.load_element(array, load))
        return row_pass, replace_loads(values, self.known)

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        registers, tile = self.registers, self.elements.tile
        vectors = [tile.is_vector_access(store) for store in stores]
        outgoing = [registers.defer_rounding(v) if vector else v for v, vector in zip(values, vectors, strict=False)]
        lets, outs = name_values([*outgoing, *values[len(stores) :]])
        row_pass.body += lets
        for store, out, vector in zip(stores, outs, vectors, strict=False):
            if vector:
                array = registers.array(store.buffer, out.dtype)
                row_pass.arrays.append(array)
                row_pass.body.append(Store(array.name, registers.slot, out))
                row_pass.vector_stores.append(registers.store_vector(array, store))
                row_pass.unaligned_stores.append(registers.store_element(array, store))
            else:
                row_pass.body.append(replace(store, value=out))

    def clear(self) -> None:
        """Nothing is in registers."""
        self.known.clear()
        self.registers.names.clear()


@dataclass(slots=True, eq=False)
class RereadStaging:
    """Registers hold one round of one pass: every pass reads memory again."""

    registers: RegisterStaging
    arrays: ClassVar[tuple[Local, ...]] = ()
    workgroups_per_processor: ClassVar[int] = 0

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        self.registers.clear()
        return self.registers.begin_pass(values, number, retained)

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        self.registers.store(row_pass, stores, values)
