"""Sums over broadcast axes, as gradients need them, with everything taken out that does not vary along the axes.

The gradient of a mean or of a normalisation is a sum of terms like `g * scale`, where `scale` was repeated along the
very axes that are summed. Taken out, `sum(g) * scale`, the sum does not wait for the scale, and sums that look
different become one: a batch normalisation's backward pass then reads its rows twice instead of three times.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.build import add, expand, keepdim_shape, mul, neg, reduce, reshape, sub
from weft.graph.node import Node

MAX_DEPTH = 6  # levels of sums and products that are looked through


def sum_over(x: Node, axes: Sequence[int]) -> Node:
    """The sum of `x` over `axes`, which are dropped."""
    found = _linear(x, tuple(sorted(axes)), MAX_DEPTH) if axes else None
    return reduce("reduce_sum", x, axes) if found is None else found


def _linear(x: Node, axes: tuple[int, ...], depth: int) -> Node | None:
    """The sum with constant factors taken out; None where there are none."""
    if depth == 0 or x.dtype.kind != "f":
        return None
    if x.op == "neg":
        inner = _linear(x.srcs[0], axes, depth - 1)
        return None if inner is None else neg(inner)
    if x.op in ("add", "sub"):
        parts = [_linear(source, axes, depth - 1) for source in x.srcs]
        if parts[0] is None and parts[1] is None:
            return None
        a, b = (
            reduce("reduce_sum", source, axes) if part is None else part
            for source, part in zip(x.srcs, parts, strict=True)
        )
        return add(a, b) if x.op == "add" else sub(a, b)
    if x.op == "mul":
        constant, varying = _factors(x, axes, depth)
        return _take_out(constant, varying, axes) if constant and varying else None
    return None


def _factors(x: Node, axes: tuple[int, ...], depth: int) -> tuple[list[Node], list[Node]]:
    """The factors of a product that do not vary along `axes`, without these axes, and those that do."""
    if _repeats(x, axes):
        return [x], []
    if x.op != "mul" or depth == 0:
        return [], [x]
    constant, varying = [], []
    for source in x.srcs:
        one, other = _factors(source, axes, depth - 1)
        constant += one
        varying += other
    return (constant, varying) if constant else ([], [x])


def _repeats(x: Node, axes: tuple[int, ...]) -> bool:
    """Whether `x` only repeats itself along `axes`; a plain number is no reason to split a sum."""
    if x.op != "expand" or any(x.srcs[0].shape[axis] != 1 for axis in axes):
        return False
    small = x.srcs[0]
    while small.op in ("reshape", "expand"):
        small = small.srcs[0]
    return small.op != "const"


def _take_out(constant: list[Node], varying: list[Node], axes: tuple[int, ...]) -> Node:
    product = varying[0]
    for factor in varying[1:]:
        product = mul(product, factor)
    total = reduce("reduce_sum", product, axes)
    for factor in constant:
        small = expand(factor.srcs[0], keepdim_shape(factor.shape, axes))
        total = mul(total, reshape(small, total.shape))
    return total
