"""A GPU in NumPy: all threads of a block go through a kernel in step, each value an array with an entry per thread.

Much faster than `emulator`, thread by thread, and it looks for races itself: a place that one thread writes and another
reads or writes without a barrier between them is an error, as are accesses outside a buffer, barriers that only some
threads reach and fetches that nobody waited for.
"""

from __future__ import annotations

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

NOBODY, SEVERAL = -1, -2


class Lockstep(HostBackend):
    """A device of so many blocks (None: as many as a kernel asks for), with `features` beside 'blocks'."""

    def __init__(self, blocks: int | None = None, features: tuple[str, ...] = (), **limits: int):
        super().__init__("lockstep", features, limits)
        self.blocks = blocks

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        values: dict[str, Any] = dict(zip(kernel.ranges, (0, extent), strict=True))
        for param, value in zip(kernel.scalars, scalars, strict=True):
            values[param.name] = param.dtype.numpy.type(value)
        count = self.blocks or kernel.geometry.blocks(extent)
        buffers = {param.name: array for param, array in zip(kernel.buffers, arrays, strict=True)}
        with np.errstate(all="ignore"):
            for block in range(count):
                Block(kernel, buffers, dict(values), block, count).run(kernel.body, np.True_)


class Memory:
    """An array that threads share, with who wrote and who read each element last, and behind which barrier."""

    def __init__(self, data: np.ndarray, shared: bool):
        self.data, self.watched = data, shared
        if shared:
            self.written, self.read = (np.full(len(data), -1, np.int64) for _ in range(2))
            self.writer, self.reader = (np.full(len(data), NOBODY, np.int64) for _ in range(2))

    def reads(self, places: np.ndarray, threads: np.ndarray, now: int) -> np.ndarray:
        if self.watched:
            fresh = (self.written[places] == now) & (self.writer[places] != threads)
            assert not fresh.any(), f"read before a barrier: {places[fresh][:4]}"
            self.note(self.read, self.reader, places, threads, now)
        return self.data[places]

    def writes(self, places: np.ndarray, threads: np.ndarray, now: int, values: Any) -> None:
        if self.watched:
            assert len(np.unique(places)) == len(places) or np.size(values) == 1, "two threads write one element"
            for when, who in ((self.written, self.writer), (self.read, self.reader)):
                others = (when[places] == now) & (who[places] != threads)
                assert not others.any(), f"written before a barrier: {places[others][:4]}"
            self.note(self.written, self.writer, places, threads, now)
        self.data[places] = values

    def note(self, when: np.ndarray, who: np.ndarray, places: np.ndarray, threads: np.ndarray, now: int) -> None:
        first = when[places] != now
        who[places[first]] = threads[first]
        when[places] = now
        who[places[who[places] != threads]] = SEVERAL


