"""`weft train CONFIG`: train what a file describes, and keep everything in the folder of the run."""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.base.errors import ConfigError, problem
from weft.cli.arguments import check_output_folder, parse_positive
from weft.cli.runs import add_options, checkpoints, save_config
from weft.config.run import Run, load_run
from weft.train.faults import Interrupted
from weft.train.progress import ProgressBar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", type=Path, help="a run in JSON or TOML; `weft init` writes one to start from")
    parser.add_argument("--epochs", type=parse_positive, help="how many epochs (default: what the file says, or 1)")
    parser.add_argument(
        "--run", help="folder for the run (default: what the file says, or the next of runs/NAME-1, ...)"
    )
    add_options(parser, "optimizer.lr=0.01")


def run(options: argparse.Namespace, console: Console) -> int:
    """Train; the folder of the run has its configuration, metrics, checkpoints and report."""
    changes = [*options.set, *([f"trainer.epochs={options.epochs}"] if options.epochs is not None else [])]
    found = load_run(options.config, changes)
    folder = _choose_folder(found, options)
    with _new_folder(Path(options.config).stem) if folder is None else contextlib.nullcontext(folder) as folder:
        trainer = _prepare(found, folder, options, console)
    console.print(f"run     {folder}", markup=False)
    describe(trainer, console)
    code = fit(found, trainer, folder, None, options.device)
    if code == 0:
        say_where(folder, console)
    return code


def say_where(folder: Path, console: Console) -> None:
    """Where a run that is done is kept, and what comes next."""
    console.print(f"kept in {folder}; `weft evaluate {folder}` measures it", markup=False, soft_wrap=True)


def _prepare(found: Run, folder: Path, options: argparse.Namespace, console: Console) -> Any:
    """The Trainer of a run in its folder, which has its configuration then."""
    check_output_folder("--run" if options.run is not None else "the folder of the run", folder)
    if checkpoints(folder).latest() is not None:
        fix = f"`weft resume {folder}` goes on with it; --run takes another folder"
        raise problem(ConfigError, str(folder), "a folder with the checkpoints of a run", "a new one", fix)
    trainer = found.trainer(folder, options.device, [ProgressBar(console=console)])
    save_config(found, folder)
    return trainer


def fit(found: Run, trainer: Any, folder: Path, resume: str | None, device: str | None) -> int:
    """Train; a run that was interrupted says how to go on, on the device that was named. Returns the exit code."""
    trainer.how_to_resume = f"`weft resume {folder}{f' --device {device}' if device else ''}`"
    try:
        found.fit(trainer, resume)
    except Interrupted as stop:
        return stop.code
    return 0


def _choose_folder(found: Run, options: argparse.Namespace) -> Path | None:
    """The folder that was requested."""
    if options.run is not None:
        check_output_folder("--run", options.run)  # '' would be the present folder as a path
        return Path(options.run)
    if found.options.get("run"):
        return found.folder / found.options["run"]
    return None


@contextlib.contextmanager
def _new_folder(name: str) -> Iterator[Path]:
    """The next of runs/NAME-1, runs/NAME-2, ..., made here: of two commands at once each has its own. A run that cannot
    begin leaves none."""
    check_output_folder("the folder of the run", "runs")
    for number in itertools.count(1):
        folder = Path("runs", f"{name}-{number}")
        folder.parent.mkdir(exist_ok=True)
        try:
            folder.mkdir()
            break
        except FileExistsError:
            continue
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if nothing is in it
            folder.parent.rmdir()
        raise


def describe(trainer: Any, console: Console) -> None:
    """What trains where, in two lines."""
    model, device = trainer.model, trainer.device
    count = sum(param.numel() for param in model.parameters() if hasattr(param, "numel"))
    console.print(f"model   {type(model).__name__}, {count:,} parameters", markup=False)
    console.print(f"device  {device.name} ({device.description})", markup=False)
