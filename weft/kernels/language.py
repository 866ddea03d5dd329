"""The kernel language: a small statement language with scalar semantics, written once and printed by every renderer.

Expressions are immutable trees that may share parts; they say what a value is for *one* point of the loops around
them. Which loops run in parallel or in vector lanes is the loop's `kind`, chosen by a schedule, so nothing here is
shaped like a CPU or a GPU. Positions in memory are `Index` forms (see `kernels.index`), which keep strides visible.
`kernels.normal` turns shared parts into `Let` statements in the outermost loop where they are constant; renderers
print that normal form and decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.dtypes import DType
from weft.kernels.index import Axis, Index

# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant; `value` is a Python number or bool, `inf` and `nan` included."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A named value: a `Let`, a finished accumulator, a scalar parameter or a range parameter."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One of `OPERATIONS` applied to arguments of equal dtype (except `select`, `cast`, `bitcast`, comparisons)."""

    name: str
    args: tuple[Expr, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Function(Op):
    """The last of the operations that make up `function` of `of`: an `Op` like any other, unless a schedule for a
    device that has the function itself puts that in its place."""

    function: str
    of: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The element of `buffer` at `index` (in elements). Where `mask` is false nothing is read and the value is 0.
    On GPUs a thread's own array of bfloat16 may be read as float32."""

    buffer: str
    index: Index
    dtype: DType
    mask: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IndexValue:
    """An index as a number of an integer dtype, as iota and random counters need it."""

    index: Index
    dtype: DType


Expr = Literal | Var | Op | Load | IndexValue

# Every operation a renderer must print, by kind. Transcendental functions are not among them: `kernels.math` builds
# them from these, so that all backends agree. `max` and `min` propagate NaN; integer `div` and `mod` round down, and
# `mod` is one of integers alone.
ARITHMETIC = ("add", "sub", "mul", "div", "mod", "max", "min", "neg", "abs", "fma", "sqrt", "floor")
COMPARE = ("lt", "le", "eq", "ne")  # ordered: false with NaN, except `ne`; dtype of the result is bool
BITS = ("and", "or", "xor", "not", "shl", "shr")  # `not` of bool is logical; `shr` follows the sign of its dtype
OTHER = ("select", "cast", "bitcast", "mulhi")  # mulhi: high 32 bits of the product of two uint32
# GPU alone. exchange(value, distance): the value of the thread whose number in its subgroup differs by xor `distance`;
# broadcast(value, number): the value of the thread with this number in its subgroup. In both, all threads of the
# subgroup ask at once. aligned(buffers..., bytes): whether all these buffers, which stand as variables of their names,
# begin at multiples of so many bytes. blocks(): their number, the stride of a task loop.
THREADS = ("exchange", "broadcast", "aligned")
# Functions that some devices have. Of float32, exact to 2 ulp; exp_rounded is exp of a number that was rounded: it may
# be rounded once more, and results below the normal range may be 0; logistic is 1 / (1 + exp(-x)), exact to 4 ulp of 1.
# Exact ones between float32 and bfloat16: `round_bfloat16` (which stays float32), `widen` (a bfloat16) and `narrow` (a
# float32 that was rounded).
CASTS = ("round_bfloat16", "widen", "narrow")
NATIVE = ("exp", "log", "log1p", "expm1", "tanh", "erf", "exp_rounded", "logistic", *CASTS)
# NAME(needed, common, *args): `common`, but where `needed` is true the function of `args` that `kernels.large` has.
LARGE = ("sin_large", "cos_large", "mod_large", "floor_divide_large")
OPERATIONS = frozenset(ARITHMETIC + COMPARE + BITS + OTHER + THREADS + NATIVE + LARGE)

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

    kind: 'serial' in order, on GPUs `width` turns written out at a time; 'task' any order, split over workers or
    blocks; 'vector' in lanes of `width`; 'threads' over the `width` threads of one GPU block, thread t taking start +
    t, start + t + width, ...; 'grid' over the threads (`width` to a block) of all blocks; 'unrolled' in order, written
    out (its bounds are integers), so that arrays of a thread indexed by it stay in registers. A `Barrier` may stand
    inside 'task' and 'serial' loops, which all threads of a block go through together, inside a 'threads' loop that
    every thread goes through once, and under an `If` that is true for all threads of a block or for none. `start` and
    `stop` are integers, or expressions of scalars, ranges and outer axes; a `start` that is an expression is known to
    be a multiple of `multiple`, and the number of iterations of a vector loop to be one of its width where `whole`. One
    lane or thread has `most` iterations at most (0: what the extent of the axis allows).
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
    addition rounds off (Knuth's two-sum) is added up beside it, and joins the sum at the end."""

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
class Fold:
    """Run `body` (loops that `Update` the accumulators); afterwards each accumulator is readable as a `Var`.

    In a vector loop inside the fold each lane keeps its own partial result and a fixed tree joins the lanes at the end;
    the order of additions thus depends on extents and width only. A fold inside a vector loop folds lane by lane.
    In a 'threads' loop inside the fold each thread keeps its own partial result and reads just that afterwards: a GPU
    schedule joins them through a `Local`, in the open. A fold that is not `joined` leaves the lanes' partial results
    apart as well: all that may be done with them is to `Update` an accumulator of the fold around, lane by lane.
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
    """All threads of a GPU block wait for each other and see each other's stores. CPU schedules never emit it."""


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """An array private to one task (CPU) or shared by one block (GPU); `Load` and `Store` reach it by name.

    With scope 'thread' it is a GPU thread's own: registers, where every index is known once loops are unrolled. With
    scope 'launch' it is a block's, in the memory that is asked for with the launch: one after the other, each from a
    multiple of 16 bytes on.
    """

    name: str
    dtype: DType
    size: int
    scope: str = "block"


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """Begin to copy `count` neighbouring elements into a block's array: target[at + i] = source[index + i] for
    i < valid, 0 for the others. It has happened, for this thread, after `Fetched`; for the block after a barrier
    behind that. `at` is a multiple of `count`, which is a power of two. Where the place in `source` is known to be
    `aligned` so, too, all of `count` are valid. Those in front of a row, whose `place` in it is below 0, are nobody's:
    others may be writing them."""

    target: str
    at: Index
    source: str
    index: Index
    count: int
    valid: Expr | int
    aligned: bool = False
    place: Index | None = None  # of the first; None: all are wanted


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """`count` neighbours at once, from `source` at `index` to `target` at `at`; one of the two is a thread's own array.

    Both places are multiples of `count` elements, counted from where the array or buffer begins. `dtype` is that of
    `target`; float32 that goes into bfloat16 is rounded, to nearest with ties to even.
    """

    target: str
    at: Index
    source: str
    index: Index
    count: int
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Fetched:
    """What this thread fetched since the last such statement is a group; wait until all groups but the last `pending`
    have arrived."""

    pending: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TileLoad:
    """All threads of a subgroup load one 16 x 16 tile of 16-bit floats from a block's array, for `TileProduct`.

    Element (i, j) lies at index + i * row + j * col; one of the two steps is 1, the other a multiple of 8, and so is
    the index, which is the same in all threads. `target` is a thread's array of uint32, which gets WORDS of them from
    `at` on; which elements these are is the matrix unit's own affair. `role`: 'a', the left operand, or 'b'.
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
    """All threads of a subgroup add the product of two tiles of `dtype` to a tile of float32 sums.

    Each thread holds SUMS of these, from `sums_at` on in its array `sums`; `kernels.tiles` says which.
    """

    sums: str
    sums_at: Index
    a: str
    a_at: Index
    b: str
    b_at: Index
    dtype: DType


Stmt = Let | Store | Loop | Fold | Update | If | Barrier | Local | Copy | Fetch | Fetched | TileLoad | TileProduct


# --- kernels ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class BufferParam:
    """A pointer parameter; `written` where the kernel stores to it (loads from it then keep their place).

    `stream` is a hint that what is stored will not be read soon, so stores may bypass the caches. Such memory, and the
    first point of every task, lie at multiples of 64 bytes.
    """

    name: str
    dtype: DType
    written: bool
    stream: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ScalarParam:
    """A number handed over with the launch, such as an extent or a graph constant."""

    name: str
    dtype: DType


BUSY = 0.85  # of all turns of all blocks, at least, where blocks take turns


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a GPU kernel is launched: blocks of exactly `threads` threads; `items` elements of work for each point of the
    launch range, of which a block takes `tile` (0: one for each thread) at a time. Any number of blocks gives the same
    bits; more than the work fills are idle. `shared` bytes of memory are asked for with the launch, for a block's
    arrays that the kernel does not declare with their sizes. `beside` blocks should find room on one processor (0: that
    is left to the compiler, which deals out registers). `at_once` blocks to a processor are enough (0: all that find
    room): more would be in each other's way in memory, so each takes several parts of the work in turn."""

    threads: int
    items: int
    shared: int = 0
    tile: int = 0
    beside: int = 0
    at_once: int = 0

    def blocks(self, points: int, most: int = 1 << 20, processors: int = 0) -> int:
        """Blocks that give every thread of a launch over `points` something to do, at most `most`; fewer on so many
        processors where that keeps nearly all of these busy to the end."""
        found = -(-points * self.items // (self.tile or self.threads))
        enough = self.at_once * processors
        if 0 < enough < found:
            turns = -(-found // enough)
            found = -(-found // turns) if found >= BUSY * turns * enough else found
        return max(1, min(most, found))


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


DECLARED = 49152  # bytes of shared arrays that need not be asked for with the launch


def pool_bytes(local: Local) -> int:
    """What an array of scope 'launch' takes."""
    return -(-local.size * local.dtype.itemsize // 16) * 16


def shared_arrays(body: tuple[Stmt, ...]) -> list[Local]:
    """The arrays that a block shares, of both scopes."""
    found: list[Local] = []
    for stmt in body:
        if isinstance(stmt, Local) and stmt.scope != "thread":
            found.append(stmt)
        elif isinstance(stmt, Loop | Fold):
            found += shared_arrays(stmt.body)
        elif isinstance(stmt, If):
            found += shared_arrays((*stmt.body, *stmt.otherwise))
    return found


def shared_bytes(kernel: Kernel) -> int:
    """What all arrays that a block shares take together."""
    return sum([pool_bytes(array) for array in shared_arrays(kernel.body)])


LAUNCH_RANGES = ("begin", "end")
TILE_RANGES = ("batch", "row0", "row1", "col0", "col1")
