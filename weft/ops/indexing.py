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

from weft.dtypes import bool_, int32, int64
from weft.errors import DTypeError, GraphError, IndexRangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.layout import make
from weft.graph.node import Node
from weft.ops.common import (
    Operand,
    as_int,
    broadcast_shapes,
    need_float,
    need_integer,
    normal_axis,
    same_device,
    spread,
)  # fmt: skip
from weft.ops.elementwise import where

_INSIDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_site() -> str | None:
    """`file:line` of the innermost frame outside Weft."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back  # type: ignore[assignment]
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else None


@dataclass(frozen=True, slots=True)
class Region:
    """A basic index, resolved: a slice of every axis, the axes to turn round, and the shape the user sees."""

    starts: Shape
    stops: Shape
    steps: Shape
    flips: Shape
    sliced: Shape  # before ints dropped their axes and None added some
    shape: Shape
    tensors: tuple[tuple[int, Node], ...]  # integer tensors, by the axis of `shape` that they index


def resolve(x: Node, key: Any) -> Region:
    """Read an index expression. Tensor indices count as full slices here and are listed in `tensors`."""
    items = list(key) if isinstance(key, tuple) else [key]
    used = sum(item is not None and item is not Ellipsis for item in items)
    ellipses = [place for place, item in enumerate(items) if item is Ellipsis]
    if used > len(x.shape) or len(ellipses) > 1:
        given = f"{used} indices and {len(ellipses)} Ellipsis for shape {x.shape}"
        raise problem(IndexRangeError, "index", given, f"at most {len(x.shape)} and one")
    place = ellipses[0] if ellipses else len(items)
    items[place : place + 1] = [slice(None)] * (len(x.shape) - used)
    starts: list[int] = []
    stops: list[int] = []
    steps: list[int] = []
    flips: list[int] = []
    shape: list[int] = []
    tensors: list[tuple[int, Node]] = []
    for item in items:
        if item is None:
            shape.append(1)
            continue
        axis = len(starts)
        extent = x.shape[axis]
        if isinstance(item, slice):
            start, stop, step, turned = _bounds(item, extent)
            if turned:
                flips.append(axis)
            shape.append((stop - start + step - 1) // step)
        elif isinstance(item, Node):
            _need_index(item)
            start, stop, step = 0, extent, 1
            tensors.append((len(shape), item))
            shape.append(extent)
        else:
            start = _whole(item, axis, extent)
            stop, step = start + 1, 1
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    sliced = tuple((stop - start + step - 1) // step for start, stop, step in zip(starts, stops, steps, strict=True))
    return Region(tuple(starts), tuple(stops), tuple(steps), tuple(flips), sliced, tuple(shape), tuple(tensors))


def _need_index(index: Node) -> None:
    if index.dtype is bool_:
        given, mend = "a bool tensor as index", "use weft.where(mask, x, other), or x[mask] = value to write"
        raise problem(GraphError, "index", given, "an index whose result has a known shape", mend)
    need_integer("index", index)


def _whole(item: object, axis: int, extent: int) -> int:
    if isinstance(item, bool):
        raise problem(DTypeError, "index", f"{item}", "ints, slices, None, Ellipsis or integer tensors", "use an int")
    number = as_int("index", item, "index")
    if not -extent <= number < extent:
        raise problem(
            IndexRangeError, "index", f"{number} on axis {axis} of extent {extent}", f"{-extent} to {extent - 1}"
        )
    return number % extent


def _bounds(item: slice, extent: int) -> tuple[int, int, int, bool]:
    """A slice as (start, stop, positive step, whether to turn the result round)."""
    if item.step == 0:
        raise problem(IndexRangeError, "index", "a slice with step 0", "a step that moves")
    numbers = range(extent)[item]
    if not len(numbers):
        return 0, 0, 1, False
    if numbers.step < 0:
        return numbers[-1], numbers[0] + 1, -numbers.step, len(numbers) > 1
    return numbers[0], numbers[-1] + 1, numbers.step, False


def index(x: Node, key: Any) -> Node:
    """`x[key]`. A negative step turns the axis round. Several integer tensors must stand next to each other; they
    broadcast, and their axes are replaced by the broadcast shape.

    >>> weft.arange(6)[4:0:-2]
    tensor([4, 2])
    >>> weft.tensor([[1, 2], [3, 4], [5, 6]])[weft.tensor([2, -1, 0])]
    tensor([[5, 6],
            [5, 6],
            [1, 2]])
    """
    region = resolve(x, key)
    picked = build.slice_(x, region.starts, region.stops, region.steps)
    picked = build.reshape(build.flip(picked, region.flips), region.shape)
    return _by_tensors(picked, region.tensors) if region.tensors else picked


def _by_tensors(x: Node, tensors: Sequence[tuple[int, Node]]) -> Node:
    """Gather along one axis, or along several neighbouring axes made one."""
    first, last = tensors[0][0], tensors[-1][0]
    same_device("index", [x, *(item for _, item in tensors)])
    if [axis for axis, _ in tensors] != list(range(first, last + 1)):
        raise problem(
            ShapeError, "index", "tensor indices with other indices between them", "them side by side", "permute first"
        )
    if len(tensors) == 1:
        return build.gather(x, _wrapped(tensors[0][1], x.shape[first]), first, user_site())
    shape = broadcast_shapes("index", [item.shape for _, item in tensors])
    joint = build.full(shape, 0, int64, x.device)
    inside = build.full(shape, True, bool_, x.device)
    for axis, item in tensors:
        number = _wrapped(spread("index", item, shape, int64, x.device), x.shape[axis])
        valid = make("and", (make("le", (build.like(number, 0), number)), build.lt(number, x.shape[axis])))
        inside = make("and", (inside, valid))
        joint = build.add(build.mul(joint, x.shape[axis]), number)
    joint = build.select(inside, joint, -1)  # so that the check at run time sees it
    extent = 1
    for axis, _ in tensors:
        extent *= x.shape[axis]
    merged = build.reshape(x, (*x.shape[:first], extent, *x.shape[last + 1 :]))
    return build.gather(merged, joint, first, user_site())


def _wrapped(index: Node, extent: int) -> Node:
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
        if key.shape != x.shape[: len(key.shape)]:
            raise problem(
                ShapeError, "x[mask] = value", f"a mask of shape {key.shape} for {x.shape}", "its leading axes"
            )
        mask = build.expand(build.reshape(key, key.shape + (1,) * (len(x.shape) - len(key.shape))), x.shape)
        return where(mask, spread("x[mask] = value", _fitting(value, x, x.shape), x.shape, x.dtype, x.device), x)
    region = resolve(x, key)
    if region.tensors:
        expected = "ints, slices and bool masks"
        raise problem(
            GraphError, "x[index] = value", "an integer tensor as index", expected, "write weft.where(mask, value, x)"
        )
    filling = spread("x[index] = value", _fitting(value, x, region.shape), region.shape, x.dtype, x.device)
    filling = build.flip(build.reshape(filling, region.sliced), region.flips)
    if region.sliced == x.shape:
        return filling
    placed = build.place(filling, x.shape, region.starts, region.steps)
    inside = build.place(build.full(region.sliced, True, bool_, x.device), x.shape, region.starts, region.steps, False)
    return make("select", (inside, placed, x))


def _fitting(value: Operand, x: Node, shape: Shape) -> Operand:
    if isinstance(value, Node):
        same_device("x[index] = value", [x, value])
        if broadcast_shapes("x[index] = value", [value.shape, shape]) != shape:
            raise problem(
                ShapeError, "x[index] = value", f"a value of shape {value.shape}", f"one that broadcasts to {shape}"
            )
    return value


def index_select(x: Node, dim: int, index: Node) -> Node:
    """The slices of `x` along `dim` with the numbers in `index`, a vector of integers."""
    axis = normal_axis("index_select", dim, len(x.shape))
    need_integer("index_select", index)
    same_device("index_select", [x, index])
    if len(index.shape) > 1 or not x.shape:
        raise problem(
            ShapeError, "index_select", f"shapes {x.shape} and {index.shape}", "a tensor with axes, and a vector"
        )
    return build.gather(x, build.reshape(index, (index.size,)), axis, user_site())


def embedding(input: Node, weight: Node, padding_idx: int | None = None) -> Node:
    """Rows of `weight` [count, width] by number: `input` [...] gives [..., width].
    The row `padding_idx` gets no gradient.

    >>> weft.nn.functional.embedding(weft.tensor([1, 0]), weft.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    need_integer("embedding", input)
    need_float("embedding", weight)
    same_device("embedding", [input, weight])
    if len(weight.shape) != 2:
        raise problem(ShapeError, "embedding", f"a weight of shape {weight.shape}", "[count, width]")
    if padding_idx is not None:
        row = _whole(padding_idx, 0, weight.shape[0])
        is_padding = build.eq(build.iota(weight.shape, 0, weight.device), row)
        weight = build.select(is_padding, build.stop_gradient(weight), weight)
    return build.gather(weight, input, 0, user_site())


def one_hot(x: Node, num_classes: int = -1) -> Node:
    """[...] integers to [..., num_classes] int64: 1 at the class, 0 elsewhere.

    >>> weft.nn.functional.one_hot(weft.tensor([2, 0]), 3)
    tensor([[0, 0, 1],
            [1, 0, 0]])
    """
    need_integer("one_hot", x)
    if num_classes < 1:
        raise problem(DTypeError, "one_hot", f"num_classes={num_classes}", "the number of classes", "pass it as an int")
    shape = (*x.shape, num_classes)
    label = build.expand(build.reshape(build.cast(x, int64), (*x.shape, 1)), shape)
    return build.cast(make("eq", (build.iota(shape, len(shape) - 1, x.device), label)), int64)
