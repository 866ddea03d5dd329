"""Loggers: callbacks that write what a run measures into files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import weft
from weft.base import files
from weft.base.files import failed_write
from weft.train.callbacks import Callback
from weft.train.monitor import Metrics
from weft.train.tensorboard import EventWriter

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

__all__ = ["CSVLogger", "RunFolder", "TensorBoard"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Table:
    """A CSV file that rows are appended to, each brought to disk. Columns are those of the first row; a row with new
    ones rewrites the file."""

    def __init__(self, path: Path, separator: str = ","):
        self.path, self.separator = path, separator
        self.columns: list[str] = []
        self.rows: list[dict[str, str]] = []

    def read(self) -> None:
        """Take over the rows of a file that is there already."""
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8", errors="replace") as file:
                text = file.read().replace("\0", "")
            lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=self.separator))
            self.columns, *rows = lines or [[]]
            whole = [row for row in rows if len(row) == len(self.columns)]
            if text and not text.endswith("\n") and rows and whole[-1:] == rows[-1:]:
                whole.pop()  # the last number of it may be cut off
            self.rows = [dict(zip(self.columns, row, strict=True)) for row in whole]
            if len(whole) < len(rows) or not text.endswith("\n"):  # a write was interrupted
                self._rewrite()

    def keep(self, column: str, largest: float) -> None:
        """Drop rows above a number: those of a run that is repeated from a checkpoint."""
        kept = [row for row in self.rows if _number(row.get(column)) <= largest]
        if len(kept) < len(self.rows):
            self.rows = kept
            self._rewrite()

    def drop(self) -> None:
        self.rows, self.columns = [], []
        self.path.unlink(missing_ok=True)

    def add(self, row: Mapping[str, Any]) -> None:
        values = {name: _text(value) for name, value in row.items()}
        self.rows.append(values)
        new = [name for name in values if name not in self.columns]
        if new or not self.path.exists():
            self.columns += new
            self._rewrite()
            return
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                file.write(self._lines([values], header=False))
        except OSError as error:
            raise failed_write("Trainer", self.path, error) from None

    def replace(self, column: str, row: Mapping[str, Any]) -> None:
        """Add a row; if the last one has the same value of a column it is replaced."""
        if self.rows and self.rows[-1].get(column) == _text(row[column]):
            self.rows.pop()
            self._rewrite()
        self.add(row)

    def _lines(self, rows: list[dict[str, str]], header: bool) -> str:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns, delimiter=self.separator, restval="", lineterminator="\n")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _rewrite(self) -> None:
        write_text(self.path, self._lines(self.rows, header=True))


def _number(text: str | None) -> float:
    """The number in a cell; infinite where a line is damaged."""
    try:
        return float(text or "inf")
    except ValueError:
        return math.inf


def _text(value: Any) -> str:
    return (
        json.dumps(value)
        if isinstance(value, (list, tuple))
        else repr(value)
        if isinstance(value, float)
        else str(value)
    )


def make_folder(path: Path) -> None:
    """Make a folder for results; one that cannot be made is an error about output, not about data."""
    error = None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as found:
        error = found
    if error is not None:
        raise failed_write("Trainer", path, error)


def write_text(path: Path, text: str) -> None:
    """Write a file under another name and rename it, so that it is never there half."""
    make_folder(path.parent)
    files.write("Trainer", path, text)


class CSVLogger(Callback):
    """One row per epoch: the epoch and all metrics, in a file that is complete after each. `append` keeps the rows
    of a file that is there."""

    def __init__(self, path: str | os.PathLike[str], append: bool = False, separator: str = ","):
        self.table, self.append = _Table(Path(path), separator), append
        self._trainer: Any = None  # that the file is open for

    def on_train_begin(self, trainer: Trainer) -> None:
        if self._trainer is not None and self._trainer() is trainer:
            return
        self._trainer = ref(trainer)
        make_folder(self.table.path.parent)
        if self.append or trainer.is_resumed:
            self.table.read()
            if trainer.is_resumed:
                self.table.keep("epoch", trainer.epoch - 1)
        else:
            self.table.drop()

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        self.table.add({"epoch": epoch, **{name: value for name, value in metrics.items() if name != "epoch"}})


class TensorBoard(Callback):
    """Writes metrics of each epoch, and with `every` the loss and rate of each so many steps, as TensorBoard's event
    files: training under `train`, validation under `validation`."""

    def __init__(self, folder: str | os.PathLike[str], every: int | None = None):
        self.folder, self.by_step = Path(folder), every is not None
        self.every = every or 1 << 62
        self._writers: dict[str, EventWriter] = {}

    def _writer(self, part: str) -> EventWriter:
        if part not in self._writers:
            self._writers[part] = EventWriter(self.folder / part)
        return self._writers[part]

    def on_train_begin(self, trainer: Trainer) -> None:
        if not trainer.is_resumed:
            self._writer("train").add_text("model", f"```\n{trainer.model!r}\n```")

    def on_batch_end(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        if self.by_step:
            writer = self._writer("train")
            writer.add_scalar("batch_loss", metrics["batch_loss"], trainer.step_count)
            writer.add_scalar("batch_lr", metrics["lr"], trainer.step_count)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            if _is_number(value) and name not in ("epoch", "step"):
                part = "validation" if name.startswith("val_") else "train"
                self._writer(part).add_scalar(name.removeprefix("val_"), value, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, trainer: Trainer) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers = {}

    def on_train_abort(self, trainer: Trainer) -> None:
        self.on_train_end(trainer)


MEASURED = (
    "layers.json",
    "network.svg",
    "memory.json",
    "kernels.json",
    "missing.json",
    "report.html",
)  # at the end of a run


class RunFolder(Callback):
    """What a run leaves in its folder: `config.json`, `environment.json`, `metrics.csv` (epochs), `steps.csv` (every so
    many steps) and `report.html`, with what the report shows of layers, memory and kernels. Every Trainer with `run=`
    has one; `report=False` leaves the report out."""

    def __init__(self, every: int = 50, report: bool = True):
        self.every, self.report = every, report
        self.epochs: _Table | None = None
        self.steps: _Table | None = None
        self._began = 0.0
        self._trainer: Any = None  # that the files are open for

    def on_train_begin(self, trainer: Trainer) -> None:
        assert trainer.run is not None
        if self._trainer is None or self._trainer() is not trainer:
            self._open(trainer)
            self._trainer = ref(trainer)
        self._keep_plan(trainer)
        self._began = time.perf_counter() - self._seconds_before()

    def _seconds_before(self) -> float:
        """How long the run has taken so far, in earlier calls of `fit`: until the last step that was noted, or for all
        epochs."""
        assert self.epochs is not None and self.steps is not None
        noted, epochs = ([_number(row.get("seconds")) for row in table.rows] for table in (self.steps, self.epochs))
        return max([0.0, *filter(math.isfinite, noted), sum(filter(math.isfinite, epochs))])

    def _open(self, trainer: Trainer) -> None:
        """Make the folder, take over what it has of this run, and remove what it has of another."""
        assert trainer.run is not None
        make_folder(trainer.run)
        self.epochs, self.steps = _Table(trainer.run / "metrics.csv"), _Table(trainer.run / "steps.csv")
        if trainer.is_resumed:
            for table, column, largest in (
                (self.epochs, "epoch", trainer.epoch - 1),
                (self.steps, "step", trainer.step_count),
            ):
                table.read()
                table.keep(column, largest)
        else:
            self.epochs.drop()
            self.steps.drop()
            for name in MEASURED:  # of another run in this folder
                (trainer.run / name).unlink(missing_ok=True)
        config = trainer.run / "config.json"
        if not config.exists() or (not trainer.is_resumed and _read_description(config) is not None):
            write_text(config, json.dumps(describe(trainer), indent=2) + "\n")
        write_text(trainer.run / "environment.json", json.dumps(environment(trainer), indent=2) + "\n")

    def _keep_plan(self, trainer: Trainer) -> None:
        """The number of epochs and the like of this `fit`, in a configuration that was described here."""
        assert trainer.run is not None
        config = trainer.run / "config.json"
        known = _read_description(config)
        plan = {key: value for key, value in trainer.planned.items() if value is not None}
        if known is not None and {key: known.get(key) for key in plan} != plan:
            write_text(config, json.dumps({**known, **plan}, indent=2) + "\n")

    def on_batch_end(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        assert self.steps is not None
        row = {"step": trainer.step_count, "epoch": trainer.epoch, "loss": metrics["batch_loss"], "lr": metrics["lr"]}
        row["seconds"] = round(time.perf_counter() - self._began, 6)
        self.steps.add(row)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        assert self.epochs is not None
        self.epochs.replace("epoch", metrics)

    def on_train_end(self, trainer: Trainer) -> None:
        self._add_unfinished_epoch(trainer)
        if self.report:
            try:
                write_report(trainer)
            except OSError as error:  # what was trained is kept: a full disk does not make it fail
                warnings.warn(f"the report of {trainer.run} could not be written ({error})", stacklevel=2)

    def on_train_abort(self, trainer: Trainer) -> None:
        """A run that was interrupted, or that an error ended, has a report, too; nothing is measured for it."""
        if self.epochs is not None:
            with contextlib.suppress(Exception):  # the error that ended the run is the one to be shown
                self._add_unfinished_epoch(trainer)
                if self.report:
                    write_report(trainer, measures=False)

    def _add_unfinished_epoch(self, trainer: Trainer) -> None:
        """The row of an epoch that `max_steps`, a callback or a signal has ended; the whole epoch's replaces it."""
        last = trainer.history.last
        if self.epochs is not None and trainer.position and last.get("epoch") == trainer.epoch:
            self.epochs.replace("epoch", last)


