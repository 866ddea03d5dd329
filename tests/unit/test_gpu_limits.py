"""The GPU schedule within the limits of a device: subgroups of any size, few threads, little shared memory.

`check_limits` looks at every kernel that is launched here, and the lockstep emulator at every access.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.unit.lockstep import Lockstep
from weft.base.tuning import Tuning
from weft.kernels.ir.language import shared_arrays

pytestmark = pytest.mark.unit

HOPPER = {
    "features": ("subgroup_operations", "scalar_arguments"),
    "workgroup_size": 1024,
    "subgroup_sizes": (32,),
    "shared_bytes": 232448,
}
SMALL_GPU = {"workgroup_size": 256, "shared_bytes": 16384, "access_bytes": 4}  # what every GPU has
DEVICES = pytest.mark.parametrize("options", [HOPPER, SMALL_GPU], ids=["hopper", "small"])


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
@pytest.mark.parametrize("threads", [256, 1024])
@pytest.mark.parametrize("cols", [33, 100, 600, 1030, 17000])
def test_rows_in_subgroups_of_any_size(subgroup, threads, cols):
    device = Lockstep(features=("subgroup_operations",), subgroup_sizes=(subgroup,), workgroup_size=threads).device
    x = numbers(3, cols)
    found = weft.tensor(x, device=device).softmax(1).numpy()
    np.testing.assert_allclose(found, softmax(x, 1), 1e-4, 1e-7)


def test_long_rows_of_elements_wider_than_an_access():
    x = numbers(2, 9000, dtype="float64")
    found = weft.tensor(x, device=Lockstep(**SMALL_GPU).device).softmax(1).numpy()
    np.testing.assert_allclose(found, softmax(x, 1), 1e-9)


def test_workgroups_of_joined_launches_are_whole_subgroups():
    """A sort of few words has a block of 32 threads."""
    device = Lockstep(features=("subgroup_operations",), subgroup_sizes=(64,)).device
    x, keys = numbers(3, 100), numbers(40)
    rows, order = weft.tensor(x, device=device).sum(1), weft.tensor(keys, device=device).argsort()
    weft.eval(rows, order)
    np.testing.assert_allclose(rows.numpy(), x.sum(1), 1e-4, 1e-4)
    assert order.numpy().tolist() == np.argsort(keys).tolist()


@pytest.mark.parametrize("columns", [1024, 1028])
def test_sums_of_whole_matrices(columns):
    """A piece of rows is a subgroup's or a block's; where it begins depends on its number."""
    x = numbers(1100, columns)
    found = weft.tensor(x, device=Lockstep(**HOPPER).device).sum().numpy()
    np.testing.assert_allclose(found, x.astype(np.float64).sum(), 1e-5, 1e-2)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_orders_of_long_rows(options, dtype):
    """Two sorts of a block each, for keys of 64 bits, have not room for both in one launch."""
    device, x = Lockstep(**options).device, numbers(3000, dtype=dtype)
    assert weft.tensor(x, device=device).argsort().numpy().tolist() == np.argsort(x, kind="stable").tolist()


@DEVICES
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
def test_running_sums_of_long_rows(options, dtype):
    device, x = Lockstep(**options).device, (100 * numbers(2, 2500)).astype(dtype)
    np.testing.assert_allclose(weft.tensor(x, device=device).cumsum(1).numpy(), x.cumsum(1), 1e-9, 1e-9)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(20, 30, 40), (130, 40, 200), (260, 33, 128)])
def test_products(options, dtype, shape):
    m, k, n = shape
    a, b = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype)
    device = Lockstep(**options, processors=1).device
    found = (weft.tensor(a, device=device) @ weft.tensor(b, device=device)).numpy()
    np.testing.assert_allclose(found, a.astype(np.float64) @ b.astype(np.float64), 1e-4, 1e-4)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_reductions_over_columns(options, dtype):
    """Their partial results take more shared memory than may be declared, or than there is."""
    device, x = Lockstep(**options).device, numbers(2, 260, 40, dtype=dtype)
    tensor = weft.tensor(x, device=device)
    found = [(tensor * float(scale)).softmax(1) for scale in range(2, 12)]
    weft.eval(*found)
    for scale, one in enumerate(found, 2):
        np.testing.assert_allclose(one.numpy(), softmax(scale * x, 1), 1e-4, 1e-7)
    (columns_kernel,) = [kernel for kernel in device.backend.kernels if kernel.name.startswith("cols")]
    assert columns_kernel.geometry.lanes < 256 if options is SMALL_GPU else columns_kernel.geometry.shared > 49152


@pytest.mark.parametrize(
    "options", [HOPPER, {**SMALL_GPU, "features": ("subgroup_operations",)}], ids=["hopper", "small"]
)
def test_rows_with_many_sums_over_columns(options):
    device, x = Lockstep(**options).device, numbers(300, 512, dtype="float64")
    rows = weft.tensor(x, device=device).softmax(1)
    found = [(rows * rows.exp() ** scale).sum(0) for scale in range(6)]
    weft.eval(rows, *found)
    expected = softmax(x, 1)
    np.testing.assert_allclose(rows.numpy(), expected, 1e-9)
    for scale, one in enumerate(found):
        np.testing.assert_allclose(one.numpy(), (expected * np.exp(expected) ** scale).sum(0), 1e-9)


def test_accesses_narrower_than_an_element():
    device = Lockstep(features=("subgroup_operations",), access_bytes=4).device
    x = numbers(3, 2500, dtype="float64")
    np.testing.assert_allclose(weft.tensor(x, device=device).sum(1).numpy(), x.sum(1), 1e-12)


@pytest.mark.parametrize("lanes", [64, 192, 384])
def test_workgroups_of_few_lanes_and_of_no_power_of_two(lanes):
    """Mali GPUs have 384 lanes: trees over lanes left some out."""
    device = Lockstep(workgroup_size=lanes, shared_bytes=65536, static_shared_bytes=65536).device
    x, tall, q = numbers(3, 1500), numbers(5000, 2), numbers(1, 70, 80)
    long, high, query = [weft.tensor(one, device=device) for one in (x, tall, q)]
    found = [long.cumsum(1), long.softmax(1), long @ long.T, high.sum(0), high.amax(0), long.argsort(1)]
    found.append(weft.nn.functional.scaled_dot_product_attention(query, query, query))
    weft.eval(*found)
    weights = softmax(q[0] @ q[0].T / np.sqrt(80), 1)
    expected = [x.cumsum(1), softmax(x, 1), x @ x.T, tall.sum(0), tall.max(0), x.argsort(1), (weights @ q[0])[None]]
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), wanted, 1e-3, 1e-3)


@weft.kernel(over=lambda x: x.shape[0])
def double(i, x, out):
    out[i] = x[i] * 2


@pytest.mark.parametrize("lanes", [32, 64, 128])
def test_transposes_and_kernels_of_users_in_workgroups_of_few_lanes(lanes, monkeypatch):
    monkeypatch.setattr(Lockstep, "tuning", Tuning(min_transposed_elements=32))
    device = Lockstep(workgroup_size=lanes).device
    x = numbers(130, 70)
    tensor = weft.tensor(x, device=device)
    np.testing.assert_array_equal((tensor.T + tensor.reshape(70, 130)).numpy(), x.T + x.reshape(70, 130))
    np.testing.assert_array_equal(double(tensor.reshape(-1)).numpy(), 2 * x.reshape(-1))
    names = [kernel.name for kernel in device.backend.kernels]
    assert any("turned" in array.name for kernel in device.backend.kernels for array in shared_arrays(kernel.body)), (
        names
    )


@pytest.mark.parametrize("columns", [17, 32, 100])
def test_column_sums_of_few_subgroups(columns):
    """A workgroup has room for two subgroups, where four share the rows of a chunk elsewhere."""
    device = Lockstep(features=("subgroup_operations",), subgroup_sizes=(32,), workgroup_size=64).device
    x, w = numbers(300, columns), np.linspace(0.5, 2.0, columns, dtype=np.float32)
    given = [weft.tensor(one, device=device, requires_grad=True) for one in (x, w)]
    y = weft.nn.functional.layer_norm(given[0], (columns,), given[1])
    gradients = weft.autograd.grad((y * y * y).sum(), given)
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(gradients[1].numpy(), (3 * (normal * w) ** 2 * normal).sum(0), 1e-4, 1e-3)
    alone = weft.tensor(x, device=device).sum(0)
    np.testing.assert_allclose(alone.numpy(), wide.sum(0), 1e-4, 1e-4)
