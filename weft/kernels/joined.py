"""joined: small GPU kernels that follow each other as one kernel.

A step of a tiny network is a dozen kernels of a microsecond each, and starting one costs as much. Where each of several
kernels in a row has work for a single block, that block can do them all (`join`): the bodies one after the other, with
a barrier between, after which its threads see what was stored before. Where kernels do not depend on each other, the
blocks of all of them can be those of one launch (`beside`): the work of each is numbered from where that of those
before it ends, so that every block finds its own. What each computes, and in which order, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from weft.dtypes import bool_, int64
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LAUNCH_RANGES,
    Barrier,
    BufferParam,
    Copy,
    Expr,
    Fetch,
    Fetched,
    Fold,
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
    ScalarParam,
    Stmt,
    Store,
    Update,
    Var,
)  # fmt: skip
from weft.kernels.substitute import Substitution

PLAIN = (Let, Store, Loop, Fold, Update, If, Barrier, Local, Copy, Fetch, Fetched)  # statements that are known here
OVER_BLOCKS = {"task", "grid"}  # loops that blocks share


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
    """Whether a kernel may be a part that other blocks work beside."""
    return (
        can_join(kernel) and len({loop.kind for loop in _all(kernel.body) if isinstance(loop, Loop)} & OVER_BLOCKS) == 1
    )


def blocks_of(kernel: Kernel, extent: int, threads: int) -> int:
    """How many blocks of `threads` a part has work for."""
    assert kernel.geometry is not None
    geometry = replace(kernel.geometry, threads=threads) if _is_grid(kernel) else kernel.geometry
    return geometry.blocks(extent)


def first_of(kernel: Kernel, blocks: int, threads: int) -> int:
    """The scalar 'first' of a part that stands beside others, with so many blocks before its own."""
    return -blocks * threads if _is_grid(kernel) else -blocks


def threads_of(kernels: Sequence[Kernel]) -> int | None:
    """How many threads the block of all these has, or None where they cannot share one.

    A grid of threads may be of any size. Other kernels keep out the threads that are too many for them, which those
    with barriers cannot do: they need a block of just their size.
    """
    own = [kernel.geometry.threads for kernel in kernels if kernel.geometry is not None]
    exact = {count for kernel, count in zip(kernels, own, strict=True) if _has_barrier(kernel.body)}
    least = max([count for kernel, count in zip(kernels, own, strict=True) if not _is_grid(kernel)], default=0)
    if len(exact) > 1 or (exact and least > min(exact)):
        return None
    return least or max(own)


def join(name: str, parts: Sequence[Part], memory: Sequence[BufferParam]) -> Kernel:
    """The parts one after the other as a kernel of one block over the buffers `memory`. Its scalars are those of the
    parts in order, each followed by the part's extent."""
    buffers = [replace(param, written=True, stream=False) for param in memory]  # any may be another's memory
    return _together(name, parts, buffers, False)


def beside(name: str, parts: Sequence[Part], memory: Sequence[BufferParam]) -> Kernel:
    """The parts as one kernel, whose launch counts blocks, over the buffers `memory`. Its scalars are those of the
    parts in order, each followed by the part's extent and by `first_of` it."""
    return _together(name, parts, memory, True)


def _together(name: str, parts: Sequence[Part], memory: Sequence[BufferParam], apart: bool) -> Kernel:
    threads = threads_of([part.kernel for part in parts])
    assert threads is not None
    scalars: list[ScalarParam] = []
    body: list[Stmt] = []
    definitions: dict[str, Expr] = {}
    for number, part in enumerate(parts):
        renamed = _Renamed(part, number, apart)
        inside = renamed.block(part.kernel.body)
        own = part.kernel.geometry.threads if part.kernel.geometry is not None else threads
        if _is_grid(part.kernel):
            inside = tuple([replace(stmt, width=threads) if isinstance(stmt, Loop) else stmt for stmt in inside])
        elif own < threads:
            inside = (Loop(Axis(f"member{number}", own), 0, own, "threads", inside, threads),)
        body += [Barrier(), *inside] if number and not apart else inside
        scalars += [ScalarParam(f"{param.name}_{number}", param.dtype) for param in part.kernel.scalars]
        scalars += [ScalarParam(f"{word}_{number}", int64) for word in (("end", "first_block") if apart else ("end",))]
        definitions |= {f"{key}_{number}": renamed.expr(value) for key, value in part.kernel.definitions.items()}
    geometry = Geometry(threads, 1, tile=1 if apart else 0)
    return Kernel(name, tuple(memory), tuple(scalars), LAUNCH_RANGES, tuple(body), definitions, geometry)


