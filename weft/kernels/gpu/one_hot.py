"""One-hot reductions: one element of a row by its number, for which no lane has to pass over the row.

The loss of a class is a sum of `select(column == class, value, 0)`, and its gradient adds such a `select` to every
column. The sum is the value at that column, read there; and a round of a long row tests once for all its elements
whether it contains the column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.base.dtypes import bool_
from weft.kernels.gpu.statements import at
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Accumulator, Expr, IndexValue, Let, Literal, Op, Stmt, Update, Var
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.rewrite import Substitution, indices_of, names_along, parts_of, replace_parts, rewrite_nest


def replace_one_hot_reductions(nest: Nest) -> Nest:
    """`nest` without the reductions along its one inner axis that select an element by its number."""
    if len(nest.inner) != 1 or nest.inner[0].start != 0 or nest.inner[0].stop != nest.inner[0].axis.extent:
        return nest
    axis = nest.inner[0].axis
    along = names_along(nest.definitions, (axis,))
    known = _KnownValues()
    definitions = dict(nest.definitions)
    stages: list[tuple[tuple[Accumulator, Expr], ...]] = []
    for stage in nest.stages:
        kept: list[tuple[Accumulator, Expr]] = []
        for accumulator, value in stage:
            pick = _match_one_hot(value, axis, along) if accumulator.op == "sum" else None
            if pick is None:
                kept.append((accumulator, value))
                continue
            column, chosen = pick
            position = Axis(f"picked{len(known.reductions)}", axis.extent, "value")
            inside = (Literal(0, column.dtype) <= column) & (column < axis.extent)
            definitions[position.name] = inside.select(column, 0)
            there = Substitution({axis: Index(((position, 1),), 0)}).expr(known.expr(chosen))
            zero = Literal(accumulator.identity, value.dtype)
            known.reductions[accumulator.name] = inside.select(there, zero)
        stages += [tuple(kept)] if kept else []
    if not known.reductions or not stages:
        return nest
    return rewrite_nest(replace(nest, stages=tuple(stages), definitions=definitions), known)


class _KnownValues(Substitution):
    """Replaces names of reductions by their values."""

    def __init__(self) -> None:
        super().__init__({})
        self.reductions: dict[str, Expr] = {}

    def rebuild(self, expr: Expr) -> Expr:
        return (
            self.reductions[expr.name]
            if isinstance(expr, Var) and expr.name in self.reductions
            else super().rebuild(expr)
        )


def _match_one_hot(value: Expr, axis: Axis, along: frozenset[str]) -> tuple[Expr, Expr] | None:
    """(column, chosen) of `select(axis == column, chosen, 0)` with the same column all along the axis. What is `along`
    changes with it; of that, `chosen` may use the axis itself alone."""

    def free_of(names: frozenset[str], value: Expr) -> bool:
        return names.isdisjoint([one.name for index in indices_of(value) for one in ix.axes_of(index)])

    if not isinstance(value, Op) or value.name != "select" or not _is_zero(value.args[2]):
        return None
    column, chosen = compared_number(value.args[0], at(axis), lambda other: free_of(along, other)), value.args[1]
    return (column, chosen) if column is not None and free_of(along - {axis.name}, chosen) else None


def compared_number(condition: Expr, position: Index, constant: Callable[[Expr], bool]) -> Expr | None:
    """The number that a condition compares `position` with, if it is `constant`."""
    if not isinstance(condition, Op) or condition.name != "eq":
        return None
    for this, other in (condition.args, condition.args[::-1]):
        if isinstance(this, IndexValue) and this.index == position and constant(other):
            return other
    return None


def find_compared_numbers(body: Sequence[Stmt], position: Index, constant: Callable[[Expr], bool]) -> dict[Expr, Expr]:
    """The conditions in `body` that compare `position` with a number, and these numbers."""
    values = [stmt.value for stmt in body if isinstance(stmt, Let | Update)]
    found = {part: compared_number(part, position, constant) for part in parts_of(values)}
    return {condition: column for condition, column in found.items() if column is not None}


def assume_unequal(body: Sequence[Stmt], conditions: Sequence[Expr]) -> list[Stmt]:
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
    new = iter(replace_parts(values, known))
    return [replace(stmt, value=next(new)) if isinstance(stmt, Let | Update) else stmt for stmt in body]


def _is_zero(value: Expr) -> bool:
    return isinstance(value, Literal) and value.value == 0
