"""Records of attention: torch.nn.MultiheadAttention, and compositions of torch's scaled_dot_product_attention."""

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from tests.layers.attention_oracles import grouped, of_self, one_head
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord

SEQUENCE = frozenset({"batch", "sequence", "mask"})
NO_MASK = frozenset({"batch", "sequence"})
LATER = np.triu(np.ones((3, 3), bool), 1)  # True: left out
ROW = np.array([[False, True, False], [True, True, True], [False, False, True]])  # the second query sees nothing
PADDING = np.array([[False, False, True], [False, True, False]])


def without_nan(module, *inputs):
    """torch's layer, with 0 where a query sees no key: torch's own weights are NaN there."""
    _, weights = module(*inputs)
    assert weights.isnan().any()
    fused = list(inputs) + [None] * (6 - len(inputs))
    fused[4] = False
    return module(*fused)[0], weights.nan_to_num(0.0)


def multihead(variant, options, inputs, call=None, **more):
    return LayerRecord(
        name="MultiheadAttention",
        variant=variant,
        make=lambda: nn.MultiheadAttention(4, 2, **options),
        inputs=inputs,
        oracle=of_torch(lambda: torch.nn.MultiheadAttention(4, 2, **options), call=call),
        rtol=2e-5,
        **more,
    )


def thrice(draw, *shape):
    x = draw.normal(*shape)
    return x, x.copy(), x.copy()


def no_scores_are_stored():
    """Without weights no [N, H, L, S] tensor is in the plan, whatever the masks: forward and backward."""
    length, scores = 64, 2 * 4 * 64 * 64
    masks = {
        "none": {},
        "padding": {"key_padding_mask": weft.zeros(2, length).bool()},
        "bool": {"attn_mask": weft.zeros(length, length).bool()},
        "float": {"attn_mask": weft.zeros(length, length)},
        "causal": {"attn_mask": weft.zeros(length, length).bool(), "is_causal": True},
    }
    for training in (False, True):
        layer = nn.MultiheadAttention(32, 4, batch_first=True, rope_base=100.0 if training else None).train(training)
        for name, given in masks.items():

            def step(x, layer=layer, given=given, training=training):
                y = layer(x, x, x, need_weights=False, **given)[0]
                if training:
                    y.sum().backward()
                return y

            compiled = weft.compile(step)
            compiled(weft.ones(2, length, 32))
            plan = compiled.plan
            assert all(interval.nbytes < scores * 4 for interval in plan.plan.arena), name
            names = [kernel.name for kernel in plan.kernels()]
            assert sum(kernel.startswith("attention") for kernel in names) >= 1, names
            layer.zero_grad()


def nan_of_a_query_stays(layer, inputs):
    """torch's kernel gives 0 for a query that is NaN; ours NaN, and numbers for the queries that do not see it."""
    query, _, value, *more = inputs
    spoiled = weft.where(weft.arange(3).reshape(3, 1, 1) == 1, float("nan"), query)
    y = layer(spoiled, query, value, *more)[0].detach().numpy()
    np.testing.assert_array_equal(np.isnan(y).any((1, 2)), [False, True, False])


