"""A GPU in Python: runs kernels in normal form thread by thread, each thread a generator that stops at barriers.

Between barriers the threads of a block run one after the other, upwards or downwards; a kernel whose result depends on
that has a race. Threads that meet at different barriers and accesses outside a buffer are errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.unit.gpu_harness import HostBackend
from weft import dtypes
from weft.dtypes import DType
from weft.kernels.index import Atom, Axis, Index, Quotient
from weft.kernels.language import (
    Barrier,
    Expr,
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
    Store,
    Update,
    Var,
)


class Emulator(HostBackend):
    """A device of so many blocks (None: as many as a kernel asks for) whose threads run upwards or downwards."""

    def __init__(self, blocks: int | None = None, downwards: bool = False):
        super().__init__("emulator")
        self.blocks, self.downwards = blocks, downwards

    def launch(self, kernel: Kernel, arrays: list[np.ndarray], scalars: tuple, extent: int) -> None:
        assert kernel.geometry is not None
        values = dict(zip(kernel.ranges, (0, extent), strict=True))
        for param, value in zip(kernel.scalars, scalars, strict=True):
            values[param.name] = param.dtype.numpy.type(value)
        buffers = {param.name: array for param, array in zip(kernel.buffers, arrays, strict=True)}
        count = self.blocks or kernel.geometry.blocks(extent)
        with np.errstate(all="ignore"):
            for block in reversed(range(count)) if self.downwards else range(count):
                self.block(kernel, dict(buffers), values, block, count)

    def block(self, kernel: Kernel, buffers: dict, values: dict, block: int, blocks: int) -> None:
        for stmt in kernel.body:
            if isinstance(stmt, Local):
                buffers[stmt.name] = np.full(stmt.size, 77, stmt.dtype.numpy)
        numbers = range(kernel.geometry.threads)
        threads = [Thread(dict(values), buffers, n, block, blocks).run(kernel.body) for n in numbers]
        waiting = threads[::-1] if self.downwards else threads
        while waiting:
            reached = [next(thread, None) for thread in waiting]
            assert all(barrier is reached[0] for barrier in reached), f"{kernel.name}: threads part at a barrier"
            waiting = waiting if reached[0] is not None else []


class Thread:
    """One thread: its variables, the memory it sees, its number and its block's."""

    def __init__(self, values: dict[str, Any], buffers: dict[str, np.ndarray], number: int, block: int, blocks: int):
        self.values, self.buffers, self.number, self.block, self.blocks = values, buffers, number, block, blocks
        self.operations: dict[str, str] = {}

    def run(self, body: tuple) -> Iterator[Barrier]:
        values = self.values
        for stmt in body:
            match stmt:
                case Let(name, value):
                    values[name] = self.value(value)
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
                case If(condition, inner):
                    if self.value(condition):
                        yield from self.run(inner)
                case Barrier():
                    yield stmt
                case Loop():
                    yield from self.loop(stmt)

    def loop(self, loop: Loop) -> Iterator[Barrier]:
        start, stop = (int(b if isinstance(b, int) else self.value(b)) for b in (loop.start, loop.stop))
        first, step = {
            "serial": (0, 1),
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
                return self.buffers[buffer][self.inside(buffer, index)]
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


FOLD = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
UFUNCS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum,
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "mod": lambda a, b: a - b * np.floor(a / b),
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "not": np.invert, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
