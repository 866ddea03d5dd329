"""Operations whose result has a shape that depends on data. They read values on the host, so they work outside
`weft.compile` only; inside, they say what to use instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.base.dtypes import bool_, float64, int64
from weft.base.errors import DTypeError, GraphError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.creation import arange
from weft.core.host_arrays import from_host
from weft.core.indexing import resolve_masks
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.node import Node
from weft.ops import arrange, comparison, elementwise, indexing, scans, sorting
from weft.ops.common import as_int, broadcast_shapes, need_integer, normal_axis
from weft.ops.registry import operation


def read_values(who: str, x: Tensor, instead: str) -> np.ndarray:
    """The value of `x` on the host, or an error where values are not known."""
    if STATE.trace is not None:
        given = f"{who} inside weft.compile, where the values that its shape depends on are not known"
        raise problem(GraphError, who, given, "a call outside of it", instead)
    return x.detach().numpy()


def _tensor(array: np.ndarray, like: Tensor) -> Tensor:
    return Tensor(from_host(np.asarray(array), like.device))


@operation(of_tensors=True)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the elements that are not zero: [count, rank] int64, in row-major order; with `as_tuple`, one
    vector for each axis.

    >>> weft.nonzero(weft.tensor([0.0, 2.0, 3.0]))
    tensor([[1],
            [2]])
    """
    found = np.nonzero(np.atleast_1d(read_values("nonzero", input, "use weft.where(mask, x, other)")))
    if as_tuple:
        return tuple(_tensor(axis.astype(np.int64), input) for axis in found)
    return _tensor(np.stack(found, 1).astype(np.int64)[:, : input.ndim], input)


_where = lift(elementwise.where)


@operation(
    "weft",
    of_tensors=True,
    overloads=(
        "(condition: Tensor, input: Tensor | float, other: Tensor | float) -> Tensor",
        "(condition: Tensor) -> tuple[Tensor, ...]",
    ),
)
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where the bool condition holds, else `other`; all three broadcast. With the condition alone, where it
    holds: `nonzero` with `as_tuple`.

    >>> weft.where(weft.tensor([True, False]), weft.tensor([1.0, 2.0]), 0.0)
    tensor([1., 0.])
    """
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    if input is None or other is None:
        raise problem(DTypeError, "where", "one of input and other", "both or none of them")
    return _where(condition, input, other)


@operation(of_tensors=True)
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have one shape and equal elements. It reads them: outside `weft.compile` only.

    >>> weft.equal(weft.tensor([1, 2]), weft.tensor([1, 2]))
    True
    """
    _need_tensors("equal", input, other)
    if input.shape != other.shape:
        return False
    return bool(read_values("equal", (input == other).all(), "compare with ==").item())


