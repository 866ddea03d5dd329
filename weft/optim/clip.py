"""Gradient clipping over all gradients as one vector, as torch.nn.utils. `foreach` is accepted and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import weft
from weft.base.errors import GraphError, problem
from weft.base.state import STATE
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.flat import as_list, assign, buckets, join, widen

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


@entry_point
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)); returns the norm, which stays on the device.

    >>> import weft
    >>> w = weft.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w / 2).sum().backward()
    >>> weft.optim.clip_grad_norm_([w], 1.0).item()
    5.0
    >>> round(float((w.grad * w.grad).sum()), 4)
    1.0
    """
    grads = _grads(parameters)
    norm = _total_norm("clip_grad_norm_", grads, norm_type, error_if_nonfinite)
    _scale(grads, max_norm, norm)
    return norm


@entry_point
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors as one vector: (Σ|x|^p)^(1/p), or the largest |x| for norm_type=inf.

    >>> weft.optim.get_total_norm([weft.tensor([3.0]), weft.tensor([4.0])]).item()
    5.0
    """
    return _total_norm("get_total_norm", as_list(tensors), norm_type, error_if_nonfinite)


@entry_point
def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients by min(1, max_norm / (total_norm + 1e-6)), with a norm that was computed before.

    >>> w = weft.ones(2, requires_grad=True)
    >>> (w * 4.0).sum().backward()
    >>> weft.optim.clip_grads_with_norm_(w, 1.0, weft.tensor(2.0))
    >>> [round(value, 4) for value in w.grad.tolist()]
    [2.0, 2.0]
    """
    _scale(_grads(parameters), max_norm, total_norm)


@entry_point
def clip_grad_value_(
    parameters: Tensor | Iterable[Tensor], clip_value: float | tuple[float, float], foreach: bool | None = None
) -> None:
    """Clamp every element of all gradients to [-clip_value, clip_value], or to (low, high)."""
    low, high = clip_value if isinstance(clip_value, tuple) else (-clip_value, clip_value)
    with weft.no_grad():
        grads = _grads(parameters)
        for positions in buckets(grads):
            group = [grads[k] for k in positions]
            assign(group, join(group).clamp(low, high))


def _total_norm(who: str, tensors: list[Tensor], norm_type: float, error_if_nonfinite: bool) -> Tensor:
    if not tensors:
        return weft.zeros(())
    order = float(norm_type)
    with weft.no_grad():
        device = tensors[0].device
        flats = [widen(join([tensors[k] for k in positions])) for positions in buckets(tensors)]
        if order == 2.0:
            sums = [(flat * flat).sum().to(device) for flat in flats]
            norm = sum(sums[1:], sums[0]).sqrt()
        elif math.isinf(order):
            ends = [(flat.abs().amax() if order > 0 else flat.abs().amin()).to(device) for flat in flats]
            norm = weft.stack(ends).amax() if order > 0 else weft.stack(ends).amin()
        elif order == 0.0:  # of the tensors' own norms, as torch: how many tensors are not zero everywhere
            norm = sum([(tensor != 0.0).any().to(device).to(flats[0].dtype) for tensor in tensors], weft.zeros(()))
        else:
            sums = [(flat.abs() ** order).sum().to(device) for flat in flats]
            norm = sum(sums[1:], sums[0]) ** (1.0 / order)
        if error_if_nonfinite and STATE.trace is not None:
            given = f"error_if_nonfinite=True inside {STATE.trace.where}, where no value is known"
            fix = "leave it away and check the norm that is returned, outside"
            raise problem(GraphError, who, given, "error_if_nonfinite=False", fix)
        if error_if_nonfinite and not bool(norm.isfinite()):
            given = "gradients whose norm is not finite"
            raise problem(GraphError, who, given, "finite gradients", "look for NaN or Inf")
        return norm


def _scale(grads: list[Tensor], max_norm: float, norm: Tensor) -> None:
    with weft.no_grad():
        for positions in buckets(grads):
            group = [grads[k] for k in positions]
            flat = widen(join(group))
            scale = (max_norm / (norm.to(flat.device) + 1e-6)).minimum(1.0)
            assign(group, flat * scale)


def _grads(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    return [param.grad for param in as_list(parameters) if param.grad is not None]
