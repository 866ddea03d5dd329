"""Whether a model runs on a device, and which of its layers prevent it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.base.errors import DeviceError
from weft.core.device import get
from weft.nn.module import Module


@dataclass(frozen=True)
class Support:
    """The answer of `supports`: true where nothing prevents it, else with the reason per layer, by path."""

    device: str
    training: bool
    reasons: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        what = "trains" if self.training else "runs"
        if self:
            return f"{what} on {self.device}"
        lines = [f"  {path or 'the model'}: {reason}" for path, reason in self.reasons.items()]
        return "\n".join([f"does not {'train' if self.training else 'run'} on {self.device}:", *lines])

    __repr__ = __str__


def supports(module: Module, device: Any = "cpu", training: bool = True) -> Support:
    """Whether `module` can run on a device, with gradients and updates if `training`. The answer is true or false, and
    has the layers that prevent it with the reasons.

    A layer prevents it by its method `prevents(device, training)`, which returns a reason, or None.

    >>> weft.nn.Linear(2, 2).supports("cpu")
    trains on cpu
    """
    try:
        target = get(device)
    except DeviceError as error:
        return Support(str(device), training, {"": str(error)})
    reasons = {
        path: reason for path, part in module.named_modules() if (reason := part.prevents(target, training)) is not None
    }
    return Support(str(target), training, reasons)
