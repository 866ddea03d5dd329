"""Buffers that a call computes from parameters: they carry their gradient within the step, eagerly and compiled."""

import copy
import pickle

import numpy as np
import pytest

import weft
import weft.nn as nn

pytestmark = pytest.mark.backend


class Penalised(nn.Module):
    """y = w x, with the penalty of the last call as a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(weft.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("penalty", weft.zeros(()), persistent=False)
        self.register_buffer("calls", weft.zeros(()))

    def forward(self, x):
        self.penalty = (self.weight**2).sum()
        self.calls = self.calls + 1
        return (x * self.weight).sum()


def steps(compiled, count=3):
    model = Penalised()
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x) + model.penalty
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = weft.compile(step) if compiled else step
    return model, run, [run(weft.ones(3)).item() for _ in range(count)]


def test_the_gradient_is_that_of_the_sum():
    weight, expected = np.array([1.0, 2.0, 3.0]), []
    for _ in range(3):
        expected.append(weight.sum() + (weight**2).sum())
        weight = weight - 0.1 * (1 + 2 * weight)
    for compiled in (False, True):
        model, run, losses = steps(compiled)
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
        np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-6)
        assert model.calls.item() == 3
        if compiled:
            assert run.retraces == []


def test_after_a_compiled_call_the_buffer_is_a_value():
    model, _, _ = steps(True)
    assert not model.penalty.requires_grad and model.penalty.is_leaf
    assert list(model.state_dict()) == ["weight", "calls"]


def test_a_compiled_function_that_raises_changes_no_flags():
    model = Penalised()
    model(weft.ones(3))
    assert model.penalty.requires_grad

    def fail(x):
        model(x)
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        weft.compile(fail)(weft.ones(3))
    assert model.penalty.requires_grad and not model.penalty.is_leaf
    model.penalty.backward()
    np.testing.assert_allclose(model.weight.grad.numpy(), [2.0, 4.0, 6.0])


def test_eager_and_compiled_calls_may_alternate():
    model = Penalised()
    run = weft.compile(lambda x: model(x) + model.penalty)
    for number in range(3):
        assert (model(weft.ones(3)) + model.penalty).item() == 20.0
        assert run(weft.ones(3)).item() == 20.0
        assert model.calls.item() == 2 * number + 2


def test_copies_and_pickles_hold_the_value():
    model = nn.Sequential(nn.Linear(3, 3))
    model.register_buffer("penalty", weft.zeros(()), persistent=False)
    model(weft.ones(1, 3))
    model.penalty = (model[0].weight ** 2).sum()
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.penalty.is_leaf and not twin.penalty.requires_grad
        np.testing.assert_array_equal(twin.penalty.numpy(), model.penalty.detach().numpy())
    model.penalty.backward()
    assert model[0].weight.grad is not None
