"""Device memory of runtimes that name it by handles instead of addresses (OpenCL, WebGPU).

The runtime of all GPU backends computes with addresses, which are integers. `HandleMemory` gives every handle a range
of integers of its own and finds the handle and the offset that an address means (`split`). No range is given out twice:
a graph that was captured for an address is never replayed with another handle behind it.

Freed memory is kept for the next allocation of its size class, as creating memory is slow in these runtimes, and as the
same addresses are needed again for a graph to be replayed. Work is done in the order in which it is enqueued, so what
is freed may be used again at once. Nothing here calls a runtime, except through the functions that it is given.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from weft.base.errors import OutOfMemoryError, out_of_memory

RANGE_ALIGNMENT = 1 << 12  # addresses of handles are multiples of this
FIRST_ADDRESS = 1 << 32  # nothing that is an address by mistake lies above
MIN_CLASS_BYTES = 256
CLASSES_PER_OCTAVE = 8  # sizes of allocations between one power of two and the next


def class_bytes(nbytes: int) -> int:
    """The size of the memory that is created for `nbytes` bytes: at most an eighth more, in few different sizes."""
    if nbytes <= MIN_CLASS_BYTES:
        return MIN_CLASS_BYTES
    step = max(1 << (nbytes - 1).bit_length() - 1, MIN_CLASS_BYTES) // CLASSES_PER_OCTAVE
    return -(-nbytes // step) * step


class HandleMemory:
    """The memory of one device.

    `create` makes memory of a number of bytes and returns its handle, or raises OutOfMemoryError; `destroy` releases a
    handle; `wait` returns when all enqueued work is over. `capacity` are the bytes of the device. `name` is for errors.
    """

    def __init__(
        self, create: Callable[[int], Any], destroy: Callable[[Any], None], wait: Callable[[], None],
        capacity: int, name: str,
    ):  # fmt: skip
        self._create, self._destroy, self._wait = create, destroy, wait
        self.capacity, self._name = capacity, name
        self.reserved = 0  # bytes of all handles
        self.unused = 0  # of those that wait for reuse
        self._starts: list[int] = []  # sorted
        self._handles: dict[int, tuple[Any, int]] = {}  # by start: the handle and its bytes
        self._free: dict[int, list[int]] = {}  # starts by bytes
        self._next = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes, whose contents are undefined."""
        size = class_bytes(nbytes)
        free = self._free.get(size)
        if free:
            self.unused -= size
            return free.pop()
        return self._add(self._create_or_release(size, nbytes), size)

    def _create_or_release(self, size: int, nbytes: int) -> Any:
        """New memory; where there is too little, after what waits for reuse is released."""
        if self.reserved + size <= self.capacity:
            try:
                return self._create(size)
            except OutOfMemoryError:
                if not self.unused:
                    raise
        self.release_unused()
        if self.reserved + size > self.capacity:
            raise out_of_memory(self._name, nbytes, *self.memory())
        return self._create(size)

    def _add(self, handle: Any, size: int) -> int:
        start = self._next
        self._next += -(-size // RANGE_ALIGNMENT) * RANGE_ALIGNMENT + RANGE_ALIGNMENT  # the end is in no other range
        self._starts.append(start)
        self._handles[start] = handle, size
        self.reserved += size
        return start

    def free(self, address: int) -> None:
        """Keep memory for the next allocation of its size."""
        size = self._handles[address][1]
        self._free.setdefault(size, []).append(address)
        self.unused += size

    def split(self, address: int) -> tuple[Any, int]:
        """The handle that an address lies in, and the offset there in bytes; (None, 0) for address 0: no memory."""
        if not address:
            return None, 0
        start = self._starts[bisect.bisect_right(self._starts, address) - 1]
        return self._handles[start][0], address - start

    def size_of(self, address: int) -> int:
        """The bytes of the memory that begins at `address`."""
        return self._handles[address][1]

    def release_unused(self) -> None:
        """Destroy the handles that wait for reuse."""
        if not self.unused:
            return
        self._wait()
        for size, starts in self._free.items():
            for start in starts:
                self._destroy(self._handles.pop(start)[0])
                self.reserved -= size
        self._free, self.unused = {}, 0
        self._starts = sorted(self._handles)

    def memory(self) -> tuple[int, int]:
        """(bytes that can still be allocated, bytes in all)."""
        return max(self.capacity - self.reserved + self.unused, 0), self.capacity
