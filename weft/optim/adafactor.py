"""Adafactor, as in torch.optim: second moments of matrices as a product of a row and a column."""

from __future__ import annotations

import math

import weft
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_numbers
from weft.optim.flat import join
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["Adafactor"]


@entry_point
class Adafactor(Optimizer):
    """Shazeer and Stern 2018. With β = 1 - t^beta2_decay: r = βr + (1-β)·mean over columns of g², c likewise over rows,
    v = r·c/mean(r) (or, for vectors, an average of g²); u = g/√max(v, ε₁²); θ -= max(ε₂, rms(θ))·min(lr, 1/√t)·u /
    max(1, rms(u)/d). ε₁ is the epsilon of the parameter's dtype if None. Decay is decoupled: θ *= 1 - lr·λ.

    >>> import weft
    >>> w = weft.ones(2, 3, requires_grad=True)
    >>> optimizer = weft.optim.Adafactor([w], lr=0.25)
    >>> (w * w).sum().backward()
    >>> optimizer.step()
    >>> round(w[0, 0].item(), 4)
    0.75
    """

    hyper = ("lr", "beta2_decay", "eps", "d", "weight_decay")
    optional = ("eps",)
    state_names = ("row_var", "col_var", "variance")

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ):
        check_numbers("Adafactor", lr=lr, weight_decay=weight_decay, eps=min(eps[0] or 0.0, eps[1]))
        if not beta2_decay <= 0.0:
            raise problem(RangeError, "Adafactor", f"beta2_decay {beta2_decay}", "a number of at most 0", "try -0.8")
        if not d >= 1.0:
            raise problem(RangeError, "Adafactor", f"d {d}", "a number of at least 1", "try 1.0")
        rates = {"lr": lr, "beta2_decay": beta2_decay, "eps": tuple(eps), "d": d, "weight_decay": weight_decay}
        super().__init__(params, {**rates, "foreach": foreach, "maximize": maximize})

    def _shape_of(self, name: str, param: Tensor) -> tuple[int, ...] | None:
        shape = tuple(param.shape)
        if name == "variance":
            return shape if len(shape) <= 1 else None
        if name in ("row_var", "col_var"):
            row = name == "row_var"
            return None if len(shape) <= 1 else (*shape[:-1], 1) if row else (*shape[:-2], 1, shape[-1])
        return shape

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if group.constant("eps")[0] is None:
            least = weft.full((), weft.finfo(group.tensors[0].dtype).eps, dtype=p.dtype, device=p.device)
        else:
            least = h["eps1"]
        parts: dict[str, list[Tensor]] = {name: group.split_state(name, state[name]) for name in self.state_names}
        moved = []
        for k, (weight, grad, count) in enumerate(zip(group.split(p), group.split(g), group.each(t), strict=True)):
            new = count ** h["beta2_decay"]
            square = grad * grad
            if grad.ndim > 1:
                row = parts["row_var"][k] = parts["row_var"][k].lerp(square.mean(-1, keepdim=True), new)
                column = parts["col_var"][k] = parts["col_var"][k].lerp(square.mean(-2, keepdim=True), new)
                variance = row * column / row.mean(-2, keepdim=True).maximum(least)
            else:
                variance = parts["variance"][k] = parts["variance"][k].lerp(square, new)
            u = grad / variance.maximum(least * least).sqrt()
            rate = h["eps2"].maximum(_rms(weight)) * h["lr"].minimum(1.0 / count.sqrt())
            if group.choice("weight_decay"):
                weight = weight * (1.0 - h["lr"] * h["weight_decay"])
            moved.append(weight - rate / (_rms(u) / h["d"]).maximum(1.0) * u)
        return join(moved), {name: join(each) for name, each in parts.items()}


def _rms(x: Tensor) -> Tensor:
    return (x * x).sum().sqrt() / math.sqrt(x.numel())
