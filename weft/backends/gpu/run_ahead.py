"""How far the host runs ahead of a device, for runtimes that take work without bound (OpenCL, WebGPU).

A loop that reads nothing enqueues a step in microseconds that the device runs in milliseconds. Without a bound the
runtime's lists grow for as long as the loop runs, and whatever waits for the device next, the end of the process
included, takes minutes, in one call that Ctrl-C does not interrupt. So marks are put on the queue, a mark after a
number of launches, of which few are pending, and none for long: before another one is made the oldest is waited for.
Whatever waits for the device waits for one mark after the other, and a signal handler runs between them.

It knows nothing of a runtime but the two functions that it is given.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any

LAUNCHES_PER_MARK = 32
MAX_MARKS = 32  # 1,024 launches are enough for a device to be busy; CUDA's driver allows as many
MAX_SECONDS = 1.0  # that a mark may be pending while others are made: slow devices run 32 launches in as long


class RunAhead:
    """The marks of one queue. `mark` puts one after all that was enqueued before; `wait` returns when the device has
    reached it, and may be called for a mark more than once."""

    def __init__(
        self, mark: Callable[[], Any], wait: Callable[[Any], None], clock: Callable[[], float] = time.monotonic
    ):
        self._mark, self._wait, self._clock = mark, wait, clock
        self._marks: deque[tuple[float, Any]] = deque()  # when each was made
        self._launches = 0  # since the last mark

    def count(self, launches: int) -> None:
        """Note that so many launches were enqueued; wait where too many are, or where the device is too far behind."""
        self._launches += launches
        if self._launches >= LAUNCHES_PER_MARK:
            while self._is_too_far():
                self._wait_for_oldest()
            self._launches = 0
            self._marks.append((self._clock(), self._mark()))

    def _is_too_far(self) -> bool:
        oldest = list(self._marks)[:1]  # a signal handler that waits for the device drops marks
        return len(self._marks) >= MAX_MARKS or any(self._clock() - made > MAX_SECONDS for made, _ in oldest)

    def wait(self) -> None:
        """Wait for all marks. At most `LAUNCHES_PER_MARK` launches, or those of one graph, follow the last one."""
        while self._marks:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        """Where a signal handler raises, the mark stays; one that waits for the device drops the marks meanwhile."""
        for oldest in list(self._marks)[:1]:
            self._wait(oldest[1])
            with contextlib.suppress(ValueError):
                self._marks.remove(oldest)
