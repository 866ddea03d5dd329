"""Recording: what a function's results look like, without computing them. A call is traced, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft import tree
from weft.autograd import no_grad
from weft.compiler.trace import Trace
from weft.tensor import Tensor


class Recording(Trace):
    """A trace that is thrown away: nothing that the function assigns is kept, no random number is drawn."""

    where = "the recording of shapes"


def record_result(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call as placeholders of the right shapes and dtypes. Nothing is computed or assigned."""
    with Recording(getattr(function, "__name__", type(function).__name__)), no_grad():
        return placeholders(function(*placeholders(args), **placeholders(kwargs)))


def placeholders(values: Any) -> Any:
    """Nested tuples, lists and dicts with a placeholder for every tensor."""
    leaves, structure = tree.flatten(values)
    made = [
        Tensor._stand_in(leaf.shape, leaf.dtype, leaf.device, False) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    return tree.unflatten(structure, made)
