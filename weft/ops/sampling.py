"""Distributions of random numbers as nodes, from the bits of `weft.ops.creation`.

As there, `state` is the uint32 pair (key, base) and `draw` the number of the first draw. 16-bit floats are drawn in
float32 and rounded once.
"""

from __future__ import annotations

import math
from typing import Any

from weft.base.dtypes import DType, finfo, float32, float64, int64, integer_bounds, uint64
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.node import Node
from weft.ops import creation, scans, sorting
from weft.ops.creation import bits, words
from weft.ops.matrix_functions import orthogonal_factor
from weft.ops.normal import ndtri
from weft.ops.unary_functions import ceil

FEW_EVENTS = 10.0  # mean of a Poisson distribution below which probabilities are added up
MAX_FEW_EVENTS = 56  # more have a probability below 1e-20 there
ATTEMPTS = 24  # candidates for a number of the Poisson distribution
PART_BITS = 40  # of the whole number that stands for the largest weight of a row, on devices without float64
WEIGHT_BITS = 52  # of the whole numbers that stand for the probabilities of a row, all together


def work_dtype(dtype: DType, device: Any) -> DType:
    """The dtype that numbers of `dtype` are drawn in."""
    return float32 if dtype.is_16_bit else dtype if dtype.kind == "f" else creation.widest_float(device)


def open_uniform(state: Node, draw: int, shape: Shape, dtype: DType) -> Node:
    """Uniform in (0, 1) without both ends, in float32 or float64: the middles of 2^23 or 2^52 equal intervals.
    One draw."""
    if dtype is float64:
        high, low = (build.cast(build.binary("shr", one, 6), float64) for one in words(state, draw, shape))
        return build.mul(build.add(build.add(build.mul(high, 2.0**26), low), 0.5), 2.0**-52)
    number = build.cast(build.binary("shr", bits(state, draw, shape), 9), dtype)
    return build.mul(build.add(number, 0.5), 2.0**-23)


def uniform_between(state: Node, draw: int, shape: Shape, dtype: DType, low: Number, high: Number) -> Node:
    """Uniform in [low, high). What rounds to `high` becomes `low`. One draw."""
    work = work_dtype(dtype, state.device)
    unit = creation.uniform(state, draw, shape, work)
    value = build.cast(build.add(build.mul(unit, high - low), low), dtype)
    return build.select(build.lt(value, high), value, low)


def normal(state: Node, draw: int, shape: Shape, dtype: DType, mean: Node | Number, std: Node | Number) -> Node:
    """Normal; mean and std are numbers or nodes of this shape. Two draws."""
    work = work_dtype(dtype, state.device)
    mean, std = (build.cast(one, work) if isinstance(one, Node) else one for one in (mean, std))
    unit = creation.normal(state, draw, shape, work)
    return build.cast(build.add(build.mul(unit, std), mean), dtype)


def truncated_normal(
    state: Node, draw: int, shape: Shape, dtype: DType, mean: Number, std: Number, low: Number, high: Number
) -> Node:
    """Normal within [low, high], by the inverse of the distribution function, on the side where that is precise. One
    draw. An interval farther than 37 standard deviations from the mean has all its numbers at its nearer end."""
    a, b = (low - mean) / std, (high - mean) / std
    is_upper = a + b > 0
    a, b = (-b, -a) if is_upper else (a, b)  # now most of the interval is below the mean
    first, last = (0.5 * math.erfc(-end / math.sqrt(2.0)) for end in (a, b))
    work = float64 if last < 2.0**-64 else work_dtype(dtype, state.device)
    unit = open_uniform(state, draw, shape, work)
    position = build.binary("max", build.add(build.mul(unit, last - first), first), finfo(work).tiny)
    value = build.mul(ndtri(position), -std if is_upper else std)
    value = build.cast(build.add(value, mean), dtype)
    return build.binary("min", build.binary("max", value, low), high)


