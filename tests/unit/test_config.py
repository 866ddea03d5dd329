"""Configurations: what is read, what is refused and with which words, the schema, random damage."""

import json
import re
import tomllib

import jsonschema
import pytest

import weft
import weft.config
import weft.nn as nn
from weft.config import catalogue, dialect, reading

pytestmark = pytest.mark.unit

DENSE = {"type": "dense", "input_height": 4, "output_height": 3}
LINEAR = {"type": "Linear", "in_features": 4, "out_features": 2}


def complaint(source) -> str:
    with pytest.raises(weft.config.ConfigError) as caught:
        nn.from_config(source)
    return str(caught.value)


# ---- reading -------------------------------------------------------------------------------------------------------


def test_json_toml_dicts_and_paths_are_the_same(tmp_path):
    toml = 'batch_size = 2\n[[layers]]\ntype = "dense"\ninput_height = 4\noutput_height = 3\n'
    tree = tomllib.loads(toml)
    (tmp_path / "net.toml").write_text(toml)
    (tmp_path / "net.json").write_text("\ufeff" + json.dumps(tree), "utf-8")
    (tmp_path / "net").write_text(toml)
    sources = [toml, json.dumps(tree), tree, tmp_path / "net.toml", str(tmp_path / "net.json"), tmp_path / "net"]
    for source in sources:
        assert nn.from_config(source).to_config() == {
            "batch_size": 2, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 1, "layers": [DENSE],
        }  # fmt: skip
    assert reading.read('[model]\ntype = "ReLU"')[0] == {"model": {"type": "ReLU"}}
    assert nn.from_config('["ReLU", ["Tanh"]]').to_config() == {
        "type": "Sequential",
        "modules": [{"type": "ReLU"}, {"type": "Sequential", "modules": [{"type": "Tanh"}]}],
    }


def test_a_run_gives_its_model():
    assert repr(nn.from_config({"model": LINEAR, "loss": "MSELoss"})) == repr(nn.Linear(4, 2))


def test_text_that_cannot_be_read(tmp_path):
    damaged = tmp_path / "net.json"
    damaged.write_text('{"layers": [}')
    assert complaint(damaged) == (
        "net.json: given text that is no JSON at line 1, column 13: Expecting value; expected JSON."
    )
    assert complaint("a = ") == (
        "from_config: given text that is no TOML: Invalid value (at end of document); expected JSON or TOML."
    )
    assert "the key 'a' twice in one object" in complaint('{"a": 1, "a": 2}')
    assert "the number NaN" in complaint('{"type": "ReLU", "inplace": NaN}')
    assert "inplace: given the number inf" in complaint('{"type": "ReLU", "inplace": 1e999}')
    assert "levels of nesting" in complaint("[" * 100 + "]" * 100)
    assert "levels of nesting" in complaint("[" * 100_000 + "]" * 100_000)
    assert "cannot be read" in complaint('{"type": ' + "9" * 5000 + "}")
    assert "start: given a date" in complaint("type = 'ReLU'\nstart = 2020-01-01")
    assert "a key that is a number, 3" in complaint({3: 4})
    assert complaint(7) == "from_config: given a int; expected a text, a dict, a list or a path."
    assert "No such file or directory" in complaint(tmp_path / "none.json")
    assert "cannot be read" in complaint(tmp_path) and "cannot be read" in complaint("bad\0name")
    damaged.write_bytes(b'{"type": "\xff"}')
    assert "no UTF-8 text, from byte 10 on" in complaint(damaged)


# ---- errors name the place and the nearest name --------------------------------------------------------------------


