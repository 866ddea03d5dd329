"""Processes that are forked while other threads compute: on the CPU the child computes rightly, on a GPU it raises."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft
from tests.unit.fake_driver import FakeGpu
from weft.base import locks

pytestmark = [
    pytest.mark.backend,
    pytest.mark.cpu_only,
    pytest.mark.interpreters,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]

FORKS = 20
PATIENCE = 120  # seconds after which a child is taken to hang


@contextlib.contextmanager
def in_threads(*works: Callable[[], object]) -> Iterator[None]:
    """Each work over and over in a thread of its own."""
    stop, failed = threading.Event(), []

    def run(work) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads), failed


def forked(work: Callable[[], str]) -> str:
    """What `work` returns in a forked child; '' where it hangs or dies."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(PATIENCE)
            try:
                said = work()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode()[:4000])
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def value_of(array: np.ndarray) -> float:
    assert array.min() == array.max(), f"a torn value: {array.min()} to {array.max()}"
    return float(array.reshape(-1)[0])


class Training:
    """A step with matrix products, shared kernels and parameters that it writes in place: all elements count steps."""

    def __init__(self, size: int = 300):
        self.weights = [weft.zeros(size, size), weft.zeros(3 * size, size)]
        weft.eval(*self.weights)
        self.x = weft.ones(size, size)
        weft.eval(self.x)

        @weft.compile
        def step(x: weft.Tensor) -> weft.Tensor:
            product = (x @ x).mean() / x.shape[0]  # 1
            for weight in self.weights:
                weight.add_(product)
            return self.weights[0][0, 0] + self.weights[1][-1, -1]

        self.step = step
        self.step(self.x)

    def check(self) -> str:
        """Whole values, alike, and a step on them that is right."""
        before = [value_of(weight.numpy()) for weight in self.weights]
        result = self.step(self.x).item()
        after = [value_of((weight * 1.0).numpy()) for weight in self.weights]
        assert before[0] == before[1] and after == [before[0] + 1] * 2 and result == 2 * after[0], (before, after)
        return "right"


def test_a_child_computes_while_the_parent_is_inside_a_step():
    training = Training()
    with in_threads(lambda: training.step(training.x)):
        for _ in range(FORKS):
            assert forked(training.check) == "right"
    training.check()


def test_a_child_computes_while_other_threads_compute_eagerly_compile_and_read():
    training, sizes = Training(), iter(range(2, 10_000))

    def eager() -> None:
        value_of(((training.x @ training.x) * 2.0).numpy())

    def numbers() -> None:
        (training.x[:5] * time.monotonic()).numpy()  # a plan with an open number, run under the lock beside it

    def compiles() -> None:
        count = next(sizes)
        assert weft.compile(lambda x: (x * count).sum())(weft.ones(count)).item() == count * count

    def child() -> str:
        eager()
        numbers()
        compiles()
        return training.check()

    for work in (
        eager,
        numbers,
        compiles,
        lambda: training.weights[1].numpy(),
        lambda: weft.snapshot(training.weights),
    ):
        with in_threads(work, lambda: training.step(training.x)):
            for _ in range(4):
                assert forked(child) == "right"


def pooled(count: float) -> float:
    """What a process of a pool computes."""
    return float(weft.compile(lambda x: (x * count).sum())(weft.ones(1000)).item())


def test_a_pool_of_forked_processes_computes():
    training = Training()
    with in_threads(lambda: training.step(training.x)):
        for _ in range(FORKS // 4):
            with multiprocessing.get_context("fork").Pool(2) as pool:
                assert pool.map_async(pooled, [2.0, 3.0]).get(PATIENCE) == [2000.0, 3000.0]


def test_a_grandchild_computes():
    training = Training()
    with in_threads(lambda: training.step(training.x)):
        for _ in range(4):
            assert forked(lambda: training.check() + forked(training.check)) == "rightright"


def test_two_threads_may_fork_at_once():
    training, said = Training(), []
    works = [threading.Thread(target=lambda: said.extend(forked(training.check) for _ in range(5))) for _ in range(2)]
    with in_threads(lambda: training.step(training.x)):
        for work in works:
            work.start()
        for work in works:
            work.join(PATIENCE)
    assert said == ["right"] * 10


def test_a_fork_inside_a_traced_function_continues_there():
    w, x, said = weft.zeros(3), weft.ones(3), []

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        w.add_(x)
        if not said:
            said.append("")
            said[0] = forked(lambda: f"{(weft.ones(2) + 1).shape}")
        return w.sum()

    assert step(x).item() == 3 and said == ["(2,)"]


def test_a_fork_does_not_wait_for_ever_and_the_child_refuses_half_written_memory(monkeypatch):
    """A thread that stays inside a function, as one that waits for the forking thread would."""
    monkeypatch.setattr(locks, "FORK_TIMEOUT", 0.2)
    training, inside, leave = Training(), threading.Event(), threading.Event()
    variant = training.step.last
    run = variant.run

    def waits(table) -> None:
        run(table)
        inside.set()
        leave.wait(PATIENCE)

    variant.run = waits
    thread = threading.Thread(target=lambda: training.step(training.x))
    thread.start()
    inside.wait(PATIENCE)

    def child() -> str:
        other = weft.compile(lambda x: x.sum())(training.x).item()
        try:
            training.weights[0].numpy()
        except weft.StorageError as error:
            return f"{other} {error}"
        return "read"

    said = forked(child)
    leave.set()
    thread.join(PATIENCE)
    assert said.startswith("90000.0") and "half-written when this process was forked" in said
    variant.run = run
    assert training.check() == "right"


def test_a_child_may_not_use_the_gpu_of_its_parent():
    gpu = FakeGpu()
    with weft.device(gpu.device):
        w = weft.zeros(64)
        x = weft.ones(64)
        step = weft.compile(lambda x: (w.add_(x), w.sum())[1])
        step(x)
    with in_threads(lambda: step(x).item()):  # which the driver's emulation computes before the next
        for _ in range(FORKS):
            said = forked(lambda: str(step(x)))
            assert "DeviceError" in said and "forked" in said and "'spawn'" in said
        said = forked(lambda: str(w.numpy()))
        assert "DeviceError" in said and "forked" in said
        assert forked(lambda: str((weft.ones(2) + 1).tolist())) == "[2.0, 2.0]"
