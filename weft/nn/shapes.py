"""What a module's results look like, without computing them: a call is recorded on placeholders and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft import tree
from weft.autograd import no_grad
from weft.compiler.trace import Trace
from weft.tensor import Tensor

if TYPE_CHECKING:
    from weft.nn.module import Module


class Recording(Trace):
    """A trace that is thrown away: nothing that the module assigns is kept."""

    where = "the recording of shapes"


def recorded(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call of `module` as placeholders of the right shapes and dtypes. Nothing is computed, no buffer
    is assigned, no random number is drawn."""
    with Recording(type(module).__name__), no_grad():
        result = module(*placeholders(args), **placeholders(kwargs))
        return placeholders(result)


def placeholders(values: Any) -> Any:
    """Nested tuples, lists and dicts with a placeholder for every tensor."""
    leaves, structure = tree.flatten(values)
    made = [
        Tensor._stand_in(leaf.shape, leaf.dtype, leaf.device, False) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    ]
    return tree.unflatten(structure, made)
