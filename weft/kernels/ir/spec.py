"""What must hold of a nest. Tests check it after lowering; users never pay for it.

Every name is defined once and in scope where it is used, operations get operands of the dtypes that they take, stores
go to buffers that are written, and no access leaves its buffer. The last rule is proven from the ranges of the indices
where that is possible; otherwise corners of the loops are tried, and one that is outside is an error.
`kernels.ir.kernel_spec` has the rules of kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from weft.base.dtypes import DType, bfloat16, bool_, float32, int32, int64, uint32
from weft.base.errors import GraphError, problem
from weft.kernels.ir import index as ix
from weft.kernels.ir.expressions import ARITHMETIC, BITS, COMPARE, GPU, LARGE, NATIVE, OPERATIONS
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Accumulator, Expr, IndexValue, Literal, Load, Op, Store, Var
from weft.kernels.ir.nest import COMBINE, Nest

VECTOR_AXES = ("points", "lane", "inner", "scatter")
OPERANDS = {"neg": 1, "abs": 1, "sqrt": 1, "floor": 1, "not": 1, "cast": 1, "bitcast": 1, "fma": 3, "select": 3}
OPERANDS |= dict.fromkeys(NATIVE, 1)  # every other operation has two, those of LARGE and `aligned` any number
KINDS = {"fma": "f", "sqrt": "f", "floor": "f", "mod": "iu", "shl": "iu", "shr": "iu"}  # dtypes by DType.kind
KINDS |= dict.fromkeys(("and", "or", "xor", "not"), "biu")
ALIKE = frozenset({*ARITHMETIC, *BITS})  # operands have the dtype of the result
CONVERTED = {"widen": (bfloat16, float32), "narrow": (float32, bfloat16)}  # dtypes of operand and result


def spec_error(where: str, given: str, expected: str) -> Exception:
    """The error for what is not as its spec says."""
    return problem(GraphError, f"kernel spec, {where}", given, expected)


# --- expressions -----------------------------------------------------------------------------------------------------


class Scope:
    """The names that expressions may use here. Expressions are shared graphs: each is checked once, until a block that
    it was checked in ends, and with that the names that it may use."""

    def __init__(self, where: str, definitions: Mapping[str, Expr], for_gpu: bool, of_nest: bool):
        self.where, self.definitions, self.for_gpu, self.of_nest = where, definitions, for_gpu, of_nest
        self.names: dict[str, DType] = {}  # variables, and axes of loops
        self.arrays: dict[str, DType] = {}  # what can be loaded from
        self.sizes: dict[str, int] = {}  # of arrays, where it is known
        self.ranges: dict[str, tuple[int, int]] = {}  # the first and the last value of axes, where they are known
        self.checked: dict[int, None] = {}  # ids of expressions, in the order in which they were met
        self.defined: list[str] = []  # value axes whose definitions are in scope

    def add_name(self, name: str, dtype: DType) -> None:
        """Define a name, which is not in scope yet."""
        if name in self.names or name in self.arrays:
            raise spec_error(self.where, f"'{name}' defined twice", "every name once")
        self.names[name] = dtype

    def add_array(self, name: str, dtype: DType, size: int | None) -> None:
        self.add_name(name, dtype)
        del self.names[name]
        self.arrays[name] = dtype
        if size is not None:
            self.sizes[name] = size

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is defined inside ends with the block."""
        names, arrays, sizes, ranges = dict(self.names), dict(self.arrays), dict(self.sizes), dict(self.ranges)
        checked, defined = len(self.checked), len(self.defined)
        yield
        self.names, self.arrays, self.sizes, self.ranges = names, arrays, sizes, ranges
        while len(self.checked) > checked:
            self.checked.popitem()
        del self.defined[defined:]

    def check_condition(self, condition: Expr) -> None:
        if condition.dtype is not bool_:
            raise spec_error(self.where, f"a condition of {condition.dtype.name}", "a bool")
        self.check_value(condition)

    def check_bound(self, bound: Expr | int) -> None:
        """Where a loop begins or ends: an integer, or an expression of int64 or int32."""
        if isinstance(bound, int):
            return
        if bound.dtype not in (int64, int32):
            raise spec_error(self.where, f"a loop bound of {bound.dtype.name}", "int64 or int32")
        self.check_value(bound)

    def check_value(self, value: Expr) -> None:
        """Raise GraphError unless an expression, and all that it is made of, is legal here."""
        checked, stack = self.checked, [value]
        while stack:
            expr = stack.pop()
            if id(expr) in checked:
                continue
            checked[id(expr)] = None
            if isinstance(expr, Op):
                _check_operation(expr, self.where, self.for_gpu)
                stack.extend(expr.args if expr.name != "aligned" else ())
            elif isinstance(expr, Load):
                stack.extend(self._check_load(expr))
            elif isinstance(expr, Var):
                if self.names.get(expr.name) is not expr.dtype:
                    known = self.names.get(expr.name)
                    given = f"the variable '{expr.name}' of {expr.dtype.name}" + (f", {known.name}" if known else "")
                    raise spec_error(self.where, given, "a name that is defined before it is used, with its dtype")
            elif isinstance(expr, IndexValue):
                if expr.dtype.kind not in "iu":
                    raise spec_error(self.where, f"an index as {expr.dtype.name}", "an integer")
                stack.extend(self.check_axes(expr.index))

    def _check_load(self, load: Load) -> list[Expr]:
        """Check a load; what has to be checked besides."""
        dtype = self.arrays.get(load.buffer)
        if dtype is None:
            raise spec_error(self.where, f"a load from '{load.buffer}'", "a buffer or an array that is defined before")
        if dtype is not load.dtype and not (self.for_gpu and dtype is bfloat16 and load.dtype is float32):
            raise spec_error(self.where, f"{load.dtype.name} from '{load.buffer}', {dtype.name}", "its dtype")
        if load.mask is not None and load.mask.dtype is not bool_:
            raise spec_error(self.where, f"a condition of {load.mask.dtype.name}", "a bool")
        more = self.check_axes(load.index)
        self.check_range(load.buffer, load.index, load.mask)
        return more if load.mask is None else [*more, load.mask]

    def check_axes(self, index: Index) -> list[Expr]:
        """Every axis of an index is in scope, or has a definition; the definitions that were not checked here."""
        more: list[Expr] = []
        pending = [index]
        while pending:
            for atom, _ in pending.pop().terms:
                if not isinstance(atom, Axis):
                    pending.append(atom.value)
                elif atom.name not in self.names and atom.name not in self.defined:
                    definition = self.definitions.get(atom.name) if atom.kind == "value" else None
                    if definition is None:
                        raise spec_error(self.where, f"the axis '{atom.name}'", "an axis of a loop around it")
                    if definition.dtype.kind not in "iu":
                        raise spec_error(self.where, f"'{atom.name}' of {definition.dtype.name}", "an integer")
                    self.defined.append(atom.name)
                    if self.of_nest:  # what is loaded may be any index of its axis
                        self.ranges[atom.name] = 0, atom.high
                    more.append(definition)
        return more

    def check_range(self, array: str, index: Index, mask: Expr | None) -> None:
        """An access stays inside of its array, where its size is known."""
        size = self.sizes.get(array)
        if size is None or (index.low >= 0 and index.high < size):
            return
        for point in corners(index, self.ranges):
            at = ix.value_at(index, point)
            if not 0 <= at < size and (mask is None or condition_at(mask, point)):
                place = ", ".join([f"{axis.name} = {value}" for axis, value in sorted(point.items(), key=str)])
                raise spec_error(self.where, f"element {at} of '{array}' ({index} at {place})", f"one of {size}")

    def check_store(self, store: Store, can_write: Callable[[str], bool]) -> None:
        """A store goes to memory that is written, with its dtype, inside of it."""
        dtype = self.arrays.get(store.buffer)
        if dtype is None or not can_write(store.buffer):
            raise spec_error(self.where, f"a store to '{store.buffer}'", "a buffer that is written, or an array")
        if store.value.dtype is not dtype:
            raise spec_error(
                self.where, f"{store.value.dtype.name} stored to '{store.buffer}', {dtype.name}", "its dtype"
            )
        if store.mask is not None:
            self.check_condition(store.mask)
        for more in self.check_axes(store.index):
            self.check_value(more)
        self.check_range(store.buffer, store.index, store.mask)
        self.check_value(store.value)


