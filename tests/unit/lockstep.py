"""A GPU in NumPy: the threads of many blocks go through a kernel in step, each value an array with an entry per thread.

It looks for races: a place that one thread writes and another reads or writes without a barrier between them is an
error, be it in a block's own memory or in a buffer, where threads of different blocks may never meet. So are accesses
outside a buffer, or of neighbours that are not aligned, barriers that only some threads of a block reach, and exchanges
in which not all threads of a subgroup take part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tests.unit.gpu_harness import HostBackend
from weft import dtypes
from weft.dtypes import DType
from weft.kernels import index as ix
from weft.kernels import tiles
from weft.kernels.index import Atom, Axis, Index, Quotient
from weft.kernels.language import (
    Barrier,
    Copy,
    Expr,
    Fetch,
    Fetched,
    Fold,
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
    TileLoad,
    TileProduct,
    Update,
    Var,
)

UNKNOWN = 77  # what lies in memory before somebody writes to it
AT_ONCE = 1 << 14  # threads that go through a kernel together, in whole blocks


class Lockstep(HostBackend):
    """A device of so many blocks (None: as many as a kernel asks for), with `features` beside 'blocks'. Memory begins
    `skew` bytes behind a multiple of 64."""

    def __init__(self, blocks: int | None = None, features: tuple[str, ...] = (), skew: int = 0, **limits: int):
        super().__init__("lockstep", features, limits)
        self.blocks, self.skew = blocks, skew

    def memory(self, nbytes: int) -> np.ndarray:
        whole = super().memory(nbytes + 64 + self.skew)
        first = -whole.ctypes.data % 64 + self.skew
        return whole[first : first + nbytes]

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        values: dict[str, Any] = dict(zip(kernel.ranges, (0, extent), strict=True))
        for param, value in zip(kernel.scalars, scalars, strict=True):
            values[param.name] = param.dtype.numpy.type(value)
        threads, count = kernel.geometry.threads, self.blocks or kernel.geometry.blocks(extent)
        memory = watched(kernel, {p.name: array for p, array in zip(kernel.buffers, arrays, strict=True)}, count)
        subgroup = self.device.limits.get("subgroup", tiles.LANES) if "subgroups" in self.device.features else 0
        each = max(AT_ONCE // threads, 1)
        with np.errstate(all="ignore"):
            for first in range(0, count, each):
                numbers = np.arange(first, min(first + each, count))
                Blocks(kernel, dict(memory), dict(values), numbers, count, subgroup).run(kernel.body, np.True_)


# --- memory ---


class Watch:
    """Who wrote and who read each place of some memory last, and behind which barrier, in one launch.

    A thread is (its block) * (threads + 1) + (its number); the number `threads` means several of that block, the block
    `blocks` several blocks. A note is barriers * everybody + thread; 0 means nobody.
    """

    def __init__(self, size: int, threads: int, blocks: int):
        self.each, self.everybody = threads + 1, (threads + 1) * (blocks + 1)
        self.written, self.read = np.zeros(size, np.int64), np.zeros(size, np.int64)

    def reads(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        self.check("read", self.written, places, who, now)
        self.note(self.read, places, who, now)

    def writes(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        for notes in (self.written, self.read):
            self.check("written", notes, places, who, now)
        self.note(self.written, places, who, now)

    def check(self, what: str, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        when, other = np.divmod(notes[places], self.everybody)
        met = (when == now) | (other // self.each != who // self.each)
        bad = (when > 0) & (other != who) & met
        assert not bad.any(), (
            f"{what} before a barrier: {places[bad][:4]}, by threads {who[bad][:4]} and {other[bad][:4]}"
        )

    def note(self, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        when, other = np.divmod(notes[places], self.everybody)
        self.put(notes, places, np.where((when == now) & (other != who), self.several(who, other), who), now)
        last = notes[places] % self.everybody
        for clash in ((last != who) & (last // self.each == who // self.each), last // self.each != who // self.each):
            self.put(notes, places[clash], self.several(who[clash], last[clash]), now[clash])

    def put(self, notes: np.ndarray, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> None:
        notes[places] = now * self.everybody + who

    def several(self, who: np.ndarray, other: np.ndarray) -> np.ndarray:
        """What stands for both of two threads."""
        blocks = who // self.each
        return np.where(blocks == other // self.each, (blocks + 1) * self.each - 1, self.everybody - 1)


class Memory:
    """An array that threads share: `unit` places of its watch to an element, from `first` on."""

    def __init__(self, data: np.ndarray, watch: Watch | None, first: int = 0, unit: int = 1):
        self.data, self.watch, self.first, self.unit = data, watch, first, unit

    def reads(self, places: np.ndarray, who: np.ndarray, now: np.ndarray) -> np.ndarray:
        if self.watch is not None:
            self.watch.reads(self.first + places * self.unit, who, now)
        return self.data[places]

    def writes(self, places: np.ndarray, who: np.ndarray, now: np.ndarray, values: np.ndarray) -> None:
        if self.watch is not None:
            self.watch.writes(self.first + places * self.unit, who, now)
        values = values.astype(self.data.dtype)
        self.data[places] = values
        found = self.data[places]
        same = (found == values) | ((found != found) & (values != values))  # NaN is one value here
        assert np.all(same), f"threads write different values to one element: {places[~same][:4]}"


def stored_in(body: Iterable[Stmt]) -> Iterator[str]:
    """The names of memory that statements write."""
    for stmt in body:
        if isinstance(stmt, Store):
            yield stmt.buffer
        elif isinstance(stmt, Copy):
            yield stmt.target
        elif isinstance(stmt, Loop | Fold | If):
            yield from stored_in(stmt.body)
            yield from stored_in(stmt.otherwise) if isinstance(stmt, If) else ()


def watched(kernel: Kernel, arrays: dict[str, np.ndarray], blocks: int) -> dict[str, Memory]:
    """The buffers of a launch. Those that overlap have one watch; nobody watches where nothing is written."""
    written, found = set(stored_in(kernel.body)), {}
    rows = sorted((array.ctypes.data, array.ctypes.data + array.nbytes, name) for name, array in arrays.items())
    while rows:
        (start, end, name), *rows = rows
        names = [name]
        while rows and rows[0][0] < end:
            names.append(rows[0][2])
            end, rows = max(end, rows[0][1]), rows[1:]
        unit = min(arrays[name].itemsize for name in names)
        needed = not written.isdisjoint(names)
        watch = Watch((end - start) // unit + 1, kernel.geometry.threads, blocks) if needed else None
        for name in names:
            data = arrays[name]
            found[name] = Memory(data, watch, (data.ctypes.data - start) // unit, data.itemsize // unit)
    return found


# --- threads ---


class Blocks:
    """Some blocks: the variables of all their threads, and what they share."""

    def __init__(
        self, kernel: Kernel, memory: dict[str, Memory], values: dict, numbers: np.ndarray, count: int, subgroup: int
    ):
        self.kernel, self.memory, self.values, self.count, self.subgroup = kernel, memory, values, count, subgroup
        self.each, self.width = kernel.geometry.threads, kernel.geometry.threads * len(numbers)
        self.everyone = np.arange(self.width)
        self.block, self.thread = np.repeat(numbers, self.each), np.tile(np.arange(self.each), len(numbers))
        self.names = self.block * (self.each + 1) + self.thread  # of threads, as a `Watch` knows them
        self.now = np.ones(self.width, np.int64)  # barriers that each thread came to
        self.own: dict[str, np.ndarray] = {}  # arrays of one thread, [threads, size]
        self.shared: dict[str, int] = {}  # sizes of arrays of a block, which lie one behind the other
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
                case Update(name, value, factor):
                    old, given = self.values[name], self.value(value, mask)
                    if name in self.errors:
                        new = old + given
                        lost = (old - (new - (new - old))) + (given - (new - old))
                        self.errors[name] = np.where(mask, self.errors[name] + lost, self.errors[name])
                    elif factor is None:
                        new = FOLD[self.operations[name]](given, old)
                    else:
                        new = operation("fma", [given, self.value(factor, mask), old], value.dtype)
                    self.values[name] = np.where(mask, new, old)
                case Fold(accumulators, inner):
                    for accumulator in accumulators:
                        self.operations[accumulator.name] = accumulator.op
                        self.values[accumulator.name] = accumulator.dtype.numpy.type(accumulator.identity)
                        if accumulator.compensated:
                            self.errors[accumulator.name] = accumulator.dtype.numpy.type(0)
                    self.run(inner, mask)
                    for name in [one.name for one in accumulators if one.compensated]:
                        exact = self.values[name] + self.errors.pop(name)
                        self.values[name] = np.where(np.isfinite(exact), exact, self.values[name])
                case If(condition, inner, otherwise):
                    holds = self.value(condition, mask)
                    for part, active in ((inner, mask & holds), (otherwise, mask & ~holds)):
                        if part and np.any(active):
                            self.run(part, active)
                case Copy():
                    self.copy(stmt, mask)
                case Barrier():
                    reached = np.broadcast_to(mask, self.width).reshape(-1, self.each)
                    some = reached.any(1) & ~reached.all(1)
                    assert not some.any(), f"{self.kernel.name}: a barrier that only some threads reach"
                    self.now = self.now + mask
                case Local(name, dtype, size, scope):
                    if scope == "thread":
                        self.own[name] = np.full((self.width, size), UNKNOWN, dtype.numpy)
                    else:
                        total, blocks = size * (self.width // self.each), int(self.block[-1]) + 1
                        self.shared[name] = size
                        self.memory[name] = Memory(
                            np.full(total, UNKNOWN, dtype.numpy), Watch(total, self.each, blocks)
                        )
                case Fetch():
                    self.fetch(stmt, mask)
                case Fetched(pending):
                    self.groups.append(self.coming)
                    self.coming = []
                    while len(self.groups) > pending:
                        for target, places, who, data in self.groups.pop(0):
                            self.write(target, places, who, data)
                case TileLoad():
                    self.load_tiles(stmt, mask)
                case TileProduct():
                    self.multiply_tiles(stmt, mask)
                case Loop():
                    self.loop(stmt, mask)
                case _:
                    raise AssertionError(stmt)

    def loop(self, loop: Loop, mask: Any) -> None:
        start, stop = (b if isinstance(b, int) else self.value(b, mask) for b in (loop.start, loop.stop))
        first, step = {
            "task": (self.block, self.count),
            "threads": (self.thread, loop.width),
            "grid": (self.block * loop.width + self.thread, self.count * loop.width),
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
        if mask.ndim:
            return self.everyone if mask.all() else self.everyone[mask]
        return self.everyone if mask else self.everyone[:0]

    def of(self, value: Any, who: np.ndarray) -> np.ndarray:
        """The entries of some threads."""
        if np.ndim(value) == 0 or len(value) == 1:
            return np.full(len(who), value)
        return value if who is self.everyone else value[who]

    def store(self, buffer: str, index: Index, value: Any, mask: Any) -> None:
        who = self.active(mask)
        if len(who):
            self.write(buffer, self.places(index, who), who, self.of(value, who))

    def copy(self, copy: Copy, mask: Any) -> None:
        who, step = self.active(mask), np.arange(copy.count)
        if not len(who):
            return
        for array, index in ((copy.target, copy.at), (copy.source, copy.index)):
            places = self.places(index, who)
            assert (places % copy.count == 0).all(), f"{array}{places[:4]} by {copy.count}"
            if array not in self.own:
                self.aligned(array, places, copy.count)
        to, start = ((self.places(index, who)[:, None] + step).reshape(-1) for index in (copy.at, copy.index))
        all_of = np.repeat(who, copy.count)
        self.write(copy.target, to, all_of, self.read(copy.source, start, all_of))

    def fetch(self, fetch: Fetch, mask: Any) -> None:
        who = self.active(mask)
        at, first = self.places(fetch.at, who), self.places(fetch.index, who)
        valid = self.of(fetch.valid if isinstance(fetch.valid, int) else self.value(fetch.valid, mask), who)
        assert (at % fetch.count == 0).all() and (valid >= 0).all() and (valid <= fetch.count).all(), fetch
        if fetch.aligned:
            assert (valid == fetch.count).all(), fetch
            self.aligned(fetch.source, first, fetch.count)
        in_row = np.zeros(len(who), np.int64) if fetch.place is None else self.places(fetch.place, who)
        for i in range(fetch.count):
            wanted = in_row + i >= 0
            given = (valid > i) & wanted
            data = np.zeros(len(who), self.memory[fetch.source].data.dtype)
            data[given] = self.read(fetch.source, first[given] + i, who[given])
            data[~wanted] = UNKNOWN
            self.write(fetch.target, at + i, who, np.full(len(who), UNKNOWN, data.dtype))  # until it has arrived
            self.coming.append((fetch.target, at + i, who, data))

    def aligned(self, array: str, places: np.ndarray, count: int) -> None:
        """So many elements from each of `places` on can be moved at once."""
        data = self.memory[array].data
        wrong = (data.ctypes.data + places * data.itemsize) % min(count * data.itemsize, 16) != 0
        assert array in self.shared or not wrong.any(), f"{array}{places[wrong][:4]} is not aligned"

    def read(self, array: str, places: np.ndarray, who: np.ndarray) -> np.ndarray:
        if array in self.own:
            return self.own[array][who, self.inside(array, places, self.own[array].shape[1])]
        return self.memory[array].reads(self.shared_place(array, places, who), self.names[who], self.now[who])

    def write(self, array: str, places: np.ndarray, who: np.ndarray, values: np.ndarray) -> None:
        if array in self.own:
            self.own[array][who, self.inside(array, places, self.own[array].shape[1])] = values
            return
        self.memory[array].writes(self.shared_place(array, places, who), self.names[who], self.now[who], values)

    def shared_place(self, array: str, places: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Where elements lie in the memory that stands for a buffer, or for the arrays of all blocks."""
        if array not in self.shared:
            return self.inside(array, places, len(self.memory[array].data))
        return self.inside(array, places, self.shared[array]) + who // self.each * self.shared[array]

    def load_tiles(self, load: TileLoad, mask: Any) -> None:
        """Operands are spread over a subgroup in their order: eight elements to a thread."""
        i, j = np.indices((tiles.SIDE, tiles.SIDE))
        for lanes, start in self.subgroups(load.index, mask):
            assert 1 in (load.row, load.col) and (load.row * load.col) % 8 == 0 and start % 8 == 0, load
            tile = self.read(load.buffer, (start + i * load.row + j * load.col).reshape(-1), np.repeat(lanes, 8))
            words = np.ascontiguousarray(tile).view(np.uint32).reshape(tiles.LANES, tiles.WORDS)
            self.span(load.target, load.at, tiles.WORDS, lanes, words)

    def multiply_tiles(self, product: TileProduct, mask: Any) -> None:
        place = [tiles.place(ix.const(lane), ix.const(k)) for lane in range(tiles.LANES) for k in range(tiles.SUMS)]
        rows, columns = (np.array([index.const for index in side]) for side in zip(*place, strict=True))
        for lanes, _ in self.subgroups(ix.ZERO, mask):
            pair = []
            for name, at in ((product.a, product.a_at), (product.b, product.b_at)):
                words = self.span(name, at, tiles.WORDS, lanes)
                tile = np.ascontiguousarray(words).reshape(-1).view(product.dtype.numpy)
                pair.append(tile.reshape(tiles.SIDE, tiles.SIDE).astype(np.float32))
            added = (pair[0] @ pair[1])[rows, columns].reshape(tiles.LANES, tiles.SUMS)
            old = self.span(product.sums, product.sums_at, tiles.SUMS, lanes)
            self.span(product.sums, product.sums_at, tiles.SUMS, lanes, old + added)

    def subgroups(self, index: Index, mask: Any) -> list[tuple[np.ndarray, int]]:
        """Threads that work together, with an index that is the same in all of them."""
        starts = np.broadcast_to(self.index(index), self.width).reshape(-1, tiles.LANES)
        assert (starts == starts[:, :1]).all(), "threads differ about a tile"
        takes_part = self.whole_subgroups(mask, tiles.LANES)
        return list(zip(self.everyone.reshape(-1, tiles.LANES)[takes_part], starts[takes_part, 0], strict=True))

    def whole_subgroups(self, mask: Any, size: int) -> np.ndarray:
        """Which subgroups take part: all threads of each, or none."""
        assert size and self.each % size == 0, f"{self.kernel.name}: {self.each} threads in subgroups of {size}"
        active = np.broadcast_to(mask, self.width).reshape(-1, size)
        assert (active == active[:, :1]).all(), f"{self.kernel.name}: threads of a subgroup part"
        return active[:, 0]

    def exchanged(self, given: Expr, distance: int, mask: Any) -> np.ndarray:
        self.whole_subgroups(mask, self.subgroup)
        assert distance < self.subgroup, f"{self.kernel.name}: {distance} is too far for {self.subgroup} threads"
        return self.of(self.value(given, mask), self.everyone)[self.everyone ^ distance]

    def broadcast(self, given: Expr, number: Expr, mask: Any) -> np.ndarray:
        self.whole_subgroups(mask, self.subgroup)
        giver = np.asarray(self.value(number, mask))
        assert 0 <= giver.min() and giver.max() < self.subgroup, f"{self.kernel.name}: no thread {giver} in a subgroup"
        first = self.everyone - self.everyone % self.subgroup
        return self.of(self.value(given, mask), self.everyone)[first + giver]

    def span(self, array: str, at: Index, count: int, lanes: np.ndarray, new: np.ndarray | None = None) -> np.ndarray:
        """Neighbouring elements of an array of each thread."""
        places = np.broadcast_to(self.index(at), self.width)[lanes][:, None] + np.arange(count)
        self.inside(array, places, self.own[array].shape[1])
        if new is not None:
            self.own[array][lanes[:, None], places] = new
        return self.own[array][lanes[:, None], places]

    # --- values ---

    def places(self, index: Index, who: np.ndarray) -> np.ndarray:
        return self.of(self.index(index), who)

    @staticmethod
    def inside(buffer: str, places: np.ndarray, size: int) -> np.ndarray:
        assert places.size == 0 or (0 <= places.min() and places.max() < size), f"{buffer}[{places.max()}] of {size}"
        return places

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
                return np.asarray(self.index(index), np.int64).astype(dtype.numpy)
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
            # A number in front of all loops. Only threads with work there use it, and one of these may replace it.
            return self.memory[buffer].data[self.inside(buffer, np.array([index.const]), len(self.memory[buffer].data))]
        who = self.active(mask)
        found = self.read(buffer, self.places(index, who), who)
        found = found.astype(dtype.numpy, copy=False)
        if who is self.everyone:
            return found
        out = np.zeros(self.width, dtype.numpy)
        out[who] = found
        return out


