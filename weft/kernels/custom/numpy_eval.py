"""Running a kernel's function with NumPy, all points at once: the reference that compiled kernels are checked against.

A value is an array with one element per point (or one for all). Loops run in Python; where a bound differs between
points, `active` says which take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.kernels.custom.trace import activate

_COMBINE: dict[str, tuple[Callable[..., Any], Any]] = {
    "sum": (np.add, 0),
    "prod": (np.multiply, 1),
    "max": (np.maximum, None),
    "min": (np.minimum, None),
}
_erf = np.frompyfunc(math.erf, 1, 1)


class StepArray:
    """An input or output as the function sees it."""

    def __init__(self, stepper: Stepper, array: np.ndarray, dtype: DType):
        self._stepper, self._array, self.dtype = stepper, array, dtype
        self.shape, self.ndim = array.shape, array.ndim

    def _locate(self, key: Any) -> tuple[tuple, Any]:
        items = key if isinstance(key, tuple) else (key,)
        inside: Any = True
        positions = []
        for item, extent in zip(items, self._array.shape, strict=True):
            inside = inside & ((np.asarray(item) >= 0) & (np.asarray(item) < extent))
            positions.append(np.clip(item, 0, max(extent - 1, 0)))
        return tuple(positions), inside

    def __getitem__(self, key: Any) -> Any:
        return self._array[self._locate(key)[0]]

    def load(self, *key: Any, other: Any = 0) -> Any:
        positions, inside = self._locate(key)
        other = np.asarray(other, self._array.dtype)
        return np.where(inside, self._array[positions], other) if self._array.size else other

    def __setitem__(self, key: Any, value: Any) -> None:
        self.store(key, value)

    def store(self, key: Any, value: Any, where: Any = None) -> None:
        items = key if isinstance(key, tuple) else (key,)
        mask = self._stepper.active if where is None else self._stepper.active & np.asarray(where)
        shape = (self._stepper.points,)
        mask = np.broadcast_to(mask, shape)
        values = np.broadcast_to(value, shape)[mask]
        if items:
            self._array[tuple([np.broadcast_to(item, shape)[mask] for item in items])] = values
        elif values.size:
            self._array[()] = values[-1]


class Stepper:
    """The functions of the kernel language in NumPy, over so many points."""

    def __init__(self, points: int):
        self.points = points
        self.active: Any = np.True_

    def loop(self, start: Any, stop: Any) -> Iterator[Any]:
        outer = self.active
        starts, stops = np.asarray(start), np.asarray(stop)
        try:
            for j in range(int(starts.min(initial=0) if starts.ndim else starts), int(stops.max(initial=0))):
                self.active = outer & (starts <= j) & (j < stops)
                yield np.int64(j)
        finally:
            self.active = outer

    def reduce(self, op: str, bounds: Sequence[Any], term: Callable[[Any], Any]) -> Any:
        combine, start = _COMBINE[op]
        total: Any = None
        for j in self.loop(*bounds):
            value = np.asarray(term(j))
            if total is None:
                total = np.asarray(_first(op, value.dtype) if start is None else start, value.dtype)
            total = np.where(self.active, combine(total, value), total)
        return np.zeros(()) + (0 if start is None else start) if total is None else total

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def cast(self, x: Any, dtype: DType) -> Any:
        if dtype.is_16_bit:
            return np.asarray(x).astype(np.float32).astype(dtype.numpy).astype(np.float32)
        return np.asarray(x).astype(dtype.numpy)

    def extremum(self, name: str, a: Any, b: Any) -> Any:
        return (np.maximum if name == "max" else np.minimum)(a, b)

    def call(self, name: str, x: Any) -> Any:
        return np.asarray(_erf(x)).astype(np.asarray(x).dtype) if name == "erf" else getattr(np, name)(x)


def _first(op: str, dtype: np.dtype) -> Any:
    if dtype.kind == "f":
        return -np.inf if op == "max" else np.inf
    return np.iinfo(dtype).min if op == "max" else np.iinfo(dtype).max


def run(
    function: Callable[..., Any],
    domain: tuple[int, ...],
    inputs: Sequence[Any],
    outputs: Sequence[tuple[np.ndarray, DType]],
) -> None:
    """Fill `outputs`, each (array, dtype). An input is the same, or a plain value that the function takes as it is."""
    points = int(np.prod(domain))
    stepper = Stepper(points)
    arrays = [StepArray(stepper, *given) if isinstance(given, tuple) else given for given in inputs]
    results = [StepArray(stepper, *given) for given in outputs]
    with activate(stepper), np.errstate(all="ignore"):
        indices = np.unravel_index(np.arange(points), domain) if domain else ()
        function(*indices, *arrays, *results)