def test_paths_in_errors(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps({"layers": [{**DENSE, "output_height": 4}] * 3 + [{**DENSE, "activaton": "relu"}]}))
    assert complaint(path) == (
        "net.json: layers[3].activaton: given an unknown key; expected one of type, activation, input_height, "
        "output_height. Fix: the nearest name is 'activation'."
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"layers": [{**DENSE, "type": "dens"}]}, "layers[0].type: given 'dens'; .*nearest name is 'dense'"),
        ({"layer": [DENSE]}, "the top level: given an object with 'layer'; .*nearest name is 'layers'"),
        ({"layers": [DENSE], "batchsize": 3}, "batchsize: given an unknown key; .*nearest name is 'batch_size'"),
        ({"layers": []}, "layers: given an empty list; expected at least one layer"),
        ({"layers": DENSE}, "layers: given an object, .*; expected a list of layers"),
        ({"layers": [7]}, "layers[0]: given a number, 7; expected an object with a type"),
        ({"layers": [{"input_height": 4}]}, "layers[0]: given no 'type'"),
        ({"layers": [{**DENSE, "type": 3}]}, "layers[0].type: given a number, 3; expected a string"),
        ({"layers": [DENSE], "batch_size": 0}, "batch_size: given 0; expected a whole number of at least 1"),
        ({"layers": [DENSE], "id": 5}, "id: given a number, 5; expected a string"),
        ({"layers": [DENSE], "grid_rows": 2}, "layers: given 1 layers for 2 x 1 cells; expected the same number"),
        ({"layers": [DENSE], "layers_per_cell": 2}, "layers: given 1 layers; expected 2: 1 x 1 cells of 2 layers"),
        ({"layers": [DENSE], "grid_rows": 10**9}, "grid_rows: given 1000000000; expected .* at most 1000000"),
        ({"layers": [{"type": "dense", "input_height": 4}]}, "layers[0]: given no 'output_height'"),
        ({"layers": [{**DENSE, "input_height": 4.0}]}, "layers[0].input_height: given a number, 4.0; expected a whole"),
        ({"layers": [{**DENSE, "input_height": True}]}, "layers[0].input_height: given a boolean, True"),
        ({"layers": [{**DENSE, "input_height": 0}]}, "layers[0].input_height: given 0; expected .* at least 1"),
        ({"layers": [{**DENSE, "input_height": 2**40}]}, "layers[0].input_height: .* at most 2147483647"),
        ({"layers": [{**DENSE, "activation": "reluu"}]}, "layers[0].activation: given 'reluu'; .*name is 'relu'"),
        ({"layers": [DENSE, DENSE]}, "layers[1]: given a layer for vectors of 4; expected one for 3"),
        ({"layers": [DENSE, {"type": "layer_norm", "norm_size": 2}]}, "layers[1].norm_size: given 2 for a vector of 3"),
        ({"layers": [DENSE, {"type": "rms_norm", "norm_size": 3, "epsilon": 0}]}, "layers[1].epsilon: .* above 0"),
        (
            {"layers": [{"type": "softmax", "softmax_variant": "standard", "temperature": 0.5}]},
            "layers[0].temperature: given 0.5 with softmax_variant='standard'; expected 1",
        ),
        ({"layers": [{"type": "softmax", "temperature": 0.5}]}, "layers[0].temperature: given 0.5"),
        ({"layers": [{"type": "softmax", "softmax_variant": "temperature"}]}, "layers[0]: given no 'temperature'"),
        ({"layers": [{**DENSE, "type": "Dense", "input_hight": 1}]}, "layers[0].input_hight: given an unknown key"),
        ({"layers": [{"type": "softmax", "temperature": -1}]}, "layers[0].temperature: given -1; .* above 0"),
        ({"layers": [{"type": "softmax", "softmax_variant": "gird"}]}, "softmax_variant: given 'gird'; .*'grid'"),
        ({"layers": [{"type": "softmax", "softmax_rows": 2}]}, "softmax_rows: .*expected softmax_variant='grid'"),
        ({"layers": [{"type": "softmax", "softmax_variant": "masked"}]}, "layers[0]: given no 'mask'"),
        ({"layers": [{"type": "softmax", "softmax_variant": "masked", "mask": [1, 2]}]}, "mask[1]: given 2; .* most 1"),
        ({"layers": [{"type": "mha", "d_model": 6, "num_heads": 4, "seq_length": 2}]}, "num_heads: .* divisor of"),
        (
            {"layers": [{"type": "rnn", "activation": "sigmoid", "input_size": 1, "hidden_size": 1, "seq_length": 1}]},
            "layers[0].activation: given 'sigmoid'; expected one of tanh, relu",
        ),
        (
            {"layers": [{"type": "conv1d", "conv1d_in_channels": 2, "conv1d_filters": 1, "conv1d_kernel_size": 3}]},
            "layers[0]: given no length, .*; expected input_height",
        ),
        (
            {"layers": [{"type": "conv2d", "input_channels": 1, "input_height": 2, "input_width": 2, "filters": 1,
                         "kernel_size": 3}]},
            "layers[0].kernel_size: given 3 for 2 elements with padding 0; expected a kernel that fits",
        ),
        (
            {"layers": [{"type": "conv2d", "input_channels": 1, "input_height": 4, "input_width": 4, "filters": 1,
                         "kernel_size": 3, "output_width": 3}]},
            "layers[0].output_width: given 3; expected 2, which follows from the other keys",
        ),
        (
            {"layers": [{"type": "conv2d", "input_channels": 10**9, "input_height": 4, "input_width": 4, "filters": 1,
                         "kernel_size": 3}]},
            "layers[0]: given vectors of 16000000000; expected at most",
        ),
        ([{**LINEAR, "in_featurs": 3}], "[0].in_featurs: given an unknown key; .*nearest name is 'in_features'"),
        ([{"type": "Linear"}], "[0]: given no 'in_features'"),
        ({"type": "Liner"}, "type: given 'Liner'; .*nearest name is 'Linear'; `weft layers` lists all"),
        ({**LINEAR, "in_features": "4"}, "in_features: given a string, '4'; expected a whole number"),
        ({**LINEAR, "in_features": -4}, "in_features: given -4; expected a whole number of at least 0"),
        ({**LINEAR, "bias": 1}, "bias: given a number, 1; expected true or false"),
        ({**LINEAR, "dtype": "float33"}, "dtype: given 'float33'; expected the name of a dtype"),
        ({**LINEAR, "activation": "rleu"}, "activation: given 'rleu'; .*nearest name is 'relu'"),
        ({"type": "Dropout", "p": 2}, "the top level: given arguments that are refused: .*probability from 0 to 1"),
        ({"type": "Dropout", "p": "half"}, "p: given a string, 'half'; expected a number"),
        ({"type": "RNN", "input_size": 1, "hidden_size": 1, "num_layers": 10**9}, "num_layers: .* at most 1000"),
        ({"type": "Lambda", "function": "x"}, "type: given Lambda; expected .* it holds a Python function"),
        ({"type": "Sequential", "modules": {"a.b": "ReLU"}}, "modules: given arguments that are refused: .*no '.'"),
        ({"type": "Activation", "name": "gelu", "aproximate": "tanh"}, "aproximate: .*nearest name is 'approximate'"),
        (
            {"type": "Model", "inputs": {"x": [4]}, "nodes": {"y": {"layer": LINEAR, "from": "z"}}, "outputs": "y"},
            "nodes.y.from: given 'z'; expected one of x",
        ),
        (
            {"type": "Model", "inputs": {"x": [3]}, "nodes": {"y": {"layer": LINEAR, "from": "x"}}, "outputs": "y"},
            "nodes.y: given arguments that are refused: Linear",
        ),
        (
            {"type": "Model", "inputs": {"x": [4]}, "nodes": {"y": {"layer": LINEAR, "from": "x"},
                                                              "z": {"layer": LINEAR, "from": "x"}}, "outputs": "z"},
            "nodes.y: given a node that no output needs",
        ),
        (
            {"type": "Model", "inputs": {"x": [4]}, "nodes": {"y": {"layer": LINEAR, "from": "x"},
                                                              "z": {"take": 0, "from": "y"}}, "outputs": "z"},
            "nodes.z.take: given 0 of Symbol",
        ),
        (
            {"type": "Model", "inputs": {"x": [4]}, "nodes": {"y": {"from": "x"}}, "outputs": "y"},
            "nodes.y: given neither of them; expected one of layer, same_as, take",
        ),
        ({"type": "Model", "inputs": {}, "nodes": {}, "outputs": "y"}, "inputs: given no inputs"),
        ({"type": "Model", "inputs": {"x": [3]}, "nodes": {}, "outputs": "x"}, "outputs: given the input 'x'"),
        (True, "from_config: given a bool"),
    ],
)  # fmt: skip
def test_errors(tree, message):
    text = complaint(tree)
    assert re.search(".*".join(map(re.escape, message.split(".*"))), text), text


