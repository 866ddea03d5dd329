"""Callbacks: the rules of Keras by scripted metrics, files of loggers, the progress bar, searches before a run."""

import csv
import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

import weft
import weft.nn as nn
from weft.data import ResidentData
from weft.train import (
    EMA,
    Accuracy,
    Callback,
    CSVLogger,
    EarlyStopping,
    EventWriter,
    LearningRateMonitor,
    ModelCheckpoint,
    ProgressBar,
    ReduceLROnPlateau,
    TensorBoard,
    Trainer,
)

pytestmark = pytest.mark.backend


def make_data(rows=64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    return weft.tensor(x), weft.tensor((x[:, 0] > 0).astype(np.int64))


def make_trainer(callbacks=(), lr=0.1, **options):
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = weft.optim.SGD(model.parameters(), lr=lr)
    options.setdefault("device", weft.default_device())
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=callbacks, **options)


class Script(Callback):
    """Runs callbacks over epochs with given metrics, as `fit` would; says in which epoch they stopped the run."""

    def __init__(self, callback, values, name="val_loss"):
        self.trainer = make_trainer([callback])
        self.rates, self.stopped_after = [], None
        callback.on_train_begin(self.trainer)
        for epoch, value in enumerate(values):
            with weft.no_grad():
                self.trainer.model[0].bias.fill_(float(epoch))  # to tell whose weights these are
            metrics = {"loss": 0.0, **({} if value is None else {name: value})}
            callback.on_epoch_end(self.trainer, epoch, metrics)
            self.rates.append(round(self.trainer.learning_rate, 10))
            if self.trainer.stopped:
                self.stopped_after = epoch
                break
        callback.on_train_end(self.trainer)

    def weights_of(self):
        return self.trainer.model[0].bias.tolist()[0]


# Each row: arguments, metrics of the epochs, the epoch after which the run stops. Keras does the same.
EARLY = [
    ({"patience": 2}, [3, 2, 1, 1, 1, 1], 4),
    ({"patience": 2}, [3, 2, 1, 0.5, 0.4, 0.3], None),
    ({"patience": 0}, [3, 2, 2, 1], 2),
    ({"patience": 1}, [1, 2, 0.5, 0.6, 0.4], 1),
    ({"patience": 2, "min_delta": 0.5}, [3, 2.6, 2.55, 2.0], 2),
    ({"patience": 2, "min_delta": -0.5}, [3, 2.6, 2.55, 2.0], 2),
    ({"patience": 2, "mode": "max"}, [1, 2, 3, 3, 2.9], 4),
    ({"patience": 2, "baseline": 1.0}, [3, 2.9, 2.8, 2.7, 2.6, 2.5], None),
    ({"patience": 2, "baseline": 1.0}, [3, 2.9, 2.95, 2.7], 2),
    ({"patience": 2, "start_from_epoch": 3}, [1, 2, 3, 4, 5, 6, 7], 5),
    ({"patience": 2}, [1, None, 2, None, 3, 4], 4),
    ({"patience": 1}, [1, math.nan], 1),
    ({"patience": 0}, [math.nan, math.nan], 1),
]


@pytest.mark.parametrize(("arguments", "values", "expected"), EARLY)
def test_early_stopping(arguments, values, expected):
    assert Script(EarlyStopping(**arguments), values).stopped_after == expected


def test_early_stopping_restores_the_best_weights():
    for values, best in (([3, 1, 2, 2], 1), ([1, 2, 2], 0), ([3, 2, 1], 2)):
        for restore in (True, False):
            script = Script(EarlyStopping(patience=2, restore_best=restore), values)
            assert script.weights_of() == (best if restore else len(values) - 1)


def test_the_way_to_better_follows_from_the_name():
    assert Script(EarlyStopping("val_accuracy", patience=1), [0.1, 0.2, 0.3], "val_accuracy").stopped_after is None
    assert Script(EarlyStopping("val_mse", patience=1), [0.1, 0.2, 0.3], "val_mse").stopped_after == 1


