"""The memory of the CPU backend: freed blocks are kept by size class for reuse, so that results need no system call."""

from __future__ import annotations

import numpy as np

from weft.base import host_memory
from weft.base.errors import out_of_memory
from weft.plan.device import MemoryCounts

ALIGNMENT = 64
POOL_LIMIT = 1 << 30  # bytes that the pool keeps for reuse


class MemoryPool:
    """Freed memory by size class, for reuse."""

    def __init__(self) -> None:
        self.free: dict[int, list[tuple[int, np.ndarray]]] = {}
        self.kept = 0
        self.counts = MemoryCounts()

    def take(self, size: int) -> tuple[int, np.ndarray]:
        """An address aligned to 64 bytes with at least `size` bytes behind it, and its owner."""
        waiting = self.free.get(size)
        if waiting:
            self.kept -= size
            return waiting.pop()
        self.require(size)
        try:
            array = np.empty(size + ALIGNMENT, np.uint8)
        except (MemoryError, ValueError):  # ValueError: more than addresses can tell apart
            raise out_of_memory("cpu", size, *host_memory.memory()) from None
        address = array.ctypes.data
        return address + -address % ALIGNMENT, array

    def require(self, nbytes: int) -> None:
        """Raise where so much memory is not there, before any of it is touched."""
        if nbytes >= host_memory.CHECKED and nbytes > host_memory.memory()[0]:
            self.clear()
            available, total = host_memory.memory()
            if nbytes > available:
                raise out_of_memory("cpu", nbytes, available, total)

    def give(self, size: int, block: tuple[int, np.ndarray], limit: int = POOL_LIMIT) -> None:
        if self.kept + size <= limit:  # bound above, since module names are gone when the interpreter exits
            self.free.setdefault(size, []).append(block)
            self.kept += size

    def clear(self) -> None:
        """Return all free memory to the system."""
        self.free.clear()
        self.kept = 0


class PooledBlock:
    """Keeps one allocation out of the pool for as long as it lives."""

    __slots__ = ("block", "nbytes", "pool", "size")

    def __init__(self, pool: MemoryPool, size: int, nbytes: int, block: tuple[int, np.ndarray]):
        self.pool = pool
        self.size = size
        self.nbytes = nbytes  # that were requested
        self.block = block
        # What `MemoryCounts.take` does, without a call: there is an allocation for every result outside of compile.
        counts = pool.counts
        counts.pieces += 1
        counts.pieces_total += 1
        counts.requested += nbytes
        counts.requested_total += nbytes
        counts.allocated += size
        counts.allocated_total += size
        if counts.requested > counts.requested_peak:
            counts.requested_peak = counts.requested
        if counts.pieces > counts.pieces_peak:
            counts.pieces_peak = counts.pieces
        if counts.allocated > counts.allocated_peak:
            counts.allocated_peak = counts.allocated
        if counts.allocated + pool.kept > counts.reserved_peak:
            counts.reserved_peak = counts.allocated + pool.kept

    def __del__(self) -> None:
        counts = self.pool.counts
        counts.pieces -= 1
        counts.requested -= self.nbytes
        counts.allocated -= self.size
        self.pool.give(self.size, self.block)


def size_class(nbytes: int) -> int:
    """`nbytes` rounded up to one of four sizes in each power of two, 64 at least."""
    if nbytes <= 256:
        return (nbytes + 63) & ~63 or 64
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step
