"""tables: a profile for people, as rich's tables or as text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.errors import size_text

if TYPE_CHECKING:
    from weft.profiling.profile import Profile

WIDTH = 140  # columns of the text form


def parts(profile: Profile, most: int, width: int = WIDTH) -> Iterator[Any]:
    """What is printed: one line about the whole, the layers, the `most` slowest kernels, one line about memory."""
    yield Text(headline(profile))
    yield Text()
    yield layer_table(profile)
    yield Text()
    yield kernel_table(profile, most, width)
    yield Text()
    yield Text(profile.memory.summary())


def text(profile: Profile, most: int) -> str:
    """The same as plain text."""
    console = Console(file=io.StringIO(), width=WIDTH, highlight=False, color_system=None)
    for part in parts(profile, most):
        console.print(part)
    file = console.file
    assert isinstance(file, io.StringIO)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def headline(profile: Profile) -> str:
    """The step, its time, the sum over its kernels, and the rates of the device."""
    copied, multiplied = rate_text(profile.copy_rate, "B"), rate_text(profile.multiply_rate, "flop")
    return (
        f"{profile.name} on {profile.device} ({profile.description}): {seconds_text(profile.seconds)} a step, "
        f"{len(profile.kernels)} kernels, in all {seconds_text(profile.kernel_seconds)}; "
        f"least of {profile.rounds} rounds\n"
        f"the device copies {copied} and multiplies {multiplied}"
    )


def layer_table(profile: Profile) -> Table:
    """Time by layer."""
    table = _table(("layer", "left"), ("kind", "left"), ("forward", "right"), ("backward", "right"))
    for title in ("update", "in all", "share", "kernels"):
        table.add_column(title, justify="right", no_wrap=True, min_width=7)
    total = max(profile.kernel_seconds, 1e-12)
    for layer in profile.layers:
        table.add_row(
            Text(layer.layer), Text(layer.kind), *[_time(t) for t in (layer.forward, layer.backward, layer.update)],
            seconds_text(layer.seconds), percent(layer.seconds / total), str(layer.kernels),
        )  # fmt: skip
    return table


def kernel_table(profile: Profile, most: int, width: int = WIDTH) -> Table:
    """The `most` slowest kernels, in so many columns of text."""
    names = ("kernel", "runs", "time", "share", "moved")
    widest = min(max(width - 80, 16), 44)
    table = _table(*[(name, "right" if name != "kernel" else "left") for name in names], widest=widest)
    for title, least in (("flop", 5), ("of copy", 7), ("of multiply", 11)):
        table.add_column(title, justify="right", no_wrap=True, min_width=least)
    table.add_column("layers", overflow="ellipsis", no_wrap=True, min_width=6, max_width=32)
    total = max(profile.kernel_seconds, 1e-12)
    ranked = sorted(profile.kernels, key=lambda kernel: -kernel.seconds)
    for kernel in ranked[:most]:
        ordered = sorted(kernel.layers, key=lambda part: -part.share)
        table.add_row(
            Text(kernel.name), str(kernel.times), seconds_text(kernel.seconds), percent(kernel.seconds / total),
            size_text(kernel.bytes), count_text(kernel.flops), percent(kernel.copy_share),
            percent(kernel.multiply_share), Text(", ".join(dict.fromkeys(part.layer for part in ordered))),
        )  # fmt: skip
    if len(ranked) > most:
        rest = ranked[most:]
        took = sum(kernel.seconds for kernel in rest)
        table.add_row(f"{len(rest)} more", "", seconds_text(took), percent(took / total))
    return table


def _table(*columns: tuple[str, Any], widest: int = 44) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, (title, justify) in enumerate(columns):
        if number:
            least = 4 if title in ("runs", "kind") else 9 if title == "moved" else 7
            table.add_column(title, justify=justify, no_wrap=True, min_width=least)
        else:
            table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", max_width=widest)
    return table


def _time(seconds: float) -> str:
    return seconds_text(seconds) if seconds else ""


def seconds_text(seconds: float) -> str:
    """A time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def rate_text(rate: float, unit: str) -> str:
    """A rate, such as 12.3 GB/s."""
    return f"{_scaled(rate)}{unit}/s"


def count_text(count: float) -> str:
    """A number with three digits and a letter for thousands, millions, ..."""
    return _scaled(count).replace(" ", "")


def _scaled(value: float) -> str:
    for letter, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "


def percent(part: float) -> str:
    """A share as a percentage; below 0.1 % nothing."""
    if part >= 0.995:
        return f"{part:.0%}"
    return f"{part:.1%}" if part >= 0.0005 else "-"
