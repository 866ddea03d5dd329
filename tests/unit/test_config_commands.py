"""Commands that make and use training runs from files."""

import builtins
import csv
import json
import signal
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

import weft
import weft.config
from tests.unit.test_config_runs import RUN, rows_of, write
from weft.cli import main
from weft.config import named_classes
from weft.config import run as runs
from weft.data import digits
from weft.serialization import CheckpointFolder
from weft.train.progress import ProgressBar

pytestmark = pytest.mark.unit


def weights(folder):
    kept = CheckpointFolder(folder / "checkpoints")
    found = kept.load(kept.latest())
    return {name: value.numpy().copy() for name, value in found.tensors.items() if name.startswith("model")}


def epochs_of(folder):
    """The rows of metrics.csv."""
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_train_resume_evaluate_predict(command, tmp_path):
    write(tmp_path / "run.json", RUN)
    code, output, _ = command("train", "run.json", "--epochs", "4", "--run", "whole")
    assert code == 0 and output.splitlines()[0] == "run     whole" and "epoch 4/4" in output
    assert "model   Sequential, 1,210 parameters" in output and "`weft evaluate whole` measures it" in output
    code, output, _ = command("train", "run.json")
    assert code == 0 and "run     runs/run-1" in output
    assert {"config.json", "environment.json", "metrics.csv", "checkpoints"} <= {
        one.name for one in (tmp_path / "runs" / "run-1").iterdir()
    }
    code, output, _ = command("resume", "runs/run-1", "--epochs", "4")
    assert "kept in runs/run-1; `weft evaluate runs/run-1` measures it" in output
    assert code == 0 and "epoch 3/4" in output and "epoch 2/4" not in output
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "runs" / "run-1")
    assert whole and list(whole) == list(parts)
    for name in whole:
        np.testing.assert_array_equal(whole[name], parts[name], err_msg=name)
    code, output, _ = command("resume", "runs/run-1")
    assert code == 0 and "nothing was left to do; --epochs gives more" in output

    code, output, _ = command("evaluate", "whole")
    lines = dict(line.split() for line in output.splitlines()[1:])
    rows = epochs_of(tmp_path / "whole")
    assert code == 0 and float(lines["loss"]) == pytest.approx(float(rows[-1]["val_loss"]), rel=1e-4)
    assert float(lines["accuracy"]) > 0.8
    code, output, _ = command("evaluate", "whole", "--on", "train", "--checkpoint", "last")
    assert code == 0 and "train data on cpu" in output

    code, output, _ = command("predict", "whole", "--output", "out.npy")
    scores, (images, labels) = np.load(tmp_path / "out.npy"), digits.load("test")
    assert code == 0 and scores.shape == (355, 10)
    assert (scores.argmax(1) == labels).mean() == pytest.approx(float(lines["accuracy"]), abs=1e-4)
    np.save(tmp_path / "in.npy", images[:3])
    assert command("predict", "whole", "--input", "in.npy", "--output", "out.csv")[0] == 0
    np.testing.assert_allclose(np.loadtxt(tmp_path / "out.csv", delimiter=","), scores[:3], rtol=1e-5, atol=1e-6)
    code, output, _ = command("predict", "whole")
    assert code == 0 and f"class {scores[0].argmax()}" in output.splitlines()[1]


def test_a_run_is_not_written_over(command, tmp_path):
    write(tmp_path / "run.json", RUN)
    assert command("train", "run.json", "--run", "r", "--epochs", "1", "--set", "data.batch_size=512")[0] == 0
    assert json.loads((tmp_path / "r" / "config.json").read_text())["data"]["batch_size"] == 512
    code, _, error = command("train", "run.json", "--run", "r")
    assert code == 2 and "`weft resume r` goes on with it" in error


