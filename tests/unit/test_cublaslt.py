"""Products by cuBLASLt: what Weft asks of it, on a cuBLASLt made of NumPy (tests/gpu has the real one)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.unit.fake_cublaslt import ALGORITHM, Bindings
from weft.backends.cuda import cublaslt
from weft.base import dtypes
from weft.plan.plan import LibraryCall, Place, Plan, Product, Slot
from weft.plan.serialize import pack, unpack

pytestmark = pytest.mark.unit


@pytest.fixture
def library(monkeypatch):
    monkeypatch.setattr(cublaslt, "find", lambda: cublaslt.Found(Bindings(), "fake"))
    return cublaslt.CublasLt(stream=7)


def product_of(dtype, result, transposed, batch=(1, 1), m=5, n=7, k=6, **options):
    (ta, tb), (outer, inner) = transposed, batch
    return Product(
        dtype, result, outer, inner, m, n, k, ta, tb, m if ta else k, k if tb else n,
        (inner * m * k, m * k), (inner * k * n, k * n), "highest", **options,
    )  # fmt: skip


def run(library, p: Product, skew: int = 0):
    """The library's result for random operands, and what NumPy makes of them."""
    rng = np.random.default_rng(0)
    count = p.outer * p.inner

    def array(*shape, dtype):
        raw = np.zeros(int(np.prod(shape)) * dtype.itemsize + 64, np.uint8)
        start = -raw.ctypes.data % 16 + skew * dtype.itemsize
        out = raw[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype.numpy).reshape(shape)
        out[:] = rng.normal(0, 1, shape)
        return out

    a = array(count, *((p.k, p.m) if p.transpose_a else (p.m, p.k)), dtype=p.operand)
    b = array(count, *((p.n, p.k) if p.transpose_b else (p.k, p.n)), dtype=p.operand)
    bias, c = array(p.n, dtype=p.result), array(count, p.m, p.n, dtype=p.result)
    d, kept = array(count, p.m, p.n, dtype=p.result), array(count, p.m, p.n, dtype=p.result)
    scratch = array(1 << 13, dtype=dtypes.uint8)
    config, _ = library.configure_product(p)
    places = [a, b, *([bias] if p.bias else []), *([c] if p.add else []), d, *([kept] if p.keep else []), scratch]
    library.prepare(config)([array.ctypes.data for array in places])
    left = (a.swapaxes(1, 2) if p.transpose_a else a).astype(np.float64)
    right = (b.swapaxes(1, 2) if p.transpose_b else b).astype(np.float64)
    want = p.alpha * (left @ right) + p.add * c.astype(np.float64) + p.bias * bias.astype(np.float64)
    if p.keep:
        np.testing.assert_allclose(kept.astype(np.float64), want, 1e-2, 3e-2)
    if p.activation == "relu":
        want = np.maximum(want, 0)
    if p.activation == "gelu":
        want = want / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (want + 0.044715 * want**3)))
    return d, want


KINDS = [
    {}, {"alpha": -0.5}, {"add": True}, {"bias": True}, {"bias": True, "add": True}, {"activation": "relu"},
    {"bias": True, "activation": "gelu"}, {"activation": "gelu", "keep": True, "n": 8},
    {"bias": True, "activation": "gelu", "keep": True, "n": 16},
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("transposed", list(itertools.product((False, True), repeat=2)))
def test_row_major_products(library, transposed, options):
    batches = [(1, 1), (1, 3), (2, 3)]
    for dtype, batch in itertools.product((dtypes.float32, dtypes.bfloat16), batches):
        result, want = run(library, product_of(dtype, dtype, transposed, batch, **options))
        close = {"rtol": 1e-2 if dtype.is_16_bit else 1e-6, "atol": 3e-2 if dtype.is_16_bit else 1e-6}
        np.testing.assert_allclose(result.astype(np.float64), want, **close)


def test_16_bit_operands_may_give_a_wider_result(library):
    result, want = run(library, product_of(dtypes.float16, dtypes.float32, (False, True)))
    np.testing.assert_allclose(result, want, 1e-6, 1e-6)


def test_operands_that_lie_badly_get_an_algorithm_of_their_own(library):
    result, want = run(library, product_of(dtypes.float32, dtypes.float32, (False, False)), skew=1)
    np.testing.assert_allclose(result, want, 1e-5, 1e-5)


def test_an_outer_batch_is_a_loop_of_strided_batches(library):
    run(library, product_of(dtypes.float32, dtypes.float32, (False, False), (4, 3)))
    assert library.lt.calls == 4


def test_nothing_of_cublaslt_outlives_a_call(library):
    run(library, product_of(dtypes.float32, dtypes.float32, (False, False)))
    assert not library.lt.objects


def test_the_algorithm_is_part_of_a_stored_plan(library):
    config, workspace = library.configure_product(product_of(dtypes.bfloat16, dtypes.float32, (True, False), bias=True))
    assert bytes.fromhex(config[-2]) == ALGORITHM and config[-1] <= workspace - 255
    step = LibraryCall("product", library.name, config, (Place(0, 0),), 1, 2)
    plan = Plan((step,), (Slot("input", 4, "x"),), (), "", ())
    assert unpack(pack(plan)) == plan


def test_without_the_library_the_doctor_says_what_to_install(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(cublaslt.importlib, "import_module", missing)
    assert cublaslt.find.__wrapped__() is None
    assert "weft[cuda]" in cublaslt.reason()


def test_small_products_of_float32_are_left_to_kernels_of_our_own(library):
    small = (1, 64, 128, 784)
    assert not library.can_multiply(dtypes.float32, *small) and library.can_multiply(dtypes.float32, 2, *small[1:])
    assert library.can_multiply(dtypes.bfloat16, *small) and library.can_multiply(dtypes.float64, *small)
    measured = [(1, 1, 2048, 2048), (1, 2048, 1, 2048), (1, 512, 512, 32), (1, 16, 16, 32768), (1, 203, 203, 203)]
    assert all(library.can_multiply(dtypes.float32, *product) for product in measured)  # these are faster by cuBLASLt
