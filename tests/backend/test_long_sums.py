"""Long sums: the error of a float32 sum does not grow with its length, in whatever operation and shape.

Terms that are all 0.1 are the worst case of a chain of additions, which errs in the same direction each time: one of n
terms loses up to n / 6 units in the last place. A tree over n terms (pairwise summation) loses log2(n) at most.
"""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn.functional as F

pytestmark = pytest.mark.usefixtures("on_each_device")
ROOT = Path(__file__).parents[2]
EPS = 2.0**-24  # the rounding of one float32 operation
BOUND = 24 * EPS  # of a tree over 2^24 terms

ROWS = [(64,), (65,), (2049,), (50257,), (1 << 20,), ((1 << 24) + 3,), (70, 33001), (3, 20, 5001), (128, 4096)]
COLUMNS = [(65, 3), (4097, 2), (300001, 4), (20000, 300), (2, 60001, 3), (2, 3, 5000, 5), (9000, 1, 33)]
KINDS = ["equal", "random"]


def terms(kind: str, shape: tuple[int, ...], dtype=np.float32) -> np.ndarray:
    values = np.full(shape, 0.1) if kind == "equal" else np.random.default_rng(0).random(shape, np.float32)
    return values.astype(dtype)


def error(found: weft.Tensor, expected: np.ndarray, scale: np.ndarray | None = None) -> float:
    """The largest error, relative to `scale`: that of the sum of absolute values, where terms have signs."""
    return float(
        np.max(np.abs(found.numpy().astype(np.float64) - expected) / np.abs(expected if scale is None else scale))
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ROWS)
def test_rows(shape, kind):
    x = terms(kind, shape)
    exact = x.astype(np.float64).sum(-1)
    assert error(weft.tensor(x).sum(-1), exact) < BOUND
    assert error(weft.tensor(x).mean(-1), exact / shape[-1]) < BOUND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", COLUMNS)
def test_columns(shape, kind):
    x, axis = terms(kind, shape), int(np.argmax(shape))
    assert error(weft.tensor(x).sum(axis), x.astype(np.float64).sum(axis)) < 2 * BOUND


def test_terms_with_signs():
    x = np.random.default_rng(0).standard_normal((3, 1 << 20)).astype(np.float32)
    wide = x.astype(np.float64)
    assert error(weft.tensor(x).sum(1), wide.sum(1), np.abs(wide).sum(1)) < EPS
    assert error(weft.tensor(x.T.copy()).sum(0), wide.sum(1), np.abs(wide).sum(1)) < EPS


def test_other_dtypes():
    half = terms("equal", (1 << 20,), np.float16)
    exact = half.astype(np.float64).mean()
    assert abs(weft.tensor(half).mean().item() - exact) < 2.0**-11 * exact, "the sum is one of float32"
    wide = terms("equal", (1 << 20,), np.float64)
    assert abs(weft.tensor(wide).sum().item() / (0.1 * (1 << 20)) - 1) < BOUND * 2.0**-29
    columns = terms("equal", (1 << 18, 3), np.float64)
    assert np.all(np.abs(weft.tensor(columns).sum(0).numpy() / (0.1 * (1 << 18)) - 1) < 2 * BOUND * 2.0**-29)


def test_infinities_and_overflow_are_those_of_a_chain():
    """What a compensated sum rounded off is no number where it is infinite."""
    x = np.ones(100001, np.float32)
    for value in (np.inf, -np.inf, np.nan):
        x[50000] = value
        np.testing.assert_equal(weft.tensor(x).sum().item(), value)
        np.testing.assert_equal(weft.tensor(np.stack([x] * 3, 1)).sum(0).numpy(), np.full(3, value))
        np.testing.assert_equal(weft.tensor(x).cumsum(0).numpy()[[49999, 50000, 100000]], [50000, value, value])
    assert weft.full((3000, 3), 3e38).clone().sum(0).tolist() == [np.inf] * 3
    assert weft.tensor(np.full(100000, -3e38, np.float32)).sum().item() == -np.inf


def test_what_repeats_is_counted():
    """No matter how often: 2^38 terms take no time."""
    many = 1 << 38
    assert weft.ones(many).sum().item() == many
    assert weft.ones(many, dtype=weft.bool).sum().item() == many
    assert (weft.ones(many) * 2 + 1).sum().item() == 3 * many
    assert weft.full((many,), 0.1).mean().item() == pytest.approx(0.1, rel=1e-7)
    assert weft.ones(many).var().item() == 0
    assert weft.full((70000,), 0.5, dtype=weft.float16).sum().item() == np.float16(35000)
    assert weft.ones(1 << 33, dtype=weft.int32).sum(dtype=weft.int32).item() == 0, "modulo 2^32"
    x = weft.tensor([[1.0], [2.0]], requires_grad=True)
    total = x.expand(2, many).sum(1)
    (total * weft.tensor([1.0, 3.0])).sum().backward()
    assert total.tolist() == [many, 2.0 * many] and x.grad.tolist() == [[many], [3.0 * many]]
    assert weft.ones(4, 0).sum().item() == 0 and weft.full((0,), np.inf).sum().item() == 0


