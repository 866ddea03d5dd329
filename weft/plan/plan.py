"""Plan: what a compiled program is, as pure data. Printable, serialisable, the same for every backend.

A plan names slots (memory that the caller binds) and steps. A step is a kernel launch or a library call; its arguments
are places inside slots and numbers. Backends turn a plan into their native form (`Backend.executable`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields

from weft.base.dtypes import DType
from weft.kernels.ir.language import Geometry, Kernel, ScalarParam


@dataclass(frozen=True, slots=True)
class Place:
    """A position in memory: `offset` bytes into the memory bound to slot number `slot`."""

    slot: int
    offset: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that a plan works on; `label` names it for people.

    `kind` is 'input', 'view' (of an input that another slot holds whole), 'output', 'moving' (an address that a
    `Repeat` sets while it runs), 'arena' or 'status'. An input may be `written` in place.
    """

    kind: str
    nbytes: int
    label: str
    written: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """A kernel as a backend compiles it: its text, packed, and the `symbol` that compiled code is found under."""

    name: str
    symbol: str
    scalars: tuple[ScalarParam, ...]
    geometry: Geometry | None
    packed: bytes

    @property
    def text(self) -> str:
        return zlib.decompress(self.packed).decode()


def code_of(kernel: Kernel, symbol: str, text: str) -> Code:
    """The rendered form of `kernel`."""
    return Code(kernel.name, symbol, kernel.scalars, kernel.geometry, zlib.compress(text.encode(), 1))


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar of a launch that is passed with every run: entry `slot` of the numbers that the caller passes."""

    slot: int


Scalar = int | float | Number


@dataclass(frozen=True, slots=True)
class Launch:
    """Run `kernel` over `extent` points in tasks of `chunk` (the last may be shorter).

    The compiler makes plans of kernels in the kernel language; the backend's `render` turns each into `Code`, which is
    all that running and storing a plan needs. `places` follow `kernel.buffers`, `scalars` follow `kernel.scalars`.
    `bytes` and `flops` are what it moves and computes, for reports and for the choice of thread count.
    """

    kernel: Kernel | Code
    places: tuple[Place, ...]
    scalars: tuple[Scalar, ...]
    extent: int
    chunk: int
    bytes: int
    flops: int

    @property
    def name(self) -> str:
        return self.kernel.name


@dataclass(frozen=True, slots=True)
class Gemm:
    """A batched matrix product by a library: C[b] = op(A[b]) @ op(B[b]), row-major, tile by tile, then the epilogue.

    Leading dimensions and batch strides are in elements; a batch stride of 0 repeats the operand. Matrix b of the batch
    is at (b // inner) * outer + (b % inner) * stride (inner = 0: all of them are inner). The tile grid depends on the
    shapes only. `epilogue`, if any, is a kernel with TILE_RANGES that runs on each finished tile.
    """

    name: str
    dtype: DType
    batch: int
    m: int
    n: int
    k: int
    a: Place
    b: Place
    c: Place
    lda: int
    ldb: int
    ldc: int
    transpose_a: bool
    transpose_b: bool
    stride_a: int
    stride_b: int
    stride_c: int
    tile_m: int
    tile_n: int
    epilogue: Launch | None
    bytes: int
    flops: int
    inner: int = 0
    outer_a: int = 0
    outer_b: int = 0


Plain = int | float | str | bool | DType | None
Config = tuple[Plain | tuple[Plain, ...], ...]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Work that a vendor's library does. `library` is its name among `Device.libraries`; `config` is all that it has to
    know, as plain data, algorithm included; `places` are its operands and results, then its workspace, if any."""

    name: str
    library: str
    config: Config
    places: tuple[Place, ...]
    bytes: int
    flops: int


@dataclass(frozen=True, slots=True)
class Product:
    """What a library of matrix products has to compute; with the algorithm, the config of its `LibraryCall`.

    D[i] = activation(alpha * op(A[i]) @ op(B[i]) + C[i] + bias), row-major, for `outer * inner` matrices: A's are at
    (i // inner) * strides_a[0] + (i % inner) * strides_a[1], B's alike; C and D are contiguous. Operands have the dtype
    `operand`, everything else `result`; 16-bit operands add up in float32 and D is rounded once. Leading dimensions and
    strides are in elements. The places are a, b, bias and c (as asked for), d, what the activation was given (if that
    is to be kept), workspace (if any).
    """

    operand: DType
    result: DType
    outer: int
    inner: int
    m: int
    n: int
    k: int
    transpose_a: bool
    transpose_b: bool
    leading_a: int
    leading_b: int
    strides_a: tuple[int, int]
    strides_b: tuple[int, int]
    precision: str  # of float32 products: 'highest', or 'high' for shorter factors (TF32)
    alpha: float = 1.0
    bias: bool = False  # a vector of n, added to each row
    add: bool = False  # whether there is a C
    activation: str = ""  # '', 'relu', or 'gelu' in its tanh form
    keep: bool = False  # whether the argument of GELU is stored too

    @property
    def config(self) -> Config:
        return tuple([getattr(self, field.name) for field in fields(self)])


@dataclass(frozen=True, slots=True)
class Moving:
    """In iteration t of a `Repeat`, slot number `slot` is the address `place` + t * `stride` bytes."""

    slot: int
    place: Place
    stride: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run `first` once, then `steps` `count` times. Slot number `counter` holds the number of the iteration."""

    name: str
    first: tuple[Launch, ...]
    steps: tuple[Step, ...]
    count: int
    moving: tuple[Moving, ...]
    counter: int

    @property
    def bytes(self) -> int:
        return sum(step.bytes * times for step, times in iterate_steps((self,)))

    @property
    def flops(self) -> int:
        return sum(step.flops * times for step, times in iterate_steps((self,)))


Step = Launch | Gemm | LibraryCall | Repeat


def iterate_steps(steps: Iterable[Step], times: int = 1) -> Iterator[tuple[Launch | Gemm | LibraryCall, int]]:
    """The launches and calls of `steps` in order, those inside repeats once, and how often each of them runs."""
    for step in steps:
        if isinstance(step, Repeat):
            yield from iterate_steps(step.first, times)
            yield from iterate_steps(step.steps, times * step.count)
        else:
            yield step, times


def launch_of(step: Launch | Gemm | LibraryCall) -> Launch | None:
    """The launch of a kernel of Weft in a step: the step itself, or the epilogue of a product."""
    if isinstance(step, Launch):
        return step
    return step.epilogue if isinstance(step, Gemm) else None


@dataclass(frozen=True, slots=True)
class Interval:
    """The lifetime of one tensor in the arena: bytes [offset, offset + nbytes) from step `first` to step `last`."""

    label: str
    offset: int
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps over slots. Slots are ordered: inputs and views, outputs, moving ones, the arena, the status words."""

    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    arena: tuple[Interval, ...]
    key: str
    sites: tuple[str, ...] = field(default=())

    @property
    def arena_bytes(self) -> int:
        return max((slot.nbytes for slot in self.slots if slot.kind == "arena"), default=0)
