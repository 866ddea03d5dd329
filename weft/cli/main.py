"""What the command understands. A subcommand is one module of this package: `add_arguments(parser)` says what it takes,
`run(options, console)` does it and returns the exit code. Only the module of the chosen command is imported."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

import weft
from weft.base.errors import ConfigError, DeviceError, WeftError

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells count it: 128 and the number of the signal
WIDE = 200  # columns of an output that is no terminal
REFUSED = 2  # the exit code for arguments and configurations that are refused, as that of argparse
# Name of the command, which is the name of its module, and what it does.
COMMANDS = {
    "bench": "a small benchmark on each device",
    "cache": "show or clear the plans and kernels kept on disk",
    "config": "print the JSON Schema of configurations, or check a file",
    "devices": "list the devices, their memory and rates",
    "doctor": "say what Weft finds on this machine and whether it computes rightly",
    "evaluate": "loss and metrics of a trained run",
    "graph": "draw a network with shapes and parameters",
    "init": "write a configuration to start from",
    "kernels": "the kernels of a training step: sources and memory",
    "layers": "list the layers, or show one of them",
    "parity": "compare networks on the CPU and on other devices",
    "plot": "the curves of a run, and its report",
    "predict": "the results of a trained run for other data",
    "profile": "the time of a training step by kernel and by layer",
    "resume": "go on with a run that was stopped",
    "summary": "the layers of a network with shapes, parameters and memory",
    "train": "train what a configuration describes",
    "tune": "search the fastest tile sizes of a device and keep them",
}


class Output(Console):
    """Where commands print. A file or a pipe has WIDE columns, unless the variable COLUMNS says another number: nothing
    is cut. A reader that has seen enough, such as `head`, is no error."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        if not self.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
            self.width = WIDE

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `main` ends the command; that of rich exits with 1


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
            one.set_defaults(command=module.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((word for word in given if not word.startswith("-")), None)
    _print_what_can_be(sys.stdout)
    before, warnings.formatwarning = warnings.formatwarning, _warning_format(f"weft {chosen}", warnings.formatwarning)
    try:
        options = parser(chosen).parse_args(given)
        _check_device(getattr(options, "device", None))
        code: int = options.command(options, Output(highlight=False, soft_wrap=False))
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # outside of training, which says itself what it has saved
        print(f"\nweft {chosen}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return report(chosen or "", error)
    finally:
        warnings.formatwarning = before


def _print_what_can_be(stream: Any) -> None:
    """Let an output show a question mark for what its encoding lacks, such as curves on a terminal of Latin-1 or names
    of files that are no text: by default that would be an error in the middle of the work. (Standard error escapes.)"""
    if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")


def _warning_format(command: str, others: Callable[..., str]) -> Callable[..., str]:
    """How a command shows warnings that are meant for its user: without a place in Weft's own files."""

    def format_warning(message: Any, category: Any, *place: Any, **line: Any) -> str:
        is_for_users = issubclass(category, UserWarning)
        return f"{command}: {message}\n" if is_for_users else others(message, category, *place, **line)

    return format_warning


def _check_device(named: str | list[str] | None) -> None:
    """Refuse a device that is not here before anything is done."""
    for name in [named] if isinstance(named, str) else named or ():
        try:
            weft.get_device(name)
        except DeviceError as error:
            raise ConfigError(str(error)) from None


def report(command: str, error: Exception) -> int:
    """Say what went wrong and return the exit code (docs/training.md has the table); errors of which the user cannot
    know the reason keep their traceback."""
    from weft.train.faults import OTHER, exit_code

    code = REFUSED if isinstance(error, ConfigError) else exit_code(error)
    text = str(error)
    if not isinstance(error, WeftError):
        if isinstance(error, OSError) and error.filename is not None:  # a file that cannot be read or written
            text = f"{error.filename}: {error.strerror}"
        elif code == OTHER:
            raise error
    print(text if text.startswith(f"weft {command}: ") else f"weft {command}: {text}", file=sys.stderr)
    return code
