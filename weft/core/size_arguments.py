"""Creation functions that take their shape as `f(2, 3)`, `f((2, 3))` or `f(size=(2, 3))`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

from weft.base.dtypes import DTypeLike
from weft.base.errors import DTypeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.graph.build import Shape
from weft.ops.common import normal_shape

Size = int | Sequence[int]


class Creation(Protocol):
    """What type checkers know of `zeros`, `ones` and `empty`."""

    @overload
    def __call__(self, *size: Size, dtype: DTypeLike = ..., device: Any = ..., requires_grad: bool = ...) -> Tensor: ...
    @overload
    def __call__(
        self, *, size: Size, dtype: DTypeLike = ..., device: Any = ..., requires_grad: bool = ...
    ) -> Tensor: ...


class Sampling(Protocol):
    """What type checkers know of `rand` and `randn`."""

    @overload
    def __call__(
        self, *size: Size, generator: Any = ..., dtype: DTypeLike = ..., device: Any = ..., requires_grad: bool = ...
    ) -> Tensor: ...
    @overload
    def __call__(
        self, *, size: Size, generator: Any = ..., dtype: DTypeLike = ..., device: Any = ..., requires_grad: bool = ...
    ) -> Tensor: ...


def sized_creation(function: Callable[..., Tensor]) -> Creation:
    """A function of `*size` that takes `size=` as well."""
    return _taking_size(function)


def sized_sampling(function: Callable[..., Tensor]) -> Sampling:
    """The same for a function that has a generator."""
    return _taking_size(function)


def _taking_size(function: Callable[..., Tensor]) -> Any:
    @functools.wraps(function)
    def call(*size: Any, **options: Any) -> Tensor:
        if "size" in options:
            if size:
                raise problem(DTypeError, function.__name__, f"sizes {size} and size={options['size']}", "one of them")
            size = (options.pop("size"),)
        return function(*size, **options)

    return call


def checked_shape(who: str, size: Sequence[Any]) -> Shape:
    """A shape from `f(2, 3)` or `f((2, 3))`, without negative extents."""
    shape = normal_shape(who, size)
    if min(shape, default=0) < 0:
        raise problem(ShapeError, who, f"shape {shape}", "extents of at least 0")
    return shape
