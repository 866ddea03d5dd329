"""Matrices with orthonormal columns as smooth functions of free ones: the maps behind `parametrizations.orthogonal`.

All are tensor operations of a fixed number, so that they are part of compiled steps; only the way back (from an
orthogonal matrix to a free one) is computed on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.creation import eye, tensor
from weft.core.tensor import Tensor
from weft.functional.loop import loop
from weft.names.functions import cat


def householder_product(below: Tensor) -> Tensor:
    """The first k columns of H₁ H₂ ... H_k, the reflections H_i = I - 2 v_i v_iᵀ / |v_i|², where v_i is column i of
    `below` [*, n, k] (of which only what is under the diagonal counts) with a 1 on the diagonal.

    The product is I - V S⁻¹ Vᵀ with S = VᵀV above the diagonal and half of it on it.
    """
    n, k = below.shape[-2:]
    like: dict[str, Any] = {"dtype": below.dtype, "device": below.device}
    v = below.tril(-1) + eye(n, k, **like)
    products = v.mT @ v
    s = products.triu(1) + products * eye(k, **like) * 0.5
    return eye(n, k, **like) - v @ (invert_triangular(s) @ v[..., :k, :].mT)


def invert_triangular(upper: Tensor) -> Tensor:
    """The inverse of upper triangular matrices [*, k, k]: the inverses of the blocks on the diagonal, twice as large in
    every step, by [[A, B], [0, C]]⁻¹ = [[A⁻¹, -A⁻¹ B C⁻¹], [0, C⁻¹]]."""
    k, lead = upper.shape[-1], tuple(upper.shape[:-2])
    size = 1 << (k - 1).bit_length()
    like: dict[str, Any] = {"dtype": upper.dtype, "device": upper.device}
    if size > k:
        corner = eye(size, **like)[k:, k:].expand(*lead, size - k, size - k)
        right = upper.new_zeros((*lead, k, size - k))
        upper = cat([cat([upper, right], -1), cat([right.mT, corner], -1)], -2)
    inverses = (1.0 / upper.diagonal(dim1=-2, dim2=-1)).reshape(*lead, size, 1, 1)
    half = 1
    while half < size:
        count = size // (2 * half)
        blocks = upper.reshape(*lead, count, 2 * half, count, 2 * half).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        pairs = inverses.reshape(*lead, count, 2, half, half)
        first, second = pairs[..., 0, :, :], pairs[..., 1, :, :]
        between = -(first @ blocks[..., :half, half:] @ second)
        lower = first.new_zeros(tuple(first.shape))
        inverses = cat([cat([first, between], -1), cat([lower, second], -1)], -2)
        half *= 2
    return inverses.reshape(*lead, size, size)[..., :k, :k]


def cayley(skew: Tensor) -> Tensor:
    """(I - A/2)⁻¹ (I + A/2) of a skew-symmetric A [*, n, n], by elimination without exchanging rows: the symmetric
    part of I - A/2 is I, so that every pivot is at least 1."""
    n = skew.shape[-1]
    identity = eye(n, dtype=skew.dtype, device=skew.device)

    def eliminate(rows: Tensor, unit: Tensor) -> tuple[Tensor, None]:
        row = (unit @ rows).unsqueeze(-2)  # [*, 1, 2n]
        column = rows[..., :n] @ unit  # [*, n]
        pivot = (column * unit).sum(-1)[..., None, None]
        return rows - (column - unit).unsqueeze(-1) * (row / pivot), None

    start = cat([identity - 0.5 * skew, identity + 0.5 * skew], -1)
    return loop(eliminate, start, identity)[0][..., n:]


def orthogonalize(matrix: Tensor) -> Tensor:
    """Q of matrix [*, n, k] = Q R with the diagonal of R positive."""
    q, r = np.linalg.qr(_on_host(matrix))
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
    return _like(q * signs[..., None, :], matrix)


def reflections(matrix: Tensor) -> Tensor:
    """What `householder_product`, with its columns times the signs on the diagonal, brings back to `matrix` [*, n, k]
    made orthogonal."""
    packed, tau = np.linalg.qr(_on_host(matrix), mode="raw")
    packed = np.swapaxes(packed, -1, -2).copy()
    number = np.arange(packed.shape[-1])
    signs = np.sign(packed[..., number, number])
    packed[..., number, number] = np.where(tau == 0.0, -signs, signs)  # LAPACK left that reflection out
    return _like(np.tril(packed), matrix)


def is_orthogonal(matrix: Tensor) -> bool:
    """Whether the columns are orthonormal, up to rounding."""
    q = _on_host(matrix)
    bound = 10.0 * q.shape[-2] * float(np.finfo(matrix.detach().numpy().dtype).eps)
    return bool(np.allclose(np.swapaxes(q, -1, -2) @ q, np.eye(q.shape[-1]), rtol=1e-5, atol=bound))


def _on_host(matrix: Tensor) -> np.ndarray:
    return np.asarray(matrix.detach().numpy(), dtype=np.float64)


def _like(array: np.ndarray, matrix: Tensor) -> Tensor:
    return tensor(array, dtype=matrix.dtype, device=matrix.device)
