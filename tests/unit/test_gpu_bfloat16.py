"""Rows of bfloat16 on the GPU schedule: what is rounded, widened and summed is what the reference has.

Forward and backward of bias, GELU and dropout (column sums) and of layer norm (rows and column sums), in shapes whose
rows are a subgroup's and a block's, with steps that are cut off and rows that are left over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.lockstep import Lockstep
from tests.unit.programs import Make, results
from weft.base import dtypes
from weft.base.tuning import Tuning
from weft.kernels import numerics
from weft.kernels.ir.language import (
    AsyncCopy,
    Copy,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Op,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.ir.rewrite import parts_of

HOPPER = {
    "features": ("subgroup_operations", "native_functions", "async_copies"),
    "workgroup_size": 1024,
    "shared_bytes": 232448,
}
SHAPES = [(67, 136), (70, 60), (66, 7)]


def activation(make: Make, rows: int, cols: int) -> list:
    x, bias = make(rows, cols, dtype="bfloat16", grad=True), make(cols, dtype="bfloat16", grad=True)
    y = F.gelu(x + bias, approximate="tanh") * make(rows, cols, dtype="bfloat16")
    y.sum().backward()
    return [y, x.grad, bias.grad]


def norm(make: Make, rows: int, cols: int) -> list:
    x = make(rows, cols, dtype="bfloat16", grad=True)
    weight, bias = (make(cols, dtype="bfloat16", grad=True) for _ in range(2))
    y = F.layer_norm(x, (cols,), weight, bias)
    (y * make(rows, cols, dtype="bfloat16")).sum().backward()
    return [y, x.grad, weight.grad, bias.grad]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("program", [activation, norm])
@pytest.mark.parametrize("by_workgroup", [False, True], ids=["subgroups", "workgroups"])
def test_agrees_with_the_reference(program, shape, by_workgroup, monkeypatch):
    if by_workgroup:
        monkeypatch.setattr(numerics, "MAX_SUBGROUP_ROW", 0)
        monkeypatch.setattr(numerics, "ROW_ELEMENTS_PER_LANE", 2)
    run = lambda make: program(make, *shape)  # noqa: E731
    found, expected = (results(run, device, small=True) for device in (Lockstep(**HOPPER).device, "reference"))
    unit = weft.finfo(weft.bfloat16).eps
    for position, (a, b) in enumerate(zip(found, expected, strict=True)):  # 1 + tanh keeps more of a tail in one
        np.testing.assert_allclose(a.astype("f"), b.astype("f"), unit, 1e-5, err_msg=f"result {position}")


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (136, 0),
        (136, Tuning().staged_bytes_per_register),
        (1160, 0),
        (1160, Tuning().staged_bytes_per_register),
    ],
)
def test_rows_that_are_prefetched_do_not_race(columns, kept, monkeypatch):
    """Each thread reads what it fetched itself, and stages are filled again only behind their readers. Without
    registers for two rows, those of subgroups lie in shared memory."""
    monkeypatch.setattr(Lockstep, "tuning", Tuning(staged_bytes_per_register=kept))
    device = Lockstep(
        features=("subgroup_operations", "async_copies"), workgroup_size=1024, subgroup_sizes=(32,), shared_bytes=232448
    )
    run = lambda make: norm(make, 67, columns)  # noqa: E731
    found, expected = (results(run, where, small=True) for where in (device.device, "reference"))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.astype("f"), b.astype("f"), weft.finfo(weft.bfloat16).eps, 1e-5)
    ahead = [s for kernel in device.kernels for s in statements(kernel.body) if isinstance(s, AsyncCopy | Copy)]
    ahead = [s for s in ahead if s.target.startswith("ahead")]
    assert {s.source for s in ahead} == ({"b0", "b1"} if kept or columns == 136 else set())
    assert all(isinstance(s, Copy if kept else AsyncCopy) for s in ahead)


@pytest.mark.parametrize("nbytes", [1, 8192], ids=["one row ahead", "more than a chunk has"])
def test_columns_are_summed_in_the_same_order_with_rows_fetched_ahead(nbytes, monkeypatch):
    monkeypatch.setattr(Lockstep, "tuning", Tuning(column_prefetch_bytes=nbytes))
    run = lambda make: activation(make, 67, 136)  # noqa: E731
    plain, device = Lockstep(**{**HOPPER, "features": ("subgroup_operations", "native_functions")}), Lockstep(**HOPPER)
    found, expected = (results(run, one.device, small=True) for one in (device, plain))
    assert [a.tobytes() for a in found] == [b.tobytes() for b in expected]
    ahead = [stmt for kernel in device.kernels for stmt in statements(kernel.body) if isinstance(stmt, AsyncCopy)]
    assert {stmt.source for stmt in ahead} == {"b0", "b2"}  # x and the other factor, but not the bias


def test_a_thread_of_column_sums_has_twice_the_registers_of_a_full_processor():
    device = Lockstep(**HOPPER, resident_lanes=2048)
    results(lambda make: activation(make, 67, 1160), device.device, small=True)
    (geometry,) = [
        k.geometry for k in device.kernels if any(isinstance(stmt, AsyncCopy) for stmt in statements(k.body))
    ]
    assert geometry.lanes == 160 and geometry.min_resident == 6  # 6 * 160 <= 2048 / 2


@pytest.mark.parametrize("columns", [136, 1160], ids=["subgroups", "workgroups"])
def test_rows_of_a_chunk_that_are_not_aligned_give_the_same_bits(columns):
    run = lambda make: norm(make, 67, columns)  # noqa: E731
    found, moved = (results(run, Lockstep(**HOPPER, skew=skew).device, small=True) for skew in (0, 2))
    assert [a.tobytes() for a in found] == [b.tobytes() for b in moved]


@pytest.mark.parametrize("columns", [136, 1160], ids=["subgroups", "workgroups"])
def test_rows_of_a_chunk_test_nothing_and_read_only_their_own(columns):
    """Whether buffers are aligned is decided before the first row, and what all rows use is kept from then on."""
    device = Lockstep(**HOPPER)
    results(lambda make: norm(make, 67, columns), device.device, small=True)
    (body,) = [statements(kernel.body) for kernel in device.kernels if kernel.name.startswith("rows")]
    (answer,) = [s.name for s in body if isinstance(s, Let) and isinstance(s.value, Op) and s.value.name == "aligned"]
    loops = [statements(s.body) for s in body if isinstance(s, Loop) and s.axis.name == "turn"]
    assert len(loops) == 2  # of aligned rows, and of others
    for loop in loops:
        assert answer not in [s.condition.name for s in loop if isinstance(s, If) and isinstance(s.condition, Var)]
        values = [s.value for s in loop if isinstance(s, Store | Let | Update)]
        read = {part.buffer for part in parts_of(values) if isinstance(part, Load)}
        read |= {s.source for s in loop if isinstance(s, Copy)}
        assert not read & {"b2", "b3"}  # weight and bias


@pytest.mark.parametrize("columns", [136, 1160], ids=["subgroups", "workgroups"])
def test_a_chunk_is_a_strided_selection_of_rows(columns):
    """The gradient of the bias: members of chunks add up rows in order, then come members, then chunks, in order."""
    rows = 67
    _, _, chunks = numerics.split_reduction((rows, columns), (0,), numerics.GPU_PIECES)
    members = numerics.MAX_CHUNK_MEMBERS if columns <= numerics.MAX_SUBGROUP_ROW else 1

    def program(make: Make) -> list:
        x, gradient, bias = make(rows, columns, grad=True), make(rows, columns), make(columns, grad=True)
        (F.layer_norm(x, (columns,), None, bias) * gradient).sum().backward()
        return [x.grad, gradient, bias.grad]

    _, gradient, found = results(program, Lockstep(**HOPPER).device)
    total = np.zeros(columns, "f")
    for chunk in range(chunks):
        parts = [in_order(gradient[chunk::chunks][member::members]) for member in range(members)]
        total = in_order(parts) + total
    assert found.tobytes() == total.tobytes()


def in_order(rows: Sequence[np.ndarray]) -> np.ndarray:
    total = np.zeros_like(rows[0]) if len(rows) else np.float32(0)
    for row in rows:
        total = row + total
    return total


def test_few_subgroups_are_joined_in_the_order_of_many(monkeypatch):
    run = lambda make: norm(make, 67, 1160)  # noqa: E731
    found = results(run, Lockstep(**HOPPER).device, small=True)
    monkeypatch.setattr(Lockstep, "tuning", Tuning(max_subgroup_sums=1))
    assert [a.tobytes() for a in found] == [b.tobytes() for b in results(run, Lockstep(**HOPPER).device, small=True)]


def statements(body: tuple[Stmt, ...]) -> list[Stmt]:
    inner = [(*s.body, *getattr(s, "otherwise", ())) for s in body if isinstance(s, Loop | Reduction | If)]
    return [*body, *[stmt for part in inner for stmt in statements(part)]]


@pytest.mark.parametrize("program", [activation, norm])
def test_results_are_rounded_by_copies_of_several(program):
    """float32 leaves a thread's array for memory of bfloat16 in one statement, which rounds two at a time."""
    device = Lockstep(**HOPPER)
    results(lambda make: program(make, 70, 64), device.device, small=True)
    found = [_rounding(kernel) for kernel in device.kernels]
    assert sum(found) == 2  # the result, and the gradient of x


