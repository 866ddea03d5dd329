"""Numbers that a compiled function assigns."""

import pytest

import weft
from tests.backend.captures import ONES, Plain, bits
from tests.backend.test_captured_numbers import RATE, STEP
from weft.base.counters import COUNTERS


def test_a_counter_that_the_function_advances():
    class Model:
        def __init__(self):
            self.calls, self.history = 0, {"last": 0}

        def __call__(self, x):
            self.calls += 1
            self.history["last"] = self.calls * 10
            return x * self.calls

    ours, theirs = Model(), Model()
    step, before = weft.compile(ours), COUNTERS.traces
    for _ in range(20):
        assert bits(step(ONES)) == bits(theirs(ONES))
        assert (ours.calls, ours.history) == (theirs.calls, theirs.history)
        assert type(ours.calls) is int
    assert COUNTERS.traces - before <= 3
    ours.calls = theirs.calls = 5
    for _ in range(3):
        assert bits(step(ONES)) == bits(theirs(ONES))


def test_a_counter_in_a_global_and_in_a_variable():
    count = 0

    def function(x):
        nonlocal count
        global STEP
        count += 1
        STEP = STEP + count
        return x * STEP + count

    step, before = weft.compile(function), COUNTERS.traces
    total = 0
    for number in range(1, 20):
        total += number
        assert step(ONES).tolist() == [float(total + number)] * 3
        assert (count, STEP) == (number, total)
    assert COUNTERS.traces - before <= 3


def test_a_counter_in_a_function_that_is_called():
    class Clock:
        ticks = 0

        def tick(self):
            self.ticks = self.ticks + 1
            return self.ticks

    clock = Clock()
    step, before = weft.compile(lambda x: x * clock.tick()), COUNTERS.traces
    for number in range(1, 20):
        assert step(ONES).tolist() == [float(number)] * 3
        assert clock.ticks == number
    assert COUNTERS.traces - before <= 4


def test_a_memory_report_assigns_nothing():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    step = weft.compile(function)
    for number in range(1, 6):
        step.memory(ONES)
        assert count == number - 1
        assert step(ONES).tolist() == [float(number)] * 3
        assert count == number


def test_two_values_that_change_places():
    class Pair:
        a, b = 1.0, 2.0

    held = Pair()

    def function(x):
        held.a, held.b = held.b, held.a
        return x * held.a - held.b

    step = weft.compile(function)
    for number in range(6):
        assert step(ONES).tolist() == [1.0 if number % 2 == 0 else -1.0] * 3


def test_a_list_that_the_function_reads_and_changes_is_right():
    held = []

    def function(x):
        held.append(1)
        return x * len(held)

    step = weft.compile(function)
    for number in range(1, 6):
        assert step(ONES).tolist() == [float(number)] * 3


def test_a_list_that_the_function_only_appends_to_is_left_alone():
    log = []

    def function(x):
        log.append("traced")
        return x * 2.0

    step = weft.compile(function)
    for _ in range(5):
        step(ONES)
        log.append("outside")
    assert step.retraces == [] and log.count("traced") == 1


def test_a_function_that_raises_leaves_numbers_as_they_were(monkeypatch):
    held = Plain(1.0)
    fail = False

    def function(x):
        y = x * held.value + RATE
        if fail:
            raise RuntimeError("stop")
        return y

    step = weft.compile(function)
    for number in range(3):
        held.value = 1.0 + number
        monkeypatch.setitem(globals(), "RATE", 0.5 + number)
        step(ONES)
    fail = True
    for error in (RuntimeError, RuntimeError):
        with pytest.raises(error, match="stop"):
            step(ONES)
        assert type(held.value) is float and held.value == 3.0
        assert type(RATE) is float and RATE == 2.5
    fail = False
    assert step(ONES).tolist() == [5.5] * 3
