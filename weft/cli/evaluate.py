"""`weft evaluate RUN`: loss and metrics of a trained run on its validation data."""

from __future__ import annotations

import argparse

from rich.console import Console

from weft.cli.runs import add_options, load_weights, open_run, print_metrics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("run", help="the folder of the run")
    parser.add_argument("--checkpoint", default="best", help="best (default), last, or the path of one")
    parser.add_argument("--on", choices=("validation", "train"), default="validation", help="which part of the data")
    add_options(parser)


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the values."""
    found, folder = open_run(options.run, options.set)
    trainer = found.trainer(False, options.device)
    name = load_weights(trainer, folder, options.checkpoint)
    part, data = options.on, None
    if part == "validation":
        data = found.validation_loader(trainer.device)
    if data is None:
        part, data = "train", found.train_loader(trainer.device, is_training=False)
    console.print(f"{folder}, {name}, {part} data on {trainer.device.name}", markup=False, soft_wrap=True)
    print_metrics(trainer.evaluate(data), console)
    return 0
