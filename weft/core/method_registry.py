"""How modules above `Tensor` add methods and properties to it, such as `backward` and `x[key]`, so that it need not
import them. Operations get their methods from their own table (`weft.names.namespaces`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from weft.core.boundary import entry
from weft.core.methods import TensorMethods

F = TypeVar("F", bound=Callable[..., Any])

REGISTERED: dict[str, Callable[..., Any]] = {}  # functions by the names of the methods: `tools/stubs.py` writes stubs
PROPERTIES: set[str] = set()  # names of those that are properties


def tensor_method(function: F) -> F:
    """Make a function, whose first parameter is `self`, a method of `Tensor`. The function itself stays what it is."""
    setattr(TensorMethods, function.__name__, _register(function))
    return function


def tensor_property(function: F) -> F:
    """Make a function of a tensor a property of `Tensor` that cannot be assigned."""
    PROPERTIES.add(function.__name__)
    setattr(TensorMethods, function.__name__, property(_register(function)))
    return function


def _register(function: Callable[..., Any]) -> Callable[..., Any]:
    REGISTERED[function.__name__] = function
    method = entry(function)
    method.__module__, method.__qualname__ = "weft", f"Tensor.{function.__name__}"
    return method