def sparse_columns(state: Node, draw: int, shape: Shape, dtype: DType, std: Number, zeros: int) -> Node:
    """Normal with mean 0, and `zeros` elements of each column [rows, columns] 0. Three draws."""
    keys = build.bitcast(bits64(state, draw + 2, shape[::-1]), int64)
    rank = build.permute(build.argsort(build.argsort(keys)), (1, 0))  # the rank of each element in its column
    return build.select(build.lt(rank, zeros), 0.0, normal(state, draw, shape, dtype, 0.0, std))


def orthogonal(state: Node, draw: int, shape: Shape, dtype: DType, gain: Number) -> Node:
    """`gain` times a matrix [rows, rest] with orthonormal rows or columns, whichever are fewer, uniform among them; the
    axes from the second on are the columns. Two draws."""
    rows = shape[0]
    columns = math.prod(shape[1:])
    tall = (max(rows, columns), min(rows, columns))
    work = work_dtype(dtype, state.device)
    value = build.mul(orthogonal_factor(creation.normal(state, draw, tall, work)), gain)
    value = value if rows >= columns else build.permute(value, (1, 0))
    return build.cast(build.reshape(value, shape), dtype)


def log_normal(state: Node, draw: int, shape: Shape, dtype: DType, mean: Number, std: Number) -> Node:
    """exp of a normal number. Two draws."""
    return build.cast(build.unary("exp", normal(state, draw, shape, work_dtype(dtype, state.device), mean, std)), dtype)


def exponential(state: Node, draw: int, shape: Shape, dtype: DType, rate: Number) -> Node:
    """Exponential with mean 1 / rate, always above 0. One draw."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype, state.device))
    return build.cast(build.mul(build.unary("log", unit), -1.0 / rate), dtype)


def cauchy(state: Node, draw: int, shape: Shape, dtype: DType, median: Number, sigma: Number) -> Node:
    """Cauchy: the cotangent of a uniform angle, from the nearer end, where it is precise. One draw."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype, state.device))
    is_low = build.lt(unit, 0.5)
    angle = build.mul(build.select(is_low, unit, build.sub(1.0, unit)), math.pi)
    size = build.div(build.unary("cos", angle), build.unary("sin", angle))
    value = build.select(is_low, build.neg(size), size)
    return build.cast(build.add(build.mul(value, sigma), median), dtype)


def geometric(state: Node, draw: int, shape: Shape, dtype: DType, p: Number) -> Node:
    """The number of trials up to the first success, from 1 on; at most the largest number of an integer dtype.
    One draw."""
    unit = open_uniform(state, draw, shape, work_dtype(dtype, state.device))
    trials = ceil(build.mul(build.unary("log", unit), 1.0 / math.log1p(-p)))
    trials = build.binary("max", trials, 1.0)
    if dtype.kind != "f":
        largest = integer_bounds(dtype)[1]
        trials = build.binary("min", trials, float(largest) if largest < 2**53 else math.nextafter(float(largest), 0))
    return build.cast(trials, dtype)


def bernoulli(state: Node, draw: int, shape: Shape, dtype: DType, p: Number) -> Node:
    """1 with probability `p`, else 0. One draw: p counts to 53 bits. Without float64 these are compared as an integer,
    with the same result."""
    if float64 in state.device.dtypes:
        return build.cast(build.lt(creation.uniform(state, draw, shape, float64), p), dtype)
    high, low = (build.cast(one, int64) for one in words(state, draw, shape))
    number = build.binary("or", build.binary("shl", build.binary("shr", high, 5), 26), build.binary("shr", low, 6))
    return build.cast(build.lt(number, math.ceil(p * 2.0**53)), dtype)


def whole_numbers(state: Node, draw: int, low: int, high: int, shape: Shape, dtype: DType) -> Node:
    """Whole numbers in [low, high), any number of them up to 2^64: the remainder of 64 bits. One draw."""
    span = high - low
    number = bits64(state, draw, shape)
    if span < 1 << 64:
        number = build.binary("mod", number, span)
    if dtype is uint64:
        return build.add(number, low)
    return build.cast(build.add(build.bitcast(number, int64), low), dtype)


