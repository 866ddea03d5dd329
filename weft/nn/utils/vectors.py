"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from weft.autograd import no_grad
from weft.base.errors import DTypeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.names.functions import cat


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """All elements of all parameters, one after the other: [n].

    >>> layer = weft.nn.Linear(3, 2)
    >>> weft.nn.utils.parameters_to_vector(layer.parameters()).shape
    (8,)
    """
    flat = [param.reshape(-1) for param in parameters]
    if not flat:
        raise problem(ShapeError, "parameters_to_vector", "no parameters", "at least one")
    return cat(flat)


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Assign the elements of `vec` to all parameters, in order; they keep their identity.

    >>> layer = weft.nn.Linear(3, 2)
    >>> weft.nn.utils.vector_to_parameters(weft.arange(8.0), layer.parameters())
    >>> layer.bias.detach()
    tensor([6., 7.])
    """
    who = "vector_to_parameters"
    if not isinstance(vec, Tensor):
        raise problem(DTypeError, who, f"a {type(vec).__name__}", "a tensor")
    every = list(parameters)
    count = sum(param.numel() for param in every)
    if vec.ndim != 1 or vec.numel() < count:
        raise problem(ShapeError, who, f"a vector of shape {tuple(vec.shape)}", f"{count} elements")
    start = 0
    with no_grad():
        for param in every:
            stop = start + param.numel()
            param.copy_(vec[start:stop].reshape(param.shape))
            start = stop
