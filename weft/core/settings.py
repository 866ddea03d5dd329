"""Switches of the whole process that are neither dtypes nor devices: threads, and waiting for a device."""

from __future__ import annotations

from typing import Any

from weft.base.errors import GraphError, RangeError, problem
from weft.base.locks import call_alone
from weft.base.state import STATE
from weft.core.device import get
from weft.ops.common import as_int
from weft.plan.device import Device


def synchronize(device: str | Device | int | None = None) -> None:
    """Wait until a device, the default one unless named, has done all that it was given. The CPU has done it when a
    call returns; values that were not requested yet are not computed (`weft.eval` does)."""
    if STATE.trace is not None:
        given = f"a call inside {STATE.trace.where}, where nothing runs yet"
        raise problem(GraphError, "synchronize", given, "a call outside", "call it after the compiled function")
    get(device).backend.synchronise()


def _runtime() -> Any:
    from weft.backends.cpu.worker_team import runtime  # loads the compiler of kernels

    return runtime()


def get_num_threads() -> int:
    """How many threads the CPU backend uses, the caller's included."""
    return _runtime().threads


def set_num_threads(int: int, /) -> None:
    """Use so many threads on the CPU from now on. Results do not depend on it, to the last bit.

    >>> before = weft.get_num_threads()
    >>> weft.set_num_threads(1)
    >>> weft.get_num_threads()
    1
    >>> weft.set_num_threads(before)
    """
    from weft.backends.cpu.runtime import MAX_WORKERS

    count = as_int("set_num_threads", int, "number of threads")
    if count < 1:
        raise problem(RangeError, "set_num_threads", f"{count}", "at least 1")
    own = _runtime()
    call_alone(own.set_threads, min(count, MAX_WORKERS + 1))
