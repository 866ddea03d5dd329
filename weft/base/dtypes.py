"""Element types and the promotion table.

Everything may import this module; it imports other base modules only. There is one object for each dtype, under `copy`,
`pickle` and `importlib.reload` too, so `is` compares them. Names follow PyTorch; `DType.numpy` is the NumPy type with
the same bytes. The table is printed in docs/dtypes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from weft.base.errors import DTypeError, GraphError, problem
from weft.base.singletons import singleton, table
from weft.base.state import SETTINGS, STATE, VERSION

_MADE: dict[str, DType] = table("dtypes")


@singleton
@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `kind` is 'b' (bool), 'i' (signed), 'u' (unsigned) or 'f' (float)."""

    name: str
    itemsize: int
    kind: str
    numpy: np.dtype

    DESCRIBED: ClassVar = ("name", "kind", "itemsize")  # what represents it in the keys of caches

    def __new__(cls, name: str, itemsize: int, kind: str, numpy: np.dtype) -> DType:
        """The dtype called `name`, which is made once."""
        made = _MADE.get(name)
        if made is None:
            made = _MADE[name] = object.__new__(cls)
        elif (made.itemsize, made.kind, made.numpy) != (itemsize, kind, numpy):
            raise problem(
                DTypeError, "DType", f"{name} with {itemsize} bytes of kind {kind!r}", "the dtype that exists"
            )
        return made

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DType:
        return self

    def __reduce__(self) -> str:
        return self.name  # what the package `weft` calls it

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    @property
    def is_16_bit(self) -> bool:
        """Whether this is a 16-bit float: stored so, computed in float32, rounded once per node."""
        return self.kind == "f" and self.itemsize == 2

    @property
    def category(self) -> int:
        """0 for bool, 1 for integers, 2 for floats: an in-place operation must not need a higher one."""
        return {"b": 0, "i": 1, "u": 1, "f": 2}[self.kind]


bool_ = DType("bool", 1, "b", np.dtype(np.bool_))
uint8 = DType("uint8", 1, "u", np.dtype(np.uint8))
uint16 = DType("uint16", 2, "u", np.dtype(np.uint16))
uint32 = DType("uint32", 4, "u", np.dtype(np.uint32))
uint64 = DType("uint64", 8, "u", np.dtype(np.uint64))
int8 = DType("int8", 1, "i", np.dtype(np.int8))
int16 = DType("int16", 2, "i", np.dtype(np.int16))
int32 = DType("int32", 4, "i", np.dtype(np.int32))
int64 = DType("int64", 8, "i", np.dtype(np.int64))
float16 = DType("float16", 2, "f", np.dtype(np.float16))
bfloat16 = DType("bfloat16", 2, "f", np.dtype(ml_dtypes.bfloat16))
float32 = DType("float32", 4, "f", np.dtype(np.float32))
float64 = DType("float64", 8, "f", np.dtype(np.float64))

UNSIGNED: tuple[DType, ...] = (uint8, uint16, uint32, uint64)
SIGNED: tuple[DType, ...] = (int8, int16, int32, int64)
FLOATS: tuple[DType, ...] = (float16, bfloat16, float32, float64)
ALL: tuple[DType, ...] = (bool_, *UNSIGNED, *SIGNED, *FLOATS)
ALL_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}
# Names that mean the same in PyTorch and NumPy ("float" and "int" do not), and the Python types whose values they hold.
_ALIASES = {
    "half": float16, "double": float64, "short": int16, "long": int64, "bool_": bool_,
}  # fmt: skip
_OF_TYPE: dict[Any, DType] = {bool: bool_, int: int64, float: float64}


SETTINGS.default_dtype = SETTINGS.default_dtype or float32

DTypeLike = DType | str | np.dtype | type  # what `as_dtype` understands


def by_name(name: str) -> DType:
    """The dtype called `name`, as in a plan or a tensor read back from disk."""
    return ALL_BY_NAME[name]


def as_dtype(who: str, dtype: Any) -> DType:
    """The dtype that is meant by `dtype`: one of Weft's, its name ("float32"), one of NumPy's (`np.float32`,
    `array.dtype`), or Python's `bool`, `int` (int64) or `float` (float64, as in PyTorch and NumPy).

    >>> as_dtype("zeros", np.float32), as_dtype("zeros", "bfloat16"), as_dtype("zeros", float)
    (weft.float32, weft.bfloat16, weft.float64)
    """
    if isinstance(dtype, DType):
        return dtype
    found = _find(dtype)
    if found is None:
        given = repr(dtype) if isinstance(dtype, str) else _text_of(dtype)
        raise problem(DTypeError, who, f"{given} for the dtype", f"one of {_names()}", _advice(dtype))
    return found


def is_dtype_name(text: str) -> bool:
    """Whether a text stands for a dtype, perhaps a misspelt one, rather than for a device.

    >>> is_dtype_name("float33"), is_dtype_name("cuda:0")
    (True, False)
    """
    return text in _ALIASES or text.removeprefix("weft.").startswith(("bool", "int", "uint", "float", "bfloat"))


