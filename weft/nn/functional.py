"""Functions of tensors under PyTorch's `torch.nn.functional` names, from the table of operations.

Type checkers and editors read them from `functional.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft import (  # noqa: F401  # enter their functions into the table
    attention,
    ctc,
    dropouts,
    embeddings,
    fractional,
    functions,
    in_place,
    multihead,
    random,
    running,
    triplet,
)
from weft.namespaces import add_methods as _add_methods
from weft.namespaces import functions as _functions

_add_methods()
_found = _functions("functional")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
