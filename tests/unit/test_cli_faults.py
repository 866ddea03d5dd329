"""Commands with arguments that are wrong: one message and exit code 2, before anything is computed or written."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weft
from weft.cli import arguments, main

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A configuration, a network, a trained run, and files that are something else."""
    path = tmp_path_factory.mktemp("faults")
    assert main(["init", str(path / "table.json"), "--task", "tabular"]) == 0
    assert (
        main(["train", str(path / "table.json"), "--epochs", "1", "--run", str(path / "run"), "--device", "cpu"]) == 0
    )
    (path / "net.json").write_text('[{"type": "Linear", "in_features": 4, "out_features": 3}]')
    (path / "empty").write_bytes(b"")
    (path / "binary").write_bytes(bytes(range(256)))
    (path / "other.json").write_text('{"modle": ["ReLU"]}')
    (path / "odd").mkdir()
    return path


@pytest.fixture
def refused(folder, capsys, monkeypatch):
    """Run a command that must be refused; returns its message. Nothing may be computed or written."""
    monkeypatch.chdir(folder)

    def run(*words, code=2):
        before = sorted(folder.rglob("*"))
        try:
            found = main(list(words))
        except SystemExit as stop:
            found = stop.code
        out, err = capsys.readouterr()
        assert (found, out) == (code, ""), (found, out, err)
        assert sorted(folder.rglob("*")) == before
        lines = [line for line in err.splitlines() if not line.startswith(("usage:", " "))]
        assert len(lines) == 1 and lines[0].startswith(f"weft {words[0]}: "), err
        return lines[0]

    return run


FILES = ("nofile", "empty", "binary", "odd", "other.json", "a\0b", "")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "command", [["train"], ["summary"], ["kernels"], ["graph"], ["profile"], ["parity"], ["config", "check"]]
)
def test_files_that_are_no_configuration(refused, command, name):
    refused(*command, name)


@pytest.mark.parametrize("name", [*FILES, "net.json"])
@pytest.mark.parametrize("command", ["evaluate", "predict", "resume", "plot"])
def test_folders_that_are_no_run(refused, command, name):
    assert "expected" in refused(command, name)


OUTPUTS = {"predict": (["run", "--output"], ".npy"), "graph": (["net.json", "-o"], ".svg")}
OUTPUTS |= {f"profile {one}": (["net.json", one], ".json") for one in ("--trace", "--json")}
OUTPUTS |= {"kernels --map": (["net.json", "--map"], ".svg")}


@pytest.mark.parametrize("command", OUTPUTS)
@pytest.mark.parametrize("name", ["x.txt", "nodir/x", "net.json/x", "", "a\0b", "/proc/x", "odd"])
def test_files_that_cannot_be_written(refused, command, name, folder):
    words, ending = OUTPUTS[command]
    (folder / f"odd{ending}").mkdir(exist_ok=True)
    name = name + ending if name not in ("", "x.txt") else name
    if (command, name) == ("profile --json", "x.txt"):
        return  # any name is right for it
    refused(command.split()[0], *words, name)


@pytest.mark.parametrize(
    "words", [["kernels", "net.json", "--sources"], ["plot", "run", "--svg"], ["train", "table.json", "--run"]]
)
@pytest.mark.parametrize("name", ["net.json", "net.json/x", "", "a\0b", "/proc/x"])
def test_folders_that_cannot_be_written(refused, words, name):
    refused(*words, name)


def test_a_folder_that_may_not_be_written_to(folder, monkeypatch):
    def denied(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(arguments.tempfile, "TemporaryFile", denied)
    with pytest.raises(
        weft.errors.ConfigError, match=r"--output: given .*Permission denied.*expected a folder that may"
    ):
        arguments.check_output_file("--output", str(folder / "x.npy"), ".npy")


NUMBERS = {
    ("train", "table.json", "--epochs"): ("0", "-1", "x", "1.5"),
    ("resume", "run", "--epochs"): ("0", "-1", "x"),
    ("profile", "net.json", "--kernels"): ("0", "-1", "x"),
    ("graph", "net.json", "--depth"): ("-1", "x"),
    ("parity", "net.json", "--tolerance"): ("-1", "nan", "inf", "x"),
    ("bench", "--seconds"): ("-1", "nan", "inf", "x"),
    ("summary", "net.json", "--batch"): ("0", "x"),
    ("summary", "net.json", "--input"): ("x", "-1", "(4", "4:nope"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "number"), [(words, one) for words, some in NUMBERS.items() for one in some])
def test_numbers_that_cannot_be(refused, words, number):
    refused(*words, number)


@pytest.mark.parametrize("command", ["summary", "kernels", "graph", "profile", "parity"])
def test_as_many_inputs_as_the_network_takes(refused, command):
    assert "--input: given 2 shapes; expected the inputs of Sequential" in refused(
        command, "net.json", "--input", "4", "--input", "4"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optimizer.lr=1e999", "the number inf; expected finite numbers"),
        ("optimizer.lr=NaN", "the number nan"),
        ("optimizer.lr=-1", "lr -1"),
        ("trainer.device=nope", "trainer.device: given device: given 'nope'"),
        ("data.target=specis", "data.target: given 'specis'; .*nearest name is 'species'"),
        ('data.features=["a"]', "data.features: given 'a'"),
    ],
)
@pytest.mark.parametrize("words", [["train", "table.json", "--run", "new"], ["resume", "run"], ["evaluate", "run"]])
def test_changes_that_are_refused(refused, words, change, message, folder):
    config = (folder / "run" / "config.json").read_text()
    assert re.search(message, refused(*words, "--set", change))
    assert (folder / "run" / "config.json").read_text() == config


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("optimizer.lr=0.5", "optimizer"),
        ("optimizer.type=SGD", "optimizer"),
        ('scheduler={"type": "StepLR", "step_size": 1}', "scheduler"),
        ("data.seed=3", "data.seed"),
        ("trainer.seed=3", "trainer.seed"),
    ],
)
def test_changes_of_what_the_checkpoint_has(refused, folder, change, key):
    """They were left out, and the configuration of the run said that they were not."""
    config = (folder / "run" / "config.json").read_text()
    assert f"given another {key}, but the checkpoint has" in refused("resume", "run", "--epochs", "2", "--set", change)
    assert (folder / "run" / "config.json").read_text() == config


