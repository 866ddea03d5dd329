"""Distributions of random numbers as nodes, from the bits of `weft.ops.creation`.

As there, `state` is the uint32 pair (key, base) and `draw` the number of the first draw. 16-bit floats are drawn in
float32 and rounded once.
"""

from __future__ import annotations

import math

from weft.dtypes import DType, float32, float64, int64, integer_bounds, uint64
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.node import Node
from weft.ops import creation, scans, sorting
from weft.ops.creation import bits, uniform_draws
from weft.ops.elementwise import ceil

WEIGHT_BITS = 52  # of the whole numbers that stand for the probabilities of a row, all together


def work_dtype(dtype: DType) -> DType:
    """The dtype that numbers of `dtype` are drawn in."""
    return float32 if dtype.is_narrow else dtype if dtype.kind == "f" else float64


def open_uniform(state: Node, draw: int, shape: Shape, dtype: DType) -> Node:
    """Uniform in (0, 1) without both ends, in float32 or float64: the middles of 2^23 or 2^52 equal intervals.
    `uniform_draws(dtype)` draws."""
    if dtype is float64:
        high, low = (build.cast(build.binary("shr", bits(state, draw + i, shape), 6), float64) for i in (0, 1))
        return build.mul(build.add(build.add(build.mul(high, 2.0**26), low), 0.5), 2.0**-52)
    number = build.cast(build.binary("shr", bits(state, draw, shape), 9), dtype)
    return build.mul(build.add(number, 0.5), 2.0**-23)


def uniform_between(state: Node, draw: int, shape: Shape, dtype: DType, low: Number, high: Number) -> Node:
    """Uniform in [low, high). What rounds to `high` becomes `low`. `uniform_draws` draws."""
    work = work_dtype(dtype)
    unit = creation.uniform(state, draw, shape, work)
    value = build.cast(build.add(build.mul(unit, high - low), low), dtype)
    return build.select(build.lt(value, high), value, low)


def normal(state: Node, draw: int, shape: Shape, dtype: DType, mean: Node | Number, std: Node | Number) -> Node:
    """Normal; mean and std are numbers or nodes of this shape. Twice `uniform_draws` draws."""
    work = work_dtype(dtype)
    mean, std = (build.cast(one, work) if isinstance(one, Node) else one for one in (mean, std))
    unit = creation.normal(state, draw, shape, work)
    return build.cast(build.add(build.mul(unit, std), mean), dtype)


def log_normal(state: Node, draw: int, shape: Shape, dtype: DType, mean: Number, std: Number) -> Node:
    """exp of a normal number. Twice `uniform_draws` draws."""
    return build.cast(build.unary("exp", normal(state, draw, shape, work_dtype(dtype), mean, std)), dtype)


def exponential(state: Node, draw: int, shape: Shape, dtype: DType, rate: Number) -> Node:
    """Exponential with mean 1 / rate, always above 0. `uniform_draws` draws."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype))
    return build.cast(build.mul(build.unary("log", unit), -1.0 / rate), dtype)


def cauchy(state: Node, draw: int, shape: Shape, dtype: DType, median: Number, sigma: Number) -> Node:
    """Cauchy: the cotangent of a uniform angle, from the nearer end, where it is precise. `uniform_draws` draws."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype))
    is_low = build.lt(unit, 0.5)
    angle = build.mul(build.select(is_low, unit, build.sub(1.0, unit)), math.pi)
    size = build.div(build.unary("cos", angle), build.unary("sin", angle))
    value = build.select(is_low, build.neg(size), size)
    return build.cast(build.add(build.mul(value, sigma), median), dtype)


def geometric(state: Node, draw: int, shape: Shape, dtype: DType, p: Number) -> Node:
    """The number of trials up to the first success, from 1 on; at most the largest number of an integer dtype.
    `uniform_draws` draws."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype))
    trials = ceil(build.mul(build.unary("log", unit), 1.0 / math.log1p(-p)))
    trials = build.binary("max", trials, 1.0)
    if dtype.kind != "f":
        largest = integer_bounds(dtype)[1]
        trials = build.binary("min", trials, float(largest) if largest < 2**53 else math.nextafter(float(largest), 0))
    return build.cast(trials, dtype)


def bernoulli(state: Node, draw: int, shape: Shape, dtype: DType, p: Number) -> Node:
    """1 with probability `p`, else 0. Two draws: p counts to 53 bits."""
    return build.cast(build.lt(creation.uniform(state, draw, shape, float64), p), dtype)


def whole_numbers(state: Node, draw: int, low: int, high: int, shape: Shape, dtype: DType) -> Node:
    """Whole numbers in [low, high), any number of them up to 2^64: the remainder of 64 bits. Two draws."""
    span = high - low
    number = bits64(state, draw, shape)
    if span < 1 << 64:
        number = build.binary("mod", number, span)
    if dtype is uint64:
        return build.add(number, low)
    return build.cast(build.add(build.bitcast(number, int64), low), dtype)


def bits64(state: Node, draw: int, shape: Shape) -> Node:
    """64 random bits for each element, as uint64. Two draws."""
    high, low = (build.cast(bits(state, draw + i, shape), uint64) for i in (0, 1))
    return build.binary("or", build.binary("shl", high, 32), low)


def permutation(state: Node, draw: int, count: int, dtype: DType) -> Node:
    """The numbers below `count` in random order: the order of as many random keys of 64 bits. Two draws."""
    keys = build.bitcast(bits64(state, draw, (count,)), int64)
    return build.cast(build.argsort(keys), dtype)


def categories_again(state: Node, draw: int, weights: Node, count: int) -> Node:
    """`count` indices into each row of weights [..., n], each with the probability of its weight. Two draws.

    Weights become whole numbers, so that running sums are exact: what has weight 0 is never drawn, and what has more
    can be. A row without weights gives n.
    """
    weights = build.cast(weights, float64)
    *rows, extent = weights.shape
    last = len(rows)
    total = build.reduce("reduce_sum", weights, (last,), keepdim=True)
    share = build.div(weights, build.expand(total, weights.shape))
    whole = build.cast(ceil(build.mul(share, 2.0**WEIGHT_BITS)), int64)
    sums = scans.cumsum(whole, -1)
    end = build.expand(build.narrow(sums, last, extent - 1, extent), (*rows, count))
    unit = creation.uniform(state, draw, (*rows, count), float64)
    place = build.cast(build.mul(unit, build.cast(end, float64)), int64)
    place = build.binary("max", build.binary("min", place, build.sub(end, 1)), 0)
    return sorting.searchsorted(sums, place, right=True)


def categories_once(state: Node, draw: int, weights: Node, count: int) -> Node:
    """`count` different indices into each row of weights [..., n], drawn one after the other. Two draws.

    Each category finishes after an exponential time with its weight as the rate; the first ones are taken.
    """
    times = exponential(state, draw, weights.shape, float64, 1.0)
    return sorting.topk(build.div(build.cast(weights, float64), times), count).indices


__all__ = [
    "bernoulli", "bits64", "categories_again", "categories_once", "cauchy", "exponential", "geometric", "log_normal",
    "normal", "open_uniform", "permutation", "uniform_between", "uniform_draws", "whole_numbers", "work_dtype",
]  # fmt: skip
