"""Rotary positions: queries and keys rotated by angles that grow with their positions."""

from __future__ import annotations

from typing import Any

from weft.base.dtypes import DType, float32, float64, int32
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange
from weft.core.tensor import Tensor
from weft.functional.shape_of_tensors import bitcast
from weft.names.functions import stack
from weft.nn.module import Module
from weft.nn.registry import layer


@layer("", learns="-", oracle="the rotation in float64 NumPy")
class RotaryEmbedding(Module):
    """Rotary positions: the pair (x[2i], x[2i+1]) at position t is rotated by the angle t·base^(-2i/dim), so that the
    product of a query and a key depends on the distance of their positions.

    Shape: input [..., T, dim], output the same. `positions` [T] or [B, T] (as many leading axes of the input as there
    are; heads share them) replaces 0..T-1. Sines and cosines of the
    first `max_len` positions are kept as tables (buffers that are not saved), computed on the device; other positions,
    and those for float64, are computed as they come. The tables are the bits of float32 numbers, as int32: they keep
    their precision when a model goes to bfloat16 and back. The result has the dtype of the input, whatever `dtype`.
    After Su et al., "RoFormer" (2021).

    >>> rotary = weft.nn.RotaryEmbedding(2)
    >>> rotary(weft.tensor([[1.0, 0.0], [1.0, 0.0]]))  # positions 0 and 1: no rotation, then by one radian
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """

    def __init__(self, dim: int, base: float = 10000.0, max_len: int = 2048, device: Any = None, dtype: Any = None):
        super().__init__()
        if dim < 2 or dim % 2:
            raise problem(RangeError, "RotaryEmbedding", f"dim={dim}", "an even number of features: pairs are rotated")
        self.dim, self.base, self.max_len = dim, base, max_len
        for name, table in zip(
            ("cos_bits", "sin_bits"), self._angles(arange(max_len, device=device), float32), strict=True
        ):
            self.register_buffer(name, bitcast(table, int32), persistent=False)

    def _angles(self, positions: Tensor, dtype: DType) -> tuple[Tensor, Tensor]:
        """Cosine and sine for positions [..., T]: [..., T, dim / 2]."""
        rates = self.base ** (arange(0, self.dim, 2, device=positions.device).to(dtype) * (-1.0 / self.dim))
        angles = positions.to(dtype).unsqueeze(-1) * rates
        return angles.cos(), angles.sin()

    def forward(self, input: Tensor, positions: Tensor | None = None) -> Tensor:
        length, width = input.shape[-2:] if input.ndim > 1 else (0, 0)
        if width != self.dim:
            raise problem(ShapeError, "RotaryEmbedding", f"an input of shape {input.shape}", f"[..., T, {self.dim}]")
        if positions is None and length <= self.max_len and input.dtype is not float64:
            cos, sin = (bitcast(table[:length], float32) for table in (self.cos_bits, self.sin_bits))
        else:
            at = arange(length, device=input.device) if positions is None else positions
            while 1 < at.ndim < input.ndim - 1:  # axes between, of heads for example, share the positions
                at = at.unsqueeze(-2)
            cos, sin = self._angles(at, float64 if input.dtype is float64 else float32)
        cos, sin = cos.to(input.dtype), sin.to(input.dtype)
        even, odd = input[..., 0::2], input[..., 1::2]
        return stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.dim}, base={self.base}"
