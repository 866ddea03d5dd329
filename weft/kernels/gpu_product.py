"""Matrix products on devices with blocks: a block computes one tile of the result, through arrays that it shares.

A block walks k in steps. While it multiplies one step, which lies in shared arrays, it fetches the next. A thread keeps
its part of the tile in registers (`kernels.block_tiles`) and hands each finished element to the caller, who stores what
is computed from it.

Shared arrays keep the order of memory: rows of k where elements along k are neighbours, else rows across it. So every
fetch is of neighbours, and no operand is transposed on the way.

Every element of the result is one chain of additions over k, in order, whatever the tile and the number of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.dtypes import DType, bool_, float32, int32, int64
from weft.kernels import index as ix
from weft.kernels import tiles
from weft.kernels.block_tiles import VECTOR, BlockTile, RegisterTile, UnitTile, placed
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    DECLARED,
    Barrier,
    Expr,
    Fetch,
    Fetched,
    Geometry,
    If,
    IndexValue,
    Let,
    Literal,
    Local,
    Loop,
    Op,
    Stmt,
    Var,
)
from weft.kernels.product import Matrix

Finish = Callable[[Index, Index, Index, Expr], Sequence[Stmt]]  # (batch, row, column, value): what happens to it


Condition = tuple[Index, int]  # 0 <= index < bound
Place = Callable[[Index, Index, Index], tuple[Index, Sequence[Condition]]]


@dataclass(frozen=True, slots=True)
class Operand:
    """Matrices in a buffer: element (i, k) of matrix number b, with i across the sums and k along them, lies at
    `place(b, i, k)`, or is 0 where its conditions do not hold. Along k if `lies_along`, else across, elements come in
    groups of `vector` (a power of two) that are neighbours in memory and exist together."""

    buffer: str
    dtype: DType
    lies_along: bool
    vector: int
    place: Place


def strided(buffer: str, dtype: DType, across: int, along: int, batch: Sequence[tuple[int, int]] = ()) -> Operand:
    """Matrices with steps `across` and `along`, of which one is 1; `batch` has (extent, step) of each axis of them.
    As many neighbours are fetched together as all rows begin at multiples of."""

    def place(number: Index, i: Index, k: Index) -> tuple[Index, Sequence[Condition]]:
        out = ix.add(ix.scale(i, across), ix.scale(k, along))
        numbers = ix.delinearise(number, tuple([extent for extent, _ in batch]))
        for one, (_, step) in zip(numbers, batch, strict=True):
            out = ix.add(out, ix.scale(one, step))
        return out, ()

    vector = math.gcd(VECTOR // dtype.itemsize, max(across, along), *[step for extent, step in batch if extent > 1])
    return Operand(buffer, dtype, along == 1, vector, place)


@dataclass(frozen=True, slots=True)
class Product:
    """out[b] = a[b] @ b[b]. The number of rows is the scalar 'rows'; `rows` only numbers tiles where `batch` > 1."""

    a: Operand
    b: Operand
    batch: int
    rows: int
    columns: int
    depth: int

    @property
    def sums(self) -> DType:
        """The dtype that products are added up in."""
        return float32 if self.a.dtype.is_narrow else self.a.dtype


@dataclass(frozen=True, slots=True)
class Tiling:
    """A block's tile of the result, `height` x `width`, `depth` of k at a time; `rows` x `columns` of it belong to one
    thread, or with `units` to one subgroup. `speed` is about how fast a multiprocessor goes with it."""

    height: int
    width: int
    depth: int
    rows: int
    columns: int
    units: bool
    speed: float
    stages: int = 2  # steps of k in shared arrays at a time

    @property
    def threads(self) -> int:
        parts = self.height // self.rows * (self.width // self.columns)
        return parts * tiles.LANES if self.units else parts

    def shared_bytes(self, product: Product) -> int:
        sides = ((product.a, self.height), (product.b, self.width))
        sizes = [_Side("", operand, extent, self, 0, 0).size * operand.dtype.itemsize for operand, extent in sides]
        return self.stages * sum(sizes)

    def count(self, product: Product) -> int:
        return product.batch * -(-product.rows // self.height) * -(-product.columns // self.width)


_UNITS = (Tiling(128, 128, 32, 64, 64, True, 1.0, 4), Tiling(64, 64, 32, 32, 32, True, 0.6, 4),
          Tiling(32, 32, 32, 16, 16, True, 0.25, 4))  # fmt: skip
_REGISTERS = {
    4: (Tiling(128, 128, 16, 8, 8, False, 1.0), Tiling(64, 64, 16, 8, 4, False, 0.7),
        Tiling(32, 64, 16, 4, 4, False, 0.5), Tiling(16, 64, 16, 2, 4, False, 0.3),
        Tiling(16, 16, 16, 2, 2, False, 0.1)),
    8: (Tiling(64, 64, 8, 8, 4, False, 1.0), Tiling(32, 32, 8, 4, 2, False, 0.5), Tiling(16, 16, 8, 2, 2, False, 0.2)),
}  # fmt: skip

# Of a small product all tiles run at once, and waiting for memory is what takes time: many threads fetch all there is.
_AT_ONCE = (Tiling(32, 64, 32, 2, 4, False, 0.5), Tiling(16, 64, 32, 2, 2, False, 0.3),
            Tiling(16, 16, 64, 1, 1, False, 0.1))  # fmt: skip
SMALL = 1 << 23  # multiply-adds


def tiling(product: Product, units: bool, processors: int, shared_bytes: int = DECLARED) -> Tiling:
    """The tile with which all processors are done first, among those that find room. No bit of the result depends on
    it."""
    small = product.a.dtype is float32 and product.batch * product.rows * product.columns * product.depth <= SMALL
    choices = _UNITS if units and product.a.dtype.is_narrow else _REGISTERS[max(product.a.dtype.itemsize, 4)]

    def cost(choice: Tiling) -> float:
        return -(-choice.count(product) // processors) * choice.height * choice.width / choice.speed

    def fitting(choices: Sequence[Tiling]) -> list[Tiling]:
        return [one for one in choices if replace(one, stages=2).shared_bytes(product) <= shared_bytes]

    if small and fitting(_AT_ONCE):
        return _fetched_at_once(min(fitting(_AT_ONCE), key=cost), product, min(shared_bytes, DECLARED))
    best = min(fitting(choices), key=cost)
    return best if best.shared_bytes(product) <= shared_bytes else replace(best, stages=2)


def _fetched_at_once(choice: Tiling, product: Product, shared_bytes: int) -> Tiling:
    """The tile with as many stages as it has steps of k, if there is room for these, so that all steps are fetched
    before the first is multiplied; and not deeper than the product."""
    choice = replace(choice, depth=min(choice.depth, -(-product.depth // 8) * 8))
    steps = -(-product.depth // choice.depth)
    fitting = shared_bytes // replace(choice, stages=1).shared_bytes(product)
    return replace(choice, stages=min(steps, max(fitting, 2)))


def body(product: Product, choice: Tiling, finish: Finish) -> tuple[tuple[Stmt, ...], Geometry]:
    """The body of a kernel whose launch counts tiles: the launch range is [0, choice.count(product)), and the scalar
    'rows', an int32, is the number of rows."""
    writer = _Writer(product, choice)
    arrays, nbytes = placed((writer.a.array, writer.b.array))
    return (*arrays, writer.loop(finish)), Geometry(choice.threads, choice.threads, nbytes)


class _Side:
    """One operand in a block: its shared array, and the fetches that fill it."""

    def __init__(self, name: str, operand: Operand, extent: int, choice: Tiling, depth: int, limit: Expr | int):
        self.name, self.operand, self.extent, self.choice = name, operand, extent, choice
        self.depth, self.limit = depth, limit  # elements along k; elements across, of all tiles
        self.vector = operand.vector
        lines, self.row = (extent, choice.depth) if operand.lies_along else (choice.depth, extent)
        self.step = self.row + VECTOR // operand.dtype.itemsize  # rows lie apart so that threads meet different banks
        self.lines, self.size = lines, lines * self.step

    @property
    def array(self) -> Local:
        return Local(f"{self.name}_tile", self.operand.dtype, self.choice.stages * self.size)

    def matrix(self, stage: Index) -> Matrix:
        """A stage of the shared array, as [across, along]."""
        across, along = (self.step, 1) if self.operand.lies_along else (1, self.step)
        return Matrix(self.array.name, ix.scale(stage, self.size), across, along, self.operand.dtype)

    def fetches(self, thread: Axis, number: Index, first: Index, batch: Index) -> Stmt:
        """Fetch step `number` of k, for the tile that starts at `first`, of matrix number `batch`."""
        operand, vector = self.operand, self.vector
        pieces = self.lines * (self.row // vector)
        each = -(-pieces // thread.extent)
        turn = Axis(f"{self.name}_piece", each)
        piece = ix.add(ix.axis_index(thread), ix.scale(ix.axis_index(turn), thread.extent))
        line, place = ix.delinearise(piece, (self.lines, self.row // vector))
        place = ix.scale(place, vector)
        across, along = (line, place) if operand.lies_along else (place, line)
        target = self.matrix(ix.remainder(number, self.choice.stages)).at(across, along)
        across, along = ix.add(first, across), ix.add(ix.scale(number, self.choice.depth), along)
        source, conditions = operand.place(batch, across, along)
        limits = ((across, self.limit), (along, self.depth))
        beside, (line_at, line_limit) = limits if not operand.lies_along else limits[::-1]
        valid = _valid(beside, vector)
        if not (isinstance(line_limit, int) and line_at.high < line_limit):
            inside = Op("lt", (IndexValue(line_at, int32), _int32(line_limit)), bool_)
            valid = Op("select", (inside, _int32(valid), Literal(0, int32)), int32)
        for index, bound in conditions:
            for test in _within(index, bound):
                valid = Op("select", (test, _int32(valid), Literal(0, int32)), int32)
        fetch: Stmt = Fetch(self.array.name, target, operand.buffer, source, vector, valid)
        if pieces % thread.extent:
            fetch = If(Op("lt", (IndexValue(piece, int32), Literal(pieces, int32)), bool_), (fetch,))
        return Loop(turn, 0, each, "unrolled", (fetch,))


def _valid(beside: tuple[Index, Expr | int], vector: int) -> Expr | int:
    """How many of `vector` neighbours, which are multiples of it, lie below a limit."""
    place, limit = beside
    if isinstance(limit, int) and place.high + vector <= limit:
        return vector
    rest = Op("sub", (_int32(limit), IndexValue(place, int32)), int32)
    return Op("max", (Op("min", (rest, Literal(vector, int32)), int32), Literal(0, int32)), int32)


def _within(index: Index, bound: int) -> list[Expr]:
    """The tests that make sure of 0 <= index < bound."""
    value = IndexValue(index, int32)
    tests: list[Expr] = []
    if index.low < 0:
        tests.append(Op("le", (Literal(0, int32), value), bool_))
    if index.high >= bound:
        tests.append(Op("lt", (value, Literal(bound, int32)), bool_))
    return tests


def _int32(value: Expr | int) -> Expr:
    return Literal(value, int32) if isinstance(value, int) else value


class _Writer:
    """One kernel: tiles of the result, steps of k, fetches."""

    def __init__(self, product: Product, choice: Tiling):
        self.product, self.choice = product, choice
        self.thread, self.step = Axis("thread", choice.threads), Axis("step", -(-product.depth // choice.depth))
        self.rows = Var("rows", int32)
        self.a = _Side("a", product.a, choice.height, choice, product.depth, self.rows)
        self.b = _Side("b", product.b, choice.width, choice, product.depth, product.columns)
        parts, each = (choice.height // choice.rows, choice.width // choice.columns), (choice.rows, choice.columns)
        grouped = not product.a.lies_along, not product.b.lies_along
        self.tile: BlockTile = (
            UnitTile("sums", self.thread, parts, each)
            if choice.units
            else RegisterTile("sums", self.thread, product.sums, parts, each, grouped)
        )

    def loop(self, finish: Finish) -> Loop:
        product, choice = self.product, self.choice
        task = Axis("task", MANY)
        row, column = ix.delinearise(ix.axis_index(task), (MANY, -(-product.columns // choice.width)))
        batch = ix.ZERO
        if product.batch > 1:
            batch, row = ix.delinearise(row, (MANY, -(-product.rows // choice.height)))
        first_row, first_column = ix.scale(row, choice.height), ix.scale(column, choice.width)

        def fetches(number: Index) -> tuple[Stmt, ...]:
            return (
                self.a.fetches(self.thread, number, first_row, batch),
                self.b.fetches(self.thread, number, first_column, batch),
            )

        def finished(slot: Index, row: Index, column: Index, number: Index) -> tuple[Stmt, ...]:
            at = ix.add(first_row, row), ix.add(first_column, column)
            named = Let("product", self.tile.value(number))
            return (self.inside(*at, [named, *finish(batch, *at, Var("product", product.sums))]),)

        steps, now = self.step.extent, ix.axis_index(self.step)
        stage = ix.remainder(now, choice.stages)
        coming = steps if steps <= choice.stages else choice.stages - 1  # steps that are fetched before the walk
        more = Op("lt", (IndexValue(now, int32), Literal(steps - coming, int32)), bool_)
        ahead = (If(more, fetches(ix.add(now, ix.const(coming)))),) if steps > coming else ()
        begin: list[Stmt] = []
        for number in range(coming):  # one group each, of which the walk closes the last
            begin += fetches(ix.const(number))
            begin += (Fetched(choice.stages),) if number < coming - 1 else ()
        multiplied = self.tile.multiply(self.a.matrix(stage), self.b.matrix(stage).transposed, choice.depth)
        work: tuple[Stmt, ...] = (
            *self.tile.arrays(),
            self.tile.clear(),
            *begin,
            Loop(self.step, 0, steps, "serial", (Fetched(coming - 1), Barrier(), *ahead, multiplied)),
            self.tile.each(finished),
            Barrier(),  # the next tile's fetches must not overtake this one's last step
        )
        threads = Loop(self.thread, 0, self.thread.extent, "threads", work, self.thread.extent)
        return Loop(task, Var("begin", int64), Var("end", int64), "task", (threads,))

    def inside(self, row: Index, column: Index, body: Sequence[Stmt]) -> Stmt:
        """`body` where there is such an element."""
        test: Expr = Op("lt", (IndexValue(row, int32), self.rows), bool_)
        if self.product.columns % self.choice.width:
            fits = Op("lt", (IndexValue(column, int32), Literal(self.product.columns, int32)), bool_)
            test = Op("and", (test, fits), bool_)
        return If(test, tuple(body))