def operation(name: str, args: list[Any], dtype: DType) -> Any:
    """One operation of the kernel language on arrays."""
    kind = dtype.numpy
    if name == "fma":
        return fused(*args, kind)
    if name in LARGE:
        needed, common, *given = args
        with np.errstate(all="ignore"):
            return np.where(needed, LARGE[name](*[np.asarray(one) for one in given]), common).astype(kind)
    if name in FUNCTIONS:
        return FUNCTIONS[name](np.asarray(args[0])).astype(kind)
    if name == "mulhi":
        return (np.asarray(args[0], np.uint64) * np.asarray(args[1], np.uint64) >> np.uint64(32)).astype(np.uint32)
    if name == "select":
        return np.where(*args).astype(kind)
    if name == "bitcast":
        return np.asarray(args[0]).view(kind)
    if name == "cast":
        given = np.asarray(args[0])
        if dtype is dtypes.bool_:
            return given != 0
        if given.dtype.kind == "f" and dtype.kind in "iu":
            low, high = dtypes.integer_bounds(dtype)
            whole = np.where(np.isnan(given), 0, np.trunc(given)).astype(np.longdouble)
            return np.where(whole >= high, high, np.where(whole <= low, low, np.clip(whole, low, high))).astype(kind)
        return given.astype(kind)
    if name in ("div", "mod") and dtype.kind in "iu":
        safe = np.where(np.asarray(args[1]) == 0, 1, args[1]).astype(kind)
        found = args[0] // safe if name == "div" else args[0] % safe
        return np.where(np.asarray(args[1]) == 0, 0, found).astype(kind)
    return np.asarray(UFUNCS[name](*args)).astype(kind)