def _check_operation(op: Op, where: str, for_gpu: bool) -> None:
    name, args, dtype = op.name, op.args, op.dtype
    if name not in OPERATIONS:
        raise spec_error(where, f"the operation '{name}'", "one of OPERATIONS")
    if name in LARGE:
        if args[0].dtype is not bool_ or args[1].dtype is not dtype:
            raise _operand_error(op, where)
        return
    if name in GPU or name in NATIVE:
        if not for_gpu:
            raise spec_error(where, f"the operation '{name}'", "operations of GPUs in kernels for GPUs alone")
        if name == "aligned":
            return
    if len(args) != OPERANDS.get(name, 2):
        raise spec_error(where, f"'{name}' with {len(args)} operands", f"{OPERANDS.get(name, 2)}")
    if dtype.kind not in KINDS.get(name, "fiub"):
        raise spec_error(where, f"'{name}' of {dtype.name}", "a dtype that has it")
    if not _has_its_dtypes(name, [arg.dtype for arg in args], dtype):
        raise _operand_error(op, where)


def _has_its_dtypes(name: str, given: list[DType], dtype: DType) -> bool:
    if name in ALIKE:
        return all(one is dtype for one in given)
    if name in COMPARE:
        return given[0] is given[1] and dtype is bool_
    if name == "select":
        return given[0] is bool_ and given[1] is dtype and given[2] is dtype
    if name == "bitcast":
        return given[0].itemsize == dtype.itemsize
    if name == "mulhi":
        return given[0] is given[1] is dtype is uint32
    return name == "cast" or (given[0], dtype) == CONVERTED.get(name, (dtype, dtype))


