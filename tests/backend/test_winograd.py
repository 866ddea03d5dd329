"""Winograd convolutions, which compute two adjacent pixels together (`weft/kernels/cpu/winograd.py`): three taps,
stride 1, and at least 16 input and output channels."""

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from tests.backend.compiling import kernels_made

pytestmark = pytest.mark.backend


def values(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, shape).astype(np.float32)


def names_of(function, *args):
    step = weft.compile(function)
    step(*args)
    return [kernel.name for kernel in step.plan.kernels()]


CASES = [
    ((2, 16, 4, 6, 8), (32, 16, 3, 3, 3), 1),
    ((3, 16, 5, 7), (16, 16, 3, 3), 1),  # an odd line
    ((17, 32, 4, 4), (64, 32, 3, 3), 1),  # several images in a tile
    ((2, 48, 9), (24, 48, 3), 0),
    ((2, 16, 8, 8), (17, 16, 3, 3), 2),  # more padding than taps reach; an odd number of filters
    ((2, 20, 6, 30), (80, 20, 2, 3), (0, 1)),  # several tiles to a line, filters that are padded
    ((1, 16, 2, 2), (16, 16, 3, 3), 1),
    ((2, 16, 6, 1), (16, 16, 3, 3), 1),  # one tap is left along the line
]


@pytest.mark.parametrize("x_shape, w_shape, padding", CASES)
def test_values_and_gradients_against_torch(x_shape, w_shape, padding):
    x, w, b = values(*x_shape), values(*w_shape, seed=1), values(w_shape[0], seed=2)
    name = f"conv{len(x_shape) - 2}d"
    leaves = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in (x, w, b)]
    expected = torch.relu(getattr(TF, name)(*leaves, padding=padding))
    (expected**2).sum().backward()
    ours = [weft.tensor(array, requires_grad=True) for array in (x, w, b)]
    out = F.relu(getattr(F, name)(*ours, padding=padding))
    (out**2).sum().backward()
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    for one, two in zip(ours, leaves, strict=True):
        scale = float(two.grad.abs().max())
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-5, atol=2e-6 * scale)


def test_two_pixels_take_four_products_instead_of_six():
    x, w = weft.zeros(2, 16, 8, 8), weft.zeros(32, 16, 3, 3)
    step = weft.compile(lambda x, w: weft.grad(lambda x, w: (F.conv2d(x, w, padding=1) ** 2).sum(), (0, 1))(x, w))
    step(x, w)
    products = [kernel.flops for kernel in step.plan.kernels() if kernel.name.startswith("conv_")]
    assert products == [2 * 2 * 64 * 16 * 32 * 9 * 4 // 6] * 3


def test_other_convolutions_are_as_they_were():
    """Few channels, strides, dilations and groups: a weight for each tap."""
    for shape, weight, how in [
        ((2, 8, 8, 8), (32, 8, 3, 3), {}),
        ((2, 32, 8, 8), (8, 32, 3, 3), {}),
        ((2, 32, 8, 8), (32, 32, 3, 3), {"stride": 2}),
        ((2, 32, 8, 8), (32, 32, 3, 3), {"dilation": 2}),
        ((2, 32, 8, 8), (32, 16, 3, 3), {"groups": 2}),
        ((2, 32, 8, 8), (32, 32, 3, 5), {}),
    ]:
        found = names_of(lambda x, w, how=how: F.conv2d(x, w, **how), weft.zeros(*shape), weft.zeros(*weight))
        (name,) = [name for name in found if name.startswith("conv_")]
        assert f"_3x{weight[-1]}_" in name, name


def test_small_whole_numbers_are_exact():
    rng = np.random.default_rng(0)
    x, w = rng.integers(-9, 10, (2, 16, 6, 8)), rng.integers(-9, 10, (16, 16, 3, 3))
    exact = TF.conv2d(torch.tensor(x).double(), torch.tensor(w).double(), padding=1).numpy()
    ours = F.conv2d(weft.tensor(x.astype(np.float32)), weft.tensor(w.astype(np.float32)), padding=1)
    np.testing.assert_array_equal(ours.numpy(), exact)


def test_errors_are_not_larger_than_those_of_all_products():
    """Against the chain of 576 fused multiply-adds that each element would be without pairs."""
    x, w = np.maximum(values(1, 64, 8, 16), 0.0), values(32, 64, 3, 3, seed=1)
    exact = TF.conv2d(torch.tensor(x).double(), torch.tensor(w).double()).numpy()
    chain = np.zeros(exact.shape, np.float32)
    for c, i, k in np.ndindex(64, 3, 3):
        taken = (
            x[:, c, i : i + 6, k : k + 14].astype(np.float64)[:, None] * w[:, c, i, k].astype(np.float64)[:, None, None]
        )
        chain = (chain + taken).astype(np.float32)
    ours = F.conv2d(weft.tensor(x), weft.tensor(w)).numpy()
    assert np.sqrt(((ours - exact) ** 2).mean()) <= np.sqrt(((chain - exact) ** 2).mean())
    assert np.abs(ours - exact).max() <= 1.5 * np.abs(chain - exact).max()


def test_what_is_not_finite_goes_no_further_than_its_taps():
    x = values(1, 16, 5, 11)
    x[0, 3, 2, 5] = np.inf
    ours = F.conv2d(weft.tensor(x), weft.tensor(values(16, 16, 3, 3, seed=1)), padding=1).numpy()
    touched = np.zeros((5, 11), bool)
    touched[1:4, 4:7] = True
    assert np.isfinite(ours[:, :, ~touched]).all() and not np.isfinite(ours[:, :, touched]).any()


def test_bits_depend_neither_on_threads_nor_on_fusion():
    from weft.backends.cpu.worker_team import runtime

    x, w = weft.tensor(values(5, 16, 7, 9)), weft.tensor(values(48, 16, 3, 3, seed=1))
    both = weft.compile(weft.value_and_grad(lambda x, w: (F.conv2d(x, w, padding=1).relu() ** 2).sum(), (0, 1)))

    def run():
        value, grads = both(x, w)
        return [value.numpy(), *[grad.numpy() for grad in grads]]

    before, first = runtime().threads, run()
    try:
        for count in (1, 3):
            runtime().set_threads(count)
            for one, two in zip(run(), first, strict=True):
                np.testing.assert_array_equal(one, two)
    finally:
        runtime().set_threads(before)
    eager_x, eager_w = (weft.tensor(array.numpy(), requires_grad=True) for array in (x, w))
    y = F.conv2d(eager_x, eager_w, padding=1)
    y.numpy()
    (y.relu() ** 2).sum().backward()
    np.testing.assert_array_equal(eager_x.grad.numpy(), first[1])
    np.testing.assert_array_equal(eager_w.grad.numpy(), first[2])


def test_a_new_batch_size_compiles_no_kernel():
    w = weft.tensor(values(16, 16, 3, 3), requires_grad=True)

    @weft.compile
    def step(x):
        w.grad = None
        loss = F.relu(F.conv2d(x, w, padding=1)).sum()
        loss.backward()
        return loss

    for batch in (8, 5):
        step(weft.tensor(values(batch, 16, 10, 10)))
    before = kernels_made()
    step(weft.tensor(values(7, 16, 10, 10)))
    assert kernels_made() == before
