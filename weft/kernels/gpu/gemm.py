"""Matrix products on GPUs: a workgroup computes one tile of the result, through arrays that it shares.

A workgroup goes through k in steps. While it multiplies one step, which lies in shared arrays, it copies the next;
where the device has no asynchronous copies, a lane loads its part of the next step into registers before it
multiplies and stores it to the shared arrays afterwards, so that memory answers meanwhile. A lane keeps its part of
the tile in registers (`kernels.gpu.register_tiles`) and passes each finished element to the caller, which stores what
is computed from it.

Shared arrays keep the order of memory: rows of k where elements along k are contiguous, else rows across it. So every
copy is of contiguous elements, and no operand is transposed on the way.

Every element of the result is one chain of additions over k, in order, whatever the tile and the number of
workgroups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.base.capabilities import Limits
from weft.base.dtypes import int32, int64
from weft.kernels.cpu.gemm import Matrix
from weft.kernels.gpu.product_tiles import Operand, Product, Tiling, shared_layout
from weft.kernels.gpu.register_tiles import RegisterTile, UnitTile, WorkgroupTile, assign_shared_arrays
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Copy,
    Expr,
    Geometry,
    If,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Stmt,
    Store,
    Var,
)

Finish = Callable[[Index, Index, Index, Expr], Sequence[Stmt]]  # (batch, row, column, value): what happens to it


def body(product: Product, choice: Tiling, finish: Finish, limits: Limits) -> tuple[tuple[Stmt, ...], Geometry]:
    """The body of a kernel whose launch counts tiles: the launch range is [0, choice.count(product)), and the scalar
    'rows', an int32, is the number of rows."""
    writer = _Writer(product, choice)
    arrays, nbytes = assign_shared_arrays((writer.a.array, writer.b.array), limits.static_shared_bytes)
    return (*arrays, writer.loop(finish)), Geometry(choice.lanes, choice.lanes, nbytes)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A group of contiguous elements of a tile: number `iteration` of a lane's, at [across, along] of the tile."""

    iteration: Axis
    across: Index
    along: Index


