"""Powers, products and norms of matrices: what `weft.linalg` has beside decompositions, and PyTorch's older names.

Norms by singular values, inverses and determinants read values on the host, as decompositions do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DTypeLike
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.lift import lift, with_tensor_policy
from weft.core.tensor import Tensor
from weft.functional.decompositions import svdvals
from weft.functional.lapack import read_values, to_tensor
from weft.functional.linear_systems import SignLog, inv, slogdet, solve
from weft.functional.linear_systems import det as _det
from weft.functional.pseudo_inverses import pinv
from weft.ops import matrix_functions, products
from weft.ops.common import normal_axis
from weft.ops.registry import operation

vector_norm = lift(products.vector_norm)
cross = lift(products.linalg_cross)
diagonal = lift(products.matrix_diagonal, "diagonal")
vander = lift(products.powers)
vecdot = lift(products.vecdot)
for _name in ("cross", "diagonal", "vander", "vecdot", "vector_norm"):
    globals()[_name].__module__, globals()[_name].__name__, globals()[_name].__qualname__ = "weft.linalg", _name, _name
_power = lift(products.matrix_power)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The product of `n` square matrices `A`; of their inverses for negative `n`."""
    return _power(inv(A), -n) if n < 0 else _power(A, n)


_exponential = lift(matrix_functions.matrix_exp)


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of square matrices [..., n, n].

    >>> weft.linalg.matrix_exp(weft.tensor([[0.0, 1.0], [0.0, 0.0]]))
    tensor([[1., 1.],
            [0., 1.]])
    """
    return _exponential(A)


def _check(who: str, x: Tensor, least: int = 2) -> None:
    if x.dtype.kind != "f":
        raise problem(DTypeError, who, f"a {x.dtype.name} tensor", "a float tensor", "convert it with .float()")
    if x.ndim < least:
        raise problem(ShapeError, who, f"shape {x.shape}", "matrices")


@with_tensor_policy
def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices in the order that costs least; the first and the last may be vectors."""
    if len(tensors) < 2:
        raise problem(ShapeError, "multi_dot", f"{len(tensors)} tensors", "at least two")
    ends = (0, len(tensors) - 1)
    if any(x.ndim != 2 and (x.ndim != 1 or k not in ends) for k, x in enumerate(tensors)):
        raise problem(ShapeError, "multi_dot", f"shapes {[x.shape for x in tensors]}", "matrices, vectors at the ends")
    if len({x.dtype for x in tensors}) > 1:
        raise problem(DTypeError, "multi_dot", f"{[x.dtype.name for x in tensors]}", "one dtype", "cast with .to")
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


