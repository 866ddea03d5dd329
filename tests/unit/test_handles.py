"""Addresses for memory that a runtime names by handles."""

from __future__ import annotations

import pytest

from weft.backends.gpu.handles import CLASSES_PER_OCTAVE, HandleMemory, class_bytes
from weft.errors import OutOfMemoryError


class Runtime:
    """Handles are numbers from 1; at most `limit` bytes exist at a time."""

    def __init__(self, limit: int = 1 << 20, capacity: int = 1 << 20, largest: int = 0):
        self.sizes: dict[int, int] = {}
        self.made = self.waits = 0
        self.limit = limit
        self.memory = HandleMemory(self.create, self.sizes.pop, self.wait, capacity, "a device", largest)

    def create(self, nbytes: int) -> int:
        if sum(self.sizes.values()) + nbytes > self.limit:
            raise OutOfMemoryError("the runtime has too little")
        self.made += 1
        self.sizes[self.made] = nbytes
        return self.made

    def wait(self) -> None:
        self.waits += 1


def test_addresses_are_split_into_handle_and_offset():
    memory = Runtime().memory
    addresses = [memory.allocate(nbytes) for nbytes in (1, 4096, 5000)]
    for handle, (address, nbytes) in enumerate(zip(addresses, (1, 4096, 5000), strict=True), 1):
        assert memory.split(address) == (handle, 0)
        assert memory.split(address + nbytes - 1) == (handle, nbytes - 1)
        assert memory.split(address + nbytes) == (handle, nbytes)  # an empty view at the end
    assert memory.split(0) == (None, 0)


def test_freed_memory_is_reused_at_the_same_address():
    runtime = Runtime()
    first = runtime.memory.allocate(1000)
    runtime.memory.free(first)
    assert runtime.memory.unused == runtime.memory.reserved == class_bytes(1000)
    assert runtime.memory.allocate(1001) == first  # of the same class
    assert runtime.made == 1 and not runtime.memory.unused


def test_the_lowest_free_address_comes_first():
    """Whatever the order in which memory is freed: the same program has the same addresses again."""
    memory = Runtime().memory
    addresses = [memory.allocate(100) for _ in range(4)]
    for order in ((2, 0, 3), (3, 2, 0)):
        for number in order:
            memory.free(addresses[number])
        assert [memory.allocate(100) for _ in order] == [addresses[0], addresses[2], addresses[3]]


def test_released_addresses_never_come_again():
    runtime = Runtime()
    seen = set()
    for _ in range(5):
        address = runtime.memory.allocate(100)
        assert address not in seen
        seen.add(address)
        runtime.memory.free(address)
        runtime.memory.release_unused()
    assert not runtime.sizes and not runtime.memory.reserved
    assert runtime.waits == 5


def test_release_keeps_what_is_in_use():
    runtime = Runtime()
    kept, freed = runtime.memory.allocate(100), runtime.memory.allocate(100)
    runtime.memory.free(freed)
    runtime.memory.release_unused()
    assert runtime.memory.split(kept + 7) == (1, 7)
    assert list(runtime.sizes) == [1]


@pytest.mark.parametrize("limits", [(4096, 1 << 20), (1 << 20, 4096)])
def test_short_memory_releases_what_waits_for_reuse(limits):
    """Whether the runtime refuses, or would promise more than the device has."""
    runtime = Runtime(*limits)
    runtime.memory.free(runtime.memory.allocate(4096))
    address = runtime.memory.allocate(2048)
    assert runtime.sizes == {2: 2048}
    with pytest.raises(OutOfMemoryError):
        runtime.memory.allocate(3000)
    assert runtime.memory.split(address) == (2, 0)
    assert runtime.memory.memory() == (runtime.memory.capacity - 2048, runtime.memory.capacity)


