"""What the fakes of cuda-bindings and hip-python share: every call is noted and succeeds, unless a test says otherwise
or the runtime would refuse it.

Refused are: freeing what is not allocated, or twice; copies and memsets that leave an allocation; waiting, allocating
and freeing while a stream is captured, and ending a capture that was not begun; destroying a graph twice.
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections.abc import Callable
from typing import Any

# how the names of calls end that give a handle or a number
MAKES = (
    "Create", "CreateWithFlags", "Instantiate", "InstantiateWithFlags", "LoadData", "GetFunction", "AllocAsync",
    "MallocAsync", "EndCapture", "GetDefaultMemPool", "Retain", "GetDeviceCount",
)  # fmt: skip
GAP = 1 << 12  # between allocations, and from one handle to the next
WAITS = ("StreamSynchronize", "MemAllocAsync", "MemFreeAsync", "MemPoolTrimTo")  # not while a stream is captured


class FakeRuntime:
    """`calls` holds (name, *arguments), `contexts` what was current in the thread at each; `answers` are functions or
    values by name, a status among them being an error. Names below are CUDA's without their prefix."""

    def __init__(self, real: Any, prefix: str, statuses: Any, invalid: Any, chooses: str, renamed: dict[str, str]):
        self.calls: list[tuple] = []
        self.contexts: list[Any] = []
        self.allocated: dict[int, int] = {}  # bytes by address
        self.graphs: set[int] = set()
        self._real, self._prefix, self._statuses, self._invalid = real, prefix, statuses, invalid
        self._chooses = chooses  # the call that makes a GPU current in a thread
        self._renamed = renamed
        self._local = threading.local()
        self._next = GAP
        self._memory: list[Any] = []
        self._captured: Any = None  # the stream of which calls are captured
        self.answers: dict[str, Any] = {
            self.full(name): answer
            for name, answer in {
                "MemHostAlloc": self._host_memory,
                "MemAllocAsync": self._allocate,
                "MemFreeAsync": self._free,
                "MemcpyHtoDAsync": lambda target, source, nbytes, stream: self._reach((target, nbytes)),
                "MemcpyDtoHAsync": lambda target, source, nbytes, stream: self._reach((source, nbytes)),
                "MemcpyDtoDAsync": lambda target, source, nbytes, stream: self._reach(
                    (target, nbytes), (source, nbytes)
                ),
                "MemsetD8Async": lambda target, value, nbytes, stream: self._reach((target, nbytes)),
                "StreamBeginCapture": self._begin_capture,
                "StreamEndCapture": self._end_capture,
                "GraphDestroy": self._destroy_graph,
            }.items()
        }

    def full(self, name: str) -> str:
        """The runtime's own name of a function."""
        return f"{self._prefix}{self._renamed.get(name, name)}"

    # --- what a runtime refuses ---

    def _handle(self) -> int:
        self._next += GAP
        return self._next

    def _allocate(self, nbytes: int, stream: Any) -> Any:
        if nbytes <= 0:
            return self._invalid
        pointer = self._handle()
        self._next += nbytes
        self.allocated[pointer] = nbytes
        return pointer

    def _free(self, pointer: int, stream: Any) -> Any:
        return None if self.allocated.pop(pointer, None) is not None else self._invalid

    def _reach(self, *ranges: tuple[int, int]) -> Any:
        """An error where a range of addresses leaves the allocation that it begins in. Memory of the host, which a
        GPU may see, too, lies elsewhere."""
        starts = sorted(self.allocated)
        hosts = [(ctypes.addressof(one), len(one)) for one in self._memory]
        for pointer, nbytes in ranges:
            at = bisect.bisect_right(starts, pointer) - 1
            spans = [*hosts, (starts[at], self.allocated[starts[at]])] if at >= 0 else hosts
            if not any(start <= pointer and pointer + nbytes <= start + size for start, size in spans):
                return self._invalid
        return None

    def _begin_capture(self, stream: Any, mode: Any) -> Any:
        if self._captured is not None:
            return self._invalid
        self._captured = stream
        return None

    def _end_capture(self, stream: Any) -> Any:
        if self._captured != stream:
            return self._invalid
        self._captured = None
        graph = self._handle()
        self.graphs.add(graph)
        return graph

    def _destroy_graph(self, graph: Any) -> Any:
        if graph not in self.graphs:
            return self._invalid
        self.graphs.remove(graph)
        return None

    def _host_memory(self, nbytes: int, flags: int) -> int:
        self._memory.append((ctypes.c_uint8 * nbytes)())
        return ctypes.addressof(self._memory[-1])

    # --- calls ---

    def __getattr__(self, name: str) -> Any:
        size = len(self._prefix)
        is_call = name.startswith(self._prefix) and len(name) > size and name[size].isupper()
        is_call = is_call and not hasattr(getattr(self._real, name, None), "__members__") and "_t" not in name
        return self._call(name) if is_call else getattr(self._real, name)

    def _call(self, name: str) -> Callable[..., tuple]:
        def call(*arguments: Any) -> tuple:
            if name.endswith("GetErrorString"):
                return (self._statuses(0), self.answers[name])
            self.calls.append((name, *arguments))
            self.contexts.append(getattr(self._local, "context", None))
            if name == self._chooses:
                self._local.context = arguments[0]
            answer = self._answer(name, arguments)
            if isinstance(answer, self._statuses):
                return (answer, None) if name.endswith(MAKES) else (answer,)
            if answer is None and name.endswith(MAKES):
                answer = self._handle()
            values = () if answer is None else answer if isinstance(answer, tuple) else (answer,)
            return (self._statuses(0), *values)

        return call

    def _answer(self, name: str, arguments: tuple) -> Any:
        waits = name in [self.full(one) for one in WAITS]
        if waits and self._captured is not None and self._captured in arguments:
            return self._invalid
        answer = self.answers.get(name)
        return answer(*arguments) if callable(answer) else answer

    def named(self, *names: str) -> list[tuple]:
        """The calls of these names."""
        return [call for call in self.calls if call[0] in names]
