"""The kernel language as C-like text for GPUs, with one table for each language (`render.dialects`).

`render` prints kernels that a GPU schedule made, in normal form, as one source text:

- a kernel's parameters are its buffers as typed pointers, its scalars by value, then its ranges as 64-bit integers;
- it is launched with exactly `geometry.threads` threads to a block and any number of blocks: a 'task' loop strides over
  blocks, a 'threads' loop over the threads of a block, a 'grid' loop over all threads;
- no fast-math and no contraction: a fused multiply-add stands where the kernel says so, and compilers must be told not
  to make others (`-fmad=false`);
- loop variables and indices whose ranges allow it are 32 bits wide. Where more than 2**30 threads would be launched, an
  axis that is longer than 2**30 is 64 bits wide anyway.

A name is made from what the kernel does and a hash of its code, so equal kernels are one. `render.clike_ops` prints
single operations.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable

from weft import dtypes
from weft.errors import GraphError, problem
from weft.kernels.index import Atom, Axis, Index, Quotient
from weft.kernels.language import (
    Barrier,
    BufferParam,
    Copy,
    Expr,
    Fetch,
    Fetched,
    Fold,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    Update,
    pool_bytes,
)
from weft.render.clike_ops import Operations
from weft.render.dialects import Dialect

TURNS = ((8, 16), (16, 8), (64, 4), (128, 2))  # statements up to which so many turns of a loop are written out
NARROW = 1 << 30  # an axis up to this extent has a 32-bit variable: one stride beyond its end still fits


def render(kernel: Kernel, dialect: Dialect) -> str:
    """The source text of one kernel in normal form."""
    return render_all([kernel], dialect)


def render_all(kernels: Iterable[Kernel], dialect: Dialect) -> str:
    """The source text of several kernels, each printed once, with the helper functions that they share before them."""
    return named(kernels, dialect)[1]


def symbol(kernel: Kernel, dialect: Dialect) -> str:
    """The name of the function that `render` makes of a kernel."""
    return named([kernel], dialect)[0][0]


def named(kernels: Iterable[Kernel], dialect: Dialect) -> tuple[list[str], str]:
    """The name of each kernel's function, and the source text of all."""
    operations = Operations(dialect)
    printed = [_Renderer(kernel, operations) for kernel in kernels]
    functions = {renderer.name: renderer.text(renderer.name) for renderer in printed}
    helpers = "\n".join(operations.helpers.values())
    text = "\n\n".join(part for part in (dialect.header, helpers, *functions.values()) if part) + "\n"
    return [renderer.name for renderer in printed], text


def _title(kernel: Kernel) -> str:
    """What a kernel does, without extents: the same text serves others."""
    return re.sub(r"_\d+(x\d+)*(?=_|$)", "", kernel.name)


def _turns_at_once(loop: Loop) -> int:
    """How many turns of a loop that folds are written out, so that their loads and long chains run side by side.
    What the turns add still comes in order."""
    nested = any(isinstance(stmt, Loop | Fold | If | Barrier) for stmt in loop.body)
    if nested or not any(isinstance(stmt, Update) for stmt in loop.body):
        return 1
    if isinstance(loop.start, int) and isinstance(loop.stop, int) and loop.stop - loop.start < 2:
        return 1
    return next((turns for most, turns in TURNS if len(loop.body) <= most), 1)


