"""Windows: the primitives `unfold` and `fold`, and what pooling and its like cost in kernels and bytes."""

import itertools

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from tests.backend.compiling import kernels_made
from weft.core.lift import lift
from weft.graph import build

unfold, fold = lift(build.unfold), lift(build.fold)

CASES = [
    (extent, size, step, dilation)
    for extent, size, step, dilation in itertools.product((7, 12), (1, 2, 3, 5), (1, 2, 3, 4), (1, 2, 3, 4))
    if dilation * (size - 1) < extent
]


def windows_of(array, axis, size, step, dilation):
    """The same by plain slicing: one slice for each place in a window."""
    count = (array.shape[axis] - dilation * (size - 1) - 1) // step + 1
    places = [np.arange(count) * step + k * dilation for k in range(size)]
    return np.stack([np.take(array, place, axis) for place in places], axis + 1)


@pytest.mark.backend
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("axis", [0, 1])
def test_windows_and_their_sums(device, axis):
    rng = np.random.default_rng(0)
    with weft.device(device):
        for extent, size, step, dilation in CASES:
            array = rng.integers(-9, 9, (extent, 5) if axis == 0 else (3, extent)).astype(np.float32)
            expected = windows_of(array, axis, size, step, dilation)
            x = weft.tensor(array, requires_grad=True)
            y = unfold(x, axis, size, step, dilation)
            np.testing.assert_array_equal(y.numpy(), expected)
            weights = rng.integers(-9, 9, expected.shape).astype(np.float32)
            positions = windows_of(np.arange(array.size).reshape(array.shape), axis, size, step, dilation)
            summed = np.zeros(array.size, np.float32)
            np.add.at(summed, positions.ravel(), weights.ravel())
            (y * weft.tensor(weights)).sum().backward()
            np.testing.assert_array_equal(x.grad.numpy(), summed.reshape(array.shape))
            w = weft.tensor(weights, requires_grad=True)
            z = fold(w, axis, extent, step, dilation)
            np.testing.assert_array_equal(z.numpy(), summed.reshape(array.shape))
            (z * weft.tensor(array)).sum().backward()
            np.testing.assert_array_equal(w.grad.numpy(), expected)


@pytest.mark.backend
def test_many_overlapping_windows_are_a_reduction():
    x = weft.ones(2, 40, 3, requires_grad=True)
    unfold(x, 1, 20).sum().backward()
    expected = np.convolve(np.ones(21), np.ones(20))
    np.testing.assert_array_equal(x.grad.numpy(), np.broadcast_to(expected[None, :, None], (2, 40, 3)))


@pytest.mark.unit
def test_windows_differentiate_twice():
    x = weft.tensor(np.linspace(-1.0, 1.0, 12).reshape(3, 4), requires_grad=True)
    assert weft.testing.gradcheck(lambda x: unfold(x, 1, 2, 1, 2).exp(), [x])

    def slope(x):
        return weft.grad(lambda x: (unfold(x, 0, 2) ** 3).sum())(x)

    assert weft.testing.gradcheck(slope, [x])


# ---- lanes that lie near each other ---------------------------------------------------------------------------------

WIDE = [5, 16, 31, 32, 33, 64, 100]


@pytest.mark.backend
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_strided_and_repeated_elements(step, dtype):
    rng = np.random.default_rng(step)
    for extent in WIDE:
        array = rng.integers(0, 2 if dtype == "bool" else 99, (7, extent * step)).astype(dtype)
        x = weft.tensor(array)
        for start in range(step):
            np.testing.assert_array_equal((x[:, start::step] == x[:, start::step]).numpy(), True)
            np.testing.assert_array_equal(x[:, start::step].clone().numpy(), array[:, start::step])
            np.testing.assert_array_equal(x.flip(1)[:, start::step].clone().numpy(), array[:, ::-1][:, start::step])
        small = weft.tensor(array[:, :extent].copy())
        repeated = small.unsqueeze(-1).expand(7, extent, step).reshape(7, extent * step)
        np.testing.assert_array_equal((repeated.to(x.dtype)).clone().numpy(), np.repeat(array[:, :extent], step, 1))
        spread = np.zeros((7, extent * step), dtype)
        spread[:, 1::step] = array[:, :extent]
        target = weft.zeros(7, extent * step, dtype=x.dtype)
        target[:, 1::step] = small
        np.testing.assert_array_equal(target.numpy(), spread)


