"""`weft resume RUN`: go on with a run that was stopped, or for more epochs, from its newest complete checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.base.errors import ConfigError, problem
from weft.cli.arguments import check_output_folder, parse_positive
from weft.cli.runs import add_options, checkpoints, open_run, save_config
from weft.cli.train import describe, fit, say_where
from weft.config.run import Run
from weft.train.progress import ProgressBar

# What a checkpoint holds with its values: a change of it in the configuration would change nothing.
RESTORED = {
    "optimizer": "the state of the optimizer, with its rate",
    "scheduler": "the state of the scheduler",
    "data.seed": "the order of the data",
    "trainer.seed": "the random stream",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("--epochs", type=parse_positive, help="how many epochs in all (default: as before)")
    add_options(parser)


class _Resuming(ProgressBar):
    """Shows the run, and keeps its configuration when the checkpoint was loaded: changes that do not fit it leave the
    run as it was."""

    def __init__(self, found: Run, folder: Path, console: Console):
        super().__init__(console=console)
        self.found, self.folder = found, folder

    def on_train_begin(self, trainer: Any) -> None:
        save_config(self.found, self.folder)
        super().on_train_begin(trainer)


def run(options: argparse.Namespace, console: Console) -> int:
    """Go on; nothing is done where all epochs are done."""
    changes = [*options.set, *([f"trainer.epochs={options.epochs}"] if options.epochs is not None else [])]
    found, folder = open_run(options.run, changes)
    check_output_folder("the folder of the run", folder)
    newest = checkpoints(folder).latest()
    if newest is None:
        fix = "`weft train` with its config.json and another --run begins again"
        raise problem(ConfigError, options.run, "a run without a complete checkpoint", "one that can go on", fix)
    trainer = found.trainer(folder, options.device, [_Resuming(found, folder, console)])
    if options.set:
        _refuse_ineffective(open_run(options.run, [])[0], found)
    found.parts()  # data that cannot be read are an error before anything is printed
    console.print(f"run     {folder}, from {newest.name}", markup=False)
    describe(trainer, console)
    code = fit(found, trainer, folder, "auto", options.device)
    if f"{trainer.step_count:08}" in newest.name:
        console.print("nothing was left to do; --epochs gives more")
    elif code == 0:
        say_where(folder, console)
    return code


def _refuse_ineffective(before: Run, after: Run) -> None:
    """Refuse changes of what goes on as the checkpoint has it."""
    for key, what in RESTORED.items():
        part, _, name = key.partition(".")
        values = [run.tree.get(part) or {} for run in (before, after)]
        if values[0] != values[1] if not name else values[0].get(name) != values[1].get(name):
            given = f"another {key}, but the checkpoint has {what}, which goes on"
            fix = "`weft train` with its config.json, --set and another --run begins a run with it"
            raise problem(ConfigError, "--set", given, f"changes of keys other than {', '.join(RESTORED)}", fix)
