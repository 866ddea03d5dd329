"""A GPU in Python: runs kernels in normal form thread by thread, each thread a generator that stops at barriers.

Between barriers the threads of a block run one after the other, upwards or downwards; a kernel whose result depends on
that has a race. Threads that meet at different barriers and accesses outside a buffer are errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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


class Emulator(HostBackend):
    """A device of so many blocks (None: as many as a kernel asks for) whose threads run upwards or downwards."""

    def __init__(
        self, blocks: int | None = None, downwards: bool = False, features: tuple[str, ...] = (), **limits: int
    ):
        super().__init__("emulator", features, limits)
        self.blocks, self.downwards = blocks, downwards

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        values = dict(zip(kernel.ranges, (0, extent), strict=True))
        for param, value in zip(kernel.scalars, scalars, strict=True):
            values[param.name] = param.dtype.numpy.type(value)
        buffers = {param.name: array for param, array in zip(kernel.buffers, arrays, strict=True)}
        values.update({name: np.int64(array.ctypes.data) for name, array in buffers.items()})
        count = self.blocks or kernel.geometry.blocks(extent)
        with np.errstate(all="ignore"):
            for block in reversed(range(count)) if self.downwards else range(count):
                self.block(kernel, dict(buffers), values, block, count)

    def block(self, kernel: Kernel, buffers: dict, values: dict, block: int, blocks: int) -> None:
        for stmt in kernel.body:
            if isinstance(stmt, Local) and stmt.scope in ("block", "launch"):
                buffers[stmt.name] = np.full(stmt.size, 77, stmt.dtype.numpy)
        count = kernel.geometry.threads
        threads = [Thread(dict(values), dict(buffers), n, block, blocks) for n in range(count)]
        groups = [Subgroup(threads[n : n + tiles.LANES], kernel.body) for n in range(0, count, tiles.LANES)]
        waiting = groups[::-1] if self.downwards else groups
        while waiting:
            reached = [stop for group in waiting for stop in group.advance(self.downwards)]
            assert all(barrier is reached[0] for barrier in reached), f"{kernel.name}: threads part at a barrier"
            waiting = waiting if reached[0] is not None else []


class Subgroup:
    """Threads that work on tiles together and exchange values, and come to such a statement at different times."""

    def __init__(self, threads: list[Thread], body: tuple[Stmt, ...]):
        self.threads = threads
        self.runs = [thread.run(body) for thread in threads]

    def advance(self, downwards: bool) -> list[Stmt | None]:
        """Run all threads to the next barrier or to the end."""
        order = range(len(self.runs))
        while True:
            stops = [next(self.runs[n], None) for n in (reversed(order) if downwards else order)]
            if not isinstance(stops[0], TileLoad | TileProduct | Let):
                return stops
            assert all(stop is stops[0] for stop in stops) and len(stops) == tiles.LANES, "threads of a subgroup part"
            if isinstance(stops[0], Let):
                self.exchange()
            else:
                self.load(stops[0]) if isinstance(stops[0], TileLoad) else self.multiply(stops[0])

    def exchange(self) -> None:
        given = [thread.offered for thread in self.threads]
        for number, thread in enumerate(self.threads):
            thread.received = given[number ^ thread.distance]

    def load(self, load: TileLoad) -> None:
        """Operands are spread in their order, rows of `a`, columns of `b`: eight elements to a thread."""
        first, (index,) = self.threads[0], {thread.index(load.index) for thread in self.threads}
        assert 1 in (load.row, load.col) and (load.row * load.col) % 8 == 0 and index % 8 == 0, load
        i, j = np.indices((tiles.SIDE, tiles.SIDE))
        tile = first.buffers[load.buffer][index + i * load.row + j * load.col]
        words = np.ascontiguousarray(tile).reshape(-1).view(np.uint32).reshape(tiles.LANES, tiles.WORDS)
        for thread, part in zip(self.threads, words, strict=True):
            thread.span(load.target, load.at, tiles.WORDS)[:] = part

    def multiply(self, product: TileProduct) -> None:
        def operand(name: str, at: Index) -> np.ndarray:
            words = np.concatenate([thread.span(name, at, tiles.WORDS) for thread in self.threads])
            return words.view(product.dtype.numpy).reshape(tiles.SIDE, tiles.SIDE).astype(np.float32)

        result = operand(product.a, product.a_at) @ operand(product.b, product.b_at)
        for lane, thread in enumerate(self.threads):
            places = [tiles.place(ix.const(lane), ix.const(k)) for k in range(tiles.SUMS)]
            held = [result[row.const, col.const] for row, col in places]
            thread.span(product.sums, product.sums_at, tiles.SUMS)[:] += np.array(held, np.float32)


class Thread:
    """One thread: its variables, the memory it sees, its number and its block's."""

    offered: Any = None  # what this thread gives to an exchange, with whom, and what it gets
    distance = 0
    received: Any = None

    def __init__(self, values: dict[str, Any], buffers: dict[str, np.ndarray], number: int, block: int, blocks: int):
        self.values, self.buffers, self.number, self.block, self.blocks = values, buffers, number, block, blocks
        self.operations: dict[str, str] = {}
        self.coming: list[tuple[np.ndarray, int, np.ndarray]] = []  # fetches of the group that is not complete
        self.groups: list[list[tuple[np.ndarray, int, np.ndarray]]] = []  # of fetches that have not arrived

    def run(self, body: tuple) -> Iterator[Stmt]:
        values = self.values
        for stmt in body:
            match stmt:
                case Let(name, Op("exchange", (value, distance))):
                    self.offered, self.distance = self.value(value), int(self.value(distance))
                    yield stmt
                    values[name] = self.received
                case Let(name, value):
                    values[name] = self.value(value)
                case Copy(target, at, source, index, count):
                    to, first = self.inside(target, at), self.inside(source, index)
                    assert to % count == 0 and first % count == 0, f"{source}[{first}] to {target}[{to}] by {count}"
                    last = self.buffers[source][first : first + count]
                    self.buffers[target][to : to + count] = last
                case Store(buffer, index, value, mask):
                    if mask is None or self.value(mask):
                        self.buffers[buffer][self.inside(buffer, index)] = self.value(value)
                case Update(name, value, None):
                    values[name] = FOLD[self.operations[name]](self.value(value), values[name])
                case Update(name, value, factor):
                    values[name] = operation("fma", [self.value(value), self.value(factor), values[name]], value.dtype)
                case Fold(accumulators, inner):
                    for accumulator in accumulators:
                        self.operations[accumulator.name] = accumulator.op
                        values[accumulator.name] = accumulator.dtype.numpy.type(accumulator.identity)
                    yield from self.run(inner)
                case If(condition, inner, otherwise):
                    yield from self.run(inner if self.value(condition) else otherwise)
                case Barrier() | TileLoad() | TileProduct():
                    yield stmt
                case Local(name, dtype, size, "thread"):
                    self.buffers[name] = np.full(size, 55, dtype.numpy)
                case Fetch():
                    self.fetch(stmt)
                case Fetched(pending):
                    self.groups.append(self.coming)
                    self.coming = []
                    while len(self.groups) > pending:
                        for target, at, values_ in self.groups.pop(0):
                            target[at : at + len(values_)] = values_
                case Loop():
                    yield from self.loop(stmt)

    def fetch(self, fetch: Fetch) -> None:
        at, first = self.index(fetch.at), self.index(fetch.index)
        valid = int(fetch.valid if isinstance(fetch.valid, int) else self.value(fetch.valid))
        source, target = self.buffers[fetch.source], self.buffers[fetch.target]
        assert at % fetch.count == 0 and 0 <= at <= len(target) - fetch.count and 0 <= valid <= fetch.count, fetch
        assert valid == 0 or 0 <= first <= len(source) - valid, f"{fetch.source}[{first}] of {len(source)}"
        values = np.zeros(fetch.count, source.dtype)
        values[:valid] = source[first : first + valid] if valid else 0
        self.coming.append((target, at, values))

    def span(self, array: str, at: Index, count: int) -> np.ndarray:
        """Neighbouring elements of an array of this thread."""
        first = self.index(at)
        assert 0 <= first <= len(self.buffers[array]) - count, f"{array}[{first}] of {len(self.buffers[array])}"
        return self.buffers[array][first : first + count]

    def loop(self, loop: Loop) -> Iterator[Stmt]:
        start, stop = (int(b if isinstance(b, int) else self.value(b)) for b in (loop.start, loop.stop))
        first, step = {
            "serial": (0, 1),
            "unrolled": (0, 1),
            "task": (self.block, self.blocks),
            "threads": (self.number, loop.width),
            "grid": (self.block * loop.width + self.number, self.blocks * loop.width),
        }[loop.kind]
        for position in range(start + first, stop, step):
            self.values[loop.axis.name] = position
            yield from self.run(loop.body)

    def inside(self, buffer: str, index: Index) -> int:
        place = self.index(index)
        assert 0 <= place < len(self.buffers[buffer]), f"{buffer}[{place}] of {len(self.buffers[buffer])}"
        return place

    def index(self, index: Index) -> int:
        return index.const + sum(factor * self.atom(atom) for atom, factor in index.terms)

    def atom(self, atom: Atom) -> int:
        if isinstance(atom, Axis):
            return int(self.values[atom.name])
        inside = self.index(atom.value)
        return inside // atom.divisor if isinstance(atom, Quotient) else inside % atom.divisor

    def value(self, expr: Expr) -> Any:
        match expr:
            case Literal(value, dtype):
                return dtype.numpy.type(value)
            case Var(name):
                return self.values[name]
            case IndexValue(index, dtype):
                return np.int64(self.index(index)).astype(dtype.numpy)
            case Load(buffer, index, dtype, mask):
                if mask is not None and not self.value(mask):
                    return dtype.numpy.type(0)
                return self.buffers[buffer][self.inside(buffer, index)].astype(dtype.numpy)
            case Op("blocks", (), dtype):
                return dtype.numpy.type(self.blocks)
            case Op(name, args, dtype):
                return operation(name, [self.value(arg) for arg in args], dtype)
        raise AssertionError(expr)


