"""The arguments of a kernel's function while it is traced: values, positions and arrays that record what is done with
them. `kernels.custom.trace.Recorder` says what each operation becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.base.dtypes import DType, int64
from weft.base.errors import GraphError, IndexRangeError, ShapeError
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import Expr, IndexValue

if TYPE_CHECKING:
    from weft.kernels.custom.trace import Recorder


class Extent(int):
    """The length of an axis. That of a first axis, used as a bound or a number, is an argument of the kernel."""

    name: str = ""


class Value:
    """One number at one point, known when the kernel runs."""

    __slots__ = ("expr", "recorder")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, recorder: Recorder, expr: Expr):
        self.recorder, self.expr = recorder, expr

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    def __bool__(self) -> bool:
        raise self.recorder.error(
            GraphError, "`if`, `and`, `or` or `not` with a value that is known only when the kernel runs",
            "weft.kernel.where(condition, a, b), or & | ~",
        )  # fmt: skip

    def __index__(self) -> int:
        raise self.recorder.error(
            GraphError, "a value of the kernel where Python needs a number", "weft.kernel.loop(n) for loops over it"
        )

    __int__ = __float__ = __iter__ = __len__ = __index__

    def __add__(self, other: Any) -> Value:
        return self.recorder.binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.recorder.binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.recorder.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.recorder.binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.recorder.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.recorder.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.recorder.divide(self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.recorder.divide(other, self)

    def __floordiv__(self, other: Any) -> Value:
        return self.recorder.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Value:
        return self.recorder.floor_divide(other, self)

    def __mod__(self, other: Any) -> Value:
        return self.recorder.modulo(self, other)

    def __pow__(self, other: Any) -> Value:
        return self.recorder.power(self, other)

    def __neg__(self) -> Value:
        return self.recorder.unary("neg", self)

    def __abs__(self) -> Value:
        return self.recorder.unary("abs", self)

    def __invert__(self) -> Value:
        return self.recorder.bits("not", self)

    def __and__(self, other: Any) -> Value:
        return self.recorder.bits("and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.recorder.bits("or", self, other)

    def __xor__(self, other: Any) -> Value:
        return self.recorder.bits("xor", self, other)

    def __lt__(self, other: Any) -> Value:
        return self.recorder.compare("lt", self, other)

    def __le__(self, other: Any) -> Value:
        return self.recorder.compare("le", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.recorder.compare("lt", other, self)

    def __ge__(self, other: Any) -> Value:
        return self.recorder.compare("le", other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self.recorder.compare("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self.recorder.compare("ne", self, other)


class Position(Value):
    """An integer made of the indices of loops: an offset in memory whose form the compiler knows."""

    __slots__ = ("index",)

    def __init__(self, recorder: Recorder, index: Index):
        super().__init__(recorder, IndexValue(index, int64))
        self.index = index

    def __add__(self, other: Any) -> Value:
        index = index_of(other)
        return super().__add__(other) if index is None else Position(self.recorder, self.index + index)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Value:
        index = index_of(other)
        return super().__sub__(other) if index is None else self + Position(self.recorder, index * -1)

    def __rsub__(self, other: Any) -> Value:
        index = index_of(other)
        return super().__rsub__(other) if index is None else Position(self.recorder, index) - self

    def __mul__(self, other: Any) -> Value:
        if isinstance(other, int):
            return Position(self.recorder, self.index * int(other))
        return super().__mul__(other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Value:
        if isinstance(other, int) and other > 0:
            return Position(self.recorder, self.index // int(other))
        return super().__floordiv__(other)

    def __mod__(self, other: Any) -> Value:
        if isinstance(other, int) and other > 0:
            return Position(self.recorder, self.index % int(other))
        return super().__mod__(other)


def index_of(item: Any) -> Index | None:
    """A position or a whole number as an index."""
    if isinstance(item, Position):
        return item.index
    return ix.const(int(item)) if isinstance(item, int) and not isinstance(item, bool) else None


class Array:
    """An input or output of a kernel, indexed by one position per axis: `x[i, j]`; outputs are assigned to."""

    def __init__(self, recorder: Recorder, name: str, label: str, shape: tuple[int, ...], dtype: DType, written: bool):
        self._recorder, self._name, self._label, self._written = recorder, name, label, written
        self.dtype = dtype
        self._extents = shape
        self.stored = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        if not self._extents:
            return ()
        first = Extent(self._extents[0])
        first.name = f"{self._name}_extent"
        return (first, *self._extents[1:])

    @property
    def ndim(self) -> int:
        return len(self._extents)

    def __getitem__(self, key: Any) -> Value:
        return self._recorder.load(self, self._offset(key))

    def load(self, *key: Any, other: Any = 0) -> Value:
        """The element, or `other` where an index lies outside."""
        return self._recorder.load_inside(self, self._items(key), other)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.store(key, value)

    def store(self, key: Any, value: Any, where: Any = None) -> None:
        """`x[key] = value`, only where the condition holds."""
        if not self._written:
            raise self._recorder.error(GraphError, f"an assignment to the input {self._label!r}", "one to an output")
        self.stored = True
        self._recorder.store(self, self._offset(key), value, where)

    def _items(self, key: Any) -> tuple:
        items = key if isinstance(key, tuple) else (key,)
        if len(items) != self.ndim:
            raise self._recorder.error(
                ShapeError, f"{len(items)} indices for {self._label!r} of shape {self._extents}", f"{self.ndim}"
            )
        return items

    def _offset(self, key: Any) -> Index:
        """The element's position in memory, with every index proven or made to lie inside."""
        indices = []
        for axis, (item, extent) in enumerate(zip(self._items(key), self._extents, strict=True)):
            index = self._recorder.index_of(item, self, axis)
            inside = index.low >= 0 and index.high < extent
            if isinstance(item, (int, Position)) and not inside and not self._recorder.never_run:
                raise self._recorder.error(
                    IndexRangeError,
                    f"{self._label}[...] with {_range(index)} on axis {axis} of extent {extent}",
                    f"0 to {extent - 1}",
                    "shorten the loop, or read with x.load(index, other=value)",
                )
            indices.append(index)
        return ix.linearise(tuple(indices), self._extents)


def _range(index: Index) -> str:
    return f"the index {index.low}" if index.is_const else f"indices from {index.low} to {index.high}"
