"""Plain data out of a pickle file, without running anything that it says.

`pickletools.genops` takes the file apart into opcodes; a small stack machine builds numbers, strings, containers and
NumPy arrays from them. Names of classes and functions are never imported: the few that NumPy arrays and Python 2
strings use are recognised by name, and any other is an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from pickle import HIGHEST_PROTOCOL
from typing import Any

import numpy as np

from weft.data.faults import DataError
from weft.errors import problem

_MARK = object()
_BUFFER_MODULES = ("numpy.core.numeric", "numpy._core.numeric")
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
MAX_ITEM_BYTES = 16
MAX_VALUES = 1 << 22  # in the result, counted once for each place where they are
MAX_DEPTH = 8
FRAME_HEAD = 9  # bytes of the opcode that begins a frame


class _Name:
    """A global that the file names; it stands for itself and is never imported."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class _Array:
    """An array that is being built: empty until its state comes."""

    def __init__(self) -> None:
        self.value: np.ndarray | None = None


class _DType:
    def __init__(self, text: str):
        self.value = np.dtype(text)
        if self.value.hasobject or self.value.itemsize > MAX_ITEM_BYTES or self.value.kind not in "biufS":
            raise ValueError(f"dtype {text!r}")


def read_plain(data: bytes, who: str) -> Any:
    """The plain data in a pickle, or an error."""
    try:
        return _Machine().run(data)
    except RecursionError:
        raise problem(DataError, who, "a pickle that is nested too deep", "plain data") from None
    except Exception as error:  # whatever a damaged file makes of the opcodes
        text = f"a damaged or foreign pickle ({type(error).__name__}: {error})"
        raise problem(DataError, who, text, "numbers, strings, containers and arrays") from None


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        frame_end = 0  # opcodes may not cross the end of a frame
        for opcode, argument, place in pickletools.genops(data):
            if frame_end and place is not None and place >= frame_end:
                if place > frame_end:
                    raise ValueError("an opcode that crosses the end of a frame")
                frame_end = 0
            if opcode.name == "FRAME" and place is not None:
                end = place + FRAME_HEAD + int(argument or 0)
                if frame_end or end > len(data):
                    raise ValueError("a frame that does not fit")
                frame_end = end
            if opcode.name == "STOP":
                (result,) = self.stack
                return _Finisher(MAX_VALUES).finish(result)
            if opcode.name in _PUSHED:
                self.stack.append(_pushed(opcode.name, argument))
            else:
                action = _ACTIONS.get(opcode.name)
                if action is None:
                    raise ValueError(f"opcode {opcode.name}")
                action(self, argument)
        raise ValueError("no end")

    def top(self) -> Any:
        """The value on top, which may not be a mark."""
        if self.stack[-1] is _MARK:
            raise ValueError("a mark where a value is expected")
        return self.stack[-1]

    def pop(self) -> Any:
        value = self.top()
        self.stack.pop()
        return value

    def pop_marked(self) -> list[Any]:
        items = []
        while (one := self.stack.pop()) is not _MARK:
            items.append(one)
        return items[::-1]


def _pushed(name: str, argument: Any) -> Any:
    constants = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
    if name in constants:
        return constants[name]
    makers: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
    return makers[name]() if name in makers else argument


_PUSHED = frozenset({
    "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "EMPTY_TUPLE", "EMPTY_DICT", "INT", "BININT", "BININT1", "BININT2",
    "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES",
    "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
})  # fmt: skip


def _put(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else int(argument)] = machine.top()


def _get(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[int(argument)])


def _check_protocol(machine: _Machine, argument: Any) -> None:
    if argument > HIGHEST_PROTOCOL:
        raise ValueError(f"protocol {argument}")


def _global(machine: _Machine, argument: Any) -> None:
    if argument is None:
        name, module = machine.pop(), machine.pop()
    else:
        module, _, name = argument.partition(" ")
    machine.stack.append(_Name(module, name))


def _append(machine: _Machine, items: list[Any]) -> None:
    if type(machine.top()) is not list:
        raise ValueError("items for something that is no list")
    machine.top().extend(items)


def _set_items(machine: _Machine, items: list[Any]) -> None:
    if type(machine.top()) is not dict or len(items) % 2:
        raise ValueError("items for something that is no dict")
    machine.top().update(zip(items[::2], items[1::2], strict=True))


def _tuple(machine: _Machine, count: int) -> None:
    items = tuple(machine.stack[-count:])
    if len(items) != count or _MARK in items:
        raise ValueError("too few items")
    machine.stack[-count:] = [items]


