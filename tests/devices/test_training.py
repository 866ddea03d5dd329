"""Training on devices that the CPU emulates: as on the CPU, resident, the same twice, without growth."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft
from tests.unit.networks import NETWORKS, Training
from weft.plan.device import Device

STEPS = 6
MANY_STEPS = 1000

by_network = pytest.mark.parametrize("name", NETWORKS)


def train(name: str, device: str | Device, steps: int = STEPS) -> np.ndarray:
    with weft.device(device):
        training = Training(name)
        return np.array([training.step().item() for _ in range(steps)])


def in_use(device: Device) -> int:
    gc.collect()
    device.backend.synchronise()
    return device.backend.bytes_in_use


@by_network
def test_learns_as_on_the_cpu_and_twice_the_same(name: str, emulated: Device):
    losses, expected = train(name, emulated), train(name, "cpu")
    np.testing.assert_allclose(losses, expected, 0, 1e-5 * np.abs(expected).max())
    assert losses.tolist() == train(name, emulated).tolist()


@by_network
def test_a_step_is_resident_and_everything_is_freed(name: str, emulated: Device):
    before_all = in_use(emulated)
    with weft.device(emulated):
        training = Training(name)
        for _ in range(4):
            training.step()
        before = weft.counters()
        for _ in range(5):
            training.step()
        emulated.backend.synchronise()
        after = weft.counters()
        moved = {key: after[key] - before[key] for key in ("uploads", "downloads", "plans_built", "traces")}
        assert not any(moved.values()), moved
        assert in_use(emulated) > before_all
    del training
    assert in_use(emulated) <= before_all


@pytest.mark.serial
def test_no_growth_over_a_thousand_steps(emulated: Device):
    with weft.device(emulated):
        x, y = weft.ones(4, 2), weft.zeros(4, 1)
        model = weft.nn.Sequential(weft.nn.Linear(2, 8), weft.nn.Tanh(), weft.nn.Linear(8, 1))
        optimizer = weft.optim.AdamW(model.parameters(), lr=1e-3)

        @weft.compile
        def step() -> weft.Tensor:
            loss = ((model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        def run(steps: int) -> tuple[int, int]:
            for _ in range(steps):
                loss = step()
            assert np.isfinite(loss.item())
            return in_use(emulated), emulated.backend.driver.reserved_bytes()

        used, reserved = run(50)
        later = run(MANY_STEPS)
        assert later[0] <= used and later[1] <= reserved