def _rounding(kernel: Kernel) -> int:
    body = statements(kernel.body)
    arrays = {stmt.name: stmt.dtype for stmt in body if isinstance(stmt, Local)}
    copies = {s.target for s in body if isinstance(s, Copy) and s.dtype is dtypes.bfloat16 and s.count > 1}
    wide = [s.target for s in body if isinstance(s, Copy) and arrays.get(s.source) is dtypes.float32]
    return len(copies.intersection(wide))


def test_wide_tables_are_cut_into_fewer_chunks():
    """Each chunk writes a row of sums, and the columns keep a GPU busy. On a CPU chunks have at most 128 rows."""
    cut = [
        numerics.split_reduction((16384, columns), (0,), numerics.GPU_PIECES) for columns in (8, 100, 256, 768, 50304)
    ]
    assert cut == [(0, 16, 1024), (0, 16, 1024), (0, 32, 512), (0, 64, 256), (0, 64, 256)]
    assert numerics.split_reduction((16384, 4096), (0,), numerics.CPU_PIECES) == (0, 128, 128)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [8, 40, 96, 777, 1024, 1100])
def test_column_sums_have_the_same_bits_beside_row_reductions_and_alone(columns, dtype):
    """Chunks of some 12 rows, which are distributed over four members up to 1,024 columns."""
    values = np.random.default_rng(0).standard_normal((190, columns)).astype(np.float32)
    device = Lockstep(**HOPPER)
    with weft.device(device.device):
        x = weft.tensor(values).to(getattr(weft, dtype))
        weft.eval(x)
        alone = weft.compile(lambda x: x.float().sum(0))
        beside = weft.compile(lambda x: (x.float().sum(0), x.float().softmax(1)))
        one, (other, _) = alone(x), beside(x)
    assert sum(kernel.name.startswith("rows_exp") and "part_sum" in kernel.name for kernel in device.kernels) == 1
    expected = x.float().numpy().astype(np.float64).sum(0)
    np.testing.assert_allclose(one.numpy(), expected, 1e-5, 1e-5)
    assert one.numpy().tobytes() == other.numpy().tobytes()
