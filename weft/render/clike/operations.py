"""Single operations of the kernel language in plain C: an operator, a built-in of the dialect, or a helper function.

Helpers spell out what C leaves undefined or defines otherwise: signed overflow wraps, integer division rounds down and
gives 0 by zero, `max` and `min` keep NaN, a float beyond the integers saturates. They do what `render.llvm.operations`
does.
"""

from __future__ import annotations

import math

import numpy as np

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.ir.language import Expr, Literal, Op, Var
from weft.kernels.math import large_arguments as large
from weft.render.dialects.tables import Dialect

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
_ON_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and"}
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}

# Bodies of helpers by (operation, kind of dtype); {T} is the type, {U} the unsigned one of its size, {bits} its size.
_BODIES = {
    ("add", "i"): "return ({T})(({U})a + ({U})b);",
    ("sub", "i"): "return ({T})(({U})a - ({U})b);",
    ("mul", "i"): "return ({T})(({U})a * ({U})b);",
    ("neg", "i"): "return ({T})(({U})0 - ({U})a);",
    ("abs", "i"): "return a < 0 ? ({T})(({U})0 - ({U})a) : a;",
    ("shl", "i"): "return ({U})b < {bits} ? ({T})(({U})a << b) : 0;",
    ("shr", "i"): "return a >> (({U})b < {bits} ? b : {bits} - 1);",
    ("shl", "u"): "return b < {bits} ? a << b : 0;",
    ("shr", "u"): "return b < {bits} ? a >> b : 0;",
    ("max", "i"): "return a > b ? a : b;",
    ("min", "i"): "return a < b ? a : b;",
    ("max", "u"): "return a > b ? a : b;",
    ("min", "u"): "return a < b ? a : b;",
    ("max", "f"): "return a > b || a != a ? a : b;",
    ("min", "f"): "return a < b || a != a ? a : b;",
    ("div", "u"): "return b == 0 ? 0 : a / b;",
    ("mod", "u"): "return b == 0 ? 0 : a % b;",
    ("div", "i"): "if (b == 0) return 0; if (b == -1) return ({T})(({U})0 - ({U})a); "
    "return a / b - (a % b != 0 && (a ^ b) < 0);",
    ("mod", "i"): "if (b == 0 || b == -1) return 0; const {T} rest = a % b; "
    "return rest != 0 && (rest ^ b) < 0 ? rest + b : rest;",
}  # fmt: skip
_UNARY = ("neg", "abs")


