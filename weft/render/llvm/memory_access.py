"""Loads and stores of a kernel as LLVM text: addresses, vectors of contiguous or gathered elements, masks, and stores
that bypass the caches."""

from __future__ import annotations

import platform

from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
    Expr,
    Kernel,
    Load,
    Store,
)
from weft.render.llvm import operations as ops
from weft.render.llvm import vector_access
from weft.render.llvm.blocks import BlockWriter, Vector
from weft.render.llvm.operations import memory_type, splat_text, vector_type

CACHE_LINE = 64
CAN_STREAM_STORES = platform.machine() in (
    "x86_64",
    "AMD64",
)  # where stores past the caches, and the fence after them, are known


class MemoryWriter(BlockWriter):
    """Prints the memory accesses of one function."""

    def __init__(self, kernel: Kernel):
        super().__init__()
        self.entry: list[str] = []  # stack slots
        self.buffers: dict[str, tuple[str, DType]] = {}
        self.streamed = {buffer.name for buffer in kernel.buffers if buffer.stream}
        self.fence = False

    def pointer(self, buffer: str, index: Index) -> str:
        """The address of an element whose index does not vary between lanes."""
        base, dtype = self.buffers[buffer]
        kind = memory_type(dtype)
        if index.terms:
            scope = self.home(Index(index.terms, 0))
            offset = self.linear(index)
            code = f"getelementptr {kind}, ptr {base}, i64 {offset}"
            base = self.emit_once(scope, ("at", buffer, index.terms), (code,))
        return self.emit(f"getelementptr {kind}, ptr {base}, i64 {index.const}") if index.const else base

    def classify_access(self, buffer: str, index: Index) -> tuple[str, str]:
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

    def adjacent_lanes(self, buffer: str, index: Index, mask: str | None) -> tuple[tuple[int, ...], str] | None:
        """Offsets of the lanes and the address of the least, where they are close enough for one access."""
        vector = self.scope.vector
        assert vector is not None
        varying = Index(tuple(term for term in index.terms if self.atom_varies(term[0])), 0)
        offsets = vector_access.lane_offsets(varying, vector)
        if offsets is None or not vector_access.suits(offsets, mask is not None and mask.startswith("%")):
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
            way, address = self.classify_access(load.buffer, load.index)
            if way == "apart" and (close := self.adjacent_lanes(load.buffer, load.index, mask)) is not None:
                return vector_access.load(self, kind, align, close[1], close[0], mask)
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
            address = self.mapped_address(load, address)
            text = self.call(
                f"llvm.masked.load.{suffix}.p0",
                lanes,
                f"ptr align {align} {address}, {bits} {chosen}, {lanes} zeroinitializer",
                f"ptr, {bits}, {lanes}",
            )
        return text if way == "along" else ops.reverse(self, text, kind, width)

    def mapped_address(self, load: Load, address: str) -> str:
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
                raise problem(GraphError, "render.llvm", given, "an element for each lane")
            active = self.active(store.mask)
            anyone = self.call(f"llvm.vector.reduce.or.v{width}i1", "i1", f"{bits} {active}", bits)
            self.scalar_store(store, ops.to_memory(self, value.text, dtype, 0), kind, align, anyone)
            return
        lanes, suffix = vector_type(kind, width), f"v{width}{ops.suffix(kind)}"
        text = ops.to_memory(self, self.spread(value, width), dtype, width)
        mask = self.active(store.mask)
        way, address = self.classify_access(store.buffer, store.index)
        if way == "apart" and (close := self.adjacent_lanes(store.buffer, store.index, mask)) is not None:
            vector_access.store(self, kind, align, close[1], close[0], mask, text)
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
        if not CAN_STREAM_STORES or store.buffer not in self.streamed or vector.width * itemsize % CACHE_LINE:
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
