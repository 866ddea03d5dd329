"""Operations for random graphs that move elements: views, padding, windows and what adds them up, concatenations.

Each function draws one operation with a `random_graphs.Builder`; None where the bounds would be left.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.backend.random_values import LARGEST, Value, unit
from weft.graph import build
from weft.graph.node import Node


def movement(builder) -> Value | None:
    x = builder.some()
    if x is None:
        return None
    node, shape = x.node, x.node.shape
    op = builder.pick(["reshape", "permute", "expand", "slice", "slice", "pad", "flip", "unfold", "squeeze"])
    bound = x.bound
    if op == "reshape" and node.size:
        node = build.reshape(node, other_shape(builder, node.size))
    elif op == "squeeze":
        node = build.reshape(node, tuple(extent for extent in shape if extent != 1))
    elif op == "permute":
        node = build.permute(node, builder.draw(st.permutations(range(len(shape)))))
    elif op == "expand":
        wide = tuple(builder.pick([1, 3, 17]) if extent == 1 else extent for extent in shape)
        wide = (builder.pick([3, 7]), *wide) if builder.chance(3) else wide
        node = build.expand_to(node, wide) if math.prod(wide) <= LARGEST else node
    elif op == "slice" and shape and node.size:
        bounds = [sorted((builder.draw(st.integers(0, n)), builder.draw(st.integers(0, n)))) for n in shape]
        starts = tuple(max(min(low, extent - 1), 0) for (low, _), extent in zip(bounds, shape, strict=True))
        least = 0 if builder.chance(20) else 1  # now and then nothing is left
        stops = tuple(max(high, start + least) for (_, high), start in zip(bounds, starts, strict=True))
        node = build.slice_(node, starts, stops, tuple(builder.pick([1, 1, 2, 3]) for _ in shape))
    elif op == "pad" and shape:
        lows, highs = (tuple(builder.pick([0, 0, 1, 5]) for _ in shape) for _ in range(2))
        number = builder.pick([0, 1]) if x.kind != "f" else builder.pick([0.0, -1.5])
        grown = math.prod(low + n + high for low, n, high in zip(lows, shape, highs, strict=True))
        node = build.pad(node, lows, highs, number) if grown <= 3 * LARGEST else node
        bound = max(bound, 1.5)
    elif op == "flip" and shape:
        node = build.flip(node, builder.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    elif op == "unfold" and shape and node.size:
        node = windows(builder, node)
    return Value(node, bound, x.error)


def windows(builder, node: Node) -> Node:
    axis = builder.draw(st.integers(0, len(node.shape) - 1))
    size, step, dilation = builder.pick([1, 2, 3, 7]), builder.pick([1, 1, 2, 3]), builder.pick([1, 1, 2, 4])
    if dilation * (size - 1) >= node.shape[axis] or node.size * size > 3 * LARGEST:
        return node
    return build.unfold(node, axis, size, step, dilation)


def fold(builder) -> Value | None:
    x = builder.some(lambda value: len(value.node.shape) > 1 and value.node.size and value.kind == "f")
    if x is None:
        return None
    axis = builder.draw(st.integers(0, len(x.node.shape) - 2))
    count, size = x.node.shape[axis : axis + 2]
    step, dilation = builder.pick([1, 1, 2, 3]), builder.pick([1, 1, 2, 4])
    extent = (count - 1) * step + (size - 1) * dilation + builder.pick([1, 2, 5])
    if x.node.size // (count * size) * extent > LARGEST:
        return None
    node = build.fold(x.node, axis, extent, step, dilation)
    terms = min(count, size)
    error = terms * x.error + terms * terms * unit(x.node.dtype) * x.bound
    return Value(build.mul(node, 1.0 / terms), x.bound, error / terms + unit(x.node.dtype) * x.bound)


def other_shape(builder, size: int) -> tuple[int, ...]:
    shape: list[int] = []
    while size > 1 and len(shape) < 4:
        divisors = [n for n in range(1, size + 1) if size % n == 0] if size <= 4096 else [1, 2, 3, 5, size]
        divisors = [n for n in divisors if size % n == 0]
        extent = builder.pick(divisors)
        shape.append(extent)
        size //= extent
    return (*shape, size) if size > 1 else tuple(shape)


def concat(builder) -> Value | None:
    x = builder.some(lambda value: bool(value.node.shape) and value.node.size <= LARGEST)
    if x is None:
        return None
    shape, dtype = x.node.shape, x.node.dtype
    axis = builder.draw(st.integers(0, len(shape) - 1))
    others = build.keepdim_shape(shape, (axis,))
    parts = [x]
    for _ in range(builder.draw(st.integers(1, 3))):
        part = builder.some(
            lambda value: value.node.dtype is dtype and build.keepdim_shape(value.node.shape, (axis,)) == others
        )
        if part is None or builder.chance(3):
            part = builder.leaf((*shape[:axis], builder.pick([1, 3, 17]), *shape[axis + 1 :]), dtype)
        elif builder.chance(3):
            part = Value(build.flip(part.node, (axis,)), part.bound, part.error)
        if sum(one.node.size for one in parts) + part.node.size <= 3 * LARGEST:
            parts.append(part)
    order = builder.draw(st.permutations(parts))
    node = build.concat([part.node for part in order], axis)
    return Value(node, max(part.bound for part in parts), max(part.error for part in parts))
