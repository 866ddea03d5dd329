"""What the command understands. A subcommand is one module of this package: `add_arguments(parser)` says what it takes,
`run(options, console)` does it and returns the exit code. Only the module of the chosen command is imported."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from rich.console import Console

import weft

# Name of the command, which is the name of its module, and what it does.
COMMANDS = {
    "bench": "a small benchmark on each device",
    "cache": "show or clear the plans and kernels kept on disk",
    "devices": "list the devices, their memory and rates",
    "doctor": "say what Weft finds on this machine and whether it computes rightly",
    "graph": "draw a network with shapes and parameters",
    "kernels": "the kernels of a training step: sources and memory",
    "layers": "list the layers, or show one of them",
    "plot": "the curves of a run, and its report",
    "profile": "the time of a training step by kernel and by layer",
}


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The command line, with the arguments of the chosen command."""
    top = argparse.ArgumentParser(prog="weft", description="Train and inspect models, look after an installation.")
    top.add_argument("--version", action="version", version=f"weft {weft.__version__}")
    commands = top.add_subparsers(metavar="command", required=True)
    for name, about in COMMANDS.items():
        one = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f"weft.cli.{name}")
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((word for word in given if not word.startswith("-")), None)
    options = parser(chosen).parse_args(given)
    code: int = options.run(options, Console(highlight=False, soft_wrap=False))
    return code
