"""What a compiled function does not read retraces nothing; what cannot be compared is told."""

import datetime
import os
import random
import secrets
import time
import uuid
import warnings

import numpy as np
import pytest

import weft
from tests.backend.captures import ONES, Counted, Plain
from weft import TraceWarning
from weft.base.counters import COUNTERS

# ---- nothing else retraces ----------------------------------------------------------------------------------------

UNRELATED = 0


def test_what_is_not_read_does_not_retrace(monkeypatch):
    class Trainer:
        def __init__(self):
            self.rate, self.history, self.epoch, self.step = 0.5, [], 0, 0

        def forward(self, x):
            return x * self.rate

    trainer = Trainer()
    outside = []
    step, before = weft.compile(lambda x: trainer.forward(x).sum()), COUNTERS.traces
    for number in range(10):
        step(ONES)
        trainer.history.append(number)
        trainer.epoch += 1
        trainer.step += 1
        outside.append(number)
        monkeypatch.setitem(globals(), "UNRELATED", number)
    assert COUNTERS.traces - before == 1


def test_equal_values_in_new_objects_do_not_retrace():
    held, count, name, items = 0.5, 1000, "sin", [1.5, {"a": 2000}]
    step = Counted(lambda x: getattr(x, name)() * held + count + items[0] * items[1]["a"])
    step(ONES)
    held, count, name = float("0.5"), int("1000"), "".join(["s", "in"])
    items = [float("1.5"), {"a": int("2000")}]
    for _ in range(3):
        step(ONES)
    assert step.traces == 1


def test_an_unused_number_retraces_once():
    held = Plain(0.5)
    held.unused = 0

    def function(x, use=False):
        return x * (held.unused if use else held.value)

    step = Counted(function)
    for number in range(10):
        held.unused = number
        step(ONES)
    assert step.traces <= 2


def test_a_captured_tensor_that_is_replaced_is_seen():
    w = weft.ones(3)
    step = Counted(lambda x: x * w)
    step(ONES)
    w = weft.full((3,), 2.0)
    assert step(ONES).tolist() == [2.0] * 3
    step(ONES)
    assert step.traces == 2


def test_an_attribute_that_was_not_there_is_seen():
    held = Plain(1.0)
    step = Counted(lambda x: x * getattr(held, "gain", 2.0) + (5.0 if hasattr(held, "bias") else 0.0))
    step(ONES)
    step(ONES)
    held.gain = 3.0
    step(ONES)
    held.bias = None
    step(ONES)
    del held.gain
    step(ONES)
    assert step.traces == 4
    assert step.step.retraces[0] == "the variable held.gain was not there"


def test_keys_of_any_kind():
    held = {weft.float32: 1.0, (1, 2): 2.0, len: 3.0, ONES: 4.0}
    step = Counted(lambda x: x * held[weft.float32] + held[1, 2] + held[len] + sum(held.values()))
    for number in range(4):
        held[len] = 1.0 + number
        step(ONES)
    assert step.traces == 2


def test_a_function_and_an_object_that_are_replaced_are_seen():
    class Half:
        def __call__(self, x):
            return x * 0.5

    class Twice:
        def __call__(self, x):
            return x * 2.0

    layers, activation = [Half(), Half()], weft.relu

    def function(x):
        for layer in layers:
            x = layer(x)
        return activation(x)

    step = Counted(function)
    step(ONES)
    layers[1] = Twice()
    step(ONES)
    activation = weft.tanh
    step(ONES)
    layers.append(Twice())
    step(ONES)


def test_arrays_are_compared():
    table = np.array([1.0, 2.0, 3.0], np.float32)
    step = Counted(lambda x: x * table)
    step(ONES)
    step(ONES)
    table[1] = 5.0
    step(ONES)
    assert step.traces == 2


# ---- warnings -----------------------------------------------------------------------------------------------------


GENERATOR = np.random.default_rng(0)


def imported_rand():
    from random import random as draw

    return draw


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("random.random", lambda: random.random()),
        ("random.random", imported_rand()),
        ("random.uniform", lambda: random.uniform(0, 1)),
        ("random.randint", lambda: random.randint(0, 3)),
        ("random.choice", lambda: random.choice([1.0, 2.0])),
        ("numpy.random", lambda: np.random.rand()),  # noqa: NPY002
        ("numpy.random", lambda: GENERATOR.normal()),
        ("time.time", lambda: time.time()),
        ("time.perf_counter", lambda: time.perf_counter()),
        ("datetime.now", lambda: datetime.datetime.now().microsecond),
        ("os.urandom", lambda: len(os.urandom(2))),
        ("uuid.uuid4", lambda: uuid.uuid4().int % 7),
        ("secrets.randbelow", lambda: secrets.randbelow(7)),
    ],
)
def test_what_differs_at_each_call_warns_once(name, call):
    step = weft.compile(lambda x: x * float(call()))
    with pytest.warns(TraceWarning, match=name) as caught:
        step(ONES)
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(ONES)
        step(weft.ones(4))  # traced again, said before


def test_our_own_clocks_and_generators_do_not_warn():
    step = weft.compile(lambda x: x * weft.rand(3) + weft.nn.functional.dropout(x, 0.5))
    step(ONES)
    assert step.retraces == []


def test_eight_retraces_are_reported_once():
    step = weft.compile(lambda x: x * 2.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1, 9):
            step(weft.ones(number))
    with pytest.warns(TraceWarning, match=r"traced again 8 times.*\n  1\. argument 0 was float32\[1\]") as caught:
        step(weft.ones(9))
    assert len(caught) == 1 and caught[0].filename == __file__ and len(step.retraces) == 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(10, 20):
            step(weft.ones(number))


def test_a_container_too_large_to_compare_is_reported():
    table = list(range(10_000))
    step = weft.compile(lambda x: x * table[1])
    with pytest.warns(TraceWarning, match="the variable table: a list of 10000 values, which are not compared"):
        step(ONES)
    array = np.ones(100_000, np.float32)
    step = weft.compile(lambda x: x * array[0])
    with pytest.warns(TraceWarning, match="the variable array: an array of 400000 bytes"):
        step(ONES)
