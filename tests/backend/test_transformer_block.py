"""A transformer block: right against torch, and guards on its kernels, bytes moved and memory."""

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F

pytestmark = pytest.mark.backend


def shapes(width):
    return {
        "norm1": (width,), "shift1": (width,), "in": (width, 3 * width), "in_bias": (3 * width,),
        "out": (width, width), "out_bias": (width,), "norm2": (width,), "shift2": (width,),
        "up": (width, 4 * width), "up_bias": (4 * width,), "down": (4 * width, width), "down_bias": (width,),
    }  # fmt: skip


def block(x, p, heads, functional=F):
    """A pre-norm block; the same text for Weft and for torch."""
    batch, length, width = x.shape
    h = functional.layer_norm(x, (width,), p["norm1"], p["shift1"])
    qkv = (h @ p["in"] + p["in_bias"]).reshape(batch, length, 3, heads, width // heads)
    q, k, v = [qkv[:, :, part].transpose(1, 2) for part in range(3)]
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    x = x + (mixed.reshape(batch, length, width) @ p["out"] + p["out_bias"])
    h = functional.layer_norm(x, (width,), p["norm2"], p["shift2"])
    return x + (functional.gelu(h @ p["up"] + p["up_bias"]) @ p["down"] + p["down_bias"])


def gradients(x, p, g, heads):
    return weft.grad(lambda x, p: (block(x, p, heads) * g).sum(), (0, 1))(x, p)


def test_against_torch():
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape) / 4 for name, shape in shapes(24).items()}
    x, g = rng.standard_normal((2, 70, 24)), rng.standard_normal((2, 70, 24))
    theirs = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    their_x = torch.tensor(x, requires_grad=True)
    expected = block(their_x, theirs, 3, TF)
    expected.backward(torch.tensor(g))
    ours = {name: weft.tensor(value) for name, value in values.items()}
    out = weft.compile(lambda x, p: block(x, p, 3))(weft.tensor(x), ours)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-9, atol=1e-11)
    in_x, in_p = weft.compile(lambda x, p, g: gradients(x, p, g, 3))(weft.tensor(x), ours, weft.tensor(g))
    np.testing.assert_allclose(in_x.numpy(), their_x.grad.numpy(), rtol=1e-8, atol=1e-10)
    for name, value in in_p.items():
        np.testing.assert_allclose(value.numpy(), theirs[name].grad.numpy(), rtol=1e-8, atol=1e-10, err_msg=name)


def compiled(function, *, gradient):
    """The plan of a block 256 wide with 4 heads, batch 8, length 128."""
    step = weft.compile(function)
    with weft.device("null"):
        p = {name: weft.ones(*shape) for name, shape in shapes(256).items()}
        x = weft.ones(8, 128, 256)
        step(x, p, x + 1.0) if gradient else step(x, p)
    return step.plan


def test_forward_guard():
    """One kernel for each normalisation and for attention; biases, activation and residuals ride on four products."""
    plan = compiled(lambda x, p: block(x, p, 4), gradient=False)
    assert len(plan) <= 7
    assert sum(kernel.name.startswith("gemm") for kernel in plan.kernels()) == 4
    assert plan.bytes <= 31_503_360
    assert plan.memory().arena_bytes <= 6_291_456


def test_backward_guard():
    """Eleven products (three forward: nobody asks for the last one's value), attention twice."""
    plan = compiled(lambda x, p, g: gradients(x, p, g, 4), gradient=True)
    names = [kernel.name for kernel in plan.kernels()]
    assert len(plan) <= 25
    assert sum(name.startswith("gemm") for name in names) == 11
    assert sum(name.startswith("attention") for name in names) == 2
    assert plan.bytes <= 105_975_808
    assert plan.memory().arena_bytes <= 21_008_384
    scores = 8 * 4 * 128 * 128 * 4
    assert all(interval.nbytes != scores for interval in plan.plan.arena)
