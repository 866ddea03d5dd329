"""Stable sorts of rows of integer keys on the CPU.

Short rows: the rank of each element is the number of those before it, counted in vector lanes. Longer rows: a radix
sort from the lowest digit up. A key of at most 32 bits shares one word of 64 with its position; wider keys and their
positions are in separate arrays. Nothing here branches on data, so the time depends on shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.base.dtypes import DType, int32, int64
from weft.base.tuning import Tuning
from weft.kernels.cpu.schedule import lanes
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Expr,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.numerics import LANES

BEGIN, END = Var("begin", int64), Var("end", int64)
FINE_DIGIT, COARSE_DIGIT = 8, 11  # bits of a digit for shorter and for longer rows


@dataclass(frozen=True, slots=True)
class Rows:
    """What a sort works on: row and position axes, the key there, the result's buffer, and the rows' extent."""

    row: Axis
    at: Axis
    key: Expr
    checks: tuple[Stmt, ...]
    out: str
    extent: int
    bound: Expr | int  # the extent as the loops know it


def sort_by_counting(rows: Rows, tuning: Tuning) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """The rank of each element is the number of smaller elements, and of equal ones before it."""
    dtype, width = rows.key.dtype, lanes(rows.extent)
    mine, other = Axis("mine", rows.extent), Axis("other", rows.extent)
    fill = Loop(
        rows.at, 0, rows.bound, "vector", (Store("keys", ix.axis_index(rows.at), rows.key), *rows.checks), width
    )
    key = Let("key", Load("keys", ix.axis_index(mine), dtype))
    theirs = Load("keys", ix.axis_index(other), dtype)
    earlier = IndexValue(ix.axis_index(other), int32) < IndexValue(ix.axis_index(mine), int32)
    smaller, tied = theirs < Var("key", dtype), theirs.eq(Var("key", dtype))
    before = smaller | (tied & earlier)
    count = Loop(other, 0, rows.bound, "vector", (Update("rank", before.cast(int32)),), width)
    position = _base(rows, rows.extent) + Axis("place", max(rows.extent, 2), "value")
    put = Store(rows.out, position, IndexValue(ix.axis_index(mine), int64))
    ranks = Loop(mine, 0, rows.bound, "serial", (key, Reduction((Accumulator("rank", "sum", int32),), (count,)), put))
    body = Loop(rows.row, BEGIN, END, "task", (Local("keys", dtype, tuning.max_counting_sort), fill, ranks))
    return (body,), {"place": Var("rank", int32).cast(int64)}


def sort_by_radix(rows: Rows, scratch: tuple[str, ...], tuning: Tuning) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """Digit after digit. `scratch` names memory like the result's; without it, the stack serves."""
    sorter = _Radix(rows, scratch, tuning.min_coarse_sort)
    return (Loop(rows.row, BEGIN, END, "task", sorter.body()),), sorter.definitions


