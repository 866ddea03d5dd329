"""The small interface of a backend, and the storage that every room shares: Slab and Buffer.

A backend is one file: it lists devices, allocates slabs, moves bytes, and turns a plan into something that runs. The
compiler knows hardware only through `Device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from weft.compiler.plan import Code, Plan
from weft.dtypes import DType
from weft.kernels.language import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device: its name (`cpu`, `cuda:0`), and all that the compiler knows of it.

    `features` choose what the compiler makes: 'blocks' asks for the GPU schedule (threads in blocks with
    barriers), 'small products' for small tiles in matrix products, 'templates' for the kernels written by hand for
    CPUs (without it their primitives are composed from others), 'numbers' for constants that come with each run.
    """

    kind: str
    index: int
    backend: Any = field(repr=False)
    description: str = ""
    dtypes: frozenset[DType] = frozenset()
    features: frozenset[str] = frozenset()
    limits: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind if self.kind in ("cpu", "reference", "null") else f"{self.kind}:{self.index}"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"device({self.name!r}, {self.description!r})"


class Slab:
    """One allocation on a device; `pointer` is its address (or handle) and `owner` keeps it alive."""

    __slots__ = ("__weakref__", "device", "nbytes", "owner", "pinned", "pointer")

    def __init__(self, device: Device, nbytes: int, pointer: int, owner: Any):
        self.device = device
        self.nbytes = nbytes
        self.pointer = pointer
        self.owner = owner
        self.pinned = False  # set once a compiled function writes cells in place here


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


class Executable(Protocol):
    """A plan in a backend's native form."""

    def run(self, slots: Any, numbers: Sequence[float] = ()) -> None:
        """Run with `slots`, a table of addresses made by `Backend.slot_table` and filled by the caller; `numbers` are
        what the plan's `Number`s stand for."""


class Backend(Protocol):
    """What a device kind has to offer."""

    def devices(self) -> list[Device]: ...
    def allocate(self, nbytes: int) -> Slab: ...
    def upload(self, buffer: Buffer, array: np.ndarray) -> None: ...
    def download(self, buffer: Buffer, shape: tuple[int, ...], dtype: DType) -> np.ndarray: ...
    def copy(self, target: Buffer, source: Buffer) -> None: ...
    def render(self, kernel: Kernel) -> Code: ...
    def identity(self) -> str | None: ...  # what rendered plans depend on beside `Device`; None: do not keep them
    def executable(self, plan: Plan) -> Executable: ...
    def synchronise(self) -> None: ...