class Block:
    """One block: the variables of all its threads, and what they share."""

    def __init__(self, kernel: Kernel, buffers: dict, values: dict, number: int, count: int):
        self.kernel, self.values, self.number, self.count = kernel, values, number, count
        self.width = kernel.geometry.threads
        self.threads = np.arange(self.width)
        self.memory: dict[str, Memory] = {name: Memory(data, False) for name, data in buffers.items()}
        self.own: dict[str, np.ndarray] = {}  # arrays of one thread, [threads, size]
        self.operations: dict[str, str] = {}
        self.coming: list[tuple[Memory, np.ndarray, np.ndarray, np.ndarray]] = []  # fetches of the group at work
        self.groups: list[list[tuple[Memory, np.ndarray, np.ndarray, np.ndarray]]] = []  # of fetches under way
        self.now = 0  # barriers passed

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
                    if factor is None:
                        new = FOLD[self.operations[name]](given, old)
                    else:
                        new = operation("fma", [given, self.value(factor, mask), old], value.dtype)
                    self.values[name] = np.where(mask, new, old)
                case Fold(accumulators, inner):
                    for accumulator in accumulators:
                        self.operations[accumulator.name] = accumulator.op
                        self.values[accumulator.name] = accumulator.dtype.numpy.type(accumulator.identity)
                    self.run(inner, mask)
                case If(condition, inner, otherwise):
                    holds = self.value(condition, mask)
                    for part, active in ((inner, mask & holds), (otherwise, mask & ~holds)):
                        if part and np.any(active):
                            self.run(part, active)
                case Copy(target, at, source, index, count, dtype):
                    for i in range(count):
                        more = ix.const(i)
                        self.store(target, ix.add(at, more), self.load(source, ix.add(index, more), dtype, mask), mask)
                case Barrier():
                    assert np.all(mask), f"{self.kernel.name}: a barrier that only some threads reach"
                    self.now += 1
                case Local(name, dtype, size, scope):
                    if scope == "thread":
                        self.own[name] = np.full((self.width, size), 55, dtype.numpy)
                    else:
                        self.memory[name] = Memory(np.full(size, 77, dtype.numpy), True)
                case Fetch():
                    self.fetch(stmt, mask)
                case Fetched(pending):
                    self.groups.append(self.coming)
                    self.coming = []
                    while len(self.groups) > pending:
                        for memory, places, who, data in self.groups.pop(0):
                            memory.writes(places, who, self.now, data)
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
            "task": (self.number, self.count),
            "threads": (self.threads, loop.width),
            "grid": (self.number * loop.width + self.threads, self.count * loop.width),
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
        return self.threads[np.broadcast_to(mask, self.width)]

    def store(self, buffer: str, index: Index, value: Any, mask: Any) -> None:
        who = self.active(mask)
        if not len(who):
            return
        places, values = self.places(index, who), np.broadcast_to(value, self.width)[who]
        if buffer in self.own:
            self.own[buffer][who, self.inside(buffer, places, self.own[buffer].shape[1])] = values
        else:
            memory = self.memory[buffer]
            same = values[:1] if (values == values[0]).all() else values
            memory.writes(self.inside(buffer, places, len(memory.data)), who, self.now, same)

    def fetch(self, fetch: Fetch, mask: Any) -> None:
        who = self.active(mask)
        at, first = self.places(fetch.at, who), self.places(fetch.index, who)
        valid = np.broadcast_to(
            fetch.valid if isinstance(fetch.valid, int) else self.value(fetch.valid, mask), self.width
        )
        source, target = self.memory[fetch.source], self.memory[fetch.target]
        assert (at % fetch.count == 0).all() and (valid >= 0).all() and (valid <= fetch.count).all(), fetch
        for i in range(fetch.count):
            given = valid[who] > i
            data = np.zeros(len(who), source.data.dtype)
            data[given] = source.data[self.inside(fetch.source, first[given] + i, len(source.data))]
            self.coming.append((target, self.inside(fetch.target, at + i, len(target.data)), who, data))

    def load_tiles(self, load: TileLoad, mask: Any) -> None:
        """Operands are spread over a subgroup in their order: eight elements to a thread."""
        i, j = np.indices((tiles.SIDE, tiles.SIDE))
        for lanes, start in self.subgroups(load.index, mask):
            assert 1 in (load.row, load.col) and (load.row * load.col) % 8 == 0 and start % 8 == 0, load
            places = (start + i * load.row + j * load.col).reshape(-1)
            memory = self.memory[load.buffer]
            self.inside(load.buffer, places, len(memory.data))
            tile = memory.reads(places, np.repeat(lanes, 8), self.now)
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
        assert np.all(mask) and self.width % tiles.LANES == 0, "threads part at a tile"
        starts = np.broadcast_to(self.index(index), self.width).reshape(-1, tiles.LANES)
        assert (starts == starts[:, :1]).all(), "threads differ about a tile"
        return list(zip(self.threads.reshape(-1, tiles.LANES), starts[:, 0], strict=True))

    def span(self, array: str, at: Index, count: int, lanes: np.ndarray, new: np.ndarray | None = None) -> np.ndarray:
        """Neighbouring elements of an array of each thread."""
        places = np.broadcast_to(self.index(at), self.width)[lanes][:, None] + np.arange(count)
        self.inside(array, places, self.own[array].shape[1])
        if new is not None:
            self.own[array][lanes[:, None], places] = new
        return self.own[array][lanes[:, None], places]

    # --- values ---

    def places(self, index: Index, who: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.index(index), self.width)[who]

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
            case Op("aligned"):
                return np.bool_(False)
            case Op("exchange", (given, distance)):
                values = np.broadcast_to(self.value(given, mask), self.width)
                return values[self.threads ^ int(self.value(distance, mask))]
            case Op(name, args, dtype):
                return operation(name, [self.value(arg, mask) for arg in args], dtype)
        raise AssertionError(expr)

    def load(self, buffer: str, index: Index, dtype: DType, mask: Any) -> np.ndarray:
        who, out = self.active(mask), np.zeros(self.width, dtype.numpy)
        places = self.places(index, who)
        if buffer in self.own:
            out[who] = self.own[buffer][who, self.inside(buffer, places, self.own[buffer].shape[1])]
        else:
            memory = self.memory[buffer]
            out[who] = memory.reads(self.inside(buffer, places, len(memory.data)), who, self.now)
        return out


def operation(name: str, args: list[Any], dtype: DType) -> Any:
    """One operation of the kernel language on arrays."""
    kind = dtype.numpy
    if name == "fma":
        a, b, c = (np.asarray(arg, np.longdouble) for arg in args)
        return (a * b + c).astype(kind)
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


FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "mod": lambda a, b: a - b * np.floor(a / b),
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
