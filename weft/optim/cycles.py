"""Learning-rate schedules that go up and down: warm restarts, cycles, one cycle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from weft.base.errors import GraphError, RangeError, problem
from weft.core.boundary import entry_point
from weft.optim.optimizer import Optimizer
from weft.optim.scheduler import LRScheduler, _attributes, _check_optimizer, per_group


@entry_point
class CosineAnnealingWarmRestarts(LRScheduler):
    """CosineAnnealingLR that starts over after T_0 steps, then after T_0·T_mult, ... `step(epoch)` takes fractions."""

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


@entry_point
class CyclicLR(_WithMomentum):
    """From base_lr to max_lr in `step_size_up` steps, back in `step_size_down`, again and again (Smith 2017). The
    height is the same in each cycle ("triangular"), halves ("triangular2"), or is gammaᵗ ("exp_range"); or `scale_fn`
    says, of the cycle or the step ("iterations")."""

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


@entry_point
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

    def _interpolate(self, start: float, end: float, share: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)
        return (end - start) * share + start

    def get_lr(self) -> list[float]:
        step = self.last_epoch
        if step > self.total_steps:
            fix = "let total_steps be epochs * len(loader)"
            raise problem(RangeError, "OneCycleLR.step", f"step {step}", f"at most {self.total_steps} steps", fix)
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
                self._set_momentum(group, self._interpolate(*ends, share))
        return [self._interpolate(group[phase["start_lr"]], group[phase["end_lr"]], share) for group in groups]


def _phase(end: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
    rates = {"end_step": end, "start_lr": start_lr, "end_lr": end_lr}
    return {**rates, "start_momentum": start_momentum, "end_momentum": end_momentum}
