"""`python -m weft.demo`: train a digit classifier with one compiled step, and say what it took.

The data set goes to the device once. A step gets 64 row numbers, gathers those rows on the device, and runs forward,
backward, clipping and the AdamW update as one plan.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import weft
import weft.nn as nn
from weft.data import digits

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
    upload_bytes_per_step: float
    downloads_per_step: float
    loss: float
    accuracy: float


def make_model(sizes: tuple[int, ...], device: str | None) -> nn.Sequential:
    """(N, 64) pixels to (N, 10) logits."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow, device=device), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(
    epochs: int = 60,
    batch: int = 64,
    seed: int = 0,
    device: str | None = None,
    on_epoch: Callable[[float], None] = lambda loss: None,
) -> Report:
    """Train for `epochs` epochs; `on_epoch(loss)` is called after each with the loss of its last step."""
    before = weft.counters()
    rng = np.random.default_rng(seed)
    train_x, train_y = (weft.tensor(array, device=device) for array in digits.load("train"))
    test_x, test_y = (weft.tensor(array, device=device) for array in digits.load("test"))
    weft.manual_seed(seed)
    model = make_model(SIZES, device)
    criterion = nn.CrossEntropyLoss()
    optimizer = weft.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)

    @weft.compile
    def step(rows: weft.Tensor) -> weft.Tensor:
        loss = criterion(model(train_x[rows]), train_y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    steps_per_epoch = len(train_x) // batch
    moved = {"uploads": 0.0, "upload_bytes": 0.0, "downloads": 0.0}
    epoch_seconds = []
    for epoch in range(epochs):
        # A fresh order each epoch; the few rows that do not fill a batch have their turn in another one.
        order = rng.permutation(len(train_x))[: steps_per_epoch * batch].reshape(steps_per_epoch, batch)
        start, counted = time.perf_counter(), weft.counters()
        for rows in order:
            loss = step(weft.tensor(rows, device=device))
        after = weft.counters()
        last_loss = loss.item()  # waits for the device, so the clock below is honest
        if epoch > 0:
            epoch_seconds.append(time.perf_counter() - start)
            moved = {name: moved[name] + after[name] - counted[name] for name in moved}
        on_epoch(last_loss)

    with weft.no_grad():
        guesses = model(test_x).argmax(1)
        accuracy = (guesses == test_y).float().mean().item()
    total = weft.counters()
    replayed = max(1, (epochs - 1) * steps_per_epoch)
    return Report(
        device=str(train_x.device),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=epochs * steps_per_epoch,
        kernels_per_step=len(step.plan.kernels()),
        kernels_compiled=int(total["kernels_compiled"] - before["kernels_compiled"]),
        kernels_from_disk=int(total["kernels_from_disk"] - before["kernels_from_disk"]),
        compile_seconds=total["compile_seconds"] - before["compile_seconds"],
        step_seconds=statistics.median(epoch_seconds) / steps_per_epoch if epoch_seconds else float("nan"),
        uploads_per_step=moved["uploads"] / replayed,
        upload_bytes_per_step=moved["upload_bytes"] / replayed,
        downloads_per_step=moved["downloads"] / replayed,
        loss=last_loss,
        accuracy=accuracy,
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
        "uploads per step": f"{report.uploads_per_step:.2f} ({report.upload_bytes_per_step:.0f} bytes of row numbers)",
        "last loss": f"{report.loss:.4f}",
        "test accuracy": f"{report.accuracy:.2%}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m weft.demo", description="Train a digit classifier.")
    parser.add_argument("--epochs", type=int, default=60, help="default 60")
    parser.add_argument("--batch", type=int, default=64, help="rows per step (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial parameters and the order (default 0)")
    parser.add_argument("--device", help="default: the first of weft.devices()")
    options = parser.parse_args(arguments)
    if options.epochs < 1 or not 1 <= options.batch <= len(digits.load("train")[0]):
        parser.error("expected at least one epoch, and a batch between 1 and the number of training samples")

    console = Console()
    columns = [TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}")]
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("training", total=options.epochs, loss=float("nan"))
        report = train(
            options.epochs,
            options.batch,
            options.seed,
            options.device,
            on_epoch=lambda loss: progress.update(task, advance=1, loss=loss),
        )
    show(report, console)


if __name__ == "__main__":
    main()