def _reduce(machine: _Machine, _: Any) -> None:
    arguments, function = machine.pop(), machine.pop()
    if not isinstance(function, _Name) or type(arguments) is not tuple:
        raise ValueError("a call of no function")
    full = (function.module, function.name)
    if full in [(module, "_reconstruct") for module in _ARRAY_MODULES]:
        kind, shape, code = arguments
        if not isinstance(kind, _Name) or (kind.module, kind.name) != ("numpy", "ndarray") or shape != (0,):
            raise ValueError(f"the start of an array, {code!r}")
        machine.stack.append(_Array())
    elif full in [(module, "_frombuffer") for module in _BUFFER_MODULES]:
        content, dtype, shape, order = arguments
        machine.stack.append(_array_of(content, dtype, shape, order == "F"))
    elif full == ("numpy", "dtype"):
        machine.stack.append(_DType(_text(arguments[0])))
    elif full == ("_codecs", "encode") and arguments[1] in ("latin1", "latin-1"):
        machine.stack.append(arguments[0].encode("latin1"))
    else:
        raise ValueError(f"a call of {function.module}.{function.name}")


def _build(machine: _Machine, _: Any) -> None:
    state, target = machine.pop(), machine.top()
    if isinstance(target, _DType):
        version, order, *rest = state
        order = _byte_order(order)
        if version != 3 or rest != [None, None, None, -1, -1, 0]:  # neither fields nor sub-arrays
            raise ValueError("the state of a dtype")
        target.value = target.value.newbyteorder(order)
    elif isinstance(target, _Array):
        version, shape, dtype, is_fortran, content = state
        if version != 1 or type(is_fortran) is not bool:
            raise ValueError("the state of an array")
        target.value = _array_of(content, dtype, shape, bool(is_fortran)).value
    else:
        raise ValueError("a state for plain data")


def _array_of(content: Any, dtype: Any, shape: Any, is_fortran: bool) -> _Array:
    content = content.encode("latin1") if isinstance(content, str) else content
    extents = [int(one) for one in shape]
    is_right = isinstance(dtype, _DType) and isinstance(content, (bytes, bytearray)) and len(extents) <= 32
    if not is_right or min(extents, default=0) < 0:
        raise ValueError("the state of an array")
    result = _Array()
    result.value = np.frombuffer(content, dtype.value).reshape(extents, order="F" if is_fortran else "C")
    return result


def _byte_order(value: Any) -> Any:
    order = _text(value)
    if order not in ("<", ">", "|", "="):
        raise ValueError(f"byte order {order!r}")
    return order


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _check_protocol,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "POP": lambda machine, _: machine.stack.__delitem__(-1),
    "PUT": _put,
    "BINPUT": _put,
    "LONG_BINPUT": _put,
    "MEMOIZE": _put,
    "GET": _get,
    "BINGET": _get,
    "LONG_BINGET": _get,
    "GLOBAL": _global,
    "STACK_GLOBAL": _global,
    "LIST": lambda machine, _: machine.stack.append(machine.pop_marked()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_marked())),
    "DICT": lambda machine, _: _dict(machine),
    "TUPLE1": lambda machine, _: _tuple(machine, 1),
    "TUPLE2": lambda machine, _: _tuple(machine, 2),
    "TUPLE3": lambda machine, _: _tuple(machine, 3),
    "APPEND": lambda machine, _: _append(machine, [machine.pop()]),
    "APPENDS": lambda machine, _: _append(machine, machine.pop_marked()),
    "SETITEM": lambda machine, _: _set_items(machine, [machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: _set_items(machine, machine.pop_marked()),
    "REDUCE": _reduce,
    "BUILD": _build,
}


def _dict(machine: _Machine) -> None:
    items = machine.pop_marked()
    machine.stack.append({})
    _set_items(machine, items)


class _Finisher:
    """Puts arrays in the place of what built them. A part that is used many times is counted each time."""

    def __init__(self, left: int):
        self.left = left

    def finish(self, value: Any, depth: int = 0) -> Any:
        self.left -= 1 + (len(value) if isinstance(value, (list, tuple, dict)) else 0)
        if depth > MAX_DEPTH or self.left < 0:
            raise ValueError("nested too deep, or too large")
        if isinstance(value, _Array):
            if value.value is None:
                raise ValueError("an array without content")
            return value.value
        if isinstance(value, dict):
            return {_key(key): self.finish(one, depth + 1) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            if all(type(one) in _PLAIN for one in value):
                return value
            return type(value)(self.finish(one, depth + 1) for one in value)
        if type(value) in _PLAIN:
            return value
        raise ValueError(f"a {type(value).__name__} where plain data is expected")


_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})


def _key(key: Any) -> str:
    if type(key) not in (str, bytes):
        raise ValueError("a key that is no string")
    return key.decode("latin1") if isinstance(key, bytes) else key
