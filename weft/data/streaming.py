"""Batches read ahead by threads.

Each thread owns a worker (`workers.py`), which reads in that thread or in a process, and takes tasks from a common
queue. At most `ahead` batches are under way or waiting. Batches come in the order of their tasks, whichever finishes
first. The threads end with the generator: when it is exhausted, closed, collected, or left by an error or an interrupt.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weft.base.errors import problem
from weft.data.reading import END, describe_samples
from weft.data.workers import Worker, WorkerError

JOIN_SECONDS = 1.0  # how long the end of an iteration waits for its threads; user code may be inside them


class _Shared:
    """What the threads of one iteration share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.tasks: deque[tuple[int, Any]] = deque()
        self.done: dict[int, tuple[bool, Any]] = {}  # by number: (whether it is an error, the batch or the error)
        self.is_stopped = False

    def has_news(self) -> bool:
        """Whether a worker has something to do: a task, or to stop."""
        return bool(self.tasks) or self.is_stopped

    def find_ready(self, sent: Iterable[tuple[int, Any]]) -> list[int]:
        """The numbers of the tasks among those `sent` that are done."""
        return [number for number, _ in sent if number in self.done]


def _work(shared: _Shared, worker: Worker) -> None:
    """The loop of one thread."""
    while True:
        with shared.changed:
            shared.changed.wait_for(shared.has_news)
            if shared.is_stopped:
                return
            number, task = shared.tasks.popleft()
        try:
            found: tuple[bool, Any] = (False, worker.read(task))
        except BaseException as error:  # it is the consumer's
            found = (True, error)
        with shared.changed:
            shared.done[number] = found
            shared.changed.notify_all()
        del found


def prefetch(
    tasks: Iterable[Any],
    make_workers: Callable[[], Sequence[Worker]],
    ahead: int,
    timeout: float = 0,
    in_order: bool = True,
    keep_workers: Callable[[Sequence[Worker]], None] | None = None,
    waited: Callable[[float], None] = lambda seconds: None,
) -> Iterator[Any]:
    """The batches of `tasks`. `waited` gets the seconds that the consumer waited for each. Workers are closed at the
    end, or given to `keep_workers`, if there is one and all of them are idle."""
    shared = _Shared()
    workers = make_workers()
    threads = [
        threading.Thread(target=_work, args=(shared, worker), daemon=True, name=f"weft-loader-{number}")
        for number, worker in enumerate(workers)
    ]
    try:
        for thread in threads:
            thread.start()
        yield from _take_results(shared, iter(tasks), ahead, timeout, in_order, waited)
    finally:
        with shared.changed:
            shared.is_stopped = True
            shared.changed.notify_all()
        started = [thread for thread in threads if thread.ident is not None]
        if keep_workers is not None:
            _join(started)
        if keep_workers is not None and not any(thread.is_alive() for thread in started):
            keep_workers(workers)
        else:
            for worker in workers:
                worker.close()
            _join(started)


def _join(threads: list[threading.Thread]) -> None:
    limit = time.monotonic() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(limit - time.monotonic(), 0))


def _take_results(
    shared: _Shared, tasks: Iterator[Any], ahead: int, timeout: float, in_order: bool, waited: Callable[[float], None]
) -> Iterator[Any]:
    sent: deque[tuple[int, Any]] = deque()  # tasks that have not been given out yet, in order
    count = 0
    is_open = True
    while True:
        while is_open and len(sent) < ahead:
            try:
                task = next(tasks)
            except StopIteration:
                is_open = False
                break
            sent.append((count, task))
            with shared.changed:
                shared.tasks.append((count, task))
                shared.changed.notify()
            count += 1
        if not sent:
            return
        begin = time.perf_counter()
        number = _wait_for(shared, sent, timeout, in_order)
        waited(time.perf_counter() - begin)
        with shared.changed:
            is_error, value = shared.done.pop(number)
        sent.remove(next(one for one in sent if one[0] == number))
        if is_error:
            raise value
        if value is END:
            return
        yield value
        del value


def _wait_for(shared: _Shared, sent: deque[tuple[int, Any]], timeout: float, in_order: bool) -> int:
    """The number of a task that is done: the first, or any."""
    limit = time.monotonic() + timeout if timeout else None
    with shared.changed:
        while True:
            ready = shared.find_ready(sent)
            if ready and (not in_order or ready[0] == sent[0][0]):
                return ready[0]
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                task = sent[0][1]
                what = "the next items of a stream" if task is None else describe_samples(task)
                given = f"no batch for {timeout} seconds, while reading {what}"
                raise problem(WorkerError, "DataLoader", given, "a batch within the timeout", "raise timeout=")
            shared.changed.wait(left)
