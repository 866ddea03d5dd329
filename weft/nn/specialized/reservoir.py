"""Echo state networks: a recurrent network that is not trained, and a readout that is."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import linalg
from weft.autograd import no_grad
from weft.base.dtypes import float64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import eye, zeros
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import layer
from weft.random.generator import rand

MAX_DRAWS = 100  # of recurrent weights, until one has an eigenvalue other than 0


@layer(
    "L095", aliases=("ReservoirLayer", "EchoState"), learns="F", oracle="NumPy: a loop over time, numpy.linalg.solve"
)
class Reservoir(Module):
    """h_t = (1 - leak) h_{t-1} + leak · tanh(W_in u_t + W h_{t-1} + b): an echo state network (Jaeger 2001).

    Shape: input [B, T, input_size], output [B, T, reservoir_size], the states; `state` [B, reservoir_size] is the one
    before the first step, 0 unless given: `state=y[:, -1]` goes on where a sequence was cut.

    Nothing is learned here; gradients pass to the input. weight_in ~ U(-1, 1) · input_scaling, weight_hh sparse ~
    U(-1, 1), each element there with probability `density`, scaled to the spectral radius, and bias ~ U(-1, 1) ·
    bias_scale are buffers. The readout is a Linear on the states, trained by gradients or found by `fit_ridge`.

    >>> reservoir = weft.nn.Reservoir(1, 20)
    >>> states = reservoir(weft.rand(2, 50, 1))
    >>> states.shape
    (2, 50, 20)
    >>> weft.nn.Reservoir.fit_ridge(states, weft.rand(2, 50, 1), 1e-3).shape  # the weight of a Linear(20, 1)
    (1, 20)
    """

    def __init__(
        self,
        input_size: int,
        reservoir_size: int,
        spectral_radius: float = 0.9,
        density: float = 0.1,
        input_scaling: float = 1.0,
        leak: float = 1.0,
        bias_scale: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if min(input_size, reservoir_size) < 1:
            given = f"input_size={input_size} and reservoir_size={reservoir_size}"
            raise problem(RangeError, "Reservoir", given, "at least 1 of each")
        if not (0 < density <= 1 and 0 < leak <= 1 and spectral_radius >= 0):
            given = f"density={density}, leak={leak} and spectral_radius={spectral_radius}"
            raise problem(RangeError, "Reservoir", given, "0 < density <= 1, 0 < leak <= 1 and spectral_radius >= 0")
        self.input_size, self.reservoir_size = input_size, reservoir_size
        self.spectral_radius, self.density, self.leak = spectral_radius, density, leak
        self.input_scaling, self.bias_scale = input_scaling, bias_scale
        self.weight_in = Buffer(zeros(reservoir_size, input_size, device=device, dtype=dtype))
        self.weight_hh = Buffer(zeros(reservoir_size, reservoir_size, device=device, dtype=dtype))
        self.bias = Buffer(zeros(reservoir_size, device=device, dtype=dtype))
        self.reset_parameters()

    @no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights again. Eigenvalues are computed by NumPy, so this cannot be inside `weft.compile`."""
        self.weight_in.uniform_(-1.0, 1.0).mul_(self.input_scaling)
        self.bias.uniform_(-1.0, 1.0).mul_(self.bias_scale)
        for _ in range(MAX_DRAWS):
            shape, where = self.weight_hh.shape, self.weight_hh.device
            drawn = (2.0 * rand(shape, device=where) - 1.0) * (rand(shape, device=where) < self.density)
            radius = float(np.abs(np.linalg.eigvals(drawn.double().numpy())).max())
            if radius > 0:
                self.weight_hh.copy_(drawn * (self.spectral_radius / radius))
                return
        given = f"density={self.density} and reservoir_size={self.reservoir_size}"
        raise problem(RangeError, "Reservoir", given, "a matrix with an eigenvalue other than 0", "raise the density")

    def forward(self, input: Tensor, state: Tensor | None = None) -> Tensor:
        if input.ndim != 3 or input.shape[-1] != self.input_size:
            raise problem(ShapeError, "Reservoir", f"shape {tuple(input.shape)}", f"[B, T, {self.input_size}]")
        driven = F.linear(input, self.weight_in, self.bias).transpose(0, 1)  # [T, B, R], all steps at once
        if state is None:
            state = zeros(len(input), self.reservoir_size, dtype=driven.dtype, device=driven.device)
        elif tuple(state.shape) != (len(input), self.reservoir_size):
            expected = f"[{len(input)}, {self.reservoir_size}]"
            raise problem(ShapeError, "Reservoir", f"a state of shape {tuple(state.shape)}", expected)

        def step(hidden: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
            new = (now + F.linear(hidden, self.weight_hh)).tanh()
            hidden = new if self.leak == 1 else (1.0 - self.leak) * hidden + self.leak * new
            return hidden, hidden

        return loop(step, state, driven)[1].transpose(0, 1)

    @staticmethod
    def fit_ridge(states: Tensor, targets: Tensor, ridge: float = 1e-6) -> Tensor:
        """W = YᵀH (HᵀH + ridge I)⁻¹, the weight [out, R] of the linear readout with the least squared error plus ridge
        ‖W‖², of states H [*, R] and targets Y [*, out]. Computed in float64 on the host."""
        if states.shape[:-1] != targets.shape[:-1]:
            given = f"states of shape {tuple(states.shape)} and targets of shape {tuple(targets.shape)}"
            raise problem(ShapeError, "Reservoir.fit_ridge", given, "[*, R] and [*, out]")
        h = states.detach().to("cpu").to(float64).reshape(-1, states.shape[-1])
        y = targets.detach().to("cpu").to(float64).reshape(-1, targets.shape[-1])
        square = h.T @ h + ridge * eye(h.shape[1], dtype=float64, device="cpu")
        return linalg.solve(square, h.T @ y).T.to(states.dtype).to(states.device)

    def extra_repr(self) -> str:
        return (
            f"input_size={self.input_size}, reservoir_size={self.reservoir_size}, "
            f"spectral_radius={self.spectral_radius}, density={self.density}, leak={self.leak}"
        )
