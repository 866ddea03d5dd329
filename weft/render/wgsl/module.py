"""The kernel language as WGSL text.

`render` prints one kernel, in normal form and with indices in 32 bits (`kernels.gpu.int32_indices`), as a module:

- binding 0 is a uniform with the launch's words, eight bytes each: for every buffer the byte at which it begins in its
  binding, then the scalars, then the range. Bindings from 1 on are the buffers, all `read_write`, each a whole
  allocation, so that an offset needs no alignment and one allocation may be bound several times. Where a buffer needs
  several bindings, the second line says how many each has;
- the grid has two dimensions, of which neither needs to exceed 65,535 workgroups: their numbers are counted row by row;
- arrays that a workgroup shares stand before the function, whatever block declares them;
- memory has words: see `render.wgsl.memory` for 8- and 16-bit elements.

A name is made from what the kernel does and a hash of its code, so equal kernels are one.
"""

from __future__ import annotations

import hashlib

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.gpu.int32_indices import use_int32_indices
from weft.kernels.ir.index import Axis, Index, const, substitute
from weft.kernels.ir.language import (
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Copy,
    Expr,
    IndexValue,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
)
from weft.kernels.ir.normalize import normalise
from weft.render.statements import StatementRenderer, title
from weft.render.wgsl.memory import Memory, find_accesses, word
from weft.render.wgsl.names import RESERVED, avoid_names
from weft.render.wgsl.operations import Extensions, Operations
from weft.render.wgsl.unrolling import arrays_of_variables, find_unrolled_axes

BINDINGS_COMMENT = "// bindings of each buffer: "


def render(kernel: Kernel, extensions: Extensions = Extensions()) -> tuple[str, str]:  # noqa: B008
    """The name of the function that a kernel becomes, and the text of its module."""
    begin = len(kernel.buffers) + len(kernel.scalars)  # the number of its word
    end = begin + len(kernel.ranges) - 1
    zeros = [word(number, 1) for number in (begin, end, 0)]  # upper halves of the range and of an offset
    operations = Operations(extensions, *zeros)
    renderer = _Renderer(avoid_names(use_int32_indices(normalise(kernel)), RESERVED), operations)
    return renderer.name, renderer.text(renderer.name)


