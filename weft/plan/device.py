"""A device as the compiler knows it, and the storage on it: Device, Slab and Buffer.

What a device can do is described by `Features` and `Limits` (`weft.base.capabilities`); what can be called on its
backend by `weft.plan.protocols`. Nothing here knows a vendor.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.base import host_memory
from weft.base.capabilities import Features, Limits
from weft.base.dtypes import DType
from weft.base.errors import DeviceError, DTypeError, IndexRangeError, WeftError, out_of_memory, problem, size_text
from weft.base.locks import WriteGroup
from weft.base.singletons import singleton, table
from weft.base.tuning import Tuning
from weft.plan.plan import Plan

if TYPE_CHECKING:
    from weft.plan.protocols import Backend, Library


@singleton
class _Entered(threading.local):
    """The devices of this thread's `with device:` blocks, the innermost last: where tensors are made."""

    def __init__(self) -> None:
        self.devices: list[Device] = []


ENTERED: _Entered = table("default device").setdefault("threads", _Entered())


@singleton
@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device: its name (`cpu`, `cuda:0`), and all that the compiler knows of it. A process has one object for each
    device: `copy` gives the object itself, and so does `pickle`, by name (see `weft.device`); `is` compares them.

    `dtypes` are those it stores and computes with, `features` and `limits` what kernels for it may use
    (`weft.base.capabilities`). `libraries` are the vendor's libraries by name, in the order in
    which the compiler consults them. `tuning` are thresholds that only change speed. `is_software` is true for a device
    that emulates a GPU on the CPU (PoCL, lavapipe): it is used only where it is named. `is_integrated` is true for a
    GPU of OpenCL or WebGPU that shares the processor's memory. `api` is what a WebGPU device is reached through:
    'vulkan', 'metal', 'd3d12' or 'opengl'. `class_tuning` is the tuning of the device's class where `tuning` is one
    that was found on this machine (`weft.plan.kept_tuning`).
    """

    kind: str
    index: int
    backend: Backend = field(repr=False)
    description: str = ""
    dtypes: frozenset[DType] = frozenset()
    features: Features = field(default_factory=Features)
    limits: Limits = field(default_factory=Limits)
    libraries: dict[str, Library] = field(default_factory=dict, repr=False)
    tuning: Tuning = field(default_factory=Tuning, repr=False)
    is_software: bool = False
    is_integrated: bool = False
    api: str = ""
    class_tuning: Tuning | None = field(default=None, repr=False)

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
        """An allocation was freed."""
        self.pieces -= 1
        self.requested -= requested
        self.allocated -= allocated

    def reset_peaks(self, reserved: int) -> None:
        """Peaks restart at what is allocated now."""
        self.requested_peak, self.allocated_peak, self.pieces_peak = self.requested, self.allocated, self.pieces
        self.reserved_peak = reserved


@singleton
class Present:
    """How the devices of this machine are found, which only `weft.core.device` knows."""

    devices: Callable[[], Sequence[Device]] = list


def missing_dtype(who: str, dtype: DType, device: Device) -> WeftError:
    """The DTypeError for a dtype that `device` does not have, with the devices here that do."""
    others = [other.name for other in Present.devices() if dtype in other.dtypes and other.kind != "reference"]
    given = f"{dtype.name} on {device}, which does not have it"
    expected = f"a device that does ({', '.join(others)})" if others else "a dtype of the device"
    fix = "use another dtype there" + (f", or compute on {others[0]!r}" if others else "")
    return problem(DTypeError, who, given, expected, fix)


def describe_available(device: Device, nbytes: int) -> str:
    """How large a request for `nbytes` bytes could have been, in words: what is available, or one allocation."""
    most, (available, total) = device.limits.allocation_bytes, device.backend.memory()
    if most and most < nbytes <= available:
        return f"at most {size_text(most)}, the largest allocation of the device"
    if total >= host_memory.UNKNOWN:
        return "what is available, which the device does not say"
    return f"at most {size_text(available)}, which are available of {size_text(total)}"


def memory_text(device: Device) -> tuple[str, str]:
    """A device's memory and what is free of it, in words."""
    available, total = device.backend.memory()
    return ("unknown", "unknown") if total >= host_memory.UNKNOWN else (size_text(total), size_text(available))


class DeviceLost(DeviceError):
    """What a GPU's driver raises when the device answers nothing any more, whatever call it was that found out."""


def is_of_lost_device(error: BaseException | None) -> bool:
    """Whether an error is a `DeviceLost`, or what a backend raises from one."""
    while error is not None and not isinstance(error, DeviceLost):
        error = error.__cause__
    return error is not None


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
