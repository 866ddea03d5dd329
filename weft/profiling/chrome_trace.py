"""A profile in Chrome's trace format: kernels one after the other in one row, layers in another.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format: complete events
(`ph` is X) with a start and a duration in microseconds, and metadata events (`ph` is M) that name the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.profiling.profile import Profile

PROCESS, KERNELS, LAYERS = 1, 1, 2


def trace_of(profile: Profile) -> dict[str, Any]:
    """The trace of one step. Kernels follow each other without the gaps that a device may have between them."""
    events: list[dict[str, Any]] = [
        _name("process_name", 0, f"{profile.name} on {profile.device}"),
        _name("thread_name", KERNELS, "kernels"),
        _name("thread_name", LAYERS, "layers"),
    ]
    at = 0.0
    for kernel in profile.kernels:
        took = kernel.seconds * 1e6
        about = {
            "bytes": kernel.bytes,
            "flops": kernel.flops,
            "runs": kernel.times,
            "share of copy rate": round(kernel.copy_share, 4),
            "share of multiply rate": round(kernel.multiply_share, 4),
        }
        events.append(_event(kernel.name, "kernel", KERNELS, at, took, about))
        inside = at
        for part in kernel.layers:
            events.append(_event(part.layer, part.phase, LAYERS, inside, took * part.share, {"kernel": kernel.name}))
            inside += took * part.share
        at += took
    other = {"device": profile.description, "whole step (us)": profile.seconds * 1e6, "weft": "profile"}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _name(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _event(name: str, category: str, thread: int, start: float, took: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "ts": start, "dur": took, "pid": PROCESS, "tid": thread, "args": args,
    }  # fmt: skip
