"""Dense layers."""

from __future__ import annotations

import math
from typing import Any

from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.creation import empty
from weft.tensor import Tensor


@layer("L026", aliases=("DenseLayer", "Dense", "FullyConnected", "FullyConnectedLayer"))
class Linear(Module):
    """y = x Wᵀ + b.

    Shape: input [*, in_features], output [*, out_features]; weight [out_features, in_features], bias [out_features].
    Both start as U(-1/√in_features, 1/√in_features).

    >>> layer = weft.nn.Linear(3, 2)
    >>> layer(weft.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
