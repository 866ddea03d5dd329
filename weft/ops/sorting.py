"""Sorting and what follows from it: order, largest and smallest elements, medians, positions in sorted rows.

All of it is stable: equal elements keep their order, also when descending. NaN is larger than every number, and -0.0
equals 0.0. Elements are compared by integer keys with the same order, so one sort of integers serves every dtype. The
gradient of sorted values goes back to where each came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.base.dtypes import DType, float32, float64, int32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops.common import as_int, fit_number, normal_axis, same_device
from weft.ops.indexing import user_site
from weft.ops.logic import isnan
from weft.ops.reduce import ValuesIndices, one_of_all
from weft.ops.registry import operation

DIRECT = 64  # elements up to which, and
OFTEN = 8  # times k, a row is sorted whole to find its first k


def sort_keys(x: Node, descending: bool) -> Node:
    """Integers in the order of the elements of `x`."""
    x = build.stop_gradient(x) if x.dtype.kind == "f" else x
    if x.dtype.kind == "f":
        x = x if x.dtype.itemsize >= 4 else build.cast(x, float32)
        whole = int64 if x.dtype is float64 else int32
        bits = build.bitcast(build.add(x, 0.0), whole)  # -0.0 + 0.0 is 0.0
        flipped = build.binary("xor", bits, _largest(whole))
        keys = build.select(isnan(x), _largest(whole), build.select(build.lt(bits, 0), flipped, bits))
    else:
        keys = build.cast(x, int32) if x.dtype.itemsize < 4 else x
    return make_node("not", (keys,)) if descending else keys


def _largest(dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    return (1 << bits) - 1 if dtype.kind == "u" else (1 << (bits - 1)) - 1


def _move_to_end(x: Node, axis: int) -> Node:
    """`axis` moved to the end."""
    return build.permute(x, (*range(axis), *range(axis + 1, len(x.shape)), axis))


def _back(x: Node, axis: int) -> Node:
    """The last axis moved to `axis`."""
    rank = len(x.shape)
    return build.permute(x, (*range(axis), rank - 1, *range(axis, rank - 1)))


@operation()
def argsort(input: Node, dim: int = -1, descending: bool = False, stable: bool = False) -> Node:
    """The indices along `dim` that put the elements in order, int64. Always stable.

    >>> weft.argsort(weft.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0])
    """
    axis = normal_axis("argsort", dim, len(input.shape))
    if not input.shape:
        return build.full((), 0, int64, input.device)
    return _back(build.argsort(sort_keys(_move_to_end(input, axis), descending)), axis)


@operation()
def sort(input: Node, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
    """(values, indices) in order along `dim`.

    >>> weft.sort(weft.tensor([3.0, 1.0, 2.0]), descending=True).values
    tensor([3., 2., 1.])
    """
    axis = normal_axis("sort", dim, len(input.shape))
    order = argsort(input, dim, descending)
    return ValuesIndices(build.along(input, order, axis) if input.shape else input, order)


@operation()
def msort(input: Node) -> Node:
    """The values in ascending order along the first axis."""
    return sort(input, 0).values


def _first(x: Node, k: int, keys_of: Callable[[Node], Node]) -> Node:
    """The indices of the `k` elements with the least keys along the last axis, in order.

    In a long row they lie in the k blocks with the least minima, so only those blocks are looked at closely.
    """
    keys = keys_of(x)
    *outer, extent = x.shape
    last = len(outer)
    if extent <= DIRECT or extent < OFTEN * k:
        return build.narrow(build.argsort(keys), last, 0, k)
    block = 1 << max(2, round(math.log2(extent / k) / 2))
    count = -(-extent // block)
    beyond = _largest(keys.dtype)
    padded = build.pad(keys, (0,) * (last + 1), (*[0] * last, count * block - extent), beyond)
    least = build.reduce("reduce_min", build.reshape(padded, (*outer, count, block)), (last + 1,))
    blocks = _first(least, k, lambda keys: keys)
    blocks = build.along(blocks, build.argsort(blocks), last)  # in place order, so that ties keep theirs
    wide = (*outer, k, block)
    starts = build.expand(build.reshape(build.mul(blocks, block), (*outer, k, 1)), wide)
    positions = build.reshape(build.add(starts, build.iota(wide, last + 1, x.device)), (*outer, k * block))
    inside = build.lt(positions, extent)
    near = keys_of(build.along(x, build.select(inside, positions, extent - 1), last))
    return build.along(positions, _first(build.select(inside, near, beyond), k, lambda keys: keys), last)


@operation()
def topk(input: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
    """The `k` largest (or smallest) elements along `dim`, in order, and their indices. Of equal elements the first
    come first; always sorted.

    >>> weft.topk(weft.tensor([1.0, 4.0, 2.0, 3.0]), 2)
    ValuesIndices(values=tensor([4., 3.]), indices=tensor([1, 3]))
    """
    axis, number = normal_axis("topk", dim, len(input.shape)), as_int("topk", k, "k")
    extent = input.shape[axis] if input.shape else 1
    if not 0 <= number <= extent:
        raise problem(RangeError, "topk", f"k={number} of {extent} elements", f"0 to {extent}")
    if not input.shape:
        return ValuesIndices(input, build.full((), 0, int64, input.device))
    if not number:
        shape = (*input.shape[:axis], 0, *input.shape[axis + 1 :])
        return ValuesIndices(build.full(shape, 0, input.dtype, input.device), build.full(shape, 0, int64, input.device))
    rows = _move_to_end(build.stop_gradient(input) if input.dtype.kind == "f" else input, axis)
    order = _back(_first(rows, number, lambda part: sort_keys(part, largest)), axis)
    return ValuesIndices(build.along(input, order, axis), order)


def pick(x: Node, index: Node, axis: int, keepdim: bool) -> ValuesIndices:
    """The elements at `index`, which has extent 1 along `axis`."""
    values = build.along(x, index, axis)
    if keepdim:
        return ValuesIndices(values, index)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    return ValuesIndices(build.reshape(values, shape), build.reshape(index, shape))


@operation()
def kthvalue(input: Node, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
    """The `k`-th smallest element along `dim`, k counted from 1, and its index.

    >>> weft.kthvalue(weft.tensor([3.0, 1.0, 2.0]), 2).values
    tensor(2.)
    """
    axis, number = normal_axis("kthvalue", dim, len(input.shape)), as_int("kthvalue", k, "k")
    extent = input.shape[axis] if input.shape else 1
    if not 1 <= number <= extent:
        raise problem(RangeError, "kthvalue", f"k={number} of {extent} elements", f"1 to {extent}")
    if not input.shape:
        return ValuesIndices(input, build.full((), 0, int64, input.device))
    return pick(input, build.narrow(argsort(input, axis), axis, number - 1, number), axis, keepdim)


@operation(
    overloads=(
        "(input: Tensor) -> Tensor",
        "(input: Tensor, dim: int, keepdim: bool = False) -> ValuesIndices",
    )
)
def median(input: Node, dim: int | None = None, keepdim: bool = False) -> Node | ValuesIndices:
    """The middle element in order (of two, the lower one) along `dim` and its index; without `dim`, of all
    elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median.

    >>> weft.median(weft.tensor([4.0, 1.0, 3.0, 2.0]))
    tensor(2.)
    """
    return find_median("median", input, dim, keepdim, _median_index)


def find_median(
    who: str, input: Node, dim: int | None, keepdim: bool, index_of: Callable[[Node, int], Node]
) -> Node | ValuesIndices:
    """A median: of all elements, NaN where there are none, or along `dim`. `index_of(x, axis)` gives its index,
    with extent 1 along the axis."""
    if dim is None:
        if not input.size:
            if input.dtype.kind != "f":
                raise problem(ShapeError, who, f"shape {input.shape}", "at least one element")
            return build.full((), math.nan, input.dtype, input.device)
        flat = build.reshape(input, (input.size,))
        return one_of_all(pick(flat, index_of(flat, 0), 0, False).values, input)
    axis = normal_axis(who, dim, len(input.shape))
    if not input.shape:
        return ValuesIndices(input, build.full((), 0, int64, input.device))
    if not input.shape[axis]:
        raise problem(ShapeError, who, f"shape {input.shape} over axis {axis}", "at least one element per result")
    return pick(input, index_of(input, axis), axis, keepdim)


def _median_index(x: Node, axis: int) -> Node:
    """Of the lower one of two middle elements, or of the first NaN."""
    extent = x.shape[axis]
    index = build.narrow(argsort(x, axis), axis, (extent - 1) // 2, (extent + 1) // 2)
    if x.dtype.kind != "f":
        return index
    position = build.select(isnan(x), build.iota(x.shape, axis, x.device), extent)
    first = build.reduce("reduce_min", position, (axis,), True)
    return build.select(build.lt(first, extent), first, index)


def _in_order(rows: Node, sorter: Node) -> Node:
    same_device("searchsorted", [rows, sorter])
    if sorter.shape != rows.shape or sorter.dtype is not int64 or not rows.shape:
        given = f"a sorter {sorter.dtype.name}{list(sorter.shape)} for rows of shape {rows.shape}"
        raise problem(ShapeError, "searchsorted", given, "int64 of the same shape", "use weft.argsort(rows)")
    return build.along(rows, sorter, len(rows.shape) - 1, user_site()) if rows.size else rows


@operation("weft")
def searchsorted(
    sorted_sequence: Node,
    input: Node | float,
    *,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
    out_int32: bool = False,
) -> Node:
    """Where `input` would go in rows sorted along the last axis, before equal elements or (`right`) after them. The
    rows are one vector for all values, or one row for each row of values. `sorter` puts rows in order that are not, as
    `argsort` gives it.

    >>> weft.searchsorted(weft.tensor([1.0, 3.0, 5.0]), weft.tensor([0.0, 3.0, 9.0]))
    tensor([0, 1, 3])
    """
    rows = sorted_sequence if sorter is None else _in_order(sorted_sequence, sorter)
    if side not in (None, "left", "right") or (side == "left" and right):
        raise problem(RangeError, "searchsorted", f"side={side!r} and right={right}", "'left' or 'right', agreeing")
    right = right or side == "right"
    if not isinstance(input, Node):
        input = build.full((), fit_number("searchsorted", input, rows.dtype), rows.dtype, rows.device)
    same_device("searchsorted", [rows, input])
    if input.dtype is not rows.dtype or not rows.shape:
        given = f"{rows.dtype.name}{list(rows.shape)} and {input.dtype.name}{list(input.shape)}"
        raise problem(ShapeError, "searchsorted", given, "rows and values of one dtype", "cast one with .to")
    if len(rows.shape) > 1 and rows.shape[:-1] != input.shape[:-1]:
        given = f"rows of shape {rows.shape} and values of shape {input.shape}"
        raise problem(ShapeError, "searchsorted", given, "equal leading axes, or rows that are one vector")
    extent = rows.shape[-1]
    found = build.full(input.shape, 0, int64, input.device)
    flat = build.reshape(rows, (rows.size,))
    step = 1 << max(extent.bit_length() - 1, 0)
    while step and rows.size and input.size:
        probe = build.add(found, step)
        inside = make_node("le", (probe, build.like(probe, extent)))
        at = build.select(inside, build.sub(probe, 1), 0)
        if len(rows.shape) > 1:
            at = build.row_positions(at, len(input.shape) - 1, extent)
        there = build.gather(flat, at, 0)
        stays = make_node("lt", (input, there)) if right else make_node("le", (input, there))
        found = build.select(make_node("and", (inside, make_node("not", (stays,)))), probe, found)
        step //= 2
    return build.cast(found, int32) if out_int32 else found


@operation("weft")
def bucketize(input: Node, boundaries: Node, *, out_int32: bool = False, right: bool = False) -> Node:
    """The number of the bucket between `boundaries` (a sorted vector) for every element.

    >>> weft.bucketize(weft.tensor([0.5, 2.0]), weft.tensor([1.0, 2.0, 3.0]))
    tensor([0, 1])
    """
    if len(boundaries.shape) != 1:
        raise problem(ShapeError, "bucketize", f"boundaries of shape {boundaries.shape}", "a vector")
    return searchsorted(boundaries, input, right=right, out_int32=out_int32)


@operation()
def histc(input: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:
    """How many elements fall into each of `bins` equal parts of [min, max]; between the smallest and the largest
    element if both are 0. Elements outside and NaN are not counted.

    >>> weft.histc(weft.tensor([1.0, 2.0, 1.0]), bins=4, min=0, max=3)
    tensor([0., 2., 1., 0.])
    """
    count = as_int("histc", bins, "number of bins")
    if count < 1 or max < min:
        raise problem(RangeError, "histc", f"bins={count}, min={min}, max={max}", "at least 1 bin and min <= max")
    if input.dtype.kind != "f":
        raise problem(ShapeError, "histc", f"a {input.dtype.name} tensor", "a float tensor", "convert it with .float()")
    flat = build.stop_gradient(build.reshape(input, (input.size,)))
    low, high = (build.full((), float(bound), input.dtype, input.device) for bound in (min, max))
    if min == max and input.size:
        if min == 0:
            low, high = build.reduce("reduce_min", flat, (0,)), build.reduce("reduce_max", flat, (0,))
        flat_range = make_node("eq", (low, high))
        low, high = (
            build.select(flat_range, build.sub(low, 1.0), low),
            build.select(flat_range, build.add(high, 1.0), high),
        )
    low, high = build.expand_to(low, flat.shape), build.expand_to(high, flat.shape)
    inside = make_node("and", (make_node("le", (low, flat)), make_node("le", (flat, high))))
    share = build.div(build.mul(build.sub(flat, low), float(count)), build.sub(high, low))
    number = build.cast(build.select(inside, share, 0.0), int64)
    number = build.select(build.lt(number, count), number, count - 1)
    position = build.select(inside, number, count)
    ones = build.full(flat.shape, 1.0, input.dtype, input.device)
    return build.narrow(build.scatter_add(position, ones, count + 1), 0, 0, count)
