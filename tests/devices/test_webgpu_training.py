"""Training on a WebGPU device with what the specification guarantees and no more: eight buffers, no 64-bit numbers, 16
KiB of shared memory, 256 lanes. Losses and weights are those of the CPU, twice the same bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft import nn
from weft.nn import functional as F
from weft.plan.device import Device

DRAW = np.random.default_rng(0)
IMAGES = DRAW.standard_normal((4, 1, 8, 8), dtype=np.float32)
SEQUENCES = DRAW.standard_normal((4, 6, 5), dtype=np.float32)
WORDS = DRAW.integers(0, 11, (3, 7))


class LastOfLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.out(self.layer(self.embed(x))).reshape(-1, 11)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], np.ndarray, np.ndarray]] = {
    "cnn": (cnn, IMAGES, np.arange(4) % 10),
    "lstm": (LastOfLstm, SEQUENCES, np.arange(4) % 10),
    "transformer": (Transformer, WORDS, np.arange(21) % 11),
}


class Training:
    """A model with its optimizer, and a compiled step."""

    def __init__(self, name: str, where: str | Device):
        make, x, y = MODELS[name]
        weft.manual_seed(0)
        self.model = make().to(where)
        self.optimizer = weft.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.x, self.y = weft.tensor(x, device=where), weft.tensor(y, device=where)
        self.step = weft.compile(self._step)

    def _step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, steps: int) -> tuple[list[float], list[np.ndarray]]:
        losses = [self.step(self.x, self.y) for _ in range(steps)]
        return [loss.item() for loss in losses], [parameter.numpy() for parameter in self.model.parameters()]


@pytest.mark.parametrize("name", MODELS)
def test_trains_as_on_the_cpu(name):
    gpu = webgpu_devices.limited()
    losses, weights = Training(name, gpu).run(5)
    expected, wanted = Training(name, "cpu").run(5)
    np.testing.assert_allclose(losses, expected, 1e-5)
    largest = max(np.abs(one).max() for one in wanted)
    for found, other in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(found, other, 0, 1e-5 * max(np.abs(other).max(), 0.1 * largest))
    again, repeated = Training(name, gpu).run(5)
    assert again == losses and all((a == b).all() for a, b in zip(weights, repeated, strict=True))
