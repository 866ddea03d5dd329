"""The normal form of a kernel: every value named once, in the outermost block where it is constant.

Schedules write expressions as shared graphs; renderers want one simple operation per line. `normalise` does
common-subexpression elimination and loop-invariant code motion once, for all renderers. After it:

- the value of a `Let` is one `Op`, `Load` or `IndexValue` whose arguments are literals and variables; everything else
  (stored values, masks, bounds, conditions, updates) is a literal or a variable;
- an axis of kind 'value' is a variable of its own name, defined by a `Let` before the first index that uses it;
- loads from memory that the kernel writes are at the statement that uses them and are read again after every store.
  Where a value has to survive a store, name it with a `Let` before the store.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.base import dtypes
from weft.base.errors import GraphError, problem
from weft.kernels.ir import index as ix
from weft.kernels.ir.language import (
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Copy,
    Expr,
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
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    Update,
    Var,
)


def normalise(kernel: Kernel) -> Kernel:
    """The normal form of `kernel`, as described in the module docstring."""
    normaliser = _Normaliser(kernel)
    normaliser.block(kernel.body)
    return replace(kernel, body=tuple(normaliser.scope.out))


@dataclass(slots=True, eq=False)
class _Scope:
    """A block being written: its statements so far and the values that live in it."""

    depth: int
    guard: int  # depth of the innermost `If` body around: loads do not move out of it
    out: list[Stmt] = field(default_factory=list)
    known: dict[tuple, Literal | Var] = field(default_factory=dict)  # structural key -> its name
    open: bool = True


@dataclass(slots=True)
class _Result:
    """What an expression became: a literal or variable, where it is defined, and when it stops being current."""

    expr: Literal | Var
    scope: _Scope
    epoch: int | None  # None: holds for ever; else only while no store has happened since


class _Normaliser:
    def __init__(self, kernel: Kernel):
        self.definitions = kernel.definitions
        self.volatile = {buffer.name for buffer in kernel.buffers if buffer.written}
        self.scope = _Scope(0, 0)
        self.scopes = [self.scope]
        self.epoch = 0
        self.count = 0
        self.results: dict[int, _Result] = {}  # by id of the expression
        self.alive: list[Expr] = []  # keeps those ids from being used again
        self.names: dict[str, _Result] = {}
        for buffer in kernel.buffers:
            self.bind(buffer.name, Var(buffer.name, buffer.dtype))
        for scalar in kernel.scalars:
            self.bind(scalar.name, Var(scalar.name, scalar.dtype))
        for name in kernel.ranges:
            self.bind(name, Var(name, dtypes.int64))

    # --- statements ---

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        out = self.scope.out
        match stmt:
            case Let(name, value):
                result = self.lower(value)
                self.names[name] = _Result(result.expr, result.scope, None)
            case Store(buffer, index, value, mask):
                condition = None if mask is None else self.lower(mask).expr
                if isinstance(condition, Literal) and not condition.value:
                    return
                lowered = self.lower(value).expr
                self.index_scope(index)
                out.append(Store(buffer, index, lowered, _unless_true(condition)))
                self.epoch += 1
            case Update(name, value, factor):
                first, second = self.lower(value).expr, None if factor is None else self.lower(factor).expr
                out.append(Update(name, first, second))
            case Loop():
                start, stop = self.bound(stmt.start), self.bound(stmt.stop)
                variable = Var(stmt.axis.name, dtypes.int64)
                body = self.write_block(stmt.body, variable)
                out.append(replace(stmt, start=start, stop=stop, body=body))
            case Reduction(accumulators, body):
                out.append(replace(stmt, body=self.write_block(body)))
                for accumulator in accumulators:
                    self.bind(accumulator.name, Var(accumulator.name, accumulator.dtype))
            case If(condition, body, otherwise):
                test = self.lower(condition).expr
                inside = self.write_block(body, guarded=True)
                out.append(If(test, inside, self.write_block(otherwise, guarded=True) if otherwise else ()))
            case Local(name):
                self.volatile.add(name)
                out.append(stmt)
            case Barrier() | AwaitCopies():
                self.epoch += 1
                out.append(stmt)
            case AsyncCopy():
                valid = self.bound(stmt.valid)
                self.append_move(replace(stmt, valid=valid), (stmt.at, stmt.index))
            case Copy() | TileLoad():
                self.append_move(stmt, (stmt.at, stmt.index))
            case TileProduct():
                self.append_move(stmt, (stmt.sums_at, stmt.a_at, stmt.b_at))

    def append_move(self, stmt: Stmt, indices: tuple[ix.Index, ...]) -> None:
        """A statement that changes memory at some of `indices`."""
        for index in indices:
            self.index_scope(index)
        self.scope.out.append(stmt)
        self.epoch += 1

    def write_block(
        self, body: tuple[Stmt, ...], variable: Var | None = None, guarded: bool = False
    ) -> tuple[Stmt, ...]:
        """The normal form of an inner block, in which `variable` (a loop's axis) is defined."""
        depth = self.scope.depth + 1
        scope = _Scope(depth, depth if guarded else self.scope.guard)
        self.scopes.append(scope)
        self.scope = scope
        self.epoch += 1
        if variable is not None:
            self.bind(variable.name, variable)
        self.block(body)
        scope.open = False
        self.scopes.pop()
        self.scope = self.scopes[-1]
        self.epoch += 1
        return tuple(scope.out)

    def bind(self, name: str, value: Literal | Var) -> None:
        self.names[name] = _Result(value, self.scope, None)

    def bound(self, value: Expr | int) -> Expr | int:
        if isinstance(value, int):
            return value
        lowered = self.lower(value).expr
        return int(lowered.value) if isinstance(lowered, Literal) else lowered

    # --- expressions ---

    def lower(self, expr: Expr) -> _Result:
        """Name `expr` and all it is made of. Iterative: fused chains are deeper than Python's stack."""
        pending = [expr]
        while pending:
            top = pending[-1]
            if self.current(top) is not None:
                pending.pop()
                continue
            missing = [part for part in _parts(top) if self.current(part) is None]
            if missing:
                pending.extend(reversed(missing))
                continue
            self.results[id(top)] = self.define(top)
            self.alive.append(top)
            pending.pop()
        return self.results[id(expr)]

    def current(self, expr: Expr) -> _Result | None:
        """The result of `expr` if it was computed before and still holds."""
        result = self.results.get(id(expr))
        if result is None or not result.scope.open:
            return None
        return result if result.epoch is None or result.epoch == self.epoch else None

    def define(self, expr: Expr) -> _Result:
        """The result of `expr`, whose parts all have theirs."""
        match expr:
            case Literal():
                return _Result(expr, self.scopes[0], None)
            case Var(name):
                return self.variable(name)
            case Op(name, args, dtype):
                parts = [self.results[id(arg)] for arg in args]
                scope, epoch = self.scopes[0], None  # the first of the deepest scopes; of the root if none is deeper
                for part in parts:
                    if part.scope.depth > scope.depth:
                        scope = part.scope
                    if part.epoch is not None:
                        epoch = self.epoch
                trivial = fold_constants(Op(name, tuple([part.expr for part in parts]), dtype))
                if not isinstance(trivial, Op):
                    return _Result(trivial, scope, epoch)
                key = (name, dtype, *[_key(arg) for arg in trivial.args])
                return _Result(self.name_value(key, trivial, scope), scope, epoch)
            case Load(buffer, index, dtype, mask):
                scope = self.index_scope(index)
                condition: Literal | Var | None = None
                if mask is not None:
                    part = self.results[id(mask)]
                    scope = max(scope, part.scope, key=lambda scope: scope.depth)
                    condition = part.expr
                    if isinstance(condition, Literal) and not condition.value:
                        return _Result(_zero(dtype), self.scopes[0], None)
                condition = _unless_true(condition)
                load = Load(buffer, index, dtype, condition)
                key = ("load", buffer, index, dtype, None if condition is None else _key(condition))
                if buffer in self.volatile:
                    return _Result(self.name_value((*key, self.epoch), load, self.scope), self.scope, self.epoch)
                if scope.depth < self.scope.guard:
                    scope = self.scopes[self.scope.guard]
                return _Result(self.name_value(key, load, scope), scope, None)
            case IndexValue(index, dtype):
                if index.is_const:
                    return _Result(Literal(index.const, dtype), self.scopes[0], None)
                scope = self.index_scope(index)
                return _Result(self.name_value(("index", index, dtype), expr, scope), scope, None)
        raise AssertionError(expr)

    def name_value(self, key: tuple, value: Expr, scope: _Scope) -> Literal | Var:
        """The variable that holds `value` in `scope`: the one known already, or a new `Let` at its end."""
        found = scope.known.get(key)
        if found is None:
            found = Var(f"t{self.count}", value.dtype)
            self.count += 1
            scope.known[key] = found
            scope.out.append(Let(found.name, value))
        return found

    def variable(self, name: str) -> _Result:
        result = self.names.get(name)
        if result is None or not result.scope.open:
            raise problem(
                GraphError,
                "kernels.ir.normalize",
                f"a use of '{name}' outside the block that defines it",
                "a scalar, a range, an axis of a loop around it, or a value named before it",
            )
        return result

    def index_scope(self, index: ix.Index) -> _Scope:
        """The block where every axis of `index` is defined; defines its value axes on the way."""
        found = self.scopes[0]
        for axis in sorted(ix.axes_of(index), key=lambda axis: axis.name):
            if axis.kind == "value":
                self.value_axis(axis.name)
            scope = self.variable(axis.name).scope
            if scope.depth > found.depth:
                found = scope
        return found

    def value_axis(self, name: str) -> None:
        known = self.names.get(name)
        if (known is not None and known.scope.open) or name not in self.definitions:
            return
        first = self.count
        result = self.lower(self.definitions[name])
        variable = Var(name, result.expr.dtype)
        last = result.scope.out[-1] if result.scope.out else None
        if self.count > first and isinstance(last, Let) and last.name == _key(result.expr)[0]:
            self.rename(result, variable, last)
        else:
            result.scope.out.append(Let(name, result.expr))
        self.names[name] = _Result(variable, result.scope, None)

    def rename(self, result: _Result, variable: Var, last: Let) -> None:
        """Give the `Let` that was just written the name of its axis."""
        scope = result.scope
        scope.out[-1] = Let(variable.name, last.value)
        scope.known = {key: variable if known is result.expr else known for key, known in scope.known.items()}
        result.expr = variable


def _parts(expr: Expr) -> tuple[Expr, ...]:
    if isinstance(expr, Op):
        return expr.args
    if isinstance(expr, Load) and expr.mask is not None:
        return (expr.mask,)
    return ()


def _key(expr: Expr) -> tuple:
    """A key under which equal literals and variables are equal; 0.0 and -0.0 differ, NaN is NaN."""
    if isinstance(expr, Literal):
        return ("#", repr(expr.value), expr.dtype)
    assert isinstance(expr, Var)
    return (expr.name,)


def _zero(dtype: dtypes.DType) -> Literal:
    return Literal({"f": 0.0, "b": False}.get(dtype.kind, 0), dtype)


def _unless_true(condition: Literal | Var | None) -> Literal | Var | None:
    return None if isinstance(condition, Literal) and condition.value else condition


# --- constant folding ------------------------------------------------------------------------------------------------

_FOLDED = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_FOLDABLE = frozenset({*_FOLDED, "cast", "select"})


def _are_literals(args: tuple[Expr, ...]) -> bool:
    """A loop: most operations end it at their first operand, and a generator costs more than the rest of the
    folding."""
    for arg in args:  # noqa: SIM110
        if not isinstance(arg, Literal):
            return False
    return True


def _as_number(literal: Any) -> np.generic:
    return literal.dtype.numpy.type(literal.value)


def fold_constants(op: Op) -> Literal | Var | Op:
    """`op` with constants computed, and with the identities that hold for every value, NaN and -0.0 included."""
    name, args = op.name, op.args
    if name not in _FOLDABLE:
        return op
    if name in _FOLDED and _are_literals(args):
        with np.errstate(all="ignore"):
            return Literal(_FOLDED[name](*map(_as_number, args)).item(), op.dtype)
    if name == "cast" and args[0].dtype is op.dtype:
        return _leaf(args[0])
    if name == "select" and isinstance(args[0], Literal):
        return _leaf(args[1] if args[0].value else args[2])
    if name == "select" and args[1] is args[2]:
        return _leaf(args[1])
    if name in ("and", "or") and op.dtype is dtypes.bool_:
        for this, other in (args, args[::-1]):
            if isinstance(this, Literal):
                return _leaf(other if bool(this.value) == (name == "and") else this)
    if name == "mul" and isinstance(args[1], Literal) and args[1].value == 1:
        return _leaf(args[0])
    if name == "add" and op.dtype.kind in "iu" and isinstance(args[1], Literal) and args[1].value == 0:
        return _leaf(args[0])
    return op


def _leaf(expr: Expr) -> Literal | Var:
    assert isinstance(expr, Literal | Var)
    return expr