PLATEAU = [
    ({"patience": 2, "factor": 0.5}, [1, 1, 1, 1, 1], [0.1, 0.1, 0.05, 0.05, 0.025]),
    ({"patience": 1, "factor": 0.5}, [1, 0.9, 0.9, 0.8], [0.1, 0.1, 0.05, 0.05]),
    ({"patience": 1, "factor": 0.5, "min_delta": 0.2}, [1, 0.9, 0.7, 0.6], [0.1, 0.05, 0.05, 0.025]),
    ({"patience": 1, "factor": 0.5, "cooldown": 2}, [1, 1, 1, 1, 1], [0.1, 0.05, 0.05, 0.025, 0.025]),
    ({"patience": 1, "factor": 0.1, "min_lr": 0.04}, [1, 1, 1], [0.1, 0.04, 0.04]),
    ({"patience": 1, "factor": 0.5, "mode": "max"}, [1, 2, 2, 3], [0.1, 0.1, 0.05, 0.05]),
]


@pytest.mark.parametrize(("arguments", "values", "expected"), PLATEAU)
def test_reducing_the_rate_on_a_plateau(arguments, values, expected):
    script = Script(ReduceLROnPlateau(**arguments), values)
    assert script.rates == expected
    assert script.trainer.optimizer.param_groups[0].buckets[0].hyper.tolist()[0] == pytest.approx(expected[-1])


def test_reduced_rates_are_those_of_the_next_steps(on_each_device):
    """In a compiled run, without a trace."""
    callback, monitor = ReduceLROnPlateau("loss", patience=1, factor=0.0, min_delta=1e9), LearningRateMonitor()
    trainer = make_trainer([callback, monitor])
    x, y = make_data()
    trainer.fit([(x, y)], epochs=2)
    before = trainer.model[0].weight.tolist()
    trainer.fit([(x, y)], epochs=4)
    assert trainer.model[0].weight.tolist() == before  # the rate is 0
    assert [rates for _, rates in monitor.rates] == [[0.1], [0.1], [0.0], [0.0]]
    assert trainer.compiled_steps()[0].retraces == []


def test_a_monitor_that_is_not_there_is_named():
    with pytest.raises(weft.RangeError, match=r"monitor 'val_lss'; expected one of loss, val_loss"):
        Script(EarlyStopping("val_lss"), [1.0])
    with pytest.raises(weft.RangeError, match="mode"):
        EarlyStopping(mode="up")


@pytest.mark.parametrize(
    "make", [EarlyStopping, ReduceLROnPlateau, lambda monitor="val_loss": ModelCheckpoint("unused", monitor)]
)
def test_a_monitor_of_a_validation_that_never_comes_is_a_warning(make, on_each_device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = [make_data()]
    with pytest.warns(UserWarning, match="does nothing: it monitors 'val_loss'.*or monitor='loss'") as caught:
        make_trainer([make()]).fit(data)
    assert len(caught) == 1
    make_trainer([make()]).fit(data, validation=data)  # without a warning, which would be an error here
    make_trainer([make(monitor="loss")]).fit(data)


@pytest.mark.parametrize("best_only", [True, False])
def test_model_checkpoints(tmp_path, best_only):
    callback = ModelCheckpoint(tmp_path / "w-{epoch:02d}-{val_loss:.2f}.safetensors", save_best_only=best_only)
    Script(callback, [3, 2, 2.5, 1])
    names = ["w-01-3.00", "w-02-2.00", "w-03-2.50", "w-04-1.00"]
    expected = [names[k] for k in ((0, 1, 3) if best_only else range(4))]
    assert sorted(path.stem for path in tmp_path.iterdir()) == expected
    saved = weft.load(tmp_path / "w-04-1.00.safetensors")
    assert saved["0.bias"].tolist() == [3.0] * 8
    with pytest.raises(weft.RangeError, match=r"no value is named .accuracy"):
        Script(ModelCheckpoint(tmp_path / "{accuracy}.safetensors"), [1.0])


def test_a_checkpoint_of_the_whole_state_goes_on(on_each_device, tmp_path):
    trainer = make_trainer([ModelCheckpoint(tmp_path / "all", "loss", save_weights_only=False)])
    data = [make_data()]
    trainer.fit(data, epochs=2)
    other = make_trainer([ModelCheckpoint(tmp_path / "other", "loss", save_weights_only=False)])
    other.load_state_dict(weft.load(tmp_path / "all"))
    assert other.epoch == 2
    for one in (trainer, other):
        one.fit(data, epochs=3)
    assert trainer.model[0].weight.tolist() == other.model[0].weight.tolist()


def test_csv_files(on_each_device, tmp_path):
    path = tmp_path / "log.csv"
    for epochs, append in ((2, False), (1, True), (1, False)):
        trainer = make_trainer([CSVLogger(path, append=append)], metrics=["accuracy"])
        trainer.fit([make_data()], epochs=epochs)
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0])[:3] == ["epoch", "loss", "accuracy"]
        expected = {(2, False): ["0", "1"], (1, True): ["0", "1", "0"], (1, False): ["0"]}[epochs, append]
        assert [row["epoch"] for row in rows] == expected
        assert float(rows[-1]["loss"]) == trainer.history["loss"][-1]


