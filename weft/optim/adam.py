"""The Adam family as in torch.optim: Adam, AdamW, NAdam, RAdam, Adamax; and Lion."""

from __future__ import annotations

import weft
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_betas, check_numbers
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["Adam", "AdamW", "Adamax", "Lion", "NAdam", "RAdam"]


def _decay(group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Parameter and gradient after weight decay: of the parameter itself (decoupled), or as a part of the gradient."""
    if group.choice("weight_decay"):
        if group.choice("decoupled_weight_decay"):
            return p * (1.0 - h["lr"] * h["weight_decay"]), g
        return p, g + h["weight_decay"] * p
    return p, g


def _average_lengths(beta: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """n - 2tβᵗ/(1-βᵗ), n = 2/(1-β) - 1, and 1-βᵗ: in float64, as the first is the difference of two large numbers.
    Devices without float64 get it as 2(1/u - 1/r) + 2/r·(1 - x/(eˣ-1)) - 1 with u = 1-β, r = -log β and x = tr, where
    both differences of nearly equal numbers are polynomials."""
    if weft.float64 in beta.device.dtypes:
        beta, t = beta.double(), t.double()
        power = beta**t
        longest = 2.0 / (1.0 - beta) - 1.0
        return longest - 2.0 * t * power / (1.0 - power), longest, 1.0 - power
    u = 1.0 - beta
    r = -(-u).log1p()
    x = r * t.to(beta.dtype)
    grown, square = x.expm1(), x * x
    near = x * (0.5 - x * (1 / 12 - square * (1 / 720 - square * (1 / 30240 - square / 1209600))))
    start = weft.where(u < 0.1, 0.5 + u * (1 / 12 + u * (1 / 24 + u * (19 / 720 + u * 3 / 160))), 1.0 / u - 1.0 / r)
    length = 2.0 * start + 2.0 / r * weft.where(x < 1.0, near, 1.0 - x / grown) - 1.0
    return length, 2.0 / u - 1.0, -(-x).expm1()


def _moments(g: Tensor, h: dict[str, Tensor], state: State) -> tuple[Tensor, Tensor]:
    """Averages of the gradient and of its square."""
    m = h["betas1"] * state["exp_avg"] + (1.0 - h["betas1"]) * g
    v = h["betas2"] * state["exp_avg_sq"] + (1.0 - h["betas2"]) * (g * g)
    return m, v


@entry_point
class Adam(Optimizer):
    """m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; θ -= lr·(m/(1-β₁ᵗ)) / (√(v/(1-β₂ᵗ)) + ε). Weight decay is added to g.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Adam([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    hyper = ("lr", "betas", "eps", "weight_decay")
    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ):
        check_numbers(type(self).__name__, lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas(type(self).__name__, betas)
        rates = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        ways = {"maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(params, {**rates, **ways, "fused": fused, "decoupled_weight_decay": decoupled_weight_decay})

    def _state_of(self, group: Group) -> tuple[str, ...]:
        return (*self.state_names, "max_exp_avg_sq") if group.choice("amsgrad") else self.state_names

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        p, g = _decay(group, p, g, h)
        m, v = _moments(g, h, state)
        new = {"exp_avg": m, "exp_avg_sq": v}
        second = v
        if group.choice("amsgrad"):
            second = new["max_exp_avg_sq"] = state["max_exp_avg_sq"].maximum(v)
        rate = h["lr"] / (1.0 - h["betas1"] ** t)
        scale = 1.0 / (1.0 - h["betas2"] ** t).sqrt()
        return p - rate * m / (second.sqrt() * scale + h["eps"]), new


@entry_point
class AdamW(Adam):
    """Adam with decoupled weight decay: θ *= 1 - lr·λ first.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.AdamW([w], lr=0.5, weight_decay=0.0)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ):
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize, capturable=capturable,
            differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip


@entry_point
class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat 2016), as in torch.optim: with μₜ = β₁(1 - ½·0.96^(t·momentum_decay)),
    θ -= lr·((1-μₜ)/(1-Πμ)·g + μₜ₊₁/(1-Πμ·μₜ₊₁)·m) / (√(v/(1-β₂ᵗ)) + ε).

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.NAdam([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.8944
    """

    hyper = ("lr", "betas", "eps", "weight_decay", "momentum_decay")
    state_names = ("exp_avg", "exp_avg_sq")
    number_names = ("mu_product",)

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ):
        check_numbers("NAdam", lr=lr, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        check_betas("NAdam", betas)
        rates = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        rates |= {"momentum_decay": momentum_decay, "decoupled_weight_decay": decoupled_weight_decay}
        ways = {"maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(params, {**rates, **ways})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        p, g = _decay(group, p, g, h)
        m, v = _moments(g, h, state)
        mu = h["betas1"] * (1.0 - 0.5 * 0.96 ** (t * h["momentum_decay"]))
        ahead = h["betas1"] * (1.0 - 0.5 * 0.96 ** ((t + 1.0) * h["momentum_decay"]))
        product = weft.where(t == 1.0, mu, state["mu_product"] * mu)
        step = (1.0 - mu) / (1.0 - product) * g + ahead / (1.0 - product * ahead) * m
        scale = 1.0 / (1.0 - h["betas2"] ** t).sqrt()
        new = {"exp_avg": m, "exp_avg_sq": v, "mu_product": product}
        return p - h["lr"] * step / (v.sqrt() * scale + h["eps"]), new


@entry_point
class RAdam(Optimizer):
    """Rectified Adam (Liu et al. 2020), as in torch.optim: with n = 2/(1-β₂) - 1 and q = n - 2tβ₂ᵗ/(1-β₂ᵗ), where
    q > 5: θ -= lr·m̂·r·√(1-β₂ᵗ)/(√v + ε), r² = (q-4)(q-2)n / ((n-4)(n-2)q); before that θ -= lr·m̂.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.RAdam([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    hyper = ("lr", "betas", "eps", "weight_decay")
    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ):
        check_numbers("RAdam", lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas("RAdam", betas)
        rates = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        ways = {"maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable}
        super().__init__(params, {**rates, **ways, "decoupled_weight_decay": decoupled_weight_decay})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        p, g = _decay(group, p, g, h)
        m, v = _moments(g, h, state)
        length, longest, bias = _average_lengths(h["betas2"], t)
        square = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
        rect = (square * bias).sqrt().to(p.dtype)
        rate = h["lr"] / (1.0 - h["betas1"] ** t)
        factor = weft.where(length > 5.0, rect / (v.sqrt() + h["eps"]), 1.0)
        return p - rate * m * factor, {"exp_avg": m, "exp_avg_sq": v}


@entry_point
class Adamax(Optimizer):
    """Adam with a maximum for the second moment: u = max(β₂u, |g| + ε); θ -= lr/(1-β₁ᵗ)·m/u.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Adamax([w], lr=0.5)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)
    0.5
    """

    hyper = ("lr", "betas", "eps", "weight_decay")
    state_names = ("exp_avg", "exp_inf")

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ):
        check_numbers("Adamax", lr=lr, eps=eps, weight_decay=weight_decay)
        check_betas("Adamax", betas)
        rates = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        ways = {"foreach": foreach, "maximize": maximize, "differentiable": differentiable, "capturable": capturable}
        super().__init__(params, {**rates, **ways})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        p, g = _decay(group, p, g, h)
        m = h["betas1"] * state["exp_avg"] + (1.0 - h["betas1"]) * g
        u = (h["betas2"] * state["exp_inf"]).maximum(g.abs() + h["eps"])
        return p - h["lr"] / (1.0 - h["betas1"] ** t) * m / u, {"exp_avg": m, "exp_inf": u}


@entry_point
class Lion(Optimizer):
    """Evolved sign momentum (Chen et al. 2023): θ *= 1 - lr·λ; θ -= lr·sign(β₁m + (1-β₁)g); m = β₂m + (1-β₂)g.

    >>> import weft
    >>> w = weft.tensor([1.0], requires_grad=True)
    >>> optimizer = weft.optim.Lion([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> w.item()
    0.75
    """

    hyper = ("lr", "betas", "weight_decay")
    state_names = ("exp_avg",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        *,
        maximize: bool = False,
    ):
        check_numbers("Lion", lr=lr, weight_decay=weight_decay)
        check_betas("Lion", betas, example="(0.9, 0.99)")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay, "maximize": maximize})

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.choice("weight_decay"):
            p = p * (1.0 - h["lr"] * h["weight_decay"])
        m = state["exp_avg"]
        direction = (h["betas1"] * m + (1.0 - h["betas1"]) * g).sign()
        return p - h["lr"] * direction, {"exp_avg": h["betas2"] * m + (1.0 - h["betas2"]) * g}
