"""Rewriting: a nest with its axes replaced by indices, functions by a device's own, parts of expressions by others.

The index algebra cancels what it can: a row-major access through `flat // n` and `flat % n` is `flat` again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import is_

from weft.base.dtypes import bfloat16, bool_, float32, int32, int64
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Expr, Function, IndexValue, Literal, Load, Op, Store
from weft.kernels.ir.nest import ColumnSum, Nest, Span


def substitute(nest: Nest, values: dict[Axis, Index]) -> Nest:
    """`nest` with every use of the axes in `values` replaced; the loops themselves are the caller's to change."""
    return rewrite_nest(nest, Substitution(values)) if values else nest


def for_gpu(nest: Nest, native: Collection[str]) -> Nest:
    """`nest` with the functions in `native` as single operations, and indices compared in 32 bits."""
    return rewrite_nest(nest, _ForGpu(native))


def expressions_for_gpu(
    native: Collection[str], values: Sequence[Expr], checks: Sequence[Store], definitions: Mapping[str, Expr]
) -> tuple[list[Expr], tuple[Store, ...], dict[str, Expr]]:
    """What a kernel computes that is made without a nest, as `for_gpu` makes it: values have the bits that they have
    where another kernel computes and stores them."""
    new = _ForGpu(native)
    return (
        [new.expr(value) for value in values], tuple([new.store(check) for check in checks]),
        {name: new.expr(value) for name, value in definitions.items()},
    )  # fmt: skip


def rewrite_nest(nest: Nest, new: Substitution) -> Nest:
    """`nest` with all its expressions and indices as `new` makes them."""
    return replace(
        nest,
        stages=tuple([tuple([(acc, new.expr(value)) for acc, value in stage]) for stage in nest.stages]),
        inner=tuple([Span(span.axis, new.bound(span.start), new.bound(span.stop)) for span in nest.inner]),
        point_stores=tuple([new.store(store) for store in nest.point_stores]),
        inner_stores=tuple([new.store(store) for store in nest.inner_stores]),
        checks=tuple([new.store(store) for store in nest.checks]),
        columns=tuple([new.column(column) for column in nest.columns]),
        definitions={name: new.expr(value) for name, value in nest.definitions.items()},
    )


class Substitution:
    """Rewrites expressions, keeping shared parts shared."""

    def __init__(self, values: dict[Axis, Index]):
        self.values = values
        self.done: dict[int, Expr] = {}  # by id; the nest keeps the originals alive

    def index(self, index: Index) -> Index:
        return ix.substitute(index, self.values)

    def store(self, store: Store) -> Store:
        mask = None if store.mask is None else self.expr(store.mask)
        return Store(store.buffer, self.index(store.index), self.expr(store.value), mask)

    def column(self, column: ColumnSum) -> ColumnSum:
        return replace(column, index=self.index(column.index), value=self.expr(column.value))

    def bound(self, bound: Expr | int) -> Expr | int:
        return bound if isinstance(bound, int) else self.expr(bound)

    def expr(self, expr: Expr) -> Expr:
        """The new form of `expr`. Iterative: fused chains are deeper than Python's stack."""
        pending = [expr]
        while pending:
            top = pending[-1]
            missing = [part for part in self.parts(top) if id(part) not in self.done]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if id(top) not in self.done:
                self.done[id(top)] = self.rebuild(top)
        return self.done[id(expr)]

    def parts(self, expr: Expr) -> tuple[Expr, ...]:
        return _parts(expr)

    def rebuild(self, expr: Expr) -> Expr:
        match expr:
            case Op(name, args, dtype):
                new = tuple([self.done[id(arg)] for arg in args])
                return expr if all(map(is_, args, new)) else Op(name, new, dtype)
            case Load(buffer, index, dtype, mask):
                return Load(buffer, self.index(index), dtype, None if mask is None else self.done[id(mask)])
            case IndexValue(index, dtype):
                return IndexValue(self.index(index), dtype)
            case _:
                return expr


