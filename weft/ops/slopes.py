"""Slopes of sampled functions, by finite differences."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops.common import normal_axis, same_device, to_float
from weft.ops.elementwise import add, div, mul, sub
from weft.ops.movement import cat
from weft.ops.registry import operation
from weft.ops.scans import diff
from weft.ops.unary_functions import neg

# The slope of a parabola at the first, the second and the third of three points at distance 1.
UNIFORM = ((-1.5, 2.0, -0.5), (-0.5, 0.0, 0.5), (0.5, -2.0, 1.5))


@operation("weft")
def gradient(
    input: Node,
    *,
    spacing: float | Sequence[float | Node] | None = None,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> tuple[Node, ...]:
    """The slope along each axis of `dim`, of all axes unless given, by differences of second order; at both ends of
    order `edge_order`, 1 or 2. `spacing` is one distance for all axes, one for each, or the coordinates along each.

    >>> weft.gradient(weft.tensor([1.0, 2.0, 4.0, 8.0]))
    (tensor([1.0000, 1.5000, 3.0000, 4.0000]),)
    """
    who, rank = "gradient", len(input.shape)
    if edge_order not in (1, 2):
        raise problem(RangeError, who, f"edge_order={edge_order}", "1 or 2")
    if input.dtype.kind == "b":
        raise problem(DTypeError, who, "a bool tensor", "numbers", "cast it with .float()")
    given = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = [normal_axis(who, axis, rank) for axis in given]
    if len(set(axes)) != len(axes):
        raise problem(ShapeError, who, f"dim={dim}", "each axis once")
    several = isinstance(spacing, (tuple, list))
    steps: list[Any] = list(spacing) if several else [1.0 if spacing is None else spacing] * len(axes)  # type: ignore[arg-type]
    if isinstance(spacing, Node) or len(steps) != len(axes):
        raise problem(ShapeError, who, f"spacing for {len(steps)} axes", f"a number, or a list for {len(axes)} axes")
    for axis in axes:
        if not rank or input.shape[axis] < edge_order + 1:
            expected = f"at least {edge_order + 1} elements along axis {axis}"
            raise problem(ShapeError, who, f"shape {input.shape}", expected)
    return tuple(_slope(to_float(input), axis, step, edge_order) for axis, step in zip(axes, steps, strict=True))


def _slope(x: Node, axis: int, step: Node | float, edge_order: int) -> Node:
    """The slope along one axis; `step` is a distance or the coordinates."""
    extent = x.shape[axis]
    gaps = _gaps(x, axis, step) if isinstance(step, Node) else None

    def part(source: Node, start: int, count: int) -> Node:
        return build.narrow(source, axis, start, start + count)

    def of_two(start: int) -> Node:
        rise = sub(part(x, start + 1, 1), part(x, start, 1))
        return div(rise, step if gaps is None else part(gaps, start, 1))

    def of_three(start: int, count: int, position: int) -> Node:
        """At the first, the second or the third of three adjacent points, `count` times."""
        values = [part(x, start + k, count) for k in range(3)]
        if gaps is not None:
            weights = _weights(part(gaps, start, count), part(gaps, start + 1, count), position)
            return functools.reduce(add, map(mul, values, weights))
        terms = [mul(value, weight) for value, weight in zip(values, UNIFORM[position], strict=True) if weight]
        return div(functools.reduce(add, terms), step)

    first, last = (
        (of_two(0), of_two(extent - 2)) if edge_order == 1 else (of_three(0, 1, 0), of_three(extent - 3, 1, 2))
    )
    inner = [of_three(0, extent - 2, 1)] if extent > 2 else []
    return cat([first, *inner, last], axis)


def _gaps(x: Node, axis: int, coordinates: Node) -> Node:
    """The distances of adjacent points, to be multiplied along `axis`."""
    extent = x.shape[axis]
    if coordinates.shape != (extent,):
        raise problem(ShapeError, "gradient", f"coordinates {coordinates.shape} along axis {axis}", f"({extent},)")
    same_device("gradient", [x, coordinates])
    return build.reshape(diff(coordinates), tuple([extent - 1 if k == axis else 1 for k in range(len(x.shape))]))


def _weights(a: Node, b: Node, position: int) -> tuple[Node, Node, Node]:
    """Of three points with the distances a and b, for the slope of their parabola at one of them."""
    both, product = add(a, b), mul(a, b)
    if position == 0:
        return neg(div(add(both, a), mul(a, both))), div(both, product), neg(div(a, mul(b, both)))
    if position == 1:
        return neg(div(b, mul(a, both))), div(sub(b, a), product), div(a, mul(b, both))
    return div(b, mul(a, both)), neg(div(both, product)), div(add(both, b), mul(b, both))
