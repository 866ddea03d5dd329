"""Walks over a row on a GPU: what each thread does with its elements, and how partial results become one.

`Row` strides along a row whose ends are known at run time. `TiledRow` is a row of known length, shared out as a `Tile`;
its loads and stores go through arrays of the thread. In a `PrivateRow` those arrays hold the whole row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from weft.dtypes import DType, int32
from weft.kernels import index as ix
from weft.kernels.gpu_tile import (
    BEGIN,
    END,
    Near,
    Target,
    Tile,
    aligned,
    at,
    kernel,
    loads_in,
    named,
    number,
    serial,
    test,
    times,
    unrolled,
    with_loads,
)  # fmt: skip
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Barrier,
    Copy,
    Expr,
    Fold,
    Geometry,
    If,
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
)
from weft.kernels.nest import COMBINE, Nest, Span, together
from weft.kernels.substitute import substitute

BLOCK = 256
FEW = 8  # partial results that each thread joins by itself


@dataclass(slots=True, eq=False)
class Row:
    """A row with ends known only at run time: threads stride along it, and read it again in every walk."""

    target: Target
    tile: Tile
    outer: tuple[Span, ...]
    across: Span
    locals: list[Local] = field(default_factory=list)

    # --- who takes which row ---

    @property
    def by_subgroup(self) -> bool:
        """Whether a row is one subgroup's, several rows to a block."""
        return False

    @property
    def thread(self) -> Index:
        return at(self.tile.thread)

    def taken(self, nest: Nest, each: Axis) -> tuple[Nest, Axis]:
        """The nest, and the axis of rows or chunks that are taken one by one."""
        return nest, each

    def launched(self, nest: Nest, body: tuple[Stmt, ...], each: Axis) -> Kernel:
        """The kernel that does `body` for `each` row or chunk of rows."""
        threads = self.tile.threads
        loop = Loop(each, BEGIN, END, "task", body)
        whole = Loop(self.tile.thread, 0, threads, "threads", (loop,), threads)
        return kernel(nest, (*self.locals, whole), Geometry(threads, threads))

    # --- walks ---

    def at_point(self, nest: Nest) -> tuple[Stmt, ...]:
        """What is done at one point: fold stage by stage, store, walk the row again for what needs the folds."""
        body = self.folds(nest)
        if nest.inner_stores:
            body.extend(self.along(together(nest.inner_stores)))
        return tuple(self.ended(nest, body))

    def folds(self, nest: Nest) -> list[Stmt]:
        body: list[Stmt] = []
        for stage in nest.stages:
            parts = tuple([replace(acc, name=f"{acc.name}_part") for acc, _ in stage])
            updates = [Update(part.name, value) for part, (_, value) in zip(parts, stage, strict=True)]
            body.append(Fold(parts, self.along(tuple(updates))))
            body.extend(self.join([acc for acc, _ in stage]))
        if nest.point_stores:
            body.append(If(test("eq", number(self.thread), 0), together(nest.point_stores)))
        return body

    def ended(self, nest: Nest, body: list[Stmt]) -> list[Stmt]:
        """`body`, after which the arrays where partial results meet may be written again."""
        return [*body, Barrier()] if len(nest.stages) == 1 and self.target.subgroup and not self.by_subgroup else body

    def along(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        span = self.across
        return serial(self.outer, (Loop(span.axis, span.start, span.stop, "threads", body, self.tile.threads),))

    def with_columns(self, nest: Nest, chunk: Axis) -> tuple[Sequence[Stmt], tuple[Stmt, ...], Sequence[Stmt]]:
        """What is done before, at and after the points of a chunk. The running sums lie in memory."""
        clear: list[Stmt] = []
        final: list[Stmt] = list(together(nest.inner_stores))
        for column in nest.columns:
            place = ix.add(ix.scale(at(chunk), column.width), column.index)
            acc = column.accumulator
            clear.append(Store(column.buffer, place, Literal(acc.identity, acc.dtype)))
            running = Op(COMBINE[acc.op], (Load(column.buffer, place, acc.dtype), column.value), acc.dtype)
            final.append(Store(column.buffer, place, running))
        body = [*self.folds(nest), *self.along(tuple(final))]
        return self.along(tuple(clear)), tuple(self.ended(nest, body)), ()

    # --- joining partial results ---

    def join(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """One result, in every thread, from the partial ones of all."""
        size = self.target.subgroup
        if size * size < self.tile.threads:  # a subgroup has no thread for each of the groups
            return self._join_in_memory(accumulators)
        groups = self.tile.threads // size
        if groups <= 1:
            return [Let(acc.name, _exchanged(Var(f"{acc.name}_part", acc.dtype), acc, size)) for acc in accumulators]
        kinds: dict[tuple[str, DType], list[Accumulator]] = {}
        for acc in accumulators:
            kinds.setdefault((acc.op, acc.dtype), []).append(acc)
        given: list[Stmt] = []
        taken: list[Stmt] = []
        for same in kinds.values():
            for first in range(0, len(same), size):
                give, take = self._through_memory(same[first : first + size], groups)
                given += give
                taken += take
        return [*given, Barrier(), *taken]

    def _through_memory(self, same: Sequence[Accumulator], groups: int) -> tuple[list[Stmt], list[Stmt]]:
        """What subgroups give each other, of folds of one kind, and what each thread makes of it."""
        size, (first, *_) = self.target.subgroup, same
        lane, group = ix.remainder(self.thread, size), ix.floordiv(self.thread, size)
        slots = 1 << (len(same) - 1).bit_length()
        apart = size // slots
        array = self.shared(f"{first.name}_groups", first.dtype, slots * groups)
        value = _dealt_out([Var(f"{acc.name}_part", acc.dtype) for acc in same], first, size, lane)
        let = Let(f"{first.name}_group", value)
        place = ix.add(ix.scale(ix.floordiv(lane, apart), groups), group)
        store = Store(array, place, Var(let.name, first.dtype))
        give: list[Stmt] = [let, If(test("eq", number(ix.remainder(lane, apart)), 0), (store,))]
        return give, [s for k, acc in enumerate(same) for s in self._given(array, k * groups, acc, groups)]

    def _given(self, array: str, begin: int, acc: Accumulator, groups: int) -> list[Stmt]:
        """What subgroups left in `array` from `begin` on, joined by halves: few by each thread alone, which waits for
        one access instead of one exchange after the other; many by the threads of a subgroup."""
        given = f"{acc.name}_given"
        if groups > FEW:
            place = ix.add(ix.remainder(self.thread, groups), ix.const(begin))
            one = Let(given, Load(array, place, acc.dtype))
            return [one, Let(acc.name, _exchanged(Var(given, acc.dtype), acc, groups))]
        near = max(min(groups, self.target.vector_bytes // acc.dtype.itemsize), 1)
        copies = [Copy(given, ix.const(k), array, ix.const(begin + k), near, acc.dtype) for k in range(0, groups, near)]
        values: list[Expr] = [Load(given, ix.const(k), acc.dtype) for k in range(groups)]
        while len(values) > 1:
            half = len(values) // 2
            values = [Op(COMBINE[acc.op], pair, acc.dtype) for pair in zip(values[:half], values[half:], strict=True)]
        return [Local(given, acc.dtype, groups, "thread"), *copies, Let(acc.name, values[0])]

    def _join_in_memory(self, accumulators: Sequence[Accumulator]) -> list[Stmt]:
        """Partial results of all threads, then of `groups` threads, then one, in every thread.

        Each of the two arrays is written again only behind a barrier that all its readers have reached.
        """
        groups = 1 << (self.tile.threads.bit_length() // 2)
        each, among = Axis("k", self.tile.threads // groups), Axis("k", groups)
        joined = tuple([replace(acc, name=f"{acc.name}_group") for acc in accumulators])
        place = ix.add(ix.scale(at(each), groups), self.thread)
        every, few, steps, last = [], [], [], []
        for acc in accumulators:
            all_of, few_of = (
                self.shared(f"{acc.name}_all", acc.dtype, self.tile.threads),
                self.shared(f"{acc.name}_few", acc.dtype, groups),
            )
            every.append(Store(all_of, self.thread, Var(f"{acc.name}_part", acc.dtype)))
            steps.append(Update(f"{acc.name}_group", Load(all_of, place, acc.dtype)))
            few.append(Store(few_of, self.thread, Var(f"{acc.name}_group", acc.dtype)))
            last.append(Update(acc.name, Load(few_of, at(among), acc.dtype)))
        halfway = Fold(joined, (Loop(each, 0, each.extent, "serial", tuple(steps)),))
        return [
            *every,
            Barrier(),
            If(test("lt", number(self.thread), groups), (halfway, *few)),
            Barrier(),
            Fold(tuple(accumulators), (Loop(among, 0, groups, "serial", tuple(last)),)),
        ]

    def shared(self, name: str, dtype: DType, size: int) -> str:
        self.locals.append(Local(name, dtype, size))
        return name


def _exchanged(value: Expr, acc: Accumulator, threads: int) -> Expr:
    """`value` joined over so many threads, by halves; every thread has the same result."""
    while threads > 1:
        threads //= 2
        value = _met(value, value, acc, threads)
    return value


def _dealt_out(values: Sequence[Expr], acc: Accumulator, threads: int, lane: Index) -> Expr:
    """Each of `values` joined over so many threads, by halves, as `_exchanged` does it. Of two values, the lower half
    of the threads goes on with the one and the upper half with the other, and gives away what it does not keep: an
    exchange serves both. So the threads from k * threads / slots on have value k, with a power of two of slots."""
    slots = 1 << (len(values) - 1).bit_length()
    while slots > 1:
        slots, threads = slots // 2, threads // 2
        upper = test("eq", number(ix.remainder(ix.floordiv(lane, threads), 2)), 1)
        met: list[Expr] = []
        for k, low in enumerate(values[:slots]):
            high = values[k + slots] if k + slots < len(values) else low
            kept, given = (Op("select", (upper, a, b), acc.dtype) for a, b in ((high, low), (low, high)))
            met.append(_met(low, low, acc, threads) if high is low else _met(kept, given, acc, threads))
        values = met
    return _exchanged(values[0], acc, threads)


def _met(kept: Expr, given: Expr, acc: Accumulator, distance: int) -> Expr:
    """What is kept, with what the thread at `distance` gives."""
    return Op(COMBINE[acc.op], (kept, _passed("exchange", given, Literal(distance, int32))), acc.dtype)


def told(value: Expr, number_of: Expr) -> Expr:
    """What `value` is in the thread with this number in its subgroup."""
    return _passed("broadcast", value, number_of)


def _passed(way: str, value: Expr, whom: Expr) -> Expr:
    """A value of another thread of the subgroup. What is smaller than 32 bits goes as such."""
    if value.dtype.itemsize >= 4:
        return Op(way, (value, whom), value.dtype)
    return Op("cast", (Op(way, (Op("cast", (value,), int32), whom), int32),), value.dtype)


# --- rows of known length --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Walk:
    """One walk over a row, for a thread: its private arrays, what fills them, what it does with each element, and what
    empties them. Each of `fetch`, `one` and `put` is for one step; `one` takes the
    place of `fetch` where buffers are not aligned, and `alone` is what never goes by neighbours."""

    arrays: list[Local] = field(default_factory=list)
    fetch: list[Copy] = field(default_factory=list)
    one: list[Stmt] = field(default_factory=list)
    alone: list[Stmt] = field(default_factory=list)
    inner: list[Stmt] = field(default_factory=list)
    put: list[Copy] = field(default_factory=list)
    put_one: list[Stmt] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TiledRow(Row, ABC):
    """A row of known length, as a tile of which the last step may be cut off. Loads go through private arrays."""

    near: Near = field(init=False)
    place: Index = field(init=False)  # of a thread's element in the row
    known: dict[tuple, Expr] = field(default_factory=dict)  # loads that private arrays hold, by (buffer, index)
    aligned: Expr = field(init=False)

    @property
    def thread(self) -> Index:
        if self.by_subgroup:
            return Index(((Axis("thread", self.tile.threads, "value"), 1),), 0)
        return at(self.tile.thread)

    @property
    def by_subgroup(self) -> bool:
        """Whether a row is one subgroup's, several rows to a block."""
        return self.tile.threads == self.target.subgroup

    def prepare(self, nest: Nest, place: Index) -> Nest:
        """The nest with the row's axis at `place`."""
        self.place = place
        nest = self.placed(nest, place)
        values = [value for stage in nest.stages for _, value in stage]
        values += [store.value for store in nest.inner_stores] + [column.value for column in nest.columns]
        buffers = [(load.buffer, load.dtype) for load in loads_in(values) if self.by_neighbours(load)]
        buffers += [(store.buffer, store.value.dtype) for store in nest.inner_stores if self.by_neighbours(store)]
        buffers += [(column.buffer, column.accumulator.dtype) for column in nest.columns]
        most = max([dtype.itemsize for _, dtype in buffers], default=1)
        self.aligned = aligned(buffers, self.tile.near * most)
        return nest

    def placed(self, nest: Nest, place: Index) -> Nest:
        return substitute(nest, {self.across.axis: place})

    @property
    def inside(self) -> Expr:
        """Whether a group of neighbours lies in the row; all of them do, or none."""
        return test("lt", number(ix.substitute(self.place, {self.tile.lane: ix.ZERO})), self.across.axis.extent)

    def by_neighbours(self, access: Load | Store) -> bool:
        return self.tile.near > 1 and access.mask is None and self.near.moves(access.index)

    def varies(self, load: Load) -> bool:
        """Whether a load changes along the row, and so is worth an array of a thread's own."""
        return load.mask is None and not ix.axes_of(self.place).isdisjoint(ix.axes_of(load.index))

    def taken(self, nest: Nest, each: Axis) -> tuple[Nest, Axis]:
        if not self.by_subgroup:
            return nest, each
        number_of = replace(each, kind="value")
        nest = substitute(nest, {each: Index(((number_of, 1),), 0)})
        self.outer = nest.inner[: len(self.outer)]  # whose ends may depend on the row
        return nest, number_of

    def launched(self, nest: Nest, body: tuple[Stmt, ...], each: Axis) -> Kernel:
        if not self.by_subgroup:
            return Row.launched(self, nest, body, each)
        size = self.tile.threads
        walker = Axis("i", each.extent * size)
        definitions = {
            **nest.definitions,
            each.name: number(ix.floordiv(at(walker), size)),
            "thread": number(ix.remainder(at(walker), size)),
        }
        loop = Loop(walker, times(BEGIN, size), times(END, size), "grid", body, BLOCK)
        return kernel(replace(nest, definitions=definitions), (*self.locals, loop), Geometry(BLOCK, size))

    def begun(self, values: Sequence[Expr]) -> tuple[Walk, list[Expr]]:
        """A walk that needs `values`: fetches what no walk has, and the values in terms of it."""
        walk = Walk()
        for load in loads_in(values):
            if not self.varies(load) or (load.buffer, load.index) in self.known:
                continue
            array = self.near.array(load.buffer, load.dtype)
            walk.arrays.append(array)
            self.known[load.buffer, load.index] = self.near.kept(array)
            if self.by_neighbours(load):
                walk.fetch.append(self.brought(array, load))
                walk.one.append(self.near.fetch_one(array, load))
            else:
                walk.alone.append(self.near.fetch_one(array, load))
        return walk, with_loads(values, self.known)

    def brought(self, array: Local, load: Load) -> Copy:
        """What fills a private array with neighbours."""
        return self.near.fetch(array, load)

    def finish(self, walk: Walk, stores: Sequence[Store], values: Sequence[Expr]) -> None:
        """Store `values` where `stores` say, by neighbours where that goes."""
        near = [self.by_neighbours(store) for store in stores]
        moved = [self.near.leaving(v) if along else v for v, along in zip(values, near, strict=False)]
        lets, outs = named([*moved, *values[len(stores) :]])
        walk.inner += lets
        for store, out, along in zip(stores, outs, near, strict=False):
            if along:
                array = self.near.array(store.buffer, out.dtype)
                walk.arrays.append(array)
                walk.inner.append(Store(array.name, self.near.slot, out))
                walk.put.append(self.near.put(array, store))
                walk.put_one.append(self.near.put_one(array, store))
            else:
                walk.inner.append(replace(store, value=out))

    def folds(self, nest: Nest) -> list[Stmt]:
        body: list[Stmt] = []
        for stage in nest.stages:
            parts = tuple([replace(acc, name=f"{acc.name}_part") for acc, _ in stage])
            body += self.folded(parts, partial(self.folding, parts, [value for _, value in stage]))
            body += self.join([acc for acc, _ in stage])
        if nest.point_stores:
            body.append(If(test("eq", number(self.thread), 0), together(nest.point_stores)))
        return body

    def folding(self, parts: Sequence[Accumulator], values: Sequence[Expr]) -> Walk:
        walk, values = self.begun(values)
        walk.inner += [Update(part.name, value) for part, value in zip(parts, values, strict=True)]
        return walk

    def storing(self, stores: Sequence[Store]) -> Walk:
        walk, values = self.begun([store.value for store in stores])
        self.finish(walk, stores, values)
        return walk

    def at_point(self, nest: Nest) -> tuple[Stmt, ...]:
        body = self.folds(nest)
        if nest.inner_stores:
            body += self.walked(partial(self.storing, nest.inner_stores))
        return tuple(self.ended(nest, body))

    @abstractmethod
    def folded(self, parts: tuple[Accumulator, ...], made: Callable[[], Walk]) -> list[Stmt]:
        """The walk that `made` makes, with partial results in `parts`."""

    @abstractmethod
    def walked(self, made: Callable[[], Walk]) -> list[Stmt]:
        """The walk that `made` makes."""

    def either(self, fast: Sequence[Stmt], slow: Sequence[Stmt]) -> list[Stmt]:
        """`fast` where all buffers are aligned, else `slow`."""
        return [If(self.aligned, tuple(fast), tuple(slow))] if fast else []


@dataclass(slots=True, eq=False)
class PrivateRow(TiledRow):
    """A short row: what a thread reads stays in private arrays, for all walks."""

    @classmethod
    def of(cls, nest: Nest, target: Target, tile: Tile, across: Span) -> tuple[Nest, Self]:
        row = cls(target, tile, (), across)
        row.near = Near(tile, tile.slot, tile.each)
        return row.prepare(nest, tile.element(row.thread)), row

    def steps(self, body: Sequence[Stmt]) -> list[Stmt]:
        """Every step; where the last is cut off, it is for the threads that have a part in it."""
        if not body:
            return []
        tile = self.tile
        full = self.across.axis.extent // (tile.threads * tile.near)
        rest = (If(self.inside, tuple(body)),)
        return [
            *unrolled(tile.step, 0, full, tuple(body)),
            *(unrolled(tile.step, full, tile.steps, rest) if full < tile.steps else ()),
        ]

    def each(self, body: Sequence[Stmt]) -> list[Stmt]:
        return self.steps(self.tile.lanes(body)) if body else []

    def fetched(self, walk: Walk) -> list[Stmt]:
        return [*walk.arrays, *self.either(self.steps(walk.fetch), self.each(walk.one)), *self.each(walk.alone)]

    def folded(self, parts: tuple[Accumulator, ...], made: Callable[[], Walk]) -> list[Stmt]:
        walk = made()
        return [*self.fetched(walk), Fold(parts, tuple(self.each(walk.inner)))]

    def walked(self, made: Callable[[], Walk]) -> list[Stmt]:
        walk = made()
        return [
            *self.fetched(walk),
            *self.each(walk.inner),
            *self.either(self.steps(walk.put), self.each(walk.put_one)),
        ]
