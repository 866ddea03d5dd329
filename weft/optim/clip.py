"""Gradient clipping over all gradients as one vector, as torch.nn.utils."""

from __future__ import annotations

from collections.abc import Iterable

import weft
from weft.errors import GraphError, problem
from weft.optim.flat import buckets, join, split
from weft.tensor import Tensor


def clip_grad_norm_(params: Tensor | Iterable[Tensor], max_norm: float, error_if_nonfinite: bool = False) -> Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)); returns the norm, which stays on the device.

    >>> import weft
    >>> w = weft.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w / 2).sum().backward()
    >>> weft.optim.clip_grad_norm_([w], 1.0).item()
    5.0
    >>> round(float((w.grad * w.grad).sum()), 4)
    1.0
    """
    with weft.no_grad():
        grads = _grads(params)
        if not grads:
            return weft.zeros(())
        groups = [[grads[k] for k in positions] for positions in buckets(grads)]
        flats = [join(group) for group in groups]
        flats = [flat.float() if flat.dtype.is_narrow else flat for flat in flats]  # squares leave float16 soon
        total = sum([(flat * flat).sum() for flat in flats[1:]], (flats[0] * flats[0]).sum())
        norm = total.sqrt()
        if error_if_nonfinite and not bool(norm.isfinite()):
            raise problem(
                GraphError,
                "clip_grad_norm_",
                "gradients whose norm is not finite",
                "finite gradients",
                "look for NaN or Inf",
            )
        scale = (max_norm / (norm + 1e-6)).minimum(1.0)
        for group, flat in zip(groups, flats, strict=True):
            _assign(group, flat * scale)
        return norm


def clip_grad_value_(params: Tensor | Iterable[Tensor], clip_value: float | tuple[float, float]) -> None:
    """Clamp every element of all gradients to [-clip_value, clip_value], or to (low, high)."""
    low, high = clip_value if isinstance(clip_value, tuple) else (-clip_value, clip_value)
    with weft.no_grad():
        grads = _grads(params)
        for positions in buckets(grads):
            group = [grads[k] for k in positions]
            _assign(group, join(group).clamp(low, high))


def _grads(params: Tensor | Iterable[Tensor]) -> list[Tensor]:
    every = [params] if isinstance(params, Tensor) else list(params)
    return [param.grad for param in every if param.grad is not None]


def _assign(tensors: list[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, split(flat.to(tensors[0].dtype), tensors), strict=True):
        tensor._assign(part.node)
