"""The GPU runtime with threads, forks and the garbage collector, on a driver in the host's memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from tests.unit.test_gpu_backend import array, expected, two_steps
from weft.compiler import realize

pytestmark = pytest.mark.unit


def in_thread(work) -> None:
    """Run in a thread and raise here what it raises."""
    raised = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(100)
    assert not thread.is_alive(), "it waits for ever"
    if raised:
        raise raised[0]


@pytest.mark.parametrize("function", [two_steps, lambda x: (x + 1).sum(1)], ids=["several", "alone"])
def test_a_step_may_be_called_from_any_thread_and_on_any_device(gpu, separate_kernels, function):
    other = FakeGpu()
    steps = [(weft.compile(function), weft.tensor(array(5, 7), device=place.device)) for place in (gpu, other)]
    found = [step(x).numpy() for step, x in steps]
    for _ in range(4):
        for step, x in steps:
            step(x)
    in_thread(lambda: [step(x) for step, x in steps for _ in range(2)])
    for (step, x), value in zip(steps, found, strict=True):
        np.testing.assert_array_equal(step(x).numpy(), value)


def test_a_thread_makes_its_tensors_where_it_says(gpu):
    """And not where another thread says meanwhile."""
    other, entered, made = FakeGpu(), threading.Event(), []

    def work() -> None:
        made.append(weft.ones(1).device)
        with weft.device(other.device):
            entered.set()
            assert looked.wait(100)
            made.append(weft.ones(1).device)

    looked = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(100)
    assert weft.ones(1).device is gpu.device
    looked.set()
    thread.join()
    assert [device.name for device in made] == ["cpu", "fake:0"] and made[1] is other.device


def test_dropping_a_tensor_does_not_wait(gpu):
    held = [weft.tensor(array(100, 100))]
    before = gpu.bytes_in_use
    with gpu.order:
        in_thread(held.clear)  # as the collector may, in whatever thread it runs
    assert gpu.bytes_in_use == before - 40_000


def test_a_plan_dies_with_its_last_holder(gpu, separate_kernels):
    """Its graphs, too, and without the collector; also the plan of a loop."""

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        return weft.loop(lambda h, _: (h / (h * h).sum(0), None), x, length=3)[0]

    x = weft.tensor(array(5, 7))
    for _ in range(4):
        step(x)
    gone = weakref.ref(step.last.entry.executable)
    gc.disable()
    try:
        del step
        realize._plans.clear()
        assert gone() is None
    finally:
        gc.enable()
    gpu.synchronise()
    assert gpu.driver.log.count("discard") == gpu.driver.log.count("record") > 0


def test_the_collector_may_run_anywhere(gpu, separate_kernels, monkeypatch):
    """Also while a graph is recorded, and when another GPU is current."""
    other = FakeGpu()
    held = [weft.tensor(array(9, 9), device=place.device) for place in (gpu, other)]
    scrap = weft.compile(two_steps)
    for _ in range(3):
        scrap(held[1])
    put = gpu.driver.put

    def collecting(name, work):
        if gpu.driver.recording is not None:
            held.clear()
            nonlocal scrap
            scrap = None
            realize._plans.clear()
            gc.collect()
        put(name, work)

    monkeypatch.setattr(gpu.driver, "put", collecting)
    step, x = weft.compile(two_steps), weft.tensor(array(5, 7))
    for _ in range(3):
        np.testing.assert_allclose(step(x).numpy(), expected(array(5, 7)), rtol=1e-6)
    assert not held and "replay" in gpu.driver.log
    assert other.bytes_in_use == 0 and "discard" in other.driver.log


def test_a_run_that_is_not_over_is_not_looked_at(gpu):
    """One thread's download tells nothing about the run that another thread enqueues right after it."""
    table, x = weft.tensor(array(4, 3)), weft.tensor(array(3))
    download = gpu.driver.download
    wrong = []

    def then_another(*args):
        download(*args)
        gpu.driver.download = download
        thread = threading.Thread(target=lambda: weft.eval(wrong[0]), daemon=True)
        thread.start()
        thread.join(0.2)

    wrong.append(table[weft.tensor(np.array([0, 9]))].sum())
    gpu.driver.download = then_another
    x.numpy()
    with pytest.raises(weft.IndexRangeError):
        wrong[0].numpy()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_has_to_start_anew(gpu):
    x = weft.tensor(array(3, 4))
    x.numpy()
    reading, writing = os.pipe()
    with gpu.order:  # as another thread may hold it
        child = os.fork()
        if not child:
            try:
                said = f"{x.numpy()}"
            except weft.DeviceError as error:
                said = str(error)
            del x
            gc.collect()
            os.write(writing, said.encode())
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    said = os.read(reading, 1000).decode()
    assert said.startswith("fake:0: given a process that was forked") and "'spawn'" in said
    np.testing.assert_array_equal(x.numpy(), array(3, 4))


def test_the_process_ends_quietly_with_live_tensors():
    code = (
        "import weft; from tests.unit.fake_driver import FakeGpu\n"
        "gpu = FakeGpu(); weft.set_default_device(gpu.device)\n"
        "step = weft.compile(lambda x: (x / x.sum(0)).exp().sum(1)); x = weft.ones(3, 4)\n"
        "for _ in range(3): step(x)\n"
        "kept = [step(x)]; import sys; sys.kept = (gpu, step, x, kept)  # outlives the modules"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
