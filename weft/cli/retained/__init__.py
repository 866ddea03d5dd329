"""Checks that what a compiled function has returned keeps its value as long as something refers to it.

A compiled function writes its next result into the memory of the last one when nothing refers to that any more. How an
interpreter counts and borrows references must not matter, so these checks retain results, gradients, views, NumPy
arrays and DLPack capsules in every way that Python has, call the function again, and read. They need nothing but Weft's
own dependencies: `python -m weft.cli.retained` runs them on any interpreter; `weft doctor` and the test suite do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import weft
from weft.core.tensor import Tensor

SIZES = (4, 1000)  # elements: results whose memory is copied when read, and such as are shared with NumPy
CHECKS: dict[str, Callable[[Case], None]] = {}
REPLAYS = 3  # after something is retained: one for each piece of memory that a function keeps, and one more


def check(function: Callable[[Case], None]) -> Callable[[Case], None]:
    CHECKS[function.__name__] = function
    return function


class Case:
    """Compiled functions whose results tell which call made them: all elements of the k-th are k."""

    def __init__(self, size: int):
        self.size, self.calls = size, 0
        self.counter = weft.zeros(size)
        self.weight = weft.zeros(size, requires_grad=True)
        self.one = weft.ones(size)
        weft.eval(self.counter, self.weight, self.one)

        def count(x: Tensor) -> Tensor:
            self.counter.add_(x)
            return self.counter * 1.0

        def count_several(x: Tensor) -> tuple:
            self.counter.add_(x)
            return self.counter * 1.0, {"double": self.counter * 2.0, "rest": [self.counter * 3.0, "text"]}

        def differentiate(x: Tensor) -> Tensor:
            self.counter.add_(x)
            self.weight.grad = None
            loss = (self.weight * self.counter).sum()
            loss.backward()
            return loss

        # traced when they are first called
        self._step, self._several = weft.compile(count), weft.compile(count_several)
        self._differentiate = weft.compile(differentiate)

    def step(self) -> Tensor:
        """The next result."""
        self.calls += 1
        return self._step(self.one)

    def several(self) -> tuple:
        """The next results: (k, {'double': 2 k, 'rest': [3 k, 'text']})."""
        self.calls += 1
        return self._several(self.one)

    def differentiate(self) -> Tensor:
        """Leaves k as the gradient of the weight."""
        self.calls += 1
        return self._differentiate(self.one)

    def replay(self, times: int = REPLAYS) -> None:
        """Call everything again; what it returns is dropped at once."""
        functions = [self.step, *([self.several] if self._several.variants else [])]
        for function in functions:
            for _ in range(times):
                function()
            for _ in range(times):
                kept = function()  # as in a loop that holds each result until the next is there
        del kept


def expect(value: Any, *expected: float) -> None:
    """Assert that a tensor or an array, or each of a sequence of them, is the expected number all over."""
    values = [value] if isinstance(value, (Tensor, np.ndarray)) else list(value)
    found = []
    for one in values:
        array = np.asarray(one)
        found.append(float(array.reshape(-1)[0]) if array.min() == array.max() else array.tolist())
    if found != list(map(float, expected)):
        raise AssertionError(f"retained {', '.join(map(str, expected))}, and found {', '.join(map(str, found))}")


def all_checks() -> dict[str, Callable[[Case], None]]:
    """The checks by name."""
    from weft.cli.retained import control_flow, names, objects, values  # noqa: F401 (each adds its own)

    return CHECKS


def failures() -> Iterator[tuple[str, str]]:
    """(check, what is wrong) for each check that fails."""
    for name, function in all_checks().items():
        for size in SIZES:
            try:
                function(Case(size))
            except Exception as error:
                yield f"{name}[{size}]", f"{type(error).__name__}: {error}"
