"""Muon, as in torch.optim: momentum whose matrix is made orthogonal before it is applied."""

from __future__ import annotations

import math

import weft
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.tensor import Tensor
from weft.optim.checks import check_numbers
from weft.optim.flat import join
from weft.optim.groups import Group
from weft.optim.optimizer import Optimizer, Params, State

__all__ = ["Muon"]

MAX_ITERATIONS = 100


@entry_point
class Muon(Optimizer):
    """Momentum, orthogonalised by Newton-Schulz iterations (Jordan et al. 2024), for matrices: b += (1-μ)(g - b); u = g
    + μ(b - g) with nesterov, else b; O = NS(u); θ = (1 - lr·λ)θ - lr·s·O, where s is √max(1, rows/columns)
    ("original"), or 0.2·√max(rows, columns) with adjust_lr_fn="match_rms_adamw". Biases and embeddings are for another
    optimizer.

    >>> import weft
    >>> w = weft.eye(2).requires_grad_()
    >>> optimizer = weft.optim.Muon([w], lr=0.1)
    >>> w.sum().backward()
    >>> optimizer.step()
    >>> w.shape
    (2, 2)
    """

    hyper = ("lr", "weight_decay", "momentum", "ns_coefficients", "eps")
    state_names = ("momentum_buffer",)
    saves_steps = False

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ):
        check_numbers("Muon", lr=lr, weight_decay=weight_decay, momentum=momentum)
        if len(ns_coefficients) != 3:
            raise problem(RangeError, "Muon", f"ns_coefficients {ns_coefficients}", "three numbers")
        if not 0 <= ns_steps < MAX_ITERATIONS:
            raise problem(RangeError, "Muon", f"ns_steps {ns_steps}", f"fewer than {MAX_ITERATIONS}", "try 5")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise problem(RangeError, "Muon", f"adjust_lr_fn {adjust_lr_fn!r}", "'original' or 'match_rms_adamw'")
        rates = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        form = {"ns_coefficients": tuple(ns_coefficients), "eps": eps, "ns_steps": ns_steps}
        super().__init__(params, {**rates, **form, "adjust_lr_fn": adjust_lr_fn})

    def _check_group(self, group: Group) -> None:
        super()._check_group(group)
        for param in group["params"]:
            if param.ndim != 2:
                given = f"a parameter of shape {tuple(param.shape)}"
                raise problem(ShapeError, "Muon", given, "matrices", "give the others to AdamW")

    def update(
        self, group: Group, p: Tensor, g: Tensor, h: dict[str, Tensor], t: Tensor, state: State
    ) -> tuple[Tensor, State]:
        buffer = state["momentum_buffer"].lerp(g, 1.0 - h["momentum"])
        direction = g.lerp(buffer, h["momentum"]) if group.choice("nesterov") else buffer
        steps, way = group.constant("ns_steps"), group.constant("adjust_lr_fn")
        matrices = group.split(direction)
        moves: list[Tensor] = list(matrices)
        for positions in _by_shape(matrices):  # matrices of one shape are one batch of products
            found = _orthogonal(weft.stack([_transpose_if_tall(matrices[k]) for k in positions]), h, steps).to(p.dtype)
            for number, k in enumerate(positions):
                moves[k] = _scale(matrices[k], way) * (found[number].T if _is_tall(matrices[k]) else found[number])
        return p * (1.0 - h["lr"] * h["weight_decay"]) - h["lr"] * join(moves), {"momentum_buffer": buffer}


def _is_tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]


def _transpose_if_tall(matrix: Tensor) -> Tensor:
    """The matrix, transposed where it has more rows than columns."""
    return matrix.T if _is_tall(matrix) else matrix


def _by_shape(matrices: list[Tensor]) -> list[list[int]]:
    """Positions of matrices that have one shape when they lie."""
    found: dict[tuple[int, ...], list[int]] = {}
    for position, matrix in enumerate(matrices):
        found.setdefault(tuple(sorted(matrix.shape)), []).append(position)
    return list(found.values())


def _scale(matrix: Tensor, way: str | None) -> float:
    """What the rate is multiplied with, so that matrices of all shapes move equally far."""
    rows, columns = matrix.shape
    if way == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def _orthogonal(matrices: Tensor, h: dict[str, Tensor], steps: int) -> Tensor:
    """About the orthogonal matrices nearest to `matrices` [B, M, N], M <= N, in bfloat16: x = ax + (bG + cG²)x with
    G = xxᵀ, `steps` times."""
    a, b, c = (h[f"ns_coefficients{k}"].float() for k in (1, 2, 3))
    x = matrices.bfloat16()
    wide = x.float()
    norm = (wide * wide).sum((1, 2), keepdim=True).sqrt().bfloat16().float()
    x = (wide / norm.maximum(h["eps"].float())).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = (b * gram.float() + c * (gram @ gram).float()).bfloat16()
        x = (a * x.float() + (polynomial @ x).float()).bfloat16()
    return x
