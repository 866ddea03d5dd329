"""Statistics beyond means: quantiles, modes, what ignores NaN, covariances, and membership in a set."""

from __future__ import annotations

from typing import NamedTuple

from weft.base.dtypes import DType, bool_, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops import reduce
from weft.ops.common import (
    Operand,
    fit_number,
    in_float32,
    meet,
    need_float,
    normal_axis,
    result_dtype,
    same_device,
    to_float,
)  # fmt: skip
from weft.ops.elementwise import clamp
from weft.ops.indexing import user_site
from weft.ops.linalg import matmul
from weft.ops.logic import isnan
from weft.ops.reduce import Dim, ValuesIndices
from weft.ops.registry import operation
from weft.ops.sorting import argsort, find_median, pick, searchsorted, sort
from weft.ops.unary_functions import round as rounded

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")
MAX_COMPARED = 32  # elements of a set up to which every element is compared with all of them


class MinMax(NamedTuple):
    """What `aminmax` returns."""

    min: Node
    max: Node


class VarMean(NamedTuple):
    """What `var_mean` returns."""

    var: Node
    mean: Node


class StdMean(NamedTuple):
    """What `std_mean` returns."""

    std: Node
    mean: Node


@operation("weft")
def var_mean(
    input: Node, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> VarMean:
    """`var` and `mean` over `dim`.

    >>> weft.var_mean(weft.tensor([1.0, 2.0, 3.0]))
    VarMean(var=tensor(1.), mean=tensor(2.))
    """
    axes = None if isinstance(dim, bool) else dim
    return VarMean(reduce.var(input, dim, unbiased, keepdim, correction=correction), reduce.mean(input, axes, keepdim))


@operation("weft")
def std_mean(
    input: Node, dim: Dim = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
) -> StdMean:
    """`std` and `mean` over `dim`.

    >>> weft.std_mean(weft.tensor([1.0, 2.0, 3.0]))
    StdMean(std=tensor(1.), mean=tensor(2.))
    """
    axes = None if isinstance(dim, bool) else dim
    return StdMean(reduce.std(input, dim, unbiased, keepdim, correction=correction), reduce.mean(input, axes, keepdim))


@operation()
def aminmax(input: Node, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """The minimum and the maximum, of all elements or along `dim`; NaN wins. Gradients are shared among equal ones.

    >>> weft.aminmax(weft.tensor([3.0, 1.0, 2.0]))
    MinMax(min=tensor(1.), max=tensor(3.))
    """
    if dim is not None:
        normal_axis("aminmax", dim, len(input.shape))
    return MinMax(reduce.amin(input, dim, keepdim), reduce.amax(input, dim, keepdim))


# --- without NaN -----------------------------------------------------------------------------------------------------


@operation()
def nansum(input: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """The sum over `dim` of all elements that are not NaN.

    >>> weft.nansum(weft.tensor([1.0, float("nan"), 2.0]))
    tensor(3.)
    """
    known = build.select(isnan(input), 0, input) if input.dtype.kind == "f" else input
    return reduce.sum(known, dim, keepdim, dtype=dtype)


@operation()
def nanmean(input: Node, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """The mean over `dim` of all elements that are not NaN; NaN where there are none.

    >>> weft.nanmean(weft.tensor([1.0, float("nan"), 3.0]))
    tensor(2.)
    """
    need_float("nanmean", input)
    return _nanmean(input if dtype is None else build.cast(input, dtype), dim, keepdim)


@in_float32
def _nanmean(x: Node, dim: Dim, keepdim: bool) -> Node:
    count = reduce.sum(make_node("not", (isnan(x),)), dim, keepdim)
    return build.div(nansum(x, dim, keepdim), build.cast(count, x.dtype))


@operation(overloads=("(input: Tensor) -> Tensor", "(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices"))
def nanmedian(input: Node, dim: int | None = None, keepdim: bool = False) -> Node | ValuesIndices:
    """`median` of the elements that are not NaN; NaN where there are none.

    >>> weft.nanmedian(weft.tensor([float("nan"), 1.0, 3.0, 2.0]))
    tensor(2.)
    """
    return find_median("nanmedian", input, dim, keepdim, _known_median_index)


def _known_median_index(x: Node, axis: int) -> Node:
    """Of the lower one of two middle elements that are not NaN; NaN come after them in order."""
    position = clamp(build.div(build.sub(_count_known(x, axis), 1), 2), min=0)
    return build.along(argsort(x, axis), position, axis)


def _count_known(x: Node, axis: int) -> Node:
    """How many elements along `axis` are not NaN, int64, with extent 1 there."""
    if x.dtype.kind != "f":
        return build.full(build.keepdim_shape(x.shape, (axis,)), x.shape[axis], int64, x.device)
    return build.reduce("reduce_sum", build.cast(make_node("not", (isnan(x),)), int64), (axis,), True)


@operation()
def mode(input: Node, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The most frequent element along `dim`, of several the smallest, and its last index.

    >>> weft.mode(weft.tensor([2, 3, 2, 3, 1]))
    ValuesIndices(values=tensor(2), indices=tensor(2))
    """
    axis = normal_axis("mode", dim, len(input.shape))
    if not input.shape:
        return ValuesIndices(input, build.full((), 0, int64, input.device))
    extent = input.shape[axis]
    if not extent:
        raise problem(ShapeError, "mode", f"shape {input.shape} over axis {axis}", "at least one element per result")
    ordered, order = sort(build.stop_gradient(input) if input.dtype.kind == "f" else input, axis)
    position = build.iota(input.shape, axis, input.device)
    starts = position
    if extent > 1:
        high, low = build.narrow(ordered, axis, 1, extent), build.narrow(ordered, axis, 0, extent - 1)
        lows = tuple([int(k == axis) for k in range(len(input.shape))])
        differs = build.pad(make_node("ne", (high, low)), lows, (0,) * len(lows), True)
        starts = build.scan("max", build.select(differs, position, 0), axis)
    end = reduce.argmax(build.sub(position, starts), axis, True)
    return pick(input, build.along(order, end, axis), axis, keepdim)


# --- quantiles -------------------------------------------------------------------------------------------------------


@operation()
def quantile(
    input: Node, q: Operand, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Node:
    """Quantiles along `dim`, or of all elements; a vector `q` makes a first axis. Between two elements `interpolation`
    decides: 'linear', 'lower', 'higher', 'midpoint' or 'nearest'. A NaN in a row is its quantile.

    >>> weft.quantile(weft.tensor([0.0, 1.0, 2.0, 3.0]), weft.tensor([0.25, 0.5]))
    tensor([0.7500, 1.5000])
    """
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@operation()
def nanquantile(
    input: Node, q: Operand, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Node:
    """`quantile` of the elements that are not NaN; NaN where there are none."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


def _quantile(
    who: str, x: Node, q: Operand, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool
) -> Node:
    if not x.size or x.dtype.kind != "f" or x.dtype.is_16_bit:
        given = f"a {x.dtype.name} tensor of shape {x.shape}"
        raise problem(ShapeError, who, given, "at least one element of float32 or float64", "convert it with .float()")
    if interpolation not in INTERPOLATIONS:
        raise problem(RangeError, who, f"interpolation={interpolation!r}", f"one of {INTERPOLATIONS}")
    share = _shares(who, x, q)
    rank = len(x.shape)
    if dim is None:
        axis, rows = 0, build.reshape(x, (x.size,))
        kept = (1,) * rank if keepdim else ()
    else:
        axis = normal_axis(who, dim, rank)
        rows = x if rank else build.reshape(x, (1,))
        kept = build.keepdim_shape(x.shape, (axis,)) if keepdim else build.shape_without(x.shape, (axis,))
    rows = build.permute(rows, (*range(axis), *range(axis + 1, len(rows.shape)), axis))
    found = _interpolate(rows, build.reshape(share, (share.size,)), interpolation, ignore_nan)
    last = len(found.shape) - 1
    if not share.shape:
        return build.reshape(found, kept)
    return build.reshape(build.permute(found, (last, *range(last))), (share.size, *kept))


def _shares(who: str, x: Node, q: Operand) -> Node:
    """`q` as a node; numbers outside 0 to 1 raise, those of a tensor when the value is computed."""
    if not isinstance(q, Node):
        if isinstance(q, bool) or not isinstance(q, (int, float)) or not 0 <= q <= 1:
            raise problem(RangeError, who, f"q={q!r}", "a number from 0 to 1, or a tensor of them")
        return build.full((), float(q), x.dtype, x.device)
    same_device(who, [x, q])
    if len(q.shape) > 1 or q.dtype is not x.dtype:
        given = f"q {q.dtype.name}{list(q.shape)} for {x.dtype.name}"
        raise problem(ShapeError, who, given, "a scalar or a vector of the tensor's dtype", "cast it with .to")
    low, high = make_node("le", (build.like(q, 0.0), q)), make_node("le", (q, build.like(q, 1.0)))
    position = build.select(make_node("and", (low, high)), build.full(q.shape, 0, int64, q.device), -1)
    inside = build.in_range(position, 1, user_site())
    return build.add(q, build.cast(inside, q.dtype))


def _interpolate(x: Node, share: Node, interpolation: str, ignore_nan: bool) -> Node:
    """The quantiles `share` [count] of the last axis of `x`: [..., count]."""
    last, extent = len(x.shape) - 1, x.shape[-1]
    shape = (*x.shape[:-1], share.size)
    ordered = sort(x, last).values
    share = build.expand_to(share, shape)
    if ignore_nan:
        top = clamp(build.sub(_count_known(x, last), 1), min=0)
        at = build.mul(share, build.expand(build.cast(top, x.dtype), shape))
    else:
        at = build.mul(share, float(extent - 1))
        unknown = build.expand(reduce.any(isnan(x), last, True), shape)
        at = build.select(unknown, float(extent - 1), at)  # NaN is last in order
    fixed = build.stop_gradient(at)
    low, high = build.unary("floor", fixed), build.neg(build.unary("floor", build.neg(fixed)))
    if interpolation == "nearest":
        low = rounded(fixed)
    below = build.along(ordered, build.cast(high if interpolation == "higher" else low, int64), last)
    if interpolation not in ("linear", "midpoint"):
        return below
    weight = build.like(at, 0.5) if interpolation == "midpoint" else build.sub(at, low)
    above = build.along(ordered, build.cast(high, int64), last)
    step = build.sub(above, below)
    up = build.add(below, build.mul(weight, step))
    down = build.sub(above, build.mul(step, build.sub(1.0, weight)))
    return build.select(build.lt(weight, 0.5), up, down)


# --- relations of rows -----------------------------------------------------------------------------------------------


@operation()
def cov(input: Node, *, correction: int = 1, fweights: Node | None = None, aweights: Node | None = None) -> Node:
    """The covariances of the rows of a matrix, whose columns are observations; of a vector, its variance. `fweights`
    says how often each observation counts, `aweights` how much.

    >>> weft.cov(weft.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    if len(input.shape) > 2 or input.dtype is bool_:
        given = f"{input.dtype.name}{list(input.shape)}"
        raise problem(ShapeError, "cov", given, "numbers with at most two axes")
    rows = to_float(input)
    rows = rows if len(rows.shape) == 2 else build.reshape(rows, (1, rows.size))
    count = rows.shape[1]
    weights = _weights(rows, fweights, aweights)
    if weights is None:
        middle = reduce.sum(rows, 1, True)
        middle = build.div(middle, float(count))
        scale: Node = build.full((), float(max(count - correction, 0)), rows.dtype, rows.device)
    else:
        total = reduce.sum(weights)
        wide = build.expand_to(weights, rows.shape)
        middle = build.div(reduce.sum(build.mul(rows, wide), 1, True), build.expand_to(total, (rows.shape[0], 1)))
        less: Node = build.like(total, float(correction))
        if aweights is not None and correction:
            own = reduce.sum(build.mul(weights, build.cast(aweights, weights.dtype)))
            less = build.mul(less, build.div(own, total))
        scale = clamp(build.sub(total, less), min=0)
    centred = build.sub(rows, build.expand(middle, rows.shape))
    right = centred if weights is None else build.mul(centred, build.expand_to(weights, rows.shape))
    product = matmul(centred, build.swap_last(right))
    result = build.div(product, build.expand_to(scale, product.shape))
    return build.reshape(result, ()) if result.shape == (1, 1) else result


def _weights(rows: Node, fweights: Node | None, aweights: Node | None) -> Node | None:
    """The weight of each observation in the dtype of the rows; negative ones raise when they are computed."""
    weights: Node | None = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        is_whole = given.dtype.kind in "iu"
        if given.shape != rows.shape[1:] or is_whole is not (name == "fweights") or given.dtype is bool_:
            what = f"{name} {given.dtype.name}{list(given.shape)}"
            expected = f"{'integers' if name == 'fweights' else 'floats'} of shape {rows.shape[1:]}"
            raise problem(ShapeError, "cov", what, expected)
        same_device("cov", [rows, given])
        part = build.add(build.cast(given, rows.dtype), build.cast(_refuse_negative(given), rows.dtype))
        weights = part if weights is None else build.mul(weights, part)
    return weights


def _refuse_negative(x: Node) -> Node:
    """Zeros, or an error where an element is negative."""
    sign = build.select(build.lt(x, 0), build.full(x.shape, -1, int64, x.device), 0)
    return build.in_range(sign, 1, user_site())


@operation()
def corrcoef(input: Node) -> Node:
    """The correlations of the rows of a matrix, whose columns are observations.

    >>> weft.corrcoef(weft.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    both = cov(input)
    if not both.shape:
        return build.div(both, both)
    rows = both.shape[0]
    index = build.iota((rows,), 0, both.device)
    diagonal = build.reshape(build.along(both, build.reshape(index, (rows, 1)), 1), (rows,))
    deviation = build.unary("sqrt", diagonal)
    by_row = build.div(both, build.expand(build.reshape(deviation, (rows, 1)), both.shape))
    return clamp(build.div(by_row, build.expand_to(deviation, both.shape)), -1, 1)


@operation("weft")
def isin(elements: Operand, test_elements: Operand, *, assume_unique: bool = False, invert: bool = False) -> Node:
    """Whether each element is one of `test_elements` (with `invert`, none of them). One of both may be a number.

    >>> weft.isin(weft.tensor([1, 2, 3]), weft.tensor([3, 1]))
    tensor([ True, False,  True])
    """
    if not isinstance(test_elements, Node):
        x, number = meet("isin", elements, test_elements)
        found = make_node("eq", (x, number))
        return make_node("not", (found,)) if invert else found
    shape = elements.shape if isinstance(elements, Node) else ()
    members = build.reshape(test_elements, (test_elements.size,))
    if isinstance(elements, Node):
        elements = build.reshape(elements, (elements.size, 1))
    x, members = _common("isin", elements, members)
    if not x.size or not members.size:
        found = build.full((x.size,), False, bool_, x.device)
    elif members.size <= MAX_COMPARED:
        pairs = (x.size, members.size)
        found = reduce.any(make_node("eq", (build.expand(x, pairs), build.expand_to(members, pairs))), 1)
    else:
        ordered, x = sort(members, 0).values, build.reshape(x, (x.size,))
        at = clamp(searchsorted(ordered, x), max=members.size - 1)
        found = make_node("eq", (build.gather(ordered, at, 0), x))
    found = build.reshape(found, shape)
    return make_node("not", (found,)) if invert else found


def _common(who: str, x: Operand, members: Node) -> tuple[Node, Node]:
    """A column of elements and a vector of members in the dtype in which they meet."""
    dtype = result_dtype(who, [x, members])
    if isinstance(x, Node):
        same_device(who, [x, members])
        return build.cast(x, dtype), build.cast(members, dtype)
    return build.full((1, 1), fit_number(who, x, dtype), dtype, members.device), build.cast(members, dtype)
