"""Scans and sorts: one kernel each with their producers, the same bits in every fusion context, conventions at ties."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft

pytestmark = pytest.mark.backend
ROOT = Path(__file__).parents[2]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(300, 40), (6, 500), (40000,), (3, 5, 7)])
def test_a_scan_takes_in_what_leads_to_it(shape):
    step = weft.compile(lambda x: (x.exp() * 2 + 1).cumsum(0))
    x = weft.tensor(normal(*shape))
    result = step(x)
    assert len(step.plan) == (1 if np.prod(shape) < 32768 else 3)
    assert result.numpy().tobytes() == (x.exp() * 2 + 1).cumsum(0).numpy().tobytes()


@pytest.mark.parametrize("shape", [(1000,), (9000,), (70, 200), (3, 5000), (500, 9)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_compiled_and_alone_are_the_same(shape, dtype):
    x = weft.tensor(normal(*shape).astype(dtype))

    def loss(x):
        values = (x * 1.5).sort(descending=True).values
        return (values * values.cumsum(-1)).sum() + x.topk(3).values.sum() + x.cumprod(-1).sum()

    def both(x):
        return *(x * 1.5).sort(descending=True), loss(x), weft.grad(loss)(x)

    for one, two in zip(both(x), weft.compile(both)(x), strict=True):
        assert one.numpy().tobytes() == two.numpy().tobytes()


def test_sorting_is_one_kernel():
    step = weft.compile(lambda x: (x * 2).argsort(-1, True))
    for shape in [(5000,), (8, 30), (8, 3000), (4, 9000)]:
        step(weft.tensor(normal(*shape)))
        assert len(step.plan) == 1


def test_a_new_length_needs_no_new_kernel():
    for sort in (lambda x: x.argsort(0), lambda x: x.cumsum(0), lambda x: x.exp().cumsum(0)):
        sort(weft.tensor(normal(3000))).numpy()
        before = dict(weft.counters())
        sort(weft.tensor(normal(3777))).numpy()
        for name in ("kernels_compiled", "kernels_from_disk"):
            assert weft.counters()[name] == before[name]


DIGEST = """
import hashlib, numpy as np, weft
x = weft.tensor(np.random.default_rng(3).normal(size=(5, 40000)).astype("float32"))
digest = hashlib.sha256()
flat = x.view(-1)
for one in (x.cumsum(1), x.cumsum(0), *x.sort(1), *x.topk(3, 0), *x.topk(9, 1), flat.cumsum(0), flat.argsort()):
    digest.update(one.numpy().tobytes())
