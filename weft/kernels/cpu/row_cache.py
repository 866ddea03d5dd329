"""The row cache: values that several loops over one row need are computed once and kept in a small local array.

A softmax needs exp(x - max) for its sum and again for its result; a chain of norm, activation and softmax has six loops
over a row. Elementwise values that two or more of these loops share, and that are more expensive to recompute than to
read back, go through a `Local` of one row. What is computed does not change, only how often.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.tuning import Tuning
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import Expr, IndexValue, Let, Load, Local, Op, Stmt, Store, Var

OPERATION_COSTS = {"div": 8, "sqrt": 8, "mod": 12}  # operations that count for more than one


class RowCache:
    """Decides for the loops over `axis`, given by the values each computes, what to keep; then rewrites each loop."""

    def __init__(self, axis: Axis | None, loops: Sequence[Sequence[Expr]], tuning: Tuning):
        self.axis, self.tuning = axis, tuning
        self.first: dict[Op, int] = {}  # kept value -> the loop that computes it
        self.names: dict[Op, str] = {}
        if axis is not None and axis.extent <= tuning.max_cached_row and len(loops) > 1:
            self._choose(axis, [_operations(values) for values in loops], loops)

    @property
    def locals(self) -> tuple[Local, ...]:
        extent = self.axis.extent if self.axis is not None else 0
        return tuple([Local(name, value.dtype, extent) for value, name in self.names.items()])

    def enter(self, loop: int, values: Sequence[Expr]) -> tuple[tuple[Stmt, ...], list[Expr]]:
        """What loop number `loop` does first, and its values, reading kept ones back."""
        if not self.first:
            return (), list(values)
        assert self.axis is not None
        known: dict[Op, Expr] = {}
        before: list[Stmt] = []
        used = _operations(values)
        for value, name in self.names.items():
            if value not in used:
                continue
            at, let = ix.axis_index(self.axis), f"{name}_{loop}"
            if self.first[value] < loop:
                before.append(Let(let, Load(name, at, value.dtype)))
                known[value] = Var(let, value.dtype)
        memo: dict[Op, Expr] = dict(known)
        for value, name in self.names.items():
            if self.first.get(value) == loop and value in used:
                let = f"{name}_{loop}"
                before.append(Let(let, _replace_known(value, memo)))
                before.append(Store(name, ix.axis_index(self.axis), Var(let, value.dtype)))
                memo[value] = Var(let, value.dtype)
        return tuple(before), [_replace_known(value, memo) for value in values]

    def _choose(self, axis: Axis, reach: list[dict[Op, None]], loops: Sequence[Sequence[Expr]]) -> None:
        first: dict[Op, int] = {}  # the first loop that computes an operation; arguments come before their users
        varies: dict[Op, bool] = {}
        for loop, operations in enumerate(reach):
            for operation in operations:
                first.setdefault(operation, loop)
                varies[operation] = any(_varies(arg, axis, varies) for arg in operation.args)
        budget = self.tuning.max_cached_bytes
        again = _find_reused(first, loops)
        for operation in first:
            size = operation.dtype.itemsize * axis.extent
            if (
                operation in again
                and varies[operation]
                and size <= budget
                and _recompute_cost(operation, self.names) >= self.tuning.cached_row_cost
            ):
                budget -= size
                self.names[operation] = f"kept{len(self.names)}"
                self.first[operation] = first[operation]


def _operations(values: Sequence[Expr]) -> dict[Op, None]:
    """Every operation below `values`, arguments before users."""
    found: dict[Op, None] = {}
    stack: list[tuple[Expr, bool]] = [(value, False) for value in reversed(values)]
    while stack:
        value, done = stack.pop()
        if isinstance(value, Load):
            if value.mask is not None:
                stack.append((value.mask, False))
            continue
        if not isinstance(value, Op) or value in found:
            continue
        if done:
            found[value] = None
        else:
            stack.append((value, True))
            stack.extend((arg, False) for arg in reversed(value.args))
    return found


def _varies(value: Expr, axis: Axis, known: dict[Op, bool]) -> bool:
    """Whether a value changes along the row."""
    if isinstance(value, Op):
        return known[value]
    if isinstance(value, Load | IndexValue):
        axes = ix.axes_of(value.index)
        return axis in axes or any(found.kind == "value" for found in axes)
    return False


def _find_reused(first: dict[Op, int], loops: Sequence[Sequence[Expr]]) -> set[Op]:
    """Operations that a later loop needs for something new."""
    again: set[Op] = set()
    for operation, loop in first.items():
        again.update([arg for arg in operation.args if isinstance(arg, Op) and first[arg] < loop])
    for loop, values in enumerate(loops):
        again.update([value for value in values if isinstance(value, Op) and first[value] < loop])
    return again


def _recompute_cost(root: Op, kept: dict[Op, str]) -> int:
    """Operations to compute `root` again, counting what is kept already as free."""
    seen: set[Op] = set()
    stack: list[Expr] = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, Op) and value not in seen and value not in kept:
            seen.add(value)
            stack.extend(value.args)
    return sum(OPERATION_COSTS.get(operation.name, 1) for operation in seen)


def _replace_known(value: Expr, known: dict[Op, Expr]) -> Expr:
    """`value` with known operations replaced; parts that contain none stay the same objects."""
    for operation in _operations([value]):
        if operation not in known:
            args = tuple([_replacement(arg, known) for arg in operation.args])
            same = all(new is old for new, old in zip(args, operation.args, strict=True))
            known[operation] = operation if same else Op(operation.name, args, operation.dtype)
    return _replacement(value, known)


def _replacement(value: Expr, known: dict[Op, Expr]) -> Expr:
    """What stands for `value`; a load may have a known mask."""
    if isinstance(value, Op):
        return known.get(value, value)
    if not isinstance(value, Load) or not isinstance(value.mask, Op):
        return value
    mask = known.get(value.mask, value.mask)
    return value if mask is value.mask else Load(value.buffer, value.index, value.dtype, mask)
