"""Systems of equations, inverses and determinants, as `weft.linalg` has them.

They are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only. Their gradients are written
in operations on tensors and can be differentiated again. Matrices are the last two axes; the axes before them are a
batch. float32 and float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.autograd.function import Function
from weft.base.errors import ShapeError, problem
from weft.core.lift import with_tensor_policy
from weft.core.tensor import Tensor
from weft.functional.lapack import call_lapack, check_matrices, identity_like, read_values, to_tensor
from weft.ops.common import broadcast_shapes


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = read_values("inv", x)
        result = to_tensor(call_lapack("inv", lambda: np.linalg.inv(array), "a singular matrix"), x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ g @ inverse.mT)


@with_tensor_policy
def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices; a singular one raises RangeError.

    >>> weft.linalg.inv(weft.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    check_matrices("inv", A, square=True)
    return _Inverse.apply(A)


class Solve(Function):
    """A^-1 @ B."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        left, right = read_values("solve", a, b)
        result = to_tensor(call_lapack("solve", lambda: np.linalg.solve(left, right), "a singular matrix"), a)
        ctx.save_for_backward(a, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        in_b = Solve.apply(a.mT, g)
        return -(in_b @ x.mT), in_b


@with_tensor_policy
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B (or, with left=False, X @ A = B). `B` is [..., N, K], or [..., N] for one column.

    >>> weft.linalg.solve(weft.tensor([[2.0, 0.0], [0.0, 4.0]]), weft.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    check_matrices("solve", A, square=True)
    vector = B.ndim == 1 or (B.ndim == A.ndim - 1 and B.shape == A.shape[:-1])
    if B.dtype is not A.dtype or (not vector and B.shape[-2 if left else -1] != A.shape[-1]):
        given = f"{A.dtype.name}{list(A.shape)} and {B.dtype.name}{list(B.shape)}"
        raise problem(ShapeError, "solve", given, "[..., N, N] and [..., N, K] or [..., N] of one dtype")
    if vector and not left:
        raise problem(ShapeError, "solve", f"a vector {B.shape} with left=False", "matrices on the left of A")
    columns = B.unsqueeze(-1) if vector else B
    batch = broadcast_shapes("solve", [A.shape[:-2], columns.shape[:-2]])
    A, columns = A.expand(*batch, *A.shape[-2:]), columns.expand(*batch, *columns.shape[-2:])
    if not left:
        return Solve.apply(A.mT, columns.mT).mT
    x = Solve.apply(A, columns)
    return x.squeeze(-1) if vector else x


@with_tensor_policy
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for a triangular matrix; what lies in the other triangle (or, if unitriangular, on the diagonal) of `A`
    is not looked at."""
    check_matrices("solve_triangular", A, square=True)
    half = A.triu(1 if unitriangular else 0) if upper else A.tril(-1 if unitriangular else 0)
    return solve(half + identity_like(A, A.shape[-1]) if unitriangular else half, B, left=left)


class _Determinant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = read_values("det", x)
        result = to_tensor(np.asarray(np.linalg.det(array), array.dtype), x)
        ctx.singular = bool((result.numpy() == 0).any())
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, determinant = ctx.saved_tensors
        if not ctx.singular:
            return (g * determinant).unsqueeze(-1).unsqueeze(-1) * inv(x).mT
        u, s, vh = np.linalg.svd(read_values("det", x)[0])  # the cofactors, which need no inverse
        others = np.stack([np.prod(np.delete(s, k, -1), -1) for k in range(s.shape[-1])], -1)
        sign = np.linalg.det(u) * np.linalg.det(vh)
        cofactors = sign[..., None, None] * ((u * others[..., None, :]) @ vh)
        return g.unsqueeze(-1).unsqueeze(-1) * to_tensor(cofactors.astype(x.dtype.numpy), x)


@with_tensor_policy
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices. Its gradient is right at singular ones (of first order)."""
    check_matrices("det", A, square=True)
    return _Determinant.apply(A)


class SignLog(NamedTuple):
    """What `slogdet` returns."""

    sign: Tensor
    logabsdet: Tensor


class _LogDeterminant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        (array,) = read_values("slogdet", x)
        sign, size = np.linalg.slogdet(array)
        results = to_tensor(np.asarray(sign, array.dtype), x), to_tensor(np.asarray(size, array.dtype), x)
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(results[0])
        return results

    @staticmethod
    def backward(ctx: Any, _: Tensor, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g.unsqueeze(-1).unsqueeze(-1) * inv(x).mT


@with_tensor_policy
def slogdet(A: Tensor) -> SignLog:
    """The sign of the determinant and the logarithm of its size."""
    check_matrices("slogdet", A, square=True)
    return SignLog(*_LogDeterminant.apply(A))
