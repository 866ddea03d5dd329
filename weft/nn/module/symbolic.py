"""Symbols: what a layer gives when it is called on a symbol instead of a tensor. `nn.Model` makes a module of them.

A symbol knows the module that makes it and the symbols that the module was called on. Its shape is that of a value that
is recorded and never computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.base import tree
from weft.base.dtypes import DType
from weft.core.creation import zeros
from weft.core.tensor import Tensor
from weft.jit.recording import record_result

if TYPE_CHECKING:
    from weft.nn.module import Module

in_use = False  # whether there ever was a symbol: without, calls do not look for them


@dataclass(frozen=True)
class Form:
    """What is left of a recorded value in a pickle."""

    shape: tuple[int, ...]
    dtype: DType


class Symbol:
    """A value in a model that is being put together by calling layers. Operators and indexing give symbols, too."""

    def __init__(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any):
        global in_use
        in_use = True
        self.module, self.args, self.kwargs = module, args, kwargs
        self.value = value  # of the right form; a recorded result that is never computed

    def __getstate__(self) -> dict[str, Any]:
        leaves, structure = tree.flatten(self.value)
        forms = [Form(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return {**self.__dict__, "value": tree.unflatten(structure, forms)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        global in_use
        in_use = True
        leaves, structure = tree.flatten(state["value"])
        values = [zeros(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, Form) else leaf for leaf in leaves]
        self.__dict__.update(state, value=tree.unflatten(structure, values))

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape; the first axis is that of the batch, of any size."""
        return (None, *self.value.shape[1:])

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def inputs(self) -> Iterator[Symbol]:
        """The symbols that it is computed from."""
        return symbols_in((*self.args, *self.kwargs.values()))

    def _derive(self, function: Callable[..., Any], *args: Any) -> Any:
        from weft.nn.graph_model import Lambda

        return Lambda(function)(*args)

    def __repr__(self) -> str:
        if not isinstance(self.value, Tensor):
            return f"Symbol(several results, of {type(self.module).__name__})"
        return f"Symbol({list(self.shape)}, {self.value.dtype}, of {type(self.module).__name__})"

    def __iter__(self) -> Iterator[Symbol]:
        if isinstance(self.value, Tensor):
            raise TypeError("a symbol cannot be iterated over: use indexing or nn.Split")
        return (self[k] for k in range(len(self.value)))

    def __getitem__(self, key: Any) -> Any:
        return self._derive(operator.itemgetter(key), self)

    def __add__(self, other: Any) -> Any:
        return self._derive(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._derive(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._derive(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._derive(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._derive(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._derive(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._derive(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._derive(operator.truediv, other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._derive(operator.matmul, self, other)

    def __pow__(self, other: Any) -> Any:
        return self._derive(operator.pow, self, other)

    def __neg__(self) -> Any:
        return self._derive(operator.neg, self)


def symbols_in(value: Any) -> Iterator[Symbol]:
    """The symbols in nested lists, tuples and dicts."""
    if isinstance(value, Symbol):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from symbols_in(one)
    elif isinstance(value, dict):
        yield from symbols_in(list(value.values()))


def replace_symbols(value: Any, new: Callable[[Symbol], Any]) -> Any:
    """Nested lists, tuples and dicts with `new(symbol)` for every symbol."""
    if isinstance(value, Symbol):
        return new(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replace_symbols(one, new) for one in value))
    if isinstance(value, (list, tuple)):
        return type(value)(replace_symbols(one, new) for one in value)
    if isinstance(value, dict):
        return {key: replace_symbols(one, new) for key, one in value.items()}
    return value


def has_symbol(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call has a symbol among its arguments."""
    return next(symbols_in((args, kwargs)), None) is not None


def call(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Symbol:
    """The symbol for a call of `module`: its form is found by a call that computes nothing."""
    given_args, given_kwargs = replace_symbols((args, kwargs), lambda symbol: symbol.value)
    return Symbol(module, args, kwargs, record_result(module, given_args, given_kwargs))
