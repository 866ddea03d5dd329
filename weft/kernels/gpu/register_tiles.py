"""A matrix that a workgroup keeps in registers while products of shared arrays are added to it.

`RegisterTile`: each lane has rows x columns elements and multiplies one by one. `UnitTile`: each subgroup has tiles of
a matrix unit. Both say which elements a lane holds: `for_elements` runs over them, and `slots` are the rows of a lane,
each of which it shares with `parts` - 1 others. So kernels that need more than the product (a running maximum, factors
of rows) are written once for both.

Every element is one chain of additions over k, in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.base.dtypes import DType, float32, uint32
from weft.kernels.cpu.gemm import Matrix
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Copy,
    Expr,
    Literal,
    Load,
    Local,
    Loop,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    pool_bytes,
)
from weft.kernels.math import float16

VECTOR = 16  # bytes that a lane loads at a time
ADJACENT_LANES = (4, 8)  # (down, across): a rectangle of lanes that read the fewest different elements

Body = Callable[[Index, Index, Index, Index], Sequence[Stmt]]  # of (slot, row, column, number in the array of sums)


class WorkgroupTile(ABC):
    """height x width elements in the arrays `name` of all lanes of a workgroup."""

    count: int  # elements of one lane
    slots: int  # rows of one lane
    parts: int  # lanes that share a row
    part: Index  # which of them this lane is
    dtype: DType

    def __init__(self, name: str, lane: Axis):
        self.name, self.lane = name, lane

    def arrays(self) -> tuple[Local, ...]:
        """The arrays of a lane."""
        return (Local(self.name, self.dtype, self.count, "lane"), *self.operands())

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
    def for_elements(self, body: Body) -> Stmt:
        """Run `body` for every element of the lane."""

    @abstractmethod
    def row(self, slot: Index) -> Index:
        """The row of a lane's slot."""


