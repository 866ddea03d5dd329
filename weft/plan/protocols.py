"""The protocols of a backend: everything that the compiler, the tensors and the runtime call on one.

A backend is registered in `weft.backends.registry` under the kind of its devices; what is registered there is a
`Platform`. Every `Device` it lists has a `Backend` for memory and plans, and may have `Library` objects. The optional
parts are protocols of their own: `HostMemory`, `PeerCopies`, `Interpreter`, `TimedExecutable`, `ProductLibrary`. The
GPU backends share an implementation, `weft.backends.gpu`, which asks for a `Driver` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from weft.base.dtypes import DType
    from weft.compiler.fusion.index_map import Strided
    from weft.graph.node import Node
    from weft.kernels.ir.language import Kernel
    from weft.plan.device import Buffer, Device, Explain, HostWords, MemoryCounts, Slab
    from weft.plan.plan import Code, Config, Plan, Product


class Platform(Protocol):
    """All devices of one kind on this machine. The class is constructed without arguments when the first device of its
    kind is requested, and must not raise: where there is no device, `reason` says why."""

    reason: str  # empty where there are devices; the CPU and the interpreters always have one and leave it out

    def devices(self) -> Sequence[Device]:
        """The devices, which may be opened when they are first indexed."""


class Executable(Protocol):
    """A plan in a backend's native form."""

    def run(self, slots: Any, numbers: Sequence[float] = ()) -> None:
        """Run with `slots`, a table of addresses made by `Backend.slot_table` and filled by the caller; `numbers` are
        the values of the plan's `Number` arguments."""


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """What an executable of a device that computes also has, for `weft.profile`."""

    def time_runs(self, slots: Any, count: int) -> float:
        """Seconds of a run, averaged over `count` consecutive ones."""

    def time_steps(self, slots: Any) -> tuple[list[float], list[float]]:
        """Run once, step by step, and return the seconds of each step in the order of `plan.plan.iterate_steps`, those
        inside a `Repeat` for all its iterations together, and how many of them were spent on measuring it."""


class Backend(Protocol):
    """The memory and the plans of one device, through `Device.backend`."""

    runs_ahead: bool  # whether `Executable.run` returns before the run is over: its inputs may be freed by then

    def devices(self) -> Sequence[Device]:
        """The device, alone."""

    # Memory.

    def allocate(self, nbytes: int) -> Slab:
        """Uninitialized memory; OutOfMemoryError where there is too little. Of 0 bytes: a slab without memory."""

    def arena(self, nbytes: int) -> Slab:
        """Memory for the temporaries of one plan; empty where the executable provides them itself."""

    def require(self, nbytes: int) -> None:
        """Raise OutOfMemoryError where a run that allocates so much in all would fail, before it starts."""

    def memory(self) -> tuple[int, int]:
        """(bytes that can still be allocated, bytes in all)."""

    def counts(self) -> tuple[MemoryCounts, int] | None:
        """What is allocated, and the bytes obtained from the system; None: not counted."""

    def empty_cache(self) -> None:
        """Return memory that is kept for reuse to the system."""

    # Transfers.

    def upload_new(self, array: np.ndarray) -> Slab:
        """New memory with the bytes of a contiguous array, which the caller may change on return."""

    def upload(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array of the buffer's size into it."""

    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """A new array with the buffer's elements. Waits for earlier runs and raises what they reported."""

    def peek(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """`download` that raises nothing of earlier runs: for the explanation of an error."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy `source.nbytes` bytes inside the device."""

    def clear(self, buffer: Buffer) -> None:
        """Set all bytes to 0."""

    def host_words(self, nbytes: int) -> HostWords:
        """Memory for numbers that the host writes before each run."""

    # Status words, in which kernels record indices out of range.

    def status(self, nbytes: int) -> Slab:
        """Zeroed status words for the runs of one plan."""

    def watch(self, status: Slab, plan: Plan, explain: Explain | None = None) -> None:
        """Raise for what a run recorded in its status words: now, or at the next transfer that waits for the run."""

    # Plans.

    def render(self, kernel: Kernel) -> Code:
        """A kernel as the text that this backend compiles."""

    def identity(self) -> str | None:
        """What rendered plans depend on besides the fields of `Device`, such as the compiler's version. None: plans for
        this device are not stored on disk."""

    def executable(self, plan: Plan) -> Executable:
        """A plan whose kernels are rendered, ready to run."""

    def slot_table(self, count: int) -> Any:
        """A table of `count` addresses for `Executable.run`; the caller sets them by index."""

    def synchronise(self) -> None:
        """Wait for all runs, and raise what they reported."""


class HostMemory(Protocol):
    """What a backend also has if the host addresses its memory: arrays and tensors then share memory."""

    def adopt(self, array: np.ndarray) -> Slab:
        """The memory of a contiguous array, which stays the caller's and is only read."""

    def window(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """The buffer's memory as an array that cannot be written to and keeps the slab alive."""


class PeerCopies(Protocol):
    """What a backend also has if its platform may have several devices."""

    def receive(self, buffer: Buffer) -> Slab:
        """New memory with the bytes of a buffer on another device of this kind."""


class Interpreter(Protocol):
    """What a backend also has if it computes graphs node by node, without plans."""

    def run_nodes(self, nodes: Sequence[Node], float64: bool = False) -> list[np.ndarray]:
        """The values of `nodes`; with `float64`, floats are computed in double precision."""


class Library(Protocol):
    """A vendor's library on one device: it offers to compute expensive nodes, and runs what the compiler accepts."""

    name: str
    version: str
    failures: tuple[type[Exception], ...]
    """What its calls raise where they fail; anything else comes from a signal handler that ran inside a call."""

    def offer(self, node: Node, srcs: tuple[Node, ...]) -> Node | Sequence[Node] | None:
        """What replaces `node` over the rebuilt sources `srcs`, or each of its results, made of `library` nodes of this
        library and others; None where it does not compute such a node."""

    def can_read(self, call: Node, number: int, view: Strided) -> bool:
        """Whether source `number` of a `library` node can be read with these strides; else it is made contiguous."""

    def can_write(self, call: Node, number: int, view: Strided) -> bool:
        """Whether result `number` of a `library` node can be written with these strides; else it is copied there."""

    def configure(
        self, call: Node, sources: Sequence[Strided], results: Sequence[tuple[int, ...]]
    ) -> tuple[Config, int, int]:
        """(config, bytes of workspace, floating-point operations) of a `library` node whose sources have these layouts
        in memory, and whose results get these strides."""

    def run_reference(self, call: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The results of a `library` node by NumPy, for `weft.testing.verify`."""

    def prepare(self, config: Config) -> Callable[[Sequence[int]], None]:
        """What enqueues a call with `config` on the device's stream, given the addresses of the step's places."""


@runtime_checkable
class ProductLibrary(Protocol):
    """What a `Library` also has if it computes matrix products of floats, 16-bit ones included; `prepare` gets their
    configs like all others."""

    name: str

    def can_multiply(self, dtype: DType, batch: int, m: int, n: int, k: int) -> bool:
        """Whether it computes products of so many factors [m, k] and [k, n]; others are left to Weft's kernels."""

    def epilogues(self, dtype: DType) -> frozenset[str]:
        """What it computes together with products of `dtype`: 'bias', 'add', 'relu', 'gelu' (see `Product`)."""

    def configure_product(self, product: Product) -> tuple[Config, int]:
        """(config, bytes of workspace): the fields of `product`, then what the library has to remember."""
