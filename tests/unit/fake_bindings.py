"""NVIDIA's driver bindings without a driver: every call is noted and succeeds, unless a test says otherwise."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as real


class Bindings:
    """`calls` holds (name, *arguments), `contexts` what was current in the thread at each; `answers` are functions or
    values by name, a `CUresult` among them being an error."""

    def __init__(self, gpus: int = 1, newest: int = 13000, capability: tuple[int, int] = (9, 0)):
        self.calls: list[tuple] = []
        self.contexts: list[Any] = []
        self._local = threading.local()
        self._next = 1000
        self._memory: list[Any] = []
        attributes = real.CUdevice_attribute
        numbers = {
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: capability[0],
            attributes.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: capability[1],
        }
        self.answers: dict[str, Any] = {
            "cuDeviceGetCount": gpus,
            "cuDriverGetVersion": newest,
            "cuDeviceGet": lambda ordinal: ordinal,
            "cuDevicePrimaryCtxRetain": lambda handle: f"context {handle}",
            "cuDeviceGetAttribute": lambda kind, handle: numbers.get(kind, 32),
            "cuDeviceGetName": b"A GPU\0\0\0",
            "cuMemGetInfo": lambda: (1 << 30, 2 << 30),
            "cuMemPoolGetAttribute": 0,
            "cuMemHostAlloc": self._host_memory,
            "cuGetErrorString": b"it went wrong",
        }

    def _host_memory(self, nbytes: int, flags: int) -> int:
        self._memory.append((ctypes.c_uint8 * nbytes)())
        return ctypes.addressof(self._memory[-1])

    def __getattr__(self, name: str) -> Any:
        return self._call(name) if name.startswith("cu") and name[2].isupper() else getattr(real, name)

    def _call(self, name: str) -> Callable[..., tuple]:
        def call(*arguments: Any) -> tuple:
            if name == "cuGetErrorString":
                return (real.CUresult.CUDA_SUCCESS, self.answers[name])
            self.calls.append((name, *arguments))
            self.contexts.append(getattr(self._local, "context", None))
            if name == "cuCtxSetCurrent":
                self._local.context = arguments[0]
            answer = self.answers.get(name)
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, real.CUresult):
                return (answer, None) if name.endswith(MAKES) else (answer,)
            if answer is None and name.endswith(MAKES):
                self._next += 1000
                answer = self._next
            values = () if answer is None else answer if isinstance(answer, tuple) else (answer,)
            return (real.CUresult.CUDA_SUCCESS, *values)

        return call

    def named(self, *names: str) -> list[tuple]:
        """The calls of these names."""
        return [call for call in self.calls if call[0] in names]


# how the names of calls end that give a handle
MAKES = ("Create", "Instantiate", "LoadData", "GetFunction", "AllocAsync", "EndCapture", "GetDefaultMemPool", "Retain")
