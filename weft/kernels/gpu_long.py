"""Long rows on a GPU: in rounds of a few steps, because no thread has registers for all its elements.

What several walks read of a row, and what they would compute again, stays in shared memory if there is enough; there
each thread touches its own places only, so nobody has to wait. Copies on their way need no registers, so a whole row
can be under way. Each row has a block of its own: its copies begin as soon as the block does, which a GPU deals out
better than blocks that stay and ask for their next row while they write one.

Memory moves in pieces of 16 bytes, from multiples of 16 bytes on. Rows of 50,257 elements do not begin there: the tile
begins `lead` elements before its row, which follows from the number of the row, and the first and the last round ask
which elements are the row's. Where columns are added up, too, each has to stay with its thread, and no row is shifted.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weft.dtypes import DType, bfloat16, bool_
from weft.kernels import index as ix
from weft.kernels import narrow
from weft.kernels.cascade import CHAIN
from weft.kernels.gpu_picks import numbers_asked, without
from weft.kernels.gpu_tile import Near, Target, Tile, at, gathered, loads_in, number, serial, test
from weft.kernels.gpu_walk import TiledRow, Walk
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Copy,
    Expr,
    Fetch,
    Fetched,
    Fold,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
    pool_bytes,
)
from weft.kernels.nest import Nest, Span
from weft.kernels.substitute import Substitution, indices_of, names_along, parts_of, replaced, rewritten

DEAR = 8  # operations on the way to a value from which reading it back beats computing it again
SLOW = ("exp", "exp_rounded", "log", "log1p", "expm1", "tanh", "erf", "div", "sqrt")  # which count for as many
RESERVED = 2048  # bytes of shared memory for partial results
IN_FLIGHT = 8192  # elements of a block that are under way at once
MOST_EACH = 16  # and of a thread, at most
FEWER = 512  # threads of a block beside another: a thread has 64 registers then
MOST_NEAR = 8  # neighbours that move at once
SHARING = 2  # blocks that find room side by side, if their rows do: while one computes, the other reads


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


def _along(nest: Nest, axis: Axis) -> list[tuple[Index, DType]]:
    """What is read and written side by side along `axis`."""
    values = [value for stage in nest.stages for _, value in stage]
    values += [store.value for store in nest.inner_stores] + [column.value for column in nest.columns]
    places = [(load.index, load.dtype) for load in loads_in(values) if load.mask is None]
    places += [(store.index, store.value.dtype) for store in nest.inner_stores if store.mask is None]
    return [(index, dtype) for index, dtype in places if index.linear_in(axis) and index.coefficient(axis) == 1]


class _Settled(Substitution):
    """Puts the axis of a row at `place`, `lead` elements early, and sees which indices are multiples then."""

    def __init__(self, axis: Axis, place: Index, points: Axis, near: int, shift: int):
        super().__init__({axis: place})
        self.points, self.near, self.shift = points, near, shift

    def index(self, index: Index) -> Index:
        """`shift * p - shift * p % near` is `near * (shift * p // near)`."""
        moved, ahead = ix.substitute(index, self.values), ix.scale(at(self.points), self.shift)
        lead = ix.remainder(ahead, self.near)
        early = ix.add(moved, lead)
        if len(early.terms) >= len(moved.terms) or early.coefficient(self.points) % self.near != self.shift:
            return moved
        rest = ix.add(early, ix.scale(ahead, -1))
        return ix.add(rest, ix.scale(ix.floordiv(ahead, self.near), self.near))


@dataclass(slots=True, eq=False)
class LongRow(TiledRow):
    """A long row, in rounds of a few steps: what several walks read is kept in shared memory if there is enough, else
    read again."""

    along_row: frozenset[str] = frozenset()  # names of what changes along it
    shift: int = 0  # of a row against the one before it, in elements, modulo `near`
    lead: Index = ix.ZERO  # elements before the row with which its tile begins
    kept: dict[tuple, Local] = field(default_factory=dict)  # loads that shared memory holds, by (buffer, index)
    dear: dict[Expr, Local] = field(default_factory=dict)  # and values that are not computed again
    first: dict[Expr, int] = field(default_factory=dict)  # the walk that computes each of those
    kept_rounds: int = 0  # of the row, from its beginning: as many as there is room for
    keeping: bool = True  # whether the rounds that are written now are among these
    walk: int = 0  # the number of the walk that is written now

    @staticmethod
    def of(nest: Nest, target: Target, tile: Tile, outer: tuple[Span, ...], across: Span) -> tuple[Nest, LongRow]:
        fixed = outer or nest.columns or tile.threads == target.subgroup
        along = [] if fixed else _along(nest, across.axis)
        near, shift = tile.near, 0
        if along:
            near = min(max(target.vector_bytes // max([dtype.itemsize for _, dtype in along]), 1), MOST_NEAR)
            shifts = Counter([index.coefficient(nest.points) % near for index, _ in along])
            ((shift, _),) = shifts.most_common(1)
        tile = Tile(tile.threads, max(min(IN_FLIGHT // tile.threads, MOST_EACH) // near, 1), near)
        row = LongRow(target, tile, outer, across, shift=shift)
        row.lead = ix.remainder(ix.scale(at(nest.points), shift), near)
        row.near = Near(tile, tile.slot, tile.each)
        placed = row.prepare(nest, ix.add(row.own_place, ix.scale(row.lead, -1)))
        row.along_row = names_along(placed.definitions, ix.axes_of(row.own_place))
        if not outer and not row.by_subgroup:
            row.choose(placed)
        if row.beside > 1 and tile.threads > FEWER:
            return LongRow.of(nest, target, replace(tile, threads=FEWER), outer, across)
        return placed, row

    def placed(self, nest: Nest, place: Index) -> Nest:
        return rewritten(nest, _Settled(self.across.axis, place, nest.points, self.tile.near, self.shift))

    @property
    def reach(self) -> int:
        """Elements from the beginning of the tile to the end of the row, at most."""
        return self.across.axis.extent + self.lead.high

    @property
    def round(self) -> Axis:
        return Axis("round", -(-self.reach // self.tile.size))

    @property
    def own_place(self) -> Index:
        """Of a thread's element in an array of the row."""
        return ix.add(ix.scale(at(self.round), self.tile.size), self.tile.element(self.thread))

    def varies(self, load: Load) -> bool:
        return load.mask is None and not ix.axes_of(self.own_place).isdisjoint(ix.axes_of(load.index))

    # --- what is kept ---

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
                if self.varies(load) and ix.depends(load.index, nest.points) and not gathered(load, nest):
                    uses.setdefault((load.buffer, load.index), []).append(walk)
                    found[load.buffer, load.index] = load
        wanted = {key: load for key, load in found.items() if len(uses[key]) > 1}
        if not wanted:
            return
        each = sum([load.dtype.itemsize for load in wanted.values()])
        size = -(-self.reach // self.tile.near) * self.tile.near
        self.kept_rounds = self.round.extent
        room = max(self.target.shared_bytes - RESERVED, 0)
        if size * each > room:
            block = CHAIN // self.tile.each if self.round.extent * self.tile.each > CHAIN else 1  # as `cascade` has it
            self.kept_rounds = room // (each * self.tile.size) // block * block
            size = self.kept_rounds * self.tile.size
        if not self.kept_rounds:
            return
        for key, load in wanted.items():
            self.kept[key] = Local(f"row{len(self.kept)}", load.dtype, size, "launch")
        free = [(array, uses[key][-1]) for key, array in self.kept.items()]
        for value, first in again.items():
            dtype = held_as(value)
            place = next((pair for pair in free if pair[0].dtype.itemsize == dtype.itemsize and pair[1] <= first), None)
            if place is not None and place[0].dtype is dtype:
                free.remove(place)
                self.dear[value], self.first[value] = place[0], first

    def launched(self, nest: Nest, body: tuple[Stmt, ...], each: Axis) -> Kernel:
        self.locals += self.kept.values()
        made = TiledRow.launched(self, nest, body, each)
        assert made.geometry is not None
        return replace(made, geometry=replace(made.geometry, beside=self.beside))

    @property
    def shared_bytes(self) -> int:
        return sum([pool_bytes(array) for array in self.kept.values()])

    @property
    def beside(self) -> int:
        """Blocks that find room on a processor, SHARING at most; 0 where nothing is kept, or that is not known."""
        room = min(
            self.target.resident // self.tile.threads, self.target.shared_bytes // (self.shared_bytes + RESERVED)
        )
        return min(room, SHARING) if self.kept else 0

    def folds(self, nest: Nest) -> list[Stmt]:
        """What is kept is there before the first walk."""
        folds = TiledRow.folds(self, nest)
        return [*self.rounds(0, self.kept_rounds, *self.fetches()), Fetched(), *folds] if self.kept else folds

    def fetches(self) -> tuple[list[Stmt], list[Stmt]]:
        """Copies into the places of a round that is the row's as a whole, and of one step of another."""
        (aligned, _), (whole, edge) = self.pieces(True), self.pieces(False)
        return self.either(self.tile.each_step(aligned), self.tile.each_step(whole)), edge

    def pieces(self, aligned: bool) -> tuple[list[Stmt], list[Stmt]]:
        """Copies into the places of one step, of a round that is the row's as a whole and of another."""
        near, extent, first = self.tile.near, self.across.axis.extent, {self.tile.lane: ix.ZERO}
        start = self.first_place
        left = Op("sub", (Literal(extent, start.dtype), start), start.dtype)
        valid = Op("min", (left, Literal(near, start.dtype)), start.dtype)
        whole: list[Stmt] = []
        edge: list[Stmt] = []
        for (buffer, index), array in self.kept.items():
            if near > 1 and self.near.moves(index):
                to, source = ix.substitute(self.own_place, first), ix.substitute(index, first)
                fetch = Fetch(array.name, to, buffer, source, near, near, aligned and near * array.dtype.itemsize >= 4)
                whole.append(fetch)
                part = replace(fetch, valid=valid, aligned=False, place=start.index)
                edge.append(If(test("lt", start, extent), (part,)))
            else:
                one = Fetch(array.name, self.own_place, buffer, index, 1, 1)
                whole += self.tile.lanes([one])
                edge += self.tile.lanes([If(self.inside, (one,))])
        return whole, edge

    # --- walks ---

    def begun(self, values: Sequence[Expr]) -> tuple[Walk, list[Expr]]:
        self.known.clear()
        self.near.names.clear()
        if not self.keeping:
            return TiledRow.begun(self, values)
        now = [value for value in self.dear if self.first[value] == self.walk]
        swaps: dict[Expr, Expr] = {}
        for part in parts_of([*now, *values]):
            if isinstance(part, Load) and part.mask is None and (part.buffer, part.index) in self.kept:
                array = self.kept[part.buffer, part.index]
                swaps[part] = Load(array.name, self.own_place, array.dtype)
        for value, array in self.dear.items():
            if self.first[value] < self.walk:
                load = Load(array.name, self.own_place, array.dtype)
                swaps[value] = narrow.unpacked(load) if array.dtype.is_narrow else load
        walk, rewritten = TiledRow.begun(self, replaced([*now, *values], swaps))
        names: dict[Expr, Expr] = {}
        for k, (value, made) in enumerate(zip(now, rewritten, strict=False)):
            walk.inner.append(Let(f"dear{k}", made))
            names[made] = Var(f"dear{k}", made.dtype)
            array = self.dear[value]
            out = narrow.packed(names[made], array.dtype) if array.dtype.is_narrow else names[made]
            self.finish(walk, [Store(array.name, self.own_place, out)], [out])
        return walk, replaced(rewritten[len(now) :], names)

    def walked(self, made: Callable[[], Walk]) -> list[Stmt]:
        out: list[Stmt] = []
        cuts = sorted({0, self.kept_rounds, self.round.extent})
        for begin, end in itertools.pairwise(cuts):
            self.keeping = begin < self.kept_rounds
            walk = made()
            out += self.given(walk)
            out += self.rounds(begin, end, self.where_asked(walk), self.edge(walk))
        self.walk += 1
        return list(serial(self.outer, tuple(out)))

    def folded(self, parts: tuple[Accumulator, ...], made: Callable[[], Walk]) -> list[Stmt]:
        return [Fold(parts, tuple(self.walked(made)))]

    def along(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        whole = self.tile.each_step(self.tile.lanes(body))
        edge = self.tile.lanes([If(self.inside, body)])
        return serial(self.outer, tuple(self.rounds(0, self.round.extent, whole, edge)))

    def rounds(self, begin: int, end: int, body: Sequence[Stmt], edge: Sequence[Stmt]) -> list[Stmt]:
        """`body` for every round of these that is the row's as a whole, then `edge` for each step of the others."""
        first = min(max(begin, int(self.lead is not ix.ZERO)), end)
        last = max(first, min(self.across.axis.extent // self.tile.size, end))
        steps = self.tile.each_step(edge)
        edges = [Loop(self.round, a, b, "unrolled", steps) for a, b in ((begin, first), (last, end)) if a < b]
        whole = [Loop(self.round, first, last, "serial", tuple(body))] if first < last else []
        if self.round.extent == 1:
            return list(steps if edges else body)
        return [*whole, *edges]

    def given(self, walk: Walk) -> list[Stmt]:
        """What a walk needs of memory that is the same all along the row: read before it, not where its rounds part."""
        values = [stmt.value for stmt in walk.inner if isinstance(stmt, Let | Update | Store)]
        names = {stmt.name for stmt in walk.inner if isinstance(stmt, Let)}
        arrays = {array.name for array in walk.arrays}
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
                same[id(part)] = part.mask is None and part.buffer not in arrays and self.constant(part.index)
            elif isinstance(part, IndexValue):
                same[id(part)] = self.constant(part.index)
            if same[id(part)]:
                inside.update([id(arg) for arg in below])
        found = [part for part in parts_of(values) if same[id(part)] and read[id(part)] and id(part) not in inside]
        return [Let(f"given{k}", part) for k, part in enumerate(found)]

    def constant(self, index: Index) -> bool:
        """Whether an index is the same all along the row."""
        return self.along_row.isdisjoint([axis.name for axis in ix.axes_of(index)])

    def where_asked(self, walk: Walk) -> list[Stmt]:
        """The steps of a whole round; less is done where it has no element that is asked for by its number."""
        asked = numbers_asked(walk.inner, self.place, lambda value: all(map(self.constant, indices_of(value))))
        steps = self.stepped(walk, self.tile.each_step)
        if not asked:
            return steps
        first = ix.add(ix.scale(at(self.round), self.tile.size), ix.scale(self.lead, -1))
        last = ix.add(first, ix.const(self.tile.size - 1))
        columns = {id(column): column for column in asked.values()}.values()
        here = [_both(test("le", _as(first, k), k), test("le", k, _as(last, k))) for k in columns]
        some = functools.reduce(lambda a, b: Op("or", (a, b), bool_), here)
        others = replace(walk, inner=without(walk.inner, list(asked)))
        return [If(some, tuple(steps), tuple(self.stepped(others, self.tile.each_step)))]

    def stepped(self, walk: Walk, each: Callable[[Sequence[Stmt]], tuple[Stmt, ...]]) -> list[Stmt]:
        """A walk's steps, `each` of those there are: what is read, what is done with it, what is written."""
        lanes = self.tile.lanes
        near, (fetch, one) = self.told_apart(walk.fetch, walk.one)
        keep, (put, put_one) = self.told_apart(walk.put, walk.put_one)
        return [
            *walk.arrays,
            *self.either(each(fetch), each(lanes(one))),
            *each(near),
            *each(lanes(walk.alone)),
            *each(lanes(walk.inner)),
            *each(keep),
            *self.either(each(put), each(lanes(put_one))),
        ]

    def edge(self, walk: Walk) -> list[Stmt]:
        """One step of a round that is not the row's as a whole: by neighbours where all of them are."""
        step = tuple(self.stepped(walk, tuple))
        if not self.ragged:
            return [If(self.inside, step)]
        near, (_, one) = self.told_apart(walk.fetch, walk.one)
        single = If(self.inside, (*one, *walk.alone, *walk.inner, *walk.put_one))
        some = (*walk.arrays, *near, *self.tile.lanes([single]))
        extent, last = self.across.axis.extent, self.across.axis.extent - self.tile.near
        inside = _both(_not_before(self.first_place), test("le", self.first_place, last))
        return [If(inside, step, (If(test("lt", self.first_place, extent), some),))]

    def told_apart(
        self, copies: Sequence[Copy], ones: Sequence[Stmt]
    ) -> tuple[list[Copy], tuple[list[Copy], list[Stmt]]]:
        """Copies from and to arrays of the row, which are aligned; the others, and what takes the place of those."""
        own = {array.name for array in self.kept.values()}
        near = [copy for copy in copies if copy.source in own or copy.target in own]
        far = [(copy, one) for copy, one in zip(copies, ones, strict=True) if copy not in near]
        return near, ([copy for copy, _ in far], [one for _, one in far])

    # --- which elements are the row's ---

    @property
    def ragged(self) -> bool:
        """Whether some neighbours are the row's and others are not."""
        return self.lead is not ix.ZERO or self.across.axis.extent % self.tile.near != 0

    @property
    def inside(self) -> Expr:
        """Whether an element is the row's; where rows are not ragged, its neighbours are, too."""
        place = self.place if self.ragged else ix.substitute(self.place, {self.tile.lane: ix.ZERO})
        before_end = test("lt", number(place), self.across.axis.extent)
        return _both(_not_before(number(place)), before_end) if self.lead is not ix.ZERO else before_end

    @property
    def first_place(self) -> IndexValue:
        """Where the first of several neighbours lies in the row."""
        return number(ix.substitute(self.place, {self.tile.lane: ix.ZERO}))


def _as(index: Index, like: Expr) -> IndexValue:
    return IndexValue(index, like.dtype)


def _not_before(place: Expr) -> Expr:
    return test("le", Literal(0, place.dtype), place)


def _both(a: Expr, b: Expr) -> Expr:
    return Op("and", (a, b), bool_)
