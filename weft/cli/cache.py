"""`weft cache`: what is kept between processes, and `weft cache clear`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.base import disk
from weft.compiler.memory.report import size_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")


def run(options: argparse.Namespace, console: Console) -> int:
    """Show or clear."""
    folder = disk.folder()
    if folder is None:
        console.print("Nothing is kept: this user has no home directory. Set WEFT_CACHE_DIR to a folder.")
        return 0
    if options.action == "clear":
        gone = disk.clear()
        console.print(f"Removed {_count(gone)} ({size_text(_bytes(gone))}) from:", Text(folder), sep="\n")
        return 0
    files = disk.files()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("folder", Text(folder, overflow="fold"))
    if wrong := disk.explain_distrust():
        table.add_row("not used", Text(wrong, overflow="fold"))
    for kind, name in ((disk.PLAN, "plans"), (disk.OBJECT, "kernels"), (disk.TUNING, "tunings")):
        some = [file for file in files if file.kind == kind]
        table.add_row(name, f"{len(some)} ({size_text(_bytes(some))})")
    table.add_row("in all", f"{size_text(_bytes(files))} of {size_text(disk.limit())} (WEFT_CACHE_LIMIT)")
    if files:
        table.add_row("oldest use", _format_age(min(file.used for file in files)))
    console.print(table)
    return 0


def _bytes(files: Sequence[disk.File]) -> int:
    return sum(file.nbytes for file in files)


def _count(files: Sequence[disk.File]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _format_age(moment: float) -> str:
    seconds = max(time.time() - moment, 0)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "less than a minute ago"
