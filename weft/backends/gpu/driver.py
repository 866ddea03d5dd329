"""The protocol of a GPU driver: all that `weft.backends.gpu` calls on a vendor's runtime.

A new GPU backend implements `Driver`, describes its device with `Features` and `Limits`, and names the dialect in
which kernels are printed; `GpuBackend` and `GpuExecutable` do the rest. `tests/unit/fake_driver.py` is a complete
example.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from weft.plan.plan import Code


class Driver(Protocol):
    """A vendor's runtime on one GPU.

    All work is enqueued in order on one stream and called by one thread at a time, under the stream lock; only
    `load_kernels` and `make_launcher`, which enqueue nothing, are called at any time. Addresses are integers to which
    offsets are added: a runtime with handles gives each handle a range of integers of its own. Methods raise
    OutOfMemoryError, DeviceError, or `DeviceLost` where the device does not answer any more.
    """

    can_capture_graphs: bool  # whether `capture_graph`, `replay_graph` and `destroy_graph` work; else never called

    def close(self) -> None:
        """Release everything that was opened, where the device cannot be used after all: no tensor is on it."""

    def activate(self) -> None:
        """Make this GPU the one that later calls of this thread mean."""

    def synchronise(self) -> None:
        """Wait for everything enqueued."""

    # Memory.

    def allocate(self, nbytes: int) -> int:
        """Memory in order with the stream; OutOfMemoryError where there is too little."""

    def allocate_arena(self, nbytes: int) -> int:
        """As `allocate`, for temporaries: where `Limits.allocation_bytes` is less, of several allocations with
        consecutive addresses, the next one from each multiple of it on."""

    def free(self, pointer: int) -> None:
        """Free what `allocate`, `allocate_arena` or `upload_new` returned, in order with the stream."""

    def host_visible_memory(self, nbytes: int) -> int:
        """Memory that the host sees at the same address, never freed; 0 where the device has none."""

    def memory(self) -> tuple[int, int]:
        """(bytes that can still be allocated, bytes in all)."""

    def reserved_bytes(self) -> int:
        """Bytes that this process has of the GPU, freed ones that wait for reuse included."""

    def release_unused(self) -> None:
        """Return freed memory that waits for reuse to the system."""

    # Transfers.

    def upload_new(self, address: int, nbytes: int) -> int:
        """New memory with a copy of host memory, which may change on return; may overlap with what runs."""

    def upload(self, pointer: int, address: int, nbytes: int) -> None:
        """Copy host memory, which may change on return."""

    def download(self, address: int, pointer: int, nbytes: int) -> None:
        """Copy to host memory, and wait for it."""

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy inside the device."""

    def clear(self, pointer: int, nbytes: int) -> None:
        """Set bytes to 0."""

    # Kernels.

    def load_kernels(self, codes: Sequence[Code]) -> list[Any]:
        """The kernels' functions on this GPU: compiled, read from disk, or loaded before."""

    def make_launcher(
        self, function: Any, workgroups: int, lanes: int, shared_bytes: int, words: ctypes.Array, buffers: int
    ) -> Callable[[], None]:
        """What enqueues one launch with the 64-bit parameters in `words`, read at each call: `buffers` addresses, then
        the scalars, then the range [begin, end). `shared_bytes` of shared memory come with the launch."""

    # Graphs: several launches that are enqueued at once.

    def capture_graph(self, enqueue: Callable[[], None]) -> Any:
        """What `enqueue` enqueues, as a graph, without running it."""

    def call_outside_capture(self, work: Callable[..., Any], *args: Any) -> Any:
        """`work(*args)` in the middle of a capture, of which it is no part: a signal handler computes something. Where
        the runtime captures a stream, whatever it enqueues there is captured all the same."""

    def replay_graph(self, graph: Any) -> None:
        """Enqueue a graph."""

    def destroy_graph(self, graph: Any) -> None:
        """Free a graph; replays that are under way finish."""

    # Time.

    def create_event(self) -> Any:
        """An object for `record_event`; freed when Python drops it."""

    def record_event(self, event: Any) -> None:
        """Note the device's time when everything enqueued before is over."""

    def seconds_between(self, first: Any, second: Any) -> float:
        """Of two recorded events that are over."""
