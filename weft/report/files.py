"""The files of a run folder, read with care: a run may have been killed while it wrote one."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from weft.base import files
from weft.base.errors import RangeError, problem

KNOWN = ("config.json", "environment.json", "metrics.csv", "steps.csv", "layers.json", "memory.json", "kernels.json")
Series = dict[str, list[tuple[float, float]]]


@dataclass
class Table:
    """A CSV file: columns in order, and rows of text."""

    columns: list[str] = field(default_factory=list)
    rows: list[dict[str, str]] = field(default_factory=list)

    def series(self, along: str, without: tuple[str, ...] = ()) -> Series:
        """(x, y) points of every column of numbers over the column `along`."""
        found: Series = {}
        for name in self.columns:
            if name == along or name in without:
                continue
            points = [(number(row.get(along)), number(row.get(name))) for row in self.rows]
            known = [(x, y) for x, y in points if x is not None and y is not None and math.isfinite(x)]
            if known:
                found[name] = known
        return found

    def last(self, name: str) -> float | None:
        """The last number of a column."""
        values = [value for row in self.rows if (value := number(row.get(name))) is not None]
        return values[-1] if values else None


@dataclass
class Run:
    """A run folder as data; what is not there is empty or None."""

    path: Path
    metrics: Table
    steps: Table
    config: Any = None
    environment: Mapping[str, Any] | None = None
    layers: list[dict[str, Any]] | None = None
    memory: Mapping[str, Any] | None = None
    kernels: Mapping[str, Any] | None = None
    missing: list[Any] = field(default_factory=list)  # what could not be measured, and why
    network: str | None = None
    unreadable: list[str] = field(default_factory=list)


def read_run(folder: str | os.PathLike[str]) -> Run:
    """What a run folder holds; an error where it is none."""
    path = Path(folder)
    if not path.is_dir():
        raise problem(RangeError, "report", f"{str(folder)!r}", "the folder of a run")
    if not any((path / name).exists() for name in KNOWN):
        given = f"the folder {str(folder)!r} without any file of a run"
        raise problem(RangeError, "report", given, f"one with {', '.join(KNOWN[:4])}", "train with Trainer(run=folder)")
    run = Run(path, Table(), Table())
    run.metrics, run.steps = _table(run, "metrics.csv"), _table(run, "steps.csv")
    run.config = _json(run, "config.json", (dict, list))
    run.environment = _json(run, "environment.json", (dict,))
    run.layers = _json(run, "layers.json", (list,))
    run.memory = _json(run, "memory.json", (dict,))
    run.kernels = _json(run, "kernels.json", (dict,))
    run.missing = _json(run, "missing.json", (list,)) or []
    network = path / "network.svg"
    if network.is_file():
        text = network.read_text(encoding="utf-8", errors="replace")
        run.network = text if is_picture(text) else None
        if run.network is None:
            run.unreadable.append(network.name)
    return run


ELEMENTS = {
    "circle", "defs", "g", "line", "marker", "path", "polygon", "polyline", "rect", "style", "svg", "text", "title",
    "tspan",
}  # fmt: skip
FOREIGN = re.compile(r"javascript:|@import|expression\(|url\((?!#)|image|//|\\", re.IGNORECASE)  # in attributes and CSS


def is_picture(text: str) -> bool:
    """Whether a text is an SVG picture of the elements that Weft draws with: no script, nothing from elsewhere."""
    if "<!" in text or "<?" in text or not text.lstrip().startswith("<svg"):
        return False
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return False
    for one in root.iter():
        if not isinstance(one.tag, str) or one.tag.removeprefix("{http://www.w3.org/2000/svg}") not in ELEMENTS:
            return False
        if any(name.lower().startswith(("on", "style")) or "href" in name or "}" in name for name in one.attrib):
            return False
        rules = (one.text or "") if one.tag.endswith("style") else ""
        if any(FOREIGN.search(value) for value in (*one.attrib.values(), rules)):
            return False
    return True


def _table(run: Run, name: str) -> Table:
    path = run.path / name
    if not path.exists():
        return Table()
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            text = file.read().replace("\0", "")
        reader = csv.DictReader(text.splitlines())
        rows = [{str(key): value for key, value in row.items() if isinstance(value, str)} for row in reader]
        return Table([str(name) for name in reader.fieldnames or []], rows)
    except (OSError, csv.Error):
        run.unreadable.append(name)
        return Table()


def _json(run: Run, name: str, kinds: tuple[type, ...]) -> Any:
    path = run.path / name
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, kinds):
        run.unreadable.append(name)
        return None
    return found


def number(text: Any) -> float | None:
    """A cell as a number; NaN and infinities are numbers, too."""
    if isinstance(text, bool) or text is None or text == "":
        return None
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return None


def write(run_folder: str | os.PathLike[str]) -> Path:
    """Write `report.html` into a run folder, from its other files, and return its path."""
    from weft.report.page import page

    run = read_run(run_folder)
    target = run.path / "report.html"
    put(target, page(run))
    return target


def put(path: Path, text: str) -> None:
    """Write a file whole. Names of files that are no text, of which a report may speak, have question marks there."""
    files.write("report", path, text.encode("utf-8", "replace"))