class _Renderer(StatementRenderer):
    """One kernel: its lines, and its name, which follows from them."""

    language = "render.wgsl"
    shift = ">> {bits}u"
    lane, workgroup, workgroups = "lane", "workgroup", "workgroups"
    barrier = "workgroupBarrier();"

    def __init__(self, kernel: Kernel, operations: Operations):
        super().__init__(kernel)
        self.ops = operations
        self.shared: list[str] = []  # declarations of arrays of a workgroup
        self.known: dict[Axis, Index] = {}  # axes of loops that are written out, and their numbers
        self.unrolled = find_unrolled_axes(kernel)
        self.access = Memory(self, kernel, arrays_of_variables(kernel, self.unrolled))
        self.write_parts(kernel.body)
        clean = "".join(letter if letter.isalnum() else "_" for letter in title(kernel))
        clean = clean if clean[:1].isalpha() else f"k{clean}"
        self.name = f"{clean}_{hashlib.sha256(self.text('').encode()).hexdigest()[:8]}"

    def write_parts(self, body: tuple[Stmt, ...]) -> None:
        """The statements of the kernel. Barriers order memory that a workgroup shares; buffers, too, between the parts
        of a kernel that was joined of several, and in parts that read what they write."""
        for stmt in body:
            reads, writes = find_accesses(stmt)
            both = isinstance(stmt, Barrier) or any(name in self.access.buffers for name in reads & writes)
            self.barrier = "storageBarrier(); workgroupBarrier();" if both else "workgroupBarrier();"
            self.statements((stmt,))

    # --- the whole module ---

    def text(self, name: str) -> str:
        words = len(self.kernel.buffers) + len(self.kernel.scalars) + len(self.kernel.ranges)
        bindings = [
            f"@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, {-(-words // 2)}>;",
            *self.access.bindings(),
        ]
        builtins = (
            "@builtin(local_invocation_index) lane_number: u32, @builtin(workgroup_id) workgroup_number: vec3<u32>, "
            "@builtin(num_workgroups) workgroup_counts: vec3<u32>"
        )
        function = [
            f"@compute @workgroup_size({self.geometry.lanes})",
            f"fn {name}({builtins}) {{",
            "    let lane = i32(lane_number);",
            "    let workgroup = i32(workgroup_number.y * workgroup_counts.x + workgroup_number.x);",
            "    let workgroups = i32(workgroup_counts.x * workgroup_counts.y);",
            *self.parameters(),
            *self.lines,
            "}",
        ]
        helpers = list(self.ops.helpers.values())
        heading = [f"// {title(self.kernel)}"]
        if self.access.parts:
            counts = [str(buffer.bindings) for buffer in self.kernel.buffers]
            heading.append(BINDINGS_COMMENT + " ".join(counts))
        parts = [[*heading, *bindings], self.shared, helpers, function]
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def parameters(self) -> list[str]:
        """Definitions of what the kernel gets as words."""
        kernel, lines = self.kernel, self.access.offsets()
        for number, scalar in enumerate(kernel.scalars, len(kernel.buffers)):
            value = self.scalar(word(number, 0), word(number, 1), scalar.dtype)
            lines.append(f"    {self.constant(scalar.dtype, scalar.name, value)}")
        for number, name in enumerate(kernel.ranges, len(kernel.buffers) + len(kernel.scalars)):
            lines.append(f"    let {name} = i32({word(number, 0)});")
        return lines

    def scalar(self, low: str, high: str, dtype: DType) -> str:
        """A scalar, given its two words."""
        kind = self.ops.type(dtype)
        if kind == "bool":
            return f"({low} & 255u) != 0u"
        if dtype.itemsize == 8:
            if self.ops.is_pair(dtype):
                return f"vec2<u32>({low}, {high})"
            whole = f"(u64({low}) | (u64({high}) << 32u))"
            return whole if kind == "u64" else f"bitcast<{kind}>({whole})"
        if dtype.itemsize < 4:
            return self.ops.cut(low if kind == "u32" else f"i32({low})", dtype)
        return low if kind == "u32" else f"bitcast<{kind}>({low})"

    # --- declarations and loops ---

    def constant(self, dtype: DType, name: str, value: str) -> str:
        return f"let {name}: {self.ops.type(dtype)} = {value};"

    def variable(self, dtype: DType, name: str, value: str) -> str:
        return f"var {name}: {self.ops.type(dtype)} = {value};"

    def round_text(self, text: str, dtype: DType) -> str:
        return self.ops.hide(text, dtype)

    def choose(self, condition: str, value: str, otherwise: str) -> str:
        return f"select({otherwise}, {value}, {condition})"

    def loop_head(self, dtype: DType, name: str, first: str, stop: str, advance: str) -> str:
        return f"for (var {name}: {self.ops.type(dtype)} = {first}; {name} < {stop}; {advance})"

    def axis_dtype(self, axis: Axis) -> DType:
        return dtypes.int32

    def as_axis(self, text: str, dtype: DType) -> str:
        return text

    def bound(self, bound: Expr | int, axis: Axis) -> str:
        return str(bound) if isinstance(bound, int) else self.value(bound)

    def widen(self, text: str) -> str:
        """Positions of all buffers of the device fit in 32 bits."""
        return text

    def write_out(self, loop: Loop) -> bool:
        if loop.axis.name not in self.unrolled:
            return False
        assert isinstance(loop.start, int) and isinstance(loop.stop, int)
        for number in range(loop.start, loop.stop):
            self.known[loop.axis] = const(number)
            self.where_used("{", self.constant(dtypes.int32, loop.axis.name, str(number)), loop)
        self.known.pop(loop.axis, None)
        return True

    def index(self, index: Index) -> str:
        return super().index(self.resolve(index))

    def resolve(self, index: Index) -> Index:
        """`index` with the numbers of loops that are written out."""
        return substitute(index, self.known) if self.known else index

    # --- memory ---

    def let(self, stmt: Let) -> None:
        name, value = stmt.name, stmt.value
        match value:
            case Op():
                text = self.ops.define(name, value)
            case Load(buffer, index, dtype, mask):
                self.ops.rounding.loaded.add(name)
                if mask is not None:
                    self.line(self.variable(dtype, name, self.ops.literal(0, dtype)))
                    self.line(f"if ({self.value(mask)}) {{ {name} = {self.access.load(buffer, index, dtype)}; }}")
                    return
                text = self.access.load(buffer, index, dtype)
            case IndexValue(index, dtype):
                text = self.ops.cast(f"({self.index(index)})", dtypes.int32, dtype)
            case _:
                text = self.value(value)
        self.line(self.constant(value.dtype, name, text))

    def store(self, store: Store) -> None:
        if store.mask is not None:
            self.line(f"if ({self.value(store.mask)}) {{")
            self.depth += 1
        for line in self.access.store(store.buffer, store.index, self.value(store.value)):
            self.line(line)
        if store.mask is not None:
            self.depth -= 1
            self.line("}")

    def local(self, local: Local) -> None:
        self.memory[local.name] = local.dtype
        kind = self.access.declare(local)
        if local.name in self.access.variables:
            element = self.access.element_type(local.dtype)
            for number in range(local.size):
                self.line(f"var {local.name}_{number}: {element};")
        elif local.scope == "lane":
            self.line(f"var {local.name}: {kind};")
        else:
            self.shared.append(f"var<workgroup> {local.name}: {kind};")

    def transfer(self, stmt: Stmt) -> None:
        match stmt:
            case AwaitCopies():
                return
            case Copy():
                lines = self.access.copy(stmt)
            case AsyncCopy():
                lines = self.access.copy_valid(stmt)
            case _:
                given = f"a {type(stmt).__name__}"
                raise problem(GraphError, self.language, given, "a kernel for a device without matrix units")
        for line in lines:
            self.line(line)
