"""The GPU schedule on an emulator: right results, the same bits for any number of workgroups, no races, no atomics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.gpu_harness import HostBackend
from tests.unit.lockstep import Lockstep
from tests.unit.programs import PROGRAMS, assert_equal_results, expected_results, results
from weft.base import dtypes
from weft.base.tuning import Tuning
from weft.kernels import numerics
from weft.kernels.gpu import rows as gpu_rows
from weft.kernels.gpu import schedule as gpu_schedule
from weft.kernels.gpu.tile import Tile
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, axis_index
from weft.kernels.ir.language import (
    Accumulator,
    Barrier,
    BufferParam,
    Copy,
    If,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Var,
)
from weft.kernels.ir.nest import Nest, Span
from weft.kernels.ir.normalize import normalise

PLAIN = {}
HOPPER = {
    "features": ("subgroup_operations", "native_functions", "async_copies"),
    "workgroup_size": 1024,
    "shared_bytes": 232448,
}
SMALL_TILES = Tuning(max_single_elements=40, workgroup_size=32, min_transposed_elements=40)
TARGETS = pytest.mark.parametrize("device", [PLAIN, HOPPER], ids=["plain", "hopper"])


@pytest.fixture(autouse=True)
def tiles_for_small_arrays(monkeypatch):
    """What is computed element by element goes in tiles, as large arrays do."""
    monkeypatch.setattr(HostBackend, "tuning", SMALL_TILES)


def emulated(name: str, **options) -> list[np.ndarray]:
    return results(PROGRAMS[name], Lockstep(**options).device, small=True)


@TARGETS
@pytest.mark.parametrize("name", PROGRAMS)
def test_agrees_with_the_reference(name, device):
    assert_equal_results(emulated(name, **device), expected_results(name, small=True))


@TARGETS
@pytest.mark.parametrize("name", ["softmax_long", "layer_norm", "layer_norm_short", "embedding", "split_sum", "adam"])
def test_the_number_of_workgroups_changes_nothing(name, device):
    first = emulated(name, **device)
    for other in (emulated(name, workgroup_count=1, **device), emulated(name, workgroup_count=3, **device)):
        for a, b in zip(first, other, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("shared_bytes", [1024, 4700, 65536])
@pytest.mark.parametrize("name", ["softmax_long", "layer_norm", "cross_entropy"])
def test_rows_too_long_for_registers(name, shared_bytes, monkeypatch):
    """They are kept in shared memory, or read again where that is too small, or one and the other."""
    monkeypatch.setattr(numerics, "MAX_REGISTER_ELEMENTS", 0)
    monkeypatch.setattr(numerics, "MAX_ELEMENTS_IN_FLIGHT", 1)
    device = Lockstep(shared_bytes=shared_bytes)
    assert_equal_results(results(PROGRAMS[name], device.device, small=True), expected_results(name, small=True))
    assert any(kernel.geometry.shared for kernel in device.kernels) == (shared_bytes > 1024)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [37, 901])
@pytest.mark.parametrize("shared_bytes", [2048, 3200, 65536])
def test_long_rows_that_begin_anywhere(dtype, columns, shared_bytes, monkeypatch):
    """They move in pieces of 16 bytes all the same, whatever of them is kept, and the first and last elements are not
    mixed with those of other rows; one of a class is found wherever it lies."""
    monkeypatch.setattr(numerics, "MAX_REGISTER_ELEMENTS", 0)
    monkeypatch.setattr(numerics, "ROW_ELEMENTS_PER_LANE", 64)
    monkeypatch.setattr(numerics, "MAX_ELEMENTS_IN_FLIGHT", 1)
    itemsize, classes = dtypes.by_name(dtype).itemsize, np.array([0, columns - 1, columns // 2, -100, 5])
    x = np.random.default_rng(0).standard_normal((5, columns)).astype(dtypes.by_name(dtype).numpy)
    device = Lockstep(shared_bytes=shared_bytes, features=("native_functions",), resident_lanes=64)

    def found(workgroups: int | None) -> list[np.ndarray]:
        device.workgroup_count = workgroups
        with weft.device(device.device):
            logits = weft.tensor(x).requires_grad_()
            loss = F.cross_entropy(logits, weft.tensor(classes), reduction="sum")
            loss.backward()
            weft.eval(loss, logits.grad)
            return [tensor.detach().numpy().astype(np.float64) for tensor in (loss, logits.grad)]

    loss, gradient = found(None)
    e = np.exp(x.astype(np.float64))
    y = e / e.sum(1, keepdims=True)
    known = classes >= 0
    expected = (y - (np.arange(columns) == classes[:, None])) * known[:, None]
    np.testing.assert_allclose(loss, -np.log(y[known, classes[known]]).sum(), 1e-6 if itemsize == 4 else 4e-3)
    np.testing.assert_allclose(gradient, expected, rtol=5e-7 if itemsize == 4 else 4.1e-3, atol=1e-8)
    for again in (found(1), found(3)):
        assert [array.tobytes() for array in again] == [loss.tobytes(), gradient.tobytes()]
    (kernel,) = {kernel.name: kernel for kernel in device.kernels if kernel.name.startswith("rows_exp")}.values()
    written = {buffer.name for buffer in kernel.buffers if buffer.written}
    moved = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Copy)]
    assert {copy.count for copy in moved if copy.target in written} == {16 // itemsize}
    reductions = [stmt for stmt in statements(kernel.body) if isinstance(stmt, Reduction)]
    folded = [part.name for stmt in reductions for part in stmt.accumulators]
    assert len([name for name in folded if name.endswith("_part")]) == 2, (
        "the largest and the sum; the class is read where it lies"
    )
    assert bool(kernel.geometry.shared) == (shared_bytes > 2048) and kernel.geometry.workgroups(5) == 5


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for stmt in body:
        yield stmt
        for inner in ("body", "otherwise"):
            yield from statements(getattr(stmt, inner, ()))


def row_sums(rows: int, cols: int, inner: tuple[int, ...] = ()) -> Nest:
    """out[row] = sum of x[row], over one inner axis or over several."""
    shape = inner or (cols,)
    row, axes = Axis("row", rows), [Axis(f"r{k}", extent, "reduce") for k, extent in enumerate(shape)]
    place = ix.linearise((axis_index(row), *map(axis_index, axes)), (rows, *shape))
    stage = ((Accumulator("total", "sum", dtypes.float32), Load("x", place, dtypes.float32)),)
    store = Store("out", axis_index(row), Var("total", dtypes.float32))
    params = (BufferParam("x", dtypes.float32, False), BufferParam("out", dtypes.float32, True))
    spans = tuple(Span(axis, 0, axis.extent) for axis in axes)
    return Nest("row_sums", row, "inner", None, spans, (stage,), (store,), (), (), params, (), {})


def without_barriers(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    kept = [stmt for stmt in body if not isinstance(stmt, Barrier)]
    return tuple(
        replace(stmt, body=without_barriers(stmt.body)) if isinstance(stmt, Loop | Reduction | If) else stmt
        for stmt in kept
    )


def launched(kernel, x: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros(rows, np.float32)
    Lockstep(features=("subgroup_operations",)).launch(normalise(kernel), [x.ravel(), out], (), rows)
    return out


@pytest.mark.parametrize("subgroup", [0, 32])
@pytest.mark.parametrize("cols", [0, 1, 32, 33, 64, 100, 256, 257, 700, 1024, 1026, 2100, 8200, 8449])
def test_rows_of_every_length(cols, subgroup):
    """Rows of one thread, of a subgroup, of a block; with a last step that is cut off; too long for registers."""
    x = np.random.default_rng(0).standard_normal((3, cols)).astype(np.float32)
    kernel = gpu_schedule.schedule(row_sums(3, cols), gpu_schedule.Target(subgroup_size=subgroup))
    np.testing.assert_allclose(launched(kernel, x, 3), x.astype(float).sum(1), 1e-4, 1e-4)


@pytest.mark.parametrize("cols", [512, 2048, 8449])
def test_buffers_that_are_not_aligned_give_the_same_bits(cols):
    x = np.random.default_rng(0).standard_normal(3 * cols + 1).astype(np.float32)
    kernel = gpu_schedule.schedule(row_sums(3, cols), gpu_schedule.Target(subgroup_size=32))
    first, moved = x[:-1].copy(), x[1:].copy()
    shifted = np.concatenate([x[:1], first])[1:]  # the same numbers at another address
    places = sorted({array.ctypes.data % 16 for array in (first, shifted)})
    assert len(places) == 2, "both should not lie at the same place of 16 bytes"
    assert launched(kernel, first, 3).tobytes() == launched(kernel, shifted, 3).tobytes()
    assert launched(kernel, moved, 3).tobytes() != launched(kernel, first, 3).tobytes()


def test_the_tile_of_a_row_follows_from_its_length():
    hopper = gpu_schedule.Target(1024, 32)
    assert [gpu_rows.tile_for(n, hopper) for n in (64, 768, 4096, 16384, 50257)] == [
        Tile(32, 1, 2), Tile(32, 6, 4), Tile(256, 4, 4), Tile(1024, 4, 4), Tile(1024, 50, 1)
    ]  # fmt: skip
    assert gpu_rows.tile_for(4096, gpu_schedule.Target()) == Tile(256, 4, 4)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("cols", [2048, 8192])
def test_reductions_of_one_stage_are_joined_in_the_order_of_one(cols, count):
    """Several sums share exchanges between threads; each has the bits of its own tree. So have those beside them."""

    def program(make):
        x = make(3, cols)
        return [*[(x * (0.3 + k)).sum(1) for k in range(count)], x.amax(1), (x > 0).sum(1)]

    device = Lockstep(**HOPPER)
    *sums, largest, positive = results(program, device.device)
    assert len(device.kernels) == 1
    x = np.random.default_rng(0).standard_normal((3, cols)).astype(np.float32)
    tile = gpu_rows.tile_for(cols, gpu_schedule.Target(1024, 32))
    for k, found in enumerate(sums):
        values = (x * np.float32(0.3 + k)).reshape(3, tile.steps, tile.lanes, tile.vector_width).swapaxes(1, 2)
        parts = np.zeros((3, tile.lanes), np.float32)
        for value in values.reshape(3, tile.lanes, -1).transpose(2, 0, 1):
            parts = value + parts
        groups = _halved(parts.reshape(3, -1, 32))
        assert found.tobytes() == _halved(groups).tobytes()
    assert (largest == x.max(1)).all() and (positive == (x > 0).sum(1)).all()


@pytest.mark.parametrize("subgroup", [0, 8, 16, 32, 64])
@pytest.mark.parametrize("cols", [2, 3, 31, 32])
def test_short_rows_have_the_bits_of_one_thread_beside_column_sums(cols, subgroup):
    def program(make):
        x = make(300, cols)
        row = (x * 0.7).sum(1)
        return [row, (x - row[:, None]).exp().sum(1), (x * row[:, None]).sum(0), x.amax(1)]

    device = Lockstep(
        features=("subgroup_operations",) if subgroup else (), **({"subgroup_sizes": (subgroup,)} if subgroup else {})
    )
    together = results(program, device.device)
    names = [kernel.name for kernel in device.kernels]
    assert any("rows" in name and "part_sum" in name for name in names), names
    alone = [results(lambda make, k=k: [program(make)[k]], device.device)[0] for k in range(4)]
    for found, expected in zip(together, alone, strict=True):
        assert found.tobytes() == expected.tobytes()
    if cols > numerics.MAX_SERIAL_ROW:
        return
    x = np.random.default_rng(0).standard_normal((300, cols)).astype(np.float32)
    row = np.zeros(300, np.float32)
    for column in (x * np.float32(0.7)).T:
        row += column
    assert together[0].tobytes() == row.tobytes()


@pytest.mark.parametrize("function", [lambda x: (x - 3.0).exp(), lambda x: x.tanh() + 1, lambda x: 1 - x.tanh()])
def test_what_a_function_is_of_may_lie_in_memory(function, monkeypatch):
    """The bits of a value do not depend on whether another was stored on the way."""
    x = np.random.default_rng(0).standard_normal((4, 300)).astype(np.float32)
    with weft.device(Lockstep(**HOPPER).device):
        whole = function(weft.tensor(x))
        settled = []
        for name in ("__sub__", "tanh"):
            monkeypatch.setattr(weft.Tensor, name, _evaluated(getattr(weft.Tensor, name), settled))
        stepwise = function(weft.tensor(x))
        assert settled and whole.numpy().tobytes() == stepwise.numpy().tobytes()


def _evaluated(method, settled: list):
    def evaluated(*args):
        settled.append(method(*args))
        weft.eval(settled[-1])
        return settled[-1]

    return evaluated


def _halved(parts: np.ndarray) -> np.ndarray:
    """The sum along the last axis, by halves."""
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        parts = parts[..., :half] + parts[..., half:]
    return parts[..., 0]


def test_workgroups_that_store_beside_column_sums_alternate(monkeypatch):
    monkeypatch.setattr(HostBackend, "tuning", Tuning())

    def shapes(stores):
        device = Lockstep(**HOPPER)

        def program(make):
            x = make(512, 4096)
            return [x.relu(), x.relu().sum(0)] if stores else [x.sum(0)]

        results(program, device.device)
        (found,) = [kernel.geometry for kernel in device.kernels if "part_sum" in kernel.name]
        return found

    geometry = shapes(True)
    tasks = geometry.workgroups(256)
    assert tasks == 256 * geometry.items // geometry.lanes > 264
    assert geometry.workgroups(256, processors=132) == 256, "each takes as many iterations"
    assert geometry.workgroups(256, processors=160) == tasks, "the last iteration would leave most of them idle"
    assert geometry.workgroups(100, most=7, processors=132) == 7
    assert shapes(False).max_resident == 0


def test_threads_share_all_inner_axes():
    x = np.random.default_rng(0).standard_normal((2, 90)).astype(np.float32)
    several, one = gpu_schedule.schedule(row_sums(2, 0, (5, 6, 3))), gpu_schedule.schedule(row_sums(2, 90))
    assert several.geometry == one.geometry
    assert launched(several, x, 2).tobytes() == launched(one, x, 2).tobytes()


def test_the_emulator_sees_a_missing_barrier():
    x = np.random.default_rng(0).standard_normal((2, 100)).astype(np.float32)
    kernel = gpu_schedule.schedule(row_sums(2, 100))
    np.testing.assert_allclose(launched(kernel, x, 2), x.astype(float).sum(1), 1e-5, 1e-5)
    with pytest.raises(AssertionError, match="read before a barrier"):
        launched(replace(kernel, body=without_barriers(kernel.body)), x, 2)


@pytest.mark.parametrize("block", [32, 64, 128])
def test_smaller_workgroups(block):
    x = np.random.default_rng(0).standard_normal((2, 300)).astype(np.float32)
    kernel = gpu_schedule.schedule(row_sums(2, 300), gpu_schedule.Target(workgroup_size=block))
    assert kernel.geometry.lanes == min(block, 32)
    np.testing.assert_allclose(launched(kernel, x, 2), x.astype(float).sum(1), 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [(32, 64), (50, 70), (33, 5), (40, 33)])
def test_what_lies_across_goes_through_square_tiles(shape):
    rows, cols = (Axis(name, extent) for name, extent in zip(("row", "col"), shape, strict=True))
    across = Load("x", ix.linearise((axis_index(cols), axis_index(rows)), shape[::-1]), dtypes.float32)
    place = ix.linearise((axis_index(rows), axis_index(cols)), shape)
    value = Op("mul", (across, Load("y", place, dtypes.float32)), dtypes.float32)
    params = tuple(BufferParam(name, dtypes.float32, name == "out") for name in ("x", "y", "out"))
    nest = Nest("turned", rows, "lane", cols, (), (), (Store("out", place, value),), (), (), params, (), {})
    kernel = gpu_schedule.schedule(nest, gpu_schedule.Target(tuning=SMALL_TILES))
    assert any(isinstance(stmt, Local) for stmt in kernel.body)
    x, y = (np.random.default_rng(k).standard_normal(shape).astype(np.float32) for k in range(2))
    out = np.zeros(shape, np.float32)
    arrays = [np.ascontiguousarray(x.T).ravel(), y.ravel(), out.ravel()]
    Lockstep().launch(normalise(kernel), arrays, (), shape[0])
    np.testing.assert_array_equal(out, x * y)


@pytest.mark.parametrize("kind", ["an element of a table", "a row of several", "a class by way of a table"])
def test_long_rows_with_gathered_places(kind, monkeypatch):
    """What follows from values that change along a row, or from the row's number, is looked up again for each."""
    monkeypatch.setattr(numerics, "MAX_REGISTER_ELEMENTS", 0)
    monkeypatch.setattr(numerics, "ROW_ELEMENTS_PER_LANE", 64)
    monkeypatch.setattr(numerics, "MAX_ELEMENTS_IN_FLIGHT", 1)
    rng, columns = np.random.default_rng(0), 120
    x, places = rng.standard_normal((5, columns)).astype(np.float32), rng.integers(0, columns, (5, columns))
    several = rng.standard_normal((5, 3, columns)).astype(np.float32)
    rows = rng.integers(0, 3, (5, 1, 1))

    def found(device) -> np.ndarray:
        with weft.device(device):
            if kind == "an element of a table":
                table = weft.tensor(x[0])[weft.tensor(places)]
                y = weft.tensor(x)
                return (table * y.square().sum(1, keepdim=True)).numpy()
            if kind == "a row of several":
                index = weft.tensor(rows).expand(5, 1, columns)
                return F.softmax(weft.tensor(several).gather(1, index).reshape(5, columns), 1).numpy()
            classes = weft.tensor(places[0])[weft.tensor(places)]
            same = classes == weft.arange(columns)
            return weft.where(same, weft.tensor(x), 0.0).sum(1).numpy()

    device = Lockstep(
        shared_bytes=65536, features=("native_functions", "async_copies"), resident_lanes=64, workgroup_count=2
    )
    np.testing.assert_allclose(found(device.device), found("reference"), 1e-5, 1e-6)
