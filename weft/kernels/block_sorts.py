"""Sorting on devices with blocks, by ranks: the place of an element in two sorted runs that become one is its place in
its own run plus the number of smaller elements in the other, which a binary search finds.

What is sorted are words of 64 bits that are all different (a key above a position), so there are no ties. `sort_runs`
sorts runs that fit shared memory, from runs of one element up; `merge_runs` makes one run of `WAYS` in device memory.
Nothing branches on data; the time depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.dtypes import bool_, int64
from weft.kernels import index as ix
from weft.kernels.gpu import BEGIN, BLOCK, END
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

WAYS = 4  # runs that one pass over device memory makes one of
LEAST = 256  # words that a block sorts at least, several rows together where they are short
ELEMENTS = 4  # words of a run for each thread


MISSING = 0x7FFFFFFF << 32 | 1 << 31  # with the lower bits, a word that is larger than all others


class Runs:
    """How blocks sort `rows` of `extent` words in runs of `per` (a power of two): a block takes `size` words, in which
    the runs lie side by side. Word `place` of block `task` belongs to `row`, `position`."""

    def __init__(self, rows: int, extent: int, per: int, bound: Expr):
        self.extent, self.per = extent, per
        self.bound = bound  # the number of rows as the kernel knows it
        self.size = max(per, LEAST)
        self.threads = max(self.size // ELEMENTS, 32)
        self.each = -(-extent // per)  # runs of a row
        self.tasks = -(-rows * self.each * per // self.size)
        self.task = Axis("block", self.tasks)
        self.place = Axis("place", self.size)
        together = self.size // per
        run = ix.add(ix.scale(ix.axis_index(self.task), together), self.run_inside)
        self.row = ix.floordiv(run, self.each)
        of_row = ix.remainder(run, self.each)
        self.position = ix.add(ix.scale(of_row, per), ix.remainder(ix.axis_index(self.place), per))

    @property
    def run_inside(self) -> Index:
        """Which of the block's runs."""
        return ix.floordiv(ix.axis_index(self.place), self.per)

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
    at = ix.axis_index(runs.place)
    missing = Op("or", (Literal(MISSING, int64), IndexValue(at, int64)), int64)
    exists = runs.exists
    fill = (
        If(exists, (Store("words0", at, word), *checks)),
        If(Op("not", (exists,), bool_), (Store("words0", at, missing),)),
    )
    definitions: dict[str, Expr] = {}
    body: list[Stmt] = [_every(runs, fill), Barrier()]
    now, half = 0, 1
    while half < runs.per:
        mine = Let(f"mine{half}", Load(f"words{now}", at, int64))
        second = ix.remainder(ix.floordiv(at, half), 2)
        base = ix.scale(ix.floordiv(at, 2 * half), 2 * half)
        other = ix.add(ix.add(base, ix.const(half)), ix.scale(second, -half))
        search = _Search(f"words{now}", Var(f"mine{half}", int64), f"at{half}_", definitions)
        less = search.count(other, half)
        place = ix.add(ix.add(base, ix.remainder(at, half)), less)
        now = 1 - now
        body += [_every(runs, (mine, Store(f"words{now}", place, Var(f"mine{half}", int64)))), Barrier()]
        half *= 2
    target = ix.add(ix.scale(runs.row, runs.extent), runs.position)
    body.append(_every(runs, (If(exists, (Store(out, target, Load(f"words{now}", at, int64)),)),)))
    body.append(Barrier())
    arrays = [Local(f"words{k}", int64, runs.size) for k in (0, 1)]
    loop = Loop(runs.task, BEGIN, END, "task", tuple(body))
    return (*arrays, loop), definitions, Geometry(runs.threads, runs.threads)


def _every(runs: Runs, body: tuple[Stmt, ...]) -> Stmt:
    return Loop(runs.place, 0, runs.size, "threads", body, runs.threads)


def merge_runs(name: str, rows: int, extent: int, per: int) -> Kernel:
    """Every `WAYS` runs of `per` words as one: a thread finds the place of one word."""
    flat = Axis("i", rows * extent)
    row, at = ix.delinearise(ix.axis_index(flat), (rows, extent))
    base = ix.scale(ix.floordiv(at, WAYS * per), WAYS * per)
    ways = min(WAYS, -(-extent // per))
    own = ix.remainder(ix.floordiv(at, per), ways)
    start = ix.scale(row, extent)
    definitions: dict[str, Expr] = {}
    place = ix.add(ix.add(start, base), ix.remainder(at, per))
    for step in range(1, ways):
        first = ix.add(base, ix.scale(ix.remainder(ix.add(own, ix.const(step)), ways), per))
        search = _Search("words", Var("mine", int64), f"at{step}_", definitions, (start, extent))
        place = ix.add(place, search.count(first, per))
    mine = Let("mine", Load("words", ix.axis_index(flat), int64))
    loop = Loop(flat, BEGIN, END, "grid", (mine, Store("merged", place, Var("mine", int64))), BLOCK)
    buffers = (BufferParam("words", int64, False), BufferParam("merged", int64, True))
    return Kernel(name, buffers, (), LAUNCH_RANGES, (loop,), definitions, Geometry(BLOCK, 1))


class _Search:
    """Binary search for `word` in sorted runs of `buffer`. What is found is an axis of kind 'value'. `row`, if given,
    is where the row begins and its extent: runs may reach beyond it."""

    def __init__(
        self, buffer: str, word: Var, prefix: str, definitions: dict[str, Expr], row: tuple[Index, int] | None = None
    ):
        self.buffer, self.word, self.prefix = buffer, word, prefix
        self.definitions, self.row = definitions, row

    def count(self, first: Index, length: int) -> Index:
        """How many words of the run of `length` (a power of two) that begins at `first` are smaller."""
        found, reach = ix.ZERO, 0
        for step in (*_halves(length), 1):
            probe = ix.add(ix.add(first, found), ix.const(step - 1))
            smaller = self.smaller(probe)
            here = IndexValue(found, int64)
            more = Op("select", (smaller, Op("add", (here, Literal(step, int64)), int64), here), int64)
            reach += step
            name = f"{self.prefix}{len(self.definitions)}"
            self.definitions[name] = more
            found = ix.axis_index(Axis(name, reach + 1, "value"))
        return found

    def smaller(self, probe: Index) -> Expr:
        if self.row is None:
            return Op("lt", (Load(self.buffer, probe, int64), self.word), bool_)
        start, extent = self.row
        inside = Op("lt", (IndexValue(probe, int64), Literal(extent, int64)), bool_)
        word = Load(self.buffer, ix.add(start, probe), int64, inside)
        return Op("and", (inside, Op("lt", (word, self.word), bool_)), bool_)


def _halves(length: int) -> Sequence[int]:
    """length / 2, length / 4, ..., 1."""
    return [length >> k for k in range(1, length.bit_length())]