print(digest.hexdigest())
"""


def test_any_number_of_threads_gives_the_same_bits():
    results = set()
    for threads in ("1", "2", "5"):
        environment = {**os.environ, "WEFT_NUM_THREADS": threads, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True
        )
        results.add(done.stdout)
    assert len(results) == 1 and len(results.pop()) == len(hashlib.sha256().hexdigest()) + 1


def test_equal_elements_keep_their_order():
    rng = np.random.default_rng(1)
    for shape in [(40,), (5, 200), (3, 9000), (20000,)]:
        x = rng.integers(0, 3, shape).astype(np.float32)
        tensor = weft.tensor(x)
        np.testing.assert_array_equal(tensor.argsort().numpy(), np.argsort(x, -1, kind="stable"))
        down = np.argsort(-x, -1, kind="stable")
        np.testing.assert_array_equal(tensor.argsort(descending=True).numpy(), down)
        np.testing.assert_array_equal(tensor.topk(7).indices.numpy(), down[..., :7])
        np.testing.assert_array_equal(
            tensor.topk(7, largest=False).indices.numpy(), np.argsort(x, kind="stable")[..., :7]
        )


def test_every_integer_has_its_place():
    for dtype in ("int32", "int64", "uint32"):
        bounds = np.iinfo(dtype)
        for count in (30, 300, 9000):
            x = np.random.default_rng(2).integers(bounds.min, bounds.max, count, dtype=dtype, endpoint=True)
            x[:2] = bounds.min, bounds.max
            for tensor, array in ((weft.tensor(x), x), (weft.tensor(x.reshape(2, -1)), x.reshape(2, -1))):
                np.testing.assert_array_equal(tensor.argsort().numpy(), np.argsort(array, -1, kind="stable"))


@pytest.mark.parametrize("name", ["unique", "nonzero", "argwhere", "unique_consecutive", "bincount"])
def test_shapes_that_depend_on_data_are_refused_inside_compile(name):
    x = weft.tensor([1, 0, 2])
    with pytest.raises(weft.GraphError, match=r"inside weft\.compile"):
        weft.compile(lambda x: getattr(weft, name)(x))(x)


def test_second_derivatives_of_a_running_sum():
    slope = weft.grad(lambda x: (x.cumsum(0) ** 3).sum())
    assert weft.testing.gradcheck(slope, [weft.tensor(normal(4).astype(np.float64))])


def test_gathering_along_an_axis_is_checked_where_the_user_is():
    x, index = weft.tensor(normal(3, 4)), weft.tensor([[0, 4], [1, 1], [2, 0]])
    with pytest.raises(weft.IndexRangeError, match=r"test_order\.py"):
        x.gather(1, index).numpy()
    step = weft.compile(weft.grad(lambda x: (x.gather(1, index.clamp(0, 3)) ** 2).sum()))
    expected = np.zeros((3, 4), np.float32)
    places = index.clamp(0, 3).numpy()
    for row, column in np.ndindex(places.shape):
        expected[row, places[row, column]] += 2 * x.numpy()[row, places[row, column]]
    np.testing.assert_allclose(step(x).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bqhd,bkhd->bhqk", [(4, 64, 8, 32), (4, 64, 8, 32)]),
        ("ij,kj->ik", [(128, 256), (64, 256)]),
        ("bij,jk->bik", [(8, 64, 64), (64, 64)]),
    ],
)
def test_einsum_is_a_product_over_views(equation, shapes):
    step = weft.compile(lambda *xs: weft.einsum(equation, *xs))
    step(*[weft.tensor(normal(*shape)) for shape in shapes])
    assert [kernel.name.split("_")[0] for kernel in step.plan.kernels()] == ["gemm"]


def test_gradients_of_gradients_of_logcumsumexp():
    """Beside NumPy in double precision: where the gradient that comes in is above zero, below it, and zero."""

    def slopes(a):
        y, e = np.log(np.cumsum(np.exp(a))), np.exp(a)
        return np.array([sum(2 * y[j] * e[i] / e[: j + 1].sum() for j in range(i, len(a))) for i in range(len(a))])

    a = np.array([0.0, -1.5, 1.0, -0.25])  # the first sum is log(1), so its gradient is 0
    x = weft.tensor(a, requires_grad=True)
    (found,) = weft.grad((x.logcumsumexp(0) ** 2).sum(), x, create_graph=True)
    np.testing.assert_allclose(found.numpy(), slopes(a), rtol=1e-12, atol=1e-15)
    weights = np.array([1.0, -2.0, 0.5, 3.0])
    (second,) = weft.grad((found * weft.tensor(weights)).sum(), x, create_graph=True)

    def numeric(function, a, step):
        ends = [(function(a + step * one) - function(a - step * one)) / (2 * step) for one in np.eye(len(a))]
        return np.array(ends)

    def expected(a):
        return numeric(lambda b: (slopes(b) * weights).sum(), a, 1e-4)

    np.testing.assert_allclose(second.numpy(), expected(a), rtol=1e-6, atol=1e-7)
    (third,) = weft.grad((second**2).sum(), x)
    np.testing.assert_allclose(third.numpy(), numeric(lambda b: (expected(b) ** 2).sum(), a, 1e-3), rtol=1e-4)


def test_a_nan_that_comes_into_the_gradient_of_logcumsumexp_is_seen():
    x = weft.tensor([0.5, 1.0, -2.0], requires_grad=True)
    (x.logcumsumexp(0) * weft.tensor([1.0, float("nan"), 1.0])).sum().backward()
    assert np.isnan(x.grad.numpy()).tolist() == [True, True, False]
