"""The small interface of a backend, and the storage that every room shares: Slab and Buffer.

A backend is one file: it lists devices, allocates slabs, moves bytes, and turns a plan into something that runs. The
compiler knows hardware only through `Device`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from weft.backends import host_memory
from weft.compiler.plan import Code, Config, Plan, Product
from weft.dtypes import DType
from weft.errors import DeviceError, IndexRangeError, out_of_memory, problem
from weft.kernels.language import Kernel
from weft.locks import WriteGroup
from weft.singletons import once, table

if TYPE_CHECKING:
    from weft.compiler.access import Strided
    from weft.graph.node import Node


@once
class _Entered(threading.local):
    """The devices of this thread's `with device:` blocks, the innermost last: where tensors are made."""

    def __init__(self) -> None:
        self.devices: list[Device] = []


ENTERED: _Entered = table("default device").setdefault("threads", _Entered())


@once
@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device: its name (`cpu`, `cuda:0`), and all that the compiler knows of it. A process has one object for each
    device: `copy` gives the object itself, and so does `pickle`, by name (see `weft.device`); `is` compares them.

    `features` choose what the compiler makes: 'blocks' asks for the GPU schedule (threads in blocks with
    barriers), 'small products' for small tiles in matrix products, 'templates' for the kernels written by hand for
    CPUs (without it their primitives are composed from others), 'numbers' for constants that come with each run,
    'subgroups' for threads of a block that exchange values without memory (`limits['subgroup']` of them), 'mma' for
    matrix units that multiply tiles of 16-bit floats (`kernels.tiles`), 'narrow attention' for results of 16-bit
    attention that are kept in 16 bits for its gradient (elsewhere in float32),
    'functions' for exp, log, tanh and erf of float32 and the rounding to bfloat16 as operations of the device.
    `limits` are numbers: 'threads' and 'shared_bytes' of a block, 'blocks' of a launch, 'subgroup' (its threads),
    'processors' and 'resident_threads' of each, 'vector_bytes' of one access.
    `libraries` are the vendor's libraries by name, in the order in which they are asked for offers.
    """

    kind: str
    index: int
    backend: Any = field(repr=False)
    description: str = ""
    dtypes: frozenset[DType] = frozenset()
    features: frozenset[str] = frozenset()
    limits: dict[str, int] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return self.kind if self.kind in ("cpu", "reference", "null") else f"{self.kind}:{self.index}"

    @property
    def type(self) -> str:
        """The kind, under PyTorch's name."""
        return self.kind

    def __enter__(self) -> Device:
        ENTERED.devices.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        ENTERED.devices.pop()

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Device:
        return self

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"device({self.name!r}, {self.description!r})"