def sort_into_buckets(
    entry: Axis, key: Expr, out: str, count: int, bounds: tuple[Expr, Expr], checks: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """A stable order of entries by `key`, the number of a bucket up to `count`: a counting sort.

    `out` has one element more than there are buckets for where each begins, two more for the count of the last, and
    then the order. Counts are stored two elements late; their running sums are where buckets begin, one element late;
    and each entry that is stored advances the beginning of its bucket, up to that of the next one.
    """
    entries, buckets = bounds
    counter = Axis("bucket", count + 3)
    bucket, spot = Axis("key", count + 1, "value"), Axis("spot", max(entry.extent, 2), "value")
    here = ix.axis_index(counter)

    def load(index: Index) -> Load:
        return Load(out, index, int64)

    clear = Loop(counter, 0, buckets + 3, "vector", (Store(out, here, Literal(0, int64)),), LANES)
    late = bucket + 2
    counted = Loop(entry, 0, entries, "serial", (*checks, Store(out, late, load(late) + 1)))
    following = here + 1
    added = Loop(counter, 1, buckets + 1, "serial", (Store(out, following, load(following) + load(here)),))
    begin = bucket + 1
    free = Let("free", load(begin))
    put = Store(out, spot + (count + 3), IndexValue(ix.axis_index(entry), int64))
    moved = Loop(entry, 0, entries, "serial", (free, put, Store(out, begin, Var("free", int64) + 1)))
    task = Loop(Axis("task", 1), BEGIN, END, "task", (clear, counted, added, moved))
    return (task,), {"key": key, "spot": Var("free", int64)}


class _Radix:
    def __init__(self, rows: Rows, scratch: tuple[str, ...], min_coarse: int):
        self.rows, self.wide = rows, rows.key.dtype.itemsize == 8
        self.bits = COARSE_DIGIT if rows.extent >= min_coarse else FINE_DIGIT
        width = 8 * rows.key.dtype.itemsize
        self.passes = -(-width // self.bits)
        self.low = 0 if self.wide else 32  # where the key begins in a word
        self.counter: DType = int32 if rows.extent < 2**31 else int64
        self.definitions: dict[str, Expr] = {}
        count = 3 if self.wide else 1
        self.names = scratch or tuple([f"scratch{k}" for k in range(count)])
        self.locals = () if scratch else tuple([Local(name, int64, rows.extent) for name in self.names])
        self.on_stack = not scratch

    def body(self) -> tuple[Stmt, ...]:
        size = self.passes << self.bits
        table = Axis("entry", size)
        clear = Loop(table, 0, size, "vector", (Store("table", ix.axis_index(table), Literal(0, self.counter)),), LANES)
        moves = [self.move(number) for number in range(self.passes)]
        return (
            Local("table", self.counter, size),
            *self.locals,
            clear,
            self.fill(),
            self.count(),
            *self.sums(),
            *moves,
        )

    # Where words, and the positions of wide keys, lie before pass `number`. The last pass ends in the result.

    def words(self, number: int) -> str:
        if self.wide:
            return self.names[number % 2]
        return self.names[0] if (self.passes - number) % 2 else self.rows.out

    def positions(self, number: int) -> str:
        return self.names[2] if (self.passes - number) % 2 else self.rows.out

    def at(self, buffer: str, axis: Axis) -> Index:
        """Element `axis` of this row in a buffer."""
        if buffer in self.names and self.on_stack:
            return ix.axis_index(axis)
        return _base(self.rows, self.rows.extent) + axis

    def fill(self) -> Stmt:
        """Keys as words whose order, taken as unsigned, is that of the keys."""
        key = self.rows.key
        whole = key if key.dtype is int64 else key.bitcast(int64) if self.wide else key.cast(int64)
        if key.dtype.kind == "i":
            sign = -(2**63) if self.wide else 1 << (8 * key.dtype.itemsize - 1)
            whole = whole ^ sign if self.wide else whole + sign
        if not self.wide:
            whole = (whole << 32) | IndexValue(ix.axis_index(self.rows.at), int64)
        store = Store(self.words(0), self.at(self.words(0), self.rows.at), whole)
        return Loop(self.rows.at, 0, self.rows.bound, "vector", (store, *self.rows.checks), LANES)

    def digit(self, number: int, word: str, name: str) -> Index:
        """The entry in the table for a word's digit."""
        shifted = Var(word, int64) >> (self.low + number * self.bits)
        self.definitions[name] = shifted & ((1 << self.bits) - 1)
        axis = Axis(name, 1 << self.bits, "value")
        return axis + (number << self.bits)

    def count(self) -> Stmt:
        """How often each digit occurs, for all passes at once."""
        axis = Axis("counted", self.rows.extent)
        body: list[Stmt] = [Let("word", Load(self.words(0), self.at(self.words(0), axis), int64))]
        for number in range(self.passes):
            entry = self.digit(number, "word", f"digit{number}")
            more = Load("table", entry, self.counter) + 1
            body.append(Store("table", entry, more))
        return Loop(axis, 0, self.rows.bound, "serial", tuple(body))

    def sums(self) -> tuple[Stmt, ...]:
        """Counts become the offsets at which each digit's elements begin."""
        out: list[Stmt] = [Local("sum", self.counter, 1)]
        for number in range(self.passes):
            axis = Axis(f"sum{number}", 1 << self.bits)
            entry = axis + (number << self.bits)
            body = (
                Let("begun", Load("sum", ix.ZERO, self.counter)),
                Let("here", Load("table", entry, self.counter)),
                Store("table", entry, Var("begun", self.counter)),
                Store("sum", ix.ZERO, Var("begun", self.counter) + Var("here", self.counter)),
            )
            out.append(Store("sum", ix.ZERO, Literal(0, self.counter)))
            out.append(Loop(axis, 0, 1 << self.bits, "serial", body))
        return tuple(out)

    def move(self, number: int) -> Stmt:
        """One pass: each word to the next free element of its digit."""
        axis = Axis(f"moved{number}", self.rows.extent)
        last = number == self.passes - 1
        word, destination = f"word{number}", f"place{number}"
        entry = self.digit(number, word, f"key{number}")
        body: list[Stmt] = [
            Let(word, Load(self.words(number), self.at(self.words(number), axis), int64)),
            Let(f"free{number}", Load("table", entry, self.counter)),
        ]
        free = Var(f"free{number}", self.counter)
        body.append(Store("table", entry, free + 1))
        self.definitions[destination] = free if self.counter is int64 else free.cast(int64)
        target = Axis(destination, max(self.rows.extent, 2), "value")
        if self.wide:
            position: Expr = IndexValue(ix.axis_index(axis), int64)
            if number:
                position = Load(self.positions(number), self.at(self.positions(number), axis), int64)
            ends = self.positions(number + 1)
            body.append(Store(ends, self.at(ends, target), position))
        else:
            position = Var(word, int64) & (2**32 - 1)
        if not last:
            ends = self.words(number + 1)
            body.append(Store(ends, self.at(ends, target), Var(word, int64)))
        elif not self.wide:
            body.append(Store(self.rows.out, self.at(self.rows.out, target), position))
        return Loop(axis, 0, self.rows.bound, "serial", tuple(body))


def _base(rows: Rows, extent: int) -> Index:
    """Where the row begins; nothing for a single row."""
    return rows.row * extent if rows.row.extent > 1 else ix.ZERO
