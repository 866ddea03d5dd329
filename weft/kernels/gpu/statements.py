"""Statements and values that all GPU schedules build: loops, conditions, bounds of the launch range, the kernel itself.

Small functions without a decision in them. They know the kernel language and nothing of rows, columns or tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from weft.base.dtypes import DType, bool_, int32, int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    Expr,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Var,
    pool_bytes,
    shared_arrays,
)
from weft.kernels.ir.nest import Nest, Span

BEGIN, END = Var("begin", int64), Var("end", int64)


def make_kernel(nest: Nest, body: tuple[Stmt, ...], geometry: Geometry) -> Kernel:
    """The kernel of `body` over the launch range of a nest."""
    return Kernel(nest.name, nest.buffers, nest.scalars, LAUNCH_RANGES, body, nest.definitions, geometry)


def assign_shared_memory(kernel: Kernel, static_bytes: int) -> Kernel:
    """`kernel` with its shared arrays declared where they take at most `static_bytes`; else they come with the launch,
    which then says how many bytes."""
    body = kernel.body
    if sum([pool_bytes(array) for array in shared_arrays(body) if array.scope == "workgroup"]) > static_bytes:
        body = tuple([replace(stmt, scope="launch") if isinstance(stmt, Local) else stmt for stmt in body])
    dynamic = sum([pool_bytes(array) for array in shared_arrays(body) if array.scope == "launch"])
    assert kernel.geometry is not None
    return replace(kernel, body=body, geometry=replace(kernel.geometry, shared=dynamic))


def flatten_axes(name: str, axes: tuple[Axis, ...]) -> tuple[Axis, dict[Axis, Index]]:
    """One axis that runs through `axes` in row-major order, and each of them as an index of it."""
    shape = tuple([axis.extent for axis in axes])
    flat = Axis(name, math.prod(shape), axes[-1].kind)
    if not flat.extent:
        return flat, dict.fromkeys(axes, ix.ZERO)
    return flat, dict(zip(axes, ix.delinearise(at(flat), shape), strict=True))


def serial(spans: Sequence[Span], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` in serial loops over `spans`, the first outermost."""
    for span in reversed(spans):
        body = (Loop(span.axis, span.start, span.stop, "serial", body),)
    return body


def unroll(axis: Axis, start: int, stop: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` for each value of a short axis; an axis of one element needs no loop."""
    if start >= stop or not body:
        return ()
    return body if axis.extent == 1 else (Loop(axis, start, stop, "unrolled", body),)


def at(axis: Axis) -> Index:
    """An axis as an index; 0 where the axis has one element."""
    return ix.axis_index(axis)


def value_index(axis: Axis) -> Index:
    """An axis as an index, also where it has one element: a value that the kernel defines under its name."""
    return Index(((axis, 1),), 0)


def scale_bound(bound: Expr | int, factor: int) -> Expr | int:
    """A bound of a loop, times `factor`."""
    return bound * factor if isinstance(bound, int) else scale_value(bound, factor)


def scale_value(value: Expr, factor: int) -> Expr:
    """A 64-bit value times `factor`."""
    return value if factor == 1 else value * factor


def int64_op(name: str, *args: Expr | int) -> Op:
    """An operation on 64-bit integers."""
    return Op(name, tuple([Literal(arg, int64) if isinstance(arg, int) else arg for arg in args]), int64)


def resolve_condition(body: Sequence[Stmt], condition: Expr, truth: bool) -> tuple[Stmt, ...]:
    """`body` where it is known whether `condition` (this very expression) holds."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, If) and stmt.condition is condition:
            out += resolve_condition(stmt.body if truth else stmt.otherwise, condition, truth)
        elif isinstance(stmt, If):
            parts = [resolve_condition(part, condition, truth) for part in (stmt.body, stmt.otherwise)]
            out.append(replace(stmt, body=parts[0], otherwise=parts[1]))
        elif isinstance(stmt, Loop | Reduction):
            out.append(replace(stmt, body=resolve_condition(stmt.body, condition, truth)))
        else:
            out.append(stmt)
    return tuple(out)


def number(index: Index) -> IndexValue:
    """The value of an index, in 32 bits where it fits."""
    return IndexValue(index, int64 if index.high >= 2**31 else int32)


def number64(index: Index) -> IndexValue:
    """The value of an index in 64 bits, to compare with bounds of the launch range."""
    return IndexValue(index, int64)


def test(name: str, a: Expr, b: Expr | int) -> Op:
    """A comparison, or `and` of two bools."""
    return Op(name, (a, Literal(b, a.dtype) if isinstance(b, int) else b), bool_)


def name_values(values: Sequence[Expr]) -> tuple[list[Let], list[Expr]]:
    """All values before the first store: memory that is updated in place is read before it is written."""
    lets = [Let(f"out{k}", value) for k, value in enumerate(values)]
    return lets, [Var(let.name, let.value.dtype) for let in lets]


def are_aligned(buffers: Sequence[tuple[str, DType]], nbytes: int) -> Expr:
    """Whether these buffers begin at multiples of `nbytes`."""
    names = [Var(name, dtype) for name, dtype in dict(buffers).items()]
    return Op("aligned", (*names, Literal(nbytes, int32)), bool_)
