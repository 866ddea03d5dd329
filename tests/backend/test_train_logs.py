"""Files of loggers and run folders: runs that are resumed, interrupted or damaged; lines of the progress bar."""

import csv
import io
import json
import os
import re
import signal
import struct
import time

import numpy as np
import pytest
from rich.console import Console

import weft
import weft.nn as nn
from weft.train import Callback, CSVLogger, EventWriter, ProgressBar, Trainer
from weft.train.faults import Interrupted, NotFiniteError, exit_code
from weft.train.loggers import RunFolder

pytestmark = pytest.mark.backend


def batches(count=3):
    x = weft.tensor(np.random.default_rng(0).normal(size=(4 * count, 2)).astype(np.float32))
    y = x.sum(1, keepdim=True)
    return [(x[a : a + 4], y[a : a + 4]) for a in range(0, 4 * count, 4)]


def make(**options):
    weft.manual_seed(0)
    model = nn.Linear(2, 1)
    options.setdefault("device", weft.default_device())
    return Trainer(model, nn.MSELoss(), weft.optim.SGD(model.parameters(), lr=0.1), **options)


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_that_ends_inside_of_an_epoch_has_its_row(on_each_device, tmp_path):
    trainer = make(run=tmp_path, callbacks=[RunFolder(every=1)])
    trainer.fit(batches(), epochs=5, max_steps=2)
    assert [row["epoch"] for row in rows(tmp_path / "metrics.csv")] == ["0"]
    assert "Loss by epoch" in (tmp_path / "report.html").read_text(encoding="utf-8")
    trainer.fit(batches(), epochs=5, max_steps=7)
    found = rows(tmp_path / "metrics.csv")
    assert [row["epoch"] for row in found] == ["0", "1", "2"] and [row["step"] for row in found] == ["3", "6", "7"]
    other = make(run=tmp_path, callbacks=[RunFolder(every=1)])
    other.fit(batches(), epochs=3)
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["3", "6", "9"]


class Kill(Callback):
    def on_batch_end(self, trainer, batch, metrics):
        if trainer.step_count == 4:
            os.kill(os.getpid(), signal.SIGINT)


class Fail(Callback):
    def on_batch_end(self, trainer, batch, metrics):
        if trainer.step_count == 4:
            raise ValueError("of the callback")


@pytest.mark.parametrize("fault", ["signal", "nan", "error"])
def test_a_run_that_is_broken_off_has_a_report(on_each_device, tmp_path, fault, capsys):
    data, epochs = batches(), 3
    if fault == "nan":
        data = [*data[:2], (weft.full((4, 2), float("nan")), data[2][1])]
    callbacks = {"signal": [Kill()], "nan": [], "error": [Fail()]}[fault]
    expected = {"signal": Interrupted, "nan": NotFiniteError, "error": ValueError}[fault]
    with pytest.raises(expected):
        make(run=tmp_path, callbacks=callbacks).fit(data, epochs=epochs)
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not (tmp_path / "kernels.json").exists()  # nothing is measured then
    if fault == "signal":
        assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["3", "4"]


def test_seconds_continue_in_a_resumed_run(on_each_device, tmp_path):
    class Slow(Callback):
        def on_batch_end(self, trainer, batch, metrics):
            time.sleep(0.02)

    def run(epochs, trainer=None):
        trainer = trainer or make(run=tmp_path, callbacks=[Slow(), RunFolder(every=1, report=False)])
        trainer.fit(batches(), epochs=epochs)
        return trainer

    run(2, run(1))  # fit once more
    run(3)  # another process
    seconds = [float(row["seconds"]) for row in rows(tmp_path / "steps.csv")]
    assert len(seconds) == 9 and seconds == sorted(seconds) and seconds[-1] >= 9 * 0.02


@pytest.mark.parametrize("line", ["abc,1", "", "x" * 100, ",,,,,,", '"0', "\0\0"])
def test_a_damaged_line_is_left_out(on_each_device, tmp_path, line):
    def run(epochs):
        make(run=tmp_path, callbacks=[RunFolder(every=1, report=False)]).fit(batches(), epochs=epochs)

    run(2)
    width = len((tmp_path / "metrics.csv").read_text().splitlines()[0].split(","))
    for name in ("metrics.csv", "steps.csv"):
        with (tmp_path / name).open("a") as file:
            file.write(line + "\n" + ",".join(["abc"] * width) + "\n")
    run(3)
    assert [row["epoch"] for row in rows(tmp_path / "metrics.csv")] == ["0", "1", "2"]
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == [str(k) for k in range(1, 10)]


def test_tables_are_utf_8_in_every_locale(on_each_device, tmp_path, monkeypatch):
    import io as streams

    real = streams.open

    def with_ascii(path, mode="r", buffering=-1, encoding=None, *args):  # what open() does where the locale is C
        encoding = None if "b" in mode else "ascii" if encoding in (None, "locale") else encoding
        return real(path, mode, buffering, encoding, *args)

    monkeypatch.setattr("io.open", with_ascii)
    trainer = make(run=tmp_path, metrics=[weft.train.MSE(name="größe")], callbacks=[RunFolder(report=False)])
    trainer.fit(batches(), epochs=2)
    monkeypatch.undo()
    assert len(rows(tmp_path / "metrics.csv")) == 2 and "größe" in rows(tmp_path / "metrics.csv")[0]


