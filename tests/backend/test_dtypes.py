"""16-bit floats round once per node whatever was fused; integers wrap; casts at the ends; more than 2^31 elements."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F
from weft.base import dtypes, host_memory
from weft.graph import build

NARROW = [weft.float16, weft.bfloat16]
INTEGERS = [*dtypes.SIGNED, *dtypes.UNSIGNED]
DEVICES = ["cpu", "reference"]
both = pytest.mark.parametrize("device", DEVICES)
narrow = pytest.mark.parametrize("dtype", NARROW, ids=repr)


def bits(tensor):
    return tensor.numpy().view(np.uint16)


def every_value(dtype):
    """All 65,536 values."""
    return weft.tensor(np.arange(2**16, dtype=np.uint16).view(dtype.numpy))


def some_floats():
    """Floats of every size: random bits, and the numbers half-way between two float16 or bfloat16."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = [(patterns >> keep << keep) | np.uint32(1 << keep - 1) for keep in (13, 16)]
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2**-24, 2**-25, 1e-45], np.float32)
    return np.concatenate([patterns.view(np.float32), *[tie.view(np.float32) for tie in ties], special])


@narrow
@both
def test_rounds_to_nearest_even_and_keeps_nan(dtype, device):
    numbers = some_floats()
    with weft.device(device), np.errstate(all="ignore"):
        ours = weft.tensor(numbers).to(dtype)
        expected = numbers.astype(dtype.numpy)
        is_nan = np.isnan(numbers)
        assert np.array_equal(np.isnan(ours.float().numpy()), is_nan)
        np.testing.assert_array_equal(bits(ours)[~is_nan], expected.view(np.uint16)[~is_nan])


@narrow
@both
def test_every_value_survives_widening_and_movement(dtype, device):
    with weft.device(device):
        x = every_value(dtype)
        number = ~np.isnan(x.numpy().astype(np.float32))
        ways = [x.float().to(dtype), x.double().to(dtype), x.flip(0).flip(0), x.neg().neg(), weft.maximum(x, x)]
        for there_and_back in ways:
            np.testing.assert_array_equal(bits(there_and_back)[number], bits(x)[number])


def steps(x, y):
    """A chain in which every node rounds."""
    yield x * y
    yield x * y + x
    yield (x * y + x).exp()
    yield (x * y + x).exp() / (y + 3)
    yield ((x * y + x).exp() / (y + 3)).sqrt()


@narrow
def test_one_rounding_per_node_whatever_was_fused(dtype):
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(-2, 2, (17, 130)).astype(dtype.numpy) for _ in range(2)]
    x, y = (weft.tensor(array) for array in arrays)
    fused = list(steps(x, y))
    last = weft.compile(lambda a, b: list(steps(a, b))[-1])(x, y)
    weft.eval(*fused)
    a, b = (array.astype(np.float32) for array in arrays)
    held = (a * b).astype(dtype.numpy)
    np.testing.assert_array_equal(bits(fused[0]), held.view(np.uint16))
    held = (held.astype(np.float32) + a).astype(dtype.numpy)
    np.testing.assert_array_equal(bits(fused[1]), held.view(np.uint16))
    alone = weft.tensor(fused[1].numpy()).exp()
    np.testing.assert_array_equal(bits(fused[2]), bits(alone))
    alone = weft.tensor(alone.numpy()) / weft.tensor((y + 3).numpy())
    np.testing.assert_array_equal(bits(fused[3]), bits(alone))
    np.testing.assert_array_equal(bits(fused[4]), bits(weft.tensor(alone.numpy()).sqrt()))
    np.testing.assert_array_equal(bits(last), bits(fused[4]))


