"""Nested state as tensors by name and JSON, and back: what `weft.save` and checkpoints write.

JSON has numbers, texts, lists and dicts of texts; these stand for themselves. What else a state_dict may hold is a dict
with the key "$", whose value says what it is: a tensor (by the name under which it lies beside the JSON), an array, a
tuple, a set, a dict with other keys than texts, or one with such a key; bytes, a float that is not finite (by its
bits), a number of NumPy's, a dtype. Everything comes back with its type and its bits. Functions and objects of other
classes are refused.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.base import dtypes
from weft.base.dtypes import DType
from weft.base.errors import DTypeError, FileFormatError, GraphError, problem
from weft.core.creation import as_tensor
from weft.core.size import Size
from weft.core.tensor import Tensor

MARK = "$"
DEPTH = 100  # levels of nesting
BITS = 4096  # of an integer

JSON = Any  # None, bool, int, float, str, list and dict[str, JSON]


def flatten_state(state: Any) -> tuple[dict[str, Tensor], JSON]:
    """The tensors in a nested state by their paths, and all the rest as JSON that refers to them.

    >>> from weft.serialization import flatten_state, unflatten_state
    >>> tensors, rest = flatten_state({"model": {"w": weft.ones(2)}, "lr": 0.1, "betas": (0.9, 0.99)})
    >>> tensors
    {'model.w': tensor([1., 1.])}
    >>> unflatten_state(tensors, rest)
    {'model': {'w': tensor([1., 1.])}, 'lr': 0.1, 'betas': (0.9, 0.99)}
    """
    flattening = _Flattening()
    return flattening.tensors, flattening.encode(state, ())


def unflatten_state(tensors: Mapping[str, Tensor], json: JSON) -> Any:
    """What `flatten_state` took apart."""
    return _Joining(tensors).decode(json, 0)


class _Flattening:
    """The tensors found so far. A tensor that occurs twice is kept once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self.open: set[int] = set()  # what encloses the present value

    def encode(self, value: Any, path: tuple[Any, ...]) -> JSON:
        kind = type(value)
        if kind is int and value.bit_length() > BITS:
            raise problem(DTypeError, "save", f"an integer of {value.bit_length()} bits", f"one of at most {BITS}")
        if value is None or kind in (bool, int, str):
            return value
        if kind is float or kind is np.float64:
            return float(value) if math.isfinite(value) else {MARK: "float", "value": struct.pack(">d", value).hex()}
        if isinstance(value, Tensor):
            found: dict[str, Any] = {MARK: "tensor", "name": self._name(value, path)}
            return {**found, "requires_grad": True} if value.requires_grad else found
        if isinstance(value, DType):
            return {MARK: "dtype", "value": value.name}
        if kind in (bytes, bytearray):
            return {MARK: "bytes", "value": base64.b64encode(value).decode("ascii")}
        if isinstance(value, np.generic):
            return self._array(np.asarray(value), "number", path)
        if isinstance(value, np.ndarray):
            return self._array(value, "array", path)
        return self._inside(value, path)

    def _inside(self, value: Any, path: tuple[Any, ...]) -> JSON:
        """A value that holds others."""
        if id(value) in self.open or len(path) > DEPTH:
            given = f"{_text(path)}, which contains itself or nests more than {DEPTH} levels deep"
            raise problem(GraphError, "save", given, "a tree")
        self.open.add(id(value))
        try:
            return self._encode_inside(value, path)
        finally:
            self.open.discard(id(value))

    def _encode_inside(self, value: Any, path: tuple[Any, ...]) -> JSON:
        kind = type(value)
        if isinstance(value, dict):
            return self._dict(value, path)
        if kind is list:
            return [self.encode(one, (*path, number)) for number, one in enumerate(value)]
        for name, (matches, _) in SEQUENCES.items():
            if kind in matches:
                return {MARK: name, "items": [self.encode(one, (*path, k)) for k, one in enumerate(value)]}
        given = f"a {kind.__module__}.{kind.__qualname__} at {_text(path)}"
        expected = "tensors, arrays, numbers, texts, None, and lists, tuples, dicts and sets of them"
        fix = "save its state_dict()" if hasattr(value, "state_dict") else "leave it out, or save what it is made of"
        raise problem(DTypeError, "save", given, expected, fix)

    def _dict(self, value: dict[Any, Any], path: tuple[Any, ...]) -> JSON:
        kind = type(value)
        if kind is dict and all(type(key) is str for key in value) and MARK not in value:
            return {key: self.encode(one, (*path, key)) for key, one in value.items()}
        names = {dict: "dict", OrderedDict: "ordered", Counter: "counter"}
        if kind not in names:
            given = f"a {kind.__module__}.{kind.__qualname__} at {_text(path)}"
            raise problem(DTypeError, "save", given, "a dict, an OrderedDict or a Counter", "make a dict of it")
        items = [[self.encode(key, (*path, "key")), self.encode(one, (*path, key))] for key, one in value.items()]
        found: dict[str, Any] = {MARK: names[kind], "items": items}
        metadata = getattr(value, "_metadata", None)  # the versions of modules in a state_dict
        versions = {key: one for key, one in (metadata or {}).items() if any(v is not None for v in one.values())}
        if versions:
            found["metadata"] = self.encode(versions, (*path, "metadata"))
        return found

    def _array(self, array: np.ndarray, kind: str, path: tuple[Any, ...]) -> JSON:
        if dtypes.from_numpy(array.dtype) is None:
            expected = "a dtype that Weft has"
            raise problem(DTypeError, "save", f"an array of dtype {array.dtype} at {_text(path)}", expected)
        return {MARK: kind, "name": self._name(as_tensor(array, device="cpu"), path)}

    def _name(self, tensor: Tensor, path: tuple[Any, ...]) -> str:
        if id(tensor) not in self.names:
            name = wanted = ".".join(map(str, path)) or "value"
            number = 1
            while name in self.tensors or name == "__metadata__":
                number += 1
                name = f"{wanted}#{number}"
            self.tensors[name] = tensor
            self.names[id(tensor)] = name
        return self.names[id(tensor)]


