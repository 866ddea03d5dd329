"""Workers that read batches: in the calling thread, or each in a process of its own.

A `Worker` answers `read(task)`: a task is a list of positions, or None for the next batch of a stream, which ends with
`END`. `ProcessWorker` sends tasks through a pipe to a process that it started and gets arrays back. A process that ends
without an answer is an error at once: its sentinel is waited for together with the pipe, and the index of the sample
that it was reading lies in memory that both processes share.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import numpy as np

from weft.base.errors import RangeError, WeftError, problem
from weft.core.creation import tensor
from weft.core.device import device as use_device
from weft.data.collate import Make, Packed, pack, to_device, unpack
from weft.data.reading import END, NO_SAMPLE, OTHER_KEY, WHOLE_TASK, Source, describe_sample, note_sample
from weft.data.seeds import ITEMS, epoch_seed, task_seed
from weft.random.generator import Generator, default_generator, use_generator

__all__ = ["WorkerError"]

PARENT_CHECK_SECONDS = 2.0  # how often an idle worker process looks whether its parent is still there
READ, STOP = "read", "stop"  # the messages to a process, together with a task
SHUTDOWN_SECONDS = 1.0  # how long a process is given to end by itself
DEATH_SECONDS = 10.0  # how long the exit code of a process that has closed its pipe is waited for


class WorkerError(WeftError, RuntimeError):
    """A worker of a DataLoader that ended, or does not answer."""


class Worker(Protocol):
    """Something that reads batches, used by one thread at a time."""

    def read(self, task: Any) -> Any: ...

    def close(self) -> None: ...


class LocalWorker:
    """Reads in the thread that calls it. `default` is the default device of the dataset's own code, `target` where
    batches go (None: they stay where they are made). `start(number)` is called before the first read.

    Where the dataset's code draws from Weft's default generator, it draws from a stream of the task's own instead, as
    in a `ProcessWorker`. (Python's and NumPy's generators are those of the whole process.)"""

    def __init__(
        self,
        source: Source,
        default: Any,
        target: Any,
        skip: int = 0,
        seed: int = 0,
        number: int = 0,
        start: Callable[[int], None] | None = None,
    ):
        self.source, self.default, self.target, self.skip = source, default, target, skip
        self.seed, self.number, self.start = seed, number, start
        self._is_seeded_once = start is not None
        self._generator = Generator(epoch_seed(seed, number, ITEMS))
        self.index: Any = NO_SAMPLE
        self.make: Make = lambda array: tensor(array, device=target or default)
        self._stream: Iterator[Any] | None = None

    def _note(self, index: Any) -> None:
        self.index = index

    def read(self, task: Any) -> Any:
        self.index = NO_SAMPLE
        start, self.start = self.start, None
        if task is not None and not self._is_seeded_once:
            self._generator.manual_seed(task_seed(self.seed, task))
        try:
            with use_device(self.default), use_generator(self._generator):
                if start is not None:
                    start(self.number)
                batch = self._next() if task is None else self.source.read(task, self._note, self.make)
        except Exception as error:
            note_sample(error, self.index, task)
            raise
        return batch if batch is END or self.target is None else to_device(batch, self.target)

    def _next(self) -> Any:
        if self._stream is None:
            self._stream = self.source.stream(self.skip, self._note, self.make)
        return next(self._stream, END)

    def close(self) -> None:
        self._stream = None


def start_processes(
    source: Source,
    target: Any,
    count: int,
    start: Callable[[int], None] | None = None,
    context: Any = None,
    skip: int = 0,
) -> list[ProcessWorker]:
    """Workers in processes of their own. `context` is one of `multiprocessing`, or the name of a start method.

    A forked process has the dataset as it is. Any other gets it pickled, with its first task: were it an argument of
    the process, a process that ends before it has read a large one would make `Process.start` wait for ever.
    """
    if not hasattr(context, "Process"):
        context = multiprocessing.get_context(context or "spawn")
    job: Any = (source, start, skip)
    if context.get_start_method() != "fork":
        job = _pickle_job(job)
    made: list[ProcessWorker] = []
    try:
        for number in range(count):
            made.append(ProcessWorker(job, target, number, context))
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def _pickle_job(job: Any) -> bytes:
    try:
        return pickle.dumps(job, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise problem(
            RangeError,
            "DataLoader",
            f"worker='process' and a dataset that cannot be sent to a process ({error})",
            "a dataset, collate_fn and worker_init_fn that can be pickled",
            "define them at the top level of a module, or use worker='thread'",
        ) from None


class ProcessWorker:
    """Reads in a process of its own. `seed` is that of the present epoch: before a batch is read, the generators of
    Weft, Python and NumPy in the process are seeded by it and the positions, so that what a dataset draws there
    depends neither on the number of workers nor on the epochs before. With a `worker_init_fn`, which may seed them
    itself, they are seeded once, by the worker's number."""

    def __init__(self, job: Any, target: Any, number: int, context: Any):
        self.target, self.number, self.seed = target, number, 0
        self._task: Any = None  # what was sent last
        self._unsent: bytes | None = job if isinstance(job, bytes) else None
        self._pipe, theirs = context.Pipe()
        self._index = context.RawValue("q", NO_SAMPLE)
        arguments = (theirs, None if self._unsent else job, self._index, number, os.getpid())
        self._process = context.Process(target=_serve, args=arguments, daemon=True, name=f"weft-worker-{number}")
        try:
            with _block_interrupts():
                self._process.start()
        finally:
            theirs.close()

    def read(self, task: Any) -> Any:
        try:
            if self._unsent is not None:
                self._pipe.send_bytes(self._unsent)
                self._unsent = None
            self._task = task
            self._pipe.send((READ, task, self.seed))
            if self._pipe not in wait([self._pipe, self._process.sentinel]) and not self._pipe.poll():
                raise self._death()
            kind, value, text, index = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._death() from None
        if kind == "batch":
            return unpack(value, self.target)
        if kind == "end":
            return END
        if value is None:
            given = f"worker {self.number}, which failed while it read {describe_sample(index, task)}: {text}"
            raise problem(WorkerError, "DataLoader", given)
        note_sample(value, index, task)
        value.add_note(f"in worker process {self.number}:\n{text}")
        raise value

    def _death(self) -> WeftError:
        self._process.join(DEATH_SECONDS)
        code = self._process.exitcode
        if code is None:
            how = "which closed its pipe"
        elif code < 0:
            how = f"which was killed by {signal.Signals(-code).name}"
        else:
            how = f"which ended with exit code {code}"
        sample = describe_sample(self._index.value, self._task)
        given = f"worker {self.number} (process {self._process.pid}), {how} at {sample}"
        fix = "look at this sample and at the memory of the machine; scripts need `if __name__ == '__main__':`"
        return problem(WorkerError, "DataLoader", given, "workers that live as long as the loader's iterator", fix)

    def close(self) -> None:
        """End the process; a read that is under way in another thread gets an error. (The pipe is closed when nothing
        refers to it: that thread may still wait for it.)"""
        if self._index.value == NO_SAMPLE and self._unsent is None:
            with contextlib.suppress(OSError):
                self._pipe.send((STOP, None, 0))
            self._process.join(SHUTDOWN_SECONDS)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(SHUTDOWN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Keep SIGINT from processes that are started inside: Ctrl-C goes to all of a terminal's processes, and the parent
    is the one to end its workers."""
    if sys.platform == "win32":  # which blocks no signals; `_serve` has the workers ignore them
        yield
        return
    resource_tracker.ensure_running()  # its start, which belongs to that of the first process, unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, job: Any, index: Any, number: int, parent: int) -> None:
    """The loop of a worker process: it ends on STOP, or when its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where the start method does not pass on the blocked signals

    key: Any = NO_SAMPLE  # what is being read; the parent sees it as a number

    def note(position: Any) -> None:
        nonlocal key
        key = position
        is_range = isinstance(position, range)
        index.value = position if isinstance(position, (int, np.integer)) else WHOLE_TASK if is_range else OTHER_KEY

    stream: Iterator[Any] | None = None
    is_started = False
    while True:
        while not pipe.poll(PARENT_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        try:
            if job is None:
                job = pipe.recv_bytes()
            order, task, seed = pipe.recv()
        except (EOFError, OSError):
            return
        if order == STOP:
            return
        try:
            if isinstance(job, bytes):
                job = pickle.loads(job)
            source, start, skip = job
            if not is_started:
                _seed_all(epoch_seed(seed, number, ITEMS))
                if start is not None:
                    start(number)
            if start is None and task is not None:
                _seed_all(task_seed(seed, task))
            is_started = True
            if task is None:
                stream = stream or source.stream(skip, note, Packed)
                value = next(stream, END)
            else:
                value = source.read(task, note, Packed)
            reply = ("end", None, "", None) if value is END else ("batch", pack(value), "", None)
            payload = pickle.dumps(reply, protocol=5)
        except Exception as error:
            payload = _error_payload(error, key)
        key = index.value = NO_SAMPLE
        try:
            pipe.send_bytes(payload)
        except (BrokenPipeError, ConnectionError):
            return


def _seed_all(seed: int) -> None:
    """Seed the generators of Weft, Python and NumPy."""
    default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  the generator that datasets of others draw from


def _error_payload(error: Exception, index: Any) -> bytes:
    """An error as bytes; what cannot be sent as it is goes as text."""
    text = "".join(traceback.format_exception(error))
    try:
        payload = pickle.dumps(("error", error.with_traceback(None), text, index))
        pickle.loads(payload)
    except Exception:
        payload = pickle.dumps(("error", None, text, index))
    return payload
