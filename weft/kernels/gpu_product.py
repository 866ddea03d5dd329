"""Matrix products on devices with blocks: a block computes one tile of the result, through arrays that it shares.

A block walks k in steps. While it multiplies one step, which lies in shared arrays, it fetches the next. A thread keeps
its part of the tile in registers and hands each finished element to the caller, who stores what is computed from it.
Threads multiply element by element (`_Registers`), or subgroups do by tiles of a matrix unit (`_Units`).

Shared arrays keep the order of memory: rows of k where elements along k are neighbours, else rows across it. So every
fetch is of neighbours, and no operand is transposed on the way.

Every element of the result is one chain of additions over k, in order, whatever the tile and the number of blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.dtypes import DType, bool_, float32, int32, int64, uint32
from weft.kernels import index as ix
from weft.kernels import narrow, tiles
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    Barrier,
    Expr,
    Fetch,
    Fetched,
    If,
    IndexValue,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    Var,
)

VECTOR = 16  # bytes that a thread fetches at a time

Finish = Callable[[Index, Index, Index, Expr], Sequence[Stmt]]  # (batch, row, column, value): what happens to it


@dataclass(frozen=True, slots=True)
class Operand:
    """Matrices in a buffer: element (i, k) of matrix b, with i across the sums and k along them, lies at
    (b // inner) * batch[0] + (b % inner) * batch[1] + i * across + k * along. One of the last two steps is 1."""

    buffer: str
    across: int
    along: int
    batch: tuple[int, int]
    dtype: DType

    @property
    def lies_along(self) -> bool:
        """Whether elements along k are neighbours."""
        return self.along == 1


@dataclass(frozen=True, slots=True)
class Product:
    """out[b] = a[b] @ b[b]. The number of rows is the scalar 'rows'; `rows` only numbers tiles where `batch` > 1."""

    a: Operand
    b: Operand
    batch: int
    inner: int  # matrices of the inner batch axis
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

    @property
    def threads(self) -> int:
        parts = self.height // self.rows * (self.width // self.columns)
        return parts * tiles.LANES if self.units else parts

    def count(self, product: Product) -> int:
        return product.batch * -(-product.rows // self.height) * -(-product.columns // self.width)


_UNITS = (Tiling(128, 128, 32, 64, 64, True, 1.0), Tiling(64, 64, 32, 32, 32, True, 0.6),
          Tiling(32, 32, 32, 16, 16, True, 0.25))  # fmt: skip
_REGISTERS = {
    4: (Tiling(128, 128, 16, 8, 8, False, 1.0), Tiling(64, 64, 16, 8, 4, False, 0.7),
        Tiling(32, 64, 16, 4, 4, False, 0.5), Tiling(16, 64, 16, 2, 4, False, 0.3),
        Tiling(16, 16, 16, 2, 2, False, 0.1)),
    8: (Tiling(64, 64, 8, 8, 4, False, 1.0), Tiling(32, 32, 8, 4, 2, False, 0.5), Tiling(16, 16, 8, 2, 2, False, 0.2)),
}  # fmt: skip


def tiling(product: Product, units: bool, processors: int) -> Tiling:
    """The tile with which all processors are done first. No bit of the result depends on it."""
    choices = _UNITS if units and product.a.dtype.is_narrow else _REGISTERS[max(product.a.dtype.itemsize, 4)]

    def cost(choice: Tiling) -> float:
        return -(-choice.count(product) // processors) * choice.height * choice.width / choice.speed

    return min(choices, key=cost)


def body(product: Product, choice: Tiling, finish: Finish) -> tuple[Stmt, ...]:
    """The body of a kernel whose launch counts tiles: the launch range is [0, choice.count(product)), and the scalar
    'rows', an int32, is the number of rows."""
    return (_Units if choice.units else _Registers)(product, choice).body(finish)


class _Side:
    """One operand in a block: its shared array, and the fetches that fill it."""

    def __init__(self, name: str, operand: Operand, extent: int, choice: Tiling, depth: int, limit: Expr | int):
        self.name, self.operand, self.extent, self.choice = name, operand, extent, choice
        self.depth, self.limit = depth, limit  # elements along k; elements across, of all tiles
        self.vector = VECTOR // operand.dtype.itemsize
        lines, self.row = (extent, choice.depth) if operand.lies_along else (choice.depth, extent)
        self.step = self.row + self.vector  # rows lie apart so that threads meet different banks
        self.lines, self.size = lines, lines * self.step

    @property
    def array(self) -> Local:
        return Local(f"{self.name}_tile", self.operand.dtype, 2 * self.size)

    def at(self, stage: Index, across: Index, along: Index) -> Index:
        """Where an element of a stage lies in the shared array."""
        line, place = (across, along) if self.operand.lies_along else (along, across)
        return ix.add(ix.scale(stage, self.size), ix.add(ix.scale(line, self.step), place))

    def fetches(self, thread: Axis, number: Index, first: Index, base: Index) -> tuple[Stmt, ...]:
        """Fetch step `number` of k, for the tile that starts at `first`, of the matrix at `base`."""
        operand, vector = self.operand, self.vector
        pieces = self.lines * (self.row // vector)
        each = -(-pieces // thread.extent)
        turn = Axis(f"{self.name}_piece", each)
        piece = ix.add(ix.axis_index(thread), ix.scale(ix.axis_index(turn), thread.extent))
        line, place = ix.delinearise(piece, (self.lines, self.row // vector))
        place = ix.scale(place, vector)
        across, along = (line, place) if operand.lies_along else (place, line)
        target = self.at(ix.remainder(number, 2), across, along)
        across, along = ix.add(first, across), ix.add(ix.scale(number, self.choice.depth), along)
        source = ix.add(base, ix.add(ix.scale(across, operand.across), ix.scale(along, operand.along)))
        limits = ((across, self.limit), (along, self.depth))
        beside, (line_at, line_limit) = limits if not operand.lies_along else limits[::-1]
        valid = _valid(beside, vector)
        if not (isinstance(line_limit, int) and line_at.high < line_limit):
            inside = Op("lt", (IndexValue(line_at, int32), _int32(line_limit)), bool_)
            valid = Op("select", (inside, _int32(valid), Literal(0, int32)), int32)
        fetch: Stmt = Fetch(self.array.name, target, operand.buffer, source, vector, valid)
        if pieces % thread.extent:
            fetch = If(Op("lt", (IndexValue(piece, int32), Literal(pieces, int32)), bool_), (fetch,))
        return (Loop(turn, 0, each, "unrolled", (fetch,)),)


def _valid(beside: tuple[Index, Expr | int], vector: int) -> Expr | int:
    """How many of `vector` neighbours, which are multiples of it, lie below a limit."""
    place, limit = beside
    if isinstance(limit, int) and place.high + vector <= limit:
        return vector
    rest = Op("sub", (_int32(limit), IndexValue(place, int32)), int32)
    return Op("max", (Op("min", (rest, Literal(vector, int32)), int32), Literal(0, int32)), int32)


def _int32(value: Expr | int) -> Expr:
    return Literal(value, int32) if isinstance(value, int) else value


class _Writer(ABC):
    """What both ways to multiply share: tiles, steps of k, fetches."""

    def __init__(self, product: Product, choice: Tiling):
        self.product, self.choice = product, choice
        self.thread, self.step = Axis("thread", choice.threads), Axis("step", -(-product.depth // choice.depth))
        self.rows = Var("rows", int32)
        self.a = _Side("a", product.a, choice.height, choice, product.depth, self.rows)
        self.b = _Side("b", product.b, choice.width, choice, product.depth, product.columns)
        self.stage = ix.remainder(ix.axis_index(self.step), 2)

    def body(self, finish: Finish) -> tuple[Stmt, ...]:
        product, choice = self.product, self.choice
        task = Axis("task", MANY)
        across, row = -(-product.columns // choice.width), ix.axis_index(task)
        row, column = ix.delinearise(row, (MANY, across))
        batch = ix.ZERO
        if product.batch > 1:
            batch, row = ix.delinearise(row, (MANY, -(-product.rows // choice.height)))
        first_row, first_column = ix.scale(row, choice.height), ix.scale(column, choice.width)

        def fetches(number: Index) -> tuple[Stmt, ...]:
            return (
                *self.a.fetches(self.thread, number, first_row, self.base(product.a, batch)),
                *self.b.fetches(self.thread, number, first_column, self.base(product.b, batch)),
            )

        steps, now = self.step.extent, ix.axis_index(self.step)
        more = Op("lt", (IndexValue(now, int32), Literal(steps - 1, int32)), bool_)
        ahead = (If(more, fetches(ix.add(now, ix.const(1)))),) if steps > 1 else ()
        walk = Loop(self.step, 0, steps, "serial", (Fetched(), Barrier(), *ahead, *self.multiplied()))
        work: tuple[Stmt, ...] = (
            *self.registers(),
            *fetches(ix.ZERO),
            walk,
            *self.finished(finish, batch, first_row, first_column),
            Barrier(),  # the next tile's fetches must not overtake this one's last step
        )
        threads = Loop(self.thread, 0, self.thread.extent, "threads", work, self.thread.extent)
        loop = Loop(task, Var("begin", int64), Var("end", int64), "task", (threads,))
        return (self.a.array, self.b.array, loop)

    def base(self, operand: Operand, batch: Index) -> Index:
        outer, inner = ix.floordiv(batch, self.product.inner), ix.remainder(batch, self.product.inner)
        return ix.add(ix.scale(outer, operand.batch[0]), ix.scale(inner, operand.batch[1]))

    def inside(self, row: Index, column: Index, body: Sequence[Stmt]) -> Stmt:
        """`body` where there is such an element."""
        test: Expr = Op("lt", (IndexValue(row, int32), self.rows), bool_)
        if self.product.columns % self.choice.width:
            fits = Op("lt", (IndexValue(column, int32), Literal(self.product.columns, int32)), bool_)
            test = Op("and", (test, fits), bool_)
        return If(test, tuple(body))

    @abstractmethod
    def registers(self) -> tuple[Stmt, ...]:
        """The arrays of a thread, with sums cleared."""

    @abstractmethod
    def multiplied(self) -> tuple[Stmt, ...]:
        """One step of k."""

    @abstractmethod
    def finished(self, finish: Finish, batch: Index, first_row: Index, first_column: Index) -> tuple[Stmt, ...]:
        """Every element of the thread, through `finish`."""


class _Registers(_Writer):
    """A thread multiplies `rows` x `columns` elements one by one, after loading `group` of k at once."""

    def __init__(self, product: Product, choice: Tiling):
        super().__init__(product, choice)
        along = product.a.lies_along or product.b.lies_along
        self.group = VECTOR // max(product.a.dtype.itemsize, 4) if along else 1
        self.down, self.across = _arranged(self.thread, choice.height // choice.rows, choice.width // choice.columns)

    def registers(self) -> tuple[Stmt, ...]:
        choice, dtype = self.choice, self.product.sums
        count = choice.rows * choice.columns
        axis = Axis("clear", count)
        return (
            Local("sums", dtype, count, "thread"),
            Local("a_part", dtype, choice.rows * self.group, "thread"),
            Local("b_part", dtype, choice.columns * self.group, "thread"),
            Loop(axis, 0, count, "unrolled", (Store("sums", ix.axis_index(axis), _zero(dtype)),)),
        )

    def multiplied(self) -> tuple[Stmt, ...]:
        choice, dtype, group = self.choice, self.product.sums, self.group
        first, k = Axis("k_group", choice.depth // group), Axis("k", group)
        row, column = Axis("i", choice.rows), Axis("j", choice.columns)
        i, j, at = ix.axis_index(row), ix.axis_index(column), ix.axis_index(k)
        along = ix.add(ix.scale(ix.axis_index(first), group), at)

        def loaded(side: _Side, part: str, axis: Axis, across: Index) -> Stmt:
            load: Expr = Load(side.array.name, side.at(self.stage, across, along), side.operand.dtype)
            value = narrow.unpacked(load) if side.operand.dtype.is_narrow else load
            store = Store(part, ix.add(ix.scale(ix.axis_index(axis), group), at), value)
            return Loop(axis, 0, axis.extent, "unrolled", (Loop(k, 0, group, "unrolled", (store,)),))

        place = ix.add(ix.scale(i, choice.columns), j)
        factors = [
            Load(part, ix.add(ix.scale(axis, group), at), dtype) for part, axis in (("a_part", i), ("b_part", j))
        ]
        total = Load("sums", place, dtype)
        if dtype.kind == "f":
            value = Op("fma", (*factors, total), dtype)
        else:
            value = Op("add", (Op("mul", tuple(factors), dtype), total), dtype)
        added: Stmt = Store("sums", place, value)
        for axis in (column, row, k):
            added = Loop(axis, 0, axis.extent, "unrolled", (added,))
        step = (
            loaded(self.a, "a_part", row, self.row(i)),
            loaded(self.b, "b_part", column, self.column(j)),
            added,
        )
        return (Loop(first, 0, first.extent, "unrolled", step),)

    def row(self, number: Index) -> Index:
        """The row, in the block's tile, of row `number` of a thread."""
        return self.spread(self.a, self.down, self.choice.rows, number)

    def column(self, number: Index) -> Index:
        return self.spread(self.b, self.across, self.choice.columns, number)

    def spread(self, side: _Side, place: Index, count: int, number: Index) -> Index:
        """Elements of one thread stand in groups of neighbours where these are loaded together, else far apart."""
        group = 1 if side.operand.lies_along else min(VECTOR // max(side.operand.dtype.itemsize, 4), count)
        threads = side.extent // count
        start = ix.scale(ix.floordiv(number, group), threads * group)
        return ix.add(start, ix.add(ix.scale(place, group), ix.remainder(number, group)))

    def finished(self, finish: Finish, batch: Index, first_row: Index, first_column: Index) -> tuple[Stmt, ...]:
        choice = self.choice
        row, column = Axis("i", choice.rows), Axis("j", choice.columns)
        i, j = ix.axis_index(row), ix.axis_index(column)
        at = ix.add(first_row, self.row(i)), ix.add(first_column, self.column(j))
        value = Load("sums", ix.add(ix.scale(i, choice.columns), j), self.product.sums)
        kept = Var("product", self.product.sums)
        stored = self.inside(*at, [Let("product", value), *finish(batch, *at, kept)])
        inner = Loop(column, 0, choice.columns, "unrolled", (stored,))
        return (Loop(row, 0, choice.rows, "unrolled", (inner,)),)


class _Units(_Writer):
    """A subgroup multiplies `rows` x `columns` elements, tile by tile."""

    def __init__(self, product: Product, choice: Tiling):
        super().__init__(product, choice)
        self.down, self.across = choice.rows // tiles.SIDE, choice.columns // tiles.SIDE
        group = ix.floordiv(ix.axis_index(self.thread), tiles.LANES)
        row, column = ix.delinearise(group, (choice.height // choice.rows, choice.width // choice.columns))
        self.first_row, self.first_column = ix.scale(row, choice.rows), ix.scale(column, choice.columns)

    def registers(self) -> tuple[Stmt, ...]:
        count = self.down * self.across * tiles.SUMS
        axis = Axis("clear", count)
        return (
            Local("sums", float32, count, "thread"),
            Local("a_part", uint32, self.down * tiles.WORDS, "thread"),
            Local("b_part", uint32, self.across * tiles.WORDS, "thread"),
            Loop(axis, 0, count, "unrolled", (Store("sums", ix.axis_index(axis), _zero(float32)),)),
        )

    def multiplied(self) -> tuple[Stmt, ...]:
        row, column = Axis("i", self.down), Axis("j", self.across)
        i, j, k = ix.axis_index(row), ix.axis_index(column), Axis("k", self.choice.depth // tiles.SIDE)
        along = ix.scale(ix.axis_index(k), tiles.SIDE)

        def loaded(side: _Side, axis: Axis, first: Index) -> Stmt:
            at = side.at(self.stage, ix.add(first, ix.scale(ix.axis_index(axis), tiles.SIDE)), along)
            across, step = (side.step, 1) if side.operand.lies_along else (1, side.step)
            rows = (across, step) if side is self.a else (step, across)
            load = TileLoad(
                f"{side.name}_part", ix.scale(ix.axis_index(axis), tiles.WORDS), side.array.name, at, *rows, side.name
            )
            return Loop(axis, 0, axis.extent, "unrolled", (load,))

        product = TileProduct(
            "sums", ix.scale(ix.add(ix.scale(i, self.across), j), tiles.SUMS), "a_part", ix.scale(i, tiles.WORDS),
            "b_part", ix.scale(j, tiles.WORDS), self.product.a.dtype,
        )  # fmt: skip
        multiplied = Loop(row, 0, self.down, "unrolled", (Loop(column, 0, self.across, "unrolled", (product,)),))
        step = (loaded(self.a, row, self.first_row), loaded(self.b, column, self.first_column), multiplied)
        return (Loop(k, 0, k.extent, "unrolled", step),)

    def finished(self, finish: Finish, batch: Index, first_row: Index, first_column: Index) -> tuple[Stmt, ...]:
        row, column, element = Axis("i", self.down), Axis("j", self.across), Axis("element", tiles.SUMS)
        i, j = ix.axis_index(row), ix.axis_index(column)
        lane = ix.remainder(ix.axis_index(self.thread), tiles.LANES)
        inner = tiles.place(lane, ix.axis_index(element))
        at = (
            _total(first_row, self.first_row, ix.scale(i, tiles.SIDE), inner[0]),
            _total(first_column, self.first_column, ix.scale(j, tiles.SIDE), inner[1]),
        )
        number = ix.add(ix.scale(ix.add(ix.scale(i, self.across), j), tiles.SUMS), ix.axis_index(element))
        kept = Var("product", float32)
        named = Let("product", Load("sums", number, float32))
        stored = self.inside(*at, [named, *finish(batch, *at, kept)])
        for axis in (element, column, row):
            stored = Loop(axis, 0, axis.extent, "unrolled", (stored,))
        return (stored,)


def _arranged(thread: Axis, down: int, across: int) -> tuple[Index, Index]:
    """The place of a thread among `down` x `across`: a subgroup is a rectangle of 4 x 8 where these fit."""
    if down % 4 or across % 8:
        row, column = ix.delinearise(ix.axis_index(thread), (down, across))
        return row, column
    below, right, row, column = ix.delinearise(ix.axis_index(thread), (down // 4, across // 8, 4, 8))
    return ix.add(ix.scale(below, 4), row), ix.add(ix.scale(right, 8), column)


def _total(*parts: Index) -> Index:
    out = ix.ZERO
    for part in parts:
        out = ix.add(out, part)
    return out


def _zero(dtype: DType) -> Literal:
    return Literal(0.0 if dtype.kind == "f" else 0, dtype)
