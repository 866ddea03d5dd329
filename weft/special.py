"""Functions of tensors under PyTorch's `torch.special` names, from the table of operations.

Type checkers and editors read them from `special.pyi`, which `make stubs` writes.
"""

from __future__ import annotations

from weft.names import functions  # noqa: F401  # enters its functions into the table
from weft.names.namespaces import functions as _functions

_found = _functions("special")
__all__ = sorted(_found)  # noqa: PLE0605
globals().update(_found)
