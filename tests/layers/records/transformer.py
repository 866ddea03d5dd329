"""Records of transformers: torch's modules of the same names."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch, to_torch
from tests.layers.record import Bad, Case, LayerRecord
from weft.nn.basic.normalization import LayerNorm

SEQUENCE = frozenset({"batch", "sequence"})
MASKED = frozenset({"batch", "sequence", "mask"})
LATER = np.triu(np.ones((3, 3), bool), 1)  # True: left out
FLOAT_LATER = np.where(LATER, -1e4, 0.0)
ROW = np.array([[False, True, False], [True, True, True], [False, False, True]])  # the second query sees nothing
PADDING = np.array([[False, False, True], [False, True, False]])


def plain(make):
    """torch's module, without its fused path: that gives NaN for rows that see nothing, and zeros for padded ones."""
    inner = of_torch(make)

    def oracle(state, inputs, training):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return inner(state, inputs, training)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    oracle.torch_module = make
    return oracle


def encoder(variant, options, inputs, **more):
    def build(library):
        return library.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.0, **options(library))

    return LayerRecord(
        name="TransformerEncoderLayer",
        variant=variant,
        make=lambda: build(nn),
        inputs=inputs,
        oracle=plain(lambda: build(torch.nn)),
        rtol=1e-4,
        **more,
    )


def decoder(variant, options, inputs, **more):
    def build(library):
        return library.TransformerDecoderLayer(4, 2, dim_feedforward=6, dropout=0.0, **options(library))

    return LayerRecord(
        name="TransformerDecoderLayer",
        variant=variant,
        make=lambda: build(nn),
        inputs=inputs,
        oracle=plain(lambda: build(torch.nn)),
        rtol=1e-4,
        **more,
    )


def stack_of(library, kind, **options):
    one = getattr(library, f"Transformer{kind}Layer")(4, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    norm = torch.nn.LayerNorm(4) if library is torch.nn else LayerNorm(4)
    return getattr(library, f"Transformer{kind}")(one, 2, norm=norm, **options)


def whole(library):
    return library.Transformer(4, 2, 1, 1, dim_feedforward=6, dropout=0.0, activation="gelu", batch_first=True)


def copies_are_equal_and_separate():
    stacked = stack_of(nn, "Encoder")
    first, second = stacked.layers
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert one is not other
        np.testing.assert_array_equal(one.detach().numpy(), other.detach().numpy())


def dropout_has_an_effect():
    weft.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=6, dropout=0.5)
    x = weft.randn(3, 2, 4)
    assert not np.array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())
    layer.eval()
    np.testing.assert_array_equal(layer(x).detach().numpy(), layer(x).detach().numpy())


def two_linears(state, x):
    hidden = torch.nn.functional.gelu(torch.tensor(x @ state["linear1.weight"].T + state["linear1.bias"])).numpy()
    return hidden @ state["linear2.weight"].T + state["linear2.bias"]


def single_head(state, x, memory, mask=None):
    """torch's decoder layer with one head, its weights from ours and its attention biases 0."""
    module = torch.nn.TransformerDecoderLayer(4, 1, dim_feedforward=6, dropout=0.0, batch_first=True).double()
    given = {}
    for ours, theirs in (("self_attn", "self_attn"), ("cross_attn", "multihead_attn")):
        parts = [state[f"{ours}.{name}_proj.weight"] for name in "qkv"]
        given |= {f"{theirs}.in_proj_weight": np.concatenate(parts), f"{theirs}.in_proj_bias": np.zeros(12)}
        given |= {f"{theirs}.out_proj.weight": state[f"{ours}.out_proj.weight"], f"{theirs}.out_proj.bias": np.zeros(4)}
    for name in ("linear1", "linear2"):
        given |= {f"{name}.{part}": state[f"feed_forward.{name}.{part}"] for part in ("weight", "bias")}
    given |= {key: value for key, value in state.items() if key.startswith("norm")}
    module.load_state_dict(to_torch(given))
    left_out = None if mask is None else ~torch.tensor(mask)
    return module(torch.tensor(x), torch.tensor(memory), tgt_mask=left_out)


