"""Attention, experts and memories on a device with workgroups, run by the emulator, beside the CPU."""

import numpy as np
import pytest

import weft
import weft.nn as nn
from tests.unit.lockstep import Lockstep


def draw(*shape):
    return weft.tensor(np.random.default_rng(1).normal(size=shape).astype("float32"))


def results(make, run, device):
    """Results, and the gradients of the parameters."""
    weft.manual_seed(0)
    with weft.device("cpu"):
        state = {key: value.numpy() for key, value in make().state_dict().items()}
    with weft.device(device):
        layer = make()
        layer.load_state_dict(state)
        found = run(layer)
        sum((one * one).sum() for one in found).backward()
        return [one.detach().numpy() for one in [*found, *[param.grad for param in layer.parameters()]]]


def masked(layer):
    """The second query sees no key."""
    hidden = weft.tensor([[False, True, False], [True, True, True], [False, False, True]])
    x = draw(3, 2, 8)
    y, weights = layer(x, x, x, attn_mask=hidden)
    fused, _ = layer(x, x, x, attn_mask=hidden, need_weights=False)
    return y, weights, fused


def routed(layer):
    return layer(draw(20, 4)), layer.aux_loss


def decoded(layer):
    """Keys of earlier calls have no gradient: the outputs only."""
    cache = layer.make_cache(2, 5)
    return [layer(draw(2, 1, 8), cache=cache) for _ in range(3)]


@pytest.mark.parametrize(
    ("make", "run"),
    [
        (lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True), lambda m: m(*[draw(3, 2, 8)] * 3)),
        (lambda: nn.MultiheadAttention(8, 2), masked),
        (lambda: nn.GroupedQueryAttention(8, 4, 2, rope_base=100.0), lambda m: [m(draw(2, 5, 8), is_causal=True)]),
        (lambda: nn.SelfAttention(8, 2, rope_base=100.0), decoded),
        (lambda: nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0), lambda m: [m(draw(3, 2, 8))]),
        (lambda: nn.MoE([nn.Linear(4, 3) for _ in range(8)], nn.Linear(4, 8)), routed),
        (lambda: nn.MoE([nn.Linear(4, 3) for _ in range(4)], nn.Linear(4, 4), capacity_factor=0.5), routed),
        (lambda: nn.MemoryWrite(3, 4), lambda m: [m(draw(2, 5, 3), draw(2, 6, 4))]),
        (lambda: nn.EmbeddingBag(6, 4, mode="sum"), lambda m: [m(weft.tensor([1, 2, 4, 1]), weft.tensor([0, 3]))]),
    ],
    ids=["added keys", "masked", "grouped", "cache", "encoder", "MoE", "MoE with capacity", "MemoryWrite", "bags"],
)
def test_results_and_gradients(make, run):
    for ours, expected in zip(results(make, run, Lockstep().device), results(make, run, "cpu"), strict=True):
        np.testing.assert_allclose(ours, expected, 1e-4, 1e-5)
