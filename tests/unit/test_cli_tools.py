"""The commands that look at devices, runs and networks: devices, bench, plot, kernels, graph, profile."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

import weft
from weft.cli import bench, kernels, main, parity, steps
from weft.profiling import rates, tables

pytestmark = pytest.mark.unit

NETWORK = [
    {"type": "Linear", "in_features": 12, "out_features": 16},
    {"type": "ReLU"},
    {"type": "Linear", "in_features": 16, "out_features": 3},
]
RUN = {
    "model": [
        {"type": "Linear", "in_features": 64, "out_features": 16}, "ReLU",
        {"type": "Linear", "in_features": 16, "out_features": 10}],
    "data": {"type": "digits", "batch_size": 32},
    "loss": "CrossEntropyLoss",
    "optimizer": {"type": "SGD", "lr": 0.1},
    "trainer": {"epochs": 1, "device": "cpu"},
}  # fmt: skip


@pytest.fixture
def command(capsys, monkeypatch):
    """Run the command in this process at 100 columns; (exit code, standard output). Rates are known."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(rates, "Benchmark", lambda device, dtype: SimpleNamespace(work=1e9, seconds=lambda: 1.0))
    monkeypatch.setattr(rates, "_known", {})
    monkeypatch.setattr(rates, "_key", lambda device, what: None)

    def run(*arguments):
        code = main([str(one) for one in arguments])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture(params=["network", "run"])
def config(request, tmp_path):
    path = tmp_path / f"{request.param}.json"
    path.write_text(json.dumps(NETWORK if request.param == "network" else RUN))
    return path


def test_devices(command):
    code, text = command("devices")
    assert code == 0 and "cpu" in text and "GiB" in text and "null" not in text
    code, text = command("devices", "--rates")
    assert "1 GB/s" in text and "1 Gflop/s" in text


def test_bench(command):
    code, text = command("bench", "--device", "cpu", "--seconds", "0")
    assert code == 0
    for word in ("perceptron", "convolutions", "transformer", "cpu"):
        assert word in text


def test_bench_measures_a_device_once_and_refuses_what_runs_no_kernels(command, monkeypatch):
    monkeypatch.setattr(bench, "training_time", lambda make, device, seconds: 1e-3)
    code, text = command("bench", "--device", "cpu", "--device", "cpu:0")
    assert code == 0 and [line.split()[0] for line in text.splitlines()].count("cpu") == 1
    for name in ("null", "reference"):
        code, text = command("bench", "--device", name)
        assert code == 2 and f"--device: given '{name}'; expected a device that runs kernels" in text
    code, text = command("parity", "--device", "null")
    assert code == 2 and "--device: given 'null'; expected a device that runs kernels" in text


def test_bench_ends_when_the_seconds_are_over(monkeypatch):
    """Steps that take far less time than is given for all of them: the clock goes on by 10 ms whenever it is read."""
    clock = itertools.count()

    def read() -> float:
        now = next(clock)
        assert now < 200, "it goes on for ever"
        return now / 100

    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=read))
    least = bench.training_time(bench.NETWORKS["perceptron"], weft.get_device("cpu"), 0.5)
    assert least == pytest.approx(0.01) and 15 < next(clock) < 100


