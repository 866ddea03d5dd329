"""What is computed in float64 elsewhere, on a device that has none (WebGPU with the least that it guarantees)."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft.optim.adam import _average_lengths
from weft.plan.device import Device

LONGEST = 1 << 20  # steps


@pytest.fixture
def limited() -> Device:
    return webgpu_devices.limited()


@pytest.mark.parametrize("beta", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999])
def test_lengths_of_averages_of_rectified_adam(limited, beta):
    steps = np.unique(np.geomspace(1, LONGEST, 60).astype(np.int64))
    rate = np.float32(beta)
    length, longest, bias = _average_lengths(
        weft.tensor(rate, device=limited), weft.tensor(steps.astype(np.float32), device=limited)
    )
    wide, t = float(rate), steps.astype(np.longdouble)
    power = np.exp(t * np.log(np.longdouble(wide)))
    expected = 2 / (1 - np.longdouble(wide)) - 1 - 2 * t * power / (1 - power)
    np.testing.assert_allclose(length.numpy(), expected.astype(np.float64), 4e-6)
    np.testing.assert_allclose(bias.numpy(), (1 - power).astype(np.float64), 2e-6)
    np.testing.assert_allclose(longest.numpy(), 2 / (1 - wide) - 1, 1e-6)


def test_rectified_adam_trains_as_on_the_cpu(limited):
    def train(device: str | Device) -> np.ndarray:
        weight = weft.tensor(np.linspace(-1, 1, 7, dtype=np.float32), device=device, requires_grad=True)
        optimizer = weft.optim.RAdam([weight], lr=0.05)
        for _ in range(9):  # the sixth is the first that is rectified
            optimizer.zero_grad()
            (weight.sin() * weight).sum().backward()
            optimizer.step()
        return weight.detach().numpy()

    np.testing.assert_allclose(train(limited), train("cpu"), 1e-5, 1e-6)


def test_the_readout_of_a_reservoir_is_solved_on_the_host(limited):
    draw = np.random.default_rng(0)
    states, targets = draw.standard_normal((20, 4)).astype(np.float32), draw.standard_normal((20, 2)).astype(np.float32)
    fit = weft.nn.Reservoir.fit_ridge
    found = fit(weft.tensor(states, device=limited), weft.tensor(targets, device=limited), 1e-3)
    assert found.device is limited
    np.testing.assert_allclose(found.numpy(), fit(weft.tensor(states), weft.tensor(targets), 1e-3).numpy(), 1e-5)
