"""Tiles of matrix products on GPUs: what a product is, which tiles a workgroup may compute it in, and which it takes.

The tables of tiles have about how fast a processor is with each; `Tuning.product_speeds` has measured numbers instead,
for these and for more tiles (`TILES`). It knows neither how a kernel is written (`kernels.gpu.gemm`) nor a vendor. No
bit of a result depends on a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from weft.base.capabilities import Limits, MatrixUnit
from weft.base.dtypes import DType, float32
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.gpu.register_tiles import VECTOR
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Index
from weft.kernels.numerics import SMALL_GPU_PRODUCT

Condition = tuple[Index, int]  # 0 <= index < bound
Locate = Callable[[Index, Index, Index], tuple[Index, Sequence[Condition]]]


@dataclass(frozen=True, slots=True)
class Operand:
    """Matrices in a buffer: element (i, k) of matrix number b, with i across the sums and k along them, lies at
    `locate(b, i, k)`, or is 0 where its conditions do not hold. Along k if `lies_along`, else across, elements come in
    groups of `vector` (a power of two) that are contiguous in memory and exist together."""

    buffer: str
    dtype: DType
    lies_along: bool
    vector: int
    locate: Locate


def strided_operand(
    buffer: str, dtype: DType, across: int, along: int, batch: Sequence[tuple[int, int]] = ()
) -> Operand:
    """Matrices with steps `across` and `along`, of which one is 1; `batch` has (extent, step) of each axis of them.
    As many contiguous elements are fetched together as all rows begin at multiples of."""

    def locate(number: Index, i: Index, k: Index) -> tuple[Index, Sequence[Condition]]:
        out = i * across + k * along
        numbers = ix.delinearise(number, tuple([extent for extent, _ in batch]))
        for one, (_, step) in zip(numbers, batch, strict=True):
            out = out + one * step
        return out, ()

    vector = math.gcd(VECTOR // dtype.itemsize, max(across, along), *[step for extent, step in batch if extent > 1])
    return Operand(buffer, dtype, along == 1, vector, locate)


def shared_layout(operand: Operand, extent: int, depth: int) -> tuple[int, int, int]:
    """(lines, elements of a line, distance of lines) of the shared array of one step: lines lie apart so that lanes
    access different banks."""
    lines, row = (extent, depth) if operand.lies_along else (depth, extent)
    return lines, row, row + VECTOR // operand.dtype.itemsize


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
    def is_small(self) -> bool:
        """Whether all of it is fetched at once, with tiles of its own."""
        return self.a.dtype is float32 and self.batch * self.rows * self.columns * self.depth <= SMALL_GPU_PRODUCT

    @property
    def sums(self) -> DType:
        """The dtype that products are added up in."""
        return float32 if self.a.dtype.is_16_bit else self.a.dtype


@dataclass(frozen=True, slots=True)
class Tiling:
    """A workgroup's tile of the result, `height` x `width`, `depth` of k at a time; `rows` x `columns` of it belong to
    one lane, or with `fragments` of a matrix unit to one subgroup. `speed` is about how fast a processor is with it."""

    height: int
    width: int
    depth: int
    rows: int
    columns: int
    fragments: Fragments | None
    speed: float
    stages: int = 2  # steps of k in shared arrays at a time
    prefetches: bool = False  # the next step waits in registers while this one is multiplied

    @property
    def lanes(self) -> int:
        parts = self.height // self.rows * (self.width // self.columns)
        return parts * self.fragments.lanes if self.fragments else parts

    def shared_bytes(self, product: Product) -> int:
        total = 0
        for operand, extent in ((product.a, self.height), (product.b, self.width)):
            lines, _, step = shared_layout(operand, extent, self.depth)
            total += lines * step * operand.dtype.itemsize
        return self.stages * total

    @property
    def name(self) -> str:
        """Its sizes: of the workgroup's tile and the step of k, then of a lane's part."""
        return f"{self.height}x{self.width}x{self.depth}/{self.rows}x{self.columns}"

    def count(self, product: Product) -> int:
        return self.count_tiles(product.batch, product.rows, product.columns)

    def count_tiles(self, batch: int, rows: int, columns: int) -> int:
        return batch * -(-rows // self.height) * -(-columns // self.width)

    def work(self, batch: int, rows: int, columns: int, processors: int) -> int:
        """Elements that the busiest of the processors computes, those beyond the edges included."""
        return -(-self.count_tiles(batch, rows, columns) // processors) * self.height * self.width


_UNITS = (Tiling(128, 128, 32, 64, 64, None, 1.0, 4), Tiling(64, 64, 32, 32, 32, None, 0.6, 4),
          Tiling(32, 32, 32, 16, 16, None, 0.25, 4))  # fmt: skip
_REGISTERS = {
    4: (Tiling(128, 128, 16, 8, 8, None, 1.0), Tiling(64, 64, 16, 8, 4, None, 0.7),
        Tiling(32, 64, 16, 4, 4, None, 0.5), Tiling(16, 64, 16, 2, 4, None, 0.3),
        Tiling(16, 16, 16, 2, 2, None, 0.1)),
    8: (Tiling(64, 64, 8, 8, 4, None, 1.0), Tiling(32, 32, 8, 4, 2, None, 0.5), Tiling(16, 16, 8, 2, 2, None, 0.2)),
}  # fmt: skip

# Where the next step waits in registers there is less room for sums: twice the lanes are faster (measured on an H200
# through OpenCL, 35 against 28 TFLOP/s).
_PREFETCHED = (Tiling(128, 128, 16, 8, 4, None, 1.0), *_REGISTERS[4])

# Of a small product all tiles run at once, and waiting for memory is what takes time: many lanes fetch all there is.
_AT_ONCE = (Tiling(32, 64, 32, 2, 4, None, 0.5), Tiling(16, 64, 32, 2, 2, None, 0.3),
            Tiling(16, 16, 64, 1, 1, None, 0.1))  # fmt: skip

# Tiles that `weft tune` times, by the form of a product: the defaults first, then others that are faster on some device
# and slower on the next (on an H200 the first of these: 38 TFLOP/s through OpenCL, 2 through WebGPU, where its sums do
# not stay in registers).
TILES: dict[str, tuple[Tiling, ...]] = {
    "registers": (
        *_PREFETCHED,
        Tiling(128, 256, 8, 8, 16, None, 1.0), Tiling(128, 128, 8, 8, 8, None, 1.0),
        Tiling(64, 128, 16, 8, 8, None, 1.0), Tiling(64, 128, 16, 8, 4, None, 1.0),
        Tiling(128, 64, 16, 8, 4, None, 1.0), Tiling(64, 64, 16, 4, 4, None, 1.0),
        Tiling(32, 128, 16, 4, 4, None, 1.0), Tiling(32, 32, 16, 4, 4, None, 1.0),
    ),
    "units": (
        *_UNITS,
        Tiling(128, 256, 32, 64, 64, None, 1.0, 4), Tiling(128, 128, 64, 64, 64, None, 1.0, 3),
        Tiling(128, 128, 32, 64, 32, None, 1.0, 4), Tiling(128, 64, 32, 64, 32, None, 1.0, 4),
        Tiling(64, 128, 32, 32, 64, None, 1.0, 4), Tiling(64, 64, 64, 32, 32, None, 1.0, 3),
    ),
}  # fmt: skip


def form_of(dtype: DType, unit: MatrixUnit | None) -> str:
    """Which of `TILES` products of a dtype are computed with; "wide" is none of them: 64-bit elements."""
    if unit is not None and dtype.is_16_bit:
        return "units"
    return "registers" if dtype.itemsize <= 4 else "wide"


def tiling(
    product: Product, unit: MatrixUnit | None, processors: int, limits: Limits, async_copies: bool = True,
    speeds: Sequence[tuple[str, int]] = (),
) -> Tiling:  # fmt: skip
    """The tile with which all processors are done first, among those that find room. `speeds` are those of tiles by
    name (`Tuning.product_speeds`); tiles of this form that it names are the only ones, unless none finds room. No bit
    of the result depends on it."""
    form = form_of(product.a.dtype, unit)
    choices = _UNITS if form == "units" else _REGISTERS[max(product.a.dtype.itemsize, 4)]
    if form == "registers" and not async_copies:
        choices = _PREFETCHED

    def cost(choice: Tiling) -> float:
        return choice.work(product.batch, product.rows, product.columns, processors) / choice.speed

    def fitting(choices: Sequence[Tiling]) -> list[Tiling]:
        return fitting_tiles(choices, product, unit, limits)

    if product.is_small and fitting(_AT_ONCE):
        static_bytes = min(limits.shared_bytes, limits.static_shared_bytes)
        return _fetch_at_once(min(fitting(_AT_ONCE), key=cost), product, static_bytes)
    best = min(fitting(_tiles_with_speeds(form, speeds, product.depth)) or fitting(choices), key=cost)
    if not async_copies:
        return replace(best, stages=2, prefetches=True)
    return best if best.shared_bytes(product) <= limits.shared_bytes else replace(best, stages=2)


def fitting_tiles(choices: Sequence[Tiling], product: Product, unit: MatrixUnit | None, limits: Limits) -> list[Tiling]:
    """Those of a product's tiles that find lanes and shared memory, with the fragments of its matrix unit."""
    if unit is not None and form_of(product.a.dtype, unit) == "units":
        choices = [replace(choice, fragments=Fragments(unit)) for choice in choices]
    lanes, nbytes = limits.workgroup_size, limits.shared_bytes
    return [one for one in choices if one.lanes <= lanes and replace(one, stages=2).shared_bytes(product) <= nbytes]