def test_plot(command, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").write_text("epoch,loss,val_loss,lr\n0,3.0,3.5,0.1\n1,2.0,nan,0.1\n2,1.0,1.25,0.05\n")
    code, text = command("plot", folder, "--svg", tmp_path / "svg")
    assert code == 0
    lines = text.splitlines()
    training = next(line for line in lines if "training" in line)
    assert training.split()[1] == "▇▄▁" and training.split()[-1] == "1"
    assert "?" in next(line for line in lines if "validation" in line)
    assert "epochs 1 to 3, 1 to 3.5" in text
    assert (folder / "report.html").exists()
    assert sorted(path.name for path in (tmp_path / "svg").iterdir()) == [
        "00-loss-by-epoch.svg", "01-learning-rate-by-epoch.svg",
    ]  # fmt: skip
    (folder / "report.html").unlink()
    command("plot", folder, "--no-report")
    assert not (folder / "report.html").exists()
    (folder / "metrics.csv").write_text("epoch,loss\n")
    assert "no row" in command("plot", folder)[1]


def test_plot_of_something_else(command, tmp_path):
    code, text = command("plot", tmp_path / "nothing")
    assert code == 2 and "the folder of a run" in text


@pytest.mark.parametrize("name", ["kernels", "graph", "profile", "parity", "bench", "predict", "evaluate", "tune"])
def test_a_device_that_is_not_here_is_refused(command, config, name):
    code, text = command(name, *([] if name in ("bench", "tune") else [config]), "--device", "bogus")
    assert code == 2 and "given 'bogus'" in text


def test_kernels(command, config, tmp_path):
    code, text = command(
        "kernels", config, "--device", "cpu", "--sources", tmp_path / "sources", "--map", tmp_path / "map.svg"
    )
    assert code == 0 and "kernels on cpu" in text and "peak" in text
    sources = sorted((tmp_path / "sources").iterdir())
    assert sources and all("define void" in path.read_text() for path in sources)
    ElementTree.fromstring((tmp_path / "map.svg").read_text())
    name = sources[0].stem.partition("-")[2]
    code, text = command("kernels", config, "--device", "cpu", "--show", name)
    assert code == 0 and f"; {name}" in text and "define void" in text and sources[0].suffix == ".ll"
    code, text = command("kernels", config, "--device", "cpu", "--show", "nothing of that name")
    assert code == 1


@pytest.mark.parametrize("width", [60, 80, 120])
def test_numbers_of_kernels_are_whole_beside_long_names(width):
    """Small launches that became one have names of 100 letters."""
    name = "steps_4_cols_div_exp_rounded_sum_3x16x32_to_cols_div_exp_rounded_sum_16x3_and_more_of_them"
    long = SimpleNamespace(name=name, times=1, bytes=14848, flops=31200, source="x")
    console = Console(file=io.StringIO(), width=width)
    console.print(kernels._table([long], "opencl:0", width))
    assert all(word in console.file.getvalue() for word in ("14.5 KiB", "31.2k", "steps_4_"))


def test_graph(command, config, tmp_path):
    code, text = command("graph", config, "--device", "cpu", "-o", tmp_path / "net.svg")
    assert code == 0 and "parameters" in text
    picture = (tmp_path / "net.svg").read_text()
    ElementTree.fromstring(picture)
    assert "1: ReLU" in picture and "2: Linear" in picture


def test_profile(command, config, tmp_path):
    code, text = command(
        "profile", config, "--device", "cpu", "--trace", tmp_path / "trace.json", "--json", tmp_path / "profile.json"
    )
    assert code == 0 and "layer" in text and "kernel" in text and "peak" in text
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = json.loads((tmp_path / "profile.json").read_text())
    layers = {row["layer"]: row for row in found["layers"]}
    assert {"0", "2"} <= set(layers) and layers["0"]["backward"] > 0
    assert any(row["update"] > 0 for row in found["layers"])
    code, text = command("profile", config, "--device", "cpu", "--forward", "--json", tmp_path / "profile.json")
    found = json.loads((tmp_path / "profile.json").read_text())
    assert all(row["backward"] == row["update"] == 0 for row in found["layers"])


def test_a_run_whose_model_is_a_file_of_its_own(command, tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "net.json").write_text(json.dumps(RUN["model"]))
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**RUN, "model": "parts/net.json"}))
    for name in ("summary", "kernels", "graph", "profile", "parity"):
        more = () if name == "summary" else ("--device", "cpu")
        target = ("-o", tmp_path / "net.svg") if name == "graph" else ()
        for shape in ((), ("--input", "64")):  # the data of the run, or random rows
            code, text = command(name, path, *more, *target, *shape)
            assert code == 0, (name, text)
            assert name != "summary" or "1: ReLU" in text


def test_the_batch_of_a_graph_is_left_whole(command, tmp_path):
    """Its tensors are nodes and edges: the first 5 of each would be another graph, or none."""
    nodes = np.arange(9)
    edges = np.stack([nodes, (nodes + 4) % 9])
    features = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.savez(tmp_path / "graph.npz", x=features, edge_index=edges, y=nodes % 2, train=nodes < 6)
    model = {
        "type": "Model",
        "inputs": {"x": [4], "edges": {"shape": [None], "dtype": "int64"}},
        "nodes": {
            "scores": {"layer": {"type": "GCNConv", "in_channels": 4, "out_channels": 2}, "from": ["x", "edges"]}
        },
        "outputs": "scores",
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**RUN, "model": model, "data": {"type": "graph", "path": "graph.npz"}}))
    for name in ("profile", "parity"):
        code, text = command(name, path, "--device", "cpu", "--batch", "5")
        assert code == 0, text
    options = argparse.Namespace(config=str(path), input=[], batch=5, device="cpu", forward=True)
    x, edges = steps.load(options).inputs
    assert (x.shape, edges.shape) == ((9, 4), (2, 9))


