"""Single operations of the kernel language as LLVM IR: types, constants, and one row per operation.

Everything here works on scalars (`lanes` 0) and vectors alike; `Writer` is the renderer that collects the lines.
"""

from __future__ import annotations

import math
import struct
from typing import Protocol

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.index import Quotient, Remainder
from weft.kernels.ir.language import Accumulator, Literal, Op

_MEMORY = {"float16": "i16", "bfloat16": "i16", "float32": "float", "float64": "double"}  # 16-bit floats as their bits
_SUFFIX = {"float": "f32", "double": "f64"}


class Writer(Protocol):
    """Where instructions go: `emit` adds one and names its value, `call` calls an intrinsic."""

    def emit(self, code: str) -> str: ...
    def call(self, intrinsic: str, result: str, arguments: str, signature: str) -> str: ...


def memory_type(dtype: DType) -> str:
    return _MEMORY.get(dtype.name) or f"i{8 * dtype.itemsize}"


def register_type(dtype: DType) -> str:
    return "i1" if dtype is dtypes.bool_ else memory_type(dtype)


def vector_type(kind: str, lanes: int) -> str:
    return f"<{lanes} x {kind}>" if lanes else kind


def suffix(kind: str) -> str:
    """The name of a scalar type inside an intrinsic's name."""
    return _SUFFIX.get(kind, kind)


def splat_text(text: str, kind: str) -> str:
    """A constant in all lanes."""
    return f"splat ({kind} {text})"


