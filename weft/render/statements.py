"""Statements and indices of the kernel language as source text, for all languages with C's control flow.

`StatementRenderer` prints one kernel in normal form: loops over lanes and workgroups, reductions, conditions and index
arithmetic. A language (`render.clike`, `render.wgsl`) says how it declares a name, reaches memory and starts a loop.
Nothing here chooses an algorithm or an order of additions.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from typing import Any

from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.index import Atom, Axis, Index, Quotient
from weft.kernels.ir.language import Barrier, Expr, If, Kernel, Let, Local, Loop, Reduction, Stmt, Store, Update

UNROLLED_ITERATIONS = ((8, 16), (16, 8), (64, 4), (128, 2))  # (statements at most, iterations written out)


def title(kernel: Kernel) -> str:
    """What a kernel does, without extents: the same text serves others."""
    return re.sub(r"_\d+(x\d+)*(?=_|$)", "", kernel.name)


def _unrolled_iterations(loop: Loop) -> int:
    """How many iterations of a loop that reduces are written out, so that their loads and long chains overlap. What the
    iterations add still comes in order."""
    emit_nested = any(isinstance(stmt, Loop | Reduction | If | Barrier) for stmt in loop.body)
    if emit_nested or not any(isinstance(stmt, Update) for stmt in loop.body):
        return 1
    if isinstance(loop.start, int) and isinstance(loop.stop, int) and loop.stop - loop.start < 2:
        return 1
    return next((count for most, count in UNROLLED_ITERATIONS if len(loop.body) <= most), 1)


class StatementRenderer(ABC):
    """The lines of one kernel. Subclasses are languages."""

    language = ""  # for errors
    shift = ">> {bits}"  # of an index, to the right
    lane: str  # number of this lane in its workgroup
    workgroup: str  # number of this workgroup
    workgroups: str  # how many there are
    barrier: str
    ops: Any  # prints single operations

    def __init__(self, kernel: Kernel):
        if kernel.geometry is None:
            raise problem(
                GraphError, self.language, f"'{kernel.name}' without a geometry", "a kernel scheduled for GPU"
            )
        self.kernel, self.geometry = kernel, kernel.geometry
        self.lines: list[str] = []
        self.depth = 1
        self.memory = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.accumulators: dict[str, tuple[str, DType]] = {}
        self.errors: set[str] = set()  # accumulators that are compensated: what they round off is in NAME_error

    # --- what differs between languages ---

    @abstractmethod
    def let(self, stmt: Let) -> None:
        """Define the name of a `Let`."""

    @abstractmethod
    def store(self, store: Store) -> None: ...

    @abstractmethod
    def local(self, local: Local) -> None:
        """Declare an array."""

    @abstractmethod
    def transfer(self, stmt: Stmt) -> None:
        """What moves several elements at once, and what is done with tiles of a matrix unit."""

    @abstractmethod
    def constant(self, dtype: DType, name: str, value: str) -> str:
        """The definition of a name that keeps its value."""

    @abstractmethod
    def variable(self, dtype: DType, name: str, value: str) -> str:
        """The definition of a name that is assigned to."""

    def round_text(self, text: str, dtype: DType) -> str:
        """A float that was rounded, such that no compiler computes with what it was before."""
        return text

    @abstractmethod
    def choose(self, condition: str, value: str, otherwise: str) -> str: ...

    @abstractmethod
    def loop_head(self, dtype: DType, name: str, first: str, stop: str, advance: str) -> str: ...

    def write_out(self, loop: Loop) -> bool:
        """Write a loop out that has to be; whether that was done."""
        return False

    def unroll(self, iterations: int = 0) -> None:  # noqa: B027 (WGSL cannot ask)
        """Ask for so many iterations of the loop that follows to be written out; 0: all of them."""

    @abstractmethod
    def axis_dtype(self, axis: Axis) -> DType:
        """Of a loop's variable."""

    @abstractmethod
    def as_axis(self, text: str, dtype: DType) -> str:
        """A 32-bit integer as the dtype of a loop's variable."""

    @abstractmethod
    def bound(self, bound: Expr | int, axis: Axis) -> str:
        """A bound of a loop over `axis`."""

    @abstractmethod
    def widen(self, text: str) -> str:
        """A 32-bit integer as one of 64 bits, in an index that does not fit in 32."""

    # --- statements ---

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def value(self, expr: Expr) -> str:
        return self.ops.atom(expr)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case Let():
                    self.let(stmt)
                case Store():
                    self.store(stmt)
                case Loop():
                    self.loop(stmt)
                case Reduction():
                    self.reduction(stmt)
                case Update():
                    self.update(stmt)
                case If(condition, inner, otherwise):
                    self.emit_nested(f"if ({self.value(condition)})", inner)
                    if otherwise:
                        self.lines.pop()
                        self.emit_nested("} else", otherwise)
                case Barrier():
                    self.line(self.barrier)
                case Local():
                    self.local(stmt)
                case _:
                    self.transfer(stmt)

    def emit_nested(self, head: str, body: tuple[Stmt, ...]) -> None:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        self.statements(body)
        self.depth -= 1
        self.line("}")

    def update(self, update: Update) -> None:
        name, value, factor = update.name, update.value, update.factor
        op, dtype = self.accumulators[name]
        if name in self.errors:
            self.add_compensated(name, self.value(value))
        elif factor is None:
            self.line(f"{name} = {self.ops.combine(op, self.value(value), name, dtype)};")
        else:
            texts = [self.value(value), self.value(factor), name]
            self.line(f"{name} = {self.ops.arithmetic('fma', texts, dtype)};")

    def reduction(self, reduction: Reduction) -> None:
        for acc in reduction.accumulators:
            self.accumulators[acc.name] = acc.op, acc.dtype
            self.line(self.variable(acc.dtype, acc.name, self.ops.literal(acc.identity, acc.dtype)))
            if acc.compensated:
                self.errors.add(acc.name)
                self.line(self.variable(acc.dtype, f"{acc.name}_error", self.ops.literal(0, acc.dtype)))
        self.statements(reduction.body)
        for acc in reduction.accumulators:
            if acc.compensated:  # what was rounded off is no number where the sum is infinite
                self.errors.remove(acc.name)
                exact = self.ops.arithmetic("add", [acc.name, f"{acc.name}_error"], acc.dtype)
                size = self.ops.arithmetic("abs", [f"({exact})"], acc.dtype)
                finite = f"{size} < {self.ops.literal(math.inf, acc.dtype)}"
                self.line(f"{acc.name} = {self.choose(finite, exact, acc.name)};")

    def add_compensated(self, name: str, value: str) -> None:
        """Add `value` to a sum, and what that rounds off to the sum's error: Knuth's two-sum."""
        dtype, error = self.accumulators[name][1], f"{name}_error"
        total, added, left = f"{name}_total", f"{name}_added", f"{name}_left"

        def step(op: str, a: str, b: str) -> str:
            return self.ops.arithmetic(op, [a, b], dtype)

        lost = step("add", f"({step('sub', name, left)})", f"({step('sub', value, added)})")
        self.line("{")  # a reduction may add to one sum several times
        self.line(self.constant(dtype, total, step("add", name, value)))
        self.line(self.constant(dtype, added, step("sub", self.round_text(total, dtype), name)))
        self.line(self.constant(dtype, left, step("sub", total, self.round_text(added, dtype))))
        self.line(f"{error} = {step('add', error, f'({lost})')};")
        self.line(f"{name} = {total};")
        self.line("}")

    # --- loops ---

    def loop(self, loop: Loop) -> None:
        name, dtype = loop.axis.name, self.axis_dtype(loop.axis)
        start, stop = self.bound(loop.start, loop.axis), self.bound(loop.stop, loop.axis)
        offset, step = "", "1"
        if loop.kind == "lanes":
            if loop.start == 0 and isinstance(loop.stop, int) and loop.stop <= loop.width:
                self.once(loop, dtype)
                return
            offset, step = self.lane, str(loop.width)
            if _unrolled_iterations(loop) > 1:
                self.unroll(_unrolled_iterations(loop))
        elif loop.kind == "task":
            offset, step = self.workgroup, self.workgroups
        elif loop.kind == "grid":
            offset = f"{self.as_axis(self.workgroup, dtype)} * {loop.width} + {self.lane}"
            step = f"{self.as_axis(self.workgroups, dtype)} * {loop.width}"
        elif loop.kind == "unrolled":
            assert isinstance(loop.start, int)
            if self.write_out(loop):
                return
            if loop.start + 1 == loop.stop:
                self.where_used("{", self.constant(dtype, name, str(loop.start)), loop)
                return
            self.unroll()
        elif loop.kind == "serial" and loop.width > 1:
            self.unroll(loop.width)
        elif loop.kind != "serial":
            raise problem(GraphError, self.language, f"a '{loop.kind}' loop", "a kernel scheduled for GPU")
        elif _unrolled_iterations(loop) > 1:
            self.unroll(_unrolled_iterations(loop))
        first = offset if offset and start == "0" else f"{start} + {offset}" if offset else start
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.emit_nested(self.loop_head(dtype, name, first, stop, advance), loop.body)

    def once(self, loop: Loop, dtype: DType) -> None:
        """A 'lanes' loop of at most one iteration for each lane."""
        guard = (
            ""
            if loop.stop == loop.width
            else f"if ({self.lane} == 0) "
            if loop.stop == 1
            else f"if ({self.lane} < {loop.stop}) "
        )
        self.where_used(f"{guard}{{", self.constant(dtype, loop.axis.name, self.lane), loop)

    def where_used(self, head: str, definition: str, loop: Loop) -> None:
        """The body of a loop that runs once, with its variable if there is a use of it."""
        self.line(head)
        first = len(self.lines)
        self.depth += 1
        self.statements(loop.body)
        if any(re.search(rf"\b{loop.axis.name}\b", line) for line in self.lines[first:]):
            self.lines.insert(first, "    " * self.depth + definition)
        self.depth -= 1
        self.line("}")

    # --- indices ---

    def index(self, index: Index) -> str:
        """An index as a sum, in 32 bits where no part of it can leave them."""
        reach = abs(index.const) + sum(abs(factor) * max(abs(atom.low), abs(atom.high)) for atom, factor in index.terms)
        wide = reach >= 2**31
        parts = []
        alone = len(index.terms) == 1 and not index.const and not wide
        for atom, factor in index.terms:
            text = self.atom(atom)
            if " " in text and not (alone and factor == 1):
                text = f"({text})"
            if wide:
                text = self.widen(text)
            parts.append(text if factor == 1 else f"-{text}" if factor == -1 else f"{text} * {factor}")
        if index.const or not parts:
            parts.append(str(index.const))
        return " + ".join(parts).replace("+ -", "- ")

    def atom(self, atom: Atom) -> str:
        """An axis, or a quotient or remainder rounded down: by a shift, or with the value moved up to be positive."""
        if isinstance(atom, Axis):
            return atom.name
        divisor, quotient = atom.divisor, isinstance(atom, Quotient)
        inside = self.index(atom.value)
        inside = f"({inside})" if " " in inside else inside
        if divisor & (divisor - 1) == 0:
            shift = self.shift.format(bits=divisor.bit_length() - 1)
            return f"{inside} {shift}" if quotient else f"{inside} & {divisor - 1}"
        lift = max(-(atom.value.low // divisor), 0)
        if lift:
            inside = f"({inside} + {lift * divisor})"
        divided = f"{inside} {'/' if quotient else '%'} {divisor}"
        return f"{divided} - {lift}" if lift and quotient else divided
