"""Long rows on a GPU: in rounds of a few steps, because no thread has registers for all its elements.

What several walks read of a row, and what they would compute again, stays in shared memory if there is enough; there
each thread touches its own places only, so nobody has to wait.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weft.dtypes import DType, bfloat16
from weft.kernels import index as ix
from weft.kernels import narrow
from weft.kernels.gpu_tile import (
    Near,
    Target,
    Tile,
    at,
    loads_in,
    serial,
)  # fmt: skip
from weft.kernels.gpu_walk import TiledRow, Walk
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Expr,
    Fold,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Var,
    pool_bytes,
)
from weft.kernels.nest import Nest, Span
from weft.kernels.substitute import parts_of, replaced

DEAR = 8  # operations on the way to a value from which reading it back beats computing it again
SLOW = ("exp", "log", "log1p", "expm1", "tanh", "erf", "div", "sqrt")  # which count for as many
RESERVED = 2048  # bytes of shared memory for partial results
IN_FLIGHT = 8  # elements of a thread that are under way at once
SHARING = 2  # blocks that should find room side by side: while one computes, the other reads


def held_as(value: Expr) -> DType:
    """The dtype in which a value can be kept without loss."""
    return bfloat16 if isinstance(value, Op) and value.name == "round_bfloat16" else value.dtype


def computed_again(walks: Sequence[Sequence[Expr]], varies: Callable[[Load], bool]) -> dict[Expr, int]:
    """Values that vary along a row, are dear, and that a later walk needs again; and the walk that has them first."""
    first: dict[int, int] = {}
    cost: dict[int, int] = {}
    again: dict[Expr, int] = {}
    for walk, values in enumerate(walks):
        pending, seen = list(values), set()
        while pending:
            value = pending.pop()
            if id(value) in seen or not isinstance(value, Op):
                continue
            seen.add(id(value))
            if first.get(id(value), walk) < walk and cost[id(value)] >= DEAR:
                again[value] = first[id(value)]
            else:
                pending.extend(value.args)
        for part in parts_of(values):
            first.setdefault(id(part), walk)
            if isinstance(part, Load):
                cost[id(part)] = 0 if varies(part) else -DEAR * DEAR
            else:
                below = [cost[id(arg)] for arg in part.args] if isinstance(part, Op) else [-DEAR * DEAR]
                cost[id(part)] = max(below) + (DEAR if isinstance(part, Op) and part.name in SLOW else 1)
    return again


@dataclass(slots=True, eq=False)
class LongRow(TiledRow):
    """A long row, in rounds of a few steps: what several walks read is kept in shared memory if there is enough, else
    read again."""

    whole: Tile = field(init=False)  # the row; `tile` is one round of it
    kept: dict[tuple, Local] = field(default_factory=dict)  # loads that shared memory holds, by (buffer, index)
    dear: dict[Expr, Local] = field(default_factory=dict)  # and values that are not computed again
    first: dict[Expr, int] = field(default_factory=dict)  # the walk that computes each of those
    filler: dict[tuple, int] = field(default_factory=dict)  # the walk that brings each load
    kept_rounds: int = 0  # of the row, from its beginning: as many as there is room for
    keeping: bool = True  # whether the rounds that are written now are among these
    walk: int = 0  # the number of the walk that is written now

    @staticmethod
    def of(nest: Nest, target: Target, tile: Tile, outer: tuple[Span, ...], across: Span) -> tuple[Nest, LongRow]:
        steps = min(max(IN_FLIGHT // tile.near, 1), tile.steps)
        row = LongRow(target, replace(tile, steps=steps), outer, across)
        row.whole = tile
        row.near = Near(row.tile, row.tile.slot, row.tile.each)
        nest = row.prepare(nest, ix.add(ix.scale(at(row.round), row.tile.size), row.tile.element(row.thread)))
        if not outer and not row.by_subgroup:
            row.choose(nest)
        return nest, row

    @property
    def round(self) -> Axis:
        return Axis("round", -(-self.whole.steps // self.tile.steps))

    def choose(self, nest: Nest) -> None:
        """Keep what several walks read of each row, and what they would compute again, as far as shared memory goes."""
        walks = [[value for _, value in stage] for stage in nest.stages]
        walks.append([*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]])
        again = computed_again(walks, lambda load: self.varies(load))
        uses: dict[tuple, list[int]] = {}
        found: dict[tuple, Load] = {}
        for walk, values in enumerate(walks):
            values = replaced(values, {value: Var("", value.dtype) for value, first in again.items() if first < walk})
            for load in loads_in(values):
                if self.varies(load) and ix.depends(load.index, nest.points):
                    uses.setdefault((load.buffer, load.index), []).append(walk)
                    found[load.buffer, load.index] = load
        wanted = {key: load for key, load in found.items() if len(uses[key]) > 1}
        budget = max(self.target.shared_bytes // SHARING - RESERVED, 0)
        each = sum([self.tile.size * load.dtype.itemsize for load in wanted.values()])
        self.kept_rounds, size = self.round.extent, self.whole.size
        if sum([self.whole.size * load.dtype.itemsize for load in wanted.values()]) > budget:
            self.kept_rounds = budget // each
            size = self.kept_rounds * self.tile.size
        if not self.kept_rounds or not wanted:
            self.kept_rounds = 0
            return
        for key, load in wanted.items():
            self.kept[key] = Local(f"row{len(self.kept)}", load.dtype, size, "launch")
            self.filler[key] = uses[key][0]
        free = [(array, uses[key][-1]) for key, array in self.kept.items()]
        for value, first in again.items():
            dtype = held_as(value)
            place = next((pair for pair in free if pair[0].dtype.itemsize == dtype.itemsize and pair[1] <= first), None)
            if place is not None and place[0].dtype is dtype:
                free.remove(place)
                self.dear[value], self.first[value] = place[0], first

    @property
    def own_place(self) -> Index:
        """Of a thread's element in an array of the row: neighbouring threads touch neighbours."""
        slot = ix.add(ix.scale(at(self.round), self.tile.each), self.tile.slot)
        return ix.add(ix.scale(slot, self.tile.threads), self.thread)

    def begun(self, values: Sequence[Expr]) -> tuple[Walk, list[Expr]]:
        self.known.clear()
        self.near.names.clear()
        if not self.keeping:
            return TiledRow.begun(self, values)
        swaps: dict[Expr, Expr] = {}
        for value, array in self.dear.items():
            if self.first[value] < self.walk:
                load = Load(array.name, self.own_place, array.dtype)
                swaps[value] = narrow.unpacked(load) if array.dtype.is_narrow else load
        values = replaced(values, swaps)
        now = [value for value in self.dear if self.first[value] == self.walk]
        for key, array in self.kept.items():
            if self.filler[key] < self.walk:
                self.known[key] = Load(array.name, self.own_place, array.dtype)
        walk, rewritten = TiledRow.begun(self, [*now, *values])
        for key, array in self.kept.items():
            if self.filler[key] == self.walk:
                walk.inner.append(Store(array.name, self.own_place, self.known[key]))
        names: dict[Expr, Expr] = {}
        for k, (value, made) in enumerate(zip(now, rewritten, strict=False)):
            walk.inner.append(Let(f"dear{k}", made))
            names[made] = Var(f"dear{k}", made.dtype)
            array = self.dear[value]
            out = narrow.packed(names[made], array.dtype) if array.dtype.is_narrow else names[made]
            walk.last.append(Store(array.name, self.own_place, out))
        return walk, replaced(rewritten[len(now) :], names)

    def launched(self, nest: Nest, body: tuple[Stmt, ...], each: Axis) -> Kernel:
        self.locals += self.kept.values()
        made = TiledRow.launched(self, nest, body, each)
        assert made.geometry is not None
        beside = SHARING if self.kept and SHARING * self.tile.threads <= self.target.resident else 0
        shared = sum([pool_bytes(array) for array in self.kept.values()])
        return replace(made, geometry=replace(made.geometry, shared=shared, beside=beside))

    def rounds(self, begin: int, end: int, body: Sequence[Stmt], step: Sequence[Stmt]) -> list[Stmt]:
        """`body` for every whole round of these, `step` for those steps of a last one that a thread has a part in."""
        full = min(self.across.axis.extent // self.tile.size, end)
        out: list[Stmt] = [Loop(self.round, begin, full, "serial", tuple(body))] if begin < full else []
        if full < end:
            last = self.tile.each_step((If(self.inside, tuple(step)),))
            out += [Loop(self.round, full, end, "unrolled", last)] if self.round.extent > 1 else last
        return out

    def walked(self, made: Callable[[], Walk]) -> list[Stmt]:
        out: list[Stmt] = []
        cuts = sorted({0, self.kept_rounds, self.round.extent})
        for begin, end in itertools.pairwise(cuts):
            self.keeping = begin < self.kept_rounds
            out += self.rounds(begin, end, *self.bodies(made()))
        self.walk += 1
        return list(serial(self.outer, tuple(out)))

    def bodies(self, walk: Walk) -> tuple[list[Stmt], list[Stmt]]:
        """What is done in a whole round, and in one step of a round that is cut off."""
        tile = self.tile
        fetch = self.either(tile.each_step(walk.fetch), tile.each_step(tile.lanes(walk.one)))
        put = self.either(tile.each_step(walk.put), tile.each_step(tile.lanes(walk.put_one)))
        inner = tile.lanes([*walk.inner, *walk.last])
        body = [*walk.arrays, *fetch, *tile.each_step(tile.lanes(walk.alone)), *tile.each_step(inner), *put]
        step = [*walk.arrays, *tile.lanes([*walk.one, *walk.alone]), *inner, *tile.lanes(walk.put_one)]
        return body, step

    def folded(self, parts: tuple[Accumulator, ...], made: Callable[[], Walk]) -> list[Stmt]:
        return [Fold(parts, tuple(self.walked(made)))]

    def along(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        lanes = self.tile.lanes(body)
        return serial(self.outer, tuple(self.rounds(0, self.round.extent, self.tile.each_step(lanes), lanes)))
