"""Optimizers for large batches, whose rate depends on the norm of each parameter tensor: LARS and LAMB.

Norms are one reduction for each tensor and stay on the device; the update itself is one kernel over all tensors.
"""

from __future__ import annotations

import weft
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.adam import _moments
from weft.optim.checks import check_betas, check_numbers
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["LAMB", "LARS"]


def _norms(group: Group, flat: Tensor) -> list[Tensor]:
    """The Euclidean norm of each parameter's part of a flat vector."""
    return [(part * part).sum().sqrt() for part in group.split(flat)]


def _is_excluded(group: Group, tensor: Tensor) -> bool:
    return group.choice("exclude_1d") and tensor.ndim <= 1


@entry_point
class LARS(Optimizer):
    """Layer-wise adaptive rates (You, Gitman and Ginsburg 2017): r = trust·‖θ‖/(‖g‖ + λ‖θ‖ + ε), or 1 where a norm is
    0; v = μv + lr·r·(g + λθ); θ -= v. Tensors of at most one axis have r = 1 and no decay unless `exclude_1d=False`.

    >>> import weft
    >>> w = weft.tensor([[3.0, 4.0]], requires_grad=True)
    >>> optimizer = weft.optim.LARS([w], lr=1.0, trust=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.tolist()  # a tenth of the weights' norm, in the direction of the gradient
    [[2.700000047683716, 3.5999999046325684]]
    """

    hyper = ("lr", "momentum", "weight_decay", "trust", "eps")
    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0,
        trust: float = 1e-3,
        eps: float = 1e-8,
        exclude_1d: bool = True,
        *,
        maximize: bool = False,
    ):
        check_numbers("LARS", lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust, eps=eps)
        rates = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "eps": eps}
        super().__init__(params, {**rates, "exclude_1d": exclude_1d, "maximize": maximize})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        ratios: list[Tensor | float] = []
        decays: list[Tensor | float] = []
        for tensor, size, slope in zip(group.tensors, _norms(group, p), _norms(group, g), strict=True):
            if _is_excluded(group, tensor):
                ratios.append(1.0)
                decays.append(0.0)
                continue
            ratio = h["trust"] * size / (slope + h["weight_decay"] * size + h["eps"])
            ratios.append(weft.where((size == 0.0) | (slope == 0.0), 1.0, ratio))
            decays.append(h["weight_decay"])
        if group.choice("weight_decay"):
            g = g + group.spread(decays) * p
        velocity = h["momentum"] * state["momentum_buffer"] + h["lr"] * group.spread(ratios) * g
        return p - velocity, {"momentum_buffer": velocity}


@entry_point
class LAMB(Optimizer):
    """Layer-wise adaptive moments (You et al. 2020): u = m̂/(√v̂ + ε) + λθ with Adam's moments; r = ‖θ‖/‖u‖, or 1 where a
    norm is 0; θ -= lr·r·u. ‖θ‖ is at most `clamp`, if that is given. Tensors of at most one axis have r = 1 unless
    `exclude_1d=False`.

    >>> import weft
    >>> w = weft.tensor([[1.0, -1.0]], requires_grad=True)
    >>> optimizer = weft.optim.LAMB([w], lr=0.25, weight_decay=0.0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> [round(value, 4) for value in w[0].tolist()]
    [0.75, -0.75]
    """

    hyper = ("lr", "betas", "eps", "weight_decay", "clamp")
    optional = ("clamp",)
    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        exclude_1d: bool = True,
        clamp: float | None = None,
        *,
        maximize: bool = False,
    ):
        check_numbers("LAMB", lr=lr, eps=eps, weight_decay=weight_decay, clamp=clamp or 0.0)
        check_betas("LAMB", betas)
        rates = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "exclude_1d": exclude_1d, "clamp": clamp, "maximize": maximize})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        m, v = _moments(g, h, state)
        scale = 1.0 / (1.0 - h["betas2"] ** t).sqrt()
        u = m / (1.0 - h["betas1"] ** t) / (v.sqrt() * scale + h["eps"])
        if group.choice("weight_decay"):
            u = u + h["weight_decay"] * p
        ratios: list[Tensor | float] = []
        for tensor, size, length in zip(group.tensors, _norms(group, p), _norms(group, u), strict=True):
            if _is_excluded(group, tensor):
                ratios.append(1.0)
                continue
            size = size.minimum(h["clamp"]) if group.choice("clamp") else size
            ratios.append(weft.where((size == 0.0) | (length == 0.0), 1.0, size / length))
        return p - h["lr"] * group.spread(ratios) * u, {"exp_avg": m, "exp_avg_sq": v}
