"""SharedStaging: long rows in shared memory, because no lane has registers for all its elements.

What several passes read of a row, and what they would compute again, stays in shared memory if there is enough; there
each lane touches its own slots only, so no lane has to wait for another. Copies on their way need no registers, so a
whole row can be in flight. Where a row is too long, its first rounds are staged and the others are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weft.base.dtypes import DType, bfloat16
from weft.kernels.gpu.row_ownership import RoundElements
from weft.kernels.gpu.row_staging import RegisterStaging, RowPass
from weft.kernels.gpu.target import Target
from weft.kernels.gpu.tile import is_gathered, loads_in
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import AsyncCopy, Expr, If, Let, Load, Local, Op, Stmt, Store, Var, pool_bytes
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.rewrite import parts_of, replace_parts
from weft.kernels.math import float16
from weft.kernels.numerics import CHAIN, MAX_SHARING_WORKGROUPS, RESERVED_ROW_BYTES, STAGED_RECOMPUTE_COST

# Operations that count for as many.
EXPENSIVE_OPERATIONS = ("exp", "exp_rounded", "log", "log1p", "expm1", "tanh", "erf", "div", "sqrt")


@dataclass(slots=True, eq=False)
class SharedStaging:
    """What several passes read, in shared memory; the rest in registers for one round of one pass."""

    target: Target
    elements: RoundElements
    registers: RegisterStaging
    rounds: int  # of the row that are staged, from its beginning: as many as there is room for
    loads: dict[tuple, Local]  # those that shared memory holds, by (buffer, index)
    computed: dict[Expr, Local]  # values that are not computed again, in arrays that their last reader has left
    computed_in: dict[Expr, int] = field(default_factory=dict)  # the pass that computes each of those

    @property
    def arrays(self) -> list[Local]:
        return list(self.loads.values())

    @property
    def workgroups_per_processor(self) -> int:
        nbytes = sum([pool_bytes(array) for array in self.arrays])
        by_lanes = self.target.resident_lanes // self.elements.lanes
        by_memory = self.target.shared_bytes // (nbytes + RESERVED_ROW_BYTES)
        return min(by_lanes, by_memory, MAX_SHARING_WORKGROUPS)

    def begin_pass(self, values: Sequence[Expr], number: int, retained: bool) -> tuple[RowPass, list[Expr]]:
        self.registers.clear()
        if not retained:
            return self.registers.begin_pass(values, number, retained)
        new = [value for value in self.computed if self.computed_in[value] == number]
        row_pass, rewritten = self.registers.begin_pass(
            replace_parts([*new, *values], self._staged_values([*new, *values], number)), number, retained
        )
        names: dict[Expr, Expr] = {}
        for k, (value, made) in enumerate(zip(new, rewritten, strict=False)):
            row_pass.body.append(Let(f"dear{k}", made))
            names[made] = Var(f"dear{k}", made.dtype)
            array = self.computed[value]
            out = float16.pack(names[made], array.dtype) if array.dtype.is_16_bit else names[made]
            self.store(row_pass, [Store(array.name, self.elements.own_slot, out)], [out])
        return row_pass, replace_parts(rewritten[len(new) :], names)

    def _staged_values(self, values: Sequence[Expr], number: int) -> dict[Expr, Expr]:
        """Loads from shared memory that take the place of parts of `values` in pass `number`."""
        slot = self.elements.own_slot
        swaps: dict[Expr, Expr] = {}
        for part in parts_of(values):
            if isinstance(part, Load) and part.mask is None and (part.buffer, part.index) in self.loads:
                array = self.loads[part.buffer, part.index]
                swaps[part] = Load(array.name, slot, array.dtype)
        for value, array in self.computed.items():
            if self.computed_in[value] < number:
                load = Load(array.name, slot, array.dtype)
                swaps[value] = float16.unpack(load) if array.dtype.is_16_bit else load
        return swaps

    def store(self, row_pass: RowPass, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        self.registers.store(row_pass, stores, values)

    def copies(self, aligned: bool) -> tuple[list[Stmt], list[Stmt]]:
        """Copies into the slots of one step, of a round that is the row's as a whole and of another."""
        elements, tile = self.elements, self.elements.tile
        width, extent = tile.vector_width, elements.axis.extent
        start = elements.first_position
        valid = (extent - start).min(width)
        whole: list[Stmt] = []
        edge: list[Stmt] = []
        for (buffer, index), array in self.loads.items():
            if width > 1 and self.registers.registers.is_contiguous(index):
                to, source = tile.first(elements.own_slot), tile.first(index)
                fetch = AsyncCopy(
                    array.name, to, buffer, source, width, width, aligned and width * array.dtype.itemsize >= 4
                )
                whole.append(fetch)
                part = replace(fetch, valid=valid, aligned=False, position=start.index)
                edge.append(If(start < extent, (part,)))
            else:
                one = AsyncCopy(array.name, elements.own_slot, buffer, index, 1, 1)
                whole += tile.unroll_vector([one])
                edge += tile.unroll_vector([If(elements.inside, (one,))])
        return whole, edge


