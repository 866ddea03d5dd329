"""Stochastic gradient descent: SGD and ASGD as in torch.optim, and NAG.

The arguments `foreach`, `fused`, `capturable` and `differentiable` of torch's classes are accepted everywhere and
change nothing: updates are always one fused kernel over all parameters, and can always be captured by `weft.compile`.
"""

from __future__ import annotations

import weft
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_numbers
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["ASGD", "NAG", "SGD"]


@entry_point
class SGD(Optimizer):
    """g += λθ; b = g at first, then μb + (1-τ)g; d = g + μb (nesterov) or b; θ -= lr·d.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.SGD([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.item()
    0.0
    """

    hyper = ("lr", "momentum", "dampening", "weight_decay")
    saves_steps = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        check_numbers(type(self).__name__, lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            given = f"nesterov with momentum {float(momentum)} and dampening {float(dampening)}"
            expected = "momentum above 0 and no dampening"
            raise problem(RangeError, type(self).__name__, given, expected, "set momentum=0.9 or nesterov=False")
        rates = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        ways = {"nesterov": nesterov, "maximize": maximize}
        super().__init__(
            params, {**rates, **ways, "foreach": foreach, "differentiable": differentiable, "fused": fused}
        )

    def _state_of(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group.choice("momentum") else ()

    def _add_state(self, group: Group) -> None:
        """Steps count the updates of the buffer, whose first one is g, not those that were made without it."""
        for bucket in group.buckets:
            if "momentum_buffer" not in bucket.state and self._state_of(group):
                bucket.steps.zero_()
        super()._add_state(group)

    def _changes_only_rows(self, group: Group) -> bool:
        return not group.choice("momentum") and not group.choice("weight_decay")

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        if not state:
            return p - h["lr"] * g, {}
        buffer = h["momentum"] * state["momentum_buffer"] + (1.0 - h["dampening"]) * g
        if group.choice("dampening"):
            buffer = weft.where(t == 1.0, g, buffer)
        direction = g + h["momentum"] * buffer if group.choice("nesterov") else buffer
        return p - h["lr"] * direction, {"momentum_buffer": buffer}


@entry_point
class NAG(SGD):
    """Nesterov's accelerated gradient: SGD with nesterov=True.

    Sutskever et al. 2013 write v' = μv - lr·∇f(θ + μv); at the look-ahead point that is θ += μv' - lr·g, the same steps
    while lr stays the same.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.NAG([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.05
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.9,
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, lr, momentum, 0, weight_decay, nesterov=True, maximize=maximize)


@entry_point
class ASGD(Optimizer):
    """Averaged SGD (Polyak and Juditsky 1992), with lambd = λ, as in torch.optim: g += weight_decay·θ; θ = (1 - λη)θ -
    ηg; ax += μ(θ - ax); then η = lr / (1 + λ·lr·t)^alpha and μ = 1 / max(1, t - t0). The average `ax` is in the state.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.ASGD([w], lr=0.25, lambd=0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.item()
    0.5
    """

    hyper = ("lr", "lambd", "alpha", "t0", "weight_decay")
    state_names = ("ax",)
    number_names = ("eta", "mu")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ):
        check_numbers("ASGD", lr=lr, weight_decay=weight_decay)
        rates = {"lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay}
        ways = {"foreach": foreach, "maximize": maximize, "differentiable": differentiable, "capturable": capturable}
        super().__init__(params, {**rates, **ways})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        eta = weft.where(t == 1.0, h["lr"], state["eta"])
        mu = weft.where(t == 1.0, 1.0, state["mu"])
        p = p * (1.0 - h["lambd"] * eta) - eta * g
        ax = weft.where(mu == 1.0, p, state["ax"] + (p - state["ax"]) * mu)
        eta = h["lr"] / (1.0 + h["lambd"] * h["lr"] * t) ** h["alpha"]
        return p, {"ax": ax, "eta": eta, "mu": 1.0 / (t - h["t0"]).maximum(1.0)}