@operation(of_tensors=True)
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether `isclose` holds everywhere. It reads the tensors: outside `weft.compile` only.

    >>> weft.allclose(weft.tensor([1.0]), weft.tensor([1.0 + 1e-7]))
    True
    """
    _need_tensors("allclose", input, other)
    close = _isclose(input, other, rtol, atol, equal_nan)
    return bool(read_values("allclose", close.all(), "use isclose(...).all()").item())


_isclose = lift(comparison.isclose)


def _need_tensors(who: str, *values: object) -> None:
    for value in values:
        if not isinstance(value, Tensor):
            raise problem(DTypeError, who, f"a {type(value).__name__}", "two tensors", "convert it with weft.tensor")


@operation(of_tensors=True)
def argwhere(input: Tensor) -> Tensor:
    """`nonzero` as one tensor [count, rank]."""
    return nonzero(input)


@operation(of_tensors=True)
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in ascending order (slices along `dim`, if given); on request also, for each element, the
    position of its equal, and how often each occurs. Every NaN is different.

    >>> weft.unique(weft.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    array = read_values("unique", input, "sort instead, or call it before the compiled function")
    if dim is not None and not -array.ndim <= dim < array.ndim:
        raise problem(ShapeError, "unique", f"dim={dim} for shape {array.shape}", f"an axis of {array.ndim}")
    values, inverse, counts = np.unique(array, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    inverse = inverse.reshape(array.shape if dim is None else (array.shape[dim],))
    parts = [
        values,
        *([inverse.astype(np.int64)] if return_inverse else []),
        *([counts.astype(np.int64)] if return_counts else []),
    ]
    tensors = tuple(_tensor(part, input) for part in parts)
    return tensors if len(tensors) > 1 else tensors[0]


@operation(of_tensors=True)
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """The elements of the flattened tensor, or slices along `dim`, that differ from the one before; `unique`'s extras.

    >>> weft.unique_consecutive(weft.tensor([1, 1, 2, 1]))
    tensor([1, 2, 1])
    """
    array = read_values("unique_consecutive", input, "compare neighbours with weft.diff")
    axis = None if dim is None else normal_axis("unique_consecutive", dim, array.ndim)
    slices = array.reshape(-1) if axis is None or not array.ndim else np.moveaxis(array, axis, 0)
    new = np.ones(len(slices), bool)
    new[1:] = (slices[1:] != slices[:-1]).any(tuple(range(1, slices.ndim)))
    starts = np.flatnonzero(new)
    parts = [slices[starts] if axis is None or not array.ndim else np.moveaxis(slices[starts], 0, axis)]
    if return_inverse:
        parts.append((np.cumsum(new, dtype=np.int64) - 1).reshape(array.shape if axis is None else -1))
    if return_counts:
        parts.append(np.diff(np.append(starts, len(slices))).astype(np.int64))
    tensors = tuple(_tensor(part, input) for part in parts)
    return tensors if len(tensors) > 1 else tensors[0]


@operation(of_tensors=True)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of `input` where the bool mask holds, as a vector; both broadcast. Gradients pass.

    >>> weft.masked_select(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([True, False, True]))
    tensor([1., 3.])
    """
    if mask.dtype is not bool_:
        raise problem(DTypeError, "masked_select", f"a mask of {mask.dtype.name}", "a bool tensor", "compare it first")
    shape = broadcast_shapes("masked_select", [input.shape, mask.shape])
    chosen = np.broadcast_to(read_values("masked_select", mask, "use weft.where(mask, x, other)"), shape)
    positions = _tensor(np.flatnonzero(chosen).astype(np.int64), input)
    return input.broadcast_to(shape).reshape(-1).index_select(0, positions)


@operation(of_tensors=True)
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number from 0 on occurs in a vector, or the sum of its weights; as long as the largest number asks
    for, and at least `minlength`.

    >>> weft.bincount(weft.tensor([1, 3, 1]))
    tensor([0, 2, 0, 1])
    """
    length = as_int("bincount", minlength, "minlength")
    if input.ndim != 1 or input.dtype.kind not in "iu" or length < 0:
        given = f"{input.dtype.name}{list(input.shape)} and minlength={length}"
        raise problem(ShapeError, "bincount", given, "a vector of integers and a length of at least 0")
    if weights is not None and weights.shape != input.shape:
        raise problem(ShapeError, "bincount", f"weights of shape {weights.shape}", f"{input.shape}")
    array = read_values("bincount", input, "use scatter_add with a fixed number of bins")
    if array.size and array.min() < 0:
        raise problem(RangeError, "bincount", f"the number {array.min()}", "numbers of at least 0")
    count = max(length, int(array.max()) + 1 if array.size else 0)
    if weights is None:
        ones = build.full(input.shape, 1, int64, input.device)
        return Tensor(build.scatter_add(input.node, ones, count))
    wide = weights if weights.dtype.name == "float32" else weights.to(float64)
    return lift(lambda index, values: build.scatter_add(index, values, count))(input, wide.detach())


@operation(
    of_tensors=True,
    overloads=(
        "(input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None) -> Tensor",
        "(repeats: Tensor, *, output_size: int | None = None) -> Tensor",
    ),
)
def repeat_interleave(
    input: Tensor | None = None,
    repeats: int | Tensor | None = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (inside `weft.compile`
    only with `output_size`, the extent of the result). With repeats alone, the indices of elements.

    >>> weft.repeat_interleave(weft.tensor([1, 2]), weft.tensor([3, 1]))
    tensor([1, 1, 1, 2])
    """
    if input is None or repeats is None:
        repeats = input if repeats is None else repeats
        if not isinstance(repeats, Tensor) or repeats.ndim != 1:
            raise problem(ShapeError, "repeat_interleave", "no tensor to repeat", "a tensor, or a vector of repeats")
        return repeat_interleave(arange(repeats.shape[0], device=repeats.device), repeats, 0, output_size=output_size)
    if not isinstance(repeats, Tensor):
        return _of_size(_repeated(input, repeats, dim), dim, output_size)
    flat, axis = (input.reshape(-1), 0) if dim is None else (input, normal_axis("repeat_interleave", dim, input.ndim))
    flat = flat if flat.ndim else flat.reshape(1)
    extent = flat.shape[axis]
    if repeats.ndim > 1 or repeats.dtype.kind not in "iu" or repeats.numel() not in (1, extent):
        given = f"repeats {repeats.dtype.name}{list(repeats.shape)} for extent {extent}"
        raise problem(ShapeError, "repeat_interleave", given, "one integer, or one for each element")
    if STATE.trace is not None and output_size is not None:
        return _repeat_known_size(flat, repeats, axis, output_size)
    counts = read_values("repeat_interleave", repeats, "pass output_size, or the same number for all elements")
    if (counts < 0).any():
        raise problem(RangeError, "repeat_interleave", f"{counts.min()} repeats", "at least 0")
    positions = np.repeat(np.arange(extent), np.broadcast_to(counts, (extent,)))
    return _of_size(flat.index_select(axis, _tensor(positions, input)), axis, output_size)


