"""Tiles of a matrix unit: 16 x 16 sums, to which a subgroup adds products of 16 x 16 tiles of 16-bit floats.

A tile is spread over the threads of a subgroup. How the operands are spread is known to the machine alone; `place` says
which sums a thread holds, for what is done with them afterwards. The layout is that of devices with the feature 'mma'.
"""

from __future__ import annotations

from weft.kernels import index as ix
from weft.kernels.index import Index

SIDE = 16
LANES = 32  # threads of a subgroup
WORDS = 4  # of 32 bits: what a thread holds of an operand's tile
SUMS = 8  # what it holds of a tile of sums


def place(lane: Index, element: Index) -> tuple[Index, Index]:
    """(row, column) in its tile of one of the SUMS elements that a thread holds."""
    row = ix.add(ix.floordiv(lane, 4), ix.scale(ix.remainder(ix.floordiv(element, 2), 2), 8))
    pair = ix.add(ix.scale(ix.remainder(lane, 4), 2), ix.remainder(element, 2))
    return row, ix.add(pair, ix.scale(ix.floordiv(element, 4), 8))
