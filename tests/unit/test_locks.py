"""Locks are given back when a signal handler raises, whatever instruction it interrupts."""

from __future__ import annotations

import ast
import contextlib
import copy
import ctypes
import dis
import os
import pickle
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.timers import stop_timer
from tests.unit.fake_driver import FakeGpu
from weft.base import locks
from weft.base.state import STATE
from weft.compiler import cells
from weft.jit.captures import TRACING

pytestmark = [
    pytest.mark.interpreters,
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # a handler may interrupt a finalizer
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers"),
]


class Interrupt(Exception):
    pass


@contextlib.contextmanager
def interrupts(seconds: float):
    """Inside, `armed.append(True)` asks for one `Interrupt`, within some `seconds`."""
    armed: list[bool] = []

    def handle(*_) -> None:
        if armed:
            armed.clear()
            raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield armed
    finally:
        armed.clear()
        stop_timer(before)


SECONDS, MAX_SECONDS = 0.6, 60.0  # longer than the first only where that interrupts less than `LEAST` times
LEAST = 30
INTERRUPTS = ("BaseException", "KeyboardInterrupt")


def times_left(work: Callable[[], object], is_left: Callable[[], bool]) -> tuple[int, int]:
    """How often `work` was interrupted, and how often `is_left` was true afterwards."""
    count = left = 0
    start = time.monotonic()

    def repeat() -> None:
        for _ in range(200):
            work()
            if not armed:
                break  # what the handler raised was ignored, as in a callback of C code

    with interrupts(20e-6) as armed:
        while time.monotonic() < start + (SECONDS if count >= LEAST else MAX_SECONDS):
            try:
                armed.append(True)
                repeat()
                armed.clear()
            except Interrupt:
                pass
            else:
                if armed:
                    armed.clear()
                    continue
            count += 1
            left += is_left()
    return count, left


def times_left_locked(work: Callable[[], object], some: Sequence[Any]) -> tuple[int, int]:
    """How often `work` was interrupted, and how often one of these locks was left locked by it."""

    def is_left() -> bool:
        found = False
        for lock in some:
            while lock._is_owned():
                found = True
                lock.release()
        return found

    return times_left(work, is_left)


def in_context(context: Any) -> Callable[[], None]:
    def work() -> None:
        for _ in range(20):
            with context:
                pass
            with context:
                pass

    return work


def assert_none_is_left(found: tuple[int, int]) -> None:
    count, left = found
    assert count >= LEAST and left == 0, found


