"""Values of random graphs: nodes with bounds on their size and on their error."""

from __future__ import annotations

from dataclasses import dataclass

import weft
from weft.base.dtypes import DType, integer_bounds
from weft.graph.node import Node

LARGEST = 6000  # elements of one value
LEAST_OVERFLOW = 6e4  # what a sum in float16 must stay below
HOME = weft.get_device("null")  # computes nothing, so drawn graphs stay as they are


@dataclass(frozen=True)
class Value:
    """A node with bounds: |value| <= bound, and computed values differ from the true one by at most `error`."""

    node: Node
    bound: float
    error: float = 0.0

    @property
    def exact(self) -> bool:
        return self.error == 0.0

    @property
    def kind(self) -> str:
        return self.node.dtype.kind


def unit(dtype: DType) -> float:
    """The relative error of one operation, with a margin for functions that are a few units off."""
    return weft.finfo(dtype).eps if dtype.kind == "f" else 0.0


def whole_bound(bound: float, dtype: DType) -> float:
    """A bound on integers that may have wrapped around."""
    low, high = integer_bounds(dtype)
    return float(high) if dtype.kind == "u" else min(bound, -float(low))


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether `shape` broadcasts to `target`."""
    if len(shape) > len(target):
        return False
    return all(have in (1, want) for have, want in zip(shape, target[len(target) - len(shape) :], strict=True))
