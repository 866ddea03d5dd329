"""Locks over memory that is rewritten in place, and how they survive a fork. A base module; imports nothing.

A `WriteGroup` is memory that compiled functions rewrite in place, with the lock that a run holds while it writes and a
reader while it copies. Code that needs several groups acquires their locks in the order in which the groups were made
(`locks_of`, `call_holding`), so two threads never deadlock.

A fork copies one thread only: a lock that another thread holds would stay locked in the child, and memory that it
writes would stay half-written. So the fork waits until every other thread has left the sections that the locks of
registered `Section`s guard, and that of its own `thread_lock`, for `FORK_TIMEOUT` seconds at most (a section may run
user code that waits for the forking thread). Locks made by `new_lock` are free in the child, whichever thread held
them.

A signal handler may raise (Ctrl-C does), and so may another thread into this one. CPython checks for that where a
Python function begins, at backward jumps, and after the call of any function; not between other instructions. So no
lock here is acquired or released by Python code that could be interrupted half-way: a lock is held by a `with`
statement over the lock itself, whose `__exit__` is C code, or by a `_Holder`. Loops and comprehensions with a condition
are not written inside such a block but in a function that it calls: CPython 3.12 to 3.14 leave some of their backward
jumps out of the block's exception table, so for what is raised there `__exit__` is not called.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

FORK_TIMEOUT = 60.0  # seconds that a fork waits for the other threads

_serial = itertools.count()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


class _Lock(_thread.RLock):  # type: ignore[misc]  # final in the stub alone
    """A reentrant lock that is released whenever an exception leaves the `with` block, also where a signal handler
    raises it at the block's first instruction.

    From CPython 3.14 on `with` calls `__enter__` as any other function, and checks for signals after the call but
    before the block starts: what a handler raises there leaves a plain lock locked. Reading an attribute is no call in
    that sense, and `__exit__` stays the one of the base class, which nothing interrupts."""

    __slots__ = ()
    _acquired = property(_thread.RLock.acquire)

    def __enter__(self) -> bool:  # type: ignore[override]  # the stub has the arguments of acquire
        return self._acquired


_LOCK = _Lock if sys.version_info >= (3, 14) else _thread.RLock


def new_lock() -> Any:
    """A reentrant lock that is free in a forked child, unless the forking thread itself holds it."""
    lock = _LOCK()
    _locks.add(lock)
    return lock


class CopyableLock(_LOCK):  # type: ignore[misc, valid-type]
    """A lock of `new_lock` as an attribute of an object that can be copied and pickled: the copy has its own lock."""

    __slots__ = ()

    def __init__(self) -> None:
        _locks.add(self)

    def __reduce__(self) -> tuple:
        return CopyableLock, ()


class _Holder:
    """Locks that are acquired one by one, and all released by `release`, the last first. `release` is C code, and so is
    what acquires a lock and records that it is held: no interrupt comes between the two."""

    __slots__ = ("_held", "release")

    def __init__(self) -> None:
        self._held: list[Any] = [None]  # the sentinel that ends `release`
        self.release: Callable[[], Any] = functools.partial(
            collections.deque, map(_thread.RLock.release, iter(self._held.pop, None)), 0
        )

    def acquire(self, locks: Sequence[Any], timeout: float = -1.0) -> None:
        """Wait for each of these locks, without limit or for `timeout` seconds, after which it is skipped."""
        results = map(functools.partial(_thread.RLock.acquire, timeout=timeout), locks)
        self._held.extend(itertools.compress(locks, results))

    def holds(self, lock: Any) -> bool:
        return any(held is lock for held in self._held)


# --- memory that is rewritten in place -------------------------------------------------------------------------------


class WriteGroup:
    """Memory that compiled functions rewrite in place, under one lock. `exposed` are the leaves that show its present
    value, as (weak tensor, weak leaf): before the memory is rewritten they get copies."""

    __slots__ = ("__weakref__", "exposed", "lock", "serial")

    def __init__(self) -> None:
        self.lock = new_lock()
        self.serial = next(_serial)
        self.exposed: list[tuple[weakref.ref, weakref.ref]] = []


def locks_of(groups: Iterable[WriteGroup]) -> tuple[Any, ...]:
    """The locks of all these groups, in the order in which they are acquired."""
    return tuple([group.lock for group in sorted(set(groups), key=lambda group: group.serial)])


def call_holding(locks: Sequence[Any], function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` while this thread holds all these locks."""
    if len(locks) == 1:
        with locks[0]:
            return function(*args)
    holder = _Holder()
    release = holder.release
    try:
        holder.acquire(locks)
        return function(*args)
    finally:
        release()


