"""What the steps of a Trainer need: parameters, precision, memory budget, compiled steps, schedulers and readings.

Nothing here runs an epoch; `Trainer.fit` and `TrainerEvaluation` do.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import weft
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.lr_scheduler import ReduceLROnPlateau
from weft.optim.optimizer import Optimizer
from weft.train import arguments, budget, nan, saving
from weft.train.batches import Batches, Resident
from weft.train.callbacks import Callback, calls_on_batches
from weft.train.history import History
from weft.train.meters import BatchMetrics, Readings
from weft.train.options import TrainerOptions
from weft.train.step import (
    KeptByData,
    Steps,
    predict_and_compare,
    present_numbers,
    train_on,
)  # fmt: skip

_ON_BATCH = ("on_batch_begin", "on_batch_end")


@entry_point
class TrainerSteps(TrainerOptions):
    """The part of a `Trainer` that makes its compiled steps and what they read."""

    segments: budget.Segments | None
    seed: int | None

    def _clear_progress(self) -> None:
        """Set what a run changes to its beginning."""
        self.history = History()
        self.epoch = self.position = self.step_count = 0
        self.how_to_resume: str | None = None  # what an interrupted run says instead of "call fit again"
        self.is_resumed = False  # whether the present `fit` goes on with a run
        self.is_loaded = False  # and whether with a state that was loaded
        self.replaced: tuple[Any, Any] | None = None  # weights before and after callbacks gave others at the end
        self.written: set[int] = set()  # identities of what the compiled steps assign
        self.loaded_modules: set[str] = set()  # of a custom step, whose weights were in a state that was loaded
        self.updates = True  # whether the step that is being traced leaves backward and update to the trainer
        self.stopped: str | None = None  # why `stop` was called
        self.input_forms: list[tuple[tuple[int, ...], Any]] = []  # shapes and dtypes of the model's inputs
        self.planned: dict[str, Any] = {}  # epochs, batches and the like of the present fit, for callbacks
        self._source: Batches | None = None
        self._steps = KeptByData()  # Steps
        self._single: Steps | None = None  # those of `train_batch`
        self._evaluations = KeptByData()  # (Steps, Meters)
        self._predict: Any = None  # the compiled model, once it was used
        self._began = self._waited = 0.0
        self._has_started = self._is_seeded = self._have_callbacks_begun = False
        self._bounded: set[Any] = set()  # forms of batches that were found to be within the memory budget

    def casting(self) -> Any:
        """The context in which forward and loss are computed."""
        name = arguments.PRECISIONS[self.precision]
        return contextlib.nullcontext() if name is None else weft.autocast(dtype=getattr(weft, name))

    def parameters(self) -> list[Tensor]:
        """The parameters that the optimizers update."""
        return [param for optimizer in self.optimizers for group in optimizer.param_groups for param in group["params"]]

    def guarded_tensors(self) -> list[Tensor]:
        """What optimizers leave as it is when a step is left out."""
        found: list[Tensor] = []
        for optimizer in self.optimizers:
            if self.scaler is not None or not optimizer._keeps_own_state():
                for group in optimizer.param_groups:
                    for bucket in group.buckets:
                        found += [*bucket.params, *bucket.tensors(), bucket.hyper]
        if self.scaler is not None:  # it adapts its scale to steps that are left out
            found += [
                *self.scaler._state.values(),
                *[one for r in self.scaler._records.values() for one in (r.found, r.unscaled)],
            ]
        return found

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, or the first of several."""
        return self.optimizers[0]

    @property
    def learning_rate(self) -> float:
        """The present rate of the first group."""
        return self.optimizers[0].param_groups[0]["lr"]

    def _fit_into_budget(self, step: Any, args: Sequence[Any]) -> None:
        """Choose what is computed again, before the first step of each form of batch."""
        assert self.memory_budget is not None
        form = budget.form_of(step, args)
        if form not in self._bounded:
            found = budget.apply(self.model, step, args, self.memory_budget)
            if found.modules and self.segments is not None:
                self._bounded.clear()  # those of before are computed in another way from now on
            self.segments = found if self.segments is None else self.segments.join(found)
            self._bounded.add(form)

    def _check_budget(self, who: str, step: Any, args: Sequence[Any]) -> None:
        """Refuse a batch of an evaluation that takes more than the memory budget, before it is computed."""
        if self.memory_budget is not None:
            form = budget.form_of(step, args)
            if form not in self._bounded:
                budget.check(who, step, args, self.memory_budget)
                self._bounded.add(form)

    def _seed(self) -> None:
        """Begin the random stream of this run, once."""
        if self.seed is not None and not self._is_seeded:
            weft.manual_seed(self.seed)
        self._is_seeded = True

    def _steps_for(self, source: Batches) -> Steps:
        data = source.data if isinstance(source, Resident) else None
        known = self._steps.get(data)
        if known is None:
            numbers = len(present_numbers(self.optimizers)) if self.schedules_steps else 0
            owner = weakref.ref(self)
            known = Steps(
                data, lambda batch, rates, moved: train_on(present_trainer(owner), batch, rates, moved), numbers
            )
            self._steps.put(data, known)
        return known

    def compiled_steps(self) -> list[Any]:
        """The compiled training steps that have run: one for each form of batch."""
        single = [] if self._single is None else [self._single]
        return [one for known in [*self._steps.values(), *single] for one in known.compiled_functions()]

    def _step_schedulers(self, by_step: bool, metrics: Mapping[str, Any] | None = None) -> None:
        """Step those that act after each step, or those that act after each epoch."""
        for scheduler, is_by_step in self.schedulers:
            if is_by_step is not by_step:
                continue
            if isinstance(scheduler, ReduceLROnPlateau):
                trainer: Any = self
                value = saving.loss_to_compare(trainer, metrics or {})
                if value is not None:
                    scheduler.step(value)
            elif by_step:
                with scheduler.optimizer.deferring_numbers():
                    scheduler.step()
            else:
                scheduler.step()

    def _write_numbers(self) -> None:
        """Rates that were arguments of steps go to the device, for the next use of the optimizer."""
        if self.schedules_steps:
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group.write_numbers()

    def read(self) -> Readings:
        """The loss and the metrics since the epoch began: one download. Raises if a loss was not finite."""
        found = self.meters.read()
        if found.first_bad and self.on_nan == "stop":
            trainer: Any = self
            raise nan.error_of(trainer, found.first_bad, lambda batch: predict_and_compare(trainer, batch)[0])
        return found

    def _epoch_metrics(self) -> dict[str, Any]:
        found = self.read()
        seconds = time.perf_counter() - self._began
        metrics: dict[str, Any] = {"epoch": self.epoch, **found, "lr": self.learning_rate, "seconds": seconds}
        metrics["step"] = self.step_count
        metrics["wait_seconds"] = self.wait_seconds
        if self.on_nan == "skip" or self.scaler is not None:
            metrics["skipped"] = found.skipped
        return metrics

    @property
    def wait_seconds(self) -> float:
        """How long steps of this epoch waited for data."""
        return 0.0 if self._source is None else self._source.wait_seconds - self._waited

    def _call(self, name: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, name)(self, *args)

    def _batch_callbacks(self) -> tuple[list[Callback], list[Callback]]:
        found = [[one for one in self.callbacks if calls_on_batches(one, name)] for name in _ON_BATCH]
        arguments.check_every([*found[0], *found[1]])
        return found[0], found[1]

    def _call_batch(self, callbacks: list[Callback], name: str) -> None:
        metrics = BatchMetrics(self)
        number = self.position - (name == "on_batch_end")
        for callback in callbacks:
            if self.step_count % callback.every == 0:
                getattr(callback, name)(self, number, metrics)


def present_trainer(owner: weakref.ref[Any]) -> Any:
    """The trainer whose compiled step refers to it weakly."""
    found = owner()
    assert found is not None  # it is what calls the step
    return found