# --- what the interpreter covers ---


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _blocks(source: str, is_meant: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """First and last line of what is to be undone at its end: `with` blocks of contexts that are meant, given as text,
    and `try` blocks with `finally` or with a handler of interrupts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.With):
            found = any(is_meant(ast.unparse(item.context_expr)) for item in node.items)
        elif isinstance(node, ast.Try):
            kinds = [ast.unparse(one.type) if one.type else "BaseException" for one in node.handlers]
            found = bool(node.finalbody) or any(name in kind for kind in kinds for name in INTERRUPTS)
        else:
            continue
        if found:
            yield node.body[0].lineno, max(one.end_lineno or 0 for one in node.body)


def jumps_outside(source: str, is_meant: Callable[[str], bool]) -> list[int]:
    """Lines of backward jumps inside a block that is to be undone at its end (`_blocks`) that the compiler left out of
    the block's exception table: an interrupt there passes `__exit__`, `finally` and `except` by."""
    meant = list(_blocks(source, is_meant))
    found = set()
    for code in _codes(compile(source, "module", "exec")) if meant else ():
        listing = dis.Bytecode(code)
        lines = [(one, one.positions.lineno) for one in listing if one.positions and one.positions.lineno]
        for first, last in meant:
            inside = [one for one, line in lines if code.co_firstlineno < first <= line <= last]
            start = min((one.offset for one in inside), default=0)
            for one in inside:
                is_jump = "JUMP_BACKWARD" in one.opname and "NO_INTERRUPT" not in one.opname and one.argval >= start
                covers = [start - 2 <= entry.start <= one.offset < entry.end for entry in listing.exception_entries]
                if is_jump and not any(covers):
                    found.add(one.positions.lineno)
    return sorted(found)


def test_interrupts_reach_the_end_of_every_block_that_undoes_something():
    """Locks, modes of gradients and devices, traces, signal handlers: all but what the process's end undoes as well."""
    folder, found, count = Path(weft.__file__).parent, [], 0
    for path in folder.rglob("*.py"):
        source = path.read_text("utf-8")
        count += len(list(_blocks(source, is_undone)))
        found += [f"{path.relative_to(folder)}:{line}" for line in jumps_outside(source, is_undone)]
    assert count > 100
    assert not found, found


def is_undone(context: str) -> bool:
    return context.partition("(")[0] not in ("open", "io.FileIO", "console.status", "contextlib.suppress")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 leaves none out")
@pytest.mark.skipif(sys.version_info >= (3, 15), reason="not known")
@pytest.mark.parametrize(("head", "end"), [("with x.lock:", ""), ("try:", "  finally:\n    x()\n")])
def test_the_search_for_such_jumps_finds_one(head, end):
    source = f"def f(x):\n  {head}\n    for y in x:\n      y()\n      if not y:\n        break\n    y()\n{end}"
    assert jumps_outside(source, is_undone) == [5]
    assert jumps_outside(source, lambda text: False) == ([5] if end else [])


# --- interrupts ---


@pytest.mark.parametrize("make", [locks.new_lock, locks.CopyableLock, locks.thread_lock])
def test_an_interrupt_leaves_no_lock_locked(make):
    lock = make()
    assert_none_is_left(times_left_locked(in_context(lock), [lock]))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_interrupt_leaves_none_of_several_locks_locked(count):
    some = locks.locks_of([locks.WriteGroup() for _ in range(count)])
    assert_none_is_left(times_left_locked(lambda: locks.call_holding(some, len, some), some))


def test_an_interrupt_while_waiting_for_a_lock_gives_back_the_others():
    """A signal handler that raises while `acquire` waits, with and without a limit of time."""
    first, second = locks.new_lock(), locks.new_lock()
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with second:
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(60)
        with interrupts(0.05) as armed, pytest.raises(Interrupt):
            armed.append(True)
            locks.call_holding([first, second], len, "")
        assert not first._is_owned()
    finally:
        leave.set()
        thread.join(60)
    assert locks.call_holding([first, second], len, "") == 0


def _tensors_of_two_groups() -> list[weft.Tensor]:
    tensors = [weft.zeros(3), weft.zeros(3)]
    weft.eval(*tensors)
    for tensor in tensors:
        weft.compile(lambda x, tensor=tensor: (tensor.add_(x), tensor.sum())[1])(weft.ones(3))
    return tensors


def test_an_interrupt_of_what_reads_written_memory_leaves_nothing_locked():
    tensors = _tensors_of_two_groups()
    groups = cells.groups_of(tensors)
    assert len(groups) == 2
    some = [group.lock for group in groups]
    assert_none_is_left(times_left_locked(lambda: cells.call_steady(tensors, len), some))
    assert_none_is_left(times_left_locked(lambda: cells.expose(tensors[0]), some))


def test_an_interrupt_of_compiled_steps_and_of_reading_leaves_nothing_locked():
    tensors = _tensors_of_two_groups()
    one = weft.ones(3)
    step = weft.compile(lambda x: (tensors[0].add_(tensors[1]), (tensors[0] + x).sum())[1])
    step(one)
    some = [step.section, *[group.lock for group in step.last.groups], locks.thread_lock()]
    assert len(step.last.groups) == 2

    def work() -> None:
        step(one)
        (tensors[0] + 1.0).tolist()

    assert_none_is_left(times_left_locked(work, some))
    step(one)
    assert step._running == [None]


def test_an_interrupt_of_calls_of_a_gpu_leaves_its_stream_free():
    gpu = FakeGpu()
    x = weft.ones(3, device=gpu.device)
    weft.eval(x)
    assert_none_is_left(times_left_locked(gpu.synchronise, [gpu.order]))
    assert_none_is_left(times_left_locked(lambda: (x + 1.0).numpy(), [gpu.order, locks.thread_lock()]))
    assert not gpu.is_enqueueing


def test_an_interrupt_of_what_runs_alone_leaves_nothing_locked():
    step = weft.compile(lambda x: x + 1.0)
    some = [step.section, locks.thread_lock(), locks._one_fork, locks._registering]

    def is_owned() -> list[bool]:
        return [lock._is_owned() for lock in some]

    assert locks.call_alone(is_owned) == [True] * 4
    assert_none_is_left(times_left_locked(lambda: locks.call_alone(len, ""), some))


def test_an_interrupt_of_a_fork_leaves_nothing_locked():
    """The steps of `os.fork` without the fork. Python goes on where one of them raises."""
    step = weft.compile(lambda x: x + 1.0)
    some = [step.section, locks.thread_lock(), locks._one_fork, locks._registering]
    after = (locks._after_fork_in_parent, locks._after_fork_in_parent, locks._forget_fork)

    def finish(left: list) -> None:
        while left:
            with contextlib.suppress(Interrupt):
                try:
                    left[-1]()
                finally:
                    left.pop()

    def work() -> None:
        left = [*reversed(after), locks._before_fork]
        try:
            finish(left)
        except Interrupt:  # between two of them, where `os.fork` cannot be interrupted
            finish(left)

    assert_none_is_left(times_left_locked(work, some))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_thread_that_was_interrupted_does_not_delay_a_fork():
    """Threads get exceptions from others, too: nothing of theirs is left that a fork would wait for."""
    stop, times = threading.Event(), [0]
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def inside() -> None:
        times[0] += 1
        while not stop.is_set():
            with locks.thread_lock():
                pass

    def work() -> None:
        while not stop.is_set():
            with contextlib.suppress(Interrupt):
                inside()

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + MAX_SECONDS
    for count in range(1, 101):
        while times[0] < count and time.monotonic() < deadline:
            time.sleep(1e-4)
        raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupt))
    while times[0] < 101 and time.monotonic() < deadline:
        time.sleep(1e-4)
    stop.set()
    thread.join(60)
    assert not thread.is_alive() and times[0] == 101
    started = time.monotonic()
    locks.call_alone(len, "")
    assert time.monotonic() - started < locks.FORK_TIMEOUT / 4


