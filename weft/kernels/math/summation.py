"""Sums whose error does not grow with their length: no accumulator takes more than `CHAIN` additions one by one.

A schedule writes a sum as a `Reduction` around loops that `Update` its accumulators. Where those may be updated more
often than `CHAIN` times (by one lane), `cascade` cuts the loops into blocks: a block adds up at most `CHAIN` terms, and
the block sums go to a compensated accumulator, whose error does not depend on their number. A sum of n terms then has a
relative error of about `CHAIN` / 2 + 2 roundings at most, where the sum of absolute values is the measure; a tree over
all terms (pairwise summation) has log2(n). The lanes of a vector loop and those of a GPU workgroup each have blocks of
their own, so the blocks cost nothing but their additions: one for `CHAIN`, and what compensates it.

Which terms make a block follows from the bounds and extents of the loops alone. Blocks of a loop that starts at a known
number lie at multiples of their length, so a loop in two parts has the same blocks as one if it is cut between blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from weft.base.dtypes import int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import (
    Accumulator,
    Expr,
    If,
    IndexValue,
    Load,
    Loop,
    Reduction,
    Stmt,
    Update,
    Var,
)
from weft.kernels.ir.rewrite import parts_of
from weft.kernels.numerics import CHAIN


def cascade(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` with the loops of its long float sums and products split into blocks."""
    numbers = itertools.count()
    return tuple([_statement(stmt, numbers) for stmt in body])


def _statement(stmt: Stmt, numbers: Iterator[int]) -> Stmt:
    match stmt:
        case Reduction():
            return _split_reduction(stmt, numbers)
        case Loop():
            return replace(stmt, body=tuple([_statement(inner, numbers) for inner in stmt.body]))
        case If(_, body, otherwise):
            parts = [tuple([_statement(inner, numbers) for inner in part]) for part in (body, otherwise)]
            return replace(stmt, body=parts[0], otherwise=parts[1])
    return stmt


def _split_reduction(reduction: Reduction, numbers: Iterator[int]) -> Reduction:
    rounds = any(acc.op in ("sum", "prod") and acc.dtype.kind == "f" for acc in reduction.accumulators)
    if not rounds or longest_chain(reduction.body) <= CHAIN:
        return reduction
    if len(reduction.body) == 1 and isinstance(reduction.body[0], Loop) and _is_loaded(reduction.body[0].start):
        return Reduction(reduction.accumulators, _short_or_blocks(reduction.accumulators, reduction.body[0], numbers))
    return Reduction(
        _compensate(reduction.accumulators), _Blocks(reduction.accumulators, numbers).statements(reduction.body)
    )


def _compensate(accumulators: tuple[Accumulator, ...]) -> tuple[Accumulator, ...]:
    return tuple([replace(acc, compensated=acc.op == "sum" and acc.dtype.kind == "f") for acc in accumulators])


def _is_loaded(bound: Expr | int) -> bool:
    """Whether a bound is read from memory, as those of segments are."""
    return not isinstance(bound, int) and any(isinstance(part, Load) for part in parts_of([bound]))


def _short_or_blocks(accumulators: tuple[Accumulator, ...], loop: Loop, numbers: Iterator[int]) -> tuple[Stmt, ...]:
    """A loop with bounds from memory, most of which are short: a short one stays as it is, since computing block bounds
    would delay its first iteration."""
    per, number = CHAIN // max(longest_chain(loop.body), 1), next(numbers)
    rest = tuple([replace(acc, name=f"{acc.name}_rest{number}") for acc in accumulators])
    both = list(zip(accumulators, rest, strict=True))
    others = replace(loop, body=_rename_updates(loop.body, {acc.name: more.name for acc, more in both}))
    blocks = Reduction(_compensate(rest), _Blocks(rest, numbers).statements((others,)), joined=False)
    sums = [Update(acc.name, Var(more.name, acc.dtype)) for acc, more in both]
    assert not isinstance(loop.start, int)  # it is loaded
    is_short = loop.stop - loop.start <= per * _stride(loop)
    return If(is_short, (replace(loop, most=per),)), If(~is_short, (blocks, *sums))


def longest_chain(body: tuple[Stmt, ...]) -> int:
    """How often `body` updates an accumulator at most, one lane for itself."""
    return max(_total_updates(body).values(), default=0)


def _updates(stmt: Stmt) -> dict[str, int]:
    match stmt:
        case Update(name):
            return {name: 1}
        case Loop():
            return {name: trip_count(stmt) * count for name, count in _total_updates(stmt.body).items()}
        case If(_, body, otherwise):
            parts = [_total_updates(body), _total_updates(otherwise)]
            return {name: max([part.get(name, 0) for part in parts]) for name in parts[0] | parts[1]}
    return {}


