"""Gates: one map of the input scales another, element by element or channel by channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.module import Module
from weft.nn.registry import layer


@layer("L082", aliases=("GatedLinearUnitLayer",), oracle="torch glu of a Linear with twice the outputs")
class GatedLinearUnit(Module):
    """y = (W x + b) ⊙ sigmoid(V x + c); `activation` replaces the sigmoid, None leaves it out.

    Shape: x [*, in_features], y [*, out_features]; linear holds W and V as one matrix [2·out_features, in_features],
    W's rows first. After Dauphin et al., "Language modeling with gated convolutional networks" (2017).

    >>> weft.nn.GatedLinearUnit(3, 2)(weft.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, activation: str | Callable[[Tensor], Tensor] | None = "sigmoid",
        bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.linear = Linear(in_features, 2 * out_features, bias=bias, device=device, dtype=dtype)
        self.activation = make_activation(activation)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.linear(x).chunk(2, -1)
        return value * (gate if self.activation is None else self.activation(gate))


@layer("L083", aliases=("SqueezeAndExcitationLayer", "SELayer"), oracle="torchvision's block, written with torch")
class SqueezeExcitation(Module):
    """y = x ⊙ e with s = mean of x over all positions, e = sigmoid(W₂ relu(W₁ s + b₁) + b₂): one factor per channel.

    Shape: x and y [B, C, *]; fc1 [C/reduction, C], fc2 [C, C/reduction]. After Hu et al., "Squeeze-and-excitation
    networks" (2018).

    >>> weft.nn.SqueezeExcitation(4, reduction=2)(weft.ones(1, 4, 3, 3)).shape
    (1, 4, 3, 3)
    """

    def __init__(self, channels: int, reduction: int = 16, device: Any = None, dtype: Any = None):
        super().__init__()
        if channels < 1 or reduction < 1 or channels // reduction < 1:
            given = f"channels={channels} and reduction={reduction}"
            raise problem(RangeError, "SqueezeExcitation", given, "at least one channel after the reduction")
        self.channels = channels
        self.fc1 = Linear(channels, channels // reduction, device=device, dtype=dtype)
        self.fc2 = Linear(channels // reduction, channels, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 3 or x.shape[1] != self.channels:
            given = f"an input of shape {x.shape}"
            raise problem(
                ShapeError, "SqueezeExcitation", given, f"[B, {self.channels}, ...] with at least one more axis"
            )
        scale = F.sigmoid(self.fc2(F.relu(self.fc1(x.flatten(2).mean(2)))))  # [B, C]
        return x * scale.reshape(*scale.shape, *[1] * (x.ndim - 2))


@layer("X09", oracle="three torch Linears and torch's silu")
class SwiGLU(Module):
    """y = W_down (SiLU(W_gate x) ⊙ W_up x).

    Shape: x and y [*, dim]; gate and up [hidden, dim], down [dim, hidden]; hidden is 8·dim/3, rounded up to a multiple
    of 64, unless given. After Shazeer, "GLU variants improve transformer" (2020).

    >>> layer = weft.nn.SwiGLU(48)
    >>> layer(weft.ones(2, 48)).shape, layer.gate.out_features
    ((2, 48), 128)
    """

    def __init__(self, dim: int, hidden: int | None = None, bias: bool = False, device: Any = None, dtype: Any = None):
        super().__init__()
        width = -(-8 * dim // (3 * 64)) * 64 if hidden is None else hidden
        like: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.gate, self.up = Linear(dim, width, **like), Linear(dim, width, **like)
        self.down = Linear(width, dim, **like)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))
