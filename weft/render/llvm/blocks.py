"""Where lines of LLVM IR go: nested blocks, the values defined in them, and indices, computed as far outside as can be.

`BlockWriter` is the lower half of the renderer (`render.llvm.module` prints statements on top of it). A line added to
an outer block lands before the inner block that is still being written; that is all it takes to hoist code out of a
loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Expr, Literal, Var
from weft.render.llvm import operations as ops
from weft.render.llvm.operations import constant, register_type, splat_text, vector_type


@dataclass(slots=True)
class Value:
    """A value in registers: its text, its dtype, its lanes (0 for a scalar) and the block it was made in."""

    text: str
    dtype: DType
    lanes: int
    scope: Scope


@dataclass(slots=True, eq=False)
class Vector:
    """The vector loop being printed. `mask` is the text of the active lanes in a tail, else None; every vector begins
    at a multiple of `multiple`."""

    axis: Axis
    width: int
    mask: str | None
    multiple: int = 1


@dataclass(slots=True, eq=False)
class Scope:
    """A block being printed. Lines added to an outer scope land before the inner one: that is how code is hoisted."""

    depth: int
    label: str
    vector: Vector | None
    lines: list[str] = field(default_factory=list)
    names: dict[str, Value] = field(default_factory=dict)
    memo: dict[tuple, str] = field(default_factory=dict)


class BlockWriter:
    """Writes instructions into nested blocks. `scope` is the block being written, `scopes` all that are open."""

    def __init__(self) -> None:
        self.count = 0
        self.declared: set[str] = set()
        self.scope = Scope(0, "entry", None)
        self.scopes = [self.scope]

    # --- writing lines ---

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def emit(self, code: str, scope: Scope | None = None) -> str:
        """Add an instruction that makes a value; its name."""
        name = self.fresh("%v")
        (scope or self.scope).lines.append(f"  {name} = {code}")
        return name

    def do(self, code: str) -> None:
        self.scope.lines.append("  " + code)

    def call(self, intrinsic: str, result: str, arguments: str, signature: str) -> str:
        """A call of an LLVM intrinsic; its name, or nothing for a void one."""
        self.declared.add(f"declare {result} @{intrinsic}({signature})")
        code = f"call {result} @{intrinsic}({arguments})"
        if result == "void":
            self.do(code)
            return ""
        return self.emit(code)

    def emit_once(self, scope: Scope, key: tuple, codes: Iterable[str]) -> str:
        """The value of a chain of instructions in `scope`, each with `$` for the one before; made once."""
        text = scope.memo.get(key)
        if text is None:
            text = ""
            for code in codes:
                text = self.emit(code.replace("$", text), scope)
            scope.memo[key] = text
        return text

    def bind(self, name: str, text: str, dtype: DType, lanes: int) -> None:
        self.scope.names[name] = Value(text, dtype, lanes, self.scope)

    def find(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            value = scope.names.get(name)
            if value is not None:
                return value
        raise problem(GraphError, "render.llvm", f"a kernel that uses '{name}' undefined", "a kernel in normal form")

    # --- values ---

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, Literal):
            return Value(constant(expr.value, expr.dtype), expr.dtype, 0, self.scopes[0])
        assert isinstance(expr, Var), expr
        return self.find(expr.name)

    def spread(self, value: Value, width: int) -> str:
        """The text of `value` in `width` lanes (0: as a scalar). One that adjacent lanes share has fewer."""
        if value.lanes == width:
            return value.text
        if value.lanes:
            few, share = vector_type(register_type(value.dtype), value.lanes), width // value.lanes
            picks = ", ".join(f"i32 {lane // share}" for lane in range(width))
            code = f"shufflevector {few} {value.text}, {few} poison, {vector_type('i32', width)} <{picks}>"
            return self.emit_once(value.scope, ("repeated", value.text, width), (code,))
        return self.splat(value.text, register_type(value.dtype), width, value.scope)

    def splat(self, text: str, kind: str, width: int, scope: Scope) -> str:
        if not text.startswith("%"):
            return splat_text(text, kind)
        vector = vector_type(kind, width)
        codes = (
            f"insertelement {vector} poison, {kind} {text}, i64 0",
            f"shufflevector {vector} $, {vector} poison, {vector_type('i32', width)} zeroinitializer",
        )
        return self.emit_once(scope, ("splat", text, width), codes)

    def widen_to_int64(self, value: Value) -> str:
        """An integer value as i64, scalar."""
        if value.dtype.itemsize == 8 or not value.text.startswith("%"):
            return value.text
        extend, kind = "zext" if value.dtype.kind == "u" else "sext", register_type(value.dtype)
        return self.emit_once(value.scope, ("i64", value.text), (f"{extend} {kind} {value.text} to i64",))

    def enter(self, label: str, vector: Vector | None) -> None:
        self.scope = Scope(self.scope.depth + 1, label, vector)
        self.scopes.append(self.scope)

    def leave(self) -> Scope:
        inner = self.scopes.pop()
        self.scope = self.scopes[-1]
        return inner

    # --- indices ---

    def varies(self, index: Index) -> bool:
        """Whether `index` differs between the lanes of the vector loop around."""
        return any(self.axis_varies(axis) for axis in ix.axes_of(index))

    def axis_varies(self, axis: Axis) -> bool:
        vector = self.scope.vector
        return vector is not None and (axis.name == vector.axis.name or self.find(axis.name).lanes > 0)

    def atom_varies(self, atom: ix.Atom) -> bool:
        return self.axis_varies(atom) if isinstance(atom, Axis) else self.varies(atom.value)

    def home(self, index: Index) -> Scope:
        """The innermost block that defines an axis of `index`."""
        found = self.scopes[0]
        for axis in ix.axes_of(index):
            scope = self.find(axis.name).scope
            if scope.depth > found.depth:
                found = scope
        return found

    def number(self, index: Index) -> str:
        """The value of an index that does not vary between lanes, as i64, computed as far outside as it can be."""
        if index.is_const:
            return str(index.const)
        text = self.linear(index)
        return self.emit(f"add i64 {text}, {index.const}") if index.const else text

    def linear(self, index: Index) -> str:
        """`number` without the constant: the terms from the outermost block inwards, each prefix computed once."""
        homes = [(self.home(Index(((atom, 1),), 0)), atom, factor) for atom, factor in index.terms]
        homes.sort(key=lambda item: item[0].depth)
        text, done = "", []
        for scope, atom, factor in homes:
            done.append((atom, factor))
            value = self.atom(atom, scope)
            codes = [] if factor == 1 else [f"mul i64 {value}, {factor}"]
            term = "$" if codes else value
            if text:
                codes.append(f"add i64 {text}, {term}")
            text = self.emit_once(scope, ("linear", tuple(done)), codes) if codes else value
        return text

    def atom(self, atom: ix.Atom, scope: Scope) -> str:
        if isinstance(atom, Axis):
            return self.widen_to_int64(self.find(atom.name))
        key = ("atom", atom)
        if key not in scope.memo:
            saved, self.scope = self.scope, scope
            value = self.number(atom.value)
            scope.memo[key] = ops.divide_index(self, value, atom, "i64")
            self.scope = saved
        return scope.memo[key]

    def lanes_of(self, index: Index, bits: int) -> str:
        """A varying index in lanes of `bits` bits, right modulo 2**bits."""
        vector = self.scope.vector
        assert vector is not None
        small = -(2**31) <= index.low and index.high < 2**31
        if bits == 64 and small:
            narrow = self.lanes_of(index, 32)
            wide = vector_type("i64", vector.width)
            return self.emit(f"sext {vector_type('i32', vector.width)} {narrow} to {wide}")
        kind = vector_type(f"i{bits}", vector.width)
        uniform = Index(tuple(term for term in index.terms if not self.atom_varies(term[0])), index.const)
        text = ""
        for atom, factor in index.terms:
            if not self.atom_varies(atom):
                continue
            term = self.lane_atom(atom, bits)
            if factor != 1:
                term = self.emit(f"mul {kind} {term}, {splat_text(str(factor), f'i{bits}')}")
            text = self.emit(f"add {kind} {text}, {term}") if text else term
        if uniform.terms or uniform.const:
            offset = self.number(uniform)
            if bits != 64 and offset.startswith("%"):
                offset = self.emit(f"trunc i64 {offset} to i{bits}")
            text = self.emit(f"add {kind} {text}, {self.splat(offset, f'i{bits}', vector.width, self.scope)}")
        return text

    def lane_atom(self, atom: ix.Atom, bits: int) -> str:
        """One varying atom in lanes of `bits` bits, computed once in the innermost block that it depends on."""
        vector = self.scope.vector
        assert vector is not None
        scope = self.home(Index(((atom, 1),), 0))
        key = ("lanes", atom, bits)
        if key in scope.memo:
            return scope.memo[key]
        saved, self.scope = self.scope, scope
        width, kind = vector.width, vector_type(f"i{bits}", vector.width)
        if isinstance(atom, Axis):
            value = self.find(atom.name)
            if atom.name == vector.axis.name:
                base = value.text
                if bits != 64 and base.startswith("%"):
                    base = self.emit(f"trunc i64 {base} to i{bits}")
                spread = self.splat(base, f"i{bits}", width, scope)
                text = self.emit(f"add {kind} {spread}, {lane_numbers(width, bits)}")
            else:
                text = ops.resize(self, self.spread(value, width), value.dtype, bits, width)
        else:
            inside = 32 if -(2**31) <= atom.value.low and atom.value.high < 2**31 else 64
            text = ops.divide_index(self, self.lanes_of(atom.value, inside), atom, vector_type(f"i{inside}", width))
            text = ops.resize(self, text, dtypes.int32 if inside == 32 else dtypes.int64, bits, width)
        self.scope = saved
        scope.memo[key] = text
        return text


def lane_numbers(width: int, bits: int) -> str:
    """The constant 0, 1, 2, ... in lanes."""
    return "<" + ", ".join(f"i{bits} {lane}" for lane in range(width)) + ">"