def decoding_equals_one_call(make, positions=7):
    """Token by token with a cache, eagerly and compiled once, the outputs are those of one causal call."""
    weft.manual_seed(0)
    layer = make().eval()
    x = weft.randn(2, positions, 8)
    later = weft.ones(positions, positions).bool().triu(1)
    with weft.no_grad():
        expected, _ = layer(x, x, x, need_weights=False, attn_mask=later)

        def step(token, cache):
            return layer(token, need_weights=False, cache=cache)[0]

        cache = layer.make_cache(2, 9)
        first = layer(x[:, :3], need_weights=False, cache=cache)[0]  # three at once, then one by one
        rest = [step(x[:, t : t + 1], cache) for t in range(3, positions)]
        np.testing.assert_allclose(weft.cat([first, *rest], 1).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
        cache = layer.make_cache(2, 9)
        compiled = weft.compile(lambda token: step(token, cache))
        outs = [compiled(x[:, t : t + 1]).clone() for t in range(positions)]
        np.testing.assert_allclose(weft.cat(outs, 1).numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
        assert compiled.retraces == [] and cache.length.item() == positions
        cache.reset()
        np.testing.assert_allclose(compiled(x[:, :1]).numpy(), expected[:, :1].numpy(), rtol=1e-5, atol=1e-6)


def fully_masked_rows_have_no_gradient():
    for need_weights in (True, False):
        layer = nn.MultiheadAttention(4, 2, batch_first=True)
        x = weft.randn(1, 3, 4, requires_grad=True)
        y, _ = layer(x, x, x, attn_mask=weft.tensor(ROW), need_weights=need_weights)
        y[:, 1].sum().backward()
        np.testing.assert_array_equal(x.grad.numpy(), np.zeros((1, 3, 4)))
        assert not np.isnan(layer.in_proj_weight.grad.numpy()).any()


def the_flag_says_what_the_mask_says():
    """`is_causal` changes no result: with padding, with added keys, with and without weights."""
    weft.manual_seed(0)
    x, later, padding = weft.randn(2, 3, 4), weft.tensor(LATER), weft.tensor(PADDING)
    for options in ({}, {"add_zero_attn": True}, {"add_bias_kv": True}, {"num_kv_heads": 1, "rope_base": 10.0}):
        layer = nn.MultiheadAttention(4, 2, batch_first=True, **options)
        for given in (None, padding):
            expected = layer(x, x, x, given, True, later)[0].detach().numpy()
            for need_weights in (False, True):
                y, weights = layer(x, x, x, given, need_weights, later, is_causal=True)
                np.testing.assert_allclose(y.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
                assert (weights is None) is not need_weights


def dropout_acts_in_training_only():
    weft.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, dropout=0.5)
    x = weft.randn(6, 2, 4)
    _, weights = layer(x, x, x, average_attn_weights=False)
    dropped = weights.numpy()
    assert 0.2 < (dropped == 0).mean() < 0.8
    layer.eval()
    _, kept = layer(x, x, x, average_attn_weights=False)
    np.testing.assert_allclose(np.where(dropped == 0, 0, 2 * kept.numpy()), dropped, rtol=1e-5, atol=1e-6)


def a_full_cache_stays_as_it_is():
    """More than fits is an error; a compiled step has written nothing. Its message names no value: a step that writes
    the tensor which indices come from may have changed it."""
    cache = nn.KeyValueCache(1, 1, 3, 1)
    step = weft.compile(lambda x: cache.append(x, x)[0].sum())
    step(weft.ones(1, 1, 2, 1)).numpy()
    for _ in range(2):
        with pytest.raises(weft.IndexRangeError, match="given an index outside an axis of extent 3"):
            step(weft.full((1, 1, 2, 1), 7.0)).numpy()
        assert cache.length.item() == 2
        assert cache.keys.flatten().tolist() == cache.values.flatten().tolist() == [1.0, 1.0, 0.0]
    other = weft.compile(lambda x: cache.append(x, x)[0].sum())
    assert other(weft.full((1, 1, 1, 1), 7.0)).item() == 9.0 and cache.length.item() == 3


WIDTH = Bad(
    call=lambda layer: layer(weft.ones(3, 2, 5), weft.ones(3, 2, 5), weft.ones(3, 2, 5)),
    match="5.*4, 4 and 4 features",
    error=weft.ShapeError,
)

RECORDS = [
    multihead(
        "",
        {},
        lambda draw: thrice(draw, 3, 2, 4),
        traits=SEQUENCE,
        batch_axes=(1, 1, 1),
        sequence_axis=0,
        edges={
            "all-masked rows": Case(
                inputs=lambda draw: (*thrice(draw, 3, 2, 4), None, True, ROW),
                oracle=of_torch(lambda: torch.nn.MultiheadAttention(4, 2), call=without_nan),
            )
        },
        bad=[
            WIDTH,
            Bad(call=lambda layer: type(layer)(5, 2), match="embed_dim=5 and num_heads=2", error=weft.RangeError),
            Bad(call=lambda layer: type(layer)(4, 2, num_kv_heads=3), match="num_kv_heads=3", error=weft.RangeError),
            Bad(call=lambda layer: type(layer)(4, 2, dropout=1.5), match="dropout=1.5", error=weft.RangeError),
            Bad(
                call=lambda layer: layer(*[weft.ones(3, 2, 4)] * 3, is_causal=True),
                match="is_causal=True without attn_mask",
            ),
            Bad(
                call=lambda layer: layer(*[weft.ones(3, 2, 4)] * 3, attn_mask=weft.ones(2, 3).bool()),
                match=r"attn_mask of shape \(2, 3\).*\(3, 3\)",
            ),
            Bad(
                call=lambda layer: layer(*[weft.ones(3, 2, 4)] * 3, weft.ones(3, 2).bool()),
                match=r"key_padding_mask of shape \(3, 2\).*\(2, 3\)",
            ),
            Bad(
                call=lambda layer: layer(weft.ones(1, 2, 4), weft.ones(3, 2, 4), cache=layer.make_cache(2, 9)),
                match="a cache with 1 queries and 3 keys.*as many keys as queries",
            ),
            Bad(
                call=lambda layer: layer(*[weft.ones(3, 2, 4)] * 3, cache=layer.make_cache(1, 3)),
                match="KeyValueCache.*at most 3",
            ),
            Bad(call=lambda layer: layer(weft.ones(4)), match="three axes", error=weft.ShapeError),
        ],
        checks={
            "no scores are stored": no_scores_are_stored,
            "decoding": lambda: decoding_equals_one_call(lambda: nn.MultiheadAttention(8, 2, batch_first=True)),
            "a full cache": a_full_cache_stays_as_it_is,
            "decoding with shared heads and rotary positions": lambda: decoding_equals_one_call(
                lambda: nn.MultiheadAttention(8, 4, batch_first=True, num_kv_heads=2, rope_base=100.0)
            ),
            "rows that see nothing": fully_masked_rows_have_no_gradient,
            "dropout": dropout_acts_in_training_only,
            "the flag": the_flag_says_what_the_mask_says,
        },
    ),
    multihead(
        "fused, batch first, both masks",
        {"batch_first": True},
        lambda draw: (*thrice(draw, 2, 3, 4), PADDING, False, LATER),
        traits=SEQUENCE,
        batch_axes=(0, 0, 0, 0, None, None),
        edges={
            "sequence of one": Case(inputs=lambda draw: (*thrice(draw, 2, 1, 4), None, False, None)),
            "all-masked rows": Case(inputs=lambda draw: (*thrice(draw, 2, 3, 4), PADDING, False, ROW)),
        },
        no_bad="as the first record",
    ),
    multihead(
        "causal",
        {"bias": False},
        lambda draw: (*thrice(draw, 3, 2, 4), None, False, LATER, True, True),
        traits=NO_MASK,
        batch_axes=(1, 1, 1, None, None, None, None, None),
        edges={
            "sequence of one": Case(
                inputs=lambda draw: (*thrice(draw, 1, 2, 4), None, False, np.zeros((1, 1), bool), True, True)
            ),
            "nan": Case(check=nan_of_a_query_stays),
        },
        no_bad="as the first record",
    ),
    multihead(
        "float masks, weights per head",
        {},
        lambda draw: (*thrice(draw, 3, 2, 4), draw.normal(2, 3), True, draw.normal(4, 3, 3), False),
        traits=NO_MASK,
        batch_axes=None,
        edges={
            "batch of one": Case(
                inputs=lambda draw: (*thrice(draw, 3, 1, 4), draw.normal(1, 3), True, draw.normal(2, 3, 3), False)
            ),
            "sequence of one": Case(inputs=lambda draw: (*thrice(draw, 1, 2, 4), None, True, draw.normal(1, 1), False)),
        },
        no_bad="as the first record",
    ),
    multihead(
        "added keys, other widths",
        {"add_bias_kv": True, "add_zero_attn": True, "kdim": 3, "vdim": 5},
        lambda draw: (draw.normal(2, 2, 4), draw.normal(3, 2, 3), draw.normal(3, 2, 5), PADDING),
        traits=SEQUENCE,
        batch_axes=(1, 1, 1, 0),
        edges={
            "sequence of one": Case(
                inputs=lambda draw: (draw.normal(1, 2, 4), draw.normal(1, 2, 3), draw.normal(1, 2, 5))
            ),
            "all-masked rows": Case(
                inputs=lambda draw: (
                    draw.normal(2, 2, 4),
                    draw.normal(3, 2, 3),
                    draw.normal(3, 2, 5),
                    np.ones((2, 3), bool),
                )
            ),
        },
        no_bad="as the first record",
    ),
    multihead(
        "without a batch",
        {},
        lambda draw: (*thrice(draw, 3, 4), np.array([False, True, False])),
        traits=frozenset({"sequence"}),
        edges={"sequence of one": Case(inputs=lambda draw: thrice(draw, 1, 4))},
        no_bad="as the first record",
    ),
    LayerRecord(
        name="SelfAttention",
        make=lambda: nn.SelfAttention(4, 2),
        inputs=lambda draw: (draw.normal(2, 3, 4), ~LATER),
        oracle=of_self(),
        traits=SEQUENCE,
        batch_axes=(0, None),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4),)),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), ~ROW)),
        },
        rtol=2e-5,
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3, 5)), match="5.*4, 4 and 4 features")],
        checks={
            "the flag is the mask": lambda: flag_is_mask(nn.SelfAttention(4, 2)),
            "weights": lambda: weights_sum_to_one(nn.SelfAttention(4, 2), weft.randn(2, 3, 4)),
        },
    ),
    LayerRecord(
        name="SelfAttention",
        variant="float mask and key mask",
        make=lambda: nn.SelfAttention(4, 2),
        inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(3, 3), ~PADDING),
        oracle=of_self(key_mask=True),
        traits=frozenset({"batch", "mask"}),
        batch_axes=(0, None, 0),
        edges={
            "all-masked rows": Case(
                inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(3, 3), np.zeros((2, 3), bool))
            )
        },
        rtol=2e-5,
        no_bad="as the first record",
    ),
    LayerRecord(
        name="GroupedQueryAttention",
        make=lambda: nn.GroupedQueryAttention(8, 4, 2),
        inputs=lambda draw: (draw.normal(2, 3, 8), ~LATER),
        oracle=of_numpy(grouped),
        traits=SEQUENCE,
        batch_axes=(0, None),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 8), None)),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 8), ~ROW)),
        },
        rtol=2e-5,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5)), match="5.*8, 8 and 8 features"),
            Bad(call=lambda layer: type(layer)(8, 4, 3), match="num_kv_heads=3"),
        ],
        checks={
            "the flag is the mask": lambda: flag_is_mask(nn.GroupedQueryAttention(4, 2, 1)),
            "weights": lambda: weights_sum_to_one(nn.GroupedQueryAttention(4, 2, 1), weft.randn(2, 3, 4)),
        },
    ),
    LayerRecord(
        name="GroupedQueryAttention",
        variant="rotary",
        make=lambda: nn.GroupedQueryAttention(8, 4, 2, bias=False, rope_base=10000.0),
        inputs=lambda draw: (draw.normal(2, 3, 8),),
        oracle=of_numpy(lambda state, x: grouped(state, x, None, base=10000.0)),
        traits=NO_MASK,
        rtol=2e-5,
        no_bad="as the first record",
    ),
    LayerRecord(
        name="CrossAttention",
        make=lambda: nn.CrossAttention(4, 6, 2),
        inputs=lambda draw: (draw.normal(2, 2, 4), draw.normal(2, 3, 6), None, ~PADDING),
        oracle=of_torch(
            lambda: torch.nn.MultiheadAttention(4, 2, kdim=6, vdim=6, batch_first=True),
            call=lambda module, x, c, mask, key_mask: module(
                x, c, c, key_padding_mask=None if key_mask is None else ~key_mask, need_weights=False
            )[0],
        ),
        traits=SEQUENCE,
        batch_axes=(0, 0, None, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4), draw.normal(2, 1, 6), None, None)),
            "all-masked rows": Case(
                inputs=lambda draw: (draw.normal(2, 2, 4), draw.normal(2, 3, 6), None, np.zeros((2, 3), bool))
            ),
        },
        rtol=2e-5,
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3, 4), weft.ones(2, 3, 4)), match="4, 6 and 6 features")],
    ),
    LayerRecord(
        name="Attention",
        make=lambda: nn.Attention(4, 3),
        inputs=lambda draw: (draw.normal(2, 3, 4),),
        oracle=of_numpy(one_head),
        traits=SEQUENCE,
        edges={"all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), None, ~ROW))},
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5)), match=r"\(2, 3, 5\).*\[B, T, 4\]"),
            Bad(call=lambda layer: layer(weft.ones(2, 3, 4), weft.ones(2, 3, 5)), match="the context"),
            Bad(call=lambda layer: type(layer)(4, 0), match="attention_dim=0"),
        ],
        checks={"the flag is the mask": lambda: flag_is_mask(nn.Attention(4), context=True)},
    ),
    LayerRecord(
        name="Attention",
        variant="context, mask, bias",
        make=lambda: nn.Attention(4, bias=True),
        inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 2, 4), draw.normal(2, 3, 2)),
        oracle=of_numpy(one_head),
        no_bad="as the first record",
    ),
]


def flag_is_mask(layer, context=False):
    layer.eval()
    x = weft.randn(2, 3, 4)
    mask = weft.tensor(~LATER)
    masked = layer(x, None, mask) if context else layer(x, mask)
    np.testing.assert_allclose(layer(x, is_causal=True).numpy(), masked.numpy(), rtol=1e-5, atol=1e-6)
    if not context:
        extra = weft.tensor(np.array([[True, True, True], [False, True, True], [True, False, True]]))
        both = layer(x, extra & mask)
        np.testing.assert_allclose(layer(x, extra, is_causal=True).numpy(), both.numpy(), rtol=1e-5, atol=1e-6)


def weights_sum_to_one(layer, x):
    y, weights = layer(x, need_weights=True)
    np.testing.assert_allclose(weights.sum(-1).numpy(), 1.0, rtol=1e-5)
    np.testing.assert_allclose(y.detach().numpy(), layer(x).detach().numpy(), rtol=1e-5, atol=1e-6)
