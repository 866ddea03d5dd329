"""flat: many tensors as one. Parameters, gradients and each kind of optimizer state lie one after the other.

Concatenating tensors that already lie side by side is free (the compiler sees that they do), and a slice of a flat
result is a view; so an update written for one long vector is one kernel over a whole model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft
from weft.tensor import Tensor


def join(tensors: Sequence[Tensor]) -> Tensor:
    """All elements of `tensors` as one vector."""
    return weft.cat([tensor.reshape(-1) for tensor in tensors])


def split(flat: Tensor, like: Sequence[Any]) -> list[Tensor]:
    """Cut a vector into tensors with the shapes of `like`, which have `shape` and `numel()`."""
    parts, at = [], 0
    for tensor in like:
        size = tensor.numel()
        parts.append(flat[at : at + size].reshape(tensor.shape))
        at += size
    return parts


def pack(tensors: Sequence[Tensor]) -> None:
    """Move tensors into one piece of memory, in order. Their values stay."""
    with weft.no_grad():
        flat = join([tensor.detach() for tensor in tensors])
        weft.eval(flat)
        for tensor, part in zip(tensors, split(flat, tensors), strict=True):
            tensor._assign(part.node)


def buckets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Positions of tensors that can share memory: same dtype and device."""
    found: dict[tuple, list[int]] = {}
    for position, tensor in enumerate(tensors):
        found.setdefault((tensor.dtype, tensor.device), []).append(position)
    return list(found.values())
