"""Stable orders of rows of integer keys on the CPU.

Short rows: the place of each element is the number of those before it, counted in lanes. Longer rows: a radix sort from
the lowest digit up. A key of at most 32 bits travels with its position in one word of 64; wider keys and their
positions travel side by side. Nothing here branches on data, so the time depends on shapes alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.dtypes import DType, bool_, int32, int64
from weft.kernels import index as ix
from weft.kernels.cpu import LANES, lanes
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Expr,
    Fold,
    IndexValue,
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

BEGIN, END = Var("begin", int64), Var("end", int64)
FINE, COARSE = 8, 11  # bits of a digit for shorter and for longer rows
MANY = 8192  # elements from which the larger table of coarse digits pays


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


def by_counting(rows: Rows) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """Each element's place is the number of smaller elements, and of equal ones before it."""
    dtype, width = rows.key.dtype, lanes(rows.extent)
    mine, other = Axis("mine", rows.extent), Axis("other", rows.extent)
    fill = Loop(
        rows.at, 0, rows.bound, "vector", (Store("keys", ix.axis_index(rows.at), rows.key), *rows.checks), width
    )
    key = Let("key", Load("keys", ix.axis_index(mine), dtype))
    theirs = Load("keys", ix.axis_index(other), dtype)
    earlier = Op("lt", (IndexValue(ix.axis_index(other), int32), IndexValue(ix.axis_index(mine), int32)), bool_)
    smaller, tied = Op("lt", (theirs, Var("key", dtype)), bool_), Op("eq", (theirs, Var("key", dtype)), bool_)
    before = Op("or", (smaller, Op("and", (tied, earlier), bool_)), bool_)
    count = Loop(other, 0, rows.bound, "vector", (Update("rank", Op("cast", (before,), int32)),), width)
    place = ix.add(_base(rows, rows.extent), ix.axis_index(Axis("place", max(rows.extent, 2), "value")))
    put = Store(rows.out, place, IndexValue(ix.axis_index(mine), int64))
    walk = Loop(mine, 0, rows.bound, "serial", (key, Fold((Accumulator("rank", "sum", int32),), (count,)), put))
    body = Loop(rows.row, BEGIN, END, "task", (Local("keys", dtype, 64), fill, walk))
    return (body,), {"place": Op("cast", (Var("rank", int32),), int64)}


def by_radix(rows: Rows, scratch: tuple[str, ...]) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """Digit after digit. `scratch` names memory like the result's; without it, the stack serves."""
    sorter = _Radix(rows, scratch)
    return (Loop(rows.row, BEGIN, END, "task", sorter.body()),), sorter.definitions


def into_buckets(
    entry: Axis, key: Expr, out: str, count: int, bounds: tuple[Expr, Expr], checks: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], dict[str, Expr]]:
    """A stable order of entries by `key`, the number of a bucket up to `count`: a sort by counting.

    `out` has a place more than there are buckets for where each begins, two more for the count of the last, and then
    the order. Counts stand two places late; sums over them are where buckets begin, one place late; and each entry that
    is placed moves the beginning of its bucket, up to that of the next one.
    """
    entries, buckets = bounds
    place = Axis("bucket", count + 3)
    bucket, spot = Axis("key", count + 1, "value"), Axis("spot", max(entry.extent, 2), "value")
    here = ix.axis_index(place)

    def load(index: Index) -> Load:
        return Load(out, index, int64)

    def plus(value: Expr, other: Expr | int) -> Op:
        return Op("add", (value, Literal(other, int64) if isinstance(other, int) else other), int64)

    clear = Loop(place, 0, plus(buckets, 3), "vector", (Store(out, here, Literal(0, int64)),), LANES)
    late = ix.add(ix.axis_index(bucket), ix.const(2))
    counted = Loop(entry, 0, entries, "serial", (*checks, Store(out, late, plus(load(late), 1))))
    following = ix.add(here, ix.const(1))
    added = Loop(place, 1, plus(buckets, 1), "serial", (Store(out, following, plus(load(following), load(here))),))
    begin = ix.add(ix.axis_index(bucket), ix.const(1))
    free = Let("free", load(begin))
    put = Store(out, ix.add(ix.axis_index(spot), ix.const(count + 3)), IndexValue(ix.axis_index(entry), int64))
    moved = Loop(entry, 0, entries, "serial", (free, put, Store(out, begin, plus(Var("free", int64), 1))))
    task = Loop(Axis("task", 1), BEGIN, END, "task", (clear, counted, added, moved))
    return (task,), {"key": key, "spot": Var("free", int64)}


