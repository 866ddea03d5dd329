"""`weft parity`: the CPU against each device, and against the NumPy interpreter."""

import json

import numpy as np
import pytest

import weft
import weft.config
import weft.nn as nn
from weft.cli import main, parity

NET = {
    "id": "small",
    "batch_size": 3,
    "layers": [
        {"type": "dense", "activation": "tanh", "input_height": 12, "output_height": 24},
        {"type": "conv1d", "conv1d_in_channels": 4, "conv1d_filters": 4, "conv1d_kernel_size": 3, "conv1d_padding": 1},
        {"type": "layer_norm", "norm_size": 24},
        {"type": "softmax"},
    ],
}


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.json").write_text(json.dumps(NET))

    def run(*arguments):
        code = main(["parity", *arguments])
        found = capsys.readouterr()
        assert all(len(line) <= 80 for line in found.out.splitlines())
        return code, found.out, found.err

    return run


def test_a_network_on_each_device(command, on_each_device):
    code, output, _ = command("net.json", "--device", on_each_device)
    row = next(line for line in output.splitlines() if line.strip().startswith("small"))
    name, outputs, gradients, steps, cpu, other, speed = row.split()
    assert code == 0 and name == "small" and "All agree within 0.0001" in output
    assert max(float(outputs), float(gradients), float(steps)) < 1e-5
    assert float(cpu) > 0 and float(other) > 0 and speed.endswith("x")
    if on_each_device == "cpu":
        assert (float(outputs), float(gradients), float(steps)) == (0, 0, 0)  # the same bits


def test_the_interpreter_where_there_is_no_other_device(command, monkeypatch):
    monkeypatch.setattr(weft, "devices", lambda: [weft.get_device("cpu"), weft.get_device("reference")])
    code, output, _ = command("net.json")
    assert code == 0 and "No device but the CPU is here" in output
    row = next(line for line in output.splitlines() if line.strip().startswith("small")).split()
    assert len(row) == 5 and all(0 <= float(value) < 1e-5 for value in row[1:4]) and max(map(float, row[1:4])) > 0


def test_sample_networks(command, monkeypatch, on_each_device):
    """The command alone runs all of them; here one, for the time that it takes."""
    monkeypatch.setattr(weft.config, "samples", lambda: ["rnn"])
    code, output, _ = command("--device", on_each_device, "--batch", "4", "--steps", "2")
    assert code == 0 and [line.split()[0] for line in output.splitlines() if line.strip().startswith("rnn")] == ["rnn"]


def test_differences_are_found(command):
    code, output, _ = command("net.json", "--device", "reference", "--tolerance", "0")
    assert code == 1 and "Differs by more than 0: small on reference." in output
    a, b = [np.array([1.0, 2.0]), np.zeros(0)], [np.array([1.0, 2.5]), np.zeros(0)]
    assert parity._largest(a, b) == 0.25
    assert parity._largest([np.array([1.0, np.nan])], [np.array([1.0, 2.0])]) == float("inf")
    assert parity._largest([np.array([np.nan])], [np.array([np.nan])]) == 0.0


def test_a_wrong_device_differs(on_each_device):
    """A model that computes something else on the other device, such as one whose random stream is not the same."""

    class Drift(nn.Module):
        calls = 0

        def forward(self, x):
            type(self).calls += 1
            return x * (1 + 1e-3 * type(self).calls)

    case = parity.Case(
        "drift", nn.Sequential(nn.Linear(3, 2), Drift()), [weft.ones(2, 3)], weft.ones(2, 2), nn.MSELoss()
    )
    found = parity.compare(case, weft.get_device(on_each_device), 2)
    assert found.outputs > 1e-4 and found.gradients > 1e-4


def test_runs_and_shapes(command, tmp_path, on_each_device):
    run = {
        "model": [{"type": "Linear", "in_features": 64, "out_features": 10}, {"type": "Dropout", "p": 0.2}],
        "data": {"type": "digits", "batch_size": 16},
        "loss": "CrossEntropyLoss",
        "optimizer": "SGD",
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    code, output, _ = command("run.json", "--device", on_each_device, "--steps", "3")
    assert code == 0 and "3 steps" in output and "run.json" in output
    (tmp_path / "conv.json").write_text(json.dumps([{"type": "LazyConv2d", "out_channels": 2, "kernel_size": 3}]))
    code, output, _ = command(
        "conv.json", "--device", on_each_device, "--input", "3,5,5", "--batch", "2", "--steps", "2"
    )
    assert code == 0
    code, _, error = command("conv.json")
    assert code == 2 and "--input 3,32,32" in error
    assert command("none.json")[0] == 2
    with pytest.raises(SystemExit):
        main(["parity", "conv.json", "--batch", "0"])
