"""Records of embeddings: torch's tables, and the formula of time embeddings."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_numpy, of_torch
from tests.layers.record import Bad, Case, LayerRecord

NUMBERS = np.array([[1, 4, 1], [0, 2, 4]])
FLAT = np.array([3, 1, 1, 0, 4, 2, 1])
OFFSETS = np.array([0, 2, 2, 5])  # the second bag is empty


def table(variant, options, inputs, **more):
    return LayerRecord(
        name="Embedding",
        variant=variant,
        make=lambda: nn.Embedding(5, 3, **options),
        inputs=inputs,
        oracle=of_torch(lambda: torch.nn.Embedding(5, 3, **options)),
        **more,
    )


def bag(variant, options, inputs, **more):
    return LayerRecord(
        name="EmbeddingBag",
        variant=variant,
        make=lambda: nn.EmbeddingBag(5, 3, **options),
        inputs=inputs,
        oracle=of_torch(lambda: torch.nn.EmbeddingBag(5, 3, **options)),
        **more,
    )


def gradients_are_torchs(make, *inputs):
    """The gradient of the table, and the table after the call, which `max_norm` changes."""

    def check():
        weft.manual_seed(0)
        ours, theirs = make(nn), make(torch.nn)
        with weft.no_grad():
            ours.weight.copy_(weft.randn(5, 3) * 2)
        theirs.load_state_dict({"weight": torch.tensor(ours.weight.detach().numpy())})
        for library, module in ((weft, ours), (torch, theirs)):
            y = module(*[library.tensor(one) for one in inputs])
            (y * y).sum().backward()
        np.testing.assert_allclose(ours.weight.detach().numpy(), theirs.weight.detach().numpy(), rtol=1e-5)
        np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad.numpy(), rtol=1e-5, atol=1e-6)

    return check


def padding_row_is_zero():
    for make in (nn.Embedding, nn.EmbeddingBag):
        layer = make(4, 2, padding_idx=-1)
        assert layer.padding_idx == 3
        rows = layer.weight.detach().numpy()
        assert (rows[3] == 0).all() and (rows[:3] != 0).all()


def pretrained_is_frozen():
    values = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    for make in (nn.Embedding, nn.EmbeddingBag):
        assert not make.from_pretrained(values).weight.requires_grad
        free = make.from_pretrained(values, freeze=False)
        assert free.weight.requires_grad and (free.num_embeddings, free.embedding_dim) == (2, 2)
        np.testing.assert_array_equal(free.weight.detach().numpy(), values.numpy())


def waves(state, t):
    rates = 10000.0 ** (-np.arange(3) / 3)
    angles = t[..., None] * rates
    hidden = np.concatenate([np.sin(angles), np.cos(angles)], -1) @ state["linear1.weight"].T + state["linear1.bias"]
    return hidden / (1 + np.exp(-hidden)) @ state["linear2.weight"].T + state["linear2.bias"]


def whole_steps_are_taken():
    layer = nn.TimeEmbedding(6, 4)
    steps = layer(weft.tensor([0, 7, 999])).detach().numpy()
    np.testing.assert_array_equal(steps, layer(weft.tensor([0.0, 7.0, 999.0])).detach().numpy())


RECORDS = [
    table(
        "",
        {},
        lambda draw: (NUMBERS,),
        bad=[
            Bad(call=lambda layer: layer(weft.tensor([1, 5])), match="5", error=IndexError),
            Bad(call=lambda layer: layer(weft.ones(2)), match="float32"),
            Bad(call=lambda layer: type(layer)(5, -1), match="embedding_dim=-1"),
            Bad(call=lambda layer: type(layer)(5, 2, padding_idx=5), match="padding_idx=5 for 5 rows"),
            Bad(call=lambda layer: type(layer).from_pretrained(weft.ones(3)), match=r"shape \(3,\)"),
            Bad(call=lambda layer: type(layer)(5, 2, _weight=weft.ones(3, 2)), match=r"\(3, 2\).*\(5, 2\)"),
        ],
        checks={
            "gradient": gradients_are_torchs(lambda library: library.Embedding(5, 3), NUMBERS),
            "gradient by frequency": gradients_are_torchs(
                lambda library: library.Embedding(5, 3, scale_grad_by_freq=True), NUMBERS
            ),
            "gradient of padding": gradients_are_torchs(
                lambda library: library.Embedding(5, 3, padding_idx=1), NUMBERS
            ),
            "bounded norms": gradients_are_torchs(
                lambda library: library.Embedding(5, 3, max_norm=1.5, norm_type=1.0), NUMBERS
            ),
            "padding starts as zero": padding_row_is_zero,
            "pretrained": pretrained_is_frozen,
        },
    ),
    # The row for padding has a value and no gradient: differences along it are checked above, against torch.
    table("padding", {"padding_idx": 3, "sparse": True}, lambda draw: (NUMBERS[1],), no_bad="as the first record"),
    bag(
        "mean",
        {},
        lambda draw: (FLAT, OFFSETS),
        traits=frozenset(),
        bad=[
            Bad(call=lambda layer: layer(weft.tensor([1, 2])), match="offsets"),
            Bad(call=lambda layer: layer(weft.tensor([[1, 9]])), match="9", error=IndexError),
            Bad(call=lambda layer: type(layer)(5, 3, mode="median"), match="median"),
            Bad(
                call=lambda layer: layer(weft.tensor([[1, 2]]), None, weft.ones(1, 2)),
                match="per_sample_weights with mode='mean'",
            ),
        ],
        checks={
            "gradient": gradients_are_torchs(lambda library: library.EmbeddingBag(5, 3), FLAT, OFFSETS),
            "bounded norms": gradients_are_torchs(
                lambda library: library.EmbeddingBag(5, 3, max_norm=1.0), FLAT, OFFSETS
            ),
        },
    ),
    bag(
        "sum, weights, last offset",
        {"mode": "sum", "include_last_offset": True},
        lambda draw: (FLAT, np.array([0, 2, 2, 5, 7]), draw.normal(7)),
        traits=frozenset(),
        no_bad="as the first record",
    ),
    bag(
        "max",
        {"mode": "max"},
        lambda draw: (NUMBERS,),
        traits=frozenset({"batch", "order"}),
        edges={"ties": Case(inputs=lambda draw: (np.array([[1, 1, 1], [2, 2, 0]]),))},
        no_bad="as the first record",
        checks={"gradient": gradients_are_torchs(lambda library: library.EmbeddingBag(5, 3, mode="max"), NUMBERS)},
    ),
    bag("padding", {"padding_idx": 1}, lambda draw: (NUMBERS,), no_bad="as the first record"),
    LayerRecord(
        name="TimeEmbedding",
        make=lambda: nn.TimeEmbedding(6, 4),
        inputs=lambda draw: (draw.uniform(3, low=0.0, high=50.0),),
        oracle=of_numpy(waves),
        rtol=5e-5,
        bf16="a time in bfloat16 has two digits: sines of it are other numbers",
        bad=[Bad(call=lambda layer: type(layer)(5, 4), match="embedding_dim=5")],
        checks={"whole steps": whole_steps_are_taken},
    ),
]
