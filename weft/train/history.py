"""History: what a run measured, epoch by epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.base import files
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point

__all__ = ["History"]


@entry_point
class History:
    """The metrics of each epoch. `history["loss"]` is the list of one of them, `history.rows` has the dicts.

    >>> history = History()
    >>> history.add({"epoch": 0, "loss": 2.0})
    >>> history.add({"epoch": 1, "loss": 1.0, "val_loss": 1.5})
    >>> history["loss"], history["val_loss"], history.last["loss"]
    ([2.0, 1.0], [1.5], 1.0)
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row of an epoch. Epochs come in order: rows of the same one, when a run is resumed in the middle of
        it, and of later ones are replaced."""
        while self.rows and self.rows[-1]["epoch"] >= row["epoch"]:
            self.rows.pop()
        self.rows.append(dict(row))

    @property
    def last(self) -> dict[str, Any]:
        """The row of the last epoch."""
        return self.rows[-1] if self.rows else {}

    def names(self) -> list[str]:
        """The names of everything that was measured, in order."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, name: str) -> list[Any]:
        if name not in self.names():
            names = self.names()
            expected = f"one of {', '.join(names)}" if names else "an epoch at least, before anything is asked for"
            raise problem(RangeError, "History", f"{name!r}", expected)
        return [row[name] for row in self.rows if name in row]

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.last.items() if name not in ("seconds", "wait_seconds")}
        values = ", ".join(f"{name}={value:.4g}" for name, value in shown.items() if isinstance(value, float))
        count = f"{len(self.rows)} epoch{'s' * (len(self.rows) != 1)}"
        return f"History({count}{': ' + values if values else ''})"

    def series(self) -> dict[str, list[tuple[float, float]]]:
        """(epoch, value) of everything that is a number, by name."""
        left_out = {"epoch", "seconds", "step"}
        return {
            name: [(row["epoch"], row[name]) for row in self.rows if isinstance(row.get(name), (int, float))]
            for name in self.names()
            if name not in left_out and any(isinstance(row.get(name), (int, float)) for row in self.rows)
        }

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw the curves into an SVG file: one panel for the losses and one for each metric, training and validation
        together. The axis counts epochs from 1."""
        from weft.train.charts import panels

        target = Path(path)
        series = {name: [(epoch + 1, y) for epoch, y in points] for name, points in self.series().items()}
        files.write("History.plot", target, panels(series))
        return target

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rows = [dict(row) for row in state["rows"]]
