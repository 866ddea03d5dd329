"""Meters: what a run measures, in device buffers, and the one download that brings all of it to the host.

Buffers: the counts of steps (int64: steps, the first bad one, skipped ones), the sums of the mean loss, and those of
the metrics. A step writes them in place; `read` packs their values into one vector on the device.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import weft
from weft.base.errors import DTypeError, GraphError, RangeError, problem
from weft.core.tensor import Tensor
from weft.optim.buckets import outside_of_traces
from weft.train.metric import Mean, Metric

# What a Trainer itself calls its values; "val_" begins the names of those of a validation.
RESERVED = ("epoch", "step", "lr", "seconds", "wait_seconds", "skipped", "batch_loss")


class Readings(dict):
    """Values by name; `first_bad` is the number of the first step whose loss was not finite (0: none), `skipped` how
    many steps were left out since the run began, for that or by the loss scaler, `last` the loss of the last step."""

    first_bad = 0
    skipped = 0
    last = float("nan")


class Meters:
    """The mean loss, metrics, further values that a custom step returned, and counts of steps."""

    def __init__(self, metrics: Sequence[Metric], device: Any):
        self.metrics, self.device = list(metrics), device
        names = ["loss", *[metric.name for metric in self.metrics]]
        for twice in [name for number, name in enumerate(names) if name in names[:number]][:1]:
            fix = f"name one of them: {type(self.metrics[names.index(twice, 1) - 1]).__name__}(name=...)"
            raise problem(RangeError, "Trainer", f"two values named {twice!r}", "metrics of different names", fix)
        for metric in self.metrics:
            check_name(metric.name, "a metric", f"{type(metric).__name__}(name=...)")
        self.loss = Mean("loss")
        self.means: dict[str, Mean] = {}  # of what a custom step returned beside the loss
        with outside_of_traces():
            self.counts = weft.zeros(3, dtype=weft.int64, device=device)  # steps, the first bad one, skipped ones
            self.counts.name = "counts of steps"
            weft.eval(self.counts)
        self._readers: dict[tuple[str, ...], _Reader] = {}
        self._reset: tuple[list[int], Any] = [], None

    # ---- in the compiled step -------------------------------------------------------------------------------------

    def has_stopped(self) -> Tensor:
        """Whether there was a loss that is not finite: a bool on the device."""
        return self.counts[1] != 0

    def note(
        self, loss: Tensor, good: Tensor | None, rows: int, stops: bool = True, overflowed: Tensor | None = None
    ) -> None:
        """Take the loss of a step into account; where `good` is False it counts as skipped, and, where it `stops`, as
        the first bad one. Where `overflowed`, the loss scaler has left the step out: it counts as skipped, too."""
        value, weight = loss.detach(), float(rows)
        steps, first, skipped = self.counts[0] + 1, self.counts[1], self.counts[2]
        left_out = [one for one in (None if good is None else ~good, overflowed) if one is not None]
        if left_out:
            skipped = skipped + functools.reduce(operator.or_, left_out).long()
        if good is None:
            self.loss.add(value, weight)
        else:
            first = weft.where((first == 0) & ~good, steps, first) if stops else first
            self.loss.add(weft.where(good, value, 0.0), weft.where(good, weight, 0.0), last=value)
        self.counts.copy_(weft.stack([steps, first, skipped]))

    def note_values(self, values: Mapping[str, Any], rows: int) -> None:
        """Take further numbers of a step into account: tensors, of which the mean counts, or Python's."""
        for name, value in values.items():
            check_name(name, "a step that returned a value", "another name in the dict")
            if any(metric.name == name for metric in self.metrics):
                given, expected = f"a step that returned {name!r}, which is a metric", "another name"
                raise problem(RangeError, "Trainer", given, expected)
            self.means.setdefault(name, Mean(name)).add(self._number(name, value), float(rows))

    def _number(self, name: str, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.dtype.kind != "c":
            return (value.detach() if value.dtype.kind == "f" else value.float()).mean()
        if isinstance(value, int | float | np.number | np.bool_):
            return weft.full((), value, dtype=weft.float32, device=self.device)  # type: ignore[arg-type]
        given = f"a step that returned {name!r} of type {type(value).__name__}"
        raise problem(GraphError, "Trainer", given, "a tensor or a number", "leave it out of the dict")

    def note_predictions(self, prediction: Any, target: Any) -> None:
        """Let the metrics see the predictions of a batch, if there are any."""
        if prediction is not None and target is not None:
            given = prediction.detach() if isinstance(prediction, Tensor) else prediction
            for metric in self.metrics:
                if type(metric).update.__module__.startswith("weft.train."):  # Weft's own compare tensors
                    _check_tensors(metric.name, prediction=given, target=target)
                metric.update(given, target)
                if not metric.all_buffers():  # what it keeps elsewhere is neither read, nor reset, nor saved
                    fix = 'keep sums in self.buffer("sum", (), weft.float32, prediction.device)'
                    raise problem(
                        GraphError, f"metric {metric.name}", "an update without a buffer", "one at least", fix
                    )

    # ---- between steps --------------------------------------------------------------------------------------------

    def sources(self) -> list[Metric]:
        """Everything that has a value, the loss first."""
        return [metric for metric in (self.loss, *self.means.values(), *self.metrics) if metric.all_buffers()]

    def read(self) -> Readings:
        """The present values, by one download."""
        if not self.loss.buffers:
            raise problem(GraphError, "Trainer.read", "a trainer before its first step", "at least one step")
        names = tuple(metric.name for metric in self.sources())
        if names not in self._readers:
            self._readers[names] = _Reader(self)
        return self._readers[names].read()

    def reset(self) -> None:
        """Forget the sums, by one plan; the counts of steps stay."""
        buffers = [value for metric in self.sources() for value in metric.all_buffers().values()]
        if self._reset[0] != list(map(id, buffers)):
            self._reset = list(map(id, buffers)), weft.compile(lambda: _zero(buffers))
        if buffers:
            self._reset[1]()

    def forget_bad(self) -> None:
        """As if no loss had been bad."""
        with weft.no_grad():
            self.counts[1] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "loss": self.loss.state_dict(),
            "means": {name: mean.state_dict() for name, mean in self.means.items()},
            "metrics": [metric.state_dict() for metric in self.metrics],
            "counts": weft.snapshot(self.counts).clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss.load_state_dict(state["loss"], self.device)
        for name, saved in state["means"].items():
            self.means.setdefault(name, Mean(name)).load_state_dict(saved, self.device)
        for metric, saved in zip(self.metrics, state["metrics"], strict=True):
            metric.load_state_dict(saved, self.device)
        with weft.no_grad():
            self.counts.copy_(weft.as_tensor(state["counts"], device=self.device))


def check_name(name: str, what: str, fix: str) -> None:
    """Refuse the name of a value that would replace one of the Trainer's own."""
    if name in RESERVED or str(name).startswith("val_"):
        expected = f"another than {', '.join(RESERVED)}, and none that begins with 'val_'"
        raise problem(RangeError, "Trainer", f"{what} named {name!r}", expected, fix)


def _compute(metric: Metric) -> Tensor:
    value = metric.compute()
    if not isinstance(value, Tensor):
        given = f"a value of type {type(value).__name__} from compute()"
        fix = "compute it from self.buffers, without item() and float()"
        raise problem(GraphError, f"metric {metric.name}", given, "a tensor", fix)
    return value


def _check_tensors(who: str, **values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, Tensor):
            fix = "pass step=, which returns the prediction and target that count, or a Metric of your own"
            raise problem(DTypeError, f"metric {who}", f"a {name} of type {type(value).__name__}", "a tensor", fix)


def _zero(buffers: Sequence[Tensor]) -> None:
    with weft.no_grad():
        for buffer in buffers:
            buffer.zero_()


class _Reader:
    """Packs all values into one vector on the device, downloads it and takes it apart."""

    def __init__(self, meters: Meters):
        self.meters, self.present = meters, meters.sources()
        self.shapes: list[tuple[str, tuple[int, ...]]] = []
        self.pack = weft.compile(self._pack)

    def _pack(self) -> Tensor:
        """Counts, the last loss, and the values of all metrics, the mean loss first."""
        with weft.no_grad():
            values = [_compute(metric) for metric in self.present]
            self.shapes = [(metric.name, value.shape) for metric, value in zip(self.present, values, strict=True)]
            parts = [self.meters.counts, self.meters.loss.last(), *values]
            return weft.cat([part.double().reshape(-1) for part in parts])

    def read(self) -> Readings:
        flat = self.pack().tolist()
        found, at = Readings(), 4
        _, first_bad, skipped, found.last = flat[:at]
        found.first_bad, found.skipped = int(first_bad), int(skipped)
        for name, shape in self.shapes:
            size = math.prod(shape)
            part = flat[at : at + size]
            found[name] = _nest(part, shape) if shape else part[0]
            at += size
        return found


def _nest(flat: list[float], shape: tuple[int, ...]) -> list[Any]:
    if len(shape) == 1:
        return flat
    size = math.prod(shape[1:])
    return [_nest(flat[k * size : (k + 1) * size], shape[1:]) for k in range(shape[0])]


class BatchMetrics(Mapping[str, Any]):
    """The metrics of a batch, read from the device when they are first looked at."""

    def __init__(self, trainer: Any):
        self._trainer = trainer
        self._values: dict[str, Any] | None = None

    def _read(self) -> dict[str, Any]:
        if self._values is None:
            found = self._trainer.read()
            self._values = {**found, "batch_loss": found.last, "lr": self._trainer.learning_rate}
        return self._values

    def __getitem__(self, name: str) -> Any:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
