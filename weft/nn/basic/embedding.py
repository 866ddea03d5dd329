"""Tables of vectors that are looked up by number, and embeddings of time."""

from __future__ import annotations

import math
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, empty
from weft.core.tensor import Tensor
from weft.names.functions import cat
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.linear import Linear
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


class _Table(Module):
    """What both tables share: the weight [num_embeddings, embedding_dim] and the row for padding."""

    num_embeddings: int
    embedding_dim: int
    padding_idx: int | None
    weight: Parameter

    def _set_table(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, weight: Tensor | None, freeze: bool,
        device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        who = type(self).__name__
        if num_embeddings < 0 or embedding_dim < 0:
            given = f"num_embeddings={num_embeddings} and embedding_dim={embedding_dim}"
            raise problem(RangeError, who, given, "numbers from 0")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            given = f"padding_idx={padding_idx} for {num_embeddings} rows"
            raise problem(RangeError, who, given, f"{-num_embeddings} to {num_embeddings - 1}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if weight is None:
            table = empty(num_embeddings, embedding_dim, device=device, dtype=dtype)
            self.weight = Parameter(table, requires_grad=not freeze)
            self.reset_parameters()
            return
        if weight.shape != (num_embeddings, embedding_dim):
            given, expected = f"a weight of shape {weight.shape}", f"({num_embeddings}, {embedding_dim})"
            raise problem(ShapeError, who, given, expected)
        self.weight = Parameter(weight, requires_grad=not freeze)

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1); the row for padding is 0."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0.0

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _need_matrix(who: str, embeddings: Tensor) -> tuple[int, int]:
    if embeddings.ndim != 2:
        raise problem(ShapeError, who, f"embeddings of shape {embeddings.shape}", "[count, width]")
    return embeddings.shape[0], embeddings.shape[1]


@layer("L058", aliases=("EmbeddingLayer",))
class Embedding(_Table):
    """y = W[i], a row of the table for each number.

    Shape: input [*] of integers, output [*, embedding_dim]; weight [num_embeddings, embedding_dim], N(0, 1). The row
    `padding_idx` starts as 0 and gets no gradient. With `max_norm` the rows that are used are first scaled, in place,
    to a norm of order `norm_type` of at most that. `scale_grad_by_freq` divides the gradient of a row by how often it
    is used in the call. `sparse` is accepted and changes nothing: gradients are dense tensors, or part of the update.

    >>> table = weft.nn.Embedding.from_pretrained(weft.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> table(weft.tensor([1, 0, 1]))
    tensor([[3., 4.],
            [1., 2.],
            [3., 4.]])
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
        _freeze: bool = False, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.max_norm, self.norm_type = max_norm, norm_type
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self._set_table(num_embeddings, embedding_dim, padding_idx, _weight, _freeze, device, dtype)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False,
    ) -> Embedding:  # fmt: skip
        """The layer with a given table [num_embeddings, embedding_dim], frozen by default."""
        rows, columns = _need_matrix("Embedding.from_pretrained", embeddings)
        return cls(
            rows, columns, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight=embeddings,
            _freeze=freeze,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )


@layer()
class EmbeddingBag(_Table):
    """The sum, mean or maximum of the rows of a table that each bag of numbers names; a bag without numbers gives 0.

    Shape: input [B, n] (a bag per row), or [N] with offsets [B] (where each bag begins; with `include_last_offset` also
    where the last one ends); output [B, embedding_dim]; weight [num_embeddings, embedding_dim], N(0, 1).
    `per_sample_weights`, of the input's shape, scale the rows in mode 'sum'. Numbers equal to `padding_idx` do not
    count. The rest as in `Embedding`.

    >>> table = weft.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> weft.nn.EmbeddingBag.from_pretrained(table, mode="sum")(weft.tensor([0, 1, 2]), weft.tensor([0, 2]))
    tensor([[4., 6.],
            [5., 6.]])
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if mode not in ("sum", "mean", "max"):
            raise problem(RangeError, "EmbeddingBag", f"mode={mode!r}", "'sum', 'mean' or 'max'")
        self.max_norm, self.norm_type, self.mode = max_norm, norm_type, mode
        self.scale_grad_by_freq, self.sparse = scale_grad_by_freq, sparse
        self.include_last_offset = include_last_offset
        self._set_table(num_embeddings, embedding_dim, padding_idx, _weight, False, device, dtype)

    @classmethod
    def from_pretrained(
        cls, embeddings: Tensor, freeze: bool = True, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:  # fmt: skip
        """The layer with a given table [num_embeddings, embedding_dim], frozen by default."""
        rows, columns = _need_matrix("EmbeddingBag.from_pretrained", embeddings)
        made = cls(
            rows, columns, max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset,
            padding_idx,
        )  # fmt: skip
        made.weight.requires_grad_(not freeze)
        return made

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"


@layer("L059", aliases=("TimeEmbeddingLayer", "TimestepEmbedding"), oracle="the formula in float64 NumPy")
class TimeEmbedding(Module):
    """y = W₂ SiLU(W₁ φ + b₁) + b₂ with φ = [sin(t ω), cos(t ω)] and ωᵢ = max_period^(-2i/embedding_dim).

    Shape: t [*] of real numbers, output [*, out_dim]; linear1 [out_dim, embedding_dim], linear2 [out_dim, out_dim].
    After Ho et al., "Denoising diffusion probabilistic models" (2020).

    >>> weft.nn.TimeEmbedding(8, 4)(weft.tensor([0.0, 10.0, 999.0])).shape
    (3, 4)
    """

    def __init__(
        self, embedding_dim: int, out_dim: int, max_period: float = 10000.0, device: Any = None, dtype: Any = None
    ):
        super().__init__()
        if embedding_dim < 2 or embedding_dim % 2:
            raise problem(RangeError, "TimeEmbedding", f"embedding_dim={embedding_dim}", "an even number from 2")
        self.embedding_dim, self.max_period = embedding_dim, max_period
        self.linear1 = Linear(embedding_dim, out_dim, device=device, dtype=dtype)
        self.linear2 = Linear(out_dim, out_dim, device=device, dtype=dtype)

    def forward(self, t: Tensor) -> Tensor:
        t = t if t.dtype.kind == "f" and t.dtype.itemsize >= 4 else t.float()  # angles need all their digits
        half = self.embedding_dim // 2
        rates = (arange(half, device=t.device).to(t.dtype) * (-math.log(self.max_period) / half)).exp()
        angles = t.unsqueeze(-1) * rates  # [*, embedding_dim / 2]
        waves = cat([angles.sin(), angles.cos()], -1).to(self.linear1.weight.dtype)
        return self.linear2(F.silu(self.linear1(waves)))
