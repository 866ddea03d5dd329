"""Device memory of runtimes that name it by handles instead of addresses (OpenCL, WebGPU).

The runtime of all GPU backends computes with addresses, which are integers. `HandleMemory` gives every handle a range
of integers of its own and finds the handle and the offset that an address means (`split`). No range is given out twice:
a graph that was captured for an address is never replayed with another handle behind it.

Freed memory is kept for the next allocation of its size class, as creating memory is slow in these runtimes, and as the
same addresses are needed again for a graph to be replayed. Of what is free the lowest address is given out first: the
steps of a loop then have the same addresses every few steps. (Were it the one freed last, they would be permuted for
many steps.) Work is done in the order in which it is enqueued, so what is freed may be used again at once. Nothing here
calls a runtime, except through the functions that it is given.
"""

from __future__ import annotations

import bisect
import heapq
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
    handle; `wait` returns when all enqueued work is over. `capacity` are the bytes of the device; `largest` those of
    the largest handle, a multiple of RANGE_ALIGNMENT (0: any number). `name` is for errors.
    """

    def __init__(
        self, create: Callable[[int], Any], destroy: Callable[[Any], None], wait: Callable[[], None],
        capacity: int, name: str, largest: int = 0,
    ):  # fmt: skip
        self._create, self._destroy, self._wait = create, destroy, wait
        self.capacity, self._name, self._largest = capacity, name, largest
        self.reserved = 0  # bytes of all handles
        self.unused = 0  # of those that wait for reuse
        self._starts: list[int] = []  # sorted
        self._handles: dict[int, tuple[Any, int]] = {}  # by start: the handle and its bytes
        self._following: dict[int, list[int]] = {}  # by start: the starts of further handles of one allocation
        self._free: dict[int, list[int]] = {}  # starts by bytes, each list a heap
        self._next = FIRST_ADDRESS

    def allocate(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes, whose contents are undefined."""
        size = class_bytes(nbytes)
        if nbytes <= self._largest:
            size = min(size, self._largest)
        free = self._free.get(size)
        if free:
            self.unused -= size
            return heapq.heappop(free)
        return self._add(self._create_or_release(size, nbytes), size)

    def allocate_pieces(self, nbytes: int) -> int:
        """As `allocate`; where this is more than one handle may have, of several handles with consecutive addresses:
        the next one begins at each multiple of `largest` bytes."""
        if not self._largest or nbytes <= self._largest:
            return self.allocate(nbytes)
        count, rest = divmod(nbytes, self._largest)
        sizes = [self._largest] * count + [min(class_bytes(rest), self._largest)] * bool(rest)
        free = self._free.get(sum(sizes))
        if free:
            self.unused -= sum(sizes)
            return heapq.heappop(free)
        handles: list[Any] = []
        try:
            for size in sizes:
                handles.append(self._create_or_release(size, nbytes, sum(sizes)))
        except BaseException:
            for handle in handles:
                self._destroy(handle)
            raise
        start, *following = [self._add(handle, size, 0) for handle, size in zip(handles, sizes, strict=True)]
        self._next += RANGE_ALIGNMENT  # the end is in no other range
        self._following[start] = following
        return start

    def _create_or_release(self, size: int, nbytes: int, whole: int = 0) -> Any:
        """New memory, where `whole` bytes are needed in all (0: these alone); where there is too little, after what
        waits for reuse is released."""
        whole = whole or size
        if self.reserved + whole <= self.capacity:
            try:
                return self._create(size)
            except OutOfMemoryError:
                if not self.unused:
                    raise
        self.release_unused()
        if self.reserved + whole > self.capacity:
            raise out_of_memory(self._name, nbytes, *self.memory())
        return self._create(size)

    def _add(self, handle: Any, size: int, distance: int = RANGE_ALIGNMENT) -> int:
        """Give a handle addresses; the next ones are so far away that the end of these is in no other range."""
        start = self._next
        self._next += -(-size // RANGE_ALIGNMENT) * RANGE_ALIGNMENT + distance
        self._handles[start] = handle, size
        self._starts.append(start)
        self.reserved += size
        return start

    def free(self, address: int) -> None:
        """Keep memory for the next allocation of its size."""
        size = self.size_of(address)
        heapq.heappush(self._free.setdefault(size, []), address)
        self.unused += size

    def split(self, address: int) -> tuple[Any, int]:
        """The handle that an address lies in, and the offset there in bytes; (None, 0) for address 0: no memory."""
        if not address:
            return None, 0
        start = self._starts[bisect.bisect_right(self._starts, address) - 1]
        return self._handles[start][0], address - start

    def size_of(self, address: int) -> int:
        """The bytes of the memory that begins at `address`."""
        return sum([self._handles[start][1] for start in (address, *self._following.get(address, ()))])

    def release_unused(self) -> None:
        """Destroy the handles that wait for reuse."""
        if not self.unused:
            return
        self._wait()
        for size, starts in list(self._free.items()):  # a signal handler may raise or compute at any call
            while starts:  # what is destroyed is not given out any more
                start = starts.pop()
                self.unused -= size
                self.reserved -= size
                for each in (start, *self._following.pop(start, ())):
                    self._destroy(self._handles.pop(each)[0])
        while self._starts != (starts := sorted(self._handles)):
            self._starts = starts

    def memory(self) -> tuple[int, int]:
        """(bytes that can still be allocated, bytes in all)."""
        return max(self.capacity - self.reserved + self.unused, 0), self.capacity
