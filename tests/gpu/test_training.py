"""Training on the GPU: like the CPU's, resident, and without growth."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft
from tests.unit.networks import NETWORKS, Training

by_network = pytest.mark.parametrize("name", NETWORKS)


def losses(name: str, device: str | weft.plan.device.Device, steps: int = 10, compiled: bool = True) -> np.ndarray:
    with weft.device(device):
        training = Training(name, compiled)
        return np.array([training.step().item() for _ in range(steps)])


@by_network
def test_learns_as_on_the_cpu(name, gpu):
    np.testing.assert_allclose(losses(name, gpu), losses(name, "cpu"), rtol=2e-4)


@by_network
def test_eager_has_the_bits_of_compiled(name, gpu):
    assert losses(name, gpu, 3).tolist() == losses(name, gpu, 3, compiled=False).tolist()


@by_network
def test_learns_in_16_bits(name, gpu):
    training = Training(name, narrow=weft.bfloat16)
    found = [training.step().item() for _ in range(30)]
    assert np.isfinite(found).all() and found[-1] < found[0]


@by_network
def test_a_step_is_resident(name, gpu):
    """Nothing goes over between host and device while a compiled step is replayed."""
    training = Training(name)
    for _ in range(3):
        training.step()
    before = weft.counters()
    for _ in range(20):
        loss = training.step()
    gpu.backend.synchronise()
    after = weft.counters()
    assert {key: after[key] - before[key] for key in ("uploads", "downloads", "plans_built", "traces")} == {
        "uploads": 0, "downloads": 0, "plans_built": 0, "traces": 0,
    }  # fmt: skip
    assert after["plans_run"] - before["plans_run"] == 20
    assert np.isfinite(loss.item())


# ---- memory ---------------------------------------------------------------------------------------------------------


def in_use(gpu) -> int:
    gc.collect()
    gpu.backend.synchronise()
    return gpu.backend.bytes_in_use


@pytest.mark.serial
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_no_growth_over_a_thousand_steps(compiled, gpu):
    training = Training("mlp", compiled)
    kept = []

    def run(steps: int) -> int:
        for _ in range(steps):
            kept[:] = [training.step(), *kept[:5]]
        return in_use(gpu)

    held = run(50)
    free = gpu.backend.memory()[0]
    assert run(1000) <= held
    assert free - gpu.backend.memory()[0] <= 8 << 20


@by_network
def test_everything_is_freed_when_tensors_die(name, gpu):
    before = in_use(gpu)
    training = Training(name)
    for _ in range(4):
        training.step()
    assert in_use(gpu) > before
    del training
    assert in_use(gpu) <= before


def test_everything_is_freed_after_an_exception(gpu):
    before = in_use(gpu)

    def fails() -> None:
        x = weft.ones(1000, 1000)
        y = (x + 1).exp()
        weft.eval(y)
        index = weft.tensor([3, 1000])
        (y[index] * 2).numpy()

    with pytest.raises(weft.IndexRangeError):
        fails()
    assert in_use(gpu) <= before
    assert weft.ones(3).sum().item() == 3.0
