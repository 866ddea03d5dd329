"""Expressions of the kernel language, immutable trees that may share parts, and the operators that build them.

Kernels and schedules read as arithmetic: `a * b + c`, `abs(x) < limit`, `a.max(b)`, `(x < 0).select(-x, x)`,
`x.cast(float32)`. Each operator builds the one `Op` of its name and computes nothing; a Python number takes the dtype
of the other operand. `==` compares expressions by identity, as dictionaries need it: `a.eq(b)` is the comparison of
values. Nothing here knows of statements, loops or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from weft.base.dtypes import DType, bool_
from weft.base.errors import DTypeError, problem
from weft.kernels.ir.index import Index


class Expr:
    """The value of one point of the loops around; the classes below are all there are.

    Operands have the dtype of `self`, and so has the result, except where a docstring says otherwise.
    """

    __slots__ = ()
    dtype: DType

    def __bool__(self) -> NoReturn:
        raise problem(
            DTypeError, "Expr", "an expression where Python needs True or False", "a Python bool",
            "use condition.select(a, b), & | ~, or an `If` statement; compare with None by `is`",
        )  # fmt: skip

    def __add__(self, other: Operand) -> Op:
        return Op("add", (self, _lift(other, self.dtype)), self.dtype)

    def __radd__(self, other: Operand) -> Op:
        return Op("add", (_lift(other, self.dtype), self), self.dtype)

    def __sub__(self, other: Operand) -> Op:
        return Op("sub", (self, _lift(other, self.dtype)), self.dtype)

    def __rsub__(self, other: Operand) -> Op:
        return Op("sub", (_lift(other, self.dtype), self), self.dtype)

    def __mul__(self, other: Operand) -> Op:
        return Op("mul", (self, _lift(other, self.dtype)), self.dtype)

    def __rmul__(self, other: Operand) -> Op:
        return Op("mul", (_lift(other, self.dtype), self), self.dtype)

    def __truediv__(self, other: Operand) -> Op:
        """The quotient of floats."""
        return Op("div", (self, _lift(other, _require(self.dtype, "f", "/"))), self.dtype)

    def __rtruediv__(self, other: Operand) -> Op:
        return Op("div", (_lift(other, _require(self.dtype, "f", "/")), self), self.dtype)

    def __floordiv__(self, other: Operand) -> Op:
        """The quotient of integers, rounded down."""
        return Op("div", (self, _lift(other, _require(self.dtype, "iu", "//"))), self.dtype)

    def __rfloordiv__(self, other: Operand) -> Op:
        return Op("div", (_lift(other, _require(self.dtype, "iu", "//")), self), self.dtype)

    def __mod__(self, other: Operand) -> Op:
        """The remainder of integers, with the sign of `other`."""
        return Op("mod", (self, _lift(other, _require(self.dtype, "iu", "%"))), self.dtype)

    def __rmod__(self, other: Operand) -> Op:
        return Op("mod", (_lift(other, _require(self.dtype, "iu", "%")), self), self.dtype)

    def __neg__(self) -> Op:
        return Op("neg", (self,), self.dtype)

    def __abs__(self) -> Op:
        return Op("abs", (self,), self.dtype)

    def __and__(self, other: Operand) -> Op:
        """Bit by bit; of bools, whether both hold."""
        return Op("and", (self, _lift(other, _require(self.dtype, "biu", "&"))), self.dtype)

    def __or__(self, other: Operand) -> Op:
        """Bit by bit; of bools, whether either holds."""
        return Op("or", (self, _lift(other, _require(self.dtype, "biu", "|"))), self.dtype)

    def __xor__(self, other: Operand) -> Op:
        """Bit by bit; of bools, whether exactly one holds."""
        return Op("xor", (self, _lift(other, _require(self.dtype, "biu", "^"))), self.dtype)

    def __invert__(self) -> Op:
        """Bit by bit; of bools, the opposite."""
        return Op("not", (self,), _require(self.dtype, "biu", "~"))

    def __lshift__(self, other: Operand) -> Op:
        return Op("shl", (self, _lift(other, _require(self.dtype, "iu", "<<"))), self.dtype)

    def __rshift__(self, other: Operand) -> Op:
        """Shifts in the sign of a signed dtype, zeros otherwise."""
        return Op("shr", (self, _lift(other, _require(self.dtype, "iu", ">>"))), self.dtype)

    def __lt__(self, other: Operand) -> Op:
        """bool. Comparisons are false with NaN, except `ne`."""
        return Op("lt", (self, _lift(other, self.dtype)), bool_)

    def __le__(self, other: Operand) -> Op:
        return Op("le", (self, _lift(other, self.dtype)), bool_)

    def __gt__(self, other: Operand) -> Op:
        """`other < self`."""
        return Op("lt", (_lift(other, self.dtype), self), bool_)

    def __ge__(self, other: Operand) -> Op:
        """`other <= self`."""
        return Op("le", (_lift(other, self.dtype), self), bool_)

    def eq(self, other: Operand) -> Op:
        """bool: whether the values are equal."""
        return Op("eq", (self, _lift(other, self.dtype)), bool_)

    def ne(self, other: Operand) -> Op:
        """bool: whether the values differ; true with NaN."""
        return Op("ne", (self, _lift(other, self.dtype)), bool_)

    def max(self, other: Operand) -> Op:
        """The larger value, or NaN where either is."""
        return Op("max", (self, _lift(other, self.dtype)), self.dtype)

    def min(self, other: Operand) -> Op:
        """The smaller value, or NaN where either is."""
        return Op("min", (self, _lift(other, self.dtype)), self.dtype)

    def sqrt(self) -> Op:
        return Op("sqrt", (self,), _require(self.dtype, "f", "sqrt"))

    def floor(self) -> Op:
        return Op("floor", (self,), _require(self.dtype, "f", "floor"))

    def mulhi(self, other: Operand) -> Op:
        """The high 32 bits of the product of two uint32."""
        return Op("mulhi", (self, _lift(other, _require(self.dtype, "u", "mulhi"))), self.dtype)

    def fma(self, factor: Operand, term: Operand) -> Op:
        """self * factor + term of floats, rounded once."""
        dtype = _require(self.dtype, "f", "fma")
        return Op("fma", (self, _lift(factor, dtype), _lift(term, dtype)), dtype)

    def select(self, a: Operand, b: Operand) -> Op:
        """`a` where `self`, a bool, is true, else `b`; one of the two is an expression."""
        _require(self.dtype, "b", "select")
        dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else None
        if dtype is None:
            raise problem(DTypeError, "select", f"{a!r} and {b!r}", "an expression", "give one of them as a `Literal`")
        return Op("select", (self, _lift(a, dtype), _lift(b, dtype)), dtype)

    def cast(self, dtype: DType) -> Op:
        """The value as `dtype`."""
        return Op("cast", (self,), dtype)

    def bitcast(self, dtype: DType) -> Op:
        """The bits as `dtype`, which has as many."""
        return Op("bitcast", (self,), dtype)


Operand = Expr | float | int  # bool included: a Python number takes the dtype of the other operand


def _lift(operand: Operand, dtype: DType) -> Expr:
    """An operand of `dtype`: an expression that has it, or a Python number as a literal."""
    if isinstance(operand, Expr):
        if operand.dtype is dtype:
            return operand
        raise problem(
            DTypeError, "Expr", f"operands of {dtype.name} and {operand.dtype.name}", "operands of one dtype",
            f"cast one of them, as in `value.cast({dtype.name})`",
        )  # fmt: skip
    if isinstance(operand, int | float):
        return Literal(operand, dtype)
    raise problem(
        DTypeError, "Expr", f"the operand {operand!r}", "an expression or a Python number",
        "an index takes part as `IndexValue(index, dtype)`",
    )  # fmt: skip


def _require(dtype: DType, kinds: str, operation: str) -> DType:
    """`dtype`, which must be of one of `kinds` (as `DType.kind` has them) for `operation`."""
    if dtype.kind in kinds:
        return dtype
    wanted = " or ".join([_KINDS[kind] for kind in kinds])
    raise problem(DTypeError, "Expr", f"`{operation}` of {dtype.name}", wanted, "cast the operand")


_KINDS = {"f": "a float", "i": "a signed integer", "u": "an unsigned integer", "b": "a bool"}


@dataclass(frozen=True, slots=True, eq=False)
class Literal(Expr):
    """A constant; `value` is a Python number or bool, `inf` and `nan` included."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Var(Expr):
    """A named value: a `Let`, a finished accumulator, a scalar parameter or a range parameter."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Op(Expr):
    """One of `OPERATIONS` applied to arguments of equal dtype (except `select`, `cast`, `bitcast`, comparisons)."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Function(Op):
    """The last of the operations that make up `function` of `of`: an `Op` like any other, unless a schedule for a
    device that has the function itself replaces it by that."""

    function: str
    of: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    """The element of `buffer` at `index` (in elements). Where `mask` is false nothing is read and the value is 0.
    On GPUs a lane's private array of bfloat16 may be read as float32."""

    buffer: str
    index: Index
    dtype: DType
    mask: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IndexValue(Expr):
    """An index as a number of an integer dtype, as iota and random counters need it."""

    index: Index
    dtype: DType