def test_what_is_no_model_of_the_catalogue_is_refused():
    class Own(nn.Module):
        pass

    with pytest.raises(weft.config.ConfigError, match="Own at 1: a class of its own"):
        nn.Sequential(nn.ReLU(), Own()).to_config()
    changed = nn.Linear(2, 3)
    changed.weight = nn.Parameter(weft.ones(5, 2))
    expected = r"state at 'weight' is of shape \[5, 2\], where its constructor makes of shape \[3, 2\]"
    with pytest.raises(weft.config.ConfigError, match=expected):
        changed.to_config()


def tie(model):
    model[2].weight = model[0].weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tie, "sharing at '2.weight' is the same as '0.weight', where its constructor makes None"),
        (lambda model: setattr(model, "2", model[0]), "sharing at '2' is the same as '0'"),
        (lambda model: setattr(model[1], "p", 0.9), "p=0.9"),
        (lambda model: setattr(model[3], "stride", (2, 2)), r"stride=\(2, 2\)"),
        (lambda model: setattr(model[4], "eps", 0.5), "eps=0.5"),
        (lambda model: setattr(model[5], "dropout", 0.5), "dropout=0.5|'5.dropout' is 0.5"),
        (lambda model: setattr(model[6], "num_heads", 1), "num_heads"),
    ],
)
def test_changes_and_sharing_that_a_file_would_lose_are_refused(change, message):
    layers = [nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)]
    model = nn.Sequential(*layers, nn.LSTM(4, 4, 2), nn.MultiheadAttention(4, 2))
    assert repr(nn.from_config(model.to_config())) == repr(model)
    change(model)
    with pytest.raises(weft.config.ConfigError, match=message):
        model.to_config()


