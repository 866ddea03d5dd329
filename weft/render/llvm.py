"""The kernel language as LLVM IR text: vector loops become vector instructions here, nothing is left to heuristics.

`render` prints one function `void @NAME(ptr slots, ptr args, ptr range)` from a kernel in normal form:

- `slots` is a table of pointers; `args` holds two i64 for each buffer (slot number, byte offset), then one i64 for each
  scalar (integers as such, floats as the bits of a double); `range` holds one i64 for each of `kernel.ranges`;
- a 'vector' loop is a loop of full vectors and, where the trip count is not known to be a multiple of the width, one
  masked iteration. Values that do not vary between lanes stay scalar and are spread next to their definition;
- no fast-math flags and no contraction: an element's bits do not depend on the lane or the chunk that computed it.

The name is made from a hash of the code, so equal kernels are one. `render.llvm_blocks` keeps blocks, values
and indices, `render.llvm_ops` prints single operations.
"""

from __future__ import annotations

import hashlib
import math
import platform
from dataclasses import dataclass

from weft import dtypes
from weft.dtypes import DType
from weft.errors import GraphError, problem
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    LARGE,
    Expr,
    Fold,
    If,
    IndexValue,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.render import llvm_large
from weft.render import llvm_near as near
from weft.render import llvm_ops as ops
from weft.render.llvm_blocks import BlockWriter, Scope, Value, Vector, lane_numbers
from weft.render.llvm_ops import constant, identity, memory_type, register_type, splat_text, vector_type

CACHE_LINE = 64
STREAMS = platform.machine() in ("x86_64", "AMD64")  # where stores past the caches, and the fence after them, are known
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


