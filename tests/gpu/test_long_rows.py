"""Rows too long for registers, on a GPU: more of them than resident workgroups, so that each workgroup prefetches.

Their lengths are multiples of 16 bytes and not; whole rows and parts of them lie in shared memory; the exponential of a
difference, which is not computed to the last bit, is right for all that a softmax asks of it.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.nn.functional as F

ROWS = 600
DTYPES = pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16], ids=lambda dtype: dtype.name)


def in_float64(x: weft.Tensor) -> np.ndarray:
    return x.to("cpu").double().numpy()  # a GPU may have no float64


def drawn(columns: int, dtype) -> tuple[weft.Tensor, np.ndarray]:
    """Logits, and what they are in float64."""
    array = np.random.default_rng(columns).standard_normal((ROWS, columns), dtype=np.float32) * 3
    x = weft.tensor(array).to(dtype)
    return x, in_float64(x)


@DTYPES
@pytest.mark.parametrize("columns", [20011, 50257, 50304, 130001])
def test_cross_entropy(dtype, columns):
    x, exact = drawn(columns, dtype)
    classes = np.random.default_rng(1).integers(0, columns, ROWS)
    classes[:3], classes[7::50] = [0, columns - 1, columns // 2], -100
    step = weft.compile(weft.value_and_grad(lambda x, classes: F.cross_entropy(x.float(), classes)))
    loss, gradient = step(x, weft.tensor(classes))
    known = classes >= 0
    y = np.exp(exact - exact.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    np.testing.assert_allclose(loss.item(), -np.log(y[known, classes[known]]).mean(), rtol=1e-5)
    y[known, classes[known]] -= 1
    want = y * known[:, None] / known.sum()
    rounding = 2.0**-8 if dtype is weft.bfloat16 else 2e-5
    np.testing.assert_allclose(in_float64(gradient), want, rtol=rounding, atol=1e-7 * np.abs(want).max())
    again = step(x, weft.tensor(classes))[1]
    assert again.numpy().tobytes() == gradient.numpy().tobytes()


@DTYPES
@pytest.mark.parametrize("columns", [20011, 50304])
def test_layer_norm_and_log_softmax(dtype, columns):
    x, exact = drawn(columns, dtype)
    rounding = 2.0**-8 if dtype is weft.bfloat16 else 1e-5
    centred = exact - exact.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(in_float64(F.layer_norm(x, (columns,))), want, rtol=rounding, atol=1e-5)
    below = exact - exact.max(1, keepdims=True)
    want = below - np.log(np.exp(below).sum(1, keepdims=True))
    # The logarithm of a sum near 1 has the rounding errors of the sum, however small it is itself.
    np.testing.assert_allclose(in_float64(x.log_softmax(-1)), want, rtol=rounding, atol=1e-6)


def test_exponential_of_a_difference():
    """As if the difference had been rounded once more; 0 below the normal range."""
    a = np.linspace(-100, 85, 1 << 16, dtype=np.float32)
    b = np.float32(0.3)
    difference = (a - b).astype(np.float64)
    found = in_float64((weft.tensor(a) - weft.tensor(b)).exp())
    normal = difference > -87.3
    error = np.abs(found / np.exp(difference) - 1)[normal]
    assert (error <= 3e-7 + 8e-8 * np.abs(difference[normal])).all(), error.max()
    assert (np.abs(found - np.exp(difference))[~normal] < 1.2e-38).all()
    special = weft.tensor(np.array([np.inf, -np.inf, np.nan, 200.0], np.float32)) - weft.tensor(b)
    np.testing.assert_array_equal(special.exp().numpy(), [np.inf, 0, np.nan, np.inf])
