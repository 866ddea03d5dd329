"""Numbers that adjacent vector lanes share, in LLVM IR, compiled and run against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.kernel_harness import begin, call, end, load, op
from weft.base import dtypes
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    IndexValue,
    Loop,
    Store,
)


class Number:
    """An index that is written like a number."""

    def __init__(self, index):
        self.index = index

    def __floordiv__(self, divisor):
        return Number(self.index // divisor)

    def __mod__(self, divisor):
        return Number(self.index % divisor)

    def __rmul__(self, factor):
        return Number(self.index * factor)

    def __add__(self, other):
        return Number(self.index + (other.index if isinstance(other, Number) else ix.const(other)))


LANE_PATTERNS = {
    "a value for four lanes": lambda i: i // 4,
    "a value for eight lanes": lambda i: 5 * (i // 8) + 3,
    "a value for all lanes": lambda i: i // 32,
    "places among four": lambda i: i % 4,
    "shifted places": lambda i: 16 * ((i + 3) % 4) + 1,
    "both": lambda i: 100 * (i // 4) + i % 2,
    "uneven": lambda i: (i + 1) // 4,
    "thirds": lambda i: i // 3 + i % 3,
}


@pytest.mark.parametrize("width", [4, 8, 32])
@pytest.mark.parametrize("name", LANE_PATTERNS)
def test_lanes_that_share_a_number(name, width):
    """Numbers that adjacent lanes share are computed once for them, and are combined with those of the others."""
    n, first = 75, 32

    formula = LANE_PATTERNS[name]
    i = Axis("i", 1000)
    shared = IndexValue(formula(Number(axis_index(i))).index, dtypes.uint32)
    squared = op("mul", shared, shared)
    mixed = op("add", squared, IndexValue(axis_index(i), dtypes.uint32))
    for start, multiple in ((begin, 32), (begin, 1), (first, 1)):
        out, plain = np.zeros(n, np.uint32), np.zeros(n, np.uint32)
        stores = (Store("out", axis_index(i), mixed), Store("plain", axis_index(i), squared))
        body = (Loop(i, start, end, "vector", stores, width, multiple),)
        call("shared", {}, {"out": out, "plain": plain}, body, (first, n))
        numbers = np.arange(first, n)
        expected = formula(numbers) ** 2
        assert (plain[first:] == expected).all() and not plain[:first].any()
        assert (out[first:] == expected + numbers).all()


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.int64])
def test_lanes_share_a_row_that_they_read(dtype):
    """A number that adjacent lanes share may be named, and be an index for each of them."""
    n, i, row = 75, Axis("i", 1000), Axis("row", 10, "value")
    x, out = np.arange(80, dtype=np.float32), np.zeros(n, np.float32)
    place = row * 8 + i % 8
    body = (Loop(i, begin, end, "vector", (Store("out", axis_index(i), load("x", place)),), 32, 32),)
    named = {"row": IndexValue(i // 8, dtype)}
    call("rows", {"x": x}, {"out": out}, body, (0, n), named)
    assert (out == x[:n]).all()
