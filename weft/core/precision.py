"""How exact products of float32 matrices are: PyTorch's switch, under PyTorch's name."""

from __future__ import annotations

from weft.base.errors import RangeError, problem
from weft.base.state import SETTINGS, VERSION

PRECISIONS = ("highest", "high", "medium")


def set_float32_matmul_precision(precision: str) -> None:
    """ "highest" (as at the start): float32 throughout. "high" and "medium": on devices with a library that has them,
    factors of 10 bits of mantissa (TF32), sums in float32; many times faster on NVIDIA's matrix units, relative errors
    of about 1e-3. Compiled functions are planned again. On the CPU nothing changes.

    >>> weft.set_float32_matmul_precision("high")
    >>> weft.get_float32_matmul_precision()
    'high'
    >>> weft.set_float32_matmul_precision("highest")
    """
    if precision not in PRECISIONS:
        expected = ", ".join(map(repr, PRECISIONS))
        raise problem(RangeError, "set_float32_matmul_precision", repr(precision), f"one of {expected}")
    SETTINGS.float32_matmul_precision = precision
    VERSION.bump()


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was given last."""
    return SETTINGS.float32_matmul_precision
