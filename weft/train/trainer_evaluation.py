"""Uses of a trained model, and single steps: `train_batch`, `evaluate`, `predict`, and searches for rates and sizes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import weft
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.train import search
from weft.train.batches import Batches, Resident, Streamed, as_arguments, batches_of
from weft.train.interrupts import Requests
from weft.train.meters import Meters
from weft.train.step import (
    Steps,
    compute_gradients,
    evaluate_on,
    present_numbers,
    train_on,
)  # fmt: skip
from weft.train.trainer_steps import TrainerSteps, present_trainer


@entry_point
class TrainerEvaluation(TrainerSteps):
    """The part of a `Trainer` that uses its model outside of `fit`."""

    def train_batch(self, *batch: Any) -> Tensor:
        """One training step on a batch; returns its loss, which stays on the device. With on_nan="stop" or "skip" a
        step whose loss is not finite is left out; the loss that is returned shows it."""
        if not self.model.training:
            self.model.train()
        self._seed()
        numbers = present_numbers(self.optimizers) if self.schedules_steps else []
        steps = self._single if self.on_nan == "stop" else self._steps_for(Streamed((), self.device))
        if steps is None:
            owner = weakref.ref(self)
            compute = lambda batch, rates, moved: train_on(present_trainer(owner), batch, rates, moved, stops=False)  # noqa: E731
            steps = self._single = Steps(None, compute, len(numbers))
        args = (*as_arguments(batch, self.device), *numbers)
        if self.memory_budget is not None:
            self._fit_into_budget(steps.streamed, args)
        loss = steps.streamed(*args)
        self.step_count += 1
        if self.schedules_steps:
            self._step_schedulers(by_step=True)
            self._write_numbers()
        return loss

    def evaluate(self, data: Any) -> dict[str, Any]:
        """Loss and metrics over data, with the model in evaluation mode: one download at the end."""
        found = self._evaluate(data, None)
        assert found is not None
        return found

    def _evaluate(self, data: Any, requests: Requests | None) -> dict[str, Any] | None:
        """See `evaluate`. None where a signal came in between."""
        source = batches_of(data, self.device, pads=False)
        if requests is not None and isinstance(source, Streamed):
            source.what = "validation data"
        data_of = source.data if isinstance(source, Resident) else None
        known = self._evaluations.get(data_of)
        if known is None:
            own, owner = Meters([metric.fresh() for metric in self.meters.metrics], self.device), weakref.ref(self)
            known = Steps(data_of, lambda batch, rates, moved: evaluate_on(present_trainer(owner), own, batch), 0), own
            self._evaluations.put(data_of, known)
        steps, meters = known
        meters.reset()
        with self._evaluating(), source.keeping_generator():
            is_whole = self._run_evaluation(source, steps, requests)
        return dict(meters.read()) if is_whole else None

    def _run_evaluation(self, source: Batches, steps: Steps, requests: Requests | None) -> bool:
        """Whether it came to the end: a signal ends it."""
        for batch, step in _iterate_steps(source, steps):
            self._check_budget("Trainer.evaluate", step, batch)
            step(*batch)
            if requests is not None and requests.signal is not None:
                return False
        return True

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Inside, the model is in evaluation mode; afterwards each module is in the mode that it was in, and the random
        stream where it was: training does not depend on what is evaluated in between."""
        drawn = weft.default_generator.get_state()
        modes = [(module, module.training) for module in self.model.modules()]
        contexts = [one for callback in self.callbacks if (one := callback.evaluating(self)) is not None]
        self.model.eval()
        try:
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                yield
        finally:
            weft.default_generator.set_state(drawn)
            for module, mode in modes:
                if module.training is not mode:
                    module.training = mode

    def predict(self, data: Any, batch_size: int | None = None) -> Tensor:
        """The model's results for inputs: a tensor or array of samples, computed at once or `batch_size` at a time, or
        data in batches. The last part of a batch of several is the target and is left out; the others are the inputs.
        Results of several batches are joined, in the order in which a loader gives the samples."""
        from weft.train.predicting import in_batches, predict

        trainer: Any = self
        return predict(trainer, data if batch_size is None else in_batches(data, batch_size))

    def gradient_norms(self, *batch: Any) -> dict[str, float]:
        """The norm of the gradient of each parameter for a batch, by name; nothing is updated."""
        trainer: Any = self
        return search.gradient_norms(trainer, as_arguments(batch, self.device), compute_gradients)

    def overfit_one_batch(self, train: Any, steps: int = 100) -> search.Overfit:
        """A sanity check: train on the first batch alone. The loss of a model and a step that work falls far. The state
        is put back afterwards."""
        trainer: Any = self
        return search.overfit_one_batch(trainer, train, steps)

    def find_lr(self, train: Any, min_lr: float = 1e-7, max_lr: float = 1.0, steps: int = 100) -> search.RateSearch:
        """Train with a rate that grows from `min_lr` to `max_lr` with each step, and suggest a tenth of the rate at
        which the loss is least. The state is put back afterwards."""
        trainer: Any = self
        return search.find_lr(trainer, train, min_lr, max_lr, steps)

    def find_batch_size(self, *batch: Any, limit: int | None = None, largest: int = 65536) -> int:
        """The largest batch size, a power of two, whose step fits into `limit` bytes (unless given 90 % of what the
        device has free): from predicted memory, without running. `batch` is an example."""
        trainer: Any = self
        return search.find_batch_size(trainer, as_arguments(batch, self.device), limit, largest)


def _iterate_steps(source: Batches, steps: Steps) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(batch, compiled step) for one pass over the data."""
    source.start(0, 0)
    if isinstance(source, Resident):
        for number in range(source.length):
            yield (), steps.of_rows(source.count(number))
        return
    assert isinstance(source, Streamed)
    while (batch := source.next()) is not None:
        yield batch, steps.streamed
