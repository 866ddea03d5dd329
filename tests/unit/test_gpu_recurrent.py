"""Recurrent layers and the conditional random field on a GPU, run by the emulator, compared with the CPU."""

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.unit.lockstep import Lockstep


def results(make, run, device):
    """Results, and the gradients of the parameters."""
    weft.manual_seed(0)
    with weft.device("cpu"):
        layer = make()
        state = {key: value.numpy() for key, value in layer.state_dict().items()}
    with weft.device(device):
        layer = make()
        layer.load_state_dict(state)
        found = run(layer, lambda *shape: weft.tensor(np.random.default_rng(1).normal(size=shape).astype("float32")))
        floats = [one for one in found if one.dtype.kind == "f"]
        sum((one * one).sum() for one in floats).backward()
        return [one.detach().numpy() for one in [*found, *[param.grad for param in layer.parameters()]]]


def lstm(layer, draw):
    y, (h, c) = layer(draw(4, 2, 3), lengths=[4, 2])
    return y, h, c


def gru(layer, draw):
    return layer(draw(4, 2, 3))


def crf(layer, draw):
    emissions, mask = draw(2, 4, 3), weft.tensor([[True, True, True, False], [False, True, False, True]])
    return layer.nll(emissions, weft.tensor([[0, 1, 2, 0], [2, 1, 0, 1]]), mask), layer.decode(emissions, mask)


def images(layer, draw):
    y, (h, c) = layer(draw(2, 3, 2, 4, 3))
    return y, h, c


@pytest.mark.parametrize(
    ("make", "run"),
    [
        (lambda: nn.LSTM(3, 4, bidirectional=True), lstm),
        (lambda: nn.GRU(3, 4), gru),
        (lambda: nn.CRF(3), crf),
        (lambda: nn.ConvLSTM2d(2, 3), images),
    ],
    ids=["LSTM", "GRU", "CRF", "ConvLSTM2d"],
)
def test_results_and_gradients(make, run):
    for ours, expected in zip(results(make, run, Lockstep().device), results(make, run, "cpu"), strict=True):
        np.testing.assert_allclose(ours, expected, 1e-4, 1e-5)
