"""Parametrizations ready for use: orthogonal matrices, weight normalization, spectral normalization."""

from __future__ import annotations

from typing import TypeVar

from weft.autograd import no_grad
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.core.creation import eye
from weft.core.tensor import Tensor
from weft.names.functions import cat
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.utils import orthogonal_maps as maps
from weft.nn.utils import parametrize
from weft.nn.utils.computed import need_shape
from weft.random.generator import randn

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]

Made = TypeVar("Made", bound=Module)


def _tensor_of(who: str, module: Module, name: str) -> Tensor:
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        given = f"{name!r}, which {type(module).__name__} does not have"
        raise problem(GraphError, who, given, "the name of a parameter or buffer")
    need_shape(who, module, name, weight)
    return weight


# ---- orthogonal ------------------------------------------------------------------------------------------------------


class _Orthogonal(Module):
    """Q with orthonormal columns (rows, if it is wide) from a free matrix; `base @ Q` with a base that is kept."""

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool = True):
        super().__init__()
        self.shape = tuple(weight.shape)
        self.orthogonal_map = orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        is_wide = x.shape[-2] < x.shape[-1]
        x = x.mT if is_wide else x
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            signs = x.diagonal(dim1=-2, dim2=-1).detach().trunc()  # 1 or -1, not learned
            q = maps.householder_product(x) * signs.unsqueeze(-2)
        else:
            x = x.tril()
            if n != k:
                x = cat([x, x.new_zeros((*x.shape[:-1], n - k))], -1)
            skew = x - x.mT
            q = (_matrix_exp(skew) if self.orthogonal_map == "matrix_exp" else maps.cayley(skew))[..., :k]
        q = self.base @ q if self.use_trivialization else q
        return q.mT if is_wide else q

    def right_inverse(self, value: Tensor) -> Tensor:
        """The free matrix for an orthogonal one; another one is made orthogonal first."""
        if tuple(value.shape) != self.shape:
            raise problem(ShapeError, "orthogonal", f"shape {tuple(value.shape)}", f"{self.shape}")
        is_wide = value.shape[-2] < value.shape[-1]
        q = (value.mT if is_wide else value).detach()
        n, k = q.shape[-2:]
        if not self.use_trivialization:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(f"{self.orthogonal_map} without a base cannot be assigned to")
            free = maps.reflections(q)
            return free.mT if is_wide else free
        with no_grad():
            if n != k:
                more = randn((*q.shape[:-1], n - k), dtype=q.dtype, device=q.device)
                self.base = maps.orthogonalize(cat([q, more], -1))
            else:
                self.base = q.clone() if maps.is_orthogonal(q) else maps.orthogonalize(q)
            # -1 on the diagonal: Q is the identity, for reflections as for the other maps.
            return -eye(*self.shape[-2:], dtype=q.dtype, device=q.device).expand(self.shape)


def _matrix_exp(skew: Tensor) -> Tensor:
    from weft.linalg import matrix_exp

    return matrix_exp(skew)


