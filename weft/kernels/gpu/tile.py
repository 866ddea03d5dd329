"""Tiles of a workgroup: which elements each lane takes, and how several contiguous elements move in one access.

Element `(step * lanes + lane) * vector_width + k` of a tile belongs to `lane`; `vector_width` elements are contiguous,
and `steps` such vectors are in flight at once. Loads whose index runs through a vector one by one go through
`VectorAccess`: a `Copy` brings all of them into a private array before the first is used, and stores leave through one.
Buffers need not lie at multiples of 16 bytes, which is known only when the kernel runs: the user of `VectorAccess`
tests `statements.are_aligned`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.base.dtypes import DType
from weft.kernels.gpu.statements import unroll
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import Copy, Expr, Load, Local, Op, Stmt, Store
from weft.kernels.ir.nest import Nest
from weft.kernels.ir.rewrite import parts_of, replace_parts


@dataclass(frozen=True, slots=True)
class Tile:
    """`steps` times `lanes` times `vector_width` elements."""

    lanes: int
    steps: int
    vector_width: int

    @property
    def size(self) -> int:
        return self.lanes * self.steps * self.vector_width

    @property
    def per_lane(self) -> int:
        """Elements of one lane."""
        return self.steps * self.vector_width

    @property
    def lane(self) -> Axis:
        return Axis("thread", self.lanes)

    @property
    def step(self) -> Axis:
        return Axis("step", self.steps)

    @property
    def vector_axis(self) -> Axis:
        """The elements of one vector."""
        return Axis("near", self.vector_width)

    def element(self, lane: Index) -> Index:
        """The element that a lane takes at (step, position in the vector)."""
        return (self.step * self.lanes + lane) * self.vector_width + self.vector_axis

    @property
    def slot(self) -> Index:
        """Where a lane keeps what belongs to (step, position in the vector)."""
        return self.step * self.vector_width + self.vector_axis

    def first(self, index: Index) -> Index:
        """`index` at the first element of a vector."""
        return ix.substitute(index, {self.vector_axis: ix.ZERO})

    def unroll_vector(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return unroll(self.vector_axis, 0, self.vector_width, tuple(body))

    def unroll_steps(self, body: Sequence[Stmt]) -> tuple[Stmt, ...]:
        return unroll(self.step, 0, self.steps, tuple(body))

    def is_vector_access(self, access: Load | Store) -> bool:
        """Whether an access goes through a vector of this tile one by one, and may go as one."""
        return self.vector_width > 1 and access.mask is None and is_contiguous(access.index, self.vector_axis)


@dataclass(slots=True, eq=False)
class VectorAccess:
    """The loads and stores of a tile that go through private arrays, in vectors where elements are contiguous.

    `slot` is a lane's slot for an element, `size` how many it has. Arrays of equal buffers get numbered `names`.
    """

    tile: Tile
    slot: Index
    size: int
    names: set[str] = field(default_factory=set)

    def array(self, buffer: str, dtype: DType) -> Local:
        """A new private array for elements of `buffer`."""
        name, count = f"{buffer}_near", 1
        while name in self.names:
            count += 1
            name = f"{buffer}_near{count}"
        self.names.add(name)
        return Local(name, dtype, self.size, "lane")

    def is_contiguous(self, index: Index) -> bool:
        """Whether the vector at `index` is contiguous, from a multiple of its width on."""
        return is_contiguous(index, self.tile.vector_axis)

    def load_vector(self, array: Local, load: Load) -> Copy:
        slot, source = self.tile.first(self.slot), self.tile.first(load.index)
        return Copy(array.name, slot, load.buffer, source, self.tile.vector_width, load.dtype)

    def load_element(self, array: Local, load: Load) -> Store:
        return Store(array.name, self.slot, load)

    def read(self, array: Local) -> Load:
        """What a private array holds of an element."""
        return Load(array.name, self.slot, array.dtype)

    def defer_rounding(self, value: Expr) -> Expr:
        """What is kept of a value until `store_vector`: a float32 is rounded to bfloat16 only there, two at once."""
        return _before_rounding(value.args[0]) if isinstance(value, Op) and value.name == "narrow" else value

    def store_vector(self, array: Local, store: Store) -> Copy:
        target, slot = self.tile.first(store.index), self.tile.first(self.slot)
        return Copy(store.buffer, target, array.name, slot, self.tile.vector_width, store.value.dtype)

    def store_element(self, array: Local, store: Store) -> Store:
        value: Expr = self.read(array)
        if array.dtype is not store.value.dtype:
            rounded = Op("round_bfloat16", (value,), array.dtype)
            value = Op("narrow", (rounded,), store.value.dtype)
        return Store(store.buffer, store.index, value)


def _before_rounding(value: Expr) -> Expr:
    """A float32 that gives `value`, itself a bfloat16, when it is rounded."""
    if isinstance(value, Op) and value.name == "round_bfloat16":
        return value.args[0]
    if isinstance(value, Op) and value.name == "select":
        condition, a, b = value.args
        return replace(value, args=(condition, _before_rounding(a), _before_rounding(b)))
    return value


def split_copy(copy: Copy, nbytes: int) -> list[Copy]:
    """`copy` in accesses of at most so many bytes."""
    count = min(copy.count, nbytes // copy.dtype.itemsize)
    return [
        replace(copy, at=copy.at + start, index=copy.index + start, count=count)
        for start in range(0, copy.count, count)
    ]


def is_contiguous(index: Index, axis: Axis) -> bool:
    """Whether `index` counts along `axis` one by one, from multiples of its extent on."""
    found = axis.extent == 1
    for atom, factor in index.terms:
        if atom == axis:
            found = factor == 1
        elif factor % axis.extent or ix.depends(Index(((atom, 1),), 0), axis):
            return False
    return found and index.const % axis.extent == 0


# --- loads -----------------------------------------------------------------------------------------------------------


def loads_in(values: Sequence[Expr]) -> list[Load]:
    """The loads that values are made of, those of equal index once."""
    found: dict[tuple, Load] = {}
    for part in parts_of(values):
        if isinstance(part, Load):
            found.setdefault((part.buffer, part.index, part.dtype, id(part.mask)), part)
    return list(found.values())


def is_gathered(load: Load, nest: Nest) -> bool:
    """Whether a load's index follows from values, not from the axes alone."""
    return any(axis.name in nest.definitions for axis in ix.axes_of(load.index))


def replace_loads(values: Sequence[Expr], known: Mapping[tuple, Expr]) -> list[Expr]:
    """`values` with loads without a mask replaced, which `known` has by (buffer, index)."""
    swaps: dict[Expr, Expr] = {}
    for part in parts_of(values):
        if isinstance(part, Load) and part.mask is None and (part.buffer, part.index) in known:
            swaps[part] = known[part.buffer, part.index]
        elif isinstance(part, Op) and part.name == "widen" and part.args[0] in swaps:
            kept = swaps[part.args[0]]
            assert isinstance(kept, Load)
            swaps[part] = replace(kept, dtype=part.dtype)
    return replace_parts(values, swaps) if swaps else list(values)
