"""The kernel language: a small statement language with scalar semantics, written once and printed by every renderer.

Expressions (see `kernels.ir.expressions`) say what a value is for *one* point of the loops around them. Which loops run
in parallel or in vector lanes is the loop's `kind`, chosen by a schedule: nothing here is shaped like a CPU or a GPU.
Positions in memory are `Index` forms (see `kernels.ir.index`), which keep strides visible. `kernels.ir.normalize` turns
shared parts into `Let` statements in the outermost loop where they are constant; renderers print that normal form and
decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from weft.base.dtypes import DType
from weft.kernels.ir.expressions import (
    LARGE,
    NATIVE,
    OPERATIONS,
    Expr,
    Function,
    IndexValue,
    Literal,
    Load,
    Op,
    Operand,
    Var,
)
from weft.kernels.ir.index import Axis, Index

__all__ = [
    "LARGE", "LAUNCH_RANGES", "NATIVE", "OPERATIONS", "TILE_RANGES", "Accumulator", "AsyncCopy",
    "AwaitCopies", "Barrier", "BufferParam", "Copy", "Expr", "Function", "Geometry", "If", "IndexValue",
    "Kernel", "Let", "Literal", "Load", "Local", "Loop", "Op", "Operand", "Reduction", "ScalarParam", "Stmt",
    "Store", "TileLoad", "TileProduct", "Update", "Var", "pool_bytes", "shared_arrays", "shared_bytes",
]  # fmt: skip

# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """Name a value. The normal form has every shared or loop-invariant expression in one of these."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """Write `value` to `buffer` at `index`, where `mask` (if any) is true."""

    buffer: str
    index: Index
    value: Expr
    mask: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Run `body` for `axis` from `start` to `stop`.

    kind: 'serial' in order, on GPUs `width` iterations unrolled at a time; 'task' in any order, split over workers or
    workgroups; 'vector' in vector lanes of `width`; 'lanes' over the `width` lanes of one GPU workgroup: lane t takes
    start + t, start + t + width, ...; 'grid' over the lanes (`width` to a workgroup) of all workgroups; 'unrolled' in
    order, fully unrolled (its bounds are integers), so that a lane's arrays indexed by it stay in registers. A
    `Barrier` may stand inside 'task' and 'serial' loops, which all lanes of a workgroup run together, inside a 'lanes'
    loop of which every lane runs one iteration, and under an `If` whose condition is the same in all lanes of a
    workgroup. `start` and `stop` are integers, or expressions of scalars, ranges and outer axes; a `start` that is an
    expression is known to be a multiple of `multiple`, and the number of iterations of a vector loop to be one of its
    width where `whole`. One lane has `most` iterations at most (0: what the extent of the axis allows).
    """

    axis: Axis
    start: Expr | int
    stop: Expr | int
    kind: str
    body: tuple[Stmt, ...]
    width: int = 1
    multiple: int = 1
    whole: bool = False
    most: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Accumulator:
    """A running reduction: `op` is 'sum', 'max', 'min' or 'prod'. A sum of floats may be `compensated`: what each
    addition rounds off (Knuth's two-sum) is summed separately and added to the sum at the end."""

    name: str
    op: str
    dtype: DType
    compensated: bool = False

    @property
    def identity(self) -> float | int | bool:
        """The value that the reduction starts from."""
        if self.op in ("sum", "prod"):
            return int(self.op == "prod")
        if self.dtype.kind == "f":
            return -math.inf if self.op == "max" else math.inf
        bits = 8 * self.dtype.itemsize
        signed = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        low, high = {"b": (False, True), "u": (0, 2**bits - 1)}.get(self.dtype.kind, signed)
        return low if self.op == "max" else high


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """Run `body` (loops that `Update` the accumulators); afterwards each accumulator is readable as a `Var`.

    In a vector loop inside the reduction each vector lane has its own partial result, and a fixed tree combines them at
    the end; the order of additions thus depends on extents and width only. A reduction inside a vector loop reduces
    lane by lane. In a 'lanes' loop inside the reduction each GPU lane has its own partial result and reads just that
    afterwards: a GPU schedule combines them explicitly, through a `Local`. A reduction that is not `joined` leaves the
    partial results of vector lanes separate as well: they may only `Update` an accumulator of the enclosing reduction,
    lane by lane.
    """

    accumulators: tuple[Accumulator, ...]
    body: tuple[Stmt, ...]
    joined: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Feed `value` into the accumulator called `name`. With a `factor` the accumulator is a sum and gets
    value * factor, in one rounding."""

    name: str
    value: Expr
    factor: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """Run `body` where `condition`, a bool that does not vary between vector lanes, is true, else `otherwise`."""

    condition: Expr
    body: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Barrier:
    """All lanes of a GPU workgroup wait for each other and see each other's stores. CPU schedules never emit it."""


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """An array private to one task (CPU) or shared by one workgroup (GPU); `Load` and `Store` reach it by name.

    With scope 'lane' it is private to a GPU lane: registers, where every index is known once loops are unrolled. With
    scope 'launch' a workgroup shares it, in memory whose size is passed with the launch: such arrays lie one after the
    other, each from a multiple of 16 bytes on.
    """

    name: str
    dtype: DType
    size: int
    scope: str = "workgroup"


