"""Batched launches: small GPU kernels that follow each other become one kernel.

A step of a tiny network is a dozen kernels of a microsecond each, and starting one costs as much. Where each of several
consecutive kernels has work for a single workgroup, that workgroup can do them all (`join`): the bodies one after the
other, with a barrier between, after which its lanes see what was stored before. Where kernels do not depend on each
other, the workgroups of all of them can be those of one launch (`batch_kernels`): the work of each is numbered from
where that of those before it ends, so that every workgroup finds its own. What each computes, and in which order, does
not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weft.base.dtypes import int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    LAUNCH_RANGES,
    AsyncCopy,
    AwaitCopies,
    Barrier,
    BufferParam,
    Copy,
    Expr,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    ScalarParam,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from weft.kernels.ir.rewrite import Substitution

PLAIN = (
    Let,
    Store,
    Loop,
    Reduction,
    Update,
    If,
    Barrier,
    Local,
    Copy,
    AsyncCopy,
    AwaitCopies,
)  # statements that are known here
WORKGROUP_LOOPS = {"task", "grid"}  # loops that workgroups share


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel, and the number of the joined kernel's buffer behind each of its own."""

    kernel: Kernel
    buffers: tuple[int, ...]


def can_join(kernel: Kernel) -> bool:
    """Whether a kernel may be a part. One with memory that comes with the launch may not."""
    geometry = kernel.geometry
    return geometry is not None and not geometry.shared and kernel.ranges == LAUNCH_RANGES and _is_plain(kernel.body)


def can_stand_beside(kernel: Kernel) -> bool:
    """Whether a kernel may be a part whose workgroups run concurrently with those of others."""
    return (
        can_join(kernel)
        and len({loop.kind for loop in _all(kernel.body) if isinstance(loop, Loop)} & WORKGROUP_LOOPS) == 1
    )


def count_workgroups(kernel: Kernel, extent: int, lanes: int) -> int:
    """How many workgroups of `lanes` a part has work for."""
    assert kernel.geometry is not None
    geometry = replace(kernel.geometry, lanes=lanes) if _is_grid(kernel) else kernel.geometry
    return geometry.workgroups(extent)


def first_scalar(kernel: Kernel, workgroups_before: int, lanes: int) -> int:
    """The scalar 'first' of a part of such a launch, with so many workgroups before its own."""
    return -workgroups_before * lanes if _is_grid(kernel) else -workgroups_before


def common_lanes(kernels: Sequence[Kernel]) -> int | None:
    """How many lanes the workgroup of all these has, or None where they cannot share one.

    A grid of lanes may be of any size. Other kernels mask the lanes that are too many for them, which those
    with barriers cannot do: they need a workgroup of exactly their size.
    """
    own = [kernel.geometry.lanes for kernel in kernels if kernel.geometry is not None]
    exact = {count for kernel, count in zip(kernels, own, strict=True) if _has_barrier(kernel.body)}
    least = max([count for kernel, count in zip(kernels, own, strict=True) if not _is_grid(kernel)], default=0)
    if len(exact) > 1 or (exact and least > min(exact)):
        return None
    return least or max(own)


def join(name: str, parts: Sequence[Part], memory: Sequence[BufferParam]) -> Kernel:
    """The parts one after the other as a kernel of one workgroup over the buffers `memory`. Its scalars are those of
    the parts in order, each followed by the part's extent."""
    buffers = [replace(param, written=True, stream=False) for param in memory]  # any may be another's memory
    return _combine(name, parts, buffers, False)


def batch_kernels(name: str, parts: Sequence[Part], memory: Sequence[BufferParam]) -> Kernel:
    """The parts as one kernel, whose launch counts workgroups, over the buffers `memory`. Its scalars are those of the
    parts in order, each followed by the part's extent and by its `first_scalar`."""
    return _combine(name, parts, memory, True)


def _combine(name: str, parts: Sequence[Part], memory: Sequence[BufferParam], is_beside: bool) -> Kernel:
    lanes = common_lanes([part.kernel for part in parts])
    assert lanes is not None
    scalars: list[ScalarParam] = []
    body: list[Stmt] = []
    definitions: dict[str, Expr] = {}
    for number, part in enumerate(parts):
        rename = _Rename(part, number, is_beside)
        inside = rename.rename_body(part.kernel.body)
        own = part.kernel.geometry.lanes if part.kernel.geometry is not None else lanes
        if _is_grid(part.kernel):
            inside = tuple([replace(stmt, width=lanes) if isinstance(stmt, Loop) else stmt for stmt in inside])
        elif own < lanes:
            inside = (Loop(Axis(f"member{number}", own), 0, own, "lanes", inside, lanes),)
        body += [Barrier(), *inside] if number and not is_beside else inside
        scalars += [ScalarParam(f"{param.name}_{number}", param.dtype) for param in part.kernel.scalars]
        scalars += [
            ScalarParam(f"{word}_{number}", int64) for word in (("end", "first_block") if is_beside else ("end",))
        ]
        definitions |= {f"{key}_{number}": rename.expr(value) for key, value in part.kernel.definitions.items()}
    geometry = Geometry(lanes, 1, tile=1 if is_beside else 0)
    return Kernel(name, tuple(memory), tuple(scalars), LAUNCH_RANGES, tuple(body), definitions, geometry)


