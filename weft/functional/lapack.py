"""What functions have in common that NumPy's LAPACK computes on the host: reading matrices, checking them, and errors.

Such functions work outside `weft.compile` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.base.dtypes import float32, float64
from weft.base.errors import DTypeError, GraphError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.host_arrays import from_host
from weft.core.tensor import Tensor


def read_values(who: str, *tensors: Tensor) -> list[np.ndarray]:
    """Values on the host."""
    if STATE.trace is not None:
        given = f"linalg.{who} inside weft.compile, which has no kernel for it"
        raise problem(GraphError, who, given, "a call outside of it", "call it before or after the compiled function")
    return [tensor.detach().numpy() for tensor in tensors]


def to_tensor(array: np.ndarray, like: Tensor) -> Tensor:
    """An array on the device of `like`."""
    return Tensor(from_host(np.asarray(array), like.device))


def check_matrices(who: str, x: Tensor, square: bool = False) -> None:
    """An error unless `x` has float32 or float64 matrices, `square` ones where that is said."""
    if x.dtype not in (float32, float64):
        raise problem(DTypeError, who, f"a {x.dtype.name} tensor", "float32 or float64", "convert it with .float()")
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise problem(ShapeError, who, f"shape {x.shape}", "square matrices" if square else "matrices")


def call_lapack(who: str, call: Callable[[], Any], complaint: str) -> Any:
    """`call()`; that LAPACK refuses a matrix becomes an error of ours."""
    try:
        return call()
    except np.linalg.LinAlgError:
        raise problem(RangeError, who, complaint, "matrices for which it exists") from None


def identity_like(x: Tensor, extent: int) -> Tensor:
    """The identity matrix in the dtype and on the device of `x`."""
    return to_tensor(np.eye(extent, dtype=x.dtype.numpy), x)
