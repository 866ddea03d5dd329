"""The CUDA driver on one GPU: `backends.gpu.streams.StreamDriver` through cuda-bindings.

The calls of a thread mean the GPU whose context is current there: `activate`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends.cuda import compile as cuda_compile
from weft.backends.gpu.streams import StreamDriver
from weft.base.errors import DeviceError, OutOfMemoryError, problem
from weft.plan.device import DeviceLost
from weft.plan.plan import Code

DEFAULT_SHARED_BYTES = 48 << 10  # bytes of a workgroup, declared or of a launch, that need no attribute
LOST_STATUSES = {  # what the driver reports, from any call, once the GPU does not respond any more
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC",
        "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "HARDWARE_STACK_ERROR", "ASSERT", "ECC_UNCORRECTABLE", "CONTAINED",
        "NVLINK_UNCORRECTABLE", "CONTEXT_IS_DESTROYED", "UNKNOWN",
    )
}  # fmt: skip


@functools.cache
def _cuda() -> Any:
    from cuda.bindings import driver

    return driver


def call(name: str, *args: Any) -> Any:
    """The driver function `name`; raises what it reports, and returns what it gives."""
    status, *values = getattr(_cuda(), name)(*args)
    if status != 0:
        raise _make_error(name, status)
    return values[0] if len(values) == 1 else values or None


def _make_error(name: str, status: Any) -> Exception:
    text = _cuda().cuGetErrorString(status)[1]
    words = text.decode() if isinstance(text, bytes) else "an error that the driver does not explain"
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        return problem(OutOfMemoryError, name, words, "free memory on the GPU")
    kind = DeviceLost if status.name in LOST_STATUSES else DeviceError
    forked = status.name == "CUDA_ERROR_NOT_INITIALIZED"
    fix = "after a fork, start processes anew: multiprocessing.get_context('spawn')" if forked else ""
    return problem(kind, name, f"{words} ({status.name})", "success", fix)


def count() -> int:
    """How many GPUs the driver sees; raises where there is no driver."""
    (status,) = _cuda().cuInit(0)
    if status.name == "CUDA_ERROR_NO_DEVICE":
        return 0
    if status != 0:
        raise _make_error("cuInit", status)
    return call("cuDeviceGetCount")


def newest_version() -> tuple[int, int]:
    """The newest version of CUDA that the driver knows."""
    number = call("cuDriverGetVersion")
    return number // 1000, number % 1000 // 10


def attribute(handle: Any, name: str) -> int:
    """A number that describes a GPU."""
    return call("cuDeviceGetAttribute", getattr(_cuda().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle)


def capability(ordinal: int) -> tuple[int, int]:
    """The generation of a GPU: (9, 0) is Hopper."""
    handle = call("cuDeviceGet", ordinal)
    return attribute(handle, "COMPUTE_CAPABILITY_MAJOR"), attribute(handle, "COMPUTE_CAPABILITY_MINOR")


_current = threading.local()


class CudaDriver(StreamDriver):
    """One GPU, by number."""

    def __init__(self, ordinal: int):
        self.ordinal = ordinal
        self._several = count() > 1
        self.handle = call("cuDeviceGet", ordinal)
        self.architecture = "sm_{}{}".format(*capability(ordinal))
        cuda = _cuda()
        self.capture_mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        with self.opening():
            self.activate()
            self.open_streams(call("cuDeviceGetDefaultMemPool", self.handle))
            keep = cuda.CUmemPool_attribute
            everything = cuda.cuuint64_t(2**64 - 1)
            call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, everything)
            call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)

    def close(self) -> None:
        super().close()
        _cuda().cuDevicePrimaryCtxRelease(self.handle)

    def function(self, name: str) -> Callable[..., Any]:
        return getattr(_cuda(), f"cu{name}")

    def call(self, name: str, *args: Any) -> Any:
        return call(f"cu{name}", *args)

    def make_error(self, name: str, status: Any) -> Exception:
        return _make_error(f"cu{name}", status)

    @property
    def name(self) -> str:  # type: ignore[override]
        return call("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode()

    def attribute(self, name: str) -> int:
        return attribute(self.handle, name)

    def activate(self) -> None:
        """Make this GPU the one that calls of this thread mean. Where there are several, other libraries, too, may have
        chosen one meanwhile."""
        if self._several or not getattr(_current, "chosen", False):
            call("cuCtxSetCurrent", self.context)
            _current.chosen = True

    def pool_bytes(self, kind: str) -> int:
        name = f"CU_MEMPOOL_ATTR_{kind.upper()}_MEM_CURRENT"
        return int(call("cuMemPoolGetAttribute", self.pool, getattr(_cuda().CUmemPool_attribute, name)))

    def copy_from(self, target: int, other: CudaDriver, source: int, nbytes: int) -> None:
        call("cuMemcpyPeerAsync", target, self.context, source, other.context, nbytes, self.stream)
        self.synchronise()

    def compile_kernels(self, codes: Sequence[Code]) -> list[bytes]:
        return cuda_compile.cubins(codes, self.architecture)

    def prepare_function(self, function: Any, code: Code) -> None:
        """Allow launches of a kernel with its bytes of shared memory. What its code declares is added to them: without
        this, a workgroup has `DEFAULT_SHARED_BYTES` bytes for both."""
        shared = code.geometry.shared if code.geometry is not None else 0
        if not shared:
            return
        kinds = _cuda().CUfunction_attribute
        declared = int(call("cuFuncGetAttribute", kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function))
        if declared + shared > DEFAULT_SHARED_BYTES:
            call("cuFuncSetAttribute", function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