@pytest.mark.parametrize("batch", ["0", "-3"])
@pytest.mark.parametrize("name", ["profile", "kernels", "graph"])
def test_a_batch_has_rows(command, config, name, batch):
    with pytest.raises(SystemExit) as stop:
        command(name, config, "--batch", batch)
    assert stop.value.code == 2


@pytest.mark.parametrize("columns", [120, 80, 60, 40])
def test_tables_in_few_columns(command, tmp_path, monkeypatch, columns):
    """Columns of less value are left out; those that are shown are whole, and kernels differ."""
    path = tmp_path / "a_network.json"
    path.write_text(json.dumps(NETWORK))
    monkeypatch.setenv("COLUMNS", str(columns))
    code, text = command("profile", path, "--device", "cpu", "--json", tmp_path / "profile.json")
    assert code == 0 and max(map(len, text.splitlines()[:-1])) <= columns and "a_network.json on cpu" in text
    names = {row["name"] for row in json.loads((tmp_path / "profile.json").read_text())["kernels"]}
    assert sum(line.split()[0] in names for line in text.splitlines() if line) >= len(names)
    titles = [line.split("  ") for line in text.splitlines() if line.startswith(("layer ", "kernel "))]
    shown = {word.strip() for line in titles for word in line if word.strip()}
    assert {"layer", "in all", "share", "kernel", "time"} <= shown
    assert shown <= {
        "layer", "kind", "forward", "backward", "update", "in all", "share", "kernels", "kernel", "runs", "time",
        "moved", "flop", "of copy", "of multiply", "layers",
    }  # fmt: skip
    assert columns < 120 or {"flop", "of multiply", "runs", "layers", "kind"} <= shown
    code, text = command("summary", path)
    assert columns < 60 or ("memory" in text and "204 B" in text)


def test_texts_lose_their_middle():
    assert [tables.shorten("abcdefgh", size) for size in (8, 7, 4, 1)] == ["abcdefgh", "abc…fgh", "ab…h", "…"]
    table = tables.fit_table(("name", "x"), [["kernel_of_a_long_name_1", "12"]], 14, (), left=("name",))
    console = Console(file=io.StringIO(), width=14)
    console.print(table)
    assert console.file.getvalue().splitlines()[1].rstrip() == "kerne…me_1  12"


def test_nodes_have_the_names_of_the_file(command, tmp_path):
    linear = {"type": "Linear", "in_features": 4, "out_features": 4}
    model = {
        "type": "Model",
        "inputs": {"left": [4], "right": [4]},
        "nodes": {
            "shared": {"layer": linear, "from": "left"},
            "pair": {"layer": {"type": "Bilinear", "in1_features": 4, "in2_features": 4, "out_features": 2},
                     "from": ["shared", "right"]},
        },
        "outputs": "pair",
    }  # fmt: skip
    path = tmp_path / "net.json"
    path.write_text(json.dumps(model))
    code, text = command("summary", path)
    assert code == 0 and "shared: Linear" in text and "pair: Bilinear" in text and "linear_" not in text
    code, _ = command("profile", path, "--device", "cpu", "--json", tmp_path / "profile.json")
    layers = {row["layer"] for row in json.loads((tmp_path / "profile.json").read_text())["layers"]}
    assert code == 0 and {"shared", "pair"} <= layers
    code, _ = command("graph", path, "--device", "cpu", "-o", tmp_path / "net.svg")
    picture = (tmp_path / "net.svg").read_text()
    assert code == 0 and "shared: Linear" in picture and picture.count(">input left</text>") == 1
    assert ": Input" not in picture  # an input is drawn once


def test_parity_looks_again_before_a_difference_counts(command, config, monkeypatch):
    """The sign of an input of ReLU next to zero is a matter of rounding; a defect shows for every draw."""
    found = []

    def compare(case, device, steps):
        found.append(values := (next(case.model.parameters()).tolist(), case.inputs[0].tolist()))
        assert found.count(values) == 1  # other weights or another batch each time
        return parity.Comparison(case.name, 0.0, errors[len(found) - 1], 0.0, 1.0, 1.0)

    monkeypatch.setattr(parity, "compare", compare)
    for errors, code in (([0.1, 1e-6], 0), ([1e-6], 0), ([0.1, float("nan"), 0.2], 1)):
        found.clear()
        assert command("parity", config, "--device", "cpu")[0] == code
        assert len(found) == len(errors)
