"""The arena of a plan as SVG text: steps to the right, bytes upwards, one box for each temporary."""

from __future__ import annotations

from collections.abc import Sequence

from weft.base.errors import size_text
from weft.drawing.style import colour, escape, picture, shorten, text, text_width, ticks

WIDTH, HEIGHT = 960, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 20, 48, 46
NAMED = 12  # boxes that get their name written on them
Interval = tuple[str, int, int, int, int]  # label, offset, bytes, first step, last step


def memory_map(intervals: Sequence[Interval], arena_bytes: int, steps: int, title: str) -> str:
    """The picture; the line is what is alive at each step."""
    steps, top = max(steps, 1), max(arena_bytes, 1)
    across, up = (WIDTH - LEFT - RIGHT) / steps, (HEIGHT - TOP - BOTTOM) / top
    ground = HEIGHT - BOTTOM
    out = [text(16, 24, title, size=14, bold=True)]
    power = min((top.bit_length() - 1) // 10, 5)
    unit, name = 1 << 10 * power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    for value in ticks(0, top / unit, 6):
        y = ground - value * unit * up
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour("line")}"/>')
        out.append(text(LEFT - 8, y + 4, f"{value:g} {name}", "end", "soft", 11))
    names = []
    for rank, (label, offset, nbytes, first, last) in enumerate(sorted(intervals, key=lambda one: -one[2])):
        x, wide = LEFT + first * across, (last - first + 1) * across
        y, high = ground - (offset + nbytes) * up, nbytes * up
        about = f"{label}: {size_text(nbytes)} at {offset}, steps {first} to {last}"
        out.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{max(high, 0.5):.1f}" fill="{colour(rank)}" '
            f'fill-opacity="0.55" stroke="{colour("paper")}" stroke-width="0.7"><title>{escape(about)}</title></rect>'
        )
        words = shorten(label, wide - 8, 11)
        if rank < NAMED and high >= 13 and len(words) > 4 and text_width(words, 11) <= wide - 6:
            names.append(text(x + 4, y + high / 2 + 4, words, size=11))
    out += names
    if intervals:
        points = " ".join(
            f"{LEFT + step * across:.1f},{ground - value * up:.1f}"
            for first, end, value in _live_ranges(intervals, steps)
            for step in (first, end)
        )
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour("ink")}" stroke-width="1.2"/>')
    for value in ticks(0, steps, 14):
        if float(value).is_integer():
            out.append(text(LEFT + value * across, ground + 16, f"{value:g}", "middle", "soft", 11))
    out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{ground}" y2="{ground}" stroke="{colour("soft")}"/>')
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "step of the plan", "middle", "soft"))
    return picture(WIDTH, HEIGHT, title, out)


def _live_ranges(intervals: Sequence[Interval], steps: int) -> list[tuple[int, int, int]]:
    """Where what is alive stays the same: (first step, the step after the last, bytes)."""
    changes: dict[int, int] = {0: 0}
    for _, _, nbytes, first, last in intervals:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    found, value = [], 0
    moments = sorted(moment for moment in changes if moment < steps)
    for moment, following in zip(moments, [*moments[1:], steps], strict=True):
        value += changes[moment]
        found.append((moment, following, value))
    return found