def _operand_error(op: Op, where: str) -> Exception:
    given = ", ".join([arg.dtype.name for arg in op.args])
    return spec_error(where, f"'{op.name}' of ({given}) as {op.dtype.name}", "operands of the dtypes that it takes")


# --- ranges ----------------------------------------------------------------------------------------------------------


def corners(index: Index, ranges: Mapping[str, tuple[int, int]]) -> list[dict[Axis, int]]:
    """Points of the loops at which an index is likely to be smallest or largest; none where an axis has no range."""
    axes = ix.axes_of(index)
    if not all(axis.name in ranges for axis in axes):
        return []
    first = {axis: ranges[axis.name][0] for axis in axes}
    last = {axis: ranges[axis.name][1] for axis in axes}
    falling = {atom for atom, coefficient in index.terms if coefficient < 0}
    lowest = {axis: (last if axis in falling else first)[axis] for axis in axes}
    highest = {axis: (first if axis in falling else last)[axis] for axis in axes}
    return [lowest, highest, first, last]


def condition_at(condition: Expr, point: Mapping[Axis, int]) -> bool:
    """Whether a condition on indices holds at a point; False where it depends on more than these axes."""
    return _value_at(condition, point) is True


def _value_at(expr: Expr, point: Mapping[Axis, int]) -> int | None:
    """An integer or a bool at a point; None where it is not known."""
    if isinstance(expr, Literal):
        return expr.value if isinstance(expr.value, int) else None
    if isinstance(expr, IndexValue):
        return ix.value_at(expr.index, point) if ix.axes_of(expr.index) <= set(point) else None
    if not isinstance(expr, Op) or expr.name not in _FUNCTIONS:
        return None
    values = [_value_at(arg, point) for arg in expr.args]
    return None if None in values else _FUNCTIONS[expr.name](*values)


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: not a if isinstance(a, bool) else ~a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": min,
    "max": max,
}


# --- nests -----------------------------------------------------------------------------------------------------------


def check_nest(nest: Nest, sizes: Mapping[str, int], tile: Iterable[Axis] = ()) -> None:
    """Raise GraphError unless a nest is legal. `sizes` are the elements of its buffers, as far as they are known; an
    epilogue has the axes of a `tile` around it."""
    where = f"nest {nest.name}"
    if nest.vector_axis not in VECTOR_AXES:
        raise spec_error(where, f"the vector axis {nest.vector_axis!r}", f"one of {VECTOR_AXES}")
    if not (nest.point_stores or nest.inner_stores or nest.columns):
        raise spec_error(where, "no stores", "a nest that stores something")
    if not nest.inner and (nest.stages or nest.inner_stores or nest.checks):
        raise spec_error(where, "reductions or stores for inner elements", "inner axes for them")
    scope = Scope(where, nest.definitions, for_gpu=False, of_nest=True)
    for scalar in nest.scalars:
        scope.add_name(scalar.name, scalar.dtype)
    for buffer in nest.buffers:
        scope.add_array(buffer.name, buffer.dtype, sizes.get(buffer.name))
    for axis in dict.fromkeys((nest.points, *([nest.lane] if nest.lane else []), *tile)):
        _add_axis(scope, axis)
    for name in nest.definitions:
        if name in scope.names or name in scope.arrays:
            raise spec_error(where, f"'{name}' defined twice", "every name once")
    check_definitions(nest.definitions, where)
    _NestChecker(nest, scope).check()


def check_definitions(definitions: Mapping[str, Expr], where: str) -> None:
    """Raise GraphError if an axis that is loaded is defined by itself."""
    uses = {name: _loaded_axes(value) & set(definitions) for name, value in definitions.items()}
    while uses:
        ready = [name for name, used in uses.items() if not used & set(uses)]
        if not ready:
            raise spec_error(where, f"{sorted(uses)} defined by themselves", "definitions by what is known before")
        for name in ready:
            del uses[name]


