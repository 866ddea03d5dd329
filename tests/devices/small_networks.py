"""The smallest networks that have the layers in question, to be trained for many steps on devices that are slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import weft
from weft import nn
from weft.nn import functional as F
from weft.plan.device import Device

DRAW = np.random.default_rng(0)
VECTORS = DRAW.standard_normal((4, 6), dtype=np.float32)
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


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10)
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], np.ndarray, np.ndarray]] = {
    "mlp": (mlp, VECTORS, np.arange(4) % 10),
    "cnn": (cnn, IMAGES, np.arange(4) % 10),
    "lstm": (LastOfLstm, SEQUENCES, np.arange(4) % 10),
    "transformer": (Transformer, WORDS, np.arange(21) % 11),
}


class SmallTraining:
    """A model with its optimizer, and a compiled step on the first `samples` of its data."""

    def __init__(
        self, name: str, where: str | Device, make_optimizer: Callable[..., weft.optim.Optimizer], samples: int = 4
    ):
        make, x, y = MODELS[name]
        x, y = x[:samples], y[: samples * len(y) // len(x)]
        weft.manual_seed(0)
        self.model = make().to(where)
        self.optimizer = make_optimizer(self.model.parameters())
        self.x, self.y = weft.tensor(x, device=where), weft.tensor(y, device=where)
        self._compiled = weft.compile(self._step)

    def _step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def step(self) -> weft.Tensor:
        return self._compiled(self.x, self.y)

    def state(self) -> list[np.ndarray]:
        """All parameters and buffers as they are now."""
        return [value.numpy().copy() for value in self.model.state_dict().values()]
