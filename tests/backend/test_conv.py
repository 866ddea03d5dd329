"""Convolutions: what is fused with them, how they lie in memory, and the guard of a residual block."""

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from tests.backend.compiling import kernels_made
from tests.unit.gpu_harness import set_limits
from weft.compiler import realize

pytestmark = pytest.mark.backend


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plan_of(function, *args):
    with weft.device("null"):
        step = weft.compile(function)
        step(*[weft.ones(*shape) for shape in args])
    return step.plan


def names(plan):
    return [kernel.name for kernel in plan.kernels()]


# ---- fusion and layout ----------------------------------------------------------------------------------------------


def test_bias_and_activation_are_stored_from_registers():
    """Input and weights are brought into their order, then one kernel; its result leaves in the user's order."""
    plan = plan_of(lambda x, w, b: F.relu(F.conv2d(x, w, b)), (4, 32, 16, 16), (64, 32, 3, 3), (64,))
    convolutions = [name for name in names(plan) if name.startswith("conv_")]
    assert len(convolutions) == 1 and len(plan) <= 4, names(plan)
    assert plan.memory().arena_bytes < 3 * (4 * 32 * 16 * 16 + 64 * 32 * 9 + 4 * 64 * 14 * 14) * 4


def test_channels_stay_last_between_convolutions():
    """No kernel between two convolutions but the one that pads and makes parts for pairs of pixels, which computes the
    activation on the way."""

    def two(x, v, w):
        return F.conv2d(F.gelu(F.conv2d(x, v, padding=1)), w, padding=1).mean((2, 3))

    found = names(plan_of(two, (2, 16, 12, 12), (32, 16, 3, 3), (32, 32, 3, 3)))
    first, second = (k for k, name in enumerate(found) if name.startswith("conv_"))
    between = [name for name in found[first + 1 : second] if "x14x1x6x" in name]
    assert len(between) == 1 and "erf" in between[0], found


def test_a_value_with_two_paddings_lies_in_memory_once():
    def both(x, v, w):
        x = x.relu()
        return F.conv2d(x, v, stride=2).sum() + F.conv2d(x, w, stride=2, padding=1).sum()

    found = names(plan_of(both, (2, 8, 12, 12), (16, 8, 1, 1), (16, 8, 3, 3)))
    assert sum(name.startswith("map_pad") for name in found) == 1, found
    assert not any(name.startswith("map_permute_2x12x12x8") for name in found), found


def test_the_layout_does_not_change_results():
    """Sums over a convolution's result have the same bits read back, eager and compiled."""
    x, w = weft.tensor(values(3, 5, 9, 9)), weft.tensor(values(40, 5, 3, 3, seed=1))

    def statistics(x, w):
        y = F.conv2d(x, w, padding=1)
        return y, y.mean((0, 2, 3)), (y * y).sum(1), y.transpose(1, 2).max(0).values

    eager = statistics(x, w)
    read = [part.numpy() for part in eager]
    y = F.conv2d(x, w, padding=1)
    y.numpy()
    np.testing.assert_array_equal(y.mean((0, 2, 3)).numpy(), read[1])
    for one, two in zip(weft.compile(statistics)(x, w), read, strict=True):
        np.testing.assert_array_equal(one.numpy(), two)


def test_a_new_batch_size_compiles_no_kernel():
    w = weft.tensor(values(16, 4, 3, 3), requires_grad=True)

    @weft.compile
    def step(x):
        w.grad = None
        loss = F.relu(F.conv2d(x, w, padding=1, stride=2)).sum()
        loss.backward()
        return loss

    for batch in (8, 5):
        step(weft.tensor(values(batch, 4, 10, 10)))
    before = kernels_made()
    step(weft.tensor(values(7, 4, 10, 10)))
    assert kernels_made() == before


@pytest.mark.parametrize("shape", [(3, 40, 9, 9), (5, 8, 4, 4), (2, 3, 13, 13), (17, 24, 1, 1)])
def test_tiles_that_fit_another_machine_give_the_same_bits(shape, monkeypatch):
    x, w = weft.tensor(values(*shape)), weft.tensor(values(48, shape[1], 3, 3, seed=1))

    def run():
        realize._plans.clear()
        both = weft.value_and_grad(lambda x, w: (F.conv2d(x, w, padding=1) ** 2).sum(), (0, 1))
        value, grads = weft.compile(lambda x, w: both(x, w))(x, w)
        return [value.numpy(), *[grad.numpy() for grad in grads]]

    wide = run()
    for registers in (512, 256, 2048):
        set_limits(monkeypatch, weft.get_device("cpu"), vector_register_bytes=registers)
        for one, two in zip(run(), wide, strict=True):
            np.testing.assert_array_equal(one, two)
    realize._plans.clear()