def _is_grid(kernel: Kernel) -> bool:
    """Whether all loops are over the lanes of all workgroups, however many there are."""
    loops = [stmt for stmt in kernel.body if isinstance(stmt, Loop | Reduction | If)]
    return all(isinstance(loop, Loop) and loop.kind == "grid" for loop in loops)


def _is_plain(body: tuple[Stmt, ...]) -> bool:
    return all(isinstance(stmt, PLAIN) for stmt in _all(body))


def _has_barrier(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(stmt, Barrier) for stmt in _all(body))


def _all(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements, those inside others too."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, If):
            yield from _all((*stmt.body, *stmt.otherwise))
        elif isinstance(stmt, Loop | Reduction):
            yield from _all(stmt.body)


class _Rename(Substitution):
    """One part with names of its own: buffers, scalars, ranges, arrays of the workgroup and loaded indices."""

    def __init__(self, part: Part, number: int, is_beside: bool):
        super().__init__({})
        self.number, self.is_beside = number, is_beside
        kernel = part.kernel
        self.memory = {param.name: f"m{at}" for param, at in zip(kernel.buffers, part.buffers, strict=True)}
        self.vars: dict[str, Expr] = {"begin": Literal(0, int64), "end": Var(f"end_{number}", int64)}
        self.vars |= {param.name: Var(f"{param.name}_{number}", param.dtype) for param in kernel.scalars}

    def rebuild(self, expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return self.vars.get(expr.name, expr)
        if isinstance(expr, Op) and expr.name == "aligned":  # its arguments are buffers
            named = [Var(self.buffer(arg.name), arg.dtype) if isinstance(arg, Var) else arg for arg in expr.args]
            return Op("aligned", tuple(named), expr.dtype)
        new = super().rebuild(expr)
        return replace(new, buffer=self.buffer(new.buffer)) if isinstance(new, Load) else new

    def index(self, index: Index) -> Index:
        loaded = [axis for axis in ix.axes_of(index) if axis.kind == "value"]
        return ix.substitute(index, {axis: Index(((self.axis(axis), 1),), 0) for axis in loaded}) if loaded else index

    def axis(self, axis: Axis) -> Axis:
        return replace(axis, name=f"{axis.name}_{self.number}")

    def buffer(self, name: str) -> str:
        return self.memory.get(name, name)

    def replace_optional(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self.expr(expr)

    def rename_body(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple([self.stmt(stmt) for stmt in body])

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Let(name, value):
                return Let(name, self.expr(value))
            case Store(buffer, index, value, mask):
                return Store(self.buffer(buffer), self.index(index), self.expr(value), self.replace_optional(mask))
            case Loop():
                start, stop, body = self.bound(stmt.start), self.bound(stmt.stop), self.rename_body(stmt.body)
                if self.is_beside and stmt.kind in WORKGROUP_LOOPS:
                    start, body = self.shift_start(start), (If(self.is_own(stmt.axis), body),)
                return replace(stmt, start=start, stop=stop, body=body)
            case Reduction():
                return replace(stmt, body=self.rename_body(stmt.body))
            case Update(name, value, factor):
                return Update(name, self.expr(value), self.replace_optional(factor))
            case If(condition, body, otherwise):
                return If(self.expr(condition), self.rename_body(body), self.rename_body(otherwise))
            case Local(name, dtype, size, scope):
                self.memory[name] = f"{name}_{self.number}"
                return Local(self.memory[name], dtype, size, scope)
            case AsyncCopy(target, at, source, index, _, valid):
                position = None if stmt.position is None else self.index(stmt.position)
                at, index, valid = self.index(at), self.index(index), self.bound(valid)
                target, source = self.buffer(target), self.buffer(source)
                return replace(stmt, target=target, at=at, source=source, index=index, valid=valid, position=position)
            case Copy(target, at, source, index, count, dtype):
                names = self.buffer(target), self.buffer(source)
                return Copy(names[0], self.index(at), names[1], self.index(index), count, dtype)
        return stmt

    def shift_start(self, start: Expr | int) -> Expr:
        """Where a loop over workgroups starts, so that the first workgroup of the part gets `start`."""
        given = Literal(start, int64) if isinstance(start, int) else start
        return given + Var(f"first_block_{self.number}", int64)

    def is_own(self, axis: Axis) -> Expr:
        """Whether an iteration of such a loop is the part's, not one of workgroups before its own. (As an index, an
        axis of one element would be 0.)"""
        return Literal(0, int64) <= IndexValue(Index(((axis, 1),), 0), int64)
