"""Sorting on GPUs: words of 64 bits that are all different (a key above a position), so without ties.

A workgroup has a tile of words in shared memory, `WORDS_PER_LANE` contiguous ones to a lane. `sort_runs` sorts the
words of each lane by a network, then merges pairs of runs until one is left. `merge_runs` does that last step for runs
in device memory: a workgroup finds where its tile of the result begins and ends in both, loads these parts, and merges
them.

To merge two runs, a lane searches how many of its first `diagonal` results come from the first run, then takes its
results one by one. Nothing branches on data; the time depends on shapes alone. Searches and merges are loops, not
unrolled: one merge serves all lengths of runs, which keeps kernels short and their lanes at few registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.base.dtypes import DType, int32, int64
from weft.kernels.gpu.statements import BEGIN, END
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
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
    Stmt,
    Store,
    Var,
)

WORDS_PER_LANE = 8  # contiguous words of a lane
MIN_LANES = 32  # of a workgroup
MIN_TILE_WORDS = 256  # words that a workgroup sorts at least, several rows together where they are short
PADDING_WORD = 0x7FFFFFFF << 32 | 1 << 31  # with the lower bits, a word that is larger than all others


@dataclass(frozen=True, slots=True)
class Tile:
    """`size` words in shared memory, of which one in WORDS_PER_LANE + 1 is left out to avoid bank conflicts."""

    size: int

    @property
    def lanes(self) -> int:
        return max(self.size // WORDS_PER_LANE, MIN_LANES)

    @property
    def offset(self) -> Axis:
        return Axis("place", self.size)

    @property
    def lane(self) -> Axis:
        return Axis("thread", self.size // WORDS_PER_LANE)

    @property
    def first(self) -> Index:
        """The first word of a lane."""
        return self.lane * WORDS_PER_LANE

    def locals(self, number: DType | None = int32) -> list[Local]:
        """The tile; with a type for counting words, also what a lane needs to merge: how many words of the first run
        it has taken, and its results."""
        words = Local("words", int64, self.size // WORDS_PER_LANE * (WORDS_PER_LANE + 1))
        return (
            [words, Local("taken", number, 1, "lane"), Local("mine", int64, WORDS_PER_LANE, "lane")]
            if number
            else [words]
        )

    def for_elements(self, *body: Stmt) -> Stmt:
        """All words, adjacent ones by adjacent lanes."""
        return Loop(self.offset, 0, self.size, "lanes", body, self.lanes)

    def for_lanes(self, *body: Stmt) -> Stmt:
        """Each lane that has words, once."""
        return Loop(self.lane, 0, self.lane.extent, "lanes", body, self.lanes)

    def merge_in_place(self, merge: _Merge) -> tuple[Stmt, ...]:
        """Two runs in shared memory become one there."""
        offset = pad_index(self.first + MINE)
        back = Loop(
            MINE, 0, WORDS_PER_LANE, "unrolled", (Store("words", offset, Load("mine", ix.axis_index(MINE), int64)),)
        )
        return self.for_lanes(*merge.take()), Barrier(), self.for_lanes(back), Barrier()


MINE = Axis("k", WORDS_PER_LANE)  # the words of a lane


def max_tile_words(lanes: int, shared_bytes: int) -> int:
    """The largest tile for workgroups of so many lanes with so many bytes."""
    return 1 << (
        min(
            lanes * WORDS_PER_LANE, shared_bytes * WORDS_PER_LANE // ((WORDS_PER_LANE + 1) * int64.itemsize)
        ).bit_length()
        - 1
    )


def pad_index(offset: Index) -> Index:
    """The padded index of a word of the tile."""
    return offset + offset // WORDS_PER_LANE


class _Merge:
    """Two runs, each where it begins and how long it is, and the index of a word of a run in `buffer`."""

    def __init__(
        self, name: str, definitions: dict[str, Expr], buffer: str, index_of: Callable[[Index], Index],
        first: tuple[Index, Expr], second: tuple[Index, Expr], longest: int,
    ):  # fmt: skip
        self.number = second[1].dtype
        self.name, self.definitions, self.buffer, self.index_of = name, definitions, buffer, index_of
        self.first, self.second, self.longest = first, second, longest
        self.stride: Expr = Literal(longest, self.number)  # the first of a search, a power of two, and how many
        self.strides: Expr = Literal(longest.bit_length(), self.number)
        self.diagonal: Index = ix.ZERO  # of a lane

    def split(self, diagonal: Expr) -> list[Stmt]:
        """How many of the first `diagonal` results come from the first run, into 'taken'."""
        (start, length), (start2, other) = self.first, self.second
        step = Axis(f"{self.name}_step", self.longest.bit_length())
        more = self.stride >> IndexValue(ix.axis_index(step), self.number)
        probe = self.value("probe", _load_taken(self.number) + more, 2 * self.longest)
        at = IndexValue(probe, self.number)
        behind = self.value("behind", diagonal - at, 2 * self.longest)
        inside = at <= diagonal.min(length)
        ours, theirs = self.word(start, probe - 1, inside), self.word(start2, behind, inside)
        comes = inside & (ours < theirs)
        search = Loop(step, 0, self.strides, "serial", (Store("taken", ix.ZERO, at, comes),))
        return [Store("taken", ix.ZERO, (diagonal - other).max(0)), search]

    def take(self) -> list[Stmt]:
        """The next WORDS_PER_LANE results from a lane's diagonal on, into 'mine'."""
        (start, length), (start2, length2) = self.first, self.second
        at = self.value("at", _load_taken(self.number), self.longest)
        taken = IndexValue(at, self.number)
        passed = IndexValue(self.diagonal + MINE, self.number)
        behind = self.value("other", passed - taken, 2 * self.longest)
        has = taken < length
        has2 = IndexValue(behind, self.number) < length2
        ours, theirs = self.word(start, at, has), self.word(start2, behind, has2)
        less = ~has2 | (ours < theirs)
        comes = has & less
        body = (
            # Both are named before the stores, behind which words would be read again.
            Let(f"{self.name}_word", comes.select(ours, theirs)),
            Let(f"{self.name}_next", taken + comes.cast(self.number)),
            Store("mine", ix.axis_index(MINE), Var(f"{self.name}_word", int64)),
            Store("taken", ix.ZERO, Var(f"{self.name}_next", self.number)),
        )
        search = self.split(IndexValue(self.diagonal, self.number))
        return [*search, Loop(MINE, 0, WORDS_PER_LANE, "unrolled", body)]

    def word(self, start: Index, offset: Index, exists: Expr) -> Expr:
        return Load(self.buffer, self.index_of(start + offset), int64, exists)

    def value(self, name: str, value: Expr, high: int) -> Index:
        """A number that is known at run time, as an index."""
        name = f"{self.name}_{name}{len(self.definitions)}"
        self.definitions[name] = value
        return ix.axis_index(Axis(name, high + 1, "value"))


