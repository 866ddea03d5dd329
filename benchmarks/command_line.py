"""Command lines: as reports show them, without the paths of the machine; devices that they name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import weft


def find_device(name: str) -> Any:
    """The device with this name, as a type of argparse."""
    try:
        return weft.get_device(name)
    except weft.WeftError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def without(words: Sequence[str], *options: str) -> list[str]:
    """A command line less `options`, each of which has one value.

    >>> without(["--cases", "xor", "--json", "there/x.json", "--tiny"], "--json", "--log")
    ['--cases', 'xor', '--tiny']
    """
    skipped = {place + more for place, word in enumerate(words) if word in options for more in (0, 1)}
    return [word for place, word in enumerate(words) if place not in skipped]
