"""The kernel language as C-like text for GPUs, with one table for each language (`render.dialects.tables`).

`render` prints kernels that a GPU schedule made, in normal form, as one source text:

- a kernel's parameters are its buffers as typed pointers, its scalars by value, then its ranges as 64-bit integers;
- it is launched with exactly `geometry.lanes` lanes to a workgroup and any number of workgroups: a 'task' loop strides
  over workgroups, a 'lanes' loop over the lanes of a workgroup, a 'grid' loop over all lanes;
- no fast-math and no contraction: a fused multiply-add stands where the kernel says so, and compilers must be told not
  to make others (`-fmad=false`);
- loop variables and indices whose ranges allow it are 32 bits wide. Where more than 2**30 lanes would be launched, an
  axis that is longer than 2**30 is 64 bits wide anyway.

A name is made from what the kernel does and a hash of its code, so equal kernels are one. `render.clike.operations`
prints single operations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from weft.base import dtypes
from weft.kernels.ir.index import Axis
from weft.kernels.ir.language import (
    AsyncCopy,
    AwaitCopies,
    BufferParam,
    Copy,
    Expr,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Op,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    pool_bytes,
)
from weft.render.clike.operations import Operations
from weft.render.dialects.tables import Dialect
from weft.render.statements import StatementRenderer, title

MAX_INT32_EXTENT = 1 << 30  # an axis up to this extent has a 32-bit variable: one stride beyond its end still fits


def render(kernel: Kernel, dialect: Dialect) -> str:
    """The source text of one kernel in normal form."""
    return render_all([kernel], dialect)


def render_all(kernels: Iterable[Kernel], dialect: Dialect) -> str:
    """The source text of several kernels, each printed once, with the helper functions that they share before them."""
    return render_with_symbols(kernels, dialect)[1]


def symbol(kernel: Kernel, dialect: Dialect) -> str:
    """The name of the function that `render` makes of a kernel."""
    return render_with_symbols([kernel], dialect)[0][0]


def render_with_symbols(kernels: Iterable[Kernel], dialect: Dialect) -> tuple[list[str], str]:
    """The name of each kernel's function, and the source text of all."""
    operations = Operations(dialect)
    printed = [_Renderer(kernel, operations) for kernel in kernels]
    functions = {renderer.name: renderer.text(renderer.name) for renderer in printed}
    helpers = "\n".join(operations.helpers.values())
    text = "\n\n".join(part for part in (dialect.header, helpers, *functions.values()) if part) + "\n"
    return [renderer.name for renderer in printed], text


