"""A matrix that a block of threads keeps in registers while products of shared arrays are added to it.

`RegisterTile`: each thread has rows x columns elements and multiplies one by one. `UnitTile`: each subgroup has tiles
of a matrix unit. Both say which elements a thread holds: `each` runs over them, and `slots` are the rows of a thread,
each of which it shares with `parts` - 1 others. So kernels that need more than the product (a running maximum, factors
of rows) are written once for both.

Every element is one chain of additions over k, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.dtypes import DType, float32, uint32
from weft.kernels import index as ix
from weft.kernels import narrow, tiles
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    DECLARED,
    Expr,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    pool_bytes,
)
from weft.kernels.product import Matrix

VECTOR = 16  # bytes that a thread loads at a time

Body = Callable[[Index, Index, Index, Index], Sequence[Stmt]]  # of (slot, row, column, number in the array of sums)


class BlockTile(ABC):
    """height x width elements in the arrays `name` of all threads of a block."""

    count: int  # elements of one thread
    slots: int  # rows of one thread
    parts: int  # threads that share a row
    part: Index  # which of them this thread is
    dtype: DType

    def __init__(self, name: str, thread: Axis):
        self.name, self.thread = name, thread

    def arrays(self) -> tuple[Local, ...]:
        """The arrays of a thread."""
        return (Local(self.name, self.dtype, self.count, "thread"), *self.operands())

    def clear(self) -> Stmt:
        axis = Axis(f"{self.name}_clear", self.count)
        zero = Literal(0.0 if self.dtype.kind == "f" else 0, self.dtype)
        return Loop(axis, 0, self.count, "unrolled", (Store(self.name, ix.axis_index(axis), zero),))

    def value(self, number: Index) -> Load:
        return Load(self.name, number, self.dtype)

    @abstractmethod
    def operands(self) -> tuple[Local, ...]:
        """Arrays for what is being multiplied."""

    @abstractmethod
    def multiply(self, a: Matrix, b: Matrix, depth: int) -> Stmt:
        """Add a[height, depth] @ b[depth, width], both shared arrays."""

    @abstractmethod
    def each(self, body: Body) -> Stmt:
        """Run `body` for every element of the thread."""

    @abstractmethod
    def row(self, slot: Index) -> Index:
        """The row of a thread's slot."""


