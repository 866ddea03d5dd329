"""Attention without its matrix of scores: a kernel that iterates over keys block by block with a running softmax.

A task is a block of queries of one head. Its copy of the queries is transposed, so that scores have queries contiguous:
maximum and sum are then computed in independent vector lanes. Blocks depend on shapes alone.
`kernels.cpu.attention_backward` is the kernel of its gradients; `Problem` and `Writer` are for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.base.dtypes import DType, bool_, int32, int64, uint32
from weft.kernels.cpu.gemm import Matrix, Tile, product
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    BufferParam,
    Expr,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Reduction,
    ScalarParam,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.math import functions as kernel_math
from weft.kernels.math.random_bits import random_bits
from weft.kernels.numerics import ATTENTION_LANE_BYTES, attention_block

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
            out = out + index * stride
        return out

    def rows(self, batch: Index, head: Index, first: Index) -> Matrix:
        """The matrix of one head from row `first` on."""
        return Matrix(self.buffer, self.at(batch, head, first, ix.ZERO), self.strides[2], 1, self.dtype)


@dataclass(frozen=True, slots=True)
class Problem:
    """One attention: extents, and the strides of its sources in memory. The number of batches is left to the launch."""

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
        """Queries of one block: fewer where there are less in all."""
        return min(self._block, 1 << max(self.queries - 1, 0).bit_length())

    @property
    def key_block(self) -> int:
        return min(self._block, 1 << max(self.keys - 1, 0).bit_length())

    @property
    def _block(self) -> int:
        return attention_block(self.width + self.value_width, self.dtype.itemsize)

    @property
    def query_blocks(self) -> int:
        return -(-self.queries // self.query_block)

    @property
    def key_blocks(self) -> int:
        return -(-self.keys // self.key_block)


def scalars(problem: Problem) -> tuple[ScalarParam, ...]:
    """The numbers that a launch passes: the scale, then for dropout the draw, the threshold and the factor."""
    more = (ScalarParam("draw", uint32), ScalarParam("threshold", uint32), ScalarParam("kept", problem.dtype))
    return (ScalarParam("scale", problem.dtype), *(more if problem.dropout else ()))


class Writer:
    """What both kernels share: expressions for scores and weights, loops over matrices, block bounds."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.dtype = problem.dtype
        self.lanes = ATTENTION_LANE_BYTES // problem.dtype.itemsize

    def number(self, value: float) -> Literal:
        return Literal(value, self.dtype)

    def function(self, name: str, x: Expr) -> Expr:
        return kernel_math.build(name, (x,), self.dtype)

    def local_matrix(self, name: str, row: int) -> Matrix:
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

    def score_of(self, value: Expr, position: tuple[Index, Index, Index, Index]) -> Expr:
        """The score of (batch, head, query, key) from the product of the two."""
        problem = self.problem
        score: Expr = value * Var("scale", self.dtype)
        if problem.mask is not None:
            mask = Load(problem.mask.buffer, problem.mask.at(*position), problem.mask.dtype)
            if problem.mask.dtype is bool_:
                score = mask.select(score, -INFINITY)
            else:
                score = score + mask
        if problem.diagonal is not None:
            last = position[2] + problem.diagonal
            seen = IndexValue(position[3], int32) <= IndexValue(last, int32)
            score = seen.select(score, -INFINITY)
        return score

    def apply_dropout(self, value: Expr, position: tuple[Index, Index, Index, Index]) -> Expr:
        """`value` of a weight after dropout: the same bits that `random` of shape [B, H, Tq, Tk] gives."""
        problem = self.problem
        if not problem.dropout:
            return value
        batch, head, query, key = position
        row = (batch * problem.heads + head) * problem.queries + query
        count = Load("state", ix.const(1), uint32) + Var("draw", uint32)
        element = row * problem.keys + key
        bits = random_bits(Load("state", ix.ZERO, uint32), count, element, 16, problem.wide)
        stays = bits < Var("threshold", uint32)
        return stays.select(value * Var("kept", self.dtype), 0.0)

    def vector_loop(self, axis: Axis, stop: Expr | int, body: tuple[Stmt, ...], bound: int) -> Loop:
        """A vector loop over contiguous elements, at most `bound` of them."""
        return Loop(axis, 0, stop, "vector", body, min(self.lanes, 1 << max(bound - 1, 0).bit_length()))

    def fill(self, name: str, target: Matrix, rows: Expr | int, columns: int, value: float) -> Loop:
        """Set a matrix to one value."""
        i, j = Axis(f"{name}_i", MAX_EXTENT), Axis(f"{name}_j", MAX_EXTENT)
        store = Store(target.buffer, target.at(ix.axis_index(i), ix.axis_index(j)), self.number(value))
        return Loop(i, 0, rows, "serial", (self.vector_loop(j, columns, (store,), columns),))

    def transpose(self, name: str, source: Matrix, target: Matrix, rows: Expr | int, columns: int) -> Loop:
        """target[j, i] = source[i, j], element by element."""
        i, j = Axis(f"{name}_i", MAX_EXTENT), Axis(f"{name}_j", MAX_EXTENT)
        at = ix.axis_index(i), ix.axis_index(j)
        store = Store(target.buffer, target.at(at[1], at[0]), source.load(*at))
        return Loop(i, 0, rows, "serial", (Loop(j, 0, columns, "serial", (store,)),))

    def valid_count(self, extent: int, first: Index, block: int) -> Expr | int:
        """How many of `block` elements from `first` on there are."""
        if extent % block == 0:
            return block
        return Literal(block, int64).min(IndexValue(extent - first, int64))

    def key_blocks(self, first: Index) -> Expr | int:
        """Blocks of keys that some query of the block from `first` on sees."""
        problem, block = self.problem, self.problem.key_block
        if problem.diagonal is None:
            return problem.key_blocks
        end = first + (problem.diagonal + problem.query_block + block - 1)
        seen = IndexValue(end, int64).max(0)
        blocks = seen >> (block.bit_length() - 1)
        return blocks.min(problem.key_blocks)


