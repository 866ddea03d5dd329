"""Kernels that the list (tests/kernels) counts as fused, and dropout: as many kernels as promised forward and backward,
and the values and gradients of the chain that is not fused."""

import numpy as np
import pytest
import torch

import weft
import weft.nn.functional as F

TF = torch.nn.functional
LINEAR, NORM = ((33, 24), (40, 24), (40,)), ((33, 70), (70,), (70,))
P = 0.25


def gemm(ours, theirs):
    """An activation of a linear layer, here and in torch."""
    return lambda x, w, b: ours(F.linear(x, w, b)), lambda x, w, b: theirs(TF.linear(x, w, b)), LINEAR


def norm(ours, theirs):
    return (
        lambda x, w, b: ours(F.layer_norm(x, x.shape[1:], w, b)),
        lambda x, w, b: theirs(TF.layer_norm(x, x.shape[1:], w, b)),
        NORM,
    )


def residual(functional):
    def both(x, r, w, b):
        stream = x + r
        return functional.layer_norm(stream, stream.shape[1:], w, b), stream

    return both


def masked(x, b):
    """Dropout of torch's operands with the mask that Weft draws after the same seed."""
    weft.manual_seed(5)
    kept = F.dropout(weft.ones(*x.shape), P) != 0
    return torch.where(torch.tensor(kept.numpy()), (x + b) / (1 - P), 0.0)


# The chain here and in torch, the shapes of its operands, and the most kernels of all gradients together.
FUSED = {
    "gemm_bias": (*gemm(lambda x: x, lambda x: x), 3),
    "gemm_bias_relu": (*gemm(F.relu, TF.relu), 4),
    "gemm_bias_gelu": (*gemm(F.gelu, TF.gelu), 4),
    "gemm_bias_sigmoid": (*gemm(weft.sigmoid, torch.sigmoid), 4),
    "gemm_bias_tanh": (*gemm(weft.tanh, torch.tanh), 4),
    "gemm_bias_swish": (*gemm(F.silu, TF.silu), 4),
    "layernorm_relu": (*norm(F.relu, TF.relu), 2),
    "layernorm_gelu": (*norm(F.gelu, TF.gelu), 2),
    "residual_layernorm": (residual(F), residual(TF), ((33, 70), *NORM), 2),
    "bias_dropout": (lambda x, b: F.dropout(x + b, P), masked, ((33, 70), (70,)), 1),
}


def parts(result):
    return list(result) if isinstance(result, tuple) else [result]


def weights(shape):
    return (1 + np.cos(np.arange(np.prod(shape)))).reshape(shape).astype(np.float32)


def kernels_of(function, *args):
    step = weft.compile(function)
    step(*args)
    return [kernel.name for kernel in step.plan.kernels()]


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels(name, on_each_device):
    ours, theirs, shapes, most = FUSED[name]
    with weft.device("null"):
        tensors = [weft.zeros(*shape) for shape in shapes]
        weft.eval(*tensors)
        found = kernels_of(ours, *tensors)
        assert len(found) == 1, found

        incoming = [weft.zeros(*one.shape) for one in parts(ours(*tensors))]
        weft.eval(*incoming)

        def gradients(tensors, incoming):
            def loss(*tensors):
                return sum((one * g).sum() for one, g in zip(parts(ours(*tensors)), incoming, strict=True))

            return weft.grad(loss, tuple(range(len(shapes))))(*tensors)

        found = kernels_of(gradients, tensors, incoming)
        assert len(found) <= most, found
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    mine = [weft.tensor(array).requires_grad_() for array in arrays]
    weft.manual_seed(5)
    results = parts(ours(*mine))
    other = [torch.tensor(array, requires_grad=True) for array in arrays]
    expected = parts(theirs(*other))
    for one, two in zip(results, expected, strict=True):
        np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol=2e-5, atol=2e-5)
    sum((one * weft.tensor(weights(one.shape))).sum() for one in results).backward()
    sum((two * torch.tensor(weights(tuple(two.shape)))).sum() for two in expected).backward()
    for one, two in zip(mine, other, strict=True):
        np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_dropout(on_each_device):
    """Elements are 0 with the probability p and else divided by 1 - p; the gradient has the same mask. Without
    training, or with p = 0, nothing happens; with p = 1 all is 0."""
    x = weft.full((400, 250), 2.0).requires_grad_()
    y = F.dropout(x, P)
    (y * 3.0).sum().backward()
    values, slopes = y.detach().numpy(), x.grad.numpy()
    kept = values != 0
    assert abs(kept.mean() - (1 - P)) < 5 * np.sqrt(P * (1 - P) / kept.size)
    np.testing.assert_allclose(values[kept], 2 / (1 - P), rtol=1e-6)
    np.testing.assert_allclose(slopes, np.where(kept, 3 / (1 - P), 0.0), rtol=1e-6)
    assert F.dropout(x, P, training=False) is x and F.dropout(x, 0.0) is x
    assert not F.dropout(x, 1.0).detach().numpy().any()
