"""Tiles of a GPU block: which elements each thread takes, and how several neighbours move in one access.

Element `(step * threads + thread) * near + lane` of a tile belongs to `thread`; `near` neighbours lie side by side, and
`steps` such groups are in flight at once. Loads whose index runs through the neighbours one by one are `Near`: a `Copy`
brings all of them into a private array before the first is used, and stores leave through one. Buffers need not lie at
multiples of 16 bytes, which is known only when the kernel runs: whoever uses `Near` asks `aligned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.dtypes import DType, bool_, int32, int64
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    DECLARED,
    LAUNCH_RANGES,
    NATIVE,
    Copy,
    Expr,
    Fold,
    Geometry,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Var,
    pool_bytes,
    shared_arrays,
)
from weft.kernels.nest import Nest, Span
from weft.kernels.substitute import parts_of, replaced

SHORT = 31  # elements of a row that one thread folds, at most; a subgroup takes one more as they lie
BEGIN, END = Var("begin", int64), Var("end", int64)


@dataclass(frozen=True, slots=True)
class Target:
    """What a schedule knows of a device: threads of a block at most, threads of a subgroup that exchange values (0:
    they cannot), bytes that a block may share, bytes of one access, the functions that are operations of its own,
    threads that a processor holds (0: not known), and whether what is fetched into shared memory comes by the side.
    The defaults are what every GPU has."""

    threads: int = 256
    subgroup: int = 0
    shared_bytes: int = 16384
    vector_bytes: int = 16
    functions: tuple[str, ...] = ()
    resident: int = 0
    fetches: bool = False


def target_of(features: frozenset[str], limits: Mapping[str, int]) -> Target:
    """The target that a device's features and limits describe."""
    least = Target()
    return Target(
        limits.get("threads", least.threads),
        limits.get("subgroup", 32) if "subgroups" in features else 0,
        limits.get("shared_bytes", least.shared_bytes),
        limits.get("vector_bytes", least.vector_bytes),
        NATIVE if "functions" in features else (),
        limits.get("resident_threads", least.resident),
        "fetch" in features,
    )


