"""weft.linalg: decompositions, inverses and norms of matrices, after `torch.linalg`.

Decompositions are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only. Their gradients are
written in operations on tensors and can be differentiated again. Matrices are the last two axes; the axes before them
are a batch. float32 and float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.dtypes import float32, float64, int64
from weft.errors import DTypeError, GraphError, RangeError, ShapeError, problem
from weft.function import Function
from weft.functions import cat, where
from weft.ops import products
from weft.ops.common import normal_axis
from weft.state import STATE
from weft.tensor import Tensor, from_host, lift

cross = lift(products.cross)
vector_norm = lift(products.vector_norm)


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


def inv(x: Tensor) -> Tensor:
    """The inverse of square matrices; a singular one raises RangeError.

    >>> weft.linalg.inv(weft.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    _check("inv", x, square=True)
    return _Inverse.apply(x)


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


def solve(a: Tensor, b: Tensor, *, left: bool = True) -> Tensor:
    """x with a @ x = b (or, with left=False, x @ a = b). `b` is [..., N, K], or [..., N] for one column.

    >>> weft.linalg.solve(weft.tensor([[2.0, 0.0], [0.0, 4.0]]), weft.tensor([2.0, 2.0]))
    tensor([1.0000, 0.5000])
    """
    _check("solve", a, square=True)
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    if b.dtype is not a.dtype or (not vector and b.shape[-2 if left else -1] != a.shape[-1]):
        given = f"{a.dtype.name}{list(a.shape)} and {b.dtype.name}{list(b.shape)}"
        raise problem(ShapeError, "solve", given, "[..., N, N] and [..., N, K] or [..., N] of one dtype")
    if vector and not left:
        raise problem(ShapeError, "solve", f"a vector {b.shape} with left=False", "matrices on the left of a")
    columns = b.unsqueeze(-1) if vector else b
    batch = np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    a, columns = a.expand(*batch, *a.shape[-2:]), columns.expand(*batch, *columns.shape[-2:])
    if not left:
        return _Solve.apply(a.mT, columns.mT).mT
    x = _Solve.apply(a, columns)
    return x.squeeze(-1) if vector else x


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for a triangular matrix; what lies in the other triangle (or, if unitriangular, on the diagonal) of `a`
    is not looked at."""
    _check("solve_triangular", a, square=True)
    half = a.triu(1 if unitriangular else 0) if upper else a.tril(-1 if unitriangular else 0)
    return solve(half + _eye(a, a.shape[-1]) if unitriangular else half, b, left=left)


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


def det(x: Tensor) -> Tensor:
    """The determinant of square matrices. Its gradient is right at singular ones (of first order)."""
    _check("det", x, square=True)
    return _Determinant.apply(x)


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


def slogdet(x: Tensor) -> SignLog:
    """The sign of the determinant and the logarithm of its size."""
    _check("slogdet", x, square=True)
    return SignLog(*_LogDeterminant.apply(x))


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


def cholesky(x: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle L with L @ L.mT = x for symmetric positive definite matrices (or its transpose); others raise
    RangeError.

    >>> weft.linalg.cholesky(weft.tensor([[4.0, 0.0], [0.0, 9.0]]))
    tensor([[2., 0.],
            [0., 3.]])
    """
    _check("cholesky", x, square=True)
    low = _Cholesky.apply(x)
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
        return vectors @ (turns + g_values.diag_embed()) @ vectors.mT, None


def eigh(x: Tensor, UPLO: str = "L") -> Eigen:
    """Eigenvalues in ascending order and eigenvectors (columns) of symmetric matrices, of which one triangle is read.
    The gradient of the vectors needs distinct eigenvalues.

    >>> weft.linalg.eigh(weft.tensor([[2.0, 0.0], [0.0, 1.0]])).eigenvalues
    tensor([1., 2.])
    """
    _check("eigh", x, square=True)
    if UPLO not in ("L", "U"):
        raise problem(RangeError, "eigh", f"UPLO={UPLO!r}", "'L' or 'U'")
    return Eigen(*_Eigh.apply(x, UPLO == "L"))


def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices, ascending."""
    return eigh(x, UPLO).eigenvalues


class SVD(NamedTuple):
    """What `svd` returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class _Svd(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (array,) = _host("svd", x)
        parts = _lapack("svd", lambda: np.linalg.svd(array, full_matrices=False), "matrices that it cannot do")
        results = tuple(_device(part, x) for part in parts)
        ctx.save_for_backward(*results)
        return results[0], results[1], results[2]

    @staticmethod
    def backward(ctx: Any, g_u: Tensor, g_s: Tensor, g_vh: Tensor) -> Tensor:
        u, s, vh = ctx.saved_tensors
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
        return result


def svd(x: Tensor, full_matrices: bool = True) -> SVD:
    """U, S, Vh with x = U @ diag(S) @ Vh, singular values in descending order. Gradients pass with full_matrices=False;
    those of U and Vh need distinct singular values.

    >>> weft.linalg.svd(weft.tensor([[3.0, 0.0], [0.0, 4.0]])).S
    tensor([4., 3.])
    """
    _check("svd", x)
    if not full_matrices or x.shape[-1] == x.shape[-2]:
        return SVD(*_Svd.apply(x))
    if x.requires_grad and STATE.grad_enabled:
        given, expected = "full_matrices=True for a tensor that requires grad", "full_matrices=False"
        raise problem(GraphError, "svd", given, expected, "the columns beyond the rank are not determined")
    return SVD(*[_device(part, x) for part in np.linalg.svd(_host("svd", x)[0])])


def svdvals(x: Tensor) -> Tensor:
    """The singular values, descending."""
    return svd(x, full_matrices=False).S


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


def qr(x: Tensor, mode: str = "reduced") -> QR:
    """Q with orthonormal columns and R upper triangular, x = Q @ R. `mode`: 'reduced', 'complete' (no gradient unless
    square) or 'r' (Q empty, no gradient)."""
    _check("qr", x)
    rows, columns = x.shape[-2:]
    if mode not in ("reduced", "complete", "r"):
        raise problem(RangeError, "qr", f"mode={mode!r}", "'reduced', 'complete' or 'r'")
    if mode == "reduced" or (mode == "complete" and rows <= columns):
        if rows >= columns:
            return QR(*_Qr.apply(x))
        q, first = _Qr.apply(x[..., :rows])  # the columns beyond the rank follow from Q
        return QR(q, cat([first, q.mT @ x[..., rows:]], -1))
    if x.requires_grad and STATE.grad_enabled:
        raise problem(GraphError, "qr", f"mode={mode!r} for a tensor that requires grad", "mode='reduced'")
    (array,) = _host("qr", x)
    if mode == "r":
        return QR(_device(np.empty((0,), array.dtype), x), _device(np.asarray(np.linalg.qr(array, "r")), x))
    q, r = np.linalg.qr(array, "complete")
    return QR(_device(q, x), _device(r, x))


# --- pseudo-inverses -------------------------------------------------------------------------------------------------


class _Pinv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rtol: float) -> Tensor:
        (array,) = _host("pinv", x)
        result = _device(np.linalg.pinv(array, rtol).astype(array.dtype), x)
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        a, p = ctx.saved_tensors
        gt, pt = g.mT, p.mT
        if a.shape[-2] <= a.shape[-1]:
            k = gt @ p
            kp = k @ pt
            return -(p @ k).mT + kp - (a @ p) @ kp + (pt @ p) @ (gt - k @ a), None
        k = p @ gt
        pk = pt @ k
        return -(k @ p).mT + ((gt - a @ k) @ p) @ pt + pk - (pk @ p) @ a, None


def pinv(x: Tensor, *, rtol: float | None = None) -> Tensor:
    """The pseudo-inverse; singular values up to `rtol` times the largest count as 0 (max(M, N) * eps unless given)."""
    _check("pinv", x)
    default = max(x.shape[-2:]) * float(np.finfo(x.dtype.numpy).eps)
    return _Pinv.apply(x, default if rtol is None else float(rtol))


class LeastSquares(NamedTuple):
    """What `lstsq` returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(a: Tensor, b: Tensor, rcond: float | None = None) -> LeastSquares:
    """x that makes the sum of squares of a @ x - b least, and, for tall matrices of full rank, that sum for each
    column; the rank of `a` and its singular values. Gradients pass through the solution."""
    _check("lstsq", a)
    if b.dtype is not a.dtype or b.ndim != a.ndim or b.shape[-2] != a.shape[-2]:
        given = f"{a.dtype.name}{list(a.shape)} and {b.dtype.name}{list(b.shape)}"
        raise problem(ShapeError, "lstsq", given, "[..., M, N] and [..., M, K] of one dtype")
    solution = pinv(a, rtol=rcond) @ b
    values = svdvals(a.detach())
    bound = (max(a.shape[-2:]) * float(np.finfo(a.dtype.numpy).eps)) if rcond is None else rcond
    size = values.numpy()
    rank = np.asarray((size > bound * size.max(-1, keepdims=True, initial=0)).sum(-1), np.int64)
    if a.shape[-2] > a.shape[-1] and (rank == a.shape[-1]).all():
        residuals = ((a @ solution - b) ** 2).sum(-2)
    else:
        residuals = _device(np.empty((0,), a.dtype.numpy), a)
    return LeastSquares(solution, residuals, _device(rank, a), values)


def matrix_rank(x: Tensor, *, rtol: float | None = None) -> Tensor:
    """How many singular values are above `rtol` times the largest, int64."""
    _check("matrix_rank", x)
    size = _host("matrix_rank", svdvals(x.detach()))[0]
    bound = max(x.shape[-2:]) * float(np.finfo(x.dtype.numpy).eps) if rtol is None else rtol
    return _device(np.asarray((size > bound * size.max(-1, keepdims=True, initial=0)).sum(-1), int64.numpy), x)


# --- powers, products and norms --------------------------------------------------------------------------------------


_power = lift(products.matrix_power)


def matrix_power(x: Tensor, n: int) -> Tensor:
    """The product of `n` square matrices `x`; of their inverses for negative `n`."""
    return _power(inv(x), -n) if n < 0 else _power(x, n)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices in the order that costs least; the first and the last may be vectors."""
    if len(tensors) < 2:
        raise problem(ShapeError, "multi_dot", f"{len(tensors)} tensors", "at least two")
    if len(tensors) == 2:
        return tensors[0] @ tensors[1]
    rows = [1 if x.ndim == 1 and k == 0 else x.shape[0] for k, x in enumerate(tensors)]
    sizes = [*rows, 1 if tensors[-1].ndim == 1 else tensors[-1].shape[-1]]
    best: dict[tuple[int, int], tuple[int, int]] = {}  # (first, last) -> (cost, where to cut)
    for length in range(1, len(tensors)):
        for first in range(len(tensors) - length):
            last = first + length
            best[first, last] = min(
                (
                    best.get((first, cut), (0, 0))[0]
                    + best.get((cut + 1, last), (0, 0))[0]
                    + sizes[first] * sizes[cut + 1] * sizes[last + 1],
                    cut,
                )
                for cut in range(first, last)
            )

    def product(first: int, last: int) -> Tensor:
        if first == last:
            return tensors[first]
        cut = best[first, last][1]
        return product(first, cut) @ product(cut + 1, last)

    return product(0, len(tensors) - 1)


def matrix_norm(x: Tensor, ord: float | str = "fro", dim: tuple[int, int] = (-2, -1), keepdim: bool = False) -> Tensor:
    """A norm of matrices: 'fro', 'nuc' (sum of singular values), 2 and -2 (largest and smallest of them), 1 and -1
    (largest and smallest column sum of sizes), inf and -inf (of rows).

    >>> weft.linalg.matrix_norm(weft.tensor([[1.0, -2.0], [3.0, 4.0]]), 1)
    tensor(6.)
    """
    _check("matrix_norm", x)
    first, second = (normal_axis("matrix_norm", axis, x.ndim) for axis in dim)
    if first == second:
        raise problem(ShapeError, "matrix_norm", f"dim={dim}", "two different axes")
    if ord == "fro":
        return vector_norm(x, 2, (first, second), keepdim)
    orders = ("nuc", 2, -2, 1, -1, math.inf, -math.inf)
    if ord not in orders:
        raise problem(RangeError, "matrix_norm", f"ord={ord!r}", "'fro', 'nuc', 2, -2, 1, -1, inf or -inf")
    rest = [axis for axis in range(x.ndim) if axis not in (first, second)]
    matrix = x.permute(*rest, first, second)
    if ord in ("nuc", 2, -2):
        values = svdvals(matrix)
        result = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
    else:
        sums = matrix.abs().sum(-2 if ord in (1, -1) else -1)
        result = sums.amax(-1) if ord in (1, math.inf) else sums.amin(-1)
    kept = [1 if axis in (first, second) else extent for axis, extent in enumerate(x.shape)]
    return result.reshape(kept) if keepdim else result


def norm(
    x: Tensor, ord: float | str | None = None, dim: int | Sequence[int] | None = None, keepdim: bool = False
) -> Tensor:
    """`vector_norm` over one axis or all elements; `matrix_norm` where `ord` is given and `dim` has two axes, or is
    None for a matrix."""
    axes = (dim,) if isinstance(dim, int) else dim
    if ord is None:
        return vector_norm(x, 2, axes, keepdim)
    if axes is None and x.ndim not in (1, 2):
        raise problem(ShapeError, "norm", f"ord={ord!r} for shape {x.shape}", "a vector, a matrix, or dim")
    if (axes is None and x.ndim == 2) or (axes is not None and len(axes) == 2):
        pair = (-2, -1) if axes is None else (axes[0], axes[1])
        return matrix_norm(x, ord, pair, keepdim)
    if isinstance(ord, str):
        raise problem(RangeError, "norm", f"ord={ord!r} of vectors", "a number")
    return vector_norm(x, ord, axes, keepdim)


def cond(x: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number: the largest over the smallest singular value, or the norm of order `p` of x times that of
    its inverse."""
    if p in (None, 2):
        values = svdvals(x)
        return values[..., 0] / values[..., -1]
    return matrix_norm(x, p if p is not None else 2) * matrix_norm(inv(x), p if p is not None else 2)
