"""Chunks of rows on a GPU: row folds and column sums at once, by whoever walks down a chunk row after row.

A thread meets the same columns in every row, so it alone keeps their running sums, in registers. A short row is one
subgroup's: the members of a block take the rows of a chunk in turns, and add up their sums at the end, in order of
members. What the next row holds is read while a row is computed, and waits in registers where these hold two rows;
else it is fetched into shared memory, with more rows after it, where the device can do that by the side: of the row of
turn t, each thread finds its own elements in stage t % stages. What all rows use is read once, while there are
registers for it. Whether buffers are aligned is asked before the first row, so that the rows of either kind are walked
without a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.kernels import index as ix
from weft.kernels.gpu_tile import BEGIN, END, Target, at, decided, gathered, kernel, loads_in, number, test, whole
from weft.kernels.gpu_walk import PrivateRow
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Barrier,
    Copy,
    Expr,
    Fetch,
    Fetched,
    Fold,
    Geometry,
    If,
    Kernel,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.nest import COMBINE, ColumnSum, Nest
from weft.kernels.substitute import substitute

MEMBERS = 4  # subgroups that share a chunk
AHEAD = 32768  # bytes that a block has under way, if it may have two rows or more
STAGES = (2, 4)
RESERVED = 18432  # bytes of shared memory for what members add up
SHARING = 2  # blocks that should find room side by side
FULL = 32  # registers of each thread where a processor holds all the threads it can
NEEDED, MOST = 128, 255  # registers that a thread needs here, and can have
KEPT = 3  # bytes to a register for what a thread keeps: running sums, rows, what all rows use


def points_of(chunk: Index) -> tuple[Expr, Expr]:
    """Where the points of a chunk begin and end; the last chunks may have none."""
    per, points = Var("per_chunk", BEGIN.dtype), Var("points", BEGIN.dtype)
    first = whole("min", whole("mul", replace(number(chunk), dtype=per.dtype), per), points)
    return first, whole("min", whole("add", first, per), points)


def members_of(columns: Sequence[ColumnSum], size: int, target: Target) -> int:
    """By how many the rows of a chunk are added up, each taking its turns: as many as have room to join their sums."""
    each = sum([kind.itemsize for kind in {column.accumulator.dtype for column in columns}]) * size
    most = min(MEMBERS, target.shared_bytes // each)
    return 1 << (most.bit_length() - 1) if most else 1


@dataclass(slots=True, eq=False)
class ChunkRow(PrivateRow):
    """The rows of a chunk, one after the other."""

    columns: tuple[ColumnSum, ...] = ()  # with the row's axis, which the nest has no more
    coming: dict[tuple, Local] = field(default_factory=dict)  # arrays of loads that are fetched ahead
    stages: int = 0  # rows that these hold, in shared memory; 0: one, in registers
    turn: Axis = field(init=False)

    def prepare(self, nest: Nest, place: Index) -> Nest:
        self.columns = nest.columns
        return PrivateRow.prepare(self, nest, place)

    @property
    def members(self) -> int:
        """Subgroups that share a chunk."""
        return members_of(self.columns, self.tile.size, self.target) if self.by_subgroup else 1

    @property
    def registers(self) -> int:
        """Registers of a thread where `SHARING` blocks lie side by side; 0 where that is not known."""
        return FULL * self.target.resident // (SHARING * self.members * self.tile.threads)

    @property
    def member(self) -> Index:
        return at(Axis("member", MEMBERS, "value")) if self.members > 1 else ix.ZERO

    def launch(self, nest: Nest) -> Kernel:
        """The kernel: blocks take chunks, members their rows."""
        members, extent = self.members, nest.points.extent
        chunk, turn, begun = Axis("chunk", extent), Axis("turn", extent), Axis("begun", extent, "value")
        first, last = points_of(at(chunk))
        own = whole("add", first, replace(number(self.member), dtype=first.dtype)) if members > 1 else first
        turns = whole("sub", last, own)
        if members > 1:
            turns = whole("shr", whole("max", whole("add", turns, members - 1), 0), members.bit_length() - 1)
        nest = substitute(nest, {nest.points: ix.add(at(begun), ix.scale(at(turn), members))})
        definitions = {**nest.definitions, begun.name: Op("cast", (own,), number(at(begun)).dtype)}
        threads = Axis("number", members * self.tile.threads) if self.by_subgroup else self.tile.thread
        if self.by_subgroup:
            definitions["thread"] = number(ix.remainder(at(threads), self.tile.threads))
            definitions["member"] = number(ix.floordiv(at(threads), self.tile.threads))
        self.turn = turn
        self.look_ahead(nest)
        early, ahead = self.fetched_ahead(turns) if self.stages else self.read_ahead(nest, turns)
        once = self.read_once(nest)
        clear, body, sums = self.at_row(nest)
        walk = Loop(turn, 0, turns, "serial", (*ahead, *body))
        chunk_body: tuple[Stmt, ...] = (*clear, *early, *once, walk, *self.stored(sums, at(chunk), at(threads)))
        if self.tile.near > 1:
            fast, slow = (decided(chunk_body, self.aligned, truth) for truth in (True, False))
            chunk_body = (If(self.aligned, fast, slow),)
        loop = Loop(chunk, BEGIN, END, "task", chunk_body)
        block = Loop(threads, 0, threads.extent, "threads", (loop,), threads.extent)
        arrays = [*self.locals, *(self.coming.values() if self.stages else ())]
        geometry = Geometry(threads.extent, threads.extent, beside=SHARING if self.registers >= NEEDED else 0)
        return kernel(replace(nest, definitions=definitions), (*arrays, block), geometry)

    def loads(self, nest: Nest) -> list[Load]:
        """All that is read along a row."""
        values = [value for stage in nest.stages for _, value in stage]
        values += [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        return [load for load in loads_in(values) if self.varies(load)]

    def has_room(self, nest: Nest, more: Iterable[Load] = ()) -> bool:
        """Whether registers hold the running sums, a row, what all rows use, and `more`."""
        each = sum([load.dtype.itemsize for load in (*self.loads(nest), *more)])
        each += sum([column.accumulator.dtype.itemsize for column in nest.columns])
        return self.tile.each * each <= KEPT * min(max(self.registers, NEEDED), MOST)

    def read_once(self, nest: Nest) -> list[Stmt]:
        """What all rows use is read before the first."""
        if not self.has_room(nest):
            return []
        loads = [load for load in self.loads(nest) if not ix.depends(load.index, self.turn)]
        walk, _ = self.begun([load for load in loads if not gathered(load, nest)])
        return self.fetched(walk)

    # --- what comes ahead ---

    def look_ahead(self, nest: Nest) -> None:
        """Choose what is fetched while the rows before are computed, how many rows, and where they wait."""
        found = {(load.buffer, load.index): load for load in self.loads(nest) if self.comes_ahead(load, nest)}
        size, scope = self.tile.each, "thread"
        if not self.has_room(nest, found.values()):
            size, scope = self.members * self.tile.size, "launch"
            row = sum([size * load.dtype.itemsize for load in found.values()])
            most = self.target.shared_bytes // SHARING - RESERVED
            fitting = [stages for stages in STAGES if stages * row <= most]
            if not self.target.fetches or not fitting:
                return
            self.stages = next((stages for stages in fitting if (stages - 1) * row >= AHEAD), fitting[-1])
        for place, (key, load) in enumerate(found.items()):
            self.coming[key] = Local(f"ahead{place}", load.dtype, max(self.stages, 1) * size, scope)

    def read_ahead(self, nest: Nest, turns: Expr) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: what was read ahead is this row, and the next is read."""
        if not self.coming:
            return [], []
        walk, _ = self.begun([load for load in self.loads(nest) if (load.buffer, load.index) in self.coming])
        following = ix.add(at(self.turn), ix.const(1))
        early, ahead = (self.either([self.asked(turn, turns)], ()) for turn in (ix.ZERO, following))
        return [*self.coming.values(), *early], [*self.fetched(walk), *ahead]

    def fetched_ahead(self, turns: Expr) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: the row that comes in `stages - 1` turns is asked for, and
        this one is waited for."""
        early: list[Stmt] = []
        for k in range(self.stages - 1):
            early += [self.asked(ix.const(k), turns), Fetched(self.stages)]
        ahead = self.asked(ix.add(at(self.turn), ix.const(self.stages - 1)), turns)
        return self.either(early, ()), self.either([ahead, Fetched(self.stages - 1)], ())

    def asked(self, turn: Index, turns: Expr) -> If:
        """The row of `turn` is read, or fetched, if there is one."""
        return If(test("lt", replace(number(turn), dtype=BEGIN.dtype), turns), self.fetches(turn))

    def comes_ahead(self, load: Load, nest: Nest) -> bool:
        """Whether a load is of the row itself, in accesses that can be left to the side."""
        fits = self.tile.near * load.dtype.itemsize in (4, 8, 16)
        return fits and not gathered(load, nest) and self.by_neighbours(load) and ix.depends(load.index, self.turn)

    def fetches(self, other: Index) -> tuple[Stmt, ...]:
        """Begin to fetch what the row of turn `other` holds."""
        out: list[Stmt] = []
        near = self.tile.near
        for (buffer, index), array in self.coming.items():
            place, source = self.staged(other), ix.substitute(index, {self.turn: other, self.tile.lane: ix.ZERO})
            if self.stages:
                out.append(Fetch(array.name, place, buffer, source, near, near, True))
            else:
                out.append(Copy(array.name, place, buffer, source, near, array.dtype))
        return tuple(self.steps(out))

    def staged(self, turn: Index) -> Index:
        """Where a thread's group of neighbours of the row of `turn` lies."""
        first = {self.tile.lane: ix.ZERO}
        if not self.stages:
            return ix.substitute(self.near.slot, first)
        stage = ix.add(ix.scale(ix.remainder(turn, self.stages), self.members), self.member)
        return ix.add(ix.scale(stage, self.tile.size), ix.substitute(self.place, first))

    def brought(self, array: Local, load: Load) -> Copy:
        copy = PrivateRow.brought(self, array, load)
        staged = self.coming.get((load.buffer, load.index))
        if staged is None:
            return copy
        return replace(copy, source=staged.name, index=self.staged(at(self.turn)))

    # --- running sums ---

    def at_row(self, nest: Nest) -> tuple[list[Stmt], list[Stmt], list[Local]]:
        """What is done before the first row and at each, and the running sums."""
        body = self.folds(nest)
        values = [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        walk, values = self.begun(values)
        self.finish(walk, nest.inner_stores, values)
        sums: list[Local] = []
        clear: list[Stmt] = []
        for k, column in enumerate(nest.columns):
            acc = column.accumulator
            sums.append(Local(f"sum{k}", acc.dtype, self.tile.each, "thread"))
            total, out = self.near.kept(sums[-1]), Var(f"out{len(nest.inner_stores) + k}", acc.dtype)
            clear.append(Store(sums[-1].name, self.near.slot, Literal(acc.identity, acc.dtype)))
            walk.inner.append(Store(sums[-1].name, self.near.slot, Op(COMBINE[acc.op], (total, out), acc.dtype)))
        body += self.walked(lambda: walk)
        return [*sums, *self.tile.each_step(self.tile.lanes(clear))], self.ended(nest, body), sums

    def stored(self, sums: Sequence[Local], chunk: Index, thread: Index) -> list[Stmt]:
        """Running sums go to memory; those of several members are added up before, in order of members."""
        return self.added_up(sums, chunk, thread) if self.members > 1 else self.put_sums(sums, chunk)

    def place_of(self, column: ColumnSum, chunk: Index, element: Index) -> Index:
        return ix.add(ix.scale(chunk, column.width), ix.substitute(column.index, {self.across.axis: element}))

    def put_sums(self, sums: Sequence[Local], chunk: Index) -> list[Stmt]:
        ends = [
            Store(column.buffer, self.place_of(column, chunk, self.place), self.near.kept(total))
            for total, column in zip(sums, self.columns, strict=True)
        ]
        near = [(total, end) for total, end in zip(sums, ends, strict=True) if self.by_neighbours(end)]
        others = [end for end in ends if not self.by_neighbours(end)]
        fast = self.steps([self.near.put(total, end) for total, end in near])
        return [*self.either(fast, self.each([end for _, end in near])), *self.each(others)]

    def added_up(self, sums: Sequence[Local], chunk: Index, thread: Index) -> list[Stmt]:
        """Every thread adds up some columns. The members' sums of one column sum lie in shared memory at a time."""
        tile, members, extent = self.tile, self.members, self.across.axis.extent
        threads = members * tile.threads
        part, giver = Axis("part", -(-extent // threads)), Axis("giver", members)
        element = ix.add(ix.scale(at(part), threads), thread)
        first = {tile.lane: ix.ZERO}
        slot, place = ix.substitute(self.near.slot, first), ix.substitute(self.place, first)
        out: list[Stmt] = []
        kinds = dict.fromkeys([total.dtype for total in sums])
        arrays = {kind: self.shared(f"{kind.name}_sums", kind, members * tile.size) for kind in kinds}
        for total, column in zip(sums, self.columns, strict=True):
            array, acc = arrays[total.dtype], replace(column.accumulator, name=f"{total.name}_all")
            mine = ix.add(ix.scale(self.member, tile.size), place)
            given = Load(array, ix.add(ix.scale(at(giver), tile.size), element), total.dtype)
            fold = Fold((acc,), (Loop(giver, 0, members, "serial", (Update(acc.name, given),)),))
            end = Store(column.buffer, self.place_of(column, chunk, element), Var(acc.name, acc.dtype))
            one: tuple[Stmt, ...] = (fold, end)
            if part.extent * threads != extent:
                one = (If(test("lt", number(element), extent), one),)
            out += self.steps([Copy(array, mine, total.name, slot, tile.near, total.dtype)])
            out += [Barrier(), Loop(part, 0, part.extent, "serial", one), Barrier()]
        return out
