"""The stack machine of pickle, with the operations that plain data needs, and a table of what names may stand for.

A pickle is a program. This machine runs it without importing anything: a name is looked up in a table of functions of
Weft's own, and what is not in the table is refused by name. A program can make no value that is larger than itself by
more than a constant: lengths are compared with the bytes that are there, nested tuples are not hashed or printed, and
what functions are given is counted.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

PLAIN = frozenset({str, int, float, bool, bytes, type(None)})
NUMPY_TYPES = frozenset({"f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"})
SAVE_STATE = "in torch, save model.state_dict() instead"


class Refused(Exception):
    """Why a file is not read; `parse_torch` makes the message of it."""

    def __init__(self, why: str, fix: str = ""):
        super().__init__(why)
        self.why, self.fix = why, fix


class Part:
    """Something that a program works with and that is no value of its own."""


@dataclass(frozen=True)
class Named(Part):
    """A class or dtype that is only named: something else decides whether it can be used."""

    name: str


# ---- plain data ------------------------------------------------------------------------------------------------------


def as_tuple(values: Any) -> tuple[Any, ...]:
    return tuple(_list_like(values))


def _set(values: Any = ()) -> set[Any]:
    return set(_checked_keys(values))


def _frozenset(values: Any = ()) -> frozenset[Any]:
    return frozenset(_checked_keys(values))


def _list_like(values: Any) -> Any:
    if not isinstance(values, (list, tuple)):
        raise Refused("a list is missing")
    return values


def _checked_keys(values: Any) -> Any:
    """Keys that are plain, or flat tuples of such: what nests could take forever to hash."""
    for value in _list_like(values):
        if type(value) not in PLAIN and not (type(value) is tuple and all(type(one) in PLAIN for one in value)):
            raise Refused(f"a key of a dict or a set is a {type(value).__name__}")
    return values


def _counter(values: Any = ()) -> Counter[Any]:
    if not isinstance(values, dict):
        raise Refused("a Counter is made of no dict")
    return Counter(values)


@dataclass(frozen=True)
class _NumpyType(Part):
    dtype: np.dtype


def _numpy_type(name: Any, *_: Any) -> _NumpyType:
    if not isinstance(name, str) or name not in NUMPY_TYPES:
        raise Refused("it holds a number of NumPy's of an unusual dtype", "make Python numbers of it")
    return _NumpyType(np.dtype(name))


def _numpy_number(kind: Any, raw: Any) -> Any:
    if not isinstance(kind, _NumpyType) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize:
        raise Refused("it describes a number of NumPy's wrongly")
    return np.frombuffer(raw, kind.dtype)[0]


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
    PLAIN_CALLS |= {(_module, "set"): _set, (_module, "frozenset"): _frozenset, (_module, "bytes"): _bytes}
    PLAIN_CALLS |= {(_module, "bytearray"): _bytes, (_module, "complex"): _complex}
    PLAIN_CALLS |= {
        (_module, _name): Named(_name) for _name in ("list", "dict", "int", "float", "str", "bool", "tuple")
    }


# ---- the machine -----------------------------------------------------------------------------------------------------

_MARK = object()


class Machine:
    """The stack machine of pickle, with the operations that plain data and tensors need."""

    def __init__(self, program: np.ndarray, calls: Mapping[tuple[str, str], Any], storage: Callable[[Any], Any]):
        self.program, self.position = memoryview(program), 0  # type: ignore[arg-type]
        self.copied = 0  # elements of arguments so far
        self.calls, self.load_storage = calls, storage
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> tuple[Any, int]:
        """The value that the program makes, and how many bytes it has."""
        try:
            while True:
                code = self.take(1)[0]
                if code == STOP:
                    value = self.stack.pop()
                    if self.stack or value is _MARK or callable(value) or isinstance(value, Part):
                        raise Refused("its pickle does not end with a value")
                    return value, self.position
                operation = OPERATIONS.get(code)
                if operation is None:
                    raise Refused(f"its pickle has the operation {bytes([code])!r}, which plain data does not need")
                operation(self)
        except (IndexError, TypeError, KeyError, ValueError, struct.error, OverflowError) as error:
            raise Refused(f"its pickle is damaged ({type(error).__name__}: {str(error)[:100]})") from None

    def take(self, count: int) -> bytes:
        found = self.program[self.position : self.position + count]
        if count < 0 or len(found) != count:
            raise Refused("its pickle is cut short")
        self.position += count
        return bytes(found)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        length = bytes(self.program[self.position : self.position + 1000]).find(b"\n")
        if length < 0:
            raise Refused("its pickle is cut short")
        return self.take(length + 1)[:-1].decode("utf-8")

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("its pickle is damaged (a mark in place of a value)")
        return value

    def pop_marked(self) -> list[Any]:
        """What lies above the last mark."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                found = self.stack[place + 1 :]
                del self.stack[place:]
                return found
        raise Refused("its pickle is damaged (a mark is missing)")

    def top(self, kind: type | tuple[type, ...]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused("its pickle is damaged (something is added to what cannot hold it)")
        return self.stack[-1]

    def find(self, module: Any, name: Any) -> Any:
        """What a name stands for; nothing is imported."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refused("its pickle is damaged (a name is no text)")
        if (module, name) not in self.calls:
            other_dtypes = ("float8", "complex", "quint", "qint", "float4", "bits", "Complex", "QUInt", "QInt")
            if module == "torch" and name.startswith(other_dtypes):
                raise Refused(f"it holds tensors of dtype {name}, which Weft does not have", "convert them in torch")
            if "sparse" in name or "qtensor" in name or "nested" in name:
                raise Refused(f"it holds tensors made by {module}.{name}: only dense ones are read", "convert them")
            raise Refused(f"it needs {module[:80]}.{name[:80]}, and Weft runs no code of files", SAVE_STATE)
        return self.calls[module, name]

    # Operations, in the order of the table below.

    def proto(self) -> None:
        if not 0 <= self.take(1)[0] <= 5:
            raise Refused("its pickle has a protocol that is not known")

    def frame(self) -> None:
        self.take(8)

    def mark(self) -> None:
        self.stack.append(_MARK)

    def integer(self, form: str) -> None:
        self.push(self.number(form))

    def long(self, form: str) -> None:
        self.push(int.from_bytes(self.take(self.number(form)), "little", signed=True))

    def text(self, form: str) -> None:
        self.push(self.take(self.number(form)).decode("utf-8", "surrogatepass"))

    def raw(self, form: str) -> None:
        self.push(self.take(self.number(form)))

    def old_text(self, form: str) -> None:  # of Python 2
        self.push(self.take(self.number(form)).decode("latin-1"))

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        _checked_keys((key,))
        self.top(dict)[key] = value

    def set_items(self) -> None:
        values = self.pop_marked()
        if len(values) % 2:
            raise Refused("its pickle is damaged (a key without a value)")
        _checked_keys(values[::2])
        self.top(dict).update(zip(values[::2], values[1::2], strict=True))

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def appends(self) -> None:
        values = self.pop_marked()
        self.top(list).extend(values)

    def add_items(self) -> None:
        values = self.pop_marked()
        self.top(set).update(_checked_keys(values))

    def put(self, form: str) -> None:
        self.memo[self.number(form)] = self.stack[-1]

    def get(self, form: str) -> None:
        self.push(self.memo[self.number(form)])

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def named(self) -> None:
        module = self.line()
        self.push(self.find(module, self.line()))

    def stack_named(self) -> None:
        name = self.pop()
        self.push(self.find(self.pop(), name))

    def storage_by_id(self) -> None:
        self.push(self.load_storage(self.pop()))

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if isinstance(function, Named) or not callable(function) or not isinstance(args, tuple):
            raise Refused("its pickle calls something that is no function")
        self.copied += sum(len(one) for one in args if isinstance(one, (list, tuple, dict, str, bytes)))
        if self.copied > 16 * len(self.program) + 1000:
            raise Refused("its pickle copies the same values over and over")
        if function is OrderedDict:  # of nothing, or of a list of pairs in old files
            pairs = args[0] if args else []
            if len(args) > 1 or not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
                raise Refused("its pickle makes an OrderedDict of something else than pairs")
            _checked_keys([key for key, _ in pairs])
            self.push(OrderedDict(pairs))
            return
        self.push(call_function(function, args))

    def build(self) -> None:
        """Attributes of a state_dict: `_metadata` has the versions of modules, others are of no use. And the byte order
        of a dtype of NumPy's."""
        state, target = self.pop(), self.top((OrderedDict, _NumpyType))
        if isinstance(target, _NumpyType):
            if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|"):
                raise Refused("it holds a number of NumPy's in another byte order")
            return
        metadata = state.get("_metadata") if isinstance(state, dict) else None
        if isinstance(metadata, dict) and all(isinstance(one, dict) for one in metadata.values()):
            target._metadata = metadata


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


STOP = ord(".")
OPERATIONS: dict[int, Callable[[Machine], None]] = {
    ord(code): operation
    for code, operation in {
        "\x80": Machine.proto, "\x95": Machine.frame, "(": Machine.mark,
        "N": lambda m: m.push(None), "\x88": lambda m: m.push(True), "\x89": lambda m: m.push(False),
        "J": lambda m: m.integer("<i"), "K": lambda m: m.integer("<B"), "M": lambda m: m.integer("<H"),
        "\x8a": lambda m: m.long("<B"), "\x8b": lambda m: m.long("<i"), "G": lambda m: m.integer(">d"),
        "X": lambda m: m.text("<I"), "\x8c": lambda m: m.text("<B"), "\x8d": lambda m: m.text("<Q"),
        "C": lambda m: m.raw("<B"), "B": lambda m: m.raw("<I"), "\x8e": lambda m: m.raw("<Q"),
        "\x96": lambda m: m.raw("<Q"), "U": lambda m: m.old_text("<B"), "T": lambda m: m.old_text("<i"),
        ")": lambda m: m.push(()), "\x85": lambda m: m.tuple_of(1), "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3), "t": lambda m: m.push(tuple(m.pop_marked())),
        "]": lambda m: m.push([]), "}": lambda m: m.push({}), "\x8f": lambda m: m.push(set()),
        "l": lambda m: m.push(m.pop_marked()), "\x91": lambda m: m.push(_frozenset(m.pop_marked())),
        "a": Machine.append, "e": Machine.appends, "s": Machine.set_item, "u": Machine.set_items,
        "\x90": Machine.add_items, "0": lambda m: m.stack.pop() and None, "2": lambda m: m.push(m.stack[-1]),
        "1": lambda m: m.pop_marked() and None, "q": lambda m: m.put("<B"), "r": lambda m: m.put("<I"),
        "h": lambda m: m.get("<B"), "j": lambda m: m.get("<I"), "\x94": Machine.memoize,
        "c": Machine.named, "\x93": Machine.stack_named, "Q": Machine.storage_by_id, "R": Machine.call,
        "b": Machine.build,
    }.items()
}  # fmt: skip
