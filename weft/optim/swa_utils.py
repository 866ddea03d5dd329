"""Averaged models under PyTorch's names (torch.optim.swa_utils)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import weft
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.averaging import blend_
from weft.optim.lr_scheduler import LRScheduler, per_group
from weft.optim.optimizer import Optimizer

if TYPE_CHECKING:
    from weft.optim.averaged_model import AveragedModel, update_bn

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]

Average = Callable[[Tensor, Tensor, Any], Tensor]
MultiAverage = Callable[[Sequence[Tensor], Sequence[Tensor], Any], None]


def __getattr__(name: str) -> Any:
    """What needs layers, which are loaded when they are first used."""
    if name not in ("AveragedModel", "update_bn"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weft.optim import averaged_model

    return getattr(averaged_model, name)


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise problem(RangeError, "swa_utils", f"decay {decay}", "a number in [0, 1]", "try 0.999")


@entry_point
def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """A function that blends lists of tensors in place: a = decay·a + (1-decay)·θ.

    >>> average, current = weft.zeros(1), weft.ones(1)
    >>> weft.optim.swa_utils.get_ema_multi_avg_fn(0.75)([average], [current], 1)
    >>> average.item()
    0.25
    """
    _check_decay(decay)

    def ema_update(averages: Sequence[Tensor], currents: Sequence[Tensor], num_averaged: Any) -> None:
        blend_(averages, currents, 1.0 - decay)

    return ema_update


@entry_point
def get_swa_multi_avg_fn() -> MultiAverage:
    """A function that blends lists of tensors in place: a += (θ - a)/(num_averaged + 1).

    >>> average, current = weft.zeros(1), weft.ones(1)
    >>> weft.optim.swa_utils.get_swa_multi_avg_fn()([average], [current], 3)
    >>> average.item()
    0.25
    """

    def swa_update(averages: Sequence[Tensor], currents: Sequence[Tensor], num_averaged: Any) -> None:
        count = num_averaged.double() if isinstance(num_averaged, Tensor) else num_averaged
        blend_(averages, currents, 1.0 / (count + 1))

    return swa_update


@entry_point
def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """A function that returns decay·a + (1-decay)·θ.

    >>> weft.optim.swa_utils.get_ema_avg_fn(0.75)(weft.zeros(1), weft.ones(1), 1).item()
    0.25
    """
    _check_decay(decay)

    def ema_update(average: Tensor, current: Tensor, num_averaged: Any) -> Tensor:
        with weft.no_grad():
            return decay * average + (1.0 - decay) * current

    return ema_update


@entry_point
def get_swa_avg_fn() -> Average:
    """A function that returns a + (θ - a)/(num_averaged + 1).

    >>> weft.optim.swa_utils.get_swa_avg_fn()(weft.zeros(1), weft.ones(1), 3).item()
    0.25
    """

    def swa_update(average: Tensor, current: Tensor, num_averaged: Any) -> Tensor:
        with weft.no_grad():
            return average + (current - average) / (num_averaged + 1)

    return swa_update


@entry_point
class SWALR(LRScheduler):
    """From the present rate to `swa_lr` within `anneal_epochs` steps, by a cosine or a line; then it stays.

    >>> optimizer = weft.optim.SGD([weft.ones(1, requires_grad=True)], lr=1.0)
    >>> scheduler = weft.optim.swa_utils.SWALR(optimizer, swa_lr=0.5, anneal_epochs=2, anneal_strategy="linear")
    >>> rates = []
    >>> for _ in range(3):
    ...     scheduler.step()
    ...     rates += scheduler.get_last_lr()
    >>> rates
    [0.75, 0.5, 0.5]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ):
        for rate, group in zip(per_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise problem(RangeError, "SWALR", f"anneal_strategy {anneal_strategy!r}", "'cos' or 'linear'")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise problem(RangeError, "SWALR", f"anneal_epochs {anneal_epochs!r}", "an integer of at least 0")
        self._strategy = anneal_strategy
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self._strategy == "linear" else (1.0 - math.cos(math.pi * t)) / 2.0

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            first = group["swa_lr"] if before == 1 else (group["lr"] - before * group["swa_lr"]) / (1 - before)
            rates.append(group["swa_lr"] * now + first * (1 - now))
        return rates