def test_what_goes_wrong_has_exit_codes(command, tmp_path):
    write(tmp_path / "run.json", {**RUN, "optimizer": {"type": "AdamW", "lrr": 1}})
    code, _, error = command("train", "run.json")
    assert code == 2 and error.startswith("weft train: run.json: optimizer.lrr: given an unknown key")
    write(tmp_path / "run.json", {**RUN, "data": {"type": "csv", "path": "none.csv", "target": "y"}})
    code, _, error = command("train", "run.json")
    assert code == 5 and "none.csv" in error
    assert command("train", "none.json")[0] == 2
    for name in ("resume", "evaluate", "predict"):
        code, _, error = command(name, ".")
        assert code == 2 and "a folder without config.json" in error
        code, _, error = command(name, "run.json")
        assert code == 2 and "the folder of a run" in error
    write(tmp_path / "empty" / "config.json", RUN)
    for name in ("resume", "evaluate", "predict"):
        code, _, error = command(name, "empty")
        assert code == 2 and "a run without a complete checkpoint" in error
    code, _, error = command("train", "run.json", "--device", "hip", "--set", 'data={"type": "digits"}')
    assert code == 2 and error.startswith("weft train: device: given 'hip'")


def test_an_interrupted_command_says_how_to_go_on(command, tmp_path, monkeypatch):
    def stop(self, trainer, epoch, metrics):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressBar, "on_epoch_end", stop)
    write(tmp_path / "run.json", RUN)
    code, output, error = command("train", "run.json", "--run", "r")
    assert code == 130 and "To go on: `weft resume r`." in error
    assert "goes on" not in output and "call fit again" not in error  # one way, once
    code, _, error = command("train", "run.json", "--run", "s", "--device", "cpu")  # not on whatever `auto` finds then
    assert code == 130 and "To go on: `weft resume s --device cpu`." in error
    code, _, error = command("resume", "s", "--epochs", "9", "--device", "cpu")
    assert code == 130 and "To go on: `weft resume s --device cpu`." in error


def test_summary(command, tmp_path):
    write(tmp_path / "run.json", RUN)
    code, output, _ = command("summary", "run.json", "--batch", "3")
    assert code == 0 and "[3, 10]" in output and "1,210 parameters (1,210 trainable, 0 frozen)" in output
    write(tmp_path / "net.json", [{"type": "Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": 3}])
    code, _, error = command("summary", "net.json")
    assert code == 2 and "--input 3,32,32" in error
    assert "[1, 4, 6, 6]" in command("summary", "net.json", "--input", "3,8,8")[1]
    assert command("summary", "net.json", "--input", "3,x")[0] == 2
    image = {**RUN, "data": {"type": "digits", "shape": [1, 8, 8]},
             "model": [{"type": "Conv2d", "in_channels": 1, "out_channels": 4, "kernel_size": 3}]}  # fmt: skip
    write(tmp_path / "net.json", image)
    assert "[1, 4, 6, 6]" in command("summary", "net.json")[1]  # from the data of the run


