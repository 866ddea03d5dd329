"""Means and sums of squared differences from them, by one pass over memory where two would read it twice.

A row that a kernel keeps in a cache or in registers is read twice: its mean, then the squares. What is longer is cut
into pieces, each with a mean and a sum of squares of its own (count, mean, M2), and these are merged: the mean of
means, and the sum of all M2 and of the squared distances of the pieces' means from the mean, each by its count (Chan,
Golub and LeVeque). Neither subtracts large numbers that are nearly equal, so a mean far from 0 costs no digits. Which
it is follows from shapes and the kind of device. Gradients are those of the two passes. Columns (channels last) are
reduced in two passes: kernels that add up rows as they lie are faster than passes down pieces of columns.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from weft.graph import build
from weft.graph.node import Node

PIECE = 4096  # elements of a row that make a piece
LONG = 32768  # elements from which a row, where few rows are, or a channel is in pieces: fewer stay in a cache
FEW_ROWS = 64  # rows that are few
MIN_PIECE_ELEMENTS = 256  # elements of a channel of one sample that make a piece


class Moments(NamedTuple):
    """A mean and a sum of squared differences from it, with extent 1 on the axes that were reduced."""

    mean: Node
    squares: Node


def moments(x: Node, axes: Sequence[int]) -> Moments:
    """Mean and squares of a float tensor over normalised `axes`; the mean of no elements is NaN."""
    count = math.prod(x.shape[axis] for axis in axes)
    total = build.reduce("reduce_sum", x, axes, True)
    middle = build.mul(total, 1.0 / count) if count else build.div(total, 0.0)
    found = _merge_pieces(x, tuple(sorted(axes)))
    if found is not None:
        middle = build.surrogate(build.reshape(found.mean, middle.shape), middle)
    centred = build.sub(x, build.expand(middle, x.shape))
    squares = build.reduce("reduce_sum", build.mul(centred, centred), axes, True)
    if found is not None:
        squares = build.surrogate(build.reshape(found.squares, squares.shape), squares)
    return Moments(middle, squares)


def mean_and_variance(x: Node, axes: Sequence[int]) -> tuple[Node, Node]:
    """The mean, and the mean of squared differences from it, with extent 1 on `axes`; NaN of no elements."""
    middle, squares = moments(x, axes)
    count = math.prod(x.shape[axis] for axis in axes)
    return middle, build.mul(squares, 1.0 / count) if count else build.div(squares, 0.0)


class _Parts(NamedTuple):
    """Pieces of `each` elements, as [outer, pieces, inner]: means, what rounding took from these, and squares."""

    mean: Node
    rest: Node
    squares: Node
    each: int


def _merge_pieces(x: Node, axes: tuple[int, ...]) -> Moments | None:
    """The moments of what is long, without the reduced axes; None where two passes read memory once."""
    rank, extents = len(x.shape), [x.shape[axis] for axis in axes]
    count = math.prod(extents)
    kept = x.size // count if count else 0
    if build.is_repeated(x, axes):
        return None
    if axes == tuple(range(rank - len(axes), rank)):
        if count < LONG or kept >= FEW_ROWS:
            return None
        return _merge(_cut(build.reshape(x, (kept, count, 1)), PIECE))
    channels, elements = x.shape[1], math.prod(x.shape[2:])
    by_channel = axes == (0, *range(2, rank)) and x.op != "permute" and not x.device.features.workgroups
    if by_channel and count >= LONG and MIN_PIECE_ELEMENTS <= elements <= LONG and x.shape[0] > 1:
        rows = _moments_of(build.reshape(x, (1, x.shape[0] * channels, elements, 1)), elements)
        shape = (1, x.shape[0], channels)
        mean, rest, squares = (build.reshape(part, shape) for part in (rows.mean, rows.rest, rows.squares))
        return _merge([_Parts(mean, rest, squares, elements)])
    return None


def _cut(x: Node, per: int) -> list[_Parts]:
    """Pieces along the middle of three axes: those of `per` elements, and what is left."""
    outer, extent, inner = x.shape
    whole = extent // per
    pieces = build.reshape(build.narrow(x, 1, 0, whole * per), (outer, whole, per, inner))
    parts = [_moments_of(pieces, per)]
    if extent % per:
        rest = build.reshape(build.narrow(x, 1, whole * per, extent), (outer, 1, extent % per, inner))
        parts.append(_moments_of(rest, extent % per))
    return parts


def _moments_of(pieces: Node, count: int) -> _Parts:
    """Mean and squares of each of [outer, pieces, elements, inner], in two passes over a piece. The differences from a
    mean that was rounded do not add up to 0: what they add up to completes it."""
    middle = build.mul(build.reduce("reduce_sum", pieces, (2,), True), 1.0 / count)
    centred = build.sub(pieces, build.expand(middle, pieces.shape))
    squares = build.reduce("reduce_sum", build.mul(centred, centred), (2,))
    left = build.reduce("reduce_sum", centred, (2,))
    rest = build.mul(left, 1.0 / count)
    return _Parts(build.reshape(middle, squares.shape), rest, build.sub(squares, build.mul(left, rest)), count)


def _merge(parts: Sequence[_Parts]) -> Moments:
    """All pieces in one: [outer, 1, inner] of each. Means are taken as distances from the first of them, which loses
    nothing where they are large and near each other."""
    total = sum(part.each * part.mean.shape[1] for part in parts)
    first = build.narrow(parts[0].mean, 1, 0, 1)
    away = [build.add(build.sub(part.mean, build.expand(first, part.mean.shape)), part.rest) for part in parts]

    def over_all(values: Sequence[Node], factors: Sequence[float]) -> Node:
        sums = [build.mul(build.reduce("reduce_sum", x, (1,), True), f) for x, f in zip(values, factors, strict=True)]
        return functools.reduce(build.add, sums)

    middle = over_all(away, [part.each / total for part in parts])
    squares: list[Node] = []
    for part, distance in zip(parts, away, strict=True):
        apart = build.sub(distance, build.expand(middle, distance.shape))
        squares.append(build.add(part.squares, build.mul(build.mul(apart, apart), float(part.each))))
    return Moments(build.add(first, middle), over_all(squares, [1.0] * len(parts)))
