"""Mixtures of experts: a router sends each token to a few of many modules."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.creation import arange, zeros
from weft.core.tensor import Tensor
from weft.func import functional_call
from weft.functional.loop import loop
from weft.names.functions import searchsorted, stack, where
from weft.nn import functional as F
from weft.nn.basic.named_activation import make_activation
from weft.nn.containers import ModuleList, Sequential
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.random.generator import randn_like


@layer("L084", aliases=("ExpertLayer",), oracle="torch.nn.Sequential and torch's activation")
class Expert(Module):
    """y = act(fₙ(... f₁(x))): layers one after the other, then an activation.

    Shape: that of the layers.

    >>> expert = weft.nn.Expert(weft.nn.Linear(3, 8), weft.nn.Linear(8, 2), activation="relu")
    >>> expert(weft.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(self, *layers: Module, activation: Any = None):
        super().__init__()
        self.layers = Sequential(*layers)
        self.activation = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return y if self.activation is None else self.activation(y)


@layer("L085", aliases=("MixtureOfExpertsLayer", "MixtureOfExperts"), oracle="a loop over experts in float64 NumPy")
class MoE(Module):
    """y = Σ_{e in S} w_e E_e(x) with p = softmax(router(x)), S the `top_k` largest of p (of equal ones the first), w =
    p_S / Σ p_S. `top_k=0` takes all experts with w = p.

    Shape: x [*, D], y [*, D'] where experts map [n, D] to [n, D'] row by row; router: [n, D] to [n, E]. Gradients flow
    through w and the experts, not through the choice. In training `noise_std` adds normal noise to the router's output.

    `aux_loss` = aux_weight · E · Σ_e f_e P_e is readable after a call, with f_e the share of the choices that went to e
    and P_e the mean of p_e: added to the loss, it keeps the experts in balance, where it is aux_weight.

    What is computed: the n·k choices are sorted by expert. With `capacity_factor` c every expert gets the first
    ⌈c·n·k/E⌉ of its tokens, the others contribute 0: E buffers of that size. Without, nothing is dropped: equal experts
    (same layers, no buffers) run over blocks of ⌈n·k/2E⌉ tokens of one expert, at most 1.5·n·k + E rows in all, each
    block with a copy of its expert's weights (at most 3·E copies); where that is no fewer rows than n for each expert,
    and with experts that differ, every expert gets a buffer for all n tokens. Shapes never depend on the choice.

    After Shazeer et al. (2017) and Fedus et al., "Switch transformers" (2022).

    >>> moe = weft.nn.MoE([weft.nn.Linear(3, 3) for _ in range(4)], weft.nn.Linear(3, 4))
    >>> y = moe(weft.ones(5, 3))
    >>> y.shape, moe.aux_loss.shape
    ((5, 3), ())
    """

    aux_loss: Tensor

    def __init__(
        self, experts: Iterable[Module], router: Module, top_k: int = 2, aux_weight: float = 0.01,
        capacity_factor: float | None = None, noise_std: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.experts, self.router = ModuleList(experts), router
        count = len(self.experts)
        if not isinstance(router, Module):
            raise problem(DTypeError, "MoE", f"a router of type {type(router).__name__}", "a module")
        if not count or not 0 <= top_k <= count:
            raise problem(RangeError, "MoE", f"top_k={top_k} of {count} experts", "0 (all) up to the number of experts")
        if capacity_factor is not None and not capacity_factor > 0:
            raise problem(RangeError, "MoE", f"capacity_factor={capacity_factor}", "a positive number or None")
        self.top_k, self.aux_weight, self.noise_std = top_k, aux_weight, noise_std
        self.capacity_factor = capacity_factor
        param = next(self.parameters(), None)
        device = None if param is None else param.device
        self.register_buffer("aux_loss", zeros((), device=device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])  # [n, D]
        scores, count = self.router(tokens), len(self.experts)
        if scores.shape != (len(tokens), count):
            given, expected = f"scores {scores.shape} from the router", f"({len(tokens)}, {count}): one per expert"
            raise problem(ShapeError, "MoE", given, expected)
        if self.training and self.noise_std:
            scores = scores + self.noise_std * randn_like(scores)
        shares = F.softmax(scores, -1)  # [n, E]
        if self.top_k in (0, count) and self.capacity_factor is None:
            y = sum(shares[:, e : e + 1] * expert(tokens) for e, expert in enumerate(self.experts))
            routed = zeros(count, device=x.device, dtype=shares.dtype) + 1.0 / count
        else:
            weights, chosen = shares.topk(self.top_k or count, -1)  # [n, k]
            if self.top_k:
                weights = weights / weights.sum(-1, keepdim=True)
            parts, counts = self._run(tokens, chosen)
            y = (weights.unsqueeze(-1) * parts).sum(1)
            routed = counts.to(shares.dtype) * (1.0 / max(chosen.numel(), 1))
        balance = (routed * shares.sum(0)).sum() * (count / max(len(tokens), 1))
        self.aux_loss = (self.aux_weight * balance).to(self.aux_loss.dtype)
        return y.reshape(*x.shape[:-1], y.shape[-1])

    def _run(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """E_e(x) for each choice [n, k]: [n, k, D'], and how many choices each expert got."""
        (n, k), count = chosen.shape, len(self.experts)
        flat = chosen.reshape(-1)
        order = flat.argsort(stable=True)  # choices by expert, then by token
        counts = (flat.unsqueeze(1) == arange(count, device=tokens.device)).sum(0)
        rank = order.argsort() - (counts.cumsum(0) - counts)[flat]  # of each choice among those of its expert
        rows, blocks = self._block_size(n, k), 0
        if rows:
            blocks = (n * k - min(n * k, count)) // rows + min(n * k, count)  # enough for any choice
        if rows and blocks * rows < count * n and _are_alike(self.experts):
            needed = (counts + (rows - 1)) // rows  # blocks of each expert
            ends = needed.cumsum(0)
            number = arange(blocks, device=tokens.device)
            owner = searchsorted(ends, number, right=True).clamp(max=count - 1)  # the expert of each block
            first = (number - (ends - needed)[owner]) * rows
            position = (ends - needed)[flat] * rows + rank  # blocks of one expert follow each other
            outputs = self._run_blocks(_fill(tokens, order, counts, owner, first, rows, k), owner)
            return outputs.flatten(0, 1)[position].unflatten(0, (n, k)), counts
        capacity = n if self.capacity_factor is None else math.ceil(self.capacity_factor * n * k / count)
        owner = arange(count, device=tokens.device)
        inputs = _fill(tokens, order, counts, owner, owner * 0, capacity, k)
        outputs = stack([expert(inputs[e]) for e, expert in enumerate(self.experts)])
        taken = outputs.flatten(0, 1)[flat * capacity + rank.clamp(max=capacity - 1)]
        return where((rank < capacity).unsqueeze(1), taken, 0.0).unflatten(0, (n, k)), counts

    def _block_size(self, n: int, k: int) -> int:
        """Tokens of a block; 0 where experts get one buffer each."""
        return 0 if self.capacity_factor is not None else -(-n * k // (2 * len(self.experts)))

    def _run_blocks(self, inputs: Tensor, owner: Tensor) -> Tensor:
        """Each block [rows, D] through the expert that owns it, all by the layers of the first with other weights."""
        first = self.experts[0]
        named = [dict(expert.named_parameters()) for expert in self.experts]
        weights = {name: stack([params[name] for params in named])[owner] for name in named[0]}

        def step(state: Tensor, now: tuple[Tensor, dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
            rows, params = now
            return state, functional_call(first, params, (rows,))

        return loop(step, zeros((), device=inputs.device), (inputs, weights))[1]

    def extra_repr(self) -> str:
        capacity = "" if self.capacity_factor is None else f", capacity_factor={self.capacity_factor}"
        return f"top_k={self.top_k}, aux_weight={self.aux_weight}{capacity}"


def _fill(tokens: Tensor, order: Tensor, counts: Tensor, owner: Tensor, first: Tensor, rows: int, k: int) -> Tensor:
    """Buffers [len(owner), rows, D]: buffer i holds the tokens of expert `owner[i]` from its choice number `first[i]`
    on; zeros where it has no more."""
    number = first.unsqueeze(1) + arange(rows, device=tokens.device)  # among the choices of the expert
    valid = (number >= 0) & (number < counts[owner].unsqueeze(1))
    starts = (counts.cumsum(0) - counts)[owner].unsqueeze(1)
    choice = order[(starts + number).clamp(0, max(len(order) - 1, 0))]
    return where(valid.unsqueeze(-1), tokens[choice // k], 0.0)


def _are_alike(experts: Iterable[Module]) -> bool:
    """Whether experts differ in their parameters' values only, so that one may run with the weights of another."""
    first, *others = [list(expert.named_modules()) for expert in experts]
    for path, one in first:
        if one._hooks or any(buffer is not None for buffer in one._buffers.values()):
            return False
        for other in others:
            if len(other) != len(first) or not _same_layer((path, one), other):
                return False
    return True


_STATE = frozenset({"_parameters", "_buffers", "_modules", "_non_persistent", "_training", "_call"})


def _same_layer(known: tuple[str, Module], modules: list[tuple[str, Module]]) -> bool:
    """Whether `modules` have a layer of the same kind, settings and shapes at the same path."""
    path, one = known
    other = dict(modules).get(path)
    if type(one) is not type(other) or other is None or one.training is not other.training:
        return False
    shapes = [[(name, p is not None and (p.shape, p.dtype)) for name, p in m._parameters.items()] for m in (one, other)]
    plain = [{name: value for name, value in vars(m).items() if name not in _STATE} for m in (one, other)]
    try:
        return shapes[0] == shapes[1] and list(one._modules) == list(other._modules) and bool(plain[0] == plain[1])
    except (TypeError, ValueError):  # attributes that cannot be compared
        return False
