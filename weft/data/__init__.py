"""Data sets. `digits` ships with the package."""

from weft.data import digits

__all__ = ["digits"]
