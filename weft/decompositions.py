"""Decompositions and inverses of matrices, and systems of equations: most of `weft.linalg`.

Decompositions are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only. Their gradients are
written in operations on tensors and can be differentiated again. Matrices are the last two axes; the axes before them
are a batch. float32 and float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from weft.dtypes import float32, float64, int64
from weft.errors import DTypeError, GraphError, RangeError, ShapeError, problem
from weft.function import Function
from weft.ops import elementwise, movement
from weft.ops.common import broadcast_shapes
from weft.state import STATE
from weft.tensor import Tensor, from_host, lift, with_tensor_policy

cat, where = lift(movement.cat), lift(elementwise.where)
DRIVERS = (None, "gels", "gelsy", "gelsd", "gelss")


# --- arguments -------------------------------------------------------------------------------------------------------


def _host(who: str, *tensors: Tensor) -> list[np.ndarray]:
    """Values on the host."""
    if STATE.trace is not None:
        given = f"linalg.{who} inside weft.compile, which has no kernel for it"
        raise problem(GraphError, who, given, "a call outside of it", "call it before or after the compiled function")
    return [tensor.detach().numpy() for tensor in tensors]


def _device(array: np.ndarray, like: Tensor) -> Tensor:
    return Tensor(from_host(np.asarray(array), like.device))


def _check(who: str, x: Tensor, square: bool = False) -> None:
    if x.dtype not in (float32, float64):
        raise problem(DTypeError, who, f"a {x.dtype.name} tensor", "float32 or float64", "convert it with .float()")
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise problem(ShapeError, who, f"shape {x.shape}", "square matrices" if square else "matrices")


def _lapack(who: str, call: Callable[[], Any], complaint: str) -> Any:
    try:
        return call()
    except np.linalg.LinAlgError:
        raise problem(RangeError, who, complaint, "matrices for which it exists") from None


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 for 0 / 0: equal or vanishing singular values matter only where a gradient of vectors comes in."""
    return a / where((a == 0) & (b == 0), 1.0, b)


def _eye(x: Tensor, extent: int) -> Tensor:
    return _device(np.eye(extent, dtype=x.dtype.numpy), x)


# --- inverses and systems --------------------------------------------------------------------------------------------


