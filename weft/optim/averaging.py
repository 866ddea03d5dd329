"""Averages of weights over the steps of a training: exponential (EMA) and equally weighted (SWA).

Both keep tensors beside those they follow. `update()` writes them in place, as one kernel, and may be a part of a
compiled step. `swa_utils` has PyTorch's interface to the same.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import weft
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.flat import assign, buckets, join, pack, widen

__all__ = ["ExponentialMovingAverage", "StochasticWeightAverage"]


def blend_(averages: Sequence[Tensor], currents: Sequence[Tensor], weight: Tensor | float) -> None:
    """averages += weight * (currents - averages), in place: one kernel for all tensors of one dtype and device."""
    with weft.no_grad():
        for positions in buckets(averages):
            chosen = [averages[k] for k in positions]
            old = join([tensor.detach() for tensor in chosen])
            new = join([currents[k].detach().to(old.device) for k in positions]).to(old.dtype)
            share = weight.to(device=old.device) if isinstance(weight, Tensor) else weight
            work = weft.float32 if old.dtype.is_16_bit or old.dtype.kind != "f" else old.dtype
            share = share.to(work) if isinstance(share, Tensor) else share
            mixed = old.to(work).lerp(new.to(work), share).to(old.dtype)
            assign_now(chosen, mixed)


def assign_now(tensors: Sequence[Tensor], flat: Tensor) -> None:
    """Write the parts of a flat vector to tensors, in place; outside of traces it is computed first."""
    if STATE.trace is None:
        weft.eval(flat)
    assign(tensors, flat)


@entry_point
class _Average(abc.ABC):
    """Tensors that follow others. 16-bit tensors are averaged in float32."""

    def __init__(self, tensors: Iterable[Any]):
        given = list(tensors)
        self.tensors: list[Tensor] = [each[1] if isinstance(each, tuple) else each for each in given]
        if not self.tensors:
            raise problem(GraphError, type(self).__name__, "no tensors", "at least one", "pass model.parameters()")
        is_wide = any(tensor.dtype is weft.float64 for tensor in self.tensors)
        dtype = weft.float64 if is_wide else weft.float32
        with weft.no_grad():
            self.averages = [widen(tensor.detach()).clone() for tensor in self.tensors]
            self.count = weft.zeros((), dtype=dtype, device=self.tensors[0].device)
            weft.eval(self.count, *self.averages)
            for positions in buckets(self.averages):
                pack([self.averages[k] for k in positions])

    @abc.abstractmethod
    def _weight(self) -> Tensor:
        """The share of the newest values."""

    def update(self) -> None:
        """Take the present values into the averages. The first call copies them."""
        with weft.no_grad():
            blend_(self.averages, self.tensors, weft.where(self.count == 0.0, 1.0, self._weight()))
            self.count._assign((self.count + 1.0).node)
            if STATE.trace is None:
                weft.eval(self.count)

    def copy_to(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Write the averages to the tensors that they follow, or to others of the same shapes."""
        with weft.no_grad():
            targets = self.tensors if tensors is None else list(tensors)
            if [tensor.shape for tensor in targets] != [tensor.shape for tensor in self.averages]:
                raise problem(ShapeError, "copy_to", "tensors of other shapes", "as many tensors of the same shapes")
            for target, average in zip(targets, self.averages, strict=True):
                target.copy_(average.to(device=target.device, dtype=target.dtype))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the tensors have their averages as values: `with ema.applied(): evaluate(model)`."""
        with weft.no_grad():
            saved = [tensor.detach().clone() for tensor in self.tensors]
            weft.eval(*saved)
        self.copy_to()
        try:
            yield
        finally:
            with weft.no_grad():
                for tensor, value in zip(self.tensors, saved, strict=True):
                    tensor.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        """The averages and how many updates they have."""
        averages, count = weft.snapshot((self.averages, self.count))
        return {"averages": [average.clone() for average in averages], "count": count.clone()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        saved = state_dict["averages"]
        if [tuple(value.shape) for value in saved] != [tuple(value.shape) for value in self.averages]:
            raise problem(ShapeError, "load_state_dict", "averages of other shapes", "as many of the same shapes")
        with weft.no_grad():
            for average, value in zip([*self.averages, self.count], [*saved, state_dict["count"]], strict=True):
                average.copy_(weft.as_tensor(value, device=average.device))


@entry_point
class ExponentialMovingAverage(_Average):
    """a = decay·a + (1-decay)·θ with each `update()`; the first copies θ. `decay` may be set between steps.

    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> ema = weft.optim.ExponentialMovingAverage([w], decay=0.75)
    >>> ema.update()
    >>> w.data = weft.tensor([5.0])
    >>> ema.update()
    >>> ema.averages[0].tolist()
    [2.0]
    >>> with ema.applied():
    ...     print(w.tolist())
    [2.0]
    >>> w.tolist()
    [5.0]
    """

    def __init__(self, tensors: Iterable[Any], decay: float = 0.999):
        super().__init__(tensors)
        self._decay = weft.zeros_like(self.count)
        self.decay = decay

    @property
    def decay(self) -> float:
        return self._decay.item()

    @decay.setter
    def decay(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise problem(RangeError, "ExponentialMovingAverage", f"decay {value}", "a number in [0, 1]", "try 0.999")
        with weft.no_grad():
            self._decay.fill_(value)

    def _weight(self) -> Tensor:
        return 1.0 - self._decay


@entry_point
class StochasticWeightAverage(_Average):
    """The mean of all values that `update()` saw (Izmailov et al. 2018): a += (θ - a)/(n + 1).

    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> swa = weft.optim.StochasticWeightAverage([w])
    >>> for value in (1.0, 2.0, 6.0):
    ...     w.data = weft.tensor([value])
    ...     swa.update()
    >>> swa.averages[0].tolist()
    [3.0]
    """

    def _weight(self) -> Tensor:
        return 1.0 / (self.count + 1.0)
