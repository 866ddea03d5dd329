"""The gradients of attention on devices with blocks: weights are computed again from the saved logarithms.

The first tasks are blocks of queries: each walks the keys that it sees and adds up the gradient of its queries. The
other tasks are blocks of keys: each walks the queries that see it, of all heads that read it, and adds up the gradients
of its keys and values. So each sum belongs to one block and has one order, at the price of computing weights twice.
"""

from __future__ import annotations

from dataclasses import replace

from weft.dtypes import bool_, int64
from weft.kernels import index as ix
from weft.kernels.attention import INFINITY, Array, Problem, rows_first
from weft.kernels.block_tiles import BlockTile
from weft.kernels.gpu_attention import BlockWriter, Cut, less
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    Barrier,
    BufferParam,
    Expr,
    Fetched,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Op,
    ScalarParam,
    Stmt,
    Store,
    Var,
)


def backward(problem: Problem, g: Array, cut: Cut, buffers: tuple[BufferParam, ...]) -> Kernel:
    """Buffers: the sources, then 'logs' of the forward kernel, 'means' (the sum over each query's result times its
    gradient), both [B, H, Tq], and the gradient `g` of the result; then 'in_q', 'in_k' and 'in_v', each
    [B, T, heads, width]. Tasks below the scalar 'split' are blocks of queries, the others blocks of keys."""
    return _Backward(problem, g, cut).kernel(buffers)