@pytest.mark.parametrize("count", [32768, 100003, 1 << 22])
def test_variances_far_from_zero(count):
    """1000 to 1001: what is left of a mean of squares, less the square of the mean, would be noise."""
    x = (1000 + np.random.default_rng(0).random(count)).astype(np.float32)
    wide = x.astype(np.float64)
    tensor = weft.tensor(x).requires_grad_()
    variance = tensor.var()
    variance.backward()
    assert variance.item() == pytest.approx(wide.var(ddof=1), rel=2e-6)
    assert weft.tensor(x).std(correction=0).item() == pytest.approx(wide.std(), rel=2e-6)
    gradient = 2 * (wide - wide.mean()) / (count - 1)
    np.testing.assert_allclose(tensor.grad.numpy(), gradient, atol=2e-4 * np.abs(gradient).max())
    rows = weft.tensor(np.stack([x, x + 7, -x]))
    np.testing.assert_allclose(rows.var(1).numpy(), np.stack([wide, wide + 7, -wide]).var(1, ddof=1), rtol=1e-4)
    np.testing.assert_allclose(rows.T.contiguous().var(0).numpy(), rows.var(1).numpy(), rtol=1e-4)


@pytest.mark.parametrize("shape", [(64, 6, 20, 20), (8, 16, 3, 3), (3, 5, 200, 200), (9000, 7)])
def test_normalisation_far_from_zero(shape):
    x = (100 + np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    wide = x.astype(np.float64)
    channels = (0, *range(2, len(shape)))

    def normalised(axes):
        return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)

    ones, zeros = weft.ones(shape[1]), weft.zeros(shape[1])
    found = F.batch_norm(weft.tensor(x), zeros, ones, training=True)
    np.testing.assert_allclose(found.numpy(), normalised(channels), atol=5e-5)
    if len(shape) > 2:
        every = tuple(range(1, len(shape)))
        np.testing.assert_allclose(F.group_norm(weft.tensor(x), 1).numpy(), normalised(every), atol=5e-5)
        np.testing.assert_allclose(F.layer_norm(weft.tensor(x), shape[1:]).numpy(), normalised(every), atol=5e-5)


def test_norms_and_losses():
    x = np.full((3, 1 << 20), 0.1, np.float32)
    wide, ones = x.astype(np.float64), np.ones((3, 1 << 20), np.float32)
    assert weft.tensor(x).norm().item() == pytest.approx(np.sqrt((wide**2).sum()), rel=BOUND)
    assert weft.linalg.vector_norm(weft.tensor(x), 1, dim=1).numpy() == pytest.approx(np.abs(wide).sum(1), rel=BOUND)
    assert F.mse_loss(weft.tensor(x), weft.tensor(ones)).item() == pytest.approx(((wide - 1) ** 2).mean(), rel=BOUND)
    assert F.l1_loss(weft.tensor(x), weft.tensor(ones), reduction="sum").item() == pytest.approx(
        (1 - wide).sum(), rel=BOUND
    )
    logits = np.zeros((50000, 10), np.float32)
    loss = F.cross_entropy(weft.tensor(logits), weft.tensor(np.zeros(50000, np.int64)), reduction="sum")
    assert loss.item() == pytest.approx(50000 * np.log(10), rel=BOUND)
    assert weft.logsumexp(weft.tensor(x[0]), 0).item() == pytest.approx(np.log(1 << 20) + 0.1, rel=BOUND)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((64,), 0), ((65,), 0), ((1 << 20,), 0), ((40, 5001), 1), ((30000, 3), 0), ((2, 1000, 700), 1), ((300, 2100), 0)],
)
def test_running_sums(shape, axis, kind):
    x = terms(kind, shape)
    exact = np.cumsum(x.astype(np.float64), axis)
    assert error(weft.tensor(x).cumsum(axis), exact) < BOUND
    assert error((weft.tensor(x) * 2 + x).cumsum(axis), 3 * exact) < BOUND
    back = np.flip(np.cumsum(np.flip(x.astype(np.float64), axis), axis), axis)
    assert error(weft.tensor(x).flip(axis).cumsum(axis).flip(axis), back) < BOUND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [(), (3,), (8,), (40,)])
