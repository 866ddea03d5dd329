"""Compiled functions beside debuggers, threads and other things that watch them."""

import cProfile
import gc
import os
import sys
import threading
import time
import weakref
from collections import defaultdict

import pytest

import weft
from tests.backend import captured_elsewhere
from tests.backend.captures import ONES, Counted, Plain


def test_under_a_profiler():
    rate = 0.5
    calls = []
    step = weft.compile(lambda x: x * rate)
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        step(ONES)
        watching = sys.getprofile()
    finally:
        sys.setprofile(None)
    assert watching is not None and calls
    rate = 0.75
    profile = cProfile.Profile()
    with profile:
        assert step(ONES).tolist() == [0.75] * 3
        ONES + 1.0
    assert sys.getprofile() is None


def test_threads_that_trace_and_read_at_once():
    held = Plain(1.0)
    wrong = []

    def work(offset):
        step = weft.compile(lambda x: x * held.value + offset)
        for _ in range(30):
            found = step(ONES).tolist()[0]
            if found - offset not in (1.0, 2.0, 3.0):
                wrong.append(found)

    def change():
        for number in range(300):
            held.value = 1.0 + number % 3
            time.sleep(0)

    threads = [threading.Thread(target=work, args=(float(k),)) for k in range(3)] + [threading.Thread(target=change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert type(held.value) is float


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_process_that_traces_can_trace():
    begun, end = threading.Event(), threading.Event()

    def slow(x):
        begun.set()
        end.wait(1)  # a fork waits for traces
        return x * 2.0

    thread = threading.Thread(target=weft.compile(slow), args=(ONES,))
    thread.start()
    begun.wait(60)
    child = os.fork()
    if child == 0:
        from weft.jit.captures import TRACING

        os._exit(0 if TRACING.acquire(timeout=60) else 1)
    end.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_is_captured_is_given_back():
    class Model(Plain):
        def __call__(self, x):
            return x * self.value

    def run():
        model = Model(2.0)
        step = weft.compile(lambda x: model(x))
        step(ONES)
        return weakref.ref(model)

    gone = run()
    gc.collect()
    assert gone() is None


def test_objects_made_inside_do_not_count():
    class Batch:
        def __init__(self, x):
            self.x, self.scale = x, 2.0
            self.own = self

    def function(x):
        return Batch(x).x * Batch(x).scale

    step = Counted(function)
    for _ in range(4):
        step(ONES)
    assert step.traces == 1


def test_defaultdict_and_lambda_tables():
    table = defaultdict(float, {"a": 0.5})
    step = Counted(lambda x: x * table["a"])
    for number in range(5):
        table["a"] = 0.5 * number
        step(ONES)
    assert step.traces == 2


def test_functions_of_another_module(monkeypatch):
    step = Counted(lambda x: captured_elsewhere.scaled(x) + captured_elsewhere.sized(x))
    step(ONES)
    monkeypatch.setattr(captured_elsewhere, "SCALE", 3.0)
    step(ONES)
    captured_elsewhere.SIZES.append(7)
    step(ONES)
    captured_elsewhere.SIZES.pop()
    step(ONES)


def test_what_an_import_reads_is_not_captured(tmp_path, monkeypatch):
    """The finders of the import system run once: what they read is no input of the function."""

    class Finder:
        def __init__(self):
            self.known = dict.fromkeys(range(5000), 1)

        def find_spec(self, name, path=None, target=None):
            return self.known.get(name)

    (tmp_path / "imported_while_traced.py").write_text("FACTOR = 3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    @weft.compile
    def step(x):
        import imported_while_traced

        return x * imported_while_traced.FACTOR

    assert step(weft.ones(2)).tolist() == [3.0, 3.0]  # without a TraceWarning, which would be an error
    finder.known.clear()
    before = weft.counters()["traces"]
    step(weft.ones(2))
    assert weft.counters()["traces"] == before