# --- forward ---------------------------------------------------------------------------------------------------------


def forward(problem: Problem, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'out' [B, Tq, H, Dv] and 'logs' [B, H, Tq]. A task is (batch, head, block)."""
    return _Forward(problem).kernel(buffers)


class _Forward(Writer):
    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem, block = self.problem, self.problem.query_block
        task = Axis("task", MAX_EXTENT)
        shape = (MAX_EXTENT, problem.heads, problem.query_blocks)
        batch, head, number = ix.delinearise(ix.axis_index(task), shape)
        self.batch, self.head, self.first = batch, head, number * block
        self.kv_head = head // (problem.heads // problem.kv_heads)
        self.rows = self.valid_count(problem.queries, self.first, block)
        self.q = self.local_matrix("q_turned", block)
        self.scores = self.local_matrix("scores", block)
        self.sums = self.local_matrix("sums", problem.value_width)
        key_block = Axis("key_block", MAX_EXTENT)
        sizes = {
            "q_turned": problem.width * block,
            "scores": problem.key_block * block,
            "sums": block * problem.value_width,
        }
        sizes |= dict.fromkeys(("top", "total", "shrink"), block)
        body: list[Stmt] = [Local(name, self.dtype, size) for name, size in sizes.items()]
        if problem.queries % block:
            body.append(self.fill("clear_q", self.q, problem.width, block, 0.0))
        source = problem.q.rows(batch, head, self.first)
        body.append(self.transpose("turn_q", source, self.q, self.rows, problem.width))
        body.append(self.fill("clear_sums", self.sums, block, problem.value_width, 0.0))
        for name, value in (("top", -INFINITY), ("total", 0.0)):
            body.append(self.fill(f"clear_{name}", self.local_matrix(name, block), 1, block, value))
        body.append(Loop(key_block, 0, self.key_blocks(self.first), "serial", self.key_step(key_block)))
        body.extend(self.finish())
        name = f"attention_{problem.heads}x{problem.queries}x{problem.keys}x{problem.width}"
        loop = Loop(task, Var("begin", int64), Var("end", int64), "task", tuple(body))
        return Kernel(name, buffers, scalars(problem), LAUNCH_RANGES, (loop,))

    def key_step(self, key_block: Axis) -> tuple[Stmt, ...]:
        """One block of keys: scores, running softmax, weighted values."""
        problem = self.problem
        first = key_block * problem.key_block
        count = self.valid_count(problem.keys, first, problem.key_block)
        keys = problem.k.rows(self.batch, self.kv_head, first)
        values = problem.v.rows(self.batch, self.kv_head, first)
        scores, sums = self.scores, self.sums

        def accumulate(i: Index, j: Index, value: Expr) -> Stmt:
            old = sums.load(i, j) * Load("shrink", i, self.dtype)
            return Store(sums.buffer, sums.at(i, j), old + value)

        return (
            *self.product(
                "scores", keys, self.q, (count, problem.query_block, problem.width),
                lambda i, j, value: Store(scores.buffer, scores.at(i, j), value),
            ),
            self.softmax(first, count),
            *self.product("sums", scores.transposed, values, (self.rows, problem.value_width, count), accumulate),
        )  # fmt: skip

    def softmax(self, first: Index, count: Expr | int) -> Loop:
        """Scores become weights relative to the largest score so far; `top`, `total` and `shrink` keep up with it."""
        lane, key = Axis("lane", self.problem.query_block), Axis("key", MAX_EXTENT)
        lane_at, key_at = ix.axis_index(lane), ix.axis_index(key)
        position = (self.batch, self.head, self.first + lane_at, first + key_at)
        at, dtype = self.scores.at(key_at, lane_at), self.dtype
        score, weight = Var("score", dtype), Var("weight", dtype)
        masked = (
            Let("score", self.score_of(Load("scores", at, dtype), position)),
            Store("scores", at, score),
            Update("largest", score),
        )
        top, safe = Var("new_top", dtype), Var("safe_top", dtype)
        weighed = (
            Let("weight", self.function("exp", Load("scores", at, dtype) - safe)),
            Store("scores", at, self.apply_dropout(weight, position)),
            Update("sum", weight),
        )
        shrink = Var("new_shrink", dtype)
        body = (
            Reduction((Accumulator("largest", "max", dtype),), (Loop(key, 0, count, "serial", masked),)),
            Let("old_top", Load("top", lane_at, dtype)),
            Let("new_top", Var("old_top", dtype).max(Var("largest", dtype))),
            Let("safe_top", top.eq(-INFINITY).select(0.0, top)),
            Let("new_shrink", self.function("exp", Var("old_top", dtype) - safe)),
            Store("top", lane_at, top),
            Store("shrink", lane_at, shrink),
            Reduction((Accumulator("sum", "sum", dtype),), (Loop(key, 0, count, "serial", weighed),)),
            Let("old_total", Load("total", lane_at, dtype) * shrink),
            Store("total", lane_at, Var("old_total", dtype) + Var("sum", dtype)),
        )
        return self.vector_loop(lane, self.rows, body, self.problem.query_block)

    def finish(self) -> tuple[Stmt, ...]:
        """Divide by the totals and store; a query that saw no key is 0, its logarithm plus infinity."""
        problem, dtype = self.problem, self.dtype
        row, col, lane = Axis("out_row", MAX_EXTENT), Axis("out_col", MAX_EXTENT), Axis("log_lane", MAX_EXTENT)
        i, j, at = ix.axis_index(row), ix.axis_index(col), ix.axis_index(lane)
        out = Array("out", rows_first(problem.heads, problem.queries, problem.value_width), dtype)
        position = out.at(self.batch, self.head, self.first + i, j)
        divisor = Load("total", i, dtype).eq(0.0).select(1.0, Load("total", i, dtype))
        divided = Store("out", position, self.sums.load(i, j) / Var("divisor", dtype))
        total = Load("total", at, dtype)
        log = Load("top", at, dtype) + self.function("log", total)
        logs = Array("logs", (problem.heads * problem.queries, problem.queries, 1), dtype)
        value = total.eq(0.0).select(INFINITY, log)
        store = Store("logs", logs.at(self.batch, self.head, self.first + at), value)
        width = problem.value_width
        body = (Let("divisor", divisor), self.vector_loop(col, width, (divided,), width))
        return (
            Loop(row, 0, self.rows, "serial", body),
            self.vector_loop(lane, self.rows, (store,), problem.query_block),
        )


def rows_first(heads: int, rows: int, width: int) -> tuple[int, ...]:
    """Strides of [batch, heads, rows, width] in memory that is laid out as [batch, rows, heads, width]."""
    return rows * heads * width, width, heads * width, 1
