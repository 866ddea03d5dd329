"""How much memory Weft holds on a device, and giving back what it only keeps for reuse."""

from __future__ import annotations

from weft.base.errors import DeviceError, GraphError, problem
from weft.base.state import STATE
from weft.core.device import get
from weft.plan.device import Device, MemoryCounts


def memory_stats(device: str | Device | int | None = None) -> dict[str, int]:
    """Memory of a device, the default one unless named, under PyTorch's keys.

    `requested_bytes.all.*` are bytes that tensors, parameters, optimizer state, and the results and temporaries of
    compiled functions take; `allocated_bytes.all.*` the same as they were rounded up; `reserved_bytes.all.*` what Weft
    has of the system, with freed memory that waits to be used again; `allocation.all.*` how many pieces. Each has
    `current` and `peak` (since `reset_peak_memory_stats`), and all but `reserved` have `allocated` and `freed`: totals
    since the process began. A compiled function holds the memory of its temporaries between calls, on a GPU all of them
    share one piece. What the driver itself and compiled code take is not counted.

    >>> before = weft.memory_stats("cpu")["requested_bytes.all.current"]
    >>> x = weft.tensor([1.0] * 256)
    >>> weft.memory_stats("cpu")["requested_bytes.all.current"] - before
    1024
    """
    counts, reserved = _counts("memory_stats", device)
    found: dict[str, int] = {}
    for key, name in (("requested_bytes", "requested"), ("allocated_bytes", "allocated"), ("allocation", "pieces")):
        now, total = getattr(counts, name), getattr(counts, f"{name}_total")
        found[f"{key}.all.current"], found[f"{key}.all.peak"] = now, getattr(counts, f"{name}_peak")
        found[f"{key}.all.allocated"], found[f"{key}.all.freed"] = total, total - now
    found["reserved_bytes.all.current"] = reserved
    found["reserved_bytes.all.peak"] = max(counts.reserved_peak, reserved)
    return found


def reset_peak_memory_stats(device: str | Device | int | None = None) -> None:
    """Reset the peaks of `memory_stats` to what is allocated now."""
    counts, reserved = _counts("reset_peak_memory_stats", device)
    counts.reset_peaks(reserved)


def empty_cache(device: str | Device | int | None = None) -> None:
    """Give the system back what no tensor and no compiled function holds on a device, the default one unless named.
    On a GPU that includes the memory that temporaries share and recorded graphs; the next calls make them again."""
    if STATE.trace is not None:
        given = f"a call inside {STATE.trace.where}, where nothing runs yet"
        raise problem(GraphError, "empty_cache", given, "a call outside", "call it before")
    get(device).backend.empty_cache()


def _counts(who: str, device: str | Device | int | None) -> tuple[MemoryCounts, int]:
    if STATE.trace is not None:
        given = f"a call inside {STATE.trace.where}, where nothing runs yet"
        raise problem(GraphError, who, given, "a call outside", "call it after the compiled function")
    target = get(device)
    found = target.backend.counts()
    if found is None:
        raise problem(DeviceError, who, f"{target.name}, which does not count its memory", "the CPU or a GPU")
    return found
