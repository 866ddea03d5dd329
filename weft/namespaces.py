"""The names that users see, made from the table of operations: functions, methods and in-place methods of tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from weft import boundary
from weft.methods import TensorMethods
from weft.ops.registry import OPERATIONS, Operation, entries
from weft.signatures import Annotation, Described, users_signature
from weft.tensor import Tensor, lift, with_tensor_policy

_lifted: dict[int, Callable[..., Any]] = {}  # by identity of the entry: each operation is lifted once
_complete = 0  # how many entries of the table have their methods


def function_of(entry: Operation) -> Callable[..., Any]:
    """The function of tensors that an operation is."""
    known = _lifted.get(id(entry))
    if known is None:
        if entry.of_tensors:
            known = boundary.entry(with_tensor_policy(entry.function, entry.name))
            known.__wrapped__ = Described(entry.function, users_signature)  # type: ignore[attr-defined]
        else:
            known = lift(entry.function, entry.view, entry.name)
        known.__name__ = known.__qualname__ = entry.name
        _lifted[id(entry)] = known
    return known


def functions(place: str) -> dict[str, Callable[..., Any]]:
    """All functions of one place, by name."""
    return {
        name: _with_flag(entry) if place == "functional" and "flag" in entry.places else function_of(entry)
        for name, entry in entries(place)
    }


def add_methods() -> None:
    """Give `Tensor` the methods of the entries that have none yet."""
    global _complete
    for entry in OPERATIONS[_complete:]:
        function = function_of(entry)
        if "method" in entry.places:
            for name in entry.names:
                setattr(TensorMethods, name, function)
        if "inplace" in entry.places:
            for name in entry.names:
                setattr(TensorMethods, name + "_", _in_place(name, function))
        for name in entry.operators:
            assigns = name.startswith("__i") and name != "__invert__"
            setattr(TensorMethods, name, _augmented(entry.name, function) if assigns else function)
    _complete = len(OPERATIONS)


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The method that writes what `function` computes to its tensor."""

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._replace(name + "_", function(self, *args, **kwargs))

    call.__name__, call.__doc__ = name + "_", f"`{name}`, in place."
    call.__wrapped__ = Described(function, _of_a_method)  # type: ignore[attr-defined]
    return boundary.entry(call)


def _augmented(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """An operator that assigns, such as `+=`."""

    def call(self: Tensor, other: Any) -> Tensor:
        return self._replace(name + "_", function(self, other))

    return boundary.entry(call)


def _of_a_method(function: Callable[..., Any]) -> inspect.Signature:
    first, *others = inspect.signature(function).parameters.values()
    own = first.replace(name="self", annotation=inspect.Parameter.empty)
    return inspect.Signature([own, *others], return_annotation=Annotation("Tensor"))


def _with_flag(entry: Operation) -> Callable[..., Any]:
    """An activation of `nn.functional`, whose last parameter `inplace` says whether its input takes the result."""
    function = function_of(entry)
    code = inspect.unwrap(entry.function).__code__
    count = code.co_argcount + code.co_kwonlyargcount

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        inplace = kwargs.pop("inplace", False)
        if len(args) > count:
            args, inplace = args[:count], args[count]
        result = function(*args, **kwargs)
        if not inplace:
            return result
        target = args[0] if args else kwargs["input"]
        return target._replace(entry.name, result)

    call.__wrapped__ = Described(function, _flagged)  # type: ignore[assignment]
    return boundary.entry(call)


def _flagged(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    flag = inspect.Parameter("inplace", kind, default=False, annotation=Annotation("bool"))
    return signature.replace(parameters=[*signature.parameters.values(), flag])
