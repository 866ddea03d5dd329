"""Matrix products on a GPU: right for each dtype, layout and thing that the library does on the way; the same bits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.plan.plan import LibraryCall

# Largest error as a part of the largest entry: one rounding of the result, and float32 sums.
TOLERANCE = {weft.float64: 1e-14, weft.float32: 2e-6, weft.float16: 1e-3, weft.bfloat16: 8e-3}
SHAPES = [(64, 128, 784), (37, 53, 71), (1, 300, 257), (300, 1, 128), (256, 512, 384), (6, 3, 4000)]


def drawn(*shape: int, dtype=weft.float32, seed: int = 0) -> weft.Tensor:
    array = np.random.default_rng((seed, *shape)).normal(0, 1, shape)
    return weft.tensor(array, device="cpu").to(dtype).to(weft.default_device())


def exact(x: weft.Tensor) -> np.ndarray:
    return x.to("cpu").double().numpy()  # a GPU may have no float64


def assert_right(found: weft.Tensor, want: np.ndarray, dtype) -> None:
    error = np.abs(exact(found) - want).max() / np.abs(want).max()
    assert error < TOLERANCE[dtype], error


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(dtype, shape):
    m, n, k = shape
    for left, right in itertools.product((False, True), repeat=2):
        a = drawn(k, m, dtype=dtype).mT if left else drawn(m, k, dtype=dtype)
        b = drawn(n, k, dtype=dtype, seed=1).mT if right else drawn(k, n, dtype=dtype, seed=1)
        assert_right(a @ b, exact(a) @ exact(b), dtype)


def gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: dtype.name)
def test_what_follows_a_product(dtype):
    x, w, b = drawn(200, 96, dtype=dtype), drawn(80, 96, dtype=dtype, seed=1), drawn(80, dtype=dtype, seed=2)
    c = drawn(200, 80, dtype=dtype, seed=3)
    want = exact(x) @ exact(w).T
    assert_right(F.linear(x, w, b), want + exact(b), dtype)
    assert_right(F.relu(F.linear(x, w, b)), np.maximum(want + exact(b), 0), dtype)
    assert_right(F.gelu(F.linear(x, w, b), approximate="tanh"), gelu(want + exact(b)), dtype)
    assert_right(c + F.linear(x, w), want + exact(c), dtype)
    assert_right(-F.linear(x, w) * 0.5, -want / 2, dtype)


def test_not_a_number_stays_one():
    x, w = drawn(64, 96), drawn(80, 96)
    x[3, 5] = float("nan")
    for activation in (F.relu, lambda y: F.gelu(y, approximate="tanh")):
        found = np.isnan(activation(F.linear(x, w)).numpy())
        assert found[3].all() and not np.delete(found, 3, 0).any()


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16], ids=lambda dtype: dtype.name)
def test_gradients_of_a_layer(dtype):
    def step(x, w, b):
        y = F.gelu(F.linear(x, w, b), approximate="tanh")
        (y.float() * y.float()).sum().backward()
        return x.grad, w.grad, b.grad

    arrays = [drawn(*shape, dtype=dtype) for shape in ((200, 96), (80, 96), (80,))]
    found = weft.compile(lambda: step(*[x.detach().requires_grad_() for x in arrays]))
    wide = [x.to("cpu").double().detach().requires_grad_() for x in arrays]
    with weft.device("cpu"):
        wanted = step(*wide)
    for result, want in zip(found(), wanted, strict=True):
        assert_right(result, want.numpy(), weft.bfloat16 if dtype.is_16_bit else weft.float32)


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16], ids=lambda dtype: dtype.name)
def test_heads_and_batches(dtype):
    x, y = drawn(3, 40, 4 * 24, dtype=dtype), drawn(3, 40, 4 * 24, dtype=dtype, seed=1)
    q, k = (t.reshape(3, 40, 4, 24).transpose(1, 2) for t in (x, y))
    assert_right(q @ k.mT, exact(q) @ np.swapaxes(exact(k), -1, -2), dtype)
    a, b = drawn(7, 30, 50, dtype=dtype), drawn(50, 60, dtype=dtype)
    assert_right(weft.bmm(a, b.expand(7, 50, 60)), exact(a) @ exact(b), dtype)


@pytest.mark.parametrize("dtype", [weft.float32, weft.bfloat16], ids=lambda dtype: dtype.name)
def test_operands_that_begin_anywhere(dtype):
    """Slices begin at any element; the library's fast algorithms need addresses that are multiples of 16 bytes."""
    flat = drawn(40000, dtype=dtype)
    for start in (0, 1, 2, 3, 4, 8):
        x, w = flat[start : start + 6400].reshape(100, 64), flat[7000 + start : 7000 + start + 5120].reshape(80, 64)
        b = flat[20000 + start : 20080 + start]
        assert_right(weft.compile(F.linear)(x, w, b), exact(x) @ exact(w).T + exact(b), dtype)


def test_every_run_gives_the_same_bits(gpu):
    a, b = drawn(512, 4096, dtype=weft.bfloat16), drawn(4096, 256, dtype=weft.bfloat16)
    product = weft.compile(lambda a, b: a @ b)
    first = product(a, b).float().numpy().tobytes()
    assert all(product(a, b).float().numpy().tobytes() == first for _ in range(20))
    calls = [isinstance(step, LibraryCall) for step in product.plan.plan.steps]
    assert calls and (calls == [True] if "cublaslt" in gpu.libraries else not any(calls))


@pytest.mark.needs("cublaslt")
def test_shorter_factors_are_a_switch():
    a, b = drawn(512, 512), drawn(512, 512, seed=1)
    product = weft.compile(lambda a, b: a @ b)
    want = exact(a) @ exact(b)
    assert_right(product(a, b), want, weft.float32)
    try:
        weft.set_float32_matmul_precision("high")
        error = np.abs(exact(product(a, b)) - want).max() / np.abs(want).max()
        assert 1e-5 < error < 2e-3
    finally:
        weft.set_float32_matmul_precision("highest")
    assert_right(product(a, b), want, weft.float32)
