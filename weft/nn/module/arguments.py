"""What a module was made with: the arguments of its constructor, so that it can be described and made again.

`Module.__new__` keeps them (`record_call`), whatever the class. A module among the arguments is referred to weakly: a
prototype that a constructor only copies does not stay in memory, and is made again from its own arguments when somebody
asks. What could not be written to a file anyway (large tensors, iterators, objects of other classes) is not kept, only
what it was.
"""

from __future__ import annotations

import copy
import inspect
import types
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.core.device import Device
from weft.core.tensor import Tensor
from weft.random.generator import default_generator

if TYPE_CHECKING:
    from weft.nn.module import Module

MAX_ELEMENTS = 65_536  # of tensors and lists that are kept

_PLAIN = (type(None), bool, int, float, complex, str, bytes, DType, Device, np.dtype, np.generic)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, np.ufunc)
_AS_THEY_ARE = (*_PLAIN, *_FUNCTIONS)


class Unrecorded:
    """An argument that was not kept; `what` says what it was."""

    __slots__ = ("what",)

    def __init__(self, what: str):
        self.what = what


class Call:
    """A call of a constructor."""

    __slots__ = ("args", "cls", "kwargs")

    def __init__(self, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.cls, self.args, self.kwargs = cls, args, kwargs

    def __deepcopy__(self, memo: dict[int, Any]) -> Call:
        return Call(self.cls, _copy_arguments(self.args, memo), _copy_arguments(self.kwargs, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        """In a pickle, functions are left out: they could make it impossible."""
        return Call, (self.cls, _without_functions(self.args), _without_functions(self.kwargs))


class _Reference:
    """A module among the arguments, and the call that made it."""

    __slots__ = ("call", "module")

    def __init__(self, module: Module):
        self.module = weakref.ref(module)
        self.call: Call | None = module.__dict__.get("_call")

    def get(self) -> Module:
        """The module, or one that is made as it was."""
        found = self.module()
        if found is not None:
            return found
        if self.call is None:
            raise _unknown_arguments("a module that is no longer there")
        args, kwargs = _resolve_call(self.call)
        state = default_generator.get_state()
        try:
            return self.call.cls(*args, **kwargs)
        finally:
            default_generator.set_state(state)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Reference:
        found = self.module()
        if found is None:
            return self
        copied = copy.deepcopy(found, memo)
        memo.setdefault(id(memo), []).append(copied)  # alive until all is copied
        return _Reference(copied)

    def __reduce__(self) -> tuple[Any, ...]:
        found = self.module()
        return (_Reference, (found,)) if found is not None else (_lost, (self.call,))


class _Lost:
    """A module among the arguments that was gone before the pickle was made."""


def _lost(call: Call | None) -> Any:
    made = object.__new__(_Reference)
    made.module = weakref.ref(_Lost())  # type: ignore[arg-type]
    made.call = call
    return made


def record_call(cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """What is kept of the call of a constructor."""
    return Call(
        cls,
        tuple([_record_argument(value) for value in args]) if args else (),
        {name: _record_argument(value) for name, value in kwargs.items()} if kwargs else {},
    )


def _record_argument(value: Any) -> Any:
    if isinstance(value, _AS_THEY_ARE):
        return value
    if hasattr(value, "_is_weft_module"):
        return _Reference(value)
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        if len(value) > MAX_ELEMENTS:
            return Unrecorded(f"a {type(value).__name__} of {len(value)} entries")
        if isinstance(value, Mapping):
            return (
                {key: _record_argument(one) for key, one in value.items()}
                if _is_dict(value)
                else _refuse_to_record(value)
            )
        if isinstance(value, (set, frozenset)):
            return value
        kept = [_record_argument(one) for one in value]
        return kept if isinstance(value, list) else tuple(kept)
    if isinstance(value, np.ndarray) and value.size <= MAX_ELEMENTS:
        return value
    if isinstance(value, Tensor) and not hasattr(value, "becomes") and value.numel() <= MAX_ELEMENTS:
        return value
    return _refuse_to_record(value)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict) and not hasattr(value, "default_factory")


def _refuse_to_record(value: Any) -> Unrecorded:
    kind = type(value)
    return Unrecorded(f"a {kind.__module__.removeprefix('builtins') and kind.__module__ + '.'}{kind.__qualname__}")


def _copy_arguments(value: Any, memo: dict[int, Any]) -> Any:
    """Arguments for the copy of a module; tensors and functions stay the same."""
    if isinstance(value, _Reference):
        return copy.deepcopy(value, memo)
    if isinstance(value, (list, tuple)):
        return type(value)([_copy_arguments(one, memo) for one in value]) if type(value) in (list, tuple) else value
    return {key: _copy_arguments(one, memo) for key, one in value.items()} if isinstance(value, dict) else value


def _without_functions(value: Any) -> Any:
    if isinstance(value, _FUNCTIONS):
        return Unrecorded("a function, which was left out of a pickle")
    if type(value) in (list, tuple):
        return type(value)([_without_functions(one) for one in value])
    return {key: _without_functions(one) for key, one in value.items()} if isinstance(value, dict) else value


# ---- asking for them -------------------------------------------------------------------------------------------------


def constructor_arguments(module: Module) -> dict[str, Any]:
    """The arguments that a module was made with, by the names of its constructor's parameters, as they were given:
    those that were left to their defaults are not among them. What `*args` took is a list under its name, what
    `**kwargs` took is beside the others. Modules among them are the modules themselves. A module whose arguments are
    not known is refused, with the reason.

    >>> from weft.nn.module.arguments import constructor_arguments
    >>> constructor_arguments(weft.nn.Linear(3, 2, bias=False))
    {'in_features': 3, 'out_features': 2, 'bias': False}
    """
    cls = type(module)
    call: Call | None = module.__dict__.get("_call")
    if call is None:
        raise _unknown_arguments(f"a {cls.__name__} that was not made by calling its class")
    becomes = getattr(call.cls, "cls_to_become", None)
    if call.cls is not cls and becomes is not cls:
        raise _unknown_arguments(
            f"a {cls.__name__} that was made as a {call.cls.__name__}: its class was changed since"
        )
    found = _bind(call)
    if call.cls is not cls:  # a lazy layer that has found its sizes
        for name, one in inspect.signature(cls).parameters.items():
            if one.default is one.empty and name not in found:
                found = {name: getattr(module, name), **found}
    for name, value in found.items():
        lost = _first_unrecorded(value)
        if lost is not None:
            raise _unknown_arguments(f"a {cls.__name__} whose argument {name!r} is, or contains, {lost}")
    return found


def _bind(call: Call) -> dict[str, Any]:
    """Arguments by the names of the parameters."""
    signature = inspect.signature(call.cls)
    args, kwargs = _resolve_call(call)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # a class with a __new__ or a metaclass of its own
        raise _unknown_arguments(f"a {call.cls.__name__} whose arguments do not fit its constructor") from None
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        else:
            found[name] = list(value) if kind is inspect.Parameter.VAR_POSITIONAL else value
    return found


def _resolve_call(call: Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return tuple(_resolve(one) for one in call.args), {name: _resolve(one) for name, one in call.kwargs.items()}


def _resolve(value: Any) -> Any:
    if isinstance(value, _Reference):
        return value.get()
    if type(value) in (list, tuple):
        return type(value)([_resolve(one) for one in value])
    return {key: _resolve(one) for key, one in value.items()} if type(value) is dict else value


def _first_unrecorded(value: Any) -> str | None:
    if isinstance(value, Unrecorded):
        return value.what
    inside = value.values() if isinstance(value, dict) else value if type(value) in (list, tuple) else ()
    return next((found for one in inside if (found := _first_unrecorded(one)) is not None), None)


def _unknown_arguments(given: str) -> Exception:
    expected = "numbers, texts, lists, layers and small tensors as the arguments of constructors"
    return problem(GraphError, "constructor_arguments", given, expected)
