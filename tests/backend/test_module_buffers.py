"""Buffers and random layers of modules in compiled functions."""

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.backend.test_module_compile import compiled
from weft.nn import functional as F

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_dropout_between_modes():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x):
            return F.dropout(self.inner(x), 0.5, self.training)

    model = Net().eval()
    step = compiled(model)
    plain = step(weft.ones(8, 3)).numpy()
    model.train()
    assert (step(weft.ones(8, 3)).numpy() == 0).any()
    model.eval()
    np.testing.assert_array_equal(step(weft.ones(8, 3)).numpy(), plain)
    assert len(step.retraces) == 1


def test_what_was_read_from_a_buffer_before_an_assignment_stays():
    """As without compile: the old value is the old value, and two buffers may change places."""

    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Buffer(weft.zeros(2))
            self.before = nn.Buffer(weft.ones(2))

        def forward(self, x):
            last = self.last
            self.last, self.before = self.before, last
            self.last = self.last + x
            return weft.stack([self.last - last, self.last - self.before])

    def run(call, model):
        results = [call(weft.full((2,), float(k))).tolist() for k in range(1, 5)]
        return results, model.last.tolist(), model.before.tolist()

    plain, other = Difference(), Difference()
    step = weft.compile(lambda x: other(x))
    assert run(plain, plain) == run(step, other)
    assert step.retraces == []


def test_buffers_are_as_before_when_a_compiled_function_raises():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = nn.Buffer(weft.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            raise ValueError("no")

    model = Fails()
    count = model.count
    with pytest.raises(ValueError, match="no"):
        weft.compile(lambda x: model(x))(weft.ones(2))
    assert model.count is count and count.item() == 0.0