def test_event_files_are_read_by_tensorboard(on_each_device, tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = make_trainer([TensorBoard(tmp_path, every=2)], metrics=["accuracy"])
    x, y = make_data()
    batches = [(x[k : k + 16], y[k : k + 16]) for k in range(0, 64, 16)]
    trainer.fit(batches, validation=batches, epochs=3)
    found = {}
    for part in ("train", "validation"):
        events = accumulator.EventAccumulator(str(tmp_path / part))
        events.Reload()
        found[part] = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        if part == "train":
            text = events.Tensors("model")[0].tensor_proto.string_val[0].decode()
            assert "Linear(in_features=4" in text
    losses = [np.float32(value) for value in trainer.history["loss"]]
    assert found["train"]["loss"] == list(enumerate(losses))
    assert [step for step, _ in found["train"]["batch_loss"]] == [2, 4, 6, 8, 10, 12]
    accuracies = [np.float32(value) for value in trainer.history["val_accuracy"]]
    assert found["validation"]["accuracy"] == list(enumerate(accuracies))


def test_every_record_of_an_event_file_has_its_checksums(tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    writer = EventWriter(tmp_path)
    values = [0.0, -1.5, 1e30, math.inf, -math.inf]
    for step, value in enumerate(values):
        writer.add_scalar("a/b", value, step * 10**12)
    writer.close()
    read = list(loader.LegacyEventFileLoader(str(writer.path)).Load())
    assert read[0].file_version == "brain.Event:2"
    assert [event.summary.value[0].simple_value for event in read[1:]] == [np.float32(value) for value in values]
    assert [event.step for event in read[1:]] == [step * 10**12 for step in range(5)]
    damaged = bytearray(writer.path.read_bytes())
    damaged[-6] ^= 1
    writer.path.write_bytes(damaged)
    assert len(list(loader.LegacyEventFileLoader(str(writer.path)).Load())) == len(read) - 1


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_bar(on_each_device, terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200)
    data = ResidentData(make_data(), 16)
    trainer = make_trainer([ProgressBar(every=2, console=console)], metrics=["accuracy"])
    trainer.fit(data, validation=data, epochs=2)
    shown = text.getvalue()
    for words in ("epoch 2/2", "loss", "accuracy", "val_accuracy", "samples/s", "waited 0.0 s", "memory"):
        assert words in shown
    assert f"{trainer.history['val_accuracy'][-1]:.4g}" in shown
    trainer.callbacks[0].on_train_begin(trainer)
    trainer.stop("enough")
    trainer.callbacks[0].on_train_end(trainer)
    assert "stopped: enough" in text.getvalue()


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 200])
def test_the_progress_bar_fits_into_the_terminal(on_each_device, width):
    """The bar, the count and whole pairs, the most important first; nothing is cut."""
    text = io.StringIO()
    bar = ProgressBar(every=1, console=Console(file=text, force_terminal=True, width=width))

    class Draws(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            bar._bar.refresh()

    metrics = [Accuracy(name=f"accuracy [b]{k}") for k in range(3)]
    trainer = make_trainer([bar, Draws()], metrics=metrics)
    trainer.fit(ResidentData(make_data(), 16), epochs=100, max_steps=5)
    shown = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split("[\r\n]", text.getvalue())]
    bars = [line.rstrip() for line in shown if "━" in line and "3/4" in line]
    assert bars and all("epoch 1/2" in line and "…" not in line and len(line) <= width for line in bars)
    if width >= 40:
        assert all(" left" in line for line in bars)
    if width >= 60:
        assert all(f" loss {trainer.history['loss'][0]:.4g}"[:7] in line for line in bars)
    if width >= 120:
        assert all("accuracy [b]1" in line for line in bars)
    if width == 200:
        assert all("samples/s" in line and "memory" in line for line in bars)


