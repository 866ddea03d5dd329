"""Capsules: groups of neurons whose direction says what is there, and whose length how surely."""

from __future__ import annotations

import math
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, zeros
from weft.core.tensor import Tensor
from weft.names.functions import where
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.spatial.convolution import Conv2d


def squash(input: Tensor, dim: int = -1) -> Tensor:
    """s ‖s‖ / (1 + ‖s‖²) along `dim`: the same direction, a length below 1; 0 at 0, with gradient 0.

    >>> weft.nn.spatial.capsule.squash(weft.tensor([3.0, 4.0]))
    tensor([0.5769, 0.7692])
    """
    square = (input * input).sum(dim, keepdim=True)
    is_zero = square == 0
    norm = where(is_zero, 0.0, where(is_zero, 1.0, square).sqrt())
    return input * (norm / (1.0 + square))


@layer("L090", aliases=("CapsuleLayer",), oracle="NumPy: a loop over capsules and rounds")
class Capsule(Module):
    """Routing by agreement (Sabour et al. 2017): û_{j|i} = W_ij u_i; b = 0; then `routing_iters` times
    c = softmax_j(b), s_j = Σ_i c_ij û_{j|i} (+ bias_j), v_j = squash(s_j), and, except in the last round,
    b_ij += ⟨û_{j|i}, v_j⟩. squash(s) = s ‖s‖ / (1 + ‖s‖²), 0 at 0.

    Gradients pass through all rounds; with `detach_routing` through the last one only.

    Shape: input [B, in_caps, in_dim], output [B, out_caps, out_dim]; weight [in_caps, out_caps, in_dim, out_dim] from
    U(-1/√in_dim, 1/√in_dim), bias [out_caps, out_dim] starts as 0.

    >>> layer = weft.nn.Capsule(6, 4, 3, 5)
    >>> v = layer(weft.ones(2, 6, 4))
    >>> v.shape, bool((v.norm(dim=-1) < 1).all())
    ((2, 3, 5), True)
    """

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        routing_iters: int = 3,
        bias: bool = False,
        detach_routing: bool = False,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if min(in_caps, in_dim, out_caps, out_dim, routing_iters) < 1:
            given = f"sizes ({in_caps}, {in_dim}, {out_caps}, {out_dim}) and routing_iters={routing_iters}"
            raise problem(RangeError, "Capsule", given, "at least 1 of each")
        self.in_caps, self.in_dim, self.out_caps, self.out_dim = in_caps, in_dim, out_caps, out_dim
        self.routing_iters, self.detach_routing = routing_iters, detach_routing
        self.weight = Parameter(empty(in_caps, out_caps, in_dim, out_dim, device=device, dtype=dtype))
        made = Parameter(empty(out_caps, out_dim, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight again."""
        bound = 1.0 / math.sqrt(self.in_dim)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 3 or input.shape[1:] != (self.in_caps, self.in_dim):
            raise problem(ShapeError, "Capsule", f"shape {tuple(input.shape)}", f"[B, {self.in_caps}, {self.in_dim}]")
        votes = self._votes(input)  # [B, I, J, out]
        fixed = votes.detach() if self.detach_routing else votes
        logits = zeros(*votes.shape[:-1], dtype=votes.dtype, device=votes.device)  # [B, I, J]
        for _ in range(self.routing_iters - 1):
            logits = logits + (fixed * self._combine_votes(fixed, logits).unsqueeze(1)).sum(-1)
        return self._combine_votes(votes, logits.detach() if self.detach_routing else logits)

    def _votes(self, input: Tensor) -> Tensor:
        """û: what each input capsule says of each output capsule, one product for each input capsule."""
        weight = self.weight.transpose(1, 2).reshape(self.in_caps, self.in_dim, -1)  # [I, in, J·out]
        votes = input.transpose(0, 1) @ weight  # [I, B, J·out]
        return votes.transpose(0, 1).reshape(len(input), self.in_caps, self.out_caps, self.out_dim)

    def _combine_votes(self, votes: Tensor, logits: Tensor) -> Tensor:
        """v [B, J, out] for the coupling logits [B, I, J]."""
        total = (logits.softmax(-1).unsqueeze(-1) * votes).sum(1)
        return squash(total if self.bias is None else total + self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_caps={self.in_caps}, in_dim={self.in_dim}, out_caps={self.out_caps}, out_dim={self.out_dim}, "
            f"routing_iters={self.routing_iters}"
        )


@layer(aliases=("PrimaryCapsule", "PrimaryCapsuleLayer"), oracle="torch: conv2d, reshape, squash")
class PrimaryCapsules(Module):
    """u = squash of the channels of a convolution, in groups of `caps_dim`: the first capsules of a network (Sabour et
    al. 2017).

    Shape: input [B, in_channels, H, W], output [B, caps_channels · H' · W', caps_dim] with the convolution's H' and W';
    capsule (channel, y, x) is number (channel · H' + y) · W' + x. `conv` is a Conv2d with caps_channels · caps_dim
    channels.

    >>> layer = weft.nn.PrimaryCapsules(1, 2, 8, kernel_size=3, stride=2)
    >>> layer(weft.ones(4, 1, 7, 7)).shape
    (4, 18, 8)
    """

    def __init__(
        self,
        in_channels: int,
        caps_channels: int,
        caps_dim: int,
        kernel_size: int | tuple[int, int] = 9,
        stride: int | tuple[int, int] = 2,
        padding: int | tuple[int, int] = 0,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.caps_channels, self.caps_dim = caps_channels, caps_dim
        channels = caps_channels * caps_dim
        self.conv = Conv2d(in_channels, channels, kernel_size, stride, padding, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise problem(ShapeError, "PrimaryCapsules", f"shape {tuple(input.shape)}", "[B, C, H, W]")
        found = self.conv(input)  # [B, caps_channels · caps_dim, H', W']
        found = found.reshape(len(input), self.caps_channels, self.caps_dim, -1)
        return squash(found.transpose(2, 3).reshape(len(input), -1, self.caps_dim))