def test_inputs_without_rows(refused, folder):
    np.save(folder / "number.npy", np.float32(3))
    assert "expected arrays with a row for each sample" in refused("predict", "run", "--input", "number.npy")


def test_config_check_makes_the_optimizer(refused, folder):
    tree = json.loads((folder / "table.json").read_text())
    (folder / "negative.json").write_text(json.dumps({**tree, "optimizer": {"type": "SGD", "lr": -1}}))
    assert "optimizer: given arguments that are refused" in refused("config", "check", "negative.json")
    (folder / "misspelt.json").write_text(json.dumps({**tree, "optimiser": {}}))
    for command in ("summary", "graph", "kernels"):
        assert "optimiser: given an unknown key" in refused(command, "misspelt.json")


@pytest.mark.parametrize("content", ["[]", '{"classes": 3}', '{"mean": ["x"]}', '{"mean": [1.0]}', '{"dtypes": ["O"]}'])
def test_what_a_run_knows_is_checked(folder, content, capsys):
    copy = folder.parent / "copy"
    shutil.copytree(folder / "run", copy)
    try:
        (copy / "data.json").write_text(content)
        for command in ("evaluate", "predict", "resume"):
            assert main([command, str(copy)]) == 2
            assert "data.json" in capsys.readouterr().err
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["metrics.csv", "network.svg", "config.json"])
def test_reports_of_folders_with_odd_entries(folder, name, capsys):
    copy = folder.parent / "copy"
    shutil.copytree(folder / "run", copy)
    try:
        (copy / name).unlink()
        (copy / name).mkdir()
        assert main(["plot", str(copy)]) == 0
        (copy / "report.html").unlink()
        (copy / "report.html").mkdir()
        capsys.readouterr()
        assert main(["plot", str(copy)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and "report.html', a folder" in err
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["[/x]", "[red]x[/red]", ""])
def test_layers_that_are_called_like_markup(name, capsys):
    assert main(["layers", name]) == 1
    assert repr(name) in capsys.readouterr().out


def test_rows_are_shown_whole(capsys):
    """Of results with several axes a row is a matrix: its brackets close, also where most of it is left out."""
    from weft.cli.predict import row_text

    assert row_text(np.zeros((2, 2))) == "[[0. 0.] [0. 0.]]"
    for shape in ((3,), (40,), (5, 7), (3, 4, 5), (100, 100, 100), ()):
        text = row_text(np.full(shape, 0.123456789))
        assert text.count("[") == text.count("]") and "\n" not in text and len(text) < 200


def test_texts_that_are_none(refused, folder):
    assert "a binary file" in refused("init", "new.json", "--task", "text", "--data", "binary", code=6)
    assert "an empty file" in refused("init", "new.json", "--task", "text", "--data", "empty", code=6)


def test_a_change_that_does_not_fit_leaves_the_run_as_it_was(folder, capsys):
    copy = folder.parent / "copy"
    shutil.copytree(folder / "run", copy)
    try:
        config = (copy / "config.json").read_text()
        words = ["resume", str(copy), "--epochs", "2", "--device", "cpu"]
        assert main([*words, "--set", "model[1].out_features=7", "--set", "model[2].in_features=7"]) == 1
        assert "1.weight" in capsys.readouterr().err and (copy / "config.json").read_text() == config
        assert main(words) == 0  # it can still go on, and keeps what was asked for
        assert json.loads((copy / "config.json").read_text())["trainer"]["epochs"] == 2
    finally:
        shutil.rmtree(copy)


def test_folders_with_an_equals_sign_are_no_toml(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    odd = folder / "lr=0.1"
    odd.mkdir(exist_ok=True)
    toml = "[[layers]]\ntype = 'dense'\ninput_height = 4\noutput_height = 3\n"
    for name, text in {"config.json": (folder / "net.json").read_text(), "config": toml, "{x}": toml}.items():
        (odd / name).write_text(text)
        for command in (["config", "check"], ["summary"], ["parity", "--steps", "1", "--device", "reference"]):
            assert main([*command, f"lr=0.1/{name}"]) == 0
    assert weft.config.read("lr=0.1/config.json")[0][0]["type"] == "Linear"


@pytest.mark.parametrize("name", ["[/b]", "[red]"])
def test_networks_that_are_called_like_markup(folder, name, capsys):
    dense = {"type": "dense", "input_height": 2, "output_height": 2}
    (folder / "markup.json").write_text(json.dumps({"id": name, "layers": [dense]}))
    assert main(["parity", str(folder / "markup.json"), "--steps", "1", "--device", "reference"]) == 0
    assert name in capsys.readouterr().out
    assert main(["parity", str(folder / "markup.json"), "--steps", "1", "--tolerance", "0"]) in (0, 1)


def test_commands_at_once_have_folders_of_their_own(tmp_path, monkeypatch):
    from weft.cli.train import _new_folder

    monkeypatch.chdir(tmp_path)
    with _new_folder("x") as one, _new_folder("x") as other:  # the second before the first has written anything
        assert (str(one), str(other)) == (os.path.join("runs", "x-1"), os.path.join("runs", "x-2"))
    with pytest.raises(ValueError, match="wrong"), _new_folder("x") as one:
        raise ValueError("wrong")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["x-1", "x-2"]


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"type": "digits", "validation": 0.5}, "validation"),
        ({"type": "mnist", "folder": "x", "validation": 0}, "validation"),
        ({"type": "graph", "path": "x", "batch_size": 3}, "batch_size"),
        ({"type": "graph", "path": "x", "transform": []}, "transform"),
    ],
)
def test_keys_that_a_kind_of_data_does_not_use(folder, data, key):
    import jsonschema

    data = dict(data)
    tree = {**json.loads((folder / "table.json").read_text()), "data": data}
    with pytest.raises(weft.errors.ConfigError, match=f"data.{key}: given an unknown key"):
        weft.config.load_run(tree)
    assert not jsonschema.Draft202012Validator(weft.config.schema()).is_valid(tree)
    del data[key]
    assert jsonschema.Draft202012Validator(weft.config.schema()).is_valid(tree)


