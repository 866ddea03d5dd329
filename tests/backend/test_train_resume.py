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
    aside = [sorted(p.name for p in (tmp_path / f"checkpoints-before-{number}").iterdir()) for number in (1, 2)]
    assert aside == [[kept[2].name], [kept[0].name, kept[1].name]]
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
    with pytest.raises(weft.GraphError, match=r"the state of 1 metrics; expected that of 0"):
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


def test_a_resume_that_failed_is_tried_again(on_each_device, tmp_path):
    """And does not begin anew, in the same folder."""
    device = weft.default_device()
    make_trainer(device, run=tmp_path).fit(make_loader("list", device), epochs=1)
    other = make_trainer(device, run=tmp_path)
    other.callbacks = other.callbacks[1:]
    for _ in range(2):
        expected = r"the state of the callbacks EMA, EarlyStopping, .*; expected EarlyStopping, LearningRateMonitor"
        with pytest.raises(weft.errors.GraphError, match=expected):
            other.fit(make_loader("list", device), epochs=2)
    assert other.step_count == 0


def test_a_run_goes_on_with_other_callbacks_that_have_no_state(on_each_device, tmp_path):
    """Such as a progress bar; also from states of earlier versions, which had an empty state for each of them."""
    device = weft.default_device()
    first = make_trainer(device, run=tmp_path)
    first.fit(make_loader("list", device), epochs=1)
    kinds = [type(one) for one in first.callbacks if one.state_dict()]
    again = make_trainer(device, run=tmp_path)
    again.callbacks = (Callback(), *again.callbacks, Callback())
    again.fit(make_loader("list", device), epochs=2)
    assert again.step_count == 10 and len(again.history) == 2
    state = first.state_dict()
    state["callbacks"] = [{}, *state["callbacks"], {}]
    del state["kinds"]
    fresh = make_trainer(device)
    fresh.load_state_dict(state)
    assert fresh.step_count == 5 and len(kinds) == 3


def test_going_back_to_an_older_checkpoint_puts_the_newer_ones_aside(on_each_device, tmp_path):
    device = weft.default_device()
    make_trainer(device, run=tmp_path).fit(make_loader("list", device), epochs=6)
    again = make_trainer(device, run=tmp_path)
    again.fit(make_loader("list", device, 7), epochs=5, resume=tmp_path / "checkpoints" / "step-00000020")
    assert max(path.name for path in (tmp_path / "checkpoints").iterdir()) == "step-00000025"
    aside = {path.name for path in (tmp_path / "checkpoints-before-1").iterdir()}
    assert {"step-00000025", "step-00000030"} <= aside
    last = make_trainer(device, run=tmp_path)
    last.fit(make_loader("list", device), epochs=5)
    assert last.step_count == 25
    assert bits(last) == bits(again)


def test_losses_of_training_and_validation_are_not_compared(on_each_device, tmp_path):
    """The best checkpoint and the plateau scheduler look at epochs that were validated, where any is."""
    weft.manual_seed(0)
    model = nn.Linear(6, 2)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.01)
    seen = []

    class Plateau(weft.optim.lr_scheduler.ReduceLROnPlateau):
        def step(self, metrics, *rest):
            seen.append(metrics)
            super().step(metrics, *rest)

    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, device=weft.default_device(), scheduler=Plateau(optimizer),
        run=tmp_path, callbacks=[RunFolder(report=False)],
    )  # fmt: skip
    data = make_loader("list", weft.default_device())
    history = trainer.fit(data, [(x, 1 - y) for x, y in data], epochs=4, validate_every=2)
    assert seen == [value for value in history["val_loss"] if value is not None and not np.isnan(value)]
    assert len(seen) == 2
    found = [json.loads((path / "state.json").read_text()) for path in (tmp_path / "checkpoints").iterdir()]
    assert {one["step"]: one["metric"] for one in found} == {10: seen[0], 15: None, 20: seen[1]}


class Uses(Callback):
    """Uses the training data in the hook of that name."""

    def __init__(self, hook, use):
        self.use = use
        setattr(type(self), hook, lambda own, trainer, *rest: own.use(trainer))


@pytest.mark.filterwarnings("ignore:Trainer.predict. the data is shuffled")
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_batch_begin", "on_batch_end", "on_epoch_end"])
@pytest.mark.parametrize("use", ["evaluate", "predict", "iterate", "one batch"])
def test_callbacks_may_use_the_training_data(on_each_device, hook, use):
    def elsewhere(function):
        drawn = weft.default_generator.get_state()  # which the transform draws from
        function()
        weft.default_generator.set_state(drawn)

    def run(*names):
        loader = make_loader("resident", on_each_device)
        uses = {
            "evaluate": lambda trainer: trainer.evaluate(loader),
            "predict": lambda trainer: trainer.predict(loader),
            "iterate": lambda trainer: elsewhere(lambda: list(loader)),
            "one batch": lambda trainer: elsewhere(lambda: next(iter(loader))),
        }
        trainer = make_trainer(on_each_device)
        trainer.callbacks += tuple(type("Used", (Uses,), {})(hook, uses[name]) for name in names)
        trainer.fit(loader, epochs=2)
        return bits(trainer)

    assert run(use) == run()


@pytest.mark.parametrize(
    "kind, hook",
    [
        ("resident", "on_batch_end"),
        ("resident", "on_batch_begin"),
        ("stream", "on_batch_end"),
        ("list", "on_batch_end"),
    ],
)
def test_fit_goes_on_with_the_same_bits_after_an_error_in_a_callback(on_each_device, kind, hook):
    def run(fails):
        loader = make_loader(kind, on_each_device, seed=None)
        trainer = make_trainer(on_each_device)

        def fail(trainer):
            if trainer.step_count == 3 and fails.pop():
                raise KeyError("once")

        trainer.callbacks += (type("Used", (Uses,), {})(hook, fail),)
        for _ in range(2):
            try:
                trainer.fit(loader, epochs=2)
            except KeyError:
                assert trainer.position == 3
        return bits(trainer)

    assert run([False, False, False, True]) == run([False] * 4)


def test_a_run_that_begins_anew_describes_itself(on_each_device, tmp_path):
    loader = make_loader("list", on_each_device)

    def run(folder, lr, **options):
        model = nn.Linear(6, 2)
        optimizer = weft.optim.SGD(model.parameters(), lr=lr)
        Trainer(
            model, nn.CrossEntropyLoss(), optimizer, device=on_each_device, run=folder,
            callbacks=[RunFolder(report=False)],
        ).fit(loader, **options)  # fmt: skip
        return json.loads((folder / "config.json").read_text())

    assert run(tmp_path / "own", 0.5)["groups"][0]["lr"] == 0.5
    (tmp_path / "own" / "kernels.json").write_text("{}")
    assert run(tmp_path / "own", 0.25, resume="auto", epochs=2)["groups"][0]["lr"] == 0.5
    assert (tmp_path / "own" / "kernels.json").exists()
    assert run(tmp_path / "own", 0.25, resume=None)["groups"][0]["lr"] == 0.25
    assert not (tmp_path / "own" / "kernels.json").exists()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "config.json").write_text('{"model": {}}')  # the file that a run was made from
    assert run(tmp_path / "made", 0.5, resume=None) == {"model": {}}