def operation(name: str, args: list[Any], dtype: DType) -> Any:
    """One operation of the kernel language on NumPy scalars."""
    target = dtype.numpy.type
    if name == "fma":
        a, b, c = (np.longdouble(arg) for arg in args)
        return target(a * b + c)
    if name == "mulhi":
        return np.uint32(int(args[0]) * int(args[1]) >> 32)
    if name == "aligned":
        return all(address % args[-1] == 0 for address in args[:-1])
    if name in FUNCTIONS:
        return target(FUNCTIONS[name](args[0]))
    if name == "select":
        return args[1] if args[0] else args[2]
    if name == "bitcast":
        return np.asarray(args[0]).view(dtype.numpy)[()]
    if name == "cast":
        if args[0].dtype.kind == "f" and dtype.kind in "iu":
            limits = np.iinfo(dtype.numpy)
            clamped = 0.0 if np.isnan(args[0]) else max(min(float(args[0]), 2.0**64), -(2.0**64))
            return target(max(min(int(clamped), limits.max), limits.min))
        return target(args[0] != 0) if dtype is dtypes.bool_ else target(args[0])
    if name in ("div", "mod") and dtype.kind in "iu":
        if int(args[1]) == 0:
            return target(0)
        return (args[0] // args[1]) if name == "div" else args[0] % args[1]
    return target(UFUNCS[name](*args))


FUNCTIONS = {
    "exp": np.exp, "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "tanh": np.tanh, "erf": math.erf,
    "exp_rounded": lambda a: np.exp2(a * np.float32(1.442695041)),
    "tanh_plus_1": lambda a: 2 / (1 + np.exp(-2 * np.float64(a))),
    "round_bfloat16": lambda a: a.astype(dtypes.bfloat16.numpy), "widen": lambda a: a, "narrow": lambda a: a,
}  # fmt: skip
FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "mod": lambda a, b: a - b * np.floor(a / b),
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
