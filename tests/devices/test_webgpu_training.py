"""Training on a WebGPU device with what the specification guarantees and no more: eight buffers, no 64-bit numbers, 16
KiB of shared memory, 256 lanes. Losses and weights are those of the CPU, twice the same bits.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.devices.small_networks import SmallTraining
from tests.unit import webgpu_devices
from weft.plan.device import Device

STEPS = 5


def train(name: str, where: str | Device) -> tuple[list[float], list[np.ndarray]]:
    training = SmallTraining(name, where, lambda parameters: weft.optim.SGD(parameters, lr=0.05, momentum=0.9))
    losses = [training.step() for _ in range(STEPS)]
    return [loss.item() for loss in losses], [one.numpy() for one in training.model.parameters()]


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_trains_as_on_the_cpu(name):
    gpu = webgpu_devices.limited()
    losses, weights = train(name, gpu)
    expected, wanted = train(name, "cpu")
    np.testing.assert_allclose(losses, expected, 1e-5)
    largest = max(np.abs(one).max() for one in wanted)
    for found, other in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(found, other, 0, 1e-5 * max(np.abs(other).max(), 0.1 * largest))
    again, repeated = train(name, gpu)
    assert again == losses and all((a == b).all() for a, b in zip(weights, repeated, strict=True))
