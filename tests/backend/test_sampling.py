"""Samples have the distributions that they should, follow from the seed alone, and are written like any other value."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")

ROOT = Path(__file__).parents[2]
COUNT = 40000
FLOATS = ("float32", "float64", "float16", "bfloat16")
SPACING = {"float32": 0.0, "float64": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # what rounding adds to a distance

erf = np.vectorize(math.erf)


def normal_cdf(x):
    return 0.5 + 0.5 * erf(x / math.sqrt(2))


CONTINUOUS = {
    "uniform_": ((-1.0, 3.0), lambda x: np.clip((x + 1) / 4, 0, 1)),
    "normal_": ((2.0, 3.0), lambda x: normal_cdf((x - 2) / 3)),
    "log_normal_": ((0.5, 0.25), lambda x: normal_cdf((np.log(np.maximum(x, 1e-30)) - 0.5) / 0.25)),
    "exponential_": ((2.0,), lambda x: 1 - np.exp(-2 * x)),
    "cauchy_": ((1.0, 2.0), lambda x: 0.5 + np.arctan((x - 1) / 2) / np.pi),
}


def distance(values, cdf):
    """Kolmogorov and Smirnov: the largest distance of the distribution of values from a continuous one."""
    ordered = np.sort(values.astype(np.float64))
    expected, steps = cdf(ordered), np.arange(len(ordered) + 1) / len(ordered)
    return max((steps[1:] - expected).max(), (expected - steps[:-1]).max())


def far(counts, probabilities):
    """Chi-square of counts, in standard deviations from its mean."""
    counts, probabilities = np.asarray(counts, np.float64), np.asarray(probabilities, np.float64)
    expected = counts.sum() * probabilities
    assert expected.min() > 5 and abs(probabilities.sum() - 1) < 1e-9
    degrees = counts.size - 1
    return abs(((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


# ---- distributions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name, dtype):
    args, cdf = CONTINUOUS[name]
    x = weft.empty(COUNT, dtype=dtype)
    assert getattr(x, name)(*args) is x and x.dtype.name == dtype
    values = x.numpy().astype(np.float64)
    assert np.isfinite(values).all()
    assert distance(values, cdf) < 1.95 / math.sqrt(COUNT) + SPACING[dtype]
    halves = values.reshape(2, -1)
    assert abs(np.corrcoef(cdf(halves[0]), cdf(halves[1]))[0, 1]) < 5 / math.sqrt(COUNT / 2)


def test_normal_of_tensors_and_numbers():
    mean, std = weft.tensor([[0.0], [5.0]]), weft.tensor([1.0, 2.0, 0.5]).expand(COUNT, 1, 3)
    x = weft.normal(mean, std).numpy()
    assert x.shape == (COUNT, 2, 3)
    for row, column in itertools.product(range(2), range(3)):
        scaled = (x[:, row, column] - (0, 5)[row]) / (1, 2, 0.5)[column]
        assert distance(scaled, normal_cdf) < 1.95 / math.sqrt(COUNT)
    assert distance(weft.normal(3.0, 2.0, (COUNT,)).numpy(), lambda x: normal_cdf((x - 3) / 2)) < 1.95 / math.sqrt(
        COUNT
    )
    assert weft.normal(weft.zeros(3, dtype=weft.float64)).dtype is weft.float64
    assert weft.normal(0.0, weft.ones(2, dtype=weft.float16)).dtype is weft.float16
    assert weft.normal(mean=0.0, std=1.0, size=(2,), dtype=weft.float64).dtype is weft.float64
    assert weft.normal(weft.tensor([1.0, 2.0]), 0.0).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "uint8", "int32"])
def test_geometric_numbers_are_trials_up_to_the_first_success(dtype):
    x = weft.empty(COUNT, dtype=dtype).geometric_(0.3).numpy().astype(np.float64)
    counts = np.bincount(np.minimum(x, 15).astype(int), minlength=16)[1:]
    assert x.min() == 1 and (x == np.floor(x)).all()
    assert far(counts, [*[0.3 * 0.7**k for k in range(14)], 0.7**14]) < 4


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mean", [0.25, 3.0, 9.5, 10.0, 25.0, 200.0])
def test_poisson(mean, dtype):
    """Classes of one number each, as far as 40 samples or more are expected, and one for all others."""
    x = weft.poisson(weft.full((COUNT,), mean, dtype=dtype)).numpy().astype(np.float64)
    assert (x == np.floor(x)).all() and x.min() >= 0
    chances = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(int(mean + 60))]
    classes = [k for k, chance in enumerate(chances) if chance * COUNT >= 40]
    counts = [(x == k).sum() for k in classes]
    rest = 1 - sum(chances[k] for k in classes)
    assert far([*counts, COUNT - sum(counts)], [*[chances[k] for k in classes], rest]) < 4


def test_poisson_at_the_ends():
    assert weft.poisson(weft.zeros(100)).tolist() == [0.0] * 100
    x = weft.poisson(weft.full((COUNT,), 1e9, dtype=weft.float64)).numpy()
    assert abs(x.mean() - 1e9) < 5 * math.sqrt(1e9 / COUNT) and abs(x.var() / 1e9 - 1) < 0.05
    mixed = weft.poisson(weft.tensor([0.0, 1.0, 100.0]).expand(COUNT, 3)).numpy()
    np.testing.assert_allclose(mixed.mean(0), [0, 1, 100], atol=0.3)
    assert weft.poisson(weft.zeros(0)).shape == (0,)


def test_geometric_numbers_stay_in_the_dtype():
    assert weft.empty(100, dtype=weft.uint8).geometric_(1e-6).numpy().min() == 255


@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "uint8", "bool"])
def test_bernoulli_(dtype):
    x = weft.empty(COUNT, dtype=dtype).bernoulli_(0.3).numpy().astype(np.float64)
    assert far(np.bincount(x.astype(int), minlength=2), [0.7, 0.3]) < 4
    p = weft.tensor([0.0, 0.25, 1.0])
    mean = weft.empty(COUNT, 3, dtype=dtype).bernoulli_(p).numpy().astype(np.float64).mean(0)
    np.testing.assert_allclose(mean, [0.0, 0.25, 1.0], atol=0.01)
    assert set(weft.empty(50, dtype=dtype).bernoulli_(1.0).numpy().astype(int).tolist()) == {1}
    assert set(weft.empty(50, dtype=dtype).bernoulli_(0.0).numpy().astype(int).tolist()) == {0}


def test_small_probabilities_count():
    """24 bits would give 2^-24, about six times as many."""
    draws = [int(weft.empty(1 << 22, dtype=weft.uint8).bernoulli_(1e-8).sum()) for _ in range(8)]
    assert sum(draws) <= 4


def test_bernoulli_forms():
    x = weft.zeros(COUNT, dtype=weft.int64)
    assert x.bernoulli(0.5).dtype is weft.int64 and abs(weft.bernoulli(x, 0.25).float().mean().item() - 0.25) < 0.01
    assert weft.bernoulli(input=weft.tensor([1.0, 0.0]), generator=weft.Generator(3)).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "int8", "uint64", "bool"])
def test_random_covers_what_the_dtype_holds(dtype):
    x = weft.empty(COUNT, dtype=dtype).random_().numpy()
    kind = weft.empty(1, dtype=dtype).dtype
    largest = {"float32": 2**24, "float64": 2**53, "bool": 1}.get(dtype) or int(np.iinfo(kind.numpy).max)
    scaled = x.astype(np.float64) / (largest + 1)
    assert (
        far(
            np.histogram(scaled, min(16, largest + 1), (0, 1))[0],
            np.full(min(16, largest + 1), 1 / min(16, largest + 1)),
        )
        < 4
    )


@pytest.mark.parametrize("bounds", [(0, 7), (-3, 5), (0, 3 << 40), (-(2**63), 2**63), (-(2**62), 2**62), (5, 6)])
def test_whole_numbers_of_any_range(bounds):
    low, high = bounds
    made = [weft.randint(low, high, (COUNT,)), weft.randint_like(weft.zeros(COUNT, dtype=weft.int64), low, high)]
    made.append(weft.empty(COUNT, dtype=weft.int64).random_(low, high if high < 2**63 else None))
    for x in made:
        values = x.numpy()
        assert x.dtype is weft.int64 and values.min() >= low and values.max() < high
        classes = min(high - low, 8)
        if classes > 1:
            found = np.bincount([(int(value) - low) * classes // (high - low) for value in values], minlength=classes)
            share = (
                np.bincount([k * classes // (high - low) for k in range(high - low)])
                if high - low < 100
                else np.ones(8)
            )
            assert far(found, share / share.sum()) < 4


def test_float64_has_all_its_bits():
    x = weft.rand(COUNT, dtype=weft.float64).numpy()
    assert distance(x, lambda x: x) < 1.95 / math.sqrt(COUNT)
    low = (x * 2.0**53).astype(np.int64) & 0xFFFF
    assert (x * 2.0**53 == np.floor(x * 2.0**53)).all()
    assert far(np.bincount(low >> 12, minlength=16), np.full(16, 1 / 16)) < 4
    assert distance(weft.randn(COUNT, dtype=weft.float64).numpy(), normal_cdf) < 1.95 / math.sqrt(COUNT)


# ---- permutations and categories ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 65, 1000, 100003])
def test_a_permutation_has_each_number_once(n):
    order = weft.randperm(n)
    assert order.dtype is weft.int64 and (np.sort(order.numpy()) == np.arange(n)).all()
    assert n < 3 or (order.numpy() != np.arange(n)).any()


def test_all_permutations_are_equally_likely():
    step = weft.compile(lambda: weft.randperm(4))
    found = [tuple(step().tolist()) for _ in range(2400)]
    counts = [found.count(one) for one in itertools.permutations(range(4))]
    assert far(counts, np.full(24, 1 / 24)) < 4


@pytest.mark.parametrize("dtype", FLOATS)
def test_categories_drawn_again(dtype):
    weights = np.array([[0.0, 1.0, 2.0, 0.0, 5.0], [3.0, 0.0, 0.0, 0.0, 0.0], [1e-3, 1e-3, 1e-3, 1e-3, 1e-3]])
    drawn = weft.multinomial(weft.tensor(weights, dtype=dtype), COUNT, replacement=True)
    assert drawn.dtype is weft.int64 and drawn.shape == (3, COUNT)
    first, second, third = drawn.numpy()
    counts = np.bincount(first, minlength=5)
    assert counts[0] == counts[3] == 0 and far(counts[[1, 2, 4]], [1 / 8, 2 / 8, 5 / 8]) < 4
    assert (second == 0).all()
    assert far(np.bincount(third, minlength=5), np.full(5, 0.2)) < 4


def test_categories_drawn_once():
    p = np.array([0.1, 0.2, 0.3, 0.4])
    drawn = weft.multinomial(weft.tensor(p).expand(COUNT, 4), 2).numpy()
    pairs = list(itertools.permutations(range(4), 2))
    counts = [((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum() for a, b in pairs]
    assert far(counts, [p[a] * p[b] / (1 - p[a]) for a, b in pairs]) < 4
    whole = weft.multinomial(weft.rand(20, 300) + 0.01, 300).numpy()
    assert (np.sort(whole, 1) == np.arange(300)).all()
    assert weft.multinomial(weft.tensor([0.0, 1.0, 0.0, 2.0]), 3).numpy()[:2].tolist() in ([1, 3], [3, 1])


def test_one_of_very_many_categories():
    """Ties among 24-bit numbers would prefer the first ones."""
    weights = weft.ones(1 << 18)
    for count, replacement in ((200, True), (200, False)):
        drawn = np.concatenate([weft.multinomial(weights, count, replacement).numpy() for _ in range(20)])
        assert far(np.bincount(drawn >> 14, minlength=16), np.full(16, 1 / 16)) < 4


def test_weights_of_any_size():
    for scale in (1e-30, 1e30):
        drawn = weft.multinomial(weft.tensor([1.0, 3.0]) * scale, COUNT, True).numpy()
        assert far(np.bincount(drawn), [0.25, 0.75]) < 4
    tiny = weft.multinomial(weft.tensor([1e-30, 1.0]), 2).tolist()
    assert tiny == [1, 0]  # not likely, but possible


def test_no_rows():
    assert weft.multinomial(weft.zeros(0, 3), 2).shape == (0, 2)


# ---- seeds ----------------------------------------------------------------------------------------------------------


def samples(x):
    weights = x.abs() + 0.1
    return (
        weft.randperm(1003), weft.multinomial(weights, 3, True), weft.multinomial(weights, 3),
        weft.normal(x, weights), weft.normal(0.0, 2.0, (5,), dtype=weft.float64), weft.bernoulli(weights.clamp(0, 1)),
        weft.randint(1 << 40, (7,)), weft.randint_like(x, 3, 9), (x * 1).uniform_(-1, 1), (x * 1).normal_(1, 2),
        (x * 1).log_normal_(), (x * 1).exponential_(), (x * 1).cauchy_(), (x * 1).geometric_(0.2),
        (x * 1).bernoulli_(0.4), (x * 1).random_(), weft.rand(3, dtype=weft.float64),
        weft.poisson(weights * 12), weft.randn(3, dtype=weft.float64), weft.rand(5, dtype=weft.bfloat16),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_seed_gives_the_same_numbers_eager_and_compiled(dtype):
    x = weft.tensor(np.linspace(-1, 1, 48).reshape(6, 8), dtype=dtype)
    weft.manual_seed(3)
    eager = [[part.numpy() for part in samples(x)] for _ in range(3)]
    weft.manual_seed(3)
    step = weft.compile(samples)
    for expected in eager:
        for part, other in zip(step(x), expected, strict=True):
            np.testing.assert_array_equal(part.numpy(), other)
    for first, second in zip(*eager[:2], strict=True):
        assert (first != second).any()  # each replay draws anew


def test_reference_draws_the_same_numbers():
    """But for the last digits of logarithms and cosines."""
    x = np.linspace(-1, 1, 48).reshape(6, 8).astype(np.float32)
    found = []
    for name in ("reference", weft.default_device().name):
        with weft.device(name):
            weft.manual_seed(5)
            found.append([part.numpy() for part in samples(weft.tensor(x))])
    for part, other in zip(*found, strict=True):
        np.testing.assert_allclose(part.astype(np.float64), other.astype(np.float64), rtol=2e-5, atol=1e-6)


def test_generators_of_ones_own():
    a, b = weft.Generator(7), weft.Generator(7)
    assert weft.randperm(50, generator=a).tolist() == weft.randperm(50, generator=b).tolist()
    assert weft.empty(5).uniform_(generator=a).tolist() == weft.empty(5).uniform_(generator=b).tolist()
    p = weft.ones(9)
    assert weft.multinomial(p, 4, generator=a).tolist() == weft.multinomial(p, 4, generator=b).tolist()
    assert weft.normal(p, p, generator=a).tolist() == weft.normal(p, p, generator=b).tolist()
    assert a.get_state() == b.get_state()


PROGRAM = """
import hashlib, weft
weft.manual_seed(11)
x = weft.zeros(300, 500)
parts = [weft.randperm(200003), weft.multinomial(x + 1, 100), weft.multinomial(x + 1, 1000, True),
         x.clone().normal_(), x.clone().exponential_(), x.clone().geometric_(0.1)]
