"""Activations."""

from __future__ import annotations

from weft.nn.module import Module
from weft.nn.registry import layer
from weft.tensor import Tensor


@layer(learns="-")
class Tanh(Module):
    """y = tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        return input.tanh()