@dataclass(frozen=True, slots=True, eq=False)
class AsyncCopy:
    """Start an asynchronous copy of `count` contiguous elements into a shared array: target[at + i] = source[index + i]
    for i < valid, 0 for the others. It is complete, for this lane, after `AwaitCopies`, and for the workgroup after a
    barrier behind that. Where the device copies synchronously, the target may be a lane's array. `at` is a multiple of
    `count`, which is a power of two. Where the offset in `source` is known to be `aligned` so, too, all of `count` are
    valid. Elements before the start of a row, whose `position` in it is below 0, are padding: they are not read, since
    another kernel may be writing them."""

    target: str
    at: Index
    source: str
    index: Index
    count: int
    valid: Expr | int
    aligned: bool = False
    position: Index | None = None  # of the first element in its row; None: all lie inside


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """`count` contiguous elements in one access, from `source` at `index` to `target` at `at`; one of the two is a
    lane's private array.

    Both offsets are multiples of `count` elements, counted from where the array or buffer begins. `dtype` is that of
    `target`; float32 that goes into bfloat16 is rounded, to nearest with ties to even.
    """

    target: str
    at: Index
    source: str
    index: Index
    count: int
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class AwaitCopies:
    """The copies that this lane started since the last such statement are a group; wait until all groups but the last
    `pending` are complete."""

    pending: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TileLoad:
    """All lanes of a subgroup load one 16 x 16 tile of 16-bit floats from a shared array, for `TileProduct`.

    Element (i, j) lies at index + i * row + j * col; one of the two steps is 1, the other a multiple of 8, and so is
    the index, which is the same in all lanes. `target` is a lane's array of uint32, which gets WORDS of them from `at`
    on; which elements these are depends on the matrix unit. `role`: 'a', the left operand, or 'b'.
    """

    target: str
    at: Index
    buffer: str
    index: Index
    row: int
    col: int
    role: str


@dataclass(frozen=True, slots=True, eq=False)
class TileProduct:
    """All lanes of a subgroup add the product of two tiles of `dtype` to a tile of float32 sums.

    Each lane has SUMS of these, from `sums_at` on in its array `sums`; `kernels.gpu.matrix_unit` says which.
    """

    sums: str
    sums_at: Index
    a: str
    a_at: Index
    b: str
    b_at: Index
    dtype: DType


Stmt = (
    Let
    | Store
    | Loop
    | Reduction
    | Update
    | If
    | Barrier
    | Local
    | Copy
    | AsyncCopy
    | AwaitCopies
    | TileLoad
    | TileProduct
)