def test_config_command(command, tmp_path, capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    write(tmp_path / "run.json", RUN)
    code, output, _ = command("config", "check", "run.json")
    assert (code, output) == (0, "run.json: a run of 2 epochs on digits, Sequential with 1,210 parameters\n")
    write(tmp_path / "net.json", {"layers": [{"type": "dense", "activaton": "relu"}]})
    code, _, error = command("config", "check", "net.json")
    assert code == 2 and error.startswith("weft config: net.json: layers[0].activaton: given an unknown key")


def test_the_reader_of_the_output_may_stop():
    program = "from weft.cli import main; import sys; sys.exit(main(['config', 'schema']))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 0 and b"Traceback" not in process.stderr.read()
    process.stderr.close()


@pytest.mark.parametrize("task", ["image", "text", "tabular", "graph"])
def test_what_init_writes_trains(task, command, tmp_path):
    code, output, _ = command("init", "config.json", "--task", task)
    assert code == 0 and "`weft train config.json` trains it" in output.replace("\n", " ")
    tree = json.loads((tmp_path / "config.json").read_text())
    assert jsonschema.Draft202012Validator(weft.config.schema()).is_valid(tree)
    epochs = {"image": 3, "text": 2, "tabular": 8, "graph": 40}[task]
    code, output, _ = command("train", "config.json", "--epochs", str(epochs), "--run", "r", "--device", "cpu")
    rows = epochs_of(tmp_path / "r")
    assert code == 0 and len(rows) == epochs
    chance = {"image": 0.1, "text": 0.16, "tabular": 0.34, "graph": 0.5}[task]  # text: that of the most frequent sign
    assert float(rows[-1]["loss"]) < 0.95 * float(rows[0]["loss"])
    assert float(rows[-1]["val_accuracy"]) > chance + 0.05
    code, _, error = command("init", "config.json", "--task", task)
    assert code == 2 and "which exists" in error
    assert command("init", "config.json", "--task", task, "--force")[0] == 0


def test_predictions_of_a_model_with_several_inputs(command, tmp_path):
    assert command("init", "--task", "graph")[0] == 0
    assert command("train", "config.json", "--epochs", "2", "--run", "r", "--device", "cpu")[0] == 0
    with np.load(tmp_path / "karate.npz") as arrays:
        np.savez(tmp_path / "in.npz", x=arrays["x"], edge_index=arrays["edge_index"])
    assert command("predict", "r", "--input", "in.npz", "--output", "given.npy")[0] == 0
    assert command("predict", "r", "--output", "own.npy")[0] == 0
    given, own = np.load(tmp_path / "given.npy"), np.load(tmp_path / "own.npy")
    assert given.shape == (34, 2)
    np.testing.assert_array_equal(given, own)


def test_predictions_prepare_inputs_as_the_run_does(command, tmp_path):
    assert command("init", "--task", "tabular")[0] == 0
    assert command("train", "config.json", "--epochs", "3", "--device", "cpu", "--run", "r")[0] == 0
    tree = json.loads((tmp_path / "config.json").read_text())
    table = weft.data.read_csv(tmp_path / "table.csv")
    np.save(tmp_path / "in.npy", table.features(tree["data"]["features"], np.float64))
    assert command("predict", "r", "--input", "in.npy", "--output", "all.npy")[0] == 0
    assert command("predict", "r", "--output", "validation.npy")[0] == 0
    scores, validation = np.load(tmp_path / "all.npy"), np.load(tmp_path / "validation.npy")
    rows = len(scores)
    chosen = np.sort(np.random.default_rng(0).permutation(rows)[: round(rows * 0.2)])
    np.testing.assert_allclose(scores[chosen], validation, rtol=1e-4, atol=1e-5)
    code, output, _ = command("predict", "r", "--input", "in.npy")
    names = sorted({*table["species"].tolist()})
    assert code == 0 and f"class {names[scores[0].argmax()]}  " in output.splitlines()[1]
    np.save(tmp_path / "narrow.npy", np.ones((2, 1)))
    code, _, error = command("predict", "r", "--input", "narrow.npy")
    assert code != 0 and "features [2, 1]" in error

    data = {"type": "digits", "transform": [{"type": "ToFloat"}, {"type": "GaussianNoise", "std": 5.0}]}
    write(tmp_path / "noise.json", {**RUN, "data": data})
    assert command("train", "noise.json", "--epochs", "1", "--run", "n")[0] == 0
    np.save(tmp_path / "in.npy", digits.load("test")[0].astype(np.float64))
    assert command("predict", "n", "--input", "in.npy", "--output", "given.npy")[0] == 0
    assert command("predict", "n", "--output", "own.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "given.npy"), np.load(tmp_path / "own.npy"))


def test_inputs_for_predictions_go_by_name(command, tmp_path):
    both = {"layer": "Concat", "from": ["left", "right"]}
    scores = {"layer": {"type": "Linear", "in_features": 5, "out_features": 2}, "from": "both"}
    model = {
        "type": "Model",
        "inputs": {"left": [2], "right": [3]},
        "nodes": {"both": both, "scores": scores},
        "outputs": "scores",
    }
    draw = np.random.default_rng(0)
    left, right = draw.random((20, 2), np.float32), draw.random((20, 3), np.float32)
    np.savez(tmp_path / "data.npz", a=left, b=right, y=np.arange(20) % 2)
    data = {"type": "arrays", "path": "data.npz", "inputs": ["a", "b"], "validation": 0, "batch_size": 8}
    write(tmp_path / "run.json", {**RUN, "model": model, "data": data})
    assert command("train", "run.json", "--run", "r")[0] == 0
    assert command("predict", "r", "--output", "own.npy")[0] == 0
    wide = {"left": left.astype(np.float64), "right": right.astype(np.float64)}
    for names in (("right", "left"), ("left", "right")):
        np.savez(tmp_path / "in.npz", other=np.zeros(1), **{name: wide[name] for name in names})
        assert command("predict", "r", "--input", "in.npz", "--output", "given.npy")[0] == 0
        np.testing.assert_array_equal(np.load(tmp_path / "given.npy"), np.load(tmp_path / "own.npy"))
    np.savez(tmp_path / "in.npz", b=right, a=left)  # as the data of the run are called
    assert command("predict", "r", "--input", "in.npz", "--output", "given.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "given.npy"), np.load(tmp_path / "own.npy"))
    np.savez(tmp_path / "in.npz", left=left)
    code, _, error = command("predict", "r", "--input", "in.npz")
    assert code == 2 and "left, right or a, b" in error.replace("\n", " ")


def test_init_for_data_of_ones_own(command, tmp_path):
    (tmp_path / "houses.csv").write_text(
        "rooms,area,town,price\n" + "".join(f"{k},{k * 2.5},x,{k * 1.5}\n" for k in range(9))
    )
    assert command("init", "a.json", "--task", "tabular", "--data", "houses.csv", "--target", "price")[0] == 0
    tree = json.loads((tmp_path / "a.json").read_text())
    assert tree["data"]["features"] == ["rooms", "area"] and tree["loss"] == "MSELoss"
    assert command("train", "a.json", "--epochs", "1", "--device", "cpu")[0] == 0
    code, _, error = command("init", "b.json", "--task", "tabular", "--data", "houses.csv", "--target", "cost")
    assert code == 2 and "one of " + ", ".join(["rooms", "area", "town", "price"]) in error
    (tmp_path / "song.txt").write_text("la " * 400)
    assert command("init", "c.json", "--task", "text", "--data", "song.txt")[0] == 0
    assert json.loads((tmp_path / "c.json").read_text())["model"]["nodes"]["scores"]["layer"]["out_features"] == 3
    code, _, error = command("init", "d.json", "--task", "image", "--data", ".")
    assert code == 2 and "one folder of images for each class" in error
    assert command("init", "d.toml", "--task", "image")[0] == 2


def test_init_for_texts_of_other_systems(command, tmp_path):
    for name, content in (
        ("crlf.txt", b"one line\r\nanother\r\n"),
        ("latin.txt", "d\u00e9j\u00e0 vu ".encode("latin-1")),
    ):
        (tmp_path / name).write_bytes(content * 60)
        assert command("init", f"{name}.json", "--task", "text", "--data", name)[0] == 0
        code, output, _ = command("train", f"{name}.json", "--epochs", "1", "--device", "cpu", "--run", f"r-{name}")
        assert code == 0, output
    assert "\r" in json.loads((tmp_path / "r-crlf.txt" / "data.json").read_text())["characters"]


def test_whole_numbers_are_classes(command, tmp_path):
    rows = [f"{k % 3},{k % 5},{(-7, 10, 30)[k % 3]}" for k in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,kind", *rows]))
    assert command("init", "--task", "tabular", "--data", "t.csv", "--target", "kind")[0] == 0
    assert json.loads((tmp_path / "config.json").read_text())["model"][-1]["out_features"] == 3
    assert command("train", "config.json", "--epochs", "15", "--device", "cpu", "--run", "r")[0] == 0
    assert json.loads((tmp_path / "r" / "data.json").read_text())["classes"] == [-7, 10, 30]
    assert float(epochs_of(tmp_path / "r")[-1]["val_accuracy"]) == 1.0
    data = {"type": "csv", "path": "t.csv", "target": "kind", "features": ["a", "b"]}
    run = weft.config.load_run(write(tmp_path / "sums.json", {**RUN, "data": data, "loss": "MSELoss"}))
    assert {*run.parts()[0].arrays[1].tolist()} == {-7, 10, 30}  # this loss takes numbers


def test_missing_values_are_refused(command, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,kind\n1,2,x\n,3,y\n4,5,\n")
    code, _, error = command("init", "--task", "tabular", "--data", "t.csv", "--target", "kind")
    assert code != 0 and "no value in row 2 of column 'a' (1 in all)" in error
    data = {"type": "csv", "path": "t.csv", "target": "kind", "features": ["b"]}
    with pytest.raises(weft.data.DataError, match="no value in row 3 of column 'kind'"):
        rows_of(data, tmp_path)


def test_classes_of_a_run_stay_what_they_were(command, tmp_path):
    assert command("init", "--task", "tabular")[0] == 0
    assert command("train", "config.json", "--epochs", "3", "--device", "cpu", "--run", "r")[0] == 0
    before = command("evaluate", "r")[1]
    table = tmp_path / "table.csv"
    text = table.read_text()
    names = json.loads((tmp_path / "r" / "data.json").read_text())["classes"]
    table.write_text(text.replace(names[0], "zzz"))
    for one in ("evaluate", "resume"):
        code, _, error = command(one, "r")
        assert code != 0 and "'zzz'" in error and names[0] in error
    header, *rows = text.splitlines()
    table.write_text("\n".join([header, *[row for row in rows if not row.endswith(names[0])]]))
    code, output, _ = command("evaluate", "r")  # without one class the others keep their numbers
    assert code == 0 and output.splitlines()[0] == before.splitlines()[0]


def test_init_asks(command, tmp_path, monkeypatch):
    code, _, error = command("init")
    assert code == 2 and "--task image, text, tabular or graph" in error
    (tmp_path / "t.csv").write_text("a,b\n1,x\n2,y\n3,x\n")
    answers = iter(["boat", "tabular", "t.csv", "b"])  # the first is no task: it asks again
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", lambda *_: next(answers))
    code, output, _ = command("init")
    tree = json.loads((tmp_path / "config.json").read_text())
    assert code == 0 and "tabular  predicts a column of a table" in output
    assert tree["data"]["target"] == "b" and tree["model"][-1]["out_features"] == 2
    answers = iter(["", ""])
    assert command("init", "second.json")[0] == 0
    assert json.loads((tmp_path / "second.json").read_text())["data"]["type"] == "digits"


def test_every_name_of_a_run_exists():
    assert set(named_classes.METRICS) <= set(weft.train.__all__) and set(runs.CALLBACKS) <= set(weft.train.__all__)
    assert "AdamW" in named_classes.optimizers() and "LBFGS" not in named_classes.optimizers()  # which takes a closure
    assert "CosineAnnealingLR" in named_classes.schedulers() and "LambdaLR" not in named_classes.schedulers()


def test_the_schema_and_the_loader_agree_about_names():
    """Everything that a run can name, alone and with an unknown key."""
    from weft.config import run, sources
    from weft.nn.registry import layers
    from weft.train.metrics import BY_NAME

    validator = jsonschema.Draft202012Validator(weft.config.schema())
    digits, linear = RUN["data"], {"type": "Linear", "in_features": 64, "out_features": 10}
    changes = [{"data": {**digits, "transform": [one]}} for name in sources.transforms_by_name() for one in forms(name)]
    changes += [{"metrics": [one]} for name in (*named_classes.METRICS, *BY_NAME, "nope") for one in forms(name)]
    changes += [{"callbacks": [one]} for name in run.CALLBACKS for one in forms(name)]
    changes += [{"optimizer": one} for name in named_classes.optimizers() for one in forms(name)]
    changes += [{"scheduler": one} for name in named_classes.schedulers() for one in forms(name)]
    losses = [name for name, entry in layers().items() if entry.family in run.LOSSES]
    changes += [{"loss": one} for name in losses for one in forms(name)]
    names = ("relu", "ReLU", "Leaky_ReLU", "LINEAR", "_relu", "gelu__", "nope", "")
    changes += [{"model": {**linear, "activation": name}} for name in names]
    accepted = 0
    for change in changes:
        tree = {**RUN, **change}
        try:
            weft.config.load_run(tree)
            is_right = True
        except weft.WeftError:
            is_right = False
        assert validator.is_valid(tree) == is_right, change
        accepted += is_right
    assert 40 < accepted < len(changes) - 40


def forms(name):
    return name, {"type": name}, {"type": name, "nope": 1}


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """Run the command in a folder of its own; (exit code, standard output, standard error)."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = stop.code
        found = capsys.readouterr()
        # No answer ends a question here, and without a terminal an epoch is one line, however long.
        shown = [line for line in found.out.splitlines() if "Which task" not in line and not line.startswith("epoch ")]
        assert all(len(line) <= 80 for line in shown), found.out
        return code, found.out, found.err

    return run
