"""When tensors are computed: `eval`."""

from __future__ import annotations

from weft.core.realize import realize
from weft.core.tensor import Tensor


def eval(*tensors: Tensor) -> None:
    """Compute the values of these tensors now, as one program.

    >>> x = weft.ones(2) + 1
    >>> weft.eval(x)
    """
    realize(tensors)


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()
