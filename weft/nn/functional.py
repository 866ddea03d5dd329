"""Functions of tensors under PyTorch's `torch.nn.functional` names, from the table of operations.

Type checkers and editors read them from `functional.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft.functional import (  # noqa: F401  # enter their functions into the table
    attention,
    ctc,
    dropout,
    embedding,
    fractional_pooling,
    multihead_attention,
    running_statistics,
    triplet,
)
from weft.names import functions, in_place  # noqa: F401  # as above
from weft.names.namespaces import add_methods as _add_methods
from weft.names.namespaces import functions as _functions
from weft.random import generator  # noqa: F401  # as above

_add_methods()
_found = _functions("functional")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
