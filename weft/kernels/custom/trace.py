"""Writing kernels in Python: a function over proxies, traced once, becomes statements of the kernel language.

The function says what happens at one point of a domain. `Recorder` runs it with values that record;
`kernels.custom.numpy_eval` runs the same function with NumPy arrays, one element per point. The words that a function
uses (`loop`, `sum`, `where`, `exp`, ...) call the active recorder. What cannot be right is refused while the function
is traced.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from weft.base.dtypes import DType, bool_, float32, int64
from weft.base.errors import DTypeError, GraphError, problem
from weft.kernels.custom.proxies import Array, Extent, Position, Value, index_of
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    BufferParam,
    Expr,
    IndexValue,
    Let,
    Literal,
    Load,
    Loop,
    Op,
    Reduction,
    ScalarParam,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.math import float16
from weft.kernels.math import functions as kernel_math

FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "erf", "log1p", "expm1", "sqrt", "floor")
REDUCTIONS = ("sum", "prod", "max", "min")


_active: ContextVar[Any] = ContextVar("the recorder or stepper whose function runs now", default=None)


@contextlib.contextmanager
def activate(recorder: Any) -> Iterator[None]:
    """Functions of the kernel language call `recorder`, in this thread."""
    token = _active.set(recorder)
    try:
        yield
    finally:
        _active.reset(token)


def active() -> Any:
    """The recorder that functions of the kernel language call now."""
    recorder = _active.get()
    if recorder is None:
        raise problem(GraphError, "weft.kernel", "a function of the kernel language outside a kernel", "use inside one")
    return recorder


class Recorder:
    """Collects the statements of one kernel while its function runs."""

    def __init__(self, name: str):
        self.name = name
        self.blocks: list[list[Stmt]] = [[]]
        self.buffers: list[BufferParam] = []
        self.scalars: dict[str, tuple[ScalarParam, int | None]] = {}  # with their values, where known
        self.definitions: dict[str, Expr] = {}
        self.extents: dict[str, int] = {}  # first extents, by the scalar that holds them
        self.count = 0
        self.trip_counts = [1]  # iterations of the loops around the present statement
        self.work = 0
        self.accesses: list[Index] = []
        self.stores: list[Index] = []
        self.bounds: list[Index] = []  # positions that loops end at
        self.open_loops = 0
        self.never_run = 0  # loops around the present statement that have no iterations

    def error(self, kind: type[Any], given: str, expected: str, fix: str = "") -> Exception:
        return problem(kind, f"kernel {self.name}", given, expected, fix)

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, stmt: Stmt) -> None:
        self.blocks[-1].append(stmt)

    # --- parameters ---

    def array(self, label: str, shape: tuple[int, ...], dtype: DType, written: bool) -> Array:
        name = f"{'out' if written else 'in'}{len(self.buffers)}"
        self.buffers.append(BufferParam(name, dtype, written))
        if shape:
            self.extents[f"{name}_extent"] = shape[0]
        return Array(self, name, label, shape, dtype, written)

    def number(self, dtype: DType) -> Value:
        """A Python float among the arguments."""
        name = f"number{len(self.scalars)}"
        self.scalars[name] = (ScalarParam(name, dtype), None)
        return Value(self, Var(name, dtype))

    def position(self, index: Index) -> Position:
        return Position(self, index)

    def extent(self, name: str) -> Var:
        self.scalars.setdefault(name, (ScalarParam(name, int64), self.extents[name]))
        return Var(name, int64)

    # --- values ---

    def value(self, item: Any, dtype: DType | None = None) -> Value:
        """A value for whatever a function may write; a Python number takes `dtype`."""
        if isinstance(item, Value):
            return item
        if isinstance(item, Extent) and item.name:
            length = Value(self, self.extent(item.name))
            return length if dtype in (None, int64) else self.cast(length, dtype)
        if isinstance(item, bool):
            return Value(self, Literal(item, bool_))
        if isinstance(item, int) and dtype is not None:
            return Value(self, Literal(float(item) if dtype.kind == "f" else int(item), dtype))
        if isinstance(item, int):
            return Value(self, Literal(int(item), int64))
        if isinstance(item, float):
            if dtype is not None and dtype.kind != "f":
                raise self.error(
                    DTypeError, f"{item} beside a {dtype.name} value", "an integer", "cast the value to a float first"
                )
            return Value(self, Literal(item, dtype or float32))
        raise self.error(
            GraphError, f"a {type(item).__name__}", "elements x[i], indices and Python numbers",
            "pass tensors as arguments of the kernel",
        )  # fmt: skip

    def pair(self, name: str, a: Any, b: Any) -> tuple[Value, Value]:
        if not isinstance(a, Value):
            b = self.value(b)
            a = self.value(a, b.dtype)
        elif not isinstance(b, Value):
            b = self.value(b, a.dtype)
        if a.dtype is not b.dtype:
            raise self.error(
                DTypeError, f"{name} of {a.dtype.name} and {b.dtype.name}", "one dtype",
                "convert one with weft.kernel.cast(value, dtype)",
            )  # fmt: skip
        return a, b

    def op(self, name: str, args: Sequence[Value], dtype: DType) -> Value:
        self.work += math.prod(self.trip_counts)
        return Value(self, Op(name, tuple([arg.expr for arg in args]), dtype))

    def unary(self, name: str, x: Any) -> Value:
        x = self.value(x)
        return self.op(name, (x,), x.dtype)

    def binary(self, name: str, a: Any, b: Any) -> Value:
        a, b = self.pair(name, a, b)
        return self.op(name, (a, b), a.dtype)

    def divide(self, a: Any, b: Any) -> Value:
        a, b = self.pair("/", a, b)
        if a.dtype.kind != "f":
            raise self.error(DTypeError, f"/ of {a.dtype.name}", "floats", "use // or cast both")
        return self.op("div", (a, b), a.dtype)

    def floor_divide(self, a: Any, b: Any) -> Value:
        a, b = self.pair("//", a, b)
        return self.call("floor_divide", a, b) if a.dtype.kind == "f" else self.op("div", (a, b), a.dtype)

    def modulo(self, a: Any, b: Any) -> Value:
        a, b = self.pair("%", a, b)
        return self.call("mod", a, b) if a.dtype.kind == "f" else self.op("mod", (a, b), a.dtype)

    def power(self, x: Value, exponent: Any) -> Value:
        if isinstance(exponent, int) and 1 <= exponent <= 4:
            result = x
            for _ in range(exponent - 1):
                result = result * x
            return result
        a, b = self.pair("**", x, exponent)
        return self.call("pow", a, b)

    def bits(self, name: str, *args: Any) -> Value:
        values = self.pair(name, *args) if len(args) == 2 else (self.value(args[0]),)
        if values[0].dtype.kind == "f":
            raise self.error(DTypeError, f"{name} of {values[0].dtype.name}", "bool or integers", "compare it first")
        return self.op(name, values, values[0].dtype)

    def compare(self, name: str, a: Any, b: Any) -> Value:
        return self.op(name, self.pair(name, a, b), bool_)

    def where(self, condition: Any, a: Any, b: Any) -> Value:
        condition = self.value(condition)
        if condition.dtype is not bool_:
            raise self.error(DTypeError, f"where with a {condition.dtype.name} condition", "a bool, such as x[i] > 0")
        a, b = self.pair("where", a, b)
        return self.op("select", (condition, a, b), a.dtype)

    def cast(self, x: Any, dtype: DType) -> Value:
        x = self.value(x)
        if dtype.is_16_bit:  # rounded, and computed with as float32
            return Value(self, float16.round_to(self.cast(x, float32).expr, dtype))
        return x if x.dtype is dtype else self.op("cast", (x,), dtype)

    def call(self, name: str, *args: Any) -> Value:
        values = [self.value(arg) for arg in args]
        dtype = values[0].dtype
        if dtype.kind != "f":
            raise self.error(DTypeError, f"{name} of {dtype.name}", "a float", "cast it with weft.kernel.cast")
        if name in ("sqrt", "floor"):
            return self.op(name, values, dtype)
        self.work += 10 * math.prod(self.trip_counts)
        return Value(self, kernel_math.build(name, tuple([value.expr for value in values]), dtype))

    def extremum(self, name: str, a: Any, b: Any) -> Value:
        return self.binary(name, a, b)

    # --- memory ---

    def index_of(self, item: Any, array: Array, axis: int) -> Index:
        """An index as an integer form; one that was loaded is clamped, as `gather` does."""
        index = index_of(item)
        if index is not None:
            return index
        if not isinstance(item, Value) or item.dtype.kind not in "iu":
            what = item.dtype.name + " value" if isinstance(item, Value) else type(item).__name__
            raise self.error(DTypeError, f"a {what} as an index of {array._label!r}", "an index or an integer value")
        extent = array._extents[axis]
        if extent <= 1:
            return ix.ZERO
        last = self.limit(array, axis) - 1
        wide = self.cast(item, int64)
        name = self.fresh("g")
        self.definitions[name] = self.binary("max", self.binary("min", wide, last), 0).expr
        return ix.axis_index(Axis(name, extent, "value"))

    def limit(self, array: Array, axis: int) -> Value:
        """The extent of an axis as a value."""
        return self.value(array.shape[axis])

    def load(self, array: Array, offset: Index) -> Value:
        return self._record_load(array, Load(array._name, offset, array.dtype))

    def _record_load(self, array: Array, load: Load) -> Value:
        self.accesses.append(load.index)
        self.work += math.prod(self.trip_counts)
        if not array._written:
            return self._widen(Value(self, load))
        name = self.fresh("v")  # named where it is read, so that a later store does not change it
        self.emit(Let(name, load))
        return self._widen(Value(self, Var(name, array.dtype)))

    def _widen(self, value: Value) -> Value:
        """16-bit floats are computed with as float32."""
        return Value(self, float16.unpack(value.expr)) if value.dtype.is_16_bit else value

    def load_inside(self, array: Array, items: Sequence[Any], other: Any) -> Value:
        indices: list[Index] = []
        mask: Value | None = None
        for axis, item in enumerate(items):
            indices.append(self.index_of(item, array, axis))
            extent, index = array._extents[axis], indices[-1]
            known = isinstance(item, (int, Position))
            if known and index.low >= 0 and index.high < extent:
                continue
            here = self.cast(item, int64)
            inside = (self.value(0) <= here) & (here < self.limit(array, axis))
            mask = inside if mask is None else mask & inside
        offset = ix.linearise(tuple(indices), array._extents)
        load = self._record_load(array, Load(array._name, offset, array.dtype, None if mask is None else mask.expr))
        return load if mask is None else self.where(mask, load, other)

    def store(self, array: Array, offset: Index, value: Any, where: Any) -> None:
        computed = float32 if array.dtype.is_16_bit else array.dtype
        stored = self.value(value, computed)
        if stored.dtype is not computed:
            raise self.error(
                DTypeError, f"a {stored.dtype.name} value for {array._label!r}", computed.name,
                "convert it with weft.kernel.cast(value, dtype)",
            )  # fmt: skip
        if array.dtype.is_16_bit:
            stored = Value(self, float16.pack(float16.round_to(stored.expr, array.dtype), array.dtype))
        self.accesses.append(offset)
        self.stores.append(offset)
        mask = None if where is None else self.value(where)
        if mask is not None and mask.dtype is not bool_:
            raise self.error(DTypeError, f"where={mask.dtype.name}", "a bool, such as x[i] > 0")
        self.emit(Store(array._name, offset, stored.expr, None if mask is None else mask.expr))

    # --- loops ---

    def loop(self, start: Any, stop: Any) -> Iterator[Position]:
        low = self._bound(start)
        high = self._bound(stop)
        axis = Axis(self.fresh("r"), max(high.high - low.low, 1), "reduce")
        block: list[Stmt] = []
        self.blocks.append(block)
        self.trip_counts.append(axis.extent)
        self.open_loops += 1
        never = high.high <= low.low
        self.never_run += never
        yield Position(self, Index(((axis, 1),), 0) + low)
        self.never_run -= never
        self.open_loops -= 1
        self.blocks.pop()
        self.trip_counts.pop()
        self.emit(Loop(axis, 0, self._length(start, stop, low, high), "serial", tuple(block)))

    def _bound(self, item: Any) -> Index:
        index = index_of(item)
        if index is not None:
            self.bounds.append(index)
            return index
        raise self.error(GraphError, f"a {type(item).__name__} as a bound", "an int, an extent or an index")

    def _length(self, start: Any, stop: Any, low: Index, high: Index) -> Expr | int:
        if isinstance(stop, Extent) and stop.name:
            end = self.extent(stop.name)
            return end if start == 0 else end - IndexValue(low, int64)
        length = high - low
        return length.const if length.is_const else IndexValue(length, int64)

    def reduce(self, op: str, bounds: Sequence[Any], term: Callable[[Any], Any]) -> Value:
        start, stop = bounds
        name = self.fresh("acc")
        outer, self.blocks = self.blocks, [*self.blocks, []]
        value: Value | None = None
        for j in self.loop(start, stop):
            value = self.value(term(j))
            self.work += math.prod(self.trip_counts)
            self.emit(Update(name, value.expr))
        assert value is not None
        body = tuple(self.blocks.pop())
        self.blocks = outer
        self.emit(Reduction((Accumulator(name, op, value.dtype),), body))
        return Value(self, Var(name, value.dtype))


# --- functions --------------------------------------------------------------------------------------------------------


def loop(start: Any, stop: Any = None) -> Iterator[Any]:
    """`for j in weft.kernel.loop(n):` or `loop(start, stop)`: one after the other."""
    start, stop = (0, start) if stop is None else (start, stop)
    return active().loop(start, stop)


def _reduction(op: str) -> Callable[..., Any]:
    def reduction(*bounds_and_term: Any) -> Any:
        *bounds, term = bounds_and_term
        start, stop = bounds if len(bounds) == 2 else (0, *bounds)
        return active().reduce(op, (start, stop), term)

    reduction.__name__ = op
    reduction.__doc__ = f"`{op}(n, lambda j: ...)` or `{op}(start, stop, lambda j: ...)`: the terms in order."
    return reduction


def _function(name: str) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return active().call(name, x)

    call.__name__, call.__doc__ = name, f"`{name}` of a float."
    return call


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`. Both are computed."""
    return active().where(condition, a, b)


def cast(x: Any, dtype: DType) -> Any:
    """`x` in another dtype."""
    return active().cast(x, dtype)


def maximum(a: Any, b: Any) -> Any:
    """The larger; NaN if one is NaN."""
    return active().extremum("max", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller; NaN if one is NaN."""
    return active().extremum("min", a, b)


WORDS: dict[str, Callable[..., Any]] = {
    "loop": loop,
    "where": where,
    "cast": cast,
    "maximum": maximum,
    "minimum": minimum,
    **{name: _reduction(name) for name in REDUCTIONS},
    **{name: _function(name) for name in FUNCTIONS},
}
