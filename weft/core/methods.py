"""The methods of `Tensor` that are defined above it: operations, which `weft.names.namespaces` adds from their table,
and those that modules register (`weft.core.method_registry`).

Type checkers and editors read them from `methods.pyi`, which `make stubs` writes.
"""

from __future__ import annotations


class TensorMethods:
    """What `Tensor` inherits its operations from."""

    __slots__ = ()
