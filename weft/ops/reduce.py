"""Reductions over any set of axes: sums, extrema, means, variances, arguments of extrema.

`dim` is None (all axes), an int or several; `keepdim` leaves extent 1. Sums and products of bool and integer tensors
are int64. A maximum over no elements raises; a sum over none is 0 and a product 1.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.base.dtypes import DType, bool_, int64
from weft.base.errors import DTypeError, ShapeError, problem
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import in_float32, need_float, normal_axes, normal_axis, to_float
from weft.ops.elementwise import maximum, minimum
from weft.ops.logic import isfinite, isnan
from weft.ops.moments import moments
from weft.ops.registry import operation

Dim = int | Sequence[int] | None


class ValuesIndices(NamedTuple):
    """What `max(dim)` and `min(dim)` return."""

    values: Node
    indices: Node


def _widen(x: Node, dtype: DType | None) -> Node:
    if dtype is None:
        dtype = x.dtype if x.dtype.kind == "f" else int64
    return build.cast(x, dtype)


@operation()
def sum(input: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """The sum over `dim`.

    >>> weft.ones(2, 3).sum(1)
    tensor([3., 3.])
    """
    input = _widen(input, dtype)
    return build.reduce("reduce_sum", input, normal_axes("sum", dim, len(input.shape)), keepdim)


@operation()
def prod(input: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """The product over `dim`. Its gradient is right with zeros among the factors (of first order)."""
    input = _widen(input, dtype)
    return build.reduce("reduce_prod", input, normal_axes("prod", dim, len(input.shape)), keepdim)


def _count(x: Node, axes: Sequence[int]) -> int:
    return math.prod(x.shape[axis] for axis in axes)


@operation()
def mean(input: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """The mean over `dim`, for float tensors; NaN over no elements.

    >>> weft.tensor([[1.0, 3.0], [5.0, 7.0]]).mean(0)
    tensor([3., 5.])
    """
    input = input if dtype is None else build.cast(input, dtype)
    need_float("mean", input)
    return _mean(input, dim, keepdim)


@in_float32
def _mean(x: Node, dim: Dim, keepdim: bool) -> Node:
    axes = normal_axes("mean", dim, len(x.shape))
    total = build.reduce("reduce_sum", x, axes, keepdim)
    count = _count(x, axes)
    return build.mul(total, 1.0 / count) if count else build.div(total, 0.0)


@operation()
@in_float32
def var(
    input: Node, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Node:
    """The variance over `dim`: the sum of squared differences from the mean, divided by `count - correction`, which
    is 1, or 0 where it is not `unbiased`. A bool in the place of `dim` is `unbiased`.

    >>> weft.var(weft.tensor([1.0, 2.0, 3.0, 4.0]), correction=0)
    tensor(1.2500)
    """
    need_float("var", input)
    dim, correction = _correct(dim, unbiased, correction)
    axes = normal_axes("var", dim, len(input.shape))
    total = moments(input, axes).squares
    total = total if keepdim else build.reshape(total, build.shape_without(input.shape, axes))
    return build.div(total, builtins.max(_count(input, axes) - correction, 0.0))


def _correct(dim: Dim, unbiased: bool, correction: float | None) -> tuple[Dim, float]:
    """`dim` and the correction, where a bool stands for `dim` or for the correction."""
    if isinstance(dim, bool):
        return None, int(dim) if correction is None else correction
    return dim, int(unbiased) if correction is None else correction


@operation()
@in_float32
def std(
    input: Node, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> Node:
    """The square root of `var`; the gradient where it is 0 is 0.

    >>> weft.tensor([1.0, 3.0]).std(False)
    tensor(1.)
    """
    dim, correction = _correct(dim, unbiased, correction)
    variance = var(input, dim, correction=correction, keepdim=keepdim)
    flat = build.eq(variance, 0.0)
    slope = build.select(flat, 0.0, build.unary("sqrt", build.select(flat, 1.0, variance)))
    return build.surrogate(build.unary("sqrt", variance), slope)


def _need_elements(who: str, x: Node, axes: Sequence[int]) -> None:
    if _count(x, axes) == 0:
        raise problem(ShapeError, who, f"shape {x.shape} over axes {tuple(axes)}", "at least one element per result")


def _extremum(op: str, who: str, x: Node, dim: Dim, keepdim: bool) -> Node:
    axes = normal_axes(who, dim, len(x.shape))
    _need_elements(who, x, axes)
    return build.reduce(op, x, axes, keepdim)


@operation()
def amax(input: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """The maximum over `dim`; NaN wins. The gradient is shared among equal maxima."""
    return _extremum("reduce_max", "amax", input, dim, keepdim)


@operation()
def amin(input: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """The minimum over `dim`; NaN wins. The gradient is shared among equal minima."""
    return _extremum("reduce_min", "amin", input, dim, keepdim)


def _argument(op: str, who: str, x: Node, dim: int | None, keepdim: bool) -> Node:
    """The first index of the extremum (or of a NaN): the least of the indices that hit."""
    if dim is None:
        flat = build.reshape(x, (x.size,))
        index = _argument(op, who, flat, 0, False)
        return build.reshape(index, (1,) * len(x.shape)) if keepdim else index
    axis = normal_axis(who, dim, len(x.shape))
    if not x.shape:
        return build.full((), 0, int64, x.device)
    _need_elements(who, x, (axis,))
    best = build.expand(build.reduce(op, x, (axis,), True), x.shape)
    hit = make_canonical("eq", (x, best))
    if x.dtype.kind == "f":
        hit = make_canonical("or", (hit, isnan(x)))
    index = build.select(hit, build.iota(x.shape, axis, x.device), x.shape[axis])
    return build.reduce("reduce_min", index, (axis,), keepdim)


def _need_numbers(who: str, x: Node) -> None:
    if x.dtype is bool_:
        raise problem(DTypeError, who, "a bool tensor", "numbers", "convert it with .int()")


@operation()
def argmax(input: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The index of the maximum, int64: the first on ties, the first NaN if there is one.

    >>> weft.argmax(weft.tensor([1.0, 5.0, 5.0]))
    tensor(1)
    """
    _need_numbers("argmax", input)
    return _argument("reduce_max", "argmax", input, dim, keepdim)


