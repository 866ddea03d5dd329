"""A device that cannot be opened leaves nothing behind: whichever call of its runtime fails, no object of the runtime
is kept, no backend is registered, and the next attempt works."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from tests.unit.fake_driver import FakeDriver, FakeGpu
from tests.unit.live_objects import OpenClObjects, WgpuCalls, count_wgpu_objects
from weft.backends.gpu import backend as gpu_backend
from weft.backends.gpu.opened import OpenedDevices
from weft.backends.opencl.backend import OpenClBackend
from weft.backends.webgpu.backend import WebGpuBackend
from weft.errors import DeviceError, WeftError
from weft.plan.device import Device

MAX_CALLS = 500  # that opening a device may take


def registered() -> set[int]:
    gc.collect()
    return {id(backend) for backend in gpu_backend._backends}


def check_that_it_computes(device: Device) -> None:
    x = weft.tensor(np.arange(5, dtype=np.float32), device=device)
    assert (x * 2 + 1).tolist() == [1.0, 3.0, 5.0, 7.0, 9.0]


def test_opencl_keeps_nothing_of_a_device_that_does_not_open(monkeypatch):
    pytest.importorskip("pyopencl")
    try:
        handle = weft.get_device("opencl").backend.driver.handle
    except DeviceError as error:
        pytest.skip(str(error))
    devices = OpenedDevices([handle], lambda handle, number: OpenClBackend(handle, number).device)
    objects, before, failures, finished = OpenClObjects(monkeypatch), registered(), 0, False
    for number in range(1, MAX_CALLS):
        objects.fail_at(number)
        try:
            device = devices[0]
        except WeftError:
            failures += 1
            objects.fail_at(0)
        else:  # what a device does not answer counts as not there
            finished = objects.calls < number
            objects.fail_at(0)
            if finished:
                break
            device.backend.driver.close()
            gpu_backend._backends.discard(device.backend)
            devices._opened.clear()
            del device
        assert not any(objects.live.values()), (number, objects.live)
        assert registered() == before
    assert finished and failures >= 2 and objects.live == {"context": 1, "queue": 1}
    check_that_it_computes(device)  # of the list with which all attempts before failed


def test_webgpu_keeps_nothing_of_a_device_that_does_not_open(monkeypatch):
    if not webgpu_devices.adapters():
        pytest.skip("wgpu finds no adapter")
    adapter = webgpu_devices.adapters()[0]
    devices = OpenedDevices([0], lambda ordinal, number: WebGpuBackend(adapter, 11).device)
    calls, failures, device = WgpuCalls(monkeypatch), 0, None
    before, objects = registered(), count_wgpu_objects()
    for number in range(1, MAX_CALLS):
        calls.fail_at(number)
        try:
            device = devices[0]
            break
        except WeftError:
            failures += 1
        calls.fail_at(0)
        assert registered() == before
        assert count_wgpu_objects() == objects, number
    assert device is not None and failures > 8
    calls.fail_at(0)
    check_that_it_computes(device)


class FailsWhenDescribed(FakeDriver):
    closed = 0

    def close(self) -> None:
        FailsWhenDescribed.closed += 1


def test_a_backend_closes_its_driver_where_it_cannot_describe_the_device(monkeypatch):
    def fail(*args, **named):
        raise DeviceError("no description")

    before = registered()
    monkeypatch.setattr("tests.unit.fake_driver.Device", fail)
    with pytest.raises(DeviceError, match="no description"):
        FakeGpu(kind=FailsWhenDescribed)
    assert FailsWhenDescribed.closed == 1 and registered() == before


class FailsToClose(FakeDriver):
    def close(self) -> None:
        raise DeviceError("nothing is released")


def test_the_reason_is_told_where_closing_fails_too(monkeypatch):
    def fail(*args, **named):
        raise DeviceError("no description")

    before = registered()
    monkeypatch.setattr("tests.unit.fake_driver.Device", fail)
    with pytest.raises(DeviceError, match="no description"):
        FakeGpu(kind=FailsToClose)
    assert registered() == before
