"""Python numbers that may differ at every call of a compiled function.

While a function is traced, such a number is a `HostNumber`. Arithmetic on it is recorded on a `Tape` and done again on
the host before each run, in Python's own arithmetic. Where it becomes an operand of a tensor operation it is an input
of the plan in the operand's dtype (`build.const` asks for it). Whatever needs the number itself (a branch, a shape, an
index, `math.sqrt`) gets it and makes it a guard: another value is another trace. Guards are as wide as what was asked:
`if step % 10 == 0` guards one bool, not `step`.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.graph.node import Node, placeholder, toposort

Operation = tuple[Callable[..., Any], tuple[Any, ...]]


class Tape:
    """What one trace did with its numbers: entry k is source k, or an operation on constants and earlier entries."""

    def __init__(self) -> None:
        self.operations: list[Operation | None] = []  # None: a source, whose value is given before each run
        self.values: list[Any] = []  # during the trace
        self.guards: set[int] = set()  # entries whose values were asked for
        self.used: set[int] = set()  # entries that anything was done with
        self.hashed: set[int] = set()  # entries that may have become part of a node, as shapes do
        self.inputs: dict[tuple[int, DType, Any], Node] = {}
        self._thread: int | None = threading.get_ident()

    def source(self, value: Any) -> HostNumber:
        """A number that is passed before each run; `value` is what it is now."""
        return self._entry(None, value)

    def close(self) -> None:
        """The trace is over: from now on its numbers are what they were, and nothing is recorded."""
        self._thread = None

    def records(self) -> bool:
        """Whether the function that this tape belongs to is being traced by the calling thread."""
        return self._thread == threading.get_ident()

    def apply(self, function: Callable[..., Any], *operands: Any) -> Any:
        """`function(*operands)`, recorded; some operands are numbers of this tape."""
        plain = [_value_of(operand) for operand in operands]
        if not self.records():
            return function(*plain)
        refs: list[Any] = []
        for operand, value in zip(operands, plain, strict=True):
            if type(operand) is HostNumber and operand._tape is self:
                self.used.add(operand._index)
                refs.append(Ref(operand._index))
            else:
                refs.append(value)
        try:
            value = function(*plain)
        except ArithmeticError:  # which values raise is known only with the values
            self.guards.update(ref.index for ref in refs if type(ref) is Ref)
            raise
        return self._entry((function, tuple(refs)), value)

    def input(self, number: HostNumber, dtype: DType, device: Any) -> Node:
        """The plan's input for a number as an operand of `dtype`."""
        key = (number._index, dtype, device)
        if key not in self.inputs:
            self.used.add(number._index)
            self.inputs[key] = placeholder((), dtype, device)
        return self.inputs[key]

    def _entry(self, operation: Operation | None, value: Any) -> HostNumber:
        self.operations.append(operation)
        self.values.append(value)
        return HostNumber(self, len(self.values) - 1)

    def find_needed(self, wanted: Sequence[int]) -> list[int]:
        """`wanted` and the entries that they are computed from, in order."""
        found = set(wanted)
        for index in range(max(found, default=-1), -1, -1):
            operation = self.operations[index]
            if index in found and operation is not None:
                found.update(ref.index for ref in operation[1] if type(ref) is Ref)
        return sorted(found)


def numbers_in(roots: Iterable[Node]) -> set[int]:
    """The entries of numbers that are attributes of nodes below `roots`, where only plain ones may be."""
    found: set[int] = set()
    waiting: list[Any] = []
    for node in toposort(roots):
        waiting.extend(node.attrs)
    while waiting:
        value = waiting.pop()
        if type(value) is HostNumber:
            found.add(value._index)
        elif isinstance(value, tuple):
            waiting.extend(value)
        else:  # the body of a loop
            waiting.extend(node.attrs for node in getattr(value, "nodes", ()) if isinstance(node, Node))
    return found


