"""Trainer: fits a model to data, evaluates it and predicts with it; stops, saves and goes on.

State: `model`, `optimizers`, `scheduler`, `meters` (sums on the device), `callbacks`, `history`, and the position in
the data (`epoch`, `position`, `step_count`). All of it is one nested dict (`state_dict`), so a resumed run has the bits
of an unbroken one. The loop is `_run_epoch`: call the compiled step, count, call the callbacks that are due.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import weft
from weft.base.errors import GraphError, IndexRangeError, RangeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.train import arguments, budget, nan, saving, weights
from weft.train.batches import Batches, Resident, Streamed, batches_of
from weft.train.callbacks import Callback
from weft.train.faults import InterruptedAtPrompt, interruption
from weft.train.history import History
from weft.train.interrupts import Requests, record_signals
from weft.train.meters import Meters
from weft.train.step import (
    predict_and_compare,
    present_numbers,
)  # fmt: skip
from weft.train.trainer_evaluation import TrainerEvaluation

__all__ = ["Trainer"]

CHECKED_EVERY = 1000  # steps after which the host looks for a loss that is not finite, unless something has read it


@entry_point
class Trainer(TrainerEvaluation):
    """Trains `model` so that `loss(model(inputs), target)` falls.

    - `optimizer`: an optimizer, a list of them (for custom steps), or a function of the parameters that makes one.
    - `metrics`: `weft.train` metrics or their names, computed on the device in the step.
    - `device`: "auto" is the fastest device that is there; the model goes to it.
    - `precision`: "fp32", "bf16" or "fp16": how matrix products compute; parameters keep their dtype.
    - `accumulate`: a batch is computed in that many parts, one after the other; the gradient is that of the batch. A
      loss that is a function of your own counts as a mean over rows; where it is another mean, as over tokens that are
      not ignored, let it return (total, count).
    - `clip_norm`, `clip_value`: clip the gradients; `regularizer`: a function of the parameters, added to the loss, in
      evaluations, too.
    - `scheduler`: stepped after each epoch; OneCycleLR, CyclicLR and Warmup, and what contains one, after each step.
      (scheduler, "step") and (scheduler, "epoch") say it. A list has one for each optimizer.
    - `step`: a function `step(trainer, *batch)` in place of model and loss. It returns the loss, (loss, prediction,
      target), or a dict with "loss". If that requires grad the trainer goes on with backward and update; a step that
      has made its updates itself returns it detached.
    - `checkpoint`: recompute activations in the backward pass: True for the children of the model (those in a
      ModuleList or ModuleDict one by one), or names of modules; False for none, None leaves it as the modules have it.
      `memory_budget`: bytes, or "4 GB": as many of them as it takes for each form of batch.
    - `on_nan`: what a loss or a gradient that is not finite does: "stop" raises and names the layer, "skip" leaves the
      step out, "ignore" goes on.
    - `seed`: of the random stream when a run begins; None leaves it as it is.
    - `run`: a folder for configuration, metrics, checkpoints and a report.

    Options may be assigned later (`trainer.clip_norm = 1.0`): the next step is traced with them. The model, the
    optimizers and the device stay.

    >>> weft.manual_seed(0)  # doctest: +ELLIPSIS
    <weft.Generator object at ...>
    >>> x = weft.randn(64, 2)
    >>> model = weft.nn.Linear(2, 1)
    >>> optimizer = weft.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = weft.train.Trainer(model, weft.nn.MSELoss(), optimizer, device="cpu")
    >>> history = trainer.fit([(x, x.sum(1, keepdim=True))], epochs=100)
    >>> history["loss"][-1] < 1e-6
    True
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., Tensor] | None,
        optimizer: Any,
        metrics: Sequence[Any] = (),
        device: Any = "auto",
        precision: str = "fp32",
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        regularizer: Callable[..., Tensor] | None = None,
        scheduler: Any = None,
        callbacks: Sequence[Callback] = (),
        step: Callable[..., Any] | None = None,
        checkpoint: Any = None,
        memory_budget: int | str | None = None,
        on_nan: str = "stop",
        seed: int | None = 0,
        run: Any = None,
    ):
        self.device = weft.get_device(device)
        arguments.check_model(model)
        arguments.check_options(loss, step, precision, accumulate, on_nan, clip_norm, clip_value, seed=seed)
        self.model, self.step = model.to(self.device), step
        self.loss = self._on_device(loss)
        self.optimizers = arguments.as_optimizers(optimizer, self.model)
        for one in self.optimizers:
            one.follow_parameters()  # to the device: the step is traced with their state there
        if step is None:
            arguments.check_updates(self.optimizers, self.model, loss)
        self.precision, self.accumulate, self.on_nan, self.seed = precision, accumulate, on_nan, seed
        self.clip_norm, self.clip_value, self.regularizer = clip_norm, clip_value, regularizer
        self.memory_budget = None if memory_budget is None else budget.parse_bytes(memory_budget)
        self.segments: budget.Segments | None = None  # what is computed again to stay within the budget
        self.accumulator = self._make_accumulator()
        self.scheduler = self._take_schedulers(scheduler)
        self.scaler = weft.amp.GradScaler(self.device) if precision == "fp16" else None
        self.run = arguments.as_folder(run)
        self.callbacks = self._with_run_folder(callbacks)
        self.meters = Meters([one.fresh() for one in arguments.as_metrics(metrics)], self.device)  # others use theirs
        self._clear_progress()
        if checkpoint is not None:
            arguments.set_checkpoints(self.model, checkpoint)
        self.is_complete = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        fix = "make a Trainer with copy.deepcopy(model), and load_state_dict(trainer.state_dict())"
        raise problem(GraphError, "Trainer", "a copy of a Trainer, whose steps are compiled", "its state_dict()", fix)

    def __repr__(self) -> str:
        parts = [type(self.model).__name__, *[type(one).__name__ for one in self.optimizers]]
        return f"Trainer({', '.join(parts)}, device={self.device}, epoch={self.epoch}, step={self.step_count})"

    # ---- fit ------------------------------------------------------------------------------------------------------

    def fit(
        self,
        train: Any,
        validation: Any = None,
        epochs: int = 1,
        max_steps: int | None = None,
        validate_every: int = 1,
        resume: Any = "auto",
    ) -> History:
        """Train until `epochs` epochs or `max_steps` steps are done, counted from the beginning of the run.

        `train` and `validation` are DataLoaders, resident data, or iterables of batches (inputs..., target). Every
        `validate_every` epochs the validation data is evaluated. With a run folder, `resume="auto"` goes on from its
        newest checkpoint, a path from that one, and None starts over; checkpoints of later steps are put aside into
        `checkpoints-before-1` and so on. Called again, `fit` goes on where it stopped, unless `resume` is a path.
        """
        arguments.check_plan(epochs, max_steps, validate_every, validation)
        source = batches_of(train, self.device)
        before = self._source
        if isinstance(train, Iterator) and isinstance(before, Streamed) and before.source is train:
            source = before  # an iterator gives each batch once: go on where it is
        self._begin(source, epochs, max_steps, validation, resume)
        try:
            self._train(source, validation, epochs, max_steps, validate_every)
        except IndexRangeError as error:
            first_bad = int(self.meters.counts[1])
            self.meters.forget_bad()  # the loss of that step was no number, but that is not what is to be said
            exact = nan.index_error(
                self, nan.batches_to_try(self, first_bad), lambda batch: predict_and_compare(self, batch)
            )
            if exact is not None:
                raise exact from error
            raise
        self._write_numbers()
        return self.history

    def _train(self, source: Batches, validation: Any, epochs: int, max_steps: int | None, validate_every: int) -> None:
        """The epochs of `fit`."""
        with record_signals() as requests, self._notifying_callbacks():
            self._call("on_train_begin")
            if not self._have_callbacks_begun and arguments.in_step(self.callbacks):
                self._forget_steps()  # single steps before had no part of them
            self._have_callbacks_begun, self.is_loaded = True, False
            self._run_epochs(source, validation, epochs, max_steps, validate_every, requests)
            self._call("on_train_end")
            if requests.signal is not None:  # it came while callbacks finished: all is saved
                raise self._make_interruption(requests.signal, saving.find_newest(self))

    def _run_epochs(
        self, source: Batches, validation: Any, epochs: int, max_steps: int | None, validate_every: int,
        requests: Requests,
    ) -> None:  # fmt: skip
        while self.epoch < epochs and self.stopped is None and not self._is_done(max_steps):
            self._start_epoch(source)
            if not self.position:  # not where an epoch goes on
                self._call("on_epoch_begin", self.epoch, {})
            if not self._run_epoch(source, max_steps, requests):  # stopped in the middle of it
                self._finish_early(validation, requests)
                break
            is_last = self.epoch + 1 >= epochs or self.stopped is not None or self._is_done(max_steps)
            is_due = validation is not None and ((self.epoch + 1) % validate_every == 0 or is_last)
            self._end_epoch(validation if is_due else None, requests)
            if requests.signal is not None:
                self._finish_early(None, requests)

    @contextlib.contextmanager
    def _notifying_callbacks(self) -> Iterator[None]:
        """Let callbacks give back what they hold, such as the terminal, when an error or an interrupt ends a run."""
        try:
            yield
        except BaseException:
            if self._loader_state is None and self._source is not None:
                with contextlib.suppress(Exception):  # for a later call of fit
                    self._loader_state = self._source.state_dict(self.epoch, self.position)
                    weft.default_generator.set_state(self._source.random_state(self.epoch, self.position))
            self._call("on_train_abort")
            raise

    def _run_epoch(self, source: Batches, max_steps: int | None, requests: Requests) -> bool:
        """Run the steps of an epoch from `position` on; whether it came to the end."""
        steps = self._steps_for(source)
        begins, ends = self._batch_callbacks()
        gap = math.gcd(*[callback.every for callback in (*begins, *ends)]) if begins or ends else 0
        limit = sys.maxsize if max_steps is None else max_steps
        resident = source if isinstance(source, Resident) else None
        while True:
            args: tuple[Any, ...] = ()
            if isinstance(source, Resident):
                if self.position >= source.length:
                    return True
            else:
                assert isinstance(source, Streamed)
                batch = source.next()
                if batch is None:
                    return True
                args = batch
            if begins and self.step_count % gap == 0:
                self._call_batch(begins, "on_batch_begin")  # which may change options: the step is looked up after it
            step = steps.streamed if resident is None else steps.of_rows(resident.count(self.position))
            by_step = self.schedules_steps
            if by_step:
                args = (*args, *present_numbers(self.optimizers))
            if self.memory_budget is not None:
                self._fit_into_budget(step, args)
            if resident is None:
                step(*args)
            else:
                if resident.data.seeks != resident.seeks:  # a callback has used the same data
                    resident.come_back()
                step(*args)
                resident.step_done()
            self.step_count += 1
            self.position += 1
            if by_step:
                self._step_schedulers(by_step=True)
            if ends and self.step_count % gap == 0:
                self._call_batch(ends, "on_batch_end")
            if self.step_count % CHECKED_EVERY == 0 and self.on_nan == "stop":
                self.read()
            if requests.signal is not None or self.stopped is not None or self.step_count >= limit:
                return source.length is not None and self.position >= source.length

    def _begin(self, source: Batches, epochs: int, max_steps: int | None, validation: Any, resume: Any) -> None:
        """Seed a new run, or go on with one."""
        self.stopped, self._source = None, source
        self.is_resumed = self._has_started
        length = source.length
        self.planned = {
            "epochs": epochs,
            "max_steps": max_steps,
            "batches": length,
            "validates": validation is not None,
        }
        if not self._has_started:
            self._seed()
            self.is_resumed = saving.resume(self, resume)
            self._has_started = True  # not after an error: a later call must not start over without notice
        elif isinstance(resume, (str, os.PathLike)) and resume != "auto":
            self.is_resumed = saving.resume(self, resume)
        else:
            saving.put_aside(self, self.step_count)  # checkpoints of another run that was in the same folder
        weights.put_back(self)
        if not self.model.training:
            self.model.train()

    def _start_epoch(self, source: Batches) -> None:
        self._began, self._waited = time.perf_counter(), source.wait_seconds
        known = (self._loader_state or {}).get("batches")
        if self.position and known is not None and source.length not in (None, known):
            given = f"data of {source.length} batches to go on with in the middle of epoch {self.epoch + 1}"
            raise problem(RangeError, "Trainer.fit", given, f"{known}, as when it was stopped", "use that batch size")
        source.start(self.epoch, self.position, self._loader_state)
        if not self.position:
            self.meters.reset()
        self._loader_state = None

    _loader_state: Mapping[str, Any] | None = None

    def _end_epoch(self, validation: Any, requests: Requests) -> None:
        """Read the metrics, validate, step the scheduler, call the callbacks, save. After a signal in the validation
        the epoch is not at its end: a run that continues validates again."""
        metrics = self._epoch_metrics()
        if validation is not None:
            assert self._source is not None
            position = self._source.state_dict(self.epoch, self.position)  # the validation may use the same data
            found = self._evaluate(validation, requests)
            if found is None:
                self._loader_state = position
                return
            metrics.update({f"val_{name}": value for name, value in found.items()})
        self._step_schedulers(by_step=False, metrics=metrics)
        self.history.add(metrics)
        epoch, self.epoch, self.position = self.epoch, self.epoch + 1, 0
        self._call("on_epoch_end", epoch, metrics)
        self._call("after_epoch", epoch, metrics)
        self.save(metrics)

    def _finish_early(self, validation: Any, requests: Requests) -> None:
        """In the middle of an epoch, or after a signal: what was measured so far, and a checkpoint to go on from."""
        if self.position and self._source is not None:
            if self._loader_state is None:  # before the validation, which may use the same data
                self._loader_state = self._source.state_dict(self.epoch, self.position)
            metrics = self._epoch_metrics()
            if validation is not None and requests.signal is None:
                found = self._evaluate(validation, requests) or {}
                metrics.update({f"val_{name}": value for name, value in found.items()})
            self.history.add(metrics)
        path = self.save(self.history.last) if self.position else saving.find_newest(self)
        if requests.signal is not None:
            raise self._make_interruption(requests.signal, path)

    def _make_interruption(self, number: int, path: Path | None) -> BaseException:
        """What a run ends with after a signal; says where it was saved and how to resume."""
        name = {2: "Ctrl-C", 15: "SIGTERM"}.get(number, f"signal {number}")
        where = f"saved to {path}" if path is not None else "nothing was saved, since the Trainer has no run folder"
        how = self.how_to_resume or (
            'call fit again with the same run folder (resume="auto")'
            if path is not None
            else 'pass run="folder" to the Trainer, so that an interrupted run can go on'
        )
        epoch = self.epoch + bool(self.position)  # the one it is in or, between two, the one that is done; from 1 on
        message = f"Interrupted by {name} after step {self.step_count} (epoch {epoch}); {where}. To go on: {how}."
        self._write_numbers()
        error = interruption(number, message)
        if not isinstance(error, InterruptedAtPrompt):
            print(message, file=sys.stderr)
        return error

    def _is_done(self, max_steps: int | None) -> bool:
        return max_steps is not None and self.step_count >= max_steps

    def stop(self, reason: str = "asked to") -> None:
        """End `fit` after the present step or epoch; for callbacks."""
        self.stopped = reason

    # ---- saving and going on --------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, as one nested dict of tensors, numbers and strings."""
        return saving.state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; the model, optimizer and callbacks are of the same kinds."""
        saving.load_state(self, state)
        self._has_started = self._is_seeded = self.is_loaded = True

    def save(self, metrics: Mapping[str, Any] | None = None) -> Path | None:
        """Write a checkpoint into the run folder; returns its path, or None without a run folder. Of the checkpoints,
        the last three and the one with the least validation loss (or loss) are kept."""
        return saving.save(self, metrics or {})
