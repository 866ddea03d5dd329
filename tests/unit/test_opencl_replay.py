"""The native loop that replays a graph on OpenCL: what it hands to `clEnqueueNDRangeKernel`."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from weft.backends.opencl import library, replay
from weft.errors import DeviceError

pytestmark = pytest.mark.unit

Enqueue = ctypes.CFUNCTYPE(ctypes.c_int32, *library._CALLS["clEnqueueNDRangeKernel"])


@pytest.fixture
def enqueued(monkeypatch):
    """What reaches `clEnqueueNDRangeKernel`, which fails at kernel 13."""
    calls: list[tuple[Any, ...]] = []

    def enqueue(queue, kernel, dimensions, offset, lanes, workgroup, events, wait_list, event):
        first = [ctypes.c_size_t.from_address(place).value for place in (lanes, workgroup)]
        calls.append((queue, kernel, dimensions, offset, *first, events, wait_list, event))
        return -54 if kernel == 13 else 0

    monkeypatch.setattr(library, "loader", lambda: SimpleNamespace(clEnqueueNDRangeKernel=Enqueue(enqueue)))
    monkeypatch.setattr(replay, "_replay", replay._replay.__wrapped__)  # with this loader
    return calls


def test_a_replay_enqueues_each_launch_once_and_in_order(enqueued):
    big = 1 << 40
    replay.enqueue_all(5, replay.Launches.of([big + 7, 8, 9], [big, 64, 3], [32, 64, 1]))
    assert enqueued == [
        (5, kernel, 1, None, lanes, workgroup, 0, None, None)
        for kernel, lanes, workgroup in [(big + 7, big, 32), (8, 64, 64), (9, 3, 1)]
    ]
    enqueued.clear()
    replay.enqueue_all(5, replay.Launches.of([], [], []))
    assert not enqueued


def test_a_launch_that_fails_ends_the_replay(enqueued):
    with pytest.raises(DeviceError, match=r"INVALID_WORK_GROUP_SIZE \(-54\)"):
        replay.enqueue_all(5, replay.Launches.of([12, 13, 14], [4, 4, 4], [4, 4, 4]))
    assert [kernel for _, kernel, *_ in enqueued] == [12, 13]