# Every operation a renderer must print, by kind. Transcendental functions are not among them: `kernels.math.functions`
# builds them from these, so that all backends agree. `max` and `min` propagate NaN; integer `div` and `mod` round down,
# and `mod` is one of integers alone.
ARITHMETIC = ("add", "sub", "mul", "div", "mod", "max", "min", "neg", "abs", "fma", "sqrt", "floor")
COMPARE = ("lt", "le", "eq", "ne")  # ordered: false with NaN, except `ne`; dtype of the result is bool
BITS = ("and", "or", "xor", "not", "shl", "shr")  # `not` of bool is logical; `shr` follows the sign of its dtype
OTHER = ("select", "cast", "bitcast", "mulhi")  # mulhi: high 32 bits of the product of two uint32
# GPU alone. exchange(value, distance): the value of the lane whose number in its subgroup differs by xor `distance`;
# broadcast(value, number): the value of the lane with this number in its subgroup. In both, all lanes of the subgroup
# take part. aligned(buffers..., bytes): whether all these buffers, given as variables of their names, begin at
# multiples of so many bytes.
GPU = ("exchange", "broadcast", "aligned")
# Functions that some devices have. Of float32, accurate to 2 ulp; exp_rounded is exp of a number that was rounded: it
# may be rounded once more, and results below the normal range may be 0; logistic is 1 / (1 + exp(-x)), accurate to 4
# ulp of 1. Exact ones between float32 and bfloat16: `round_bfloat16` (which stays float32), `widen` (a bfloat16) and
# `narrow` (a float32 that was rounded).
CASTS = ("round_bfloat16", "widen", "narrow")
NATIVE = ("exp", "log", "log1p", "expm1", "tanh", "erf", "exp_rounded", "logistic", *CASTS)
# NAME(needed, common, *args): `common`, but where `needed` is true the function of `args` that
# `kernels.math.large_arguments` has.
LARGE = ("sin_large", "cos_large", "mod_large", "floor_divide_large")
OPERATIONS = frozenset(ARITHMETIC + COMPARE + BITS + OTHER + GPU + NATIVE + LARGE)