class _Renderer(StatementRenderer):
    """One kernel: its lines, and its name, which follows from them."""

    language = "render.clike"

    def __init__(self, kernel: Kernel, operations: Operations):
        super().__init__(kernel)
        self.ops = operations
        self.dialect = operations.dialect
        self.lane, self.workgroup, self.workgroups = self.dialect.lane, self.dialect.workgroup, self.dialect.workgroups
        self.barrier = self.dialect.barrier
        self.hoisted: list[str] = []  # declarations before everything else
        self.spaces = {buffer.name: self.dialect.spaces["buffer"] for buffer in kernel.buffers}
        self.pool = 0  # bytes taken of the memory asked for with the launch
        self.statements(kernel.body)
        clean = "".join(letter if letter.isalnum() else "_" for letter in title(kernel))
        self.name = f"{clean}_{hashlib.sha256(self.text('').encode()).hexdigest()[:8]}"

    # --- the whole function ---

    def text(self, name: str) -> str:
        geometry = self.geometry
        parameters = [self.with_type(self.dialect.pointer, buffer) for buffer in self.kernel.buffers]
        parameters += [f"{self.ops.type(scalar.dtype)} {scalar.name}" for scalar in self.kernel.scalars]
        parameters += [f"{self.ops.type(dtypes.int64)} {name}" for name in self.kernel.ranges]
        bounds = f"{geometry.lanes}, {geometry.min_resident}" if geometry.min_resident else geometry.lanes
        head = self.dialect.kernel.format(threads=geometry.lanes, bounds=bounds, name=name)
        bound = [self.with_type(self.dialect.bound, buffer) for buffer in self.kernel.buffers if self.dialect.bound]
        first = ["    " + line for line in (*self.hoisted, *bound)]
        lines = [f"{head}({', '.join(parameters)})", "{", *first, *self.lines, "}"]
        return "\n".join([f"// {title(self.kernel)}", self.without_reserved("\n".join(lines))])

    def without_reserved(self, text: str) -> str:
        """A text in which names that the language reserves have a _ at their end."""
        words = self.dialect.reserved
        return re.sub(rf"\b({'|'.join(words)})\b", r"\1_", text) if words else text

    def with_type(self, form: str, buffer: BufferParam) -> str:
        """A format of the dialect with the name and the element type of a buffer."""
        kind = self.ops.memory_type(buffer.dtype)
        return form.format(type=kind if buffer.written else f"const {kind}", name=buffer.name)

    # --- declarations and loops ---

    def constant(self, dtype: dtypes.DType, name: str, value: str) -> str:
        return f"const {self.ops.type(dtype)} {name} = {value};"

    def variable(self, dtype: dtypes.DType, name: str, value: str) -> str:
        return f"{self.ops.type(dtype)} {name} = {value};"

    def choose(self, condition: str, value: str, otherwise: str) -> str:
        return f"{condition} ? {value} : {otherwise}"

    def loop_head(self, dtype: dtypes.DType, name: str, first: str, stop: str, advance: str) -> str:
        return f"{self.dialect.loop} ({self.ops.type(dtype)} {name} = {first}; {name} < {stop}; {advance})"

    def unroll(self, iterations: int = 0) -> None:
        self.line(f"{self.dialect.unroll} {iterations}" if iterations else self.dialect.unroll)

    def axis_dtype(self, axis: Axis) -> dtypes.DType:
        return dtypes.int64 if axis.extent > MAX_INT32_EXTENT else dtypes.int32

    def as_axis(self, text: str, dtype: dtypes.DType) -> str:
        return text if dtype is dtypes.int32 else self.widen(text)

    def widen(self, text: str) -> str:
        return f"({self.ops.type(dtypes.int64)}){text}"

    def bound(self, bound: Expr | int, axis: Axis) -> str:
        if isinstance(bound, int):
            return str(bound)
        text = self.value(bound)
        return text if axis.extent > MAX_INT32_EXTENT or isinstance(bound, Literal) else f"(int){text}"

    # --- memory ---

    def let(self, stmt: Let) -> None:
        self.line(self.constant(stmt.value.dtype, stmt.name, self.definition(stmt.value)))

    def store(self, store: Store) -> None:
        mask = "" if store.mask is None else f"if ({self.value(store.mask)}) "
        self.line(f"{mask}{store.buffer}[{self.index(store.index)}] = {self.value(store.value)};")

    def local(self, local: Local) -> None:
        self.memory[local.name] = local.dtype
        self.spaces[local.name] = self.dialect.spaces["lane" if local.scope == "lane" else "workgroup"]
        is_launched = local.scope == "launch" and bool(self.dialect.pool)
        if is_launched and not self.pool:
            self.line(self.dialect.pool)
        form = self.dialect.launched if is_launched else self.dialect.local
        form, kind = self.dialect.private if local.scope == "lane" else form, self.ops.memory_type(local.dtype)
        size = local.size + local.size % 2 if local.scope == "lane" and local.dtype.is_16_bit else local.size
        text = form.format(type=kind, name=local.name, size=size, offset=self.pool)
        if self.dialect.hoists_shared_arrays and local.scope != "lane":
            self.hoisted.append(text)
        else:
            self.line(text)
        if is_launched:
            self.pool += pool_bytes(local)

    def async_copy(self, fetch: AsyncCopy) -> None:
        """The dialect's `fetch`, or a loop where copies are not left to the hardware."""
        to, source, dtype = f"{fetch.target}[{self.index(fetch.at)}", fetch.source, self.memory[fetch.target]
        valid = str(fetch.valid) if isinstance(fetch.valid, int) else self.value(fetch.valid)
        form = "fetch_near" if fetch.aligned and self.dialect.fetch_near else "fetch"
        if self.dialect.fetch:
            start, spaces = f"{source}[{self.index(fetch.index)}]", (self.spaces[fetch.target], self.spaces[source])
            self.line(self.ops.move(form, f"{to}]", start, fetch.count, dtype, *spaces, valid=valid))
            return
        element = f"i < {valid} ? {source}[{self.index(fetch.index)} + i] : {self.ops.literal(0, dtype)}"
        self.line(f"for (int i = 0; i < {fetch.count}; i++) {to} + i] = {element};")

    def transfer(self, stmt: Stmt) -> None:
        """What moves several elements at once, and what is done with tiles of a matrix unit."""
        match stmt:
            case AsyncCopy():
                self.async_copy(stmt)
            case AwaitCopies(pending):
                if self.dialect.fetched:
                    self.line(self.dialect.fetched.format(pending=pending))
            case TileLoad(target, at, buffer, index, row, col, role):
                transposed = "" if (col if role == "a" else row) == 1 else "_turned"
                operands = f"&{target}[{self.index(at)}], &{buffer}[{self.index(index)}]"
                self.line(
                    f"{self.ops.use_function(f'tile_{role}{transposed}')}({operands}, {row if col == 1 else col});"
                )
            case TileProduct(sums, sums_at, a, a_at, b, b_at, dtype):
                pairs = ((sums, sums_at), (a, a_at), (b, b_at))
                operands = ", ".join(f"&{name}[{self.index(index)}]" for name, index in pairs)
                self.line(f"{self.ops.use_function(f'tile_product_{dtype.name}')}({operands});")
            case Copy(target, at, source, index, count, dtype):
                to, start = f"{target}[{self.index(at)}]", f"{source}[{self.index(index)}]"
                form = "copy" if self.memory[source] is dtype else "round"
                self.line(self.ops.move(form, to, start, count, dtype, self.spaces[target], self.spaces[source]))

    def definition(self, value: Expr) -> str:
        match value:
            case Op():
                return self.ops.operation(value, [self.value(arg) for arg in value.args])
            case Load(buffer, index, dtype, mask):
                if dtype is not self.memory[buffer]:
                    self.ops.use_function("widen_near")
                    return self.dialect.widen_near.format(buffer=buffer, index=self.index(index))
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
