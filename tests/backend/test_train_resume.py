"""Runs that are stopped and go on have the bits of an unbroken one; and what a run folder contains."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

import weft
import weft.nn as nn
from weft.data import DataLoader, TensorDataset
from weft.train import EMA, Callback, EarlyStopping, LearningRateMonitor, RunFolder, Trainer

pytestmark = pytest.mark.backend
ROOT = Path(__file__).parents[2]


def make_loader(kind, device, seed=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    noise = lambda x, y: (x + 0.1 * weft.randn_like(x), y)  # noqa: E731
    data = TensorDataset(weft.tensor(x), weft.tensor(y))
    if kind == "list":
        return [(x[k : k + 16], y[k : k + 16]) for k in range(0, 70, 16)]
    options = {"batch_size": 16, "shuffle": True, "seed": seed, "transform": noise}
    return DataLoader(data, resident=kind == "resident", device=device, **options)


def make_trainer(device, schedule="step", run=None, **options):
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
    optimizer = weft.optim.AdamW(model.parameters(), lr=1e-2)
    if schedule == "step":
        scheduler = weft.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)
    else:
        scheduler = weft.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5, 6], gamma=0.5)
    callbacks = [EMA(0.9), EarlyStopping("loss", patience=100, restore_best=True), LearningRateMonitor()]
    if run is not None:
        callbacks.append(RunFolder(report=False))
    return Trainer(
        model, nn.CrossEntropyLoss(), optimizer, ["accuracy"], device=device, scheduler=scheduler, callbacks=callbacks,
        clip_norm=1.0, run=run, **options,
    )  # fmt: skip


def bits(trainer):
    """All that a run leaves, as bytes."""
    found = {name: value.numpy().tobytes() for name, value in trainer.model.state_dict().items()}
    found["rates"] = trainer.callbacks[2].rates
    found["average"] = [value.numpy().tobytes() for value in trainer.callbacks[0].average.averages]
    found["best"] = (trainer.callbacks[1].best, trainer.callbacks[1].best_epoch)
    left_out = ("seconds", "wait_seconds")
    found["history"] = [{k: v for k, v in row.items() if k not in left_out} for row in trainer.history.rows]
    found["random"] = weft.default_generator.get_state()
    found["counts"] = (trainer.step_count, trainer.epoch, trainer.position)
    for key, entry in trainer.optimizer.state_dict()["state"].items():
        found[f"state {key}"] = [value.numpy().tobytes() for value in entry.values()]
    return found


@pytest.mark.parametrize(
    ("kind", "schedule", "stops"),
    [
        ("resident", "step", [3, 4, 13]),
        ("resident", "epoch", [5, 10]),
        ("streamed", "step", [5, 12]),
        ("streamed", "epoch", [7]),
        ("list", "step", [7]),
    ],
)
def test_a_resumed_run_has_the_same_bits(on_each_device, tmp_path, kind, schedule, stops):
    """After an epoch, in the middle of one, and several times; with dropout, noise, averages and schedules."""
    whole = make_trainer(on_each_device, schedule, run=tmp_path / "whole")
    loader = make_loader(kind, on_each_device)
    whole.fit(loader, validation=loader, epochs=4)
    for stop in stops:
        part = make_trainer(on_each_device, schedule, run=tmp_path / "parts")
        loader = make_loader(kind, on_each_device)
        part.fit(loader, validation=loader, epochs=4, max_steps=stop)
        assert part.step_count == stop
    last = make_trainer(on_each_device, schedule, run=tmp_path / "parts")
    loader = make_loader(kind, on_each_device)
    last.fit(loader, validation=loader, epochs=4)
    expected, found = bits(whole), bits(last)
    assert found == expected
    rows = [read_rows(tmp_path / name / "metrics.csv") for name in ("whole", "parts")]
    assert [row["epoch"] for row in rows[1]] == ["0", "1", "2", "3"]
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


def read_rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_fit_goes_on_in_one_process(on_each_device):
    whole, parts = make_trainer(on_each_device), make_trainer(on_each_device)
    for trainer in (whole, parts):
        trainer.callbacks[1].restore_best = False  # it would give the model other weights at the end of each fit
    loader = make_loader("resident", on_each_device)
    whole.fit(loader, epochs=3)
    expected = bits(whole)
    loader = make_loader("resident", on_each_device)
    for stop in (4, 9):
        parts.fit(loader, epochs=3, max_steps=stop)
        parts.evaluate(loader)  # uses the same data meanwhile
    parts.fit(loader, epochs=3)
    assert bits(parts) == expected


def test_a_loader_without_a_seed_goes_on_within_its_epoch(on_each_device, tmp_path):
    def run(folder, stops):
        for stop in (*stops, None):
            trainer = make_trainer(on_each_device, run=folder)
            trainer.fit(make_loader("resident", on_each_device, seed=None), epochs=3, max_steps=stop)
        return bits(trainer)

    assert run(tmp_path / "a", []) == run(tmp_path / "b", [8])


def test_resume_none_begins_anew_and_a_path_takes_that_one(on_each_device, tmp_path):
    loader = make_loader("list", on_each_device)
    trainer = make_trainer(on_each_device, run=tmp_path)
    trainer.fit(loader, epochs=3)
    kept = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name for path in kept] == ["step-00000005", "step-00000010", "step-00000015"]
    again = make_trainer(on_each_device, run=tmp_path)
    again.fit(loader, epochs=0, resume=kept[1])
    assert (again.epoch, again.step_count) == (2, 10)
    anew = make_trainer(on_each_device, run=tmp_path)
    anew.fit(loader, epochs=1, resume=None)
    assert anew.epoch == 1 and [row["epoch"] for row in read_rows(tmp_path / "metrics.csv")] == ["0"]
    aside = tmp_path / "checkpoints-before-1"
    assert sorted(path.name for path in aside.iterdir()) == [path.name for path in kept]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000005"]
    further = make_trainer(on_each_device, run=tmp_path)
    further.fit(loader, epochs=2)
    assert further.step_count == 10


def test_a_damaged_checkpoint_is_passed_over(on_each_device, tmp_path):
    loader = make_loader("list", on_each_device)
    make_trainer(on_each_device, run=tmp_path).fit(loader, epochs=2)
    newest = tmp_path / "checkpoints" / "step-00000010" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-7])
    trainer = make_trainer(on_each_device, run=tmp_path)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        trainer.fit(loader, epochs=1)
    assert trainer.step_count == 5 and any("step-00000010" in str(one.message) for one in found)


def test_the_state_of_another_trainer_is_refused(on_each_device):
    state = make_trainer(on_each_device).state_dict()
    weft.manual_seed(0)
    model = nn.Linear(2, 2)
    other = Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), device=on_each_device)
    before = model.weight.tolist()
    with pytest.raises(weft.GraphError, match=r"the state of 3 callbacks; expected that of 0"):
        other.load_state_dict(state)
    with pytest.raises(weft.GraphError, match="format 99"):
        other.load_state_dict({"format": 99})
    assert model.weight.tolist() == before


def test_what_a_run_folder_contains(on_each_device, tmp_path):
    trainer = make_trainer(on_each_device, run=tmp_path)
    trainer.callbacks = (*trainer.callbacks[:-1], RunFolder(every=4))
    loader = make_loader("resident", on_each_device)
    trainer.fit(loader, validation=loader, epochs=2)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["optimizer"] == ["AdamW"] and config["trainer"]["clip_norm"] == 1.0 and config["epochs"] == 2
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["weft"] == weft.__version__ and environment["device"] == str(trainer.device)
    rows = read_rows(tmp_path / "metrics.csv")
    assert [float(row["val_accuracy"]) for row in rows] == trainer.history["val_accuracy"]
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page and "val_accuracy" in page and "BatchNorm1d" in page
    steps = read_rows(tmp_path / "steps.csv")
    assert [row["step"] for row in steps] == ["4", "8"] and float(steps[0]["loss"]) > 0


# ---- interrupts ------------------------------------------------------------------------------------------------------

SCRIPT = """
    import os, signal, sys
    sys.path.insert(0, {root!r})
    from tests.backend.test_train_resume import make_loader, make_trainer, bits
    from weft.train import Callback

    class Stop(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            if trainer.step_count == {step}:
                os.kill(os.getpid(), {signal})

    trainer = make_trainer("cpu", run={run!r})
    trainer.callbacks = (*trainer.callbacks[:-1], Stop(), trainer.callbacks[-1])
    trainer.fit(make_loader("resident", "cpu"), epochs=4)
    print("finished")
"""


def run_script(run, number, step):
    script = textwrap.dedent(SCRIPT).format(root=str(ROOT), run=str(run), signal=int(number), step=step)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


class Nothing(Callback):
    """In the place of the callback that sent the signal."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_how_to_go_on(tmp_path, number, code):
    result = run_script(tmp_path / "run", number, 7)
    assert result.returncode == code, result.stderr
    assert "finished" not in result.stdout and "Traceback" not in result.stderr
    for words in ("after step 7 (epoch 2)", "step-00000007", 'resume="auto"'):
        assert words in result.stderr
    last, whole = make_trainer("cpu", run=tmp_path / "run"), make_trainer("cpu")
    last.callbacks = (*last.callbacks[:-1], Nothing(), last.callbacks[-1])
    last.fit(make_loader("resident", "cpu"), epochs=4)
    found = bits(last)
    whole.fit(make_loader("resident", "cpu"), epochs=4)
    assert found == bits(whole)


def test_kill_leaves_a_checkpoint_to_go_on_from(tmp_path):
    result = run_script(tmp_path / "run", signal.SIGKILL, 12)
    assert result.returncode == -signal.SIGKILL
    last, whole = make_trainer("cpu", run=tmp_path / "run"), make_trainer("cpu")
    last.callbacks = (*last.callbacks[:-1], Nothing(), last.callbacks[-1])
    last.fit(make_loader("resident", "cpu"), epochs=4)
    found = bits(last)
    whole.fit(make_loader("resident", "cpu"), epochs=4)
    assert found == bits(whole)


def test_handlers_of_signals_are_put_back(on_each_device):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    make_trainer(on_each_device).fit(make_loader("list", on_each_device))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_without_a_run_folder_the_message_says_that_nothing_was_saved(on_each_device, capsys):
    class Stop(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            if trainer.step_count == 2:
                os.kill(os.getpid(), signal.SIGINT)

    trainer = make_trainer(on_each_device)
    trainer.callbacks = (*trainer.callbacks, Stop())
    with pytest.raises(SystemExit) as stop:
        trainer.fit(make_loader("list", on_each_device))
    assert stop.value.code == 130 and "nothing was saved" in str(stop.value)
    assert "after step 2" in capsys.readouterr().err
    trainer.callbacks = trainer.callbacks[:-1]
    trainer.fit(make_loader("list", on_each_device))  # goes on
    assert trainer.step_count == 5


def test_the_folder_can_be_moved(on_each_device, tmp_path):
    loader = make_loader("list", on_each_device)
    make_trainer(on_each_device, run=tmp_path / "a").fit(loader, epochs=1)
    shutil.move(tmp_path / "a", tmp_path / "b")
    trainer = make_trainer(on_each_device, run=tmp_path / "b")
    trainer.fit(loader, epochs=2)
    assert trainer.step_count == 10
