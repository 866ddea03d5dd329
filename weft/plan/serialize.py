"""Plans as bytes and back. Pure data in, pure data out; reading runs no code but the constructors below.

A file of this form is JSON, packed, followed by byte strings. Tuples are arrays, and what JSON does not know is an
object with one key: a record (an instance of a class in `RECORDS`), a dtype, or the number of a byte string. Whoever
adds a kind of step adds its class to `RECORDS`. Anything else is `Unstorable`, and the plan that holds it is not kept.
"""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from typing import Any

from weft.base.capabilities import Features, Limits, MatrixUnit
from weft.base.dtypes import ALL_BY_NAME, DType, by_name
from weft.kernels.ir.language import Geometry, ScalarParam
from weft.plan.plan import Code, Gemm, Interval, Launch, LibraryCall, Moving, Number, Place, Plan, Repeat, Slot

RECORDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Code,
        Features,
        Gemm,
        Geometry,
        Interval,
        Launch,
        LibraryCall,
        Limits,
        MatrixUnit,
        Moving,
        Number,
        Place,
        Plan,
        Repeat,
        ScalarParam,
        Slot,
    )
}

_LENGTH = struct.Struct("<Q")


class Unstorable(Exception):
    """A value that is not plain data, or of a class that `RECORDS` does not have."""


class Damaged(Exception):
    """Bytes that `pack` did not write."""


def canonical_text(value: Any) -> bytes:
    """A text that is the same in every process for equal values, and differs for unequal ones."""
    return _dump(value, _no_bytes, lambda dtype: [dtype.name, dtype.kind, dtype.itemsize]).encode()


def pack(value: Any) -> bytes:
    """`value` as bytes: records, dtypes, byte strings, tuples, numbers, strings and None."""
    numbers: dict[bytes, int] = {}
    text = _dump(value, lambda data: numbers.setdefault(data, len(numbers)), lambda dtype: dtype.name)
    head = zlib.compress(json.dumps([text, [len(data) for data in numbers]]).encode(), 1)
    return b"".join([_LENGTH.pack(len(head)), head, *numbers])


def unpack(data: bytes) -> Any:
    """What `pack` was given."""
    try:
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        text, lengths = json.loads(zlib.decompress(data[_LENGTH.size : at]))
        parts = []
        for size in lengths:
            parts.append(data[at : at + size])
            at += size
        if at != len(data):
            raise Damaged("the lengths do not add up")
        return _freeze(json.loads(text, object_hook=lambda tagged: _value(tagged, parts)))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, struct.error, zlib.error) as error:
        raise Damaged(str(error)) from error


def _dump(value: Any, number_of: Any, name_of: Any) -> str:
    def tag(item: Any) -> dict[str, Any]:
        if isinstance(item, DType):
            if ALL_BY_NAME.get(item.name) is not item:  # the compiler compares dtypes by identity
                raise Unstorable(f"a second {item.name}")
            return {"dtype": name_of(item)}
        if isinstance(item, bytes):
            return {"bytes": number_of(item)}
        if RECORDS.get(type(item).__name__) is type(item):
            return {"record": [type(item).__name__, *[getattr(item, name) for name in _fields(type(item))]]}
        raise Unstorable(type(item).__name__)

    return json.dumps(value, default=tag, separators=(",", ":"), check_circular=False)


def _fields(kind: type) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(kind)])


def _no_bytes(data: bytes) -> str:
    return data.hex()


def _value(tagged: dict[str, Any], parts: list[bytes]) -> Any:
    ((tag, content),) = tagged.items()
    if tag == "record":
        name, *fields = content
        return RECORDS[name](*[_freeze(field) for field in fields])
    return by_name(content) if tag == "dtype" else parts[content]


def _freeze(value: Any) -> Any:
    return tuple([_freeze(item) for item in value]) if type(value) is list else value
