"""`python -m weft.demo`: train a digit classifier with the Trainer, and say what it took.

The data set goes to the device once. A step gathers the rows of its batch there, and runs forward, backward, clipping,
the AdamW update and the metrics as one plan; nothing is moved between host and device in a step. The run leaves a
folder with a report to open.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import weft
import weft.nn as nn
from weft.data import DataLoader, TensorDataset, digits
from weft.train import Callback, ProgressBar, Trainer

SIZES = (digits.PIXELS, 128, 64, digits.CLASSES)


@dataclass(frozen=True)
class Report:
    """What the demo measured. Transfers and step times leave the first epoch out, in which the step is compiled."""

    device: str
    parameters: int
    steps: int
    kernels_per_step: int
    kernels_compiled: int
    kernels_from_disk: int
    compile_seconds: float
    step_seconds: float
    uploads_per_step: float
    downloads_per_step: float
    loss: float
    accuracy: float
    page: Path | None


class Transfers(Callback):
    """Counts what moves between host and device in the steps of each epoch."""

    def __init__(self) -> None:
        self.moved: list[tuple[float, float]] = []
        self._before: dict[str, float] = {}

    def on_epoch_begin(self, trainer: Trainer, epoch: int, metrics: Any) -> None:
        self._before = weft.counters()

    def on_batch_end(self, trainer: Trainer, batch: int, metrics: Any) -> None:
        if batch == trainer.planned["batches"] - 1:
            after = weft.counters()
            uploads, downloads = (after[name] - self._before[name] for name in ("uploads", "downloads"))
            self.moved.append((uploads, downloads))


def make_model(sizes: tuple[int, ...], device: Any) -> nn.Sequential:
    """(N, 64) pixels to (N, 10) logits."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow, device=device), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def make_loader(split: str, batch: int, seed: int, device: Any) -> DataLoader:
    """The digits, on the device. The few training samples that do not fill a batch come in another epoch."""
    data = TensorDataset(*(weft.tensor(array, device=device) for array in digits.load(split)))
    is_train = split == "train"
    return DataLoader(data, batch, shuffle=is_train, seed=seed, last="drop" if is_train else "keep", device=device)


def train(
    epochs: int = 60,
    batch: int = 64,
    seed: int = 0,
    device: str | None = None,
    callbacks: Sequence[Callback] = (),
    run: Path | None = None,
) -> Report:
    """Train for `epochs` epochs; `run` is the folder for metrics, checkpoints and the report."""
    before = weft.counters()
    place = weft.get_device(device)
    weft.manual_seed(seed)
    model = make_model(SIZES, place)
    optimizer = weft.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    transfers = Transfers()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, metrics=["accuracy"], device=place, clip_norm=1.0, seed=seed, run=run,
        callbacks=[transfers, *callbacks],
    )  # fmt: skip
    data, test = make_loader("train", batch, seed, place), make_loader("test", 512, seed, place)
    history = trainer.fit(data, validation=test, epochs=epochs, resume=None)
    total = weft.counters()
    step = trainer.compiled_steps()[0]
    later = transfers.moved[1:]
    replayed = max(1, len(later) * len(data))
    seconds = history["seconds"][1:]
    return Report(
        device=str(place),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=trainer.step_count,
        kernels_per_step=len(step.plan.kernels()),
        kernels_compiled=int(total["kernels_compiled"] - before["kernels_compiled"]),
        kernels_from_disk=int(total["kernels_from_disk"] - before["kernels_from_disk"]),
        compile_seconds=total["compile_seconds"] - before["compile_seconds"],
        step_seconds=statistics.median(seconds) / len(data) if seconds else float("nan"),
        uploads_per_step=sum(uploads for uploads, _ in later) / replayed,
        downloads_per_step=sum(downloads for _, downloads in later) / replayed,
        loss=history["loss"][-1],
        accuracy=history["val_accuracy"][-1],
        page=None if run is None else run / "report.html",
    )


def show(report: Report, console: Console) -> None:
    table = Table(show_header=False, title="Digits, " + "-".join(map(str, SIZES)))
    rows = {
        "device": report.device,
        "parameters": f"{report.parameters:,}",
        "steps": f"{report.steps:,}, {report.kernels_per_step} kernels each",
        "kernels compiled": f"{report.kernels_compiled} (and {report.kernels_from_disk} from the disk cache)",
        "compile time": f"{report.compile_seconds:.2f} s",
        "step time": f"{report.step_seconds * 1e3:.3f} ms (median over epochs)",
        "downloads per step": f"{report.downloads_per_step:.2f}",
        "uploads per step": f"{report.uploads_per_step:.2f}",
        "loss of the last epoch": f"{report.loss:.4f}",
        "test accuracy": f"{report.accuracy:.2%}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    if report.page is not None:
        console.print(f"report: {report.page}", soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m weft.demo", description="Train a digit classifier.")
    parser.add_argument("--epochs", type=int, default=60, help="default 60")
    parser.add_argument("--batch", type=int, default=64, help="rows per step (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial parameters and the order (default 0)")
    parser.add_argument("--device", default="auto", help="default: the fastest that is there")
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="folder for the report (runs/demo)")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or not 1 <= options.batch <= len(digits.load("train")[0]):
        parser.error("expected at least one epoch, and a batch between 1 and the number of training samples")
    console = Console()
    progress = ProgressBar(console=console, lines=False)
    show(train(options.epochs, options.batch, options.seed, options.device, [progress], options.run), console)


if __name__ == "__main__":
    main()
