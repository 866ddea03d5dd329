"""Random numbers on a device without float64 (WebGPU with the least that it guarantees): distributions that are drawn
in float64 elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft.plan.device import Device

COUNT = 20_000


@pytest.fixture
def limited() -> Device:
    weft.manual_seed(0)
    return webgpu_devices.limited()


def shares(indices: weft.Tensor, extent: int) -> np.ndarray:
    """How often each index is there, in parts of all."""
    return np.bincount(indices.numpy().ravel(), minlength=extent) / indices.numel()


@pytest.mark.parametrize("p", [0.0, 0.3, 1e-12, 0.999, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_bernoulli_numbers_are_those_of_the_cpu(limited, p, dtype):
    found, expected = [], []
    for device, results in ((limited, found), ("cpu", expected)):
        weft.manual_seed(3)
        results += [weft.zeros(1001, dtype=getattr(weft, dtype), device=device).bernoulli_(p).numpy() for _ in range(2)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e37])
def test_categories_are_drawn_with_the_probabilities_of_their_weights(limited, scale):
    weights = np.array([[0, 1, 2, 0, 5, 0], [0, 0, 0, 0, 0, 7], [3, 3, 3, 3, 3, 3]], np.float32) * np.float32(scale)
    drawn = weft.multinomial(weft.tensor(weights, device=limited), COUNT, replacement=True)
    assert drawn.shape == (3, COUNT) and drawn.dtype is weft.int64
    for row, weight in zip(drawn, weights.astype(np.float64), strict=True):
        expected = weight / weight.sum()
        found = shares(row, 6)
        assert (found[expected == 0] == 0).all()
        np.testing.assert_allclose(found, expected, 0, 5 * 0.5 / COUNT**0.5)


def test_many_categories_and_small_weights(limited):
    weights = np.ones(50_000, np.float32)
    drawn = weft.multinomial(weft.tensor(weights, device=limited), COUNT, replacement=True).numpy()
    assert drawn.min() < 20 and drawn.max() > 49_980 and abs(drawn.mean() - 25_000) < 500
    rare = weft.tensor(np.array([1.0, 1e-3, 0.0], np.float32), device=limited)
    found = shares(weft.multinomial(rare, COUNT, replacement=True), 3)
    assert 0 < found[1] < 3e-3 and found[2] == 0


def test_different_categories(limited):
    weights = np.tile(np.array([1, 0, 2, 4, 0, 1], np.float32), (2000, 1))
    drawn = weft.multinomial(weft.tensor(weights, device=limited), 4).numpy()
    assert (np.sort(drawn, 1) == np.array([0, 2, 3, 5])).all()
    np.testing.assert_allclose(np.bincount(drawn[:, 0], minlength=6) / 2000, weights[0] / 8, 0, 0.06)


def test_tokens_are_sampled(limited):
    logits = np.log(np.tile(np.array([0.5, 0.25, 0.15, 0.1], np.float32), (COUNT, 1)))
    found = weft.generation.sample(weft.tensor(logits, device=limited), top_k=3)
    np.testing.assert_allclose(shares(found, 4), [5 / 9, 5 / 18, 1 / 6, 0], 0, 0.02)


def test_integers_of_a_geometric_distribution(limited):
    found = weft.zeros(COUNT, dtype=weft.int64, device=limited).geometric_(0.3).numpy()
    assert found.min() == 1 and abs(found.mean() - 1 / 0.3) < 0.1
