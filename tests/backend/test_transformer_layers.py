"""Transformer layers cost what the same tensor code costs: kernels, bytes moved and memory, forward and backward."""

import pytest

import weft
import weft.nn as nn
import weft.nn.functional as F

pytestmark = pytest.mark.backend

WIDTH, HEADS, HIDDEN, BATCH, LENGTH = 64, 4, 256, 4, 32


def plain_block(x, p, rate, causal):
    """The pre-norm encoder layer, written with functions only."""
    batch, length, width = x.shape
    h = F.layer_norm(x, (width,), p["norm1.weight"], p["norm1.bias"])
    qkv = F.linear(h, p["self_attn.in_proj_weight"], p["self_attn.in_proj_bias"])
    q, k, v = [
        qkv[..., n * width : (n + 1) * width].reshape(batch, length, HEADS, width // HEADS).transpose(1, 2)
        for n in range(3)
    ]
    mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=causal).transpose(1, 2)
    y = F.linear(mixed.reshape(batch, length, width), p["self_attn.out_proj.weight"], p["self_attn.out_proj.bias"])
    x = x + F.dropout(y, rate, rate > 0)
    h = F.layer_norm(x, (width,), p["norm2.weight"], p["norm2.bias"])
    h = F.dropout(F.relu(F.linear(h, p["linear1.weight"], p["linear1.bias"])), rate, rate > 0)
    return x + F.dropout(F.linear(h, p["linear2.weight"], p["linear2.bias"]), rate, rate > 0)


def measure(function, model):
    """(kernels, bytes moved, bytes of memory for values in between) of a compiled call, and the names of kernels."""
    step = weft.compile(function)
    x = weft.ones(BATCH, LENGTH, WIDTH)
    step(x)
    plan = step.plan
    names = sorted(kernel.name for kernel in plan.kernels())
    model.zero_grad()
    return (len(plan), plan.bytes, plan.memory().arena_bytes), names, plan


@pytest.mark.parametrize("causal", [False, True], ids=["all keys", "causal"])
@pytest.mark.parametrize("rate", [None, 0.0, 0.1], ids=["eval", "train", "train with dropout"])
def test_encoder_layer_costs_what_its_tensor_code_costs(rate, causal):
    with weft.device("null"):
        model = nn.TransformerEncoderLayer(
            WIDTH, HEADS, HIDDEN, dropout=rate or 0.0, batch_first=True, norm_first=True
        ).train(rate is not None)
        p = dict(model.named_parameters())
        mask = weft.ones(LENGTH, LENGTH).bool().triu(1) if causal else None

        def layer(x):
            return model(x, mask, is_causal=causal)

        def plain(x):
            return plain_block(x, p, rate or 0.0, causal)

        def backward(forward):
            def step(x):
                forward(x).sum().backward()

            return step

        ours, names, plan = measure(layer, model)
        theirs, expected, _ = measure(plain, model)
        assert names == expected
        assert ours == theirs
        assert ours[0] <= 7 and sum(name.startswith("gemm") for name in names) == 4
        scores = BATCH * HEADS * LENGTH * LENGTH * 4
        assert all(interval.nbytes != scores for interval in plan.plan.arena)
        ours, names, plan = measure(backward(layer), model)
        theirs, expected, _ = measure(backward(plain), model)
        assert names == expected
        assert ours == theirs
        assert sum(name.startswith("attention") for name in names) >= 2
        assert all(interval.nbytes != scores for interval in plan.plan.arena)


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_is_two_products_and_one_attention(batch_first):
    """With the sequence on the first axis, what attention wrote is brought into its order: one copy more."""
    with weft.device("null"):
        layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).eval()
        x = weft.ones(BATCH, LENGTH, WIDTH) if batch_first else weft.ones(LENGTH, BATCH, WIDTH)
        step = weft.compile(lambda x: layer(x, x, x, need_weights=False)[0])
        step(x)
        names = [kernel.name for kernel in step.plan.kernels()]
        assert sum(name.startswith("gemm") for name in names) == 2
        assert sum(name.startswith("attention") for name in names) == 1
        assert len(names) == (3 if batch_first else 4)
