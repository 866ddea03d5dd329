"""The loop that replays a graph, as machine code: Python makes one call for all kernels of a step.

A call of ctypes converts nine arguments, and releases Python's interpreter lock and takes it again. For each kernel
that costs a third of a short `clEnqueueNDRangeKernel`, and another thread that computes may keep the lock in between.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.backends.cpu.jit import jit
from weft.backends.opencl import library
from weft.backends.opencl.library import make_error

SYMBOL = "weft_opencl_replay"
# i32 replay(clEnqueueNDRangeKernel, queue, count, kernels, lanes in all, lanes of a workgroup): the status of the first
# call that fails, after which no other is made, or 0.
TEXT = f"""
define i32 @{SYMBOL}(ptr %enqueue, ptr %queue, i64 %count, ptr %kernels, ptr %lanes, ptr %workgroups) {{
entry:
  br label %check
check:
  %number = phi i64 [ 0, %entry ], [ %next, %enqueued ]
  %is_done = icmp eq i64 %number, %count
  br i1 %is_done, label %success, label %launch
launch:
  %kernel_at = getelementptr ptr, ptr %kernels, i64 %number
  %lanes_at = getelementptr i64, ptr %lanes, i64 %number
  %workgroup_at = getelementptr i64, ptr %workgroups, i64 %number
  %kernel = load ptr, ptr %kernel_at
  %status = call i32 %enqueue(ptr %queue, ptr %kernel, i32 1, ptr null, ptr %lanes_at, ptr %workgroup_at, i32 0, ptr null, ptr null)
  %is_enqueued = icmp eq i32 %status, 0
  br i1 %is_enqueued, label %enqueued, label %failure
enqueued:
  %next = add i64 %number, 1
  br label %check
success:
  ret i32 0
failure:
  ret i32 %status
}}
"""  # noqa: E501


class Launches(NamedTuple):
    """What is enqueued in order: handles of kernels whose arguments are set, and their lanes, as arrays of C."""

    length: int
    kernels: Any
    lanes: Any
    workgroups: Any

    @classmethod
    def of(cls, handles: Sequence[int], lanes: Sequence[int], workgroups: Sequence[int]) -> Launches:
        count = len(handles)
        return cls(
            count, (ctypes.c_void_p * count)(*handles), (ctypes.c_size_t * count)(*lanes),
            (ctypes.c_size_t * count)(*workgroups),
        )  # fmt: skip


def enqueue_all(queue: int, launches: Launches) -> None:
    """Put the launches on a queue; no interrupt is raised between them."""
    status = _replay()(queue, *launches)
    if status:
        raise make_error("clEnqueueNDRangeKernel", status)


@functools.cache
def _replay() -> Callable[..., int]:
    address = jit().load_functions(TEXT, (SYMBOL,), "OpenCL's replay")[SYMBOL]
    pointer = ctypes.c_void_p
    function = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, ctypes.c_size_t, pointer, pointer, pointer)(address)
    return functools.partial(function, ctypes.cast(library.loader().clEnqueueNDRangeKernel, pointer))