def _loaded_axes(value: Expr) -> set[str]:
    """The names of the axes of kind 'value' that an expression uses."""
    found: set[str] = set()
    seen: set[int] = set()
    stack = [value]
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if isinstance(expr, Op):
            stack.extend(expr.args)
        elif isinstance(expr, Load | IndexValue):
            found.update([axis.name for axis in ix.axes_of(expr.index) if axis.kind == "value"])
            if isinstance(expr, Load) and expr.mask is not None:
                stack.append(expr.mask)
    return found


def _add_axis(scope: Scope, axis: Axis) -> None:
    if axis.extent <= 0:
        raise spec_error(scope.where, f"the axis '{axis.name}' of extent {axis.extent}", "a positive extent")
    if axis.kind == "value":
        raise spec_error(scope.where, f"a loop over '{axis.name}', which is loaded", "loops over other axes")
    scope.add_name(axis.name, int64)
    scope.ranges[axis.name] = 0, axis.high


class _NestChecker:
    def __init__(self, nest: Nest, scope: Scope):
        self.nest, self.scope = nest, scope
        self.written = {buffer.name for buffer in nest.buffers if buffer.written}

    def check(self) -> None:
        nest, scope = self.nest, self.scope
        for name in nest.scratch:
            if name not in self.written:
                raise spec_error(scope.where, f"scratch memory '{name}'", "a buffer that is written")
        with scope.block():  # before any reduction
            self._enter_inner_loops()
            for check in nest.checks:
                scope.check_store(check, self.written.__contains__)
        for stage in nest.stages:
            self._check_stage(stage)
        for store in nest.point_stores:
            scope.check_store(store, self.written.__contains__)
        if nest.inner_stores or nest.columns:
            self._enter_inner_loops()
            for store in nest.inner_stores:
                scope.check_store(store, self.written.__contains__)
            self._check_columns()

    def _enter_inner_loops(self) -> None:
        for span in self.nest.inner:
            self.scope.check_bound(span.start)
            self.scope.check_bound(span.stop)
            if isinstance(span.start, int) and isinstance(span.stop, int) and not 0 <= span.start < span.stop:
                raise spec_error(self.scope.where, f"a loop from {span.start} to {span.stop}", "one that runs")
            if isinstance(span.stop, int) and span.stop > span.axis.extent:
                raise spec_error(self.scope.where, f"a loop to {span.stop} over {span.axis}", "one inside its axis")
            _add_axis(self.scope, span.axis)

    def _check_stage(self, stage: tuple[tuple[Accumulator, Expr], ...]) -> None:
        """Values that are reduced use the results of earlier stages alone."""
        scope = self.scope
        with scope.block():
            self._enter_inner_loops()
            for accumulator, value in stage:
                check_accumulator(accumulator, scope.where)
                if value.dtype is not accumulator.dtype:
                    given = f"{value.dtype.name} for '{accumulator.name}', {accumulator.dtype.name}"
                    raise spec_error(scope.where, given, "its dtype")
                scope.check_value(value)
        for accumulator, _ in stage:
            scope.add_name(accumulator.name, accumulator.dtype)

    def _check_columns(self) -> None:
        scope = self.scope
        for column in self.nest.columns:
            dtype = scope.arrays.get(column.buffer)
            if column.buffer not in self.written:
                raise spec_error(scope.where, f"column sums in '{column.buffer}'", "a buffer that is written")
            check_accumulator(column.accumulator, scope.where)
            if not (column.value.dtype is column.accumulator.dtype is dtype):
                raise spec_error(scope.where, f"column sums of {column.value.dtype.name}", "the dtype of their buffer")
            scope.sizes[column.buffer] = column.width
            scope.check_range(column.buffer, column.index, None)
            for value in (*scope.check_axes(column.index), column.value):
                scope.check_value(value)
        missing = {"points", "per_chunk"} - set(scope.names) if self.nest.columns else ()
        if missing:
            raise spec_error(scope.where, f"column sums without {sorted(missing)}", "scalars that say what a chunk has")


def check_accumulator(accumulator: Accumulator, where: str) -> None:
    """Raise GraphError unless it is a reduction that there is."""
    if accumulator.op not in COMBINE:
        raise spec_error(where, f"a reduction by {accumulator.op!r}", f"one of {sorted(COMBINE)}")
    if accumulator.compensated and (accumulator.op != "sum" or accumulator.dtype.kind != "f"):
        given = f"a compensated {accumulator.op} of {accumulator.dtype.name}"
        raise spec_error(where, given, "compensation of sums of floats")
