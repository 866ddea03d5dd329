"""Attention on devices with blocks: a block of threads keeps a block of queries, or of keys, and walks the other.

Queries, keys and values lie in shared arrays, products in the registers of the block (`kernels.block_tiles`), with
matrix units where the device has them. Forward, a thread keeps for each of its rows the running maximum and its own
part of the running sum; threads that share a row meet once a step, for the maximum. Backward, `kernels.
gpu_attention_backward` computes weights again from the saved logarithms.

Blocks depend on shapes and dtypes alone, and so does every order of additions. Scores are never in memory: it grows
with the length, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.dtypes import DType, bool_, float32, int32, int64
from weft.kernels import index as ix
from weft.kernels import narrow
from weft.kernels.attention import INFINITY, Array, Problem, Writer, rows_first, scalars
from weft.kernels.block_tiles import VECTOR, BlockTile, RegisterTile, UnitTile, placed
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Accumulator,
    Barrier,
    BufferParam,
    Expr,
    Fetch,
    Fetched,
    Fold,
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
    Update,
    Var,
)
from weft.kernels.product import Matrix
from weft.kernels.tiles import LANES, SIDE

WIDEST = 256  # heads wider than this leave too few rows to a block
COMFORTABLE = 112 << 10  # more would leave a multiprocessor with a single block

Place = tuple[Index, Index, Index, Index]  # batch, head, query, key


@dataclass(frozen=True, slots=True)
class Cut:
    """`rows` queries and as many keys at a time, on `threads` (down, across) threads, or so many subgroups."""

    rows: int
    threads: tuple[int, int]
    units: bool

    @property
    def count(self) -> int:
        return self.threads[0] * self.threads[1] * (LANES if self.units else 1)

    def padded(self, width: int, dtype: DType) -> int:
        """`width` rounded up to what every thread or subgroup takes an equal part of."""
        across = self.threads[1]
        if self.units:
            return -(-width // (SIDE * across)) * SIDE * across
        each, vector = -(-width // across), VECTOR // dtype.itemsize
        each = -(-each // 4) * 4 if each > 4 else 1 << (each - 1).bit_length()
        return -(-each * across // vector) * vector

    def blocks(self, length: int) -> int:
        return -(-length // self.rows)

    @property
    def parts(self) -> int:
        """Threads that share a row."""
        return self.threads[1] * (4 if self.units else 1)


def cut_of(
    widths: tuple[int, int], lengths: tuple[int, int], kind: DType, units: bool, shared_bytes: int
) -> Cut | None:
    """How to cut a problem of `kind`, given the widths of keys and values and the numbers of queries and keys; None
    where even the smallest blocks do not fit."""
    wide, longest = max(widths), max(lengths)
    if wide > WIDEST:
        return None
    with_units = units and kind.is_narrow
    for rows in (64, 32, 16):
        if rows > 16 and rows // 2 >= longest:
            continue
        if with_units:
            cut = Cut(rows, (rows // 16, 1 if wide <= 64 else 2), True)
        else:
            cut = Cut(rows, {64: (8, 16) if wide <= 64 else (16, 16), 32: (8, 8), 16: (8, 8)}[rows], False)
        pad = VECTOR // kind.itemsize
        columns = sum([cut.padded(width, kind) + pad for width in widths]) + rows + pad
        elements = 2 * rows * columns  # of the backward kernel, which needs most
        nbytes = elements * kind.itemsize + 4 * rows * cut.parts
        if nbytes <= min(shared_bytes, COMFORTABLE) or (rows == 16 and nbytes <= shared_bytes):
            return cut
    return None


class BlockWriter(Writer):
    """What the kernels share. Sums and weights are in `dtype`, float32 for 16-bit sources, which stay as they are."""

    def __init__(self, problem: Problem, cut: Cut):
        self.kind = problem.q.dtype
        held = float32 if self.kind.is_narrow else self.kind
        super().__init__(replace(problem, dtype=held))
        self.cut, self.thread = cut, Axis("thread", cut.count)
        self.locals: dict[str, Local] = {}
        self.width = cut.padded(problem.width, self.kind)
        self.value_width = cut.padded(problem.value_width, self.kind)
        self.group = problem.heads // problem.kv_heads
        self.score = self.tile("score", cut.rows, (False, False))

    # --- memory ---

    def shared(self, name: str, columns: int) -> Matrix:
        """A matrix of `rows` rows in a shared array."""
        step = columns + VECTOR // self.kind.itemsize  # rows lie apart so that threads meet different banks
        self.locals[name] = Local(name, self.kind, self.cut.rows * step)
        return Matrix(name, ix.ZERO, step, 1, self.kind)

    def tile(self, name: str, width: int, grouped: tuple[bool, bool]) -> BlockTile:
        """A matrix of `rows` x `width` in the block's registers."""
        rows, (down, across) = self.cut.rows, self.cut.threads
        each = rows // down, width // across
        if self.cut.units:
            return UnitTile(name, self.thread, (down, across), each)
        return RegisterTile(name, self.thread, self.dtype, (down, across), each, grouped)

    def own(self, name: str) -> Local:
        """An array of a thread with an element for each of its rows."""
        return Local(name, self.dtype, self.score.slots, "thread")

    def each_slot(self, body: Sequence[Stmt]) -> Loop:
        axis = Axis("slot", self.score.slots)
        return Loop(axis, 0, axis.extent, "unrolled", tuple(body))

    @property
    def slot(self) -> Index:
        return ix.axis_index(Axis("slot", self.score.slots))

    def fetched(
        self, target: Matrix, columns: int, source: Array, at: tuple[Index, Index, Index], limit: int, width: int
    ) -> Loop:
        """Fetch rows of one head, `at` (batch, head, first row), of `limit` rows of `width` elements in all."""
        vector = VECTOR // self.kind.itemsize
        across = columns // vector
        pieces = self.cut.rows * across
        turn = Axis(f"{target.buffer}_piece", -(-pieces // self.cut.count))
        piece = ix.add(ix.axis_index(self.thread), ix.scale(ix.axis_index(turn), self.cut.count))
        row, place = ix.delinearise(piece, (self.cut.rows, across))
        column = ix.scale(place, vector)
        batch, head, first = at
        line = ix.add(first, row)
        valid: Expr | int = vector
        if columns != width:
            rest = self.op("sub", Literal(width, int32), IndexValue(column, int32))
            valid = self.op("max", self.op("min", rest, Literal(vector, int32)), Literal(0, int32))
        if limit % self.cut.rows:
            there = Literal(valid, int32) if isinstance(valid, int) else valid
            valid = self.op("select", less(line, limit), there, Literal(0, int32))
        fetch: Stmt = Fetch(
            target.buffer, target.at(row, column), source.buffer, source.at(batch, head, line, column), vector, valid
        )
        if pieces % self.cut.count:
            fetch = If(less(piece, pieces), (fetch,))
        return Loop(turn, 0, turn.extent, "unrolled", (fetch,))

    def packed(self, value: Expr) -> Expr:
        """A sum or weight as the sources' dtype, for shared arrays and results."""
        return narrow.packed(narrow.rounded(value, self.kind), self.kind) if self.kind.is_narrow else value

    # --- scores ---

    def bounded(self, value: Expr, place: Place) -> Expr:
        """The score at `place`, minus infinity behind the last key."""
        problem = self.problem
        inside: Expr | None = None
        for index, limit in ((place[2], problem.queries), (place[3], problem.keys)):
            if limit % self.cut.rows:
                test = less(index, limit)
                inside = test if inside is None else Op("and", (inside, test), bool_)
        score: Expr = self.op("mul", value, Var("scale", self.dtype))
        mask = problem.mask
        if mask is not None:
            given: Expr = Load(mask.buffer, mask.at(*place), mask.dtype, inside)
            if mask.dtype is bool_:
                score = self.op("select", given, score, self.number(-INFINITY))
            else:
                score = self.op("add", score, narrow.unpacked(given) if mask.dtype.is_narrow else given)
        if problem.diagonal is not None:
            last = ix.add(place[2], ix.const(problem.diagonal))
            seen = Op("le", (IndexValue(place[3], int32), IndexValue(last, int32)), bool_)
            score = self.op("select", seen, score, self.number(-INFINITY))
        if problem.keys % self.cut.rows:
            score = self.op("select", less(place[3], problem.keys), score, self.number(-INFINITY))
        return score

    def seen_blocks(self, first: Index) -> Expr | int:
        """Blocks of keys that some query of the block from `first` on sees."""
        problem, rows = self.problem, self.cut.rows
        if problem.diagonal is None:
            return self.cut.blocks(problem.keys)
        end = ix.add(first, ix.const(problem.diagonal + 2 * rows - 1))
        seen = self.op("max", IndexValue(end, int64), Literal(0, int64))
        count = self.op("shr", seen, Literal(rows.bit_length() - 1, int64))
        return self.op("min", count, Literal(self.cut.blocks(problem.keys), int64))

    def finished(self, name: str, buffers: tuple[BufferParam, ...], work: Sequence[Stmt], more: tuple = ()) -> Kernel:
        """The kernel: `work` for every task of the launch."""
        arrays, nbytes = placed(list(self.locals.values()))
        geometry = Geometry(self.cut.count, self.cut.count, nbytes)
        loop = Loop(Axis("task", MANY), Var("begin", int64), Var("end", int64), "task", tuple(work))
        problem = self.problem
        full = f"{name}_{problem.heads}x{problem.queries}x{problem.keys}x{problem.width}"
        return Kernel(full, buffers, (*scalars(problem), *more), LAUNCH_RANGES, (*arrays, loop), geometry=geometry)

    def threads(self, body: Sequence[Stmt]) -> Loop:
        return Loop(self.thread, 0, self.cut.count, "threads", tuple(body), self.cut.count)


def less(index: Index, limit: int) -> Expr:
    return Op("lt", (IndexValue(index, int32), Literal(limit, int32)), bool_)


def forward(problem: Problem, cut: Cut, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'out' [B, Tq, H, Dv] and 'logs' [B, H, Tq]. A task is (batch, head, block)."""
    return _Forward(problem, cut).kernel(buffers)


class _Forward(BlockWriter):
    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem, rows = self.problem, self.cut.rows
        blocks = self.cut.blocks(problem.queries)
        self.batch, self.head, number = ix.delinearise(ix.axis_index(Axis("task", MANY)), (MANY, problem.heads, blocks))
        if problem.diagonal is not None:  # the longest first
            number = ix.add(ix.const(blocks - 1), ix.scale(number, -1))
        self.first = ix.scale(number, rows)
        self.kv_head = ix.floordiv(self.head, self.group)
        self.q, self.k = self.shared("q_tile", self.width), self.shared("k_tile", self.width)
        self.v, self.weights = self.shared("v_tile", self.value_width), self.shared("weights", rows)
        self.locals["meeting"] = Local("meeting", self.dtype, rows * self.score.parts)
        self.sums = self.tile("sums", self.value_width, (False, True))
        key_block = Axis("key_block", MANY)
        at = (self.batch, self.head, self.first)
        start = [Store(name, self.slot, self.number(value)) for name, value in (("top", -INFINITY), ("total", 0.0))]
        walk = Loop(key_block, 0, self.seen_blocks(self.first), "serial", self.step(ix.axis_index(key_block)))
        work = (
            *self.score.arrays(),
            *self.sums.arrays(),
            *[self.own(name) for name in ("top", "total", "best", "shrink")],
            self.each_slot(start),
            self.sums.clear(),
            self.fetched(self.q, self.width, problem.q, at, problem.queries, problem.width),
            self.keys(ix.ZERO),
            walk,
            Fetched(),
            *self.finish(),
            Barrier(),
        )
        return self.finished("attention", buffers, (self.threads(work),))

    def keys(self, number: Index) -> Loop:
        at, problem = (self.batch, self.kv_head, ix.scale(number, self.cut.rows)), self.problem
        return self.fetched(self.k, self.width, problem.k, at, problem.keys, problem.width)

    def step(self, number: Index) -> tuple[Stmt, ...]:
        """One block of keys: scores, running softmax, weighted values."""
        problem, dtype, rows = self.problem, self.dtype, self.cut.rows
        first = ix.scale(number, rows)
        at = (self.batch, self.kv_head, first)
        score, sums, slot = self.score, self.sums, self.slot

        def place(row: Index, column: Index) -> Place:
            return self.batch, self.head, ix.add(self.first, row), ix.add(first, column)

        def scored(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            value = Var("scored", dtype)
            return [
                Let("scored", self.bounded(score.value(number), place(row, column))),
                Store(score.name, number, value),
                Store("best", slot, self.op("max", Load("best", slot, dtype), value)),
            ]

        def weighed(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            top, weight = Load("top", slot, dtype), Var("weight", dtype)
            safe = self.op("select", _equal(top, -INFINITY), self.number(0.0), top)
            return [
                Let("weight", self.function("exp", self.op("sub", score.value(number), safe))),
                Store("total", slot, self.op("add", Load("total", slot, dtype), weight)),
                Store("weights", self.weights.at(row, column), self.packed(self.dropped(weight, place(row, column)))),
            ]

        def shrunk(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            return [Store(sums.name, number, self.op("mul", sums.value(number), Load("shrink", slot, dtype)))]

        mine = ix.add(ix.scale(score.row(slot), score.parts), score.part)
        among = Axis("among", score.parts)
        theirs = ix.add(ix.scale(score.row(slot), score.parts), ix.axis_index(among))
        found = Update("largest", Load("meeting", theirs, dtype))
        top, safe = Var("new_top", dtype), Var("safe_top", dtype)
        grown: list[Stmt] = [
            Fold((Accumulator("largest", "max", dtype),), (Loop(among, 0, among.extent, "unrolled", (found,)),)),
            Let("old_top", Load("top", slot, dtype)),
            Let("new_top", self.op("max", Var("old_top", dtype), Var("largest", dtype))),
            Let("safe_top", self.op("select", _equal(top, -INFINITY), self.number(0.0), top)),
            Let("new_shrink", self.function("exp", self.op("sub", Var("old_top", dtype), safe))),
            Store("top", slot, top),
            Store("shrink", slot, Var("new_shrink", dtype)),
            Store("total", slot, self.op("mul", Load("total", slot, dtype), Var("new_shrink", dtype))),
        ]
        following = ix.add(first, ix.const(rows))
        return (
            Fetched(),
            Barrier(),
            self.fetched(self.v, self.value_width, problem.v, at, problem.keys, problem.value_width),
            score.clear(),
            score.multiply(self.q, self.k.transposed, self.width),
            self.each_slot([Store("best", slot, self.number(-INFINITY))]),
            score.each(scored),
            self.each_slot([Store("meeting", mine, Load("best", slot, dtype))]),
            Barrier(),
            If(less(following, problem.keys), (self.keys(ix.add(number, ix.const(1))),)),
            self.each_slot(grown),
            score.each(weighed),
            sums.each(shrunk),
            Fetched(),
            Barrier(),
            sums.multiply(self.weights, self.v, rows),
        )

    def finish(self) -> tuple[Stmt, ...]:
        """Join the parts of each sum, divide and store; a query that saw no key is 0, its logarithm plus infinity."""
        problem, dtype, slot, score = self.problem, self.dtype, self.slot, self.score
        mine = ix.add(ix.scale(score.row(slot), score.parts), score.part)
        among = Axis("among", score.parts)
        theirs = ix.add(ix.scale(score.row(slot), score.parts), ix.axis_index(among))
        whole = Var("whole", dtype)
        update = Update("whole", Load("meeting", theirs, dtype))
        query = ix.add(self.first, score.row(slot))
        log = self.op("add", Load("top", slot, dtype), self.function("log", whole))
        logs = Array("logs", (problem.heads * problem.queries, problem.queries, 1), dtype)
        value = self.op("select", _equal(whole, 0.0), self.number(INFINITY), log)
        first = Op("eq", (IndexValue(score.part, int32), Literal(0, int32)), bool_)
        known = Op("and", (first, less(query, problem.queries)), bool_)
        joined: list[Stmt] = [
            Fold((Accumulator("whole", "sum", dtype),), (Loop(among, 0, among.extent, "unrolled", (update,)),)),
            If(known, (Store("logs", logs.at(self.batch, self.head, query), value),)),
            Store("total", slot, self.op("select", _equal(whole, 0.0), self.number(1.0), whole)),
        ]
        out = Array("out", rows_first(problem.heads, problem.queries, problem.value_width), self.kind)

        def stored(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            query = ix.add(self.first, row)
            divided = self.op("div", self.sums.value(number), Load("total", slot, dtype))
            inside = Op("and", (less(query, problem.queries), less(column, problem.value_width)), bool_)
            return [Store("out", out.at(self.batch, self.head, query, column), self.packed(divided), inside)]

        return (
            Barrier(),
            self.each_slot([Store("meeting", mine, Load("total", slot, dtype))]),
            Barrier(),
            self.each_slot(joined),
            self.sums.each(stored),
        )


def _equal(x: Expr, value: float) -> Op:
    return Op("eq", (x, Literal(value, x.dtype)), bool_)
