"""Events on a queue of wgpu: timestamps of the device, or the host's clock where it has none."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

TIMESTAMP_FEATURES = ("timestamp-query", "timestamp-query-inside-encoders")
CHUNK = 64  # timestamps of one query set
RESOLVE_USAGE = 512 | 4  # query resolve, copy from


class _Chunk:
    """A query set, and its numbers once they were read."""

    def __init__(self, device: Any):
        self.queries = device.create_query_set(type="timestamp", count=CHUNK)
        self.buffer = device.create_buffer(size=8 * CHUNK, usage=RESOLVE_USAGE)
        self.used = 0
        self.values: np.ndarray | None = None


class Event:
    """One timestamp: number `number` of its chunk, or seconds of the host."""

    __slots__ = ("chunk", "number", "seconds")

    def __init__(self) -> None:
        self.chunk: _Chunk | None = None
        self.number = 0
        self.seconds = 0.0


class Clock:
    """The events of one driver."""

    def __init__(self, driver: Any, has_timestamps: bool):
        self._driver, self._has_timestamps = driver, has_timestamps
        self._chunk: _Chunk | None = None
        self._period = 1e-9  # seconds of a tick
        if has_timestamps:
            self._period *= driver.queue_timestamp_period()

    def record(self, event: Event) -> None:
        """Note the time at which everything enqueued before is over."""
        if not self._has_timestamps:
            self._driver.synchronise()
            event.seconds = time.perf_counter()
            return
        if self._chunk is None or self._chunk.used == CHUNK:
            self._chunk = _Chunk(self._driver.device)
        chunk = self._chunk
        event.chunk, event.number = chunk, chunk.used
        chunk.used += 1
        chunk.values = None
        self._driver.enqueue(lambda encoder: encoder._write_timestamp(chunk.queries, event.number))

    def seconds(self, event: Event) -> float:
        """When an event was."""
        chunk = event.chunk
        if chunk is None:
            return event.seconds
        if chunk.values is None:
            used = chunk.used
            self._driver.enqueue(lambda encoder: encoder.resolve_query_set(chunk.queries, 0, used, chunk.buffer, 0))
            self._driver.flush()
            chunk.values = np.frombuffer(self._driver.queue.read_buffer(chunk.buffer), np.uint64)
        return float(chunk.values[event.number]) * self._period
