"""Whether a result of Weft's is that of torch: number of parts, shape, dtype, values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
from tests.opinfo.convert import as_array, as_dtype

RELATIVE, ABSOLUTE = 1e-5, 1e-5
AS_GOOD_AS = 8  # times torch's own distance from the result in float64 that Weft's may have


class Difference(Exception):
    """Results differ; `kind` is 'parts', 'shape', 'dtype' or 'value'."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


def require_form(ours: list[Any], theirs: list[Any]) -> None:
    """Raise a Difference if results have different parts, shapes or dtypes."""
    if len(ours) != len(theirs):
        raise Difference("parts", f"{len(ours)} results, torch has {len(theirs)}")
    for one, other in zip(ours, theirs, strict=True):
        if isinstance(one, weft.Tensor) != isinstance(other, torch.Tensor):
            raise Difference("parts", f"a {type(one).__name__}, torch gives a {type(other).__name__}")
        if not isinstance(one, weft.Tensor):
            if type(one) is not type(other):
                raise Difference("dtype", f"a {type(one).__name__}, torch gives a {type(other).__name__}")
            continue
        if tuple(one.shape) != tuple(other.shape):
            raise Difference("shape", f"shape {tuple(one.shape)}, torch has {tuple(other.shape)}")
        if one.dtype is not as_dtype(other.dtype):
            raise Difference("dtype", f"{one.dtype}, torch has {other.dtype}")


def distance(ours: Any, theirs: Any, precise: Any = None) -> str:
    """What is wrong with a value, '' if nothing. `precise` is the same result of torch's in float64, if it is known:
    then it counts how much farther from it Weft is than torch."""
    one, other = _array(ours), _array(theirs)
    with np.errstate(all="ignore"):
        if one.dtype.kind not in "fV":
            wrong = one != other
        else:
            one, other = one.astype(np.float64), other.astype(np.float64)
            wrong = ~np.isclose(one, other, RELATIVE, _absolute(theirs), equal_nan=True)
            if precise is not None and wrong.any():
                true = _array(precise).astype(np.float64)
                allowed = AS_GOOD_AS * np.max(np.abs(other - true), initial=0.0, where=np.isfinite(other - true))
                wrong &= ~(np.abs(one - true) <= allowed + ABSOLUTE + RELATIVE * np.abs(true))
    if not wrong.any():
        return ""
    where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
    return f"{one[where]} instead of {other[where]} at {where}, {int(wrong.sum())} of {wrong.size} wrong"


def _absolute(theirs: Any) -> float:
    if isinstance(theirs, torch.Tensor) and theirs.dtype in (torch.float16, torch.bfloat16):
        return 1e-2
    return ABSOLUTE


def _array(value: Any) -> np.ndarray:
    if isinstance(value, weft.Tensor):
        return np.asarray(value.detach().numpy())
    return as_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
