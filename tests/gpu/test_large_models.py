"""1.2 GB of parameters are trained as on the CPU, and their memory is given back: in 18 layers, and in one tensor. The
same tests run in a tiny size on any device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import weft
from weft import nn
from weft.base.errors import size_text
from weft.nn import functional as F
from weft.plan.device import Device

BATCH = 8
MAX_ERROR = 1e-4  # of a loss, relative to the CPU's


@dataclass(frozen=True)
class Size:
    """Of the stack of layers: `layers` of `width`; of the single matrix: `outputs` x `inputs`."""

    nbytes: int  # that each has at least
    layers: int
    width: int
    outputs: int
    inputs: int


TINY = Size(40_000, 3, 64, 80, 130)
LARGE = Size(1_200_000_000, 18, 4096, 4608, 65536)
by_size = pytest.mark.parametrize(
    "size",
    [
        pytest.param(TINY, id="tiny"),
        pytest.param(LARGE, id="large", marks=[pytest.mark.serial, pytest.mark.slow, pytest.mark.needs("hardware")]),
    ],
)


class Stack(nn.Module):
    """Layers of one width, each of which adds to what it gets, so that all of them matter to the loss."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


class Training:
    """A model on a device, from the same seed and on the same batch everywhere. `steps` gives the losses."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        make_optimizer: Callable[[Iterator[weft.Tensor]], weft.optim.Optimizer],
        shape: tuple[int, int],
        device: str | Device,
    ):
        outputs, inputs = shape
        rng = np.random.default_rng(0)
        self.device = device
        with weft.device(device):
            weft.manual_seed(0)
            self.model = make_model()
            self.optimizer = make_optimizer(self.model.parameters())
            self.batch = [weft.tensor(rng.standard_normal((BATCH, n), dtype=np.float32)) for n in (inputs, outputs)]
        self.nbytes = sum([one.numel() * 4 for one in self.model.parameters()])

        @weft.compile
        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss

        self.step = step

    def steps(self, count: int) -> list[float]:
        with weft.device(self.device):
            return [self.step(*self.batch).item() for _ in range(count)]


def bytes_in_use(gpu: Device) -> int:
    gc.collect()
    gpu.backend.synchronise()
    return gpu.backend.bytes_in_use


def assert_trains_as_on_the_cpu(make: Callable[[str | Device], Training], nbytes: int, steps: int, gpu: Device) -> None:
    """The losses of both fall and agree; `nbytes` of parameters are on the GPU, and nothing is when they are gone."""
    before = bytes_in_use(gpu)
    training = make(gpu)
    found = training.steps(steps)
    assert training.nbytes >= nbytes and bytes_in_use(gpu) - before >= nbytes
    del training
    assert bytes_in_use(gpu) <= before
    gpu.backend.empty_cache()
    np.testing.assert_allclose(found, make("cpu").steps(steps), rtol=MAX_ERROR)
    assert found == sorted(found, reverse=True) and found[-1] < 0.99 * found[0]


@by_size
def test_many_layers(size: Size, gpu: Device):
    def make(device: str | Device) -> Training:
        return Training(
            lambda: Stack(size.layers, size.width),
            lambda parameters: weft.optim.AdamW(parameters, lr=0.03 / size.width),
            (size.width, size.width),
            device,
        )

    assert_trains_as_on_the_cpu(make, size.nbytes, 3, gpu)


@by_size
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_one_tensor(optimizer: str, size: Size, gpu: Device):
    most = gpu.limits.allocation_bytes
    if most and most < size.nbytes:
        pytest.skip(f"{gpu} has allocations of at most {size_text(most)}")
    # So that a step changes results by about a tenth, whatever the size.
    rate = 0.5 * size.outputs / size.inputs if optimizer == "SGD" else 0.1 / size.inputs

    def make(device: str | Device) -> Training:
        return Training(
            lambda: nn.Linear(size.inputs, size.outputs, bias=False),
            lambda parameters: getattr(weft.optim, optimizer)(parameters, lr=rate),
            (size.outputs, size.inputs),
            device,
        )

    assert_trains_as_on_the_cpu(make, size.nbytes, 2, gpu)
