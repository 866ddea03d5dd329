"""Memory in WGSL: bindings, loads, stores and copies of elements of every size.

A binding is an array of words, or of vectors of four words where a kernel copies 16 bytes at a time. Elements of 4
and 8 bytes are its elements; of smaller ones several lie in a word: a load shifts them out, and a store of one
replaces its bits by two atomic operations, which is exact as each element has one writer. Where all stores to a
buffer fill whole words, no atomics are needed. In arrays of a workgroup or a lane each small element has a word of
its own.

A buffer that is too large for one binding (`BufferParam.bindings`) has several, each with the next `part_bytes` of it;
a function of its own finds the binding of a word. Such a buffer is an array of words.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        self.parts = {buffer.name: buffer.bindings for buffer in kernel.buffers if buffer.bindings > 1}
        stored, copied = _kinds_of_access(kernel.body, self.dtypes)
        self.packed = self.packed_arrays(kernel)
        self.atomic = {name for name in stored | self.packed if self.is_packed(name)}
        small = {name for name in copied if name in self.buffers and self.dtypes[name].itemsize <= 4}
        self.vectors = (small - self.atomic - self.parts.keys()) | find_shared_vectors(kernel)
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
        if local.name in self.vectors:
            return f"array<vec4<{self.element_type(local.dtype)}>, {-(-local.size // 4)}>"
        return f"array<{self.element_type(local.dtype)}, {local.size}>"

    def bindings(self) -> list[str]:
        lines: list[str] = []
        for name in self.buffers:
            kind = self.element_type(self.dtypes[name])
            kind = "atomic<u32>" if name in self.atomic else f"vec4<{kind}>" if name in self.vectors else kind
            for part in self.part_names(name):
                lines.append(f"@group(0) @binding({len(lines) + 1}) var<storage, read_write> {part}: array<{kind}>;")
        return lines

    def part_names(self, name: str) -> list[str]:
        """The arrays of a buffer."""
        return [f"{name}_part{number}" for number in range(self.parts[name])] if name in self.parts else [name]

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

    def word(self, name: str, position: str) -> str:
        """An element of an array of words."""
        if name in self.vectors:
            return f"{name}[({position}) >> 2u][({position}) & 3]"
        return f"{name}[{position}]"

    def read(self, name: str, position: str) -> str:
        """The value of a word."""
        if name in self.parts:
            return f"{self.part_function('load', name)}({position})"
        return f"atomicLoad(&{self.word(name, position)})" if name in self.atomic else self.word(name, position)

    def assign(self, name: str, position: str, value: str) -> str:
        """A statement that writes a word."""
        if name in self.parts:
            return f"{self.part_function('store', name)}({position}, {value});"
        word = self.word(name, position)
        return f"atomicStore(&{word}, {value});" if name in self.atomic else f"{word} = {value};"

    def update(self, operation: str, name: str, position: str, value: str) -> str:
        """A statement that changes a word of an array of atomics by `And` or `Or`."""
        if name in self.parts:
            return f"{self.part_function(operation.lower(), name)}({position}, {value});"
        return f"atomic{operation}(&{self.word(name, position)}, {value});"

    def part_function(self, access: str, name: str) -> str:
        """The function that loads a word of a buffer with several bindings, or stores, `and`s or `or`s it."""
        kind, function = "u32" if self.is_packed(name) else self.element_type(self.dtypes[name]), f"{access}_of_{name}"
        size = max(self.dtypes[name].itemsize, 4)
        shift = (self.ops.extensions.part_bytes // size).bit_length() - 1
        work = {
            "load": "return atomicLoad(&{word});" if name in self.atomic else "return {word};",
            "store": "atomicStore(&{word}, value);" if name in self.atomic else "{word} = value;",
            "and": "atomicAnd(&{word}, value);",
            "or": "atomicOr(&{word}, value);",
        }[access]
        parts = self.part_names(name)
        labels = [f"case {number}u" for number in range(len(parts) - 1)] + ["default"]
        cases = [
            f"        {label}: {{ {work.format(word=f'{part}[at & {(1 << shift) - 1}]')} }}"
            for label, part in zip(labels, parts, strict=True)
        ]
        head = f"(at: i32) -> {kind}" if access == "load" else f"(at: i32, value: {kind})"
        lines = [f"fn {function}{head} {{", f"    switch (u32(at) >> {shift}u) {{", *cases, "    }", "}"]
        self.ops.helpers[function] = "\n".join(lines)
        return function

    def load(self, name: str, index: Index, dtype: DType, more: int = 0) -> str:
        """The value of an element; `dtype` is that of memory, or float32 of a bfloat16."""
        stored = self.dtypes[name]
        text = self.load_bits(name, index, more)
        return f"bitcast<f32>({text} << 16u)" if stored is not dtype else self.from_word(text, stored)

    def load_bits(self, name: str, index: Index, more: int = 0) -> str:
        """An element as it is in memory: a small one as the lower bits of a word."""
        if name in self.variables:
            return self.variable(name, index, more)
        if not self.is_packed(name):
            return self.read(name, self.at(name, index, more))
        bits, place = 8 * self.dtypes[name].itemsize, f"({self.at(name, index, more)})"
        text = self.read(name, f"{place} >> {_shift(bits)}u")
        return f"extractBits({text}, u32({place} & {32 // bits - 1}) * {bits}u, {bits}u)"

    def variable(self, name: str, index: Index, more: int) -> str:
        """The variable that is an element of an array of a lane."""
        return f"{name}_{self.renderer.resolve(index).const + more}"

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
        if name in self.variables:
            return [f"{self.variable(name, index, more)} = {bits};"]
        if not self.is_packed(name):
            return [self.assign(name, self.at(name, index, more), bits)]
        size = 8 * self.dtypes[name].itemsize
        self.count += 1
        place, shift = f"{name}_to{self.count}", f"{name}_by{self.count}"
        word = f"{place} >> {_shift(size)}u"
        return [
            f"let {place} = {self.at(name, index, more)};",
            f"let {shift} = u32({place} & {32 // size - 1}) * {size}u;",
            self.update("And", name, word, f"~({(1 << size) - 1}u << {shift})"),
            self.update("Or", name, word, f"{bits} << {shift}"),
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
        if name in self.vectors and len(values) % 4 == 0:
            kind = f"vec4<{self.element_type(self.dtypes[name])}>"
            return [f"{self.vector(name, copy.at, k)} = {kind}({', '.join(values[k : k + 4])});"
                    for k in range(0, len(values), 4)]  # fmt: skip
        first = self.first_word(name, copy.at)
        return [self.assign(name, f"{first} + {k}", value) for k, value in enumerate(values)]

    def first_word(self, name: str, index: Index) -> str:
        """The number of the word in which an element begins."""
        at, size = self.at(name, index), 8 * self.dtypes[name].itemsize
        return at if size >= 32 else f"(({at}) >> {_shift(size)}u)"

    def vector(self, name: str, index: Index, word: int) -> str:
        """The vector of an array of these that begins `word` words after an element; both are multiples of 4 words."""
        shift = 16 // self.dtypes[name].itemsize
        text = self.renderer.index(index // shift + word // 4)
        return f"{name}[({name}_bytes >> 4u) + u32({text})]" if name in self.buffers else f"{name}[{text}]"

    def read_words(self, name: str, index: Index, count: int) -> tuple[list[str], list[str]]:
        """Definitions of `count` words of a buffer, and their texts."""
        self.count += 1
        made = f"{name}_word{self.count}"
        if name in self.vectors and count % 4 == 0:
            lines = [f"let {made}_{k} = {self.vector(name, index, 4 * k)};" for k in range(count // 4)]
            return lines, [f"{made}_{k}.{part}" for k in range(count // 4) for part in "xyzw"]
        first = self.first_word(name, index)
        lines = [f"let {made}_{k} = {self.read(name, f'{first} + {k}')};" for k in range(count)]
        return lines, [f"{made}_{k}" for k in range(count)]

    def copy_valid(self, copy: AsyncCopy) -> list[str]:
        """Statements of a copy of which the last elements may be zeros."""
        dtype, count = self.dtypes[copy.target], copy.count
        plain = Copy(copy.target, copy.at, copy.source, copy.index, count, dtype)
        values = [self.load_bits(copy.source, copy.index, k) for k in range(count)]
        has_vectors = copy.source in self.vectors and count * dtype.itemsize % 16 == 0
        tests = [] if copy.aligned or not has_vectors else self.alignment_tests(copy.source, copy.index)
        valid = str(copy.valid) if isinstance(copy.valid, int) else self.renderer.value(copy.valid)
        is_whole = copy.aligned or copy.valid == count
        if not is_whole:
            tests.append(f"{valid} >= {count}")
        whole = self.copy(plain) if has_vectors else self.write(plain, values)
        if not tests:
            return whole
        zero = "0u" if dtype.itemsize < 4 else self.ops.literal(0, dtype)
        self.count += 1
        lines = []
        for k, value in enumerate(values if not is_whole else ()):
            values[k] = f"{copy.target}_valid{self.count}_{k}"
            lines += [f"var {values[k]} = {zero};", f"if ({k} < {valid}) {{ {values[k]} = {value}; }}"]
        lines += self.write(plain, values)
        return [f"if ({' & '.join(f'({test})' for test in tests)}) {{", *[f"    {one}" for one in whole], "} else {",
                *[f"    {one}" for one in lines], "}"]  # fmt: skip

    def alignment_tests(self, name: str, index: Index) -> list[str]:
        """Tests that make sure that an element of a buffer lies at a multiple of 16 bytes."""
        tests = [f"({name}_bytes & 15u) == 0u"]
        count = 16 // self.dtypes[name].itemsize
        if any(factor % count for factor in (index.const, *[factor for _, factor in index.terms])):
            tests.append(f"(({self.renderer.index(index)}) & {count - 1}) == 0")
        return tests


def find_shared_vectors(kernel: Kernel) -> set[str]:
    """The arrays of a workgroup of which every access is to 16 bytes, that begin at a multiple of 16."""
    arrays = {one.name for one in shared_arrays(kernel.body) if one.dtype.itemsize == 4}

    def find_others(body: tuple[Stmt, ...]) -> set[str]:
        found: set[str] = set()
        for stmt in body:
            match stmt:
                case Let(_, Load(name)) | Store(name):
                    found.add(name)
                case Copy() | AsyncCopy() if stmt.count % 4:
                    found |= {stmt.source, stmt.target}
                case Loop() | Reduction() | If():
                    found |= find_others((*stmt.body, *stmt.otherwise) if isinstance(stmt, If) else stmt.body)
        return found

    return arrays - find_others(kernel.body)


def word(number: int, half: int) -> str:
    """A 32-bit half of a word of the arguments."""
    return f"arguments[{number // 2}].{'xyzw'[number % 2 * 2 + half]}"


def _shift(bits: int) -> int:
    """By which the position of a small element is shifted to give that of its word."""
    return (32 // bits).bit_length() - 1


def _kinds_of_access(body: tuple[Stmt, ...], memory: Mapping[str, DType]) -> tuple[set[str], set[str]]:
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
            case AsyncCopy() if stmt.count * memory[stmt.source].itemsize % 16 == 0:
                copied.add(stmt.source)
            case Loop() | Reduction() | If():
                inner = (*stmt.body, *stmt.otherwise) if isinstance(stmt, If) else stmt.body
                parts = _kinds_of_access(inner, memory)
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
