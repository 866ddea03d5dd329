"""The gradients of attention, block by block: weights are computed again from the saved logarithms.

A task is one head of keys (with all heads of queries that read it): it iterates over blocks of keys, inside them blocks
of queries, and adds to the gradient of the queries in memory. Where there are fewer heads than threads, blocks of
queries and blocks of keys are separate tasks.
"""

from __future__ import annotations

from weft.base.dtypes import int64
from weft.kernels.cpu.attention import Array, Finish, Problem, Writer, rows_first, scalars
from weft.kernels.cpu.gemm import Matrix
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Accumulator,
    BufferParam,
    Expr,
    If,
    IndexValue,
    Kernel,
    Let,
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


def backward(problem: Problem, g: Array, buffers: tuple[BufferParam, ...], separate: bool) -> Kernel:
    """Buffers: the sources, 'out' and 'logs' of `forward`, the gradient `g` of the result; then 'in_q', 'in_k' and
    'in_v', each [B, T, heads, width].

    A task is (batch, head of keys). Or, `separate`: the first tasks, as many as the scalar 'split' says, are blocks of
    queries, the others blocks of keys. That is more work in more tasks, and the same bits.
    """
    return _Backward(problem, g, separate).kernel(buffers)


class _Backward(Writer):
    def __init__(self, problem: Problem, g: Array, separate: bool):
        super().__init__(problem)
        self.g, self.separate = g, separate
        heads, kv_heads, dtype = problem.heads, problem.kv_heads, problem.dtype
        self.out = Array("out", rows_first(heads, problem.queries, problem.value_width), dtype)
        self.in_q = Array("in_q", rows_first(heads, problem.queries, problem.width), dtype)
        self.in_k = Array("in_k", rows_first(kv_heads, problem.keys, problem.width), dtype)
        self.in_v = Array("in_v", rows_first(kv_heads, problem.keys, problem.value_width), dtype)
        self.group = heads // kv_heads
        self.member = Axis("member", MAX_EXTENT)
        self.locals: dict[str, int] = {}

    def array(self, name: str, rows: int, columns: int) -> Matrix:
        """A matrix in memory of the task."""
        self.locals[name] = rows * columns
        return self.local_matrix(name, columns)

    def kernel(self, buffers: tuple[BufferParam, ...]) -> Kernel:
        problem = self.problem
        task = Axis("task", MAX_EXTENT)
        more: tuple[ScalarParam, ...] = ()
        definitions: dict[str, Expr] = {}
        if self.separate:
            number, split, late = (
                IndexValue(ix.axis_index(task), int64),
                Var("split", int64),
                Axis("late", MAX_EXTENT, "value"),
            )
            definitions[late.name] = number - split
            queries = If(number < split, self.query_task(ix.axis_index(task)))
            keys = If(split <= number, self.key_task(ix.axis_index(late)))
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
        self.batch, self.kv_head = ix.delinearise(number, (MAX_EXTENT, problem.kv_heads))
        self.head = self.kv_head * self.group + self.member
        whole = self.in_q.rows(self.batch, self.head, ix.ZERO)
        clear = self.fill("clear_q", whole, problem.queries, problem.width, 0.0)
        key_block = Axis("key_block", MAX_EXTENT)
        step = self.key_step(ix.axis_index(key_block))
        return (
            Loop(self.member, 0, self.group, "serial", (clear,)),
            Loop(key_block, 0, problem.key_blocks, "serial", step),
        )

    def key_task(self, number: Index) -> tuple[Stmt, ...]:
        """The gradients of one block of keys and values."""
        problem = self.problem
        shape = (MAX_EXTENT, problem.kv_heads, problem.key_blocks)
        self.batch, self.kv_head, block = ix.delinearise(number, shape)
        self.head = self.kv_head * self.group + self.member
        return self.key_step(block)

    def key_step(self, number: Index) -> tuple[Stmt, ...]:
        """One block of keys: their gradients are summed over all queries, in memory of the task."""
        problem, block = self.problem, self.problem.key_block
        first = number * block
        count = self.valid_count(problem.keys, first, block)
        self.k_transposed = self.array("k_turned", problem.width, block)
        self.v_transposed = self.array("v_turned", problem.value_width, block)
        self.k_sums = self.array("k_sums", block, problem.width)
        self.v_sums = self.array("v_sums", block, problem.value_width)
        body: list[Stmt] = []
        for name, source, transposed, sums, width in (
            ("k", problem.k, self.k_transposed, self.k_sums, problem.width),
            ("v", problem.v, self.v_transposed, self.v_sums, problem.value_width),
        ):
            if problem.keys % block:
                body.append(self.fill(f"clear_{name}_turned", transposed, width, block, 0.0))
            rows = source.rows(self.batch, self.kv_head, first)
            body.append(self.transpose(f"turn_{name}", rows, transposed, count, width))
            body.append(self.fill(f"clear_{name}_sums", sums, block, width, 0.0))
        query_block = Axis("query_block", MAX_EXTENT)
        step = self.query_step(query_block, first, count)
        queries = Loop(query_block, self.first_block(first), problem.query_blocks, "serial", step)
        body.append(Loop(self.member, 0, self.group, "serial", (queries,)))
        for name, sums, target, width in (
            ("k", self.k_sums, self.in_k, problem.width),
            ("v", self.v_sums, self.in_v, problem.value_width),
        ):
            body.append(self.copy(f"store_{name}", sums, target.rows(self.batch, self.kv_head, first), count, width))
        return tuple(body)

    def first_block(self, first: Index) -> Expr | int:
        """The first block of queries that see the key `first`."""
        problem = self.problem
        if problem.diagonal is None:
            return 0
        query = IndexValue(first - problem.diagonal, int64)
        return query.max(0) >> (problem.query_block.bit_length() - 1)

    def query_step(self, query_block: Axis, first_key: Index, count: Expr | int) -> tuple[Stmt, ...]:
        """One block of queries against the block of keys: weights again, the slopes of scores, then all gradients."""
        problem, block = self.problem, self.problem.key_block
        first = query_block * problem.query_block
        rows = self.valid_count(problem.queries, first, problem.query_block)
        q, g = problem.q.rows(self.batch, self.head, first), self.g.rows(self.batch, self.head, first)
        k = problem.k.rows(self.batch, self.kv_head, first_key)
        in_q = self.in_q.rows(self.batch, self.head, first)

        self.weights = self.array("weights", problem.query_block, block)
        self.slopes = self.array("slopes", problem.query_block, block)
        width, value_width = problem.width, problem.value_width
        onto_q = self.product("in_q", self.slopes, k, (rows, width, count), self.add_to(in_q))
        return (
            *self.product("score", q, self.k_transposed, (rows, block, width), self.into(self.weights)),
            *self.product("slope", g, self.v_transposed, (rows, block, value_width), self.into(self.slopes)),
            self.differentiate(first, first_key, rows, count),
            *self.product("in_v", self.weights.transposed, g, (count, value_width, rows), self.add_to(self.v_sums)),
            *self.product("in_k", self.slopes.transposed, q, (count, width, rows), self.add_to(self.k_sums)),
            *(() if self.separate else onto_q),
        )

    def into(self, target: Matrix) -> Finish:
        return lambda i, j, value: Store(target.buffer, target.at(i, j), value)

    def add_to(self, target: Matrix) -> Finish:
        return lambda i, j, value: Store(target.buffer, target.at(i, j), target.load(i, j) + value)

    def differentiate(self, first: Index, first_key: Index, rows: Expr | int, count: Expr | int) -> Loop:
        """Products of queries and keys become weights, those of gradients and values become slopes of scores."""
        row, key = Axis("row", MAX_EXTENT), Axis("key", MAX_EXTENT)
        i, j = ix.axis_index(row), ix.axis_index(key)
        query = first + i
        position = (self.batch, self.head, query, first_key + j)
        weight, slope = self.weight_and_slope(self.weights.load(i, j), self.slopes.load(i, j), position)
        body = (
            Let("weight", weight),
            Let("slope", slope),
            Let("kept_weight", self.apply_dropout(Var("weight", self.dtype), position)),
            Store("weights", self.weights.at(i, j), Var("kept_weight", self.dtype)),
            Store("slopes", self.slopes.at(i, j), Var("slope", self.dtype)),
        )
        across = self.vector_loop(key, count, body, self.problem.key_block)
        return Loop(row, 0, rows, "serial", (self.mean_of(query), Let("log", self.log_at(query)), across))

    def weight_and_slope(
        self, score: Expr, slope: Expr, position: tuple[Index, Index, Index, Index]
    ) -> tuple[Expr, Expr]:
        """A weight from its product and the saved 'log', and the slope of its score ('weight' names the former)."""
        dtype = self.dtype
        weight = self.function("exp", self.score_of(score, position) - Var("log", dtype))
        above = self.apply_dropout(slope, position) - Var("mean", dtype)
        return weight, Var("weight", dtype) * above * Var("scale", dtype)

    def mean_of(self, query: Index) -> Reduction:
        """'mean': the sum over the result of one query, times its gradient."""
        col, width = Axis("part", MAX_EXTENT), self.problem.value_width
        at = (self.batch, self.head, query, ix.axis_index(col))
        slope, result = [Load(array.buffer, array.at(*at), self.dtype) for array in (self.g, self.out)]
        body = (Update("mean", slope * result),)
        return Reduction((Accumulator("mean", "sum", self.dtype),), (self.vector_loop(col, width, body, width),))

    def log_at(self, query: Index) -> Load:
        heads, queries = self.problem.heads, self.problem.queries
        logs = Array("logs", (heads * queries, queries, 1), self.dtype)
        return Load("logs", logs.at(self.batch, self.head, query), self.dtype)

    # One block of queries, where queries and keys are separate tasks.

    def query_task(self, number: Index) -> tuple[Stmt, ...]:
        """The gradient of one block of queries: scores with queries contiguous, as in the forward kernel."""
        problem, block = self.problem, self.problem.query_block
        self.batch, self.head, at = ix.delinearise(number, (MAX_EXTENT, problem.heads, problem.query_blocks))
        self.kv_head = self.head // self.group
        first = at * block
        rows = self.valid_count(problem.queries, first, block)
        transposed = [self.array("q_turned", problem.width, block), self.array("g_turned", problem.value_width, block)]
        sums, means = self.array("q_sums", block, problem.width), self.array("means", 1, block)
        body: list[Stmt] = []
        for name, source, target in (("q", problem.q, transposed[0]), ("g", self.g, transposed[1])):
            width = problem.width if name == "q" else problem.value_width
            if problem.queries % block:
                body.append(self.fill(f"clear_{name}_turned", target, width, block, 0.0))
            body.append(self.transpose(f"turn_{name}", source.rows(self.batch, self.head, first), target, rows, width))
        row, key_block = Axis("mean_row", MAX_EXTENT), Axis("key_block", MAX_EXTENT)
        i = ix.axis_index(row)
        mean = (self.mean_of(first + i), Store("means", means.at(ix.ZERO, i), Var("mean", self.dtype)))
        body.append(Loop(row, 0, rows, "serial", mean))
        body.append(self.fill("clear_q_sums", sums, block, problem.width, 0.0))
        step = self.key_step_of_queries(ix.axis_index(key_block), first, rows, transposed, sums)
        body.append(Loop(key_block, 0, self.key_blocks(first), "serial", step))
        body.append(self.copy("store_q", sums, self.in_q.rows(self.batch, self.head, first), rows, problem.width))
        return tuple(body)

    def key_step_of_queries(
        self, number: Index, first: Index, rows: Expr | int, transposed: list[Matrix], sums: Matrix
    ) -> tuple[Stmt, ...]:
        """One block of keys against the block of queries."""
        problem, block = self.problem, self.problem.query_block
        first_key = number * problem.key_block
        count = self.valid_count(problem.keys, first_key, problem.key_block)
        k, v = (x.rows(self.batch, self.kv_head, first_key) for x in (problem.k, problem.v))
        scores = self.array("turned_scores", problem.key_block, block)
        slopes = self.array("turned_slopes", problem.key_block, block)
        lane, key = Axis("lane", MAX_EXTENT), Axis("key", MAX_EXTENT)
        i, j = ix.axis_index(lane), ix.axis_index(key)
        position = (self.batch, self.head, first + i, first_key + j)
        weight, slope = self.weight_and_slope(scores.load(j, i), slopes.load(j, i), position)
        inner = (Let("weight", weight), Store(slopes.buffer, slopes.at(j, i), slope))
        body = (
            Let("log", self.log_at(first + i)),
            Let("mean", Load("means", i, self.dtype)),
            Loop(key, 0, count, "serial", inner),
        )
        return (
            *self.product("turned_score", k, transposed[0], (count, block, problem.width), self.into(scores)),
            *self.product("turned_slope", v, transposed[1], (count, block, problem.value_width), self.into(slopes)),
            self.vector_loop(lane, rows, body, block),
            *self.product("q_sum", slopes.transposed, k, (rows, problem.width, count), self.add_to(sums)),
        )

    def copy(self, name: str, source: Matrix, target: Matrix, rows: Expr | int, columns: int) -> Loop:
        i, j = Axis(f"{name}_i", MAX_EXTENT), Axis(f"{name}_j", MAX_EXTENT)
        at = ix.axis_index(i), ix.axis_index(j)
        store = Store(target.buffer, target.at(*at), source.load(*at))
        return Loop(i, 0, rows, "serial", (self.vector_loop(j, columns, (store,), columns),))
