"""weft.linalg: decompositions, inverses, products and norms of matrices, after `torch.linalg`.

Decompositions are computed on the host by NumPy (LAPACK), so they work outside `weft.compile` only.
"""

from __future__ import annotations

from weft.functional.decompositions import cholesky, eigh, eigvalsh, qr, svd, svdvals
from weft.functional.linear_systems import det, inv, slogdet, solve, solve_triangular
from weft.functional.matrices import (
    cond,
    cross,
    diagonal,
    matrix_exp,
    matrix_norm,
    matrix_power,
    multi_dot,
    norm,
    tensorinv,
    tensorsolve,
    vander,
    vecdot,
    vector_norm,
)
from weft.functional.pseudo_inverses import lstsq, matrix_rank, pinv
from weft.names.functions import matmul

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eigh",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]
