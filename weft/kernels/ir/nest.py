"""Nest: a region's computation as loops, before a schedule maps them to hardware.

A nest says what is computed at each point of one flat parallel axis, over which inner axes it reduces and what it
stores. The CPU and the GPU schedule both start from it. Nothing in a nest depends on the number of points, so a new
batch size uses the same kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from weft.base.dtypes import DType
from weft.kernels.ir.index import Axis, Index, axis_index
from weft.kernels.ir.language import Accumulator, BufferParam, Expr, Let, Load, ScalarParam, Stmt, Store, Var

COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}  # the operation behind each kind of reduction


@dataclass(frozen=True, slots=True)
class Span:
    """One inner loop, from `start` to `stop`."""

    axis: Axis
    start: Expr | int
    stop: Expr | int


@dataclass(frozen=True, slots=True)
class ColumnSum:
    """A running sum over points: `buffer[chunk * width + index] = op over the chunk's points of value`. Which points a
    chunk has, the schedule says."""

    buffer: str
    index: Index
    width: int
    accumulator: Accumulator
    value: Expr


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops without a schedule.

    points: the flat parallel axis. `vector_axis`: which axis is contiguous in memory and belongs in vector lanes:
    'points', 'lane' (a second parallel axis, `lane`, or none) or 'inner' (the last inner axis); 'scatter' marks a nest
    whose first inner store reduces, as the one accumulator of its one stage says, into row `target` of a table that has
    one row per point. stages: reductions over the inner axes, each using the results of those before. `columns`, if
    any, are summed over chunks of points; the launch then counts chunks, with the scalars 'points' and 'per_chunk'.
    `checks` are stores per inner element that need no reduction, so the first loop over the inner axes does them.
    `scratch` names the memory in which a 'scatter' of many rows counts them and keeps partial sums. `definitions` gives
    the expression of every axis of kind 'value'; they are copied, and never change.
    """

    name: str
    points: Axis
    vector_axis: str
    lane: Axis | None
    inner: tuple[Span, ...]
    stages: tuple[tuple[tuple[Accumulator, Expr], ...], ...]
    point_stores: tuple[Store, ...]
    inner_stores: tuple[Store, ...]
    columns: tuple[ColumnSum, ...]
    buffers: tuple[BufferParam, ...]
    scalars: tuple[ScalarParam, ...]
    definitions: Mapping[str, Expr]
    checks: tuple[Store, ...] = ()
    scratch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if type(self.definitions) is not MappingProxyType:
            object.__setattr__(self, "definitions", MappingProxyType(dict(self.definitions)))


def store_after_evaluation(stores: Sequence[Store], more: Sequence[Expr] = ()) -> tuple[Stmt, ...]:
    """All values first (also `more`), then all stores: memory that is updated in place is read before it is written."""
    if len(stores) == 1 and not more:
        return tuple(stores)
    values = [*[store.value for store in stores], *more]
    lets = [Let(f"out{k}", value) for k, value in enumerate(values)]
    ready = [Store(s.buffer, s.index, Var(f"out{k}", s.value.dtype), s.mask) for k, s in enumerate(stores)]
    return (*lets, *ready)


def value_names(stores: Sequence[Store], more: Sequence[Expr]) -> list[Expr]:
    """The names under which `store_after_evaluation` names `more`."""
    return [Var(f"out{len(stores) + k}", value.dtype) for k, value in enumerate(more)]


def copy_nest(dtype: DType) -> Nest:
    """Copies elements from one buffer to another."""
    axis = Axis("i", 1 << 30)
    store = Store("b1", axis_index(axis), Load("b0", axis_index(axis), dtype))
    buffers = (BufferParam("b0", dtype, False), BufferParam("b1", dtype, True))
    return Nest(f"copy_{dtype.name}", axis, "points", None, (), (), (store,), (), (), buffers, (), {})
