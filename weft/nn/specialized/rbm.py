"""The restricted Boltzmann machine."""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, full, zeros
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Buffer, Parameter
from weft.nn.registry import layer
from weft.nn.specialized.batch_state import fit_rows, set_rows
from weft.random.distributions import bernoulli


@layer("L094", aliases=("RBMLayer", "RestrictedBoltzmannMachine"), learns="CD", oracle="NumPy: sums over all states")
class RBM(Module):
    """p(h = 1 | v) = sigmoid(v Wᵀ + c): a Bernoulli restricted Boltzmann machine, E(v, h) = -bᵀv - cᵀh - hᵀW v and
    p(v, h) ∝ e^{-E(v, h)} (Hinton 2002).

    `learn(v0, k, lr)` is contrastive divergence. h0 = sigmoid(v0 Wᵀ + c), h ~ Bernoulli(h0); then k times
    v ~ Bernoulli(sigmoid(h W + b)), h ~ Bernoulli(sigmoid(v Wᵀ + c)); with the last v and the probabilities h_k of the
    last h ΔW = lr (h0ᵀv0 - h_kᵀv_k) / B, Δc = lr mean(h0 - h_k), Δb = lr mean(v0 - v_k). With `persistent` the chain
    goes on where the last call left it (Tieleman 2008): `chain` [B, n_hidden] is a buffer. Gradients pass through
    forward, too.

    Shape: input [*, n_visible], output [*, n_hidden]; weight [n_hidden, n_visible] starts as N(0, 0.01), that is with
    standard deviation 0.01; visible_bias b [n_visible] and hidden_bias c [n_hidden] start as 0.

    >>> rbm = weft.nn.RBM(6, 3)
    >>> error = rbm.learn(weft.ones(4, 6), k=1, lr=0.1)
    >>> rbm(weft.ones(4, 6)).shape, rbm.free_energy(weft.ones(4, 6)).shape
    ((4, 3), (4,))
    """

    chain: Tensor

    def __init__(self, n_visible: int, n_hidden: int, device: Any = None, dtype: Any = None):
        super().__init__()
        if min(n_visible, n_hidden) < 1:
            given = f"n_visible={n_visible} and n_hidden={n_hidden}"
            raise problem(RangeError, "RBM", given, "at least 1 of each")
        self.n_visible, self.n_hidden = n_visible, n_hidden
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(n_hidden, n_visible, **like))
        self.visible_bias = Parameter(empty(n_visible, **like))
        self.hidden_bias = Parameter(empty(n_hidden, **like))
        self.weight_velocity = Buffer(zeros(n_hidden, n_visible, **like), persistent=False)
        self.visible_velocity = Buffer(zeros(n_visible, **like), persistent=False)
        self.hidden_velocity = Buffer(zeros(n_hidden, **like), persistent=False)
        self.chain = Buffer(zeros(0, n_hidden, **like), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight again."""
        init.normal_(self.weight, 0.0, 0.01)
        init.zeros_(self.visible_bias)
        init.zeros_(self.hidden_bias)

    def reset(self, batch_size: int | None = None) -> None:
        """Start new chains, for `batch_size` rows or as many as there were, and forget the momentum."""
        set_rows(self, self._start(len(self.chain) if batch_size is None else batch_size))
        for velocity in (self.weight_velocity, self.visible_velocity, self.hidden_velocity):
            velocity.zero_()

    def _start(self, rows: int) -> dict[str, Tensor]:
        half = full((rows, self.n_hidden), 0.5, dtype=self.weight.dtype, device=self.weight.device)
        return {"chain": bernoulli(half) if rows else half}

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.hidden_bias).sigmoid()

    def visible(self, hidden: Tensor) -> Tensor:
        """p(v = 1 | h) = sigmoid(h W + b), [*, n_visible]."""
        return F.linear(hidden, self.weight.T, self.visible_bias).sigmoid()

    def sample_h(self, visible: Tensor) -> Tensor:
        """Hidden units drawn from p(h | v)."""
        return bernoulli(self(visible).detach())

    def sample_v(self, hidden: Tensor) -> Tensor:
        """Visible units drawn from p(v | h)."""
        return bernoulli(self.visible(hidden).detach())

    def free_energy(self, visible: Tensor) -> Tensor:
        """F(v) = -bᵀv - Σ softplus(W v + c), [*]: p(v) ∝ e^{-F(v)}."""
        inputs = F.linear(visible, self.weight, self.hidden_bias)
        return -(visible * self.visible_bias).sum(-1) - F.softplus(inputs).sum(-1)

    def learn(
        self,
        v0: Tensor,
        k: int = 1,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        persistent: bool = False,
    ) -> Tensor:
        """One step of contrastive divergence on `v0` [B, n_visible] with k steps of Gibbs sampling. Velocities are
        momentum · velocity + Δ, and `weight_decay` · lr · W is taken off the weight. Returns the mean squared
        difference of v0 and its reconstruction, the last sample of the chain. In evaluation mode nothing is learned."""
        if v0.ndim != 2 or v0.shape[1] != self.n_visible or not len(v0):
            expected = f"[B, {self.n_visible}], B at least 1"
            raise problem(ShapeError, "RBM.learn", f"shape {tuple(v0.shape)}", expected)
        if k < 1:
            raise problem(RangeError, "RBM.learn", f"k={k}", "at least 1 step")
        with no_grad():
            v0 = v0.to(self.weight.dtype)
            h0 = self(v0)
            persistent = persistent and self.training
            if persistent:
                fit_rows(self, len(v0), self._start)
            start = self.chain if persistent else bernoulli(h0)
            v, h, sample = self._sample_chain(start, v0, k)
            if self.training:
                self._move(self.weight, self.weight_velocity, h0.T @ v0 - h.T @ v, len(v0), lr, momentum, weight_decay)
                self._move(self.visible_bias, self.visible_velocity, (v0 - v).sum(0), len(v0), lr, momentum)
                self._move(self.hidden_bias, self.hidden_velocity, (h0 - h).sum(0), len(v0), lr, momentum)
                if persistent:
                    self.chain = sample
            return ((v0 - v) ** 2).mean()

    def _sample_chain(self, start: Tensor, like: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """k times v, then h: the last v, the probabilities of the last h, and the last h."""

        def step(state: tuple[Tensor, Tensor, Tensor], _: None) -> tuple[tuple[Tensor, Tensor, Tensor], None]:
            v = self.sample_v(state[2])
            h = self(v)
            return (v, h, bernoulli(h)), None

        return loop(step, (like, start, start), length=k)[0]

    @staticmethod
    def _move(
        param: Tensor, velocity: Tensor, change: Tensor, rows: int, lr: float, momentum: float, decay: float = 0.0
    ) -> None:
        change = (lr / rows) * change
        if decay:
            change = change - (lr * decay) * param
        if momentum:
            change = momentum * velocity + change
            velocity.copy_(change)
        param.add_(change)

    def extra_repr(self) -> str:
        return f"n_visible={self.n_visible}, n_hidden={self.n_hidden}"