def test_a_thread_that_is_new_during_a_fork_waits_for_its_end():
    order: list[str] = []
    started = threading.Event()

    def work() -> None:
        started.set()
        with locks.thread_lock():
            order.append("thread")

    thread = threading.Thread(target=work)

    def alone() -> None:
        thread.start()
        started.wait(60)
        time.sleep(0.1)
        order.append("fork")

    locks.call_alone(alone)
    thread.join(60)
    assert order == ["fork", "thread"]


def test_a_copied_lock_is_another_of_the_same_kind():
    lock = locks.CopyableLock()
    for other in (copy.copy(lock), copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
        assert type(other) is locks.CopyableLock and other is not lock
        with lock:
            assert lock._is_owned() and not other._is_owned()


def test_an_interrupt_of_a_function_under_no_grad_leaves_gradients_on():
    @weft.no_grad
    def work() -> int:
        return 3

    @weft.set_grad_enabled(False)
    def other() -> int:
        return 3

    def is_left() -> bool:
        found, STATE.grad_enabled = not STATE.grad_enabled, True
        return found

    for function in (work, other):
        assert_none_is_left(times_left(function, is_left))


def test_an_interrupt_of_a_trace_ends_it():
    weight = weft.ones(3, requires_grad=True)
    x = weft.ones(3)
    weft.compile(lambda x: (weight * x).sum())(x)  # what it takes is loaded and compiled

    def work() -> None:
        weft.compile(lambda x: (weight * x).sum()).memory(x)

    def is_left() -> bool:
        found = STATE.trace is not None or not STATE.grad_enabled
        STATE.trace, STATE.grad_enabled = None, True
        return found

    assert_none_is_left(times_left(work, is_left))
    assert TRACING.acquire(blocking=False)
    TRACING.release()
