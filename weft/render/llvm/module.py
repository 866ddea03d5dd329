"""The kernel language as LLVM IR text: vector loops become vector instructions here, nothing is left to heuristics.

`render` prints one function `void @NAME(ptr slots, ptr args, ptr range)` from a kernel in normal form:

- `slots` is a table of pointers; `args` holds two i64 for each buffer (slot number, byte offset), then one i64 for each
  scalar (integers as such, floats as the bits of a double); `range` holds one i64 for each of `kernel.ranges`;
- a 'vector' loop is a loop of full vectors and, where the trip count is not known to be a multiple of the width, one
  masked iteration. Values that do not vary between lanes stay scalar and are spread next to their definition;
- no fast-math flags and no contraction: an element's bits do not depend on the lane or the chunk that computed it.

The name is made from a hash of the code, so equal kernels are one. `render.llvm.blocks` keeps blocks, values
and indices, `render.llvm.memory_access` prints loads and stores, `render.llvm.operations` single operations.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    LARGE,
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
    Update,
    Var,
)
from weft.render.llvm import large_arguments, vector_access
from weft.render.llvm import operations as ops
from weft.render.llvm.blocks import Scope, Value, Vector, lane_numbers
from weft.render.llvm.memory_access import MemoryWriter
from weft.render.llvm.operations import constant, identity, memory_type, register_type, splat_text, vector_type

PLACEHOLDER = "@kernel"


def render(kernel: Kernel) -> str:
    """LLVM IR of `kernel`, which must be in normal form. The first line is a comment with its name, for people."""
    body = _Renderer(kernel).text()
    symbol = "@weft_" + hashlib.sha256(body.encode()).hexdigest()[:32]
    return f"; {kernel.name}\n" + body.replace(PLACEHOLDER + "(", symbol + "(", 1)


def symbol_of(text: str) -> str:
    """The name of the function in the text that `render` made."""
    start = text.index("@weft_") + 1
    return text[start : text.index("(", start)]


@dataclass(slots=True)
class _Accumulator:
    """A running reduction in the stack slot `pointer`; `joined` where its lanes are partial results of one, `error` the
    slot of what a compensated sum rounded off, or nothing."""

    op: str
    dtype: DType
    lanes: int
    pointer: str
    joined: bool
    error: str


class _Renderer(MemoryWriter):
    """Prints statements and reductions."""

    def __init__(self, kernel: Kernel):
        super().__init__(kernel)
        self.kernel = kernel
        self.accumulators: dict[str, _Accumulator] = {}
        self.large: dict[large_arguments.Call, None] = {}  # functions that are called, in order

    # --- the whole function ---

    def text(self) -> str:
        self.prologue()
        self.block(self.kernel.body)
        lines = [f"define void {PLACEHOLDER}(ptr %slots, ptr %args, ptr %range) nounwind {{", "entry:"]
        lines += self.entry + self.scope.lines
        if self.fence:  # stores that bypass the caches are not ordered with what tells others that the work is done
            lines.append("  call void @llvm.x86.sse.sfence()")
            self.declared |= {"declare void @llvm.x86.sse.sfence()", "!0 = !{i32 1}"}
        functions, declared = large_arguments.functions(self.large)
        lines += ["  ret void", "}", *functions]
        self.declared |= declared
        return "\n".join([*lines, *sorted(self.declared, reverse=True)]) + "\n"

    def prologue(self) -> None:
        for number, buffer in enumerate(self.kernel.buffers):
            slot = self.word("%args", 2 * number)
            offset = self.word("%args", 2 * number + 1)
            place = self.emit(f"getelementptr ptr, ptr %slots, i64 {slot}")
            base = self.emit(f"load ptr, ptr {place}")
            self.buffers[buffer.name] = self.emit(f"getelementptr i8, ptr {base}, i64 {offset}"), buffer.dtype
        for number, scalar in enumerate(self.kernel.scalars):
            raw = self.word("%args", 2 * len(self.kernel.buffers) + number)
            kind = register_type(scalar.dtype)
            if scalar.dtype.kind == "f":
                text = self.emit(f"bitcast i64 {raw} to double")
                text = text if kind == "double" else self.emit(f"fptrunc double {text} to {kind}")
            elif scalar.dtype is dtypes.bool_:
                text = self.emit(f"icmp ne i64 {raw}, 0")
            else:
                text = raw if kind == "i64" else self.emit(f"trunc i64 {raw} to {kind}")
            self.bind(scalar.name, text, scalar.dtype, 0)
        for number, name in enumerate(self.kernel.ranges):
            self.bind(name, self.word("%range", number), dtypes.int64, 0)

    def word(self, table: str, number: int) -> str:
        place = self.emit(f"getelementptr i64, ptr {table}, i64 {number}")
        return self.emit(f"load i64, ptr {place}")

    # --- statements ---

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case Let(name, value):
                    self.let(name, value)
                case Store():
                    self.store(stmt)
                case Loop(kind="vector", width=width) if width > 1:
                    self.vector_loop(stmt)
                case Loop():
                    self.scalar_loop(stmt)
                case Reduction():
                    self.emit_reduction(stmt)
                case Update(name, value, factor):
                    if factor is None:
                        self.update(name, value)
                    else:
                        self.update_by_product(name, self.value(value), self.value(factor))
                case If(condition, inner):
                    self.branch(condition, inner)
                case Local(name, dtype, size):
                    pointer = self.fresh("%local")
                    self.entry.append(f"  {pointer} = alloca [{max(size, 1)} x {memory_type(dtype)}], align 64")
                    self.buffers[name] = pointer, dtype
                case _:
                    raise problem(GraphError, "render.llvm", f"a {type(stmt).__name__}", "a kernel scheduled for CPU")

    def let(self, name: str, value: Expr) -> None:
        match value:
            case Op() if value.name in LARGE:
                self.let_large(name, value)
            case Op():
                args = [self.value(arg) for arg in value.args]
                lanes = max(arg.lanes for arg in args)
                texts = [self.spread(arg, lanes) for arg in args]
                text = ops.operation(self, value, texts, lanes)
                self.bind(name, text, value.dtype, lanes)
            case Load():
                self.load(name, value)
            case IndexValue(index, dtype):
                self.bind(name, *self.index_value(index, dtype))
            case _:
                known = self.value(value)
                self.bind(name, known.text, known.dtype, known.lanes)

    def let_large(self, name: str, op: Op) -> None:
        """A value that few elements need a function for (see `kernels.math.large_arguments`): called where some lane
        does."""
        args = [self.value(arg) for arg in op.args]
        lanes = max(arg.lanes for arg in args)
        needed, common, *rest = [self.spread(arg, lanes) for arg in args]
        kind, test = vector_type(register_type(op.dtype), lanes), vector_type("i1", lanes)
        self.large[op.name, op.dtype, lanes] = None
        function = large_arguments.symbol((op.name, op.dtype, lanes))
        some = self.call(f"llvm.vector.reduce.or.v{lanes}i1", "i1", f"{test} {needed}", test) if lanes else needed
        number = self.fresh("")
        slow, end, before = f"large{number}", f"end{number}", self.scope.label
        self.declared.add('!1 = !{!"branch_weights", i32 1, i32 4096}')
        self.do(f"br i1 {some}, label %{slow}, label %{end}, !prof !1")
        given = ([f"{test} {needed}", f"{kind} {common}"] if lanes else []) + [f"{kind} {text}" for text in rest]
        self.scope.lines += [f"{slow}:", f"  %call{number} = call {kind} {function}({', '.join(given)})"]
        self.scope.lines += [f"  br label %{end}", f"{end}:"]
        self.scope.label = end
        self.bind(name, self.emit(f"phi {kind} [ {common}, %{before} ], [ %call{number}, %{slow} ]"), op.dtype, lanes)

    def index_value(self, index: Index, dtype: DType) -> tuple[str, DType, int]:
        """An index as a number: its text, dtype and lanes; fewer lanes than the loop's where adjacent ones share it."""
        vector, bits = self.scope.vector, dtype.itemsize * 8
        pattern = None
        if vector is not None and self.varies(index):
            pattern = self.pattern(index, vector)
            if pattern is None:
                return self.lanes_of(index, bits), dtype, vector.width
            index = vector_access.at_first_lane(index, vector)
        text = self.number(index)
        if bits != 64:
            text = self.emit(f"trunc i64 {text} to i{bits}")
        if pattern is None or len(pattern) == 1:
            return text, dtype, 0
        kind, steps = f"i{bits}", ", ".join(f"i{bits} {step}" for step in pattern)
        first = self.splat(text, kind, len(pattern), self.scope)
        return self.emit(f"add {vector_type(kind, len(pattern))} {first}, <{steps}>"), dtype, len(pattern)

    def pattern(self, index: Index, vector: Vector) -> tuple[int, ...] | None:
        """What lanes add to the first one's value of `index`, one entry for those that share it; None for plain axes
        and where it changes from vector to vector."""
        varying = Index(tuple(term for term in index.terms if self.atom_varies(term[0])), 0)
        if all(isinstance(atom, Axis) for atom, _ in varying.terms):
            return None
        offsets = vector_access.lane_offsets(varying, vector)
        return None if offsets is None else offsets[:: vector_access.share_of(offsets)]

    def as_i64(self, bound: Expr | int) -> str:
        if isinstance(bound, int):
            return str(bound)
        return self.widen_to_int64(self.value(bound))

    def scalar_loop(self, loop: Loop) -> None:
        start, stop = self.as_i64(loop.start), self.as_i64(loop.stop)
        certain = isinstance(loop.start, int) and isinstance(loop.stop, int) and loop.start < loop.stop
        self.emit_counted_loop(loop, start, stop, 1, certain, self.scope.vector)

    def emit_counted_loop(
        self, loop: Loop, start: str, stop: str, step: int, certain: bool, vector: Vector | None
    ) -> None:
        """A loop tested at its end, behind a test that it runs at all unless that is `certain`."""
        number = self.fresh("")
        head, end = f"loop{number}", f"end{number}"
        outer = self.scope
        axis, following = f"%{_clean(loop.axis.name)}{number}", f"%next{number}"
        self.enter(head, vector)
        self.bind(loop.axis.name, axis, dtypes.int64, 0)
        self.block(loop.body)
        self.do(f"{following} = add i64 {axis}, {step}")
        again = self.emit(f"icmp slt i64 {following}, {stop}")
        self.do(f"br i1 {again}, label %{head}, label %{end}")
        inner = self.leave()
        if certain:
            self.do(f"br label %{head}")
        else:
            runs = self.emit(f"icmp slt i64 {start}, {stop}")
            self.do(f"br i1 {runs}, label %{head}, label %{end}")
        phi = f"  {axis} = phi i64 [ {start}, %{outer.label} ], [ {following}, %{inner.label} ]"
        self.scope.lines += [f"{head}:", phi, *inner.lines, f"{end}:"]
        self.scope.label = end

    def vector_loop(self, loop: Loop) -> None:
        if self.scope.vector is not None:
            raise problem(GraphError, "render.llvm", f"vector loop '{loop.axis.name}' in another", "one at a time")
        width = loop.width
        multiple = math.gcd(loop.start if isinstance(loop.start, int) else loop.multiple, width)
        if isinstance(loop.start, int) and isinstance(loop.stop, int):
            trip_count = max(loop.stop - loop.start, 0)
            whole = loop.start + trip_count // width * width
            if whole > loop.start:
                self.emit_counted_loop(
                    loop, str(loop.start), str(whole), width, True, Vector(loop.axis, width, None, multiple)
                )
            if whole < loop.stop:
                bits = ", ".join(f"i1 {int(lane < loop.stop - whole)}" for lane in range(width))
                self.enter(self.scope.label, Vector(loop.axis, width, f"<{bits}>", multiple))
                inner = self.tail(loop, str(whole))
                self.scope.lines += inner.lines
                self.scope.label = inner.label
            return
        start, stop = self.as_i64(loop.start), self.as_i64(loop.stop)
        if loop.whole:
            self.emit_counted_loop(loop, start, stop, width, False, Vector(loop.axis, width, None, multiple))
            return
        difference = self.emit(f"sub i64 {stop}, {start}")
        trips_text = self.call("llvm.smax.i64", "i64", f"i64 {difference}, i64 0", "i64, i64")
        rest = self.emit(f"urem i64 {trips_text}, {width}")
        whole_text = self.emit(f"sub i64 {trips_text}, {rest}")
        middle = self.emit(f"add i64 {start}, {whole_text}")
        self.emit_counted_loop(loop, start, middle, width, False, Vector(loop.axis, width, None, multiple))
        number = self.fresh("")
        body, end = f"tail{number}", f"end{number}"
        self.enter(body, Vector(loop.axis, width, None, multiple))
        limit = self.splat(self.emit(f"trunc i64 {rest} to i32"), "i32", width, self.scope)
        mask = self.emit(f"icmp ult {vector_type('i32', width)} {lane_numbers(width, 32)}, {limit}")
        self.scope.vector = Vector(loop.axis, width, mask, multiple)
        inner = self.tail(loop, middle)
        uneven = self.emit(f"icmp ne i64 {rest}, 0")
        self.do(f"br i1 {uneven}, label %{body}, label %{end}")
        self.scope.lines += [f"{body}:", *inner.lines, f"  br label %{end}", f"{end}:"]
        self.scope.label = end

    def tail(self, loop: Loop, start: str) -> Scope:
        """The last, masked iteration of a vector loop, in the scope just entered."""
        self.bind(loop.axis.name, start, dtypes.int64, 0)
        self.block(loop.body)
        return self.leave()

    def branch(self, condition: Expr, body: tuple[Stmt, ...]) -> None:
        test = self.value(condition)
        if test.lanes:
            raise problem(GraphError, "render.llvm", "an `If` that varies between lanes", "a uniform one or a mask")
        number = self.fresh("")
        then, end = f"then{number}", f"end{number}"
        self.enter(then, self.scope.vector)
        self.block(body)
        self.do(f"br label %{end}")
        inner = self.leave()
        self.do(f"br i1 {test.text}, label %{then}, label %{end}")
        self.scope.lines += [f"{then}:", *inner.lines, f"{end}:"]
        self.scope.label = end

    # --- reductions ---

    def emit_reduction(self, reduction: Reduction) -> None:
        around = self.scope.vector
        widths = _update_widths(reduction.body, around.width if around else 0)
        for accumulator in reduction.accumulators:
            found = widths.get(accumulator.name, set()) | ({around.width} if around else set())
            if len(found - {0}) > 1:
                given = f"accumulator '{accumulator.name}' in widths {sorted(found)}"
                raise problem(GraphError, "render.llvm", given, "one width")
            lanes = max(found, default=0)
            kind = vector_type(register_type(accumulator.dtype), lanes)
            pointer, error = self.fresh("%sum"), self.fresh("%error") if accumulator.compensated else ""
            for slot in (pointer, error) if error else (pointer,):
                self.entry.append(f"  {slot} = alloca {kind}")
                self.do(f"store {kind} {identity(accumulator.op, accumulator.dtype, lanes)}, ptr {slot}")
            self.accumulators[accumulator.name] = _Accumulator(
                accumulator.op, accumulator.dtype, lanes, pointer, bool(lanes) and around is None, error
            )
        self.block(reduction.body)
        for accumulator in reduction.accumulators:
            state = self.accumulators.pop(accumulator.name)
            text, lanes = self.result(state), state.lanes
            if state.joined and reduction.joined:
                text, lanes = self.join(state, text), 0
            self.bind(accumulator.name, text, state.dtype, lanes)

    def result(self, state: _Accumulator) -> str:
        """What an accumulator holds, lane by lane; of a compensated sum with what was rounded off, where that is a
        number: it is not where the sum is infinite."""
        kind = vector_type(register_type(state.dtype), state.lanes)
        text = self.emit(f"load {kind}, ptr {state.pointer}")
        if not state.error:
            return text
        error = self.emit(f"load {kind}, ptr {state.error}")
        exact = self.emit(f"fadd {kind} {text}, {error}")
        size = ops.intrinsic(self, "fabs", [exact], state.dtype, state.lanes)
        infinity = constant(math.inf, state.dtype)
        limit = splat_text(infinity, register_type(state.dtype)) if state.lanes else infinity
        finite = self.emit(f"fcmp olt {kind} {size}, {limit}")
        return self.emit(f"select {vector_type('i1', state.lanes)} {finite}, {kind} {exact}, {kind} {text}")

    def join(self, state: _Accumulator, text: str) -> str:
        """The lanes of `text` halved and combined until one is left."""
        kind, width = register_type(state.dtype), state.lanes
        while width > 1:
            half = width // 2
            source, target = vector_type(kind, width), vector_type(kind, half)
            parts = []
            for first in (0, half):
                picks = ", ".join(f"i32 {lane}" for lane in range(first, first + half))
                shuffle = f"shufflevector {source} {text}, {source} poison, {vector_type('i32', half)} <{picks}>"
                parts.append(self.emit(shuffle))
            text = ops.combine(self, state.op, parts[0], parts[1], state.dtype, half)
            width = half
            if half == 1:
                text = self.emit(f"extractelement {target} {text}, i64 0")
        return text

    def update(self, name: str, expr: Expr) -> None:
        state = self.accumulators[name]
        vector, value = self.scope.vector, self.value(expr)
        kind = vector_type(register_type(state.dtype), state.lanes)
        text = self.spread(value, state.lanes)
        if state.joined and vector is None and not value.lanes:  # beside the vector loop: counts once, in lane 0
            scalar = register_type(state.dtype)
            text = self.emit(
                f"insertelement {kind} {identity(state.op, state.dtype, state.lanes)}, {scalar} {value.text}, i64 0"
            )
        elif state.joined and vector is not None and vector.mask is not None:
            neutral = identity(state.op, state.dtype, state.lanes)
            text = self.emit(f"select {vector_type('i1', state.lanes)} {vector.mask}, {kind} {text}, {kind} {neutral}")
        before = self.emit(f"load {kind}, ptr {state.pointer}")
        after = ops.combine(self, state.op, text, before, state.dtype, state.lanes)
        self.do(f"store {kind} {after}, ptr {state.pointer}")
        if state.error:
            added = self.emit(f"fsub {kind} {after}, {before}")
            left = self.emit(f"fsub {kind} {after}, {added}")
            lost = [self.emit(f"fsub {kind} {a}, {b}") for a, b in ((before, left), (text, added))]
            error = self.emit(f"fadd {kind} {lost[0]}, {lost[1]}")
            total = self.emit(f"load {kind}, ptr {state.error}")
            self.do(f"store {kind} {self.emit(f'fadd {kind} {total}, {error}')}, ptr {state.error}")

    def update_by_product(self, name: str, value: Value, factor: Value) -> None:
        """A fused multiply-add into a sum that is kept lane by lane."""
        state = self.accumulators[name]
        if state.joined or state.op != "sum":
            raise problem(GraphError, "render.llvm", f"a product into '{name}'", "a sum reduced inside a vector loop")
        kind = vector_type(register_type(state.dtype), state.lanes)
        a, b = self.spread(value, state.lanes), self.spread(factor, state.lanes)
        before = self.emit(f"load {kind}, ptr {state.pointer}")
        after = ops.intrinsic(self, "fma", [a, b, before], state.dtype, state.lanes)
        self.do(f"store {kind} {after}, ptr {state.pointer}")


def _clean(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _update_widths(body: tuple[Stmt, ...], width: int, kept: dict[str, int] | None = None) -> dict[str, set[int]]:
    """For every accumulator, the widths of the vector loops in which it is updated (0: none); `kept` has the lanes of
    partial results that inner reductions kept separate."""
    found: dict[str, set[int]] = {}
    kept = {} if kept is None else kept
    for stmt in body:
        if isinstance(stmt, Update):
            name = stmt.value.name if isinstance(stmt.value, Var) else ""
            found.setdefault(stmt.name, set()).add(kept.get(name, width))
        elif isinstance(stmt, Loop | If | Reduction):
            inner = stmt.width if isinstance(stmt, Loop) and stmt.kind == "vector" and stmt.width > 1 else width
            widths = _update_widths(stmt.body, inner, kept)
            if isinstance(stmt, Reduction) and not stmt.joined:
                kept.update({one.name: max(widths.get(one.name, {width})) for one in stmt.accumulators})
            for name, some in widths.items():
                found.setdefault(name, set()).update(some)
    return found
