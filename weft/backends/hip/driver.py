"""HIP's runtime on one GPU: `backends.gpu.streams.StreamDriver` through hip-python.

hip-python's functions return (status, results...), as cuda-bindings' do. The calls of a thread mean the GPU that was
chosen there last: `activate`.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.gpu.streams import MAX_STAGED_BYTES, StreamDriver
from weft.backends.hip import compile as hip_compile
from weft.base.errors import DeviceError, OutOfMemoryError, problem
from weft.plan.device import DeviceLost
from weft.plan.plan import Code

LOST_STATUSES = {  # what the runtime reports, from any call, once the GPU does not respond any more
    f"hipError{name}"
    for name in (
        "IllegalAddress", "LaunchFailure", "LaunchTimeOut", "PriorLaunchFailure", "Assert", "ECCNotCorrectable",
        "ContextIsDestroyed", "Deinitialized", "Unknown",
    )
}  # fmt: skip
RENAMED = {  # where HIP's name differs from CUDA's by more than the prefix
    "MemAllocAsync": "MallocAsync",
    "MemFreeAsync": "FreeAsync",
    "MemHostAlloc": "HostMalloc",
    "StreamCreate": "StreamCreateWithFlags",
    "EventCreate": "EventCreateWithFlags",
    "LaunchKernel": "ModuleLaunchKernel",
    "GraphInstantiate": "GraphInstantiateWithFlags",
}
_current = threading.local()


@functools.cache
def _hip() -> Any:
    from hip import hip

    return hip


def hip_name(name: str) -> str:
    """HIP's function for one of CUDA's, given without prefix."""
    return f"hip{RENAMED.get(name, name)}"


def call(name: str, *args: Any) -> Any:
    """The runtime's function `name`; raises what it reports, and returns what it gives."""
    status, *values = getattr(_hip(), name)(*args)
    if status != 0:
        raise _make_error(name, status)
    return values[0] if len(values) == 1 else values or None


def _make_error(name: str, status: Any) -> Exception:
    words = str(_hip().hipGetErrorString(status)[1])
    if status.name == "hipErrorOutOfMemory":
        return problem(OutOfMemoryError, name, words, "free memory on the GPU")
    kind = DeviceLost if status.name in LOST_STATUSES else DeviceError
    forked = status.name == "hipErrorNotInitialized"
    fix = "after a fork, start processes anew: multiprocessing.get_context('spawn')" if forked else ""
    return problem(kind, name, f"{words} ({status.name})", "success", fix)


def count() -> int:
    """How many GPUs the runtime sees; raises where there is no runtime."""
    status, found = _hip().hipGetDeviceCount()
    if status.name == "hipErrorNoDevice":
        return 0
    if status != 0:
        raise _make_error("hipGetDeviceCount", status)
    return found


def release() -> tuple[int, int]:
    """The version of the runtime."""
    number = call("hipRuntimeGetVersion")
    return number // 10_000_000, number // 100_000 % 100


def properties(ordinal: int) -> Any:
    """What describes a GPU: `hipDeviceProp_t`."""
    return call("hipGetDeviceProperties", ordinal)


class HipDriver(StreamDriver):
    """One GPU, by number."""

    def __init__(self, ordinal: int):
        self.ordinal = ordinal
        self._several = count() > 1
        self.capture_mode = _hip().hipStreamCaptureMode.hipStreamCaptureModeThreadLocal
        with self.opening():
            self.activate()
            self.properties = properties(ordinal)
            self.name, self.architecture = self.properties.name, self.properties.gcnArchName
            self.open_streams(call("hipDeviceGetDefaultMemPool", ordinal))
            self._set_pool("AttrReleaseThreshold", ctypes.c_uint64(2**64 - 1))
            self._set_pool("ReuseAllowInternalDependencies", ctypes.c_int(0))

    def function(self, name: str) -> Callable[..., Any]:
        return getattr(_hip(), hip_name(name))

    def call(self, name: str, *args: Any) -> Any:
        return call(hip_name(name), *args)

    def make_error(self, name: str, status: Any) -> Exception:
        return _make_error(hip_name(name), status)

    def activate(self) -> None:
        """Make this GPU the one that calls of this thread mean. Where there are several, other libraries, too, may have
        chosen one meanwhile."""
        if self._several or not getattr(_current, "chosen", False):
            call("hipSetDevice", self.ordinal)
            _current.chosen = True

    def _set_pool(self, name: str, value: Any) -> None:
        kind = getattr(_hip().hipMemPoolAttr, f"hipMemPool{name}")
        call("hipMemPoolSetAttribute", self.pool, kind, ctypes.addressof(value))

    def pool_bytes(self, kind: str) -> int:
        value = ctypes.c_uint64()
        attribute = getattr(_hip().hipMemPoolAttr, f"hipMemPoolAttr{kind.capitalize()}MemCurrent")
        call("hipMemPoolGetAttribute", self.pool, attribute, ctypes.addressof(value))
        return value.value

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        """By way of pinned memory: HIP does not promise that other memory was read when a call returns."""
        if nbytes > MAX_STAGED_BYTES:
            super().upload(pointer, address, nbytes)
            self.synchronise()
        else:
            self._staging.append(self.copy_staged(pointer, address, nbytes, self.stream))

    def copy_from(self, target: int, other: HipDriver, source: int, nbytes: int) -> None:
        call("hipMemcpyPeerAsync", target, self.ordinal, source, other.ordinal, nbytes, self.stream)
        self.synchronise()

    def compile_kernels(self, codes: Sequence[Code]) -> list[bytes]:
        return hip_compile.code_objects(codes, self.architecture)
