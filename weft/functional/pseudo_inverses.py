"""Pseudo-inverses, least squares and ranks of matrices, as `weft.linalg` has them.

They are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only. Their gradients are written
in operations on tensors and can be differentiated again. Matrices are the last two axes; the axes before them are a
batch. float32 and float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.autograd.function import Function
from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.lift import with_tensor_policy
from weft.core.tensor import Tensor
from weft.functional.decompositions import eigvalsh, svdvals
from weft.functional.lapack import check_matrices, read_values, to_tensor

DRIVERS = (None, "gels", "gelsy", "gelsd", "gelss")


def _cutoff(who: str, A: Tensor, largest: np.ndarray, atol: Any, rtol: Any) -> np.ndarray:
    """The size up to which a singular value counts as 0: max(atol, rtol * largest). Without `atol` and `rtol` the
    latter is max(M, N) * eps; both may be tensors, one number for each matrix."""
    default = max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
    absolute = 0.0 if atol is None else read_values(who, atol)[0] if isinstance(atol, Tensor) else float(atol)
    if rtol is None:
        relative = np.where(np.asarray(absolute) > 0, 0.0, default)
    else:
        relative = read_values(who, rtol)[0] if isinstance(rtol, Tensor) else np.asarray(float(rtol))
    return np.maximum(absolute, relative * largest)


class _Pinv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, hermitian: bool, atol: Any, rtol: Any) -> Tensor:
        (array,) = read_values("pinv", x)
        if hermitian:
            s, u = np.linalg.eigh(array)
            vh = np.swapaxes(u, -1, -2)
        else:
            u, s, vh = np.linalg.svd(array, full_matrices=False)
        sizes = np.abs(s)
        large = sizes > _cutoff("pinv", x, sizes.max(-1, initial=0), atol, rtol)[..., None]
        inverse = np.divide(1, s, where=large, out=np.zeros_like(s))
        product = np.swapaxes(vh, -1, -2) @ (inverse[..., None] * np.swapaxes(u, -1, -2))
        result = to_tensor(product.astype(array.dtype), x)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        a, p = ctx.saved_tensors
        gt, pt = g.mT, p.mT
        if a.shape[-2] <= a.shape[-1]:
            k = gt @ p
            kp = k @ pt
            return -(p @ k).mT + kp - (a @ p) @ kp + (pt @ p) @ (gt - k @ a), None, None, None
        k = p @ gt
        pk = pt @ k
        return -(k @ p).mT + ((gt - a @ k) @ p) @ pt + pk - (pk @ p) @ a, None, None, None


@with_tensor_policy
def pinv(
    A: Tensor,
    rcond: float | Tensor | None = None,
    hermitian: bool = False,
    *,
    atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:
    """The pseudo-inverse; singular values up to max(atol, rtol * the largest) count as 0. `rtol`, which may be given as
    `rcond`, is max(M, N) * eps unless one of them is given. Of a symmetric (`hermitian`) matrix the lower triangle is
    read."""
    check_matrices("pinv", A, square=hermitian)
    return _Pinv.apply(A, hermitian, atol, rcond if rtol is None else rtol)


class LeastSquares(NamedTuple):
    """What `lstsq` returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


@with_tensor_policy
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """X that makes the sum of squares of A @ X - B least, and, for tall matrices of full rank, that sum for each
    column; the rank of `A` and its singular values. Gradients pass through the solution. As in PyTorch, `driver` says
    what is returned beside the solution, else empty: 'gelsy' (the default) the rank, 'gels' the sums, 'gelsd' and
    'gelss' all of it. Every driver computes by singular values."""
    check_matrices("lstsq", A)
    if driver not in DRIVERS:
        raise problem(RangeError, "lstsq", f"driver={driver!r}", f"one of {DRIVERS}")
    vector = B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    columns = B.unsqueeze(-1) if vector else B
    if B.dtype is not A.dtype or columns.ndim != A.ndim or columns.shape[-2] != A.shape[-2]:
        given = f"{A.dtype.name}{list(A.shape)} and {B.dtype.name}{list(B.shape)}"
        raise problem(ShapeError, "lstsq", given, "[..., M, N] and [..., M, K] or [..., M] of one dtype")
    solution = pinv(A, rtol=rcond) @ columns
    values = svdvals(A.detach())
    size = values.numpy()
    rank = _count_above(size, _cutoff("lstsq", A, size.max(-1, initial=0), None, rcond))
    nothing = to_tensor(np.empty((0,), A.dtype.numpy), A)
    residuals = nothing
    if A.shape[-2] > A.shape[-1] and (rank == A.shape[-1]).all() and driver not in (None, "gelsy"):
        residuals = ((A @ solution - columns) ** 2).sum(-2)
    return LeastSquares(
        solution.squeeze(-1) if vector else solution,
        residuals,
        to_tensor(rank if driver != "gels" else np.empty((0,), np.int64), A),
        values if driver in ("gelsd", "gelss") else nothing,
    )


def _count_above(values: np.ndarray, bound: np.ndarray) -> np.ndarray:
    return np.asarray((values > bound[..., None]).sum(-1), int64.numpy)


@with_tensor_policy
def matrix_rank(
    A: Tensor,
    tol: float | Tensor | None = None,
    hermitian: bool = False,
    *,
    atol: float | Tensor | None = None,
    rtol: float | Tensor | None = None,
) -> Tensor:
    """How many singular values are above max(atol, rtol * the largest), int64. `atol` may be given as `tol`; without
    any of them `rtol` is max(M, N) * eps. Of a symmetric (`hermitian`) matrix the lower triangle is read."""
    check_matrices("matrix_rank", A, square=hermitian)
    sizes = eigvalsh(A.detach()).abs() if hermitian else svdvals(A.detach())
    (array,) = read_values("matrix_rank", sizes)
    relative = 0.0 if tol is not None and rtol is None else rtol
    bound = _cutoff("matrix_rank", A, array.max(-1, initial=0), tol if atol is None else atol, relative)
    return to_tensor(_count_above(array, bound), A)
