"""Ctrl-C and SIGTERM while a run is going: the step is finished, then the run stops."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Requests:
    """Which signal has come, if any. A second one acts as without a handler."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict[int, Any] = {}

    def note(self, number: int, frame: Any) -> None:
        """The handler of the signals."""
        self.signal = number
        self.restore()

    def restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}


@contextlib.contextmanager
def record_signals() -> Iterator[Requests]:
    """Inside, signals are noted instead of raised. Python handles them in the main thread only: in others this does
    nothing."""
    requests = Requests()
    if threading.current_thread() is not threading.main_thread():
        yield requests
        return
    for number in SIGNALS:
        before = signal.getsignal(number)
        if before is not None and before is not signal.SIG_IGN:
            requests.before[number] = before
            signal.signal(number, requests.note)
    try:
        yield requests
    finally:
        requests.restore()
