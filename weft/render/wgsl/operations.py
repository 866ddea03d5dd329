"""Single operations of the kernel language in WGSL: an operator, a built-in function, or a helper function.

WGSL has 32-bit numbers: 8- and 16-bit integers are computed in 32 bits and cut off, 16-bit floats are their bits,
64-bit integers are the device's where it has them, else pairs of words. Compilers may assume that there is no NaN, so
these are found by bits that compilers do not know to be those of a float. Helpers do what `render.clike.operations`
does in C. Conditions are joined by `&` and `|`: wgpu makes branches of `&&` and `||`, and each of them in a loop
doubles the time in which SwiftShader compiles a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.language import Expr, Literal, Op, Var
from weft.kernels.math import large_arguments as large
from weft.render.wgsl import int64_pairs
from weft.render.wgsl.functions import BODIES, CALLS, FLOAT16, FUNCTIONS
from weft.render.wgsl.rounding import Rounding

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "=="}
_ON_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and", "sum": "or"}
_BOOL = {"and": "&", "or": "|", "xor": "!=", "lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}
F32 = dtypes.float32
_TAKEN_APART = {"sum": ("add", "sub", "mul", "div"), "prod": ("mul", "div", "sqrt")}  # by steps of a reduction
_UNARY = ("neg", "abs", "not", "sqrt", "floor")
_SUFFIX = {"i32": "i", "u32": "u", "f32": "f", "i64": "li", "u64": "lu", "f64": "lf"}
_PAIR = "vec2<u32>"
HIDE_CAST = 2  # the zero of numbers made of conditions and integers: hidden by one zero twice, a value is known again


@dataclass(frozen=True, slots=True)
class Extensions:
    """What a device's WGSL has beyond the standard, the bytes that a workgroup may share, and those of each part of a
    buffer that is too large for one binding."""

    int64: bool = False
    float64: bool = False
    fused_multiply_add: bool = True  # of float32: `fma` rounds once; WGSL also allows a product and a sum
    rounded_division: bool = True  # of float32, and square roots: to nearest; WGSL allows an error of 2.5 units
    shared_bytes: int = 16384
    part_bytes: int = 128 << 20


class Operations:
    """Prints operations; `helpers` collects the functions that were needed."""

    def __init__(self, extensions: Extensions, zero: str = "0u", *more: str):
        self.extensions = extensions
        self.helpers: dict[str, str] = {}
        self.zero, self.zeros = zero, (zero, *more)  # u32s that are 0, which no compiler knows
        self.rounding = Rounding(self.hide)

    def type(self, dtype: DType) -> str:
        """The type in which values of `dtype` are computed."""
        if dtype.kind == "b":
            return "bool"
        if dtype.is_16_bit:
            return "u32"
        if dtype.kind == "f":
            return "f32" if dtype.itemsize == 4 else "f64"
        if dtype.itemsize == 8:
            return f"{dtype.kind}64" if self.extensions.int64 else _PAIR
        return f"{dtype.kind}32"

    def is_pair(self, dtype: DType) -> bool:
        """Whether values of `dtype` are pairs of words."""
        return dtype.kind in "iu" and dtype.itemsize == 8 and not self.extensions.int64

    # --- literals and variables ---

    def literal(self, value: float | int | bool, dtype: DType) -> str:
        """A constant; floats in the fewest digits that give the same bits."""
        if dtype.kind == "b":
            return "true" if value else "false"
        if dtype.is_16_bit:
            return f"{dtypes.bits_of(value, dtype)}u"
        if dtype.kind in "iu":
            return self._integer(int(value), dtype)
        with np.errstate(over="ignore"):
            rounded = dtype.numpy.type(value)
        kind = self.type(dtype)
        if not math.isfinite(rounded):
            bits = (dtype.numpy.type("nan") if math.isnan(rounded) else rounded).view(f"u{dtype.itemsize}")
            unknown = f" ^ u64({self.zero})" if kind == "f64" else ""  # NVIDIA's compiler makes NaN of infinity
            return f"bitcast<{kind}>(0x{int(bits):x}{_SUFFIX[kind.replace('f', 'u')]}{unknown})"
        far = bool(rounded) and not 1e-4 <= abs(rounded) < 1e9
        form = np.format_float_scientific if far else np.format_float_positional
        text = f"{form(rounded, trim='0')}{_SUFFIX[kind]}"
        return f"({text})" if text.startswith("-") else text

    def _integer(self, number: int, dtype: DType) -> str:
        kind = self.type(dtype)
        if self.is_pair(dtype):
            return f"{_PAIR}({number & 0xFFFFFFFF}u, {number >> 32 & 0xFFFFFFFF}u)"
        if number == -(2 ** (8 * dtype.itemsize - 1)) and dtype.itemsize >= 4:
            return f"({number + 1}{_SUFFIX[kind]} - 1{_SUFFIX[kind]})"
        return f"{number}{_SUFFIX[kind]}" if number >= 0 else f"({number}{_SUFFIX[kind]})"

    def atom(self, expr: Expr) -> str:
        """A literal or a variable."""
        if isinstance(expr, Literal):
            return self.literal(expr.value, expr.dtype)
        assert isinstance(expr, Var), expr
        return expr.name

    # --- operations ---

    def combine(self, op: str, value: str, before: str, dtype: DType) -> str:
        """One step of a reduction: `value` goes into `before`."""
        if self.rounding.may_be(value, _TAKEN_APART.get(op, ())):
            value = self.hide(value, dtype)
        return self.arithmetic(_COMBINE[op], [value, before], dtype)

    def define(self, name: str, op: Op) -> str:
        """The value of `op`, which gets this name."""
        texts = [self.atom(arg) for arg in op.args]
        if all(isinstance(arg, Literal) for arg in op.args) and op.name != "aligned":
            texts[0] = self.hide(texts[0], op.args[0].dtype)  # compilers refuse constants that overflow
        if op.name in ("lt", "le") and isinstance(op.args[0], Literal) and op.args[0].dtype is dtypes.int32:
            texts[1] = self.hide(texts[1], dtypes.int32)  # NVIDIA's compiler joins tests of a range, wrongly
        if op.args[-1].dtype.kind == "f":
            texts = self.rounding.keep(op, texts)
            self.rounding.define(name, op)
        if op.name == "fma" and op.dtype is dtypes.float32 and self.must_fuse(op):
            return f"{self.use('fma_fused' if self.extensions.float64 else 'fma_of_parts')}({', '.join(texts)})"
        return self.operation(op, texts)

    @property
    def must_correct_division(self) -> bool:
        """Whether quotients and roots are off by more than their rounding, and `fma` can tell by how much."""
        return self.extensions.fused_multiply_add and not self.extensions.rounded_division

    def must_fuse(self, op: Op) -> bool:
        """Whether `fma` rounds twice here and that might matter: what is added to a product may cancel it, unless it
        is a coefficient; factors from memory are those of sums of products."""
        if self.extensions.fused_multiply_add or isinstance(op.args[2], Literal):
            return False
        return not all(isinstance(arg, Var) and arg.name in self.rounding.loaded for arg in op.args[:2])

    def hide(self, text: str, dtype: DType, number: int = 0) -> str:
        """A value that compilers know nothing about, nor that it is one which was hidden by the other `number`."""
        kind, zero = self.type(dtype), self.zeros[number % len(self.zeros)]
        if kind == "bool":
            return f"({text} != ({zero} != 0u))"
        function, bits = (
            f"hide_{_short(kind)}{f'_{number}' if number else ''}",
            kind if kind == _PAIR else f"u{kind[1:]}",
        )
        value = f"bitcast<{kind}>(bitcast<{bits}>(a) ^ {bits}({zero}))"
        self.helpers[function] = f"fn {function}(a: {kind}) -> {kind} {{ return {value}; }}"
        return f"{function}({text})"

    def operation(self, op: Op, texts: list[str]) -> str:
        """The value of `op`, given the texts of its arguments."""
        source = op.args[0].dtype
        match op.name:
            case "lt" | "le" | "eq" | "ne":
                return self.compare(op.name, texts, source)
            case "select":
                if self.rounding.is_extremum(op):
                    texts[1] = self.hide(texts[1], op.dtype)
                if op.dtype.kind == "f" and all(isinstance(arg, Literal) for arg in op.args[1:]):
                    texts[1:] = [self.hide(text, op.dtype, number) for number, text in enumerate(texts[1:], 1)]
                return f"select({texts[2]}, {texts[1]}, {texts[0]})"
            case "cast":
                return self.cast(texts[0], source, op.dtype)
            case "bitcast":
                return self.bitcast(texts[0], source, op.dtype)
            case "sin_large" | "cos_large" | "mod_large" | "floor_divide_large":
                needed, common, *args = texts
                return f"{self.large(op.name, op.dtype)}({needed}, {common}, {', '.join(args)})"
            case "exchange" | "broadcast":
                return self.shuffle(op, texts)
            case "aligned":
                *buffers, nbytes = texts
                bits = " | ".join(f"{name}_bytes" for name in buffers)
                return f"(({bits}) & {int(nbytes.strip('ui')) - 1}u) == 0u"
            case "shl" | "shr":
                return self.shift(op, texts)
            case _:
                return self.arithmetic(op.name, texts, op.dtype)

    def compare(self, name: str, texts: list[str], dtype: DType) -> str:
        a, b = texts
        if dtype.kind == "f":
            if a == b and name in ("eq", "ne"):
                return f"{'!' if name == 'eq' else ''}{self.use('is_nan_' + dtype.name)}({a})"
            return f"!({a} == {b})" if name == "ne" else f"{a} {_COMPARE[name]} {b}"
        if self.is_pair(dtype):
            if name in ("eq", "ne"):
                return f"{'!' if name == 'ne' else ''}{self.use('pair_eq')}({a}, {b})"
            less = self.use(f"pair_lt_{'s' if dtype.kind == 'i' else 'u'}")
            return f"{less}({a}, {b})" if name == "lt" else f"!{less}({b}, {a})"
        if dtype.kind == "b" and name in ("lt", "le"):
            return f"!{a} & {b}" if name == "lt" else f"!{a} | {b}"
        return f"{a} {'!=' if name == 'ne' else _COMPARE[name]} {b}"

    def shuffle(self, op: Op, texts: list[str]) -> str:
        """A value of another lane of the subgroup."""
        kind = self.type(op.dtype)
        number = texts[1].rstrip("ui")
        call = "subgroupShuffleXor" if op.name == "exchange" else "subgroupShuffle"
        number = f"{number}u" if number.isdigit() else f"u32({texts[1]})"
        if kind == "bool":
            return f"{call}(u32({texts[0]}), {number}) != 0u"
        if kind in ("i64", "u64", "f64"):
            bits = texts[0] if kind == "u64" else f"bitcast<u64>({texts[0]})"
            whole = f"(u64({call}(u32({bits}), {number})) | (u64({call}(u32({bits} >> 32u), {number})) << 32u))"
            return whole if kind == "u64" else f"bitcast<{kind}>{whole}"
        return f"{call}({texts[0]}, {number})"

    def shift(self, op: Op, texts: list[str]) -> str:
        dtype, amount = op.dtype, op.args[1]
        if self.is_pair(dtype):
            name = "pair_shl" if op.name == "shl" else f"pair_shr_{'s' if dtype.kind == 'i' else 'u'}"
            return f"{self.use(name)}({texts[0]}, {texts[1]})"
        if isinstance(amount, Literal) and 0 <= amount.value < 8 * dtype.itemsize:
            text = f"{texts[0]} {'<<' if op.name == 'shl' else '>>'} {int(amount.value)}u"
            return self.cut(text, dtype) if op.name == "shl" else text
        return self.helper(op.name, texts, dtype)

    def arithmetic(self, name: str, texts: list[str], dtype: DType) -> str:
        """Arithmetic and bits on arguments of one dtype."""
        kind = dtype.kind
        if kind == "b":
            name = _ON_BOOL.get(name, name)
            if name == "not":
                return f"!{texts[0]}"
            return f"{texts[0]} {_BOOL[name]} {texts[1]}"
        if self.is_pair(dtype):
            return self.pair_arithmetic(name, texts, dtype)
        if name == "mulhi":
            return f"{self.use('word_mulhi')}({', '.join(texts)})"
        if name in ("div", "sqrt") and dtype is dtypes.float32 and self.must_correct_division:
            return f"{self.use(f'{name}_rounded')}({', '.join(texts)})"
        if name in ("fma", "sqrt", "floor") or (name == "abs" and kind == "f"):
            return f"{name}({', '.join(texts)})"
        if (name, kind) in BODIES:
            return self.helper(name, texts, dtype)
        if name == "not":
            return self.cut(f"~{texts[0]}", dtype)
        if name == "neg":
            return self.cut(f"-{texts[0]}" if kind != "u" else f"{self.literal(0, dtype)} - {texts[0]}", dtype)
        if name == "abs":
            return texts[0] if kind == "u" else self.cut(f"abs({texts[0]})", dtype)
        if name in _INFIX:
            text = f"{texts[0]} {_INFIX[name]} {texts[1]}"
            return text if name in ("and", "or", "xor") else self.cut(text, dtype)
        raise problem(GraphError, "render.wgsl", f"'{name}' of {dtype.name}", "an operation of the kernel language")

    def pair_arithmetic(self, name: str, texts: list[str], dtype: DType) -> str:
        sign = "s" if dtype.kind == "i" else "u"
        if name in ("and", "or", "xor"):
            return f"{texts[0]} {_INFIX[name]} {texts[1]}"
        if name == "not":
            return f"~{texts[0]}"
        if name == "abs" and sign == "u":
            return texts[0]
        function = f"pair_{name}_{sign}" if name in ("div", "mod", "max", "min") else f"pair_{name}"
        if function not in int64_pairs.FUNCTIONS:
            raise problem(GraphError, "render.wgsl", f"'{name}' of {dtype.name}", "an operation of the kernel language")
        return f"{self.use(function)}({', '.join(texts)})"

    def cut(self, text: str, dtype: DType) -> str:
        """An integer computed in 32 bits as one of 8 or 16."""
        if dtype.kind not in "iu" or dtype.itemsize >= 4:
            return text
        return f"extractBits({text}, 0u, {8 * dtype.itemsize}u)"

    # --- helper functions ---

    def helper(self, name: str, texts: list[str], dtype: DType) -> str:
        """A call of the helper for `name`, which is written at the top of the text."""
        function, kind = f"{name}_{dtype.name}", self.type(dtype)
        if function not in self.helpers:
            if dtype.kind == "f":
                self.use(f"is_nan_{dtype.name}")
            bits = 8 * dtype.itemsize
            body = BODIES[name, dtype.kind].format(
                U=f"u{kind[1:]}", bits=bits, most=bits - 1, zero=self.literal(0, dtype), nan=f"is_nan_{dtype.name}",
                minus_one=self.literal(-1, dtype) if dtype.kind == "i" else "",
            )  # fmt: skip
            parameters = f"a: {kind}" if name in _UNARY else f"a: {kind}, b: {kind}"
            self.helpers[function] = f"fn {function}({parameters}) -> {kind} {{ {body} }}"
        return self.cut(f"{function}({', '.join(texts)})", dtype)

    def use(self, name: str) -> str:
        """The name of a function with a fixed text, which is written at the top of the text with those that it
        calls."""
        if name not in self.helpers:
            fixed = FUNCTIONS.get(name, "").replace("ZERO", self.zero) or FLOAT16.get(name)
            if name == "divide":
                fixed = f"fn divide(a: f32, b: f32) -> f32 {{ return {self.arithmetic('div', ['a', 'b'], F32)}; }}"
            if fixed and "hide_f32(" in fixed:
                self.hide("", F32)
            for other in CALLS.get(name, ()) if fixed else int64_pairs.dependencies(name):
                self.use(other)
            self.helpers[name] = fixed or int64_pairs.FUNCTIONS[name]
        return name

    def large(self, name: str, dtype: DType) -> str:
        """The name of a function of `kernels.math.large_arguments`, which is written at the top of the text. Its first
        arguments are whether it is needed and what is returned where it is not."""
        function = f"{name}_{dtype.name}"
        if function in self.helpers:
            return function
        if dtype is dtypes.float32:
            return self.use(function)
        kind = self.type(dtype)
        scalar = large.function(name, dtype)
        lines, outer, self.rounding = [], self.rounding, Rounding(self.hide)
        for let in scalar.body:
            assert isinstance(let.value, Op), let
            lines.append(f"    let {let.name}: {self.type(let.value.dtype)} = {self.define(let.name, let.value)};")
        self.rounding = outer
        parameters = ", ".join(f"{one.name}: {kind}" for one in scalar.parameters)
        head = f"fn {function}(needed: bool, ordinary: {kind}, {parameters}) -> {kind}"
        lines = ["    if (!needed) { return ordinary; }", *lines, f"    return {self.atom(scalar.result)};"]
        self.helpers[function] = "\n".join([f"{head} {{", *lines, "}"])
        return function

    # --- casts ---

    def cast(self, text: str, source: DType, target: DType) -> str:
        """Float to integer truncates and saturates (NaN gives 0); anything to bool is `!= 0`."""
        if target is dtypes.bool_:
            return self.compare("ne", [text, self.literal(0, source)], source)
        if source.is_16_bit or target.is_16_bit:
            return self.cast_16_bit(text, source, target)
        if self.is_pair(source) or self.is_pair(target):
            return self.cast_pair(text, source, target)
        kind = self.type(target)
        if source.kind == "b" and target.kind == "f":  # times a number, compilers make a choice of it, which loses NaN
            return self.hide(f"{kind}({text})", target, HIDE_CAST)
        if source.kind == "f" and target.kind != "f":
            return self.saturate(text, source, target)
        if target.kind == "f" and source.kind in "iu" and source.itemsize == 4 and target.itemsize == 4:
            return self.round_word(text, source)
        if kind == self.type(source):
            return text if source.itemsize <= target.itemsize else self.cut(text, target)
        if source.kind in "iu" and source.itemsize == 8 and target.itemsize < 8 and target.kind in "iu":
            low = f"u32({text} & {self.literal(0xFFFFFFFF, source)})"
            return self.cut(f"{kind}({low})", target)
        if source.kind in "iu" and target.kind in "iu" and target.itemsize == 8:
            text = f"{source.kind}64({text})"  # wgpu's compiler extends by the sign of the target
        return self.cut(f"{kind}({text})", target)

    def round_word(self, text: str, source: DType) -> str:
        """A 32-bit integer as float32, to nearest with ties to even: WGSL leaves the direction open. Hidden as numbers
        made of conditions are: where a compiler knows that the integer is 0, NaN times that is NaN."""
        word = self.use("float32_of_word")
        if source.kind == "u":
            return self.hide(f"{word}({text})", F32, HIDE_CAST)
        self.helpers["float32_of_int32"] = (
            "fn float32_of_int32(a: i32) -> f32 "
            "{ let size = float32_of_word(u32(abs(a))); return select(size, -size, a < 0); }"
        )
        return self.hide(f"float32_of_int32({text})", F32, HIDE_CAST)

    def cast_16_bit(self, text: str, source: DType, target: DType) -> str:
        if source is dtypes.float16 and target is dtypes.float32:
            return f"{self.use('float32_of_float16')}({text})"
        if source is dtypes.float32 and target is dtypes.float16:
            return f"{self.use('float16_of_float32')}({text})"
        given = f"a cast from {source.name} to {target.name}"
        raise problem(GraphError, "render.wgsl", given, "16-bit floats computed as float32")

    def cast_pair(self, text: str, source: DType, target: DType) -> str:
        if self.is_pair(source) and self.is_pair(target):
            return text
        if self.is_pair(target):
            sign = "s" if target.kind == "i" else "u"
            if source.kind == "f":
                return f"{self.use(f'pair_of_float32_{sign}')}({text})"
            if source.kind == "i":
                return f"{_PAIR}(u32({text}), u32({text} >> 31u))"
            return f"{_PAIR}(u32({text}), 0u)"
        if target.kind == "f":
            return f"{self.use('float32_of_pair_' + ('s' if source.kind == 'i' else 'u'))}({text})"
        return self.cut(f"{self.type(target)}({text}.x)", target)

    def saturate(self, text: str, source: DType, target: DType) -> str:
        function = f"{target.name}_of_{source.name}"
        if function not in self.helpers:
            bits = 8 * target.itemsize
            low, high = (0, 2**bits) if target.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
            kind = self.type(target)
            self.helpers[function] = (
                f"fn {function}(a: {self.type(source)}) -> {kind} {{ "
                f"if ({self.use('is_nan_' + source.name)}(a)) {{ return {self.literal(0, target)}; }} "
                f"if (a >= {self.literal(high, source)}) {{ return {self.literal(high - 1, target)}; }} "
                f"if (a <= {self.literal(low, source)}) {{ return {self.literal(low, target)}; }} return {kind}(a); }}"
            )
        return f"{function}({text})"

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        before, after = self.type(source), self.type(target)
        if source.itemsize < 4:  # bits are in the lower part of 32, an int's with its sign above them
            word = text if before == "u32" else f"(u32({text}) & {(1 << 8 * source.itemsize) - 1}u)"
            return word if after == "u32" else f"extractBits(i32({word}), 0u, {8 * target.itemsize}u)"
        return text if before == after else f"bitcast<{after}>({text})"


def _short(kind: str) -> str:
    return "pair" if kind == _PAIR else kind