class RegisterTile(BlockTile):
    """`down` x `across` threads with rows x columns elements each. `grouped` says for rows and columns whether those of
    one thread stand in groups of neighbours, which are loaded together where the operand's elements across k are
    neighbours; else they stand far apart."""

    def __init__(
        self, name: str, thread: Axis, dtype: DType, threads: tuple[int, int], each: tuple[int, int],
        grouped: tuple[bool, bool],
    ):  # fmt: skip
        super().__init__(name, thread)
        self.dtype, self.threads, self.each_thread = dtype, threads, each
        self.vector = VECTOR // max(dtype.itemsize, 4)
        self.groups = tuple(
            [min(self.vector, count) if group else 1 for count, group in zip(each, grouped, strict=True)]
        )
        self.count, self.slots, self.parts = each[0] * each[1], each[0], threads[1]
        self.down, self.part = _arranged(thread, *threads)
        self.together = 1 if all(grouped) else self.vector  # steps of k whose operands are loaded at once

    def operands(self) -> tuple[Local, ...]:
        sizes = zip("ab", self.each_thread, strict=True)
        return tuple(
            [Local(f"{self.name}_{side}", self.dtype, count * self.together, "thread") for side, count in sizes]
        )

    def place(self, side: int, number: Index) -> Index:
        """The row (side 0) or column of row or column `number` of a thread."""
        group, place = self.groups[side], (self.down, self.part)[side]
        start = ix.scale(ix.floordiv(number, group), self.threads[side] * group)
        return ix.add(start, ix.add(ix.scale(place, group), ix.remainder(number, group)))

    def row(self, slot: Index) -> Index:
        return self.place(0, slot)

    def each(self, body: Body) -> Stmt:
        row, column = (
            Axis(f"{self.name}_{letter}", count) for letter, count in zip("ij", self.each_thread, strict=True)
        )
        i, j = ix.axis_index(row), ix.axis_index(column)
        number = ix.add(ix.scale(i, self.each_thread[1]), j)
        work = tuple(body(i, self.place(0, i), self.place(1, j), number))
        return Loop(row, 0, row.extent, "unrolled", (Loop(column, 0, column.extent, "unrolled", work),))

    def multiply(self, a: Matrix, b: Matrix, depth: int) -> Stmt:
        dtype, together = self.dtype, self.together
        first, k = Axis(f"{self.name}_step", depth // together), Axis(f"{self.name}_k", together)
        row, column = (
            Axis(f"{self.name}_{letter}", count) for letter, count in zip("ij", self.each_thread, strict=True)
        )
        i, j, at = ix.axis_index(row), ix.axis_index(column), ix.axis_index(k)
        along = ix.add(ix.scale(ix.axis_index(first), together), at)

        def loaded(side: str, load: Load, axis: Axis) -> Stmt:
            value: Expr = narrow.unpacked(load) if load.dtype.is_narrow else load
            store = Store(f"{self.name}_{side}", ix.add(ix.scale(ix.axis_index(axis), together), at), value)
            return Loop(axis, 0, axis.extent, "unrolled", (Loop(k, 0, together, "unrolled", (store,)),))

        number = ix.add(ix.scale(i, self.each_thread[1]), j)
        places = [ix.add(ix.scale(place, together), at) for place in (i, j)]
        factors = [Load(f"{self.name}_{side}", place, dtype) for side, place in zip("ab", places, strict=True)]
        added: Stmt = Store(self.name, number, _multiply_add(factors[0], factors[1], self.value(number)))
        for axis in (column, row, k):
            added = Loop(axis, 0, axis.extent, "unrolled", (added,))
        step = (
            loaded("a", a.load(self.place(0, i), along), row),
            loaded("b", b.load(along, self.place(1, j)), column),
            added,
        )
        return Loop(first, 0, first.extent, "unrolled" if first.extent * together <= 16 else "serial", step)


class UnitTile(BlockTile):
    """`down` x `across` subgroups with rows x columns elements each, multiples of 16."""

    def __init__(self, name: str, thread: Axis, groups: tuple[int, int], each: tuple[int, int]):
        super().__init__(name, thread)
        self.dtype = float32
        self.tiles = each[0] // tiles.SIDE, each[1] // tiles.SIDE
        self.count = self.tiles[0] * self.tiles[1] * tiles.SUMS
        self.slots, self.parts = 2 * self.tiles[0], 4 * groups[1]
        group = ix.floordiv(ix.axis_index(thread), tiles.LANES)
        self.lane = ix.remainder(ix.axis_index(thread), tiles.LANES)
        below, right = ix.delinearise(group, groups)
        self.first = ix.scale(below, each[0]), ix.scale(right, each[1])
        self.part = ix.add(ix.scale(right, 4), ix.remainder(self.lane, 4))

    def operands(self) -> tuple[Local, ...]:
        sizes = zip("ab", self.tiles, strict=True)
        return tuple([Local(f"{self.name}_{side}", uint32, count * tiles.WORDS, "thread") for side, count in sizes])

    def row(self, slot: Index) -> Index:
        tile, half = ix.floordiv(slot, 2), ix.remainder(slot, 2)
        inner, _ = tiles.place(self.lane, ix.scale(half, 2))
        return ix.add(ix.add(self.first[0], ix.scale(tile, tiles.SIDE)), inner)

    def each(self, body: Body) -> Stmt:
        row, column = Axis(f"{self.name}_i", self.tiles[0]), Axis(f"{self.name}_j", self.tiles[1])
        element = Axis(f"{self.name}_e", tiles.SUMS)
        i, j, e = ix.axis_index(row), ix.axis_index(column), ix.axis_index(element)
        inner = tiles.place(self.lane, e)
        at = [
            ix.add(ix.add(first, ix.scale(tile, tiles.SIDE)), place)
            for first, tile, place in zip(self.first, (i, j), inner, strict=True)
        ]
        number = ix.add(ix.scale(self._tile(i, j), tiles.SUMS), e)
        slot = ix.add(ix.scale(i, 2), ix.remainder(ix.floordiv(e, 2), 2))
        work = tuple(body(slot, at[0], at[1], number))
        for axis in (element, column, row):
            work = (Loop(axis, 0, axis.extent, "unrolled", work),)
        return work[0]

    def multiply(self, a: Matrix, b: Matrix, depth: int) -> Stmt:
        row, column = Axis(f"{self.name}_i", self.tiles[0]), Axis(f"{self.name}_j", self.tiles[1])
        i, j, k = ix.axis_index(row), ix.axis_index(column), Axis(f"{self.name}_k", depth // tiles.SIDE)
        along = ix.scale(ix.axis_index(k), tiles.SIDE)
        starts = [ix.add(f, ix.scale(t, tiles.SIDE)) for f, t in zip(self.first, (i, j), strict=True)]

        def loaded(side: str, matrix: Matrix, axis: Axis, at: Index) -> Stmt:
            to = ix.scale(ix.axis_index(axis), tiles.WORDS)
            load = TileLoad(f"{self.name}_{side}", to, matrix.buffer, at, matrix.row, matrix.col, side)
            return Loop(axis, 0, axis.extent, "unrolled", (load,))

        product = TileProduct(
            self.name, ix.scale(self._tile(i, j), tiles.SUMS), f"{self.name}_a", ix.scale(i, tiles.WORDS),
            f"{self.name}_b", ix.scale(j, tiles.WORDS), a.dtype,
        )  # fmt: skip
        inner = Loop(column, 0, column.extent, "unrolled", (product,))
        step = (
            loaded("a", a, row, a.at(starts[0], along)),
            loaded("b", b, column, b.at(along, starts[1])),
            Loop(row, 0, row.extent, "unrolled", (inner,)),
        )
        return Loop(k, 0, k.extent, "unrolled", step)

    def _tile(self, i: Index, j: Index) -> Index:
        return ix.add(ix.scale(i, self.tiles[1]), j)


def placed(arrays: Sequence[Local]) -> tuple[tuple[Local, ...], int]:
    """The shared arrays of a kernel, and the bytes that its launch must ask for: 0 where they are few enough."""
    total = sum([pool_bytes(array) for array in arrays])
    if total <= DECLARED:
        return tuple(arrays), 0
    return tuple([replace(array, scope="launch") for array in arrays]), total


def _multiply_add(a: Expr, b: Expr, total: Expr) -> Expr:
    if total.dtype.kind == "f":
        return Op("fma", (a, b, total), total.dtype)
    return Op("add", (Op("mul", (a, b), total.dtype), total), total.dtype)


def _arranged(thread: Axis, down: int, across: int) -> tuple[Index, Index]:
    """The place of a thread among `down` x `across`: a subgroup is a rectangle of 4 x 8 where these fit."""
    if down % 4 or across % 8:
        row, column = ix.delinearise(ix.axis_index(thread), (down, across))
        return row, column
    below, right, row, column = ix.delinearise(ix.axis_index(thread), (down // 4, across // 8, 4, 8))
    return ix.add(ix.scale(below, 4), row), ix.add(ix.scale(right, 8), column)
