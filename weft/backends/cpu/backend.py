"""The CPU backend: slabs from a caching pool, kernels through LLVM, plans on the native worker team."""

from __future__ import annotations

import ctypes
import math
import platform
from typing import Any

import numpy as np

from weft.backends.cpu import blas
from weft.backends.cpu.execution import CpuExecutable, render
from weft.backends.cpu.jit import jit
from weft.backends.cpu.memory_pool import MemoryPool, PooledBlock, size_class
from weft.backends.cpu.worker_team import thread_count
from weft.base import dtypes, host_memory
from weft.base.capabilities import Features, Limits
from weft.base.counters import COUNTERS
from weft.base.dtypes import DType
from weft.base.errors import DeviceError, problem
from weft.kernels.ir.language import Kernel
from weft.plan.device import Buffer, Device, Explain, HostWords, MemoryCounts, Slab, empty_array, raise_bad_index
from weft.plan.kept_tuning import apply_kept_tuning
from weft.plan.plan import Code, Plan


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _limits() -> Limits:
    """Bytes in all vector registers, by which kernels choose the size of their tiles; threads, for shares of work."""
    found = jit().features
    return Limits(cpu_threads=thread_count(), vector_register_bytes=2048 if "+avx512vl" in found else 512)


class _Window:
    """Bytes of a slab for NumPy. The slab counts as in use while an array made of this lives."""

    __slots__ = ("__array_interface__", "slab")

    def __init__(self, buffer: Buffer, nbytes: int):
        self.slab = buffer.slab
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (nbytes,), "data": (buffer.pointer, True)}


def _memory(slab: Slab, kind: type) -> np.ndarray:
    """All of a slab as a vector."""
    raw: Any = (ctypes.c_char * slab.nbytes).from_address(slab.pointer)
    return np.frombuffer(raw, kind)


class CpuBackend:
    """The device that every machine has."""

    runs_ahead = False

    def __init__(self) -> None:
        self.pool = MemoryPool()
        features = Features(cpu_templates=True, scalar_arguments=True, small_products=blas.has_small_kernels())
        device = Device("cpu", 0, self, _processor(), frozenset(dtypes.ALL), features, _limits())
        self.device = apply_kept_tuning(device)

    def devices(self) -> list[Device]:
        return [self.device]

    def allocate(self, nbytes: int) -> Slab:
        size = size_class(nbytes)
        block = PooledBlock(self.pool, size, nbytes, self.pool.take(size))
        return Slab(self.device, nbytes, block.block[0], block)

    def require(self, nbytes: int) -> None:
        """Raise OutOfMemoryError where a run that needs so much memory would not get it."""
        self.pool.require(nbytes)

    def memory(self) -> tuple[int, int]:
        """Bytes that can still be had, and bytes in all."""
        available, total = host_memory.memory()
        return available + self.pool.kept, total

    def counts(self) -> tuple[MemoryCounts, int]:
        """Of the pool, and bytes had of the system."""
        return self.pool.counts, self.pool.counts.allocated + self.pool.kept

    def empty_cache(self) -> None:
        """Return freed memory to the system."""
        self.pool.clear()

    def arena(self, nbytes: int) -> Slab:
        return self.allocate(nbytes)

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of an array."""
        slab = self.allocate(array.nbytes)
        self.upload(Buffer(slab, 0, array.nbytes), array)
        return slab

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy a NumPy array of the buffer's size in."""
        if array.nbytes != buffer.nbytes:
            raise problem(DeviceError, "upload", f"an array of {array.nbytes} bytes", f"{buffer.nbytes} bytes")
        data = np.ascontiguousarray(array)
        ctypes.memmove(buffer.pointer, data.ctypes.data, data.nbytes)
        COUNTERS.uploads += 1
        COUNTERS.upload_bytes += data.nbytes

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A NumPy array of its own with the buffer's elements."""
        array = empty_array(shape, dtype)
        if array.nbytes > buffer.nbytes:
            raise problem(DeviceError, "download", f"a buffer of {buffer.nbytes} bytes", f"{array.nbytes} bytes")
        ctypes.memmove(array.ctypes.data, buffer.pointer, array.nbytes)
        COUNTERS.downloads += 1
        COUNTERS.download_bytes += array.nbytes
        return array

    peek = download

    def adopt(self, array: np.ndarray) -> Slab:
        """The memory of a contiguous array, which stays the caller's and is only read."""
        return Slab(self.device, array.nbytes, array.ctypes.data, array)

    def window(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """The buffer's memory as an array that cannot be written to and keeps the slab alive."""
        COUNTERS.downloads += 1
        nbytes = math.prod(shape) * dtype.itemsize
        COUNTERS.download_bytes += nbytes
        return np.asarray(_Window(buffer, nbytes)).view(dtype.numpy).reshape(shape)

    def copy(self, target: Buffer, source: Buffer) -> None:
        ctypes.memmove(target.pointer, source.pointer, source.nbytes)

    def host_words(self, nbytes: int) -> HostWords:
        """The memory itself, which the host writes to. Not a transfer."""
        slab = self.allocate(nbytes)
        return HostWords(slab, _memory(slab, np.uint8))

    def status(self, nbytes: int) -> Slab:
        slab = self.allocate(nbytes)
        ctypes.memset(slab.pointer, 0, nbytes)
        return slab

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """The run is over: its status words say how it went."""
        raise_bad_index(_memory(status, np.int32), plan, explain)

    def clear(self, buffer: Buffer) -> None:
        ctypes.memset(buffer.pointer, 0, buffer.nbytes)

    def slot_table(self, count: int) -> Any:
        """A table of `count` addresses for `CpuExecutable.run`; fill it by index."""
        return (ctypes.c_uint64 * max(count, 1))()

    def executable(self, plan: Plan) -> CpuExecutable:
        return CpuExecutable(plan, self.device.tuning)

    def render(self, kernel: Kernel) -> Code:
        """The form in which `kernel` is compiled."""
        return render(kernel)

    def identity(self) -> str:
        """The processor and the code generator."""
        return jit().identity

    def synchronise(self) -> None:
        """Plans run to their end before `run` returns: nothing to wait for."""
