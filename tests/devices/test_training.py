"""Training on devices that the CPU emulates: as on the CPU, resident, the same twice, without growth."""

from __future__ import annotations

import gc
from collections import Counter

import numpy as np
import pytest

import weft
from tests.devices import small_networks
from tests.devices.small_networks import SmallTraining
from tests.unit.live_objects import count_wgpu_objects
from tests.unit.networks import NETWORKS, Training
from weft.backends.opencl.driver import _Event, _Kernel
from weft.plan.device import Device

STEPS = 6
FIRST_STEPS = 60  # after which everything is compiled and captured
MANY_STEPS = 1000
STEADY = ("uploads", "downloads", "traces", "plans_built", "plans_reused", "kernels_compiled", "kernels_reused")

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


def retained_objects(device: Device) -> dict[str, int]:
    """How much is kept: memory, what the driver's tables hold, its runtime's objects, and objects of Python."""
    used, driver = in_use(device), device.backend.driver
    found = {"bytes in use": used, "bytes reserved": driver.reserved_bytes()}
    found |= {"Python's objects": len(gc.get_objects())}
    if device.kind == "webgpu":
        tables = {"bind groups": driver._groups, "offsets": driver._offsets, "commands": driver._commands}
        return found | count_wgpu_objects() | {name: len(table) for name, table in tables.items()}
    kinds = Counter(type(one).__name__ for one in gc.get_objects() if type(one) in (_Kernel, _Event))
    tables = {"functions": driver._functions, "memory": driver.pool._handles, "dropped": driver.dropped}
    return found | kinds | {name: len(table) for name, table in tables.items()}


@pytest.mark.serial
@pytest.mark.parametrize("name", small_networks.MODELS)
def test_no_growth_over_a_thousand_steps(name: str, emulated: Device):
    def make() -> SmallTraining:
        return SmallTraining(name, emulated, lambda parameters: weft.optim.AdamW(parameters, lr=1e-3), samples=1)

    def run(training: SmallTraining, steps: int) -> float:
        for _ in range(steps):
            loss = training.step()
        return loss.item()

    before_all = in_use(emulated)
    training = make()
    run(training, FIRST_STEPS)
    state = training.state()
    run(training, FIRST_STEPS)
    retained, counters = retained_objects(emulated), weft.counters()
    counters["downloads"] += 1  # of the last loss
    last = run(training, MANY_STEPS)
    moved = {key: value - counters[key] for key, value in weft.counters().items()}
    assert not any(moved[key] for key in STEADY), moved
    assert moved["plans_run"] == MANY_STEPS
    grown = {key: (retained.get(key, 0), value) for key, value in retained_objects(emulated).items()}
    first, after = grown.pop("Python's objects")
    assert after < first + MANY_STEPS / 2  # less than one for each step: something is imported late
    assert all(after <= first for first, after in grown.values()), grown
    assert np.isfinite(last)

    del training
    assert in_use(emulated) <= before_all
    again = make()
    run(again, FIRST_STEPS)
    assert all(one.tobytes() == other.tobytes() for one, other in zip(state, again.state(), strict=True))
