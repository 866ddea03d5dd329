"""Random numbers follow from the seed alone, and have the moments they should."""

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.graph.evaluations import philox, random_bits
from weft.ops import creation

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def on_reference():
    with weft.device("reference"):
        weft.manual_seed(0)
        yield


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_known_answers(counter, key, words):
    assert tuple(word[0] for word in philox(np.array([counter[0]], np.uint32), counter[1], key)) == words


@pytest.mark.parametrize("size", [1, 3, 4, 5, 4001])
def test_sixteen_bits_are_halves_of_the_words_of_a_counter(size):
    """Known from 32 bits, whose word 0 is that of the same counter: halves 0 and 1 of every four."""
    state = np.array([17, 5], np.uint32)
    halves, words = random_bits(state, 2, (size,), 16), random_bits(state, 2, (size,), 32)
    counters = np.arange(size) // 4
    low = np.arange(size) % 4 == 0
    assert (halves < 2**16).all() and halves.dtype == np.uint32
    assert (halves[low] == words[counters[low]] & 0xFFFF).all()
    high = np.arange(size) % 4 == 1
    assert (halves[high] == words[counters[high]] >> 16).all()
    second = philox(counters.astype(np.uint32), 7, 17)[1]
    assert (halves[2::4] == second[2::4] & 0xFFFF).all() and (halves[3::4] == second[3::4] >> 16).all()


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("shape", [(4000, 100), (999, 401)], ids=["whole fours", "ragged"])
def test_sixteen_bits_are_uniform_and_independent(device, shape):
    """Chi-square of 256 classes of the high and of the low byte, and of adjacent elements and rows (16 classes):
    each within five standard deviations of what chance gives."""
    state = weft.random.Generator(11).draw(weft.get_device(device), 1)[0]
    bits = weft.Tensor(creation.bits(state, 0, shape, 16)).numpy().astype(np.int64)

    def far(counts):
        expected = counts.sum() / counts.size
        degrees = counts.size - 1
        return abs((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))

    assert far(np.bincount(bits.reshape(-1) >> 8, minlength=256)) < 5
    assert far(np.bincount(bits.reshape(-1) & 255, minlength=256)) < 5
    top = bits >> 14
    for a, b in [(top[:, :-1], top[:, 1:]), (top[:, :-2], top[:, 2:]), (top[:, :-4], top[:, 4:]), (top[:-1], top[1:])]:
        assert far(np.bincount((4 * a + b).reshape(-1), minlength=16)) < 5


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 2.0**-16, 1 - 2.0**-16])
def test_dropout_has_the_probability_asked_for(p):
    count = 1 << 20
    kept = (F.dropout(weft.ones(count), p).numpy() != 0).sum()
    assert abs(kept - count * (1 - p)) < 5 * np.sqrt(count * p * (1 - p)) + 1


def test_the_seed_decides():
    first = weft.manual_seed(5) and weft.rand(10).numpy()
    second = weft.manual_seed(5) and weft.rand(10).numpy()
    third = weft.manual_seed(6) and weft.rand(10).numpy()
    assert (first == second).all()
    assert (first != third).any()


def test_draws_differ_and_states_return():
    generator = weft.Generator(3)
    state = generator.get_state()
    a, b = weft.randn(8, generator=generator).numpy(), weft.randn(8, generator=generator).numpy()
    assert (a != b).all()
    generator.set_state(state)
    assert (weft.randn(8, generator=generator).numpy() == a).all()


def test_reading_late_changes_nothing():
    x, y = weft.rand(4), weft.rand(4)
    late = (y.numpy(), x.numpy())
    weft.manual_seed(0)
    assert (weft.rand(4).numpy() == late[1]).all()
    assert (weft.rand(4).numpy() == late[0]).all()


def test_a_random_tensor_keeps_its_value():
    x = weft.rand(4)
    assert (x.numpy() == x.numpy()).all()
    assert ((x + 0).numpy() == x.numpy()).all()


@pytest.mark.parametrize("dtype", [weft.float32, weft.float64])
def test_uniform_and_normal_moments(dtype):
    u, n = weft.rand(100, 1000, dtype=dtype).numpy(), weft.randn(100, 1000, dtype=dtype).numpy()
    assert u.min() >= 0.0 and u.max() < 1.0
    assert abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    assert abs(n.mean()) < 0.01 and abs(n.var() - 1.0) < 0.02 and abs((n**4).mean() - 3.0) < 0.15
    assert np.isfinite(n).all()


def test_randint_covers_its_range():
    x = weft.randint(-2, 3, (1000,)).numpy()
    assert set(x.tolist()) == {-2, -1, 0, 1, 2}
    assert weft.randint(4, (2, 3), dtype=weft.int32).dtype is weft.int32


def test_bernoulli_follows_p():
    p = weft.tensor([0.0, 0.25, 1.0]).expand(20000, 3)
    np.testing.assert_allclose(weft.bernoulli(p).numpy().mean(0), [0.0, 0.25, 1.0], atol=0.02)


def test_dropout_scales_masks_and_differentiates():
    x = weft.ones(200, 100, requires_grad=True)
    y = F.dropout(x, 0.25)
    values = y.detach().numpy()
    assert set(np.unique(values).tolist()) == {0.0, np.float32(1 / 0.75)}
    assert abs((values == 0).mean() - 0.25) < 0.02
    y.sum().backward()
    assert (x.grad.numpy() == values).all()  # the gradient uses the same mask


def test_dropout_at_the_ends():
    x = weft.ones(3)
    assert F.dropout(x, 0.5, training=False) is x
    assert F.dropout(x, 0.0) is x
    assert F.dropout(x, 1.0).tolist() == [0.0, 0.0, 0.0]


def test_like_functions_take_shape_and_dtype():
    x = weft.zeros(2, 3, dtype=weft.float64)
    assert weft.rand_like(x).dtype is weft.float64
    assert weft.randn_like(x).shape == (2, 3)