@with_tensor_policy
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: Sequence[int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """A norm of matrices: 'fro', 'nuc' (sum of singular values), 2 and -2 (largest and smallest of them), 1 and -1
    (largest and smallest column sum of sizes), inf and -inf (of rows).

    >>> weft.linalg.matrix_norm(weft.tensor([[1.0, -2.0], [3.0, 4.0]]), 1)
    tensor(6.)
    """
    _check("matrix_norm", A)
    A = A if dtype is None else A.to(dtype)
    if not isinstance(dim, (tuple, list)) or len(dim) != 2:
        raise problem(ShapeError, "matrix_norm", f"dim={dim}", "two axes")
    first, second = (normal_axis("matrix_norm", axis, A.ndim) for axis in dim)
    if first == second:
        raise problem(ShapeError, "matrix_norm", f"dim={dim}", "two different axes")
    if ord == "fro":
        return vector_norm(A, 2, (first, second), keepdim)
    orders = ("nuc", 2, -2, 1, -1, math.inf, -math.inf)
    if ord not in orders:
        raise problem(RangeError, "matrix_norm", f"ord={ord!r}", "'fro', 'nuc', 2, -2, 1, -1, inf or -inf")
    rest = [axis for axis in range(A.ndim) if axis not in (first, second)]
    matrix = A.permute(*rest, first, second)
    if ord in ("nuc", 2, -2):
        values = svdvals(matrix)
        result = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord == 2 else values.amin(-1)
    else:
        sums = matrix.abs().sum(-2 if ord in (1, -1) else -1)
        result = sums.amax(-1) if ord in (1, math.inf) else sums.amin(-1)
    kept = [1 if axis in (first, second) else extent for axis, extent in enumerate(A.shape)]
    return result.reshape(kept) if keepdim else result


@with_tensor_policy
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """`vector_norm` over one axis or all elements; `matrix_norm` where `ord` is given and `dim` has two axes, or is
    None for a matrix."""
    axes = (dim,) if isinstance(dim, int) else dim
    if ord is None:
        return vector_norm(A, 2, axes, keepdim, dtype=dtype)
    if axes is not None and len(axes) not in (1, 2):
        raise problem(ShapeError, "norm", f"ord={ord!r} over dim={dim}", "one axis or two")
    if axes is None and A.ndim not in (1, 2):
        raise problem(ShapeError, "norm", f"ord={ord!r} for shape {A.shape}", "a vector, a matrix, or dim")
    if (axes is None and A.ndim == 2) or (axes is not None and len(axes) == 2):
        return matrix_norm(A, ord, (-2, -1) if axes is None else axes, keepdim, dtype=dtype)
    if isinstance(ord, str):
        raise problem(RangeError, "norm", f"ord={ord!r} of vectors", "a number")
    return vector_norm(A, ord, axes, keepdim, dtype=dtype)


@with_tensor_policy
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number: the largest over the smallest singular value (for p=-2 the other way round), or the norm of
    order `p` of A times that of its inverse; inf for singular matrices."""
    _check("cond", A)
    if p in (None, 2, -2):
        values = svdvals(A)
        return values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
    order: float | str = 2 if p is None else p
    if A.shape[-1] != A.shape[-2]:
        raise problem(ShapeError, "cond", f"shape {A.shape} with p={p!r}", "square matrices")
    singular = np.linalg.slogdet(read_values("cond", A)[0])[0] == 0
    if not singular.any():
        return matrix_norm(A, order) * matrix_norm(inv(A), order)
    mask = to_tensor(np.asarray(singular), A)
    eye = to_tensor(np.eye(A.shape[-1], dtype=A.dtype.numpy), A)
    whole = mask.unsqueeze(-1).unsqueeze(-1)
    usual = A * (~whole).to(A.dtype) + eye * whole.to(A.dtype)
    return (matrix_norm(usual, order) * matrix_norm(inv(usual), order)).masked_fill(mask, math.inf)


# --- tensors as matrices ---------------------------------------------------------------------------------------------


@with_tensor_policy
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of a tensor as a matrix from its axes after the first `ind` to those: `tensordot(tensorinv(A), B,
    ind)` solves for what `tensordot` makes B of.

    >>> weft.linalg.tensorinv(weft.eye(4).reshape(4, 2, 2), 1).shape
    (2, 2, 4)
    """
    if not 0 < ind:
        raise problem(RangeError, "tensorinv", f"ind={ind}", "at least 1")
    rows, columns = math.prod(A.shape[:ind]), math.prod(A.shape[ind:])
    if rows != columns:
        raise problem(ShapeError, "tensorinv", f"shape {A.shape} with ind={ind}", "as many elements on both sides")
    return inv(A.reshape(rows, columns)).reshape(*A.shape[ind:], *A.shape[:ind])


@with_tensor_policy
def tensorsolve(A: Tensor, B: Tensor, dims: Sequence[int] | None = None) -> Tensor:
    """X with tensordot(A, X, X.ndim) = B; `dims` of A are moved to its end first.

    >>> weft.linalg.tensorsolve(weft.eye(4).reshape(2, 2, 4), weft.ones(2, 2))
    tensor([1., 1., 1., 1.])
    """
    if dims is not None:
        last = [normal_axis("tensorsolve", axis, A.ndim) for axis in dims]
        A = A.permute(*[axis for axis in range(A.ndim) if axis not in last], *last)
    shape = A.shape[B.ndim :]
    if math.prod(shape) != B.numel() or math.prod(A.shape[: B.ndim]) != B.numel():
        raise problem(ShapeError, "tensorsolve", f"shapes {A.shape} and {B.shape}", "a square matrix on B's elements")
    return solve(A.reshape(B.numel(), math.prod(shape)), B.reshape(-1)).reshape(shape)


# --- names outside weft.linalg ---------------------------------------------------------------------------------------


@operation(of_tensors=True)
def det(input: Tensor) -> Tensor:
    """`weft.linalg.det`."""
    return _det(input)


@operation(of_tensors=True)
def logdet(input: Tensor) -> Tensor:
    """The logarithm of the determinant of square matrices; NaN where that is negative.

    >>> weft.logdet(weft.tensor([[2.0, 0.0], [0.0, 0.5]]))
    tensor(0.)
    """
    sign, size = slogdet(input)
    return size.masked_fill(sign == -1, math.nan)


@operation(name="slogdet", of_tensors=True)
def slogdet_of(input: Tensor) -> SignLog:
    """`weft.linalg.slogdet`."""
    return slogdet(input)


@operation(of_tensors=True)
def inverse(input: Tensor) -> Tensor:
    """`weft.linalg.inv`."""
    return inv(input)


@operation(of_tensors=True)
def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """`weft.linalg.pinv` with singular values up to `rcond` times the largest as 0."""
    return pinv(input, rtol=rcond)


@operation(name="matrix_power", of_tensors=True)
def power(input: Tensor, n: int) -> Tensor:
    """The product of `n` square matrices `input`; the identity for 0, and the inverses' product for negative `n`.

    >>> weft.matrix_power(weft.tensor([[1.0, 1.0], [0.0, 1.0]]), 3)
    tensor([[1., 3.],
            [0., 1.]])
    """
    return matrix_power(input, n)


@operation("weft", of_tensors=True)
def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of several matrices in the order that costs least."""
    return matrices[0] if len(matrices) == 1 else multi_dot(matrices)


_vector_norm = lift(products.norm)


@operation(name="norm", of_tensors=True)
def norm_of(
    input: Tensor,
    p: float | str | None = "fro",
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    out: None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The vector norm of order `p` over `dim` ('fro' and None mean 2), or 'nuc', the sum of singular values.
    Other matrix norms are in `weft.linalg`.

    >>> weft.norm(weft.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(5.)
    """
    if out is not None:
        raise problem(DTypeError, "norm", "out=", "no output argument", "use x.copy_(weft.norm(...))")
    if p == "nuc":
        if dim is None and input.ndim != 2:
            raise problem(ShapeError, "norm", f"p='nuc' for shape {input.shape}", "a matrix, or dim")
        pair: Any = (-2, -1) if dim is None else dim
        return matrix_norm(input, "nuc", pair, keepdim, dtype=dtype)
    return _vector_norm(input, p, dim, keepdim, dtype=dtype)