def poisson(state: Node, draw: int, rate: Node) -> Node:
    """Numbers of events with the means `rate`, a float node, in its dtype. Three draws."""
    mean = build.cast(rate, float64)
    few = _poisson_by_inversion(creation.uniform(state, draw, rate.shape, float64), mean)
    many = _poisson_by_rejection(state, draw + 1, mean)
    return build.cast(build.select(build.lt(mean, FEW_EVENTS), few, many), rate.dtype)


def _poisson_by_inversion(unit: Node, mean: Node) -> Node:
    """How many of the probabilities of at most 0, 1, 2, ... events a uniform number is not below; for small means."""
    wide = (MAX_FEW_EVENTS, *mean.shape)
    mean, unit = (build.expand_to(build.binary("min", one, FEW_EVENTS), wide) for one in (mean, unit))
    events = build.cast(build.iota(wide, 0, mean.device), float64)
    logs = build.sub(build.sub(build.mul(events, build.unary("log", mean)), mean), _log_factorial(events))
    terms = build.unary("exp", build.select(build.lt(events, 1.0), build.neg(mean), logs))
    is_beyond = build.binary("le", scans.cumsum(terms, 0), unit)
    return build.reduce("reduce_sum", build.cast(is_beyond, float64), (0,))


def _poisson_by_rejection(state: Node, draw: int, mean: Node) -> Node:
    """The first candidate that is accepted, by Hoermann's transformed rejection (PTRS, 1993); for means from 10 on.

    All candidates are made at once. At most one in 4 is rejected, all of them with a probability below 1e-14; then the
    mean is used.
    """
    wide = (ATTEMPTS, *mean.shape)
    mean = build.binary("max", mean, FEW_EVENTS)
    spread = build.add(build.mul(build.unary("sqrt", mean), 2.53), 0.931)
    skew = build.add(build.mul(spread, 0.02483), -0.059)
    scale = build.add(build.div(1.1328, build.sub(spread, 3.4)), 1.1239)
    surely = build.sub(0.9277, build.div(3.6224, build.sub(spread, 2.0)))
    mu, spread, skew, scale, surely = (build.expand_to(one, wide) for one in (mean, spread, skew, scale, surely))
    u = build.sub(open_uniform(state, draw, wide, float64), 0.5)
    v = open_uniform(state, draw + 1, wide, float64)
    inner = build.sub(0.5, build.unary("abs", u))
    slope = build.add(build.div(build.mul(skew, 2.0), inner), spread)
    events = build.unary("floor", build.add(build.add(build.mul(slope, u), mu), 0.43))
    bound = build.add(build.div(skew, build.mul(inner, inner)), spread)
    given = build.unary("log", build.div(build.mul(v, scale), bound))
    whole = build.binary("max", events, 0.0)
    log_density = build.sub(build.sub(build.mul(whole, build.unary("log", mu)), mu), _log_factorial(whole))
    is_sure = build.binary("and", build.binary("le", build.like(inner, 0.07), inner), build.binary("le", v, surely))
    is_far = build.binary("and", build.lt(inner, 0.013), build.lt(inner, v))
    is_under = build.binary("and", build.binary("le", given, log_density), build.unary("not", is_far))
    is_under = build.binary("and", is_under, build.binary("le", build.like(events, 0.0), events))
    accepted = build.binary("or", is_sure, is_under)
    number = build.iota(wide, 0, mean.device)
    first = build.reduce("reduce_min", build.select(accepted, number, ATTEMPTS), (0,), keepdim=True)
    chosen = build.select(build.eq(number, build.expand(first, wide)), events, 0.0)
    found = build.reduce("reduce_sum", chosen, (0,))
    none = build.eq(build.reshape(first, mean.shape), ATTEMPTS)
    return build.select(none, build.unary("floor", mean), found)


