"""A signal handler that computes on the device while the drivers of OpenCL and WebGPU enqueue, submit or capture: its
results are right, and what it interrupted is done once and stays as it was.

A profile function calls the handler where CPython would run one: where functions begin, and after calls of C. Python's
own module `threading`, with which wgpu waits, is left out: its locks are not reentrant.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from tests.unit.fake_driver import FakeGpu
from tests.unit.test_driver_interrupts import COUNT, MAX_CALLS
from weft.backends.gpu import execution as gpu_execution
from weft.backends.opencl import driver as opencl_driver
from weft.backends.opencl import library
from weft.kernels.ir.language import Geometry
from weft.plan.device import Device
from weft.plan.plan import Code

pytestmark = pytest.mark.unit
MAX_STEPS = 100  # after which one is captured


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


def test_pending_launches_run_once_each():
    driver: Any = webgpu_devices.limited().backend.driver  # type: ignore[attr-defined]
    code = Code("count", "count", (), Geometry(1, 1), zlib.compress(COUNT.encode()))
    (function,) = driver.load_kernels([code])
    pointers = driver.allocate(256), driver.allocate(256)
    launches = []
    for pointer in pointers:
        driver.clear(pointer, 256)
        words = (ctypes.c_uint64 * 3)(pointer, 0, 1)
        launches.append(driver.make_launcher(function, 1, 1, 0, words, 1))

    def count(which: int) -> int:
        found = np.empty(1, np.uint32)
        driver.download(found.ctypes.data, pointers[which], 4)
        return int(found[0])

    def handle_with_results() -> None:
        launches[1]()
        handled.append(count(1))

    def work() -> None:
        for _ in range(3):
            launches[0]()
        driver.flush()

    for handler in (launches[1], handle_with_results):
        handled: list[int] = []
        before, launched = count(1), count(0)
        for number in itertools.count():
            is_over = not call_with_handler(work, number, handler)
            launched += 3
            assert count(0) == launched, number
            assert is_over or count(1) == before + number + 1
            if is_over:
                break
        assert 20 < number < MAX_CALLS and handled in ([], list(range(before + 1, before + number + 1)))
    for pointer in pointers:
        driver.free(pointer)


def make_device(kind: str) -> Device:
    if kind == "fake":
        return FakeGpu().device
    if kind == "webgpu":
        return webgpu_devices.limited()
    try:
        return weft.get_device(kind)
    except weft.DeviceError as error:
        pytest.skip(str(error))


def make_step(device: Device) -> Callable[[], weft.Tensor]:
    """A compiled function that adds 1 to a tensor in place."""
    total, w = weft.tensor(np.zeros(4, np.float32), device=device), weft.ones(4, 4, device=device)

    def add() -> weft.Tensor:
        total.copy_(w @ (total + 1) * 0.25)
        return total * 1

    return weft.compile(add)


@pytest.mark.parametrize(("kind", "stride"), [("fake", 1), ("opencl", 5), ("webgpu", 23)])
def test_a_captured_graph_has_nothing_of_a_handler(kind: str, stride: int, monkeypatch: pytest.MonkeyPatch):
    device = make_device(kind)
    backend: Any = device.backend
    driver, double = backend.driver, weft.compile(lambda x: x * 2 + 1)
    capture, handled, is_called = driver.capture_graph, list[bool](), list[bool]()
    x = np.arange(8, dtype=np.float32)
    double(weft.tensor(x, device=device)).numpy()

    def handler() -> None:
        shifted = x + len(handled)
        handled.append(double(weft.tensor(shifted, device=device)).numpy().tolist() == (2 * shifted + 1).tolist())

    def capture_with_handler(enqueue: Callable[[], None]) -> Any:
        graphs: list[Any] = []
        is_called.append(call_with_handler(lambda: graphs.append(capture(enqueue)), number, handler))
        return graphs[0]

    monkeypatch.setattr(driver, "capture_graph", capture_with_handler)
    for number in itertools.count(step=stride):
        backend.empty_cache()  # and forget graphs of the same addresses
        step = make_step(device)
        is_called.clear()
        captured_at = MAX_STEPS
        for steps in range(1, MAX_STEPS):
            assert step().tolist() == [steps] * 4, number
            captured_at = min(captured_at, steps) if is_called else captured_at
            if steps > captured_at + 3:  # some replays
                break
        assert is_called
        if not is_called[0]:
            break
    assert all(handled) and len(handled) > 5


@pytest.mark.parametrize(("kind", "stride"), [("fake", 1), ("opencl", 1), ("webgpu", 11)])
def test_a_handler_that_empties_the_cache_while_a_graph_is_replayed(
    kind: str, stride: int, monkeypatch: pytest.MonkeyPatch
):
    """The graph is about to be replayed, and its temporaries are in the arena that is dropped."""
    monkeypatch.setattr(gpu_execution, "RUNS_BEFORE_GRAPH", 1)
    device = make_device(kind)
    backend: Any = device.backend
    step, steps, replays = make_step(device), itertools.count(1), list[int]()
    replay, results = backend.driver.replay_graph, list[weft.Tensor]()
    monkeypatch.setattr(backend.driver, "replay_graph", lambda graph: (replays.append(1), replay(graph)))
    for number in itertools.count(step=stride):
        replays.clear()
        while len(replays) < 4:  # until each step is a replay
            assert step().tolist() == [next(steps)] * 4
        is_called = call_with_handler(lambda: results.append(step()), number, backend.empty_cache)
        assert results.pop().tolist() == [next(steps)] * 4, number
        if not is_called:
            break
    assert len(replays) == 5 and number > 20


def test_copies_of_host_memory_stay_until_they_were_read(monkeypatch: pytest.MonkeyPatch):
    """What a handler computes drops the copies that were read, of which those are none that it comes before, and a wait
    drops none that the handler after it enqueued."""
    backend: Any = make_device("opencl").backend
    driver: Any = backend.driver
    gate = library.loader().clCreateUserEvent
    gate.argtypes, gate.restype = (ctypes.c_void_p, ctypes.c_void_p), ctypes.c_void_p
    backend.synchronise()
    pointer, array = driver.allocate(256), np.arange(64, dtype=np.float32)
    events: list[ctypes.c_void_p] = []

    def hold_queue() -> None:
        events.append(ctypes.c_void_p(gate(driver.context, None)))
        library.call("clEnqueueBarrierWithWaitList", driver.queue, 1, ctypes.addressof(events[-1]), None)

    def call(name: str, *args: Any) -> None:
        if name == "clEnqueueWriteBuffer":
            driver._forget_uploads()
        library.call(name, *args)
        if name == "clEnqueueReadBuffer":
            hold_queue()
            driver.upload(pointer, array.ctypes.data, 256)

    monkeypatch.setattr(opencl_driver, "call", call)
    try:
        hold_queue()
        driver.upload(pointer, array.ctypes.data, 256)
        assert len(driver._pending) == 1
        set_status(events[-1])
        driver.download(np.empty(64, np.float32).ctypes.data, pointer, 256)
        assert len(driver._pending) == 1 and driver._pending_bytes == 256
    finally:
        for event in events:
            set_status(event)
        monkeypatch.undo()
        backend.synchronise()
        driver.free(pointer)
    assert not driver._pending and not driver._pending_bytes


def set_status(event: ctypes.c_void_p) -> None:
    """Mark a user event as complete."""
    function = library.loader().clSetUserEventStatus
    function.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    function(event, library.COMPLETE)
