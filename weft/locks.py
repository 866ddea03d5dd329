"""locks: how threads share memory that is rewritten in place, and what a fork finds. A base module; imports nothing.

A `WriteGroup` is memory that compiled functions rewrite in place, with the lock that a run holds while it writes and a
reader while it copies. Who needs several groups takes their locks in the order in which the groups were made
(`lock_of`), so two threads never wait for each other.

A fork copies one thread only: a lock that another thread holds would stay locked in the child for ever, and memory that
it writes would stay half-written. So the fork waits until every other thread has left the sections that `Activity` and
the registered `Section`s guard, for `FORK_PATIENCE` seconds at most (a section may run user code that waits for
the forking thread). Locks made by `new_lock` are free in the child, whoever held them.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

FORK_PATIENCE = 60.0  # seconds that a fork waits for the other threads
POLL_SECONDS = 0.05  # how often a waiting fork looks again by itself

_serial = itertools.count()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


class _Lock(_thread.RLock):  # type: ignore[misc]  # final in the stub alone
    """A reentrant lock that is given back whenever an exception leaves the `with` block, also where a signal handler
    raises it at the block's first instruction.

    From CPython 3.14 on `with` calls `__enter__` as any other function, and looks for signals after the call but before
    the block has begun: what a handler raises there leaves a plain lock locked for ever. Reading an attribute is no
    call in that sense, and `__exit__` stays the one of the base class, which nothing interrupts."""

    __slots__ = ()
    _taken = property(_thread.RLock.acquire)

    def __enter__(self) -> bool:  # type: ignore[override]  # the stub has the arguments of acquire
        return self._taken


_LOCK = _Lock if sys.version_info >= (3, 14) else _thread.RLock


def new_lock() -> Any:
    """A reentrant lock that is free in a forked child, unless the forking thread itself holds it."""
    lock = _LOCK()
    _locks.add(lock)
    return lock


class CopyableLock:
    """A reentrant lock as an attribute of an object that can be copied and pickled: the copy has a lock of its own."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = new_lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: Any) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple:
        return CopyableLock, ()


# --- memory that is rewritten in place -------------------------------------------------------------------------------


class WriteGroup:
    """Memory that compiled functions rewrite in place, under one lock. `exposed` are the leaves that show its present
    value, as (weak tensor, weak leaf): before the memory is rewritten they get copies."""

    __slots__ = ("__weakref__", "exposed", "lock", "serial")

    def __init__(self) -> None:
        self.lock = new_lock()
        self.serial = next(_serial)
        self.exposed: list[tuple[weakref.ref, weakref.ref]] = []


class _SeveralLocks:
    """Several locks as one context; taken in order, given back in reverse."""

    __slots__ = ("locks",)

    def __init__(self, locks: list[Any]):
        self.locks = locks

    def __enter__(self) -> None:
        taken = 0
        try:
            for lock in self.locks:
                lock.acquire()
                taken += 1
        except BaseException:  # an interrupt while waiting
            for lock in reversed(self.locks[:taken]):
                lock.release()
            raise

    def __exit__(self, *_: Any) -> None:
        for lock in reversed(self.locks):
            lock.release()


def lock_of(groups: Iterable[WriteGroup]) -> Any:
    """One context that holds the locks of all these groups."""
    locks = [group.lock for group in sorted(set(groups), key=lambda group: group.serial)]
    return locks[0] if len(locks) == 1 else _SeveralLocks(locks)


# --- forks -----------------------------------------------------------------------------------------------------------


class Activity:
    """`with activity:` this thread is in a section that a fork must not cut through. May be nested."""

    def __init__(self) -> None:
        self._inside: list[int] = []  # the threads; appending and removing are atomic
        self._forking: int | None = None  # the thread that is about to fork
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        me = threading.get_ident()
        self._inside.append(me)
        if self._forking is not None and self._forking != me and self._inside.count(me) == 1:
            self._wait_for_fork(me)

    def __exit__(self, *_: Any) -> None:
        self._inside.remove(threading.get_ident())
        if self._forking is not None:
            with self._changed:
                self._changed.notify_all()

    def _wait_for_fork(self, me: int) -> None:
        """Stand outside until the fork is over. Entering and closing each write first and then read, so one of the two
        threads sees the other."""
        with self._changed:
            while self._forking is not None and self._forking != me:
                self._inside.remove(me)
                try:
                    self._changed.notify_all()
                    self._changed.wait(POLL_SECONDS)
                finally:
                    self._inside.append(me)

    def close(self, deadline: float) -> None:
        """Let nobody else in, and wait until the others have left."""
        me = self._forking = threading.get_ident()
        with self._changed:
            while any(thread != me for thread in self._inside) and time.monotonic() < deadline:
                self._changed.wait(POLL_SECONDS)

    def open(self) -> None:
        with self._changed:
            self._forking = None
            self._changed.notify_all()

    def open_in_child(self) -> None:
        """The only thread is the one that forked."""
        me = threading.get_ident()
        self._changed = threading.Condition()
        self._inside = [me] * self._inside.count(me)
        self._forking = None


class Section(Protocol):
    """What has sections of its own that a fork waits for. Held weakly."""

    section: Any  # the lock that is held inside

    def cut_by_fork(self) -> None:
        """Called in the child where the fork did not wait any longer: another thread was inside."""


ACTIVITY = Activity()
_one_fork = threading.RLock()  # at a time
SECTIONS: weakref.WeakSet[Any] = weakref.WeakSet()
_held: list[Any] = []
_cut: list[Any] = []


def _members(weak: weakref.WeakSet) -> list[Any]:
    """What is in the set, also where another thread adds to it meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):
            return list(weak)


def _before_fork() -> None:
    _one_fork.acquire()
    deadline = time.monotonic() + FORK_PATIENCE
    seen: set[int] = set()
    while new := [section for section in _members(SECTIONS) if id(section) not in seen]:  # another thread may add some
        for section in new:
            seen.add(id(section))
            taken = section.section.acquire(timeout=max(deadline - time.monotonic(), 0.0))
            (_held if taken else _cut).append(section)
    ACTIVITY.close(deadline)


def _after_fork_in_parent() -> None:
    ACTIVITY.open()
    while _held:
        _held.pop().section.release()
    _cut.clear()
    _one_fork.release()


@contextlib.contextmanager
def no_thread_inside() -> Iterator[None]:
    """Inside, no other thread runs a plan: as for a fork, they are waited for."""
    _before_fork()
    try:
        yield
    finally:
        _after_fork_in_parent()


def _after_fork_in_child() -> None:
    for lock in _members(_locks):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    ACTIVITY.open_in_child()
    while _held:
        _held.pop().section.release()
    while _cut:
        _cut.pop().cut_by_fork()
    _one_fork.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
