"""Threads that read while another runs a compiled step: a value is that before a step or after it, never a mixture."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import weft
from tests.timers import stop_timer
from weft.base import locks
from weft.errors import GraphError

pytestmark = [pytest.mark.backend, pytest.mark.cpu_only, pytest.mark.interpreters]

SIZE = 200_000  # elements: a step takes long enough to be read in the middle
READS = 60


class Stepping:
    """Parameters that a compiled step adds one to, all elements alike, so a torn value shows."""

    def __init__(self, count: int = 3):
        self.parameters = [weft.zeros(SIZE) for _ in range(count)]
        weft.eval(*self.parameters)

        @weft.compile
        def step(x: weft.Tensor) -> weft.Tensor:
            for parameter in self.parameters:
                parameter.add_(x)
            return self.parameters[0].sum()

        self.step, self.one = step, weft.ones(1)
        weft.eval(self.one)
        self.step(self.one)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Steps in another thread."""
        stop, failed = threading.Event(), []

        def run() -> None:
            try:
                while not stop.is_set():
                    self.step(self.one)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
        assert not thread.is_alive() and not failed, failed


def assert_whole(array: np.ndarray) -> float:
    """All elements are the same; which."""
    assert array.min() == array.max(), f"a torn value: {array.min()} to {array.max()}"
    return float(array.reshape(-1)[0])


def extremes(value: weft.Tensor) -> weft.Tensor:
    return weft.stack([value.amin(), value.amax()])


