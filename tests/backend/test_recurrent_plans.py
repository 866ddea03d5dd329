"""Plans of recurrent layers: how many kernels and how much memory they take."""

import copy

import numpy as np
import pytest

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.backend.compiling import numbers
from tests.backend.recurrent import gru_step, lstm_step, rnn_step
from tests.backend.test_recurrent_layers import DIRECTIONS, KINDS, leaves

pytestmark = pytest.mark.usefixtures("on_each_device")


def plain(kind, layer):
    """The same computation, written with tensors."""
    wi, wh, bi, bh = layer.all_weights[0]

    def run(x):
        first = weft.zeros(x.shape[1], wh.shape[1])
        if kind == "LSTM":
            (h, c), y = weft.loop(lstm_step(wh), (first, first), F.linear(x, wi, bi + bh))
            return y, (h, c)
        if kind == "GRU":
            h, y = weft.loop(gru_step(wh, bh), first, F.linear(x, wi, bi))
        else:
            h, y = weft.loop(rnn_step(wh), first, F.linear(x, wi, bi + bh))
        return y, h

    return run


def plans(function, layer, x):
    """The plans of a forward pass, and of one with gradients."""

    def forward(x):
        with weft.no_grad():
            return leaves(function(x))

    def backward(x):
        y, state = function(x)
        loss = y.sum() + sum(one.sum() for one in leaves(state))
        loss.backward()
        return loss

    found = []
    for one in (forward, backward):
        layer.zero_grad()
        compiled = weft.compile(one)
        compiled(x)
        found.append(compiled.plan)
    return found


def summary(plan):
    inside = sorted(kernel.name for kernel in plan.kernels() if kernel.times > 1)
    return len(plan), inside, plan.bytes, plan.memory().arena_bytes


@pytest.mark.parametrize("kind", KINDS)
def test_plans_are_those_of_plain_tensor_code(kind):
    weft.manual_seed(0)
    layer, x = getattr(nn, kind)(32, 64), weft.tensor(numbers(12, 16, 32))
    for one, other in zip(plans(layer, layer, x), plans(plain(kind, layer), layer, x), strict=True):
        assert summary(one) == summary(other), f"{one}\n{other}"


@pytest.mark.cpu_only
def test_kernels_of_an_lstm_layer():
    """Per time step a product and the cell; backward at most four kernels; the weights' gradients are outside."""
    weft.manual_seed(0)
    layer, x = nn.LSTM(32, 64), weft.tensor(numbers(12, 16, 32))
    forward, backward = plans(layer, layer, x)
    assert sum(kernel.times == 12 for kernel in forward.kernels()) == 2
    assert sum(kernel.times == 12 for kernel in backward.kernels()) <= 2 + 4


@pytest.mark.cpu_only  # a GPU joins small launches, and which are small follows from the length
@pytest.mark.parametrize("kind", KINDS)
def test_plans_do_not_grow_with_the_length(kind):
    weft.manual_seed(0)
    layer = getattr(nn, kind)(16, 32)
    short, middle, long = (plans(layer, layer, weft.tensor(numbers(time, 16, 16))) for time in (8, 64, 256))
    assert len(short[0]) == len(middle[0]) == len(long[0])
    assert len(middle[1]) == len(long[1])  # sums and products over more than 64 rows are cut in pieces


@pytest.mark.cpu_only
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [False, True])
def test_what_runs_at_each_step_does_not_depend_on_the_length(kind, lengths):
    weft.manual_seed(0)
    layer = getattr(nn, kind)(8, 16, **DIRECTIONS)
    found, ends = [], weft.tensor([8, 3, 1, 5])
    for time in (8, 64):
        x = weft.tensor(numbers(time, 4, 8))
        function = (lambda x: layer(x, lengths=ends)) if lengths else layer
        found.append([
            [kernel.source or kernel.name for kernel in plan.kernels() if kernel.times == time]
            for plan in plans(function, layer, x)
        ])  # fmt: skip
    assert found[0] == found[1] and all(len(inside) >= 4 for inside in found[0])


@pytest.mark.cpu_only
def test_other_loops_do_not_grow_with_the_length():
    crf, images = nn.CRF(3), nn.ConvLSTM2d(2, 3)
    functions = {
        "nll": lambda e: crf.nll(e, weft.zeros(*e.shape[:2], dtype=weft.int64)),
        "decode": crf.decode,
        "images": lambda x: images(x.reshape(*x.shape[:2], 1, 1, 3).expand(-1, -1, 2, 2, 3))[0],
    }
    for name, function in functions.items():
        found = []
        for time in (8, 64):
            compiled = weft.compile(function)
            compiled(weft.tensor(numbers(4, time, 3)))
            kernels = compiled.plan.kernels()
            found.append([kernel.source or kernel.name for kernel in kernels if kernel.times == time])
        assert found[0] == found[1] and found[0], name


def test_eager_and_compiled_have_the_same_bits():
    weft.manual_seed(0)
    layer = nn.LSTM(8, 16, **DIRECTIONS)
    other = copy.deepcopy(layer)
    x = weft.tensor(numbers(9, 4, 8))

    def step(module, x):
        y, (h, _) = module(x, lengths=weft.tensor([9, 3, 1, 5]))
        loss = y.square().mean() + h.sum()
        loss.backward()
        return loss

    loss = weft.compile(lambda x: step(layer, x))(x)
    assert loss.item() == step(other, x).item()
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(one.grad.numpy(), two.grad.numpy())


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("form", ["", "Cell"])
def test_states_of_a_wrong_kind_are_refused(kind, form):
    layer = getattr(nn, kind + form)(3, 4)
    x, h = (weft.ones(2, 3), weft.zeros(2, 4)) if form else (weft.ones(5, 2, 3), weft.zeros(1, 2, 4))
    wrong = [h, (h,), (h, h, h), (h, None)] if kind == "LSTM" else [(h, h), (h,), [h], 3.0]
    expected = r"a pair \(h, c\)" if kind == "LSTM" else "a tensor h"
    for state in wrong:
        with pytest.raises(weft.ShapeError, match=rf"{kind}{form}: given .*; expected {expected}"):
            layer(x, state)
    double = h.double()
    with pytest.raises(weft.DTypeError, match=f"{kind}{form}: given .*float64"):
        layer(x, (h, double) if kind == "LSTM" else double)