def test_a_report_that_cannot_be_written_is_a_warning(on_each_device, tmp_path, monkeypatch):
    def full(folder):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("weft.report.write", full)
    with pytest.warns(UserWarning, match=r"the report of .* could not be written .*No space left"):
        trainer = make(run=tmp_path)
        trainer.fit(batches())
    assert trainer.epoch == 1 and rows(tmp_path / "metrics.csv")


def test_the_report_says_what_could_not_be_measured(on_each_device, tmp_path, monkeypatch):
    import weft.report

    real = weft.report.describe
    monkeypatch.setattr("weft.report.describe", lambda *args: [*real(*args), "shapes: ValueError: <odd>"])
    make(run=tmp_path).fit(batches())
    assert "Could not be measured: shapes: ValueError: &lt;odd&gt;" in (tmp_path / "report.html").read_text("utf-8")
    monkeypatch.undo()
    make(run=tmp_path).fit(batches(), resume=None)
    assert not (tmp_path / "missing.json").exists()


def test_the_configuration_has_the_plan_of_the_last_fit(on_each_device, tmp_path):
    for epochs in (1, 5):
        make(run=tmp_path, callbacks=[RunFolder(report=False)]).fit(batches(), epochs=epochs)
        assert json.loads((tmp_path / "config.json").read_text())["epochs"] == epochs
    own = {"model": "of a file", "epochs": 3}
    (tmp_path / "config.json").write_text(json.dumps(own))
    make(run=tmp_path, callbacks=[RunFolder(report=False)]).fit(batches(), epochs=6)
    assert json.loads((tmp_path / "config.json").read_text()) == own


def test_a_logger_of_a_second_trainer_begins_anew(on_each_device, tmp_path):
    logger = CSVLogger(tmp_path / "log.csv")
    first = make(callbacks=[logger])
    first.fit(batches(), epochs=2)
    first.fit(batches(), epochs=3)
    assert len(rows(tmp_path / "log.csv")) == 3
    make(callbacks=[logger]).fit(batches())
    assert len(rows(tmp_path / "log.csv")) == 1
    folder = RunFolder(report=False)
    for name in ("a", "b"):
        make(run=tmp_path / name, callbacks=[folder]).fit(batches())
        assert len(rows(tmp_path / name / "metrics.csv")) == 1


def test_output_that_cannot_be_written_is_no_missing_data(on_each_device, tmp_path):
    (tmp_path / "file").write_text("")
    for options in (
        {"callbacks": [CSVLogger("/proc/none/log.csv")]}, {"run": "/proc/none"}, {"run": tmp_path / "file" / "run"},
        {"callbacks": [CSVLogger(tmp_path / "file" / "log.csv")]},
    ):  # fmt: skip
        with pytest.raises(weft.FileError, match="cannot be written") as caught:
            make(**options).fit(batches())
        assert exit_code(caught.value) == 1


def test_numbers_beyond_float32_in_event_files(tmp_path):
    writer = EventWriter(tmp_path)
    for value in (1e39, -1e39, float("nan"), 1.5):
        writer.add_scalar("p", value, 0)
    writer.close()
    data = writer.path.read_bytes()
    for value in (float("inf"), float("-inf"), 1.5):
        assert b"\x0a\x01p\x15" + struct.pack("<f", value) in data


def fit_and_print(data, **options):
    text = io.StringIO()
    trainer = make(callbacks=[ProgressBar(console=Console(file=text, width=200))])
    trainer.fit(data, **options)
    return text.getvalue().splitlines()


def test_lines_of_a_run_that_ends_inside_of_an_epoch(on_each_device):
    lines = fit_and_print(batches(), epochs=5, max_steps=2)
    assert len(lines) == 2 and lines[0].startswith("epoch 1/1  loss ")
    assert lines[1] == "stopped: max_steps=2 was reached in epoch 1"
    assert len(fit_and_print(batches(), epochs=2)) == 2


def test_the_pace_of_data_of_unknown_length(on_each_device, monkeypatch):
    """Steps of the epoch, not of the run, by its seconds."""
    steps = []
    monkeypatch.setattr("weft.train.progress.describe", lambda *args: steps.append(args[-1]) or "loss 1")

    class Unknown:
        def __iter__(self):
            return iter(batches())

    fit_and_print(Unknown(), epochs=4)
    assert steps == [3, 3, 3, 3]


def test_a_backward_without_its_forward(on_each_device):
    class Twice(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @weft.amp.custom_bwd
        def backward(ctx, grad):
            return grad * 2

    with pytest.raises(
        weft.GraphError, match=re.escape("custom_bwd: given a backward whose forward has no custom_fwd")
    ):
        x = weft.ones(2, requires_grad=True)
        Twice.apply(x).sum().backward()
        assert x.grad is not None
