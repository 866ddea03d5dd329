"""Callbacks: what happens beside the steps of a run. Loggers and the progress bar are callbacks, too.

The rules of EarlyStopping, ModelCheckpoint and ReduceLROnPlateau are those of Keras.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.errors import RangeError, problem
from weft.optim.averaging import ExponentialMovingAverage

if TYPE_CHECKING:
    from weft.train.trainer import Trainer

Metrics = Mapping[str, Any]


class Callback:
    """Base class: override what is of interest. `metrics` has values by name; those of a batch are read from the device
    when they are looked at, and not before.

    `every` is the number of steps from one call of `on_batch_begin` and `on_batch_end` to the next. A callback that
    overrides neither costs nothing in a step.

    >>> class Printer(weft.train.Callback):
    ...     every = 100
    ...
    ...     def on_batch_end(self, trainer, batch, metrics):
    ...         print(trainer.step_count, metrics["loss"])
    """

    every = 1

    def on_train_begin(self, trainer: Trainer) -> None:
        """Before the first step of `fit`."""

    def on_train_end(self, trainer: Trainer) -> None:
        """After the last step of `fit`, also when it was stopped; not after an error."""

    def on_train_abort(self, trainer: Trainer) -> None:
        """When an error or an interrupt ends `fit`: give back what is held."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        """Before the first step of an epoch."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        """After the last step of an epoch and the validation: `loss`, metrics, `val_...`, `lr`, `seconds`."""

    def on_batch_begin(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        """Before a step."""

    def on_batch_end(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        """After a step: `loss` is the mean since the epoch began, `batch_loss` that of the last step."""

    def in_step(self, trainer: Trainer) -> None:
        """Tensor code that becomes a part of the compiled step, after the update."""

    def evaluating(self, trainer: Trainer) -> Any:
        """A context manager in which the trainer evaluates, or None."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on with a run."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""


def calls_on_batches(callback: Callback, name: str) -> bool:
    """Whether a callback overrides `on_batch_begin` or `on_batch_end`."""
    return getattr(type(callback), name) is not getattr(Callback, name)


def is_maximised(monitor: str, mode: str) -> bool:
    """Whether more is better: as `mode` says, or for "auto" as the name does (as in Keras)."""
    if mode not in ("min", "max", "auto"):
        raise problem(RangeError, "callback", f"mode {mode!r}", "'min', 'max' or 'auto'")
    if mode != "auto":
        return mode == "max"
    known = ("acc", "accuracy", "auc", "f1", "precision", "recall", "iou", "r2")
    return any(monitor.removeprefix("val_").startswith(word) for word in known) or monitor.startswith("top")


def monitored(who: str, monitor: str, metrics: Metrics) -> float | None:
    """The value that a callback looks at; None where this epoch has none because nothing was validated."""
    value = metrics.get(monitor)
    if value is None:
        if monitor.startswith("val_") and not any(name.startswith("val_") for name in metrics):
            return None
        near = difflib.get_close_matches(monitor, metrics, 1)
        fix = f"the nearest name is {near[0]!r}" if near else "choose one of them, or add it to metrics= of the Trainer"
        raise problem(RangeError, who, f"monitor {monitor!r}", f"one of {', '.join(metrics)}", fix)
    if not isinstance(value, (int, float)):
        raise problem(RangeError, who, f"monitor {monitor!r}, which is not one number", "a metric that is a number")
    return float(value)


def warn_without_validation(who: str, monitor: str, trainer: Trainer) -> None:
    """Say that a callback has nothing to look at in a run that never validates."""
    if monitor.startswith("val_") and not trainer.planned.get("validates", True):
        text = (
            f"{who} does nothing: it monitors {monitor!r}, and this run has no validation. Fix: pass validation= to fit"
        )
        other = monitor.removeprefix("val_")
        warnings.warn(f"{text}, or monitor={other!r}.", UserWarning, stacklevel=2)


