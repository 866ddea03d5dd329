"""AveragedModel and update_bn of torch.optim.swa_utils: a copy of a model whose parameters are averages."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import weft
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.core.tensor import Tensor
from weft.nn.basic.batch_and_instance_norm import _BatchNorm
from weft.nn.module import Module
from weft.optim.averaging import assign_now
from weft.optim.flat import buckets, join
from weft.optim.swa_utils import get_swa_multi_avg_fn


class AveragedModel(Module):
    """A copy of `model` that follows it: `update_parameters(model)` takes its present parameters into the average, the
    first time as they are. The average is an equal one (SWA), or what `multi_avg_fn(averages, currents, count)` does to
    lists of tensors in place, or what `avg_fn(average, current, count)` returns. Buffers are copied, or averaged, too,
    with `use_buffers`. The update may be a part of a compiled step.

    >>> model = weft.nn.Linear(2, 1, bias=False)
    >>> ema = weft.optim.swa_utils.AveragedModel(model, multi_avg_fn=weft.optim.swa_utils.get_ema_multi_avg_fn(0.75))
    >>> for value in (1.0, 5.0):
    ...     model.weight.data = weft.full((1, 2), value)
    ...     ema.update_parameters(model)
    >>> ema.module.weight.tolist()
    [[2.0, 2.0]]
    >>> ema(weft.ones(1, 2)).item()
    4.0
    """

    n_averaged: Tensor

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Any = None,
        multi_avg_fn: Any = None,
        use_buffers: bool = False,
    ):
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise problem(GraphError, "AveragedModel", "avg_fn and multi_avg_fn", "one of them", "leave one away")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", weft.zeros((), dtype=weft.int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the averaged model computes."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the present parameters of `model` into the average."""
        averages: list[Tensor] = list(self.module.parameters())
        currents: list[Tensor] = list(model.parameters())
        kept, buffers_now = list(self.module.buffers()), list(model.buffers())
        with weft.no_grad():
            if self.use_buffers:
                averages, currents = [*averages, *kept], [*currents, *buffers_now]
            count = self.n_averaged
            for positions in buckets(averages):
                self._average([averages[k] for k in positions], [currents[k] for k in positions], count)
            if not self.use_buffers:
                for one, two in zip(kept, buffers_now, strict=True):
                    one.copy_(two.to(one.device))
            count.add_(1)

    def _average(self, averages: list[Tensor], currents: list[Tensor], count: Tensor) -> None:
        """Average tensors of one dtype and device; the first values replace what was there."""
        count = count.to(averages[0].device)
        currents = [tensor.detach().to(averages[0].device) for tensor in currents]
        if STATE.trace is None and not int(count):  # inside a compiled function the device decides, below
            assign_now(averages, join(currents).to(averages[0].dtype))
            return
        if self.avg_fn is not None:
            pairs = zip(averages, currents, strict=True)
            found = join([self.avg_fn(average.detach(), current, count) for average, current in pairs])
            found = found.to(averages[0].dtype)
        else:
            if self.multi_avg_fn is not None:
                self.multi_avg_fn(averages, currents, count)
            else:
                get_swa_multi_avg_fn()(averages, currents, count)
            found = join([average.detach() for average in averages])
        assign_now(averages, weft.where(count == 0, join(currents).to(found.dtype), found))


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the running statistics of all batch normalizations again, as averages over the batches of `loader` (each
    a tensor, or a list or tuple whose first item is one).

    >>> model = weft.nn.Sequential(weft.nn.BatchNorm1d(1))
    >>> weft.optim.swa_utils.update_bn([weft.tensor([[1.0], [3.0]]), weft.tensor([[5.0], [7.0]])], model)
    >>> model[0].running_mean.tolist()
    [4.0]
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta, was_training = [norm.momentum for norm in norms], model.training
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    with weft.no_grad():
        for batch in loader:
            batch = batch[0] if isinstance(batch, list | tuple) else batch
            model(batch if device is None else batch.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)
