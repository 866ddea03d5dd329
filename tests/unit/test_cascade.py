"""Long sums in blocks: no accumulator of a kernel takes more than CHAIN additions one by one, on any device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import weft
from tests.unit.lockstep import Lockstep
from weft.base import dtypes
from weft.kernels.cpu import schedule as cpu_schedule
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    Accumulator,
    BufferParam,
    If,
    Kernel,
    Literal,
    Load,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.nest import Nest, Span
from weft.kernels.math.summation import cascade, longest_chain
from weft.kernels.numerics import CHAIN

PLAIN = {}
HOPPER = {
    "features": ("subgroup_operations", "native_functions", "async_copies"),
    "workgroup_size": 1024,
    "shared_bytes": 232448,
}
TARGETS = pytest.mark.parametrize("target", [PLAIN, HOPPER], ids=["plain", "hopper"])
BOUND = 24 * 2.0**-24


def reductions(body: tuple[Stmt, ...]) -> Iterator[Reduction]:
    for stmt in body:
        if isinstance(stmt, Reduction):
            yield stmt
        for inner in ("body", "otherwise"):
            yield from reductions(getattr(stmt, inner, ()))


def rounds(accumulator: Accumulator) -> bool:
    return accumulator.op == "sum" and accumulator.dtype.kind == "f" and not accumulator.compensated


def assert_short_chains(kernel: Kernel) -> None:
    for reduction in reductions(kernel.body):
        if any(map(rounds, reduction.accumulators)):
            at_most = CHAIN + 1  # a segment is one short loop, or the one sum of its blocks
            assert longest_chain(reduction.body) <= at_most, (
                f"{kernel.name}: {[acc.name for acc in reduction.accumulators]}"
            )


def a_sum(side: str, extent: int, *, stop: Var | int | None = None, start: Var | int = 0) -> Nest:
    """out[i] = sum over r of x[...], `r` in lanes or points in lanes."""
    points, axis = Axis("i", 3000), Axis("r", extent, "reduce")
    load = Load("x", axis_index(axis), dtypes.float32)
    stage = ((Accumulator("total", "sum", dtypes.float32), load),)
    store = Store("out", axis_index(points), Var("total", dtypes.float32))
    buffers = (BufferParam("x", dtypes.float32, False), BufferParam("out", dtypes.float32, True))
    span = Span(axis, start, extent if stop is None else stop)
    return Nest("a_sum", points, side, None, (span,), (stage,), (store,), (), (), buffers, (), {})


@pytest.mark.parametrize("side", ["inner", "points"])
@pytest.mark.parametrize("extent", [31, 32, 64, 65, 2048, 2049, 100003, 1 << 40])
def test_every_schedule_has_short_chains(side, extent):
    for nest in (a_sum(side, extent), a_sum(side, extent, stop=Var("n", dtypes.int64))):
        assert_short_chains(cpu_schedule.schedule(nest))
        for target in (
            gpu_schedule.Target(),
            gpu_schedule.Target(workgroup_size=1024, subgroup_size=32, shared_bytes=232448),
        ):
            assert_short_chains(gpu_schedule.schedule(nest, target))


def test_short_sums_stay_as_they_are():
    reduction = Reduction(
        (Accumulator("a", "sum", dtypes.float32),), (Loop(Axis("r", CHAIN), 0, CHAIN, "serial", (one(),)),)
    )
    assert cascade((reduction,)) == (reduction,)
    for kind, dtype in (("sum", dtypes.int64), ("max", dtypes.float32)):
        exact = Reduction((Accumulator("a", kind, dtype),), (Loop(Axis("r", 9999), 0, 9999, "serial", (one(dtype),)),))
        assert cascade((exact,)) == (exact,)


def one(dtype: dtypes.DType = dtypes.float32) -> Update:
    return Update("a", Literal(1, dtype))


@pytest.mark.parametrize("first", [0, 1, 5, 64, 130])
@pytest.mark.parametrize("cut", [64, 128, 640])
def test_a_loop_in_two_parts_has_the_workgroups_of_one(first, cut):
    """A GPU schedule keeps the first rounds of a row in shared memory: they are a loop of their own."""
    axis = Axis("r", 1000)

    def blocks(*loops: Loop) -> list[tuple[int, int]]:
        (reduction,) = cascade((Reduction((Accumulator("a", "sum", dtypes.float32),), loops),))
        return [pair for loop in reduction.body for pair in _ranges(loop)]

    def part(start: int, stop: int) -> Loop:
        return Loop(axis, start, stop, "serial", (one(),))

    whole = blocks(part(first, 1000))
    assert whole[0][0] == first and whole[-1][1] == 1000 and all(b - a <= CHAIN for a, b in whole)
    assert cut <= first or blocks(part(first, cut), part(cut, 1000)) == whole


def _ranges(stmt: Stmt) -> list[tuple[int, int]]:
    """First and last iteration of every block of a loop over blocks, or of a block that stands alone."""
    if isinstance(stmt, Update):
        return []
    if isinstance(stmt, Reduction):
        (inner,) = stmt.body
        return [(inner.start, inner.stop)]
    (reduction, _) = stmt.body
    (inner,) = reduction.body

    def number(value, block: int) -> int:
        if isinstance(value, Op):
            args = [number(arg, block) for arg in value.args]
            return {"mul": lambda a, b: a * b, "add": lambda a, b: a + b, "min": min, "max": max}[value.name](*args)
        return value.value if isinstance(value, Literal) else block if not isinstance(value, int) else value

    return [(number(inner.start, k), number(inner.stop, k)) for k in range(stmt.start, stmt.stop)]


CASES = {
    "all": lambda x: x.sum(),
    "rows": lambda x: x.reshape(10, -1).sum(1),
    "many rows": lambda x: x.reshape(300, -1).sum(1),
    "columns": lambda x: x.reshape(-1, 4).sum(0),
    "wide columns": lambda x: x.reshape(-1, 600).sum(0),
    "outer columns": lambda x: x.reshape(2, -1, 6).sum(1),
    "softmax": lambda x: x.reshape(3, -1).softmax(1) * (x.numel() // 30),
    "variance": lambda x: (x + weft.arange(x.numel()) % 2).var(correction=0) / 2.5,
    "norm": lambda x: x.reshape(6, -1).norm(dim=1) ** 2 * 10,
    "mean": lambda x: x.mean(),
}
VALUES = {"softmax": 0.1, "variance": 0.1, "mean": 0.1}


@TARGETS
@pytest.mark.parametrize("name", CASES)
def test_on_a_gpu(name, target):
    """Terms that are all 0.1: what is found is a tenth of their number."""
    device, count = Lockstep(**target), 240000
    with weft.device(device.device):
        x = weft.tensor(np.full(count, 0.1, np.float32))
        found = CASES[name](x).numpy().astype(np.float64)
    expected = VALUES.get(name, float(np.float32(0.1)) * count / found.size)
    np.testing.assert_allclose(found[()] if name != "softmax" else found[:, :9], expected, rtol=2 * BOUND)
    assert device.kernels
    for kernel in device.kernels:
        assert_short_chains(kernel)


@TARGETS
def test_segments_and_running_sums_on_a_gpu(target):
    device, lengths = Lockstep(**target), [0, 1, 64, 65, 700, 9000, 3]
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    expected = np.array(lengths) * float(np.float32(0.1))
    with weft.device(device.device):
        for width in ((), (5,), (64,)):
            x = weft.tensor(np.full((int(pointers[-1]), *width), 0.1, np.float32))
            found = weft.segment_reduce(x, weft.tensor(pointers)).numpy().reshape(len(lengths), -1)
            np.testing.assert_allclose(found, np.tile(expected, (found.shape[1], 1)).T, rtol=BOUND)
        for shape, axis in (((1, 20000), 1), ((3000, 40), 0), ((20, 500, 90), 1)):
            x = weft.tensor(np.full(shape, 0.1, np.float32))
            found = np.moveaxis(x.cumsum(axis).numpy(), axis, -1).reshape(-1, shape[axis])
            exact = float(np.float32(0.1)) * np.arange(1, shape[axis] + 1)
            np.testing.assert_allclose(found, np.tile(exact, (len(found), 1)), rtol=2 * BOUND)
        index = weft.tensor(np.zeros(3000, np.int64))
        table = weft.scatter_sum(weft.tensor(np.full((3000, 8), 0.1, np.float32)), index, 2).numpy()
        np.testing.assert_allclose(table[0], 3000 * float(np.float32(0.1)), rtol=BOUND)
    for kernel in device.kernels:
        assert_short_chains(kernel)


def test_long_segments_are_asked_for_first():
    """One branch, where all segments are short."""
    start = Op("cast", (Load("x", axis_index(Axis("i", 3000)), dtypes.float32),), dtypes.int64)
    body = cpu_schedule.schedule(
        a_sum("points", 100000, start=start, stop=Op("add", (start, start), dtypes.int64))
    ).body
    (reduction,) = [reduction for reduction in reductions(body) if reduction.accumulators[0].name == "total"]
    first, others = reduction.body
    assert isinstance(first, If) and isinstance(others, If) and not reduction.accumulators[0].compensated
    assert isinstance(first.body[0], Loop) and any(
        acc.compensated for more in reductions(others.body) for acc in more.accumulators
    )
