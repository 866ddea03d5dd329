"""Adam and AdamW, as in torch.optim."""

from __future__ import annotations

from collections.abc import Iterable

from weft.errors import RangeError, problem
from weft.optim.optimizer import Group, Optimizer, check_numbers
from weft.tensor import Tensor


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
    decoupled = False

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ):
        check_numbers(type(self).__name__, lr=lr, eps=eps, weight_decay=weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            who, expected = type(self).__name__, "two numbers in [0, 1)"
            raise problem(RangeError, who, f"betas {betas}", expected, "try (0.9, 0.999)")
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, defaults)

    def _state_of(self, group: Group) -> tuple[str, ...]:
        return (*self.state_names, "max_exp_avg_sq") if group.choice("amsgrad") else self.state_names

    def update(self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: dict[str, Tensor]):
        if group.choice("weight_decay"):
            if self.decoupled:
                p = p * (1.0 - h["lr"] * h["weight_decay"])
            else:
                g = g + h["weight_decay"] * p
        m = h["betas1"] * state["exp_avg"] + (1.0 - h["betas1"]) * g
        v = h["betas2"] * state["exp_avg_sq"] + (1.0 - h["betas2"]) * (g * g)
        new = {"exp_avg": m, "exp_avg_sq": v}
        second = v
        if group.choice("amsgrad"):
            second = new["max_exp_avg_sq"] = state["max_exp_avg_sq"].maximum(v)
        rate = h["lr"] / (1.0 - h["betas1"] ** t)
        scale = 1.0 / (1.0 - h["betas2"] ** t).sqrt()
        return p - rate * m / (second.sqrt() * scale + h["eps"]), new


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

    decoupled = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)
