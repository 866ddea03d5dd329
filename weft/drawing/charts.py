"""Curves and bars as SVG text. Axes have round ticks, curves direct colours and a legend; what is no finite
number leaves a gap. A chart has one axis each way: series of different kinds are different charts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from weft.drawing.style import axis_labels, colour, escape, number_text, picture, shorten, text, text_width, ticks

WIDTH, HEIGHT = 640, 320
RIGHT, TOP, BOTTOM = 18, 44, 46
MAX_POINTS = 2000  # of a curve: more are thinned out, extremes kept
MARKED = 40  # points up to which each is marked

Point = tuple[float, float]


def line_chart(
    series: Mapping[str, Sequence[Point]],
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> str:
    """Curves through (x, y) points as an SVG picture; with `log` the y axis is logarithmic, and what is not positive is
    left out.

    >>> from weft.drawing.charts import line_chart
    >>> line_chart({"loss": [(0, 1.0), (1, 0.5)]}, "training", "epoch", "loss").startswith("<svg")
    True
    """
    runs = {name: _runs(points, log) for name, points in series.items()}
    every = [point for parts in runs.values() for points in parts for point in points]
    legend, legend_height = _legend(list(series), width)
    top = TOP + legend_height
    out = [text(16, 22, title, size=14, bold=True), *legend]
    if not every:
        out.append(text(width / 2, (top + height) / 2, "no finite values", "middle", "soft"))
        return picture(width, height, title, out)
    x_low, x_high = _range([x for x, _ in every], False)
    y_low, y_high, y_ticks = _vertical_axis([y for _, y in every], log, height - top - BOTTOM)
    left = 22 + max(text_width(label, 11) for _, label in y_ticks) + (18 if y_label else 0)
    across = (width - left - RIGHT) / (x_high - x_low)
    up = (height - top - BOTTOM) / (y_high - y_low)
    ground = height - BOTTOM

    def at(point: Point) -> Point:
        y = math.log10(point[1]) if log else point[1]
        return left + (point[0] - x_low) * across, ground - (y - y_low) * up

    for value, label in y_ticks:
        y = ground - (value - y_low) * up
        out.append(f'<line x1="{left:.1f}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour("line")}"/>')
        out.append(text(left - 8, y + 4, label, "end", "soft", 11))
    x_ticks = _integer_ticks(ticks(x_low, x_high, max(int((width - left) // 70), 2)), every)
    for value, label in zip(x_ticks, axis_labels(x_ticks), strict=True):
        x = left + (value - x_low) * across
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ground}" y2="{ground + 4}" stroke="{colour("soft")}"/>')
        out.append(text(x, ground + 18, label, "middle", "soft", 11))
    out.append(f'<line x1="{left:.1f}" x2="{width - RIGHT}" y1="{ground}" y2="{ground}" stroke="{colour("soft")}"/>')
    out.append(text((left + width - RIGHT) / 2, height - 10, x_label, "middle", "soft"))
    if y_label:
        middle = (top + ground) / 2
        words = escape(y_label + (" (log)" if log else ""))
        out.append(
            f'<text x="16" y="{middle:.1f}" text-anchor="middle" fill="{colour("soft")}" '
            f'transform="rotate(-90 16 {middle:.1f})">{words}</text>'
        )
    for number, (name, parts) in enumerate(runs.items()):
        is_marked = sum(map(len, parts)) <= MARKED
        for points in parts:
            out += _curve(name, points, [at(point) for point in points], number, is_marked)
    return picture(width, height, title, out)


def _is_shown(point: Point, log: bool) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1]) and (not log or point[1] > 0)


def _runs(points: Sequence[Point], log: bool) -> list[list[Point]]:
    """The points without those that cannot be shown, cut where these were, and thinned out where there are many."""
    size = max(-(-2 * len(points) // MAX_POINTS), 1)
    groups = itertools.groupby(points, key=lambda point: _is_shown(point, log))
    return [_thin_out(list(group), size) for shown, group in groups if shown]


def _thin_out(points: list[Point], size: int) -> list[Point]:
    """The lowest and the highest of every `size` points, in order."""
    if size <= 2:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    pairs = [sorted({min(group, key=lambda p: p[1]), max(group, key=lambda p: p[1])}) for group in groups]
    return [point for pair in pairs for point in pair]


def _range(values: Sequence[float], padded: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        around = abs(low) * 0.1 or 1.0
        return low - around, high + around
    spare = (high - low) * 0.05 if padded else 0.0
    return low - spare, high + spare


def _vertical_axis(values: Sequence[float], log: bool, space: float) -> tuple[float, float, list[tuple[float, str]]]:
    """Lowest and highest position on the axis, and (position, label) of each tick."""
    most = max(int(space // 36), 2)
    if not log:
        low, high = _range(values, True)
        if min(values) >= 0 > low:
            low = 0.0  # no space below zero where nothing is below it
        marks = ticks(low, high, most)
        return low, high, list(zip(marks, axis_labels(marks), strict=True))
    low, high = _range([math.log10(value) for value in values], True)
    decades = [float(power) for power in range(math.ceil(low), math.floor(high) + 1)]
    if len(decades) >= 3:
        step = -(-len(decades) // most)
        return low, high, [(power, number_text(10.0**power)) for power in decades[::step]]
    steps = [(1, 2, 5), (1, 2, 3, 5, 7), (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)]
    marks = []
    for factors in steps:
        powers = range(math.floor(low), math.ceil(high) + 1)
        marks = [factor * 10.0**power for power in powers for factor in factors]
        marks = [value for value in marks if low <= math.log10(value) <= high]
        if len(marks) >= 3:
            break
    if len(marks) < 2:  # less than a tenth of a decade: as on a linear axis
        marks = ticks(10**low, 10**high, most)
    return low, high, [(math.log10(value), number_text(value)) for value in marks if value > 0]


def _integer_ticks(values: list[float], points: Sequence[Point]) -> list[float]:
    """Ticks at whole numbers where all points are at whole numbers (epochs, steps)."""
    if all(float(x).is_integer() for x, _ in points):
        return [value for value in values if float(value).is_integer()] or values
    return values


def _legend(names: list[str], width: int) -> tuple[list[str], float]:
    """The names of the curves under the title, in as many rows as they need; none for a single curve."""
    if len(names) < 2:
        return [], 0
    out, x, y = [], 16.0, 42.0
    for number, name in enumerate(names):
        label = shorten(name, width - 60)
        wide = 24 + text_width(label) + 16
        if x + wide > width and x > 16:
            x, y = 16.0, y + 18
        out.append(
            f'<line x1="{x:.1f}" x2="{x + 16:.1f}" y1="{y - 4}" y2="{y - 4}" stroke="{colour(number)}" '
            f'stroke-width="2.5"{_dashes(number)}/>'
        )
        out.append(text(x + 22, y, label, fill="soft"))
        x += wide
    return out, y - 42 + 16


def _dashes(number: int) -> str:
    """Beyond the colours, curves are dashed."""
    return ' stroke-dasharray="5 3"' if number >= 8 else ""


def _curve(name: str, points: list[Point], positions: list[Point], number: int, is_marked: bool) -> list[str]:
    about = f"{name}: last {number_text(points[-1][1])}, lowest {number_text(min(y for _, y in points))}"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
    out = [
        f'<polyline points="{path}" fill="none" stroke="{colour(number)}" stroke-width="1.8" '
        f'stroke-linejoin="round"{_dashes(number)}><title>{escape(about)}</title></polyline>'
    ]
    if is_marked or len(points) == 1:
        for (x, y), (given_x, given_y) in zip(positions, points, strict=True):
            words = escape(f"{name} at {number_text(given_x)}: {given_y:.6g}")
            out.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour(number)}"><title>{words}</title></circle>'
            )
    return out


def bar_chart(rows: Sequence[tuple[str, Sequence[float]]], parts: Sequence[str], title: str, unit: str = "") -> str:
    """Horizontal bars, one for each (name, values); the values are the `parts` of one bar. `unit` follows the sum at
    the end of each bar."""
    width, high = WIDTH, 22
    legend, legend_height = _legend(list(parts), width)
    names = [shorten(name, 200) for name, _ in rows]
    totals = [sum(values) for _, values in rows]
    labels = [f"{number_text(float(f'{total:.3g}'))}{unit}" for total in totals]
    left = 24 + max([text_width(name) for name in names], default=0)
    most = max(totals, default=0) or 1.0
    space = width - left - 20 - max([text_width(label) for label in labels], default=0)
    top = TOP + legend_height - 4
    out = [text(16, 22, title, size=14, bold=True), *legend]
    for row, (name, label, (_, values)) in enumerate(zip(names, labels, rows, strict=True)):
        y = top + row * high
        out.append(text(left - 8, y + 13, name, "end"))
        x = left
        for number, value in enumerate(values):
            wide = space * value / most
            if wide > 0:
                about = escape(f"{rows[row][0]}, {parts[number]}: {value:.4g}{unit}")
                out.append(
                    f'<rect x="{x:.1f}" y="{y + 2}" width="{max(wide, 0.5):.1f}" height="{high - 8}" rx="1.5" '
                    f'fill="{colour(number)}"><title>{about}</title></rect>'
                )
            x += wide
        out.append(text(x + 6, y + 13, label, fill="soft", size=11))
    return picture(width, top + len(rows) * high + 12, title, out)