def _log_factorial(events: Node) -> Node:
    """log(n!) for whole numbers from 0 on in float64: Stirling's series at n + 9, less the factors up to there."""
    factors = build.add(events, 1.0)
    for step in range(2, 9):
        factors = build.mul(factors, build.add(events, float(step)))
    z = build.add(events, 9.0)
    square = build.mul(z, z)
    series = build.div(
        build.add(build.div(build.add(build.div(1.0 / 1260.0, square), -1.0 / 360.0), square), 1.0 / 12.0), z
    )
    log_gamma = build.sub(build.mul(build.sub(z, 0.5), build.unary("log", z)), z)
    return build.sub(
        build.add(build.add(log_gamma, 0.5 * math.log(2.0 * math.pi)), series), build.unary("log", factors)
    )


def bits64(state: Node, draw: int, shape: Shape) -> Node:
    """64 random bits for each element, as uint64. One draw."""
    high, low = (build.cast(one, uint64) for one in words(state, draw, shape))
    return build.binary("or", build.binary("shl", high, 32), low)


def permutation(state: Node, draw: int, count: int, dtype: DType) -> Node:
    """The numbers below `count` in random order: the order of as many random keys of 64 bits. One draw."""
    keys = build.bitcast(bits64(state, draw, (count,)), int64)
    return build.cast(build.argsort(keys), dtype)


def categories_again(state: Node, draw: int, weights: Node, count: int) -> Node:
    """`count` indices into each row of weights [..., n], each with the probability of its weight. One draw.

    Weights become whole numbers, so that running sums are exact: what has weight 0 is never drawn, and what has more
    can be. A row without weights gives n.
    """
    if float64 not in weights.device.dtypes:
        return _categories_without_float64(state, draw, weights, count)
    weights = build.cast(weights, float64)
    *rows, extent = weights.shape
    last = len(rows)
    total = build.reduce("reduce_sum", weights, (last,), keepdim=True)
    share = build.div(weights, build.expand(total, weights.shape))
    whole = build.cast(ceil(build.mul(share, 2.0**WEIGHT_BITS)), int64)
    sums = scans.cumsum(whole, -1)
    end = build.expand(build.narrow(sums, last, extent - 1, extent), (*rows, count))
    unit = creation.uniform(state, draw, (*rows, count), float64)
    position = build.cast(build.mul(unit, build.cast(end, float64)), int64)
    position = build.binary("max", build.binary("min", position, build.sub(end, 1)), 0)
    return sorting.searchsorted(sums, position, right=True)


def _categories_without_float64(state: Node, draw: int, weights: Node, count: int) -> Node:
    """`categories_again` in float32 and int64: weights are counted in parts of the largest of their row, each rounded
    up, and the number that is looked for among the running sums is a remainder of 63 bits."""
    weights = build.cast(weights, float32)
    *rows, extent = weights.shape
    last = len(rows)
    largest = build.reduce("reduce_max", weights, (last,), keepdim=True)
    share = build.div(weights, build.expand(largest, weights.shape))  # NaN in a row without weights, which becomes 0
    parts = 2.0 ** min(PART_BITS, 62 - extent.bit_length())
    sums = scans.cumsum(build.cast(ceil(build.mul(share, parts)), int64), -1)
    end = build.expand(build.narrow(sums, last, extent - 1, extent), (*rows, count))
    number = build.bitcast(build.binary("shr", bits64(state, draw, (*rows, count)), 1), int64)
    position = build.binary("mod", number, build.binary("max", end, 1))
    return sorting.searchsorted(sums, position, right=True)


def categories_once(state: Node, draw: int, weights: Node, count: int) -> Node:
    """`count` different indices into each row of weights [..., n], drawn one after the other. One draw.

    Each category finishes after an exponential time with its weight as the rate; the first ones are taken.
    """
    work = creation.widest_float(weights.device)
    times = exponential(state, draw, weights.shape, work, 1.0)
    return sorting.topk(build.div(build.cast(weights, work), times), count).indices
