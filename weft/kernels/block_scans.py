"""Running reductions on devices with blocks.

*Lines*: a thread walks one line alone; neighbouring threads take neighbouring lines. *Rows*: a block walks one row, a
tile at a time. The tile lies in shared memory, where each thread combines a few neighbours; the threads' totals are
combined in log2(threads) steps; then every element gets what stands before its thread's part, and before its tile.
Which element is combined with which follows from extents alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.dtypes import DType, bool_, int64
from weft.kernels import index as ix
from weft.kernels.cascade import compensated
from weft.kernels.gpu import BEGIN, BLOCK, END
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
    Barrier,
    Expr,
    Geometry,
    If,
    IndexValue,
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
from weft.kernels.scans import EXTENT, carried, combine, is_carried, neutral, start, walk_in_order

EACH = 9  # neighbours of a tile that one thread combines; odd, so that threads meet in no bank of shared memory
FEWEST = 32  # threads of a block


def scan_lines(
    points: Axis, step: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...]
) -> tuple[tuple[Stmt, ...], Geometry]:
    """One thread to a line: `out.value` is the value at `step`."""
    walk = walk_in_order(step, 0, EXTENT, accumulator, out.value, out, checks, step.extent)
    body = (*start(accumulator, step.extent, "thread"), *walk)
    return (Loop(points, BEGIN, END, "grid", body, BLOCK),), Geometry(BLOCK, 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """How a block takes a row of `extent`: tiles of `threads` * EACH elements. Element (tile, part, thread) is at
    `position` of the row, so neighbouring threads read neighbours. A block's arrays of `dtype` take `shared_bytes` at
    most."""

    extent: int
    dtype: DType
    shared_bytes: int

    @property
    def threads(self) -> int:
        least = -(-self.extent // EACH)
        most = self.shared_bytes // ((EACH + 3) * self.dtype.itemsize)  # values, totals twice, and what is carried
        return min(max(1 << max(least - 1, 0).bit_length(), FEWEST), 1 << (most.bit_length() - 1), BLOCK)

    @property
    def size(self) -> int:
        return self.threads * EACH

    @property
    def number(self) -> Axis:
        return Axis("tile", max(-(-self.extent // self.size), 2))

    @property
    def thread(self) -> Axis:
        return Axis("thread", self.threads)

    @property
    def inside(self) -> Index:
        """The place in the tile."""
        return ix.add(ix.scale(ix.axis_index(Axis("part", EACH)), self.threads), ix.axis_index(self.thread))

    @property
    def position(self) -> Index:
        return ix.add(ix.scale(ix.axis_index(self.number), self.size), self.inside)

    def every(self, body: tuple[Stmt, ...]) -> Stmt:
        """All elements of a tile."""
        return Loop(Axis("part", EACH), 0, EACH, "serial", (self.once(body),))

    def once(self, body: tuple[Stmt, ...], count: int = 0) -> Stmt:
        """All threads, or the first `count`."""
        return Loop(self.thread, 0, count or self.threads, "threads", body, self.threads)


def scan_row(row: Axis, tile: Tile, op: str, out: Store, checks: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], Geometry]:
    """One block to a row: `out.value` is the value at `tile.position`."""
    dtype, threads = out.value.dtype, tile.threads
    nothing = Literal(neutral(op, dtype), dtype)
    exists = Op("lt", (IndexValue(tile.position, int64), EXTENT), bool_)
    fill = tile.every(
        (
            If(exists, (Store("values", tile.inside, out.value), *checks)),
            If(Op("not", (exists,), bool_), (Store("values", tile.inside, nothing),)),
        )
    )
    totals, joined = _totals(tile, op, dtype)
    owner = ix.floordiv(tile.inside, EACH)
    later = Op("lt", (Literal(0, int64), IndexValue(owner, int64)), bool_)
    others = Load("totals", ix.add(owner, ix.const(joined * threads - 1)), dtype, later)
    long = is_carried(Accumulator("", op, dtype), -(-tile.extent // tile.size))
    carry: Expr = Load("carry", ix.ZERO, dtype)
    if long:
        carry = compensated(carry, Load("carry_error", ix.ZERO, dtype))
    before = combine(op, carry, Op("select", (later, others, nothing), dtype))
    result = combine(op, before, Load("values", tile.inside, dtype))
    finish = tile.every((If(exists, (Store(out.buffer, out.index, result),)),))
    last = Load("totals", ix.const(joined * threads + threads - 1), dtype)
    one_more = (Store("carry", ix.ZERO, combine(op, Load("carry", ix.ZERO, dtype), last)),)
    following = carried(last, ix.ZERO) if long else one_more
    tiles = Op("div", (Op("add", (EXTENT, Literal(tile.size - 1, int64)), int64), Literal(tile.size, int64)), int64)
    walk = (fill, Barrier(), *totals, finish, Barrier(), tile.once(following, 1))
    names = ("carry", "carry_error") if long else ("carry",)
    first = tile.once(tuple([Store(name, ix.ZERO, nothing) for name in names]), 1)
    each_row = Loop(row, BEGIN, END, "task", (first, Loop(tile.number, 0, tiles, "serial", walk), Barrier()))
    arrays = (("values", tile.size), ("totals", 2 * threads), *[(name, 1) for name in names])
    return (*[Local(name, dtype, size) for name, size in arrays], each_row), Geometry(threads, threads)


def _totals(tile: Tile, op: str, dtype: DType) -> tuple[list[Stmt], int]:
    """Each thread combines its neighbours in place, then the totals of all threads are combined; they end in the half
    of 'totals' that is given back."""
    threads, thread = tile.threads, ix.axis_index(tile.thread)
    step = Axis("step", EACH - 1)
    here = ix.add(ix.scale(thread, EACH), ix.axis_index(step))
    there = ix.add(here, ix.const(1))
    both = combine(op, Load("values", here, dtype), Load("values", there, dtype))
    own = Loop(step, 0, EACH - 1, "serial", (Store("values", there, both),))
    whole = Load("values", ix.add(ix.scale(thread, EACH), ix.const(EACH - 1)), dtype)
    out: list[Stmt] = [tile.once((own, Store("totals", thread, whole))), Barrier()]
    half, distance = 0, 1
    while distance < threads:
        at = ix.add(thread, ix.const(half * threads))
        far = Op("le", (Literal(distance, int64), IndexValue(thread, int64)), bool_)
        other = Load("totals", ix.add(at, ix.const(-distance)), dtype, far)
        mine = Let(f"mine{distance}", Load("totals", at, dtype))
        value: Expr = Var(f"mine{distance}", dtype)
        value = Op("select", (far, combine(op, other, value), value), dtype)
        half = 1 - half
        out += [tile.once((mine, Store("totals", ix.add(thread, ix.const(half * threads)), value))), Barrier()]
        distance *= 2
    return out, half
