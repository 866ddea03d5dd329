"""Sorting on devices with blocks: words of 64 bits that are all different (a key above a position), so without ties.

A block has a tile of words in shared memory, `EACH` neighbours to a thread. `sort_runs` sorts the words of each thread
by a network, then makes one run of two again and again. `merge_runs` does that last step for runs in device memory: a
block finds where its tile of the result begins and ends in both, loads these parts, and merges them.

To merge two runs, a thread searches how many of its first `diagonal` results come from the first run, then takes its
EACH results one by one. Nothing branches on data; the time depends on shapes alone. Searches and merges are loops, not
written out: one merge serves all lengths of runs, which keeps kernels short and their threads at few registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.dtypes import DType, bool_, int32, int64
from weft.kernels import index as ix
from weft.kernels.gpu import BEGIN, END
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Barrier,
    BufferParam,
    Expr,
    Geometry,
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
    Var,
)

EACH = 8  # neighbouring words of a thread
LEAST = 256  # words that a block sorts at least, several rows together where they are short
MISSING = 0x7FFFFFFF << 32 | 1 << 31  # with the lower bits, a word that is larger than all others


@dataclass(frozen=True, slots=True)
class Tile:
    """`size` words in shared memory, of which one in EACH + 1 is left out, so that threads meet in no bank."""

    size: int

    @property
    def threads(self) -> int:
        return max(self.size // EACH, 32)

    @property
    def place(self) -> Axis:
        return Axis("place", self.size)

    @property
    def thread(self) -> Axis:
        return Axis("thread", self.size // EACH)

    @property
    def first(self) -> Index:
        """The first word of a thread."""
        return ix.scale(ix.axis_index(self.thread), EACH)

    def locals(self, number: DType | None = int32) -> list[Local]:
        """The tile; with a type for counting words, also what a thread needs to merge: how many words of the first run
        it has taken, and its results."""
        words = Local("words", int64, self.size // EACH * (EACH + 1))
        return [words, Local("taken", number, 1, "thread"), Local("mine", int64, EACH, "thread")] if number else [words]

    def every(self, *body: Stmt) -> Stmt:
        """All words, neighbours by neighbouring threads."""
        return Loop(self.place, 0, self.size, "threads", body, self.threads)

    def once(self, *body: Stmt) -> Stmt:
        """Each thread that has words, once."""
        return Loop(self.thread, 0, self.thread.extent, "threads", body, self.threads)

    def merged(self, merge: _Merge) -> tuple[Stmt, ...]:
        """Two runs in shared memory become one there."""
        place = padded(ix.add(self.first, ix.axis_index(MINE)))
        back = Loop(MINE, 0, EACH, "unrolled", (Store("words", place, Load("mine", ix.axis_index(MINE), int64)),))
        return self.once(*merge.take()), Barrier(), self.once(back), Barrier()


MINE = Axis("k", EACH)  # the words of a thread


def most_words(threads: int, shared_bytes: int) -> int:
    """The largest tile for blocks of so many threads with so many bytes."""
    return 1 << (min(threads * EACH, shared_bytes * EACH // ((EACH + 1) * int64.itemsize)).bit_length() - 1)


def padded(place: Index) -> Index:
    """Where a word of the tile lies."""
    return ix.add(place, ix.floordiv(place, EACH))


class _Merge:
    """Two runs, each where it begins and how long it is, and the place of a word of a run in `buffer`."""

    def __init__(
        self, name: str, definitions: dict[str, Expr], buffer: str, lie: Callable[[Index], Index],
        first: tuple[Index, Expr], second: tuple[Index, Expr], longest: int,
    ):  # fmt: skip
        self.number = second[1].dtype
        self.name, self.definitions, self.buffer, self.lie = name, definitions, buffer, lie
        self.first, self.second, self.longest = first, second, longest
        self.stride: Expr = Literal(longest, self.number)  # the first of a search, a power of two, and how many
        self.strides: Expr = Literal(longest.bit_length(), self.number)
        self.diagonal: Index = ix.ZERO  # of a thread

    def split(self, diagonal: Expr) -> list[Stmt]:
        """How many of the first `diagonal` results come from the first run, into 'taken'."""
        (start, length), (start2, other) = self.first, self.second
        step = Axis(f"{self.name}_step", self.longest.bit_length())
        more = Op("shr", (self.stride, IndexValue(ix.axis_index(step), self.number)), self.number)
        probe = self.value("probe", _add(_taken(self.number), more), 2 * self.longest)
        at = IndexValue(probe, self.number)
        behind = self.value("behind", _sub(diagonal, at), 2 * self.longest)
        inside = Op("le", (at, _min(diagonal, length)), bool_)
        ours, theirs = self.word(start, ix.add(probe, ix.const(-1)), inside), self.word(start2, behind, inside)
        comes = Op("and", (inside, Op("lt", (ours, theirs), bool_)), bool_)
        search = Loop(step, 0, self.strides, "serial", (Store("taken", ix.ZERO, at, comes),))
        return [Store("taken", ix.ZERO, _max(_sub(diagonal, other), Literal(0, self.number))), search]

    def take(self) -> list[Stmt]:
        """The next EACH results from a thread's diagonal on, into 'mine'."""
        (start, length), (start2, length2) = self.first, self.second
        at = self.value("at", _taken(self.number), self.longest)
        taken = IndexValue(at, self.number)
        passed = IndexValue(ix.add(self.diagonal, ix.axis_index(MINE)), self.number)
        behind = self.value("other", _sub(passed, taken), 2 * self.longest)
        has = Op("lt", (taken, length), bool_)
        has2 = Op("lt", (IndexValue(behind, self.number), length2), bool_)
        ours, theirs = self.word(start, at, has), self.word(start2, behind, has2)
        less = Op("or", (Op("not", (has2,), bool_), Op("lt", (ours, theirs), bool_)), bool_)
        comes = Op("and", (has, less), bool_)
        body = (
            # Both are named before the stores, behind which words would be read again.
            Let(f"{self.name}_word", Op("select", (comes, ours, theirs), int64)),
            Let(f"{self.name}_next", _add(taken, Op("cast", (comes,), self.number))),
            Store("mine", ix.axis_index(MINE), Var(f"{self.name}_word", int64)),
            Store("taken", ix.ZERO, Var(f"{self.name}_next", self.number)),
        )
        search = self.split(IndexValue(self.diagonal, self.number))
        return [*search, Loop(MINE, 0, EACH, "unrolled", body)]

    def word(self, start: Index, place: Index, exists: Expr) -> Expr:
        return Load(self.buffer, self.lie(ix.add(start, place)), int64, exists)

    def value(self, name: str, value: Expr, high: int) -> Index:
        """A number that is known at run time, as an index."""
        name = f"{self.name}_{name}{len(self.definitions)}"
        self.definitions[name] = value
        return ix.axis_index(Axis(name, high + 1, "value"))


