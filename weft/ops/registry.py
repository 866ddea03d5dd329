"""The table of operations. A decorator on the function that defines an operation says where users find it.

    @operation("weft method inplace", aliases="absolute")
    def abs(input: Node) -> Node: ...

makes `weft.abs`, `Tensor.abs`, `Tensor.abs_` and the same three for `absolute`. `weft.core.lift` turns the entries into
functions of tensors; the stubs (`tools/stubs.py`) and `help()` show their signatures. The names of parameters are
therefore PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

# "inplace" is a method with `_`; "flag" a parameter `inplace` of the function in `nn.functional`.
NAMESPACES = frozenset({"weft", "functional", "linalg", "special", "method", "inplace", "flag"})

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation and where users find it."""

    function: Callable[..., Any]  # of nodes, or of tensors where `of_tensors`
    name: str
    aliases: tuple[str, ...]
    namespaces: frozenset[str]  # some of NAMESPACES
    operators: tuple[str, ...]  # special methods of `Tensor` that it is
    view: str  # how its result shares memory with its first operand: see `core.lift`
    overloads: tuple[str, ...]  # signatures for type checkers, where one cannot say what is returned
    of_tensors: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


OPERATIONS: list[Operation] = []


def operation(
    namespaces: str = "weft method",
    *,
    name: str = "",
    aliases: str = "",
    operators: str = "",
    view: str = "",
    overloads: tuple[str, ...] = (),
    of_tensors: bool = False,
) -> Callable[[F], F]:
    """Enter a function of nodes into the table; the function itself stays what it is.

    `namespaces`, `aliases` and `operators` are lists of words. With `of_tensors` the function takes and returns
    tensors: one that draws random numbers, or reads values.
    """
    chosen = frozenset(namespaces.split())
    if not chosen <= NAMESPACES:
        raise ValueError(f"operation: namespaces {sorted(chosen - NAMESPACES)} are none of {sorted(NAMESPACES)}")

    def enter(function: F) -> F:
        own = name or function.__name__
        OPERATIONS.append(
            Operation(
                function, own, tuple(aliases.split()), chosen, tuple(operators.split()), view, overloads, of_tensors
            )
        )
        return function

    return enter


def entries(namespace: str) -> Iterator[tuple[str, Operation]]:
    """All names in a namespace, with what they mean."""
    for entry in OPERATIONS:
        if namespace in entry.namespaces:
            for name in entry.names:
                yield name, entry
