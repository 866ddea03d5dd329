"""Options of a Trainer that its compiled steps were traced with: to change one is seen by the next step.

A step reads them while it is traced and never again, so a replayed step pays nothing for them. Instead an assignment
checks the value, derives what depends on it (`TrainerOptions.change_option`), and forgets what was traced.
"""

from __future__ import annotations

import abc
from pathlib import Path
from typing import Any

import weft
from weft import nn
from weft.base.errors import GraphError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.train import arguments, budget
from weft.train.accumulate import Accumulator
from weft.train.callbacks import Callback
from weft.train.meters import Meters
from weft.train.step import KeptByData, Steps, present_numbers


class Option:
    """An attribute that may be assigned at any time; inside `__init__` without consequences."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, trainer: TrainerOptions | None, owner: type | None = None) -> Any:
        return self if trainer is None else trainer.__dict__[self.name]

    def __set__(self, trainer: TrainerOptions, value: Any) -> None:
        if not trainer.is_complete:
            trainer.__dict__[self.name] = value
        elif trainer.__dict__[self.name] is not value:
            trainer.change_option(self.name, value)


class Fixed(Option):
    """An attribute that stays what `__init__` made it."""

    def __set__(self, trainer: TrainerOptions, value: Any) -> None:
        if trainer.is_complete and trainer.__dict__[self.name] is not value:
            given = f"another {self.name} for a Trainer that was made"
            fix = "make a Trainer with it; load_state_dict(other.state_dict()) takes over the rest"
            raise problem(GraphError, "Trainer", given, "the one that it was made with", fix)
        trainer.__dict__[self.name] = value


@entry_point
class TrainerOptions(abc.ABC):
    """The part of a `Trainer` that its options are: what they are kept as, and what follows from a change."""

    is_complete = False  # whether __init__ is done
    model, optimizers, device = Fixed(), Fixed(), Fixed()
    loss, step, precision, accumulate = Option(), Option(), Option(), Option()
    clip_norm, clip_value, regularizer, on_nan = Option(), Option(), Option(), Option()
    callbacks, scheduler, scaler, memory_budget = Option(), Option(), Option(), Option()

    run: Path | None
    meters: Meters
    accumulator: Accumulator | None
    _steps: KeptByData
    _evaluations: KeptByData
    _single: Steps | None
    _predict: Any
    _bounded: set[Any]
    _have_callbacks_begun: bool

    @abc.abstractmethod
    def parameters(self) -> list[Tensor]:
        """The parameters that the optimizers update."""

    def change_option(self, name: str, value: Any) -> None:
        """Assign an option of a trainer that may have compiled steps: they are traced again."""
        arguments.check_options(**{one: getattr(self, one) for one in arguments.CHECKED} | {name: value})
        if name == "callbacks":
            before, value = arguments.in_step(self.callbacks), self._with_run_folder(value)
            if arguments.in_step(value) == before:
                self.__dict__[name] = value
                return
            self._have_callbacks_begun = False
        elif name == "loss":
            value = self._on_device(value)
        elif name == "memory_budget":
            value = None if value is None else budget.parse_bytes(value)
        elif name == "scheduler":
            value = self._take_schedulers(value)
        self.__dict__[name] = value
        if name == "precision":
            self.scaler = weft.amp.GradScaler(self.device) if value == "fp16" else None
        elif name in ("loss", "accumulate"):
            self.accumulator = self._make_accumulator()
        elif name == "step":
            self.meters.means.clear()  # what the step before returned
        self._forget_steps()

    def _forget_steps(self) -> None:
        numbers = len(present_numbers(self.optimizers)) if self.schedules_steps else 0
        for known in self._steps.values():
            known.forget(numbers)
        for known, meters in self._evaluations.values():
            known.forget(0)
            meters.means.clear()
        self._single = self._predict = None
        self._bounded.clear()

    def _take_schedulers(self, given: Any) -> Any:
        """Keep schedulers with when they act; the scheduler itself, or a list of several."""
        self.schedulers = arguments.as_schedulers(given, self.optimizers)
        self.schedules_steps = any(by_step for _, by_step in self.schedulers)  # then rates are arguments of steps
        found = [one for one, _ in self.schedulers]
        return found if len(found) > 1 else next(iter(found), None)

    def _on_device(self, loss: Any) -> Any:
        return loss.to(self.device) if isinstance(loss, nn.Module) else loss  # it may have weights of classes

    def _make_accumulator(self) -> Accumulator | None:
        is_used = self.accumulate > 1 and self.loss is not None
        return Accumulator(self.parameters(), self.loss) if is_used else None

    def _with_run_folder(self, callbacks: Any) -> tuple[Callback, ...]:
        """Callbacks as a tuple, with the one that writes the run folder, if there is one."""
        found = arguments.as_callbacks(callbacks)
        if self.run is None:
            return found
        from weft.train.loggers import RunFolder

        return found if any(isinstance(one, RunFolder) for one in found) else (*found, RunFolder())
