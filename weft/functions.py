"""Operations as functions of tensors: all names that the table of operations has for `weft`.

Type checkers and editors read them from `functions.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft import dynamic, sampling  # noqa: F401  # enter their functions into the table
from weft.namespaces import add_methods as _add_methods
from weft.namespaces import functions as _functions
from weft.ops import (  # noqa: F401
    activation,
    adaptive,
    arrange,
    attention,
    batchnorm,
    conv,
    einsum,
    elementwise,
    graphs,
    indexing,
    linalg,
    loss,
    losses,
    movement,
    norm,
    pool,
    products,
    reduce,
    resample,
    sample,
    scans,
    scatter,
    similarity,
    sorting,
    windows,
)

_add_methods()
_found = _functions("weft")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