# ---- kernels and bytes ----------------------------------------------------------------------------------------------


def compiled(function, *shapes):
    """The plan of a function of tensors with these shapes, and the bytes of its inputs and outputs."""
    with weft.device("null"):
        tensors = [weft.zeros(*shape) for shape in shapes]
        weft.eval(*tensors)
        step = weft.compile(function)
        step(*tensors)
        memory = step.plan.memory()
        return step.plan, memory.inputs + memory.outputs


def backward_of(function):
    """The gradient to the input, given the gradient of the output."""
    return lambda x, g: weft.grad(lambda x: (function(x) * g).sum())(x)


SHAPE = (64, 16, 28, 28)
POOLS = {
    "max 2": (lambda x: F.max_pool2d(x, 2), 14, 1),
    "max 3 stride 2": (lambda x: F.max_pool2d(x, 3, 2, 1), 14, 2),
    "max 3 stride 1": (lambda x: F.max_pool2d(x, 3, 1, 1), 28, 2),
    "max 5": (lambda x: F.max_pool2d(x, 5, 2, 2), 14, 2),
    "mean 2": (lambda x: F.avg_pool2d(x, 2), 14, 1),
    "mean 3 stride 2": (lambda x: F.avg_pool2d(x, 3, 2, 1), 14, 1),
    "mean 7": (lambda x: F.avg_pool2d(x, 7), 4, 1),
}


@pytest.mark.parametrize("name", POOLS)
def test_pooling_is_one_kernel_and_stores_no_windows(name):
    pool, extent, backward = POOLS[name]
    plan, least = compiled(pool, SHAPE)
    assert len(plan) == 1 and plan.memory().arena_bytes == 0
    assert plan.bytes <= 1.1 * least
    plan, least = compiled(backward_of(pool), SHAPE, (64, 16, extent, extent))
    assert len(plan) == backward, [kernel.name for kernel in plan.kernels()]
    chosen = 4 * 64 * 16 * extent * extent  # the number of the place in each window
    assert plan.memory().arena_bytes <= (backward - 1) * chosen
    assert plan.bytes <= 1.1 * least + (backward - 1) * 2 * chosen


def test_pooling_fuses_with_adjacent_operations():
    plan, _ = compiled(lambda x: F.max_pool2d(x.relu(), 2) * 2.0 + 1.0, SHAPE)
    assert len(plan) == 1
    plan, _ = compiled(lambda x: F.max_pool2d(F.gelu(x), 3, 1, 1), SHAPE)
    assert len(plan) == 2  # the activation is computed once, not for each of nine windows


@pytest.mark.backend
def test_another_batch_size_compiles_nothing():
    step = weft.compile(backward_of(lambda x: F.max_pool2d(x, 3, 2, 1)))
    before = kernels_made()
    step(weft.zeros(8, 3, 13, 12), weft.zeros(8, 3, 7, 6)).numpy()
    first = kernels_made()
    step(weft.zeros(5, 3, 13, 12), weft.zeros(5, 3, 7, 6)).numpy()
    assert first > before and kernels_made() == first


def test_pooling_of_channels_last_stays_in_that_order():
    """What a convolution leaves behind is a permute of memory with channels last: no kernel may transpose it."""

    def last(x):
        return F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)

    plan, _ = compiled(last, (8, 32, 32, 64))
    assert [kernel.name for kernel in plan.kernels()] == ["map_max_8x16x16x64"]
    plan, _ = compiled(backward_of(last), (8, 32, 32, 64), (8, 16, 16, 64))
    assert len(plan) == 2
    assert all(kernel.name.endswith("x64") for kernel in plan.kernels())
    assert all("masked.gather" not in kernel.source for kernel in plan.kernels())