# --- kernels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BufferParam:
    """A pointer parameter; `written` where the kernel stores to it (loads from it are then not moved).

    `stream` is a hint that what is stored will not be read soon, so stores may bypass the caches. Such memory, and the
    first point of every task, lie at multiples of 64 bytes. `bindings` is more than 1 where the memory is too large for
    one binding of the device and is bound in so many parts (`Limits.part_bytes`).
    """

    name: str
    dtype: DType
    written: bool
    stream: bool = False
    bindings: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ScalarParam:
    """A number passed with the launch, such as an extent or a graph constant."""

    name: str
    dtype: DType


MIN_BUSY_FRACTION = 0.85  # of the workgroups that fit at once, over all rounds, where workgroups take several parts


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a GPU kernel is launched: workgroups of exactly `lanes` lanes; `items` elements of work for each point of the
    launch range, of which a workgroup takes `tile` (0: one for each lane) at a time. Any number of workgroups gives the
    same bits; more than the work fills are idle. `shared` bytes of shared memory are requested with the launch, for the
    arrays of scope 'launch'. `min_resident` workgroups should fit on one processor (0: the device's compiler decides
    how many registers a lane gets). `max_resident` workgroups on a processor are enough (0: all that fit): more would
    compete for memory, so each takes several parts of the work one after the other."""

    lanes: int
    items: int
    shared: int = 0
    tile: int = 0
    min_resident: int = 0
    max_resident: int = 0

    def workgroups(self, points: int, most: int = 1 << 20, processors: int = 0) -> int:
        """Workgroups that give every lane of a launch over `points` something to do, at most `most`; fewer on so many
        processors where that keeps nearly all of these busy to the end."""
        needed = -(-points * self.items // (self.tile or self.lanes))
        enough = self.max_resident * processors
        if 0 < enough < needed:
            rounds = -(-needed // enough)
            needed = -(-needed // rounds) if needed >= MIN_BUSY_FRACTION * rounds * enough else needed
        return max(1, min(most, needed))


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One kernel. `ranges` are int64 variables that the caller sets per task: ('begin', 'end') for a launch,
    ('batch', 'row0', 'row1', 'col0', 'col1') for the epilogue of a tile. `definitions` gives the expression of every
    axis of kind 'value' (an integer loaded at run time and used inside an index). GPU kernels have a `geometry`."""

    name: str
    buffers: tuple[BufferParam, ...]
    scalars: tuple[ScalarParam, ...]
    ranges: tuple[str, ...]
    body: tuple[Stmt, ...]
    definitions: Mapping[str, Expr] = field(default_factory=dict)
    geometry: Geometry | None = None

    def __post_init__(self) -> None:
        if type(self.definitions) is not MappingProxyType:
            object.__setattr__(self, "definitions", MappingProxyType(dict(self.definitions)))


def pool_bytes(local: Local) -> int:
    """Bytes that an array of scope 'launch' takes."""
    return -(-local.size * local.dtype.itemsize // 16) * 16


def shared_arrays(body: tuple[Stmt, ...]) -> list[Local]:
    """The arrays that a workgroup shares, of both scopes."""
    found: list[Local] = []
    for stmt in body:
        if isinstance(stmt, Local) and stmt.scope != "lane":
            found.append(stmt)
        elif isinstance(stmt, Loop | Reduction):
            found += shared_arrays(stmt.body)
        elif isinstance(stmt, If):
            found += shared_arrays((*stmt.body, *stmt.otherwise))
    return found


def shared_bytes(kernel: Kernel) -> int:
    """Bytes of all arrays that a workgroup shares."""
    return sum([pool_bytes(array) for array in shared_arrays(kernel.body)])


LAUNCH_RANGES = ("begin", "end")
TILE_RANGES = ("batch", "row0", "row1", "col0", "col1")
