"""`weft summary CONFIG`: the layers of a network with shapes, parameters and memory. Nothing is computed."""

from __future__ import annotations

import argparse

from rich.console import Console

from weft import nn
from weft.config.inputs import input_forms, parse_shapes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", help="a network or a run, in JSON or TOML")
    parser.add_argument("--input", action="append", default=[], help="shape of an input without the batch, as 3,32,32")
    parser.add_argument("--batch", type=int, help="rows of the batch (default: what the file says, or 1)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the table."""
    model = nn.from_config(options.config)
    forms = parse_shapes(options.input) if options.input else input_forms(model)
    batch = options.batch or getattr(model, "batch_size", 1)
    found = nn.summary(model, *[shape for shape, _, _ in forms], batch_size=batch, dtypes=[one for _, one, _ in forms])
    console.print(str(found), markup=False, no_wrap=True, overflow="ellipsis", crop=True)
    return 0