def test_a_batch_may_be_larger_than_that_of_the_file(folder):

    from weft.cli import steps

    options = SimpleNamespace(config=folder / "table.json", input=[], batch=100, device="cpu", forward=True)
    assert steps.load(options).inputs[0].shape[0] == 100


def test_values_that_are_not_finite_hide_no_others():
    from weft.cli.parity import _largest

    nan, inf = np.array([np.nan, 1.0]), float("inf")
    assert _largest([nan, np.ones(1)], [nan, np.full(1, 2.0)]) == 1.0
    assert _largest([nan], [np.array([np.nan, 1.5])]) == 0.5 and _largest([nan], [np.ones(2)]) == inf
    assert (
        _largest([np.array([inf])], [np.array([-inf])]) == inf and _largest([np.array([inf])], [np.array([inf])]) == 0.0
    )


def test_several_results_are_written_together(tmp_path):
    from weft.cli.predict import _describe_omitted, _write

    _write(str(tmp_path / "x.npz"), [np.ones(2), np.zeros((2, 3))])
    with np.load(tmp_path / "x.npz") as found:
        assert [found[name].shape for name in found.files] == [(2,), (2, 3)]
    assert _describe_omitted(0) == "" and "first of 2 results" in _describe_omitted(1)


@pytest.mark.parametrize("number", [True, 0.0, "0", None])
def test_grids_take_whole_numbers(number):
    grid = weft.nn.Grid(2, 2, 1)
    with pytest.raises(weft.DTypeError, match="a whole number"):
        grid.set_layer(number, 0, 0, weft.nn.ReLU())
    grid.set_layer(np.int64(1), 0, 0, weft.nn.ReLU())
    assert isinstance(grid.get_layer(1, 0, 0), weft.nn.ReLU)


def test_a_damaged_row_of_the_metrics_is_left_out(folder):
    copy = folder.parent / "copy"
    shutil.copytree(folder / "run", copy)
    try:
        with (copy / "metrics.csv").open("a") as file:
            file.write("abc,1\n")
        assert main(["resume", str(copy), "--epochs", "2", "--device", "cpu"]) == 0
        rows = (copy / "metrics.csv").read_text().splitlines()
        assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1"]
    finally:
        shutil.rmtree(copy)