def test_lines_of_progress_are_not_broken_without_a_terminal(on_each_device):
    text = io.StringIO()
    metrics = [Accuracy(name=f"accuracy [{k}]") for k in range(6)]
    data = [make_data()]
    trainer = make_trainer([ProgressBar(console=Console(file=text, width=80))], metrics=metrics)
    trainer.fit(data, validation=data, epochs=2)
    lines = text.getvalue().splitlines()
    assert len(lines) == 2 and all(line.startswith("epoch ") for line in lines)
    assert all(f"val_accuracy [{k}]" in line for k in range(6) for line in lines)


def test_an_error_gives_the_terminal_back(on_each_device):
    bar = ProgressBar(console=Console(file=io.StringIO(), force_terminal=True))

    class Fails(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_trainer([bar, Fails()]).fit([make_data()])
    assert bar._bar is None


def test_the_average_of_the_weights(on_each_device):
    """It is updated in the step, used for validation, and can be left in the model."""
    ema = EMA(decay=0.5, swap_at_end=True)
    trainer = make_trainer([ema])
    x, y = make_data()
    expected, seen = None, []

    class Follow(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            nonlocal expected
            now = trainer.model[0].weight.numpy().copy()
            expected = now if expected is None else 0.5 * expected + 0.5 * now

        def on_epoch_end(self, trainer, epoch, metrics):
            with ema.applied():
                seen.append((metrics["val_loss"], trainer.evaluate([(x, y)])["loss"]))

    trainer.callbacks = (ema, Follow())
    trainer.fit([(x, y)] * 3, validation=[(x, y)], epochs=2)
    assert seen[0][0] == seen[0][1] and seen[1][0] == seen[1][1]
    np.testing.assert_allclose(trainer.model[0].weight.numpy(), expected, rtol=1e-6)


def test_callbacks_are_called_in_order(on_each_device):
    calls = []

    class Note(Callback):
        every = 2

        def on_train_begin(self, trainer):
            calls.append("begin")

        def on_train_end(self, trainer):
            calls.append("end")

        def on_epoch_begin(self, trainer, epoch, metrics):
            calls.append(f"epoch {epoch}")

        def on_epoch_end(self, trainer, epoch, metrics):
            calls.append(f"/epoch {epoch}")

        def on_batch_begin(self, trainer, batch, metrics):
            calls.append(f"batch {batch}")

        def on_batch_end(self, trainer, batch, metrics):
            calls.append(f"/batch {batch}")

    make_trainer([Note()]).fit([make_data()] * 3, epochs=2)
    assert calls == [
        "begin", "epoch 0", "batch 0", "/batch 1", "batch 2", "/epoch 0",
        "epoch 1", "/batch 0", "batch 1", "/batch 2", "/epoch 1", "end",
    ]  # fmt: skip


def test_validation_every_so_many_epochs_and_at_the_end(on_each_device):
    data = [make_data()]
    trainer = make_trainer()
    history = trainer.fit(data, validation=data, epochs=5, validate_every=2)
    assert [row["epoch"] for row in history.rows if "val_loss" in row] == [1, 3, 4]
    assert history["lr"] == [0.1] * 5 and [row["step"] for row in history.rows] == [1, 2, 3, 4, 5]


def test_a_callback_may_stop_in_the_middle_of_an_epoch(on_each_device):
    class Stop(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            if trainer.step_count == 2:
                trainer.stop("seen enough")

    trainer = make_trainer([Stop()])
    history = trainer.fit([make_data()] * 4, epochs=3)
    assert (trainer.step_count, trainer.epoch, trainer.stopped) == (2, 0, "seen enough")
    assert len(history) == 1 and history.last["step"] == 2
    trainer.fit([make_data()] * 4, epochs=1)
    assert trainer.step_count == 4 and len(history) == 1
