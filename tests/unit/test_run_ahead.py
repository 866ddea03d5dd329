"""The host runs ahead of OpenCL and WebGPU devices by a bounded number of launches, and can be interrupted when it
waits for them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.backends.gpu import run_ahead
from weft.backends.gpu.run_ahead import LAUNCHES_PER_MARK, MAX_MARKS, RunAhead
from weft.backends.registry import EMULATED
from weft.errors import DeviceError


class Queue:
    """Marks are numbers; `waited` are those that were waited for."""

    def __init__(self) -> None:
        self.marks = 0
        self.waited: list[int] = []
        self.interrupts_at: int | None = None
        self.computes_at: int | None = None  # a signal handler does, and waits for the device
        self.seconds = 0.0
        self.ahead = RunAhead(self.mark, self.wait, lambda: self.seconds)

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def wait(self, mark: int) -> None:
        if mark == self.interrupts_at:
            self.interrupts_at = None
            raise KeyboardInterrupt
        if mark == self.computes_at:
            self.computes_at = None
            self.ahead.wait()
        self.waited.append(mark)


def test_launches_are_bounded():
    queue = Queue()
    for launch in range(1, 10 * LAUNCHES_PER_MARK * MAX_MARKS):
        queue.ahead.count(1)
        assert launch - LAUNCHES_PER_MARK * len(queue.waited) < LAUNCHES_PER_MARK * (MAX_MARKS + 1)
    assert queue.waited == list(range(1, queue.marks - MAX_MARKS + 1))  # the oldest first, and no more than it takes
    queue.ahead.wait()
    assert queue.waited == list(range(1, queue.marks + 1))
    queue.ahead.wait()
    assert len(queue.waited) == queue.marks


def test_a_large_graph_has_one_mark_and_few_launches_none():
    queue = Queue()
    queue.ahead.count(100 * LAUNCHES_PER_MARK)
    assert queue.marks == 1
    for _ in range(LAUNCHES_PER_MARK - 1):
        queue.ahead.count(1)
    assert queue.marks == 1


def test_a_slow_device_is_waited_for_earlier():
    """Else whatever waits for it next, such as the first Ctrl-C of a run, waits for 1,024 launches of any length."""
    queue = Queue()
    for _ in range(6):
        queue.ahead.count(LAUNCHES_PER_MARK)
        queue.seconds += 0.4 * run_ahead.MAX_SECONDS
    assert queue.marks == 6 and queue.waited == [1, 2, 3]
    queue.seconds += 100.0
    queue.ahead.count(LAUNCHES_PER_MARK - 1)
    assert queue.waited == [1, 2, 3]
    queue.ahead.count(1)
    assert queue.waited == [1, 2, 3, 4, 5, 6]


def test_an_interrupt_keeps_what_was_not_reached():
    queue = Queue()
    for _ in range(3):
        queue.ahead.count(LAUNCHES_PER_MARK)
    queue.interrupts_at = 2
    with pytest.raises(KeyboardInterrupt):
        queue.ahead.wait()
    assert queue.waited == [1]
    queue.ahead.wait()
    assert queue.waited == [1, 2, 3]


def test_a_signal_handler_that_waits_in_the_middle_of_a_wait():
    """It drops the marks that the wait around it is at."""
    queue = Queue()
    for _ in range(3):
        queue.ahead.count(LAUNCHES_PER_MARK)
    queue.computes_at = 2
    queue.ahead.wait()
    assert queue.waited == [1, 2, 3, 2]
    queue.ahead.wait()
    assert queue.waited == [1, 2, 3, 2]
    queue.ahead.count(LAUNCHES_PER_MARK)
    queue.ahead.wait()
    assert queue.waited == [1, 2, 3, 2, 4]


@pytest.mark.parametrize("kind", EMULATED)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_loop_that_reads_nothing(kind, compiled, monkeypatch):
    monkeypatch.setattr(run_ahead, "LAUNCHES_PER_MARK", 4)
    monkeypatch.setattr(run_ahead, "MAX_MARKS", 3)
    try:
        device = weft.get_device(kind)
    except DeviceError as error:
        pytest.skip(str(error))
    driver = device.backend.driver
    weft.synchronize(device)  # what earlier tests left: more marks than these
    x = weft.tensor(np.zeros((5, 3), np.float32), device=device)
    step = (weft.compile if compiled else lambda function: function)(lambda x: x + 1)
    most = 0
    for _ in range(600):
        x = step(x)
        weft.eval(x)
        most = max(most, len(driver._ahead._marks))
    assert most == 3
    np.testing.assert_array_equal(x.numpy(), np.full((5, 3), 600, np.float32))
    assert len(driver._ahead._marks) <= 1  # a download through WebGPU is a submission of its own