def tiles_of(form: str, depth: int) -> tuple[Tiling, ...]:
    """The tiles of a form for products with so many elements along k. Where a last step goes beyond them it adds zeros,
    which make 0 of a sum that underflowed to -0: with every tile here, or with none."""
    tiles = TILES.get(form, ())
    return tuple([tile for tile in tiles if (depth % tile.depth == 0) == (depth % tiles[0].depth == 0)])


def _tiles_with_speeds(form: str, speeds: Sequence[tuple[str, int]], depth: int) -> list[Tiling]:
    """The tiles of a form that `speeds` names, with these speeds."""
    known = dict(speeds)
    found = [(tile, known.get(f"{form} {tile.name}")) for tile in tiles_of(form, depth)]
    return [replace(tile, speed=float(speed)) for tile, speed in found if speed is not None]


def _fetch_at_once(choice: Tiling, product: Product, shared_bytes: int) -> Tiling:
    """The tile with as many stages as it has steps of k, if there is room for these, so that all steps are fetched
    before the first is multiplied; and not deeper than the product."""
    choice = replace(choice, depth=min(choice.depth, -(-product.depth // 8) * 8))
    steps = -(-product.depth // choice.depth)
    fitting = shared_bytes // replace(choice, stages=1).shared_bytes(product)
    return replace(choice, stages=min(steps, max(fitting, 2)))
