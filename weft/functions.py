"""Operations as functions of tensors: all names that the table of operations has for `weft`.

Type checkers and editors read them from `functions.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft import dynamic, matrices, sampling, shaping  # noqa: F401  # enter their functions into the table
from weft.namespaces import add_methods as _add_methods
from weft.namespaces import functions as _functions
from weft.ops import (  # noqa: F401
    activation,
    adaptive,
    arrange,
    attention,
    batchnorm,
    bessel,
    comparison,
    conv,
    einsum,
    elementwise,
    floats,
    gamma,
    graphs,
    indexing,
    linalg,
    logarithms,
    logic,
    loss,
    losses,
    matrix_functions,
    movement,
    norm,
    normal,
    pool,
    products,
    reduce,
    regions,
    resample,
    sample,
    scans,
    scatter,
    shapes,
    similarity,
    slopes,
    sorting,
    statistics,
    trigonometry,
    windows,
)

_add_methods()
_found = _functions("weft")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
