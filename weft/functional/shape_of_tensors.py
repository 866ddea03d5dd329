"""Operations whose shape, start or split positions come from other tensors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.host_arrays import from_host
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.graph import build
from weft.ops import arrange
from weft.ops import common as ops
from weft.ops.common import as_int
from weft.ops.registry import operation

_narrow = lift(arrange.narrow, "basic")
_narrow_at = lift(arrange.narrow_at, "narrow")
_tensor_split = lift(arrange.tensor_split, "basic")
_at_least = lift(arrange.at_least, "basic")


@operation("method", of_tensors=True)
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`view` with the shape of `other`."""
    return input.view(other.shape)


@operation("method", of_tensors=True)
def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`reshape` to the shape of `other`."""
    return input.reshape(other.shape)


@operation("method", of_tensors=True)
def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`expand` to the shape of `other`."""
    return input.expand(other.shape)


@operation("weft", of_tensors=True)
def broadcast_shapes(*shapes: int | Sequence[int]) -> tuple[int, ...]:
    """The shape to which tensors of these shapes broadcast.

    >>> weft.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    forms = [tuple(shape) if isinstance(shape, (tuple, list)) else (shape,) for shape in shapes]
    known = [tuple([as_int("broadcast_shapes", extent, "shape") for extent in form]) for form in forms]
    if any(extent < 0 for form in known for extent in form):
        raise problem(RangeError, "broadcast_shapes", f"{known}", "extents of at least 0")
    return ops.broadcast_shapes("broadcast_shapes", known) if known else ()


@operation("weft", of_tensors=True)
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Every tensor expanded to the shape to which all of them broadcast.

    >>> [x.shape for x in weft.broadcast_tensors(weft.ones(2, 1), weft.ones(3))]
    [(2, 3), (2, 3)]
    """
    given = _list_tensors("broadcast_tensors", tensors)
    shape = ops.broadcast_shapes("broadcast_tensors", [x.shape for x in given]) if given else ()
    return tuple([x.expand(shape) for x in given])


def _list_tensors(who: str, tensors: Sequence[Any]) -> list[Tensor]:
    """The tensors of `f(a, b)` or `f([a, b])`."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    for one in given:
        if not isinstance(one, Tensor):
            raise problem(DTypeError, who, f"a {type(one).__name__}", "tensors", "convert it with weft.tensor")
    return list(given)


def _with_rank(who: str, tensors: Sequence[Any], rank: int) -> Any:
    results = tuple([_at_least(x, rank) for x in _list_tensors(who, tensors)])
    alone = len(tensors) == 1 and isinstance(tensors[0], Tensor)
    return results[0] if alone else results


_ONE_OR_MORE = (
    "(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]",
    "(tensors: Tensor) -> Tensor",
    "(first: Tensor, second: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]",
)


@operation("weft", of_tensors=True, overloads=_ONE_OR_MORE)
def atleast_1d(*tensors: Any) -> Any:
    """Tensors with at least one axis.

    >>> weft.atleast_1d(weft.tensor(1.0))
    tensor([1.])
    """
    return _with_rank("atleast_1d", tensors, 1)


@operation("weft", of_tensors=True, overloads=_ONE_OR_MORE)
def atleast_2d(*tensors: Any) -> Any:
    """Tensors with at least two axes: a vector is a row.

    >>> weft.atleast_2d(weft.tensor([1.0, 2.0]))
    tensor([[1., 2.]])
    """
    return _with_rank("atleast_2d", tensors, 2)


@operation("weft", of_tensors=True, overloads=_ONE_OR_MORE)
def atleast_3d(*tensors: Any) -> Any:
    """Tensors with at least three axes: a matrix gets a third one at the end.

    >>> weft.atleast_3d(weft.ones(2, 3)).shape
    (2, 3, 1)
    """
    return _with_rank("atleast_3d", tensors, 3)


@operation(of_tensors=True)
def narrow(input: Tensor, dim: int, start: int | Tensor, length: int) -> Tensor:
    """The part of `dim` from `start` on with `length` elements. Inside `weft.compile` a part whose start is a tensor
    can be read but not written.

    >>> weft.narrow(weft.arange(5), 0, 1, 3)
    tensor([1, 2, 3])
    """
    if not isinstance(start, Tensor):
        return _narrow(input, dim, start, length)
    if start.shape or start.dtype.kind not in "iu":
        given = f"start {start.dtype.name}{list(start.shape)}"
        raise problem(ShapeError, "narrow", given, "an integer tensor without axes")
    if STATE.trace is None:
        return _narrow(input, dim, start.item(), length)
    return _narrow_at(input, dim, start, length)


@operation(of_tensors=True)
def tensor_split(input: Tensor, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """A number of parts, the first ones larger by one where the extent is not divisible by it; or parts cut before the
    given indices. These may be a tensor, whose values are read.

    >>> [part.shape for part in weft.tensor_split(weft.arange(7), 3)]
    [(3,), (2,), (2,)]
    """
    where: Any = indices_or_sections
    if isinstance(where, Tensor):
        from weft.functional.dynamic_shapes import read_values

        if where.ndim > 1 or where.dtype.name != "int64":
            given = f"{where.dtype.name}{list(where.shape)}"
            raise problem(ShapeError, "tensor_split", given, "an int64 tensor with at most one axis")
        where = read_values("tensor_split", where, "pass Python numbers").tolist()
    return _tensor_split(input, where, dim)


@operation(of_tensors=True)
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All choices of `r` elements of a vector, as rows in the order of the elements.

    >>> weft.combinations(weft.tensor([1, 2, 3]))
    tensor([[1, 2],
            [1, 3],
            [2, 3]])
    """
    size = as_int("combinations", r, "r")
    if input.ndim != 1 or size < 0:
        raise problem(ShapeError, "combinations", f"shape {input.shape}, r={size}", "a vector and r of at least 0")
    if size == 0:
        return input[:0]
    extent = input.shape[0]
    choose: Callable[..., Any] = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = math.comb(extent + size - 1, size) if with_replacement and extent else math.comb(extent, size)
    numbers = itertools.chain.from_iterable(choose(range(extent), size))
    table = np.fromiter(numbers, np.int64, rows * size).reshape(rows, size)
    if not rows:
        return input[:0].reshape(0, size)
    return input[Tensor(from_host(table, input.device))]


def bitcast(tensor: Tensor, dtype: DType) -> Tensor:
    """The same bits as elements of another dtype of the same size."""
    return _bitcast(tensor, dtype)


_bitcast = lift(build.bitcast)