def test_segments(width, kind):
    lengths = [0, 1, 63, 64, 65, 0, 128, 129, 5000, 100001, 2]
    pointers = np.concatenate([[0], np.cumsum(lengths)])
    x = terms(kind, (int(pointers[-1]), *width))
    wide = x.astype(np.float64)
    exact = np.stack([wide[a:b].sum(0) for a, b in itertools.pairwise(pointers)])
    found = weft.segment_reduce(weft.tensor(x), weft.tensor(pointers))
    assert error(found, exact, np.maximum(exact, 1e-30)) < BOUND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("entries", "count", "width"),
    [(64, 2, (8,)), (65, 1, (8,)), (200001, 3, ()), (100001, 4, (2, 5)), (30000, 20000, (9,)), (500, 3000, (16,))],
)
def test_scattered_rows(entries, count, width, dtype, kind):
    """All go to few rows of the table, others are empty."""
    index = np.random.default_rng(1).integers(0, min(count, 7), entries)
    x = terms(kind, (entries, *width), dtype)
    exact = np.zeros((count, *width))
    for row in range(min(count, 7)):
        exact[row] = x[index == row].astype(np.longdouble).sum(0)
    bound = BOUND if dtype == "float32" else 1e-13
    found = weft.scatter_sum(weft.tensor(x), weft.tensor(index), count)
    assert error(found, exact, np.maximum(exact, 1e-30)) < bound
    source = weft.ones(count, *width, dtype=found.dtype)
    assert error(source.index_add(0, weft.tensor(index), weft.tensor(x)), exact + 1) < bound
    picked = weft.ones(count, *width).requires_grad_()
    (picked[weft.tensor(index)] * weft.tensor(x.astype(np.float32))).sum().backward()
    assert error(picked.grad, exact, np.maximum(exact, 1e-30)) < BOUND


@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16])
@pytest.mark.parametrize(("count", "width"), [(3, 8), (3, 2), (2000, 16)])
def test_scattered_rows_of_16_bits(count, width, dtype):
    """They are added up in float32, and rounded once."""
    index = np.random.default_rng(1).integers(0, 3, 2500)
    found = weft.scatter_sum(weft.ones(2500, width, dtype=dtype), weft.tensor(index), count)
    expected = np.zeros((count, width), np.float32)
    expected[:3] = np.bincount(index)[:, None]
    assert found.dtype is dtype and found.float().numpy().tolist() == weft.tensor(expected).to(dtype).float().tolist()


def test_scattered_elements():
    index = np.random.default_rng(1).integers(0, 5, (3, 40000))
    x = terms("equal", (3, 40000))
    exact = np.stack([np.bincount(index[row], x[row].astype(np.float64), 5) for row in range(3)])
    assert error(weft.zeros(3, 5).scatter_add(1, weft.tensor(index), weft.tensor(x)), exact) < BOUND
    source = weft.zeros(3, 5).requires_grad_()
    (source.gather(1, weft.tensor(index)) * weft.tensor(x)).sum().backward()
    assert error(source.grad, exact) < BOUND


def computed(step) -> list[np.ndarray]:
    """Sums of every kind, of values between which a chain and a tree differ."""
    x = weft.tensor(terms("random", (140001,)))
    table, columns = weft.tensor(terms("random", (9000, 17))), weft.tensor(terms("random", (3, 70000)))
    index = weft.tensor(np.random.default_rng(2).integers(0, 40, 9000))
    found = step(x, table, columns, index)
    return [tensor.numpy() for tensor in found]


def every_sum(x, table, columns, index):
    normed = F.batch_norm(table.T.reshape(17, 9, 1000), weft.zeros(9), weft.ones(9), training=True)
    rows = (columns - columns.mean(1, keepdim=True)).abs()
    return (
        x.sum(), x.var(), x.cumsum(0), table.sum(0), table.cumsum(0), rows.sum(1), columns.softmax(1), columns.std(1),
        weft.scatter_sum(table, index, 40), weft.scatter_sum(table, index, 8000),
        weft.scatter_sum(table[:, 0], index, 40), normed, (table * rows.sum()).sum(0), table.norm(),
    )  # fmt: skip


def test_bits_are_those_of_the_expression():
    """Compiled or not; one by one, or all together in shared kernels."""
    alone = computed(lambda *given: [every_sum(*given)[number].detach() for number in range(14)])
    together, compiled = computed(every_sum), computed(weft.compile(every_sum))
    for number, (a, b, c) in enumerate(zip(alone, together, compiled, strict=True)):
        assert a.tobytes() == b.tobytes() == c.tobytes(), number


@pytest.mark.cpu_only
def test_bits_do_not_depend_on_threads():
    code = "from tests.backend import test_long_sums as t; print(t.digest())"
    found = set()
    for threads in ("1", "2", "3"):
        env = {**os.environ, "WEFT_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
        )
        assert run.returncode == 0, run.stderr
        found.add(run.stdout)
    assert len(found) == 1


def digest() -> str:
    return hashlib.sha256(b"".join([array.tobytes() for array in computed(every_sum)])).hexdigest()