def write_report(trainer: Trainer, measures: bool = True) -> Path:
    """Write `report.html` into the run folder of a trainer. Layers, memory and kernels are measured once for a run, on
    copies: nothing of the trainer changes. What could not be measured is in `missing.json`, and the report says it."""
    from weft import report

    assert trainer.run is not None
    if measures and not (trainer.run / "kernels.json").exists():
        steps = trainer.compiled_steps()
        inputs = [weft.zeros(shape, dtype=dtype, device=trainer.device) for shape, dtype in trainer.input_forms]
        missing = report.describe(trainer.run, trainer.model, steps[0] if steps else None, inputs or None)
        if missing:
            write_text(trainer.run / "missing.json", json.dumps(missing, indent=1) + "\n")
        else:
            (trainer.run / "missing.json").unlink(missing_ok=True)
    return report.write(trainer.run)


def _read_description(path: Path) -> dict[str, Any] | None:
    """What `describe` gave; None for a file that is not that, but the configuration that a run was made from."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_description = isinstance(content, dict) and {"parameters", "groups", "trainer"} <= set(content)
    return content if is_description else None


def describe(trainer: Trainer) -> dict[str, Any]:
    """The configuration of a trainer, for people; a run that was made from a file has its own."""
    groups = [dict(group) for optimizer in trainer.optimizers for group in optimizer.param_groups]
    options = [{key: value for key, value in group.items() if key not in ("params", "param_names")} for group in groups]
    return {
        "model": repr(trainer.model),
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "loss": getattr(trainer.loss, "__qualname__", None) or repr(trainer.loss),  # of a function, its name
        "optimizer": [type(optimizer).__name__ for optimizer in trainer.optimizers],
        "groups": json.loads(json.dumps(options, default=repr)),
        "scheduler": None if trainer.scheduler is None else type(trainer.scheduler).__name__,
        "metrics": [metric.name for metric in trainer.meters.metrics],
        "trainer": {
            name: getattr(trainer, name)
            for name in ("precision", "accumulate", "clip_norm", "clip_value", "on_nan", "seed", "memory_budget")
        },
        "device": str(trainer.device),
        **{key: value for key, value in trainer.planned.items() if value is not None},
    }


def environment(trainer: Trainer) -> dict[str, Any]:
    """Where a run takes place."""
    import numpy

    return {
        "weft": weft.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "system": platform.platform(),
        "device": str(trainer.device),
        "threads": weft.get_num_threads(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