class EarlyStopping(Callback):
    """Stop when `monitor` has not become better for `patience` epochs: better is below the best value by more than
    `min_delta` (above it for mode "max"). `baseline` is a value to be better than; epochs before `start_from_epoch` do
    not count. `restore_best` gives the model the weights of the best epoch."""

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 10,
        min_delta: float = 0.0,
        mode: str = "auto",
        restore_best: bool = False,
        baseline: float | None = None,
        start_from_epoch: int = 0,
    ):
        self.monitor, self.patience, self.min_delta = monitor, patience, abs(min_delta)
        self.maximise = is_maximised(monitor, mode)
        self.restore_best, self.baseline, self.start_from_epoch = restore_best, baseline, start_from_epoch
        self._reset()

    def _reset(self) -> None:
        self.wait = 0
        self.best = -math.inf if self.maximise else math.inf
        self.best_epoch: int | None = None
        self.stopped_epoch: int | None = None
        self.best_weights: dict[str, Any] | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        warn_without_validation("EarlyStopping", self.monitor, trainer)
        if not trainer.is_resumed:
            self._reset()
        elif self.stopped_epoch is not None and self.wait >= self.patience:
            if trainer.is_loaded:  # the run was over already
                self._stop(trainer)
            else:  # fit was called once more
                self.wait, self.stopped_epoch = 0, None

    def _stop(self, trainer: Trainer) -> None:
        trainer.stop(f"{self.monitor} was not better than {self.best:.6g} for {self.patience} epochs")

    def _is_better(self, value: float, than: float) -> bool:
        return value - self.min_delta > than if self.maximise else value + self.min_delta < than

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        value = monitored("EarlyStopping", self.monitor, metrics)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best and self.best_weights is None:
            self._take(trainer, epoch)  # of the first epoch, if none is better
        self.wait += 1
        if self._is_better(value, self.best):
            self.best, self.best_epoch = value, epoch
            if self.restore_best:
                self._take(trainer, epoch)
            if self.baseline is None or self._is_better(value, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            self._stop(trainer)

    def _take(self, trainer: Trainer, epoch: int) -> None:
        """Keep the weights that `monitor` was measured with: for a validation those that were validated, which may be
        averages."""
        self.best_epoch = epoch
        with trainer._evaluating() if self.monitor.startswith("val_") else contextlib.nullcontext():
            found = weft.snapshot(trainer.model.state_dict())
            self.best_weights = {name: value.clone() for name, value in found.items()}
            weft.eval(*self.best_weights.values())

    def on_train_end(self, trainer: Trainer) -> None:
        if self.restore_best and self.best_weights is not None:
            trainer.model.load_state_dict(self.best_weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "wait": self.wait, "best": self.best, "best_epoch": self.best_epoch, "best_weights": self.best_weights,
            "stopped_epoch": self.stopped_epoch,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.wait, self.best, self.best_epoch = state["wait"], state["best"], state["best_epoch"]
        self.best_weights, self.stopped_epoch = state["best_weights"], state.get("stopped_epoch")


class ModelCheckpoint(Callback):
    """Save the weights after an epoch, whenever `monitor` is better than ever (`save_best_only`), or always.

    `path` may contain `{epoch}` and names of metrics, with formats: `"best-{epoch:02d}-{val_loss:.3f}.safetensors"`.
    With `save_weights_only=False` the whole state of the trainer is saved. Files are written under another name first.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        monitor: str = "val_loss",
        save_best_only: bool = True,
        save_weights_only: bool = True,
        mode: str = "auto",
        initial_value_threshold: float | None = None,
    ):
        self.path, self.monitor = os.fspath(path), monitor
        self.save_best_only, self.save_weights_only = save_best_only, save_weights_only
        self.maximise = is_maximised(monitor, mode)
        worst = -math.inf if self.maximise else math.inf
        self.best = worst if initial_value_threshold is None else initial_value_threshold
        self.saved: list[Path] = []

    def on_train_begin(self, trainer: Trainer) -> None:
        if self.save_best_only:
            warn_without_validation("ModelCheckpoint", self.monitor, trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        if self.save_best_only:
            value = monitored("ModelCheckpoint", self.monitor, metrics)
            if value is None or not (value > self.best if self.maximise else value < self.best):
                return
            self.best = value
        try:
            path = Path(self.path.format(**{**metrics, "epoch": epoch}))
        except KeyError as error:
            names = ", ".join(["epoch", *metrics])
            raise problem(
                RangeError, "ModelCheckpoint", f"a path with {{{error.args[0]}}}", f"one of {names}"
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self.save_weights_only:
            weft.save(trainer.state_dict(), path)
        else:  # the weights that `monitor` was measured with: those that were validated may be averages
            with trainer._evaluating() if self.monitor.startswith("val_") else contextlib.nullcontext():
                weft.save(trainer.model.state_dict(), path)
        self.saved.append(path)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best = state["best"]


class ReduceLROnPlateau(Callback):
    """Multiply the learning rate by `factor` when `monitor` has not become better by `min_delta` for `patience` epochs;
    then wait `cooldown` epochs. (The scheduler of the same name, `weft.optim.lr_scheduler.ReduceLROnPlateau`, has
    PyTorch's rules.)"""

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        min_delta: float = 1e-4,
        mode: str = "auto",
        cooldown: int = 0,
        min_lr: float = 0.0,
    ):
        if factor >= 1.0:
            raise problem(RangeError, "ReduceLROnPlateau", f"factor {factor}", "a number below 1")
        self.monitor, self.factor, self.patience, self.min_delta = monitor, factor, patience, min_delta
        self.maximise, self.cooldown, self.min_lr = is_maximised(monitor, mode), cooldown, min_lr
        self._reset()

    def _reset(self) -> None:
        self.best = -math.inf if self.maximise else math.inf
        self.wait = self.cooldown_left = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        warn_without_validation("ReduceLROnPlateau", self.monitor, trainer)
        if not trainer.is_resumed:
            self._reset()

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        value = monitored("ReduceLROnPlateau", self.monitor, metrics)
        if value is None:
            return
        if self.cooldown_left > 0:
            self.cooldown_left -= 1
            self.wait = 0
        is_better = value > self.best + self.min_delta if self.maximise else value < self.best - self.min_delta
        if is_better:
            self.best, self.wait = value, 0
        elif self.cooldown_left <= 0:
            self.wait += 1
            if self.wait >= self.patience and self._reduce(trainer):
                self.cooldown_left, self.wait = self.cooldown, 0

    def _reduce(self, trainer: Trainer) -> bool:
        """Lower the rates that are above the least one; whether there were any."""
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        high = [group for group in groups if group["lr"] > self.min_lr]
        for group in high:
            group["lr"] = max(group["lr"] * self.factor, self.min_lr)
        return bool(high)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "wait": self.wait, "cooldown_left": self.cooldown_left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.wait, self.cooldown_left = state["best"], state["wait"], state["cooldown_left"]


class LearningRateMonitor(Callback):
    """Keep the learning rates of each epoch, or of each `every` steps: `rates` is a list of (step, rate of each group).
    Rates are on the host anyway: nothing is read from the device."""

    def __init__(self, every: int | None = None):
        self.every = every or 1
        self.by_step = every is not None
        self.rates: list[tuple[int, list[float]]] = []

    def _note(self, trainer: Trainer) -> None:
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        self.rates.append((trainer.step_count, rates))

    def on_batch_begin(self, trainer: Trainer, batch: int, metrics: Metrics) -> None:
        if self.by_step:
            self._note(trainer)

    def on_epoch_begin(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        if not self.by_step:
            self._note(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {"rates": [[step, list(rates)] for step, rates in self.rates]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rates = [(step, list(rates)) for step, rates in state["rates"]]


class EMA(Callback):
    """An exponential moving average of the weights, updated in the compiled step. Validation uses it unless
    `validate=False`; `with callback.applied():` does elsewhere; `swap_at_end` leaves it in the model after `fit`."""

    def __init__(self, decay: float = 0.999, validate: bool = True, swap_at_end: bool = False):
        self.decay, self.validate, self.swap_at_end = decay, validate, swap_at_end
        self.average: ExponentialMovingAverage | None = None
        self._saved: Mapping[str, Any] | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        self._follow(trainer.parameters())

    def _follow(self, params: list[Any]) -> None:
        """Average these parameters; those that are averaged already go on, others begin with their values."""
        before = self.average
        if before is None or list(map(id, before.tensors)) != list(map(id, params)):
            made = ExponentialMovingAverage(params, self.decay)
            if before is not None:
                known = dict(zip(map(id, before.tensors), before.averages, strict=True))
                with weft.no_grad():
                    for param, average in zip(params, made.averages, strict=True):
                        if id(param) in known:
                            average.copy_(known[id(param)])
                    made.count.copy_(before.count)
            self.average = made
        assert self.average is not None
        if self._saved is not None:
            self.average.load_state_dict(self._saved)
            self._saved = None

    def in_step(self, trainer: Trainer) -> None:
        if self.average is not None:
            self.average.update()

    def applied(self) -> Any:
        """A context manager in which the model has the average as its weights."""
        if self.average is None:
            raise problem(
                RangeError, "EMA", "a callback whose training has not begun", "one that fit() was called with"
            )
        return self.average.applied()

    def evaluating(self, trainer: Trainer) -> Any:
        if self._saved is not None:
            self._follow(trainer.parameters())
        return self.applied() if self.validate and self.average is not None else None

    def on_train_end(self, trainer: Trainer) -> None:
        if self.swap_at_end and self.average is not None:
            self.average.copy_to()

    def state_dict(self) -> dict[str, Any]:
        if self._saved is not None:  # loaded, and not used yet
            return dict(self._saved)
        return {} if self.average is None else self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = state or None
        if self._saved is not None and self.average is not None:
            self._follow(self.average.tensors)
