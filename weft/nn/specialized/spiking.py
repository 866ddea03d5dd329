"""Spiking neurons: leaky integrate-and-fire, and models of biology."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.autograd.function import Context, Function
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, full, zeros
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer

State = tuple[Tensor, ...]

# What stands for the derivative of the step function in backward, of x = U - threshold and the slope k.
SURROGATES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "fast_sigmoid": lambda x, k: (1.0 + k * x.abs()) ** -2,
    "atan": lambda x, k: (k / 2.0) / (1.0 + (math.pi * k / 2.0 * x) ** 2),
    "sigmoid": lambda x, k: k * (k * x).sigmoid() * (1.0 - (k * x).sigmoid()),
}


class _Spike(Function):
    """1 where x >= 0, else 0; backward multiplies by a pseudo-derivative."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, surrogate: str, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.surrogate, ctx.slope = surrogate, slope  # type: ignore[attr-defined]
        return (x >= 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * SURROGATES[ctx.surrogate](x, ctx.slope), None, None  # type: ignore[attr-defined, arg-type]


@layer("L096", aliases=("SpikingLayer",), learns="S", oracle="snntorch.Leaky for lif with reset 'subtract'; NumPy")
class Spiking(Module):
    """I_t = x_t Wᵀ + b, U_t = β U_{t-1} (1 - S_{t-1}) + I_t, S_t = [U_t >= θ]: leaky integrate-and-fire neurons, or
    others, that are driven by a current; the outputs are their spikes, 0 or 1.

    One step is 1 ms for izhikevich and adex, 0.01 ms for hodgkin_huxley.

    - lif: U_t = β U_{t-1} (1 - S_{t-1}) + I_t with reset 'zero', or β U_{t-1} + I_t - θ S_{t-1} with 'subtract',
      β = 1 - 1/tau; S_t = [U_t >= θ], θ = threshold. `if` is the same with β = 1.
    - izhikevich (2003; regular spiking: a = 0.02, b = 0.2, c = -65, d = 8): two half steps of
      v' = 0.04 v² + 5 v + 140 - u + I, then u += a (b v - u); v >= 30 is a spike, v = c, u += d. From v = -65, u = b v.
    - adex (Brette & Gerstner 2005): tau v' = -(v - E) + Δ e^{min((v - V_T)/Δ, 20)} - w + I, 30 w' = 4 (v - E) - w;
      v >= 0 is a spike, v = -70, w += 0.5. E = -70, V_T = -50, Δ = 2; from v = E, w = 0.
    - hodgkin_huxley (1952): v' = I - 120 m³h (v - 50) - 36 n⁴ (v + 77) - 0.3 (v + 54.387) and the gates m, h, n; a
      spike is an upward crossing of 0 mV. From v = -65 with the gates at rest.

    For `refractory` steps after a spike I_t is ignored and no spike is emitted. Backward replaces dS/dU by a function
    of x = U - θ (v - θ for the others), k = slope: 'fast_sigmoid' 1/(1 + k|x|)² (Zenke & Ganguli 2018), 'atan'
    (k/2)/(1 + (πkx/2)²) or 'sigmoid' k s (1 - s) with s = sigmoid(kx); the reset counts as constant.

    Shape: input [B, T, in_features], or [B, in_features] for one step; forward(input, state=None) returns the spikes,
    [B, T, out_features] or [B, out_features], and the state, a tuple of tensors [B, out_features] to go on with: (U,
    S), (v, u), (v, w) or (v, m, h, n), and last, with `refractory`, the steps still to wait. weight and bias are a
    Linear's.

    >>> layer = weft.nn.Spiking(3, 2)
    >>> spikes, state = layer(weft.ones(4, 10, 3))
    >>> spikes.shape, [one.shape for one in state]
    ((4, 10, 2), [(4, 2), (4, 2)])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        neuron: str = "lif",
        tau: float = 10.0,
        threshold: float = 1.0,
        reset: str = "zero",
        refractory: int = 0,
        surrogate: str = "fast_sigmoid",
        slope: float = 25.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        for name, given, known in (
            ("neuron", neuron, NEURONS),
            ("reset", reset, ("zero", "subtract")),
            ("surrogate", surrogate, SURROGATES),
        ):
            if given not in known:
                raise problem(RangeError, "Spiking", f"{name}={given!r}", f"one of {', '.join(known)}")
        if tau < 1 or refractory < 0:
            given = f"tau={tau} and refractory={refractory}"
            raise problem(RangeError, "Spiking", given, "tau of at least 1 step and refractory of at least 0")
        self.in_features, self.out_features, self.neuron = in_features, out_features, neuron
        self.tau, self.threshold, self.reset, self.refractory = tau, threshold, reset, refractory
        self.surrogate, self.slope = surrogate, slope
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1.0 / math.sqrt(self.in_features) if self.in_features else 0.0
        for param in self.parameters():
            init.uniform_(param, -bound, bound)

    def forward(self, input: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        if input.ndim not in (2, 3) or input.shape[-1] != self.in_features:
            expected = f"[B, T, {self.in_features}] or [B, {self.in_features}]"
            raise problem(ShapeError, "Spiking", f"shape {tuple(input.shape)}", expected)
        current = F.linear(input, self.weight, self.bias)
        state = self._check_state(state, current) if state is not None else self.initial_state(current)
        if input.ndim == 2:
            state, spikes = self._step(state, current)
            return spikes, state
        state, spikes = loop(self._step, state, current.transpose(0, 1))
        return spikes.transpose(0, 1), state

    def initial_state(self, like: Tensor) -> State:
        """The state of neurons at rest, for a current [B, ..., out_features]."""
        shape = (len(like), self.out_features)
        kind: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        values = tuple([full(shape, value, **kind) for value in NEURONS[self.neuron][0]])
        return (*values, zeros(*shape, **kind)) if self.refractory else values

    def _check_state(self, state: State, current: Tensor) -> State:
        wanted, shape = len(self.initial_state(current)), (len(current), self.out_features)
        shapes = [tuple(one.shape) for one in state]
        if shapes != [shape] * wanted:
            expected = f"{wanted} tensors of shape {shape}"
            raise problem(
                ShapeError, "Spiking", f"a state of shapes {shapes}", expected, "pass what the last call gave"
            )
        return tuple(state)

    def _step(self, state: State, current: Tensor) -> tuple[State, Tensor]:
        """One time step: the new state and the spikes."""
        advance = NEURONS[self.neuron][1]
        if not self.refractory:
            return advance(self, state, current, None)
        *values, wait = state
        is_free = wait <= 0
        state, spikes = advance(self, tuple(values), where(is_free, current, 0.0), is_free)
        wait = where(spikes.detach() > 0, float(self.refractory), (wait - 1.0).clamp_min(0.0))
        return (*state, wait), spikes

    def spike(self, x: Tensor, is_free: Tensor | None = None) -> Tensor:
        """1 where x >= 0 and the neuron is free to fire, else 0, with the surrogate gradient."""
        fired = _Spike.apply(x, self.surrogate, self.slope)
        return fired if is_free is None else where(is_free, fired, 0.0)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, neuron={self.neuron!r}"


def _integrate(layer: Spiking, state: State, current: Tensor, is_free: Tensor | None) -> tuple[State, Tensor]:
    """lif and if."""
    potential, last = state
    decay = 1.0 if layer.neuron == "if" else 1.0 - 1.0 / layer.tau
    if layer.reset == "zero":
        potential = decay * potential * (1.0 - last) + current
    else:
        potential = decay * potential + current - layer.threshold * last
    spikes = layer.spike(potential - layer.threshold, is_free)
    return (potential, spikes.detach()), spikes


def _izhikevich(layer: Spiking, state: State, current: Tensor, is_free: Tensor | None) -> tuple[State, Tensor]:
    v, u = state
    for _ in range(2):
        v = v + 0.5 * (0.04 * v * v + 5.0 * v + 140.0 - u + current)
    u = u + 0.02 * (0.2 * v - u)
    spikes = layer.spike(v - 30.0, is_free)
    fired = v.detach() >= 30.0
    return (where(fired, -65.0, v), where(fired, u + 8.0, u)), spikes


def _adex(layer: Spiking, state: State, current: Tensor, is_free: Tensor | None) -> tuple[State, Tensor]:
    v, w = state
    upswing = 2.0 * ((v + 50.0) / 2.0).clamp_max(20.0).exp()
    new_v = v + (upswing - (v + 70.0) - w + current) / layer.tau
    new_w = w + (4.0 * (v + 70.0) - w) / 30.0
    spikes = layer.spike(new_v, is_free)
    fired = new_v.detach() >= 0
    return (where(fired, -70.0, new_v), where(fired, new_w + 0.5, new_w)), spikes


def _rates(v: Any, exp: Callable[[Any], Any], ratio: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    """The rates (opening, closing) of the gates m, h and n per ms; `ratio(x)` is x / (1 - e^{-x})."""
    return [
        (ratio((v + 40.0) / 10.0), 4.0 * exp(-(v + 65.0) / 18.0)),
        (0.07 * exp(-(v + 65.0) / 20.0), 1.0 / (1.0 + exp(-(v + 35.0) / 10.0))),
        (0.1 * ratio((v + 55.0) / 10.0), 0.125 * exp(-(v + 65.0) / 80.0)),
    ]


def _ratio(x: Tensor) -> Tensor:
    """x / (1 - e^{-x}), 1 + x/2 near 0."""
    is_small = x.abs() < 1e-4
    return where(is_small, 1.0 + 0.5 * x, x / -(-where(is_small, 1.0, x)).expm1())


def _hodgkin_huxley(layer: Spiking, state: State, current: Tensor, is_free: Tensor | None) -> tuple[State, Tensor]:
    v, m, h, n = state
    sodium, potassium = 120.0 * m**3 * h * (v - 50.0), 36.0 * n**4 * (v + 77.0)
    new_v = v + 0.01 * (current - sodium - potassium - 0.3 * (v + 54.387))
    rates = zip((m, h, n), _rates(v, Tensor.exp, _ratio), strict=True)
    gates = [gate + 0.01 * (opening * (1.0 - gate) - closing * gate) for gate, (opening, closing) in rates]
    spikes = where(v.detach() < 0, layer.spike(new_v, is_free), 0.0)
    return (new_v, *gates), spikes


_RESTING_GATES = [
    opening / (opening + closing) for opening, closing in _rates(-65.0, math.exp, lambda x: x / -math.expm1(-x))
]
Advance = Callable[[Spiking, State, Tensor, Tensor | None], tuple[State, Tensor]]
# The state at rest, and one step, of every kind of neuron.
NEURONS: dict[str, tuple[tuple[float, ...], Advance]] = {
    "lif": ((0.0, 0.0), _integrate),
    "if": ((0.0, 0.0), _integrate),
    "izhikevich": ((-65.0, -13.0), _izhikevich),
    "adex": ((-70.0, 0.0), _adex),
    "hodgkin_huxley": ((-65.0, *_RESTING_GATES), _hodgkin_huxley),
}
