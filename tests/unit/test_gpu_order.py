"""Scans, sorts, scattered rows, loops and kernels of users on GPUs, run by the emulator."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit.lockstep import Lockstep
from tests.unit.programs import check_an_index_that_moves_on
from weft.base.tuning import Tuning
from weft.core.tensor import Tensor
from weft.errors import IndexRangeError
from weft.kernels import numerics
from weft.kernels.gpu import sort as gpu_sort
from weft.plan.device import Device

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Everything that large shapes do, with shapes that an emulator gets through."""
    for name, value in {
        "MAX_SCAN_TILES": 1,
        "MAX_SCAN_LANES": 32,
        "MAX_UNSORTED_ROWS": 4,
        "MAX_SERIAL_SCAN": 40,
        "MIN_PIECEWISE_ROWS": 64,
    }.items():
        monkeypatch.setattr(numerics, name, value)
    monkeypatch.setattr(Lockstep, "tuning", Tuning(max_sorted_run=32))
    monkeypatch.setattr(gpu_sort, "MIN_TILE_WORDS", 32)


@pytest.fixture
def device() -> Device:
    return Lockstep().device


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def kernels_of(device: Device) -> list[str]:
    return [kernel.name for kernel in device.backend.kernels]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("function", [weft.exp, weft.sigmoid, weft.tanh, weft.log1p])
def test_scans_and_sorts_compute_functions_as_other_kernels_do(function, axis):
    """On a device that has the functions itself, too: eager and compiled steps had other bits."""
    device = Lockstep(features=("native_functions",)).device
    x = np.abs(numbers(130, 33))
    stored = weft.tensor(function(weft.tensor(x, device=device)).numpy(), device=device)
    for order in (lambda y: y.cumsum(axis), lambda y: y.sort(axis)[0], lambda y: y.sort(axis)[1]):
        found = order(function(weft.tensor(x, device=device)))
        np.testing.assert_array_equal(found.numpy(), order(stored).numpy())


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((3, 5), 1), ((3, 5), 0), ((2, 300), 1), ((1, 290), 1), ((700,), 0), ((50, 3), 0), ((2, 45, 3), 1), ((2, 1), 1)],
)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(device, shape, axis, reverse):
    x = numbers(*shape)
    tensor = weft.tensor(x, device=device, requires_grad=True)
    given, expected = 2 * tensor, np.cumsum(2.0 * x, axis)
    if reverse:
        given, expected = given.flip(axis), np.cumsum(np.flip(2.0 * x, axis), axis)
    total = given.cumsum(axis)
    np.testing.assert_allclose(total.numpy(), expected, 1e-4, 1e-5)
    weights = numbers(*shape)
    (total * weft.tensor(weights, device=device)).sum().backward()
    slope = 2 * np.flip(np.cumsum(np.flip(weights.astype("float64"), axis), axis), axis)
    np.testing.assert_allclose(tensor.grad.numpy(), np.flip(slope, axis) if reverse else slope, 1e-4, 1e-5)


@pytest.mark.parametrize("length", [7, 100, 300])
@pytest.mark.parametrize(
    ("name", "ufunc"),
    [("cumprod", np.multiply), ("logcumsumexp", np.logaddexp), ("cummax", np.maximum), ("cummin", np.minimum)],
)
def test_running_results_of_other_kinds(device, length, name, ufunc):
    x = 1 + 0.1 * numbers(2, length)
    result = getattr(weft.tensor(x, device=device), name)(1)
    result = result if isinstance(result, Tensor) else result.values
    np.testing.assert_allclose(result.numpy(), ufunc.accumulate(x.astype("float64"), axis=1), 1e-4)


def test_a_long_scan_is_cut_and_a_short_one_is_not(device):
    weft.tensor(numbers(1, 280), device=device).cumsum(1).numpy()
    assert len(kernels_of(device)) == 1
    weft.tensor(numbers(1, 290), device=device).cumsum(1).numpy()
    assert len(kernels_of(device)) == 4  # pieces, totals, both