def test_classes_waste_little():
    for nbytes in [*range(256, 5000, 7), 10**6, 10**9 + 1]:
        assert nbytes <= class_bytes(nbytes) <= nbytes * (1 + 1 / CLASSES_PER_OCTAVE) + 1
        assert class_bytes(class_bytes(nbytes)) == class_bytes(nbytes)


@pytest.mark.parametrize("number", range(1, 5))
def test_an_interrupted_release_gives_out_nothing_that_was_destroyed(number):
    runtime = Runtime()
    memory, calls = runtime.memory, 0

    def destroy(handle: int) -> None:
        nonlocal calls
        calls += 1
        runtime.sizes.pop(handle)
        if calls == number:
            raise KeyboardInterrupt

    memory._destroy = destroy
    for address in [memory.allocate(size) for size in (100, 100, 1000, 1000)]:
        memory.free(address)
    with pytest.raises(KeyboardInterrupt):
        memory.release_unused()
    assert memory.reserved == memory.unused == sum(runtime.sizes.values())
    for size in (100, 100, 1000, 1000):
        assert memory.split(memory.allocate(size))[0] in runtime.sizes
    assert memory.reserved == sum(runtime.sizes.values()) and not memory.unused


def test_a_release_in_which_a_signal_handler_allocates_and_frees():
    runtime = Runtime()
    memory, found = runtime.memory, []
    held = memory.allocate(5000)

    def destroy(handle: int) -> None:
        runtime.sizes.pop(handle)
        if not found:  # sizes of which nothing was free before
            memory.free(held)
            found.append(memory.allocate(20_000))

    memory._destroy = destroy
    for address in [memory.allocate(size) for size in (100, 100, 1000)]:
        memory.free(address)
    memory.release_unused()
    assert memory.split(found[0] + 19_999) == (runtime.made, 19_999)
    assert memory.reserved == sum(runtime.sizes.values()) == class_bytes(20_000) + memory.unused
    assert memory.allocate(5000) == held and not memory.unused


PIECE = 8192


def test_pieces_have_consecutive_addresses():
    runtime = Runtime(largest=PIECE)
    memory = runtime.memory
    before, address, after = memory.allocate(100), memory.allocate_pieces(2 * PIECE + 700), memory.allocate(100)
    assert list(runtime.sizes.values()) == [256, PIECE, PIECE, class_bytes(700), 256]
    for at in (0, PIECE - 1, PIECE, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 699):
        assert memory.split(address + at) == (2 + at // PIECE, at % PIECE)
    assert memory.split(before + 256) == (1, 256) and memory.split(after) == (5, 0)
    assert memory.size_of(address) == 2 * PIECE + class_bytes(700) == memory.reserved - 512


def test_pieces_are_reused_and_released_together():
    runtime = Runtime(largest=PIECE)
    memory = runtime.memory
    address = memory.allocate_pieces(3 * PIECE)
    memory.free(address)
    assert memory.unused == 3 * PIECE and memory.allocate_pieces(3 * PIECE) == address and not memory.unused
    memory.free(address)
    memory.release_unused()
    assert not runtime.sizes and not memory.reserved and not memory.unused
    assert memory.allocate_pieces(3 * PIECE) > address + 3 * PIECE


def test_what_one_handle_holds_is_no_piece():
    runtime = Runtime(largest=PIECE)
    address = runtime.memory.allocate_pieces(PIECE - 10)  # its class would be larger than a handle may be
    assert runtime.sizes == {1: PIECE}
    runtime.memory.free(address)
    assert runtime.memory.allocate(PIECE - 20) == address


@pytest.mark.parametrize("limits", [{"limit": 2 * PIECE}, {"capacity": 2 * PIECE}])
def test_pieces_of_which_one_cannot_be_created_leave_none(limits):
    runtime = Runtime(largest=PIECE, **limits)
    with pytest.raises(OutOfMemoryError):
        runtime.memory.allocate_pieces(3 * PIECE)
    assert not runtime.sizes and not runtime.memory.reserved
    assert runtime.memory.allocate_pieces(2 * PIECE)