class RegisterTile(WorkgroupTile):
    """`down` x `across` lanes with rows x columns elements each. `grouped` says for rows and columns whether those of
    one lane are in groups of contiguous ones, which are loaded together where the operand's elements across k are
    contiguous; else they are far apart."""

    def __init__(
        self, name: str, lane: Axis, dtype: DType, lane_grid: tuple[int, int], each: tuple[int, int],
        grouped: tuple[bool, bool],
    ):  # fmt: skip
        super().__init__(name, lane)
        self.dtype, self.lane_grid, self.elements_per_lane = dtype, lane_grid, each
        self.vector = VECTOR // max(dtype.itemsize, 4)
        self.groups = tuple(
            [min(self.vector, count) if group else 1 for count, group in zip(each, grouped, strict=True)]
        )
        self.count, self.slots, self.parts = each[0] * each[1], each[0], lane_grid[1]
        self.down, self.part = _arrange_lanes(lane, *lane_grid)
        self.unrolled_steps = 1 if all(grouped) else self.vector  # steps of k whose operands are loaded at once

    def operands(self) -> tuple[Local, ...]:
        sizes = zip("ab", self.elements_per_lane, strict=True)
        return tuple(
            [Local(f"{self.name}_{side}", self.dtype, count * self.unrolled_steps, "lane") for side, count in sizes]
        )

    def position_of(self, side: int, number: Index) -> Index:
        """The row (side 0) or column of row or column `number` of a lane."""
        group, position = self.groups[side], (self.down, self.part)[side]
        start = number // group * (self.lane_grid[side] * group)
        return start + (position * group + number % group)

    def row(self, slot: Index) -> Index:
        return self.position_of(0, slot)

    def for_elements(self, body: Body) -> Stmt:
        row, column = (
            Axis(f"{self.name}_{letter}", count) for letter, count in zip("ij", self.elements_per_lane, strict=True)
        )
        i, j = ix.axis_index(row), ix.axis_index(column)
        number = i * self.elements_per_lane[1] + j
        work = tuple(body(i, self.position_of(0, i), self.position_of(1, j), number))
        return Loop(row, 0, row.extent, "unrolled", (Loop(column, 0, column.extent, "unrolled", work),))

    def multiply(self, a: Matrix, b: Matrix, depth: int) -> Stmt:
        steps = self.unrolled_steps
        first, k = Axis(f"{self.name}_step", depth // steps), Axis(f"{self.name}_k", steps)
        row, column = (
            Axis(f"{self.name}_{letter}", count) for letter, count in zip("ij", self.elements_per_lane, strict=True)
        )
        i, j, at = ix.axis_index(row), ix.axis_index(column), ix.axis_index(k)
        operands = (
            self._operand(0, a, ix.axis_index(first), k),
            self._operand(1, b.transposed, ix.axis_index(first), k),
        )
        factors = [
            Load(f"{self.name}_{side}", slot(number, at), self.dtype)
            for side, number, (_, slot) in zip("ab", (i, j), operands, strict=True)
        ]
        number = i * self.elements_per_lane[1] + j
        added: Stmt = Store(self.name, number, _multiply_add(factors[0], factors[1], self.value(number)))
        for axis in (column, row, k):
            added = Loop(axis, 0, axis.extent, "unrolled", (added,))
        loads = [load for load, _ in operands]
        return Loop(first, 0, first.extent, "unrolled" if first.extent * steps <= 16 else "serial", (*loads, added))

    def _operand(
        self, side: int, matrix: Matrix, first: Index, k: Axis
    ) -> tuple[Stmt, Callable[[Index, Index], Index]]:
        """Load `unrolled_steps` steps of an operand, [across, along], into the lane's array: as many elements at a time
        as are contiguous. Also where (number, step) lies in that array."""
        count, steps, name = self.elements_per_lane[side], self.unrolled_steps, f"{self.name}_{'ab'[side]}"
        letter, start = f"{self.name}_{'ij'[side]}", first * steps
        is_copied = matrix.dtype is self.dtype
        if is_copied and matrix.col == 1 and steps > 1:  # contiguous along k
            axis = Axis(letter, count)
            source = matrix.at(self.position_of(side, ix.axis_index(axis)), start)
            copy = Copy(name, axis * steps, matrix.buffer, source, steps, self.dtype)
            return Loop(axis, 0, count, "unrolled", (copy,)), lambda number, step: number * steps + step
        group = self.groups[side] if is_copied and matrix.row == 1 and count % self.groups[side] == 0 else 1
        axis = Axis(letter, count // group)
        number, step = axis * group, ix.axis_index(k)
        to, source = step * count + number, matrix.at(self.position_of(side, number), start + step)
        load: Stmt = Copy(name, to, matrix.buffer, source, group, self.dtype)
        if group == 1:
            value: Expr = Load(matrix.buffer, source, matrix.dtype)
            load = Store(name, to, float16.unpack(value) if matrix.dtype.is_16_bit else value)
        inner = Loop(k, 0, steps, "unrolled", (load,))
        return Loop(axis, 0, axis.extent, "unrolled", (inner,)), lambda number, step: step * count + number


class UnitTile(WorkgroupTile):
    """`down` x `across` subgroups with rows x columns elements each, multiples of the unit's tile."""

    def __init__(self, name: str, lane: Axis, fragments: Fragments, groups: tuple[int, int], each: tuple[int, int]):
        super().__init__(name, lane)
        self.fragments = fragments
        self.dtype = float32
        self.tiles = each[0] // self.fragments.side, each[1] // self.fragments.side
        self.count = self.tiles[0] * self.tiles[1] * self.fragments.sums
        self.slots, self.parts = fragments.row_count * self.tiles[0], fragments.row_lanes * groups[1]
        group = lane // self.fragments.lanes
        self.subgroup_lane = lane % self.fragments.lanes
        below, right = ix.delinearise(group, groups)
        self.first = below * each[0], right * each[1]
        self.part = right * fragments.row_lanes + self.subgroup_lane % fragments.row_lanes

    def operands(self) -> tuple[Local, ...]:
        sizes = zip("ab", self.tiles, strict=True)
        return tuple(
            [Local(f"{self.name}_{side}", uint32, count * self.fragments.words, "lane") for side, count in sizes]
        )

    def row(self, slot: Index) -> Index:
        tile, row = slot // self.fragments.row_count, slot % self.fragments.row_count
        inner, _ = self.fragments.position(self.subgroup_lane, self.fragments.first_of(row))
        return self.first[0] + tile * self.fragments.side + inner

    def for_elements(self, body: Body) -> Stmt:
        row, column = Axis(f"{self.name}_i", self.tiles[0]), Axis(f"{self.name}_j", self.tiles[1])
        element = Axis(f"{self.name}_e", self.fragments.sums)
        i, j, e = ix.axis_index(row), ix.axis_index(column), ix.axis_index(element)
        inner = self.fragments.position(self.subgroup_lane, e)
        at = [
            first + tile * self.fragments.side + position
            for first, tile, position in zip(self.first, (i, j), inner, strict=True)
        ]
        number = self._tile(i, j) * self.fragments.sums + e
        slot = i * self.fragments.row_count + self.fragments.row_of(e)
        work = tuple(body(slot, at[0], at[1], number))
        for axis in (element, column, row):
            work = (Loop(axis, 0, axis.extent, "unrolled", work),)
        return work[0]

    def multiply(self, a: Matrix, b: Matrix, depth: int) -> Stmt:
        row, column = Axis(f"{self.name}_i", self.tiles[0]), Axis(f"{self.name}_j", self.tiles[1])
        i, j, k = ix.axis_index(row), ix.axis_index(column), Axis(f"{self.name}_k", depth // self.fragments.side)
        along = k * self.fragments.side
        starts = [f + t * self.fragments.side for f, t in zip(self.first, (i, j), strict=True)]

        def load_operand(side: str, matrix: Matrix, axis: Axis, at: Index) -> Stmt:
            to = axis * self.fragments.words
            load = TileLoad(f"{self.name}_{side}", to, matrix.buffer, at, matrix.row, matrix.col, side)
            return Loop(axis, 0, axis.extent, "unrolled", (load,))

        product = TileProduct(
            self.name, self._tile(i, j) * self.fragments.sums, f"{self.name}_a", i * self.fragments.words,
            f"{self.name}_b", j * self.fragments.words, a.dtype,
        )  # fmt: skip
        inner = Loop(column, 0, column.extent, "unrolled", (product,))
        step = (
            load_operand("a", a, row, a.at(starts[0], along)),
            load_operand("b", b, column, b.at(along, starts[1])),
            Loop(row, 0, row.extent, "unrolled", (inner,)),
        )
        return Loop(k, 0, k.extent, "unrolled", step)

    def _tile(self, i: Index, j: Index) -> Index:
        return i * self.tiles[1] + j


def assign_shared_arrays(arrays: Sequence[Local], static_bytes: int) -> tuple[tuple[Local, ...], int]:
    """The shared arrays of a kernel, and the bytes that come with its launch: 0 where `static_bytes` are enough."""
    total = sum([pool_bytes(array) for array in arrays])
    if total <= static_bytes:
        return tuple(arrays), 0
    return tuple([replace(array, scope="launch") for array in arrays]), total


def _multiply_add(a: Expr, b: Expr, total: Expr) -> Expr:
    if total.dtype.kind == "f":
        return a.fma(b, total)
    return a * b + total


def _arrange_lanes(lane: Axis, down: int, across: int) -> tuple[Index, Index]:
    """The position of a lane among `down` x `across`: lanes that follow each other are a rectangle where these fit."""
    height, width = ADJACENT_LANES
    if down % height or across % width:
        row, column = ix.delinearise(ix.axis_index(lane), (down, across))
        return row, column
    below, right, row, column = ix.delinearise(ix.axis_index(lane), (down // height, across // width, height, width))
    return below * height + row, right * width + column