def constant(value: float | int | bool, dtype: DType) -> str:
    """A literal; floats by their bits, so that nothing is lost in text."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind in "iu":
        return str(int(value))
    if dtype.is_16_bit:
        return str(dtypes.bits_of(value, dtype))
    number = float(value)
    if dtype is dtypes.float32 and math.isfinite(number):
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = math.copysign(math.inf, number)
    if math.isnan(number):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def identity(op: str, dtype: DType, lanes: int) -> str:
    """The value that leaves a reduction as it is."""
    text = constant(Accumulator("", op, dtype).identity, dtype)
    return splat_text(text, register_type(dtype)) if lanes else text


def intrinsic(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    kind = vector_type(register_type(dtype), lanes)
    full = f"llvm.{name}.{f'v{lanes}' if lanes else ''}{suffix(register_type(dtype))}"
    return w.call(full, kind, ", ".join(f"{kind} {text}" for text in texts), ", ".join([kind] * len(texts)))


# --- memory and lanes ------------------------------------------------------------------------------------------------


def from_memory(w: Writer, text: str, dtype: DType, lanes: int) -> str:
    """A loaded value as it is in registers: bool is a byte in memory and one bit here."""
    if dtype is not dtypes.bool_:
        return text
    kind = vector_type("i8", lanes)
    return w.emit(f"icmp ne {kind} {text}, zeroinitializer")


def to_memory(w: Writer, text: str, dtype: DType, lanes: int) -> str:
    if dtype is not dtypes.bool_:
        return text
    return w.emit(f"zext {vector_type('i1', lanes)} {text} to {vector_type('i8', lanes)}")


def reverse(w: Writer, text: str, kind: str, width: int) -> str:
    """The lanes of `text` in opposite order."""
    vector = vector_type(kind, width)
    picks = ", ".join(f"i32 {lane}" for lane in reversed(range(width)))
    return w.emit(f"shufflevector {vector} {text}, {vector} poison, {vector_type('i32', width)} <{picks}>")


def resize(w: Writer, text: str, dtype: DType, bits: int, lanes: int) -> str:
    """An integer of `dtype` in `bits` bits."""
    have = dtype.itemsize * 8
    if have == bits:
        return text
    code = "trunc" if have > bits else "zext" if dtype.kind == "u" else "sext"
    return w.emit(f"{code} {vector_type(f'i{have}', lanes)} {text} to {vector_type(f'i{bits}', lanes)}")


def divide_index(w: Writer, value: str, atom: Quotient | Remainder, kind: str) -> str:
    """`value // divisor` or `value % divisor`, rounded down, for a positive constant divisor."""
    d, quotient = atom.divisor, isinstance(atom, Quotient)
    scalar = kind.split(" x ")[1].rstrip(">") if kind.startswith("<") else kind

    def number(n: int) -> str:
        return splat_text(str(n), scalar) if kind.startswith("<") else str(n)

    if d & (d - 1) == 0:
        if quotient:
            return w.emit(f"ashr {kind} {value}, {number(d.bit_length() - 1)}")
        return w.emit(f"and {kind} {value}, {number(d - 1)}")
    if atom.value.low >= 0:
        return w.emit(f"{'udiv' if quotient else 'urem'} {kind} {value}, {number(d)}")
    # Rounding down: move the value up by a multiple of d that makes it non-negative.
    lift = -(atom.value.low // d)
    if atom.value.high + lift * d < 2 ** (int(scalar[1:]) - 1):
        lifted = w.emit(f"add {kind} {value}, {number(lift * d)}")
        if not quotient:
            return w.emit(f"urem {kind} {lifted}, {number(d)}")
        divided = w.emit(f"udiv {kind} {lifted}, {number(d)}")
        return w.emit(f"sub {kind} {divided}, {number(lift)}")
    given = f"an index in [{atom.value.low}, {atom.value.high}]"
    raise problem(GraphError, "render.llvm", given, "one that fits int64")


# --- operations ------------------------------------------------------------------------------------------------------

_FLOAT_CODE = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "eq": "oeq", "ne": "une"}
_INTRINSICS = {"fma": "fma", "sqrt": "sqrt", "floor": "floor"}
_REDUCTION = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def combine(w: Writer, op: str, a: str, b: str, dtype: DType, lanes: int) -> str:
    """One step of a reduction: `a` goes into `b`."""
    return _apply(w, _REDUCTION[op], [a, b], dtype, lanes)


def operation(w: Writer, op: Op, texts: list[str], lanes: int) -> str:
    """The value of `op`, given the texts of its arguments, each with `lanes` lanes."""
    source = op.args[0].dtype
    match op.name:
        case "lt" | "le" | "eq" | "ne":
            return _compare(w, op.name, texts, source, lanes)
        case "select":
            kind = vector_type(register_type(op.dtype), lanes)
            test = vector_type("i1", lanes)
            return w.emit(f"select {test} {texts[0]}, {kind} {texts[1]}, {kind} {texts[2]}")
        case "cast":
            return _cast(w, texts[0], source, op.dtype, lanes)
        case "bitcast":
            if register_type(source) == register_type(op.dtype):
                return texts[0]
            types = vector_type(register_type(source), lanes), vector_type(register_type(op.dtype), lanes)
            return w.emit(f"bitcast {types[0]} {texts[0]} to {types[1]}")
        case "mulhi":
            narrow, wide = vector_type("i32", lanes), vector_type("i64", lanes)
            a, b = (w.emit(f"zext {narrow} {text} to {wide}") for text in texts)
            shift = splat_text("32", "i64") if lanes else "32"
            product = w.emit(f"mul {wide} {a}, {b}")
            return w.emit(f"trunc {wide} {w.emit(f'lshr {wide} {product}, {shift}')} to {narrow}")
        case "shl" | "shr":
            return _shift(w, op, texts, lanes)
        case _:
            return _apply(w, op.name, texts, op.dtype, lanes)


def _apply(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    """Arithmetic and bits on arguments of one dtype."""
    if dtype.kind == "f":
        return _float(w, name, texts, dtype, lanes)
    kind = vector_type(register_type(dtype), lanes)

    def number(n: str) -> str:
        return splat_text(n, register_type(dtype)) if lanes else n

    if name == "not":
        return w.emit(f"xor {kind} {texts[0]}, {number('true' if dtype.kind == 'b' else '-1')}")
    if name in ("and", "or", "xor"):
        return w.emit(f"{name} {kind} {texts[0]}, {texts[1]}")
    if dtype.kind == "b":
        code = {"max": "or", "add": "or", "min": "and", "mul": "and"}.get(name)
        if code is None:
            raise problem(GraphError, "render.llvm", f"'{name}' of bool", "a number", "cast it first")
        return w.emit(f"{code} {kind} {texts[0]}, {texts[1]}")
    if name in ("add", "sub", "mul"):
        return w.emit(f"{name} {kind} {texts[0]}, {texts[1]}")
    if name == "neg":
        return w.emit(f"sub {kind} {number('0')}, {texts[0]}")
    if name == "abs":
        negative = w.emit(f"sub {kind} {number('0')}, {texts[0]}")
        return _integer_extreme(w, "max", [texts[0], negative], dtype, lanes) if dtype.kind == "i" else texts[0]
    if name in ("max", "min"):
        return _integer_extreme(w, name, texts, dtype, lanes)
    if name in ("div", "mod"):
        return _integer_division(w, name, texts, dtype, lanes)
    raise problem(GraphError, "render.llvm", f"'{name}' of {dtype.name}", "an operation of the kernel language")


def _integer_extreme(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    return intrinsic(w, ("u" if dtype.kind == "u" else "s") + name, texts, dtype, lanes)


def _float(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    kind = vector_type(register_type(dtype), lanes)
    if name in _FLOAT_CODE:
        return w.emit(f"{_FLOAT_CODE[name]} {kind} {texts[0]}, {texts[1]}")
    if name in _INTRINSICS:
        return intrinsic(w, _INTRINSICS[name], texts, dtype, lanes)
    if name == "abs":
        return intrinsic(w, "fabs", texts, dtype, lanes)
    if name == "neg":
        return w.emit(f"fneg {kind} {texts[0]}")
    if name in ("max", "min"):
        # One machine instruction gives b where either is NaN; the second select brings a's NaN back.
        bits, (a, b) = vector_type("i1", lanes), texts
        test = w.emit(f"fcmp {'ogt' if name == 'max' else 'olt'} {kind} {a}, {b}")
        chosen = w.emit(f"select {bits} {test}, {kind} {a}, {kind} {b}")
        unknown = w.emit(f"fcmp uno {kind} {a}, {a}")
        return w.emit(f"select {bits} {unknown}, {kind} {a}, {kind} {chosen}")
    raise problem(GraphError, "render.llvm", f"'{name}' of {dtype.name}", "an operation of the kernel language")


def _compare(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    kind = vector_type(register_type(dtype), lanes)
    if dtype.kind == "f":
        return w.emit(f"fcmp {_FLOAT_COMPARE[name]} {kind} {texts[0]}, {texts[1]}")
    test = name if name in ("eq", "ne") else ("s" if dtype.kind == "i" else "u") + name
    return w.emit(f"icmp {test} {kind} {texts[0]}, {texts[1]}")


def _shift(w: Writer, op: Op, texts: list[str], lanes: int) -> str:
    """A shift; one by the width or more empties the value (or leaves its sign)."""
    kind, bits = vector_type(register_type(op.dtype), lanes), op.dtype.itemsize * 8
    code = "shl" if op.name == "shl" else "ashr" if op.dtype.kind == "i" else "lshr"
    amount = op.args[1]
    if isinstance(amount, Literal) and 0 <= amount.value < bits:
        return w.emit(f"{code} {kind} {texts[0]}, {texts[1]}")

    def number(n: int) -> str:
        return splat_text(str(n), register_type(op.dtype)) if lanes else str(n)

    inside = w.emit(f"icmp ult {kind} {texts[1]}, {number(bits)}")
    test = vector_type("i1", lanes)
    shift = w.emit(f"select {test} {inside}, {kind} {texts[1]}, {kind} {number(bits - 1)}")
    shifted = w.emit(f"{code} {kind} {texts[0]}, {shift}")
    if code == "ashr":
        return shifted
    return w.emit(f"select {test} {inside}, {kind} {shifted}, {kind} {number(0)}")


def _integer_division(w: Writer, name: str, texts: list[str], dtype: DType, lanes: int) -> str:
    """Rounded down; by zero the result is 0; the one overflow (smallest // -1) wraps. Nothing here can trap."""
    kind, test = vector_type(register_type(dtype), lanes), vector_type("i1", lanes)

    def number(n: int) -> str:
        return splat_text(str(n), register_type(dtype)) if lanes else str(n)

    a, b = texts
    zero = w.emit(f"icmp eq {kind} {b}, {number(0)}")
    if dtype.kind == "u":
        safe = w.emit(f"select {test} {zero}, {kind} {number(1)}, {kind} {b}")
        value = w.emit(f"{'udiv' if name == 'div' else 'urem'} {kind} {a}, {safe}")
        return w.emit(f"select {test} {zero}, {kind} {number(0)}, {kind} {value}")
    minus = w.emit(f"icmp eq {kind} {b}, {number(-1)}")
    unsafe = w.emit(f"or {test} {zero}, {minus}")
    safe = w.emit(f"select {test} {unsafe}, {kind} {number(1)}, {kind} {b}")
    quotient = w.emit(f"sdiv {kind} {a}, {safe}")
    product = w.emit(f"mul {kind} {quotient}, {safe}")
    rest = w.emit(f"sub {kind} {a}, {product}")
    crossed = w.emit(f"xor {kind} {rest}, {safe}")
    differs = w.emit(f"icmp slt {kind} {crossed}, {number(0)}")
    inexact = w.emit(f"icmp ne {kind} {rest}, {number(0)}")
    adjust = w.emit(f"and {test} {differs}, {inexact}")
    if name == "mod":
        lifted = w.emit(f"add {kind} {rest}, {safe}")
        value = w.emit(f"select {test} {adjust}, {kind} {lifted}, {kind} {rest}")
        return w.emit(f"select {test} {unsafe}, {kind} {number(0)}, {kind} {value}")
    lowered = w.emit(f"sub {kind} {quotient}, {number(1)}")
    value = w.emit(f"select {test} {adjust}, {kind} {lowered}, {kind} {quotient}")
    negated = w.emit(f"sub {kind} {number(0)}, {a}")
    value = w.emit(f"select {test} {minus}, {kind} {negated}, {kind} {value}")
    return w.emit(f"select {test} {zero}, {kind} {number(0)}, {kind} {value}")


def _cast(w: Writer, text: str, source: DType, target: DType, lanes: int) -> str:
    """Float to integer truncates and saturates (NaN gives 0); anything to bool is `!= 0`."""
    if source is target:
        return text
    a, b = vector_type(register_type(source), lanes), vector_type(register_type(target), lanes)
    half = vector_type("half", lanes)
    if source is dtypes.float16 and target is dtypes.float32:
        return w.emit(f"fpext {half} {w.emit(f'bitcast {a} {text} to {half}')} to {b}")
    if source is dtypes.float32 and target is dtypes.float16:
        return w.emit(f"bitcast {half} {w.emit(f'fptrunc {a} {text} to {half}')} to {b}")
    if source.is_16_bit or target.is_16_bit:
        given = f"a cast from {source.name} to {target.name}"
        raise problem(GraphError, "render.llvm", given, "float16 to or from float32", "see kernels.narrow")
    if target is dtypes.bool_:
        return w.emit(f"{'fcmp une' if source.kind == 'f' else 'icmp ne'} {a} {text}, zeroinitializer")
    if source.kind == "f" and target.kind == "f":
        return w.emit(f"{'fptrunc' if source.itemsize > target.itemsize else 'fpext'} {a} {text} to {b}")
    if source.kind == "f":
        name = "fptoui" if target.kind == "u" else "fptosi"
        names = [f"{f'v{lanes}' if lanes else ''}{suffix(register_type(dtype))}" for dtype in (target, source)]
        return w.call(f"llvm.{name}.sat.{names[0]}.{names[1]}", b, f"{a} {text}", a)
    if target.kind == "f":
        return w.emit(f"{'sitofp' if source.kind == 'i' else 'uitofp'} {a} {text} to {b}")
    if source.kind == "b":
        return w.emit(f"zext {a} {text} to {b}")
    return resize(w, text, source, target.itemsize * 8, lanes)
