"""Every file in examples/ runs in its short form, learns, has fewer than 100 lines and is in docs/examples.md."""

from __future__ import annotations

import ast
import csv
import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weft
from weft.cli.main import main

pytestmark = pytest.mark.backend

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples"
PAGE = (ROOT / "docs" / "examples.md").read_text()
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))

# What the short form of each example has to reach; the results are those that `main` returns.
LEARNED = {
    "char_gpt": lambda r: r["loss"] < 0.75 * math.log(r["classes"]) and r["shape"] == (3, 32),
    "custom_step": lambda r: r["loss"] < 0.6 * r["first_loss"] and r["adversarial"] > r["plain"] + 0.1,
    "dcgan": lambda r: r["distance"] < 0.2 * r["first_distance"],
    "digits_cnn": lambda r: r["loss"] < 0.4 * r["first_loss"] and r["accuracy"] > 0.9,
    "digits_mlp": lambda r: r["loss"] < 0.3 * r["first_loss"] and r["accuracy"] > 0.88,
    "dqn": lambda r: r["first_length"] < 60 and r["length"] > max(50, 4 * r["first_length"]),
    "fine_tune": lambda r: r["loss"] < 0.6 * r["first_loss"] and r["fine-tuned"] > max(0.8, r["from scratch"]),
    "gcn": lambda r: r["loss"] < 0.01 * r["first_loss"] and r["accuracy"] >= 0.9,
    "gpu_training": lambda r: all(loss < 0.01 * r["first_loss"] for loss in r["losses"].values()),
    "lstm_tagger": lambda r: r["loss"] < 0.1 * r["first_loss"] and r["accuracy"] > 0.98,
    "mixed_precision": lambda r: r["accuracy"] > 0.85 and max(r["losses"].values()) < 1.02 * r["losses"]["fp32"],
    "resume": lambda r: r["loss"] < 0.6 * r["first_loss"] and r["same"],
    "spiking": lambda r: r["loss"] < 0.6 * r["first_loss"] and r["accuracy"] > 0.8,
    "vae": lambda r: r["loss"] < 0.8 * r["first_loss"] and r["divergence"] > 0.5,
    "xor": lambda r: r["loss"] < 0.01 * r["first_loss"] and r["accuracy"] == 1.0,
}


def load(name: str):
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def torch_weights(tmp_path_factory):
    """The weights that `fine_tune` starts from, trained and saved by torch."""
    torch = pytest.importorskip("torch")
    path, threads = tmp_path_factory.mktemp("weights") / "body.pt", torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return load("fine_tune").pretrain(path, epochs=10)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_example_learns(name, on_each_device, request, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # an example that writes files does it here
    arguments = ["--short", "--device", on_each_device]
    if name == "fine_tune":
        arguments += ["--weights", str(request.getfixturevalue("torch_weights"))]
    with weft.device("cpu"):  # as where nobody has chosen a default device
        result = load(name).main(arguments)
    assert LEARNED[name](result), result
    assert capsys.readouterr().out.strip()


def test_every_example_is_tested():
    assert set(SCRIPTS) == set(LEARNED)


@pytest.mark.parametrize("path", sorted(filter(Path.is_file, FOLDER.iterdir())), ids=lambda path: path.name)
def test_example_is_short_and_listed(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 100
    assert f"[{path.name}](../examples/{path.name})" in PAGE
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(path.read_text()))
        assert f"python examples/{path.name}" in about


def test_commands_of_the_page_exist():
    """The commands in docs/examples.md name files and options that there are."""
    commands = re.findall(r"python examples/(\w+)\.py((?: --?[\w-]+)*)", PAGE)
    assert {name for name, _ in commands} <= set(SCRIPTS) and commands
    for name, options in commands:
        text = (FOLDER / f"{name}.py").read_text()
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in text


def test_an_example_is_a_program(tmp_path):
    """As a user runs it: another folder, warnings are errors."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", str(FOLDER / "xor.py"), "--short", "--device", "cpu"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    assert [line.split(" = ")[0] for line in result.stdout.splitlines()] == [
        "0 xor 0", "0 xor 1", "1 xor 0", "1 xor 1",
    ]  # fmt: skip


def test_the_json_run_learns(on_each_device, tmp_path, capsys):
    """As the page says: `weft train examples/digits.json`. The folder of the run has what was measured."""
    run = tmp_path / "run"
    command = ["train", str(FOLDER / "digits.json"), "--run", str(run), "--epochs", "2", "--device", on_each_device]
    with weft.device("cpu"):
        assert main(command) == 0
    with open(run / "metrics.csv", newline="") as file:
        first, last = csv.DictReader(file)
    assert float(last["loss"]) < 0.5 * float(first["loss"]) and float(last["val_accuracy"]) > 0.85
    assert {"config.json", "checkpoints", "report.html"} <= {path.name for path in run.iterdir()}
    assert str(run) in capsys.readouterr().out.replace("\n", "")


def test_the_table_of_sizes_is_markdown(on_each_device, capsys):
    with weft.device("cpu"):
        assert load("gpu_training").main(["--sizes", "--short", "--device", on_each_device]) == {}
    rows = capsys.readouterr().out.splitlines()
    assert [len(row.split("|")) for row in rows] == [7] * len(rows) and len(rows) == 4
    for row in rows[2:]:
        batch, width, cpu, device, speed_up = (float(cell.replace(",", "")) for cell in row.split("|")[1:-1])
        assert min(batch, width, cpu, device) > 0 <= speed_up  # 0.00 on an emulated GPU


def test_a_prompt_with_unknown_characters_is_refused():
    with pytest.raises(weft.data.DataError, match="at character 0; expected characters of the vocabulary"):
        load("char_gpt").main(["--short", "--device", "cpu", "--prompt", "\N{SNOWMAN}"])


def test_fine_tuning_says_where_weights_come_from_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="pip install torch, or pass weights with --weights"):
        load("fine_tune").main(["--short", "--device", "cpu"])


@pytest.mark.parametrize("command", ["dqn --steps 3", "xor --steps 1", "digits_mlp --epochs 1", "gcn --steps 1"])
def test_an_example_takes_small_numbers(command, capsys):
    name, *options = command.split()
    load(name).main([*options, "--device", "cpu"])
    assert capsys.readouterr().out.strip()
