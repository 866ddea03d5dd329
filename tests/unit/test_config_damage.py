"""Configurations with random damage are refused by name."""

import inspect
import json
import random

import pytest

import weft
import weft.config
import weft.nn as nn
from tests.unit.test_config import DENSE, LINEAR
from weft.config import dialect, reading

pytestmark = pytest.mark.unit

STARTS = [
    {"id": "net", "batch_size": 2, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 8, "layers": [
        {**DENSE, "activation": "leaky_relu", "output_height": 24},
        {"type": "conv1d", "conv1d_in_channels": 3, "conv1d_filters": 3, "conv1d_kernel_size": 3, "conv1d_padding": 1},
        {"type": "conv2d", "input_channels": 2, "input_height": 3, "input_width": 4, "filters": 2, "kernel_size": 1},
        {"type": "rnn", "input_size": 6, "hidden_size": 6, "seq_length": 4},
        {"type": "layer_norm", "norm_size": 8, "epsilon": 1e-5},
        {"type": "swiglu", "input_height": 24, "output_height": 5},
        {"type": "mha", "d_model": 6, "num_heads": 2, "seq_length": 4},
        {"type": "softmax", "softmax_variant": "grid", "softmax_rows": 4, "softmax_cols": 6, "temperature": 0.5},
    ]},
    [{"type": "Conv2d", "in_channels": 1, "out_channels": 4, "kernel_size": [3, 3], "padding": "same",
      "activation": "gelu"}, "Flatten", {"type": "Linear", "in_features": 64, "out_features": 10, "bias": False},
     {"type": "Residual", "fn": [{"type": "Linear", "in_features": 10, "out_features": 10}, "Tanh"]},
     {"type": "LSTM", "input_size": 3, "hidden_size": 4, "num_layers": 2}, {"type": "Dropout", "p": 0.1}],
    {"type": "Model", "inputs": {"x": [4], "z": {"shape": [2]}},
     "nodes": {"a": {"layer": LINEAR, "from": "x"}, "b": {"layer": "Add", "from": ["a", "z"]}}, "outputs": ["b"]},
]  # fmt: skip


def damage_text(text: str, draw: random.Random) -> str:
    """Characters removed, doubled, replaced or moved."""
    letters = list(text)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(letters))
        kind = draw.randrange(5)
        if kind == 0:
            del letters[at : at + draw.randint(1, 6)]
        elif kind == 1:
            letters[at:at] = letters[at : at + draw.randint(1, 6)]
        elif kind == 2:
            letters[at] = draw.choice('{}[]":,-.0123456789eE \\nulltrefas\0é')
        elif kind == 3:
            letters[at:] = letters[at:][: draw.randrange(1, len(letters) - at + 1)]
        else:
            letters[at:at] = draw.choice(
                ["null", "1e309", "-1", '"x"', "[[", "}}", "true", "99999999999", "2.5", '\\ud800"']
            )
    return "".join(letters)


def damage_tree(tree, draw: random.Random):
    """One entry somewhere in the tree replaced, removed, renamed or doubled."""
    tree = json.loads(json.dumps(tree))
    spots = []

    def collect(value):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            spots.append((value, key))
            if isinstance(value[key], (dict, list)):
                collect(value[key])

    collect(tree)
    for _ in range(draw.randint(1, 2)):
        owner, key = draw.choice(spots)
        if (isinstance(owner, dict) and key not in owner) or (isinstance(owner, list) and key >= len(owner)):
            continue
        kind = draw.randrange(4)
        if kind == 0:
            owner[key] = draw.choice(
                [None, True, -1, 0, 1, 2, 3, 5, 2.5, 10**6, 10**12, -(10**30), 1e-300, "", "relu", "Linear", "x", [],
                 {}, [3], [1, 2, 3], {"type": "ReLU"}, "same", 2**31 - 1]
            )  # fmt: skip
        elif kind == 1:
            del owner[key]
        elif kind == 2 and isinstance(owner, dict):
            name = draw.choice([key[:-1], key + "s", key.upper(), "type", "layers", *dialect.KEYS])
            owner[name] = owner.pop(key)
        else:
            other, place = draw.choice(spots)
            if (place in other) if isinstance(other, dict) else place < len(other):
                owner[key] = json.loads(json.dumps(other[place]))
    return tree


def agrees(given, tree) -> bool:
    """Whether a model says of itself what was read: each argument, or its default where it is left out."""
    if isinstance(given, str) and isinstance(tree, dict):
        given = {"type": given}
    if isinstance(given, list) and isinstance(tree, dict):
        given = {"type": "Sequential", "modules": given}
    if isinstance(given, dict) and isinstance(tree, dict):
        known = inspect.signature(nn.get(tree["type"])).parameters if "type" in given and "type" in tree else {}
        return all(
            agrees(value, tree[key]) if key in tree else value == known[key].default
            for key, value in given.items()
            if key not in ("type", "device")
        )
    if isinstance(given, list):
        return len(given) == len(tree) and all(agrees(one, other) for one, other in zip(given, tree, strict=True))
    return given == tree


def test_random_damage_gives_an_error_or_the_model_that_the_text_describes():
    """10,000 damaged texts and trees. What is built says the same of itself as what was read."""
    draw = random.Random(7)
    built = refused = 0
    for number in range(10_000):
        start = STARTS[number % len(STARTS)]
        source = damage_text(json.dumps(start), draw) if number % 2 else damage_tree(start, draw)
        if isinstance(source, str) and not reading._is_text(source):
            source = source + "\n"
        try:
            model = nn.from_config(source)
        except weft.config.ConfigError:
            refused += 1
            continue
        built += 1
        given, tree = reading.read(source)[0], model.to_config()
        if tree.get("type") == "Model":
            given["inputs"] = {name: tree if isinstance(tree, dict) else {"shape": tree}
                               for name, tree in given["inputs"].items()}  # fmt: skip
        if isinstance(given, dict) and "layers" in given and "type" not in given:
            dialects = [(one, other) for one, other in zip(given["layers"], tree["layers"], strict=True)
                        if one["type"] in dialect.FORMS]  # fmt: skip
            assert all(one == other for one, other in dialects)
        else:
            assert agrees(given, tree), (given, tree)
    assert built > 300 and refused > 5_000


RUN = {
    "model": [LINEAR],
    "data": {"type": "csv", "path": "x.csv", "target": "y", "features": ["a"], "batch_size": 4, "validation": 0.2},
    "loss": {"type": "CrossEntropyLoss", "label_smoothing": 0.1},
    "optimizer": {"type": "Adam", "lr": 0.01, "betas": [0.9, 0.99]},
    "scheduler": {"type": "Warmup", "steps": 3, "after": {"type": "StepLR", "step_size": 2, "gamma": 0.5}},
    "metrics": ["accuracy", {"type": "TopK", "k": 3}],
    "callbacks": [{"type": "EarlyStopping", "patience": 3}, "EMA"],
    "trainer": {"epochs": 2, "device": "cpu", "clip_norm": 1.0, "memory_budget": "1 GB", "seed": 3},
}


def test_random_damage_of_runs_gives_an_error_or_the_run():
    draw = random.Random(8)
    kept = refused = 0
    for number in range(2_000):
        source = damage_text(json.dumps(RUN), draw) if number % 2 else damage_tree(RUN, draw)
        if isinstance(source, str) and not reading._is_text(source):
            source = source + "\n"
        try:
            run = weft.config.load_run(source)
        except weft.config.ConfigError:
            refused += 1
            continue
        kept += 1
        assert run.tree == reading.read(source)[0]
    assert kept > 100 and refused > 1_000