class _Renderer:
    """One kernel: its lines, and its name, which follows from them."""

    def __init__(self, kernel: Kernel, operations: Operations):
        if kernel.geometry is None:
            raise problem(
                GraphError, "render.clike", f"'{kernel.name}' without a geometry", "a kernel scheduled for GPU"
            )
        self.kernel, self.geometry = kernel, kernel.geometry
        self.ops = operations
        self.dialect = operations.dialect
        self.lines: list[str] = []
        self.depth = 1
        self.memory = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.accumulators: dict[str, tuple[str, dtypes.DType]] = {}
        self.errors: set[str] = set()  # accumulators that are compensated: what they round off is in NAME_error
        self.pool = 0  # bytes taken of the memory asked for with the launch
        self.block(kernel.body)
        clean = "".join(letter if letter.isalnum() else "_" for letter in _title(kernel))
        self.name = f"{clean}_{hashlib.sha256(self.text('').encode()).hexdigest()[:8]}"

    # --- the whole function ---

    def text(self, name: str) -> str:
        geometry = self.geometry
        parameters = [self.parameter(buffer) for buffer in self.kernel.buffers]
        parameters += [f"{self.ops.type(scalar.dtype)} {scalar.name}" for scalar in self.kernel.scalars]
        parameters += [f"{self.ops.type(dtypes.int64)} {name}" for name in self.kernel.ranges]
        bounds = f"{geometry.threads}, {geometry.beside}" if geometry.beside else geometry.threads
        head = self.dialect.kernel.format(threads=geometry.threads, bounds=bounds, name=name)
        return "\n".join([f"// {_title(self.kernel)}", f"{head}({', '.join(parameters)})", "{", *self.lines, "}"])

    def parameter(self, buffer: BufferParam) -> str:
        kind = self.ops.memory_type(buffer.dtype)
        return self.dialect.pointer.format(type=kind if buffer.written else f"const {kind}", name=buffer.name)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # --- statements ---

    def block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            match stmt:
                case Let(name, value):
                    self.line(f"const {self.ops.type(value.dtype)} {name} = {self.let(value)};")
                case Store():
                    self.store(stmt)
                case Loop():
                    self.loop(stmt)
                case Fold():
                    self.fold(stmt)
                case Update(name, value, factor):
                    op, dtype = self.accumulators[name]
                    if name in self.errors:
                        self.compensated(name, self.value(value))
                    elif factor is None:
                        self.line(f"{name} = {self.ops.combine(op, self.value(value), name, dtype)};")
                    else:
                        texts = [self.value(value), self.value(factor), name]
                        self.line(f"{name} = {self.ops.arithmetic('fma', texts, dtype)};")
                case If(condition, inner, otherwise):
                    self.nested(f"if ({self.value(condition)})", inner)
                    if otherwise:
                        self.lines.pop()
                        self.nested("} else", otherwise)
                case Barrier():
                    self.line(self.dialect.barrier)
                case Local():
                    self.local(stmt)
                case Fetch():
                    self.fetch(stmt)
                case Fetched(pending):
                    if self.dialect.fetched:
                        self.line(self.dialect.fetched.format(pending=pending))
                case TileLoad(target, at, buffer, index, row, col, role):
                    turned = "" if (col if role == "a" else row) == 1 else "_turned"
                    places = f"&{target}[{self.index(at)}], &{buffer}[{self.index(index)}]"
                    self.line(f"{self.ops.known(f'tile_{role}{turned}')}({places}, {row if col == 1 else col});")
                case TileProduct(sums, sums_at, a, a_at, b, b_at, dtype):
                    pairs = ((sums, sums_at), (a, a_at), (b, b_at))
                    places = ", ".join(f"&{name}[{self.index(index)}]" for name, index in pairs)
                    self.line(f"{self.ops.known(f'tile_product_{dtype.name}')}({places});")
                case Copy(target, at, source, index, count, dtype):
                    to, start = f"{target}[{self.index(at)}]", f"{source}[{self.index(index)}]"
                    rounds = self.memory[source] is not dtype
                    self.line(self.ops.round(to, start, count) if rounds else self.ops.copy(to, start, count, dtype))

    def nested(self, head: str, body: tuple[Stmt, ...]) -> None:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        self.block(body)
        self.depth -= 1
        self.line("}")

    def store(self, store: Store) -> None:
        mask = "" if store.mask is None else f"if ({self.value(store.mask)}) "
        self.line(f"{mask}{store.buffer}[{self.index(store.index)}] = {self.value(store.value)};")

    def local(self, local: Local) -> None:
        self.memory[local.name] = local.dtype
        forms = {"thread": self.dialect.private, "launch": self.dialect.launched}
        if local.scope == "launch" and not self.pool:
            self.line(self.dialect.pool)
        form, kind = forms.get(local.scope, self.dialect.local), self.ops.memory_type(local.dtype)
        size = local.size + local.size % 2 if local.scope == "thread" and local.dtype.is_narrow else local.size
        self.line(form.format(type=kind, name=local.name, size=size, offset=self.pool))
        if local.scope == "launch":
            self.pool += pool_bytes(local)

    def fetch(self, fetch: Fetch) -> None:
        """A call of the dialect's `fetch`, or a loop where copies are not left to the hardware."""
        to, source, dtype = f"{fetch.target}[{self.index(fetch.at)}", fetch.source, self.memory[fetch.target]
        valid = str(fetch.valid) if isinstance(fetch.valid, int) else self.value(fetch.valid)
        if fetch.aligned and "fetch_near" in self.dialect.functions:
            call = f"{self.ops.known('fetch_near')}<{fetch.count}>"
            self.line(f"{call}(&{to}], &{source}[{self.index(fetch.index)}]);")
            return
        if "fetch" in self.dialect.functions:
            call = f"{self.ops.known('fetch')}<{fetch.count}>"
            self.line(f"{call}(&{to}], &{source}[{self.index(fetch.index)}], {valid});")
            return
        element = f"i < {valid} ? {source}[{self.index(fetch.index)} + i] : {self.ops.literal(0, dtype)}"
        self.line(f"for (int i = 0; i < {fetch.count}; i++) {to} + i] = {element};")

    def fold(self, fold: Fold) -> None:
        for acc in fold.accumulators:
            self.accumulators[acc.name] = acc.op, acc.dtype
            self.line(f"{self.ops.type(acc.dtype)} {acc.name} = {self.ops.literal(acc.identity, acc.dtype)};")
            if acc.compensated:
                self.errors.add(acc.name)
                self.line(f"{self.ops.type(acc.dtype)} {acc.name}_error = {self.ops.literal(0, acc.dtype)};")
        self.block(fold.body)
        for acc in fold.accumulators:
            if acc.compensated:  # what was rounded off is no number where the sum is infinite
                self.errors.remove(acc.name)
                exact = self.ops.arithmetic("add", [acc.name, f"{acc.name}_error"], acc.dtype)
                size = self.ops.arithmetic("abs", [f"({exact})"], acc.dtype)
                finite = f"{size} < {self.ops.literal(math.inf, acc.dtype)}"
                self.line(f"{acc.name} = {finite} ? {exact} : {acc.name};")

    def compensated(self, name: str, value: str) -> None:
        """Add `value` to a sum, and what that rounds off to the sum's error: Knuth's two-sum."""
        dtype = self.accumulators[name][1]
        kind, error = self.ops.type(dtype), f"{name}_error"
        total, added, left = f"{name}_total", f"{name}_added", f"{name}_left"

        def step(op: str, a: str, b: str) -> str:
            return self.ops.arithmetic(op, [a, b], dtype)

        lost = step("add", f"({step('sub', name, left)})", f"({step('sub', value, added)})")
        self.line("{")  # a fold may add to one sum several times
        self.line(f"const {kind} {total} = {step('add', name, value)};")
        self.line(f"const {kind} {added} = {step('sub', total, name)};")
        self.line(f"const {kind} {left} = {step('sub', total, added)};")
        self.line(f"{error} = {step('add', error, f'({lost})')};")
        self.line(f"{name} = {total};")
        self.line("}")

    def loop(self, loop: Loop) -> None:
        name, kind = loop.axis.name, self.axis_type(loop.axis)
        start, stop = self.bound(loop.start, loop.axis), self.bound(loop.stop, loop.axis)
        thread, block, blocks = self.dialect.thread, self.dialect.block, self.dialect.blocks
        offset, step = "", "1"
        if loop.kind == "threads":
            if loop.start == 0 and isinstance(loop.stop, int) and loop.stop <= loop.width:
                self.once(loop, f"{kind} {name} = {thread}")
                return
            offset, step = thread, str(loop.width)
            if _turns_at_once(loop) > 1:
                self.line(f"{self.dialect.unroll} {_turns_at_once(loop)}")
        elif loop.kind == "task":
            offset, step = block, blocks
        elif loop.kind == "grid":
            offset, step = (
                f"{self.as_type(block, kind)} * {loop.width} + {thread}",
                f"{self.as_type(blocks, kind)} * {loop.width}",
            )
        elif loop.kind == "unrolled":
            assert isinstance(loop.start, int)
            if loop.start + 1 == loop.stop:
                self.where_used("{", f"{kind} {name} = {loop.start}", loop)
                return
            self.line(self.dialect.unroll)
        elif loop.kind == "serial" and loop.width > 1:
            self.line(f"{self.dialect.unroll} {loop.width}")
        elif loop.kind != "serial":
            raise problem(GraphError, "render.clike", f"a '{loop.kind}' loop", "a kernel scheduled for GPU")
        elif _turns_at_once(loop) > 1:
            self.line(f"{self.dialect.unroll} {_turns_at_once(loop)}")
        first = offset if offset and start == "0" else f"{start} + {offset}" if offset else start
        advance = f"{name}++" if step == "1" else f"{name} += {step}"
        self.nested(f"for ({kind} {name} = {first}; {name} < {stop}; {advance})", loop.body)

    def once(self, loop: Loop, definition: str) -> None:
        """A 'threads' loop that no thread goes through twice."""
        thread = self.dialect.thread
        guard = (
            ""
            if loop.stop == loop.width
            else f"if ({thread} == 0) "
            if loop.stop == 1
            else f"if ({thread} < {loop.stop}) "
        )
        self.where_used(f"{guard}{{", definition, loop)

    def where_used(self, head: str, definition: str, loop: Loop) -> None:
        """The body of a loop that runs once, with its variable if there is a use of it."""
        self.line(head)
        first = len(self.lines)
        self.depth += 1
        self.block(loop.body)
        if any(re.search(rf"\b{loop.axis.name}\b", line) for line in self.lines[first:]):
            self.lines.insert(first, "    " * self.depth + f"const {definition};")
        self.depth -= 1
        self.line("}")

    def bound(self, bound: Expr | int, axis: Axis) -> str:
        if isinstance(bound, int):
            return str(bound)
        text = self.value(bound)
        return text if axis.extent > NARROW or isinstance(bound, Literal) else f"(int){text}"

    # --- values ---

    def value(self, expr: Expr) -> str:
        return self.ops.atom(expr)

    def let(self, value: Expr) -> str:
        match value:
            case Op():
                return self.ops.operation(value, [self.value(arg) for arg in value.args])
            case Load(buffer, index, dtype, mask):
                if dtype is not self.memory[buffer]:
                    return f"{self.ops.known('widen_near')}({buffer}, {self.index(index)})"
                element = f"{buffer}[{self.index(index)}]"
                if dtype is dtypes.bool_:
                    element = f"{element} != 0"
                return element if mask is None else f"{self.value(mask)} ? {element} : {self.ops.literal(0, dtype)}"
            case IndexValue(index, dtype):
                text = self.index(index)
                simple = text.replace("_", "").isalnum()
                return f"({self.ops.type(dtype)}){text if simple else f'({text})'}"
            case _:
                return self.value(value)

    # --- indices ---

    def axis_type(self, axis: Axis) -> str:
        return self.ops.type(dtypes.int64 if axis.extent > NARROW else dtypes.int32)

    def as_type(self, text: str, kind: str) -> str:
        return text if kind == self.ops.type(dtypes.int32) else f"({kind}){text}"

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
                text = f"({self.ops.type(dtypes.int64)}){text}"
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
            return f"{inside} >> {divisor.bit_length() - 1}" if quotient else f"{inside} & {divisor - 1}"
        lift = max(-(atom.value.low // divisor), 0)
        if lift:
            inside = f"({inside} + {lift * divisor})"
        divided = f"{inside} {'/' if quotient else '%'} {divisor}"
        return f"{divided} - {lift}" if lift and quotient else divided
