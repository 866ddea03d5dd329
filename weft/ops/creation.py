"""Nodes made from nothing: constants, ranges, identities and random numbers.

Random numbers come from bits of a counter-based generator: `state` is the uint32 pair (key, base) and `draw` a small
number, so that element i of draw d is the same on every device, fused or not.
"""

from __future__ import annotations

import math
from typing import Any

from weft.base.dtypes import DType, bfloat16, float16, float32, float64, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Number, Shape
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import as_int, need_float


def arange(start: Number, end: Number, step: Number, dtype: DType, device: Any) -> Node:
    """start, start + step, ... up to but not including end; all three are cut to whole numbers for integer dtypes."""
    _need_number_dtype("arange", dtype)
    if not all(math.isfinite(value) for value in (start, end, step)):
        raise problem(RangeError, "arange", f"{start} to {end} by {step}", "finite numbers")
    if dtype.kind in "iu":
        start, end, step = int(start), int(end), int(step)
    if step == 0 or (end - start) / step < 0:
        raise problem(ShapeError, "arange", f"{start} to {end} by {step}", "a step that leads from start to end")
    count = max(math.ceil((end - start) / step), 0)
    work = widest_float(device) if dtype.kind == "f" else int64  # so that a long float range does not drift
    numbers = build.cast(build.iota((count,), 0, device), work)
    return build.cast(build.add(build.mul(numbers, step), start), dtype)


def widest_float(device: Any) -> DType:
    """float64, or float32 on a device without it."""
    return float64 if float64 in device.dtypes else float32


def linspace(start: Node | float, end: Node | float, steps: int, dtype: DType, device: Any) -> Node:
    """`steps` numbers from start to end, both included; each half counts from its own end. For integer dtypes the ends
    are cut to whole numbers first."""
    return build.cast(_space_evenly("linspace", start, end, steps, dtype, device), dtype)


def logspace(start: Node | float, end: Node | float, steps: int, base: float, dtype: DType, device: Any) -> Node:
    """`base` to the power of the numbers of `linspace`, cut to whole numbers for integer dtypes."""
    powers = _space_evenly("logspace", start, end, steps, dtype, device)
    return build.cast(build.binary("pow", build.like(powers, float(base)), powers), dtype)


def _space_evenly(who: str, start: Node | float, end: Node | float, steps: int, dtype: DType, device: Any) -> Node:
    """The numbers of `linspace` in the widest float; ends are numbers, or nodes without axes."""
    _need_number_dtype(who, dtype)
    count = as_int(who, steps, "number of steps")
    if count < 0:
        raise problem(RangeError, who, f"{count} steps", "at least 0")
    low, high = (_end(who, end_, dtype, device) for end_ in (start, end))
    gap = build.div(build.sub(high, low), float(max(count - 1, 1)))
    low, high, gap = (build.expand(build.reshape(one, (1,)), (count,)) for one in (low, high, gap))
    numbers = build.cast(build.iota((count,), 0, device), widest_float(device))
    up = build.add(build.mul(numbers, gap), low)
    down = build.sub(high, build.mul(build.sub(float(count - 1), numbers), gap))
    return build.select(build.lt(numbers, max(count / 2, 1)), up, down)


def _end(who: str, end: Node | float, dtype: DType, device: Any) -> Node:
    """One end of `linspace`, without axes."""
    if not isinstance(end, Node):
        return build.full((), float(int(end)) if dtype.kind in "iu" else float(end), widest_float(device), device)
    if end.shape:
        raise problem(ShapeError, who, f"an end of shape {end.shape}", "a number, or a tensor without axes")
    return build.cast(build.cast(end, int64) if dtype.kind in "iu" else end, widest_float(device))


def _need_number_dtype(who: str, dtype: DType) -> None:
    if dtype.kind == "b":
        raise problem(DTypeError, who, "dtype bool", "a float or integer dtype")


def eye(rows: int, columns: int, dtype: DType, device: Any) -> Node:
    """1 on the main diagonal, 0 elsewhere: [rows, columns]."""
    shape = (rows, columns)
    return build.cast(make_canonical("eq", (build.iota(shape, 0, device), build.iota(shape, 1, device))), dtype)


def bits(state: Node, draw: int, shape: Shape, width: int = 32) -> Node:
    """`width` random bits (16 or 32) for each element, as uint32."""
    return make_canonical("random", (state,), (shape, draw, width))


def words(state: Node, draw: int, shape: Shape) -> tuple[Node, Node]:
    """Twice 32 random bits for each element, as uint32. One draw."""
    both = bits(state, draw, (2, *shape))
    first, second = (build.reshape(build.narrow(both, 0, number, number + 1), shape) for number in (0, 1))
    return first, second


def uniform(state: Node, draw: int, shape: Shape, dtype: DType) -> Node:
    """Uniform in [0, 1): 24 random bits, 53 in float64, or as many as a 16-bit float holds. One draw."""
    if dtype is float64:
        high, low = words(state, draw, shape)
        number = build.mul(build.cast(build.binary("shr", high, 5), float64), 2.0**26)
        return build.mul(build.add(number, build.cast(build.binary("shr", low, 6), float64)), 2.0**-53)
    count = {float16: 11, bfloat16: 8}.get(dtype, 24)
    work = float32 if dtype.is_16_bit else dtype
    high = build.cast(build.binary("shr", bits(state, draw, shape), 32 - count), work)
    return build.cast(build.mul(high, 2.0**-count), dtype)


def normal(state: Node, draw: int, shape: Shape, dtype: DType) -> Node:
    """Mean 0, variance 1, by Box and Muller. Two draws."""
    if dtype.is_16_bit:
        return build.cast(normal(state, draw, shape, float32), dtype)
    radius = build.unary(
        "sqrt", build.mul(build.unary("log", build.sub(1.0, uniform(state, draw, shape, dtype))), -2.0)
    )
    angle = build.mul(uniform(state, draw + 1, shape, dtype), 2.0 * math.pi)
    return build.mul(radius, build.unary("cos", angle))


def integers(state: Node, draw: int, low: int, high: int, shape: Shape, dtype: DType) -> Node:
    """Whole numbers in [low, high), at most 2^31 of them: the high half of a 32 by 31 bit product. One draw."""
    product = build.mul(build.cast(bits(state, draw, shape), int64), high - low)
    return build.cast(build.add(build.binary("shr", product, 32), low), dtype)


def bernoulli(state: Node, draw: int, p: Node) -> Node:
    """1 with probability `p`, else 0, in the dtype of `p`. One draw."""
    need_float("bernoulli", p)
    work = float32 if p.dtype.is_16_bit else p.dtype
    return build.cast(build.lt(uniform(state, draw, p.shape, work), build.cast(p, work)), p.dtype)


def keep_mask(state: Node, draw: int, shape: Shape, probability: float) -> Node:
    """True with the given probability, in steps of 2^-16: 16 random bits compared with a threshold. One draw."""
    return build.lt(bits(state, draw, shape, 16), round(probability * 2.0**16))


def dropout(x: Node, p: float, state: Node, draw: int) -> Node:
    """Each element 0 with probability `p` in (0, 1), else divided by 1 - p. One draw."""
    need_float("dropout", x)
    return build.select(keep_mask(state, draw, x.shape, 1.0 - p), build.mul(x, 1.0 / (1.0 - p)), 0.0)


def check_probability(who: str, p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise problem(RangeError, who, f"p={p}", "a probability, 0 to 1")
