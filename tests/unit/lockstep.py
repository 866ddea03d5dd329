"""A GPU in NumPy: the lanes of many workgroups run a kernel in step, each value an array with an entry per lane.

It looks for races: a place that one lane writes and another reads or writes without a barrier between them is an
error, be it in a workgroup's shared memory or in a buffer, where lanes of different workgroups never synchronise. So
are accesses outside a buffer, or of vectors that are not aligned, barriers that only some lanes of a workgroup reach,
and exchanges in which not all lanes of a subgroup take part.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.unit.gpu_harness import HostBackend
from tests.unit.lockstep_memory import Memory, Watch, watched
from tests.unit.lockstep_operations import REDUCTIONS, operation
from weft.backends.cuda import backend as cuda_backend
from weft.base.dtypes import DType, int32
from weft.kernels.gpu.matrix_unit import Fragments
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Atom, Axis, Index, Quotient
from weft.kernels.ir.language import (
    AsyncCopy,
    AwaitCopies,
    Barrier,
    Copy,
    Expr,
    If,
    IndexValue,
    Kernel,
    Let,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    TileLoad,
    TileProduct,
    Update,
    Var,
)

FRAGMENTS = Fragments(cuda_backend.FEATURES.matrix_units[0])  # of devices that do not say which
UNKNOWN = 77  # the content of memory that was not written
AT_ONCE = 1 << 14  # lanes that go through a kernel together, in whole workgroups


class Lockstep(HostBackend):
    """A device that launches `workgroup_count` workgroups (None: as many as a GPU's backend does), with `features`
    besides workgroups. Memory begins `skew` bytes after a multiple of 64."""

    def __init__(
        self, workgroup_count: int | None = None, features: tuple[str, ...] = (), skew: int = 0, **limits: Any
    ):
        super().__init__("lockstep", features, limits)
        self.workgroup_count, self.skew = workgroup_count, skew

    def memory(self, nbytes: int) -> np.ndarray:
        whole = super().memory(nbytes + 64 + self.skew)
        first = -whole.ctypes.data % 64 + self.skew
        return whole[first : first + nbytes]

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        values: dict[str, Any] = dict(zip(kernel.ranges, (0, extent), strict=True))
        for param, value in zip(kernel.scalars, scalars, strict=True):
            values[param.name] = param.dtype.numpy.type(value)
        limits = self.device.limits
        count = self.workgroup_count or kernel.geometry.workgroups(extent, limits.workgroups, limits.processors)
        lanes = kernel.geometry.lanes
        memory = watched(kernel, {p.name: array for p, array in zip(kernel.buffers, arrays, strict=True)}, count)
        subgroup, units = self.device.limits.subgroup_size, self.device.features.matrix_units
        fragments = Fragments(units[0]) if units else FRAGMENTS
        each = max(AT_ONCE // lanes, 1)
        with np.errstate(all="ignore"):
            for first in range(0, count, each):
                numbers = np.arange(first, min(first + each, count))
                some = Workgroups(kernel, dict(memory), dict(values), numbers, count, subgroup, fragments)
                some.run(kernel.body, np.True_)


class Workgroups:
    """Some workgroups: the variables of all their lanes, and what they share."""

    def __init__(
        self, kernel: Kernel, memory: dict[str, Memory], values: dict, numbers: np.ndarray, count: int, subgroup: int,
        fragments: Fragments = FRAGMENTS,
    ):  # fmt: skip
        self.fragments = fragments
        self.kernel, self.memory, self.values, self.count, self.subgroup = kernel, memory, values, count, subgroup
        self.each, self.width = kernel.geometry.lanes, kernel.geometry.lanes * len(numbers)
        self.everyone = np.arange(self.width)
        self.workgroup, self.lane = np.repeat(numbers, self.each), np.tile(np.arange(self.each), len(numbers))
        self.names = self.workgroup * (self.each + 1) + self.lane  # of lanes, as a `Watch` knows them
        self.now = np.ones(self.width, np.int64)  # barriers that each lane came to
        self.own: dict[str, np.ndarray] = {}  # arrays of one lane, [lanes, size]
        self.shared: dict[str, int] = {}  # sizes of arrays of a workgroup, which lie one behind the other
        self.operations: dict[str, str] = {}
        self.errors: dict[str, Any] = {}  # what compensated sums rounded off
        self.coming: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]] = []  # fetches of the group at work
        self.groups: list[list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]] = []  # of fetches under way

    # --- statements ---

    def run(self, body: tuple[Stmt, ...], mask: Any) -> None:
        for stmt in body:
            match stmt:
                case Let(name, value):
                    self.values[name] = self.value(value, mask)
                case Store(buffer, index, value, condition):
                    active = mask if condition is None else mask & self.value(condition, mask)
                    self.store(buffer, index, self.value(value, active), active)
                case Update():
                    self.update(stmt, mask)
                case Reduction():
                    self.reduce(stmt, mask)
                case If(condition, inner, otherwise):
                    self.branch(self.value(condition, mask), inner, otherwise, mask)
                case Copy():
                    self.copy(stmt, mask)
                case Barrier():
                    self.barrier(mask)
                case Local():
                    self.allocate(stmt)
                case AsyncCopy():
                    self.fetch(stmt, mask)
                case AwaitCopies(pending):
                    self.await_copies(pending)
                case TileLoad():
                    self.load_tiles(stmt, mask)
                case TileProduct():
                    self.multiply_tiles(stmt, mask)
                case Loop():
                    self.loop(stmt, mask)
                case _:
                    raise AssertionError(stmt)

    def update(self, update: Update, mask: Any) -> None:
        name = update.name
        old, given = self.values[name], self.value(update.value, mask)
        if name in self.errors:
            new = old + given
            lost = (old - (new - (new - old))) + (given - (new - old))
            self.errors[name] = np.where(mask, self.errors[name] + lost, self.errors[name])
        elif update.factor is None:
            new = REDUCTIONS[self.operations[name]](given, old)
        else:
            new = operation("fma", [given, self.value(update.factor, mask), old], update.value.dtype)
        self.values[name] = np.where(mask, new, old)

    def reduce(self, reduction: Reduction, mask: Any) -> None:
        for accumulator in reduction.accumulators:
            self.operations[accumulator.name] = accumulator.op
            self.values[accumulator.name] = accumulator.dtype.numpy.type(accumulator.identity)
            if accumulator.compensated:
                self.errors[accumulator.name] = accumulator.dtype.numpy.type(0)
        self.run(reduction.body, mask)
        for name in [one.name for one in reduction.accumulators if one.compensated]:
            exact = self.values[name] + self.errors.pop(name)
            self.values[name] = np.where(np.isfinite(exact), exact, self.values[name])

    def branch(self, holds: Any, inner: tuple[Stmt, ...], otherwise: tuple[Stmt, ...], mask: Any) -> None:
        for part, active in ((inner, mask & holds), (otherwise, mask & ~holds)):
            if part and np.any(active):
                self.run(part, active)

    def barrier(self, mask: Any) -> None:
        reached = np.broadcast_to(mask, self.width).reshape(-1, self.each)
        some = reached.any(1) & ~reached.all(1)
        assert not some.any(), f"{self.kernel.name}: a barrier that only some lanes reach"
        self.now = self.now + mask

    def allocate(self, local: Local) -> None:
        if local.scope == "lane":
            self.own[local.name] = np.full((self.width, local.size), UNKNOWN, local.dtype.numpy)
            return
        total, workgroups = local.size * (self.width // self.each), int(self.workgroup[-1]) + 1
        self.shared[local.name] = local.size
        data = np.full(total, UNKNOWN, local.dtype.numpy)
        self.memory[local.name] = Memory(data, Watch(total, self.each, workgroups))

    def await_copies(self, pending: int) -> None:
        self.groups.append(self.coming)
        self.coming = []
        while len(self.groups) > pending:
            for target, positions, who, data in self.groups.pop(0):
                self.write(target, positions, who, data)

    def loop(self, loop: Loop, mask: Any) -> None:
        start, stop = (b if isinstance(b, int) else self.value(b, mask) for b in (loop.start, loop.stop))
        first, step = {
            "task": (self.workgroup, self.count),
            "lanes": (self.lane, loop.width),
            "grid": (self.workgroup * loop.width + self.lane, self.count * loop.width),
        }.get(loop.kind, (0, 1))
        position = start + first
        while True:
            active = mask & (position < stop)
            if not np.any(active):
                break
            self.values[loop.axis.name] = position
            self.run(loop.body, active)
            position = position + step

    def active(self, mask: Any) -> np.ndarray:
        if mask.all():
            return self.everyone
        return self.everyone[:0] if mask.size == 1 else self.everyone[mask]  # one for all: of a number before all loops

    def of(self, value: Any, who: np.ndarray) -> np.ndarray:
        """The entries of some lanes."""
        if np.ndim(value) == 0 or len(value) == 1:
            return np.full(len(who), value)
        return value if who is self.everyone else value[who]

    def store(self, buffer: str, index: Index, value: Any, mask: Any) -> None:
        who = self.active(mask)
        if len(who):
            self.write(buffer, self.positions(index, who), who, self.of(value, who))

    def copy(self, copy: Copy, mask: Any) -> None:
        who, step = self.active(mask), np.arange(copy.count)
        if not len(who):
            return
        for array, index in ((copy.target, copy.at), (copy.source, copy.index)):
            positions = self.positions(index, who)
            assert (positions % copy.count == 0).all(), f"{array}{positions[:4]} by {copy.count}"
            if array not in self.own:
                self.aligned(array, positions, copy.count)
        to, start = ((self.positions(index, who)[:, None] + step).reshape(-1) for index in (copy.at, copy.index))
        all_of = np.repeat(who, copy.count)
        self.write(copy.target, to, all_of, self.read(copy.source, start, all_of))

    def fetch(self, fetch: AsyncCopy, mask: Any) -> None:
        who = self.active(mask)
        at, first = self.positions(fetch.at, who), self.positions(fetch.index, who)
        valid = self.of(fetch.valid if isinstance(fetch.valid, int) else self.value(fetch.valid, mask), who)
        assert (at % fetch.count == 0).all() and (valid >= 0).all() and (valid <= fetch.count).all(), fetch
        if fetch.aligned:
            assert (valid == fetch.count).all(), fetch
            self.aligned(fetch.source, first, fetch.count)
        in_row = np.zeros(len(who), np.int64) if fetch.position is None else self.positions(fetch.position, who)
        for i in range(fetch.count):
            wanted = in_row + i >= 0
            given = (valid > i) & wanted
            data = np.zeros(len(who), self.memory[fetch.source].data.dtype)
            data[given] = self.read(fetch.source, first[given] + i, who[given])
            data[~wanted] = UNKNOWN
            self.write(fetch.target, at + i, who, np.full(len(who), UNKNOWN, data.dtype))  # until it has arrived
            self.coming.append((fetch.target, at + i, who, data))

    def aligned(self, array: str, positions: np.ndarray, count: int) -> None:
        """So many elements from each of `positions` on can be moved at once."""
        data = self.memory[array].data
        wrong = (data.ctypes.data + positions * data.itemsize) % min(count * data.itemsize, 16) != 0
        assert array in self.shared or not wrong.any(), f"{array}{positions[wrong][:4]} is not aligned"

    def read(self, array: str, positions: np.ndarray, who: np.ndarray) -> np.ndarray:
        if array in self.own:
            return self.own[array][who, self.inside(array, positions, self.own[array].shape[1])]
        return self.memory[array].reads(self.shared_position(array, positions, who), self.names[who], self.now[who])

    def write(self, array: str, positions: np.ndarray, who: np.ndarray, values: np.ndarray) -> None:
        if array in self.own:
            self.own[array][who, self.inside(array, positions, self.own[array].shape[1])] = values
            return
        self.memory[array].writes(self.shared_position(array, positions, who), self.names[who], self.now[who], values)

    def shared_position(self, array: str, positions: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Where elements lie in the memory that stands for a buffer, or for the arrays of all workgroups."""
        if array not in self.shared:
            return self.inside(array, positions, len(self.memory[array].data))
        return self.inside(array, positions, self.shared[array]) + who // self.each * self.shared[array]

    def load_tiles(self, load: TileLoad, mask: Any) -> None:
        """Operands are spread over a subgroup in their order, as many elements to each lane, as often as the unit has
        them."""
        unit, copies = self.fragments, self.fragments.unit.operand_copies
        i, j = np.indices((unit.side, unit.side))
        for lanes, start in self.subgroups(load.index, mask):
            assert 1 in (load.row, load.col) and (load.row * load.col) % 8 == 0 and start % 8 == 0, load
            readers = np.repeat(lanes, unit.side * unit.side // unit.lanes)
            tile = self.read(load.buffer, (start + i * load.row + j * load.col).reshape(-1), readers)
            words = np.ascontiguousarray(tile).view(np.uint32).reshape(unit.lanes // copies, unit.words)
            self.span(load.target, load.at, unit.words, lanes, np.tile(words, (copies, 1)))

    def multiply_tiles(self, product: TileProduct, mask: Any) -> None:
        unit = self.fragments
        place = [unit.position(ix.const(lane), ix.const(k)) for lane in range(unit.lanes) for k in range(unit.sums)]
        rows, columns = (np.array([index.const for index in side]) for side in zip(*place, strict=True))
        holders = unit.lanes // unit.unit.operand_copies
        for lanes, _ in self.subgroups(ix.ZERO, mask):
            pair = []
            for name, at in ((product.a, product.a_at), (product.b, product.b_at)):
                words = self.span(name, at, unit.words, lanes)[:holders]
                tile = np.ascontiguousarray(words).reshape(-1).view(product.dtype.numpy)
                pair.append(tile.reshape(unit.side, unit.side).astype(np.float32))
            added = (pair[0] @ pair[1])[rows, columns].reshape(unit.lanes, unit.sums)
            old = self.span(product.sums, product.sums_at, unit.sums, lanes)
            self.span(product.sums, product.sums_at, unit.sums, lanes, old + added)

    def subgroups(self, index: Index, mask: Any) -> list[tuple[np.ndarray, int]]:
        """Threads that work together, with an index that is the same in all of them."""
        count = self.fragments.lanes
        starts = np.broadcast_to(self.index(index), self.width).reshape(-1, count)
        assert (starts == starts[:, :1]).all(), "lanes differ about a tile"
        takes_part = self.whole_subgroups(mask, count)
        return list(zip(self.everyone.reshape(-1, count)[takes_part], starts[takes_part, 0], strict=True))

    def whole_subgroups(self, mask: Any, size: int) -> np.ndarray:
        """Which subgroups take part: all lanes of each, or none."""
        assert size and self.each % size == 0, f"{self.kernel.name}: {self.each} lanes in subgroups of {size}"
        active = np.broadcast_to(mask, self.width).reshape(-1, size)
        assert (active == active[:, :1]).all(), f"{self.kernel.name}: lanes of a subgroup diverge"
        return active[:, 0]

    def exchanged(self, given: Expr, distance: int, mask: Any) -> np.ndarray:
        self.whole_subgroups(mask, self.subgroup)
        assert distance < self.subgroup, f"{self.kernel.name}: {distance} is too far for {self.subgroup} lanes"
        return self.of(self.value(given, mask), self.everyone)[self.everyone ^ distance]

    def broadcast(self, given: Expr, number: Expr, mask: Any) -> np.ndarray:
        self.whole_subgroups(mask, self.subgroup)
        giver = np.asarray(self.value(number, mask))
        assert 0 <= giver.min() and giver.max() < self.subgroup, f"{self.kernel.name}: no lane {giver} in a subgroup"
        first = self.everyone - self.everyone % self.subgroup
        return self.of(self.value(given, mask), self.everyone)[first + giver]

    def span(self, array: str, at: Index, count: int, lanes: np.ndarray, new: np.ndarray | None = None) -> np.ndarray:
        """Contiguous elements of an array of each lane."""
        positions = np.broadcast_to(self.index(at), self.width)[lanes][:, None] + np.arange(count)
        self.inside(array, positions, self.own[array].shape[1])
        if new is not None:
            self.own[array][lanes[:, None], positions] = new
        return self.own[array][lanes[:, None], positions]

    # --- values ---

    def positions(self, index: Index, who: np.ndarray) -> np.ndarray:
        return self.of(self.index(index), who)

    @staticmethod
    def inside(buffer: str, positions: np.ndarray, size: int) -> np.ndarray:
        assert positions.size == 0 or (0 <= positions.min() and positions.max() < size), (
            f"{buffer}[{positions.max()}] of {size}"
        )
        return positions

    def index(self, index: Index) -> Any:
        total: Any = index.const
        for atom, factor in index.terms:
            total = total + factor * self.atom(atom)
        return total

    def atom(self, atom: Atom) -> Any:
        if isinstance(atom, Axis):
            value = self.values[atom.name]
            return value.astype(np.int64) if isinstance(value, np.ndarray | np.generic) else value
        inside = self.index(atom.value)
        return inside // atom.divisor if isinstance(atom, Quotient) else inside % atom.divisor

    def value(self, expr: Expr, mask: Any) -> Any:
        match expr:
            case Literal(value, dtype):
                return dtype.numpy.type(value)
            case Var(name):
                return self.values[name]
            case IndexValue(index, dtype):
                position = np.asarray(self.index(index), np.int64)
                fits = dtype is not int32 or (-(2**31) <= position.min() and position.max() < 2**31)
                assert fits, f"{self.kernel.name}: a position beyond 32 bits"
                return position.astype(dtype.numpy)
            case Load(buffer, index, dtype, condition):
                return self.load(
                    buffer, index, dtype, mask if condition is None else mask & self.value(condition, mask)
                )
            case Op("aligned", (*buffers, nbytes)):
                return np.all([self.memory[buffer.name].data.ctypes.data % nbytes.value == 0 for buffer in buffers])
            case Op("exchange", (given, distance)):
                return self.exchanged(given, distance.value, mask)
            case Op("broadcast", (given, number)):
                return self.broadcast(given, number, mask)
            case Op(name, args, dtype):
                return operation(name, [self.value(arg, mask) for arg in args], dtype)
        raise AssertionError(expr)

    def load(self, buffer: str, index: Index, dtype: DType, mask: Any) -> np.ndarray:
        if mask is np.True_ and not index.terms and buffer not in self.own and buffer not in self.shared:
            # A number in front of all loops. Only lanes with work there use it, and one of these may replace it.
            return self.memory[buffer].data[self.inside(buffer, np.array([index.const]), len(self.memory[buffer].data))]
        who = self.active(mask)
        found = self.read(buffer, self.positions(index, who), who)
        found = found.astype(dtype.numpy, copy=False)
        if who is self.everyone:
            return found
        out = np.zeros(self.width, dtype.numpy)
        out[who] = found
        return out
