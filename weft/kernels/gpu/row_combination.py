"""Partial results of the lanes of a row become one result in every lane, in an order that follows from sizes alone.

`TreeCombination` combines by halves: lanes of a subgroup exchange values, subgroups meet in shared memory. Without
subgroups all lanes meet there. `OrderedCombination` is for short rows, of which a lane has one element at most: they
are added in order, so that their bits are those of one lane that reduces the row alone. What was reduced, and how lanes
came to their partial results, is known to neither: they take `NAME_part` and leave `NAME`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from weft.base.dtypes import DType, int32
from weft.kernels.gpu.row_ownership import Ownership
from weft.kernels.gpu.statements import at, number, unroll
from weft.kernels.gpu.target import Target
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Barrier,
    Copy,
    Expr,
    If,
    Let,
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
from weft.kernels.ir.nest import COMBINE


class Combination(Protocol):
    """How partial results become one."""

    arrays: list[Local]  # shared, where lanes leave their partial results

    def combine(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """One result of each accumulator, in every lane, from the partial ones of all."""

    def needs_barrier(self, stages: int) -> bool:
        """Whether, after a row of so many stages, lanes must wait before they write to `arrays` again."""


@dataclass(slots=True, eq=False)
class TreeCombination:
    """By halves: of the lanes of a subgroup, then of the subgroups of a workgroup."""

    target: Target
    elements: Ownership
    arrays: list[Local] = field(default_factory=list)

    def needs_barrier(self, stages: int) -> bool:
        return stages == 1 and self.target.subgroup_size > 0 and not self.elements.by_subgroup

    def combine(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        size, lanes = self.target.subgroup_size, self.elements.lanes
        if size * size < lanes:  # a subgroup has no lane for each of the subgroups
            return self._combine_in_memory(accumulators)
        groups = lanes // size
        if groups <= 1:
            return [Let(acc.name, _exchange(Var(f"{acc.name}_part", acc.dtype), acc, size)) for acc in accumulators]
        kinds: dict[tuple[str, DType], list[Accumulator]] = {}
        for acc in accumulators:
            kinds.setdefault((acc.op, acc.dtype), []).append(acc)
        writes: list[Stmt] = []
        reads: list[Stmt] = []
        for same in kinds.values():
            for first in range(0, len(same), size):
                write, read = self._combine_subgroups(same[first : first + size], groups)
                writes += write
                reads += read
        return [*writes, Barrier(), *reads]

    def _combine_subgroups(self, same: Sequence[Accumulator], groups: int) -> tuple[list[Stmt], list[Stmt]]:
        """What subgroups write to shared memory, of reductions of one kind, and what each lane makes of it."""
        size, (first, *_) = self.target.subgroup_size, same
        lane, group = self.elements.lane % size, self.elements.lane // size
        slots = 1 << (len(same) - 1).bit_length()
        stride = size // slots
        array = self._share(f"{first.name}_groups", first.dtype, slots * groups)
        value = _distribute([Var(f"{acc.name}_part", acc.dtype) for acc in same], first, size, lane)
        let = Let(f"{first.name}_group", value)
        store = Store(array, lane // stride * groups + group, Var(let.name, first.dtype))
        write: list[Stmt] = [let, If(number(lane % stride).eq(0), (store,))]
        return write, [s for k, acc in enumerate(same) for s in self._read_subgroups(array, k * groups, acc, groups)]

    def _read_subgroups(self, array: str, begin: int, acc: Accumulator, groups: int) -> list[Stmt]:
        """What subgroups left in `array` from `begin` on, combined by halves: few by each lane alone, which waits for
        one access instead of one exchange after the other; many by the lanes of a subgroup."""
        name = f"{acc.name}_given"
        if groups > self.target.tuning.max_subgroup_sums:
            one = Let(name, Load(array, self.elements.lane % groups + begin, acc.dtype))
            return [one, Let(acc.name, _exchange(Var(name, acc.dtype), acc, groups))]
        width = max(min(groups, self.target.access_bytes // acc.dtype.itemsize), 1)
        zero = Index((), 0)
        copies = [Copy(name, zero + k, array, zero + (begin + k), width, acc.dtype) for k in range(0, groups, width)]
        values: list[Expr] = [Load(name, zero + k, acc.dtype) for k in range(groups)]
        while len(values) > 1:
            half = len(values) // 2
            values = [Op(COMBINE[acc.op], pair, acc.dtype) for pair in zip(values[:half], values[half:], strict=True)]
        return [Local(name, acc.dtype, groups, "lane"), *copies, Let(acc.name, values[0])]

    def _combine_in_memory(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """Partial results of all lanes, then of `groups` lanes, then one, in every lane.

        Each of the two arrays is written again only behind a barrier that all its readers have reached.
        """
        lanes, lane = self.elements.lanes, self.elements.lane
        groups = 1 << (lanes.bit_length() // 2)
        each, among = Axis("k", lanes // groups), Axis("k", groups)
        grouped = tuple([replace(acc, name=f"{acc.name}_group") for acc in accumulators])
        source = each * groups + lane
        every, some, steps, last = [], [], [], []
        for acc in accumulators:
            all_lanes = self._share(f"{acc.name}_all", acc.dtype, lanes)
            all_groups = self._share(f"{acc.name}_few", acc.dtype, groups)
            every.append(Store(all_lanes, lane, Var(f"{acc.name}_part", acc.dtype)))
            steps.append(Update(f"{acc.name}_group", Load(all_lanes, source, acc.dtype)))
            some.append(Store(all_groups, lane, Var(f"{acc.name}_group", acc.dtype)))
            last.append(Update(acc.name, Load(all_groups, at(among), acc.dtype)))
        halfway = Reduction(grouped, (Loop(each, 0, each.extent, "serial", tuple(steps)),))
        return [
            *every,
            Barrier(),
            If(number(lane) < groups, (halfway, *some)),
            Barrier(),
            Reduction(tuple(accumulators), (Loop(among, 0, groups, "serial", tuple(last)),)),
        ]

    def _share(self, name: str, dtype: DType, size: int) -> str:
        self.arrays.append(Local(name, dtype, size))
        return name


@dataclass(slots=True, eq=False)
class OrderedCombination:
    """In order of the row's `extent` elements, of which each lane has one at most."""

    elements: Ownership
    extent: int
    arrays: list[Local] = field(default_factory=list)

    def needs_barrier(self, stages: int) -> bool:
        return stages == 1 and not self.elements.by_subgroup

    def combine(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        giver = Axis("giver", self.extent)
        stores: list[Stmt] = []
        reductions: list[Stmt] = []
        for acc in accumulators:
            part = Var(f"{acc.name}_part", acc.dtype)
            if self.elements.by_subgroup:
                value = _from_lane("broadcast", part, number(at(giver)))
            else:
                array = Local(f"{acc.name}_all", acc.dtype, self.elements.lanes)
                self.arrays.append(array)
                stores.append(Store(array.name, self.elements.lane, part))
                value = Load(array.name, at(giver), acc.dtype)
            reductions.append(Reduction((acc,), unroll(giver, 0, giver.extent, (Update(acc.name, value),))))
        return [*stores, *([Barrier()] if stores else ()), *reductions]


# --- inside a subgroup -----------------------------------------------------------------------------------------------


def _exchange(value: Expr, acc: Accumulator, lanes: int) -> Expr:
    """`value` combined over so many lanes, by halves; every lane has the same result."""
    while lanes > 1:
        lanes //= 2
        value = _combine_with(value, value, acc, lanes)
    return value


def _distribute(values: Sequence[Expr], acc: Accumulator, lanes: int, lane: Index) -> Expr:
    """Each of `values` combined over so many lanes, by halves, as `_exchange` does it. Of two values, the lower half
    of the lanes continues with the one and the upper half with the other, and passes on what it does not keep: an
    exchange serves both. So the lanes from k * lanes / slots on have value k, with a power of two of slots."""
    slots = 1 << (len(values) - 1).bit_length()
    while slots > 1:
        slots, lanes = slots // 2, lanes // 2
        upper = number(lane // lanes % 2).eq(1)
        halves: list[Expr] = []
        for k, low in enumerate(values[:slots]):
            high = values[k + slots] if k + slots < len(values) else low
            kept, passed = (upper.select(a, b) for a, b in ((high, low), (low, high)))
            single = high is low
            halves.append(_combine_with(low, low, acc, lanes) if single else _combine_with(kept, passed, acc, lanes))
        values = halves
    return _exchange(values[0], acc, lanes)


def _combine_with(kept: Expr, passed: Expr, acc: Accumulator, distance: int) -> Expr:
    """What is kept, combined with what the lane at `distance` passes."""
    return Op(COMBINE[acc.op], (kept, _from_lane("exchange", passed, Literal(distance, int32))), acc.dtype)


def _from_lane(operation: str, value: Expr, lane: Expr) -> Expr:
    """A value of another lane of the subgroup. What is smaller than 32 bits goes as 32 bits."""
    if value.dtype.itemsize >= 4:
        return Op(operation, (value, lane), value.dtype)
    return Op(operation, (value.cast(int32), lane), int32).cast(value.dtype)
