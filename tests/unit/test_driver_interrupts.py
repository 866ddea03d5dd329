"""Ctrl-C inside the drivers of OpenCL and WebGPU, at each call that Python code makes: nothing that was enqueued before
is lost or done twice, and the device works afterwards.

A profile function raises where CPython would run a signal handler: where functions begin, and after calls of C.
Python's own module `threading`, with which wgpu waits, is left out: its locks are not reentrant, and what interrupts
`Event.set` may leave it locked.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from weft.kernels.ir.language import Geometry
from weft.plan.device import Device
from weft.plan.plan import Code

# Finalizers are interrupted, too, which Python reports.
pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

MAX_CALLS = 2000  # of one function of a driver; more would mean that it is never interrupted

COUNT = """@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 2>;
@group(0) @binding(1) var<storage, read_write> counted: array<u32>;

@compute @workgroup_size(1)
fn count() {
    counted[arguments[0].x >> 2u] += 1u;
}
"""


def call_with_handler(work: Callable[[], Any], number: int, handler: Callable[[], Any]) -> bool:
    """Call `work` with `handler` at its call of this number; whether it makes so many."""
    left = number

    def interrupt(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        counts = event in ("call", "c_return") and argument is not sys.setprofile
        if counts and frame.f_code.co_filename != threading.__file__:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handler()

    try:
        sys.setprofile(interrupt)
        work()
    finally:
        sys.setprofile(None)
    return left < 0


def interrupted(work: Callable[[], Any]) -> Iterator[int]:
    """Call `work` again and again, interrupted at its first call, at its second, ..., until it is not."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    for number in range(MAX_CALLS):
        try:
            if not call_with_handler(work, number, interrupt):
                return  # else a finalizer was interrupted, which Python goes on after
        except KeyboardInterrupt:
            yield number
    pytest.fail(f"still interrupted after {MAX_CALLS} calls")


@pytest.fixture
def gpu() -> Device:
    return webgpu_devices.limited()


def test_pending_launches_run_once_each(gpu):
    driver = gpu.backend.driver
    code = Code("count", "count", (), Geometry(1, 1), zlib.compress(COUNT.encode()))
    (function,) = driver.load_kernels([code])
    pointer = driver.allocate(256)
    driver.clear(pointer, 256)
    words = (ctypes.c_uint64 * 3)(pointer, 0, 1)
    launch = driver.make_launcher(function, 1, 1, 0, words, 1)
    launched, found = 0, np.empty(1, np.uint32)
    driver.synchronise()
    for _ in range(3):
        launch()
    launched += 3
    for _ in interrupted(driver.flush):
        launch()
        launched += 1
    driver.download(found.ctypes.data, pointer, 4)
    assert found[0] == launched > 20
    driver.free(pointer)


def test_downloads_after_an_interrupted_one(gpu):
    x, driver = np.arange(5, dtype=np.float32), gpu.backend.driver
    pointer = driver.upload_new(x.ctypes.data, x.nbytes)
    found = np.empty_like(x)
    count = 0
    for _ in interrupted(lambda: driver.download(found.ctypes.data, pointer, x.nbytes)):
        count += 1
        after = np.empty_like(x)
        driver.download(after.ctypes.data, pointer, x.nbytes)
        np.testing.assert_array_equal(after, x)
    np.testing.assert_array_equal(found, x)
    assert count > 20
    driver.free(pointer)


def opencl() -> Any:
    try:
        return weft.device("opencl:0").backend.driver
    except weft.DeviceError as error:
        pytest.skip(str(error))


def test_an_interrupted_upload_keeps_its_bytes_until_they_were_read(monkeypatch):
    from weft.backends.opencl import driver as module

    driver, made = opencl(), []
    monkeypatch.setattr(module, "call", lambda name, *args: (call(name, *args), made.append(name)))
    call = module.library.call
    data, found = np.zeros(4096, np.uint8), np.empty(4096, np.uint8)
    pointer, enqueued = driver.allocate(4096), 0
    for number in interrupted(lambda: driver.upload(pointer, data.ctypes.data, 4096)):
        if "clEnqueueWriteBuffer" in made:
            assert driver._pending  # with the copy of the bytes that the device may still read
            enqueued += 1
        driver._forget_uploads()
        driver.synchronise()
        assert not driver._pending
        data[:] = (number + 1) % 256
        made.clear()
    assert enqueued
    driver.download(found.ctypes.data, pointer, 4096)
    np.testing.assert_array_equal(found, data)
    driver.free(pointer)


def test_arguments_of_a_kernel_after_an_interrupt(monkeypatch):
    """What was set is not taken for what the kernel object has."""
    driver = opencl()
    from weft.backends.opencl.driver import _Kernel

    kernel = _Kernel.__new__(_Kernel)
    held: dict[int, int] = {}
    kernel._driver, kernel.buffers, kernel._values, kernel.handle = driver, 0, [None], 0
    kernel._function = type("Function", (), {"scalar_bytes": [8]})
    monkeypatch.setattr(_Kernel, "_set", lambda self, number, value, nbytes: held.update({number: value}))
    monkeypatch.setattr(_Kernel, "__del__", lambda self: None)
    kernel.set_arguments([1])
    for _ in interrupted(lambda: kernel.set_arguments([2])):
        kernel.set_arguments([1])
        assert held == {0: 1}
    assert held == {0: 2}