# --- forks -----------------------------------------------------------------------------------------------------------


class Section(Protocol):
    """An object with sections that a fork waits for. It is referenced weakly."""

    section: Any  # the lock that is held inside

    def cut_by_fork(self) -> None:
        """Called in the child if the fork's wait timed out: another thread was inside."""


_one_fork = threading.RLock()  # at a time
_registering = new_lock()  # held from the end of the wait to the end of a fork: new registrations wait
_sections: weakref.WeakSet[Any] = weakref.WeakSet()
_thread_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_own = threading.local()  # .lock and .forks of this thread


def register(section: Section) -> None:
    """From now on a fork waits until no other thread is inside."""
    with _registering:
        _sections.add(section)


def thread_lock() -> Any:
    """The lock of this thread. `with thread_lock():` is a section that a fork must not cut through."""
    found = getattr(_own, "lock", None)
    return _register_thread() if found is None else found


def _register_thread() -> Any:
    with _registering:
        lock = new_lock()
        _thread_locks.add(lock)
        return _own.__dict__.setdefault("lock", lock)  # a signal handler may have been faster


def _members(weak: weakref.WeakSet) -> list[Any]:
    """The members of the set, also where another thread adds to it concurrently."""
    while True:
        with contextlib.suppress(RuntimeError):
            return list(weak)


class _Pause:
    """No other thread is inside a section, from `begin` to `holder.release`; except where the wait timed out or was
    ended by an interrupt."""

    def __init__(self) -> None:
        self.holder = _Holder()
        self.is_over = False

    def begin(self) -> None:
        """Acquire the locks of all sections, then those of threads: a thread inside a section may register others, and
        acquire its own lock."""
        deadline = time.monotonic() + FORK_TIMEOUT
        self.holder.acquire([_one_fork])
        seen: dict[int, Any] = {}
        while not self._close_registration(seen):
            for section in [one for one in _members(_sections) if id(one) not in seen]:
                seen[id(section)] = section
                self.holder.acquire([section.section], max(deadline - time.monotonic(), 0.0))
        for lock in _members(_thread_locks):
            self.holder.acquire([lock], max(deadline - time.monotonic(), 0.0))

    def _close_registration(self, seen: dict[int, Any]) -> bool:
        """Block registration from now on, if no section was registered since; whether it is blocked."""
        with _registering:
            return self._close_if_all(seen)

    def _close_if_all(self, seen: dict[int, Any]) -> bool:
        is_closed = all(id(one) in seen for one in _members(_sections))
        if is_closed:
            self.holder.acquire([_registering])
        return is_closed

    def end_in_child(self) -> None:
        """The only thread is the one that forked."""
        for lock in _members(_locks):
            if not lock._is_owned():
                lock._at_fork_reinit()
        for section in _members(_sections):
            if not self.holder.holds(section.section):
                section.cut_by_fork()


def call_alone(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)` while no other thread runs a plan; it waits for them as a fork does."""
    pause = _Pause()
    release = pause.holder.release
    try:
        pause.begin()
        return function(*args)
    finally:
        release()


# Python prints and ignores what these raise. So an interrupt in the first ends the wait; one in the second, most likely
# one that came while the process was copied, is compensated for by the third.


def _forks() -> list[_Pause]:
    """The forks in progress in this thread, the innermost last: a signal handler may fork, too."""
    return _own.__dict__.setdefault("forks", [])


def _before_fork() -> None:
    pause = _Pause()
    _forks().append(pause)
    pause.begin()


def _after_fork_in_parent() -> None:
    for pause in _forks()[-1:]:
        pause.holder.release()


def _after_fork_in_child() -> None:
    for pause in _forks()[-1:] or [_Pause()]:
        if not pause.is_over:
            pause.end_in_child()
            pause.holder.release()
            pause.is_over = True


def _forget_fork() -> None:
    del _forks()[-1:]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    os.register_at_fork(after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    os.register_at_fork(after_in_parent=_forget_fork, after_in_child=_forget_fork)
