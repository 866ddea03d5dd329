"""Size: the shape of a tensor as users see it."""

from __future__ import annotations

import math
from typing import Any


class Size(tuple):
    """A tuple of extents, equal to the plain tuple and printed like it, with PyTorch's `numel`. Slices and sums of
    sizes are sizes.

    >>> weft.ones(2, 3).shape.numel(), weft.ones(2, 3).shape[1:] + (4,)
    (6, (3, 4))
    """

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self)

    def __getitem__(self, key: Any) -> Any:
        found = tuple.__getitem__(self, key)
        return Size(found) if type(key) is slice else found

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size((*other, *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: Any) -> Any:
        return Size(tuple.__mul__(self, count))

    __rmul__ = __mul__