def table(state, x):
    length, width = x.shape[-2:]
    angles = np.arange(length)[:, None] * 10000.0 ** (-(np.arange(width) // 2 * 2) / width)
    return x + np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


def table_in_float64_is_exact():
    x = np.zeros((1, 12, 5))
    layer = nn.PositionalEncoding(5, max_len=12, dtype=weft.float64)
    np.testing.assert_allclose(layer(weft.tensor(x)).numpy(), table({}, x), rtol=1e-12, atol=1e-12)


def patches(state, x):
    y = torch.nn.functional.conv2d(
        torch.tensor(x), torch.tensor(state["proj.weight"]), torch.tensor(state["proj.bias"]), (2, 3)
    )
    return y.flatten(2).transpose(1, 2)


RECORDS = [
    encoder(
        "",
        lambda library: {},
        lambda draw: (draw.normal(3, 2, 4),),
        traits=SEQUENCE,
        batch_axes=(1,),
        sequence_axis=0,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(3, 2, 5)), match="5.*4, 4 and 4 features", error=weft.ShapeError),
            Bad(call=lambda layer: type(layer)(5, 2), match="embed_dim=5 and num_heads=2"),
            Bad(call=lambda layer: type(layer)(4, 2, activation="nothing"), match="nothing"),
        ],
        checks={"dropout": dropout_has_an_effect},
    ),
    encoder(
        "norm first, both masks",
        lambda library: {"batch_first": True, "norm_first": True, "activation": "gelu", "bias": False},
        lambda draw: (draw.normal(2, 3, 4), LATER, PADDING),
        traits=MASKED,
        batch_axes=(0, None, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4),)),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), ROW, PADDING)),
        },
        no_bad="as the first record",
    ),
    encoder(
        "causal, other epsilon",
        lambda library: {"layer_norm_eps": 0.1},
        lambda draw: (draw.normal(3, 2, 4), FLOAT_LATER, None, True),
        traits=frozenset({"batch"}),
        batch_axes=(1, None, None, None),
        edges={"nan": "torch's causal kernel gives 0 for a query that is NaN; see MultiheadAttention"},
        no_bad="as the first record",
    ),
    decoder(
        "",
        lambda library: {},
        lambda draw: (draw.normal(3, 2, 4), draw.normal(5, 2, 4)),
        traits=SEQUENCE,
        batch_axes=(1, 1),
        sequence_axis=0,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(3, 2, 5), weft.ones(5, 2, 4)), match="4, 4 and 4 features"),
            Bad(call=lambda layer: layer(weft.ones(3, 2, 4), weft.ones(5, 2, 6)), match="4, 4 and 4 features"),
        ],
    ),
    decoder(
        "norm first, masks",
        lambda library: {"batch_first": True, "norm_first": True, "activation": "gelu"},
        lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 3, 4), LATER, ROW, PADDING, PADDING),
        traits=MASKED,
        batch_axes=(0, 0, None, None, 0, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4), draw.normal(2, 1, 4))),
            "all-masked rows": Case(
                inputs=lambda draw: (
                    draw.normal(2, 3, 4),
                    draw.normal(2, 3, 4),
                    None,
                    None,
                    None,
                    np.ones((2, 3), bool),
                )
            ),
        },
        no_bad="as the first record",
    ),
    LayerRecord(
        name="TransformerEncoder",
        make=lambda: stack_of(nn, "Encoder"),
        inputs=lambda draw: (draw.normal(2, 3, 4), LATER, PADDING),
        oracle=plain(lambda: stack_of(torch.nn, "Encoder", enable_nested_tensor=False)),
        traits=MASKED,
        batch_axes=(0, None, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4),)),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), ROW)),
        },
        rtol=1e-4,
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(2, 3, 5)),
                match=r"layers\.0\.self_attn.*query \(2, 3, 5\).*4, 4 and 4 features",
                error=weft.ShapeError,
            )
        ],
        checks={"copies": copies_are_equal_and_separate},
    ),
    LayerRecord(
        name="TransformerDecoder",
        make=lambda: stack_of(nn, "Decoder"),
        inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 3, 4), LATER, None, None, PADDING),
        oracle=plain(lambda: stack_of(torch.nn, "Decoder")),
        traits=MASKED,
        batch_axes=(0, 0, None, None, None, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4), draw.normal(2, 1, 4))),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 3, 4), ROW)),
        },
        rtol=1e-4,
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3, 4), weft.ones(2, 3, 5)), match="4, 4 and 4 features")],
    ),
    LayerRecord(
        name="Transformer",
        make=lambda: whole(nn),
        inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 3, 4), None, FLOAT_LATER, None, PADDING),
        oracle=plain(lambda: whole(torch.nn)),
        traits=SEQUENCE,
        batch_axes=(0, 0, None, None, None, 0),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4), draw.normal(2, 1, 4))),
            "eval": Case(
                inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 3, 4), None, FLOAT_LATER),
            ),
        },
        rtol=1e-4,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 3, 5), weft.ones(2, 3, 4)), match="4 features in both"),
            Bad(call=lambda layer: layer(weft.ones(1, 3, 4), weft.ones(2, 3, 4)), match="the same batch"),
        ],
    ),
    LayerRecord(
        name="FeedForward",
        make=lambda: nn.FeedForward(3),
        inputs=lambda draw: (draw.normal(2, 4, 3),),
        oracle=of_numpy(two_linears),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match=r"linear1.*2, 4.*3")],
    ),
    LayerRecord(
        name="DecoderLayer",
        make=lambda: nn.DecoderLayer(4, 4, 6),
        inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 5, 4), ~LATER),
        oracle=of_numpy(single_head),
        traits=MASKED,
        batch_axes=(0, 0, None),
        edges={
            "sequence of one": Case(inputs=lambda draw: (draw.normal(2, 1, 4), draw.normal(2, 1, 4))),
            "all-masked rows": Case(inputs=lambda draw: (draw.normal(2, 3, 4), draw.normal(2, 5, 4), ~ROW)),
        },
        rtol=1e-4,
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3, 4), weft.ones(2, 3, 5)), match="the context of shape")],
    ),
    LayerRecord(
        name="PatchEmbed",
        make=lambda: nn.PatchEmbed((4, 6), (2, 3), in_chans=2, embed_dim=3),
        inputs=lambda draw: (draw.normal(2, 2, 4, 6),),
        oracle=of_numpy(patches),
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 2, 5, 6)), match=r"\(2, 2, 5, 6\).*\[B, C, 4, 6\]"),
            Bad(call=lambda layer: type(layer)(None, 4, 2, 3)(weft.ones(1, 2, 6, 8)), match="6 x 8.*4 x 4"),
            Bad(call=lambda layer: type(layer)(7, 2), match="img_size"),
        ],
    ),
    LayerRecord(
        name="PositionalEncoding",
        make=lambda: nn.PositionalEncoding(5, max_len=12),
        inputs=lambda draw: (draw.normal(2, 4, 5),),
        oracle=of_numpy(table),
        traits=SEQUENCE,
        bad=[
            Bad(call=lambda layer: layer(weft.ones(2, 13, 5)), match=r"at most 12, 5"),
            Bad(call=lambda layer: type(layer)(0), match="d_model=0"),
        ],
        checks={"float64": table_in_float64_is_exact},
    ),
]