class _ForGpu(Substitution):
    """Replaces what functions are made of by the functions, and 64-bit comparisons of indices by 32-bit ones."""

    def __init__(self, native: Collection[str]):
        super().__init__({})
        self.native = native

    def is_native(self, expr: Expr) -> bool:
        return isinstance(expr, Function) and expr.function in self.native and expr.dtype in (float32, bfloat16)

    def parts(self, expr: Expr) -> tuple[Expr, ...]:
        return expr.of if isinstance(expr, Function) and self.is_native(expr) else _parts(expr)

    def rebuild(self, expr: Expr) -> Expr:
        if isinstance(expr, Function) and self.is_native(expr):
            return Op(expr.function, tuple([self.done[id(part)] for part in expr.of]), expr.dtype)
        new = super().rebuild(expr)
        if isinstance(new, Op) and new.name == "eq" and new.args[0].dtype is int64:
            for args in (new.args, new.args[::-1]):
                short = _equal_in_32_bits(*args)
                if short is not None:
                    return short
        return new


def _equal_in_32_bits(a: Expr, b: Expr) -> Op | None:
    """Whether an index is `b`, in 32 bits: what does not fit there equals no index."""
    if not isinstance(a, IndexValue) or a.index.low < 0 or a.index.high >= 2**31 or isinstance(b, IndexValue):
        return None
    fits = Op("and", (Op("le", (Literal(0, int64), b), bool_), Op("lt", (b, Literal(2**31, int64)), bool_)), bool_)
    other = Op("select", (fits, Op("cast", (b,), int32), Literal(-1, int32)), int32)
    return Op("eq", (IndexValue(a.index, int32), other), bool_)


def replace_parts(values: Sequence[Expr], known: Mapping[Expr, Expr]) -> list[Expr]:
    """`values` with the parts in `known` (by identity) replaced; what contains none of them stays the same object."""
    done = {id(old): new for old, new in known.items()}
    for root in values:
        pending = [root]
        while pending:
            top = pending[-1]
            missing = [part for part in _parts(top) if id(part) not in done] if id(top) not in done else []
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if id(top) not in done:
                done[id(top)] = _with_parts(top, [done[id(part)] for part in _parts(top)])
    return [done[id(value)] for value in values]


def _with_parts(expr: Expr, parts: Sequence[Expr]) -> Expr:
    if all(new is old for new, old in zip(parts, _parts(expr), strict=True)):
        return expr
    if isinstance(expr, Op):
        return Op(expr.name, tuple(parts), expr.dtype)
    assert isinstance(expr, Load)
    return Load(expr.buffer, expr.index, expr.dtype, parts[0])


def parts_of(values: Sequence[Expr]) -> list[Expr]:
    """Everything that `values` are made of, each once, parts before what they are part of."""
    found: dict[int, Expr] = {}
    for root in values:
        pending = [root]
        while pending:
            top = pending[-1]
            missing = [part for part in _parts(top) if id(part) not in found] if id(top) not in found else []
            if missing:
                pending.extend(missing)
                continue
            found.setdefault(id(pending.pop()), top)
    return list(found.values())


def indices_of(expr: Expr) -> list[Index]:
    """The indices at which an expression loads, or whose values it uses."""
    found: list[Index] = []
    stack: list[Expr] = [expr]
    while stack:
        one = stack.pop()
        if isinstance(one, Load | IndexValue):
            found.append(one.index)
        stack.extend(_parts(one))
    return found


def names_along(definitions: Mapping[str, Expr], axes: Collection[Axis]) -> frozenset[str]:
    """The names of `axes` and of all that changes with them by definition, as positions that are gathered do."""
    found = {axis.name for axis in axes}
    uses = {name: {axis.name for index in indices_of(value) for axis in ix.axes_of(index)}
            for name, value in definitions.items()}  # fmt: skip
    while more := {name for name, used in uses.items() if name not in found and not found.isdisjoint(used)}:
        found |= more
    return frozenset(found)


def _parts(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    return (expr.mask,) if isinstance(expr, Load) and expr.mask is not None else ()
