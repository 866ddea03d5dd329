"""Synapses that change by local rules instead of gradients."""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, zeros
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import layer
from weft.nn.specialized.batch_state import fit_rows, set_rows

RULES = ("stdp", "hebb", "oja")


@layer("L098", aliases=("SynapticPlasticityLayer",), learns="P", oracle="NumPy: the rule per pair; lag formula, eigh")
class SynapticPlasticity(Module):
    """y = x Wᵀ; `learn(pre, post, lr)` changes W by a local rule, averaged over the batch:

    - 'stdp' (Bi & Poo 1998, Song et al. 2000), one call per time step, λ = trace_decay: x̄ ← λ x̄, ȳ ← λ ȳ;
      ΔW = a_plus (w_max - W) ⊙ (post ⊗ x̄) - a_minus (W - w_min) ⊙ (ȳ ⊗ pre) - homeostasis (W - w_target);
      W ← clip(W + lr ΔW, w_min, w_max); then x̄ += pre, ȳ += post. A pair at lag Δ so changes W by
      a_plus λ^Δ (w_max - W) if pre came first, by -a_minus λ^Δ (W - w_min) if post did, and spikes at the same time
      alone change nothing.
    - 'hebb': ΔW = y ⊗ x, clipped too.
    - 'oja' (Oja 1982): ΔW = y ⊗ x - y² ⊙ W, which bounds W by itself: W tends to the first principal component.

    Shape: input [*, in_features], output [*, out_features]; weight [out_features, in_features] is a buffer from
    U(w_min, w_max). pre [B, in_features], post [B, out_features]; for 'hebb' and 'oja' post is y unless given. Every
    row of a batch has traces x̄, ȳ of its own (pre_trace, post_trace), which `reset()` clears; a batch of another size
    starts with new ones. In evaluation mode nothing is learned.

    >>> layer = weft.nn.SynapticPlasticity(1, 1, homeostasis=0.0)
    >>> _ = layer.weight.fill_(0.5)
    >>> layer.learn(weft.ones(1, 1), weft.zeros(1, 1))  # a spike before the synapse,
    >>> layer.learn(weft.zeros(1, 1), weft.ones(1, 1))  # and one step later behind it: 0.005 * 0.95 * (1 - 0.5) more
    >>> round(layer.weight.item(), 6)
    0.502375
    """

    weight: Tensor
    pre_trace: Tensor
    post_trace: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rule: str = "stdp",
        a_plus: float = 0.005,
        a_minus: float = 0.0025,
        trace_decay: float = 0.95,
        w_min: float = 0.0,
        w_max: float = 1.0,
        homeostasis: float = 1e-4,
        w_target: float = 0.5,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if rule not in RULES:
            raise problem(RangeError, "SynapticPlasticity", f"rule={rule!r}", f"one of {', '.join(RULES)}")
        if not w_min < w_max:
            raise problem(RangeError, "SynapticPlasticity", f"w_min={w_min} and w_max={w_max}", "w_min < w_max")
        self.in_features, self.out_features, self.rule = in_features, out_features, rule
        self.a_plus, self.a_minus, self.trace_decay = a_plus, a_minus, trace_decay
        self.w_min, self.w_max, self.homeostasis, self.w_target = w_min, w_max, homeostasis, w_target
        self.weight = Buffer(empty(out_features, in_features, device=device, dtype=dtype))
        self.pre_trace = Buffer(zeros(1, in_features, device=device, dtype=dtype), persistent=False)
        self.post_trace = Buffer(zeros(1, out_features, device=device, dtype=dtype), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight again."""
        init.uniform_(self.weight, self.w_min, self.w_max)

    def reset(self, batch_size: int | None = None) -> None:
        """Clear the traces; `batch_size` says for how many rows, by default as many as there were."""
        set_rows(self, self._traces(len(self.pre_trace) if batch_size is None else batch_size))

    def _traces(self, rows: int) -> dict[str, Tensor]:
        like: dict[str, Any] = {"dtype": self.weight.dtype, "device": self.weight.device}
        return {
            "pre_trace": zeros(rows, self.in_features, **like),
            "post_trace": zeros(rows, self.out_features, **like),
        }

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight)

    def learn(self, pre: Tensor, post: Tensor | None = None, lr: float = 1.0) -> None:
        """Change the weight by one step of the rule. Does nothing in evaluation mode."""
        if post is None and self.rule == "stdp":
            raise problem(ShapeError, "SynapticPlasticity.learn", "no post", "the spikes behind the synapses")
        if not self.training:
            return
        with no_grad():
            post = self(pre) if post is None else post
            self._check(pre, post)
            pre, post = pre.to(self.weight.dtype), post.to(self.weight.dtype)
            if self.rule == "stdp":
                self._learn_stdp(pre, post, lr)
                return
            change = _mean_outer(post, pre)
            if self.rule == "oja":
                change = change - (post * post).mean(0).unsqueeze(1) * self.weight
            weight = self.weight + lr * change
            self.weight = weight if self.rule == "oja" else weight.clamp(self.w_min, self.w_max)

    def _learn_stdp(self, pre: Tensor, post: Tensor, lr: float) -> None:
        fit_rows(self, len(pre), self._traces)
        pre_trace, post_trace = self.trace_decay * self.pre_trace, self.trace_decay * self.post_trace
        weight = self.weight
        change = (
            self.a_plus * (self.w_max - weight) * _mean_outer(post, pre_trace)
            - self.a_minus * (weight - self.w_min) * _mean_outer(post_trace, pre)
            - self.homeostasis * (weight - self.w_target)
        )
        self.weight = (weight + lr * change).clamp(self.w_min, self.w_max)
        self.pre_trace, self.post_trace = pre_trace + pre, post_trace + post

    def _check(self, pre: Tensor, post: Tensor) -> None:
        rows = len(pre) if pre.ndim else 0
        if tuple(pre.shape) != (rows, self.in_features) or tuple(post.shape) != (rows, self.out_features) or not rows:
            given = f"pre of shape {tuple(pre.shape)} and post of shape {tuple(post.shape)}"
            expected = f"[B, {self.in_features}] and [B, {self.out_features}], B at least 1"
            raise problem(ShapeError, "SynapticPlasticity.learn", given, expected)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, rule={self.rule!r}"


def _mean_outer(behind: Tensor, before: Tensor) -> Tensor:
    """The mean over the batch of outer products, [out, in]."""
    return behind.T @ before / len(before)