@operation()
def argmin(input: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The index of the minimum, int64: the first on ties, the first NaN if there is one."""
    _need_numbers("argmin", input)
    return _argument("reduce_min", "argmin", input, dim, keepdim)


def _with_index(op: str, who: str, x: Node, dim: int, keepdim: bool) -> ValuesIndices:
    """Pick the element by its index, so that the gradient goes to that one element."""
    axis = normal_axis(who, dim, len(x.shape))
    index = _argument(op, who, x, dim, True)
    if not x.shape:
        return ValuesIndices(x, index)
    here = make_canonical("eq", (build.iota(x.shape, axis, x.device), build.expand(index, x.shape)))
    number = build.cast(x, int64) if x.dtype is bool_ else x
    values = build.cast(build.reduce("reduce_sum", build.select(here, number, 0), (axis,), keepdim), x.dtype)
    return ValuesIndices(values, build.reshape(index, values.shape))


def one_of_all(value: Node, x: Node) -> Node:
    """`value`, an element of `x`, with its gradient shared among all elements that are equal to it; NaN equals NaN."""
    return value if x.dtype.kind != "f" else build.with_gradient(value, (x, build.stop_gradient(value)), _share)


def _share(sources: tuple[Node, ...], g: Node) -> tuple[Node, None]:
    x, value = sources
    ones, axes = (1,) * len(x.shape), tuple(range(len(x.shape)))
    everywhere = build.expand(build.reshape(value, ones), x.shape)
    hit = make_canonical(
        "or", (make_canonical("eq", (x, everywhere)), make_canonical("and", (isnan(x), isnan(everywhere))))
    )
    count = build.reduce("reduce_sum", build.cast(hit, g.dtype), axes)
    return build.select(hit, build.expand(build.reshape(build.div(g, count), ones), x.shape), 0.0), None


def _need_tensor(who: str, x: object) -> None:
    if not isinstance(x, Node):
        raise problem(DTypeError, who, f"a {type(x).__name__}", "a tensor", "convert it with weft.tensor")


@operation(
    overloads=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices",
        "(input: Tensor, other: Tensor) -> Tensor",
    )
)
def max(input: Node, dim: int | Node | None = None, keepdim: bool = False) -> Node | ValuesIndices:
    """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
    instead of `dim`, `maximum`.

    >>> weft.max(weft.tensor([[1.0, 4.0], [3.0, 2.0]]), 1).indices
    tensor([1, 0])
    """
    if isinstance(dim, Node):
        _need_tensor("max", input)
        return maximum(input, dim)
    return one_of_all(amax(input), input) if dim is None else _with_index("reduce_max", "max", input, dim, keepdim)


@operation(
    overloads=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices",
        "(input: Tensor, other: Tensor) -> Tensor",
    )
)
def min(input: Node, dim: int | Node | None = None, keepdim: bool = False) -> Node | ValuesIndices:
    """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
    if isinstance(dim, Node):
        _need_tensor("min", input)
        return minimum(input, dim)
    return one_of_all(amin(input), input) if dim is None else _with_index("reduce_min", "min", input, dim, keepdim)


@operation()
def any(input: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """Whether any element is not zero; False over none."""
    return _any("any", input, dim, keepdim)


def _any(who: str, x: Node, dim: Dim, keepdim: bool) -> Node:
    axes = normal_axes(who, dim, len(x.shape))
    hits = build.cast(build.cast(x, bool_), int64)
    return build.cast(build.reduce("reduce_sum", hits, axes, keepdim), bool_)


@operation()
def all(input: Node, dim: Dim = None, keepdim: bool = False) -> Node:
    """Whether every element is not zero; True over none."""
    return build.unary("not", _any("all", build.unary("not", build.cast(input, bool_)), dim, keepdim))


@operation("weft special method")
@in_float32
def logsumexp(input: Node, dim: Dim, keepdim: bool = False) -> Node:
    """log(sum(exp(x))) over `dim`, shifted by the maximum; -inf over nothing but -inf, with gradient 0 there.

    >>> weft.logsumexp(weft.tensor([1000.0, 0.0]), 0)
    tensor(1000.)
    """
    input = to_float(input)
    axes = normal_axes("logsumexp", dim, len(input.shape))
    if _count(input, axes) == 0:
        return build.full(sum(input, axes, keepdim).shape, -math.inf, input.dtype, input.device)
    peak = build.stop_gradient(build.reduce("reduce_max", input, axes, True))
    shift = build.select(isfinite(peak), peak, 0.0)
    total = build.reduce(
        "reduce_sum", build.unary("exp_rounded", build.sub(input, build.expand(shift, input.shape))), axes, True
    )
    nothing = build.eq(total, 0.0)
    result = build.select(nothing, -math.inf, build.add(build.unary("log", build.select(nothing, 1.0, total)), shift))
    return result if keepdim else build.reshape(result, sum(input, axes).shape)


@operation()
def count_nonzero(input: Node, dim: Dim = None) -> Node:
    """How many elements are not zero, int64."""
    return sum(build.cast(input, bool_), dim)