def _is_grid(kernel: Kernel) -> bool:
    """Whether all loops are over the threads of all blocks, however many there are."""
    loops = [stmt for stmt in kernel.body if isinstance(stmt, Loop | Fold | If)]
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
        elif isinstance(stmt, Loop | Fold):
            yield from _all(stmt.body)


class _Renamed(Substitution):
    """One part with names of its own: buffers, scalars, ranges, arrays of the block and loaded indices."""

    def __init__(self, part: Part, number: int, apart: bool):
        super().__init__({})
        self.number, self.apart = number, apart
        kernel = part.kernel
        self.memory = {param.name: f"m{at}" for param, at in zip(kernel.buffers, part.buffers, strict=True)}
        self.vars: dict[str, Expr] = {"begin": Literal(0, int64), "end": Var(f"end_{number}", int64)}
        self.vars |= {param.name: Var(f"{param.name}_{number}", param.dtype) for param in kernel.scalars}

    def rebuilt(self, expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return self.vars.get(expr.name, expr)
        if isinstance(expr, Op) and expr.name == "aligned":  # its arguments are buffers
            named = [Var(self.buffer(arg.name), arg.dtype) if isinstance(arg, Var) else arg for arg in expr.args]
            return Op("aligned", tuple(named), expr.dtype)
        new = super().rebuilt(expr)
        return replace(new, buffer=self.buffer(new.buffer)) if isinstance(new, Load) else new

    def index(self, index: Index) -> Index:
        loaded = [axis for axis in ix.axes_of(index) if axis.kind == "value"]
        return ix.substitute(index, {axis: Index(((self.axis(axis), 1),), 0) for axis in loaded}) if loaded else index

    def axis(self, axis: Axis) -> Axis:
        return replace(axis, name=f"{axis.name}_{self.number}")

    def buffer(self, name: str) -> str:
        return self.memory.get(name, name)

    def optional(self, expr: Expr | None) -> Expr | None:
        return None if expr is None else self.expr(expr)

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple([self.stmt(stmt) for stmt in body])

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Let(name, value):
                return Let(name, self.expr(value))
            case Store(buffer, index, value, mask):
                return Store(self.buffer(buffer), self.index(index), self.expr(value), self.optional(mask))
            case Loop():
                start, stop, body = self.bound(stmt.start), self.bound(stmt.stop), self.block(stmt.body)
                if self.apart and stmt.kind in OVER_BLOCKS:
                    start, body = self.shifted(start), (If(self.is_own(stmt.axis), body),)
                return replace(stmt, start=start, stop=stop, body=body)
            case Fold():
                return replace(stmt, body=self.block(stmt.body))
            case Update(name, value, factor):
                return Update(name, self.expr(value), self.optional(factor))
            case If(condition, body, otherwise):
                return If(self.expr(condition), self.block(body), self.block(otherwise))
            case Local(name, dtype, size, scope):
                self.memory[name] = f"{name}_{self.number}"
                return Local(self.memory[name], dtype, size, scope)
            case Fetch(target, at, source, index, _, valid):
                place = None if stmt.place is None else self.index(stmt.place)
                at, index, valid = self.index(at), self.index(index), self.bound(valid)
                target, source = self.buffer(target), self.buffer(source)
                return replace(stmt, target=target, at=at, source=source, index=index, valid=valid, place=place)
            case Copy(target, at, source, index, count, dtype):
                names = self.buffer(target), self.buffer(source)
                return Copy(names[0], self.index(at), names[1], self.index(index), count, dtype)
        return stmt

    def shifted(self, start: Expr | int) -> Expr:
        """Where a loop over blocks starts, so that the first block of the part finds `start`."""
        given = Literal(start, int64) if isinstance(start, int) else start
        return Op("add", (given, Var(f"first_block_{self.number}", int64)), int64)

    def is_own(self, axis: Axis) -> Expr:
        """Whether a turn of such a loop is the part's, not one of blocks before its own. (As an index, an axis of one
        element would be 0.)"""
        return Op("le", (Literal(0, int64), IndexValue(Index(((axis, 1),), 0), int64)), bool_)
