"""Normalisation with running statistics: `batch_norm` and `instance_norm`, which write to the tensors they are given.

In training the batch's own statistics are used, and the running ones move towards them; otherwise these are used. The
writes are assignments to cells, so inside `weft.compile` they are part of the plan.
"""

from __future__ import annotations

from typing import Any

from weft.base.dtypes import float32
from weft.base.errors import GraphError, problem
from weft.core.creation import ones, zeros
from weft.core.lift import lift
from weft.core.realize import compute_with
from weft.core.tensor import Tensor
from weft.ops import batchnorm
from weft.ops.registry import operation

_batch_training = lift(batchnorm.batch_norm_training)
_instance_training = lift(batchnorm.instance_norm_training)
_inference = lift(batchnorm.batch_norm_inference)


def _by_running(
    who: str,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    if running_mean is None or running_var is None:
        raise problem(GraphError, who, "no running statistics outside training", "running_mean and running_var")
    return _inference(input, running_mean, running_var, weight, bias, eps)


def _of_nothing(input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """An input without elements, which has no statistics: running ones stay, and the gradients of `weight` and `bias`
    are 0."""
    like: dict[str, Any] = {"device": input.device, "dtype": float32 if input.dtype.is_16_bit else input.dtype}
    return _inference(input, zeros(input.shape[1], **like), ones(input.shape[1], **like), weight, bias, eps)


def _update_statistics(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    value: Tensor,
    mean: Tensor,
    variance: Tensor,
) -> Tensor:
    """`value`; the running statistics move towards those that it was made with."""
    for running, new in ((running_mean, mean), (running_var, variance)):
        if running is not None:
            running.copy_(running * (1.0 - momentum) + (new.detach() * momentum).to(running.dtype))
    compute_with([running for running in (running_mean, running_var) if running is not None], value)
    return value


@operation("functional", of_tensors=True)
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """[N, C, ...] with each channel brought to mean 0 and variance 1, then scaled by `weight` and moved by `bias` [C].

    In training the statistics are those of the batch, and `running_mean` and `running_var`, if given, become
    (1 - momentum) times themselves plus momentum times these (the variance divided by count - 1). Otherwise the running
    statistics are used.

    >>> mean, var = weft.zeros(1), weft.ones(1)
    >>> weft.nn.functional.batch_norm(weft.tensor([[1.0], [3.0]]), mean, var, training=True, eps=0.0)
    tensor([[-1.],
            [ 1.]])
    >>> mean, var
    (tensor([0.2000]), tensor([1.1000]))
    """
    if not input.numel() and input.ndim < 2:
        return input.clone()
    if not training:
        return _by_running("batch_norm", input, running_mean, running_var, weight, bias, eps)
    if not input.numel():
        return _of_nothing(input, weight, bias, eps)
    return _update_statistics(running_mean, running_var, momentum, *_batch_training(input, weight, bias, eps))


@operation("functional", of_tensors=True)
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """[N, C, ...] with each channel of each sample brought to mean 0 and variance 1; the rest as in `batch_norm`."""
    if not use_input_stats:
        return _by_running("instance_norm", input, running_mean, running_var, weight, bias, eps)
    if not input.numel() and input.ndim > 1:
        return _of_nothing(input, weight, bias, eps)
    return _update_statistics(running_mean, running_var, momentum, *_instance_training(input, weight, bias, eps))