def test_twice_differentiated():
    x, w = values(2, 3, 6, 6), values(4, 3, 3, 3, seed=1)

    def of_gradient(x, w):
        (inner,) = weft.grad(lambda x: (F.conv2d(x, w, stride=2, padding=1) ** 3).sum(), (0,))(x)
        return (inner**2).sum()

    ours = weft.grad(of_gradient, (0, 1))(weft.tensor(x), weft.tensor(w))
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    (inner,) = torch.autograd.grad((TF.conv2d(tx, tw, stride=2, padding=1) ** 3).sum(), tx, create_graph=True)
    theirs = torch.autograd.grad((inner**2).sum(), (tx, tw))
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=2e-4, atol=2e-3 * float(two.abs().max()))


# ---- a residual block -----------------------------------------------------------------------------------------------


def block(x, p, functional=F):
    """Two convolutions with batch norms and a skip; the same text for Weft and for torch."""
    y = functional.conv2d(x, p["conv1"], padding=1)
    y = functional.relu(functional.batch_norm(y, None, None, p["scale1"], p["shift1"], training=True))
    y = functional.conv2d(y, p["conv2"], padding=1)
    y = functional.batch_norm(y, None, None, p["scale2"], p["shift2"], training=True)
    return functional.relu(y + x)


def shapes(channels):
    return {
        "conv1": (channels, channels, 3, 3), "scale1": (channels,), "shift1": (channels,),
        "conv2": (channels, channels, 3, 3), "scale2": (channels,), "shift2": (channels,),
    }  # fmt: skip


def gradients(x, p, g):
    return weft.grad(lambda x, p: (block(x, p) * g).sum(), (0, 1))(x, p)


def test_a_residual_block_against_torch():
    p = {name: values(*shape, seed=k) / 4 for k, (name, shape) in enumerate(shapes(6).items())}
    x, g = values(3, 6, 7, 7), values(3, 6, 7, 7, seed=9)
    tp = {name: torch.tensor(array, requires_grad=True) for name, array in p.items()}
    tx = torch.tensor(x, requires_grad=True)
    expected = block(tx, tp, TF)
    expected.backward(torch.tensor(g))
    ours = {name: weft.tensor(array) for name, array in p.items()}
    out = weft.compile(block)(weft.tensor(x), ours)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    in_x, in_p = weft.compile(gradients)(weft.tensor(x), ours, weft.tensor(g))
    np.testing.assert_allclose(in_x.numpy(), tx.grad.numpy(), rtol=1e-3, atol=1e-4)
    for name, value in in_p.items():
        scale = float(tp[name].grad.abs().max())
        np.testing.assert_allclose(value.numpy(), tp[name].grad.numpy(), rtol=1e-3, atol=1e-4 * scale, err_msg=name)


def guarded(function, gradient):
    with weft.device("null"):
        step = weft.compile(function)
        p = {name: weft.ones(*shape) for name, shape in shapes(64).items()}
        x = weft.ones(32, 64, 32, 32)
        step(x, p, x + 1.0) if gradient else step(x, p)
    return step.plan


def products(plan):
    return sum(kernel.flops for kernel in plan.kernels() if kernel.name.startswith("conv_"))


def test_forward_guard():
    plan = guarded(block, gradient=False)
    assert sum(name.startswith("conv_") for name in names(plan)) == 2
    assert len(plan) <= 14, names(plan)
    assert products(plan) == 2 * 1_610_612_736  # two thirds, for a fifth more bytes
    assert plan.bytes <= 157_650_432
    assert plan.memory().arena_bytes <= 26_607_616


def test_backward_guard():
    plan = guarded(gradients, gradient=True)
    assert sum(name.startswith("conv_") for name in names(plan)) == 6
    assert len(plan) <= 29, names(plan)
    assert products(plan) == 6 * 1_610_612_736
    assert plan.bytes <= 461_810_688
    assert plan.memory().arena_bytes <= 77_989_888
