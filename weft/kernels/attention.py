"""Attention without its matrix of scores: kernels that go through keys block by block and keep a running softmax.

`forward`: a task is a block of queries of one head. It holds the queries transposed, so that scores come out with
queries side by side: maximum and sum then run over lanes that never meet. `backward`: a task is one head of keys (with
all heads of queries that read it); it walks blocks of keys, inside them blocks of queries, computes the weights again
from the saved logarithms, and adds to the gradient of the queries in memory. Blocks depend on shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.dtypes import DType, bool_, int32, int64, uint32
from weft.kernels import index as ix
from weft.kernels import math as kernel_math
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Accumulator,
    BufferParam,
    Expr,
    Fold,
    If,
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
from weft.kernels.product import MANY, Matrix, Tile, product

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
    causal: bool
    dropout: bool
    wide: bool  # more than 2**32 scores: dropout counts in 64 bits
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


# --- forward ---------------------------------------------------------------------------------------------------------


def forward(problem: Problem, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'out' [B, Tq, H, Dv] and 'logs' [B, H, Tq]. A task is (batch, head, block)."""
    return _Forward(problem).kernel(buffers)


class _Writer:
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
        if problem.causal:
            last = ix.add(place[2], ix.const(problem.keys - problem.queries))
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
        seed: Expr = Load("state", ix.ZERO, uint32)
        if problem.wide:
            high = IndexValue(ix.floordiv(position, 2**32), uint32)
            seed = self.op("add", seed, self.op("mul", high, Literal(0x9E3779B9, uint32)))
        bits = kernel_math.philox(seed, IndexValue(position, uint32), count)
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
        if not problem.causal:
            return problem.key_blocks
        end = ix.add(first, ix.const(problem.keys - problem.queries + problem.query_block + block - 1))
        seen = self.op("max", IndexValue(end, int64), Literal(0, int64))
        blocks = self.op("shr", seen, Literal(block.bit_length() - 1, int64))
        return self.op("min", blocks, Literal(problem.key_blocks, int64))


class _Forward(_Writer):
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
        out = Array("out", _rows_first(problem.heads, problem.queries, problem.value_width), dtype)
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


# --- backward --------------------------------------------------------------------------------------------------------


def backward(problem: Problem, g: Array, buffers: tuple[BufferParam, ...], apart: bool) -> Kernel:
    """Buffers: the sources, 'out' and 'logs' of `forward`, the gradient `g` of the result; then 'in_q', 'in_k' and
    'in_v', each [B, T, heads, width].

    A task is (batch, head of keys). Or, `apart`: the first tasks, as many as the scalar 'split' says, are blocks of
    queries, the others blocks of keys. That is more work in more tasks, and the same bits.
    """
    return _Backward(problem, g, apart).kernel(buffers)


