"""`weft graph CONFIG`: a network as a picture, its layers with shapes and parameters."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from weft.cli import steps
from weft.cli.arguments import check_output_file, depth
from weft.drawing.network import plot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    steps.add_arguments(parser)
    parser.add_argument("--output", "-o", metavar="FILE", help="where to (default: the name of the file, as .svg)")
    parser.add_argument("--depth", type=depth, help="how many levels of modules are opened (default: all)")


def run(options: argparse.Namespace, console: Console) -> int:
    """Write the picture."""
    options.forward = True  # nothing else is needed of it
    target = f"{Path(options.config).stem}.svg" if options.output is None else options.output
    check_output_file("--output", target, ".svg")
    case = steps.load(options)
    plot(case.model, target, input_shape=list(case.inputs), depth=options.depth)
    count = sum(param.numel() for param in case.model.parameters())
    console.print(f"{type(case.model).__name__}, {count:,} parameters: {target}", markup=False, soft_wrap=True)
    return 0