@pytest.mark.parametrize("shape", [(1,), (7,), (40, 3), (3, 33), (1, 140)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint32", "uint64", "uint8", "bool"])
def test_stable_orders(device, shape, dtype):
    rng = np.random.default_rng(1)
    low = 0 if dtype[0] in "ub" else -3
    x = rng.integers(low, 4, shape)
    if dtype in ("int64", "uint64"):  # equal upper halves and equal lower halves
        x = x * 2**40 + rng.integers(0, 2**32, shape)
        x[..., ::3] += 2**63 - 2**42 if dtype == "int64" else 0
    x = x.astype(dtype)
    given = weft.tensor(x, device=device)
    np.testing.assert_array_equal(given.argsort(-1).numpy(), np.argsort(x, -1, kind="stable"))
    np.testing.assert_array_equal(given.sort(-1).values.numpy(), np.sort(x, -1))


def test_every_float_has_its_place(device):
    x = np.array([np.nan, 1.0, -np.inf, 0.0, -0.0, np.inf, -1.0, np.nan, 5e-324], "float64")
    order = weft.tensor(x, device=device).argsort(0, descending=False)
    np.testing.assert_array_equal(order.numpy(), np.argsort(x, kind="stable"))


def test_sorted_values_give_gradients_back(device):
    x, weights = numbers(3, 50), numbers(3, 50)
    tensor = weft.tensor(x, device=device, requires_grad=True)
    (tensor.sort(1).values * weft.tensor(weights, device=device)).sum().backward()
    expected = np.zeros_like(x)
    np.put_along_axis(expected, np.argsort(x, 1), weights, 1)
    np.testing.assert_allclose(tensor.grad.numpy(), expected)


def test_largest_elements_and_medians(device):
    x = numbers(2, 200)
    tensor = weft.tensor(x, device=device)
    np.testing.assert_array_equal(tensor.topk(5, 1).indices.numpy(), np.argsort(-x, 1, kind="stable")[:, :5])
    np.testing.assert_array_equal(tensor.median(1).values.numpy(), np.sort(x, 1)[:, 99])


REDUCTIONS = {
    "add": (np.add, 0.0),
    "max": (np.maximum, -np.inf),
    "min": (np.minimum, np.inf),
    "prod": (np.multiply, 1.0),
}


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize(("entries", "count", "columns"), [(3, 5, 2), (60, 7, 3), (100, 4, 1), (100, 150, 1)])
def test_scattered_rows(device, op, entries, count, columns):
    rng = np.random.default_rng(2)
    index, rows = rng.integers(0, count, entries), 1 + 0.1 * numbers(entries, columns)
    node = weft.graph.build.scatter(op, *[weft.tensor(x, device=device).node for x in (index, rows)], count)
    ufunc, start = REDUCTIONS[op]
    expected = np.full((count, columns), start)
    ufunc.at(expected, index, rows)
    np.testing.assert_allclose(Tensor(node).numpy(), expected, 1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
def test_wide_rows_move_as_vectors(device, monkeypatch, dtype):
    monkeypatch.setattr(numerics, "MIN_SEGMENT_ELEMENTS", 1)
    index = np.random.default_rng(0).integers(0, 9, 70)
    rows = weft.tensor(np.round(4 * numbers(70, 64)).astype(getattr(weft, dtype).numpy), device=device)
    table = weft.scatter_sum(rows, weft.tensor(index, device=device), 9)
    expected = np.zeros((9, 64))
    np.add.at(expected, index, rows.float().numpy())
    np.testing.assert_array_equal(table.float().numpy(), expected)
    segments = [kernel for kernel in device.backend.kernels if kernel.name.startswith("segment")]
    near = {"float64": 2}.get(dtype, 4)
    assert {kernel.geometry.items for kernel in segments} == {64 // near}


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_wide_segments(device, monkeypatch, reduce):
    monkeypatch.setattr(numerics, "MIN_SEGMENT_ELEMENTS", 1)
    pointers, data = np.array([0, 3, 3, 8, 20]), numbers(20, 36)
    given = weft.tensor(data, device=device, requires_grad=True)
    result = weft.segment_reduce(given, weft.tensor(pointers, device=device), reduce)
    (result * result).sum().backward()
    copy = weft.tensor(data, requires_grad=True)
    expected = weft.segment_reduce(copy, weft.tensor(pointers), reduce)
    (expected * expected).sum().backward()
    np.testing.assert_allclose(result.numpy(), expected.numpy(), 1e-5, 1e-6)
    np.testing.assert_allclose(given.grad.numpy(), copy.grad.numpy(), 1e-5, 1e-6)


def test_gradient_of_an_embedding(device):
    table, index = numbers(50, 3), np.random.default_rng(0).integers(0, 50, (5, 40))
    index[0] = 7  # one row that very many entries go to
    weights = numbers(5, 40, 3)
    tensor = weft.tensor(table, device=device, requires_grad=True)
    picked = tensor[weft.tensor(index, device=device)]
    (picked * weft.tensor(weights, device=device)).sum().backward()
    expected = np.zeros((50, 3))
    np.add.at(expected, index.ravel(), weights.reshape(-1, 3))
    np.testing.assert_allclose(tensor.grad.numpy(), expected, 1e-4, 1e-5)


def test_a_bad_index_is_found(device):
    index = np.arange(30)
    index[11] = 30
    total = weft.scatter_sum(weft.tensor(numbers(30, 2), device=device), weft.tensor(index, device=device), 30)
    with pytest.raises(IndexRangeError, match=r"scatter_sum at .*the index 30 at position 11, for"):
        total.numpy()


def ordered(device: Device) -> bytes:
    x = weft.tensor(numbers(2, 300), device=device)
    index = weft.tensor(np.random.default_rng(3).integers(0, 9, 100), device=device)
    scattered = weft.scatter_sum(weft.tensor(numbers(100), device=device), index, 9)
    return b"".join([value.numpy().tobytes() for value in (x.cumsum(1), x[0, :90].argsort(0), scattered)])


def test_the_number_of_workgroups_changes_nothing():
    assert ordered(Lockstep().device) == ordered(Lockstep(workgroup_count=3).device)


@pytest.mark.parametrize("reverse", [False, True])
def test_loops(device, reverse):
    x, w = numbers(4, 2, 3), numbers(3, 3)
    steps, weight = weft.tensor(x, device=device, requires_grad=True), weft.tensor(w, device=device, requires_grad=True)

    def iteration(state, step):
        new = (state @ weight + step).tanh()
        return new, new.sort(-1).values

    zero = weft.zeros(2, 3, device=device)
    state, stacked = weft.loop(iteration, zero, steps, reverse=reverse)
    (state.sum() + (stacked * stacked).sum()).backward()
    got = [value.numpy() for value in (state, stacked, steps.grad, weight.grad)]
    steps, weight, zero = (weft.tensor(value, requires_grad=True) for value in (x, w, np.zeros((2, 3), "float32")))
    state, stacked = weft.loop(iteration, zero, steps, reverse=reverse)
    (state.sum() + (stacked * stacked).sum()).backward()
    for ours, expected in zip(got, (state, stacked, steps.grad, weight.grad), strict=True):
        np.testing.assert_allclose(ours, expected.numpy(), 1e-4, 1e-5)


@weft.kernel(out=lambda x, factor: [x, x], backward=lambda g, h, x, factor: (g * factor, None))
def running_rows(i, j, x, factor, p, q):
    total = weft.kernel.sum(j + 1, lambda k: x[i, k])
    p[i, j] = x[i, j] * factor
    q[i, j] = weft.kernel.where(total > 0.0, weft.kernel.exp(-total), x.load(i - 1, j, other=2.0))


def test_kernels_of_users(device):
    x = numbers(3, 9)
    tensor = weft.tensor(x, device=device, requires_grad=True)
    p, q = running_rows(tensor * 1.0, 0.5)
    p.sum().backward()
    total = np.cumsum(x, 1)
    above = np.vstack([np.full((1, 9), 2.0), x[:-1]])
    np.testing.assert_allclose(p.numpy(), x * 0.5, 1e-6)
    np.testing.assert_allclose(q.numpy(), np.where(total > 0, np.exp(-total), above), 1e-4)
    np.testing.assert_allclose(tensor.grad.numpy(), np.full((3, 9), 0.5))


@pytest.mark.parametrize("table", [(11,), (11, 3)])
def test_an_index_that_the_step_moves_on_in_place_is_checked_as_it_was_read(table):
    with weft.device(Lockstep().device):
        check_an_index_that_moves_on(table)
