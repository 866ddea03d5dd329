"""Monitor: the metric that a callback watches, and whether larger or smaller is better."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.base.errors import RangeError, problem
from weft.train.metrics import BY_NAME

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

Metrics = Mapping[str, Any]


class Monitor:
    """The value that a callback looks at, and which of two values is better: as `mode` says or, for "auto", as the
    metric of that name does by its `higher_is_better`. Names that a custom step chose count by their words."""

    def __init__(self, who: str, name: str, mode: str):
        if mode not in ("min", "max", "auto"):
            raise problem(RangeError, who, f"mode {mode!r}", "'min', 'max' or 'auto'")
        self.who, self.name = who, name
        self.maximise = None if mode == "auto" else mode == "max"

    def begin(self, trainer: Trainer) -> None:
        """Look the direction up. A metric that has none is refused before the run."""
        if self.maximise is None:
            self.maximise = _is_maximised(self.name, trainer)
        name = self.name.removeprefix("val_")
        if self.maximise is None and any(metric.name == name for metric in trainer.meters.metrics):
            raise self._unknown_direction()

    def _unknown_direction(self) -> Exception:
        given = f"monitor {self.name!r}, of which it is not known whether higher values are better"
        fix = 'pass mode="min" or mode="max", or set higher_is_better in the class of the metric'
        return problem(RangeError, self.who, given, "mode=, or a metric with higher_is_better", fix)

    def read(self, trainer: Trainer, metrics: Metrics) -> float | None:
        """The value of an epoch; None where it has none because nothing was validated."""
        value = metrics.get(self.name)
        if value is None:
            if self.name.startswith("val_") and not any(name.startswith("val_") for name in metrics):
                return None
            near = difflib.get_close_matches(self.name, metrics, 1)
            fix = (
                f"the nearest name is {near[0]!r}"
                if near
                else "choose one of them, or add it to metrics= of the Trainer"
            )
            raise problem(RangeError, self.who, f"monitor {self.name!r}", f"one of {', '.join(metrics)}", fix)
        if not isinstance(value, (int, float)):
            given = f"monitor {self.name!r}, which is not one number"
            raise problem(RangeError, self.who, given, "a metric that is a number")
        self.begin(trainer)
        if self.maximise is None:
            raise self._unknown_direction()
        return float(value)

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is better than another by more than a difference; None is worse than every number."""
        if than is None:
            than = -math.inf if self.maximise else math.inf
        return value - by > than if self.maximise else value + by < than


def _is_maximised(monitor: str, trainer: Trainer) -> bool | None:
    name = monitor.removeprefix("val_")
    known = [metric.higher_is_better for metric in trainer.meters.metrics if metric.name == name]
    if known and known[0] is not None:
        return known[0]
    words = re.findall(r"[a-z0-9]+", name.lower())
    if {"loss", "error", "seconds"} & set(words):
        return False
    last = words[-1] if words else ""
    if last == "acc" or re.fullmatch(r"top\d+", last):
        return True
    return BY_NAME[last].higher_is_better if last in BY_NAME else None


def warn_without_validation(who: str, monitor: str, trainer: Trainer) -> None:
    """Say that a callback has nothing to look at in a run that never validates."""
    if monitor.startswith("val_") and not trainer.planned.get("validates", True):
        text = (
            f"{who} does nothing: it monitors {monitor!r}, and this run has no validation. Fix: pass validation= to fit"
        )
        other = monitor.removeprefix("val_")
        warnings.warn(f"{text}, or monitor={other!r}.", UserWarning, stacklevel=2)
