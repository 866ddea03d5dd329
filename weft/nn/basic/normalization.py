"""Normalization: values brought to mean 0 and variance 1 over some of their axes, then scaled and shifted.

x̂ = (x - μ) / √(σ² + ε), y = γ x̂ + β, with the biased variance σ². The layers differ in the set of elements over which μ
and σ² are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


@layer("L041", aliases=("LayerNormalizationLayer",))
class LayerNorm(Module):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² over the last axes, `normalized_shape`.

    Shape: input and output [*, *normalized_shape]; weight γ (1) and bias β (0) normalized_shape.

    Ba, Kiros & Hinton, Layer normalization (2016).

    >>> weft.nn.LayerNorm(2, elementwise_affine=False)(weft.tensor([[1.0, 3.0]]))
    tensor([[-1.0000,  1.0000]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.normalized_shape = _shape("LayerNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter(
            "weight", Parameter(empty(self.normalized_shape, **like)) if elementwise_affine else None
        )
        shift = elementwise_affine and bias
        self.register_parameter("bias", Parameter(empty(self.normalized_shape, **like)) if shift else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


@layer("X08", aliases=("RMSNormLayer",))
class RMSNorm(Module):
    """y = γ x / √(mean(x²) + ε) over the last axes, `normalized_shape`: no mean is taken away, nothing is added.

    ε is the smallest step of the dtype at 1 unless `eps` is given, as in PyTorch.

    Shape: input and output [*, *normalized_shape]; weight γ (1) normalized_shape.

    Zhang & Sennrich, Root mean square layer normalization (2019).

    >>> weft.nn.RMSNorm(2, elementwise_affine=False)(weft.tensor([[3.0, 3.0]]))
    tensor([[1., 1.]])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.normalized_shape = _shape("RMSNorm", normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        scale = Parameter(empty(self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


def _shape(who: str, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or any(not isinstance(extent, int) or extent < 1 for extent in shape):
        raise problem(RangeError, who, f"normalized_shape={normalized_shape!r}", "whole numbers above 0")
    return shape


@layer("L039", aliases=("GroupNormalizationLayer",))
class GroupNorm(Module):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² over C / num_groups channels and their positions, per sample.

    One group is layer normalization, a group per channel is instance normalization.

    Shape: input and output [B, C, *]; weight γ (1) and bias β (0) [C].

    Wu & He, Group normalization (2018).

    >>> weft.nn.GroupNorm(2, 4)(weft.rand(2, 4, 3, 3)).shape
    (2, 4, 3, 3)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__()
        if not isinstance(num_groups, int) or num_groups < 1 or num_channels % num_groups:
            given = f"num_groups={num_groups!r} and num_channels={num_channels}"
            raise problem(RangeError, "GroupNorm", given, "channels that divide by the groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(empty(num_channels, **like)) if affine else None)
        self.register_parameter("bias", Parameter(empty(num_channels, **like)) if affine and bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 2 or input.shape[1] != self.num_channels:
            given = f"an input of shape {tuple(input.shape)}"
            raise problem(ShapeError, "GroupNorm", given, f"[B, {self.num_channels}, ...]")
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        shift = self.bias is not None
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={shift}"


@layer("", learns="-")
class LocalResponseNorm(Module):
    """y_c = x_c / (k + α/size · Σ_{c'} x_{c'}²)^β, the sum over the `size` channels around c.

    Channels beyond the ends count as 0.

    Shape: input and output [B, C, *]. Krizhevsky et al., ImageNet classification with deep CNNs (2012).

    >>> weft.nn.LocalResponseNorm(1, alpha=3.0, beta=0.5)(weft.ones(1, 1, 1))
    tensor([[[0.5000]]])
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0):
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


@layer("", learns="-", oracle="torch.nn.CrossMapLRN2d forward; its gradient by differences")
class CrossMapLRN2d(Module):
    """y_c = x_c / (k + α/size · S_c)^β with S_c = Σ_{|c' - c| < h} x_{c'}² (+ x_0² for c ≥ h), h = ⌊(size + 1) / 2⌋.

    Lua Torch's form of `LocalResponseNorm`. Channel 0 stays in the sums of all channels from h on: PyTorch's running
    sum never takes it away, and trained weights rely on that. The gradient is that of this equation.

    Shape: input and output [B, C, H, W].

    >>> weft.nn.CrossMapLRN2d(3)(weft.ones(1, 4, 2, 2)).shape
    (1, 4, 2, 2)
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1):
        super().__init__()
        if not isinstance(size, int) or size < 1:
            raise problem(RangeError, "CrossMapLRN2d", f"size={size!r}", "a whole number above 0")
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise problem(ShapeError, "CrossMapLRN2d", f"an input of shape {tuple(input.shape)}", "[B, C, H, W]")
        squares, half, channels = input * input, (self.size + 1) // 2, input.shape[1]
        padded = F.pad(squares, (0, 0, 0, 0, half - 1, half - 1))
        total = padded[:, :channels]
        for step in range(1, 2 * half - 1):
            total = total + padded[:, step : step + channels]
        if channels > half:
            first = squares[:, :1].expand(-1, channels - half, -1, -1)
            total = total + F.pad(first, (0, 0, 0, 0, half, 0))
        return input * (total * (self.alpha / self.size) + self.k) ** -self.beta

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


@layer(
    "L042", aliases=("SpectralNormalizationLayer",), oracle="torch.nn.utils.parametrizations.spectral_norm; numpy's SVD"
)
class SpectralNorm(Module):
    """y = module(x) with its weight W replaced by W / σ, where σ ≈ uᵀ W v is the largest singular value of W.

    W is read as a matrix with axis `dim` (by default 0, and 1 for transposed convolutions) as rows. In training every
    call first iterates v ← Wᵀu / |Wᵀu|, u ← Wv / |Wv|; in evaluation u and v are fixed. Gradients treat them as
    constants: dW = (G - ⟨G, W/σ⟩ uvᵀ) / σ.

    Shape: those of `module`. Its parameter becomes module.parametrizations.weight.original, u and v are the buffers
    module.parametrizations.weight.0._u and ._v, which 15 iterations prepare.

    Miyato et al., Spectral normalization for generative adversarial networks (2018).

    >>> layer = weft.nn.SpectralNorm(weft.nn.Linear(3, 2), n_power_iterations=30)
    >>> round(float(weft.linalg.matrix_norm(layer.module.weight, 2)), 3)
    1.0
    """

    def __init__(
        self, module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12,
        dim: int | None = None,
    ):  # fmt: skip
        super().__init__()
        from weft.nn.utils import parametrizations

        self.module = parametrizations.spectral_norm(module, name, n_power_iterations, eps, dim)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)
