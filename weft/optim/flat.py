"""Many tensors as one. Parameters, gradients and each kind of optimizer state lie one after the other.

Concatenating tensors that already are contiguous is free (the compiler sees that they do), and a slice of a flat
result is a view; so an update written for one long vector is one kernel over a whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import weft
from weft.core.tensor import Tensor


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
        assign(tensors, flat)


def assign(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Write the parts of a flat vector to tensors of one dtype, in place."""
    for tensor, part in zip(tensors, split(flat.to(tensors[0].dtype), tensors), strict=True):
        tensor._assign(part.node)


def widen(tensor: Tensor) -> Tensor:
    """16-bit floats as float32: their sums and squares soon leave the range, and averages lose what is small."""
    return tensor.float() if tensor.dtype.is_16_bit else tensor


def as_list(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """One tensor, or several, as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def buckets(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Positions of tensors that can share memory: same dtype and device, and no more than kernels bind at once, counted
    in float32 or the wider dtype of a state."""
    found: list[list[int]] = []
    filling: dict[tuple, tuple[list[int], int]] = {}  # the last group of each dtype and device, and its bytes
    for position, tensor in enumerate(tensors):
        key, most = (tensor.dtype, tensor.device), tensor.device.limits.flat_bytes
        nbytes = tensor.numel() * max(tensor.dtype.itemsize, weft.float32.itemsize) if most else 0
        positions, before = filling.get(key, ([], 0))
        if not positions or before + nbytes > most:
            positions, before = [], 0
            found.append(positions)
        positions.append(position)
        filling[key] = positions, before + nbytes
    return found
