"""The stack machine of pickle, with the operations that plain data needs: the one reader of pickles, of torch's files
and of CIFAR's.

A pickle is a program. This machine runs it without importing anything: a name is looked up in a table of functions of
Weft's own that the caller gives (`PLAIN_CALLS`, `ARRAY_CALLS` and more), and what is not in the table is refused by
name. An object that a file may give a state to is a `Part` with a method `build`.

Time and memory are bounded whatever the file says: lengths are compared with the bytes that are there, nested tuples
are not hashed or printed, what functions are given is counted (`Machine.count_copies`), and so are operations and the
objects that they make (`MAX_OPERATIONS`, `MAX_OBJECTS`). Nothing here recurses.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.serialization.pickle_calls import (
    MAX_NAME,
    Named,
    Part,
    PickledArray,
    Refused,
    call_function,
    check_keys,
    make_frozenset,
)

MAX_OPERATIONS = 1 << 25  # of a program
MAX_OBJECTS = 1 << 22  # containers, results of calls and entries of the memo

_MARK = object()


def _no_object(about: Any) -> Any:
    raise Refused("it has a storage where none can be")


def _unknown_name(module: str, name: str) -> Refused:
    return Refused(f"it needs {module[:80]}.{name[:80]}, and Weft runs no code of files")


class Machine:
    """Runs a program: `calls` says what its names may stand for, `unknown` gives the error for other names, and
    `load_object` what a persistent identifier (as of torch's storages) stands for. Strings of Python 2 are decoded as
    Latin-1, or are bytes."""

    def __init__(
        self,
        program: np.ndarray | bytes,
        calls: Mapping[tuple[str, str], Any],
        load_object: Callable[[Any], Any] = _no_object,
        unknown: Callable[[str, str], Refused] = _unknown_name,
        has_byte_strings: bool = False,
    ):
        self.program, self.position = memoryview(program), 0  # type: ignore[arg-type]
        self.copied = 0  # elements of arguments so far
        self.calls, self.load_object, self.unknown, self.has_byte_strings = (
            calls,
            load_object,
            unknown,
            has_byte_strings,
        )
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.frame_end = 0

    def run(self) -> tuple[Any, int]:
        """The value that the program makes, and how many bytes it has."""
        objects = 0
        try:
            for _ in range(MAX_OPERATIONS):
                code = self.take(1)[0]
                if code == STOP:
                    return self._result(), self.position
                operation = OPERATIONS.get(code)
                if operation is None:
                    raise Refused(f"its pickle has the operation {bytes([code])!r}, which plain data does not need")
                if code in MAKING:
                    objects += 1
                    if objects > MAX_OBJECTS:
                        raise Refused(f"its pickle makes more than {MAX_OBJECTS:,} objects", "save arrays or tensors")
                operation(self)
        except (IndexError, TypeError, KeyError, ValueError, struct.error, OverflowError) as error:
            raise Refused(f"its pickle is damaged ({type(error).__name__}: {str(error)[:100]})") from None
        raise Refused(f"its pickle has more than {MAX_OPERATIONS:,} operations", "save arrays or tensors")

    def _result(self) -> Any:
        value = self.stack.pop()
        is_value = value is not _MARK and not callable(value) and not isinstance(value, Part)
        if self.stack or not (is_value or isinstance(value, PickledArray)):
            raise Refused("its pickle does not end with a value")
        return value

    def take(self, count: int) -> bytes:
        found = self.program[self.position : self.position + count]
        if count < 0 or len(found) != count:
            raise Refused("its pickle is cut short")
        if self.frame_end and count:
            if self.position == self.frame_end:
                self.frame_end = 0
            elif self.position + count > self.frame_end:
                raise Refused("its pickle is damaged (an operation crosses the end of a frame)")
        self.position += count
        return bytes(found)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self, limit: int = MAX_NAME) -> bytes:
        """The bytes up to the end of the line, of which there may be `limit`."""
        size = MAX_NAME
        while (length := bytes(self.program[self.position : self.position + size]).find(b"\n")) < 0:
            if size > min(limit, len(self.program) - self.position):
                raise Refused("its pickle is cut short, or has a very long line")
            size *= 4
        return self.take(length + 1)[:-1]

    def decimal(self) -> int:
        """A number in a line of text, which has at most as many digits as Python converts."""
        return int(self.line().decode("ascii"))

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise Refused("its pickle is damaged (a mark in position of a value)")
        return value

    def pop_marked(self) -> list[Any]:
        """What lies above the last mark."""
        for position in range(len(self.stack) - 1, -1, -1):
            if self.stack[position] is _MARK:
                found = self.stack[position + 1 :]
                del self.stack[position:]
                return found
        raise Refused("its pickle is damaged (a mark is missing)")

    def top_value(self) -> Any:
        if self.stack[-1] is _MARK:
            raise Refused("its pickle is damaged (a mark in place of a value)")
        return self.stack[-1]

    def top(self, kind: type | tuple[type, ...]) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused("its pickle is damaged (something is added to what cannot hold it)")
        return self.stack[-1]

    def find(self, module: Any, name: Any) -> Any:
        """What a name stands for; nothing is imported."""
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refused("its pickle is damaged (a name is no text)")
        if (module, name) not in self.calls:
            raise self.unknown(module, name)
        return self.calls[module, name]

    # Operations, in the order of the table below.

    def proto(self) -> None:
        if not 0 <= self.take(1)[0] <= 5:
            raise Refused("its pickle has a protocol that is not known")

    def frame(self) -> None:
        size = self.number("<Q")
        if self.position < self.frame_end or size > len(self.program) - self.position:
            raise Refused("its pickle is damaged (a frame that does not fit)")
        self.frame_end = self.position + size

    def mark(self) -> None:
        self.stack.append(_MARK)

    def integer(self, form: str) -> None:
        self.push(self.number(form))

    def old_integer(self) -> None:  # of protocol 0, in which 00 and 01 are False and True
        text = self.line().decode("ascii")
        self.push(text == "01" if text in ("00", "01") else int(text.removesuffix("L")))

    def long(self, form: str) -> None:
        self.push(int.from_bytes(self.take(self.number(form)), "little", signed=True))

    def text(self, form: str) -> None:
        self.push(self.take(self.number(form)).decode("utf-8", "surrogatepass"))

    def raw(self, form: str) -> None:
        self.push(self.take(self.number(form)))

    def byte_string(self, value: bytes) -> None:  # of Python 2
        self.push(value if self.has_byte_strings else value.decode("latin-1"))

    def quoted_string(self) -> None:  # of Python 2, protocol 0
        text = self.line(len(self.program))
        if len(text) < 2 or text[:1] not in (b"'", b'"') or text[-1:] != text[:1]:
            raise Refused("its pickle is damaged (a string without quotes)")
        self.byte_string(_ESCAPE.sub(_unescape, text[1:-1]))

    def text_line(self) -> None:  # of protocol 0
        self.push(self.line(len(self.program)).decode("raw-unicode-escape"))

    def tuple_of(self, count: int) -> None:
        values = [self.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        check_keys((key,))
        self.top(dict)[key] = value

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def appends(self) -> None:
        values = self.pop_marked()
        self.top(list).extend(values)

    def add_items(self) -> None:
        values = self.pop_marked()
        self.top(set).update(check_keys(values))

    def put(self, number: int) -> None:
        if number < 0:
            raise Refused("its pickle is damaged (a negative entry of the memo)")
        self.memo[number] = self.top_value()

    def get(self, number: int) -> None:
        self.push(self.memo[number])

    def push_global(self) -> None:
        module = self.line().decode("utf-8")
        self.push(self.find(module, self.line().decode("utf-8")))

    def push_stack_global(self) -> None:
        name = self.pop()
        self.push(self.find(self.pop(), name))

    def persistent_object(self) -> None:
        self.push(self.load_object(self.pop()))

    def count_copies(self, values: tuple[Any, ...]) -> None:
        """Functions may copy what they are given: values that a program gives again and again are refused."""
        self.copied += sum(len(one) for one in values if isinstance(one, (list, tuple, dict, str, bytes)))
        if self.copied > 16 * len(self.program) + 1000:
            raise Refused("its pickle copies the same values over and over")

    def call(self) -> None:
        args, function = self.pop(), self.pop()
        if isinstance(function, Named) or not callable(function) or not isinstance(args, tuple):
            raise Refused("its pickle calls something that is no function")
        self.count_copies(args)
        if function is OrderedDict:  # of nothing, or of a list of pairs in old files
            pairs = args[0] if args else []
            if len(args) > 1 or not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
                raise Refused("its pickle makes an OrderedDict of something else than pairs")
            check_keys([key for key, _ in pairs])
            self.push(OrderedDict(pairs))
            return
        self.push(call_function(function, args))

    def build(self) -> None:
        """The state of a part; attributes of an OrderedDict, of which `_metadata` of a state_dict has the versions of
        modules and others are of no use."""
        state, target = self.pop(), self.top((OrderedDict, Part))
        if isinstance(state, tuple):
            self.count_copies(state)
        if isinstance(target, Part):
            target.build(state)
            return
        metadata = state.get("_metadata") if isinstance(state, dict) else None
        if isinstance(metadata, dict) and all(isinstance(one, dict) for one in metadata.values()):
            target._metadata = metadata

    def make_dict(self) -> None:
        values = self.pop_marked()
        self.push({})
        self._add_pairs(values)

    def set_items(self) -> None:
        self._add_pairs(self.pop_marked())

    def _add_pairs(self, values: list[Any]) -> None:
        if len(values) % 2:
            raise Refused("its pickle is damaged (a key without a value)")
        check_keys(values[::2])
        self.top(dict).update(zip(values[::2], values[1::2], strict=True))


_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}


def _unescape(found: re.Match[bytes]) -> bytes:
    """The byte of an escape that Python 2 writes."""
    code = found[1]
    return bytes([int(code[1:], 16)]) if len(code) == 3 else _ESCAPED[code]


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2


STOP = ord(".")
OPERATIONS: dict[int, Callable[[Machine], Any]] = {
    ord(code): operation
    for code, operation in {
        "\x80": Machine.proto, "\x95": Machine.frame, "(": Machine.mark,
        "N": lambda m: m.push(None), "\x88": lambda m: m.push(True), "\x89": lambda m: m.push(False),
        "J": lambda m: m.integer("<i"), "K": lambda m: m.integer("<B"), "M": lambda m: m.integer("<H"),
        "\x8a": lambda m: m.long("<B"), "\x8b": lambda m: m.long("<i"), "G": lambda m: m.integer(">d"),
        "I": Machine.old_integer, "L": Machine.old_integer, "F": lambda m: m.push(float(m.line())),
        "X": lambda m: m.text("<I"), "\x8c": lambda m: m.text("<B"), "\x8d": lambda m: m.text("<Q"),
        "C": lambda m: m.raw("<B"), "B": lambda m: m.raw("<I"), "\x8e": lambda m: m.raw("<Q"),
        "\x96": lambda m: m.raw("<Q"), "V": Machine.text_line, "S": Machine.quoted_string,
        "U": lambda m: m.byte_string(m.take(m.number("<B"))), "T": lambda m: m.byte_string(m.take(m.number("<i"))),
        ")": lambda m: m.push(()), "\x85": lambda m: m.tuple_of(1), "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3), "t": lambda m: m.push(tuple(m.pop_marked())),
        "]": lambda m: m.push([]), "}": lambda m: m.push({}), "\x8f": lambda m: m.push(set()),
        "l": lambda m: m.push(m.pop_marked()), "\x91": lambda m: m.push(make_frozenset(m.pop_marked())),
        "d": Machine.make_dict,
        "a": Machine.append, "e": Machine.appends, "s": Machine.set_item, "u": Machine.set_items,
        "\x90": Machine.add_items, "0": lambda m: m.stack.pop(), "2": lambda m: m.push(m.top_value()),
        "1": Machine.pop_marked, "p": lambda m: m.put(m.decimal()), "q": lambda m: m.put(m.number("<B")),
        "r": lambda m: m.put(m.number("<I")), "\x94": lambda m: m.put(len(m.memo)),
        "g": lambda m: m.get(m.decimal()), "h": lambda m: m.get(m.number("<B")), "j": lambda m: m.get(m.number("<I")),
        "c": Machine.push_global, "\x93": Machine.push_stack_global, "Q": Machine.persistent_object, "R": Machine.call,
        "b": Machine.build,
    }.items()
}  # fmt: skip
MAKING = frozenset(
    map(ord, "\x85\x86\x87t]}\x8fl\x91dpqr\x94QR")
)  # operations that make objects, or entries of the memo