@narrow
@both
def test_sums_and_products_add_up_in_float32(dtype, device):
    rng = np.random.default_rng(2)
    rows = rng.uniform(0, 1, (3, 40_000)).astype(dtype.numpy)
    a, b = (rng.uniform(-1, 1, shape).astype(dtype.numpy) for shape in ((40, 300), (300, 50)))
    wide = rows.astype(np.float64).sum(1), a.astype(np.float64) @ b.astype(np.float64)
    unit = weft.finfo(dtype).eps
    with weft.device(device):
        total, product = weft.tensor(rows).sum(1), weft.tensor(a) @ weft.tensor(b)
        assert total.dtype is dtype and product.dtype is dtype
        np.testing.assert_allclose(total.float().numpy(), wide[0], rtol=0.51 * unit)
        np.testing.assert_allclose(product.float().numpy(), wide[1], rtol=0.51 * unit, atol=1e-5)


@narrow
def test_kernels_convert_whole_vectors(dtype):
    """No element is converted alone; only constants are, before the loops."""
    x, y = weft.ones(64, 1024, dtype=dtype), weft.full((64, 1024), 0.5, dtype=dtype)
    weft.eval(x, y)
    step = weft.compile(lambda a, b: ((a * b + a).tanh(), a.softmax(-1), a.transpose(0, 1) * 2))
    step(x, y)
    for kernel in step.plan.kernels():
        text = kernel.source
        assert re.search(r"(fpext <|fptrunc <|zext <\d+ x i16>|trunc <\d+ x i32>)", text), kernel.name
        loops = text[text.index("\nloop") :]
        assert not re.search(r"(fpext half|fptrunc float|= (zext|trunc) i(16|32) %\w+ to i(16|32)$)", loops), (
            kernel.name
        )


def test_memory_of_16_bit_values_is_halved():
    x = weft.ones(1 << 16, dtype=weft.bfloat16)
    weft.eval(x)
    step = weft.compile(lambda a: (a * 2).exp())
    step(x)
    assert step.plan.bytes <= 2 * 2 * (1 << 16) + 256


def test_new_batch_size_compiles_nothing():
    step = weft.compile(lambda a: (a * 0.3).softmax(-1))
    step(weft.ones(8, 70, dtype=weft.bfloat16))
    before = weft.counters()
    step(weft.ones(5, 70, dtype=weft.bfloat16))
    now = weft.counters()
    assert (
        now["kernels_compiled"] + now["kernels_from_disk"] == before["kernels_compiled"] + before["kernels_from_disk"]
    )


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@both
def test_integers_wrap_around(dtype, device):
    low, high = dtypes.integer_bounds(dtype)
    numbers = np.array([low, high, 1, 7, high - 3], dtype.numpy)
    with weft.device(device), np.errstate(all="ignore"):
        x = weft.tensor(numbers)
        for ours, expected in ((x + x, numbers + numbers), (x * 7, numbers * dtype.numpy.type(7)), (-x, -numbers)):
            assert ours.dtype is dtype
            np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@both
def test_sums_of_integers_are_int64(dtype, device):
    with weft.device(device):
        x = weft.full((300,), 100, dtype=dtype)
        assert x.sum().dtype is weft.int64 and x.sum().item() == 30_000
        assert x.prod().dtype is weft.int64
        assert x.amax().dtype is dtype


@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
@both
def test_casts_at_the_ends(dtype, device):
    """Floats saturate and NaN gives 0; integers keep their low bits."""
    low, high = dtypes.integer_bounds(dtype)
    with weft.device(device):
        floats = weft.tensor([1e30, -1e30, float("inf"), float("-inf"), float("nan"), 2.9, -0.9])
        assert floats.to(dtype).tolist() == [high, low, high, low, 0, 2, 0]
        whole = weft.tensor([2**40 + 5, -1, 300])
        assert whole.to(dtype).tolist() == np.array([2**40 + 5, -1, 300]).astype(dtype.numpy).tolist()
        assert weft.tensor([float("nan"), 0.0, 1e-45]).bool().tolist() == [True, False, True]


