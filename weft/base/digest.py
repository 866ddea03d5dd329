"""Names of things by what they consist of: the keys of every cache that decides which code runs.

A base module; it knows nothing of what it names. `describe` writes a value down completely: every field of a record,
with its type, so that 1, True and 1.0 differ, as do 0.0 and -0.0. A dtype is described by name, kind and size. What has
no description that means the same in another process raises `Nameless`: such a thing gets no key at all.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any


class Nameless(TypeError):
    """A value that can be told from others by its identity only, such as a function."""


def digest(**fields: Any) -> str:
    """A key, 64 hexadecimal digits, that changes when any of the named fields does.

    >>> digest(width=8, name="a") == digest(name="a", width=8), digest(width=8) == digest(width=8.0)
    (True, False)
    """
    return hashlib.sha256(describe(fields).encode()).hexdigest()


def describe(value: Any) -> str:
    """A text that is the same for equal values in every process, and differs for unequal ones.

    >>> describe((1, True, -0.0, "a"))
    'tuple[1,True,-0.0,"a"]'
    """
    parts: list[str] = []
    _write(value, parts.append)
    return "".join(parts)


def _write(value: Any, out: Any) -> None:
    kind: Any = type(value)
    if value is None or kind is bool or kind is int or kind is float:
        out(repr(value))
    elif kind is str:
        out('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')
    elif kind is bytes:
        out("bytes:" + value.hex())
    elif isinstance(value, (tuple, list)):
        _write_all(_name(kind), value, out)
    elif isinstance(value, (set, frozenset)):
        _write_parts("set", sorted(describe(item) for item in value), out)
    elif isinstance(value, Mapping):
        _write_parts("map", sorted(f"{describe(key)}:{describe(item)}" for key, item in value.items()), out)
    elif (names := _fields(kind)) is not None:
        _write_all(_name(kind), [getattr(value, name) for name in names], out)
    else:
        raise Nameless(f"a {_name(kind)}")


def _write_all(name: str, items: Any, out: Any) -> None:
    out(name + "[")
    for number, item in enumerate(items):
        if number:
            out(",")
        _write(item, out)
    out("]")


def _write_parts(name: str, parts: list[str], out: Any) -> None:
    out(f"{name}[{','.join(parts)}]")


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _fields(kind: Any) -> tuple[str, ...] | None:
    """The attributes that make up a value of this class: what the class says in `DESCRIBED`, else a record's fields."""
    described: tuple[str, ...] | None = getattr(kind, "DESCRIBED", None)
    if described is not None:
        return described
    if dataclasses.is_dataclass(kind):
        return tuple([field.name for field in dataclasses.fields(kind)])
    return None
