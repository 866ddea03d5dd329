"""Window functions after `torch.signal.windows`: symmetric unless `sym=False`, float32 or float64.

Each is 1 at its middle, which for an even length lies between two points of a symmetric window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.base.dtypes import DTypeLike, as_dtype, float32, float64
from weft.base.errors import DTypeError, RangeError, problem
from weft.core.tensor import Tensor
from weft.signal.window_tensors import bessel, cosines, make_window, triangle, window_length

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann",
    "kaiser", "nuttall",
]  # fmt: skip


def _points(who: str, M: int, dtype: DTypeLike | None) -> int:
    """The length, after the checks that all windows have."""
    count = window_length(who, M)
    if dtype is not None and as_dtype(who, dtype) not in (float32, float64):
        raise problem(DTypeError, who, f"dtype {as_dtype(who, dtype).name}", "float32 or float64")
    return count


def _center(count: int, sym: bool) -> float:
    """Where a window has its maximum."""
    return (count if not sym and count > 1 else count - 1) / 2.0


def bartlett(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """A triangle."""
    count = _points("bartlett", M, dtype)
    return make_window("bartlett", triangle(count, sym), dtype, device, requires_grad)


def blackman(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Blackman's window, of two cosines."""
    count = _points("blackman", M, dtype)
    return make_window("blackman", cosines(count, (0.42, 0.5, 0.08), sym), dtype, device, requires_grad)


def cosine(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The first half of a sine; no point is 0."""
    count = _points("cosine", M, dtype)
    angle = math.pi / (count + 1 if not sym and count > 1 else max(count, 1))
    return make_window("cosine", np.sin((np.arange(count) + 0.5) * angle), dtype, device, requires_grad)


def exponential(
    M: int,
    *,
    center: float | None = None,
    tau: float = 1.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """exp(-|n - center| / tau), with the center in the middle unless a window that is not symmetric has another."""
    count = _points("exponential", M, dtype)
    if tau <= 0:
        raise problem(RangeError, "exponential", f"tau={tau}", "above 0")
    if sym and center is not None:
        raise problem(RangeError, "exponential", f"center={center} for a symmetric window", "none", "give sym=False")
    middle = _center(count, sym) if center is None else center
    return make_window("exponential", np.exp(-np.abs(np.arange(count) - middle) / tau), dtype, device, requires_grad)


def gaussian(
    M: int,
    *,
    std: float = 1.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """The bell curve with this standard deviation."""
    count = _points("gaussian", M, dtype)
    if std <= 0:
        raise problem(RangeError, "gaussian", f"std={std}", "above 0")
    position = (np.arange(count) - _center(count, sym)) / std
    return make_window("gaussian", np.exp(-0.5 * position * position), dtype, device, requires_grad)


def general_cosine(
    M: int,
    *,
    a: Iterable[float],
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Cosines of 0, 1, 2, ... periods with weights `a` and alternating signs."""
    count = _points("general_cosine", M, dtype)
    if not isinstance(a, Iterable):
        raise problem(DTypeError, "general_cosine", f"a of type {type(a).__name__}", "a list of numbers")
    weights = list(a)
    if not weights:
        raise problem(RangeError, "general_cosine", "no weights", "at least one")
    return make_window("general_cosine", cosines(count, weights, sym), dtype, device, requires_grad)


def general_hamming(
    M: int,
    *,
    alpha: float = 0.54,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """alpha minus (1 - alpha) times a cosine."""
    count = _points("general_hamming", M, dtype)
    return make_window("general_hamming", cosines(count, (alpha, 1.0 - alpha), sym), dtype, device, requires_grad)


def hamming(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Hamming's window."""
    count = _points("hamming", M, dtype)
    return make_window("hamming", cosines(count, (0.54, 0.46), sym), dtype, device, requires_grad)


def hann(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Hann's window: half a cosine, raised.

    >>> weft.signal.windows.hann(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    count = _points("hann", M, dtype)
    return make_window("hann", cosines(count, (0.5, 0.5), sym), dtype, device, requires_grad)


def kaiser(
    M: int,
    *,
    beta: float = 12.0,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Kaiser's window; the larger `beta`, the narrower it is."""
    count = _points("kaiser", M, dtype)
    if beta < 0:
        raise problem(RangeError, "kaiser", f"beta={beta}", "at least 0")
    return make_window("kaiser", bessel(count, beta, sym), dtype, device, requires_grad)


def nuttall(
    M: int,
    *,
    sym: bool = True,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Nuttall's window of three cosines, with very small side lobes."""
    count = _points("nuttall", M, dtype)
    return make_window(
        "nuttall", cosines(count, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym), dtype, device, requires_grad
    )
