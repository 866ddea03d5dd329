"""Tensors as text, in PyTorch's form: `tensor([[1., 2.]], requires_grad=True)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.dtypes import bool_, float32, int64
from weft.state import STATE

if TYPE_CHECKING:
    from weft.cell import TensorCell


def text(tensor: TensorCell) -> str:
    """The value, the dtype unless it is a usual one, the device unless it is the default, and requires_grad."""
    if STATE.trace is not None:
        return f"tensor(<traced>, shape={tensor.shape}, dtype={tensor.dtype!r})"
    parts = [_values(tensor.numpy())]
    if 0 in tensor.shape and len(tensor.shape) > 1:
        parts.append(f"size={tensor.shape}")
    if tensor.dtype not in (float32, int64, bool_):
        parts.append(f"dtype={tensor.dtype!r}")
    if tensor._requires_grad:
        parts.append("requires_grad=True")
    return f"tensor({', '.join(parts)})"


def _values(array: np.ndarray) -> str:
    if array.dtype.kind == "V":  # bfloat16, which NumPy cannot round
        array = array.astype(np.float32)
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    whole = bool(np.all(finite == np.round(finite))) if array.dtype.kind == "f" else True
    return np.array2string(
        array, precision=4, separator=", ", prefix="tensor(", floatmode="maxprec" if whole else "fixed", threshold=1000
    )
