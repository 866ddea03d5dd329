"""`weft profile CONFIG`: where the time of a training step goes, by kernel and by layer; a trace for Chrome."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from rich.console import Console

import weft
from weft.base import files
from weft.cli import steps
from weft.cli.arguments import check_output_file, parse_positive
from weft.profiling.tables import parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    steps.add_arguments(parser)
    parser.add_argument("--trace", metavar="FILE", help="write a trace for chrome://tracing or ui.perfetto.dev (.json)")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON")
    parser.add_argument(
        "--kernels", type=parse_positive, default=20, help="how many kernels the table shows (default 20)"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the tables, write the files."""
    check_output_file("--trace", options.trace, ".json")
    check_output_file("--json", options.json)
    case = steps.load(options)
    found = dataclasses.replace(weft.profile(case.step, *case.args), name=Path(options.config).name)
    for part in parts(found, options.kernels, console.width):
        console.print(part)
    if options.trace is not None:
        found.save(options.trace)
        console.print(f"trace: {options.trace}", markup=False, soft_wrap=True)
    if options.json is not None:
        files.write("--json", options.json, json.dumps(found.to_dict(), indent=1) + "\n")
        console.print(f"data: {options.json}", markup=False, soft_wrap=True)
    return 0
