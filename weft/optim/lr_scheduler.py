"""Learning-rate schedules under PyTorch's names, with its arguments and numbers, and `Warmup`.

A scheduler sets `lr` (some also the momentum) of the optimizer's groups. Both are numbers on the device, so a compiled
step sees the new values and is not traced again. Call `scheduler.step()` outside the compiled function.
"""

from __future__ import annotations

import math
import types
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.errors import GraphError, RangeError, problem
from weft.optim.optimizer import Optimizer

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

    def _scaled(self, factor: float) -> list[float]:
        return [group["lr"] * factor for group in self.optimizer.param_groups]


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


class MultiplicativeLR(_WithRules):
    """The last rate times f(t)."""

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return self._present()
        return [rate * rule(self.last_epoch) for rate, rule in zip(self._present(), self.lr_lambdas, strict=True)]


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
        return self._scaled(self.gamma) if is_due else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma ** (self.last_epoch // self.step_size) for base in self.base_lrs]


class MultiStepLR(LRScheduler):
    """η₀·gamma^(number of milestones up to t)."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1):
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        count = self.milestones[self.last_epoch]
        return self._scaled(self.gamma**count) if count else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return [base * self.gamma**passed for base in self.base_lrs]


class ConstantLR(LRScheduler):
    """η₀·factor before step `total_iters`, then η₀."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1):
        if not 0.0 <= factor <= 1.0:
            raise problem(RangeError, "ConstantLR", f"factor {factor}", "a number in [0, 1]")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1.0 / self.factor) if self.last_epoch == self.total_iters else self._present()

    def _get_closed_form_lr(self) -> list[float]:
        factor = self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor)
        return [base * factor for base in self.base_lrs]


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
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        slope = self.end_factor - self.start_factor
        return self._scaled(1.0 + slope / (self.total_iters * self.start_factor + (self.last_epoch - 1) * slope))

    def _get_closed_form_lr(self) -> list[float]:
        slope = self.end_factor - self.start_factor
        factor = self.start_factor + slope * min(self.total_iters, self.last_epoch) / self.total_iters
        return [base * factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """η₀·gammaᵗ."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1):
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return self._present() if self._is_initial else self._scaled(self.gamma)

    def _get_closed_form_lr(self) -> list[float]:
        return [base * self.gamma**self.last_epoch for base in self.base_lrs]


class PolynomialLR(LRScheduler):
    """η₀·(1 - min(t, T)/T)^power, with T = total_iters."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1):
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        now, before = (1.0 - step / self.total_iters for step in (self.last_epoch, self.last_epoch - 1))
        return self._scaled((now / before) ** self.power)

    def _get_closed_form_lr(self) -> list[float]:
        share = (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power
        return [base * share for base in self.base_lrs]


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


class CosineAnnealingWarmRestarts(LRScheduler):
    """CosineAnnealingLR that starts anew after T_0 steps, then after T_0·T_mult, ... `step(epoch)` takes fractions."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1):
        if not isinstance(T_0, int) or T_0 <= 0:
            raise problem(RangeError, "CosineAnnealingWarmRestarts", f"T_0 {T_0!r}", "an integer above 0")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise problem(RangeError, "CosineAnnealingWarmRestarts", f"T_mult {T_mult!r}", "an integer of at least 1")
        self.T_0 = self.T_i = T_0
        self.T_mult, self.eta_min = T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        share = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return [self.eta_min + (base - self.eta_min) * share / 2 for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go to the next step, or to the moment `epoch`, which may be a fraction."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        else:
            self._restart_at(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _restart_at(self, epoch: float) -> None:
        if epoch < 0:
            raise problem(RangeError, "CosineAnnealingWarmRestarts", f"epoch {epoch}", "a number of at least 0")
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            cycle = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**cycle - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**cycle


class _WithMomentum(LRScheduler):
    """What CyclicLR and OneCycleLR share: the momentum (or the first of `betas`) goes the other way."""

    use_beta1: bool

    def _begin_momentum(self, base: Any, largest: Any, last_epoch: int) -> tuple[list[float], list[float]]:
        name, defaults = type(self).__name__, self.optimizer.defaults
        if "momentum" not in defaults and "betas" not in defaults:
            given = f"{type(self.optimizer).__name__}, which has no momentum, and cycle_momentum=True"
            raise problem(GraphError, name, given, "an optimizer with momentum or betas", "set cycle_momentum=False")
        self.use_beta1 = "betas" in defaults
        bases = per_group(f"{name}: base_momentum", self.optimizer, base)
        tops = per_group(f"{name}: max_momentum", self.optimizer, largest)
        if last_epoch == -1:
            for low, high, group in zip(bases, tops, self.optimizer.param_groups, strict=True):
                self._set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low
        return bases, tops

    def _set_momentum(self, group: Any, value: float) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(_WithMomentum):
    """From base_lr to max_lr in `step_size_up` steps, back in `step_size_down`, again and again (Smith 2017). The
    height is the same in each cycle ("triangular"), halves ("triangular2"), or is gammaᵗ ("exp_range"); or `scale_fn`
    tells it, of the cycle or the step ("iterations")."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ):
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            expected = "'triangular', 'triangular2' or 'exp_range', or a scale_fn"
            raise problem(RangeError, "CyclicLR", f"mode {mode!r}", expected)
        base_lrs = per_group("CyclicLR: base_lr", optimizer, base_lr)
        self.optimizer = optimizer
        if last_epoch == -1:
            for rate, group in zip(base_lrs, optimizer.param_groups, strict=True):
                group["lr"] = rate
        self.max_lrs = per_group("CyclicLR: max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The height of cycle (or step) number x."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular2":
            return 1 / 2.0 ** (x - 1)
        return self.gamma**x if self.mode == "exp_range" else 1.0

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        share = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            ends = zip(self.base_momentums, self.max_momentums, self.optimizer.param_groups, strict=True)
            for low, high, group in ends:
                self._set_momentum(group, high - (high - low) * share * height)
        return [low + (high - low) * share * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_scale_fn_custom": _attributes(self._scale_fn_custom)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_scale_fn_custom"})
        if state_dict.get("_scale_fn_custom") is not None:
            self._scale_fn_custom.__dict__.update(state_dict["_scale_fn_custom"])


class OneCycleLR(_WithMomentum):
    """Up from max_lr / div_factor to max_lr during the first `pct_start` of the steps, then down to a
    `final_div_factor`th of where it began (Smith and Topin 2018); with `three_phase`, down to the beginning first.

    >>> scheduler = weft.optim.lr_scheduler.OneCycleLR(
    ...     weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0, momentum=0.9), max_lr=1.0, total_steps=10
    ... )
    >>> rates = []
    >>> for _ in range(9):
    ...     scheduler.step()
    ...     rates += scheduler.get_last_lr()
    >>> max(rates)
    1.0
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ):
        _check_optimizer("OneCycleLR", optimizer)
        self.optimizer = optimizer
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise problem(RangeError, "OneCycleLR", "no number of steps", "total_steps, or epochs and steps_per_epoch")
        counts = (total_steps,) if total_steps is not None else (epochs, steps_per_epoch)
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise problem(RangeError, "OneCycleLR", f"{counts} steps", "integers above 0")
        self.total_steps: int = math.prod(counts)  # type: ignore[arg-type]
        if not isinstance(pct_start, float) or not 0.0 <= pct_start <= 1.0:
            raise problem(RangeError, "OneCycleLR", f"pct_start {pct_start!r}", "a float in [0, 1]")
        if anneal_strategy not in ("cos", "linear"):
            raise problem(RangeError, "OneCycleLR", f"anneal_strategy {anneal_strategy!r}", "'cos' or 'linear'")
        self._anneal_func_type = anneal_strategy
        up, end = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        # Where a phase ends, and of the rate and of the momentum what it begins and ends with.
        rise = _phase(up, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        if three_phase:
            middle = float(2 * pct_start * self.total_steps) - 2
            fall = _phase(middle, "max_lr", "initial_lr", "base_momentum", "max_momentum")
            last = _phase(end, "initial_lr", "min_lr", "max_momentum", "max_momentum")
            self._schedule_phases = [rise, fall, last]
        else:
            self._schedule_phases = [rise, _phase(end, "max_lr", "min_lr", "base_momentum", "max_momentum")]
        if last_epoch == -1:
            tops = per_group("OneCycleLR: max_lr", optimizer, max_lr)
            for top, group in zip(tops, optimizer.param_groups, strict=True):
                group["initial_lr"], group["max_lr"] = top / div_factor, top
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            raise problem(RangeError, "OneCycleLR.step", f"step {step}", f"at most {self.total_steps} steps")
        begin = 0.0
        for phase in self._schedule_phases:
            if step <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            begin = phase["end_step"]
        share = (step - begin) / (phase["end_step"] - begin)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                ends = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._set_momentum(group, self._between(*ends, share))
        return [self._between(group[phase["start_lr"]], group[phase["end_lr"]], share) for group in groups]


def _phase(end: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
    rates = {"end_step": end, "start_lr": start_lr, "end_lr": end_lr}
    return {**rates, "start_momentum": start_momentum, "end_momentum": end_momentum}


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


class ChainedScheduler(_WithSchedulers):
    """All schedulers in each step, one after the other."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None):
        self.optimizer = self._check_schedulers(schedulers, optimizer)
        self._schedulers = list(schedulers)
        self._last_lr = self._present()

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._present()


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
            self.after.last_epoch = -1
            self.after._initial_step()
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
