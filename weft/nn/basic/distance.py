"""Distances and similarities of pairs of vectors."""

from __future__ import annotations

from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer


@layer(learns="-")
class CosineSimilarity(Module):
    """y = ⟨x₁, x₂⟩ / (max(‖x₁‖, eps) · max(‖x₂‖, eps)) along `dim`.

    Shape: inputs that broadcast, output without `dim`.

    >>> weft.nn.CosineSimilarity(dim=0)(weft.tensor([1.0, 0.0]), weft.tensor([1.0, 1.0]))
    tensor(0.7071)
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


@layer(learns="-")
class PairwiseDistance(Module):
    """y = ‖x₁ - x₂ + eps‖ₚ along the last axis.

    Shape: inputs [B, D] or [D], output [B] or [], with keepdim [B, 1] or [1].

    >>> weft.nn.PairwiseDistance()(weft.tensor([3.0, 0.0]), weft.tensor([0.0, 4.0]))
    tensor(5.)
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False):
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
