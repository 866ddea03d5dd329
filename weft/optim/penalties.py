"""Regularisation: penalty terms for a loss, and parameters with and without weight decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import weft
from weft.base.errors import GraphError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.flat import as_list, buckets, join

__all__ = ["elastic_penalty", "l1_penalty", "l2_penalty", "split_decay"]


@entry_point
def l1_penalty(parameters: Tensor | Iterable[Tensor], lam: float) -> Tensor:
    """λΣ|θ|, to be added to a loss; its gradient is λ·sign(θ), 0 at 0.

    >>> weft.optim.l1_penalty([weft.tensor([1.0, -2.0])], 0.5).item()
    1.5
    """
    return lam * _total(parameters, lambda flat: flat.abs().sum())


@entry_point
def l2_penalty(parameters: Tensor | Iterable[Tensor], lam: float) -> Tensor:
    """½λΣθ², to be added to a loss; its gradient is λθ, as weight_decay=λ has it in SGD.

    >>> weft.optim.l2_penalty([weft.tensor([1.0, -2.0])], 0.5).item()
    1.25
    """
    return 0.5 * lam * _total(parameters, lambda flat: (flat * flat).sum())


@entry_point
def elastic_penalty(parameters: Tensor | Iterable[Tensor], l1: float, l2: float) -> Tensor:
    """Both: l1·Σ|θ| + ½·l2·Σθ².

    >>> weft.optim.elastic_penalty([weft.tensor([1.0, -2.0])], 0.5, 0.5).item()
    2.75
    """
    every = as_list(parameters)
    return l1_penalty(every, l1) + l2_penalty(every, l2)


def _total(parameters: Tensor | Iterable[Tensor], term: Callable[[Tensor], Tensor]) -> Tensor:
    every = as_list(parameters)
    if not every:
        return weft.zeros(())
    terms = [term(join([every[k] for k in positions])) for positions in buckets(every)]
    return sum(terms[1:], terms[0])


@entry_point
def split_decay(model: Any, weight_decay: float, no_decay: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: matrices and larger tensors with `weight_decay`; biases, scales of norms and
    whatever else has at most one axis without, and so those whose names contain one of `no_decay`.

    `model` is a module, or an iterable of (name, tensor) pairs or of tensors.

    >>> named = [("weight", weft.ones(2, 2, requires_grad=True)), ("bias", weft.ones(2, requires_grad=True))]
    >>> optimizer = weft.optim.AdamW(weft.optim.split_decay(named, 0.1), lr=1e-3)
    >>> [(group["param_names"], group["weight_decay"]) for group in optimizer.param_groups]
    [(['weight'], 0.1), (['bias'], 0.0)]
    """
    every = list(model.named_parameters() if hasattr(model, "named_parameters") else model)
    parts = tuple([no_decay] if isinstance(no_decay, str) else no_decay)
    decayed: list[Any] = []
    rest: list[Any] = []
    for param in every:
        name, tensor = param if isinstance(param, tuple) else ("", param)
        if not isinstance(tensor, Tensor):
            raise problem(GraphError, "split_decay", f"a {type(tensor).__name__}", "a module, pairs or tensors")
        is_decayed = tensor.ndim > 1 and not any(part in name for part in parts)
        (decayed if is_decayed else rest).append(param)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