class _Backward(_Writer):
    def __init__(self, problem: Problem, g: Array, apart: bool):
        super().__init__(problem)
        self.g, self.apart = g, apart
        heads, kv_heads, dtype = problem.heads, problem.kv_heads, problem.dtype
        self.out = Array("out", _rows_first(heads, problem.queries, problem.value_width), dtype)
        self.in_q = Array("in_q", _rows_first(heads, problem.queries, problem.width), dtype)
        self.in_k = Array("in_k", _rows_first(kv_heads, problem.keys, problem.width), dtype)
        self.in_v = Array("in_v", _rows_first(kv_heads, problem.keys, problem.value_width), dtype)
        self.group = heads // kv_heads
        self.member = Axis("member", MANY)
        self.locals: dict[str, int] = {}

    def array(self, name: str, rows: int, columns: int) -> Matrix:
        """A matrix in memory of the task."""
        self.locals[name] = rows * columns
        return self.local(name, columns)

    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem = self.problem
        task = Axis("task", MANY)
        more: tuple[ScalarParam, ...] = ()
        definitions: dict[str, Expr] = {}
        if self.apart:
            number, split, late = (
                IndexValue(ix.axis_index(task), int64),
                Var("split", int64),
                Axis("late", MANY, "value"),
            )
            definitions[late.name] = self.op("sub", number, split)
            queries = If(Op("lt", (number, split), bool_), self.query_task(ix.axis_index(task)))
            keys = If(Op("le", (split, number), bool_), self.key_task(ix.axis_index(late)))
            work: tuple[Stmt, ...] = (queries, keys)
            more = (ScalarParam("split", int64),)
        else:
            work = self.head_task(ix.axis_index(task))
        body = (*[Local(name, self.dtype, size) for name, size in self.locals.items()], *work)
        name = f"attention_backward_{problem.heads}x{problem.queries}x{problem.keys}x{problem.width}"
        loop = Loop(task, Var("begin", int64), Var("end", int64), "task", body)
        return Kernel(name, buffers, (*scalars(problem), *more), LAUNCH_RANGES, (loop,), definitions)

    # All keys of one head, or one block of them.

    def head_task(self, number: Index) -> tuple[Stmt, ...]:
        """All gradients of one head of keys."""
        problem = self.problem
        self.batch, self.kv_head = ix.delinearise(number, (MANY, problem.kv_heads))
        self.head = ix.add(ix.scale(self.kv_head, self.group), ix.axis_index(self.member))
        whole = self.in_q.rows(self.batch, self.head, ix.ZERO)
        clear = self.filled("clear_q", whole, problem.queries, problem.width, 0.0)
        key_block = Axis("key_block", MANY)
        step = self.key_step(ix.axis_index(key_block))
        return (
            Loop(self.member, 0, self.group, "serial", (clear,)),
            Loop(key_block, 0, problem.key_blocks, "serial", step),
        )

    def key_task(self, number: Index) -> tuple[Stmt, ...]:
        """The gradients of one block of keys and values."""
        problem = self.problem
        shape = (MANY, problem.kv_heads, problem.key_blocks)
        self.batch, self.kv_head, block = ix.delinearise(number, shape)
        self.head = ix.add(ix.scale(self.kv_head, self.group), ix.axis_index(self.member))
        return self.key_step(block)

    def key_step(self, number: Index) -> tuple[Stmt, ...]:
        """One block of keys: their gradients are summed over all queries, in memory of the task."""
        problem, block = self.problem, self.problem.key_block
        first = ix.scale(number, block)
        count = self.least(problem.keys, first, block)
        self.k_turned = self.array("k_turned", problem.width, block)
        self.v_turned = self.array("v_turned", problem.value_width, block)
        self.k_sums = self.array("k_sums", block, problem.width)
        self.v_sums = self.array("v_sums", block, problem.value_width)
        body: list[Stmt] = []
        for name, source, turned, sums, width in (
            ("k", problem.k, self.k_turned, self.k_sums, problem.width),
            ("v", problem.v, self.v_turned, self.v_sums, problem.value_width),
        ):
            if problem.keys % block:
                body.append(self.filled(f"clear_{name}_turned", turned, width, block, 0.0))
            rows = source.rows(self.batch, self.kv_head, first)
            body.append(self.transposed(f"turn_{name}", rows, turned, count, width))
            body.append(self.filled(f"clear_{name}_sums", sums, block, width, 0.0))
        query_block = Axis("query_block", MANY)
        step = self.query_step(query_block, first, count)
        queries = Loop(query_block, self.first_block(first), problem.query_blocks, "serial", step)
        body.append(Loop(self.member, 0, self.group, "serial", (queries,)))
        for name, sums, target, width in (
            ("k", self.k_sums, self.in_k, problem.width),
            ("v", self.v_sums, self.in_v, problem.value_width),
        ):
            body.append(self.copied(f"store_{name}", sums, target.rows(self.batch, self.kv_head, first), count, width))
        return tuple(body)

    def first_block(self, first: Index) -> Expr | int:
        """The first block of queries that see the key `first`."""
        problem = self.problem
        if not problem.causal:
            return 0
        query = IndexValue(ix.add(first, ix.const(problem.queries - problem.keys)), int64)
        shift = Literal(problem.query_block.bit_length() - 1, int64)
        return self.op("shr", self.op("max", query, Literal(0, int64)), shift)

    def query_step(self, query_block: Axis, first_key: Index, count: Expr | int) -> tuple[Stmt, ...]:
        """One block of queries against the block of keys: weights again, the slopes of scores, then all gradients."""
        problem, block = self.problem, self.problem.key_block
        first = ix.scale(ix.axis_index(query_block), problem.query_block)
        rows = self.least(problem.queries, first, problem.query_block)
        q, g = problem.q.rows(self.batch, self.head, first), self.g.rows(self.batch, self.head, first)
        k = problem.k.rows(self.batch, self.kv_head, first_key)
        in_q = self.in_q.rows(self.batch, self.head, first)

        self.weights = self.array("weights", problem.query_block, block)
        self.slopes = self.array("slopes", problem.query_block, block)
        width, value_width = problem.width, problem.value_width
        onto_q = self.product("in_q", self.slopes, k, (rows, width, count), self.onto(in_q))
        return (
            *self.product("score", q, self.k_turned, (rows, block, width), self.into(self.weights)),
            *self.product("slope", g, self.v_turned, (rows, block, value_width), self.into(self.slopes)),
            self.differentiated(first, first_key, rows, count),
            *self.product("in_v", self.weights.transposed, g, (count, value_width, rows), self.onto(self.v_sums)),
            *self.product("in_k", self.slopes.transposed, q, (count, width, rows), self.onto(self.k_sums)),
            *(() if self.apart else onto_q),
        )

    def into(self, target: Matrix) -> Finish:
        return lambda i, j, value: Store(target.buffer, target.at(i, j), value)

    def onto(self, target: Matrix) -> Finish:
        return lambda i, j, value: Store(target.buffer, target.at(i, j), self.op("add", target.load(i, j), value))

    def differentiated(self, first: Index, first_key: Index, rows: Expr | int, count: Expr | int) -> Loop:
        """Products of queries and keys become weights, those of gradients and values become slopes of scores."""
        row, key = Axis("row", MANY), Axis("key", MANY)
        i, j = ix.axis_index(row), ix.axis_index(key)
        query = ix.add(first, i)
        place = (self.batch, self.head, query, ix.add(first_key, j))
        weight, slope = self.weight_and_slope(self.weights.load(i, j), self.slopes.load(i, j), place)
        body = (
            Let("weight", weight),
            Let("slope", slope),
            Let("kept_weight", self.dropped(Var("weight", self.dtype), place)),
            Store("weights", self.weights.at(i, j), Var("kept_weight", self.dtype)),
            Store("slopes", self.slopes.at(i, j), Var("slope", self.dtype)),
        )
        across = self.across(key, count, body, self.problem.key_block)
        return Loop(row, 0, rows, "serial", (self.mean_of(query), Let("log", self.log_at(query)), across))

    def weight_and_slope(self, score: Expr, slope: Expr, place: tuple[Index, Index, Index, Index]) -> tuple[Expr, Expr]:
        """A weight from its product and the saved 'log', and the slope of its score ('weight' names the former)."""
        dtype = self.dtype
        weight = self.function("exp", self.op("sub", self.scored(score, place), Var("log", dtype)))
        above = self.op("sub", self.dropped(slope, place), Var("mean", dtype))
        return weight, self.op("mul", self.op("mul", Var("weight", dtype), above), Var("scale", dtype))

    def mean_of(self, query: Index) -> Fold:
        """'mean': the sum over the result of one query, times its gradient."""
        col, width = Axis("part", MANY), self.problem.value_width
        at = (self.batch, self.head, query, ix.axis_index(col))
        factors = [Load(array.buffer, array.at(*at), self.dtype) for array in (self.g, self.out)]
        body = (Update("mean", self.op("mul", *factors)),)
        return Fold((Accumulator("mean", "sum", self.dtype),), (self.across(col, width, body, width),))

    def log_at(self, query: Index) -> Load:
        heads, queries = self.problem.heads, self.problem.queries
        logs = Array("logs", (heads * queries, queries, 1), self.dtype)
        return Load("logs", logs.at(self.batch, self.head, query), self.dtype)

    # One block of queries, when they go apart from the keys.

    def query_task(self, number: Index) -> tuple[Stmt, ...]:
        """The gradient of one block of queries: scores with queries side by side, as in the forward kernel."""
        problem, block = self.problem, self.problem.query_block
        self.batch, self.head, at = ix.delinearise(number, (MANY, problem.heads, problem.query_blocks))
        self.kv_head = ix.floordiv(self.head, self.group)
        first = ix.scale(at, block)
        rows = self.least(problem.queries, first, block)
        turned = [self.array("q_turned", problem.width, block), self.array("g_turned", problem.value_width, block)]
        sums, means = self.array("q_sums", block, problem.width), self.array("means", 1, block)
        body: list[Stmt] = []
        for name, source, target in (("q", problem.q, turned[0]), ("g", self.g, turned[1])):
            width = problem.width if name == "q" else problem.value_width
            if problem.queries % block:
                body.append(self.filled(f"clear_{name}_turned", target, width, block, 0.0))
            body.append(self.transposed(f"turn_{name}", source.rows(self.batch, self.head, first), target, rows, width))
        row, key_block = Axis("mean_row", MANY), Axis("key_block", MANY)
        i = ix.axis_index(row)
        mean = (self.mean_of(ix.add(first, i)), Store("means", means.at(ix.ZERO, i), Var("mean", self.dtype)))
        body.append(Loop(row, 0, rows, "serial", mean))
        body.append(self.filled("clear_q_sums", sums, block, problem.width, 0.0))
        step = self.key_step_of_queries(ix.axis_index(key_block), first, rows, turned, sums)
        body.append(Loop(key_block, 0, self.key_blocks(first), "serial", step))
        body.append(self.copied("store_q", sums, self.in_q.rows(self.batch, self.head, first), rows, problem.width))
        return tuple(body)

    def key_step_of_queries(
        self, number: Index, first: Index, rows: Expr | int, turned: list[Matrix], sums: Matrix
    ) -> tuple[Stmt, ...]:
        """One block of keys against the block of queries."""
        problem, block = self.problem, self.problem.query_block
        first_key = ix.scale(number, problem.key_block)
        count = self.least(problem.keys, first_key, problem.key_block)
        k, v = (x.rows(self.batch, self.kv_head, first_key) for x in (problem.k, problem.v))
        scores = self.array("turned_scores", problem.key_block, block)
        slopes = self.array("turned_slopes", problem.key_block, block)
        lane, key = Axis("lane", MANY), Axis("key", MANY)
        i, j = ix.axis_index(lane), ix.axis_index(key)
        place = (self.batch, self.head, ix.add(first, i), ix.add(first_key, j))
        weight, slope = self.weight_and_slope(scores.load(j, i), slopes.load(j, i), place)
        inner = (Let("weight", weight), Store(slopes.buffer, slopes.at(j, i), slope))
        body = (
            Let("log", self.log_at(ix.add(first, i))),
            Let("mean", Load("means", i, self.dtype)),
            Loop(key, 0, count, "serial", inner),
        )
        return (
            *self.product("turned_score", k, turned[0], (count, block, problem.width), self.into(scores)),
            *self.product("turned_slope", v, turned[1], (count, block, problem.value_width), self.into(slopes)),
            self.across(lane, rows, body, block),
            *self.product("q_sum", slopes.transposed, k, (rows, problem.width, count), self.onto(sums)),
        )

    def copied(self, name: str, source: Matrix, target: Matrix, rows: Expr | int, columns: int) -> Loop:
        i, j = Axis(f"{name}_i", MANY), Axis(f"{name}_j", MANY)
        at = ix.axis_index(i), ix.axis_index(j)
        store = Store(target.buffer, target.at(*at), source.load(*at))
        return Loop(i, 0, rows, "serial", (self.across(j, columns, (store,), columns),))


def _equal(x: Expr, value: float) -> Op:
    return Op("eq", (x, Literal(value, x.dtype)), bool_)


def _rows_first(heads: int, rows: int, width: int) -> tuple[int, ...]:
    """Strides of [batch, heads, rows, width] in memory that is laid out as [batch, rows, heads, width]."""
    return rows * heads * width, width, heads * width, 1