def _load_taken(number: DType) -> Load:
    return Load("taken", ix.ZERO, number)


# --- runs ------------------------------------------------------------------------------------------------------------


class Runs:
    """How workgroups sort rows of `extent` words in runs of `per` (a power of two), which are contiguous in a
    workgroup's tile. Word `offset` of workgroup `task` belongs to `row`, `position`."""

    def __init__(self, rows: int, extent: int, per: int, bound: Expr):
        self.extent, self.per = extent, per
        self.bound = bound  # the number of rows as the kernel knows it
        self.tile = Tile(max(per, MIN_TILE_WORDS))
        each = -(-extent // per)  # runs of a row
        runs_per_tile = self.tile.size // per
        self.tasks = -(-rows * each // runs_per_tile)
        self.task = Axis("block", self.tasks)
        offset = ix.axis_index(self.tile.offset)
        run = self.task * runs_per_tile + offset // per
        self.row = run // each
        self.position = run % each * per + offset % per

    @property
    def exists(self) -> Expr:
        """Whether there is such an element."""
        inside = IndexValue(self.position, int64) < self.extent
        there = IndexValue(self.row, int64) < self.bound
        return inside & there


def sort_runs(
    runs: Runs, word: Expr, out: str, checks: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], dict[str, Expr], Geometry]:
    """Sorted runs. `word` is the word at (row, position); missing ones come last."""
    tile, exists = runs.tile, runs.exists
    offset = pad_index(ix.axis_index(tile.offset))
    missing = Literal(PADDING_WORD, int64) | IndexValue(ix.axis_index(tile.offset), int64)
    fill = tile.for_elements(
        If(exists, (Store("words", offset, word), *checks)),
        If(~exists, (Store("words", offset, missing),)),
    )
    definitions: dict[str, Expr] = {}
    body: list[Stmt] = [fill, Barrier(), tile.for_lanes(*_network(tile, min(runs.per, WORDS_PER_LANE))), Barrier()]
    if runs.per > WORDS_PER_LANE:
        body.append(_merge_levels(tile, runs.per, definitions))
    target = runs.row * runs.extent + runs.position
    body += [tile.for_elements(If(exists, (Store(out, target, Load("words", offset, int64)),))), Barrier()]
    loop = Loop(runs.task, BEGIN, END, "task", tuple(body))
    return (
        (*tile.locals(int32 if runs.per > WORDS_PER_LANE else None), loop),
        definitions,
        Geometry(tile.lanes, tile.lanes),
    )


def _merge_levels(tile: Tile, per: int, definitions: dict[str, Expr]) -> Stmt:
    """Every two runs of the tile become one, until all are of `per` words."""
    level = Axis("level", (per // WORDS_PER_LANE).bit_length() - 1)
    level_number = IndexValue(ix.axis_index(level), int32)
    definitions["half"] = Literal(WORDS_PER_LANE, int32) << level_number  # words of a run
    half = Axis("half", per // 2 + 1, "value")
    length = IndexValue(ix.axis_index(half), int32)
    both = -(length + length)  # its bits select the pair of runs
    definitions["base"] = IndexValue(tile.first, int32) & both  # where the two runs of a lane begin
    base = ix.axis_index(Axis("base", tile.size, "value"))
    second = base + half
    merge = _Merge("run", definitions, "words", pad_index, (base, length), (second, length), per // 2)
    merge.stride, merge.strides = length, level_number + WORDS_PER_LANE.bit_length()
    merge.diagonal = tile.first - base
    return Loop(level, 0, level.extent, "serial", tile.merge_in_place(merge))


def _network(tile: Tile, size: int) -> list[Stmt]:
    """Every `size` of a lane's words in order, by comparing and exchanging (Batcher's odd-even merging)."""
    offsets = [pad_index(tile.first + k) for k in range(WORDS_PER_LANE)]
    values: list[Expr] = [Load("words", offset, int64) for offset in offsets]
    span = 1
    while span < size:
        distance = span
        while distance:
            for start in range(distance % span, WORDS_PER_LANE - distance, 2 * distance):
                for k in range(start, min(start + distance, WORDS_PER_LANE - distance)):
                    if k // (2 * span) == (k + distance) // (2 * span):
                        a, b = values[k], values[k + distance]
                        values[k], values[k + distance] = a.min(b), a.max(b)
            distance //= 2
        span *= 2
    lets: list[Stmt] = [Let(f"sorted{k}", value) for k, value in enumerate(values)]
    return [*lets, *[Store("words", offset, Var(f"sorted{k}", int64)) for k, offset in enumerate(offsets)]]


# --- merging in device memory ----------------------------------------------------------------------------------------


def merge_runs(name: str, rows: int, extent: int, per: int, size: int) -> tuple[Kernel, int]:
    """Every two runs of `per` words as one, and the number of tiles of `size` (which divides `per`) that it takes."""
    tile, tiles = Tile(size), -(-extent // size)
    number = int32 if extent < 1 << 29 else int64
    task, definitions = Axis("block", rows * tiles), dict[str, Expr]()
    row, which = ix.delinearise(ix.axis_index(task), (rows, tiles))
    begin = which * size  # of the tile, in its row
    base = begin // (2 * per) * (2 * per)
    start = row * extent
    left = [_length(extent, base, per, number), _length(extent, base + per, per, number)]
    first, second = start + base, start + (base + per)
    whole = _Merge("m", definitions, "b0", lambda at: at, (first, left[0]), (second, left[1]), per)
    diagonal = IndexValue(begin - base, number)
    end = (diagonal + size).min(left[0] + left[1])
    from_first, to_first = (whole.value(name, Var(name, number), per) for name in ("from", "to"))
    count = end - diagonal
    ours = whole.value("ours", IndexValue(to_first, number) - IndexValue(from_first, number), size)
    theirs = count - IndexValue(ours, number)
    offset = ix.axis_index(tile.offset)
    here = IndexValue(offset, number)
    exists = here < count
    is_ours = here < IndexValue(ours, number)
    other = diagonal - IndexValue(from_first, number)
    skipped = per + other - IndexValue(ours, number)
    shift = is_ours.select(IndexValue(from_first, number), skipped)
    at = whole.value("source", here + shift, 2 * per)
    load = Load("b0", first + at, int64)
    fill = tile.for_elements(If(exists, (Store("words", pad_index(offset), load),)))
    inside = _Merge(
        "t", definitions, "words", pad_index, (ix.ZERO, IndexValue(ours, number)), (ours, theirs), size
    )  # fmt: skip
    inside.diagonal = tile.first
    target = start + begin + offset
    store = tile.for_elements(If(exists, (Store("b1", target, Load("words", pad_index(offset), int64)),)))
    limits = (
        *whole.split(diagonal),
        Let("from", _load_taken(number)),
        *whole.split(end),
        Let("to", _load_taken(number)),
    )
    body = (*limits, fill, Barrier(), *tile.merge_in_place(inside), store, Barrier())
    buffers = (BufferParam("b0", int64, False), BufferParam("b1", int64, True))
    loop = Loop(task, BEGIN, END, "task", body)
    geometry = Geometry(tile.lanes, tile.lanes)
    return Kernel(name, buffers, (), LAUNCH_RANGES, (*tile.locals(number), loop), definitions, geometry), rows * tiles


def _length(extent: int, start: Index, per: int, number: DType) -> Expr:
    """Words of a row from `start` on, at most `per`."""
    rest = extent - IndexValue(start, number)
    return rest.min(per).max(0)