@dataclass(frozen=True, slots=True)
class Tile:
    """`steps` times `threads` times `near` elements."""

    threads: int
    steps: int
    near: int

    @property
    def size(self) -> int:
        return self.threads * self.steps * self.near

    @property
    def each(self) -> int:
        """Elements of one thread."""
        return self.steps * self.near

    @property
    def thread(self) -> Axis:
        return Axis("thread", self.threads)

    @property
    def step(self) -> Axis:
        return Axis("step", self.steps)

    @property
    def lane(self) -> Axis:
        return Axis("near", self.near)

    def element(self, thread: Index) -> Index:
        """The element that a thread takes at (step, lane)."""
        group = ix.add(ix.scale(at(self.step), self.threads), thread)
        return ix.add(ix.scale(group, self.near), at(self.lane))

    @property
    def slot(self) -> Index:
        """Where a thread keeps what belongs to (step, lane)."""
        return ix.add(ix.scale(at(self.step), self.near), at(self.lane))

    def lanes(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return unrolled(self.lane, 0, self.near, tuple(body))

    def each_step(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return unrolled(self.step, 0, self.steps, tuple(body))


@dataclass(slots=True, eq=False)
class Near:
    """The loads and stores of a tile that go through private arrays, by neighbours where they lie side by side.

    `slot` is a thread's place for an element, `size` how many it has. Names are told apart by `count`.
    """

    tile: Tile
    slot: Index
    size: int
    names: set[str] = field(default_factory=set)

    def array(self, buffer: str, dtype: DType) -> Local:
        name, count = f"{buffer}_near", 1
        while name in self.names:
            count += 1
            name = f"{buffer}_near{count}"
        self.names.add(name)
        return Local(name, dtype, self.size, "thread")

    def moves(self, index: Index) -> bool:
        """Whether the neighbours at `index` lie side by side, from a multiple of their number on."""
        return side_by_side(index, self.tile.lane)

    def fetch(self, array: Local, load: Load) -> Copy:
        first = {self.tile.lane: ix.ZERO}
        place = ix.substitute(self.slot, first)
        return Copy(array.name, place, load.buffer, ix.substitute(load.index, first), self.tile.near, load.dtype)

    def fetch_one(self, array: Local, load: Load) -> Store:
        return Store(array.name, self.slot, load)

    def kept(self, array: Local) -> Load:
        return Load(array.name, self.slot, array.dtype)

    def leaving(self, value: Expr) -> Expr:
        """What is kept of a value until `put`. A float32 is rounded to bfloat16 only there, two neighbours at once."""
        return _before_rounding(value.args[0]) if isinstance(value, Op) and value.name == "narrow" else value

    def put(self, array: Local, store: Store) -> Copy:
        first = {self.tile.lane: ix.ZERO}
        to, place = ix.substitute(store.index, first), ix.substitute(self.slot, first)
        return Copy(store.buffer, to, array.name, place, self.tile.near, store.value.dtype)

    def put_one(self, array: Local, store: Store) -> Store:
        kept: Expr = self.kept(array)
        if array.dtype is not store.value.dtype:
            rounded = Op("round_bfloat16", (kept,), array.dtype)
            kept = Op("narrow", (rounded,), store.value.dtype)
        return Store(store.buffer, store.index, kept)


def _before_rounding(value: Expr) -> Expr:
    """A float32 that gives `value`, itself a bfloat16, when it is rounded."""
    if isinstance(value, Op) and value.name == "round_bfloat16":
        return value.args[0]
    if isinstance(value, Op) and value.name == "select":
        condition, a, b = value.args
        return replace(value, args=(condition, _before_rounding(a), _before_rounding(b)))
    return value


def pieces(copy: Copy, nbytes: int) -> list[Copy]:
    """`copy` in accesses of at most so many bytes."""
    count = min(copy.count, nbytes // copy.dtype.itemsize)
    starts = [ix.const(k) for k in range(0, copy.count, count)]
    return [replace(copy, at=ix.add(copy.at, k), index=ix.add(copy.index, k), count=count) for k in starts]


def side_by_side(index: Index, lane: Axis) -> bool:
    """Whether `index` counts along `lane` from multiples of its extent on."""
    found = lane.extent == 1
    for atom, factor in index.terms:
        if atom == lane:
            found = factor == 1
        elif factor % lane.extent or ix.depends(Index(((atom, 1),), 0), lane):
            return False
    return found and index.const % lane.extent == 0


def loads_in(values: Sequence[Expr]) -> list[Load]:
    """The loads that values are made of, those of equal place once."""
    found: dict[tuple, Load] = {}
    for part in parts_of(values):
        if isinstance(part, Load):
            found.setdefault((part.buffer, part.index, part.dtype, id(part.mask)), part)
    return list(found.values())


def gathered(load: Load, nest: Nest) -> bool:
    """Whether a load's place follows from values, not from the axes alone."""
    return any(axis.name in nest.definitions for axis in ix.axes_of(load.index))


def with_loads(values: Sequence[Expr], known: Mapping[tuple, Expr]) -> list[Expr]:
    """`values` with loads without a mask replaced, which `known` has by (buffer, index)."""
    swaps: dict[Expr, Expr] = {}
    for part in parts_of(values):
        if isinstance(part, Load) and part.mask is None and (part.buffer, part.index) in known:
            swaps[part] = known[part.buffer, part.index]
        elif isinstance(part, Op) and part.name == "widen" and part.args[0] in swaps:
            kept = swaps[part.args[0]]
            assert isinstance(kept, Load)
            swaps[part] = replace(kept, dtype=part.dtype)
    return replaced(values, swaps) if swaps else list(values)


def aligned(buffers: Sequence[tuple[str, DType]], nbytes: int) -> Expr:
    """Whether these buffers begin at multiples of `nbytes`."""
    names = [Var(name, dtype) for name, dtype in dict(buffers).items()]
    return Op("aligned", (*names, Literal(nbytes, int32)), bool_)


def is_short(extent: int) -> bool:
    """Whether a row is folded in order: by one thread, and so that its bits are the same where threads share it."""
    return extent <= SHORT


# --- small words -----------------------------------------------------------------------------------------------------


def kernel(nest: Nest, body: tuple[Stmt, ...], geometry: Geometry) -> Kernel:
    """The kernel of `body`. Where its shared arrays are too large to be declared, they come with the launch."""
    if sum([pool_bytes(array) for array in shared_arrays(body) if array.scope == "block"]) > DECLARED:
        body = tuple([replace(stmt, scope="launch") if isinstance(stmt, Local) else stmt for stmt in body])
    asked = sum([pool_bytes(array) for array in shared_arrays(body) if array.scope == "launch"])
    geometry = replace(geometry, shared=asked)
    return Kernel(nest.name, nest.buffers, nest.scalars, LAUNCH_RANGES, body, nest.definitions, geometry)


def joined(name: str, axes: tuple[Axis, ...]) -> tuple[Axis, dict[Axis, Index]]:
    """One axis that runs through `axes` in row-major order, and each of them as an index of it."""
    shape = tuple([axis.extent for axis in axes])
    flat = Axis(name, math.prod(shape), axes[-1].kind)
    if not flat.extent:
        return flat, dict.fromkeys(axes, ix.ZERO)
    return flat, dict(zip(axes, ix.delinearise(at(flat), shape), strict=True))


def serial(spans: Sequence[Span], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    for span in reversed(spans):
        body = (Loop(span.axis, span.start, span.stop, "serial", body),)
    return body


def unrolled(axis: Axis, start: int, stop: int, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """`body` for each value of a short axis; an axis of one element needs no loop."""
    if start >= stop or not body:
        return ()
    return body if axis.extent == 1 else (Loop(axis, start, stop, "unrolled", body),)


def at(axis: Axis) -> Index:
    return ix.axis_index(axis)


def times(bound: Expr | int, factor: int) -> Expr | int:
    return bound * factor if isinstance(bound, int) else scaled(bound, factor)


def scaled(bound: Expr, factor: int) -> Expr:
    return bound if factor == 1 else Op("mul", (bound, Literal(factor, int64)), int64)


def whole(name: str, *args: Expr | int) -> Op:
    """An operation on 64-bit integers."""
    return Op(name, tuple([Literal(arg, int64) if isinstance(arg, int) else arg for arg in args]), int64)


def decided(body: Sequence[Stmt], condition: Expr, truth: bool) -> tuple[Stmt, ...]:
    """`body` where it is known whether `condition` holds."""
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, If) and stmt.condition is condition:
            out += decided(stmt.body if truth else stmt.otherwise, condition, truth)
        elif isinstance(stmt, If):
            parts = [decided(part, condition, truth) for part in (stmt.body, stmt.otherwise)]
            out.append(replace(stmt, body=parts[0], otherwise=parts[1]))
        elif isinstance(stmt, Loop | Fold):
            out.append(replace(stmt, body=decided(stmt.body, condition, truth)))
        else:
            out.append(stmt)
    return tuple(out)


def number(index: Index) -> IndexValue:
    """The value of an index, in 32 bits where it fits."""
    return IndexValue(index, int64 if index.high >= 2**31 else int32)


def test(name: str, a: Expr, b: Expr | int) -> Op:
    """A comparison, or `and` of two bools."""
    return Op(name, (a, Literal(b, a.dtype) if isinstance(b, int) else b), bool_)


def named(values: Sequence[Expr]) -> tuple[list[Let], list[Expr]]:
    """All values before the first store: memory that is updated in place is read before it is written."""
    lets = [Let(f"out{k}", value) for k, value in enumerate(values)]
    return lets, [Var(let.name, let.value.dtype) for let in lets]
