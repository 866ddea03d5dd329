"""Attention on GPUs: a workgroup keeps a block of queries, or of keys, and goes through the other block by block.

Queries, keys and values lie in shared arrays, products in the registers of the workgroup
(`kernels.gpu.register_tiles`), with matrix units where the device has them. Forward, a lane keeps for each of its rows
the running maximum and its own part of the running sum; lanes that share a row exchange the maximum once a step.
Backward, `kernels.gpu.attention_backward` computes weights again from the saved logarithms.

Blocks depend on shapes and dtypes alone, and so does every order of additions. Scores are never in memory: it grows
with the length, not with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.base.capabilities import Limits, MatrixUnit
from weft.base.dtypes import DType, bool_, float32, int32, int64
from weft.kernels.cpu.attention import INFINITY, Array, Problem, Writer, rows_first, scalars
from weft.kernels.cpu.gemm import Matrix
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.gpu.register_tiles import VECTOR, RegisterTile, UnitTile, WorkgroupTile, assign_shared_arrays
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    AsyncCopy,
    AwaitCopies,
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
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.math import float16
from weft.kernels.numerics import MAX_GPU_ATTENTION_BYTES, MAX_GPU_HEAD_WIDTH

ScorePosition = tuple[Index, Index, Index, Index]  # batch, head, query, key


@dataclass(frozen=True, slots=True)
class Cut:
    """`rows` queries and as many keys at a time, on `lane_grid` (down, across) lanes, or so many subgroups."""

    rows: int
    lane_grid: tuple[int, int]
    fragments: Fragments | None
    static_shared_bytes: int  # that a kernel may declare

    @property
    def count(self) -> int:
        return self.lane_grid[0] * self.lane_grid[1] * (self.fragments.lanes if self.fragments else 1)

    def pad_width(self, width: int, dtype: DType) -> int:
        """`width` rounded up to what every lane or subgroup takes an equal part of."""
        across = self.lane_grid[1]
        if self.fragments is not None:
            side = self.fragments.side
            return -(-width // (side * across)) * side * across
        each, vector = -(-width // across), VECTOR // dtype.itemsize
        each = -(-each // 4) * 4 if each > 4 else 1 << (each - 1).bit_length()
        return -(-each * across // vector) * vector

    def blocks(self, length: int) -> int:
        return -(-length // self.rows)

    @property
    def parts(self) -> int:
        """Lanes that share a row."""
        return self.lane_grid[1] * (self.fragments.row_lanes if self.fragments else 1)


def cut_of(
    widths: tuple[int, int], lengths: tuple[int, int], kind: DType, unit: MatrixUnit | None, limits: Limits
) -> Cut | None:
    """How to cut a problem of `kind`, given the widths of keys and values and the numbers of queries and keys; None
    where even the smallest blocks do not fit. Sums over keys are added block after block, and inside a block over the
    lanes of `lane_grid`: the cut fixes their order."""
    wide, longest = max(widths), max(lengths)
    if wide > MAX_GPU_HEAD_WIDTH:
        return None
    fragments = Fragments(unit) if unit is not None and kind.is_16_bit else None
    shared_bytes, static_bytes = limits.shared_bytes, limits.static_shared_bytes
    for rows in (64, 32, 16):
        if rows > 16 and rows // 2 >= longest:
            continue
        if fragments is not None:
            cut = Cut(rows, (rows // fragments.side, 1 if wide <= 64 else 2), fragments, static_bytes)
        else:
            lane_grid = {64: (8, 16) if wide <= 64 else (16, 16), 32: (8, 8), 16: (8, 8)}[rows]
            cut = Cut(rows, lane_grid, None, static_bytes)
        pad = VECTOR // kind.itemsize
        columns = sum([cut.pad_width(width, kind) + pad for width in widths]) + rows + pad
        elements = 2 * rows * columns  # of the backward kernel, which needs most
        nbytes = elements * kind.itemsize + 4 * rows * cut.parts
        most = shared_bytes if rows == 16 else min(shared_bytes, MAX_GPU_ATTENTION_BYTES)
        if nbytes <= most and cut.count <= limits.workgroup_size:
            return cut
    return None


class WorkgroupWriter(Writer):
    """What the kernels share. Sums and weights are in `dtype`, float32 for 16-bit sources, which stay as they are."""

    def __init__(self, problem: Problem, cut: Cut):
        self.kind = problem.q.dtype
        sum_dtype = float32 if self.kind.is_16_bit else self.kind
        super().__init__(replace(problem, dtype=sum_dtype))
        self.cut, self.lane = cut, Axis("thread", cut.count)
        self.locals: dict[str, Local] = {}
        self.width = cut.pad_width(problem.width, self.kind)
        self.value_width = cut.pad_width(problem.value_width, self.kind)
        self.group = problem.heads // problem.kv_heads
        self.score = self.tile("score", cut.rows, (False, False))

    # --- memory ---

    def shared_matrix(self, name: str, columns: int) -> Matrix:
        """A matrix of `rows` rows in a shared array."""
        step = columns + VECTOR // self.kind.itemsize  # rows lie apart so that lanes access different banks
        self.locals[name] = Local(name, self.kind, self.cut.rows * step)
        return Matrix(name, ix.ZERO, step, 1, self.kind)

    def tile(self, name: str, width: int, grouped: tuple[bool, bool]) -> WorkgroupTile:
        """A matrix of `rows` x `width` in the registers of the workgroup."""
        rows, (down, across) = self.cut.rows, self.cut.lane_grid
        each = rows // down, width // across
        if self.cut.fragments is not None:
            return UnitTile(name, self.lane, self.cut.fragments, (down, across), each)
        return RegisterTile(name, self.lane, self.dtype, (down, across), each, grouped)

    def lane_array(self, name: str) -> Local:
        """An array of a lane with an element for each of its rows."""
        return Local(name, self.dtype, self.score.slots, "lane")

    def each_slot(self, body: Sequence[Stmt]) -> Loop:
        axis = Axis("slot", self.score.slots)
        return Loop(axis, 0, axis.extent, "unrolled", tuple(body))

    @property
    def slot(self) -> Index:
        return ix.axis_index(Axis("slot", self.score.slots))

    def fetch_rows(
        self, target: Matrix, columns: int, source: Array, at: tuple[Index, Index, Index], limit: int, width: int
    ) -> Loop:
        """Copy rows of one head, `at` (batch, head, first row), of `limit` rows of `width` elements in all."""
        vector = VECTOR // self.kind.itemsize
        across = columns // vector
        pieces = self.cut.rows * across
        iteration = Axis(f"{target.buffer}_piece", -(-pieces // self.cut.count))
        piece = self.lane + iteration * self.cut.count
        row, position = ix.delinearise(piece, (self.cut.rows, across))
        column = position * vector
        batch, head, first = at
        line = first + row
        valid: Expr | int = vector
        if columns != width:
            rest = width - IndexValue(column, int32)
            valid = rest.min(vector).max(0)
        if limit % self.cut.rows:
            there = Literal(valid, int32) if isinstance(valid, int) else valid
            valid = is_below(line, limit).select(there, 0)
        fetch: Stmt = AsyncCopy(
            target.buffer, target.at(row, column), source.buffer, source.at(batch, head, line, column), vector, valid
        )
        if pieces % self.cut.count:
            fetch = If(is_below(piece, pieces), (fetch,))
        return Loop(iteration, 0, iteration.extent, "unrolled", (fetch,))

    def pack(self, value: Expr) -> Expr:
        """A sum or weight as the sources' dtype, for shared arrays and results."""
        return float16.pack(float16.round_to(value, self.kind), self.kind) if self.kind.is_16_bit else value

    # --- scores ---

    def bound_score(self, value: Expr, position: ScorePosition) -> Expr:
        """The score at `position`, minus infinity behind the last key."""
        problem = self.problem
        inside: Expr | None = None
        for index, limit in ((position[2], problem.queries), (position[3], problem.keys)):
            if limit % self.cut.rows:
                test = is_below(index, limit)
                inside = test if inside is None else inside & test
        score: Expr = value * Var("scale", self.dtype)
        mask = problem.mask
        if mask is not None:
            given: Expr = Load(mask.buffer, mask.at(*position), mask.dtype, inside)
            if mask.dtype is bool_:
                score = given.select(score, self.number(-INFINITY))
            else:
                score = score + (float16.unpack(given) if mask.dtype.is_16_bit else given)
        if problem.diagonal is not None:
            last = position[2] + problem.diagonal
            seen = IndexValue(position[3], int32) <= IndexValue(last, int32)
            score = seen.select(score, self.number(-INFINITY))
        if problem.keys % self.cut.rows:
            score = is_below(position[3], problem.keys).select(score, self.number(-INFINITY))
        return score

    def seen_blocks(self, first: Index) -> Expr | int:
        """Blocks of keys that some query of the block from `first` on sees."""
        problem, rows = self.problem, self.cut.rows
        if problem.diagonal is None:
            return self.cut.blocks(problem.keys)
        end = first + (problem.diagonal + 2 * rows - 1)
        seen = IndexValue(end, int64).max(0)
        count = seen >> rows.bit_length() - 1
        return count.min(self.cut.blocks(problem.keys))

    def make_kernel(
        self, name: str, buffers: tuple[BufferParam, ...], work: Sequence[Stmt], more: tuple = ()
    ) -> Kernel:
        """The kernel: `work` for every task of the launch."""
        arrays, nbytes = assign_shared_arrays(list(self.locals.values()), self.cut.static_shared_bytes)
        geometry = Geometry(self.cut.count, self.cut.count, nbytes)
        loop = Loop(Axis("task", MAX_EXTENT), Var("begin", int64), Var("end", int64), "task", tuple(work))
        problem = self.problem
        full = f"{name}_{problem.heads}x{problem.queries}x{problem.keys}x{problem.width}"
        return Kernel(full, buffers, (*scalars(problem), *more), LAUNCH_RANGES, (*arrays, loop), geometry=geometry)

    def loop_over_lanes(self, body: Sequence[Stmt]) -> Loop:
        return Loop(self.lane, 0, self.cut.count, "lanes", tuple(body), self.cut.count)