def fused(a: Any, b: Any, c: Any, kind: np.dtype) -> np.ndarray:
    """a * b + c, rounded once: the product of float64 in two parts, of which the upper cancels against c exactly."""
    a, b, c = (np.asarray(arg, np.float64) for arg in (a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        if kind == np.float32:
            return (product + c).astype(kind)
        parts = []
        for x in (a, b):
            high = x * 134217729.0 - (x * 134217729.0 - x)
            parts += [high, x - high]
        low = parts[0] * parts[2] - product + parts[0] * parts[3] + parts[1] * parts[2] + parts[1] * parts[3]
        return np.where(np.isfinite(low), product.astype(np.longdouble) + c + low, product + c).astype(kind)


def _remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


LARGE = {
    "sin_large": lambda a: np.sin(a.astype(np.longdouble)), "cos_large": lambda a: np.cos(a.astype(np.longdouble)),
    "mod_large": _remainder, "floor_divide_large": np.floor_divide,
}  # fmt: skip
FUNCTIONS = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh,
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "exp_rounded": lambda a: np.exp2(a * np.float32(1.442695041)),
    "logistic": lambda a: 1 / (1 + np.exp(-a.astype(np.float64))),
    "round_bfloat16": lambda a: a.astype(dtypes.bfloat16.numpy), "widen": lambda a: a, "narrow": lambda a: a,
}  # fmt: skip
FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