class Operations:
    """Prints operations in one dialect; `helpers` collects the functions that were needed."""

    def __init__(self, dialect: Dialect):
        self.dialect = dialect
        self.helpers: dict[str, str] = {}

    def type(self, dtype: DType) -> str:
        return self.dialect.types[dtype.name]

    def memory_type(self, dtype: DType) -> str:
        return self.dialect.types["byte" if dtype is dtypes.bool_ else dtype.name]

    def shuffled_types(self, dtype: DType) -> dict[str, str]:
        """The type of a value that lanes exchange, and the one in which they do: bool has no such operations."""
        return {"type": self.type(dtype), "shuffled": self.type(dtypes.int32 if dtype is dtypes.bool_ else dtype)}

    def literal(self, value: float | int | bool, dtype: DType) -> str:
        """A constant; floats in the fewest digits that give the same bits."""
        if dtype.kind == "b":
            return "true" if value else "false"
        if dtype.is_16_bit:
            return str(dtypes.bits_of(value, dtype))
        suffix = self.dialect.suffixes[dtype.name]
        if dtype.kind in "iu":
            number = int(value)
            if dtype.kind == "i" and number == -(2 ** (8 * dtype.itemsize - 1)):
                return f"(-{-number - 1}{suffix} - 1)"
            return f"{number}{suffix}" if number >= 0 else f"({number}{suffix})"
        with np.errstate(over="ignore"):
            rounded = dtype.numpy.type(value)
        if math.isnan(rounded):
            return self.dialect.constants[f"nan_{dtype.name}"]
        if math.isinf(rounded):
            text = self.dialect.constants[f"inf_{dtype.name}"]
            return text if rounded > 0 else f"(-{text})"
        text = (
            np.format_float_scientific(rounded, trim="0")
            if _needs_exponent(rounded)
            else np.format_float_positional(rounded, trim="0")
        )
        return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"

    def combine(self, op: str, value: str, before: str, dtype: DType) -> str:
        """One step of a reduction: `value` goes into `before`."""
        return self.arithmetic(_COMBINE[op], [value, before], dtype)

    def operation(self, op: Op, texts: list[str]) -> str:
        """The value of `op`, given the texts of its arguments."""
        source = op.args[0].dtype
        match op.name:
            case "lt" | "le" | "eq" | "ne":
                return f"{texts[0]} {_COMPARE[op.name]} {texts[1]}"
            case "select":
                return f"{texts[0]} ? {texts[1]} : {texts[2]}"
            case "cast":
                return self.cast(texts[0], source, op.dtype)
            case "bitcast":
                return self.bitcast(texts[0], source, op.dtype)
            case "sin_large" | "cos_large" | "mod_large" | "floor_divide_large":
                needed, common, *args = texts
                return f"{needed} ? {self.large(op.name, op.dtype)}({', '.join(args)}) : {common}"
            case "exchange":
                return self.dialect.exchange.format(value=texts[0], distance=texts[1], **self.shuffled_types(op.dtype))
            case "broadcast":
                return self.dialect.broadcast.format(value=texts[0], number=texts[1], **self.shuffled_types(op.dtype))
            case "aligned":
                *buffers, nbytes = texts
                bits = " | ".join(self.dialect.address.format(name=name) for name in buffers)
                return f"(({bits}) & {int(nbytes) - 1}) == 0"
            case "shl" | "shr":
                amount = op.args[1]
                known = isinstance(amount, Literal) and 0 <= amount.value < 8 * op.dtype.itemsize
                if known and (op.name == "shr" or op.dtype.kind == "u"):
                    return f"{texts[0]} {'<<' if op.name == 'shl' else '>>'} {texts[1]}"
                return self.helper(op.name, texts, op.dtype)
            case _:
                return self.arithmetic(op.name, texts, op.dtype)

    def arithmetic(self, name: str, texts: list[str], dtype: DType) -> str:
        """Arithmetic and bits on arguments of one dtype."""
        kind = dtype.kind
        if kind == "b":
            name = _ON_BOOL.get(name, name)
        call = self.dialect.calls.get(f"{name}_{dtype.name}")
        if call is not None:
            return f"{call}({', '.join(texts)})"
        if name == "not":
            return f"{'!' if kind == 'b' else '~'}{texts[0]}"
        if f"{name}_{dtype.name}" in self.dialect.functions:
            return f"{self.use_function(f'{name}_{dtype.name}')}({', '.join(texts)})"
        if (name, kind) in _BODIES:
            return self.helper(name, texts, dtype)
        if name == "mul" and kind == "u" and dtype.itemsize < 4:  # C would multiply as int, which may overflow
            return f"({self.type(dtypes.uint32)}){texts[0]} * {texts[1]}"
        if name in ("and", "or", "xor") or (name in _INFIX and kind in "fu"):
            return f"{texts[0]} {_INFIX[name]} {texts[1]}"
        if name == "neg" and kind in "fu":
            return f"-{texts[0]}"
        if name == "abs" and kind == "u":
            return texts[0]
        raise problem(GraphError, "render.clike", f"'{name}' of {dtype.name}", "an operation of the kernel language")

    def helper(self, name: str, texts: list[str], dtype: DType) -> str:
        """A call of the helper for `name`, which is written at the top of the text."""
        function, kind = f"{name}_{dtype.name}", self.type(dtype)
        if function not in self.helpers:
            unsigned = self.dialect.types.get(f"uint{max(8 * dtype.itemsize, 32)}", kind)
            body = _BODIES[name, dtype.kind].format(T=kind, U=unsigned, bits=8 * dtype.itemsize)
            parameters = f"{kind} a" if name in _UNARY else f"{kind} a, {kind} b"
            self.helpers[function] = f"{self.dialect.function} {kind} {function}({parameters}) {{ {body} }}"
        return f"{function}({', '.join(texts)})"

    def large(self, name: str, dtype: DType) -> str:
        """The name of a function of `kernels.math.large_arguments`, which is written at the top of the text."""
        scalar = large.function(name, dtype)
        if scalar.name not in self.helpers:
            lines = []
            for let in scalar.body:
                assert isinstance(let.value, Op), let
                texts = [self.atom(arg) for arg in let.value.args]
                lines.append(f"    const {self.type(let.value.dtype)} {let.name} = {self.operation(let.value, texts)};")
            parameters = ", ".join(f"{self.type(dtype)} {one.name}" for one in scalar.parameters)
            head = f"{self.dialect.outlined or self.dialect.function} {self.type(dtype)} {scalar.name}({parameters})"
            lines.append(f"    return {self.atom(scalar.result)};")
            self.helpers[scalar.name] = "\n".join([head, "{", *lines, "}"])
        return scalar.name

    def atom(self, expr: Expr) -> str:
        """A literal or a variable."""
        if isinstance(expr, Literal):
            return self.literal(expr.value, expr.dtype)
        assert isinstance(expr, Var), expr
        return expr.name

    def use_function(self, name: str) -> str:
        """The name of a function that the dialect has, which is written at the top of the text."""
        self.helpers[name] = self.dialect.functions[name]
        return name

    def move(
        self, form: str, target: str, source: str, count: int, dtype: DType, to: str, of: str, valid: str = ""
    ) -> str:  # fmt: skip
        """The statement that moves `count` contiguous elements at once, from memory of the space `of` to that of `to`:
        `form` is the dialect's 'copy', 'round', 'fetch' or 'fetch_near'."""
        if form in self.dialect.functions:
            self.use_function(form)
        text: str = getattr(self.dialect, form)
        kind = self.memory_type(dtype)
        return text.format(
            target=target, source=source, count=count, type=kind, vector=kind if count == 1 else f"{kind}{count}",
            target_space=to, source_space=of, valid=valid,
        )  # fmt: skip

    def cast(self, text: str, source: DType, target: DType) -> str:
        """Float to integer truncates and saturates (NaN gives 0); anything to bool is `!= 0`."""
        if target is dtypes.bool_:
            return f"{text} != {self.literal(0, source)}"
        function = f"{target.name}_of_{source.name}"
        if function in self.dialect.functions:
            return f"{self.use_function(function)}({text})"
        if source.kind != "f" or target.kind == "f":
            return f"({self.type(target)}){text}"
        if function not in self.helpers:
            bits = 8 * target.itemsize
            low, high = (0, 2**bits) if target.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
            body = (
                f"return a != a ? 0 : a >= {self.literal(high, source)} ? {self.literal(high - 1, target)} : "
                f"a <= {self.literal(low, source)} ? {self.literal(low, target)} : ({self.type(target)})a;"
            )
            head = f"{self.dialect.function} {self.type(target)} {function}({self.type(source)} a)"
            self.helpers[function] = f"{head} {{ {body} }}"
        return f"{function}({text})"

    def bitcast(self, text: str, source: DType, target: DType) -> str:
        call = self.dialect.calls.get(f"{target.name}_{source.name}")
        return f"{call}({text})" if call else f"({self.type(target)}){text}"


def _needs_exponent(number: np.floating) -> bool:
    """Whether a number reads better with an exponent."""
    return bool(number) and not 1e-4 <= abs(number) < 1e9
