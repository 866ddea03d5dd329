"""What all pictures share: colours for light and dark backgrounds, text widths, round numbers for axes."""

from __future__ import annotations

import math
from html import escape as escape

COLOURS = 8  # of series, before they repeat
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
_LIGHT = {
    "ink": "#1f2328", "soft": "#59636e", "line": "#d1d9e0", "paper": "#ffffff", "panel": "#f6f8fa",
    "c0": "#0969da", "c1": "#bc4c00", "c2": "#1a7f37", "c3": "#8250df",
    "c4": "#cf222e", "c5": "#0e7c86", "c6": "#9a6700", "c7": "#bf3989",
}  # fmt: skip
_DARK = {
    "ink": "#e6edf3", "soft": "#9198a1", "line": "#3d444d", "paper": "#0d1117", "panel": "#151b23",
    "c0": "#4493f8", "c1": "#f0883e", "c2": "#3fb950", "c3": "#ab7df8",
    "c4": "#f85149", "c5": "#39c5cf", "c6": "#d29922", "c7": "#db61a2",
}  # fmt: skip


def variables() -> str:
    """CSS that names the colours, for light and for dark."""
    light, dark = (";".join(f"--w-{key}:{value}" for key, value in one.items()) for one in (_LIGHT, _DARK))
    return f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"


def colour(name: str | int) -> str:
    """A colour by name ('ink', 'soft', 'line', 'paper', 'panel') or by the number of a series."""
    return f"var(--w-{f'c{name % COLOURS}' if isinstance(name, int) else name})"


def picture(width: float, height: float, title: str, content: list[str], background: bool = True) -> str:
    """An SVG picture with a title for those who cannot see it."""
    paper = [f'<rect width="{width:.0f}" height="{height:.0f}" fill="{colour("paper")}"/>'] if background else []
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" font-family="{escape(FONT)}" font-size="12">'
    )
    style = f"<style>{variables()}</style>"
    return "\n".join([head, f"<title>{escape(title)}</title>", style, *paper, *content, "</svg>"]) + "\n"


def text(
    x: float, y: float, words: str, anchor: str = "start", fill: str = "ink", size: float = 0, bold: bool = False
) -> str:
    """A line of text."""
    extra = (f' font-size="{size:g}"' if size else "") + (' font-weight="600"' if bold else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour(fill)}"{extra}>{escape(words)}</text>'


# Widths of characters in ems, of a wide font (DejaVu Sans): what fits there fits in others, too.
_NARROW, _WIDE = set("iljtfrI.,:;'|!()[] "), set("mwMW@%=+<>−×·…")


BOLD = 1.12  # how much wider bold letters are


def text_width(words: str, size: float = 12, bold: bool = False) -> float:
    """About how wide a text is."""
    units = sum(0.37 if one in _NARROW else 0.9 if one in _WIDE else 0.7 if one.isupper() else 0.63 for one in words)
    return size * units * (BOLD if bold else 1)


def shorten(words: str, width: float, size: float = 12) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if text_width(words, size) <= width:
        return words
    while words and text_width(words + "…", size) > width:
        words = words[:-1]
    return words + "…"


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that divides `span` into at most `most` parts."""
    raw = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= raw * (1 - 1e-9))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    step = nice_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [
        round(number * step, 12) if abs(number * step) > 1e-9 else number * step for number in range(first, last + 1)
    ]


def axis_labels(values: list[float]) -> list[str]:
    """The numbers of an axis, all in the unit of the largest."""
    most = max(map(abs, values), default=0.0)
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if 10 * unit <= most < 1e15:
            return [f"{value / unit:.6g}{letter}" if value else "0" for value in values]
    return [number_text(value) for value in values]


def number_text(value: float) -> str:
    """A number on an axis: few digits, thousands as k, M."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e15 or size < 1e-4:
        return f"{value:.3g}"
    for letter, unit in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= unit and (size >= 1e4 or unit > 1e3):
            return f"{value / unit:g}{letter}" if len(f"{value / unit:g}") <= 6 else f"{value / unit:.3g}{letter}"
    return f"{value:.6g}"
