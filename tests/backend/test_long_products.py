"""Products over many rows of two narrow matrices, as the weight gradients of dense layers are: our own kernel."""

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.unit.gpu_harness import set_limits
from weft.backends.cpu.worker_team import runtime
from weft.compiler import realize

pytestmark = pytest.mark.backend


def values(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def product(a, b):
    return a.T @ b


def names(step):
    return [kernel.name for kernel in step.plan.kernels()]


@pytest.mark.parametrize(
    "rows, m, n, dtype",
    [(1024, 8, 8, "float32"), (1031, 100, 33, "float32"), (5000, 128, 64, "float32"), (2048, 16, 200, "float32"),
     (1500, 64, 10, "float64")],
)  # fmt: skip
def test_values(rows, m, n, dtype):
    a, b = values(rows, m, dtype=dtype), values(rows, n, seed=1, dtype=dtype)
    step = weft.compile(product)
    ours = step(weft.tensor(a), weft.tensor(b)).numpy()
    exact = a.astype(np.float64).T @ b.astype(np.float64)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=4 * np.finfo(dtype).eps * rows)
    assert any(name.startswith("gemm_") and name.endswith("_rows") for name in names(step)), names(step)


def test_other_products_stay_with_the_library():
    """Few rows, wide matrices, rows of the other operand, batches."""
    for a, b, function in [
        ((512, 64), (512, 64), product),
        ((2048, 512), (2048, 64), product),
        ((2048, 64), (64, 32), lambda a, b: a @ b),
        ((2, 2048, 64), (2, 2048, 64), lambda a, b: a.transpose(1, 2) @ b),
    ]:
        step = weft.compile(function)
        step(weft.ones(*a), weft.ones(*b))
        assert not any(name.endswith("_rows") for name in names(step)), names(step)


def test_whole_numbers():
    a, b = (np.random.default_rng(0).integers(-(2**40), 2**40, (2048, 16)) for _ in range(2))
    np.testing.assert_array_equal(product(weft.tensor(a), weft.tensor(b)).numpy(), a.T @ b)  # both wrap around


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats(dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 3, (2048, 16)) for _ in range(2))
    ours = product(*[weft.tensor(array).to(getattr(weft, dtype)) for array in (a, b)])
    expected = weft.tensor(a.T @ b).to(getattr(weft, dtype))  # sums in float32 are exact, then rounded once
    np.testing.assert_array_equal(ours.float().numpy(), expected.float().numpy())


def test_the_gradient_of_a_dense_layer():
    x, w, g = values(3000, 40), values(24, 40, seed=1), values(3000, 24, seed=2)
    weight, bias = weft.tensor(w, requires_grad=True), weft.zeros(24, requires_grad=True)
    (F.relu(F.linear(weft.tensor(x), weight, bias)) * weft.tensor(g)).sum().backward()
    slopes = g.astype(np.float64) * (x.astype(np.float64) @ w.T > 0)
    np.testing.assert_allclose(weight.grad.numpy(), slopes.T @ x, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(bias.grad.numpy(), slopes.sum(0), rtol=1e-4, atol=1e-3)


def test_bits_depend_neither_on_threads_nor_on_registers(monkeypatch):
    a, b = weft.tensor(values(4099, 72)), weft.tensor(values(4099, 40, seed=1))

    def run():
        realize._plans.clear()
        return weft.compile(product)(a, b).numpy()

    first, before = run(), runtime().threads
    try:
        for count in (1, 3):
            runtime().set_threads(count)
            np.testing.assert_array_equal(run(), first)
    finally:
        runtime().set_threads(before)
    for registers in (256, 512):
        set_limits(monkeypatch, weft.get_device("cpu"), vector_register_bytes=registers)
        np.testing.assert_array_equal(run(), first)
    realize._plans.clear()
