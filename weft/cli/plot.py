"""`weft plot RUN`: the curves of a run in the terminal, as SVG files, and its report."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from rich.console import Console
from rich.text import Text

from weft import report
from weft.base import files
from weft.base.errors import ConfigError, RangeError
from weft.cli.arguments import check_output_file, check_output_folder
from weft.drawing.style import number_text
from weft.report.files import Run, Series, read_run
from weft.report.page import charts, epoch_series, group_series

ROWS, COLUMNS = 10, 64  # of a curve in the terminal
BARS = " ▁▂▃▄▅▆▇█"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("folder", metavar="run", help="the folder of a run")
    parser.add_argument("--svg", metavar="FOLDER", help="write each curve as an SVG file into this folder")
    parser.add_argument("--no-report", action="store_true", help="leave report.html as it is")


def run(options: argparse.Namespace, console: Console) -> int:
    """Print the curves, write the files."""
    check_output_folder("--svg", options.svg)
    try:
        found = read_run(options.folder)
    except RangeError as error:  # an argument that is refused
        raise ConfigError(str(error)) from None
    if not options.no_report:
        check_output_file("report", str(found.path / "report.html"))
    print_curves(found, console)
    if options.svg is not None:
        folder = Path(options.svg)
        folder.mkdir(parents=True, exist_ok=True)
        for number, chart in enumerate(charts(found)):
            title = chart.split("<title>")[1].split("</title>")[0]
            name = "".join(one if one.isalnum() else "-" for one in title.lower())
            files.write("--svg", folder / f"{number:02}-{name}.svg", chart)
        console.print(f"curves: {folder}", markup=False, soft_wrap=True)
    if not options.no_report:
        console.print(f"report: {report.write(options.folder)}", markup=False, soft_wrap=True)
    return 0


def print_curves(found: Run, console: Console) -> None:
    """All quantities of the epochs, training and validation below each other on one scale."""
    series = epoch_series(found)
    if not series:
        console.print("There is no row in metrics.csv yet.")
        return
    width = min(COLUMNS, max(console.width - 24, 16))
    for name, group in group_series(series).items():
        console.print(Text(name.replace("_", " "), style="bold"))
        values = [y for points in group.values() for _, y in points if math.isfinite(y)]
        low, high = (min(values), max(values)) if values else (0.0, 0.0)
        for label, points in group.items():
            line = spark([y for _, y in points], low, high, width)
            last = points[-1][1]
            console.print(Text(f"  {'validation' if label.startswith('val_') else 'training':<10} {line}  {last:.5g}"))
        console.print(Text(f"  {_range(group)}, {number_text(low)} to {number_text(high)}", style="dim"))


def _range(group: Series) -> str:
    epochs = [x for points in group.values() for x, _ in points]
    return f"epochs {min(epochs):g} to {max(epochs):g}"


def spark(values: list[float], low: float, high: float, width: int) -> str:
    """A line of bars, one for each value or for the mean of some; what is not finite is a question mark."""
    groups = max(-(-len(values) // width), 1)
    means = [values[k : k + groups] for k in range(0, len(values), groups)]
    out = []
    for group in means:
        finite = [value for value in group if math.isfinite(value)]
        if not finite:
            out.append("?")
            continue
        mean = sum(finite) / len(finite)
        fraction = (mean - low) / (high - low) if high > low else 0.5
        out.append(BARS[1 + min(int(fraction * 8), 7)])
    return "".join(out)
