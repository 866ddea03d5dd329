"""Matrix products inside kernels: right for every extent, the same bits in every tile."""

import numpy as np
import pytest

from tests.unit.kernel_harness import begin, call, end, kernel_of
from weft.base.dtypes import from_numpy, int64
from weft.errors import GraphError
from weft.kernels.cpu.gemm import Matrix, product, tile_for
from weft.kernels.cpu.schedule import TILE_COLUMNS
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, axis_index
from weft.kernels.ir.language import Accumulator, IndexValue, Loop, Reduction, Store, Update, Var
from weft.kernels.numerics import product_tiles

pytestmark = pytest.mark.unit


def multiply(a, b, transposed=False, known=True, registers=2048):
    """A @ B by a kernel; A as its transpose in memory, or with extents that the kernel learns at run time."""
    (m, k), n = a.shape, b.shape[1]
    stored = np.ascontiguousarray(a.T if transposed else a)
    out = np.full((m, n), 7, a.dtype)
    dtype = from_numpy(a.dtype)
    left = Matrix("a", ix.ZERO, stored.shape[1], 1, dtype)
    right = Matrix("b", ix.ZERO, n, 1, dtype)
    result = Matrix("c", ix.ZERO, n, 1, dtype)
    task = Axis("task", MAX_EXTENT)
    rows, inner = (m, k) if known else (IndexValue(axis_index(task), int64), IndexValue(ix.const(k), int64))
    body = product(
        "p",
        left.transposed if transposed else left,
        right,
        (rows, n, inner),
        lambda i, j, value: Store("c", result.at(i, j), value),
        tile_for(registers),
    )
    kernel = kernel_of("product", {"a": stored, "b": b}, {"c": out}, (Loop(task, begin, end, "task", body),))
    call(kernel, {"a": stored, "b": b}, {"c": out}, (), (0, 1) if known else (m, m + 1))
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("extents", [(1, 1, 1), (8, 32, 16), (9, 33, 5), (7, 3, 4), (64, 64, 64), (19, 100, 1)])
def test_product(extents, dtype):
    m, n, k = extents
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    first = multiply(a, b)
    np.testing.assert_allclose(first, expected, rtol=0, atol=k * 3 * np.finfo(dtype).eps * 3)
    for transposed in (False, True):
        for known in (False, True):
            assert np.array_equal(multiply(a, b, transposed, known), first)


def test_bits_do_not_depend_on_the_tile():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((16, 70)).astype(np.float32), rng.standard_normal((70, 40)).astype(np.float32)
    whole = multiply(a, b)
    for row in range(16):
        assert np.array_equal(multiply(a[row : row + 1], b), whole[row : row + 1])
    assert np.array_equal(multiply(a, b, registers=512), whole)
    assert np.array_equal(multiply(a, np.ascontiguousarray(b[:, 3:5])), whole[:, 3:5])


def test_products_go_into_sums_inside_a_vector_loop_only():
    x, dtype = Axis("x", 64), from_numpy(np.dtype(np.float32))
    array = np.ones(64, np.float32)
    value = Matrix("a", ix.ZERO, 0, 1, dtype).load(ix.ZERO, axis_index(x))
    reduction = Reduction(
        (Accumulator("s", "sum", dtype),), (Loop(x, 0, 64, "vector", (Update("s", value, value),), 16),)
    )
    store = Store("c", axis_index(Axis("t", 1)), Var("s", dtype))
    with pytest.raises(GraphError, match="a product into 's'"):
        call("bad", {"a": array}, {"c": array}, (Loop(Axis("t", 1), begin, end, "task", (reduction, store)),), (0, 1))


@pytest.mark.parametrize("small", [False, True])
def test_tiles_begin_where_epilogues_expect_them(small):
    rng = np.random.default_rng(3)
    for batch, m, n, k in rng.integers(1, 5000, (500, 4)):
        for transposed in ((False, False), (False, True), (True, False)):
            _, width = product_tiles(int(batch) % 4 + 1, int(m), int(n), int(k), transposed, small)
            assert width >= n or width % TILE_COLUMNS == 0
