"""Learning-rate schedules: what all share, and those that are a formula of the step. `lr_scheduler` has them all."""

from __future__ import annotations

import math
import types
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.base.errors import GraphError, RangeError, problem
from weft.core.boundary import entry_point
from weft.optim.optimizer import Optimizer

Rule = Callable[[int], float]


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group: a list of them, or one for all."""
    _check_optimizer(name, optimizer)
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise problem(RangeError, name, f"{len(value)} values", f"{count}, one for each parameter group")
    return list(value)


def _check_optimizer(who: str, optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise problem(GraphError, who, f"a {type(optimizer).__name__}", "an optimizer of weft.optim")


@entry_point
class LRScheduler:
    """Base class. Subclasses define `get_lr`, the rates for step number `last_epoch`, one for each group; most compute
    them from the present ones, so that several schedulers can work on one optimizer.

    >>> class Halving(weft.optim.lr_scheduler.LRScheduler):
    ...     def get_lr(self):
    ...         return [base * 0.5**self.last_epoch for base in self.base_lrs]
    >>> scheduler = Halving(weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0))
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.5]
    """

    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1):
        _check_optimizer(type(self).__name__, optimizer)
        self.optimizer = optimizer
        for number, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise problem(
                    GraphError, type(self).__name__, f"last_epoch {last_epoch}, but no 'initial_lr' in group {number}",
                    "a group that had a scheduler before", "load the optimizer's state_dict first",
                )  # fmt: skip
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        self.step()
        self._is_initial = False

    def _restart(self) -> None:
        """Begin again with step 0, from the rates that the groups have now."""
        self.last_epoch = -1
        self._initial_step()

    def state_dict(self) -> dict[str, Any]:
        """All that it knows but the optimizer; of functions, only what objects keep in their attributes."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[float]:
        """The present rates, one for each group."""
        return self._last_lr

    def get_lr(self) -> list[float]:
        """The rates for step number `last_epoch`. Subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step, or to step number `epoch`."""
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed_form = getattr(self, "_get_closed_form_lr", None)
        self._set(self.get_lr() if epoch is None or closed_form is None else closed_form())

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if group["lr"] != rate:
                group["lr"] = rate
        self._last_lr = self._present()

    def _present(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _scale_rates(self, factor: float) -> list[float]:
        return [group["lr"] * factor for group in self.optimizer.param_groups]


@entry_point
class _WithRules(LRScheduler):
    """What LambdaLR and MultiplicativeLR share: a function for each group."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Rule | list[Rule], last_epoch: int = -1):
        self.lr_lambdas: list[Rule] = per_group(f"{type(self).__name__}: lr_lambda", optimizer, lr_lambda)
        for rule in self.lr_lambdas:
            if not callable(rule):
                raise problem(GraphError, type(self).__name__, f"a {type(rule).__name__}", "a function of the step")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        saved = super().state_dict()
        saved["lr_lambdas"] = [_attributes(rule) for rule in self.lr_lambdas]
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})
        for rule, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                rule.__dict__.update(saved)


def _attributes(function: Any) -> dict[str, Any] | None:
    """What an object that is called keeps; nothing of a plain function."""
    return None if function is None or isinstance(function, types.FunctionType) else dict(function.__dict__)


@entry_point
class LambdaLR(_WithRules):
    """η₀·f(t).

    >>> scheduler = weft.optim.lr_scheduler.LambdaLR(
    ...     weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0), lambda t: 1 / (1 + t)
    ... )
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.5]
    """

    def get_lr(self) -> list[float]:
        return [base * rule(self.last_epoch) for rule, base in zip(self.lr_lambdas, self.base_lrs, strict=True)]


@entry_point
class MultiplicativeLR(_WithRules):
    """The last rate times f(t)."""

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return self._present()
        return [rate * rule(self.last_epoch) for rate, rule in zip(self._present(), self.lr_lambdas, strict=True)]


@entry_point
class StepLR(LRScheduler):
    """η₀·gamma^⌊t / step_size⌋.

    >>> scheduler = weft.optim.lr_scheduler.StepLR(weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0), 2, 0.5)
    >>> for _ in range(4):
    ...     scheduler.step()
    >>> scheduler.get_last_lr()
    [0.25]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1):
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        is_due = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return self._scale_rates(self.gamma) if is_due else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


@entry_point
class MultiStepLR(LRScheduler):
    """η₀·gamma^(number of milestones up to t)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.milestones = Counter(self.milestones)  # a file has it as a plain dict

    def get_lr(self) -> list[float]:
        count = self.milestones[self.last_epoch]
        return self._scale_rates(self.gamma**count) if count else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


@entry_point
class ConstantLR(LRScheduler):
    """η₀·factor before step `total_iters`, then η₀."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        if not 0.0 <= factor <= 1.0:
            raise problem(RangeError, "ConstantLR", f"factor {factor}", "a number in [0, 1]")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._scale_rates(self.factor)
        return self._scale_rates(1.0 / self.factor) if self.last_epoch == self.total_iters else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        factor = self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)
        return [base * factor for base in self.base_lrs]


@entry_point
class LinearLR(LRScheduler):
    """η₀·(s + (e-s)·min(t, T)/T), with s = start_factor, e = end_factor, T = total_iters."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ):
        if not 0.0 < start_factor <= 1.0:
            raise problem(RangeError, "LinearLR", f"start_factor {start_factor}", "a number in (0, 1]")
        if not 0.0 <= end_factor <= 1.0:
            raise problem(RangeError, "LinearLR", f"end_factor {end_factor}", "a number in [0, 1]")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._scale_rates(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        slope = self.end_factor - self.start_factor
        return self._scale_rates(1.0 + slope / (self.total_iters * self.start_factor + (self.last_epoch - 1) * slope))

    def _get_closed_form_lr(self) -> list[float]:
        slope = self.end_factor - self.start_factor
        factor = self.start_factor + slope * min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * factor for base in self.base_lrs]


@entry_point
class ExponentialLR(LRScheduler):
    """η₀·gammaᵗ."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._present() if self._is_initial else self._scale_rates(self.gamma)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


@entry_point
class PolynomialLR(LRScheduler):
    """η₀·(1 - min(t, T)/T)^power, with T = total_iters."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        now, before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return self._scale_rates((now / before) ** self.power)

    def _get_closed_form_lr(self) -> list[float]:
        share = (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power
        return [base * share for base in self.base_lrs]


@entry_point
class CosineAnnealingLR(LRScheduler):
    """η_min + ½(η₀ - η_min)(1 + cos(πt / T_max)); behind T_max it rises again.

    >>> scheduler = weft.optim.lr_scheduler.CosineAnnealingLR(
    ...     weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0), T_max=2
    ... )
    >>> scheduler.step()
    >>> scheduler.get_last_lr()
    [0.5]
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1):
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return self._present()
        if self._step_count == 1 and self.last_epoch > 0:
            return self._get_closed_form_lr()
        groups = self.optimizer.param_groups
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # from the lowest point up
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(self.base_lrs, groups, strict=True)
            return [group["lr"] + (base - self.eta_min) * rise for base, group in pairs]
        now, before = (1 + math.cos(math.pi * step / self.T_max) for step in (self.last_epoch, self.last_epoch - 1))
        return [now / before * (group["lr"] - self.eta_min) + self.eta_min for group in groups]

    def _get_closed_form_lr(self) -> list[float]:
        share = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return [self.eta_min + (base - self.eta_min) * share / 2 for base in self.base_lrs]
