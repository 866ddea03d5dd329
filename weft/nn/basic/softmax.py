"""Softmax and its relatives: layers that make probabilities of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.base.dtypes import finfo
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange
from weft.core.tensor import Tensor
from weft.names.functions import cat, where
from weft.nn import functional as F
from weft.nn.basic.linear import Linear
from weft.nn.containers import ModuleList, Sequential
from weft.nn.module import Module
from weft.nn.registry import layer


def _check_temperature(who: str, temperature: float, name: str = "temperature") -> float:
    if not temperature > 0:
        raise problem(RangeError, who, f"{name}={temperature!r}", "a number above 0")
    return temperature


def _divide_by_temperature(input: Tensor, temperature: float) -> Tensor:
    return input if temperature == 1.0 else input / temperature


@layer("X01", learns="-", oracle="torch.nn.Softmax of z / temperature")
class Softmax(Module):
    """p = e^(z / τ) / Σ e^(z / τ) along `dim`, τ the temperature.

    Shape: input [*], output the same; the outputs along `dim` sum to 1. Without `dim`, as in torch: axis 0 of inputs of
    rank 0, 1 and 3, else axis 1.

    >>> weft.nn.Softmax(dim=-1)(weft.tensor([0.0, 0.0]))
    tensor([0.5000, 0.5000])
    """

    def __init__(self, dim: int | None = None, temperature: float = 1.0):
        super().__init__()
        self.dim, self.temperature = dim, _check_temperature("Softmax", temperature)

    def forward(self, input: Tensor) -> Tensor:
        return F.softmax(_divide_by_temperature(input, self.temperature), self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}" + (f", temperature={self.temperature}" if self.temperature != 1.0 else "")


@layer(learns="-")
class Softmax2d(Module):
    """p = softmax over the channels, at every position of an image.

    Shape: input [B, C, H, W] or [C, H, W], output the same.

    >>> weft.nn.Softmax2d()(weft.zeros(2, 1, 1)).flatten()
    tensor([0.5000, 0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise problem(ShapeError, "Softmax2d", f"shape {list(input.shape)}", "[B, C, H, W] or [C, H, W]")
        return F.softmax(input, -3)


@layer(learns="-")
class LogSoftmax(Module):
    """y = z - log Σ e^z along `dim`: the logarithm of softmax, without overflow.

    Shape: input [*], output the same. Without `dim`, as `Softmax`.

    >>> weft.nn.LogSoftmax(dim=-1)(weft.tensor([0.0, 0.0]))
    tensor([-0.6931, -0.6931])
    """

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.log_softmax(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


@layer(learns="-")
class Softmin(Module):
    """p = softmax(-z) along `dim`.

    Shape: input [*], output the same. Without `dim`, as `Softmax`.

    >>> weft.nn.Softmin(dim=-1)(weft.tensor([0.0, 1.0]))
    tensor([0.7311, 0.2689])
    """

    def __init__(self, dim: int | None = None):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        return F.softmin(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


@layer("X02", learns="-", oracle="torch.softmax of the reshaped rows")
class GridSoftmax(Module):
    """p = softmax of every row of a grid: x is taken as [*, rows, cols], softmax runs over cols.

    Shape: input [*, rows · cols], output the same; each row sums to 1.

    >>> weft.nn.GridSoftmax(2, 2)(weft.zeros(4))
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    def __init__(self, rows: int, cols: int, temperature: float = 1.0):
        super().__init__()
        if rows < 1 or cols < 1:
            raise problem(RangeError, "GridSoftmax", f"rows={rows} and cols={cols}", "numbers from 1 on")
        self.rows, self.cols = rows, cols
        self.temperature = _check_temperature("GridSoftmax", temperature)

    def forward(self, input: Tensor) -> Tensor:
        if not input.ndim or input.shape[-1] != self.rows * self.cols:
            expected = f"[*, {self.rows * self.cols}]: {self.rows} rows of {self.cols}"
            raise problem(ShapeError, "GridSoftmax", f"shape {list(input.shape)}", expected)
        grid = input.unflatten(-1, (self.rows, self.cols))  # [*, rows, cols]
        return F.softmax(_divide_by_temperature(grid, self.temperature), -1).flatten(-2)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.cols}, temperature={self.temperature}"


@layer("X03", learns="-", oracle="torch.softmax with -inf at masked entries; zeros where a row has no legal entry")
class MaskedSoftmax(Module):
    """p = softmax(z / τ) over the legal entries along `dim`; masked entries are exactly 0 and have gradient 0, also in
    rows without a legal entry.

    Shape: z [*]; mask broadcasts to z, True = legal. Without `mask` in the call the buffer `mask` counts, which may be
    assigned (`layer.mask = m`) and is not part of the state_dict; None masks nothing.

    >>> weft.nn.MaskedSoftmax()(weft.zeros(3), weft.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """

    mask: Tensor | None

    def __init__(self, dim: int = -1, temperature: float = 1.0):
        super().__init__()
        self.dim, self.temperature = dim, _check_temperature("MaskedSoftmax", temperature)
        self.register_buffer("mask", None, persistent=False)

    def forward(self, z: Tensor, mask: Tensor | None = None) -> Tensor:
        legal = self.mask if mask is None else mask
        z = _divide_by_temperature(z, self.temperature)
        if legal is None:
            return F.softmax(z, self.dim)
        legal = legal.bool()
        # The maximum of a row without legal entries is the fill; all its entries are set to 0 afterwards.
        lowest = where(legal, z, float(finfo(z.dtype).min))
        return where(legal, F.softmax(lowest, self.dim), 0.0)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, temperature={self.temperature}"


@layer("X04", learns="-", oracle="torch.nn.functional.gumbel_softmax by its distribution")
class GumbelSoftmax(Module):
    """y = softmax((z + G) / τ), G = -log(-log U), U uniform: a differentiable draw from softmax(z). hard=True gives the
    one-hot vector of the largest entry, with the gradient of the soft one (Jang et al. 2017, Maddison et al. 2017).

    Shape: logits [*], output the same.

    >>> weft.nn.GumbelSoftmax(hard=True)(weft.zeros(5)).sum()
    tensor(1.)
    """

    def __init__(self, tau: float = 1.0, hard: bool = False, dim: int = -1):
        super().__init__()
        self.tau, self.hard, self.dim = _check_temperature("GumbelSoftmax", tau, "tau"), hard, dim

    def forward(self, logits: Tensor) -> Tensor:
        return F.gumbel_softmax(logits, self.tau, self.hard, dim=self.dim)

    def extra_repr(self) -> str:
        return f"tau={self.tau}, hard={self.hard}, dim={self.dim}"


@layer("X04", learns="-", oracle="the projection onto the simplex in NumPy")
class Sparsemax(Module):
    """p = argmin ‖p - z‖² over the simplex = max(z - θ, 0): with z₍₁₎ ≥ z₍₂₎ ≥ ... along `dim`,
    k = max{j: 1 + j z₍ⱼ₎ > Σ_{i≤j} z₍ᵢ₎} and θ = (Σ_{i≤k} z₍ᵢ₎ - 1) / k (Martins & Astudillo 2016).

    Shape: input [*], output the same. The gradient is g - mean_S(g) on the support S = {p > 0} and 0 elsewhere.

    >>> weft.nn.Sparsemax()(weft.tensor([1.0, 0.5, -1.0]))
    tensor([0.7500, 0.2500, 0.0000])
    """

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        z = (input - input.detach().amax(self.dim, keepdim=True)).movedim(self.dim, -1)
        ordered, _ = z.detach().sort(-1, descending=True)
        count = arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        inside = 1 + count * ordered > ordered.cumsum(-1)
        size = inside.sum(-1, keepdim=True)  # of the support
        smallest = ordered.gather(-1, (size - 1).clamp(min=0))
        support = ~(z < smallest)  # and NaN
        theta = (where(support, z, 0.0).sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
        return where(support, z - theta, 0.0).movedim(-1, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


@layer("X04", aliases=("Entmax",), learns="-", oracle="the exact solution in NumPy, found by bisection")
class Entmax15(Module):
    """p = max(z / 2 - θ, 0)², θ such that the p along `dim` sum to 1: entmax of order 1.5, between softmax and
    sparsemax (Peters et al. 2019).

    With x = z / 2 in descending order, M and S the mean and the summed squares about it of the k largest:
    θ = M - √((1 - S) / k), for the largest k with θ ≤ x₍ₖ₎.
    Shape: input [*], output the same.

    >>> weft.nn.Entmax15()(weft.tensor([0.0, 0.0, -5.0]))
    tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(self, dim: int = -1):
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        x = ((input - input.detach().amax(self.dim, keepdim=True)) / 2).movedim(self.dim, -1)
        ordered, _ = x.detach().sort(-1, descending=True)
        count = arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        mean, square = ordered.cumsum(-1) / count, (ordered * ordered).cumsum(-1) / count
        spread = count * (square - mean * mean)
        theta = mean - ((1 - spread) / count).clamp(min=0).sqrt()
        size = (theta <= ordered).sum(-1, keepdim=True)
        support = ~(x < ordered.gather(-1, (size - 1).clamp(min=0)))  # and NaN
        # The same formula for the support alone, through which the gradient flows.
        size = support.sum(-1, keepdim=True)
        centre = where(support, x, 0.0).sum(-1, keepdim=True) / size
        spread = where(support, x - centre, 0.0).square().sum(-1, keepdim=True)
        theta = centre - ((1 - spread) / size).sqrt()
        return where(support, x - theta, 0.0).square().movedim(-1, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class AdaptiveOutput(NamedTuple):
    """What AdaptiveLogSoftmaxWithLoss returns: log p of each target, and minus their mean."""

    output: Tensor
    loss: Tensor


@layer()
class AdaptiveLogSoftmaxWithLoss(Module):
    """log p(target) by a softmax in two steps: a head over the frequent classes and one entry for each cluster of rare
    ones, and within a cluster a softmax behind a narrower projection (Grave et al. 2017).

    log p(c) = log head(c) for c < cutoffs[0]; log head(cluster) + log tail(c) for c in a cluster. Cluster i covers
    cutoffs[i] <= c < cutoffs[i + 1] and has in_features / div_value^(i + 1) inner features.
    Shape: input [B, in_features] or [in_features], target [B] or []; output of the target's shape, loss a number. All
    clusters are computed for every row, so that shapes do not depend on the targets.

    >>> layer = weft.nn.AdaptiveLogSoftmaxWithLoss(8, 10, cutoffs=[4, 7])
    >>> layer(weft.zeros(3, 8), weft.tensor([0, 5, 9])).output.shape
    (3,)
    """

    def __init__(
        self, in_features: int, n_classes: int, cutoffs: Sequence[int], div_value: float = 4.0,
        head_bias: bool = False, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs or sorted({*cutoffs}) != cutoffs or cutoffs[0] <= 0 or cutoffs[-1] >= n_classes:
            expected = f"increasing whole numbers from 1 to {n_classes - 1}"
            raise problem(RangeError, "AdaptiveLogSoftmaxWithLoss", f"cutoffs={cutoffs}", expected)
        self.in_features, self.n_classes, self.div_value, self.head_bias = in_features, n_classes, div_value, head_bias
        self.cutoffs = [*cutoffs, n_classes]
        self.shortlist_size = cutoffs[0]
        self.n_clusters = len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        form = {"device": device, "dtype": dtype}
        self.head = Linear(in_features, self.head_size, bias=head_bias, **form)
        self.tail = ModuleList()
        for number, (low, high) in enumerate(zip(self.cutoffs, self.cutoffs[1:], strict=False)):
            inner = int(in_features // div_value ** (number + 1))
            self.tail.append(
                Sequential(
                    Linear(in_features, inner, bias=False, **form), Linear(inner, high - low, bias=False, **form)
                )
            )

    def reset_parameters(self) -> None:
        """Draw all weights again."""
        self.head.reset_parameters()
        for first, second in self.tail:
            first.reset_parameters()
            second.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> AdaptiveOutput:
        is_one = input_.ndim == 1
        if input_.ndim not in (1, 2) or target_.ndim != input_.ndim - 1 or input_.shape[-1] != self.in_features:
            given = f"input {list(input_.shape)} and target {list(target_.shape)}"
            expected = f"[B, {self.in_features}] and [B], or [{self.in_features}] and []"
            raise problem(ShapeError, "AdaptiveLogSoftmaxWithLoss", given, expected)
        scores = self.log_prob(input_.unsqueeze(0) if is_one else input_)
        target = target_.reshape(-1, 1)
        if target.shape[0] != scores.shape[0]:
            given = f"{scores.shape[0]} inputs and {target.shape[0]} targets"
            raise problem(ShapeError, "AdaptiveLogSoftmaxWithLoss", given, "as many targets as inputs")
        output = scores.gather(1, target).squeeze(1)  # [B]
        return AdaptiveOutput(output.squeeze(0) if is_one else output, -output.mean())

    def log_prob(self, input: Tensor) -> Tensor:
        """log p of all classes: [B, n_classes]."""
        head = F.log_softmax(self.head(input), 1)  # [B, shortlist + clusters]
        parts = [head[:, : self.shortlist_size]]
        for number, tail in enumerate(self.tail):
            entry = head[:, self.shortlist_size + number].unsqueeze(1)
            parts.append(F.log_softmax(tail(input), 1) + entry)
        return cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each row: [B]."""
        return self.log_prob(input).argmax(1)
