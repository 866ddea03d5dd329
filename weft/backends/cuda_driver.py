"""The CUDA driver on one GPU: `backends.gpu.Driver` through cuda-bindings.

Two streams: everything runs on `stream`; `place` copies new data on a second one, from pinned memory, and `stream`
waits only for that copy. Memory comes from the GPU's stream-ordered pool, which keeps what is freed.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.backends import cuda_compile
from weft.compiler.plan import Code
from weft.counting import COUNTERS
from weft.errors import DeviceError, OutOfMemoryError, problem

PIECE = 1 << 16  # bytes of shared memory that are asked for at a time
STAGED = 64 << 20  # larger arrays go over without pinned memory between
STATIC_SHARED = 48 << 10  # bytes of a block's memory that need no asking


@functools.cache
def _cuda() -> Any:
    from cuda.bindings import driver

    return driver


class CudaError(DeviceError):
    """An error of the CUDA driver."""


def call(name: str, *args: Any) -> Any:
    """The driver function `name`; raises what it reports, and returns what it gives."""
    status, *values = getattr(_cuda(), name)(*args)
    if status != 0:
        raise _failed(name, status)
    return values[0] if len(values) == 1 else values or None


def _failed(name: str, status: Any) -> Exception:
    text = _cuda().cuGetErrorString(status)[1]
    words = text.decode() if isinstance(text, bytes) else str(status)
    if "OUT_OF_MEMORY" in str(status):
        return problem(OutOfMemoryError, name, words, "free memory on the GPU")
    lost = any(word in str(status) for word in ("ILLEGAL", "LAUNCH", "MISALIGNED", "ECC", "HARDWARE"))
    mend = "this process cannot use the GPU any more; a new one with WEFT_SYNC=1 names the kernel" if lost else ""
    return problem(CudaError, name, f"{words} ({status})", "success", mend)


def count() -> int:
    """How many GPUs the driver sees; raises where there is no driver."""
    call("cuInit", 0)
    return call("cuDeviceGetCount")


class _Staging:
    """A piece of pinned memory and the event after which it may be used again."""

    __slots__ = ("event", "nbytes", "pointer")

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.pointer = int(call("cuMemHostAlloc", nbytes, 0))
        self.event = call("cuEventCreate", 2)  # 2: without timing


_current = threading.local()


class CudaDriver:
    """One GPU, by number."""

    def __init__(self, ordinal: int):
        self.ordinal = ordinal
        call("cuInit", 0)
        self.handle = call("cuDeviceGet", ordinal)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)
        self.activate()
        cuda = _cuda()
        major = self.attribute("COMPUTE_CAPABILITY_MAJOR")
        self.architecture = f"sm_{major}{self.attribute('COMPUTE_CAPABILITY_MINOR')}"
        self.stream = call("cuStreamCreate", 1)  # 1: does not wait for the legacy stream
        self.copies = call("cuStreamCreate", 1)
        self.pool = call("cuDeviceGetDefaultMemPool", self.handle)
        keep = cuda.CUmemPool_attribute
        call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(2**64 - 1))
        call("cuMemPoolSetAttribute", self.pool, keep.CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0)
        self._functions: dict[str, Any] = {}
        self._loaded: list[Any] = []
        self._lock = threading.Lock()
        self._spare, self._spare_end = 0, 0
        self._staging: list[_Staging] = []
        self._recording = False
        self._waiting: list[int] = []  # memory to be freed when a recording is over
        self._closed = False

    # --- about the GPU ---

    @property
    def name(self) -> str:
        return call("cuDeviceGetName", 256, self.handle).split(b"\0")[0].decode()

    @property
    def driver_version(self) -> str:
        number = call("cuDriverGetVersion")
        return f"{number // 1000}.{number % 1000 // 10}"

    def attribute(self, name: str) -> int:
        kind = getattr(_cuda().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return call("cuDeviceGetAttribute", kind, self.handle)

    def activate(self) -> None:
        """Make this GPU the one that calls of this thread mean."""
        if getattr(_current, "ordinal", None) != self.ordinal:
            call("cuCtxSetCurrent", self.context)
            _current.ordinal = self.ordinal

    def memory(self) -> tuple[int, int]:
        self.activate()
        free, total = call("cuMemGetInfo")
        kinds = _cuda().CUmemPool_attribute
        reserved = int(call("cuMemPoolGetAttribute", self.pool, kinds.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))
        used = int(call("cuMemPoolGetAttribute", self.pool, kinds.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
        return free + reserved - used, total

    # --- memory ---

    def allocate(self, nbytes: int, stream: Any = None) -> int:
        self.activate()
        stream = self.stream if stream is None else stream
        try:
            return int(call("cuMemAllocAsync", nbytes, stream))
        except OutOfMemoryError:
            self.synchronise()  # what was freed may lie in pieces: hand it back and ask once more
            call("cuMemPoolTrimTo", self.pool, 0)
        try:
            return int(call("cuMemAllocAsync", nbytes, stream))
        except OutOfMemoryError:
            available, total = self.memory()
            given = f"{nbytes:,} bytes asked for with {available:,} of {total:,} available"
            raise problem(OutOfMemoryError, f"cuda:{self.ordinal}", given, "less", "use a smaller batch") from None

    def free(self, pointer: int) -> None:
        if self._closed:
            return
        if self._recording:
            self._waiting.append(pointer)
            return
        self.activate()
        _cuda().cuMemFreeAsync(pointer, self.stream)

    def shared_memory(self, nbytes: int) -> int:
        self.activate()
        with self._lock:
            if self._spare + nbytes > self._spare_end:
                size = max(PIECE, nbytes)
                self._spare = int(call("cuMemHostAlloc", size, 2))  # 2: the device sees it, too
                self._spare_end = self._spare + size
            pointer, self._spare = self._spare, self._spare + nbytes
            return pointer

    def place(self, address: int, nbytes: int) -> int:
        self.activate()
        pointer = self.allocate(nbytes, self.copies)
        if nbytes > STAGED:
            call("cuMemcpyHtoDAsync", pointer, address, nbytes, self.copies)
            call("cuStreamSynchronize", self.copies)
            return pointer
        with self._lock:
            staging = self._free_staging(nbytes)
            ctypes.memmove(staging.pointer, address, nbytes)
            call("cuMemcpyHtoDAsync", pointer, staging.pointer, nbytes, self.copies)
            call("cuEventRecord", staging.event, self.copies)
            call("cuStreamWaitEvent", self.stream, staging.event, 0)
        return pointer

    def _free_staging(self, nbytes: int) -> _Staging:
        """Pinned memory whose last copy is over."""
        success = _cuda().CUresult.CUDA_SUCCESS
        for staging in self._staging:
            if nbytes <= staging.nbytes <= 4 * max(nbytes, PIECE) and _cuda().cuEventQuery(staging.event)[0] == success:
                return staging
        self._staging.append(_Staging(1 << max(nbytes - 1, PIECE - 1).bit_length()))
        return self._staging[-1]

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        self.activate()
        call("cuMemcpyHtoDAsync", pointer, address, nbytes, self.stream)  # pageable memory is read before it returns

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        self.activate()
        call("cuMemcpyDtoHAsync", address, pointer, nbytes, self.stream)
        call("cuStreamSynchronize", self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.activate()
        call("cuMemcpyDtoDAsync", target, source, nbytes, self.stream)

    def copy_from(self, target: int, other: CudaDriver, source: int, nbytes: int) -> None:
        """From another GPU, on which nothing is under way any more."""
        self.activate()
        call("cuMemcpyPeerAsync", target, self.context, source, other.context, nbytes, self.stream)
        self.synchronise()

    def clear(self, pointer: int, nbytes: int) -> None:
        self.activate()
        call("cuMemsetD8Async", pointer, 0, nbytes, self.stream)

    # --- kernels ---

    def functions(self, codes: Sequence[Code]) -> list[Any]:
        self.activate()
        with self._lock:
            missing = list({code.symbol: code for code in codes if code.symbol not in self._functions}.values())
            COUNTERS.kernels_reused += len(codes) - len(missing)
            for code, cubin in zip(missing, cuda_compile.cubins(missing, self.architecture), strict=True):
                self._functions[code.symbol] = self._load(code, cubin)
        return [self._functions[code.symbol] for code in codes]

    def _load(self, code: Code, cubin: bytes) -> Any:
        module = call("cuModuleLoadData", cubin)
        self._loaded.append(module)
        function = call("cuModuleGetFunction", module, code.symbol.encode())
        if code.geometry is not None and code.geometry.shared > STATIC_SHARED:
            most = _cuda().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call("cuFuncSetAttribute", function, most, code.geometry.shared)
        return function

    def launch(self, function: Any, blocks: int, threads: int, shared: int, parameters: int) -> None:
        (status,) = _cuda().cuLaunchKernel(
            function, blocks, 1, 1, threads, 1, 1, shared, self.stream, parameters, 0
        )  # fmt: skip
        if status != 0:
            raise _failed("cuLaunchKernel", status)

    # --- graphs ---

    def record(self, enqueue: Callable[[], None]) -> Any:
        self.activate()
        mode = _cuda().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call("cuStreamBeginCapture", self.stream, mode)
        self._recording = True
        try:
            enqueue()
        finally:
            self._recording = False
            status, graph = _cuda().cuStreamEndCapture(self.stream)
            waiting, self._waiting = self._waiting, []
            for pointer in waiting:
                self.free(pointer)
        if status != 0:
            raise _failed("cuStreamEndCapture", status)
        try:
            made = call("cuGraphInstantiate", graph, 0)
        finally:
            _cuda().cuGraphDestroy(graph)
        _cuda().cuGraphUpload(made, self.stream)
        return made

    def replay(self, graph: Any) -> None:
        self.activate()
        (status,) = _cuda().cuGraphLaunch(graph, self.stream)
        if status != 0:
            raise _failed("cuGraphLaunch", status)

    def discard(self, graph: Any) -> None:
        if not self._closed:
            self.activate()
            _cuda().cuGraphExecDestroy(graph)

    def synchronise(self) -> None:
        self.activate()
        call("cuStreamSynchronize", self.stream)

    def close(self) -> None:
        """Let everything finish at the end of the process; what is freed later goes with it."""
        if not self._closed:
            self._closed = True
            self.activate()
            _cuda().cuStreamSynchronize(self.stream)
