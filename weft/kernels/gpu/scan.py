"""Running reductions on GPUs.

*Lines*: a lane goes through one line alone; adjacent lanes take adjacent lines. *Rows*: a workgroup goes through one
row, a tile at a time. The tile lies in shared memory, where each lane combines a few contiguous elements; the lanes'
totals are combined in log2(lanes) steps; then every element gets what comes before its lane's part, and before its
tile. Which element is combined with which is a rule of `kernels.numerics`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.base.dtypes import DType, int64
from weft.kernels.cpu.scan import EXTENT, combine, initial_state, is_carried, neutral, scan_in_order, update_carry
from weft.kernels.gpu.statements import BEGIN, END
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Barrier,
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
from weft.kernels.math.summation import add_compensation
from weft.kernels.numerics import SCAN_ELEMENTS_PER_LANE, scan_lanes


def scan_lines(
    points: Axis, step: Axis, accumulator: Accumulator, out: Store, checks: tuple[Stmt, ...], lanes: int
) -> tuple[tuple[Stmt, ...], Geometry]:
    """One lane for each line, in workgroups of so many `lanes`: `out.value` is the value at `step`."""
    steps = scan_in_order(step, 0, EXTENT, accumulator, out.value, out, checks, step.extent)
    body = (*initial_state(accumulator, step.extent, "lane"), *steps)
    return (Loop(points, BEGIN, END, "grid", body, lanes),), Geometry(lanes, 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """How a workgroup takes a row of `extent`: tiles of `lanes` * SCAN_ELEMENTS_PER_LANE elements. Element (tile, part,
    lane) is at `position` of the row, so adjacent lanes read adjacent elements. A workgroup's arrays of `dtype` take
    `shared_bytes` at most, and it has at most `workgroup_size` lanes."""

    extent: int
    dtype: DType
    shared_bytes: int
    workgroup_size: int

    @property
    def lanes(self) -> int:
        return scan_lanes(self.extent, self.dtype.itemsize, self.shared_bytes, self.workgroup_size)

    @property
    def size(self) -> int:
        return self.lanes * SCAN_ELEMENTS_PER_LANE

    @property
    def number(self) -> Axis:
        return Axis("tile", max(-(-self.extent // self.size), 2))

    @property
    def lane(self) -> Axis:
        return Axis("thread", self.lanes)

    @property
    def inside(self) -> Index:
        """The position in the tile."""
        return Axis("part", SCAN_ELEMENTS_PER_LANE) * self.lanes + self.lane

    @property
    def position(self) -> Index:
        return self.number * self.size + self.inside

    def for_elements(self, body: tuple[Stmt, ...]) -> Stmt:
        """All elements of a tile."""
        return Loop(Axis("part", SCAN_ELEMENTS_PER_LANE), 0, SCAN_ELEMENTS_PER_LANE, "serial", (self.for_lanes(body),))

    def for_lanes(self, body: tuple[Stmt, ...], count: int = 0) -> Stmt:
        """All lanes, or the first `count`."""
        return Loop(self.lane, 0, count or self.lanes, "lanes", body, self.lanes)


def scan_row(row: Axis, tile: Tile, op: str, out: Store, checks: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], Geometry]:
    """One workgroup for each row: `out.value` is the value at `tile.position`."""
    dtype, lanes = out.value.dtype, tile.lanes
    nothing = Literal(neutral(op, dtype), dtype)
    exists = IndexValue(tile.position, int64) < EXTENT
    fill = tile.for_elements(
        (
            If(exists, (Store("values", tile.inside, out.value), *checks)),
            If(~exists, (Store("values", tile.inside, nothing),)),
        )
    )
    totals, joined = _totals(tile, op, dtype)
    owner = tile.inside // SCAN_ELEMENTS_PER_LANE
    later = Literal(0, int64) < IndexValue(owner, int64)
    others = Load("totals", owner + (joined * lanes - 1), dtype, later)
    long = is_carried(Accumulator("", op, dtype), -(-tile.extent // tile.size))
    carry: Expr = Load("carry", ix.ZERO, dtype)
    if long:
        carry = add_compensation(carry, Load("carry_error", ix.ZERO, dtype))
    before = combine(op, carry, later.select(others, nothing))
    result = combine(op, before, Load("values", tile.inside, dtype))
    finish = tile.for_elements((If(exists, (Store(out.buffer, out.index, result),)),))
    last = Load("totals", ix.const(joined * lanes + lanes - 1), dtype)
    one_more = (Store("carry", ix.ZERO, combine(op, Load("carry", ix.ZERO, dtype), last)),)
    following = update_carry(last, ix.ZERO) if long else one_more
    tiles = (EXTENT + (tile.size - 1)) // tile.size
    tile_step = (fill, Barrier(), *totals, finish, Barrier(), tile.for_lanes(following, 1))
    names = ("carry", "carry_error") if long else ("carry",)
    first = tile.for_lanes(tuple([Store(name, ix.ZERO, nothing) for name in names]), 1)
    each_row = Loop(row, BEGIN, END, "task", (first, Loop(tile.number, 0, tiles, "serial", tile_step), Barrier()))
    arrays = (("values", tile.size), ("totals", 2 * lanes), *[(name, 1) for name in names])
    return (*[Local(name, dtype, size) for name, size in arrays], each_row), Geometry(lanes, lanes)


def _totals(tile: Tile, op: str, dtype: DType) -> tuple[list[Stmt], int]:
    """Each lane combines its elements in place, then the totals of all lanes are combined; they end in the half
    of 'totals' that is returned."""
    lanes, lane = tile.lanes, ix.axis_index(tile.lane)
    step = Axis("step", SCAN_ELEMENTS_PER_LANE - 1)
    here = lane * SCAN_ELEMENTS_PER_LANE + step
    there = here + 1
    both = combine(op, Load("values", here, dtype), Load("values", there, dtype))
    own = Loop(step, 0, SCAN_ELEMENTS_PER_LANE - 1, "serial", (Store("values", there, both),))
    whole = Load("values", lane * SCAN_ELEMENTS_PER_LANE + (SCAN_ELEMENTS_PER_LANE - 1), dtype)
    out: list[Stmt] = [tile.for_lanes((own, Store("totals", lane, whole))), Barrier()]
    half, distance = 0, 1
    while distance < lanes:
        at = lane + half * lanes
        far = Literal(distance, int64) <= IndexValue(lane, int64)
        other = Load("totals", at - distance, dtype, far)
        mine = Let(f"mine{distance}", Load("totals", at, dtype))
        value: Expr = Var(f"mine{distance}", dtype)
        value = far.select(combine(op, other, value), value)
        half = 1 - half
        out += [tile.for_lanes((mine, Store("totals", lane + half * lanes, value))), Barrier()]
        distance *= 2
    return out, half
