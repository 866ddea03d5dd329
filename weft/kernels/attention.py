"""Attention without its matrix of scores: a kernel that goes through keys block by block and keeps a running softmax.

A task is a block of queries of one head. It holds the queries transposed, so that scores come out with queries side by
side: maximum and sum then run over lanes that never meet. Blocks depend on shapes alone. `kernels.attention_backward`
is the kernel of its gradients; `Problem` and `Writer` are for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.dtypes import DType, bool_, int32, int64, uint32
from weft.kernels import index as ix
from weft.kernels import math as kernel_math
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Accumulator,
    BufferParam,
    Expr,
    Fold,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    ScalarParam,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.product import Matrix, Tile, product

LANE_BYTES = 128  # of a vector loop: sums over lanes have one order on every machine
BLOCK = 64  # queries, and keys, that are worked on at a time
TASK_MEMORY = 256 << 10  # bytes that a task may have on its thread's stack
INFINITY = float("inf")

Finish = Callable[[Index, Index, Expr], Stmt]  # what happens to an element of a product


@dataclass(frozen=True, slots=True)
class Array:
    """A value [batch, heads, rows, columns] in a buffer, as strides."""

    buffer: str
    strides: tuple[int, ...]
    dtype: DType

    def at(self, *indices: Index) -> Index:
        out = ix.ZERO
        for index, stride in zip(indices, self.strides, strict=True):
            out = ix.add(out, ix.scale(index, stride))
        return out

    def rows(self, batch: Index, head: Index, first: Index) -> Matrix:
        """The matrix of one head from row `first` on."""
        return Matrix(self.buffer, self.at(batch, head, first, ix.ZERO), self.strides[2], 1, self.dtype)


def block_of(widths: int, dtype: DType) -> int:
    """Queries, and keys, worked on at a time: fewer where rows are so wide that a task's memory would not fit."""
    block = BLOCK
    while block > 1 and 4 * block * widths * dtype.itemsize > TASK_MEMORY:
        block //= 2
    return block


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention: extents, and how its sources lie in memory. The number of batches is left to the launch."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    dtype: DType
    diagonal: int | None  # query i sees key j iff j <= i + diagonal; None: all
    dropout: bool
    wide: bool  # more than 2**34 scores: dropout counts in 64 bits
    q: Array
    k: Array
    v: Array
    mask: Array | None
    tile: Tile  # of the products; no bit depends on it

    @property
    def query_block(self) -> int:
        """Queries of one block: fewer where there are only few."""
        return min(block_of(self.width + self.value_width, self.dtype), 1 << max(self.queries - 1, 0).bit_length())

    @property
    def key_block(self) -> int:
        return min(block_of(self.width + self.value_width, self.dtype), 1 << max(self.keys - 1, 0).bit_length())

    @property
    def query_blocks(self) -> int:
        return -(-self.queries // self.query_block)

    @property
    def key_blocks(self) -> int:
        return -(-self.keys // self.key_block)


def scalars(problem: Problem) -> tuple[ScalarParam, ...]:
    """The numbers that a launch hands over: the scale, then for dropout the draw, the threshold and the factor."""
    more = (ScalarParam("draw", uint32), ScalarParam("threshold", uint32), ScalarParam("kept", problem.dtype))
    return (ScalarParam("scale", problem.dtype), *(more if problem.dropout else ()))


class Writer:
    """What both kernels share: expressions for scores, weights and their neighbourhood."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.dtype = problem.dtype
        self.lanes = LANE_BYTES // problem.dtype.itemsize

    def op(self, name: str, *args: Expr) -> Op:
        return Op(name, args, args[-1].dtype)

    def number(self, value: float) -> Literal:
        return Literal(value, self.dtype)

    def function(self, name: str, x: Expr) -> Expr:
        return kernel_math.build(name, (x,), self.dtype)

    def local(self, name: str, row: int) -> Matrix:
        """A matrix in memory of the task."""
        return Matrix(name, ix.ZERO, row, 1, self.dtype)

    def product(
        self,
        name: str,
        a: Matrix,
        b: Matrix,
        extents: tuple[Expr | int, int, Expr | int],
        finish: Finish,
    ) -> tuple[Stmt, ...]:
        return product(name, a, b, extents, finish, self.problem.tile)

    def scored(self, value: Expr, place: tuple[Index, Index, Index, Index]) -> Expr:
        """The score of (batch, head, query, key) from the product of the two."""
        problem = self.problem
        score: Expr = self.op("mul", value, Var("scale", self.dtype))
        if problem.mask is not None:
            given = Load(problem.mask.buffer, problem.mask.at(*place), problem.mask.dtype)
            if problem.mask.dtype is bool_:
                score = self.op("select", given, score, self.number(-INFINITY))
            else:
                score = self.op("add", score, given)
        if problem.diagonal is not None:
            last = ix.add(place[2], ix.const(problem.diagonal))
            seen = Op("le", (IndexValue(place[3], int32), IndexValue(last, int32)), bool_)
            score = self.op("select", seen, score, self.number(-INFINITY))
        return score

    def dropped(self, value: Expr, place: tuple[Index, Index, Index, Index]) -> Expr:
        """`value` of a weight after dropout: the same bits that `random` of shape [B, H, Tq, Tk] gives."""
        problem = self.problem
        if not problem.dropout:
            return value
        batch, head, query, key = place
        row = ix.add(ix.scale(ix.add(ix.scale(batch, problem.heads), head), problem.queries), query)
        count = self.op("add", Load("state", ix.const(1), uint32), Var("draw", uint32))
        position = ix.add(ix.scale(row, problem.keys), key)
        bits = kernel_math.random_bits(Load("state", ix.ZERO, uint32), count, position, 16, problem.wide)
        stays = Op("lt", (bits, Var("threshold", uint32)), bool_)
        return self.op("select", stays, self.op("mul", value, Var("kept", self.dtype)), self.number(0.0))

    def across(self, axis: Axis, stop: Expr | int, body: tuple[Stmt, ...], bound: int) -> Loop:
        """A vector loop over neighbours, at most `bound` of them."""
        return Loop(axis, 0, stop, "vector", body, min(self.lanes, 1 << max(bound - 1, 0).bit_length()))

    def filled(self, name: str, target: Matrix, rows: Expr | int, columns: int, value: float) -> Loop:
        """Set a matrix to one value."""
        i, j = Axis(f"{name}_i", MANY), Axis(f"{name}_j", MANY)
        store = Store(target.buffer, target.at(ix.axis_index(i), ix.axis_index(j)), self.number(value))
        return Loop(i, 0, rows, "serial", (self.across(j, columns, (store,), columns),))

    def transposed(self, name: str, source: Matrix, target: Matrix, rows: Expr | int, columns: int) -> Loop:
        """target[j, i] = source[i, j], element by element."""
        i, j = Axis(f"{name}_i", MANY), Axis(f"{name}_j", MANY)
        at = ix.axis_index(i), ix.axis_index(j)
        store = Store(target.buffer, target.at(at[1], at[0]), source.load(*at))
        return Loop(i, 0, rows, "serial", (Loop(j, 0, columns, "serial", (store,)),))

    def least(self, extent: int, first: Index, block: int) -> Expr | int:
        """How many of `block` elements from `first` on there are."""
        if extent % block == 0:
            return block
        return self.op("min", Literal(block, int64), IndexValue(ix.add(ix.const(extent), ix.scale(first, -1)), int64))

    def key_blocks(self, first: Index) -> Expr | int:
        """Blocks of keys that some query of the block from `first` on sees."""
        problem, block = self.problem, self.problem.key_block
        if problem.diagonal is None:
            return problem.key_blocks
        end = ix.add(first, ix.const(problem.diagonal + problem.query_block + block - 1))
        seen = self.op("max", IndexValue(end, int64), Literal(0, int64))
        blocks = self.op("shr", seen, Literal(block.bit_length() - 1, int64))
        return self.op("min", blocks, Literal(problem.key_blocks, int64))


# --- forward ---------------------------------------------------------------------------------------------------------


def forward(problem: Problem, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'out' [B, Tq, H, Dv] and 'logs' [B, H, Tq]. A task is (batch, head, block)."""
    return _Forward(problem).kernel(buffers)


class _Forward(Writer):
    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem, block = self.problem, self.problem.query_block
        task = Axis("task", MANY)
        shape = (MANY, problem.heads, problem.query_blocks)
        batch, head, number = ix.delinearise(ix.axis_index(task), shape)
        self.batch, self.head, self.first = batch, head, ix.scale(number, block)
        self.kv_head = ix.floordiv(head, problem.heads // problem.kv_heads)
        self.rows = self.least(problem.queries, self.first, block)
        self.q = self.local("q_turned", block)
        self.scores = self.local("scores", block)
        self.sums = self.local("sums", problem.value_width)
        key_block = Axis("key_block", MANY)
        sizes = {
            "q_turned": problem.width * block,
            "scores": problem.key_block * block,
            "sums": block * problem.value_width,
        }
        sizes |= dict.fromkeys(("top", "total", "shrink"), block)
        body: list[Stmt] = [Local(name, self.dtype, size) for name, size in sizes.items()]
        if problem.queries % block:
            body.append(self.filled("clear_q", self.q, problem.width, block, 0.0))
        source = problem.q.rows(batch, head, self.first)
        body.append(self.transposed("turn_q", source, self.q, self.rows, problem.width))
        body.append(self.filled("clear_sums", self.sums, block, problem.value_width, 0.0))
        for name, value in (("top", -INFINITY), ("total", 0.0)):
            body.append(self.filled(f"clear_{name}", self.local(name, block), 1, block, value))
        body.append(Loop(key_block, 0, self.key_blocks(self.first), "serial", self.key_step(key_block)))
        body.extend(self.finish())
        name = f"attention_{problem.heads}x{problem.queries}x{problem.keys}x{problem.width}"
        loop = Loop(task, Var("begin", int64), Var("end", int64), "task", tuple(body))
        return Kernel(name, buffers, scalars(problem), LAUNCH_RANGES, (loop,))

    def key_step(self, key_block: Axis) -> tuple[Stmt, ...]:
        """One block of keys: scores, running softmax, weighted values."""
        problem = self.problem
        first = ix.scale(ix.axis_index(key_block), problem.key_block)
        count = self.least(problem.keys, first, problem.key_block)
        keys = problem.k.rows(self.batch, self.kv_head, first)
        values = problem.v.rows(self.batch, self.kv_head, first)
        scores, sums = self.scores, self.sums

        def added(i: Index, j: Index, value: Expr) -> Stmt:
            old = self.op("mul", sums.load(i, j), Load("shrink", i, self.dtype))
            return Store(sums.buffer, sums.at(i, j), self.op("add", old, value))

        return (
            *self.product(
                "scores", keys, self.q, (count, problem.query_block, problem.width),
                lambda i, j, value: Store(scores.buffer, scores.at(i, j), value),
            ),
            self.softmax(first, count),
            *self.product("sums", scores.transposed, values, (self.rows, problem.value_width, count), added),
        )  # fmt: skip

    def softmax(self, first: Index, count: Expr | int) -> Loop:
        """Scores become weights relative to the largest score so far; `top`, `total` and `shrink` keep up with it."""
        lane, key = Axis("lane", self.problem.query_block), Axis("key", MANY)
        lane_at, key_at = ix.axis_index(lane), ix.axis_index(key)
        place = (self.batch, self.head, ix.add(self.first, lane_at), ix.add(first, key_at))
        at, dtype = self.scores.at(key_at, lane_at), self.dtype
        score, weight = Var("score", dtype), Var("weight", dtype)
        masked = (
            Let("score", self.scored(Load("scores", at, dtype), place)),
            Store("scores", at, score),
            Update("largest", score),
        )
        top, safe = Var("new_top", dtype), Var("safe_top", dtype)
        weighed = (
            Let("weight", self.function("exp", self.op("sub", Load("scores", at, dtype), safe))),
            Store("scores", at, self.dropped(weight, place)),
            Update("sum", weight),
        )
        shrink = Var("new_shrink", dtype)
        body = (
            Fold((Accumulator("largest", "max", dtype),), (Loop(key, 0, count, "serial", masked),)),
            Let("old_top", Load("top", lane_at, dtype)),
            Let("new_top", self.op("max", Var("old_top", dtype), Var("largest", dtype))),
            Let("safe_top", self.op("select", _equal(top, -INFINITY), self.number(0.0), top)),
            Let("new_shrink", self.function("exp", self.op("sub", Var("old_top", dtype), safe))),
            Store("top", lane_at, top),
            Store("shrink", lane_at, shrink),
            Fold((Accumulator("sum", "sum", dtype),), (Loop(key, 0, count, "serial", weighed),)),
            Let("old_total", self.op("mul", Load("total", lane_at, dtype), shrink)),
            Store("total", lane_at, self.op("add", Var("old_total", dtype), Var("sum", dtype))),
        )
        return self.across(lane, self.rows, body, self.problem.query_block)

    def finish(self) -> tuple[Stmt, ...]:
        """Divide by the totals and store; a query that saw no key is 0, its logarithm plus infinity."""
        problem, dtype = self.problem, self.dtype
        row, col, lane = Axis("out_row", MANY), Axis("out_col", MANY), Axis("log_lane", MANY)
        i, j, at = ix.axis_index(row), ix.axis_index(col), ix.axis_index(lane)
        out = Array("out", rows_first(problem.heads, problem.queries, problem.value_width), dtype)
        place = out.at(self.batch, self.head, ix.add(self.first, i), j)
        divisor = self.op("select", _equal(Load("total", i, dtype), 0.0), self.number(1.0), Load("total", i, dtype))
        divided = Store("out", place, self.op("div", self.sums.load(i, j), Var("divisor", dtype)))
        total = Load("total", at, dtype)
        log = self.op("add", Load("top", at, dtype), self.function("log", total))
        logs = Array("logs", (problem.heads * problem.queries, problem.queries, 1), dtype)
        value = self.op("select", _equal(total, 0.0), self.number(INFINITY), log)
        store = Store("logs", logs.at(self.batch, self.head, ix.add(self.first, at)), value)
        width = problem.value_width
        body = (Let("divisor", divisor), self.across(col, width, (divided,), width))
        return (
            Loop(row, 0, self.rows, "serial", body),
            self.across(lane, self.rows, (store,), problem.query_block),
        )


def _equal(x: Expr, value: float) -> Op:
    return Op("eq", (x, Literal(value, x.dtype)), bool_)


def rows_first(heads: int, rows: int, width: int) -> tuple[int, ...]:
    """Strides of [batch, heads, rows, width] in memory that is laid out as [batch, rows, heads, width]."""
    return rows * heads * width, width, heads * width, 1
