"""RowSequence: which rows belong to a chunk, and which of them each of its members takes.

A chunk is a strided set of rows, and members (subgroups of a workgroup) take its rows alternately: workgroups that run
at the same time read rows that are adjacent in memory, which is faster than as many rows far from each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.kernels.gpu.statements import END, at, number, number64
from weft.kernels.gpu.target import Target
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Expr, Var
from weft.kernels.ir.nest import ColumnSum
from weft.kernels.numerics import chunk_members


class RowSequence:
    """The rows of one member, by `iteration`. A chunk has every n-th row, with n the number of chunks. `definitions`
    has the number of the `row` of this iteration, and of others that `row_of` was called for."""

    def __init__(self, points: Axis, chunk: Index, members: int = 1, member: Index = ix.ZERO):
        chunks = END  # a launch has all chunks
        number_of, own = number64(chunk), number64(member)
        # Each has `per_chunk` rows, or one less where the last would lie beyond all points.
        last = Var("per_chunk", END.dtype) - 1
        beyond = number_of + last * chunks - Var("points", END.dtype)
        rows = last - beyond.min(0).max(-1)
        self.iteration = Axis("turn", points.extent)
        self.first: Expr = number_of + own * chunks if members > 1 else number_of
        self.stride: Expr = chunks * members if members > 1 else chunks
        self.count: Expr = rows
        if members > 1:
            self.count = (rows + (members - 1) - own) >> (members.bit_length() - 1)
        self.definitions: dict[str, Expr] = {}
        self.row = self.row_of(at(self.iteration))

    def row_of(self, iteration: Index) -> Axis:
        """The row of an iteration."""
        row = Axis(f"taken{len(self.definitions)}", self.iteration.extent, "value")
        value = self.first + number64(iteration) * self.stride
        self.definitions[row.name] = value.cast(number(at(row)).dtype)
        return row


def count_members(columns: Sequence[ColumnSum], size: int, target: Target) -> int:
    """By how many members the rows of a chunk are added up, whose sums are `size` elements of each dtype."""
    each = sum([kind.itemsize for kind in {column.accumulator.dtype for column in columns}]) * size
    return chunk_members(each, target.shared_bytes, target.workgroup_size // target.subgroup_size)