class _Inverse(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = _host("inv", x)
        result = _device(_lapack("inv", lambda: np.linalg.inv(array), "a singular matrix"), x)
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
    _check("inv", A, square=True)
    return _Inverse.apply(A)


class _Solve(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        left, right = _host("solve", a, b)
        result = _device(_lapack("solve", lambda: np.linalg.solve(left, right), "a singular matrix"), a)
        ctx.save_for_backward(a, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, x = ctx.saved_tensors
        in_b = _Solve.apply(a.mT, g)
        return -(in_b @ x.mT), in_b


@with_tensor_policy
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X with A @ X = B (or, with left=False, X @ A = B). `B` is [..., N, K], or [..., N] for one column.

    >>> weft.linalg.solve(weft.tensor([[2.0, 0.0], [0.0, 4.0]]), weft.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    _check("solve", A, square=True)
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
        return _Solve.apply(A.mT, columns.mT).mT
    x = _Solve.apply(A, columns)
    return x.squeeze(-1) if vector else x


@with_tensor_policy
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for a triangular matrix; what lies in the other triangle (or, if unitriangular, on the diagonal) of `A`
    is not looked at."""
    _check("solve_triangular", A, square=True)
    half = A.triu(1 if unitriangular else 0) if upper else A.tril(-1 if unitriangular else 0)
    return solve(half + _eye(A, A.shape[-1]) if unitriangular else half, B, left=left)


class _Determinant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = _host("det", x)
        result = _device(np.asarray(np.linalg.det(array), array.dtype), x)
        ctx.singular = bool((result.numpy() == 0).any())
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, determinant = ctx.saved_tensors
        if not ctx.singular:
            return (g * determinant).unsqueeze(-1).unsqueeze(-1) * inv(x).mT
        u, s, vh = np.linalg.svd(_host("det", x)[0])  # the cofactors, which need no inverse
        others = np.stack([np.prod(np.delete(s, k, -1), -1) for k in range(s.shape[-1])], -1)
        sign = np.linalg.det(u) * np.linalg.det(vh)
        cofactors = sign[..., None, None] * ((u * others[..., None, :]) @ vh)
        return g.unsqueeze(-1).unsqueeze(-1) * _device(cofactors.astype(x.dtype.numpy), x)


@with_tensor_policy
def det(A: Tensor) -> Tensor:
    """The determinant of square matrices. Its gradient is right at singular ones (of first order)."""
    _check("det", A, square=True)
    return _Determinant.apply(A)


class SignLog(NamedTuple):
    """What `slogdet` returns."""

    sign: Tensor
    logabsdet: Tensor


class _LogDeterminant(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        (array,) = _host("slogdet", x)
        sign, size = np.linalg.slogdet(array)
        results = _device(np.asarray(sign, array.dtype), x), _device(np.asarray(size, array.dtype), x)
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
    _check("slogdet", A, square=True)
    return SignLog(*_LogDeterminant.apply(A))


# --- decompositions --------------------------------------------------------------------------------------------------


class _Cholesky(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        (array,) = _host("cholesky", x)
        complaint = "a matrix that is not positive definite"
        result = _device(_lapack("cholesky", lambda: np.linalg.cholesky(array), complaint), x)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (low,) = ctx.saved_tensors
        half = (low.mT @ g).tril()
        half = half - 0.5 * half.diagonal(0, -2, -1).diag_embed()
        inner = _Solve.apply(low.mT, _Solve.apply(low.mT, half.mT).mT)
        return 0.5 * (inner + inner.mT)


@with_tensor_policy
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle L with L @ L.mT = A for symmetric positive definite matrices (or its transpose); others raise
    RangeError.

    >>> weft.linalg.cholesky(weft.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    _check("cholesky", A, square=True)
    low = _Cholesky.apply(A)
    return low.mT if upper else low


class Eigen(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class _Eigh(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: bool) -> tuple[Tensor, Tensor]:
        (array,) = _host("eigh", x)
        values, vectors = _lapack("eigh", lambda: np.linalg.eigh(array, "L" if low else "U"), "matrices it cannot do")
        results = _device(values, x), _device(vectors, x)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, g_values: Tensor, g_vectors: Tensor) -> tuple[Tensor, None]:
        values, vectors = ctx.saved_tensors
        apart = values.unsqueeze(-2) - values.unsqueeze(-1)
        eye = _eye(values, values.shape[-1])
        turns = _ratio((vectors.mT @ g_vectors) * where(eye > 0, 0.0, 1.0), apart + eye)
        result = vectors @ (turns + g_values.diag_embed()) @ vectors.mT
        return 0.5 * (result + result.mT), None


@with_tensor_policy
def eigh(A: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues in ascending order and eigenvectors (columns) of symmetric matrices, of which one triangle is read.
    The gradient of the vectors needs distinct eigenvalues.

    >>> weft.linalg.eigh(weft.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    _check("eigh", A, square=True)
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
        (array,) = _host("svd", x)
        parts = _lapack("svd", lambda: np.linalg.svd(array, full_matrices), "matrices that it cannot do")
        results = tuple(_device(part, x) for part in parts)
        ctx.save_for_backward(*results)
        return results[0], results[1], results[2]

    @staticmethod
    def backward(ctx: Any, g_u: Tensor, g_s: Tensor, g_vh: Tensor) -> tuple[Tensor, None]:
        u, s, vh = ctx.saved_tensors
        rank = s.shape[-1]  # the columns beyond it are not determined, and get no gradient
        u, g_u, vh, g_vh = u[..., :rank], g_u[..., :rank], vh[..., :rank, :], g_vh[..., :rank, :]
        v, g_v = vh.mT, g_vh.mT
        eye = _eye(s, s.shape[-1])
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
    _check("svd", A)
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
        (array,) = _host("qr", x)
        q, r = np.linalg.qr(array)
        results = _device(q, x), _device(r, x)
        ctx.save_for_backward(*results)
        return results

    @staticmethod
    def backward(ctx: Any, g_q: Tensor, g_r: Tensor) -> Tensor:
        q, r = ctx.saved_tensors
        half = (g_r @ r.mT - q.mT @ g_q).triu()
        whole = half + half.mT - half.diagonal(0, -2, -1).diag_embed()
        return _Solve.apply(r, (g_q + q @ whole).mT).mT


@with_tensor_policy
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and R upper triangular, A = Q @ R. `mode`: 'reduced', 'complete' (no gradient unless
    square) or 'r' (Q empty, no gradient)."""
    _check("qr", A)
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
    (array,) = _host("qr", A)
    if mode == "r":
        return QR(_device(np.empty((0,), array.dtype), A), _device(np.asarray(np.linalg.qr(array, "r")), A))
    q, r = np.linalg.qr(array, "complete")
    return QR(_device(q, A), _device(r, A))


# --- pseudo-inverses -------------------------------------------------------------------------------------------------


def _cutoff(who: str, A: Tensor, largest: np.ndarray, atol: Any, rtol: Any) -> np.ndarray:
    """The size up to which a singular value counts as 0: max(atol, rtol * largest). Without `atol` and `rtol` the
    latter is max(M, N) * eps; both may be tensors, one number for each matrix."""
    default = max(A.shape[-2:]) * float(np.finfo(A.dtype.numpy).eps)
    absolute = 0.0 if atol is None else _host(who, atol)[0] if isinstance(atol, Tensor) else float(atol)
    if rtol is None:
        relative = np.where(np.asarray(absolute) > 0, 0.0, default)
    else:
        relative = _host(who, rtol)[0] if isinstance(rtol, Tensor) else np.asarray(float(rtol))
    return np.maximum(absolute, relative * largest)


class _Pinv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, hermitian: bool, atol: Any, rtol: Any) -> Tensor:
        (array,) = _host("pinv", x)
        if hermitian:
            s, u = np.linalg.eigh(array)
            vh = np.swapaxes(u, -1, -2)
        else:
            u, s, vh = np.linalg.svd(array, full_matrices=False)
        sizes = np.abs(s)
        large = sizes > _cutoff("pinv", x, sizes.max(-1, initial=0), atol, rtol)[..., None]
        inverse = np.divide(1, s, where=large, out=np.zeros_like(s))
        product = np.swapaxes(vh, -1, -2) @ (inverse[..., None] * np.swapaxes(u, -1, -2))
        result = _device(product.astype(array.dtype), x)
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
    _check("pinv", A, square=hermitian)
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
    _check("lstsq", A)
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
    nothing = _device(np.empty((0,), A.dtype.numpy), A)
    residuals = nothing
    if A.shape[-2] > A.shape[-1] and (rank == A.shape[-1]).all() and driver not in (None, "gelsy"):
        residuals = ((A @ solution - columns) ** 2).sum(-2)
    return LeastSquares(
        solution.squeeze(-1) if vector else solution,
        residuals,
        _device(rank if driver != "gels" else np.empty((0,), np.int64), A),
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
    _check("matrix_rank", A, square=hermitian)
    sizes = eigvalsh(A.detach()).abs() if hermitian else svdvals(A.detach())
    (array,) = _host("matrix_rank", sizes)
    relative = 0.0 if tol is not None and rtol is None else rtol
    bound = _cutoff("matrix_rank", A, array.max(-1, initial=0), tol if atol is None else atol, relative)
    return _device(_count_above(array, bound), A)
