"""A profile for people, as rich's tables or as text."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.base.errors import size_text

if TYPE_CHECKING:
    from weft.profiling.profile import Profile

WIDTH = 140  # columns of the text form


def parts(profile: Profile, most: int, width: int = WIDTH) -> Iterator[Any]:
    """What is printed: one line about the whole, the layers, the `most` slowest kernels, one line about memory."""
    yield Text(headline(profile))
    yield Text()
    yield layer_table(profile, width)
    yield Text()
    yield kernel_table(profile, most, width)
    yield from limit_lines(profile, most)
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


def layer_table(profile: Profile, width: int = WIDTH) -> Table:
    """Time by layer, in so many columns of text."""
    titles = ("layer", "kind", "forward", "backward", "update", "in all", "share", "kernels")
    total = max(profile.kernel_seconds, 1e-12)
    rows = [
        [
            layer.layer, layer.kind, *[_time(t) for t in (layer.forward, layer.backward, layer.update)],
            seconds_text(layer.seconds), percent(layer.seconds / total), str(layer.kernels),
        ]
        for layer in profile.layers
    ]  # fmt: skip
    least = ("kernels", "kind", "update", "backward", "forward", "share")
    return fit_table(titles, rows, width, least, left=("layer", "kind"))


def kernel_table(profile: Profile, most: int, width: int = WIDTH) -> Table:
    """The `most` slowest kernels, in so many columns of text."""
    titles = ("kernel", "runs", "time", "share", "moved", "flop", "of copy", "of multiply", "layers")
    total = max(profile.kernel_seconds, 1e-12)
    ranked = sorted(profile.kernels, key=lambda kernel: -kernel.seconds)
    rows = []
    for kernel in ranked[:most]:
        ordered = sorted(kernel.layers, key=lambda part: -part.share)
        rows.append([
            kernel.name, str(kernel.times), seconds_text(kernel.seconds), percent(kernel.seconds / total),
            size_text(kernel.bytes), count_text(kernel.flops), share_text(kernel.copy_share),
            share_text(kernel.multiply_share), shorten(", ".join(dict.fromkeys(part.layer for part in ordered)), 32),
        ])  # fmt: skip
    if len(ranked) > most:
        rest = ranked[most:]
        took = sum(kernel.seconds for kernel in rest)
        rows.append([f"{len(rest)} more", "", seconds_text(took), percent(took / total), *[""] * 5])
    least = ("runs", "flop", "of multiply", "of copy", "moved", "layers", "share")
    return fit_table(titles, rows, width, least, left=("kernel", "layers"))


def limit_lines(profile: Profile, most: int) -> Iterator[Text]:
    """Why kernels of the table are at a limit, a line for each reason."""
    ranked = sorted(profile.kernels, key=lambda kernel: -kernel.seconds)[:most]
    for reason in dict.fromkeys(kernel.limit for kernel in ranked if kernel.limit):
        count = sum(kernel.limit == reason for kernel in ranked)
        yield Text(f"at limit: {count} kernel{'s, each of which' if count > 1 else ' that'} {reason}", style="dim")


GAP = 2  # between columns
MIN_FIRST_COLUMN = 24  # the first column, before another column is left out for it


def fit_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], width: int, least: Sequence[str], left: Sequence[str]
) -> Table:
    """A table of at most `width` columns of text. Columns are left out in the order of `least` until the others fit,
    the first with at least MIN_FIRST_COLUMN characters; its texts lose their middle, not their end, by which names of
    kernels differ. Columns of `left` are flush left."""
    sizes = [max(len(text) for text in column) for column in zip(titles, *rows, strict=True)]
    shown = list(range(len(titles)))
    for title in least:
        if min(sizes[0], MIN_FIRST_COLUMN) + sum(sizes[k] + GAP for k in shown[1:]) <= width:
            break
        shown.remove(titles.index(title))
    first_width = max(width - sum(sizes[k] + GAP for k in shown[1:]), 1)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0), collapse_padding=False)
    for k in shown:
        table.add_column(titles[k], justify="left" if titles[k] in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(shorten(row[k], first_width) if k == 0 else row[k]) for k in shown])
    return table


def shorten(text: str, size: int) -> str:
    """A text of at most so many characters: without its middle, if it is longer."""
    if len(text) <= size:
        return text
    end = (size - 1) // 2
    return f"{text[: size - 1 - end]}…{text[len(text) - end :]}"


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
    return f"{_scale_text(rate)}{unit}/s"


def count_text(count: float) -> str:
    """A number with three digits and a letter for thousands, millions, ..."""
    return _scale_text(count).replace(" ", "")


def _scale_text(value: float) -> str:
    for letter, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g} "


def share_text(part: float) -> str:
    """A share of a rate, of which there cannot be more than all."""
    return "at limit" if part >= 1 else percent(part)


def percent(part: float) -> str:
    """A share as a percentage; below 0.1 % nothing."""
    if part >= 0.995:
        return f"{part:.0%}"
    return f"{part:.1%}" if part >= 0.0005 else "-"
