"""Chunks of rows on a GPU: row folds and column sums at once, by whoever walks down a chunk row after row.

A thread meets the same columns in every row, so it alone keeps their running sums, in registers. A short row is one
subgroup's: the members of a block take the rows of a chunk in turns, and add up their sums at the end, in order of
members. A chunk is every so manieth row: blocks that run side by side read rows that lie side by side, which memory
serves faster than as many places far from each other.

What the next row holds is read while a row is computed, where registers hold two rows. Where they do not, the blocks of
a processor fill each other's waits; a subgroup, which has fewer beside it, has the next rows fetched into shared memory
where the device can do that by the side: of the row of turn t, each thread finds its own elements in stage t % stages.
What all rows fold is read once, and whether buffers are aligned is asked before the first row, so that the rows of
either kind are walked without a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from weft.kernels import index as ix
from weft.kernels.gpu_tile import (
    BEGIN,
    END,
    Target,
    at,
    decided,
    gathered,
    is_short,
    kernel,
    loads_in,
    number,
    test,
    unrolled,
    whole,
)
from weft.kernels.gpu_walk import PrivateRow, told
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
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
KEPT = 3  # bytes to a register for what a thread keeps: running sums, two rows, what all rows use


class Turns:
    """Which rows a member of a chunk takes: a chunk is every so manieth row, as many as there are chunks, and members
    take its rows in turns. `definitions` has the number of the `row` of this turn, and of others that were asked for.
    """

    def __init__(self, points: Axis, chunk: Index, members: int = 1, member: Index = ix.ZERO):
        kind, chunks = END.dtype, END  # a launch has all chunks
        number_of, own = replace(number(chunk), dtype=kind), replace(number(member), dtype=kind)
        # Each has `per_chunk` rows, or one less where the last would lie beyond all points.
        last = whole("sub", Var("per_chunk", kind), 1)
        beyond = whole("sub", whole("add", number_of, whole("mul", last, chunks)), Var("points", kind))
        rows = whole("sub", last, whole("max", whole("min", beyond, 0), -1))
        self.turn = Axis("turn", points.extent)
        self.first = whole("add", number_of, whole("mul", own, chunks)) if members > 1 else number_of
        self.apart = whole("mul", chunks, members) if members > 1 else chunks
        self.count: Expr = rows
        if members > 1:
            self.count = whole("shr", whole("sub", whole("add", rows, members - 1), own), members.bit_length() - 1)
        self.definitions: dict[str, Expr] = {}
        self.row = self.taken(at(self.turn))

    def taken(self, turn: Index) -> Axis:
        """The row of a turn."""
        row = Axis(f"taken{len(self.definitions)}", self.turn.extent, "value")
        value = whole("add", self.first, whole("mul", replace(number(turn), dtype=BEGIN.dtype), self.apart))
        self.definitions[row.name] = Op("cast", (value,), number(at(row)).dtype)
        return row


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
    turns: Turns = field(init=False)

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
        chunk = Axis("chunk", extent)
        self.turns = Turns(nest.points, at(chunk), members, self.member)
        nest = substitute(nest, {nest.points: at(self.turns.row)})
        definitions = dict(nest.definitions)
        threads = Axis("number", members * self.tile.threads) if self.by_subgroup else self.tile.thread
        if self.by_subgroup:
            definitions["thread"] = number(ix.remainder(at(threads), self.tile.threads))
            definitions["member"] = number(ix.floordiv(at(threads), self.tile.threads))
        self.look_ahead(nest)
        early, ahead = self.fetched_ahead() if self.stages else self.read_ahead(nest)
        once = self.read_once(nest)
        clear, body, sums = self.at_row(nest)
        walk = Loop(self.turns.turn, 0, self.turns.count, "serial", (*ahead, *body))
        chunk_body: tuple[Stmt, ...] = (*clear, *early, *once, walk, *self.stored(sums, at(chunk), at(threads)))
        if self.tile.near > 1:
            fast, slow = (decided(chunk_body, self.aligned, truth) for truth in (True, False))
            chunk_body = (If(self.aligned, fast, slow),)
        loop = Loop(chunk, BEGIN, END, "task", chunk_body)
        block = Loop(threads, 0, threads.extent, "threads", (loop,), threads.extent)
        arrays = [*self.locals, *(self.coming.values() if self.stages else ())]
        geometry = Geometry(threads.extent, threads.extent, beside=SHARING if self.registers >= NEEDED else 0)
        return kernel(replace(nest, definitions={**definitions, **self.turns.definitions}), (*arrays, block), geometry)

    def loads(self, nest: Nest) -> list[Load]:
        """All that is read along a row."""
        values = [value for stage in nest.stages for _, value in stage]
        values += [*[store.value for store in nest.inner_stores], *[column.value for column in nest.columns]]
        return [load for load in loads_in(values) if self.varies(load)]

    def has_room(self, nest: Nest, ahead: Iterable[Load]) -> bool:
        """Whether registers hold running sums, a row, what all rows use, and what is read `ahead`."""
        each = sum([load.dtype.itemsize for load in (*self.loads(nest), *ahead)])
        each += sum([column.accumulator.dtype.itemsize for column in nest.columns])
        return self.tile.each * each <= KEPT * min(max(self.registers, NEEDED), MOST)

    def read_once(self, nest: Nest) -> list[Stmt]:
        """What all rows fold stays in registers from one row to the next, and is read before the first."""
        loads = loads_in([value for stage in nest.stages for _, value in stage])
        same = [load for load in loads if self.varies(load) and not ix.depends(load.index, self.turns.row)]
        walk, _ = self.begun([load for load in same if not gathered(load, nest)])
        return self.fetched(walk)

    # --- short rows ---

    @property
    def short(self) -> bool:
        return is_short(self.across.axis.extent)

    def join(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """Short rows, of which a thread has one element at most, are joined in their order."""
        if not self.short:
            return PrivateRow.join(self, accumulators)
        giver = Axis("giver", self.across.axis.extent)
        stores: list[Stmt] = []
        folds: list[Stmt] = []
        for acc in accumulators:
            part = Var(f"{acc.name}_part", acc.dtype)
            if self.by_subgroup:
                given = told(part, number(at(giver)))
            else:
                array = self.shared(f"{acc.name}_all", acc.dtype, self.tile.threads)
                stores.append(Store(array, self.thread, part))
                given = Load(array, at(giver), acc.dtype)
            folds.append(Fold((acc,), unrolled(giver, 0, giver.extent, (Update(acc.name, given),))))
        return [*stores, *([Barrier()] if stores else ()), *folds]

    def ended(self, nest: Nest, body: list[Stmt]) -> list[Stmt]:
        lone = self.short and len(nest.stages) == 1 and not self.by_subgroup
        return [*body, Barrier()] if lone else PrivateRow.ended(self, nest, body)

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
            if not self.by_subgroup or not self.target.fetches or not fitting:
                return
            self.stages = next((stages for stages in fitting if (stages - 1) * row >= AHEAD), fitting[-1])
        for place, (key, load) in enumerate(found.items()):
            self.coming[key] = Local(f"ahead{place}", load.dtype, max(self.stages, 1) * size, scope)

    def read_ahead(self, nest: Nest) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: what was read ahead is this row, and the next is read."""
        if not self.coming:
            return [], []
        walk, _ = self.begun([load for load in self.loads(nest) if (load.buffer, load.index) in self.coming])
        following = ix.add(at(self.turns.turn), ix.const(1))
        early, ahead = (self.either([self.asked(turn)], ()) for turn in (ix.ZERO, following))
        return [*self.coming.values(), *early], [*self.fetched(walk), *ahead]

    def fetched_ahead(self) -> tuple[list[Stmt], list[Stmt]]:
        """What is done before the first row, and at each: the row that comes in `stages - 1` turns is asked for, and
        this one is waited for."""
        early: list[Stmt] = []
        for k in range(self.stages - 1):
            early += [self.asked(ix.const(k)), Fetched(self.stages)]
        ahead = self.asked(ix.add(at(self.turns.turn), ix.const(self.stages - 1)))
        return self.either(early, ()), self.either([ahead, Fetched(self.stages - 1)], ())

    def asked(self, turn: Index) -> If:
        """The row of `turn` is read, or fetched, if there is one."""
        return If(test("lt", replace(number(turn), dtype=BEGIN.dtype), self.turns.count), self.fetches(turn))

    def comes_ahead(self, load: Load, nest: Nest) -> bool:
        """Whether a load is of the row itself, in accesses that can be left to the side."""
        fits = self.tile.near * load.dtype.itemsize in (4, 8, 16)
        return fits and not gathered(load, nest) and self.by_neighbours(load) and ix.depends(load.index, self.turns.row)

    def fetches(self, other: Index) -> tuple[Stmt, ...]:
        """Begin to fetch what the row of turn `other` holds."""
        out: list[Stmt] = []
        near, row = self.tile.near, at(self.turns.taken(other))
        for (buffer, index), array in self.coming.items():
            place, source = self.staged(other), ix.substitute(index, {self.turns.row: row, self.tile.lane: ix.ZERO})
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
        return replace(copy, source=staged.name, index=self.staged(at(self.turns.turn)))

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
