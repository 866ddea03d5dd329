"""Element types and the promotion table.

This is a base room: everything may import it, it imports nothing of Weft. A `DType` is a singleton, so `is`
compares them. Names follow PyTorch; `DType.numpy` is the NumPy type with the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """One element type. `kind` is 'b' (bool), 'i' (signed), 'u' (unsigned) or 'f' (float); `rank` orders promotion."""

    name: str
    itemsize: int
    kind: str
    rank: int
    numpy: np.dtype

    def __repr__(self) -> str:
        return f"weft.{self.name}"

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"


bool_ = DType("bool", 1, "b", 0, np.dtype(np.bool_))
uint32 = DType("uint32", 4, "u", 1, np.dtype(np.uint32))
int32 = DType("int32", 4, "i", 2, np.dtype(np.int32))
int64 = DType("int64", 8, "i", 3, np.dtype(np.int64))
float32 = DType("float32", 4, "f", 4, np.dtype(np.float32))
float64 = DType("float64", 8, "f", 5, np.dtype(np.float64))

ALL: tuple[DType, ...] = (bool_, uint32, int32, int64, float32, float64)
_BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}


def by_name(name: str) -> DType:
    """The dtype called `name`, as in a plan read back from disk."""
    return _BY_NAME[name]


def from_numpy(dtype: np.dtype) -> DType | None:
    """The Weft dtype of a NumPy dtype, or None where this version has none."""
    return _BY_NUMPY.get(np.dtype(dtype))


def promote(a: DType, b: DType) -> DType:
    """The dtype in which `a` and `b` meet: the Array API table, and PyTorch's for integer with float.

    uint32 meets int32 in int64, as the Array API says; any integer meets a float in that float.

    >>> from weft import dtypes
    >>> dtypes.promote(dtypes.int64, dtypes.float32)
    weft.float32
    """
    if a is b:
        return a
    low, high = (a, b) if a.rank < b.rank else (b, a)
    if low is uint32 and high is int32:
        return int64
    return high
