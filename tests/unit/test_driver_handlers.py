"""A signal handler that computes on the device while the drivers of OpenCL and WebGPU enqueue, submit or capture: its
results are right, and what it interrupted is done once and stays as it was.

A profile function calls the handler (`call_with_handler`).
"""

from __future__ import annotations

import ctypes
import itertools
import zlib
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit import webgpu_devices
from tests.unit.fake_driver import FakeGpu
from tests.unit.test_driver_interrupts import COUNT, MAX_CALLS, call_with_handler
from tests.unit.test_handles import PIECE, Runtime
from weft.backends.gpu import execution as gpu_execution
from weft.backends.opencl import driver as opencl_driver
from weft.backends.opencl import library
from weft.kernels.ir.language import Geometry
from weft.plan.device import Device
from weft.plan.plan import Code

pytestmark = pytest.mark.unit
MAX_STEPS = 100  # after which one is captured


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


def test_pieces_have_consecutive_addresses_where_a_handler_allocates():
    memory = Runtime(1 << 30, 1 << 30, PIECE).memory
    for number in range(MAX_CALLS):
        found: list[int] = []
        called = call_with_handler(
            lambda: found.append(memory.allocate_pieces(3 * PIECE)),  # noqa: B023
            number,
            lambda: memory.allocate(PIECE),
        )
        handles = [memory.split(found[0] + at * PIECE)[0] for at in range(3)]
        assert len(set(handles)) == 3 and all(memory.split(found[0] + at * PIECE)[1] == 0 for at in range(3)), number
        if not called:
            break
    assert 10 < number < MAX_CALLS


class UploadsOnly:
    """The queue of an OpenCL device that reads host memory late: when it is waited for, or asked a second time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.numbers = itertools.count(1)  # of uploads; a handler may enqueue one in the middle of `call`
        self.asked: dict[int, int] = {}  # by upload that was enqueued: how often it was asked for; -1: it is over
        self.sources: dict[int, int] = {}  # where they read
        self.driver: Any = object.__new__(opencl_driver.OpenClDriver)
        self.driver.queue, self.driver._plain, self.driver._pending = 1, 1, deque()
        self.driver._ahead = SimpleNamespace(wait=lambda: None)
        self.driver.pool = SimpleNamespace(split=lambda pointer: (pointer, 0))
        loader = SimpleNamespace(clReleaseEvent=lambda handle: 0)
        monkeypatch.setattr(opencl_driver.library, "loader", lambda: loader)
        monkeypatch.setattr(opencl_driver, "call", self.call)

    def call(self, name: str, *args: Any) -> None:
        if name == "clEnqueueWriteBuffer":
            event = next(self.numbers)
            self.asked[event], self.sources[event] = 0, args[5]
            ctypes.c_uint64.from_address(args[8]).value = event
        elif name == "clGetEventInfo":
            event = args[0].value
            if self.asked[event] >= 0:
                self.asked[event] = self.asked[event] + 1 if self.asked[event] < 1 else -1
            ctypes.c_int32.from_address(args[3]).value = 0 if self.asked[event] < 0 else 3
        else:
            assert name in ("clFinish", "clEnqueueReadBuffer", "clWaitForEvents")
            self.asked.update(dict.fromkeys(self.asked, -1))

    def assert_sources_are_kept(self) -> None:
        kept = {one.event.handle.value: ctypes.addressof(one.data) for one in self.driver._pending}
        for event, asked in self.asked.items():
            assert asked < 0 or kept[event] == self.sources[event], event


@pytest.mark.parametrize("work", ["upload", "download", "synchronise"])
@pytest.mark.parametrize("handles", ["upload", "upload and download"])
def test_memory_that_uploads_read_is_kept(work: str, handles: str, monkeypatch: pytest.MonkeyPatch):
    data = np.zeros(16, np.uint8)
    for number in range(MAX_CALLS):
        uploads = UploadsOnly(monkeypatch)
        driver = uploads.driver
        arguments = {"upload": (1, data.ctypes.data, 16), "download": (data.ctypes.data, 1, 16), "synchronise": ()}

        def handler(driver: Any = driver, arguments: dict[str, tuple] = arguments) -> None:
            if handles == "upload and download":
                driver.download(*arguments["download"])
            driver.upload(*arguments["upload"])

        driver.upload(*arguments["upload"])
        driver.upload(*arguments["upload"])
        called = call_with_handler(lambda: getattr(driver, work)(*arguments[work]), number, handler)  # noqa: B023
        uploads.assert_sources_are_kept()
        if not called:
            break
    assert 5 < number < MAX_CALLS


def make_device(kind: str) -> Device:
    if kind == "fake":
        return FakeGpu().device
    if kind == "webgpu":
        return webgpu_devices.limited()
    try:
        return weft.get_device(kind)
    except weft.DeviceError as error:
        pytest.skip(str(error))


def test_a_run_is_checked_once_where_a_handler_checks():
    device = FakeGpu().device
    backend: Any = device.backend
    table, index = (weft.tensor(given, device=device) for given in (np.zeros(4, np.float32), np.array([1, 2])))

    def check() -> None:
        backend.call_in_order(backend._check)

    for number in range(MAX_CALLS):
        for _ in range(2):
            weft.eval(table[index])
        backend.driver.synchronise()
        assert len(backend._pending) == 2
        called = call_with_handler(check, number, check)
        assert not backend._pending
        if not called:
            break
    assert 5 < number < MAX_CALLS


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
        assert len(driver._pending) == 1
    finally:
        for event in events:
            set_status(event)
        monkeypatch.undo()
        backend.synchronise()
        driver.free(pointer)
    assert not driver._pending


def set_status(event: ctypes.c_void_p) -> None:
    """Mark a user event as complete."""
    function = library.loader().clSetUserEventStatus
    function.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    function(event, library.COMPLETE)
