"""One element of a row, by its number: what a GPU need not look for along the row.

The loss of a class is a fold of `select(column == class, value, 0)`, and its gradient adds such a `select` to every
column. The fold is its value at that column, read there; and a round of a long row that does not have the column asks
once for all its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.dtypes import bool_
from weft.kernels import index as ix
from weft.kernels.gpu_tile import at, test
from weft.kernels.index import Axis, Index
from weft.kernels.language import Accumulator, Expr, IndexValue, Let, Literal, Op, Stmt, Update, Var
from weft.kernels.nest import Nest
from weft.kernels.substitute import Substitution, indices_of, names_along, parts_of, replaced, rewritten


def picked(nest: Nest) -> Nest:
    """`nest` without the folds over its one inner axis that pick an element by its number."""
    if len(nest.inner) != 1 or nest.inner[0].start != 0 or nest.inner[0].stop != nest.inner[0].axis.extent:
        return nest
    axis = nest.inner[0].axis
    along = names_along(nest.definitions, (axis,))
    known = _Known()
    definitions = dict(nest.definitions)
    stages: list[tuple[tuple[Accumulator, Expr], ...]] = []
    for stage in nest.stages:
        kept: list[tuple[Accumulator, Expr]] = []
        for accumulator, value in stage:
            pick = _pick(value, axis, along) if accumulator.op == "sum" else None
            if pick is None:
                kept.append((accumulator, value))
                continue
            column, chosen = pick
            place = Axis(f"picked{len(known.folds)}", axis.extent, "value")
            inside = Op("and", (test("le", Literal(0, column.dtype), column), test("lt", column, axis.extent)), bool_)
            definitions[place.name] = Op("select", (inside, column, Literal(0, column.dtype)), column.dtype)
            there = Substitution({axis: Index(((place, 1),), 0)}).expr(known.expr(chosen))
            zero = Literal(accumulator.identity, value.dtype)
            known.folds[accumulator.name] = Op("select", (inside, there, zero), value.dtype)
        stages += [tuple(kept)] if kept else []
    if not known.folds or not stages:
        return nest
    return rewritten(replace(nest, stages=tuple(stages), definitions=definitions), known)


class _Known(Substitution):
    """Puts the values of folds in the place of their names."""

    def __init__(self) -> None:
        super().__init__({})
        self.folds: dict[str, Expr] = {}

    def rebuilt(self, expr: Expr) -> Expr:
        return self.folds[expr.name] if isinstance(expr, Var) and expr.name in self.folds else super().rebuilt(expr)


def _pick(value: Expr, axis: Axis, along: frozenset[str]) -> tuple[Expr, Expr] | None:
    """(column, chosen) of `select(axis == column, chosen, 0)` with the same column all along the axis. What is `along`
    changes with it; of that, `chosen` may use the axis itself alone."""

    def free_of(names: frozenset[str], value: Expr) -> bool:
        return names.isdisjoint([one.name for index in indices_of(value) for one in ix.axes_of(index)])

    if not isinstance(value, Op) or value.name != "select" or not _is_zero(value.args[2]):
        return None
    column, chosen = asked(value.args[0], at(axis), lambda other: free_of(along, other)), value.args[1]
    return (column, chosen) if column is not None and free_of(along - {axis.name}, chosen) else None


def asked(condition: Expr, place: Index, constant: Callable[[Expr], bool]) -> Expr | None:
    """The number that a condition compares `place` with, if it is `constant`."""
    if not isinstance(condition, Op) or condition.name != "eq":
        return None
    for this, other in (condition.args, condition.args[::-1]):
        if isinstance(this, IndexValue) and this.index == place and constant(other):
            return other
    return None


def numbers_asked(body: Sequence[Stmt], place: Index, constant: Callable[[Expr], bool]) -> dict[Expr, Expr]:
    """The conditions in `body` that compare `place` with a number, and these numbers."""
    values = [stmt.value for stmt in body if isinstance(stmt, Let | Update)]
    found = {part: asked(part, place, constant) for part in parts_of(values)}
    return {condition: column for condition, column in found.items() if column is not None}


def without(body: Sequence[Stmt], conditions: Sequence[Expr]) -> list[Stmt]:
    """`body` where none of `conditions` holds."""
    values = [stmt.value for stmt in body if isinstance(stmt, Let | Update)]
    known: dict[Expr, Expr] = {condition: Literal(False, bool_) for condition in conditions}
    for part in parts_of(values):
        if isinstance(part, Op) and part.name == "add":
            for this, other in (part.args, part.args[::-1]):
                if (
                    isinstance(this, Op)
                    and this.name == "select"
                    and this.args[0] in conditions
                    and _is_zero(this.args[2])
                ):
                    known[part] = other
    new = iter(replaced(values, known))
    return [replace(stmt, value=next(new)) if isinstance(stmt, Let | Update) else stmt for stmt in body]


def _is_zero(value: Expr) -> bool:
    return isinstance(value, Literal) and value.value == 0