print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest())
"""


@pytest.mark.cpu_only
def test_threads_change_nothing():
    found = set()
    for threads in (1, 2, 5):
        environment = {**os.environ, "WEFT_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        found.add(done.stdout.strip())
    assert len(found) == 1 and len(found.pop()) == 64


def test_numbers_of_a_call_may_differ_from_call_to_call():
    step = weft.compile(lambda x, low, high: (x * 1).uniform_(low, high))
    x = weft.zeros(100)
    for low, high in ((0.0, 1.0), (5.0, 6.0), (-3.0, -2.5)):
        values = step(x, low, high).numpy()
        assert low <= values.min() and values.max() < high


# ---- writing --------------------------------------------------------------------------------------------------------


def test_views_are_written():
    x = weft.zeros(4, 6)
    row = x[1]
    x[2:, ::2].fill_(7.0)
    row.uniform_(1, 2)
    x.t()[5].normal_(100, 1)
    values = x.numpy()
    assert (values[1, :5] >= 1).all() and (values[1, :5] < 2).all() and (values[0, :5] == 0).all()
    assert (values[:, 5] > 90).all() and (values[2:, 0:5:2] == 7).all() and (values[2:, 1:5:2] == 0).all()
    assert row.tolist() == x[1].tolist()


def test_cells_of_compiled_functions_are_written():
    noise = weft.zeros(5)
    step = weft.compile(lambda: noise.normal_().sum())
    weft.manual_seed(1)
    first, seen = step().item(), noise.tolist()
    assert step().item() != first and noise.tolist() != seen
    weft.manual_seed(1)
    assert weft.empty(5).normal_().tolist() == seen


def test_leaves_that_require_grad():
    w = weft.zeros(3, requires_grad=True)
    with pytest.raises(weft.GraphError):
        w.uniform_()
    with weft.no_grad():
        assert w.uniform_(1, 2) is w
    assert w.requires_grad and w.is_leaf and w.detach().min().item() >= 1
    (w * w).sum().backward()
    assert w.grad.tolist() == (2 * w.detach()).tolist()


def test_samples_have_no_gradient_in_what_they_were_drawn_with():
    p = weft.full((4,), 0.5, requires_grad=True)
    for draw in (
        weft.bernoulli,
        lambda p: weft.normal(p, p),
        lambda p: weft.normal(0.0, p),
        lambda p: p.bernoulli(0.3),
    ):
        p.grad = None
        value = draw(p)
        assert value.requires_grad
        (value * p.detach()).sum().backward()
        assert p.grad.tolist() == [0.0] * 4
    assert not weft.multinomial(p, 2).requires_grad


def test_uniform_never_is_its_upper_end():
    for dtype, low, high in (("bfloat16", 0.5, 1.0), ("float16", 1.0, 1.01), ("float32", 1.0, 1.0 + 2**-22)):
        x = weft.empty(COUNT, dtype=dtype).uniform_(low, high).numpy().astype(np.float64)
        top = weft.tensor(high, dtype=dtype).item()
        assert x.min() >= low and x.max() < top
    assert weft.empty(2).uniform_(1, 1).tolist() == [1.0, 1.0]
    assert (weft.empty(1 << 20).exponential_().numpy() > 0).all()