def _taken(number: DType) -> Load:
    return Load("taken", ix.ZERO, number)


# --- runs ------------------------------------------------------------------------------------------------------------


class Runs:
    """How blocks sort rows of `extent` words in runs of `per` (a power of two): the runs lie side by side in a block's
    tile. Word `place` of block `task` belongs to `row`, `position`."""

    def __init__(self, rows: int, extent: int, per: int, bound: Expr):
        self.extent, self.per = extent, per
        self.bound = bound  # the number of rows as the kernel knows it
        self.tile = Tile(max(per, LEAST))
        each = -(-extent // per)  # runs of a row
        together = self.tile.size // per
        self.tasks = -(-rows * each // together)
        self.task = Axis("block", self.tasks)
        place = ix.axis_index(self.tile.place)
        run = ix.add(ix.scale(ix.axis_index(self.task), together), ix.floordiv(place, per))
        self.row = ix.floordiv(run, each)
        self.position = ix.add(ix.scale(ix.remainder(run, each), per), ix.remainder(place, per))

    @property
    def exists(self) -> Expr:
        """Whether there is such an element."""
        inside = Op("lt", (IndexValue(self.position, int64), Literal(self.extent, int64)), bool_)
        there = Op("lt", (IndexValue(self.row, int64), self.bound), bool_)
        return Op("and", (inside, there), bool_)


def sort_runs(
    runs: Runs, word: Expr, out: str, checks: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], dict[str, Expr], Geometry]:
    """Sorted runs. `word` is the word at (row, position); missing ones come last."""
    tile, exists = runs.tile, runs.exists
    place = padded(ix.axis_index(tile.place))
    missing = Op("or", (Literal(MISSING, int64), IndexValue(ix.axis_index(tile.place), int64)), int64)
    fill = tile.every(
        If(exists, (Store("words", place, word), *checks)),
        If(Op("not", (exists,), bool_), (Store("words", place, missing),)),
    )
    definitions: dict[str, Expr] = {}
    body: list[Stmt] = [fill, Barrier(), tile.once(*_network(tile, min(runs.per, EACH))), Barrier()]
    if runs.per > EACH:
        body.append(_merging(tile, runs.per, definitions))
    target = ix.add(ix.scale(runs.row, runs.extent), runs.position)
    body += [tile.every(If(exists, (Store(out, target, Load("words", place, int64)),))), Barrier()]
    loop = Loop(runs.task, BEGIN, END, "task", tuple(body))
    return (*tile.locals(int32 if runs.per > EACH else None), loop), definitions, Geometry(tile.threads, tile.threads)


def _merging(tile: Tile, per: int, definitions: dict[str, Expr]) -> Stmt:
    """Every two runs of the tile become one, until all are of `per` words."""
    level = Axis("level", (per // EACH).bit_length() - 1)
    turn = IndexValue(ix.axis_index(level), int32)
    definitions["half"] = Op("shl", (Literal(EACH, int32), turn), int32)  # words of a run
    half = Axis("half", per // 2 + 1, "value")
    length = IndexValue(ix.axis_index(half), int32)
    both = Op("neg", (_add(length, length),), int32)  # its bits tell the runs
    definitions["base"] = Op("and", (IndexValue(tile.first, int32), both), int32)  # where a thread's two begin
    base = ix.axis_index(Axis("base", tile.size, "value"))
    second = ix.add(base, ix.axis_index(half))
    merge = _Merge("run", definitions, "words", padded, (base, length), (second, length), per // 2)
    merge.stride, merge.strides = length, _add(turn, Literal(EACH.bit_length(), int32))
    merge.diagonal = ix.add(tile.first, ix.scale(base, -1))
    return Loop(level, 0, level.extent, "serial", tile.merged(merge))


def _network(tile: Tile, size: int) -> list[Stmt]:
    """Every `size` of a thread's words in order, by comparing and exchanging (Batcher's odd-even merging)."""
    places = [padded(ix.add(tile.first, ix.const(k))) for k in range(EACH)]
    values: list[Expr] = [Load("words", place, int64) for place in places]
    span = 1
    while span < size:
        distance = span
        while distance:
            for start in range(distance % span, EACH - distance, 2 * distance):
                for k in range(start, min(start + distance, EACH - distance)):
                    if k // (2 * span) == (k + distance) // (2 * span):
                        a, b = values[k], values[k + distance]
                        values[k], values[k + distance] = _min(a, b), _max(a, b)
            distance //= 2
        span *= 2
    lets: list[Stmt] = [Let(f"sorted{k}", value) for k, value in enumerate(values)]
    return [*lets, *[Store("words", place, Var(f"sorted{k}", int64)) for k, place in enumerate(places)]]


# --- merging in device memory ----------------------------------------------------------------------------------------


def merge_runs(name: str, rows: int, extent: int, per: int, size: int) -> tuple[Kernel, int]:
    """Every two runs of `per` words as one, and the number of tiles of `size` (which divides `per`) that it takes."""
    tile, tiles = Tile(size), -(-extent // size)
    number = int32 if extent < 1 << 29 else int64
    task, definitions = Axis("block", rows * tiles), dict[str, Expr]()
    row, which = ix.delinearise(ix.axis_index(task), (rows, tiles))
    begin = ix.scale(which, size)  # of the tile, in its row
    base = ix.scale(ix.floordiv(begin, 2 * per), 2 * per)
    start = ix.scale(row, extent)
    left = [_length(extent, base, per, number), _length(extent, ix.add(base, ix.const(per)), per, number)]
    first, second = ix.add(start, base), ix.add(start, ix.add(base, ix.const(per)))
    whole = _Merge("m", definitions, "b0", lambda at: at, (first, left[0]), (second, left[1]), per)
    diagonal = IndexValue(ix.add(begin, ix.scale(base, -1)), number)
    end = _min(_add(diagonal, Literal(size, number)), _add(left[0], left[1]))
    from_first, to_first = (whole.value(name, Var(name, number), per) for name in ("from", "to"))
    count = _sub(end, diagonal)
    ours = whole.value("ours", _sub(IndexValue(to_first, number), IndexValue(from_first, number)), size)
    theirs = _sub(count, IndexValue(ours, number))
    place = ix.axis_index(tile.place)
    here = IndexValue(place, number)
    exists = Op("lt", (here, count), bool_)
    is_ours = Op("lt", (here, IndexValue(ours, number)), bool_)
    other = _sub(diagonal, IndexValue(from_first, number))
    skipped = _sub(_add(Literal(per, number), other), IndexValue(ours, number))
    shift = Op("select", (is_ours, IndexValue(from_first, number), skipped), number)
    at = whole.value("source", _add(here, shift), 2 * per)
    load = Load("b0", ix.add(first, at), int64)
    fill = tile.every(If(exists, (Store("words", padded(place), load),)))
    inside = _Merge(
        "t", definitions, "words", padded, (ix.ZERO, IndexValue(ours, number)), (ours, theirs), size
    )  # fmt: skip
    inside.diagonal = tile.first
    target = ix.add(ix.add(start, begin), place)
    store = tile.every(If(exists, (Store("b1", target, Load("words", padded(place), int64)),)))
    limits = (*whole.split(diagonal), Let("from", _taken(number)), *whole.split(end), Let("to", _taken(number)))
    body = (*limits, fill, Barrier(), *tile.merged(inside), store, Barrier())
    buffers = (BufferParam("b0", int64, False), BufferParam("b1", int64, True))
    loop = Loop(task, BEGIN, END, "task", body)
    geometry = Geometry(tile.threads, tile.threads)
    return Kernel(name, buffers, (), LAUNCH_RANGES, (*tile.locals(number), loop), definitions, geometry), rows * tiles


def _length(extent: int, start: Index, per: int, number: DType) -> Expr:
    """Words of a row from `start` on, at most `per`."""
    rest = _sub(Literal(extent, number), IndexValue(start, number))
    return _max(_min(rest, Literal(per, number)), Literal(0, number))


def _add(a: Expr, b: Expr) -> Expr:
    return Op("add", (a, b), a.dtype)


def _sub(a: Expr, b: Expr) -> Expr:
    return Op("sub", (a, b), a.dtype)


def _min(a: Expr, b: Expr) -> Expr:
    return Op("min", (a, b), a.dtype)


def _max(a: Expr, b: Expr) -> Expr:
    return Op("max", (a, b), a.dtype)
