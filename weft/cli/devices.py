"""`weft devices`: the devices that compute here, with memory and rates; `weft doctor` says what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import weft
from weft.base.errors import ConfigError, problem
from weft.plan.device import Device, memory_text
from weft.profiling.rates import rates
from weft.profiling.tables import rate_text

NOT_COMPUTING = ("reference", "null")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--rates", action="store_true", help="measure how fast each copies and multiplies (kept)")


def named_devices(names: Sequence[str], refused: Container[str] = NOT_COMPUTING) -> list[Device]:
    """The devices of these names, each once; those of the kinds `refused` do not run what the command is about."""
    found = list(dict.fromkeys([weft.get_device(name) for name in names]))
    for device in found:
        if device.kind in refused:
            raise problem(ConfigError, "--device", repr(device.name), "a device that runs kernels: a GPU, or 'cpu'")
    return found


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the table."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("device", "name", "memory", "free"):
        table.add_column(title, no_wrap=title != "name", justify="left" if title in ("device", "name") else "right")
    if options.rates:
        for title in ("copies", "multiplies"):
            table.add_column(title, justify="right", no_wrap=True)
    default = weft.default_device()
    for device in weft.devices():
        if device.kind in NOT_COMPUTING:
            continue
        mark = f"{device.name} *" if device is default else device.name
        name = Text(
            device.description + (" (software)" if device.is_software and "software" not in device.description else "")
        )
        row: list[Any] = [mark, name, *memory_text(device)]
        if options.rates:
            found = rates(device)
            row += [rate_text(found.copy, "B"), rate_text(found.multiply, "flop")]
        table.add_row(*row)
    console.print(table)
    console.print("* is where tensors are made unless said otherwise.", style="dim")
    return 0
