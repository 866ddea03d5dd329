"""Which loops of a kernel are written out in WGSL, and which arrays of a lane become variables by that.

WGSL has no hint to unroll a loop, and drivers do not keep an array in registers that is indexed by a loop variable. So
loops of the kind 'unrolled' are written out, and an array of a lane that is then indexed by numbers alone is a variable
for each element.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.kernels.ir.index import Index, axes_of
from weft.kernels.ir.language import AsyncCopy, Copy, If, Kernel, Let, Load, Local, Loop, Reduction, Stmt, Store

MAX_STATEMENTS = 8192  # of a kernel whose loops are written out
MAX_SHORT = 64  # statements of a loop that is written out although it indexes no array of a lane
MAX_ELEMENTS = 256  # of an array that becomes variables


def find_unrolled_axes(kernel: Kernel) -> set[str]:
    """The axes of the 'unrolled' loops that are written out: those that index an array of a lane, and short ones."""
    lane = {stmt.name for stmt, _ in _statements(kernel.body, {}) if isinstance(stmt, Local) and stmt.scope == "lane"}
    used = {axis.name for stmt, _ in _statements(kernel.body, {}) for name, index in _accesses(stmt) if name in lane
            for axis in axes_of(index)}  # fmt: skip
    loops = [stmt for stmt, _ in _statements(kernel.body, {}) if isinstance(stmt, Loop) and stmt.kind == "unrolled"]
    found = {loop.axis.name for loop in loops if loop.axis.name in used}
    if _count(kernel.body, found) > MAX_STATEMENTS:
        return set()
    for loop in loops:
        if _count((loop,), found | {loop.axis.name}) <= MAX_SHORT:
            found.add(loop.axis.name)
    return found


def arrays_of_variables(kernel: Kernel, unrolled: set[str]) -> set[str]:
    """The arrays of a lane whose every index is a number once the loops over `unrolled` axes are written out."""
    arrays = {stmt.name for stmt, _ in _statements(kernel.body, {})
              if isinstance(stmt, Local) and stmt.scope == "lane" and stmt.size <= MAX_ELEMENTS}  # fmt: skip
    for stmt, kinds in _statements(kernel.body, {}):
        for name, index in _accesses(stmt):
            if name in arrays and any(
                axis.name not in unrolled or kinds.get(axis.name) != "unrolled" for axis in axes_of(index)
            ):
                arrays.discard(name)
    return arrays


def _count(body: tuple[Stmt, ...], unrolled: set[str]) -> int:
    """Statements, with loops over `unrolled` axes written out."""
    count = 0
    for stmt in body:
        count += 1
        if isinstance(stmt, Loop):
            inside, times = _count(stmt.body, unrolled), 1
            if stmt.axis.name in unrolled and isinstance(stmt.start, int) and isinstance(stmt.stop, int):
                times = max(stmt.stop - stmt.start, 1)
            count += inside * times
        elif isinstance(stmt, Reduction):
            count += _count(stmt.body, unrolled)
        elif isinstance(stmt, If):
            count += _count(stmt.body, unrolled) + _count(stmt.otherwise, unrolled)
    return count


def _statements(body: tuple[Stmt, ...], kinds: dict[str, str]) -> Iterator[tuple[Stmt, dict[str, str]]]:
    """All statements, each with the kinds of the loops around it by the names of their axes."""
    for stmt in body:
        yield stmt, kinds
        if isinstance(stmt, Loop):
            yield from _statements(stmt.body, {**kinds, stmt.axis.name: stmt.kind})
        elif isinstance(stmt, Reduction):
            yield from _statements(stmt.body, kinds)
        elif isinstance(stmt, If):
            yield from _statements((*stmt.body, *stmt.otherwise), kinds)


def _accesses(stmt: Stmt) -> list[tuple[str, Index]]:
    """The arrays that a statement reads or writes, and where."""
    match stmt:
        case Let(_, Load(buffer, index)) | Store(buffer, index):
            return [(buffer, index)]
        case Copy() | AsyncCopy():
            return [(stmt.target, stmt.at), (stmt.source, stmt.index)]
        case _:
            return []
