"""Fragments of a matrix unit: how the tiles that a subgroup multiplies are spread over its lanes.

A tile is square; its sides and the lanes of a subgroup come from the device's `MatrixUnit`. How the operands are spread
is known to the machine alone; `position` says which sums a lane holds, for what is done with them afterwards:

- "row_pairs": halves of the tile down and across, in each of which a lane holds two adjacent sums of a row;
- "column_blocks": a lane holds contiguous sums of one column, and the lanes after it those of the next columns;
- "column_strides": a lane holds every n-th sum of one column, of the n lanes that share it.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.base.capabilities import MatrixUnit
from weft.kernels.ir.index import Index

OPERAND_BYTES, WORD_BYTES = 2, 4  # of an element of a factor, and of the words in which a lane holds these


@dataclass(frozen=True, slots=True)
class Fragments:
    """What a lane holds of the tiles of one matrix unit."""

    unit: MatrixUnit

    @property
    def side(self) -> int:
        """Of a tile."""
        return self.unit.rows

    @property
    def lanes(self) -> int:
        """Of the subgroup that multiplies."""
        return self.unit.lanes

    @property
    def words(self) -> int:
        """What a lane holds of a tile of an operand."""
        nbytes = self.side * self.side * OPERAND_BYTES * self.unit.operand_copies
        return nbytes // (WORD_BYTES * self.lanes)

    @property
    def sums(self) -> int:
        """What a lane holds of a tile of sums."""
        return self.side * self.side // self.lanes

    @property
    def in_pairs(self) -> bool:
        """Whether a lane holds several sums of each of its rows."""
        return self.unit.layout == "row_pairs"

    @property
    def row_lanes(self) -> int:
        """Lanes that share a row of sums: those that differ in their number modulo this."""
        return self.side // 4 if self.in_pairs else self.side

    @property
    def row_count(self) -> int:
        """Rows of which a lane holds sums: one in each half, or one for each sum."""
        return 2 if self.in_pairs else self.sums

    def row_of(self, element: Index) -> Index:
        """Which of a lane's rows an element is in, of `row_count`."""
        return element // 2 % 2 if self.in_pairs else element

    def first_of(self, row: Index) -> Index:
        """The first element in one of a lane's rows."""
        return row * 2 if self.in_pairs else row

    def position(self, lane: Index, element: Index) -> tuple[Index, Index]:
        """(row, column) in its tile of one of the `sums` elements that a lane holds."""
        if self.in_pairs:
            half = self.side // 2
            row = lane // self.row_lanes + element // 2 % 2 * half
            pair = lane % self.row_lanes * 2 + element % 2
            return row, pair + element // 4 * half
        sharing = lane // self.side  # number among the lanes with this column
        if self.unit.layout == "column_blocks":
            return sharing * self.sums + element, lane % self.side
        return element * (self.lanes // self.side) + sharing, lane % self.side
