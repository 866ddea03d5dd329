"""Memory in WGSL: bindings, loads, stores and copies of elements of every size.

A binding is an array of words, or of vectors of four words where a kernel copies 16 bytes at a time. Elements of 4
and 8 bytes are its elements; of smaller ones several lie in a word: a load shifts them out, and a store of one
replaces its bits by two atomic operations, which is exact as each element has one writer. Where all stores to a
buffer fill whole words, no atomics are needed. In arrays of a workgroup or a lane each small element has a word of
its own.
"""

from __future__ import annotations

from typing import Any

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import (
    AsyncCopy,
    Copy,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Reduction,
    Stmt,
    Store,
    shared_arrays,
)


class Memory:
    """How the memory of one kernel is reached; `renderer` prints indices. The arrays of a lane in `variables` are a
    variable for each element."""

    def __init__(self, renderer: Any, kernel: Kernel, variables: set[str]):
        self.renderer, self.ops = renderer, renderer.ops
        self.variables = variables
        self.dtypes: dict[str, DType] = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.buffers = {buffer.name: number for number, buffer in enumerate(kernel.buffers)}
        stored, copied = _kinds_of_access(kernel.body)
        self.packed = self.packed_arrays(kernel)
        self.atomic = {name for name in stored | self.packed if self.is_packed(name)}
        small = {name for name in copied if name in self.buffers and self.dtypes[name].itemsize <= 4}
        self.vectors = small - self.atomic
        self.count = 0

    def is_packed(self, name: str) -> bool:
        """Whether several elements share a word."""
        return name in self.packed or (name in self.buffers and self.dtypes[name].itemsize < 4)

    def packed_arrays(self, kernel: Kernel) -> set[str]:
        """The arrays of a workgroup whose small elements share words: where memory for words of their own is short."""
        arrays = shared_arrays(kernel.body)
        nbytes = sum(array.size * max(array.dtype.itemsize, 4) for array in arrays)
        if nbytes <= self.ops.extensions.shared_bytes:
            return set()
        small = [array for array in arrays if array.dtype.itemsize < 4]
        self.dtypes |= {array.name: array.dtype for array in small}
        return {array.name for array in small}

    # --- declarations ---

    def element_type(self, dtype: DType) -> str:
        """Of an array of one element to a word, or of larger ones."""
        return "u32" if dtype.itemsize < 4 else self.ops.type(dtype)

    def declare(self, local: Local) -> str:
        """The type of an array."""
        self.dtypes[local.name] = local.dtype
        if local.name in self.packed:
            return f"array<atomic<u32>, {-(-local.size * local.dtype.itemsize // 4)}>"
        return f"array<{self.element_type(local.dtype)}, {local.size}>"

    def bindings(self) -> list[str]:
        lines = []
        for name, number in self.buffers.items():
            kind = self.element_type(self.dtypes[name])
            kind = "atomic<u32>" if name in self.atomic else f"vec4<{kind}>" if name in self.vectors else kind
            lines.append(f"@group(0) @binding({number + 1}) var<storage, read_write> {name}: array<{kind}>;")
        return lines

    def offsets(self) -> list[str]:
        """Definitions of where each buffer begins, in bytes and in elements."""
        lines = []
        for name, number in self.buffers.items():
            shift = self.dtypes[name].itemsize.bit_length() - 1
            lines.append(f"    let {name}_bytes = {word(number, 0)};")
            lines.append(f"    let {name}_at = i32({name}_bytes >> {shift}u);")
        return lines

    # --- elements ---

    def at(self, name: str, index: Index, more: int = 0) -> str:
        """The position of an element in its array."""
        text = self.renderer.index(index + more if more else index)
        if name not in self.buffers:
            return text
        return f"{name}_at + ({text})" if "&" in text or ">>" in text else f"{name}_at + {text}"

    def element(self, name: str, index: Index, more: int = 0) -> str:
        """An element that has a word, or more than one, of its own."""
        if name in self.variables:
            return f"{name}_{self.renderer.resolve(index).const + more}"
        return self.word(name, self.at(name, index, more))

    def word(self, name: str, position: str) -> str:
        """An element of an array of words."""
        if name in self.vectors:
            return f"{name}[({position}) >> 2u][({position}) & 3]"
        return f"{name}[{position}]"

    def load(self, name: str, index: Index, dtype: DType, more: int = 0) -> str:
        """The value of an element; `dtype` is that of memory, or float32 of a bfloat16."""
        stored = self.dtypes[name]
        text = self.load_bits(name, index, more)
        return f"bitcast<f32>({text} << 16u)" if stored is not dtype else self.from_word(text, stored)

    def load_bits(self, name: str, index: Index, more: int = 0) -> str:
        """An element as it is in memory: a small one as the lower bits of a word."""
        if not self.is_packed(name):
            return self.element(name, index, more)
        bits, place = 8 * self.dtypes[name].itemsize, f"({self.at(name, index, more)})"
        text = self.word(name, f"{place} >> {_shift(bits)}u")
        text = f"atomicLoad(&{text})" if name in self.atomic else text
        return f"extractBits({text}, u32({place} & {32 // bits - 1}) * {bits}u, {bits}u)"

    def from_word(self, text: str, dtype: DType) -> str:
        """A small element, given its bits as a word."""
        if dtype.itemsize >= 4:
            return text
        if dtype is dtypes.bool_:
            return f"{text} != 0u"
        return f"extractBits(i32({text}), 0u, {8 * dtype.itemsize}u)" if dtype.kind == "i" else text

    def to_word(self, value: str, dtype: DType) -> str:
        """The bits of a small element as a word."""
        if dtype.itemsize >= 4:
            return value
        if dtype is dtypes.bool_:
            return f"u32({value})"
        return f"(u32({value}) & {(1 << 8 * dtype.itemsize) - 1}u)" if dtype.kind == "i" else value

    def store(self, name: str, index: Index, value: str) -> list[str]:
        """Statements that write one element."""
        return self.store_bits(name, index, self.to_word(value, self.dtypes[name]))

    def store_bits(self, name: str, index: Index, bits: str, more: int = 0) -> list[str]:
        if not self.is_packed(name):
            return [f"{self.element(name, index, more)} = {bits};"]
        size = 8 * self.dtypes[name].itemsize
        self.count += 1
        place, shift = f"{name}_to{self.count}", f"{name}_by{self.count}"
        word = f"{name}[{place} >> {_shift(size)}u]"
        return [
            f"let {place} = {self.at(name, index, more)};",
            f"let {shift} = u32({place} & {32 // size - 1}) * {size}u;",
            f"atomicAnd(&{word}, ~({(1 << size) - 1}u << {shift}));",
            f"atomicOr(&{word}, {bits} << {shift});",
        ]

    # --- several elements ---

    def copy(self, copy: Copy) -> list[str]:
        """Statements that copy `count` contiguous elements: by vectors or words where elements fill these."""
        source, size = self.dtypes[copy.source], 8 * copy.dtype.itemsize
        if source is not copy.dtype:
            values = [self.load_bits(copy.source, copy.index, k) for k in range(copy.count)]
            rounded = [f"{self.ops.use('bfloat16_of_float32')}({value})" for value in values]
            return self.write(copy, rounded)
        if not self.has_words(copy.source, copy):
            return self.write(copy, [self.load_bits(copy.source, copy.index, k) for k in range(copy.count)])
        lines, words = self.read_words(copy.source, copy.index, copy.count * size // 32)
        values = words
        if size < 32:
            values = [f"extractBits({one}, {k * size}u, {size}u)" for one in words for k in range(32 // size)]
        return ["{", *lines, *self.write(copy, values), "}"]

    def has_words(self, name: str, copy: Copy) -> bool:
        """Whether a copy reaches this buffer by whole words or vectors."""
        nbytes = copy.count * copy.dtype.itemsize
        return (self.is_packed(name) and nbytes % 4 == 0) or (name in self.vectors and nbytes % 16 == 0)

    def write(self, copy: Copy, values: list[str]) -> list[str]:
        """Statements that write elements, given as their bits."""
        name, size = copy.target, 8 * copy.dtype.itemsize
        if not self.has_words(name, copy):
            lines = [line for k, bits in enumerate(values) for line in self.store_bits(name, copy.at, bits, k)]
            return ["{", *lines, "}"] if self.is_packed(name) else lines
        if size < 32:
            count = 32 // size
            groups = [values[k : k + count] for k in range(0, len(values), count)]
            values = [" | ".join(f"({one} << {k * size}u)" if k else one for k, one in enumerate(group))
                      for group in groups]  # fmt: skip
        first = self.first_word(name, copy.at)
        if name in self.vectors and len(values) % 4 == 0:
            kind = f"vec4<{self.element_type(self.dtypes[name])}>"
            return [f"{name}[(({first}) >> 2u) + {k // 4}] = {kind}({', '.join(values[k : k + 4])});"
                    for k in range(0, len(values), 4)]  # fmt: skip
        places = [self.word(name, f"{first} + {k}") for k in range(len(values))]
        if name in self.atomic:
            return [f"atomicStore(&{place}, {value});" for place, value in zip(places, values, strict=True)]
        return [f"{place} = {value};" for place, value in zip(places, values, strict=True)]

    def first_word(self, name: str, index: Index) -> str:
        """The number of the word in which an element begins."""
        at, size = self.at(name, index), 8 * self.dtypes[name].itemsize
        return at if size >= 32 else f"(({at}) >> {_shift(size)}u)"

    def read_words(self, name: str, index: Index, count: int) -> tuple[list[str], list[str]]:
        """Definitions of `count` words of a buffer, and their texts."""
        self.count += 1
        first, made = self.first_word(name, index), f"{name}_word{self.count}"
        if name in self.vectors and count % 4 == 0:
            lines = [f"let {made}_{k} = {name}[(({first}) >> 2u) + {k}];" for k in range(count // 4)]
            return lines, [f"{made}_{k}.{part}" for k in range(count // 4) for part in "xyzw"]
        lines = []
        for k in range(count):
            text = self.word(name, f"{first} + {k}")
            lines.append(f"let {made}_{k} = {f'atomicLoad(&{text})' if name in self.atomic else text};")
        return lines, [f"{made}_{k}" for k in range(count)]

    def write_each(self, copy: AsyncCopy, values: list[str]) -> list[str]:
        """A statement for each element that is written, given as its bits."""
        parts = [self.store_bits(copy.target, copy.at, bits, k) for k, bits in enumerate(values)]
        return [part[0] if len(part) == 1 else f"{{ {' '.join(part)} }}" for part in parts]

    def copy_valid(self, copy: AsyncCopy) -> list[str]:
        """Statements of a copy into a shared array of which the last elements may be zeros."""
        dtype, count = self.dtypes[copy.target], copy.count
        zero = "0u" if dtype.itemsize < 4 else self.ops.literal(0, dtype)
        values = [self.load_bits(copy.source, copy.index, k) for k in range(count)]
        whole = self.write_each(copy, values)
        if copy.aligned and copy.source in self.vectors and count * dtype.itemsize % 16 == 0:
            return self.copy(Copy(copy.target, copy.at, copy.source, copy.index, count, dtype))
        if copy.aligned or copy.valid == count:
            return whole
        valid = str(copy.valid) if isinstance(copy.valid, int) else self.renderer.value(copy.valid)
        lines = [f"if ({valid} >= {count}) {{", *[f"    {line}" for line in whole], "} else {"]
        lines += [f"    {line}" for line in self.write_each(copy, [zero] * count)]
        lines += [f"    if ({k} < {valid}) {{ {line} }}" for k, line in enumerate(whole)]
        return [*lines, "}"]


def word(number: int, half: int) -> str:
    """A 32-bit half of a word of the arguments."""
    return f"arguments[{number // 2}].{'xyzw'[number % 2 * 2 + half]}"


def _shift(bits: int) -> int:
    """By which the position of a small element is shifted to give that of its word."""
    return (32 // bits).bit_length() - 1


def _kinds_of_access(body: tuple[Stmt, ...]) -> tuple[set[str], set[str]]:
    """The arrays to which some statement writes less than a word, and those of which 16 bytes are copied at a time."""
    stored: set[str] = set()
    copied: set[str] = set()
    for stmt in body:
        match stmt:
            case Store(buffer):
                stored.add(buffer)
            case Copy():
                nbytes = stmt.count * stmt.dtype.itemsize
                stored |= {stmt.target} if nbytes % 4 else set()
                copied |= {stmt.target, stmt.source} if nbytes % 16 == 0 else set()
            case AsyncCopy() if stmt.aligned:
                copied.add(stmt.source)
            case Loop() | Reduction() | If():
                inner = (*stmt.body, *stmt.otherwise) if isinstance(stmt, If) else stmt.body
                parts = _kinds_of_access(inner)
                stored |= parts[0]
                copied |= parts[1]
    return stored, copied


def find_accesses(stmt: Stmt) -> tuple[set[str], set[str]]:
    """The arrays that a statement, with all inside it, reads and writes."""
    reads: set[str] = set()
    writes: set[str] = set()
    match stmt:
        case Let(_, Load(buffer)):
            reads.add(buffer)
        case Store(buffer):
            writes.add(buffer)
        case Copy() | AsyncCopy():
            reads.add(stmt.source)
            writes.add(stmt.target)
        case Loop() | Reduction() | If():
            for inner in (*stmt.body, *stmt.otherwise) if isinstance(stmt, If) else stmt.body:
                parts = find_accesses(inner)
                reads |= parts[0]
                writes |= parts[1]
    return reads, writes
