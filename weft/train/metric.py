"""Metric: a number about predictions that adds up on the device; and the mean of values.

`update` is tensor code that writes buffers in place, so it can be a part of the compiled step; `compute` is tensor
code, too, and its result is read when it is shown. Buffers are made by the first update, when shapes are known.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import weft
from weft.base.errors import ShapeError, problem
from weft.core.tensor import Tensor
from weft.optim.buckets import outside_of_traces

__all__ = ["Mean", "Metric"]


class Metric(abc.ABC):
    """Base class. A metric of one's own sets `name`, and defines `update` on `self.buffer(...)`s and `compute`; with
    `higher_is_better` callbacks that monitor it know the direction. It may be composed of other metrics: those among
    its attributes, also in lists and dicts, are reset, saved and copied with it.

    >>> class LargestError(weft.train.Metric):
    ...     name, higher_is_better = "largest error", False
    ...
    ...     def update(self, prediction, target):
    ...         largest = self.buffer("largest", (), weft.float32, prediction.device)
    ...         largest.copy_(largest.maximum((prediction - target).abs().max()))
    ...
    ...     def compute(self):
    ...         return self.buffers["largest"]
    >>> metric = LargestError()
    >>> metric.update(weft.tensor([1.0, 5.0]), weft.tensor([1.0, 2.0]))
    >>> metric.compute().item()
    3.0
    """

    name = ""
    higher_is_better: bool | None = None  # None: unknown, so a callback that monitors it needs mode=

    def __init__(self, name: str | None = None):
        self.name = name or type(self).name or type(self).__name__.lower()
        self.buffers: dict[str, Tensor] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    @abc.abstractmethod
    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Take a batch into account. Called inside the compiled step, without gradients."""

    @abc.abstractmethod
    def compute(self) -> Tensor:
        """The value of everything since `reset`: a scalar, or a tensor of which each element is shown."""

    def buffer(self, name: str, shape: Sequence[int], dtype: Any, device: Any) -> Tensor:
        """A tensor that is kept between updates and begins as zeros."""
        found = self.buffers.get(name)
        if found is None:
            with outside_of_traces():
                found = weft.zeros(tuple(shape), dtype=dtype, device=device)
                found.name = f"{self.name} {name}"
                weft.eval(found)
            self.buffers[name] = found
        elif found.shape != tuple(shape):
            given = f"a batch that asks for {name!r} of shape {list(shape)} after one of {list(found.shape)}"
            raise problem(ShapeError, f"metric {self.name}", given, "batches with as many classes", "call reset()")
        return found

    def parts(self) -> dict[str, Metric]:
        """The metrics that this one is composed of, by the names of their attributes."""
        return {path: one for name, value in vars(self).items() for path, one in _metrics_in(name, value)}

    def all_buffers(self) -> dict[str, Tensor]:
        """The buffers of this metric and, as `attribute.name`, of those that it is composed of; each tensor once."""
        found = dict(self.buffers)
        for path, part in self.parts().items():
            known = set(map(id, found.values()))
            found |= {f"{path}.{name}": one for name, one in part.all_buffers().items() if id(one) not in known}
        return found

    def reset(self) -> None:
        """Forget all batches; the buffers keep their places."""
        with weft.no_grad():
            for buffer in self.all_buffers().values():
                buffer.zero_()

    def fresh(self) -> Metric:
        """The same metric without batches and buffers of its own, for other data."""
        made = copy.copy(self)
        made.__dict__.update({name: _without_buffers(value) for name, value in vars(self).items()})
        made.buffers = {}
        shared = [path for path, part in self.parts().items() if part.buffers is self.buffers]
        for path in shared:  # a metric that is known by the buffers of one of its parts
            made.buffers = made.parts()[path].buffers
        return made

    def state_dict(self) -> dict[str, Any]:
        """The buffers."""
        return {name: value.clone() for name, value in weft.snapshot(self.all_buffers()).items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], device: Any = None) -> None:
        """Take over what `state_dict` returned."""
        own = dict(state_dict)
        for path, part in self.parts().items():
            prefix = f"{path}."
            inner = {name.removeprefix(prefix): own.pop(name) for name in list(own) if name.startswith(prefix)}
            part.load_state_dict(inner, device)
        with weft.no_grad():
            for name, value in own.items():
                given = weft.as_tensor(value, device=device)
                self.buffer(name, given.shape, given.dtype, given.device).copy_(given)
            for name in set(self.buffers) - set(own):
                self.buffers[name].zero_()


def _metrics_in(path: str, value: Any) -> Iterator[tuple[str, Metric]]:
    """Metrics in an attribute of a metric, which may be a list, tuple or dict of them."""
    if isinstance(value, Metric):
        yield path, value
    elif isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from _metrics_in(f"{path}.{key}", one)


def _without_buffers(value: Any) -> Any:
    """An attribute of a metric for its copy: metrics inside are copied without their buffers."""
    if isinstance(value, Metric):
        return value.fresh()
    if isinstance(value, dict) and any(_metrics_in("", value)):
        return {key: _without_buffers(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and any(_metrics_in("", value)):
        made = [_without_buffers(one) for one in value]
        return tuple(made) if isinstance(value, tuple) else made
    return value


def _add(total: Tensor, rest: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A sum and what rounding took from it, after a value was added: Kahan's summation, so that a million batches count
    alike."""
    corrected = value - rest
    new = total + corrected
    return new, (new - total) - corrected


def float_like(value: Tensor) -> Any:
    return weft.float64 if value.dtype is weft.float64 else weft.float32


class Mean(Metric):
    """The mean of numbers, each weighted by how many samples it stands for.

    >>> mean = Mean("loss")
    >>> mean.add(weft.tensor(1.0), 30)
    >>> mean.add(weft.tensor(4.0), 10)
    >>> mean.compute().item()
    1.75
    """

    name = "mean"

    def add(self, value: Tensor, weight: float | Tensor = 1.0, last: Tensor | None = None) -> None:
        """Take a number into account `weight` times. `last` is what `last()` is to be, if not the number."""
        dtype = float_like(value)
        value, last = value.to(dtype), (value if last is None else last).to(dtype)
        if not isinstance(weight, Tensor):
            weight = weft.full((), weight, dtype=dtype, device=value.device)
        sums = self.buffer("sums", (5,), dtype, value.device)  # one vector, so that an update is one kernel
        total, weights = _add(sums[0], sums[1], value * weight), _add(sums[2], sums[3], weight.to(dtype))
        sums.copy_(weft.stack([*total, *weights, last]))

    def last(self) -> Tensor:
        """The number that was added last."""
        return self.buffers["sums"][4]

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """The mean of the predictions themselves."""
        self.add(prediction.mean(), prediction.numel())

    def compute(self) -> Tensor:
        sums = self.buffers["sums"]
        return sums[0] / sums[2]
