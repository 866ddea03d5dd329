"""Winograd's minimal filtering F(2, 3): three taps for two adjacent pixels by four products instead of six.

With pixels d0 to d3 of a line, weights w0 to w2 and results y0 and y1,

    x = (d0 - d2, (d1 + d2) / 2, (d2 - d1) / 2, d3 - d1)      v = (w0, w0 + w1 + w2, w0 - w1 + w2, w2)
    m = sums of x * v over channels and further taps           y = (m0 + m1 + m2, m1 - m2 + m3)

All factors are powers of two. Sums of two pixels are rounded before they are multiplied, but chains of additions are
shorter: errors relative to the largest products of a window are those of six products or smaller (tested). A weight of
exactly 0 does not take its pixel out of the rounding. The gradients of y by w are the transposed formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

PIXELS, TAPS, PARTS = 2, 3, 4
DATA = ((1, 0, -1, 0), (0, 0.5, 0.5, 0), (0, -0.5, 0.5, 0), (0, -1, 0, 1))  # of four pixels: the parts of x
WEIGHTS = ((1, 0, 0), (1, 1, 1), (1, -1, 1), (0, 0, 1))  # of three weights: the parts of v
RESULTS = ((1, 1, 1, 0), (0, 1, -1, 1))  # of the four sums: two pixels
SLOPES = tuple(zip(*RESULTS, strict=True))  # of the gradients of two pixels: the factors of the parts of x
TAP_SUMS = tuple(zip(*WEIGHTS, strict=True))  # of the four sums of these products: the gradients of the weights

Value = TypeVar("Value")


def signed_sum(row: Sequence[float], values: Sequence[Value], write: Callable[[str, Value, Value], Value]) -> Value:
    """The sum of `values` with the signs of `row`; `write` gives the result of an 'add' or a 'sub'."""
    terms = list(zip(row, values, strict=True))
    first, *others = [value for factor, value in terms if factor > 0]
    total = first
    for value in others:
        total = write("add", total, value)
    for value in [value for factor, value in terms if factor < 0]:
        total = write("sub", total, value)
    return total
