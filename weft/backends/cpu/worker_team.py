"""The native runtime of this process: its functions, and how many threads work on a plan.

Thread count: `WEFT_NUM_THREADS`, else `OMP_NUM_THREADS`, else the processors this process may use. Results do not
depend on it.
"""

from __future__ import annotations

import atexit
import ctypes
import os

from weft.backends.cpu import blas
from weft.backends.cpu import runtime as cpu_runtime
from weft.backends.cpu.jit import jit
from weft.base import dtypes
from weft.base.errors import RangeError, problem
from weft.base.locks import new_lock


def thread_count() -> int:
    """How many threads a plan may use, the caller's included."""
    for name in ("WEFT_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdigit() and int(text) > 0:
            return min(int(text), cpu_runtime.MAX_WORKERS + 1)
        if text and name == "WEFT_NUM_THREADS":  # OMP_NUM_THREADS is other people's: what we cannot read we leave
            raise problem(RangeError, name, repr(text), "a whole number above 0", f"set {name}=2, or leave it away")
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), cpu_runtime.MAX_WORKERS + 1)
    return min(os.cpu_count() or 1, cpu_runtime.MAX_WORKERS + 1)


class NativeRuntime:
    """The native functions. The team of workers starts at the first plan that needs it, also in a forked child."""

    def __init__(self) -> None:
        addresses = jit().runtime_addresses
        self.run = ctypes.CFUNCTYPE(None)(addresses["weft_run"])
        self.reset = ctypes.CFUNCTYPE(None, ctypes.c_int64)(addresses["weft_reset"])
        self.stop = ctypes.CFUNCTYPE(None)(addresses["weft_stop"])
        found = blas.find()
        self.products = {
            dtypes.float32: found.sgemm if found else addresses["weft_sgemm"],
            dtypes.float64: found.dgemm if found else addresses["weft_dgemm"],
        }
        self.threads_setting = (found.get_threads, found.set_threads) if found else (0, 0)
        self.threads = thread_count()

    def set_threads(self, count: int) -> None:
        """Use `count` threads from now on. Must not be called while a plan runs."""
        self.stop()
        self.threads = count
        self.reset(count - 1)


_lock = new_lock()
_runtimes: list[NativeRuntime] = []  # one at most


def runtime() -> NativeRuntime:
    """The one runtime of this process."""
    with _lock:
        if not _runtimes:
            made = NativeRuntime()
            if not _runtimes:  # else a finalizer or signal handler was faster, and its workers are there
                made.reset(made.threads - 1)
            if not _runtimes:
                _runtimes.append(made)
        return _runtimes[0]


@atexit.register
def _stop() -> None:
    for one in _runtimes:
        one.stop()


def _start_anew() -> None:
    for one in _runtimes:
        one.reset(one.threads - 1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
