"""`weft summary CONFIG`: the layers of a network with shapes, parameters and memory. Nothing is computed."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from weft import nn
from weft.cli.arguments import parse_positive
from weft.cli.runs import network
from weft.config.inputs import inputs_for
from weft.profiling.tables import fit_table, shorten


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", type=Path, help="a network or a run, in JSON or TOML")
    parser.add_argument("--input", action="append", default=[], help="shape of an input without the batch, as 3,32,32")
    parser.add_argument("--batch", type=parse_positive, help="rows of the batch (default: what the file says, or 1)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the table."""
    model = network(options.config)
    found = nn.summary(model, *inputs_for(options.config, model, options.input, options.batch))
    rows = []
    for row in found.rows:
        label, shapes, *counts = row.cells()
        rows.append([label, shorten(shapes, max(console.width - 48, 16)), *counts])
    titles = ("layer", "output shape", "parameters", "memory")
    console.print(fit_table(titles, rows, console.width, ("memory", "output shape"), left=("layer", "output shape")))
    console.print()
    for line in str(found).splitlines()[-2:]:
        console.print(line, markup=False)
    return 0