class _Side:
    """One operand in a workgroup: its shared array, and the fetches that fill it."""

    def __init__(self, name: str, operand: Operand, extent: int, choice: Tiling, depth: int, limit: Expr | int):
        self.name, self.operand, self.extent, self.choice = name, operand, extent, choice
        self.depth, self.limit = depth, limit  # elements along k; elements across, of all tiles
        self.vector = operand.vector
        self.lines, self.row, self.step = shared_layout(operand, extent, choice.depth)
        self.size = self.lines * self.step

    @property
    def array(self) -> Local:
        return Local(f"{self.name}_tile", self.operand.dtype, self.choice.stages * self.size)

    def matrix(self, stage: Index) -> Matrix:
        """A stage of the shared array, as [across, along]."""
        across, along = (self.step, 1) if self.operand.lies_along else (1, self.step)
        return Matrix(self.array.name, stage * self.size, across, along, self.operand.dtype)

    def fetches(self, lane: Axis, number: Index, first: Index, batch: Index) -> Stmt:
        """Copy step `number` of k, for the tile that starts at `first`, of matrix number `batch`."""

        def copy(part: _Piece) -> tuple[Stmt, ...]:
            target = self.matrix(number % self.choice.stages).at(part.across, part.along)
            source, valid = self._source(part, number, first, batch)
            return (AsyncCopy(self.array.name, target, self.operand.buffer, source, self.vector, valid),)

        return self._for_pieces(lane, copy)

    def registers(self, lane: Axis) -> Local:
        """A lane's part of the next step."""
        return Local(f"{self.name}_next", self.operand.dtype, self._pieces_per_lane(lane) * self.vector, "lane")

    def loads(self, lane: Axis, number: Index, first: Index, batch: Index) -> Stmt:
        """Load step `number` of k, as `fetches` does, into the lane's registers."""

        def load(part: _Piece) -> tuple[Stmt, ...]:
            source, valid = self._source(part, number, first, batch)
            start = ix.axis_index(part.iteration) * self.vector
            if self.vector > 1:
                return (AsyncCopy(f"{self.name}_next", start, self.operand.buffer, source, self.vector, valid),)
            mask = None if isinstance(valid, int) else Literal(0, int32) < valid
            return (Store(f"{self.name}_next", start, Load(self.operand.buffer, source, self.operand.dtype, mask)),)

        return self._for_pieces(lane, load)

    def stores(self, lane: Axis, number: Index) -> Stmt:
        """Store what `loads` loaded to the shared array."""

        def store(part: _Piece) -> tuple[Stmt, ...]:
            target = self.matrix(number % self.choice.stages).at(part.across, part.along)
            start, dtype = ix.axis_index(part.iteration) * self.vector, self.operand.dtype
            if self.vector > 1:
                return (Copy(self.array.name, target, f"{self.name}_next", start, self.vector, dtype),)
            return (Store(self.array.name, target, Load(f"{self.name}_next", start, dtype)),)

        return self._for_pieces(lane, store)

    def _pieces_per_lane(self, lane: Axis) -> int:
        return -(-self.lines * (self.row // self.vector) // lane.extent)

    def _for_pieces(self, lane: Axis, work: Callable[[_Piece], tuple[Stmt, ...]]) -> Stmt:
        """`work` for each group of contiguous elements that is this lane's."""
        pieces, each = self.lines * (self.row // self.vector), self._pieces_per_lane(lane)
        iteration = Axis(f"{self.name}_piece", each)
        piece = lane + iteration * lane.extent
        line, position = ix.delinearise(piece, (self.lines, self.row // self.vector))
        position = position * self.vector
        across, along = (line, position) if self.operand.lies_along else (position, line)
        body = work(_Piece(iteration, across, along))
        if pieces % lane.extent:
            body = (If(IndexValue(piece, int32) < pieces, body),)
        return Loop(iteration, 0, each, "unrolled", body)

    def _source(self, part: _Piece, number: Index, first: Index, batch: Index) -> tuple[Index, Expr | int]:
        """Where a group of elements is in memory, and how many of them exist."""
        operand = self.operand
        across, along = first + part.across, number * self.choice.depth + part.along
        source, conditions = operand.locate(batch, across, along)
        limits = ((across, self.limit), (along, self.depth))
        beside, (line_at, line_limit) = limits if not operand.lies_along else limits[::-1]
        valid = _count_valid(beside, self.vector)
        if not (isinstance(line_limit, int) and line_at.high < line_limit):
            inside = IndexValue(line_at, int32) < _int32(line_limit)
            valid = inside.select(_int32(valid), 0)
        for index, bound in conditions:
            for test in _bounds_tests(index, bound):
                valid = test.select(_int32(valid), 0)
        return source, valid


def _count_valid(beside: tuple[Index, Expr | int], vector: int) -> Expr | int:
    """How many of `vector` contiguous elements, which begin at a multiple of it, lie below a limit."""
    position, limit = beside
    if isinstance(limit, int) and position.high + vector <= limit:
        return vector
    rest = _int32(limit) - IndexValue(position, int32)
    return rest.min(vector).max(0)


def _bounds_tests(index: Index, bound: int) -> list[Expr]:
    """The tests that make sure of 0 <= index < bound."""
    value = IndexValue(index, int32)
    tests: list[Expr] = []
    if index.low < 0:
        tests.append(Literal(0, int32) <= value)
    if index.high >= bound:
        tests.append(value < bound)
    return tests


def _int32(value: Expr | int) -> Expr:
    return Literal(value, int32) if isinstance(value, int) else value


class _Writer:
    """One kernel: tiles of the result, steps of k, fetches."""

    def __init__(self, product: Product, choice: Tiling):
        self.product, self.choice = product, choice
        self.lane, self.step = Axis("thread", choice.lanes), Axis("step", -(-product.depth // choice.depth))
        self.rows = Var("rows", int32)
        self.a = _Side("a", product.a, choice.height, choice, product.depth, self.rows)
        self.b = _Side("b", product.b, choice.width, choice, product.depth, product.columns)
        parts, each = (choice.height // choice.rows, choice.width // choice.columns), (choice.rows, choice.columns)
        grouped = not product.a.lies_along, not product.b.lies_along
        self.tile: WorkgroupTile = (
            UnitTile("sums", self.lane, choice.fragments, parts, each)
            if choice.fragments
            else RegisterTile("sums", self.lane, product.sums, parts, each, grouped)
        )

    def loop(self, finish: Finish) -> Loop:
        product, choice = self.product, self.choice
        task = Axis("task", MAX_EXTENT)
        row, column = ix.delinearise(ix.axis_index(task), (MAX_EXTENT, -(-product.columns // choice.width)))
        batch = ix.ZERO
        if product.batch > 1:
            batch, row = ix.delinearise(row, (MAX_EXTENT, -(-product.rows // choice.height)))
        first_row, first_column = row * choice.height, column * choice.width

        sides = ((self.a, first_row), (self.b, first_column))

        def fetches(number: Index) -> tuple[Stmt, ...]:
            return tuple([side.fetches(self.lane, number, first, batch) for side, first in sides])

        def loads(number: Index) -> tuple[Stmt, ...]:
            return tuple([side.loads(self.lane, number, first, batch) for side, first in sides])

        def stores(number: Index) -> tuple[Stmt, ...]:
            return tuple([side.stores(self.lane, number) for side, _ in sides])

        def finish_element(slot: Index, row: Index, column: Index, number: Index) -> tuple[Stmt, ...]:
            at = first_row + row, first_column + column
            named = Let("product", self.tile.value(number))
            return (self.if_inside(*at, [named, *finish(batch, *at, Var("product", product.sums))]),)

        steps, now = self.step.extent, ix.axis_index(self.step)
        stage = now % choice.stages
        coming = steps if steps <= choice.stages else choice.stages - 1  # steps that are fetched before the loop
        more = IndexValue(now, int32) < steps - coming
        ahead = (If(more, fetches(now + coming)),) if steps > coming else ()
        begin: list[Stmt] = []
        for number in range(coming):  # one group each, of which the loop closes the last
            begin += fetches(ix.const(number))
            begin += (AwaitCopies(choice.stages),) if number < coming - 1 else ()
        multiplied = self.tile.multiply(self.a.matrix(stage), self.b.matrix(stage).transposed, choice.depth)
        arrays = self.tile.arrays()
        step: tuple[Stmt, ...] = (AwaitCopies(coming - 1), Barrier(), *ahead, multiplied)
        if choice.prefetches and ahead:
            arrays += tuple([side.registers(self.lane) for side, _ in sides])
            begin = [*loads(ix.ZERO), AwaitCopies(), *stores(ix.ZERO)]
            step = (Barrier(), If(more, loads(now + 1)), multiplied, AwaitCopies(), If(more, stores(now + 1)))
        work: tuple[Stmt, ...] = (
            *arrays,
            self.tile.clear(),
            *begin,
            Loop(self.step, 0, steps, "serial", step),
            self.tile.for_elements(finish_element),
            Barrier(),  # the next tile's fetches must not overtake this one's last step
        )
        lanes = Loop(self.lane, 0, self.lane.extent, "lanes", work, self.lane.extent)
        return Loop(task, Var("begin", int64), Var("end", int64), "task", (lanes,))

    def if_inside(self, row: Index, column: Index, body: Sequence[Stmt]) -> Stmt:
        """`body` where there is such an element."""
        test: Expr = IndexValue(row, int32) < self.rows
        if self.product.columns % self.choice.width:
            fits = IndexValue(column, int32) < self.product.columns
            test = test & fits
        return If(test, tuple(body))
