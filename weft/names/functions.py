"""Operations as functions of tensors: all names that the table of operations has for `weft`.

Type checkers and editors read them from `functions.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft.core import indexing as _indexing  # noqa: F401  # adds `x[key]` to tensors
from weft.functional import (  # noqa: F401  # enter their functions into the table
    dropout,
    dynamic_shapes,
    matrices,
    shape_of_tensors,
)
from weft.names.namespaces import add_methods as _add_methods
from weft.names.namespaces import functions as _functions
from weft.ops import (  # noqa: F401
    activation,
    adaptive,
    arrange,
    attention,
    average_pool,
    batchnorm,
    bessel,
    comparison,
    conv,
    distribution_losses,
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
    margin_losses,
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
    unary_functions,
    windows,
)
from weft.random import distributions  # noqa: F401  # enter their functions into the table

_add_methods()
_found = _functions("weft")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