class _Backward(BlockWriter):
    def __init__(self, problem: Problem, g: Array, cut: Cut):
        super().__init__(problem, cut)
        self.above = g
        rows = cut.rows
        self.q, self.k = self.shared("q_tile", self.width), self.shared("k_tile", self.width)
        self.g, self.v = self.shared("g_tile", self.value_width), self.shared("v_tile", self.value_width)
        self.weights, self.slopes = self.shared("weights", rows), self.shared("slopes", rows)
        self.slope = self.tile("slope", rows, (False, False))
        self.logs = Array("logs", (problem.heads * problem.queries, problem.queries, 1), self.dtype)

    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        number, split = IndexValue(ix.axis_index(Axis("task", MANY)), int64), Var("split", int64)
        late = Axis("late", MANY, "value")
        queries = If(Op("lt", (number, split), bool_), (self.threads(self.query_task(Axis("task", MANY))),))
        keys = If(Op("le", (split, number), bool_), (self.threads(self.key_task(late)),))
        made = self.finished("attention_backward", buffers, (queries, keys), (ScalarParam("split", int64),))
        return replace(made, definitions={late.name: self.op("sub", number, split)})

    # --- one block of queries ---

    def query_task(self, task: Axis) -> tuple[Stmt, ...]:
        problem, rows = self.problem, self.cut.rows
        blocks = self.cut.blocks(problem.queries)
        self.batch, self.head, number = ix.delinearise(ix.axis_index(task), (MANY, problem.heads, blocks))
        self.kv_head = ix.floordiv(self.head, self.group)
        first = ix.scale(number, rows)
        sums = self.tile("q_sums", self.width, (False, True))
        key_block = Axis("key_block", MANY)
        first_key = ix.scale(ix.axis_index(key_block), rows)
        step = (
            *self.keys(first_key),
            Fetched(),
            Barrier(),
            *self.differentiated(first, first_key, keep_weights=False),
            Barrier(),
            sums.multiply(self.slopes, self.k, rows),
            Barrier(),
        )
        return (
            *self.arrays(sums),
            sums.clear(),
            *self.queries(first),
            self.saved(first),
            Loop(key_block, 0, self.seen_blocks(first), "serial", step),
            Fetched(),
            self.stored(sums, "in_q", (problem.heads, problem.queries, problem.width), self.head, first),
            Barrier(),
        )

    # --- one block of keys ---

    def key_task(self, task: Axis) -> tuple[Stmt, ...]:
        problem, rows = self.problem, self.cut.rows
        self.batch, self.kv_head, number = ix.delinearise(
            ix.axis_index(task), (MANY, problem.kv_heads, self.cut.blocks(problem.keys))
        )
        member, query_block = Axis("member", self.group), Axis("query_block", MANY)
        self.head = ix.add(ix.scale(self.kv_head, self.group), ix.axis_index(member))
        first_key, first = ix.scale(number, rows), ix.scale(ix.axis_index(query_block), rows)
        in_k, in_v = self.tile("k_sums", self.width, (True, True)), self.tile("v_sums", self.value_width, (True, True))
        step = (
            *self.queries(first),
            self.saved(first),
            Fetched(),
            Barrier(),
            *self.differentiated(first, first_key, keep_weights=True),
            Barrier(),
            in_v.multiply(self.weights.transposed, self.g, rows),
            in_k.multiply(self.slopes.transposed, self.q, rows),
            Barrier(),
        )
        walk = Loop(query_block, self.first_block(first_key), self.cut.blocks(problem.queries), "serial", step)
        return (
            *self.arrays(in_k, in_v),
            in_k.clear(),
            in_v.clear(),
            *self.keys(first_key),
            Loop(member, 0, self.group, "serial", (walk,)),
            Fetched(),
            self.stored(in_k, "in_k", (problem.kv_heads, problem.keys, problem.width), self.kv_head, first_key),
            self.stored(in_v, "in_v", (problem.kv_heads, problem.keys, problem.value_width), self.kv_head, first_key),
            Barrier(),
        )

    def first_block(self, first_key: Index) -> Expr | int:
        """The first block of queries that see the key `first_key`."""
        problem = self.problem
        if problem.diagonal is None:
            return 0
        query = IndexValue(ix.add(first_key, ix.const(-problem.diagonal)), int64)
        shift = Literal(self.cut.rows.bit_length() - 1, int64)
        return self.op("shr", self.op("max", query, Literal(0, int64)), shift)

    # --- what both need ---

    def arrays(self, *sums: BlockTile) -> tuple[Stmt, ...]:
        tiles = (self.score, self.slope, *sums)
        return (*[array for tile in tiles for array in tile.arrays()], self.own("log"), self.own("mean"))

    def keys(self, first: Index) -> tuple[Stmt, ...]:
        problem, at = self.problem, (self.batch, self.kv_head, first)
        keys = self.fetched(self.k, self.width, problem.k, at, problem.keys, problem.width)
        values = self.fetched(self.v, self.value_width, problem.v, at, problem.keys, problem.value_width)
        return keys, values

    def queries(self, first: Index) -> tuple[Stmt, ...]:
        problem, at = self.problem, (self.batch, self.head, first)
        queries = self.fetched(self.q, self.width, problem.q, at, problem.queries, problem.width)
        above = self.fetched(self.g, self.value_width, self.above, at, problem.queries, problem.value_width)
        return queries, above

    def saved(self, first: Index) -> Loop:
        """Logarithm and mean of each row of a thread; what lies behind the last query has weights 0."""
        query = ix.add(first, self.score.row(self.slot))
        inside = less(query, self.problem.queries) if self.problem.queries % self.cut.rows else None
        at = self.logs.at(self.batch, self.head, query)
        log: Expr = Load("logs", at, self.dtype, inside)
        if inside is not None:
            log = self.op("select", inside, log, self.number(INFINITY))
        return self.each_slot(
            [Store("log", self.slot, log), Store("mean", self.slot, Load("means", at, self.dtype, inside))]
        )

    def differentiated(self, first: Index, first_key: Index, keep_weights: bool) -> tuple[Stmt, ...]:
        """Weights and slopes of scores of a block of queries and a block of keys, into shared arrays."""
        dtype, score, slope = self.dtype, self.score, self.slope

        def element(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            place = (self.batch, self.head, ix.add(first, row), ix.add(first_key, column))
            weight = Var("weight", dtype)
            exponent = self.op("sub", self.bounded(score.value(number), place), Load("log", slot, dtype))
            above = self.op("sub", self.dropped(slope.value(number), place), Load("mean", slot, dtype))
            change = self.op("mul", self.op("mul", weight, above), Var("scale", dtype))
            stores: list[Stmt] = [Store("slopes", self.slopes.at(row, column), self.packed(change))]
            if keep_weights:
                kept = self.packed(self.dropped(weight, place))
                stores.append(Store("weights", self.weights.at(row, column), kept))
            return [Let("weight", self.function("exp", exponent)), *stores]

        return (
            score.clear(),
            score.multiply(self.q, self.k.transposed, self.width),
            slope.clear(),
            slope.multiply(self.g, self.v.transposed, self.value_width),
            score.each(element),
        )

    def stored(self, sums: BlockTile, name: str, shape: tuple[int, int, int], head: Index, first: Index) -> Stmt:
        """The sums as rows of a gradient [B, T, heads, width]."""
        heads, length, width = shape
        target = Array(name, rows_first(heads, length, width), self.kind)

        def element(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            line = ix.add(first, row)
            inside = Op("and", (less(line, length), less(column, width)), bool_)
            return [Store(name, target.at(self.batch, head, line, column), self.packed(sums.value(number)), inside)]

        return sums.each(element)
