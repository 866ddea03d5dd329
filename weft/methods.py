"""The methods of `Tensor` that are operations; `weft.namespaces` fills this class from the table of operations.

Type checkers and editors read them from `methods.pyi`, which `make stubs` writes.
"""

from __future__ import annotations


class TensorMethods:
    """What `Tensor` inherits its operations from."""

    __slots__ = ()
