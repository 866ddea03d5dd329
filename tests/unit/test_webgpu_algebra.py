"""Expressions that compilers of WGSL may simplify, computed by WebGPU as they are written, operation by operation as
NumPy does it in float32: with NaN, infinities and zeros of both signs. Where wgpu finds an adapter (Mesa's lavapipe is
one): each of these was simplified by the compiler of lavapipe or of SwiftShader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices

# No result is below the normal range, where devices may compute 0.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-6, -1e20, 1e8,
           0.99999994, 3.1, -7.3, -104.0, 88.7]  # fmt: skip
Expression = Callable[[Any, Any, Any], Any]  # of two operands and of what has the functions: Weft or NumPy


def as_float(given: Any) -> Any:
    return given.astype(np.float32) if isinstance(given, np.ndarray) else given.float()


def as_integer(condition: Any) -> Any:
    return condition.astype(np.int32) if isinstance(condition, np.ndarray) else condition.int()


EXPRESSIONS: dict[str, Expression] = {
    "a number times a condition": lambda p, q, m: p * as_float(p < q),
    "a quotient by a condition": lambda p, q, m: p / as_float(p < q),
    "a quotient of equal conditions": lambda p, q, m: as_float(p < p) / as_float(p < p),
    "a number times a choice of constants": lambda p, q, m: p * m.where(p < q, m.ones_like(p), m.zeros_like(p)),
    "a number times -1 or 0": lambda p, q, m: p * m.where(p < q, -m.ones_like(p), m.zeros_like(p)),
    "a number times an integer that is 0": lambda p, q, m: p * as_float(as_integer(p < p)),
    "products of two orders": lambda p, q, m: p * q - q * p,
    "sums of two orders": lambda p, q, m: (p + q) - (q + p),
    "a sum with its negative": lambda p, q, m: -p + p,
    "a choice and what it may be": lambda p, q, m: m.where(p < p, q, p) - p,
    "a reciprocal of a reciprocal": lambda p, q, m: 1 / (1 / p),
    "a number times its reciprocal": lambda p, q, m: p * (1 / p),
    "a quotient times its divisor": lambda p, q, m: p / q * q,
    "a product by its factor": lambda p, q, m: p * q / q,
    "a product of equal roots": lambda p, q, m: m.sqrt(p) * m.sqrt(p),
    "the size of a root": lambda p, q, m: m.abs(m.sqrt(p)),
    "the size of a root's floor": lambda p, q, m: m.abs(m.floor(m.sqrt(p))),
    "a negative sum": lambda p, q, m: -(p + -1.0),
    "a negative difference": lambda p, q, m: -(p - q),
    "a sum less its part": lambda p, q, m: (p + q) - p,
    "no comparison": lambda p, q, m: as_float(~(p < q)),
    "two comparisons": lambda p, q, m: as_float((p < q) & (p < -q)),
    "one of two comparisons": lambda p, q, m: as_float((p == 0) | (q == 0)),
}


@pytest.mark.parametrize("kind", ["device", "limited"])
def test_expressions_are_computed_as_they_are_written(kind):
    device = getattr(webgpu_devices, kind)()
    values = np.array(SPECIAL, np.float32)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values))
    x, y = weft.tensor(a, device=device), weft.tensor(b, device=device)
    computed = {name: expression(x, y, weft) for name, expression in EXPRESSIONS.items()}
    weft.eval(*computed.values())
    for name, expression in EXPRESSIONS.items():
        with np.errstate(all="ignore"):
            expected = np.asarray(expression(a, b, np), np.float32)
        found = computed[name].numpy()
        np.testing.assert_array_equal(found, expected, err_msg=name)
        is_number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[is_number]), np.signbit(expected[is_number]), err_msg=name)
