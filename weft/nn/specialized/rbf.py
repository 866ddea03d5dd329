"""Radial basis functions."""

from __future__ import annotations

from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, empty
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.random.generator import rand


@layer("L093", aliases=("RBFLayer", "RadialBasisFunction"), oracle="NumPy: exp(-|x - c|^2 / (2 sigma^2))")
class RBF(Module):
    """y_k = exp(-‖x - c_k‖² / (2 s_k²)) (Broomhead & Lowe 1988).

    Shape: input [*, in_features], output [*, num_centers]; centers [num_centers, in_features], drawn from N(0, 1) or
    set from data by `init_centers`; log_sigma [num_centers], log s, starts as 0 and is frozen unless `trainable_width`.

    >>> layer = weft.nn.RBF(2, 1)
    >>> with weft.no_grad():
    ...     _ = layer.centers.fill_(1.0)
    >>> layer(weft.tensor([[1.0, 1.0], [1.0, 3.0]])).detach()
    tensor([[1.0000],
            [0.1353]])
    """

    def __init__(
        self,
        in_features: int,
        num_centers: int,
        trainable_width: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if min(in_features, num_centers) < 1:
            given = f"in_features={in_features} and num_centers={num_centers}"
            raise problem(RangeError, "RBF", given, "at least 1 of each")
        self.in_features, self.num_centers = in_features, num_centers
        self.centers = Parameter(empty(num_centers, in_features, device=device, dtype=dtype))
        self.log_sigma = Parameter(empty(num_centers, device=device, dtype=dtype), requires_grad=trainable_width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the centers again; all widths are 1."""
        init.normal_(self.centers)
        init.zeros_(self.log_sigma)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 1 or input.shape[-1] != self.in_features:
            raise problem(ShapeError, "RBF", f"shape {tuple(input.shape)}", f"[*, {self.in_features}]")
        return (-0.5 * _square_distances(input, self.centers) * (-2.0 * self.log_sigma).exp()).exp()

    def init_centers(self, data: Tensor, iterations: int = 10) -> None:
        """Set the centers from `data` [N, in_features]: rows chosen at random, then `iterations` rounds of k-means
        (Lloyd 1982), 0 for the rows themselves. A center that no row is nearest to stays where it is."""
        if data.ndim != 2 or data.shape[0] < self.num_centers or data.shape[1] != self.in_features:
            expected = f"[N, {self.in_features}] with at least {self.num_centers} rows"
            raise problem(ShapeError, "RBF.init_centers", f"data of shape {tuple(data.shape)}", expected)
        with no_grad():
            rows = data.detach().to(self.centers.dtype)
            chosen = rand(len(rows), device=rows.device).argsort()[: self.num_centers]
            centers, _ = loop(lambda now, _: (_lloyd(rows, now), None), rows[chosen], length=iterations)
            self.centers.copy_(centers)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, num_centers={self.num_centers}"


def _square_distances(x: Tensor, centers: Tensor) -> Tensor:
    """[*, D] and [K, D] to [*, K]; from differences, so that near points lose no digits."""
    difference = x.unsqueeze(-2) - centers  # [*, K, D]
    return (difference * difference).sum(-1)


def _lloyd(rows: Tensor, centers: Tensor) -> Tensor:
    """One round: every center becomes the mean of the rows that are nearest to it (of equal ones, to the first)."""
    nearest = _square_distances(rows, centers).argmin(-1)
    member = (nearest.unsqueeze(0) == arange(len(centers), device=rows.device).unsqueeze(1)).to(rows.dtype)  # [K, N]
    count = member.sum(1, keepdim=True)
    return where(count > 0, F.linear(member, rows.T) / count.clamp_min(1.0), centers)
