"""Stochastic gradient descent with momentum, as torch.optim.SGD."""

from __future__ import annotations

from collections.abc import Iterable

import weft
from weft.errors import RangeError, problem
from weft.optim.optimizer import Group, Optimizer, check_numbers
from weft.tensor import Tensor


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

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        check_numbers("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise problem(
                RangeError, "SGD", f"nesterov with momentum {momentum} and dampening {dampening}",
                "momentum above 0 and no dampening", "set momentum=0.9 or nesterov=False",
            )  # fmt: skip
        rates = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "nesterov": nesterov})

    def _state_of(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group.choice("momentum") else ()

    def update(self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: dict[str, Tensor]):
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        if not state:
            return p - h["lr"] * g, {}
        buffer = h["momentum"] * state["momentum_buffer"] + (1.0 - h["dampening"]) * g
        if group.choice("dampening"):
            buffer = weft.where(t == 1.0, g, buffer)
        direction = g + h["momentum"] * buffer if group.choice("nesterov") else buffer
        return p - h["lr"] * direction, {"momentum_buffer": buffer}