READERS: dict[str, Callable[[weft.Tensor], np.ndarray]] = {
    "numpy": lambda w: w.numpy(),
    "array": lambda w: np.array(w),
    "tolist": lambda w: np.array(w.tolist()),
    "item": lambda w: np.array([w[SIZE - 1].item()]),
    "eager": lambda w: (w * 2.0).numpy(),
    "twice": lambda w: (w - w).numpy(),
    "clone": lambda w: w.clone().numpy(),
    "view": lambda w: w.reshape(2, -1).numpy(),
    "slice": lambda w: w[10 : SIZE - 10].numpy(),
    "reduced": lambda w: extremes(w * 1.0).numpy(),  # one read: a second may be of a later step
    "dlpack": lambda w: np.from_dlpack(w),
    "cast": lambda w: w.double().numpy(),
    "snapshot": lambda w: weft.snapshot([w])[0].numpy(),
    "compiled": weft.compile(lambda w: weft.stack([w.amin(), w.amax()])),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_sees_whole_steps(name):
    stepping, read = Stepping(), READERS[name]
    last = 0.0
    with stepping.running():
        for _ in range(READS if name != "tolist" else 8):
            value = assert_whole(np.asarray(read(stepping.parameters[1])))
            assert value >= last or name == "twice"
            last = value


def test_a_value_that_is_retained_does_not_change():
    stepping = Stepping()
    with stepping.running():
        held = [stepping.parameters[0] * 1.0 for _ in range(4)]
        values = [assert_whole(one.numpy()) for one in held]
        time.sleep(0.05)
        assert [assert_whole(one.numpy()) for one in held] == values


def test_another_compiled_function_reads_whole_steps():
    stepping = Stepping()
    extremes = weft.compile(lambda: [weft.stack([p.amin(), p.amax()]) for p in stepping.parameters])
    with stepping.running():
        for _ in range(READS):
            assert len({assert_whole(one.numpy()) for one in extremes()}) == 1


def test_a_snapshot_is_of_one_moment():
    stepping = Stepping()
    with stepping.running():
        for _ in range(READS):
            taken = weft.snapshot({"all": stepping.parameters, "name": "w"})
            assert taken["name"] == "w"
            assert len({assert_whole(one.numpy()) for one in taken["all"]}) == 1


def test_a_snapshot_keeps_its_values_and_has_no_history():
    w = weft.tensor([1.0, 2.0], requires_grad=True)
    taken = weft.snapshot((w, [w * 3]))
    with weft.no_grad():
        w.add_(1)
    assert taken[0].tolist() == [1, 2] and taken[1][0].tolist() == [3, 6]
    assert not taken[0].requires_grad and not taken[1][0].requires_grad
    with pytest.raises(GraphError, match="snapshot"):
        weft.compile(lambda x: weft.snapshot([x])[0])(w)


@pytest.mark.parametrize("compiled", [True, False])
def test_an_optimizers_state_dict_is_of_one_moment(compiled):
    """With a constant gradient of one, every element of each state vector is the same function of the step."""
    parameters = [weft.zeros(SIZE // 4, requires_grad=True), weft.zeros(SIZE // 2, requires_grad=True)]
    optimizer = weft.optim.Adam(parameters, lr=1e-3, betas=(0.5, 0.5))

    def step() -> None:
        optimizer.zero_grad()
        weft.stack([p.sum() for p in parameters]).sum().backward()
        optimizer.step()

    call = weft.compile(lambda: (step(), parameters[0].sum())[1]) if compiled else step
    call()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [call() for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        for _ in range(20):
            state = optimizer.state_dict()["state"]
            steps = {entry["step"].item() for entry in state.values()}
            means = {assert_whole(entry["exp_avg"].numpy()) for entry in state.values()}
            assert len(steps) == 1 and len(means) == 1
            assert abs(means.pop() - (1 - 0.5 ** steps.pop())) < 1e-6
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_an_optimizer_can_be_copied():
    optimizer = weft.optim.SGD([weft.zeros(2, requires_grad=True)], lr=0.1)
    lock = optimizer._step_lock
    for other in (copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
        assert other is not lock
        with other, lock:
            pass


def test_functions_that_write_each_others_parameters_do_not_wait_for_each_other_for_ever():
    """Two threads, two compiled functions, each reads what the other writes; arguments are lazy values of both."""
    a, b = weft.zeros(SIZE), weft.zeros(SIZE)
    weft.eval(a, b)
    to_a = weft.compile(lambda x: (a.add_(x), a.sum())[1])
    to_b = weft.compile(lambda x: (b.add_(x), b.sum())[1])
    both = weft.compile(lambda x: (a.add_(x), b.add_(x), a.sum())[2])
    one = weft.ones(1)
    for function in (to_a, to_b, both):
        function(one)
    failed: list[BaseException] = []

    def run(function, other) -> None:
        try:
            for _ in range(40):
                part = other[:1]  # one read: a second may be of a later step
                function(one + (part - part))
                assert_whole(other.numpy())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in ((to_a, b), (to_b, a), (both, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and not any(thread.is_alive() for thread in threads), failed
    assert assert_whole(a.numpy()) == 82 and assert_whole(b.numpy()) == 82


def test_a_finalizer_may_read_and_gets_an_error_for_a_call():
    """The collector runs wherever memory is allocated, also inside a call."""
    stepping, read, refused = Stepping(1), [], []

    class Reader:
        def __init__(self) -> None:
            self.me = self  # for the collector

        def __del__(self) -> None:
            read.append(assert_whole(stepping.parameters[0].numpy()))
            try:
                stepping.step(stepping.one)
            except GraphError as error:
                refused.append(str(error))

    limits = gc.get_threshold()
    gc.collect()
    gc.freeze()  # what the process has by now is not looked at each time
    try:
        for k in range(30):  # the collector runs after 1, 2, ... 30 more objects were made
            gc.disable()
            gc.collect()
            Reader()
            gc.set_threshold(gc.get_count()[0] + 1 + k, 1, 1)
            gc.enable()
            stepping.step(stepping.one)
    finally:
        gc.set_threshold(*limits)
        gc.enable()
    gc.collect()
    assert len(read) == 30 and refused
    assert all("one call at a time" in text for text in refused)
    assert assert_whole(stepping.parameters[0].numpy()) == 1 + 30 + 30 - len(refused)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_a_signal_handler_may_read_and_interrupts_leave_nothing_locked():
    stepping, seen, armed = Stepping(), [], []

    class Interrupt(Exception):
        pass

    def handle(*_) -> None:
        seen.append(stepping.parameters[0].numpy().copy())
        with contextlib.suppress(GraphError):  # where the signal came in the middle of a step
            stepping.step(stepping.one)
        if len(seen) < 40:
            signal.setitimer(signal.ITIMER_REAL, 0.003)  # not before: on a slow machine handlers would nest for ever
        if armed and len(seen) % 2:
            armed.clear()  # one exception for each step below, so that none leaves the block that catches it
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    try:
        deadline = time.monotonic() + 120
        while len(seen) < 40 and time.monotonic() < deadline:
            with contextlib.suppress(Interrupt):
                # One step, no loop: CPython 3.12 and 3.13 cover no jump back under a condition by a handler.
                armed.append(True)
                stepping.step(stepping.one)
                armed.clear()
    finally:
        stop_timer(before)
    for values in seen:
        assert_whole(values)
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(stepping.step(stepping.one).item()), daemon=True)
    thread.start()
    thread.join(120)
    assert len(seen) >= 40 and len(done) == 1
    assert_whole(stepping.parameters[0].numpy())


def test_locks_of_several_groups_are_taken_in_one_order():
    first, second = locks.WriteGroup(), locks.WriteGroup()
    assert locks.locks_of([second, first, second]) == (first.lock, second.lock)
    assert locks.locks_of([first]) == (first.lock,) and locks.locks_of([]) == ()


@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_a_call_holds_all_locks_and_gives_them_back(count):
    some = locks.locks_of([locks.WriteGroup() for _ in range(count)])

    def work(number: int) -> int:
        assert all(lock._is_owned() for lock in some)
        if number < 0:
            raise ValueError
        return number

    assert locks.call_holding(some, locks.call_holding, some, work, 3) == 3
    with pytest.raises(ValueError):
        locks.call_holding(some, work, -1)
    assert not any(lock._is_owned() for lock in some)


def test_a_function_that_uses_memory_of_several_groups_replays_under_all_their_locks():
    a, b = weft.zeros(3), weft.zeros(3)
    weft.eval(a, b)
    to_a, to_b = (weft.compile(lambda x, w=w: (w.add_(x), w.sum())[1]) for w in (a, b))
    both = weft.compile(lambda x: (a.add_(b), (a + x).sum())[1])
    one = weft.ones(3)
    for function in (to_a, to_b, both, both):
        function(one)
    variant, held = both.last, []
    assert len(variant.groups) == 2 and len(variant.other_locks) == 1
    run = variant.run

    def watched(table) -> None:
        held.append([group.lock._is_owned() for group in variant.groups])
        run(table)

    variant.run = watched
    before = both.retraces[:]
    assert [both(one).item() for _ in range(3)] == [15, 18, 21]
    assert held == [[True, True]] * 3 and both.retraces == before and len(both.variants) == 1
    assert not any(group.lock._is_owned() for group in variant.groups)
