"""Learning-rate schedules under PyTorch's names, with its arguments and numbers, and `Warmup`.

A scheduler sets `lr` (some also the momentum) of the optimizer's groups. Both are numbers on the device, so a compiled
step sees the new values and is not traced again. Call `scheduler.step()` outside the compiled function.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from weft.base.errors import GraphError, RangeError, problem
from weft.core.boundary import entry_point
from weft.optim.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from weft.optim.optimizer import Optimizer
from weft.optim.scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
    per_group,
)

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
    "Warmup",
]


@entry_point
class ReduceLROnPlateau(LRScheduler):
    """lr *= factor when the metric given to `step(metric)` has not improved for more than `patience` calls.

    >>> optimizer = weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0)
    >>> scheduler = weft.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     scheduler.step(loss)
    >>> scheduler.get_last_lr()
    [0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ):
        if factor >= 1.0:
            raise problem(RangeError, "ReduceLROnPlateau", f"factor {factor}", "a number below 1")
        if mode not in ("min", "max"):
            raise problem(RangeError, "ReduceLROnPlateau", f"mode {mode!r}", "'min' or 'max'")
        if threshold_mode not in ("rel", "abs"):
            raise problem(RangeError, "ReduceLROnPlateau", f"threshold_mode {threshold_mode!r}", "'rel' or 'abs'")
        self.default_min_lr = None if isinstance(min_lr, list | tuple) else min_lr
        self.min_lrs = per_group("ReduceLROnPlateau: min_lr", optimizer, min_lr)
        self.optimizer = optimizer
        self.factor, self.patience, self.cooldown, self.eps = factor, patience, cooldown, eps
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.last_epoch = 0
        self._last_lr = self._present()
        self._reset()

    def _reset(self) -> None:
        self.mode_worse = self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Look at a metric: a number, or a tensor of one element, which is read from the device."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self._is_better(current, self.best):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._present()

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                given = f"{len(groups)} parameter groups"
                raise problem(RangeError, "ReduceLROnPlateau", given, f"{len(self.min_lrs)}, as many as min_lrs")
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            rate = max(group["lr"] * self.factor, least)
            if group["lr"] - rate > self.eps:
                group["lr"] = rate

    @property
    def in_cooldown(self) -> bool:
        """Whether bad steps are not counted now."""
        return self.cooldown_counter > 0

    def _is_better(self, value: float, best: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "rel":
            bound = best * (1.0 - self.threshold) if self.mode == "min" else best * (self.threshold + 1.0)
        else:
            bound = best - sign * self.threshold
        return sign * value < sign * bound


@entry_point
class _WithSchedulers(LRScheduler):
    """What consists of other schedulers of one optimizer."""

    _schedulers: list[LRScheduler]

    def _check_schedulers(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
        name = type(self).__name__
        if len(schedulers) < 1:
            raise problem(GraphError, name, "no scheduler", "at least one")
        for scheduler in schedulers:
            if not isinstance(scheduler, LRScheduler):
                raise problem(GraphError, name, f"a {type(scheduler).__name__}", "schedulers")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise problem(GraphError, name, "a ReduceLROnPlateau", "schedulers whose step() takes no metric")
        optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        if any(scheduler.optimizer is not optimizer for scheduler in schedulers):
            raise problem(GraphError, name, "schedulers of different optimizers", "schedulers of one optimizer")
        return optimizer

    def state_dict(self) -> dict[str, Any]:
        saved = {key: value for key, value in super().state_dict().items() if key != "_schedulers"}
        return {**saved, "_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, saved in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(saved)


@entry_point
class SequentialLR(_WithSchedulers):
    """One scheduler after the other: number k from step milestones[k-1] on, where it begins with its own step 0."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ):
        self.optimizer = self._check_schedulers(schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            given = f"{len(schedulers)} schedulers and {len(milestones)} milestones"
            raise problem(RangeError, "SequentialLR", given, "one milestone less than schedulers")
        self._schedulers, self._milestones = schedulers, milestones
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        _undo_step(self)
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def _restart(self) -> None:
        self.last_epoch = 0
        first = self._schedulers[bisect_right(self._milestones, 0)]
        first._restart()  # the others begin with step 0 at their milestones
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        self.last_epoch += 1
        number = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[number]
        if number > 0 and self._milestones[number - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_step(scheduler: LRScheduler) -> None:
    """Take back the first step, which each scheduler made when it was created."""
    if isinstance(scheduler, _WithSchedulers):
        for each in scheduler._schedulers:
            _undo_step(each)
    else:
        scheduler.last_epoch -= 1


@entry_point
class ChainedScheduler(_WithSchedulers):
    """All schedulers in each step, one after the other."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        self.optimizer = self._check_schedulers(schedulers, optimizer)
        self._schedulers = list(schedulers)
        self._last_lr = self._present()

    def _restart(self) -> None:
        for scheduler in self._schedulers:
            scheduler._restart()
        self._last_lr = self._present()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._present()


@entry_point
class Warmup(LRScheduler):
    """η₀·(t + 1)/steps for the first `steps` steps, then the scheduler `after`, from its own step 0; without one, η₀.

    >>> optimizer = weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0)
    >>> after = weft.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    >>> scheduler = weft.optim.lr_scheduler.Warmup(optimizer, 4, after)
    >>> rates = scheduler.get_last_lr()
    >>> for _ in range(6):
    ...     scheduler.step()
    ...     rates = rates + scheduler.get_last_lr()
    >>> rates
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.25]
    """

    def __init__(self, optimizer: Optimizer, steps: int, after: LRScheduler | None = None, last_epoch: int = -1):
        if not isinstance(steps, int) or steps < 1:
            raise problem(RangeError, "Warmup", f"steps {steps!r}", "an integer of at least 1")
        if after is not None and (not isinstance(after, LRScheduler) or after.optimizer is not optimizer):
            raise problem(GraphError, "Warmup", f"a {type(after).__name__}", "a scheduler of the same optimizer")
        if isinstance(after, ReduceLROnPlateau):
            raise problem(GraphError, "Warmup", "a ReduceLROnPlateau", "a scheduler whose step() takes no metric")
        self.steps, self.after = steps, after
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * min(1.0, (self.last_epoch + 1) / self.steps) for base in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        if self.after is None or self.last_epoch + 1 < self.steps:
            super().step(epoch)
            return
        self._step_count += 1
        self.last_epoch += 1
        if self.last_epoch == self.steps:
            self._set(self.base_lrs)
            self.after._restart()
        else:
            self.after.step()
        self._last_lr = self._present()

    def state_dict(self) -> dict[str, Any]:
        saved = {key: value for key, value in super().state_dict().items() if key != "after"}
        return saved if self.after is None else {**saved, "after": self.after.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "after"})
        if self.after is not None:
            self.after.load_state_dict(state_dict["after"])
