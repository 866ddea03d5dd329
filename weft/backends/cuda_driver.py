"""The CUDA driver on one GPU: `backends.gpu.Driver` through cuda-bindings.

Two streams: everything runs on `stream`; `place` copies new data on a second one, from pinned memory, and `stream`
waits only for that copy. Memory comes from the GPU's stream-ordered pool, which keeps what is freed. The calls of a
thread mean the GPU whose context is current there: `activate`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends import cuda_compile
from weft.backends.base import DeviceLost
from weft.compiler.plan import Code
from weft.counting import COUNTERS
from weft.errors import DeviceError, OutOfMemoryError, out_of_memory, problem
from weft.locks import new_lock

COPIED = 16  # bytes of the largest copy of a thread
PIECE = 1 << 16  # bytes of shared memory that are asked for at a time
STAGED = 64 << 20  # larger arrays go over without pinned memory between
UNASKED_SHARED = 48 << 10  # bytes of a block's memory, declared or given by a launch, that need no permission
LOST = {  # what the driver reports, from any call, once the GPU answers nothing any more
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
        raise _failed(name, status)
    return values[0] if len(values) == 1 else values or None


def _failed(name: str, status: Any) -> Exception:
    text = _cuda().cuGetErrorString(status)[1]
    words = text.decode() if isinstance(text, bytes) else "an error that the driver does not explain"
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        return problem(OutOfMemoryError, name, words, "free memory on the GPU")
    kind = DeviceLost if status.name in LOST else DeviceError
    forked = status.name == "CUDA_ERROR_NOT_INITIALIZED"
    mend = "after a fork, start processes anew: multiprocessing.get_context('spawn')" if forked else ""
    return problem(kind, name, f"{words} ({status.name})", "success", mend)


def count() -> int:
    """How many GPUs the driver sees; raises where there is no driver."""
    (status,) = _cuda().cuInit(0)
    if status.name == "CUDA_ERROR_NO_DEVICE":
        return 0
    if status != 0:
        raise _failed("cuInit", status)
    return call("cuDeviceGetCount")


def newest() -> tuple[int, int]:
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


class _Staging:
    """A piece of pinned memory and the event after which it may be used again."""

    __slots__ = ("event", "nbytes", "pointer")

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.pointer = int(call("cuMemHostAlloc", nbytes, 0))
        self.event = call("cuEventCreate", 2)  # 2: without timing


class _Event:
    """An event with a time. Destroyed where it is dropped, which enqueues nothing and waits for nothing."""

    __slots__ = ("_destroy", "handle")

    def __init__(self) -> None:
        self.handle = call("cuEventCreate", 0)
        self._destroy = _cuda().cuEventDestroy

    def __del__(self) -> None:
        self._destroy(self.handle)


_current = threading.local()


class CudaDriver:
    """One GPU, by number."""

    records = True

    def __init__(self, ordinal: int):
        self.ordinal = ordinal
        self._several = count() > 1
        self.handle = call("cuDeviceGet", ordinal)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        self.activate()
        cuda = _cuda()
        self.architecture = "sm_{}{}".format(*capability(ordinal))
        self.stream = call("cuStreamCreate", 1)  # 1: does not wait for the legacy stream
        self.copies = call("cuStreamCreate", 1)
        self.pool = call("cuDeviceGetDefaultMemPool", self.handle)
        keep = cuda.CUmemPool_attribute
        call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(2**64 - 1))
        call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)
        self._functions: dict[tuple, Any] = {}
        self._loading = new_lock()
        self._spare, self._spare_end = 0, 0
        self._staging: list[_Staging] = []

    # --- about the GPU ---

    @property
    def name(self) -> str:
        return call("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode()

    def attribute(self, name: str) -> int:
        return attribute(self.handle, name)

    def activate(self) -> None:
        """Make this GPU the one that calls of this thread mean. Where there are several, other libraries, too, may have
        chosen one meanwhile."""
        if self._several or not getattr(_current, "chosen", False):
            call("cuCtxSetCurrent", self.context)
            _current.chosen = True

    def memory(self) -> tuple[int, int]:
        free, total = call("cuMemGetInfo")
        kinds, reserved = _cuda().CUmemPool_attribute, self.reserved()
        used = int(call("cuMemPoolGetAttribute", self.pool, kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
        return free + reserved - used, total

    def reserved(self) -> int:
        kinds = _cuda().CUmemPool_attribute
        return int(call("cuMemPoolGetAttribute", self.pool, kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))

    def trim(self) -> None:
        self.synchronise()  # what was freed in order with runs is free when they are over
        call("cuMemPoolTrimTo", self.pool, 0)

    # --- memory ---

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        """Whole pieces of `COPIED` bytes. A copy may ask for less than such a piece; compute-sanitizer would call it an
        error at the end of an allocation, as it does not know how much was asked for."""
        stream = self.stream if stream is None else stream
        whole = -(-nbytes // COPIED) * COPIED
        try:
            return int(call("cuMemAllocAsync", whole, stream))
        except OutOfMemoryError:
            self.synchronise()  # what was freed may lie in pieces: hand it back and ask once more
            call("cuMemPoolTrimTo", self.pool, 0)
        try:
            return int(call("cuMemAllocAsync", whole, stream))
        except OutOfMemoryError:
            raise out_of_memory(self.name, nbytes, *self.memory()) from None

    def free(self, pointer: int) -> None:
        _cuda().cuMemFreeAsync(pointer, self.stream)  # a lost device is told by other calls

    def shared_memory(self, nbytes: int) -> int:
        if self._spare + nbytes > self._spare_end:
            size = max(PIECE, nbytes)
            self._spare = int(call("cuMemHostAlloc", size, 2))  # 2: the device sees it, too
            self._spare_end = self._spare + size
        pointer, self._spare = self._spare, self._spare + nbytes
        return pointer

    def place(self, address: int, nbytes: int) -> int:
        pointer = self.allocate(nbytes, self.copies)
        if nbytes > STAGED:
            call("cuMemcpyHtoDAsync", pointer, address, nbytes, self.copies)
            call("cuStreamSynchronize", self.copies)
            return pointer
        staging = self._take_staging(nbytes)
        ctypes.memmove(staging.pointer, address, nbytes)
        call("cuMemcpyHtoDAsync", pointer, staging.pointer, nbytes, self.copies)
        call("cuEventRecord", staging.event, self.copies)
        call("cuStreamWaitEvent", self.stream, staging.event, 0)
        self._staging.append(staging)
        return pointer

    def _take_staging(self, nbytes: int) -> _Staging:
        """Pinned memory whose last copy is over, and that nobody else takes: a signal handler may place something,
        too."""
        success = _cuda().CUresult.CUDA_SUCCESS
        for staging in list(self._staging):
            if nbytes <= staging.nbytes <= 4 * max(nbytes, PIECE) and _cuda().cuEventQuery(staging.event)[0] == success:
                with contextlib.suppress(ValueError):  # of a signal handler that was faster
                    self._staging.remove(staging)
                    return staging
        return _Staging(1 << max(nbytes - 1, PIECE - 1).bit_length())

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        call("cuMemcpyHtoDAsync", pointer, address, nbytes, self.stream)  # pageable memory is read before it returns

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        call("cuMemcpyDtoHAsync", address, pointer, nbytes, self.stream)
        call("cuStreamSynchronize", self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        call("cuMemcpyDtoDAsync", target, source, nbytes, self.stream)

    def copy_from(self, target: int, other: CudaDriver, source: int, nbytes: int) -> None:
        """From another GPU, on which nothing is under way any more."""
        call("cuMemcpyPeerAsync", target, self.context, source, other.context, nbytes, self.stream)
        self.synchronise()

    def clear(self, pointer: int, nbytes: int) -> None:
        call("cuMemsetD8Async", pointer, 0, nbytes, self.stream)

    # --- kernels ---

    def functions(self, codes: Sequence[Code]) -> list[Any]:
        self.activate()
        with self._loading:
            return self._loaded(codes)

    def _loaded(self, codes: Sequence[Code]) -> list[Any]:
        keys = [(code.symbol, code.packed, code.geometry) for code in codes]
        missing = {key: code for key, code in zip(keys, codes, strict=True) if key not in self._functions}
        COUNTERS.kernels_reused += len(codes) - len(missing)
        compiled = cuda_compile.cubins(list(missing.values()), self.architecture)
        for (key, code), cubin in zip(missing.items(), compiled, strict=True):
            self._functions[key] = self._load(code, cubin)
        return [self._functions[key] for key in keys]

    def _load(self, code: Code, cubin: bytes) -> Any:
        try:
            function = call("cuModuleGetFunction", call("cuModuleLoadData", cubin), code.symbol.encode())
            if code.geometry is not None and code.geometry.shared:
                self._permit(function, code.geometry.shared)
        except DeviceError as error:
            given = f"a kernel that {self.name} does not load: {error}\n{code.text}"
            raise problem(DeviceError, code.name, given, "machine code for this GPU") from error
        return function

    def _permit(self, function: Any, shared: int) -> None:
        """Let launches of a kernel ask for `shared` bytes. What its code declares counts beside them: without asking,
        a block has `UNASKED_SHARED` bytes for both."""
        kinds = _cuda().CUfunction_attribute
        declared = int(call("cuFuncGetAttribute", kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function))
        if declared + shared > UNASKED_SHARED:
            call("cuFuncSetAttribute", function, kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)

    def launcher(
        self, function: Any, blocks: int, threads: int, shared: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        start, enqueue, stream = ctypes.addressof(words), _cuda().cuLaunchKernel, self.stream
        parameters = (ctypes.c_void_p * len(words))(*[start + 8 * number for number in range(len(words))])
        address = ctypes.addressof(parameters)

        def launch(kept: Any = (words, parameters)) -> None:
            (status,) = enqueue(function, blocks, 1, 1, threads, 1, 1, shared, stream, address, 0)
            if status != 0:
                raise _failed("cuLaunchKernel", status)

        return launch

    # --- graphs ---

    def record(self, enqueue: Callable[[], None]) -> Any:
        cuda = _cuda()
        try:
            call("cuStreamBeginCapture", self.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            enqueue()
            graph = call("cuStreamEndCapture", self.stream)
        except BaseException:
            status, graph = cuda.cuStreamEndCapture(self.stream)  # else nothing on the stream would ever run again
            if status == 0:
                cuda.cuGraphDestroy(graph)
            raise
        try:
            made = call("cuGraphInstantiate", graph, 0)
        finally:
            cuda.cuGraphDestroy(graph)
        cuda.cuGraphUpload(made, self.stream)
        return made

    def replay(self, graph: Any) -> None:
        (status,) = _cuda().cuGraphLaunch(graph, self.stream)
        if status != 0:
            raise _failed("cuGraphLaunch", status)

    def discard(self, graph: Any) -> None:
        _cuda().cuGraphExecDestroy(graph)  # what is under way finishes

    def synchronise(self) -> None:
        call("cuStreamSynchronize", self.stream)

    # --- time ---

    def event(self) -> _Event:
        return _Event()

    def mark(self, event: _Event) -> None:
        call("cuEventRecord", event.handle, self.stream)

    def seconds_between(self, first: _Event, second: _Event) -> float:
        return call("cuEventElapsedTime", first.handle, second.handle) * 1e-3