# --- choosing what is staged -----------------------------------------------------------------------------------------


def choose_staging(
    nest: Nest, target: Target, elements: RoundElements, registers: RegisterStaging
) -> SharedStaging | None:
    """Stage what several passes read of each row, and what they would compute again, as far as shared memory goes;
    None where there is nothing, or no room."""
    passes = [[value for _, value in stage] for stage in nest.stages]
    passes.append([*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]])
    again = find_recomputed(passes, elements.is_own)
    uses: dict[tuple, list[int]] = {}
    found: dict[tuple, Load] = {}
    for number, values in enumerate(passes):
        values = replace_parts(
            values, {value: Var("", value.dtype) for value, first in again.items() if first < number}
        )
        for load in loads_in(values):
            if elements.is_own(load) and ix.depends(load.index, nest.points) and not is_gathered(load, nest):
                uses.setdefault((load.buffer, load.index), []).append(number)
                found[load.buffer, load.index] = load
    staged = {key: load for key, load in found.items() if len(uses[key]) > 1}
    rounds, size = _staged_rounds(elements, target, sum([load.dtype.itemsize for load in staged.values()]))
    if not staged or not rounds:
        return None
    arrays = {key: Local(f"row{k}", load.dtype, size, "launch") for k, (key, load) in enumerate(staged.items())}
    staging = SharedStaging(target, elements, registers, rounds, arrays, {})
    free = [(array, uses[key][-1]) for key, array in arrays.items()]
    for value, first in again.items():
        dtype = lossless_dtype(value)
        slot = next((pair for pair in free if pair[0].dtype.itemsize == dtype.itemsize and pair[1] <= first), None)
        if slot is not None and slot[0].dtype is dtype:
            free.remove(slot)
            staging.computed[value], staging.computed_in[value] = slot[0], first
    return staging


def _staged_rounds(elements: RoundElements, target: Target, nbytes: int) -> tuple[int, int]:
    """How many rounds find room at `nbytes` for each element, and the elements that their arrays need."""
    tile, rounds = elements.tile, elements.round.extent
    size = -(-elements.reach // tile.vector_width) * tile.vector_width
    room = max(target.shared_bytes - RESERVED_ROW_BYTES, 0)
    if size * nbytes <= room:
        return rounds, size
    chain_rounds = CHAIN // tile.per_lane if rounds * tile.per_lane > CHAIN else 1  # as `cascade` has it
    rounds = room // (nbytes * tile.size) // chain_rounds * chain_rounds
    return rounds, rounds * tile.size


def lossless_dtype(value: Expr) -> DType:
    """The dtype in which a value can be kept without loss."""
    return bfloat16 if isinstance(value, Op) and value.name == "round_bfloat16" else value.dtype


def find_recomputed(passes: Sequence[Sequence[Expr]], is_own: Callable[[Load], bool]) -> dict[Expr, int]:
    """Values that vary along a row, are expensive, and that a later pass needs again; and the pass that has them
    first."""
    first: dict[int, int] = {}
    cost: dict[int, int] = {}
    again: dict[Expr, int] = {}
    for number, values in enumerate(passes):
        pending, seen = list(values), set()
        while pending:
            value = pending.pop()
            if id(value) in seen or not isinstance(value, Op):
                continue
            seen.add(id(value))
            if first.get(id(value), number) < number and cost[id(value)] >= STAGED_RECOMPUTE_COST:
                again[value] = first[id(value)]
            else:
                pending.extend(value.args)
        for part in parts_of(values):
            first.setdefault(id(part), number)
            cost[id(part)] = _recompute_cost(part, cost, is_own)
    return again


def _recompute_cost(part: Expr, cost: dict[int, int], is_own: Callable[[Load], bool]) -> int:
    """What it costs to compute a part again, from the `cost` of its arguments; far below 0 where it is the same all
    along the row."""
    constant = -STAGED_RECOMPUTE_COST * STAGED_RECOMPUTE_COST
    if isinstance(part, Load):
        return 0 if is_own(part) else constant
    if not isinstance(part, Op):
        return constant + 1
    below = max([cost[id(arg)] for arg in part.args])
    return below + (STAGED_RECOMPUTE_COST if part.name in EXPENSIVE_OPERATIONS else 1)
