"""A simulated quantum circuit."""

from __future__ import annotations

import math
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, empty
from weft.core.tensor import Tensor
from weft.names.functions import stack, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


@layer("L092", oracle="NumPy: products of Kronecker matrices; the parameter-shift rule")
class QuantumLayer(Module):
    """p = |ψ|² with ψ = U_L ... U_1 x/‖x‖: a circuit of rotations, and of CNOTs with `entangle`, on amplitude-encoded
    inputs.

    x is cut or filled with zeros to D = 2^num_qubits amplitudes and normalised; a zero vector is the basis state 0.
    Each layer rotates every qubit q, bit q of the index (bit 0 is the least significant), by
    RY(θ) = [[cos θ/2, -sin θ/2], [sin θ/2, cos θ/2]]; then, with `entangle`, CNOTs flip bit q + 1 mod n where bit q is
    1, for q = 0 to n - 1. All gates are real, so ψ stays real. A gate works on pairs of amplitudes: O(n D) per layer.

    Shape: input [*, F], output [*, 2^num_qubits], which sums to 1; theta [num_layers, num_qubits], drawn from U(0, 2π).
    Reference: Schuld & Petruccione 2018.

    >>> layer = weft.nn.QuantumLayer(2)
    >>> with weft.no_grad():
    ...     _ = layer.theta.fill_(0.0)
    >>> layer(weft.tensor([3.0, 0.0, 4.0])).detach()
    tensor([0.3600, 0.0000, 0.6400, 0.0000])
    """

    def __init__(
        self, num_qubits: int, num_layers: int = 1, entangle: bool = False, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        if num_qubits < 1 or num_layers < 0:
            given = f"num_qubits={num_qubits} and num_layers={num_layers}"
            raise problem(RangeError, "QuantumLayer", given, "at least 1 qubit and no negative number of layers")
        self.num_qubits, self.num_layers, self.entangle = num_qubits, num_layers, entangle
        self.theta = Parameter(empty(num_layers, num_qubits, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the angles again."""
        init.uniform_(self.theta, 0.0, 2.0 * math.pi)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 1:
            raise problem(ShapeError, "QuantumLayer", f"shape {tuple(input.shape)}", "[*, F]")
        state = _encode(input, 2**self.num_qubits)
        cosine, sine = (0.5 * self.theta).cos(), (0.5 * self.theta).sin()
        for number in range(self.num_layers):
            for qubit in range(self.num_qubits):
                state = _rotate(state, qubit, cosine[number, qubit], sine[number, qubit])
            if self.entangle and self.num_qubits > 1:
                for qubit in range(self.num_qubits):
                    state = _cnot(state, qubit, (qubit + 1) % self.num_qubits)
        return state * state

    def extra_repr(self) -> str:
        return f"num_qubits={self.num_qubits}, num_layers={self.num_layers}, entangle={self.entangle}"


def _encode(x: Tensor, size: int) -> Tensor:
    """x/‖x‖ of length `size`; e_0 where x is 0. Dividing by the largest element first avoids overflow."""
    x = x[..., :size] if x.shape[-1] >= size else F.pad(x, (0, size - x.shape[-1]))
    largest = x.detach().abs().amax(-1, keepdim=True)
    is_zero = largest == 0
    x = x / where(is_zero, 1.0, largest)
    squares = (x * x).sum(-1, keepdim=True)
    first = arange(size, device=x.device) == 0
    return where(is_zero, first.to(x.dtype), x / where(is_zero, 1.0, squares).sqrt())


def _rotate(state: Tensor, qubit: int, cosine: Tensor, sine: Tensor) -> Tensor:
    """RY on bit `qubit` of the last axis."""
    pairs = state.reshape(*state.shape[:-1], -1, 2, 2**qubit)  # [*, higher bits, this bit, lower bits]
    zero, one = pairs[..., 0, :], pairs[..., 1, :]
    return stack([cosine * zero - sine * one, sine * zero + cosine * one], -2).reshape(state.shape)


def _cnot(state: Tensor, control: int, target: int) -> Tensor:
    """Flip bit `target` of the index where bit `control` is 1."""
    flipped = state.reshape(*state.shape[:-1], -1, 2, 2**target).flip(-2).reshape(state.shape)
    is_set = (arange(state.shape[-1], device=state.device) // 2**control) % 2 == 1
    return where(is_set, flipped, state)
