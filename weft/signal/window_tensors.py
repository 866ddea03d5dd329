"""Window functions of signal processing: `weft.hann_window` and its relatives, after PyTorch.

Windows are computed on the host in float64 and rounded once. `weft.signal.windows` has more of them, made by the same
functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DTypeLike, as_dtype
from weft.base.errors import DTypeError, RangeError, problem
from weft.base.state import SETTINGS
from weft.core.creation import tensor
from weft.core.tensor import Tensor
from weft.ops.common import as_int


def window_length(who: str, length: int) -> int:
    """The number of points of a window, checked."""
    count = as_int(who, length, "window length")
    if count < 0:
        raise problem(RangeError, who, f"window length {count}", "at least 0")
    return count


def make_window(who: str, values: np.ndarray, dtype: DTypeLike | None, device: Any, requires_grad: bool) -> Tensor:
    """A window as a tensor, of the default dtype unless another float dtype is given."""
    kind = as_dtype(who, SETTINGS.default_dtype if dtype is None else dtype)
    if kind.kind != "f":
        raise problem(DTypeError, who, f"dtype {kind.name}", "a float dtype")
    return tensor(values, dtype=kind, device=device, requires_grad=requires_grad)


def cosines(count: int, weights: Sequence[float], sym: bool) -> np.ndarray:
    """Cosines of 0, 1, 2, ... periods with these weights and alternating signs."""
    if count < 2:
        return np.ones(count)
    angles = 2.0 * np.pi * np.arange(count) / (count - sym)
    orders = np.arange(len(weights))
    signed = np.asarray(weights, np.float64) * np.where(orders % 2, -1.0, 1.0)
    return (signed[:, None] * np.cos(orders[:, None] * angles)).sum(0)


def triangle(count: int, sym: bool) -> np.ndarray:
    """From 0 up to 1 and down again."""
    if count < 2:
        return np.ones(count)
    return 1.0 - np.abs(2.0 * np.arange(count) / (count - sym) - 1.0)


def bessel(count: int, beta: float, sym: bool) -> np.ndarray:
    """Kaiser's window: the Bessel function I0 over a half circle."""
    if count < 2:
        return np.ones(count)
    position = 2.0 * np.arange(count) / (count - sym) - 1.0
    return np.i0(beta * np.sqrt(np.maximum(1.0 - position * position, 0.0))) / np.i0(beta)


def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Hann's window: half a cosine, raised. A periodic one leaves out the last point of one that is a point longer.

    >>> weft.hann_window(4)
    tensor([0.0000, 0.5000, 1.0000, 0.5000])
    """
    count = _length("hann_window", window_length)
    return make_window("hann_window", cosines(count, (0.5, 0.5), not periodic), dtype, device, requires_grad)


def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Hamming's window: alpha minus beta times a cosine."""
    count = _length("hamming_window", window_length)
    return make_window("hamming_window", cosines(count, (alpha, beta), not periodic), dtype, device, requires_grad)


def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Blackman's window, of two cosines."""
    count = _length("blackman_window", window_length)
    return make_window("blackman_window", cosines(count, (0.42, 0.5, 0.08), not periodic), dtype, device, requires_grad)


def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Bartlett's window, a triangle."""
    count = _length("bartlett_window", window_length)
    return make_window("bartlett_window", triangle(count, not periodic), dtype, device, requires_grad)


def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DTypeLike | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Kaiser's window; the larger `beta`, the narrower it is."""
    count = _length("kaiser_window", window_length)
    return make_window("kaiser_window", bessel(count, beta, not periodic), dtype, device, requires_grad)


_length = window_length  # under a name that no parameter has
