"""What the command understands. A subcommand is one module; its `run(options, console)` returns the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

import weft
from weft.cli import cache, doctor, layers


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="weft", description="Look after an installation of Weft.")
    top.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = top.add_subparsers(metavar="command", required=True)
    about = "show or clear the plans and kernels kept on disk"
    one = commands.add_parser("cache", help=about, description=about.capitalize() + ".")
    one.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")
    one.set_defaults(run=cache.run)
    about = "say what Weft finds on this machine and whether it computes rightly"
    one = commands.add_parser("doctor", help=about, description=about.capitalize() + ".")
    one.set_defaults(run=doctor.run)
    about = "list the layers, or show one of them"
    one = commands.add_parser("layers", help=about, description=about.capitalize() + ".")
    one.add_argument("name", nargs="?", help="a layer by any of its names, such as Linear, DenseLayer or L026")
    one.set_defaults(run=layers.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = parser().parse_args(arguments)
    return options.run(options, Console(highlight=False, soft_wrap=False))