def orthogonal(
    module: Made, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Made:
    """Let a matrix of `module` (or a batch of them, [*, n, k]) have orthonormal columns, or rows if it is wide.

    `orthogonal_map` is 'matrix_exp' (exp(A), the default for square matrices), 'cayley' ((I + A/2)(I - A/2)⁻¹), both of
    a skew-symmetric A, or 'householder', a product of reflections (the default for others). The matrix starts as the
    present one made orthogonal; with `use_trivialization` it is the product of a fixed one, the buffer `base`, and of
    one that starts as the identity (Lezcano-Casado, 2019).

    >>> layer = weft.nn.utils.parametrizations.orthogonal(weft.nn.Linear(4, 6))
    >>> w = layer.weight
    >>> weft.allclose(w.T @ w, weft.eye(4), atol=1e-5)
    True
    """
    weight = _tensor_of("orthogonal", module, name)
    if weight.ndim < 2:
        raise problem(ShapeError, "orthogonal", f"shape {tuple(weight.shape)}", "a matrix, or a batch of matrices")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    if orthogonal_map not in ("matrix_exp", "cayley", "householder"):
        expected = "'matrix_exp', 'cayley' or 'householder'"
        raise problem(RangeError, "orthogonal", f"orthogonal_map={orthogonal_map!r}", expected)
    made = _Orthogonal(weight, orthogonal_map, use_trivialization)
    parametrize.register_parametrization(module, name, made, unsafe=True)
    return module


# ---- weight normalization --------------------------------------------------------------------------------------------


def norm_except(value: Tensor, dim: int) -> Tensor:
    """The norm of each slice along `dim`, which keeps its extent; -1 takes the norm of all."""
    if dim == -1:
        return (value * value).sum().sqrt()
    axes = [axis for axis in range(value.ndim) if axis != dim]
    return (value * value).sum(axes, keepdim=True).sqrt() if axes else value.abs()


def scale_to_norm(g: Tensor, v: Tensor, dim: int) -> Tensor:
    """g v / |v|."""
    return v * (g / norm_except(v, dim))


class _WeightNorm(Module):
    """w = g v / |v|, the norm taken of each slice along `dim`."""

    def __init__(self, dim: int | None = 0):
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return scale_to_norm(weight_g, weight_v, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Norms and directions of a weight."""
        return norm_except(weight, self.dim), weight


def weight_norm(module: Made, name: str = "weight", dim: int | None = 0) -> Made:
    """Let a weight of `module` be g v / |v|: length g (original0) and direction v (original1) are learned
    apart. The norm is that of each slice along `dim`, or of all with None.

    Salimans & Kingma, Weight normalization (2016).

    >>> layer = weft.nn.utils.parametrizations.weight_norm(weft.nn.Linear(4, 6))
    >>> layer.parametrizations.weight.original0.shape, layer.parametrizations.weight.original1.shape
    ((6, 1), (6, 4))
    """
    _tensor_of("weight_norm", module, name)
    parametrize.register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    return module


# ---- spectral normalization ------------------------------------------------------------------------------------------


def rows_first(weight: Tensor, dim: int) -> Tensor:
    """A weight as a matrix whose rows are the slices along `dim`."""
    if dim != 0:
        weight = weight.permute(dim, *[axis for axis in range(weight.ndim) if axis != dim])
    return weight.flatten(1)


def default_dim(module: Module) -> int:
    """The axis of the output channels."""
    return 1 if getattr(module, "transposed", False) else 0


class _SpectralNorm(Module):
    """W / σ, with σ = uᵀ W v by power iteration; u and v are buffers, and constants to gradients."""

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12):
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise problem(RangeError, "spectral_norm", f"dim={dim} for {weight.ndim} axes", "one of the axes")
        if n_power_iterations < 1:
            given = f"n_power_iterations={n_power_iterations}"
            raise problem(RangeError, "spectral_norm", given, "a whole number above 0")
        self.n_power_iterations, self.eps, self.dim = n_power_iterations, eps, dim % weight.ndim
        if weight.ndim > 1:
            matrix = rows_first(weight.detach(), self.dim)
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                start = randn(size, dtype=weight.dtype, device=weight.device)
                self.register_buffer(name, F.normalize(start, dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _iterate(self, matrix: Tensor, count: int) -> None:
        with no_grad():
            u, v = self._u, self._v
            for _ in range(count):
                u = F.normalize(matrix @ v, dim=0, eps=self.eps)
                v = F.normalize(matrix.mT @ u, dim=0, eps=self.eps)
            self._u.copy_(u)
            self._v.copy_(v)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        matrix = rows_first(weight, self.dim)
        if self.training:
            self._iterate(matrix, self.n_power_iterations)
        return weight / (self._u.detach() @ (matrix @ self._v.detach()))

    def right_inverse(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value


def spectral_norm(
    module: Made, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Made:
    """Let a weight of `module` be W / σ, with σ its largest singular value, found by power iteration: every read of the
    weight in training makes `n_power_iterations`. See `nn.SpectralNorm`.

    >>> layer = weft.nn.utils.parametrizations.spectral_norm(weft.nn.Linear(4, 6))
    >>> sorted(layer.state_dict())[1:]
    ['parametrizations.weight.0._u', 'parametrizations.weight.0._v', 'parametrizations.weight.original']
    """
    weight = _tensor_of("spectral_norm", module, name)
    made = _SpectralNorm(weight, n_power_iterations, default_dim(module) if dim is None else dim, eps)
    parametrize.register_parametrization(module, name, made)
    return module
