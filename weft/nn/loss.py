"""Losses, as in PyTorch, and those of the specification that PyTorch has not: each is a function of `nn.functional`."""

from __future__ import annotations

from typing import Any

from weft.base.errors import RangeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer


class _Loss(Module):
    """What all losses share: how the elements become one number."""

    def __init__(self, size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"):
        super().__init__()
        if size_average is not None or reduce is not None:  # PyTorch's older arguments
            average = True if size_average is None else size_average
            reduction = ("mean" if average else "sum") if reduce is not False else "none"
        known = ("none", "mean", "sum", "batchmean") if isinstance(self, KLDivLoss) else ("none", "mean", "sum")
        if reduction not in known:
            raise problem(RangeError, type(self).__name__, f"reduction={reduction!r}", f"one of {', '.join(known)}")
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss whose classes or elements have weights, a buffer."""

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.register_buffer("weight", weight)


@layer(learns="-")
class L1Loss(_Loss):
    """|x - y|, over elements.

    >>> weft.nn.L1Loss()(weft.tensor([1.0, 2.0]), weft.tensor([2.0, 4.0]))
    tensor(1.5000)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


@layer(learns="-")
class MSELoss(_Loss):
    """(x - y)², over elements.

    >>> weft.nn.MSELoss()(weft.tensor([1.0, 2.0]), weft.tensor([2.0, 4.0]))
    tensor(2.5000)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


@layer(learns="-")
class CrossEntropyLoss(_WeightedLoss):
    """-w_y log softmax(z)_y from logits z and classes y, or -Σ_k w_k y_k log softmax(z)_k from probabilities y.

    Shape: input [B, K, ...] or [K]; target [B, ...] of classes or [B, K, ...] of probabilities; weight [K], a buffer.
    The mean is divided by the weights of the classes that occur; targets of `ignore_index` do not count.

    >>> weft.nn.CrossEntropyLoss()(weft.tensor([[0.0, 0.0]]), weft.tensor([1]))
    tensor(0.6931)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input,
            target,
            weight=self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


@layer(aliases=("NLLLoss2d",), learns="-")
class NLLLoss(_WeightedLoss):
    """-w_y z_y from log-probabilities z and classes y.

    Shape: input [B, K, ...] or [K], target [B, ...] of classes, weight [K], a buffer.

    >>> weft.nn.NLLLoss()(weft.tensor([[-1.0, -2.0]]), weft.tensor([1]))
    tensor(2.)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(weight, size_average, reduce, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


@layer(learns="-")
class PoissonNLLLoss(_Loss):
    """exp(x) - y x of the logarithm x of a rate (or x - y log(x + eps) of the rate itself), with `full` plus Stirling's
    approximation of log y!.

    >>> weft.nn.PoissonNLLLoss()(weft.tensor([0.0]), weft.tensor([2.0]))
    tensor(1.)
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-8,
        reduce: bool | None = None,
        reduction: str = "mean",
    ):
        super().__init__(size_average, reduce, reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(
            log_input, target, log_input=self.log_input, full=self.full, eps=self.eps, reduction=self.reduction
        )


@layer(learns="-")
class GaussianNLLLoss(_Loss):
    """½ (log v + (x - y)² / v) with v = max(var, eps), with `full` plus ½ log 2π.

    >>> weft.nn.GaussianNLLLoss()(weft.tensor([0.0]), weft.tensor([2.0]), weft.tensor([1.0]))
    tensor(2.)
    """

    def __init__(
        self,
        *,
        full: bool = False,
        eps: float = 1e-6,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


@layer(learns="-")
class KLDivLoss(_Loss):
    """y (log y - x) from log-probabilities x; with `log_target` y is given as log y. `batchmean` divides by the batch.

    >>> weft.nn.KLDivLoss(reduction="sum")(weft.tensor([-1.0]), weft.tensor([1.0]))
    tensor(1.)
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
    ):
        super().__init__(size_average, reduce, reduction)
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


@layer(learns="-")
class BCELoss(_WeightedLoss):
    """-w (y log p + (1 - y) log(1 - p)) from probabilities p; logarithms are at least -100.

    >>> weft.nn.BCELoss()(weft.tensor([0.5]), weft.tensor([1.0]))
    tensor(0.6931)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


@layer(learns="-")
class BCEWithLogitsLoss(_WeightedLoss):
    """-w (c y log σ(z) + (1 - y) log(1 - σ(z))) from logits z; c is `pos_weight`.

    >>> weft.nn.BCEWithLogitsLoss()(weft.tensor([0.0]), weft.tensor([1.0]))
    tensor(0.6931)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ):
        super().__init__(weight, size_average, reduce, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


@layer(learns="-")
class SmoothL1Loss(_Loss):
    """e² / 2β where e = |x - y| < β, else e - β/2.

    >>> weft.nn.SmoothL1Loss()(weft.tensor([0.5, 3.0]), weft.tensor([0.0, 0.0]))
    tensor(1.3125)
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: float = 1.0,
    ):
        super().__init__(size_average, reduce, reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


@layer(learns="-")
class HuberLoss(_Loss):
    """e²/2 where e = |x - y| ≤ δ, else δ (e - δ/2).

    >>> weft.nn.HuberLoss(delta=2.0)(weft.tensor([3.0]), weft.tensor([0.0]))
    tensor(4.)
    """

    def __init__(
        self,
        reduction: str = "mean",
        delta: float = 1.0,
    ):
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


@layer(learns="-")
class SoftMarginLoss(_Loss):
    """log(1 + exp(-y x)) with y of -1 or 1.

    >>> weft.nn.SoftMarginLoss()(weft.tensor([0.0]), weft.tensor([1.0]))
    tensor(0.6931)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


@layer(learns="-")
class MultiLabelSoftMarginLoss(_WeightedLoss):
    """The mean over classes of -w (y log σ(x) + (1 - y) log σ(-x)).

    >>> weft.nn.MultiLabelSoftMarginLoss()(weft.tensor([[0.0, 0.0]]), weft.tensor([[1.0, 0.0]]))
    tensor(0.6931)
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, weight=self.weight, reduction=self.reduction)


@layer(learns="-")
class CTCLoss(_Loss):
    """-log p(target | log_probs), summed over all alignments with blanks (Graves 2006).

    Shape: log_probs [T, B, K] or [T, K]; targets [B, S] or all one after the other; lengths [B].

    >>> log_probs = weft.zeros(2, 1, 2).log_softmax(-1)
    >>> weft.nn.CTCLoss()(log_probs, weft.tensor([[1]]), [2], [1])
    tensor(0.2877)
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ):
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any) -> Tensor:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


@layer(oracle="the formula in NumPy", learns="-")
class FocalLoss(_Loss):
    """-α_t (1 - p_t)^γ log p_t from logits (Lin 2017): p_t is the probability of what is right.

    With a target like the input each element is a yes or no: p_t = σ(z) and α_t = α where it is 1, 1 - σ(z) and 1 - α
    where it is 0. With a target of classes [B, ...] for an input [B, K, ...]: p_t = softmax(z)_y, and `alpha` is one
    number or one per class.

    >>> weft.nn.FocalLoss()(weft.tensor([0.0]), weft.tensor([1.0]))
    tensor(0.0433)
    """

    def __init__(
        self,
        alpha: Any = 0.25,
        gamma: float = 2.0,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)
        self.alpha, self.gamma = alpha, gamma

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return (
            F.softmax_focal_loss(input, target, self.alpha, self.gamma, self.reduction)
            if target.ndim < input.ndim
            else F.sigmoid_focal_loss(input, target, self.alpha, self.gamma, self.reduction)
        )


@layer(oracle="torch.distributions", learns="-")
class GaussianKL(_Loss):
    """-½ Σ (1 + log σ² - μ² - σ²) over the latents: from N(μ, σ²) to N(0, 1), as in a VAE (Kingma 2014).

    >>> weft.nn.GaussianKL()(weft.ones(1, 2), weft.zeros(1, 2))
    tensor(1.)
    """

    def __init__(
        self,
        reduction: str = "mean",
    ):
        super().__init__(reduction=reduction)

    def forward(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        return F.gaussian_kl(mean, log_variance, self.reduction)


NLLLoss2d = NLLLoss