class Ref:
    """An earlier entry of the tape, as an operand."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


def _value_of(value: Any) -> Any:
    return value._tape.values[value._index] if type(value) is HostNumber else value


def _binary(function: Callable[..., Any], name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The methods `__name__` and `__rname__`."""

    def left(self: HostNumber, other: Any) -> Any:
        if isinstance(other, (int, float)):
            return self._tape.apply(function, self, other)
        return function(self._read(), other) if isinstance(other, (np.generic, np.ndarray)) else NotImplemented

    def right(self: HostNumber, other: Any) -> Any:
        if isinstance(other, (int, float)):
            return self._tape.apply(function, other, self)
        return function(other, self._read()) if isinstance(other, (np.generic, np.ndarray)) else NotImplemented

    left.__name__, right.__name__ = f"__{name}__", f"__r{name}__"
    return left, right


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: self._tape.apply(function, self)


class HostNumber:
    """A Python int, float or bool that is known only at each call. It says that it is one (`isinstance`)."""

    __slots__ = ("_index", "_tape")
    __array_ufunc__ = None  # so that NumPy leaves mixed expressions to us: a Python number is weak there, too

    def __init__(self, tape: Tape, index: int):
        self._tape, self._index = tape, index

    def _read(self) -> Any:
        """The value itself, which the trace depends on from now on."""
        if self._tape.records():
            self._tape.guards.add(self._index)
            self._tape.used.add(self._index)
        return self._tape.values[self._index]

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(_value_of(self))

    __add__, __radd__ = _binary(operator.add, "add")
    __sub__, __rsub__ = _binary(operator.sub, "sub")
    __mul__, __rmul__ = _binary(operator.mul, "mul")
    __truediv__, __rtruediv__ = _binary(operator.truediv, "truediv")
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv, "floordiv")
    __mod__, __rmod__ = _binary(operator.mod, "mod")
    __and__, __rand__ = _binary(operator.and_, "and")
    __or__, __ror__ = _binary(operator.or_, "or")
    __xor__, __rxor__ = _binary(operator.xor, "xor")
    __lshift__, __rlshift__ = _binary(operator.lshift, "lshift")
    __rshift__, __rrshift__ = _binary(operator.rshift, "rshift")
    _power, _rpower = _binary(operator.pow, "pow")
    __lt__, __le__ = _binary(operator.lt, "lt")[0], _binary(operator.le, "le")[0]
    __gt__, __ge__ = _binary(operator.gt, "gt")[0], _binary(operator.ge, "ge")[0]
    __eq__, __ne__ = _binary(operator.eq, "eq")[0], _binary(operator.ne, "ne")[0]
    __neg__, __pos__, __abs__ = _unary(operator.neg), _unary(operator.pos), _unary(operator.abs)
    __invert__ = _unary(operator.invert)
    __floor__, __ceil__, __trunc__ = _unary(math.floor), _unary(math.ceil), _unary(math.trunc)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        return self._power(other) if modulus is None else pow(self._read(), _read(other), _read(modulus))

    def __rpow__(self, other: Any) -> Any:
        return self._rpower(other)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __round__(self, digits: Any = None) -> Any:
        return self._tape.apply(round, self, digits)

    def __bool__(self) -> bool:
        if self._tape.records() and type(_value_of(self)) is not bool:
            return bool(self._tape.apply(operator.truth, self))  # guards the truth, not the number
        return bool(self._read())

    def __index__(self) -> int:
        return operator.index(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __complex__(self) -> complex:
        return complex(self._read())

    def __hash__(self) -> int:
        self._tape.hashed.add(self._index)
        return hash(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def __str__(self) -> str:
        return str(self._read())

    def __format__(self, form: str) -> str:
        return format(self._read(), form)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), dtype=dtype)

    def __reduce__(self) -> Any:
        value = self._read()
        return type(value), (value,)

    def __copy__(self) -> HostNumber:
        return self

    def __deepcopy__(self, memo: Any) -> HostNumber:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)


def _read(value: Any) -> Any:
    return value._read() if type(value) is HostNumber else value
