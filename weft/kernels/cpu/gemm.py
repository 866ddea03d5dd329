"""Matrix products inside a kernel: loops over tiles that stay in registers.

`product` is for kernels written by hand (`compiler.templates.registry`). Each element of C is one chain of fused
multiply-adds over k, in order, so its bits depend neither on the tile nor on the code around it. A is read element
by element and may have any strides; the columns of B must be contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weft.base.dtypes import DType
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import Accumulator, Expr, Load, Loop, Reduction, Stmt, Update, Var


@dataclass(frozen=True, slots=True)
class Matrix:
    """Element [i, j] lies at start + i * row + j * col of `buffer`."""

    buffer: str
    start: Index
    row: int
    col: int
    dtype: DType

    def at(self, i: Index, j: Index) -> Index:
        return self.start + (i * self.row + j * self.col)

    def load(self, i: Index, j: Index) -> Load:
        return Load(self.buffer, self.at(i, j), self.dtype)

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.buffer, self.start, self.col, self.row, self.dtype)


@dataclass(frozen=True, slots=True)
class Tile:
    """What stays in registers: `height` rows of `nbytes` each."""

    height: int
    nbytes: int


def tile_for(vector_bytes: int) -> Tile:
    """A tile that fills half of the vector registers, which hold `vector_bytes` in all."""
    return Tile(8, 128) if vector_bytes >= 2048 else Tile(4, 64)


def product(
    name: str,
    a: Matrix,
    b: Matrix,
    extents: tuple[Expr | int, int, Expr | int],
    finish: Callable[[Index, Index, Expr], Stmt],
    tile: Tile,
) -> tuple[Stmt, ...]:
    """Statements for C = A @ B of extents (m, n, k): `finish(i, j, value)` says what happens to each element of C.

    `name` must be unique in the kernel. m and k may be expressions.
    """
    m, n, k = extents
    width = min(tile.nbytes // a.dtype.itemsize, _power_of_two(n))
    col = Axis(f"{name}_col", MAX_EXTENT)
    body: list[Stmt] = []
    finished: Expr | int = 0
    for height in (tile.height, 1):
        count = m // height * height if isinstance(m, int) else m & -height
        if not (isinstance(finished, int) and isinstance(count, int) and finished == count):
            body.append(_tiles(f"{name}_{height}", a, b, (finished, count), height, col, k, finish))
        finished = count
    return (Loop(col, 0, n, "vector", tuple(body), width),)


def _tiles(
    name: str,
    a: Matrix,
    b: Matrix,
    rows: tuple[Expr | int, Expr | int],
    height: int,
    col: Axis,
    k: Expr | int,
    finish: Callable[[Index, Index, Expr], Stmt],
) -> Loop:
    """Rows `rows` of the result in tiles of `height` rows."""
    tile, inner = Axis(f"{name}_tile", MAX_EXTENT), Axis(f"{name}_k", MAX_EXTENT)
    first = tile * height
    sums = [Accumulator(f"{name}_{r}", "sum", a.dtype) for r in range(height)]
    across = b.load(ix.axis_index(inner), ix.axis_index(col))
    steps = [Update(s.name, a.load(first + r, ix.axis_index(inner)), across) for r, s in enumerate(sums)]
    reduction = Reduction(tuple(sums), (Loop(inner, 0, k, "serial", tuple(steps)),))
    stores = [finish(first + r, ix.axis_index(col), Var(s.name, a.dtype)) for r, s in enumerate(sums)]
    start, stop = [_divide_rows(bound, height) for bound in rows]
    return Loop(tile, start, stop, "serial", (reduction, *stores))


def _divide_rows(bound: Expr | int, height: int) -> Expr | int:
    if isinstance(bound, int):
        return bound // height
    return bound >> (height.bit_length() - 1) if height > 1 else bound


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
