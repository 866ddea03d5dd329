"""The functions that a pickle of plain data or of arrays may call, by the names that it has for them.

They are Weft's own: nothing is imported, and what is not in these tables is refused by `pickles.Machine`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
NUMPY_TYPES = frozenset({"f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"})
MAX_KEY_PARTS, MAX_KEY_BITS = 4, 60  # of a tuple and of a number that is a key of a dict or a set
MAX_AXES = 32  # of an array of NumPy's
MAX_NAME = 1000  # characters of a module, a class or a number


class Refused(Exception):
    """Why a file is not read; the caller that opened the file makes the message of it."""

    def __init__(self, why: str, fix: str = ""):
        super().__init__(why)
        self.why, self.fix = why, fix


class Part:
    """Something that a program works with and that is no value of its own."""

    def build(self, state: Any) -> None:
        """Take the state that the program gives to it."""
        raise Refused("its pickle is damaged (a state for what has none)")


@dataclass(frozen=True)
class Named(Part):
    """A class or dtype that is only named: something else decides whether it can be used."""

    name: str


def as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(_list_like(values))


def _set(values: Any = ()) -> set[Any]:
    return set(check_keys(values))


def make_frozenset(values: Any = ()) -> frozenset[Any]:
    return frozenset(check_keys(values))


def _list_like(values: Any) -> Any:
    if not isinstance(values, (list, tuple)):
        raise Refused("a list is missing")
    return values


def check_keys(values: Any) -> Any:
    """Keys that are plain, or tuples of a few such: what is long or nests would be hashed again and again. A file can
    choose few keys of one hash: numbers of up to 60 bits have hashes of their own, and tuples have no floats."""
    for value in _list_like(values):
        parts = value if type(value) is tuple else (value,)
        plain = PLAIN if parts is not value else PLAIN - {float}
        if len(parts) > MAX_KEY_PARTS or any(type(one) not in plain for one in parts):
            what = "long tuple" if len(parts) > MAX_KEY_PARTS else type(value).__name__
            raise Refused(f"a key of a dict or a set is a {what}")
        if any(type(one) is int and one.bit_length() > MAX_KEY_BITS for one in parts):
            raise Refused(f"a key of a dict or a set is a number of more than {MAX_KEY_BITS} bits")
    return values


def _counter(values: Any = ()) -> Counter[Any]:
    if not isinstance(values, dict):
        raise Refused("a Counter is made of no dict")
    return Counter(values)


class _NumpyType(Part):
    """A dtype, whose byte order comes with its state."""

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype

    def build(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 8:
            raise Refused("it describes a dtype of NumPy's wrongly")
        version, order, *rest = state
        if version != 3 or rest != [None, None, None, -1, -1, 0]:  # neither fields nor sub-arrays
            raise Refused("it holds values of NumPy's of an unusual dtype", "make Python numbers of them")
        order = _ascii(order)
        if order not in ("<", ">", "|", "="):
            raise Refused("it describes a dtype of NumPy's wrongly")
        self.dtype = self.dtype.newbyteorder(order)  # type: ignore[arg-type]


def _numpy_type(name: Any, *_: Any) -> _NumpyType:
    if _ascii(name) not in NUMPY_TYPES:
        raise Refused("it holds values of NumPy's of an unusual dtype", "make Python numbers of them")
    return _NumpyType(np.dtype(_ascii(name)))


def _ascii(value: Any) -> str:
    """A short text, which Python 2 wrote as bytes."""
    text = value.decode("ascii") if isinstance(value, bytes) else value
    return text if isinstance(text, str) else ""


def _numpy_number(kind: Any, raw: Any) -> Any:
    if not isinstance(kind, _NumpyType) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize:
        raise Refused("it describes a number of NumPy's wrongly")
    return np.frombuffer(raw, kind.dtype)[0].astype(kind.dtype.newbyteorder("="))


class PickledArray(Part):
    """An array of NumPy's: without a value until its state comes."""

    def __init__(self, value: np.ndarray | None = None):
        self.value = value

    def build(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != 1 or type(state[3]) is not bool:
            raise Refused("it describes an array of NumPy's wrongly")
        _, shape, dtype, is_fortran, content = state
        self.value = _array(content, dtype, shape, "F" if is_fortran else "C")


def _new_array(kind: Any, shape: Any, code: Any) -> PickledArray:
    if kind != Named("numpy.ndarray") or shape != (0,):
        raise Refused("it describes an array of NumPy's wrongly")
    return PickledArray()


def _array_of_bytes(content: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    if order not in ("C", "F"):
        raise Refused("it describes an array of NumPy's wrongly")
    return PickledArray(_array(content, dtype, shape, order))


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    content = content.encode("latin-1") if isinstance(content, str) else content
    is_shape = isinstance(shape, tuple) and len(shape) <= MAX_AXES and all(type(one) is int for one in shape)
    if not isinstance(dtype, _NumpyType) or not isinstance(content, bytes) or not is_shape or min(shape, default=0) < 0:
        raise Refused("it describes an array of NumPy's wrongly")
    return np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


def _default_dict(factory: Any = None) -> dict[Any, Any]:
    """What it makes for missing keys is left out: it may be any function."""
    return {}


def _bytes(text: Any = "", encoding: Any = "latin1") -> bytes:
    return text if isinstance(text, bytes) else _encode(text, encoding)


def _encode(text: Any, encoding: Any = "utf-8") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise Refused("it encodes a text in an unusual way")
    return text.encode(encoding)


def _complex(real: Any, imaginary: Any) -> complex:
    if not isinstance(real, (int, float)) or not isinstance(imaginary, (int, float)):
        raise Refused("a complex number has no parts")
    return complex(real, imaginary)


def call_function(function: Any, args: tuple[Any, ...]) -> Any:
    """Call one of Weft's functions with what the file gives."""
    try:
        return function(*args)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise Refused(f"it calls {getattr(function, '__name__', 'a function')} wrongly ({str(error)[:100]})") from None


PLAIN_CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "Counter"): _counter,
    ("collections", "defaultdict"): _default_dict,
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _numpy_type,
    ("numpy.core.multiarray", "scalar"): _numpy_number,
    ("numpy._core.multiarray", "scalar"): _numpy_number,
}
for _module in ("builtins", "__builtin__"):
    PLAIN_CALLS |= {(_module, "set"): _set, (_module, "frozenset"): make_frozenset, (_module, "bytes"): _bytes}
    PLAIN_CALLS |= {(_module, "bytearray"): _bytes, (_module, "complex"): _complex}
    PLAIN_CALLS |= {
        (_module, _name): Named(_name) for _name in ("list", "dict", "int", "float", "str", "bool", "tuple")
    }


ARRAY_CALLS: dict[tuple[str, str], Any] = {("numpy", "ndarray"): Named("numpy.ndarray")}
for _module in ("numpy.core", "numpy._core"):
    ARRAY_CALLS |= {(f"{_module}.multiarray", "_reconstruct"): _new_array}
    ARRAY_CALLS |= {(f"{_module}.numeric", "_frombuffer"): _array_of_bytes}
