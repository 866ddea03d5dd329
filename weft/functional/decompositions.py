"""Decompositions of matrices: Cholesky, eigenvalues, singular values and QR, as `weft.linalg` has them.

They are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only. Their gradients are written
in operations on tensors and can be differentiated again. Matrices are the last two axes; the axes before them are a
batch. float32 and float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.autograd.function import Function
from weft.base.errors import GraphError, RangeError, problem
from weft.base.state import STATE
from weft.core.lift import lift, with_tensor_policy
from weft.core.tensor import Tensor
from weft.functional.lapack import call_lapack, check_matrices, identity_like, read_values, to_tensor
from weft.functional.linear_systems import Solve
from weft.ops import elementwise, movement

cat, where = lift(movement.cat), lift(elementwise.where)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 for 0 / 0: equal or vanishing singular values matter only where a gradient of vectors comes in."""
    return a / where((a == 0) & (b == 0), 1.0, b)


class _Cholesky(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = read_values("cholesky", x)
        complaint = "a matrix that is not positive definite"
        result = to_tensor(call_lapack("cholesky", lambda: np.linalg.cholesky(array), complaint), x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (low,) = ctx.saved_tensors
        half = (low.mT @ g).tril()
        half = half - 0.5 * half.diagonal(0, -2, -1).diag_embed()
        inner = Solve.apply(low.mT, Solve.apply(low.mT, half.mT).mT)
        return 0.5 * (inner + inner.mT)


@with_tensor_policy
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle L with L @ L.mT = A for symmetric positive definite matrices (or its transpose); others raise
    RangeError.

    >>> weft.linalg.cholesky(weft.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    check_matrices("cholesky", A, square=True)
    low = _Cholesky.apply(A)
    return low.mT if upper else low


class Eigen(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Eigh(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: bool) -> tuple[Tensor, Tensor]:
        (array,) = read_values("eigh", x)
        values, vectors = call_lapack(
            "eigh", lambda: np.linalg.eigh(array, "L" if low else "U"), "matrices it cannot do"
        )
        results = to_tensor(values, x), to_tensor(vectors, x)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, g_values: Tensor, g_vectors: Tensor) -> tuple[Tensor, None]:
        values, vectors = ctx.saved_tensors
        apart = values.unsqueeze(-2) - values.unsqueeze(-1)
        eye = identity_like(values, values.shape[-1])
        rotations = _ratio((vectors.mT @ g_vectors) * where(eye > 0, 0.0, 1.0), apart + eye)
        result = vectors @ (rotations + g_values.diag_embed()) @ vectors.mT
        return 0.5 * (result + result.mT), None


@with_tensor_policy
def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues in ascending order and eigenvectors (columns) of symmetric matrices, of which one triangle is read.
    The gradient of the vectors needs distinct eigenvalues.

    >>> weft.linalg.eigh(weft.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    check_matrices("eigh", A, square=True)
    if UPLO not in ("L", "U"):
        raise problem(RangeError, "eigh", f"UPLO={UPLO!r}", "'L' or 'U'")
    return Eigen(*_Eigh.apply(A, UPLO == "L"))


@with_tensor_policy
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending."""
    return eigh(A, UPLO).eigenvalues


class SVD(NamedTuple):
    """What `svd` returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class _Svd(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, full_matrices: bool) -> tuple[Tensor, Tensor, Tensor]:
        (array,) = read_values("svd", x)
        parts = call_lapack("svd", lambda: np.linalg.svd(array, full_matrices), "matrices that it cannot do")
        results = tuple(to_tensor(part, x) for part in parts)
        ctx.save_for_backward(*results)
        return results[0], results[1], results[2]

    @staticmethod
    def backward(ctx: Any, g_u: Tensor, g_s: Tensor, g_vh: Tensor) -> tuple[Tensor, None]:
        u, s, vh = ctx.saved_tensors
        rank = s.shape[-1]  # the columns beyond it are not determined, and get no gradient
        u, g_u, vh, g_vh = u[..., :rank], g_u[..., :rank], vh[..., :rank, :], g_vh[..., :rank, :]
        v, g_v = vh.mT, g_vh.mT
        eye = identity_like(s, s.shape[-1])
        square = s * s
        apart = square.unsqueeze(-2) - square.unsqueeze(-1) + eye
        turns_u, turns_v = u.mT @ g_u, v.mT @ g_v
        turns_u, turns_v = _ratio(turns_u - turns_u.mT, apart), _ratio(turns_v - turns_v.mT, apart)
        inner = turns_u * s.unsqueeze(-2) + s.unsqueeze(-1) * turns_v + g_s.diag_embed()
        result = u @ inner @ vh
        if u.shape[-2] > s.shape[-1]:
            rest = g_u - u @ (u.mT @ g_u)
            result = result + _ratio(rest, s.unsqueeze(-2)) @ vh
        if v.shape[-2] > s.shape[-1]:
            rest = g_vh - (g_vh @ v) @ vh
            result = result + u @ _ratio(rest, s.unsqueeze(-1))
        return result, None


@with_tensor_policy
def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """U, S, Vh with A = U @ diag(S) @ Vh, singular values in descending order. Gradients pass through the columns of U
    and the rows of Vh that belong to singular values, and need these to be distinct.

    >>> weft.linalg.svd(weft.tensor([[3.0, 0.0], [0.0, 4.0]])).S
    tensor([4., 3.])
    """
    check_matrices("svd", A)
    return SVD(*_Svd.apply(A, full_matrices))


@with_tensor_policy
def svdvals(A: Tensor) -> Tensor:
    """The singular values, descending."""
    return svd(A, full_matrices=False).S


class QR(NamedTuple):
    """What `qr` returns."""

    Q: Tensor
    R: Tensor


class _Qr(Function):
    """Tall or square matrices, reduced."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        (array,) = read_values("qr", x)
        q, r = np.linalg.qr(array)
        results = to_tensor(q, x), to_tensor(r, x)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_r: Tensor) -> Tensor:
        q, r = ctx.saved_tensors
        half = (g_r @ r.mT - q.mT @ g_q).triu()
        whole = half + half.mT - half.diagonal(0, -2, -1).diag_embed()
        return Solve.apply(r, (g_q + q @ whole).mT).mT


@with_tensor_policy
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and R upper triangular, A = Q @ R. `mode`: 'reduced', 'complete' (no gradient unless
    square) or 'r' (Q empty, no gradient)."""
    check_matrices("qr", A)
    rows, columns = A.shape[-2:]
    if mode not in ("reduced", "complete", "r"):
        raise problem(RangeError, "qr", f"mode={mode!r}", "'reduced', 'complete' or 'r'")
    if mode == "reduced" or (mode == "complete" and rows <= columns):
        if rows >= columns:
            return QR(*_Qr.apply(A))
        q, first = _Qr.apply(A[..., :rows])  # the columns beyond the rank follow from Q
        return QR(q, cat([first, q.mT @ A[..., rows:]], -1))
    if A.requires_grad and STATE.grad_enabled:
        raise problem(GraphError, "qr", f"mode={mode!r} for a tensor that requires grad", "mode='reduced'")
    (array,) = read_values("qr", A)
    if mode == "r":
        return QR(to_tensor(np.empty((0,), array.dtype), A), to_tensor(np.asarray(np.linalg.qr(array, "r")), A))
    q, r = np.linalg.qr(array, "complete")
    return QR(to_tensor(q, A), to_tensor(r, A))