def test_types_of_the_dialect_in_any_case():
    norm = {"norm_size": 3}
    entries = [{**DENSE, "type": "Dense"}, {"type": "LayerNorm", **norm}, {"type": "RMS_NORM", **norm}]
    net = nn.from_config({"layers": [*entries, {"type": "Softmax", "softmax_variant": "standard"}]})
    names = ["dense", "layer_norm", "rms_norm", "softmax"]
    assert [one["type"] for one in net.to_config()["layers"]] == names
    assert net(weft.ones(2, 4)).shape == (2, 3)
    catalogue_entries = [LINEAR, {"type": "LayerNorm", "normalized_shape": 2}, {"type": "Softmax", "dim": -1}]
    net = nn.from_config({"layers": catalogue_entries})
    assert [type(one) for one in net] == [nn.Linear, nn.LayerNorm, nn.Softmax]


def test_containers_as_they_are_now():
    model = nn.Sequential(nn.Linear(4, 2))
    model.append(nn.ReLU())
    assert model.to_config()["modules"] == [LINEAR, {"type": "ReLU"}]
    grid = nn.Grid(1, 2, 1)
    grid.set_layer(0, 1, 0, nn.ReLU())
    tree = {"type": "Grid", "rows": 1, "cols": 2, "layers_per_cell": 1, "layers": [None, {"type": "ReLU"}]}
    assert grid.to_config() == tree and nn.from_config(tree).to_config() == tree
    net = nn.from_config({"layers": [DENSE]})
    net.set_layer(0, 0, 0, nn.Linear(4, 2))
    assert net.to_config()["layers"] == [LINEAR]


def test_grid_errors():
    grid = nn.Grid(1, 2, 1)
    with pytest.raises(weft.GraphError, match=r"no layer at row 0, col 0, index 0; .*set_layer\(0, 0, 0, layer\)"):
        grid(weft.ones(1))
    with pytest.raises(weft.IndexRangeError, match="col=2; expected a number from 0 to 1"):
        grid.set_layer(0, 2, 0, nn.ReLU())
    with pytest.raises(weft.DTypeError, match=r"Grid\.set_layer: given a int; expected a Module"):
        grid.set_layer(0, 0, 0, 3)
    with pytest.raises(weft.RangeError, match="rows=0"):
        nn.Grid(0, 1, 1)
    with pytest.raises(weft.RangeError, match="1 layers; expected 2"):
        nn.Grid(1, 2, 1, [nn.ReLU()])
    assert grid.get_layer(0, 0, 0) is None and len(grid) == 2 and list(grid) == [None, None]


# ---- schema --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator():
    schema = weft.config.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_takes_what_the_loader_takes(validator):
    """Each layer of the catalogue is in test_config_networks."""
    for name in weft.config.samples():
        assert validator.is_valid(weft.config.sample(name))
    nested = [{"type": "Residual", "fn": ["Tanh", LINEAR]}, {"type": "sequential", "modules": {"a": "ReLU"}}]
    assert validator.is_valid(nested)


@pytest.mark.parametrize(
    "tree",
    [
        {"layers": [{**DENSE, "activaton": "relu"}]},
        {"layers": [{**DENSE, "type": "dens"}]},
        {"layers": [{"type": "dense", "input_height": 4}]},
        {"layers": [{**DENSE, "input_height": 4.5}]},
        {"layers": [{**DENSE, "input_height": 0}]},
        {"layers": []},
        {"layers": [DENSE], "batch": 3},
        [{**LINEAR, "in_featurs": 3}],
        {**LINEAR, "in_features": "4"},
        {**LINEAR, "activation": "rleu"},
        {"type": "Liner"},
        {"type": "RNN", "input_size": 1, "hidden_size": 1, "num_layers": 10**9},
        {"type": "Lambda", "function": "x"},
        {"type": "Model", "inputs": {}, "nodes": {}, "outputs": "y"},
        7,
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(validator, tree):
    assert not validator.is_valid(tree)
    if not isinstance(tree, int):
        complaint(tree)


SPECIAL = {"Model": "its nodes are in the file", "Activation": "takes what the class takes that it names"}


def test_every_argument_of_every_layer_can_be_described():
    for name, entry in nn.layers().items():
        for one in catalogue.parameters_of(entry.cls).values():
            kinds = catalogue.kinds_of(str(one.annotation), one.name)
            assert kinds and ("any" not in [kind.form for kind in kinds] or name in catalogue.REFUSED | SPECIAL), (
                name,
                one,
            )
    assert set(dialect.KEYS) >= {key for form in dialect.FORMS.values() for key in (*form.required, *form.optional)}
