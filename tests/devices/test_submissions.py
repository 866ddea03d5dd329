"""A replayed training step is one submission: one command buffer on WebGPU; on OpenCL one loop over the kernels and one
flush of the queue."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import weft
from tests.unit.networks import NETWORKS, Training
from weft.backends.opencl import driver as opencl_driver
from weft.plan.device import Device

WARM_UP = 20  # steps after which everything is compiled and captured
STEPS = 10
# Uploads of numbers that the host sends with a step (`HostWords`), the marks of `RunAhead`, one for many launches, and
# releases of what other tests left, whenever it is collected.
NOT_COUNTED = {
    "clEnqueueWriteBuffer", "clGetEventInfo", "clEnqueueMarkerWithWaitList", "clWaitForEvents", "clReleaseKernel"
}  # fmt: skip


class CountingLibrary:
    """wgpu-native's functions, with the submissions counted."""

    def __init__(self, library: Any, counts: Counter[str]):
        self._library, self._counts = library, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def wgpuQueueSubmitForIndex(self, queue: Any, buffers: int, handles: Any) -> Any:
        self._counts["command buffers"] += buffers
        return self._library.wgpuQueueSubmitForIndex(queue, buffers, handles)


@pytest.fixture
def submitted(emulated: Device, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What reaches the device's queue."""
    counts: Counter[str] = Counter()
    if emulated.kind == "webgpu":
        driver = emulated.backend.driver
        monkeypatch.setattr(driver, "_lib", CountingLibrary(driver._lib, counts))
        return counts
    call, enqueue_all = opencl_driver.call, opencl_driver.enqueue_all

    def count_call(name: str, *args: Any) -> None:
        counts[name] += name not in NOT_COUNTED
        call(name, *args)

    def count_replay(queue: int, launches: Any) -> None:
        counts["replays"] += 1
        enqueue_all(queue, launches)

    monkeypatch.setattr(opencl_driver, "call", count_call)
    monkeypatch.setattr(opencl_driver, "enqueue_all", count_replay)
    return counts


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_one_submission(name: str, emulated: Device, submitted: Counter[str]):
    with weft.device(emulated):
        training = Training(name)
        for _ in range(WARM_UP):
            training.step()
        emulated.backend.synchronise()
        training.step()  # submits also what the check of bad indices left: words that are set to 0 again
        submitted.clear()
        for _ in range(STEPS):
            training.step()
    each = {"command buffers": STEPS} if emulated.kind == "webgpu" else {"replays": STEPS, "clFlush": STEPS}
    assert +submitted == each