def _find(dtype: Any) -> DType | None:
    if isinstance(dtype, str):
        name = dtype.removeprefix("weft.")
        return ALL_BY_NAME.get(name) or _ALIASES.get(name)
    try:
        found = _OF_TYPE.get(dtype)
    except TypeError:  # not hashable
        return None
    if found is not None or not isinstance(dtype, (np.dtype, type)):
        return found
    try:
        return _BY_NUMPY.get(np.dtype(dtype)) if isinstance(dtype, np.dtype) or issubclass(dtype, np.generic) else None
    except TypeError:
        return None


def _text_of(dtype: Any) -> str:
    """What was given instead of a dtype, in words."""
    if isinstance(dtype, type):
        return f"the type {dtype.__module__.removeprefix('builtins') and dtype.__module__ + '.'}{dtype.__name__}"
    return f"{dtype!r} of type {type(dtype).__name__}" if isinstance(dtype, np.dtype) else f"a {type(dtype).__name__}"


def _names() -> str:
    return ", ".join(dtype.name for dtype in ALL)


def _advice(dtype: Any) -> str:
    if isinstance(dtype, str):
        import difflib  # loaded for an error only

        near = difflib.get_close_matches(dtype.removeprefix("weft."), [*ALL_BY_NAME, *_ALIASES], 1)
        return f"use weft.{as_dtype('', near[0]).name}" if near else "use weft.float32, for example"
    return "use weft.float32, for example"


def from_numpy(dtype: np.dtype) -> DType | None:
    """The Weft dtype of a NumPy dtype, or None where there is none."""
    return _BY_NUMPY.get(np.dtype(dtype))


def promote(a: DType, b: DType) -> DType | None:
    """The dtype in which `a` and `b` meet, or None for uint64 with a signed integer, which nothing holds.

    The Array API's table, and PyTorch's where that is silent: bool gives way, an integer meets a float in that float,
    and the two 16-bit floats meet in float32.

    >>> from weft import dtypes
    >>> dtypes.promote(dtypes.int64, dtypes.float16), dtypes.promote(dtypes.uint8, dtypes.int8)
    (weft.float16, weft.int16)
    """
    if a is b:
        return a
    if a.category != b.category:
        return a if a.category > b.category else b
    if a.kind == b.kind:
        return (a if a.itemsize > b.itemsize else b) if a.itemsize != b.itemsize else float32
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    wider = [dtype for dtype in SIGNED if dtype.itemsize > unsigned.itemsize]
    return wider[0] if wider else None


def round_float(value: float, dtype: DType) -> float:
    """`value` rounded to a float dtype, by way of float32 for the 16-bit ones, as every cast to them goes."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.float64(value) if dtype is float64 else np.float32(value)
        return float(rounded.astype(dtype.numpy))


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a number in a 16-bit float dtype, by which kernels hold it."""
    return int(np.array(round_float(value, dtype)).astype(dtype.numpy).view(np.uint16))


def integer_bounds(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    bits = 8 * dtype.itemsize
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)


def get_default_dtype() -> DType:
    """The dtype of floats that are made without one, float32 unless `set_default_dtype` named another."""
    return SETTINGS.default_dtype


def set_default_dtype(d: DTypeLike, /) -> None:
    """Make floats in `d` where no dtype is named: `weft.tensor(1.5)`, `zeros`, `rand`, and what integers become when
    they are divided or meet a Python float. Compiled functions are traced again.

    >>> weft.set_default_dtype(weft.float64)
    >>> weft.zeros(1).dtype, (weft.tensor([1]) / 2).dtype
    (weft.float64, weft.float64)
    >>> weft.set_default_dtype(weft.float32)
    """
    dtype = as_dtype("set_default_dtype", d)
    if dtype.kind != "f":
        raise problem(DTypeError, "set_default_dtype", dtype.name, "a float dtype")
    if STATE.trace is not None:
        given = f"a call inside {STATE.trace.where}"
        raise problem(GraphError, "set_default_dtype", given, "a call outside", "call it before")
    SETTINGS.default_dtype = dtype
    VERSION.bump()


@dataclass(frozen=True, slots=True)
class FloatLimits:
    """What `finfo` returns: Python numbers, under PyTorch's names."""

    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float
    dtype: str


@dataclass(frozen=True, slots=True)
class IntegerLimits:
    """What `iinfo` returns."""

    bits: int
    max: int
    min: int
    dtype: str


def finfo(dtype: DTypeLike) -> FloatLimits:
    """The limits of a float dtype.

    >>> weft.finfo(weft.bfloat16).eps, weft.finfo(weft.float16).max
    (0.0078125, 65504.0)
    """
    dtype = as_dtype("finfo", dtype)
    if dtype.kind != "f":
        raise problem(DTypeError, "finfo", f"{dtype.name}", "a float dtype", "use iinfo for integers")
    info = ml_dtypes.finfo(dtype.numpy)
    tiny, resolution = float(info.tiny), float(f"1e-{info.precision}")
    return FloatLimits(info.bits, float(info.eps), float(info.max), float(info.min), tiny, tiny, resolution, dtype.name)


def iinfo(dtype: DTypeLike) -> IntegerLimits:
    """The limits of an integer dtype.

    >>> weft.iinfo(weft.int8).max
    127
    """
    dtype = as_dtype("iinfo", dtype)
    if dtype.kind not in "iu":
        raise problem(DTypeError, "iinfo", f"{dtype.name}", "an integer dtype", "use finfo for floats")
    low, high = integer_bounds(dtype)
    return IntegerLimits(8 * dtype.itemsize, high, low, dtype.name)
