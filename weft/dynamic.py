"""Operations whose result has a shape that depends on data. They read values on the host, so they work outside
`weft.compile` only; inside, they say what to use instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.dtypes import bool_, float64, int64
from weft.errors import DTypeError, GraphError, RangeError, ShapeError, problem
from weft.graph import build
from weft.ops import arrange, comparison, elementwise
from weft.ops.common import as_int, broadcast_shapes
from weft.ops.registry import operation
from weft.state import STATE
from weft.tensor import Tensor, from_host, lift


def known(who: str, x: Tensor, instead: str) -> np.ndarray:
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
    found = np.nonzero(np.atleast_1d(known("nonzero", input, "use weft.where(mask, x, other)")))
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
    return bool(known("equal", (input == other).all(), "compare with ==").item())


@operation(of_tensors=True)
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether `isclose` holds everywhere. It reads the tensors: outside `weft.compile` only.

    >>> weft.allclose(weft.tensor([1.0]), weft.tensor([1.0 + 1e-7]))
    True
    """
    _need_tensors("allclose", input, other)
    close = _isclose(input, other, rtol, atol, equal_nan)
    return bool(known("allclose", close.all(), "use isclose(...).all()").item())


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
    place of its equal, and how often each occurs. Every NaN is different.

    >>> weft.unique(weft.tensor([3, 1, 3]), return_counts=True)
    (tensor([1, 3]), tensor([1, 2]))
    """
    array = known("unique", input, "sort instead, or call it before the compiled function")
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
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False) -> Any:
    """The elements of the flattened tensor that differ from the one before; `unique`'s extras.

    >>> weft.unique_consecutive(weft.tensor([1, 1, 2, 1]))
    tensor([1, 2, 1])
    """
    array = known("unique_consecutive", input, "compare neighbours with weft.diff")
    flat = array.reshape(-1)
    new = np.ones(flat.shape, bool)
    new[1:] = flat[1:] != flat[:-1]
    starts = np.flatnonzero(new)
    parts = [flat[starts]]
    if return_inverse:
        parts.append((np.cumsum(new, dtype=np.int64) - 1).reshape(array.shape))
    if return_counts:
        parts.append(np.diff(np.append(starts, flat.size)).astype(np.int64))
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
    chosen = np.broadcast_to(known("masked_select", mask, "use weft.where(mask, x, other)"), shape)
    places = _tensor(np.flatnonzero(chosen).astype(np.int64), input)
    return input.broadcast_to(shape).reshape(-1).index_select(0, places)


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
    array = known("bincount", input, "use scatter_add with a fixed number of bins")
    if array.size and array.min() < 0:
        raise problem(RangeError, "bincount", f"the number {array.min()}", "numbers of at least 0")
    count = max(length, int(array.max()) + 1 if array.size else 0)
    if weights is None:
        ones = build.full(input.shape, 1, int64, input.device)
        return Tensor(build.scatter_add(input.node, ones, count))
    wide = weights if weights.dtype.name == "float32" else weights.to(float64)
    return lift(lambda index, values: build.scatter_add(index, values, count))(input, wide.detach())


@operation(of_tensors=True)
def repeat_interleave(input: Tensor, repeats: int | Tensor, dim: int | None = None) -> Tensor:
    """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (outside compile).

    >>> weft.repeat_interleave(weft.tensor([1, 2]), weft.tensor([3, 1]))
    tensor([1, 1, 1, 2])
    """
    if not isinstance(repeats, Tensor):
        return _repeated(input, repeats, dim)
    counts = np.atleast_1d(known("repeat_interleave", repeats, "use the same number for all elements"))
    flat, axis = (input.reshape(-1), 0) if dim is None else (input, dim)
    extent = flat.shape[axis]
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.size not in (1, extent) or (counts < 0).any():
        given = f"repeats {repeats.dtype.name}{list(repeats.shape)} for extent {extent}"
        raise problem(ShapeError, "repeat_interleave", given, "an integer of at least 0 for each element")
    places = np.repeat(np.arange(extent), np.broadcast_to(counts, (extent,)))
    return flat.index_select(axis, _tensor(places, input))


_repeated = lift(arrange.repeat_interleave)


def known_masks(x: Tensor, items: tuple) -> tuple:
    """An index expression with every bool mask replaced by the positions where it holds."""
    out: list[Any] = []
    for item in items:
        if not isinstance(item, Tensor) or item.dtype is not bool_:
            out.append(item)
            continue
        axis = sum(1 for one in out if one is not None)
        if not any(one is Ellipsis for one in out) and item.shape != x.shape[axis : axis + item.ndim]:
            given = f"a mask of shape {item.shape} for {x.shape} from axis {axis}"
            raise problem(ShapeError, "index", given, "the extents of the axes that it picks from")
        out.extend(nonzero(item, as_tuple=True))
    return tuple(out)
