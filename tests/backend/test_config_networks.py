"""Networks from configurations: their numbers against NumPy and torch in float64, and the way back to a file."""

import functools
import itertools
import json

import numpy as np
import pytest
import torch

import weft
import weft.config
import weft.nn as nn
from tests.layers.records import records

jsonschema = pytest.importorskip("jsonschema")

WIDTH = 24
ACTIVATIONS = {
    "linear": lambda x: x,
    "relu": torch.relu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": torch.nn.functional.softplus,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def of_torch(model, state):
    """A torch module with the values of a state_dict of ours."""
    model = model.double()
    model.load_state_dict({name: torch.tensor(value.numpy()) for name, value in state.items()})
    return model


def torch_conv(cls, entry, prefix, view):
    keys = [entry[f"{prefix}{key}"] for key in ("filters", "kernel_size")]
    stride, padding = entry.get(f"{prefix}stride", 1), entry.get(f"{prefix}padding", 0)

    def run(state, x):
        conv = of_torch(cls(view[0], *keys, stride, padding), state)
        return conv(x.reshape(-1, *view)).flatten(1)

    return run


def dense(state, x):
    return x @ torch.tensor(state["weight"].numpy()).T + torch.tensor(state["bias"].numpy())


def swiglu(state, x):
    gate, up, down = (torch.tensor(state[f"{name}.weight"].numpy()) for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def norm(state, x, size=8, eps=1e-3):
    rows = x.reshape(len(x), -1, size)
    mean = rows.mean(-1, keepdim=True)
    scaled = (rows - mean) / torch.sqrt(rows.var(-1, unbiased=False, keepdim=True) + eps)
    return (scaled * torch.tensor(state["weight"].numpy()) + torch.tensor(state["bias"].numpy())).flatten(1)


def rms_norm(state, x, eps=1e-5):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * torch.tensor(state["weight"].numpy())


def recurrent(cls):
    def run(state, x):
        layer = of_torch(cls(6, 5, batch_first=True), state)
        return layer(x.reshape(-1, 4, 6))[0].flatten(1)

    return run


def attention(state, x):
    layer = of_torch(torch.nn.MultiheadAttention(6, 2, batch_first=True), state)
    x = x.reshape(-1, 4, 6)
    return layer(x, x, x)[0].flatten(1)


def relu_rnn(state, x):
    layer = of_torch(torch.nn.RNN(6, 5, nonlinearity="relu", batch_first=True), state)
    return layer(x.reshape(-1, 4, 6))[0].flatten(1)


MASK = [True, False, True] * 8
CONV1D = {"type": "conv1d", "conv1d_in_channels": 3, "conv1d_filters": 4, "conv1d_kernel_size": 3}
STRIDED1D = {**CONV1D, "conv1d_stride": 2, "conv1d_padding": 1}
CONV2D = {"type": "conv2d", "input_channels": 2, "input_height": 3, "input_width": 4, "filters": 5, "kernel_size": 2}
STRIDED2D = {**CONV2D, "stride": 2, "padding": 1, "output_height": 2, "output_width": 3}
STEPS = {"input_size": 6, "hidden_size": 5, "seq_length": 4}
CASES = [
    ({"type": "dense", "input_height": WIDTH, "output_height": 7}, dense),
    *[
        ({"type": "dense", "activation": name, "input_height": WIDTH, "output_height": 7},
         lambda state, x, f=function: f(dense(state, x)))
        for name, function in ACTIVATIONS.items()
    ],
    (CONV1D, torch_conv(torch.nn.Conv1d, CONV1D, "conv1d_", (3, 8))),
    (STRIDED1D, torch_conv(torch.nn.Conv1d, STRIDED1D, "conv1d_", (3, 8))),
    ({**CONV1D, "input_height": 8}, torch_conv(torch.nn.Conv1d, CONV1D, "conv1d_", (3, 8))),
    (CONV2D, torch_conv(torch.nn.Conv2d, CONV2D, "", (2, 3, 4))),
    (STRIDED2D, torch_conv(torch.nn.Conv2d, STRIDED2D, "", (2, 3, 4))),
    ({"type": "layer_norm", "norm_size": 8, "epsilon": 1e-3}, norm),
    ({"type": "rms_norm", "norm_size": WIDTH}, rms_norm),
    ({"type": "softmax"}, lambda state, x: torch.softmax(x, -1)),
    ({"type": "softmax", "softmax_variant": "standard", "temperature": 1.0}, lambda state, x: torch.softmax(x, -1)),
    ({"type": "softmax", "softmax_variant": "temperature", "temperature": 0.3},
     lambda state, x: torch.softmax(x / 0.3, -1)),
    ({"type": "softmax", "softmax_variant": "grid", "softmax_rows": 4, "softmax_cols": 6},
     lambda state, x: torch.softmax(x.reshape(-1, 4, 6), -1).flatten(1)),
    ({"type": "softmax", "softmax_variant": "masked", "mask": MASK},
     lambda state, x: torch.softmax(x.masked_fill(~torch.tensor(MASK), -torch.inf), -1)),
    ({"type": "swiglu", "input_height": WIDTH, "output_height": 11}, swiglu),
    ({"type": "rnn", **STEPS}, recurrent(torch.nn.RNN)),
    ({"type": "rnn", "activation": "relu", **STEPS}, relu_rnn),
    ({"type": "lstm", **STEPS}, recurrent(torch.nn.LSTM)),
    ({"type": "lstm", "activation": "tanh", **STEPS}, lambda state, x: recurrent(torch.nn.LSTM)(state, x).tanh()),
    ({"type": "mha", "d_model": 6, "num_heads": 2, "seq_length": 4}, attention),
]  # fmt: skip
NAMES = [f"{number}-{entry['type']}" for number, (entry, _) in enumerate(CASES)]


@pytest.mark.parametrize(("entry", "oracle"), CASES, ids=NAMES)
def test_types_of_the_dialect_compute_as_torch(entry, oracle, on_each_device):
    """After a dense layer, so that widths are known; in float64, with the gradient of the input."""
    first = {"type": "dense", "input_height": 5, "output_height": WIDTH}
    net = nn.from_config({"layers": [first, entry]}).double()
    layer = net.get_layer(0, 0, 1)
    assert json.loads(json.dumps(net.to_config()))["layers"] == [first, entry]
    for param in layer.parameters():  # norms begin as ones and zeros
        param.data.copy_(weft.rand(*param.shape, dtype=weft.float64) - 0.4)
    data = np.random.default_rng(0).normal(size=(3, WIDTH))
    x = weft.tensor(data, requires_grad=True)
    y = layer(x)
    (y * y).sum().backward()
    state = {name: value for name, value in layer.layer.state_dict().items() if hasattr(value, "numpy")}
    theirs = torch.tensor(data, requires_grad=True)
    expected = oracle(state, theirs)
    (expected * expected).sum().backward()
    assert y.shape == tuple(expected.shape) and layer.gives in (None, y.shape[-1])
    np.testing.assert_allclose(y.numpy(), expected.detach().numpy(), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-10, atol=1e-11)
    assert layer(x[0]).shape == (y.shape[-1],) and layer(x.reshape(3, 1, WIDTH)).shape == (3, 1, y.shape[-1])
    assert layer(x[:0]).shape == (0, y.shape[-1])


def test_a_masked_softmax_without_an_allowed_entry_is_zero(on_each_device):
    entry = {"type": "softmax", "softmax_variant": "masked", "mask": [0, 0, 0]}
    assert nn.from_config({"layers": [entry]})(weft.ones(2, 3)).tolist() == [[0.0] * 3] * 2


def test_a_grid_runs_row_by_row(on_each_device):
    sizes = [3, 4, 5, 6, 7, 8, 9, 10, 2]
    entries = [
        {"type": "dense", "activation": "tanh", "input_height": a, "output_height": b}
        for a, b in itertools.pairwise(sizes)
    ]
    tree = {"id": "g", "batch_size": 4, "grid_rows": 2, "grid_cols": 2, "layers_per_cell": 2, "layers": entries}
    net = nn.from_config(tree)
    assert isinstance(net, nn.Grid) and net.to_config() == tree and net.input_size == 3
    assert [net.get_layer(*place).entry for place in net.places()] == entries
    assert net.get_layer(1, 0, 1).entry["input_height"] == 8
    x = weft.randn(4, 3)
    y = x
    for layer in net:
        y = (y @ layer.layer.weight.T + layer.layer.bias).tanh()
    np.testing.assert_allclose(net(x).numpy(), y.numpy(), rtol=1e-6, atol=1e-6)
    compiled = weft.compile(net)
    assert compiled(x).tolist() == net(x).tolist()


def test_sample_networks(on_each_device):
    """Those of the width 2048, but for that of the RNN; only two are run here, `weft parity` runs all."""
    assert weft.config.samples() == ["dense", "layer_norm", "rms_norm", "softmax", "conv1d", "conv2d", "swiglu", "rnn"]
    for name in weft.config.samples():
        tree = weft.config.sample(name)
        net = nn.from_config(tree)
        assert net.to_config() == tree and net.id == name
        assert net.input_size == (512 if name == "rnn" else 2048)
        assert tree["layers"][1]["type"] == name and net.get_layer(0, 0, len(net) - 1).gives == 2
        if name in ("rnn", "softmax"):
            assert net(weft.rand(2, net.input_size)).shape == (2, 2)


# What a file cannot describe, and the part of the message that says why.
REFUSED = {
    "ModuleList": "Chain: a class of its own",
    "ModuleDict": "Heads: a class of its own",
    "ParameterList": "Sum: a class of its own",
    "ParameterDict": "Scaled: a class of its own",
    "CTCLoss": "_FromLogits: a class of its own",
    "Lambda": "it holds a Python function",
    "Lambda-two inputs": "it holds a Python function",
    "Model": "arguments that are no results of layers",
    "Model-several inputs": "it holds a Python function",
    "TripletMarginWithDistanceLoss-distance_function=...": "distance_function: a function",
    "SyncBatchNorm-conversion": "where its constructor makes",
    "SpectralNorm": "ParametrizedLinear at module: a class of its own",
    "SpectralNorm-convolution": "ParametrizedConv2d at module: a class of its own",
    "SpectralNorm-transposed": "ParametrizedConvTranspose1d at module: a class of its own",
    **{
        f"FractionalMaxPool{rank}d{variant}": "the argument '_random_samples'"
        for rank in (2, 3)
        for variant in ("", "-ratio, indices")
    },
}


@functools.cache
def validator():
    return jsonschema.Draft202012Validator(weft.config.schema())


@pytest.mark.parametrize("record", records(), ids=lambda record: record.id)
def test_every_layer_goes_to_a_file_and_back(record):
    """All layers of the catalogue: a file that the schema takes, the same structure, the same state, the same file."""
    model = record.make()
    if record.id in REFUSED:
        with pytest.raises(weft.config.ConfigError, match=REFUSED[record.id].replace("(", r"\(")):
            model.to_config()
        return
    stream = weft.get_rng_state().tolist()
    tree = json.loads(json.dumps(model.to_config()))
    assert weft.get_rng_state().tolist() == stream
    part = validator().evolve(schema={"$ref": f"#/$defs/layer_{tree['type']}"})
    assert not [error.message for error in part.iter_errors(tree)], tree
    again = nn.from_config(tree)
    assert again.to_config() == tree and repr(again) == repr(model)
    assert {name: tuple(one.shape) for name, one in again.named_parameters()} == {
        name: tuple(one.shape) for name, one in model.named_parameters()
    }


def test_models_of_several_inputs(on_each_device):
    tree = {
        "type": "Model",
        "inputs": {"image": {"shape": [1, 4, 4]}, "age": {"shape": [1]}},
        "nodes": {
            "flat": {"layer": {"type": "Flatten"}, "from": "image"},
            "both": {"layer": {"type": "Concat"}, "from": ["flat", "age"]},
            "first": {"layer": {"type": "Linear", "in_features": 17, "out_features": 17}, "from": "both"},
            "second": {"from": "first", "same_as": "first"},
            "sum": {"layer": {"type": "Add"}, "from": ["both", "second"]},
        },
        "outputs": ["sum", "first"],
    }
    model = nn.from_config(tree)
    assert model.to_config() == tree
    image, age = weft.rand(3, 1, 4, 4), weft.rand(3, 1)
    both = weft.cat([image.flatten(1), age], 1)
    weight, bias = (param.detach() for param in model.parameters())
    first = both @ weight.T + bias
    results = model(image=image, age=age)
    np.testing.assert_allclose(results[1].numpy(), first.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[0].numpy(), (both + first @ weight.T + bias).numpy(), rtol=1e-5, atol=1e-6)
    short = {**tree, "inputs": {"image": [1, 4, 4], "age": [1]}}
    assert nn.from_config(short).to_config() == tree
    x = nn.Input((4,))
    assert nn.Model(x, x * nn.Linear(4, 4)(x)).to_config()["nodes"]["node_1"]["layer"] == {"type": "Multiply"}


def test_nodes_with_arguments_and_several_results(on_each_device):
    tree = {
        "type": "Model",
        "inputs": {"tokens": {"shape": [None], "dtype": "int64"}},
        "nodes": {
            "embedded": {"layer": {"type": "Embedding", "num_embeddings": 7, "embedding_dim": 4}, "from": "tokens"},
            "seen": {
                "layer": {"type": "SelfAttention", "embed_dim": 4, "num_heads": 2},
                "from": "embedded",
                "with": {"is_causal": True},
            },
            "rnn": {
                "layer": {"type": "GRU", "input_size": 4, "hidden_size": 3, "batch_first": True},
                "from": "seen",
            },
            "steps": {"from": "rnn", "take": 0},
        },
        "outputs": "steps",
    }
    model = nn.from_config(tree)
    assert model.to_config() == tree
    tokens = weft.tensor([[1, 2, 3, 4], [6, 5, 4, 0]])
    embedding, attention, rnn = (model.get_submodule(name) for name in list(model._modules)[1:4])
    expected = rnn(attention(embedding(tokens), is_causal=True))[0]
    assert model(tokens).tolist() == expected.tolist()
    first = model(tokens[:, :2])  # nothing of later steps is seen
    np.testing.assert_allclose(model(tokens)[:, :2].detach().numpy(), first.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_reset_parameters_draws_the_whole_model_anew(on_each_device):
    model = nn.from_config(
        [
            {"type": "Conv2d", "in_channels": 1, "out_channels": 2, "kernel_size": 3},
            {"type": "BatchNorm2d", "num_features": 2},
            "Flatten",
            [{"type": "Linear", "in_features": 8, "out_features": 4}, {"type": "LayerNorm", "normalized_shape": 4}],
        ]
    )
    weft.manual_seed(5)
    model.reset_parameters()
    first = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    model(weft.rand(3, 1, 4, 4))  # changes running statistics
    for param in model.parameters():
        param.data.fill_(7.0)
    weft.manual_seed(5)
    model.reset_parameters()
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), first[name], err_msg=name)


@pytest.mark.parametrize("record", records(), ids=lambda record: record.id)
def test_every_layer_resets(record):
    """Parameters start again: none keeps a value that no constructor gives. Classes of a user without the method and
    with parameters of their own say so."""
    weft.manual_seed(0)
    model = record.make()
    refused = {
        "ParameterList": r"define reset_parameters\(\)",
        "ParameterDict": "own",
        "SpectralNorm": "parametrizations",
    }
    if record.name in refused:
        with pytest.raises(weft.GraphError, match=refused[record.name]):
            model.reset_parameters()
        return
    for param in model.parameters():
        param.data.fill_(77.0)
    model.reset_parameters()
    for name, param in model.named_parameters():
        kept = name.startswith("base.")  # what a LoRA layer is put on is not its own to draw
        assert (param == 77.0).all().item() == kept and (param == 77.0).any().item() == kept, name