@both
def test_uint64_up_to_its_end(device):
    with weft.device(device):
        x = weft.tensor([2**64 - 1, 2**63, 5], dtype=weft.uint64)
        assert (x // 3).tolist() == [6148914691236517205, 2**63 // 3, 1]
        assert (x % 10).tolist() == [5, 8, 5]
        assert (x >> 60).tolist() == [15, 8, 0]
        assert (x > weft.tensor([5], dtype=weft.uint64)).tolist() == [True, True, False]
        assert x.double().tolist() == [2.0**64, 2.0**63, 5.0]


@pytest.mark.parametrize("dtype", [weft.int8, weft.int16, weft.uint8, weft.uint16, weft.uint64], ids=repr)
def test_indices_of_every_dtype(dtype):
    x = weft.arange(300)
    index = weft.tensor([5, 0, 100], dtype=dtype)
    assert x[index].tolist() == [5, 0, 100]
    if dtype.kind == "i":
        assert x[-index].tolist() == [295, 0, 200]
    logits = weft.tensor(np.eye(4, dtype=np.float32))
    labels = weft.tensor([0, 1, 2, 3], dtype=dtype)
    assert F.cross_entropy(logits, labels).item() == F.cross_entropy(logits, labels.long()).item()


@narrow
@both
def test_random_numbers(dtype, device):
    with weft.device(device):
        weft.manual_seed(3)
        uniform, normal = weft.rand(20_000, dtype=dtype), weft.randn(20_000, dtype=dtype)
        assert uniform.dtype is dtype and normal.dtype is dtype
        values = uniform.float().numpy()
        assert values.min() >= 0.0 and values.max() < 1.0 and abs(values.mean() - 0.5) < 0.01
        assert abs(normal.float().numpy().std() - 1.0) < 0.02
        assert abs(weft.bernoulli(weft.full((20_000,), 0.25, dtype=dtype)).float().mean().item() - 0.25) < 0.02


@narrow
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_training_16_bit_parameters(dtype, name):
    """The update is computed in float32: better than torch's, so torch in float32 is the measure."""
    rng = np.random.default_rng(4)
    start, x = (rng.standard_normal(shape).astype(np.float32) / 2 for shape in ((4, 6), (16, 6)))
    w = weft.tensor(weft.tensor(start).to(dtype).numpy(), requires_grad=True)
    wide = torch.tensor(w.detach().float().numpy(), requires_grad=True)
    ours = getattr(weft.optim, name)([w], lr=0.05)
    theirs = getattr(torch.optim, name)([wide], lr=0.05)
    inputs = weft.tensor(x).to(dtype)

    @weft.compile
    def step(batch):
        loss = (batch @ w.T).square().mean()
        ours.zero_grad()
        loss.backward()
        ours.step()
        return loss

    for _ in range(8):
        step(inputs)
        theirs.zero_grad()
        (torch.tensor(inputs.float().numpy()) @ wide.T).square().mean().backward()
        theirs.step()
    assert w.dtype is dtype
    np.testing.assert_allclose(w.detach().float().numpy(), wide.detach().numpy(), atol=8 * weft.finfo(dtype).eps)


@narrow
def test_clipping_squares_in_float32(dtype):
    w = weft.ones(4, dtype=dtype, requires_grad=True)
    (w * 300).sum().backward()
    assert weft.optim.clip_grad_norm_([w], 1.0).item() == 600.0
    assert w.grad.dtype is dtype
    np.testing.assert_allclose(w.grad.float().numpy(), 0.5, rtol=weft.finfo(dtype).eps)


@weft.kernel
def shifted_exp(i, x, scale, y):
    y[i] = weft.kernel.exp(x[i] * scale) + 1


@narrow
@both
def test_kernels_of_users_compute_in_float32_and_round_what_they_store(dtype, device):
    with weft.device(device):
        x = weft.tensor(np.linspace(-1, 1, 37)).to(dtype)
        ours = shifted_exp(x, 0.3)
        assert ours.dtype is dtype
        np.testing.assert_array_equal(bits(ours), bits(((x.float() * 0.3).exp() + 1).to(dtype)))


@narrow
@both
def test_bits_of_16_bit_floats(dtype, device):
    with weft.device(device):
        x = weft.tensor(np.linspace(-3, 3, 50)).to(dtype)
        same = weft.Tensor(build.bitcast(x.node, weft.int16))
        np.testing.assert_array_equal(same.numpy().view(np.uint16), bits(x))
        back = weft.Tensor(build.bitcast(weft.tensor(bits(x)).node, dtype))
        np.testing.assert_array_equal(bits(back), bits(x))


@pytest.mark.serial
@pytest.mark.skipif(host_memory.memory()[0] < 6 << 30, reason="needs 6 GB of free memory")
def test_more_than_2_to_the_31_elements():
    n = 2**31 + 1000
    x = (weft.arange(n) & 63).to(weft.int8)
    whole, rest = divmod(n, 64)
    assert x.sum().item() == whole * 2016 + rest * (rest - 1) // 2
    np.testing.assert_array_equal(x[-1500:].numpy(), (np.arange(n - 1500, n) & 63).astype(np.int8))
    np.testing.assert_array_equal(x[7 :: 2**20 + 1].numpy(), (np.arange(7, n, 2**20 + 1) & 63).astype(np.int8))
    places = [0, n - 1, 2**31, 2**31 - 1, n - 3]
    assert x[weft.tensor(places)].tolist() == [place & 63 for place in places]
    assert x.flip(0)[:9].tolist() == [(n - 1 - k) & 63 for k in range(9)]
    assert x[: 2**31].reshape(2**11, 2**20).sum(1)[-1].item() == 2**20 // 64 * 2016
    assert (x == 63).sum().item() == whole


INTEGER_DTYPES = [dtype for dtype in weft.base.dtypes.ALL if dtype.kind in "iu"]


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=lambda dtype: dtype.name)
def test_integer_quotients_at_the_ends(dtype, device):
    """The least number by -1 wraps around, and anything by zero is 0, in vectors and in constants: nothing traps."""
    low, high = weft.base.dtypes.integer_bounds(dtype)
    numbers = [low, low + 1, high, high - 1, 0, 1, 2, 7] + ([-1, -2, -7] if low else [])
    pairs = [(a, b) for a in numbers for b in numbers]

    def towards_zero(a, b):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    meanings = {
        "floor_divide": (weft.floor_divide, lambda a, b: a // b),
        "remainder": (weft.remainder, lambda a, b: a % b),
        "fmod": (weft.fmod, lambda a, b: a - b * towards_zero(a, b)),
        "trunc": (lambda a, b: weft.div(a, b, rounding_mode="trunc"), towards_zero),
    }
    with weft.device(device):
        a, b = (weft.tensor(np.array(side, dtype.numpy)) for side in zip(*pairs, strict=True))
        for name, (operation, meaning) in meanings.items():
            exact = [meaning(*pair) if pair[1] else 0 for pair in pairs]
            expected = np.array([(value - low) % (high - low + 1) + low for value in exact], dtype.numpy)
            np.testing.assert_array_equal(operation(a, b).numpy(), expected, err_msg=name)
            constant = operation(weft.full((), low, dtype=dtype), weft.full((), high, dtype=dtype))
            assert constant.item() == expected[pairs.index((low, high))], name


def test_a_tensor_without_axes_does_not_widen():
    half, one = weft.ones(2).half(), weft.tensor(2.0)
    assert (half * one).dtype is weft.float16
    assert weft.lerp(half, half, one).dtype is weft.float16
    assert (one * half.sum()).dtype is weft.float32  # neither has axes
    assert (weft.ones(2, dtype=weft.int8) * one).dtype is weft.float32
    assert weft.where(half > 0, one, half).dtype is weft.float16
    assert (weft.ones(2, dtype=weft.uint64) + weft.tensor(-1)).dtype is weft.uint64
