"""Losses with margins: rankings, pairs and triplets of embeddings, and capsules."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.loss import _Loss, _WeightedLoss
from weft.nn.registry import layer


@layer(learns="-")
class MultiLabelMarginLoss(_Loss):
    """Σ_ij max(0, 1 - (x_{y_j} - x_i)) / K over the classes y_j that are right (up to the first -1) and i that are not.

    >>> weft.nn.MultiLabelMarginLoss()(weft.tensor([[0.5, 0.25]]), weft.tensor([[0, -1]]))
    tensor(0.3750)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)


@layer(learns="-")
class MultiMarginLoss(_WeightedLoss):
    """Σ_{i≠y} w_y max(0, m - x_y + x_i)^p / K of class y.

    >>> weft.nn.MultiMarginLoss()(weft.tensor([[0.5, 0.25]]), weft.tensor([0]))
    tensor(0.3750)
    """

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(weight, size_average, reduce, reduction)
        self.p, self.margin = p, margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(
            input, target, p=self.p, margin=self.margin, weight=self.weight, reduction=self.reduction
        )


@layer(learns="-")
class HingeEmbeddingLoss(_Loss):
    """x where y is 1, max(0, m - x) where y is -1.

    >>> weft.nn.HingeEmbeddingLoss()(weft.tensor([0.25, 0.25]), weft.tensor([1.0, -1.0]))
    tensor(0.5000)
    """

    def __init__(
        self,
        margin: float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, margin=self.margin, reduction=self.reduction)


@layer(learns="-")
class MarginRankingLoss(_Loss):
    """max(0, -y (x₁ - x₂) + m): x₁ is to be above x₂ where y is 1, below where it is -1.

    >>> weft.nn.MarginRankingLoss()(weft.tensor([1.0]), weft.tensor([2.0]), weft.tensor([1.0]))
    tensor(1.)
    """

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


@layer(learns="-")
class CosineEmbeddingLoss(_Loss):
    """1 - cos(x₁, x₂) where y is 1, max(0, cos(x₁, x₂) - m) where it is -1.

    >>> a, b = weft.tensor([[1.0, 0.0]]), weft.tensor([[0.0, 1.0]])
    >>> weft.nn.CosineEmbeddingLoss()(a, b, weft.tensor([1.0]))
    tensor(1.)
    """

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.margin = margin

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, margin=self.margin, reduction=self.reduction)


@layer(learns="-")
class TripletMarginLoss(_Loss):
    """max(0, d(a, p) - d(a, n) + m), d the p-norm of the difference plus eps; with `swap` d(p, n) where that is less,
    with `squared` squared distances (FaceNet, Schroff 2015).

    >>> a, b = weft.tensor([[0.0]]), weft.tensor([[1.0]])
    >>> weft.nn.TripletMarginLoss()(a, b, b)
    tensor(1.)
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        squared: bool = False,
    ):
        super().__init__(size_average, reduce, reduction)
        self.margin, self.p, self.eps, self.swap, self.squared = margin, p, eps, swap, squared

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return (
            F.triplet_margin_with_distance_loss(
                anchor,
                positive,
                negative,
                distance_function=self._squared_distance,
                margin=self.margin,
                swap=self.swap,
                reduction=self.reduction,
            )
            if self.squared
            else F.triplet_margin_loss(
                anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=self.reduction
            )
        )

    def _squared_distance(self, a: Tensor, b: Tensor) -> Tensor:
        return ((a - b + self.eps) ** 2).sum(-1)


@layer(learns="-")
class TripletMarginWithDistanceLoss(_Loss):
    """max(0, d(a, p) - d(a, n) + m) with any function d of two tensors.

    >>> loss = weft.nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs().sum(-1))
    >>> loss(weft.zeros(1, 2), weft.ones(1, 2), weft.ones(1, 2) * 2)
    tensor(0.)
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


@layer(oracle="the formula in NumPy", learns="-")
class ContrastiveLoss(_Loss):
    """½ (y d² + (1 - y) max(0, m - d)²), d = ‖x₁ - x₂‖, y = 1 for pairs that are alike (Hadsell 2006).

    >>> a, b = weft.tensor([[0.0]]), weft.tensor([[2.0]])
    >>> weft.nn.ContrastiveLoss()(a, b, weft.tensor([1.0]))
    tensor(2.)
    """

    def __init__(
        self,
        margin: float = 1.0,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        return F.contrastive_loss(x1, x2, target, self.margin, self.reduction)


@layer(oracle="the formula in NumPy", learns="-")
class CapsuleMarginLoss(_Loss):
    """Σ_k T_k max(0, m⁺ - ‖v_k‖)² + λ (1 - T_k) max(0, ‖v_k‖ - m⁻)² of the lengths of capsules (Sabour 2017).

    Shape: input [B, K, D] capsules; target [B] classes or [B, K] of 0 and 1.

    >>> weft.nn.CapsuleMarginLoss()(weft.zeros(1, 2, 4), weft.tensor([0]))
    tensor(0.8100)
    """

    def __init__(
        self,
        positive: float = 0.9,
        negative: float = 0.1,
        down_weight: float = 0.5,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        self.positive, self.negative, self.down_weight = positive, negative, down_weight

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        lengths = input.norm(dim=-1)  # [B, K]
        if target.ndim < lengths.ndim:
            target = F.one_hot(target, lengths.shape[-1])
        target = target.to(lengths.dtype)
        return F.capsule_margin_loss(lengths, target, self.positive, self.negative, self.down_weight, self.reduction)
