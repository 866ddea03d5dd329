"""Signatures of operations as users see them: `Tensor` where the function on nodes has `Node`.

`lift` and `help()` need the parameters of every operation, `tools/stubs.py` prints the same annotations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

# What annotations of functions on nodes mean to users.
WORDS = {
    "Node": "Tensor",
    "Operand": "Tensor | float",
    "Number": "float",
    "DType": "DTypeLike",
    "Sizes": "int | Sequence[int]",
    "Dim": "int | Sequence[int] | None",
    "Lengths": "Tensor | Sequence[int] | int",
    "Counts": "int | None | Sequence[int | None]",
}


class Annotation(str):
    """An annotation that prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def users_annotation(text: str) -> Annotation:
    """An annotation in the words of users."""
    words = re.sub(r"\b[A-Z]\w*\b", lambda found: WORDS.get(found[0], found[0]), text)
    return Annotation(words.replace("float | int", "float").replace("Tensor | float | float", "Tensor | float"))


class Described:
    """Stands between a function of tensors and the operation that it wraps: knows the signature to show, which is made
    only when it is requested (`inspect.signature` stops here on its way to the wrapped function)."""

    __slots__ = ("__wrapped__", "_make")

    def __init__(self, wrapped: Callable[..., Any], make: Callable[[Callable[..., Any]], inspect.Signature]):
        self.__wrapped__, self._make = wrapped, make

    @property
    def __signature__(self) -> inspect.Signature:
        return self._make(self.__wrapped__)


def parameter_names(op: Callable[..., Any]) -> tuple[frozenset[str], str]:
    """The names of an operation's parameters, and the one of `*rest`, or ''."""
    code = inspect.unwrap(op).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    rest = code.co_varnames[count] if code.co_flags & inspect.CO_VARARGS else ""
    return frozenset(code.co_varnames[:count]), rest


def users_signature(op: Callable[..., Any]) -> inspect.Signature:
    """The signature of an operation, with tensors."""
    signature = inspect.signature(op)
    parameters = [
        parameter.replace(annotation=users_annotation(parameter.annotation))
        if isinstance(parameter.annotation, str)
        else parameter
        for parameter in signature.parameters.values()
    ]
    result = signature.return_annotation
    if isinstance(result, str):
        result = users_annotation(result)
    return inspect.Signature(parameters, return_annotation=result)