class _Renderer(BlockWriter):
    """Prints statements, reductions and memory accesses."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.kernel = kernel
        self.entry: list[str] = []  # stack slots
        self.buffers: dict[str, tuple[str, DType]] = {}
        self.accumulators: dict[str, _Accumulator] = {}
        self.streamed = {buffer.name for buffer in kernel.buffers if buffer.stream}
        self.fence = False
        self.large: dict[llvm_large.Call, None] = {}  # functions that are called, in order

    # --- the whole function ---

    def text(self) -> str:
        self.prologue()
        self.block(self.kernel.body)
        lines = [f"define void {PLACEHOLDER}(ptr %slots, ptr %args, ptr %range) nounwind {{", "entry:"]
        lines += self.entry + self.scope.lines
        if self.fence:  # stores that bypass the caches are not ordered with what tells others that the work is done
            lines.append("  call void @llvm.x86.sse.sfence()")
            self.declared |= {"declare void @llvm.x86.sse.sfence()", "!0 = !{i32 1}"}
        functions, declared = llvm_large.functions(self.large)
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
                case Fold():
                    self.fold(stmt)
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
        """A value that few elements need a function for (see `kernels.large`): called where some lane does."""
        args = [self.value(arg) for arg in op.args]
        lanes = max(arg.lanes for arg in args)
        needed, common, *rest = [self.spread(arg, lanes) for arg in args]
        kind, test = vector_type(register_type(op.dtype), lanes), vector_type("i1", lanes)
        self.large[op.name, op.dtype, lanes] = None
        function = llvm_large.symbol((op.name, op.dtype, lanes))
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
        """An index as a number: its text, dtype and lanes; fewer lanes than the loop has where neighbours share it."""
        vector, bits = self.scope.vector, dtype.itemsize * 8
        pattern = None
        if vector is not None and self.varies(index):
            pattern = self.pattern(index, vector)
            if pattern is None:
                return self.lanes_of(index, bits), dtype, vector.width
            index = near.at_first_lane(index, vector)
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
        offsets = near.lane_offsets(varying, vector)
        return None if offsets is None else offsets[:: near.share_of(offsets)]

    def as_i64(self, bound: Expr | int) -> str:
        if isinstance(bound, int):
            return str(bound)
        return self.widened(self.value(bound))

    def scalar_loop(self, loop: Loop) -> None:
        start, stop = self.as_i64(loop.start), self.as_i64(loop.stop)
        certain = isinstance(loop.start, int) and isinstance(loop.stop, int) and loop.start < loop.stop
        self.counted(loop, start, stop, 1, certain, self.scope.vector)

    def counted(self, loop: Loop, start: str, stop: str, step: int, certain: bool, vector: Vector | None) -> None:
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
            trips = max(loop.stop - loop.start, 0)
            whole = loop.start + trips // width * width
            if whole > loop.start:
                self.counted(loop, str(loop.start), str(whole), width, True, Vector(loop.axis, width, None, multiple))
            if whole < loop.stop:
                bits = ", ".join(f"i1 {int(lane < loop.stop - whole)}" for lane in range(width))
                self.enter(self.scope.label, Vector(loop.axis, width, f"<{bits}>", multiple))
                inner = self.tail(loop, str(whole))
                self.scope.lines += inner.lines
                self.scope.label = inner.label
            return
        start, stop = self.as_i64(loop.start), self.as_i64(loop.stop)
        if loop.whole:
            self.counted(loop, start, stop, width, False, Vector(loop.axis, width, None, multiple))
            return
        difference = self.emit(f"sub i64 {stop}, {start}")
        trips_text = self.call("llvm.smax.i64", "i64", f"i64 {difference}, i64 0", "i64, i64")
        rest = self.emit(f"urem i64 {trips_text}, {width}")
        whole_text = self.emit(f"sub i64 {trips_text}, {rest}")
        middle = self.emit(f"add i64 {start}, {whole_text}")
        self.counted(loop, start, middle, width, False, Vector(loop.axis, width, None, multiple))
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

    def fold(self, fold: Fold) -> None:
        around = self.scope.vector
        widths = _update_widths(fold.body, around.width if around else 0)
        for accumulator in fold.accumulators:
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
        self.block(fold.body)
        for accumulator in fold.accumulators:
            state = self.accumulators.pop(accumulator.name)
            text, lanes = self.result(state), state.lanes
            if state.joined and fold.joined:
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
            raise problem(GraphError, "render.llvm", f"a product into '{name}'", "a sum folded inside a vector loop")
        kind = vector_type(register_type(state.dtype), state.lanes)
        a, b = self.spread(value, state.lanes), self.spread(factor, state.lanes)
        before = self.emit(f"load {kind}, ptr {state.pointer}")
        after = ops.intrinsic(self, "fma", [a, b, before], state.dtype, state.lanes)
        self.do(f"store {kind} {after}, ptr {state.pointer}")

    # --- memory ---

    def pointer(self, buffer: str, index: Index) -> str:
        """The address of an element whose index does not vary between lanes."""
        base, dtype = self.buffers[buffer]
        kind = memory_type(dtype)
        if index.terms:
            scope = self.home(Index(index.terms, 0))
            offset = self.linear(index)
            code = f"getelementptr {kind}, ptr {base}, i64 {offset}"
            base = self.memoised(scope, ("at", buffer, index.terms), (code,))
        return self.emit(f"getelementptr {kind}, ptr {base}, i64 {index.const}") if index.const else base

    def places(self, buffer: str, index: Index) -> tuple[str, str]:
        """How the lanes of a vector access lie in memory, and their address: ('along' | 'against' | 'apart', text)."""
        vector = self.scope.vector
        assert vector is not None
        varying = tuple(term for term in index.terms if self.atom_varies(term[0]))
        uniform = Index(tuple(term for term in index.terms if not self.atom_varies(term[0])), index.const)
        kind = memory_type(self.buffers[buffer][1])
        if len(varying) == 1 and isinstance(varying[0][0], Axis) and varying[0][0].name == vector.axis.name:
            if varying[0][1] == 1:
                return "along", self.pointer(buffer, index)
            if varying[0][1] == -1:
                last = self.pointer(buffer, index)
                return "against", self.emit(f"getelementptr {kind}, ptr {last}, i64 {1 - vector.width}")
        base = self.pointer(buffer, uniform)
        part = Index(varying, 0)
        bits = 32 if -(2**31) <= part.low and part.high < 2**31 else 64
        lanes = self.lanes_of(part, bits)
        return "apart", self.emit(f"getelementptr {kind}, ptr {base}, {vector_type(f'i{bits}', vector.width)} {lanes}")

    def near(self, buffer: str, index: Index, mask: str | None) -> tuple[tuple[int, ...], str] | None:
        """Offsets of the lanes and the address of the least, where they lie close enough to be one access."""
        vector = self.scope.vector
        assert vector is not None
        varying = Index(tuple(term for term in index.terms if self.atom_varies(term[0])), 0)
        offsets = near.lane_offsets(varying, vector)
        if offsets is None or not near.suits(offsets, mask is not None and mask.startswith("%")):
            return None
        first, kind = self.pointer(buffer, index), memory_type(self.buffers[buffer][1])
        low = min(offsets)
        return offsets, self.emit(f"getelementptr {kind}, ptr {first}, i64 {low}") if low else first

    def active(self, mask: Expr | None) -> str | None:
        """The lanes in which an access happens: those of the loop and those of its own mask; None for all."""
        vector = self.scope.vector
        assert vector is not None
        if mask is None:
            return vector.mask
        own = self.spread(self.value(mask), vector.width)
        if vector.mask is None:
            return own
        return self.emit(f"and {vector_type('i1', vector.width)} {own}, {vector.mask}")

    def load(self, name: str, load: Load) -> None:
        dtype, kind = load.dtype, memory_type(load.dtype)
        vector = self.scope.vector
        masked = load.mask is not None and self.value(load.mask).lanes > 0
        if vector is None or not (self.varies(load.index) or masked):
            text = self.scalar_load(load, kind)
            lanes = 0
        else:
            text = self.vector_load(load, kind, vector)
            lanes = vector.width
        self.bind(name, ops.from_memory(self, text, dtype, lanes), dtype, lanes)

    def scalar_load(self, load: Load, kind: str) -> str:
        address = self.pointer(load.buffer, load.index)
        if load.mask is None:
            return self.emit(f"load {kind}, ptr {address}, align {load.dtype.itemsize}")
        if "%nothing" not in self.scopes[0].memo.values():
            self.entry += ["  %nothing = alloca i64", "  store i64 0, ptr %nothing"]
            self.scopes[0].memo[("nothing",)] = "%nothing"
        test = self.value(load.mask).text
        safe = self.emit(f"select i1 {test}, ptr {address}, ptr %nothing")
        return self.emit(f"load {kind}, ptr {safe}, align {load.dtype.itemsize}")

    def vector_load(self, load: Load, kind: str, vector: Vector) -> str:
        width, align = vector.width, load.dtype.itemsize
        mask, lanes = self.active(load.mask), vector_type(kind, width)
        if not self.varies(load.index):
            way, address = "apart", self.splat(self.pointer(load.buffer, load.index), "ptr", width, self.scope)
        else:
            way, address = self.places(load.buffer, load.index)
            if way == "apart" and (close := self.near(load.buffer, load.index, mask)) is not None:
                return near.load(self, kind, align, close[1], close[0], mask)
        suffix, bits = f"v{width}{ops.suffix(kind)}", vector_type("i1", width)
        if way == "apart":
            chosen = mask or splat_text("true", "i1")
            pointers = vector_type("ptr", width)
            return self.call(
                f"llvm.masked.gather.{suffix}.v{width}p0",
                lanes,
                f"{pointers} align {align} {address}, {bits} {chosen}, {lanes} zeroinitializer",
                f"{pointers}, {bits}, {lanes}",
            )
        if mask is None:
            text = self.emit(f"load {lanes}, ptr {address}, align {align}")
        else:
            chosen = mask if way == "along" else ops.reverse(self, mask, "i1", width)
            address = self.mapped(load, address)
            text = self.call(
                f"llvm.masked.load.{suffix}.p0",
                lanes,
                f"ptr align {align} {address}, {bits} {chosen}, {lanes} zeroinitializer",
                f"ptr, {bits}, {lanes}",
            )
        return text if way == "along" else ops.reverse(self, text, kind, width)

    def mapped(self, load: Load, address: str) -> str:
        """The address of a masked load or, where its mask is off for all lanes, that of its buffer. Processors load
        nothing there either way, but where the address is not mapped they find out by an assist of microseconds."""
        test = None if load.mask is None else self.value(load.mask)
        if test is None or test.lanes:
            return address
        return self.emit(f"select i1 {test.text}, ptr {address}, ptr {self.buffers[load.buffer][0]}")

    def store(self, store: Store) -> None:
        dtype = self.buffers[store.buffer][1]
        kind, align = memory_type(dtype), dtype.itemsize
        vector, value = self.scope.vector, self.value(store.value)
        masked = store.mask is not None and self.value(store.mask).lanes > 0
        if vector is None or not (value.lanes or masked or self.varies(store.index)):
            self.scalar_store(store, ops.to_memory(self, value.text, dtype, 0), kind, align)
            return
        width, bits = vector.width, vector_type("i1", vector.width)
        if not self.varies(store.index):
            if value.lanes:
                given = f"lanes that all store to {store.buffer}[{store.index}]"
                raise problem(GraphError, "render.llvm", given, "a place for each lane")
            active = self.active(store.mask)
            anyone = self.call(f"llvm.vector.reduce.or.v{width}i1", "i1", f"{bits} {active}", bits)
            self.scalar_store(store, ops.to_memory(self, value.text, dtype, 0), kind, align, anyone)
            return
        lanes, suffix = vector_type(kind, width), f"v{width}{ops.suffix(kind)}"
        text = ops.to_memory(self, self.spread(value, width), dtype, width)
        mask = self.active(store.mask)
        way, address = self.places(store.buffer, store.index)
        if way == "apart" and (close := self.near(store.buffer, store.index, mask)) is not None:
            near.store(self, kind, align, close[1], close[0], mask, text)
            return
        if way == "apart":
            chosen, pointers = mask or splat_text("true", "i1"), vector_type("ptr", width)
            self.call(
                f"llvm.masked.scatter.{suffix}.v{width}p0",
                "void",
                f"{lanes} {text}, {pointers} align {align} {address}, {bits} {chosen}",
                f"{lanes}, {pointers}, {bits}",
            )
            return
        if way == "against":
            text = ops.reverse(self, text, kind, width)
            mask = mask and ops.reverse(self, mask, "i1", width)
        if mask is None and way == "along" and self.streams(store, vector, align):
            self.fence = True
            self.do(f"store {lanes} {text}, ptr {address}, align {CACHE_LINE}, !nontemporal !0")
        elif mask is None:
            self.do(f"store {lanes} {text}, ptr {address}, align {align}")
        else:
            self.call(
                f"llvm.masked.store.{suffix}.p0",
                "void",
                f"{lanes} {text}, ptr align {align} {address}, {bits} {mask}",
                f"{lanes}, ptr, {bits}",
            )

    def streams(self, store: Store, vector: Vector, itemsize: int) -> bool:
        """Whether a store may bypass the caches, and every vector of it fills whole cache lines."""
        if not STREAMS or store.buffer not in self.streamed or vector.width * itemsize % CACHE_LINE:
            return False
        steps = [coefficient for atom, coefficient in store.index.terms if atom != vector.axis]
        return all(step * itemsize % CACHE_LINE == 0 for step in (*steps, store.index.const))

    def scalar_store(self, store: Store, text: str, kind: str, align: int, condition: str = "") -> None:
        address = self.pointer(store.buffer, store.index)
        code = f"store {kind} {text}, ptr {address}, align {align}"
        if store.mask is None:
            self.do(code)
            return
        number = self.fresh("")
        self.do(f"br i1 {condition or self.value(store.mask).text}, label %then{number}, label %end{number}")
        self.scope.lines += [f"then{number}:", "  " + code, f"  br label %end{number}", f"end{number}:"]
        self.scope.label = f"end{number}"


def _clean(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


def _update_widths(body: tuple[Stmt, ...], width: int, kept: dict[str, int] | None = None) -> dict[str, set[int]]:
    """For every accumulator, the widths of the vector loops in which it is updated (0: none); `kept` has the lanes of
    partial results that inner folds left apart."""
    found: dict[str, set[int]] = {}
    kept = {} if kept is None else kept
    for stmt in body:
        if isinstance(stmt, Update):
            name = stmt.value.name if isinstance(stmt.value, Var) else ""
            found.setdefault(stmt.name, set()).add(kept.get(name, width))
        elif isinstance(stmt, Loop | If | Fold):
            inner = stmt.width if isinstance(stmt, Loop) and stmt.kind == "vector" and stmt.width > 1 else width
            widths = _update_widths(stmt.body, inner, kept)
            if isinstance(stmt, Fold) and not stmt.joined:
                kept.update({one.name: max(widths.get(one.name, {width})) for one in stmt.accumulators})
            for name, some in widths.items():
                found.setdefault(name, set()).update(some)
    return found