def is_below(index: Index, limit: int) -> Expr:
    return IndexValue(index, int32) < limit


def forward(problem: Problem, cut: Cut, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'out' [B, Tq, H, Dv] and 'logs' [B, H, Tq]. A task is (batch, head, block)."""
    return _Forward(problem, cut).kernel(buffers)


class _Forward(WorkgroupWriter):
    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem, rows = self.problem, self.cut.rows
        blocks = self.cut.blocks(problem.queries)
        self.batch, self.head, number = ix.delinearise(
            ix.axis_index(Axis("task", MAX_EXTENT)), (MAX_EXTENT, problem.heads, blocks)
        )
        if problem.diagonal is not None:  # the longest first
            number = blocks - 1 - number
        self.first = number * rows
        self.kv_head = self.head // self.group
        self.q, self.k = self.shared_matrix("q_tile", self.width), self.shared_matrix("k_tile", self.width)
        self.v, self.weights = self.shared_matrix("v_tile", self.value_width), self.shared_matrix("weights", rows)
        self.locals["meeting"] = Local("meeting", self.dtype, rows * self.score.parts)
        self.sums = self.tile("sums", self.value_width, (False, True))
        key_block = Axis("key_block", MAX_EXTENT)
        at = (self.batch, self.head, self.first)
        start = [Store(name, self.slot, self.number(value)) for name, value in (("top", -INFINITY), ("total", 0.0))]
        key_loop = Loop(key_block, 0, self.seen_blocks(self.first), "serial", self.step(ix.axis_index(key_block)))
        work = (
            *self.score.arrays(),
            *self.sums.arrays(),
            *[self.lane_array(name) for name in ("top", "total", "best", "shrink")],
            self.each_slot(start),
            self.sums.clear(),
            self.fetch_rows(self.q, self.width, problem.q, at, problem.queries, problem.width),
            self.keys(ix.ZERO),
            key_loop,
            AwaitCopies(),
            *self.finish(),
            Barrier(),
        )
        return self.make_kernel("attention", buffers, (self.loop_over_lanes(work),))

    def keys(self, number: Index) -> Loop:
        at, problem = (self.batch, self.kv_head, number * self.cut.rows), self.problem
        return self.fetch_rows(self.k, self.width, problem.k, at, problem.keys, problem.width)

    def step(self, number: Index) -> tuple[Stmt, ...]:
        """One block of keys: scores, running softmax, weighted values."""
        problem, dtype, rows = self.problem, self.dtype, self.cut.rows
        first = number * rows
        at = (self.batch, self.kv_head, first)
        score, sums, slot = self.score, self.sums, self.slot

        def position_of(row: Index, column: Index) -> ScorePosition:
            return self.batch, self.head, self.first + row, first + column

        def update_best(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            value = Var("scored", dtype)
            return [
                Let("scored", self.bound_score(score.value(number), position_of(row, column))),
                Store(score.name, number, value),
                Store("best", slot, Load("best", slot, dtype).max(value)),
            ]

        def weigh(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            top, weight = Load("top", slot, dtype), Var("weight", dtype)
            safe = _is_equal(top, -INFINITY).select(self.number(0.0), top)
            return [
                Let("weight", self.function("exp", score.value(number) - safe)),
                Store("total", slot, Load("total", slot, dtype) + weight),
                Store(
                    "weights",
                    self.weights.at(row, column),
                    self.pack(self.apply_dropout(weight, position_of(row, column))),
                ),
            ]

        def shrink(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            return [Store(sums.name, number, sums.value(number) * Load("shrink", slot, dtype))]

        mine = score.row(slot) * score.parts + score.part
        following = first + rows
        return (
            AwaitCopies(),
            Barrier(),
            self.fetch_rows(self.v, self.value_width, problem.v, at, problem.keys, problem.value_width),
            score.clear(),
            score.multiply(self.q, self.k.transposed, self.width),
            self.each_slot([Store("best", slot, self.number(-INFINITY))]),
            score.for_elements(update_best),
            self.each_slot([Store("meeting", mine, Load("best", slot, dtype))]),
            Barrier(),
            If(is_below(following, problem.keys), (self.keys(number + 1),)),
            self.each_slot(self.update_maximum()),
            score.for_elements(weigh),
            sums.for_elements(shrink),
            AwaitCopies(),
            Barrier(),
            sums.multiply(self.weights, self.v, rows),
        )

    def update_maximum(self) -> list[Stmt]:
        """A row's running maximum with what the lanes that share it left in 'meeting', and its sum scaled to that."""
        dtype, slot, score = self.dtype, self.slot, self.score
        among = Axis("among", score.parts)
        theirs = score.row(slot) * score.parts + among
        update = Update("largest", Load("meeting", theirs, dtype))
        top, safe = Var("new_top", dtype), Var("safe_top", dtype)
        return [
            Reduction((Accumulator("largest", "max", dtype),), (Loop(among, 0, among.extent, "unrolled", (update,)),)),
            Let("old_top", Load("top", slot, dtype)),
            Let("new_top", Var("old_top", dtype).max(Var("largest", dtype))),
            Let("safe_top", _is_equal(top, -INFINITY).select(self.number(0.0), top)),
            Let("new_shrink", self.function("exp", Var("old_top", dtype) - safe)),
            Store("top", slot, top),
            Store("shrink", slot, Var("new_shrink", dtype)),
            Store("total", slot, Load("total", slot, dtype) * Var("new_shrink", dtype)),
        ]

    def finish(self) -> tuple[Stmt, ...]:
        """Join the parts of each sum, divide and store; a query that saw no key is 0, its logarithm plus infinity."""
        problem, dtype, slot, score = self.problem, self.dtype, self.slot, self.score
        mine = score.row(slot) * score.parts + score.part
        among = Axis("among", score.parts)
        theirs = score.row(slot) * score.parts + among
        whole = Var("whole", dtype)
        update = Update("whole", Load("meeting", theirs, dtype))
        query = self.first + score.row(slot)
        log = Load("top", slot, dtype) + self.function("log", whole)
        logs = Array("logs", (problem.heads * problem.queries, problem.queries, 1), dtype)
        value = _is_equal(whole, 0.0).select(self.number(INFINITY), log)
        first = IndexValue(score.part, int32).eq(0)
        known = first & is_below(query, problem.queries)
        joined: list[Stmt] = [
            Reduction((Accumulator("whole", "sum", dtype),), (Loop(among, 0, among.extent, "unrolled", (update,)),)),
            If(known, (Store("logs", logs.at(self.batch, self.head, query), value),)),
            Store("total", slot, _is_equal(whole, 0.0).select(self.number(1.0), whole)),
        ]
        out = Array("out", rows_first(problem.heads, problem.queries, problem.value_width), self.kind)

        def store_result(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            query = self.first + row
            divided = self.sums.value(number) / Load("total", slot, dtype)
            inside = is_below(query, problem.queries) & is_below(column, problem.value_width)
            return [Store("out", out.at(self.batch, self.head, query, column), self.pack(divided), inside)]

        return (
            Barrier(),
            self.each_slot([Store("meeting", mine, Load("total", slot, dtype))]),
            Barrier(),
            self.each_slot(joined),
            self.sums.for_elements(store_result),
        )


def _is_equal(x: Expr, value: float) -> Op:
    return x.eq(value)
