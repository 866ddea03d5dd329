"""The names that users see, made from the table of operations: functions, methods and in-place methods of tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from weft.core import boundary
from weft.core.lift import lift, with_tensor_policy
from weft.core.methods import TensorMethods
from weft.core.signatures import Annotation, Described, users_signature
from weft.core.tensor import Tensor
from weft.names.public_paths import set_path
from weft.ops.registry import OPERATIONS, Operation, entries

# Where users find the functions of a namespace. A function of several is named after the first.
SPACES = {"weft": "weft", "functional": "weft.nn.functional", "linalg": "weft.linalg", "special": "weft.special"}
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
        space = next((space for namespace, space in SPACES.items() if namespace in entry.namespaces), None)
        set_path(known, space or "weft", entry.name if space else f"Tensor.{entry.name}")
        _lifted[id(entry)] = known
    return known


def functions(namespace: str) -> dict[str, Callable[..., Any]]:
    """All functions of one namespace, by name."""
    return {
        name: _with_flag(entry) if namespace == "functional" and "flag" in entry.namespaces else function_of(entry)
        for name, entry in entries(namespace)
    }


def add_methods() -> None:
    """Give `Tensor` the methods of the entries that have none yet."""
    global _complete
    for entry in OPERATIONS[_complete:]:
        function = function_of(entry)
        if "method" in entry.namespaces:
            for name in entry.names:
                setattr(TensorMethods, name, function)
        if "inplace" in entry.namespaces:
            for name in entry.names:
                setattr(TensorMethods, name + "_", _in_place(name, function))
        for name in entry.operators:
            assigns = name.startswith("__i") and name != "__invert__"
            setattr(TensorMethods, name, _make_augmented(entry.name, function) if assigns else function)
    _complete = len(OPERATIONS)


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    """The method that writes what `function` computes to its tensor."""

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self._replace(name + "_", function(self, *args, **kwargs))

    set_path(call, "weft", f"Tensor.{name}_")
    call.__doc__ = f"`{name}`, in place."
    call.__wrapped__ = Described(function, _of_a_method)  # type: ignore[attr-defined]
    return boundary.entry(call)


def _make_augmented(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
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

    set_path(call, SPACES["functional"], entry.name)
    call.__wrapped__ = Described(function, _add_inplace_flag)  # type: ignore[assignment]
    return boundary.entry(call)


def _add_inplace_flag(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    flag = inspect.Parameter("inplace", kind, default=False, annotation=Annotation("bool"))
    return signature.replace(parameters=[*signature.parameters.values(), flag])
