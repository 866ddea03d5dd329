"""cuDNN itself: convolution and attention against torch in float64, the same bits in every run, plans from disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as TF

import weft
import weft.nn.functional as F
from weft.plan.plan import LibraryCall

CLOSE = {weft.float32: 1e-4, weft.float16: 4e-3, weft.bfloat16: 3e-2}
GEOMETRIES = [
    ("conv2d", (4, 16, 12, 11), (24, 16, 3, 3), {"padding": 1}),
    ("conv2d", (2, 3, 33, 32), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
    ("conv2d", (2, 32, 14, 14), (64, 32, 1, 1), {"stride": 2}),
    ("conv2d", (2, 16, 9, 9), (32, 4, 3, 3), {"dilation": 2, "groups": 4, "padding": 2}),
    ("conv2d", (2, 8, 8, 8), (8, 8, 4, 4), {"padding": "same"}),
    ("conv2d", (2, 7, 9, 5), (5, 7, 3, 2), {"stride": (1, 2), "padding": (0, 1)}),
    ("conv2d", (2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    ("conv1d", (3, 8, 40), (16, 8, 5), {"stride": 2, "padding": 2}),
    ("conv3d", (2, 8, 6, 7, 5), (16, 8, 3, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
    ("conv_transpose2d", (2, 16, 7, 7), (16, 8, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
]

pytestmark = [pytest.mark.filterwarnings("ignore:Using padding=.same."), pytest.mark.needs("cudnn")]


def normal(*shape, seed=0, dtype=weft.float32):
    return weft.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


def twin(x):
    return torch.tensor(x.float().numpy(), dtype=torch.float64, requires_grad=True)


def assert_close(found, expected, dtype):
    want = expected.detach().numpy()
    scale = np.abs(want).max()
    np.testing.assert_allclose(found.float().numpy() / scale, want / scale, atol=CLOSE[dtype], rtol=0)


def calls(step):
    return [step.name for step in step.plan.plan.steps if isinstance(step, LibraryCall) and step.library == "cudnn"]


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("name", "x", "w", "how"), GEOMETRIES)
def test_convolution(name, x, w, how, dtype):
    args = normal(*x, dtype=dtype), normal(*w, seed=1, dtype=dtype) * 0.1
    twins = [twin(arg) for arg in args]
    expected = getattr(TF, name)(*twins, **how)
    g = normal(*expected.shape, seed=2, dtype=dtype)
    expected.backward(twin(g).detach())

    @weft.compile
    def step(x, w, g):
        def loss(x, w):
            y = getattr(F, name)(x, w, **how)
            return (y.float() * g.float()).sum(), y

        (_, y), grads = weft.value_and_grad(loss, (0, 1), has_aux=True)(x, w)
        return y, *grads

    first = [found.float().numpy().copy() for found in step(*args, g)]
    for found, want in zip(step(*args, g), (expected, *[one.grad for one in twins]), strict=True):
        assert_close(found, want, dtype)
    if how.get("groups") != x[1]:
        if dtype is weft.float32:  # exact input gradients are convolutions
            assert set(calls(step)) == {"conv", "conv_weight"}
        else:
            assert sorted(calls(step)) == ["conv", "conv_input", "conv_weight"]
    for _ in range(5):  # recorded by now
        for one, two in zip(first, step(*args, g), strict=True):
            assert one.tobytes() == two.float().numpy().tobytes()


@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "width"),
    [(4, 4, 128, 128, 64), (4, 2, 100, 333, 32), (2, 2, 7, 7, 128), (3, 1, 65, 65, 8), (2, 2, 64, 64, 192)],
)
def test_attention(heads, kv_heads, queries, keys, width, causal, dtype):
    shapes = [(2, heads, queries, width), (2, kv_heads, keys, width), (2, kv_heads, keys, width)]
    args = [normal(*shape, seed=k, dtype=dtype) for k, shape in enumerate(shapes)]
    g = normal(2, heads, queries, width, seed=5, dtype=dtype)

    @weft.compile
    def step(q, k, v, g):
        def loss(q, k, v):
            y = F.scaled_dot_product_attention(q, k, v, causal="bottom_right" if causal else None, enable_gqa=True)
            return (y.float() * g.float()).sum(), y

        (_, y), grads = weft.value_and_grad(loss, (0, 1, 2), has_aux=True)(q, k, v)
        return y, *grads

    first = [found.float().numpy().copy() for found in step(*args, g)]
    twins = [twin(arg) for arg in args]
    k, v = (one.repeat_interleave(heads // kv_heads, 1) for one in twins[1:])
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else None
    expected = TF.scaled_dot_product_attention(twins[0], k, v, attn_mask=mask)
    expected.backward(twin(g).detach())
    for found, want in zip(step(*args, g), (expected, *[one.grad for one in twins]), strict=True):
        assert_close(found, want, dtype)
    assert calls(step) == ["attention", "attention_backward"]
    for _ in range(5):
        for one, two in zip(first, step(*args, g), strict=True):
            assert one.tobytes() == two.float().numpy().tobytes()


def test_heads_of_one_projection_are_read_and_written_where_they_lie():
    qkv, g = normal(2, 64, 3, 4, 32, dtype=weft.bfloat16), normal(2, 64, 128, seed=1, dtype=weft.bfloat16)

    def loss(qkv):
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (y.transpose(1, 2).reshape(2, 64, 128).float() * g.float()).sum()

    step = weft.compile(lambda qkv: weft.grad(loss)(qkv))
    found = step(qkv)
    assert not [one.name for one in step.plan.plan.steps if "copy" in one.name or "permute" in one.name]
    one = twin(qkv)
    q, k, v = (one[:, :, part].transpose(1, 2) for part in range(3))
    y = TF.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 64, 128)
    (y * twin(g).detach()).sum().backward()
    assert_close(found, one.grad, weft.bfloat16)


def test_sources_at_odd_addresses():
    """A part of what the user holds may begin anywhere."""
    whole, w = normal(3, 1, 5, 5), normal(2, 1, 3, 3, seed=1)
    weft.eval(whole)
    part = whole[1:]
    assert_close(F.conv2d(part, w), TF.conv2d(twin(part), twin(w)), weft.float32)


def test_shorter_factors_where_they_are_allowed():
    x, w = normal(4, 64, 16, 16), normal(64, 64, 3, 3, seed=1) * 0.05
    exact = TF.conv2d(twin(x), twin(w)).detach().numpy()
    errors = []
    try:
        for precision in ("highest", "high"):
            weft.set_float32_matmul_precision(precision)
            errors.append(np.abs(F.conv2d(x, w).numpy() - exact).max())
    finally:
        weft.set_float32_matmul_precision("highest")
    assert errors[0] < 1e-5 < errors[1] < 1e-2
