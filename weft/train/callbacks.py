"""Callbacks: what happens beside the steps of a run. Loggers and the progress bar are callbacks, too.

The rules of EarlyStopping, ModelCheckpoint and ReduceLROnPlateau are those of Keras.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft.base.errors import RangeError, problem
from weft.optim.averaging import ExponentialMovingAverage
from weft.train import weights

if TYPE_CHECKING:
    from weft.train.trainer import Trainer
from weft.train.monitor import Metrics, Monitor, warn_without_validation

__all__ = ["EMA", "Callback", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "ReduceLROnPlateau"]


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
        """When an error or an interrupt ends `fit`: release what the callback has taken."""

    def on_epoch_begin(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        """Before the first step of an epoch."""

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        """After the last step of an epoch and the validation: `loss`, metrics, `val_...`, `lr`, `seconds`."""

    def after_epoch(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        """After `on_epoch_end` of all callbacks, for what depends on their states."""

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
        """What it takes to resume a run."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""


def calls_on_batches(callback: Callback, name: str) -> bool:
    """Whether a callback overrides `on_batch_begin` or `on_batch_end`."""
    return getattr(type(callback), name) is not getattr(Callback, name)


class EarlyStopping(Callback):
    """Stop when `monitor` has not become better for `patience` epochs: better is below the best value by more than
    `min_delta` (above it for mode "max"). `baseline` is a value to be better than; epochs before `start_from_epoch` do
    not count. `restore_best` gives the model the weights of the best epoch; a `fit` that is called again continues
    with the last ones."""

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
        self.target = Monitor("EarlyStopping", monitor, mode)
        self.restore_best, self.baseline, self.start_from_epoch = restore_best, baseline, start_from_epoch
        self._reset()

    def _reset(self) -> None:
        self.wait = 0
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.stopped_epoch: int | None = None
        self.best_weights: dict[str, Any] | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        self.target.begin(trainer)
        warn_without_validation("EarlyStopping", self.monitor, trainer)
        if not trainer.is_resumed:
            self._reset()
        elif self.stopped_epoch is not None and self.wait >= self.patience:
            if trainer.is_loaded:  # the run was over already
                self._stop(trainer)
            else:  # fit was called once more
                self.wait, self.stopped_epoch = 0, None

    def _stop(self, trainer: Trainer) -> None:
        what = "had no finite value" if self.best is None else f"was not better than {self.best:.6g}"
        trainer.stop(f"{self.monitor} {what} for {self.patience} epochs")

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        value = self.target.read(trainer, metrics)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best and self.best_weights is None:
            self._take(trainer, epoch)  # of the first epoch, if none is better
        self.wait += 1
        if self.target.is_better(value, self.best, self.min_delta):
            self.best, self.best_epoch = value, epoch
            if self.restore_best:
                self._take(trainer, epoch)
            if self.baseline is None or self.target.is_better(value, self.baseline, self.min_delta):
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
            self.best_weights = weights.copy_of(trainer)

    def on_train_end(self, trainer: Trainer) -> None:
        if self.restore_best and self.best_weights is not None:
            with weights.replace_weights(trainer):
                weights.load(trainer, self.best_weights)

    def state_dict(self) -> dict[str, Any]:
        return {
            "wait": self.wait, "best": self.best, "best_epoch": self.best_epoch, "best_weights": self.best_weights,
            "stopped_epoch": self.stopped_epoch,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.wait, self.best, self.best_epoch = state["wait"], state["best"], state["best_epoch"]
        self.best_weights, self.stopped_epoch = state["best_weights"], state.get("stopped_epoch")
        if self.best_weights and "model" not in self.best_weights:  # earlier versions kept those of the model only
            self.best_weights = {"model": self.best_weights}


class ModelCheckpoint(Callback):
    """Save the weights after an epoch, whenever `monitor` is better than ever (`save_best_only`), or always.

    `path` may contain `{epoch}`, counted from 1, and names of metrics, with formats:
    `"best-{epoch:02d}-{val_loss:.3f}.safetensors"`. With `save_weights_only=False` the whole state of the trainer is
    saved, after all callbacks have seen the epoch. Files are written under another name first.
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
        self.target = Monitor("ModelCheckpoint", monitor, mode)
        self.best = initial_value_threshold
        self.saved: list[Path] = []
        self._due: Path | None = None  # where the state of this epoch goes

    def on_train_begin(self, trainer: Trainer) -> None:
        self._due = None
        if self.save_best_only:
            self.target.begin(trainer)
            warn_without_validation("ModelCheckpoint", self.monitor, trainer)

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        if self.save_best_only:
            value = self.target.read(trainer, metrics)
            if value is None or not self.target.is_better(value, self.best):
                return
            self.best = value
        path = self._path_of(epoch, metrics)
        if not self.save_weights_only:
            self._due = path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # The weights that `monitor` was measured with: those that were validated may be averages.
        with trainer._evaluating() if self.monitor.startswith("val_") else contextlib.nullcontext():
            weft.save(trainer.model.state_dict(), path)
        self.saved.append(path)

    def after_epoch(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        if self._due is not None:
            self._due.parent.mkdir(parents=True, exist_ok=True)
            weft.save(trainer.state_dict(), self._due)
            self.saved.append(self._due)
            self._due = None

    def _path_of(self, epoch: int, metrics: Metrics) -> Path:
        try:
            return Path(self.path.format(**{**metrics, "epoch": epoch + 1}))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            names = ", ".join(["epoch", *metrics])
            reason = f"no value is named {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            given = f"the path {self.path!r} ({reason})"
            fix = "write it as best-{epoch:02d}-{val_loss:.3f}.safetensors; {{ and }} stand for braces"
            raise problem(RangeError, "ModelCheckpoint", given, f"fields of {names}", fix) from None

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
        self.target, self.cooldown, self.min_lr = Monitor("ReduceLROnPlateau", monitor, mode), cooldown, min_lr
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.wait = self.cooldown_left = 0

    def on_train_begin(self, trainer: Trainer) -> None:
        self.target.begin(trainer)
        warn_without_validation("ReduceLROnPlateau", self.monitor, trainer)
        if not trainer.is_resumed:
            self._reset()

    def on_epoch_end(self, trainer: Trainer, epoch: int, metrics: Metrics) -> None:
        value = self.target.read(trainer, metrics)
        if value is None:
            return
        if self.cooldown_left > 0:
            self.cooldown_left -= 1
            self.wait = 0
        if self.target.is_better(value, self.best, self.min_delta):
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
    `validate=False`; `with callback.applied():` does elsewhere; `swap_at_end` leaves it in the model after `fit`. A
    `fit` that is called again continues with the weights before that."""

    def __init__(self, decay: float = 0.999, validate: bool = True, swap_at_end: bool = False):
        self.decay, self.validate, self.swap_at_end = decay, validate, swap_at_end
        self.average: ExponentialMovingAverage | None = None
        self._saved: Mapping[str, Any] | None = None

    def on_train_begin(self, trainer: Trainer) -> None:
        self._follow(trainer.parameters())

    def _follow(self, params: list[Any]) -> None:
        """Average these parameters; those that are averaged already continue, others begin with their values."""
        before = self.average
        if before is None or list(map(id, before.tensors)) != list(map(id, params)):
            made = ExponentialMovingAverage(params, self.decay)
            if before is not None:
                _take_over(before, made)
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
            raise problem(RangeError, "EMA", "a callback before its first training", "one that fit() was called with")
        return self.average.applied()

    def evaluating(self, trainer: Trainer) -> Any:
        if self._saved is not None:
            self._follow(trainer.parameters())
        return self.applied() if self.validate and self.average is not None else None

    def on_train_end(self, trainer: Trainer) -> None:
        if self.swap_at_end and self.average is not None:
            with weights.replace_weights(trainer):
                self.average.copy_to()

    def state_dict(self) -> dict[str, Any]:
        if self._saved is not None:  # loaded, and not used yet
            return dict(self._saved)
        return {} if self.average is None else self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = state or None
        if self._saved is not None and self.average is not None:
            self._follow(self.average.tensors)


@weft.no_grad()
def _take_over(before: ExponentialMovingAverage, made: ExponentialMovingAverage) -> None:
    """Give `made` the averages that there are already."""
    known = dict(zip(map(id, before.tensors), before.averages, strict=True))
    for param, average in zip(made.tensors, made.averages, strict=True):
        if id(param) in known:
            average.copy_(known[id(param)])
    made.count.copy_(before.count)