class MemoryCounts:
    """What a backend has allocated: bytes that were asked for (`requested`), bytes that this takes (`allocated`) and
    pieces, now and at most since `reset_peaks`; `reserved` is what it has of the system, with what waits to be used
    again. Additions to one attribute need no lock: no other thread of the interpreter runs in the middle of one."""

    __slots__ = (
        "allocated", "allocated_peak", "allocated_total", "pieces", "pieces_peak", "pieces_total", "requested",
        "requested_peak", "requested_total", "reserved_peak",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requested = self.requested_peak = self.requested_total = 0
        self.allocated = self.allocated_peak = self.allocated_total = 0
        self.pieces = self.pieces_peak = self.pieces_total = 0
        self.reserved_peak = 0

    def take(self, requested: int, allocated: int) -> None:
        """An allocation."""
        self.pieces += 1
        self.pieces_total += 1
        self.requested += requested
        self.requested_total += requested
        self.allocated += allocated
        self.allocated_total += allocated
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        if self.pieces > self.pieces_peak:
            self.pieces_peak = self.pieces

    def give(self, requested: int, allocated: int) -> None:
        """An allocation is no longer held."""
        self.pieces -= 1
        self.requested -= requested
        self.allocated -= allocated

    def reset_peaks(self, reserved: int) -> None:
        """Peaks begin anew at what is held now."""
        self.requested_peak, self.allocated_peak, self.pieces_peak = self.requested, self.allocated, self.pieces
        self.reserved_peak = reserved


class DeviceLost(DeviceError):
    """What a GPU's driver raises when the device answers nothing any more, whatever call it was that found out."""


class Slab:
    """One allocation on a device; `pointer` is its address (or handle) and `owner` keeps it alive."""

    __slots__ = ("__weakref__", "device", "nbytes", "owner", "pinned", "pointer")

    def __init__(self, device: Device, nbytes: int, pointer: int, owner: Any):
        self.device = device
        self.nbytes = nbytes
        self.pointer = pointer
        self.owner = owner
        self.pinned: WriteGroup | None = None  # where compiled functions write in place: whose lock they hold


class Buffer:
    """Where a value lives: `nbytes` bytes of `slab` from `offset`. `state` is 'live', 'deleted' or 'donated to ...'."""

    __slots__ = ("__weakref__", "nbytes", "offset", "slab", "state")

    def __init__(self, slab: Slab, offset: int, nbytes: int):
        self.slab = slab
        self.offset = offset
        self.nbytes = nbytes
        self.state = "live"

    @property
    def pointer(self) -> int:
        return self.slab.pointer + self.offset


class HostWords:
    """Numbers that the host writes before a run, such as the learning rate: `array` holds them on the host, and
    `send` puts them into `slab`, in order with the runs around it."""

    __slots__ = ("array", "slab")

    def __init__(self, slab: Slab, array: np.ndarray):
        self.slab = slab
        self.array = array  # bytes

    def send(self) -> None:
        """Nothing to do where the array is the slab's own memory."""


class Executable(Protocol):
    """A plan in a backend's native form."""

    def run(self, slots: Any, numbers: Sequence[float] = ()) -> None:
        """Run with `slots`, a table of addresses made by `Backend.slot_table` and filled by the caller; `numbers` are
        what the plan's `Number`s stand for."""


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """What an executable of a device that computes also has, for `weft.profile`."""

    def time_runs(self, slots: Any, count: int) -> float:
        """Seconds of a run, of `count` one after the other."""

    def time_steps(self, slots: Any) -> list[float]:
        """Run once, step by step, and return the seconds of each step as `plan.walk` gives them: those inside a
        `Repeat` for all its iterations together."""


class Library(Protocol):
    """A vendor's library on one device: it offers to compute heavy nodes, and runs what the compiler took of it."""

    name: str
    version: str

    def offer(self, node: Node, srcs: tuple[Node, ...]) -> Node | Sequence[Node] | None:
        """What stands for `node` over the rebuilt sources `srcs`, or for each of its results, made of `library` nodes
        of this library and others; None where it does not compute such a node."""

    def reads(self, call: Node, number: int, view: Strided) -> bool:
        """Whether source `number` of a `library` node can be read as it lies in memory; else it is put in order."""

    def writes(self, call: Node, number: int, view: Strided) -> bool:
        """Whether result `number` of a `library` node can be written there; else it is written in order and copied."""

    def arrange(
        self, call: Node, sources: Sequence[Strided], results: Sequence[tuple[int, ...]]
    ) -> tuple[Config, int, int]:
        """(config, bytes of workspace, floating-point operations) of a `library` node whose sources lie in memory as
        given, and whose results are to lie there with these strides."""

    def evaluate(self, call: Node, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The results of a `library` node by NumPy, for `weft.testing.verify`."""

    def prepare(self, config: Config) -> Callable[[Sequence[int]], None]:
        """What enqueues a call with `config` on the device's stream, given addresses in the order of its places."""


@runtime_checkable
class ProductLibrary(Protocol):
    """What a `Library` also has if it computes matrix products of floats, those of 16 bits too; `prepare` gets their
    configs like all others."""

    name: str

    def takes(self, dtype: DType, batch: int, m: int, n: int, k: int) -> bool:
        """Whether products of so many factors [m, k] and [k, n] are its own; others are left to kernels of ours."""

    def absorbs(self, dtype: DType) -> frozenset[str]:
        """What it does on the way for factors of `dtype`: 'bias', 'add', 'relu', 'gelu' (see `Product`)."""

    def arrange_product(self, product: Product) -> tuple[Config, int]:
        """(config, bytes of workspace): the fields of `product`, then what the library has to remember."""


class Backend(Protocol):
    """What one device has to offer, through `Device.backend`."""

    runs_ahead: bool  # whether `Executable.run` returns before the run is over: what it read may be gone by then

    def devices(self) -> list[Device]: ...
    def allocate(self, nbytes: int) -> Slab: ...  # OutOfMemoryError where there is none
    def require(self, nbytes: int) -> None: ...  # the same for all that a run will take, before it begins
    def memory(self) -> tuple[int, int]: ...  # bytes that can still be had, and bytes in all
    def counts(
        self,
    ) -> tuple[MemoryCounts, int] | None: ...  # of memory, and bytes had of the system; None: not counted
    def empty_cache(self) -> None: ...  # give the system back what nobody holds
    def arena(self, nbytes: int) -> Slab: ...  # for the temporaries of a plan; empty where its executable has them
    def place(self, array: np.ndarray) -> Slab: ...  # new memory with the bytes of a contiguous array
    def upload(self, buffer: Buffer, array: np.ndarray) -> None: ...
    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray: ...
    def peek(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray: ...  # raises for no other run
    def copy(self, target: Buffer, source: Buffer) -> None: ...
    def clear(self, buffer: Buffer) -> None: ...
    def host_words(self, nbytes: int) -> HostWords: ...
    def status(self, nbytes: int) -> Slab: ...  # zeroed words in which kernels note indices out of range
    def watch(
        self, status: Slab, plan: Plan, explain: Explain | None = None
    ) -> None: ...  # raise for what a run noted: now, or when it is known
    def slot_table(self, count: int) -> Any: ...  # for `Executable.run`, filled with addresses by index
    def render(self, kernel: Kernel) -> Code: ...
    def identity(self) -> str | None: ...  # what rendered plans depend on beside `Device`; None: do not keep them
    def executable(self, plan: Plan) -> Executable: ...
    def synchronise(self) -> None: ...


def empty_array(shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Memory of the host for values that are read back; OutOfMemoryError where there is too little."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= host_memory.CHECKED and nbytes > host_memory.memory()[0]:
        raise out_of_memory("numpy()", nbytes, *host_memory.memory())
    try:
        return np.empty(shape, dtype.numpy)
    except (MemoryError, ValueError):
        raise out_of_memory("numpy()", nbytes, *host_memory.memory()) from None


Explain = Callable[[int], tuple[str, str, str]]  # (line, what was given, what was expected) for a status word


def raise_bad_index(words: np.ndarray, plan: Plan, explain: Explain | None = None) -> None:
    """Raise for the first line of the user whose index left its axis, and clear the status words. `explain` finds out
    which line it is in this run, which index it was, and where."""
    for number, (word, site) in enumerate(zip(words, plan.sites, strict=False)):
        if word:
            words[:] = 0
            line, _, wrong = site.rpartition(": ")
            found = explain(number) if explain is not None else (line, wrong, "")
            raise problem(IndexRangeError, *found, "check the values; these were clamped")
