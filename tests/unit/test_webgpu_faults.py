"""What WebGPU's backend says of kernels that do not compile, of what a device lacks, and of a device that is lost."""

from __future__ import annotations

import signal
import zlib

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft.backends.webgpu import backend as webgpu_backend
from weft.backends.webgpu import byte_copies
from weft.base.errors import DeviceError, OutOfMemoryError
from weft.kernels.ir.language import Geometry
from weft.plan.device import Device, DeviceLost
from weft.plan.plan import Code


@pytest.fixture
def limited() -> Device:
    return webgpu_devices.limited()


def test_a_kernel_that_does_not_compile_is_shown(limited):
    text = byte_copies.CLEAR.text.replace("insertBits", "inventBits")
    broken = Code("broken_kernel", "clear_bytes", (), Geometry(256, 1), zlib.compress(text.encode()))
    with pytest.raises(DeviceError, match="broken_kernel") as caught:
        limited.backend.driver.load_kernels([broken])
    assert "inventBits" in str(caught.value) and "please report" in str(caught.value)


def test_float64_is_refused_by_name(limited):
    with pytest.raises(weft.errors.WeftError, match="float64"):
        (weft.tensor(np.ones(3), device=limited) + 1).numpy()


def test_memory_beyond_a_buffers_size_is_refused(limited):
    with pytest.raises(OutOfMemoryError, match=r"at most 256\.0 MiB in one allocation"):
        limited.backend.allocate(300 << 20)


def test_a_lost_device_has_a_name_of_its_own():
    from weft.backends.webgpu.errors import convert_error

    assert isinstance(convert_error("x", RuntimeError("Parent device is lost")), DeviceLost)
    assert isinstance(convert_error("x", RuntimeError("Not enough memory left.")), OutOfMemoryError)


def test_what_a_signal_handler_raises_during_a_call_is_no_error_of_wgpu(limited, monkeypatch):
    """A timeout reached the program as DeviceError."""

    def ring(*_):
        raise TimeoutError("too slow")

    x = weft.tensor(np.ones(3, np.float32), device=limited)
    before = signal.signal(signal.SIGINT, ring)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(limited.backend.driver._ahead, "wait", lambda: signal.raise_signal(signal.SIGINT))
            with pytest.raises(TimeoutError, match="too slow"):
                (x + 1).numpy()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (x + 1).sum().item() == 6


def test_every_call_reports_a_lost_device():
    """New kernels, launches, transfers and waiting, all as the loss of a device and none as a fault of a kernel."""
    if not webgpu_devices.adapters():
        pytest.skip("wgpu finds no adapter")
    adapter, limits = webgpu_devices.adapters()[0], webgpu_devices.DEFAULT_LIMITS
    lost = webgpu_backend.WebGpuBackend(adapter, 6, features=(), limits=limits).device
    x = weft.tensor(np.ones(3, np.float32), device=lost)
    doubled = weft.compile(lambda x: x * 2)
    assert doubled(x).sum().item() == 6
    lost.backend.driver.device.destroy()
    for call in (
        lambda: doubled(x).numpy(),
        lambda: (x.exp() + 3).numpy(),
        lambda: weft.tensor(np.ones(4, np.float32), device=lost),
        lambda: x.numpy(),
        lambda: weft.synchronize(lost),
    ):
        with pytest.raises(DeviceError, match=r"(?s)device is lost.*start a new process") as caught:
            call()
        assert "please report" not in str(caught.value)