class _Radix:
    def __init__(self, rows: Rows, scratch: tuple[str, ...]):
        self.rows, self.wide = rows, rows.key.dtype.itemsize == 8
        self.bits = COARSE if rows.extent >= MANY else FINE
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
        walks = [self.move(number) for number in range(self.passes)]
        return (
            Local("table", self.counter, size),
            *self.locals,
            clear,
            self.fill(),
            self.count(),
            *self.sums(),
            *walks,
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
        return ix.add(_base(self.rows, self.rows.extent), ix.axis_index(axis))

    def fill(self) -> Stmt:
        """Keys as words whose order, taken as unsigned, is that of the keys."""
        key = self.rows.key
        whole = key if key.dtype.itemsize == 8 else Op("cast", (key,), int64)
        if key.dtype.kind == "i":
            sign = -(2**63) if self.wide else 1 << (8 * key.dtype.itemsize - 1)
            whole = Op("xor" if self.wide else "add", (whole, Literal(sign, int64)), int64)
        if not self.wide:
            shifted = Op("shl", (whole, Literal(32, int64)), int64)
            whole = Op("or", (shifted, IndexValue(ix.axis_index(self.rows.at), int64)), int64)
        store = Store(self.words(0), self.at(self.words(0), self.rows.at), whole)
        return Loop(self.rows.at, 0, self.rows.bound, "vector", (store, *self.rows.checks), LANES)

    def digit(self, number: int, word: str, name: str) -> Index:
        """The entry in the table for a word's digit."""
        shifted = Op("shr", (Var(word, int64), Literal(self.low + number * self.bits, int64)), int64)
        self.definitions[name] = Op("and", (shifted, Literal((1 << self.bits) - 1, int64)), int64)
        axis = Axis(name, 1 << self.bits, "value")
        return ix.add(ix.axis_index(axis), ix.const(number << self.bits))

    def count(self) -> Stmt:
        """How often each digit occurs, for all passes at once."""
        axis = Axis("counted", self.rows.extent)
        body: list[Stmt] = [Let("word", Load(self.words(0), self.at(self.words(0), axis), int64))]
        for number in range(self.passes):
            entry = self.digit(number, "word", f"digit{number}")
            more = Op("add", (Load("table", entry, self.counter), Literal(1, self.counter)), self.counter)
            body.append(Store("table", entry, more))
        return Loop(axis, 0, self.rows.bound, "serial", tuple(body))

    def sums(self) -> tuple[Stmt, ...]:
        """Counts become the places where each digit's elements begin."""
        out: list[Stmt] = [Local("sum", self.counter, 1)]
        for number in range(self.passes):
            axis = Axis(f"sum{number}", 1 << self.bits)
            entry = ix.add(ix.axis_index(axis), ix.const(number << self.bits))
            body = (
                Let("begun", Load("sum", ix.ZERO, self.counter)),
                Let("here", Load("table", entry, self.counter)),
                Store("table", entry, Var("begun", self.counter)),
                Store("sum", ix.ZERO, Op("add", (Var("begun", self.counter), Var("here", self.counter)), self.counter)),
            )
            out.append(Store("sum", ix.ZERO, Literal(0, self.counter)))
            out.append(Loop(axis, 0, 1 << self.bits, "serial", body))
        return tuple(out)

    def move(self, number: int) -> Stmt:
        """One pass: each word to the next free place of its digit."""
        axis = Axis(f"moved{number}", self.rows.extent)
        last = number == self.passes - 1
        word, place = f"word{number}", f"place{number}"
        entry = self.digit(number, word, f"key{number}")
        body: list[Stmt] = [
            Let(word, Load(self.words(number), self.at(self.words(number), axis), int64)),
            Let(f"free{number}", Load("table", entry, self.counter)),
        ]
        free = Var(f"free{number}", self.counter)
        body.append(Store("table", entry, Op("add", (free, Literal(1, self.counter)), self.counter)))
        self.definitions[place] = free if self.counter is int64 else Op("cast", (free,), int64)
        target = Axis(place, max(self.rows.extent, 2), "value")
        if self.wide:
            position: Expr = IndexValue(ix.axis_index(axis), int64)
            if number:
                position = Load(self.positions(number), self.at(self.positions(number), axis), int64)
            ends = self.positions(number + 1)
            body.append(Store(ends, self.at(ends, target), position))
        else:
            position = Op("and", (Var(word, int64), Literal(2**32 - 1, int64)), int64)
        if not last:
            ends = self.words(number + 1)
            body.append(Store(ends, self.at(ends, target), Var(word, int64)))
        elif not self.wide:
            body.append(Store(self.rows.out, self.at(self.rows.out, target), position))
        return Loop(axis, 0, self.rows.bound, "serial", tuple(body))


def _base(rows: Rows, extent: int) -> Index:
    """Where the row begins; nothing for a single row."""
    return ix.scale(Index(((rows.row, 1),), 0), extent) if rows.row.extent > 1 else ix.ZERO