@pytest.mark.unit
def test_reshapes_of_permuted_values():
    rng = np.random.default_rng(0)
    floated = 0
    with weft.device("reference"):
        for _ in range(300):
            shape = rng.choice([1, 2, 3, 4, 6], rng.integers(1, 5))
            order = rng.permutation(len(shape))
            new = []
            for extent in shape[order]:  # split or keep each axis, then merge two neighbours now and then
                part = rng.choice([k for k in range(1, extent + 1) if extent % k == 0])
                new += [part, extent // part] if rng.random() < 0.6 else [extent]
            if len(new) > 1 and rng.random() < 0.5:
                at = rng.integers(0, len(new) - 1)
                new[at : at + 2] = [new[at] * new[at + 1]]
            new = [int(extent) for extent in new]
            array = np.arange(shape.prod()).reshape(shape)
            moved = weft.tensor(array).permute(*[int(axis) for axis in order]).reshape(*new)
            floated += moved.node.op == "permute"
            np.testing.assert_array_equal(moved.numpy(), array.transpose(order).reshape(new))
    assert floated > 50


# ---- normalisation by channel ---------------------------------------------------------------------------------------


def test_batch_norm_in_training_is_one_kernel():
    """Mean, variance in two passes, output: one sequence of kernels over the input; so is the whole backward pass."""
    shape, vector = (32, 64, 16, 16), (64,)

    def norm(x, w, b):
        return F.batch_norm(x, None, None, w, b, training=True)

    plan, least = compiled(norm, shape, vector, vector)
    assert len(plan) == 1 and plan.memory().arena_bytes == 0
    assert plan.bytes <= 1.1 * least
    plan, _ = compiled(
        lambda x, w, b, g: weft.grad(lambda w, b: (norm(x, w, b) * g).sum(), argnums=(0, 1))(w, b),
        *(shape, vector, vector, shape),
    )
    assert len(plan) <= 2
    plan, least = compiled(
        lambda x, w, b, g: weft.grad(lambda x, w, b: (norm(x, w, b) * g).sum(), argnums=(0, 1, 2))(x, w, b),
        *(shape, vector, vector, shape),
    )
    assert len(plan) == 1 and plan.bytes <= 1.1 * least


@pytest.mark.backend
def test_running_statistics_are_part_of_a_plan():
    x = np.random.default_rng(0).normal(size=(8, 3, 5, 4)).astype(np.float32)
    mean, variance = weft.zeros(3), weft.ones(3)
    step = weft.compile(lambda x: F.batch_norm(x, mean, variance, training=True, momentum=0.25))
    expected_mean, expected_variance = np.zeros(3), np.ones(3)
    for iteration in range(3):
        batch = x * (iteration + 1)
        step(weft.tensor(batch))
        expected_mean = 0.75 * expected_mean + 0.25 * batch.mean((0, 2, 3))
        expected_variance = 0.75 * expected_variance + 0.25 * batch.var((0, 2, 3), ddof=1)
        np.testing.assert_allclose(mean.numpy(), expected_mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variance.numpy(), expected_variance, rtol=1e-5)
    assert not step.retraces


@pytest.mark.backend
def test_variance_in_two_passes():
    """Far from zero, the mean of squares less the square of the mean would lose every digit."""
    x = np.random.default_rng(0).normal(1e4, 1.0, (16, 2, 8, 8))
    y = F.batch_norm(weft.tensor(x.astype(np.float32)), None, None, training=True, eps=0.0).numpy()
    x = x.astype(np.float32).astype(np.float64)
    expected = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(y, expected, atol=2e-3)
