"""The table of operations. A decorator on the function that defines an operation says where users find it.

    @operation("weft method inplace", aliases="absolute")
    def abs(input: Node) -> Node: ...

makes `weft.abs`, `Tensor.abs`, `Tensor.abs_` and the same three for `absolute`. `weft.lifting` turns the entries into
functions of tensors; the stubs (`tools/stubs.py`) and `help()` show their signatures. The names of parameters are
therefore PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

# "inplace" is a method with `_`; "flag" a parameter `inplace` of the function in `nn.functional`.
PLACES = frozenset({"weft", "functional", "linalg", "special", "method", "inplace", "flag"})

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation and where users find it."""

    function: Callable[..., Any]  # of nodes, or of tensors where `of_tensors`
    name: str
    aliases: tuple[str, ...]
    places: frozenset[str]  # some of PLACES
    operators: tuple[str, ...]  # special methods of `Tensor` that it is
    view: str  # how its result shares memory with its first operand: see `lifting.lift`
    overloads: tuple[str, ...]  # signatures for type checkers, where one cannot say what is returned
    of_tensors: bool

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


OPERATIONS: list[Operation] = []


def operation(
    places: str = "weft method",
    *,
    name: str = "",
    aliases: str = "",
    operators: str = "",
    view: str = "",
    overloads: tuple[str, ...] = (),
    of_tensors: bool = False,
) -> Callable[[F], F]:
    """Enter a function of nodes into the table; the function itself stays what it is.

    `places`, `aliases` and `operators` are lists of words. With `of_tensors` the function takes and returns tensors:
    one that draws random numbers, or reads values.
    """
    chosen = frozenset(places.split())
    if not chosen <= PLACES:
        raise ValueError(f"operation: places {sorted(chosen - PLACES)} are none of {sorted(PLACES)}")

    def enter(function: F) -> F:
        own = name or function.__name__
        OPERATIONS.append(
            Operation(
                function, own, tuple(aliases.split()), chosen, tuple(operators.split()), view, overloads, of_tensors
            )
        )
        return function

    return enter


def entries(place: str) -> Iterator[tuple[str, Operation]]:
    """All names in a place, with what they mean."""
    for entry in OPERATIONS:
        if place in entry.places:
            for name in entry.names:
                yield name, entry
