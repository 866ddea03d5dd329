"""Indexing: `x[...]` with ints, slices, None, Ellipsis and integer tensors; rows by number; writing into a region.

Python ints and slices are checked at the call. Indices that are tensors are checked where the value is computed; their
nodes carry the user's line for the message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.base.dtypes import bool_, int32, int64
from weft.base.errors import DTypeError, GraphError, IndexRangeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    as_int,
    broadcast_shapes,
    need_integer,
    normal_axis,
    same_device,
    spread,
)  # fmt: skip
from weft.ops.registry import operation

_OPERATIONS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_INSIDE = os.path.dirname(_OPERATIONS[:-1]) + os.sep


def user_site() -> str | None:
    """'operation at file:line' of the innermost frame outside Weft; the operation is the one that was called there."""
    frame, operation = sys._getframe(1), ""
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        name = frame.f_code.co_name
        if frame.f_code.co_filename.startswith(_OPERATIONS) and name[0] not in "_<" and name != "call":
            operation = f"{name} at "
        frame = frame.f_back  # type: ignore[assignment]
    return f"{operation}{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else None


@dataclass(frozen=True, slots=True)
class BasicIndex:
    """A basic index, resolved: a slice of every axis, the axes to flip, and the shape the user sees."""

    starts: Shape
    stops: Shape
    steps: Shape
    flips: Shape
    sliced: Shape  # before ints dropped their axes and None added some
    shape: Shape
    axes: tuple[int | None, ...]  # for each axis of the tensor, its axis in `shape`; None where an int picks from it
    tensors: tuple[tuple[int, Node], ...]  # integer tensors, by the axis of `shape` that they index


def resolve(x: Node, key: Any) -> BasicIndex:
    """Read an index expression. Tensor indices count as full slices here and are listed in `tensors`."""
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = [position for position, item in enumerate(items) if item is Ellipsis]
    if used > len(x.shape) or len(ellipses) > 1:
        given = f"{used} indices" + (f" and {len(ellipses)} times '...'" if ellipses else "") + f" for shape {x.shape}"
        expected = f"at most {len(x.shape)}" + (", and '...' once" if len(ellipses) > 1 else "")
        raise problem(IndexRangeError, "index", given, expected)
    position = ellipses[0] if ellipses else len(items)
    items[position : position + 1] = [slice(None)] * (len(x.shape) - used)
    starts: list[int] = []
    stops: list[int] = []
    steps: list[int] = []
    flips: list[int] = []
    shape: list[int] = []
    axes: list[int | None] = []
    tensors: list[tuple[int, Node]] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(starts)
        extent = x.shape[axis]
        axes.append(len(shape))
        if isinstance(item, slice):
            start, stop, step, flipped = _bounds(item, extent)
            if flipped:
                flips.append(axis)
            shape.append((stop - start + step - 1) // step)
        elif isinstance(item, Node):
            _need_index(item)
            start, stop, step = 0, extent, 1
            tensors.append((len(shape), item))
            shape.append(extent)
        else:
            start = _check_integer(item, axis, extent)
            stop, step = start + 1, 1
            axes[-1] = None
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    sliced = tuple((stop - start + step - 1) // step for start, stop, step in zip(starts, stops, steps, strict=True))
    parts = (starts, stops, steps, flips, sliced, shape, axes, tensors)
    return BasicIndex(*map(tuple, parts))  # type: ignore[arg-type]


def _need_index(index: Node) -> None:
    if index.dtype is bool_:
        given, fix = "a bool tensor as index", "use weft.where(mask, x, other), or x[mask] = value to write"
        raise problem(GraphError, "index", given, "an index whose result has a known shape", fix)
    need_integer("index", index)


def _check_integer(item: object, axis: int, extent: int) -> int:
    if isinstance(item, bool):
        raise problem(DTypeError, "index", f"{item}", "ints, slices, None, Ellipsis or integer tensors", "use an int")
    number = as_int("index", item, "index")
    if not -extent <= number < extent:
        raise problem(
            IndexRangeError, "index", f"{number} on axis {axis} of extent {extent}", f"{-extent} to {extent - 1}"
        )
    return number % extent


def _bounds(item: slice, extent: int) -> tuple[int, int, int, bool]:
    """A slice as (start, stop, positive step, whether to flip the result)."""
    if item.step == 0:
        raise problem(IndexRangeError, "index", "a slice with step 0", "a step that moves")
    numbers = range(extent)[item]
    if not len(numbers):
        return 0, 0, 1, False
    if numbers.step < 0:
        return numbers[-1], numbers[0] + 1, -numbers.step, len(numbers) > 1
    return numbers[0], numbers[-1] + 1, numbers.step, False


def index(x: Node, key: Any) -> Node:
    """`x[key]`. A negative step flips the axis. Several integer tensors broadcast; their axes are replaced by the
    broadcast shape, which goes to the front where other indices are between them.

    >>> weft.arange(6)[4:0:-2]
    tensor([4, 2])
    >>> weft.tensor([[1, 2], [3, 4], [5, 6]])[weft.tensor([2, -1, 0])]
    tensor([[5, 6],
            [5, 6],
            [1, 2]])
    """
    basic = resolve(x, key)
    picked = build.reshape(_take_slice(x, basic), basic.shape)
    return _by_tensors(picked, basic.tensors) if basic.tensors else picked


@dataclass(frozen=True, slots=True)
class Picked:
    """What integer tensors pick from a value: rows of a table, by number.

    `order` brings the axes that are indexed to the front of the value; `back` puts the index's axes, which then are
    at the front of the result, where the user sees them.
    """

    order: Shape
    back: Shape
    count: int  # rows of the table
    rest: Shape  # the shape of a row
    number: Node  # of the row for every place of the index; -1 where an index leaves its axis


def pick(x: Node, tensors: Sequence[tuple[int, Node]]) -> Picked:
    """How integer tensors, each for one axis of `x`, index it. They broadcast. Where they index adjacent axes the
    result has their axes in that position, else at the front."""
    same_device("index", [x, *(item for _, item in tensors)])
    axes = [axis for axis, _ in tensors]
    others = [axis for axis in range(len(x.shape)) if axis not in axes]
    shape = broadcast_shapes("index", [item.shape for _, item in tensors])
    number = build.full(shape, 0, int64, x.device)
    inside: Node | None = None
    for axis, item in tensors:
        extent = x.shape[axis]
        at = wrap_negative(spread("index", item, shape, int64, x.device), extent)
        valid = make_canonical("and", (make_canonical("le", (build.like(at, 0), at)), build.lt(at, extent)))
        inside = valid if inside is None else make_canonical("and", (inside, valid))
        number = build.add(build.mul(number, extent), at)
    if len(tensors) == 1:
        number = at
    else:
        assert inside is not None
        number = build.select(inside, number, -1)  # so that the check at run time sees it
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    depth = len(shape)
    before = axes[0] if axes == list(range(axes[0], axes[-1] + 1)) else 0
    back = (*range(depth, depth + before), *range(depth), *range(depth + before, depth + len(others)))
    rest = tuple([x.shape[axis] for axis in others])
    return Picked((*axes, *others), back, count, rest, number)


def _by_tensors(x: Node, tensors: Sequence[tuple[int, Node]]) -> Node:
    """Gather along one axis, or along several axes made one."""
    if len(tensors) == 1:
        axis, item = tensors[0]
        same_device("index", [x, item])
        return build.gather(x, wrap_negative(item, x.shape[axis]), axis, user_site())
    picked = pick(x, tensors)
    table = build.reshape(build.permute(x, picked.order), (picked.count, *picked.rest))
    return build.permute(build.gather(table, picked.number, 0, user_site()), picked.back)


def wrap_negative(index: Node, extent: int) -> Node:
    """Negative indices counted from the end."""
    if index.dtype.kind == "u":
        return index
    index = index if index.dtype is int32 else build.cast(index, int64)  # a smaller dtype may not hold the extent
    return build.select(build.lt(index, 0), build.add(index, extent), index)


def set_index(x: Node, key: Any, value: Operand) -> Node:
    """`x` with `value` at `key`: what `x[key] = value` rebinds the cell to.

    >>> x = weft.zeros(4)
    >>> x[1:3] = 5
    >>> x
    tensor([0., 5., 5., 0.])
    """
    if isinstance(key, Node) and key.dtype is bool_:
        return _set_where(x, key, value)
    basic = resolve(x, key)
    if basic.tensors:
        part = build.reshape(_take_slice(x, basic), basic.shape)
        filling = _write_at(part, basic.tensors, value, False)
    else:
        filling = spread("x[index] = value", _fitting(value, x, basic.shape), basic.shape, x.dtype, x.device)
    filling = build.flip(_in_window(filling, basic), basic.flips)
    return build.update_slice(x, filling, basic.starts, basic.steps)


def _in_window(value: Node, basic: BasicIndex) -> Node:
    """A value of the shape that the user sees with the axes of the indexed tensor. What repeats goes on repeating."""
    if value.op == "expand" and value.buffer is None:
        small = value.srcs[0].shape
        value = build.reshape(value.srcs[0], tuple([1 if axis is None else small[axis] for axis in basic.axes]))
        return build.expand(value, basic.sliced)
    return build.reshape(value, basic.sliced)


def _take_slice(x: Node, basic: BasicIndex) -> Node:
    return build.flip(build.slice_(x, basic.starts, basic.stops, basic.steps), basic.flips)


def _set_where(x: Node, mask: Node, value: Operand, accumulate: bool = False) -> Node:
    """`x[mask] = value`: one value for all positions, or one row for each position where the mask holds, in order. With
    `accumulate` they are added to what is there."""
    who, depth = "x[mask] = value", len(mask.shape)
    if mask.shape != x.shape[:depth]:
        raise problem(ShapeError, who, f"a mask of shape {mask.shape} for {x.shape}", "its leading axes")
    wide = build.expand(build.reshape(mask, mask.shape + (1,) * (len(x.shape) - depth)), x.shape)
    rest = x.shape[depth:]
    if isinstance(value, Node) and len(value.shape) == len(rest) + 1 and value.shape[0] != 1:
        same_device(who, [x, value])
        rows = value.shape[0]
        if broadcast_shapes(who, [value.shape[1:], rest]) != rest:
            raise problem(ShapeError, who, f"a value of shape {value.shape}", f"rows that broadcast to {rest}")
        table = build.cast(build.expand(value, (rows, *rest)), x.dtype)
        filling = build.gather(table, _numbers(mask, rows, exactly=True), 0, user_site())
    else:
        filling = spread(who, _fitting(value, x, x.shape), x.shape, x.dtype, x.device)
    return make_canonical("select", (wide, _add_at(x, filling) if accumulate else filling, x))


def _add_at(x: Node, more: Node) -> Node:
    """x + more; of bools, whether either is."""
    return make_canonical("or" if x.dtype is bool_ else "add", (x, more))


def _numbers(mask: Node, rows: int, exactly: bool) -> Node:
    """For each position where `mask` holds, how many such positions come before it (elsewhere 0); an index outside
    `rows` where there are not as many rows as positions (with `exactly`) or fewer."""
    flat = build.cast(build.reshape(mask, (mask.size,)), int64)
    if not mask.size:
        return build.cast(mask, int64)
    so_far = build.scan("sum", flat, 0)
    number = build.sub(so_far, 1)
    if exactly:
        total = build.expand(build.narrow(so_far, 0, mask.size - 1, mask.size), so_far.shape)
        number = build.select(build.eq(total, rows), number, rows)
    return build.reshape(build.select(build.eq(flat, 1), number, 0), mask.shape)


def _write_at(x: Node, tensors: Sequence[tuple[int, Node]], value: Operand, accumulate: bool) -> Node:
    """`x` with `value` at integer tensors: of several for one position the last stays, or all are added in order."""
    picked = pick(x, tensors)
    depth = len(picked.number.shape)
    front = (*picked.number.shape, *picked.rest)
    shape = tuple([front[axis] for axis in picked.back])
    filling = spread("x[index] = value", _fitting(value, x, shape), shape, x.dtype, x.device)
    positions = sorted(range(len(shape)), key=picked.back.__getitem__)
    size = picked.number.size
    rows = build.reshape(build.permute(filling, positions), (size, *picked.rest))
    table = build.reshape(build.permute(x, picked.order), (picked.count, *picked.rest))
    number = build.reshape(picked.number, (size,))
    if not size or not table.size:
        return x
    if accumulate:
        table = _add_at(table, build.scatter_add(number, rows, picked.count, user_site()))
    else:
        last = build.scatter("max", number, build.iota((size,), 0, x.device), picked.count, user_site())
        there = build.reshape(
            make_canonical("le", (build.like(last, 0), last)), (picked.count, *[1] * len(picked.rest))
        )
        chosen = build.gather(rows, build.binary("max", last, 0), 0)
        table = make_canonical("select", (build.expand(there, table.shape), chosen, table))
    assert depth == len(shape) - len(picked.rest)
    back = sorted(range(len(x.shape)), key=picked.order.__getitem__)
    return build.permute(build.reshape(table, tuple([x.shape[axis] for axis in picked.order])), back)


def index_put(input: Node, indices: Sequence[Node], values: Operand, accumulate: bool = False) -> Node:
    """`weft.index_put` by integer tensors, or by one bool mask."""
    if isinstance(values, Node) and values.dtype is not input.dtype:
        given = f"{values.dtype.name} values for {input.dtype.name}"
        raise problem(DTypeError, "index_put", given, "one dtype", f"convert them with .to(weft.{input.dtype.name})")
    if len(indices) > len(input.shape) or not indices:
        raise problem(
            ShapeError, "index_put", f"{len(indices)} indices for shape {input.shape}", "one to one for each axis"
        )
    if len(indices) == 1 and indices[0].dtype is bool_:
        return _set_where(input, indices[0], values, accumulate)
    for item in indices:
        if not isinstance(item, Node):
            raise problem(DTypeError, "index_put", f"a {type(item).__name__} among the indices", "tensors")
        _need_index(item)
    return _write_at(input, list(enumerate(indices)), values, accumulate)


@operation()
def take(input: Node, index: Node) -> Node:
    """Elements of the flattened tensor by number, in the shape of `index`; negative numbers count from the end.

    >>> weft.take(weft.tensor([[1, 2], [3, 4]]), weft.tensor([0, -1]))
    tensor([1, 4])
    """
    need_integer("take", index)
    same_device("take", [input, index])
    return build.gather(build.reshape(input, (input.size,)), wrap_negative(index, input.size), 0, user_site())


@operation("weft method inplace")
def put(input: Node, index: Node, source: Node, accumulate: bool = False) -> Node:
    """`input` with the elements of `source` written to (or added at) places of the flattened tensor; the last stays."""
    need_integer("put", index)
    if index.size != source.size:
        given = f"{index.size} indices and {source.size} elements"
        raise problem(ShapeError, "put", given, "as many of both")
    flat, positions = build.reshape(input, (input.size,)), build.reshape(index, (index.size,))
    written = _write_at(flat, [(0, positions)], build.reshape(source, (source.size,)), accumulate)
    return build.reshape(written, input.shape)


@operation("weft method inplace")
def masked_scatter(input: Node, mask: Node, source: Node) -> Node:
    """`input` with the elements of `source`, one after the other, where the bool mask holds; both broadcast.

    >>> weft.zeros(4).masked_scatter(weft.tensor([True, False, True, False]), weft.tensor([1.0, 2.0, 3.0]))
    tensor([1., 0., 2., 0.])
    """
    same_device("masked_scatter", [input, mask, source])
    if mask.dtype is not bool_ or source.dtype is not input.dtype:
        given = f"a mask of {mask.dtype.name} and {source.dtype.name} for {input.dtype.name}"
        raise problem(DTypeError, "masked_scatter", given, "a bool mask, and a source of the tensor's dtype")
    shape = broadcast_shapes("masked_scatter", [input.shape, mask.shape])
    input, wide = build.expand_to(input, shape), build.expand_to(mask, shape)
    if not source.size:
        source = build.full((1,), 0, source.dtype, source.device)
    number = _numbers(wide, source.size, exactly=False)
    return make_canonical(
        "select", (wide, build.gather(build.reshape(source, (source.size,)), number, 0, user_site()), input)
    )


def _fitting(value: Operand, x: Node, shape: Shape) -> Operand:
    if isinstance(value, Node):
        same_device("x[index] = value", [x, value])
        if broadcast_shapes("x[index] = value", [value.shape, shape]) != shape:
            raise problem(
                ShapeError, "x[index] = value", f"a value of shape {value.shape}", f"one that broadcasts to {shape}"
            )
    return value


@operation()
def index_select(input: Node, dim: int, index: Node) -> Node:
    """The slices of `input` along `dim` with the numbers in `index`, a vector of integers."""
    axis = normal_axis("index_select", dim, len(input.shape))
    need_integer("index_select", index)
    same_device("index_select", [input, index])
    if len(index.shape) > 1 or (not input.shape and index.size != 1):
        raise problem(
            ShapeError,
            "index_select",
            f"shapes {input.shape} and {index.shape}",
            "a vector, of one number for a scalar",
        )
    if not input.shape:
        return build.reshape(build.gather(build.reshape(input, (1,)), build.reshape(index, (1,)), 0, user_site()), ())
    return build.gather(input, build.reshape(index, (index.size,)), axis, user_site())


def one_hot(tensor: Node, num_classes: int) -> Node:
    """[...] integers to [..., num_classes] int64; see `weft.nn.functional.one_hot`."""
    need_integer("one_hot", tensor)
    if num_classes < 1:
        raise problem(RangeError, "one_hot", f"num_classes={num_classes}", "the number of classes", "pass it as an int")
    shape = (*tensor.shape, num_classes)
    known = build.in_range(build.cast(tensor, int64), num_classes, user_site())
    label = build.expand(build.reshape(known, (*tensor.shape, 1)), shape)
    return build.cast(make_canonical("eq", (build.iota(shape, len(shape) - 1, tensor.device), label)), int64)
