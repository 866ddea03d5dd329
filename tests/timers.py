"""The end of a timer whose signals a test handles."""

from __future__ import annotations

import signal
import time
from typing import Any


def stop_timer(before: Any) -> None:
    """Stop the timer and give SIGALRM back the handler of before. A signal that is under way is waited for: without its
    handler CPython reports it as "ignored due to race condition"."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0.02)
    signal.signal(signal.SIGALRM, before)
