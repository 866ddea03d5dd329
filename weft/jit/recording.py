"""Recording: what a function's results look like, without computing them. A call is traced, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.autograd import no_grad
from weft.base import tree
from weft.base.state import STATE
from weft.compiler.trace import Trace
from weft.core.tensor import Tensor

_NOTHING = object()


class Recording(Trace):
    """A trace that is thrown away: nothing that the function assigns is kept, no random number is drawn."""

    where = "the recording of shapes"

    def __init__(self, name: str):
        super().__init__(name)
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}  # modules and attributes that were assigned

    def note_write(self, module: Any, name: str) -> None:
        self._before.setdefault((id(module), name), (module, module.__dict__.get(name, _NOTHING)))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for (_, name), (module, value) in self._before.items():
            module.__dict__.pop(name, None)
            if value is not _NOTHING:
                module.__dict__[name] = value


def record_result(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call as placeholders of the right shapes and dtypes. Nothing is computed or assigned."""
    outer = STATE.trace
    try:
        with Recording(getattr(function, "__name__", type(function).__name__)), no_grad():
            return placeholders(function(*placeholders(args), **placeholders(kwargs)))
    finally:  # an interrupt may have come before `__exit__`
        STATE.trace = outer


def placeholders(values: Any) -> Any:
    """Nested tuples, lists and dicts with a placeholder for every tensor."""
    leaves, structure = tree.flatten(values)
    made = [
        Tensor._trace_input(leaf.shape, leaf.dtype, leaf.device, False) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    return tree.unflatten(structure, made)