def _of_size(result: Tensor, dim: int | None, size: int | None) -> Tensor:
    if size is not None and result.shape[dim or 0] != size:
        given = f"output_size={size} for {result.shape[dim or 0]} elements"
        raise problem(ShapeError, "repeat_interleave", given, "the extent of the result")
    return result


@lift
def _repeat_known_size(x: Node, repeats: Node, axis: int, size: int) -> Node:
    """The elements whose running sum of repeats is the first above each position; if `size` is not the sum of all, the
    index leaves the axis and raises when the value is computed."""
    extent = x.shape[axis]
    counts = build.expand(build.reshape(build.cast(repeats, int64), (repeats.size,)), (extent,))
    ends = scans.cumsum(counts, 0)
    position = build.iota((size,), 0, x.device)
    number = sorting.searchsorted(ends, position, right=True)
    if extent and size:
        total = build.expand(build.narrow(ends, 0, extent - 1, extent), (size,))
        number = build.select(build.eq(total, size), number, extent)
    return build.gather(x, number, axis, indexing.user_site())


_repeated = lift(arrange.repeat_interleave)


_index_put = lift(indexing.index_put)


@operation("weft method inplace", of_tensors=True)
def index_put(input: Tensor, indices: Sequence[Tensor], values: Tensor | float, accumulate: bool = False) -> Tensor:
    """`input` with `values` written to (with `accumulate`, added at) tensors that index its first axes: of integers,
    or bool masks, of which `weft.compile` takes one alone.

    >>> weft.zeros(3).index_put((weft.tensor([0, 0, 2]),), weft.tensor(1.0), accumulate=True)
    tensor([2., 0., 1.])
    """
    positions = tuple(indices)
    if len(positions) > 1 and any(isinstance(item, Tensor) and item.dtype is bool_ for item in positions):
        positions = resolve_masks(input, positions)
    return _index_put(input, positions, values, accumulate)


@operation("functional", of_tensors=True)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """[...] integers to [..., num_classes] int64: 1 at the class, 0 elsewhere. A class outside 0 to num_classes - 1
    raises IndexRangeError when the value is computed. With -1 there are as many classes as the largest number asks for;
    that is read, so inside `weft.compile` the number of classes must be given.

    >>> weft.nn.functional.one_hot(weft.tensor([2, 0]))
    tensor([[0, 0, 1],
            [1, 0, 0]])
    """
    need_integer("one_hot", tensor.node)
    if num_classes == -1:
        values = read_values("one_hot", tensor, "pass num_classes")
        if not values.size or values.min() < 0:
            given = "no elements" if not values.size else f"the class {values.min()}"
            raise problem(RangeError, "one_hot", given, "classes from 0 on", "pass num_classes for an empty tensor")
        num_classes = int(values.max()) + 1
    return _one_hot(tensor, num_classes)


_one_hot = lift(indexing.one_hot)
