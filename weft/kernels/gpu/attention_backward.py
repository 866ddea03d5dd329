"""The gradients of attention on GPUs: weights are computed again from the saved logarithms.

The first tasks are blocks of queries: each goes through the keys that it sees and adds up the gradient of its queries.
The other tasks are blocks of keys: each goes through the queries that see it, of all heads that read it, and adds up
the gradients of its keys and values. So each sum belongs to one workgroup and has one order, at the price of computing
weights twice. Where a kernel may bind few buffers, each gradient has a kernel of its own, with the same sums.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from weft.base.dtypes import int64
from weft.kernels.cpu.attention import INFINITY, Array, Problem, rows_first
from weft.kernels.gpu.attention import Cut, WorkgroupWriter, is_below
from weft.kernels.gpu.register_tiles import WorkgroupTile
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    AwaitCopies,
    Barrier,
    BufferParam,
    Expr,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    ScalarParam,
    Stmt,
    Store,
    Var,
)


def backward(problem: Problem, g: Array, cut: Cut, buffers: tuple[BufferParam, ...], packed: bool = False) -> Kernel:
    """Buffers: the sources, then 'logs' of the forward kernel, 'means' (the sum over each query's result times its
    gradient), both [B, H, Tq], and the gradient `g` of the result; then 'in_q', 'in_k' and 'in_v', each
    [B, T, heads, width], or some of them. Tasks below the scalar 'split' are blocks of queries, the others blocks of
    keys; without 'in_q' or with it alone all are of one kind. With `packed`, 'logs' is [B, H, 2 Tq], means behind
    logarithms."""
    return _Backward(problem, g, cut, packed, {one.name for one in buffers if one.written}).kernel(buffers)


class _Backward(WorkgroupWriter):
    def __init__(self, problem: Problem, g: Array, cut: Cut, packed: bool, results: Collection[str]):
        super().__init__(problem, cut)
        self.above, self.packed, self.results = g, packed, results
        rows = cut.rows
        self.q, self.k = self.shared_matrix("q_tile", self.width), self.shared_matrix("k_tile", self.width)
        self.g, self.v = self.shared_matrix("g_tile", self.value_width), self.shared_matrix("v_tile", self.value_width)
        self.weights, self.slopes = self.shared_matrix("weights", rows), self.shared_matrix("slopes", rows)
        self.slope = self.tile("slope", rows, (False, False))
        row = problem.queries * (1 + packed)
        self.logs = Array("logs", (problem.heads * row, row, 1), self.dtype)

    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        task = Axis("task", MAX_EXTENT)
        if "in_q" not in self.results or len(self.results) == 1:
            body = self.query_task(task) if "in_q" in self.results else self.key_task(task)
            name = "attention_backward" + "".join(f"_{one.name[-1]}" for one in buffers if one.written)
            return self.make_kernel(name, buffers, (self.loop_over_lanes(body),))
        number, split = IndexValue(ix.axis_index(Axis("task", MAX_EXTENT)), int64), Var("split", int64)
        late = Axis("late", MAX_EXTENT, "value")
        queries = If(number < split, (self.loop_over_lanes(self.query_task(Axis("task", MAX_EXTENT))),))
        keys = If(split <= number, (self.loop_over_lanes(self.key_task(late)),))
        made = self.make_kernel("attention_backward", buffers, (queries, keys), (ScalarParam("split", int64),))
        return replace(made, definitions={late.name: number - split})

    # --- one block of queries ---

    def query_task(self, task: Axis) -> tuple[Stmt, ...]:
        problem, rows = self.problem, self.cut.rows
        blocks = self.cut.blocks(problem.queries)
        self.batch, self.head, number = ix.delinearise(ix.axis_index(task), (MAX_EXTENT, problem.heads, blocks))
        self.kv_head = self.head // self.group
        first = number * rows
        sums = self.tile("q_sums", self.width, (False, True))
        key_block = Axis("key_block", MAX_EXTENT)
        first_key = key_block * rows
        step = (
            *self.keys(first_key),
            AwaitCopies(),
            Barrier(),
            *self.differentiate(first, first_key, False, True),
            Barrier(),
            sums.multiply(self.slopes, self.k, rows),
            Barrier(),
        )
        return (
            *self.arrays(sums),
            sums.clear(),
            *self.queries(first),
            self.load_saved(first),
            Loop(key_block, 0, self.seen_blocks(first), "serial", step),
            AwaitCopies(),
            self.store_sums(sums, "in_q", (problem.heads, problem.queries, problem.width), self.head, first),
            Barrier(),
        )

    # --- one block of keys ---

    def key_task(self, task: Axis) -> tuple[Stmt, ...]:
        problem, rows = self.problem, self.cut.rows
        self.batch, self.kv_head, number = ix.delinearise(
            ix.axis_index(task), (MAX_EXTENT, problem.kv_heads, self.cut.blocks(problem.keys))
        )
        member, query_block = Axis("member", self.group), Axis("query_block", MAX_EXTENT)
        self.head = self.kv_head * self.group + member
        first_key, first = number * rows, query_block * rows
        in_k, in_v = self.tile("k_sums", self.width, (True, True)), self.tile("v_sums", self.value_width, (True, True))
        has_k, has_v = "in_k" in self.results, "in_v" in self.results
        sums = [*[in_k] * has_k, *[in_v] * has_v]
        step = (
            *self.queries(first),
            self.load_saved(first),
            AwaitCopies(),
            Barrier(),
            *self.differentiate(first, first_key, has_v, has_k),
            Barrier(),
            *[in_v.multiply(self.weights.transposed, self.g, rows)] * has_v,
            *[in_k.multiply(self.slopes.transposed, self.q, rows)] * has_k,
            Barrier(),
        )
        query_loop = Loop(query_block, self.first_block(first_key), self.cut.blocks(problem.queries), "serial", step)
        return (
            *self.arrays(*sums),
            *[one.clear() for one in sums],
            *self.keys(first_key),
            Loop(member, 0, self.group, "serial", (query_loop,)),
            AwaitCopies(),
            *[
                self.store_sums(one, name, (problem.kv_heads, problem.keys, width), self.kv_head, first_key)
                for one, name, width in ((in_k, "in_k", problem.width), (in_v, "in_v", problem.value_width))
                if name in self.results
            ],
            Barrier(),
        )

    def first_block(self, first_key: Index) -> Expr | int:
        """The first block of queries that see the key `first_key`."""
        problem = self.problem
        if problem.diagonal is None:
            return 0
        query = IndexValue(first_key - problem.diagonal, int64)
        shift = Literal(self.cut.rows.bit_length() - 1, int64)
        return query.max(0) >> shift

    # --- what both need ---

    def arrays(self, *sums: WorkgroupTile) -> tuple[Stmt, ...]:
        tiles = (self.score, self.slope, *sums)
        return (*[array for tile in tiles for array in tile.arrays()], self.lane_array("log"), self.lane_array("mean"))

    def keys(self, first: Index) -> tuple[Stmt, ...]:
        problem, at = self.problem, (self.batch, self.kv_head, first)
        keys = self.fetch_rows(self.k, self.width, problem.k, at, problem.keys, problem.width)
        values = self.fetch_rows(self.v, self.value_width, problem.v, at, problem.keys, problem.value_width)
        return keys, values

    def queries(self, first: Index) -> tuple[Stmt, ...]:
        problem, at = self.problem, (self.batch, self.head, first)
        queries = self.fetch_rows(self.q, self.width, problem.q, at, problem.queries, problem.width)
        above = self.fetch_rows(self.g, self.value_width, self.above, at, problem.queries, problem.value_width)
        return queries, above

    def load_saved(self, first: Index) -> Loop:
        """Logarithm and mean of each row of a lane; what lies behind the last query has weights 0."""
        query = first + self.score.row(self.slot)
        inside = is_below(query, self.problem.queries) if self.problem.queries % self.cut.rows else None
        at = self.logs.at(self.batch, self.head, query)
        log: Expr = Load("logs", at, self.dtype, inside)
        if inside is not None:
            log = inside.select(log, self.number(INFINITY))
        means = ("logs", at + self.problem.queries) if self.packed else ("means", at)
        return self.each_slot(
            [Store("log", self.slot, log), Store("mean", self.slot, Load(*means, self.dtype, inside))]
        )

    def differentiate(self, first: Index, first_key: Index, keep_weights: bool, keep_slopes: bool) -> tuple[Stmt, ...]:
        """Weights and slopes of scores of a block of queries and a block of keys, into shared arrays."""
        dtype, score, slope = self.dtype, self.score, self.slope

        def element(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            position = (self.batch, self.head, first + row, first_key + column)
            weight = Var("weight", dtype)
            exponent = self.bound_score(score.value(number), position) - Load("log", slot, dtype)
            above = self.apply_dropout(slope.value(number), position) - Load("mean", slot, dtype)
            change = weight * above * Var("scale", dtype)
            stores: list[Stmt] = []
            if keep_slopes:
                stores.append(Store("slopes", self.slopes.at(row, column), self.pack(change)))
            if keep_weights:
                kept = self.pack(self.apply_dropout(weight, position))
                stores.append(Store("weights", self.weights.at(row, column), kept))
            return [Let("weight", self.function("exp", exponent)), *stores]

        return (
            score.clear(),
            score.multiply(self.q, self.k.transposed, self.width),
            *([slope.clear(), slope.multiply(self.g, self.v.transposed, self.value_width)] if keep_slopes else []),
            score.for_elements(element),
        )

    def store_sums(
        self, sums: WorkgroupTile, name: str, shape: tuple[int, int, int], head: Index, first: Index
    ) -> Stmt:
        """The sums as rows of a gradient [B, T, heads, width]."""
        heads, length, width = shape
        target = Array(name, rows_first(heads, length, width), self.kind)

        def element(slot: Index, row: Index, column: Index, number: Index) -> list[Stmt]:
            line = first + row
            inside = is_below(line, length) & is_below(column, width)
            return [Store(name, target.at(self.batch, head, line, column), self.pack(sums.value(number)), inside)]

        return sums.for_elements(element)
