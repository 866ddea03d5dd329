"""Optimizers with a rate for each element, as in torch.optim: RMSprop, Adagrad, Adadelta, Rprop."""

from __future__ import annotations

import weft
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_numbers
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["Adadelta", "Adagrad", "RMSprop", "Rprop"]


@entry_point
class RMSprop(Optimizer):
    """With k = alpha: g += λθ; s = ks + (1-k)g²; centered: a = ka + (1-k)g, s̃ = s - a²; d = g/(√s̃ + ε); momentum:
    b = μb + d; θ -= lr·(b or d).

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.RMSprop([w], lr=0.05)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    hyper = ("lr", "alpha", "eps", "weight_decay", "momentum")
    state_names = ("square_avg",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_numbers("RMSprop", lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        rates = {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered}
        ways = {"capturable": capturable, "foreach": foreach, "maximize": maximize, "differentiable": differentiable}
        super().__init__(params, {**rates, "weight_decay": weight_decay, **ways})

    def _state_of(self, group: Group) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group.choice("momentum") else ()
        return (*self.state_names, *momentum, *(("grad_avg",) if group.choice("centered") else ()))

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        new = {"square_avg": h["alpha"] * state["square_avg"] + (1.0 - h["alpha"]) * (g * g)}
        variance = new["square_avg"]
        if "grad_avg" in state:
            average = new["grad_avg"] = h["alpha"] * state["grad_avg"] + (1.0 - h["alpha"]) * g
            variance = variance - average * average
        direction = g / (variance.sqrt() + h["eps"])
        if "momentum_buffer" in state:
            direction = new["momentum_buffer"] = h["momentum"] * state["momentum_buffer"] + direction
        return p - h["lr"] * direction, new


@entry_point
class Adagrad(Optimizer):
    """g += λθ; s += g²; θ -= lr/(1 + (t-1)·lr_decay)·g/(√s + ε).

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Adagrad([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    hyper = ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    state_names = ("sum",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        first = initial_accumulator_value
        check_numbers("Adagrad", lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        check_numbers("Adagrad", initial_accumulator_value=first)
        rates = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
        ways = {"foreach": foreach, "maximize": maximize, "differentiable": differentiable, "fused": fused}
        super().__init__(params, {**rates, "initial_accumulator_value": first, **ways})

    def _changes_only_rows(self, group: Group) -> bool:
        if group.choice("weight_decay") or group.choice("initial_accumulator_value"):
            return False
        return group.choice("eps")  # without it, an element that never had a gradient becomes 0/0

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        total = state["sum"]
        if group.choice("initial_accumulator_value"):
            total = weft.where(t == 1.0, h["initial_accumulator_value"], total)
        total = total + g * g
        rate = h["lr"] / (1.0 + (t - 1.0) * h["lr_decay"])
        return p - rate * g / (total.sqrt() + h["eps"]), {"sum": total}


@entry_point
class Adadelta(Optimizer):
    """Zeiler 2012, with k = rho: g += λθ; s = ks + (1-k)g²; d = g·√(a + ε)/√(s + ε); a = ka + (1-k)d²; θ -= lr·d.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Adadelta([w], lr=100.0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.6838
    """

    hyper = ("lr", "rho", "eps", "weight_decay")
    state_names = ("square_avg", "acc_delta")

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_numbers("Adadelta", lr=lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise problem(RangeError, "Adadelta", f"rho {rho}", "a number in [0, 1]", "try 0.9")
        rates = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        ways = {"maximize": maximize, "capturable": capturable, "foreach": foreach, "differentiable": differentiable}
        super().__init__(params, {**rates, **ways})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            g = g + h["weight_decay"] * p
        square = h["rho"] * state["square_avg"] + (1.0 - h["rho"]) * (g * g)
        delta = (state["acc_delta"] + h["eps"]).sqrt() / (square + h["eps"]).sqrt() * g
        acc = h["rho"] * state["acc_delta"] + (1.0 - h["rho"]) * (delta * delta)
        return p - h["lr"] * delta, {"square_avg": square, "acc_delta": acc}


@entry_point
class Rprop(Optimizer):
    """Resilient propagation (Riedmiller and Braun 1993), for full batches: the step of an element, lr at first, grows
    by etas[1] while its gradient keeps the sign, and shrinks by etas[0], without a move, when that changes.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Rprop([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.item()
    0.75
    """

    hyper = ("lr", "etas", "step_sizes")
    state_names = ("prev", "step_size")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        check_numbers("Rprop", lr=lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise problem(RangeError, "Rprop", f"etas {etas}", "a number in (0, 1) and one above 1", "try (0.5, 1.2)")
        rates = {"lr": lr, "etas": tuple(etas), "step_sizes": tuple(step_sizes)}
        ways = {"foreach": foreach, "maximize": maximize, "differentiable": differentiable, "capturable": capturable}
        super().__init__(params, {**rates, **ways})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        agreement = g * state["prev"]
        factor = weft.where(agreement > 0.0, h["etas2"], weft.where(agreement < 0.0, h["etas1"], 1.0))
        size = weft.where(t == 1.0, h["lr"], state["step_size"]) * factor
        size = size.maximum(h["step_sizes1"]).minimum(h["step_sizes2"])
        g = weft.where(agreement < 0.0, 0.0, g)
        return p - g.sign() * size, {"prev": g, "step_size": size}