def _total_updates(body: tuple[Stmt, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for stmt in body:
        for name, count in _updates(stmt).items():
            counts[name] = counts.get(name, 0) + count
    return counts


def _stride(loop: Loop) -> int:
    """What one lane advances by in an iteration."""
    return loop.width if loop.kind in ("vector", "lanes") else 1


def trip_count(loop: Loop) -> int:
    """The iterations of a loop at most, of one lane."""
    start, stop = loop.start, loop.stop
    extent = max(stop - start, 0) if isinstance(start, int) and isinstance(stop, int) else loop.axis.extent
    found = -(-extent // _stride(loop))
    return min(found, loop.most) if loop.most else found


class _Blocks:
    """Splits the loops of one reduction into blocks. `accumulators` take the sums of these."""

    def __init__(self, accumulators: tuple[Accumulator, ...], numbers: Iterator[int]):
        self.accumulators, self.numbers = accumulators, numbers

    def statements(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for stmt in body:
            match stmt:
                case Loop():
                    out += self.loop(stmt)
                case If(condition, inside, otherwise):
                    out.append(If(condition, self.statements(inside), self.statements(otherwise)))
                case _:
                    out.append(stmt)
        return tuple(out)

    def loop(self, loop: Loop) -> list[Stmt]:
        inside = longest_chain(loop.body)
        if inside >= CHAIN:
            return [replace(loop, body=self.statements(loop.body))]
        if not inside:
            return [loop]
        per = CHAIN // inside
        if trip_count(loop) <= per:
            return self.block((loop,))
        return [self.in_blocks(loop, per)]

    def block(self, body: tuple[Stmt, ...]) -> list[Stmt]:
        """`body` with accumulators of its own, which then go into those around."""
        number = next(self.numbers)
        names = {acc.name: f"{acc.name}_block{number}" for acc in self.accumulators}
        own = [replace(acc, name=names[acc.name]) for acc in self.accumulators]
        sums: list[Stmt] = [Update(acc.name, Var(names[acc.name], acc.dtype)) for acc in self.accumulators]
        return [Reduction(tuple(own), _rename_updates(body, names), joined=False), *sums]

    def in_blocks(self, loop: Loop, per: int) -> Loop:
        """A loop over blocks of `per` iterations around `loop`."""
        size = per * _stride(loop)
        last = loop.stop
        number = Axis(f"block{next(self.numbers)}", -(-loop.axis.extent // size) + 1)
        begin = IndexValue(ix.axis_index(number), int64) * size
        if isinstance(loop.start, int):
            first: Expr | int = loop.start // size
            ends: Expr | int = -(-last // size) if isinstance(last, int) else _blocks_of(last, size)
            aligned = loop.start % size == 0
            start = begin if aligned else begin.max(loop.start)
            stop = (begin + size).min(last)
            multiple = math.gcd(loop.start, size) if loop.start else size
        else:
            first, ends = 0, _blocks_of(last - loop.start, size)
            start = loop.start + begin
            stop = (start + size).min(last)
            multiple = math.gcd(loop.multiple, size)
        whole = loop.whole or _is_whole(loop)
        inner = replace(loop, start=start, stop=stop, multiple=multiple, whole=whole, most=per)
        return Loop(number, first, ends, "serial", tuple(self.block((inner,))))


def rounding_error(a: Expr, b: Expr, total: Expr) -> Expr:
    """What a + b = `total` rounded off, exactly: Knuth's two-sum."""
    added = total - a
    left = total - added
    return (a - left) + (b - added)


def add_compensation(total: Expr, error: Expr) -> Expr:
    """A sum with what it rounded off, which is no number where the sum is infinite."""
    exact = total + error
    return (abs(exact) < math.inf).select(exact, total)


def _is_whole(loop: Loop) -> bool:
    bounds = (loop.start, loop.stop)
    return all(isinstance(bound, int) and bound % _stride(loop) == 0 for bound in bounds)


def _blocks_of(count: Expr, size: int) -> Expr:
    """How many blocks so many iterations need."""
    rounded_up = count + (size - 1)
    return rounded_up // size if size & (size - 1) else rounded_up >> (size.bit_length() - 1)


def _rename_updates(body: tuple[Stmt, ...], names: dict[str, str]) -> tuple[Stmt, ...]:
    """`body` with its updates of other accumulators."""
    out: list[Stmt] = []
    for stmt in body:
        match stmt:
            case Update(name) if name in names:
                out.append(replace(stmt, name=names[name]))
            case Loop():
                out.append(replace(stmt, body=_rename_updates(stmt.body, names)))
            case If(condition, inside, otherwise):
                out.append(If(condition, _rename_updates(inside, names), _rename_updates(otherwise, names)))
            case _:
                out.append(stmt)
    return tuple(out)