def _text(path: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in path)


# Lists of other types: which types are written under the name, and how one is made of a list.
SEQUENCES: dict[str, tuple[tuple[type, ...], Callable[[list[Any]], Any]]] = {
    "tuple": ((tuple, Size), tuple),
    "set": ((set,), set),
    "frozenset": ((frozenset,), frozenset),
}


class _Joining:
    """Puts a state together. What cannot have come from `flatten_state` is a damaged file."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors
        self.used: set[str] = set()
        self.arrays: dict[str, np.ndarray] = {}

    def decode(self, value: JSON, depth: int) -> Any:
        if depth > 3 * DEPTH:
            raise _damaged_state(f"it nests more than {3 * DEPTH} levels deep")
        if isinstance(value, list):
            return [self.decode(one, depth + 1) for one in value]
        if not isinstance(value, dict):
            return value
        if MARK not in value:
            return {key: self.decode(one, depth + 1) for key, one in value.items()}
        kind = value[MARK]
        if kind in ("tensor", "array", "number"):
            return self._tensor(kind, value)
        if kind in ("dict", "ordered", "counter"):
            return self._dict(kind, value, depth)
        if isinstance(kind, str) and kind in SEQUENCES:
            items = [self.decode(one, depth + 1) for one in _items(value)]
            return _make(SEQUENCES[kind][1], items)
        text = value.get("value")
        if kind == "float" and isinstance(text, str):
            return _make(lambda text: struct.unpack(">d", bytes.fromhex(text))[0], text)
        if kind == "dtype" and isinstance(text, str) and text in dtypes.ALL_BY_NAME:
            return dtypes.by_name(text)
        if kind == "bytes" and isinstance(text, str):
            return _make(lambda text: base64.b64decode(text, validate=True), text)
        raise _damaged_state(f"there is no value of kind {kind!r:.80} with {text!r:.80}")

    def _tensor(self, kind: str, value: dict[str, Any]) -> Any:
        name = value.get("name")
        if not isinstance(name, str) or name not in self.tensors:
            raise _damaged_state(f"it refers to the tensor {name!r:.80}, which is not there")
        self.used.add(name)
        tensor = self.tensors[name]
        if kind == "tensor":
            if value.get("requires_grad") is True and tensor.dtype.kind != "f":
                raise _damaged_state(f"a tensor of dtype {tensor.dtype.name} has a gradient")
            return tensor.requires_grad_() if value.get("requires_grad") is True else tensor
        if name not in self.arrays:  # several references are one array, as they are one tensor
            self.arrays[name] = tensor.numpy().copy()
        return self.arrays[name] if kind == "array" else self.arrays[name][()]

    def _dict(self, kind: str, value: dict[str, Any], depth: int) -> Any:
        items = _items(value)
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            raise _damaged_state("a dict has something else than pairs of keys and values")
        pairs = [(self.decode(key, depth + 1), self.decode(one, depth + 1)) for key, one in items]
        if kind == "counter":
            return _make(lambda pairs: Counter(dict(pairs)), pairs)
        found = _make({"dict": dict, "ordered": OrderedDict}[kind], pairs)
        if "metadata" in value:
            metadata = self.decode(value["metadata"], depth + 1)
            if kind != "ordered" or not isinstance(metadata, dict):
                raise _damaged_state("the metadata of a state_dict is no dict")
            found._metadata = OrderedDict(metadata)
        return found


def _items(value: dict[str, Any]) -> list[Any]:
    items = value.get("items")
    if not isinstance(items, list):
        raise _damaged_state(f"a {value[MARK]} has no list of items")
    return items


def _make(make: Callable[[Any], Any], items: Any) -> Any:
    try:
        return make(items)
    except (TypeError, ValueError, struct.error) as error:
        raise _damaged_state(str(error)[:200]) from None


def _damaged_state(why: str) -> Exception:
    return problem(FileFormatError, "load", f"JSON of a state in which {why}", "what weft.save writes")
