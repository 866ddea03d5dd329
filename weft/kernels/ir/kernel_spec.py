"""What must hold of a kernel of the kernel language, before its normal form is made.

Names and dtypes are as `kernels.ir.spec` says. Besides, loops run, statements are where they may be, and a barrier is
one that all lanes of a workgroup reach or none.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.base.dtypes import bfloat16, float32, int64, uint32
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import (
    Accumulator,
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Copy,
    Expr,
    If,
    IndexValue,
    Kernel,
    Let,
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
from weft.kernels.ir.spec import Scope, check_accumulator, check_definitions, spec_error

CPU_LOOPS = ("serial", "task", "vector")
GPU_LOOPS = ("serial", "task", "lanes", "grid", "unrolled")
SCOPES = ("workgroup", "lane", "launch")
GPU_STATEMENTS = (Barrier, Copy, AsyncCopy, AwaitCopies, TileLoad, TileProduct)


def check_kernel(kernel: Kernel) -> None:
    """Raise GraphError unless a kernel is legal."""
    where = f"kernel {kernel.name}"
    scope = Scope(where, kernel.definitions, for_gpu=kernel.geometry is not None, of_nest=False)
    for scalar in kernel.scalars:
        scope.add_name(scalar.name, scalar.dtype)
    for name in kernel.ranges:
        scope.add_name(name, int64)
    for buffer in kernel.buffers:
        scope.add_array(buffer.name, buffer.dtype, None)
    check_definitions(kernel.definitions, where)
    _KernelChecker(kernel, scope).check_block(kernel.body)


class _KernelChecker:
    """Walks through the statements of a kernel in their order."""

    def __init__(self, kernel: Kernel, scope: Scope):
        self.kernel, self.scope, self.where = kernel, scope, scope.where
        self.for_gpu = kernel.geometry is not None
        self.read_only = {buffer.name for buffer in kernel.buffers if not buffer.written}
        self.scopes: dict[str, str] = {}  # of arrays
        self.accumulators: dict[str, Accumulator] = {}  # of the reductions around
        self.around: list[Loop | If] = []
        self.values: dict[str, Expr] = {}  # of names
        self.varying: set[str] = set()  # axes, accumulators and arrays that differ between the lanes of a workgroup

    def check_block(self, body: Iterable[Stmt]) -> None:
        for stmt in body:
            if isinstance(stmt, GPU_STATEMENTS) and not self.for_gpu:
                raise spec_error(self.where, f"a {type(stmt).__name__} in a kernel for CPUs", "a kernel for GPUs")
            self._check_statement(stmt)

    def _check_statement(self, stmt: Stmt) -> None:
        scope = self.scope
        match stmt:
            case Let(name, value):
                scope.check_value(value)
                self._name(name, value)
            case Store():
                scope.check_store(stmt, self._can_write)
            case Update():
                self._check_update(stmt)
            case Loop():
                self._check_loop(stmt)
            case Reduction():
                self._check_reduction(stmt)
            case If(condition, body, otherwise):
                scope.check_condition(condition)
                self.around.append(stmt)
                for branch in (body, otherwise):
                    with scope.block():
                        scope.ranges = {}  # it may be that not all values of the axes come here
                        self.check_block(branch)
                self.around.pop()
            case Local():
                self._check_array(stmt)
            case Barrier():
                self._check_barrier()
            case AwaitCopies(pending):
                if pending < 0:
                    raise spec_error(self.where, f"{pending} pending copies", "a count")
            case _:
                self._check_move(stmt)

    def _can_write(self, name: str) -> bool:
        return name not in self.read_only

    def _name(self, name: str, value: Expr) -> None:
        """A value may get the name of an earlier one; names of the kernel and of loops around stay what they are."""
        known = self.scope.names.get(name)
        if name in self.scope.arrays or (known is not None and name not in self.values):
            raise spec_error(self.where, f"'{name}' defined twice", "every name once")
        self.scope.names[name] = value.dtype
        self.values[name] = value

    def _check_update(self, update: Update) -> None:
        accumulator = self.accumulators.get(update.name)
        if accumulator is None:
            raise spec_error(self.where, f"an update of '{update.name}'", "an accumulator of a reduction around it")
        for value in (update.value, *([] if update.factor is None else [update.factor])):
            if value.dtype is not accumulator.dtype:
                given = f"{value.dtype.name} for '{update.name}', {accumulator.dtype.name}"
                raise spec_error(self.where, given, "its dtype")
            self.scope.check_value(value)
        if update.factor is not None and accumulator.op != "sum":
            raise spec_error(self.where, f"a factor for a {accumulator.op}", "factors for sums")

    def _check_loop(self, loop: Loop) -> None:
        self._check_bounds(loop)
        if loop.kind in ("lanes", "grid"):
            self._check_lanes(loop)
        name, start, stop = loop.axis.name, loop.start, loop.stop
        is_conditional = any(isinstance(outer, If) for outer in self.around)
        self.values.pop(name, None)
        with self.scope.block():
            if name not in self.kernel.ranges:  # the loop over the one `batch` of an epilogue has the name of its range
                self.scope.add_name(name, int64)
            if isinstance(start, int) and isinstance(stop, int) and start < stop and not is_conditional:
                self.scope.ranges[name] = start, stop - 1
            if loop.kind in ("lanes", "grid"):
                self.varying.add(name)
            self.around.append(loop)
            self.check_block(loop.body)
            self.around.pop()
            self.varying.discard(name)

    def _check_bounds(self, loop: Loop) -> None:
        where, axis, start, stop = self.where, loop.axis, loop.start, loop.stop
        if loop.kind not in (GPU_LOOPS if self.for_gpu else CPU_LOOPS):
            raise spec_error(where, f"a loop of kind {loop.kind!r}", "a kind that the device has")
        if axis.extent < 0 or min(loop.width, loop.multiple) < 1:
            raise spec_error(where, f"a loop over {axis} of width {loop.width}", "positive extents and widths")
        self.scope.check_bound(start)
        self.scope.check_bound(stop)
        if isinstance(start, int) and isinstance(stop, int):
            if not 0 <= start <= stop <= max(axis.extent, 1):
                raise spec_error(where, f"a loop from {start} to {stop} over {axis}", "a part of its axis")
        elif loop.kind == "unrolled":
            raise spec_error(where, f"an unrolled loop over '{axis.name}'", "integers as its bounds")

    def _check_lanes(self, loop: Loop) -> None:
        """A loop over lanes is over those of the launch, and all of them come to it; or it is inside of a loop that
        leaves just as many lanes as it counts, for a part of a kernel with fewer lanes (`kernels.gpu.batched`)."""
        assert self.kernel.geometry is not None
        lanes = self.kernel.geometry.lanes
        outer = [one for one in self.around if isinstance(one, Loop) and _divides_lanes(one)]
        if len(outer) == 1 and (outer[0].start, outer[0].stop) == (0, loop.width) and loop.width <= outer[0].width:
            return
        if loop.width != lanes:
            raise spec_error(self.where, f"a loop over {loop.width} lanes", f"{lanes}, as launched")
        if outer:
            given = f"the loop over '{loop.axis.name}' in lanes, inside of another one"
            raise spec_error(self.where, given, "a loop that all lanes come to")

    def _check_reduction(self, reduction: Reduction) -> None:
        outer = dict(self.accumulators)
        for accumulator in reduction.accumulators:
            check_accumulator(accumulator, self.where)
            if accumulator.name in outer or accumulator.name in self.scope.arrays:
                raise spec_error(self.where, f"'{accumulator.name}' defined twice", "every name once")
            self.accumulators[accumulator.name] = accumulator
        with self.scope.block():
            self.check_block(reduction.body)
        self.accumulators = outer
        for accumulator in reduction.accumulators:
            self.scope.names[accumulator.name] = accumulator.dtype
            self.varying.add(accumulator.name)

    def _check_array(self, array: Local) -> None:
        if array.scope not in (SCOPES if self.for_gpu else SCOPES[:1]):
            raise spec_error(self.where, f"the array '{array.name}' of scope {array.scope!r}", "a scope of the device")
        if array.size <= 0:
            raise spec_error(self.where, f"the array '{array.name}' of {array.size} elements", "some elements")
        self.scope.add_array(array.name, array.dtype, array.size)
        self.scopes[array.name] = array.scope
        if array.scope == "lane":
            self.varying.add(array.name)

    # --- statements of GPUs ---

    def _check_move(self, stmt: Copy | AsyncCopy | TileLoad | TileProduct) -> None:
        match stmt:
            case Copy(target, at, source, index, count):
                self._check_accesses((target, at, True), (source, index, False))
                arrays = self.scope.arrays
                rounds = arrays[source] is float32 and arrays[target] is bfloat16
                if arrays[target] is not stmt.dtype or not (arrays[source] is stmt.dtype or rounds):
                    raise spec_error(
                        self.where, f"a copy of '{source}' to '{target}'", "one dtype, or float32 to bfloat16"
                    )
                self._check_count(count)
            case AsyncCopy(target, at, source, index, count, valid):
                self._check_accesses((target, at, True), (source, index, False))
                if target not in self.scopes:
                    raise spec_error(self.where, f"an asynchronous copy to '{target}'", "an array of the kernel")
                if not isinstance(valid, int):
                    self.scope.check_value(valid)
                self._check_count(count)
            case TileLoad(target, at, buffer, index):
                self._check_accesses((target, at, True), (buffer, index, False))
                if self.scope.arrays[target] is not uint32 or self.scopes.get(target) != "lane":
                    raise spec_error(self.where, f"a tile loaded to '{target}'", "a lane's array of uint32")
            case TileProduct(sums, sums_at, a, a_at, b, b_at):
                self._check_accesses((sums, sums_at, True), (a, a_at, False), (b, b_at, False))
                if self.scope.arrays[sums] is not float32 or self.scopes.get(sums) != "lane":
                    raise spec_error(self.where, f"products added to '{sums}'", "a lane's array of float32")

    def _check_accesses(self, *accesses: tuple[str, Index, bool]) -> None:
        for name, index, written in accesses:
            if name not in self.scope.arrays or (written and name in self.read_only):
                raise spec_error(
                    self.where, f"a copy to or from '{name}'", "an array, or a buffer that may be accessed so"
                )
            for definition in self.scope.check_axes(index):
                self.scope.check_value(definition)

    def _check_count(self, count: int) -> None:
        if count < 1 or count & (count - 1):
            raise spec_error(self.where, f"a copy of {count} elements", "a power of two")

    # --- barriers ---

    def _check_barrier(self) -> None:
        """Every lane of a workgroup reaches it equally often."""
        for outer in self.around:
            if isinstance(outer, If):
                if self._varies([outer.condition]):
                    raise spec_error(
                        self.where, "a barrier under a condition that differs between lanes", "one for all"
                    )
            elif _divides_lanes(outer):
                raise spec_error(
                    self.where, f"a barrier in the loop over '{outer.axis.name}'", "one that all lanes reach"
                )
            elif self._varies([bound for bound in (outer.start, outer.stop) if not isinstance(bound, int)]):
                given = f"a barrier in the loop over '{outer.axis.name}', whose bounds differ between lanes"
                raise spec_error(self.where, given, "one that all lanes reach")

    def _varies(self, values: list[Expr]) -> bool:
        """Whether one of these values may differ between the lanes of a workgroup."""
        stack, seen = list(values), set()
        while stack:
            expr = stack.pop()
            if id(expr) in seen:
                continue
            seen.add(id(expr))
            names = _names_of(expr)
            if not self.varying.isdisjoint(names):
                return True
            for name in names:
                value = self.values.get(name, self.kernel.definitions.get(name))
                stack.extend([] if value is None else [value])
            stack.extend(expr.args if isinstance(expr, Op) else ())
            stack.extend([expr.mask] if isinstance(expr, Load) and expr.mask is not None else ())
        return False


def _names_of(expr: Expr) -> list[str]:
    """The variables, axes and arrays that an expression itself uses."""
    if isinstance(expr, Var):
        return [expr.name]
    axes = [axis.name for axis in ix.axes_of(expr.index)] if isinstance(expr, Load | IndexValue) else []
    return [expr.buffer, *axes] if isinstance(expr, Load) else axes


def _divides_lanes(loop: Loop) -> bool:
    """Whether some lanes of a workgroup may run a loop over lanes more often than others."""
    if loop.kind == "lanes" and isinstance(loop.start, int) and isinstance(loop.stop, int):
        return loop.stop - loop.start != loop.width
    return loop.kind in ("lanes", "grid")
