"""Locks are given back when a signal handler raises, whatever instruction it interrupts."""

import contextlib
import signal
import time

import pytest

from weft import locks

pytestmark = [
    pytest.mark.interpreters,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers"),
]


class Interrupt(Exception):
    pass


@contextlib.contextmanager
def interrupts(seconds: float):
    """Inside, `armed.append(True)` asks for one `Interrupt`, within some `seconds`."""
    armed: list[bool] = []

    def handle(*_) -> None:
        if armed:
            armed.clear()
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield armed
    finally:
        armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def times_left_locked(context, lock, seconds: float = 1.0) -> tuple[int, int]:
    """How often `with context:` was interrupted, and how often `lock` was left locked by it."""
    count = left = 0
    deadline = time.monotonic() + seconds
    with interrupts(20e-6) as armed:
        while time.monotonic() < deadline:
            try:
                armed.append(True)
                for _ in range(200):
                    with context:
                        pass
                    with context:
                        pass
                armed.clear()
            except Interrupt:
                count += 1
                while lock._is_owned():
                    left += 1
                    lock.release()
    return count, left


def test_an_interrupt_leaves_no_lock_locked():
    lock = locks.new_lock()
    count, left = times_left_locked(lock, lock)
    assert count > 100 and left == 0
