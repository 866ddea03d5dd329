"""More operations for random graphs: markers, checkpoints, convolutions, kernels of users, narrow dtypes.

Each function draws one operation with a `random_graphs.Builder`; None where the bounds would be left.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import weft
from tests.backend.random_indexing import index_for
from weft import kernel
from weft.base.dtypes import bfloat16, float16, int8, int16, uint8, uint16, uint64
from weft.core.tensor import Tensor
from weft.grad.checkpoint import Segment, segment
from weft.graph import build
from weft.graph.attributes import Geometry
from weft.graph.convolve import conv, conv_input, conv_weight
from weft.graph.node import Node
from weft.graph.primitives import make_node

NARROW = {float16: 2.0**-10, bfloat16: 2.0**-7}  # the step at 1
LIMITS = {int8: 127, uint8: 255, int16: 2**15 - 1, uint16: 2**16 - 1, uint64: 2**62}


def marked(builder):
    """A value that waits for another, or stands in front of a proxy of which only the derivative counts."""
    x = builder.some_float()
    if x is None:
        return None
    if builder.chance(2):
        other = builder.some()
        return replace(x, node=make_node("after", (x.node, other.node)))
    return replace(x, node=build.surrogate(x.node, builder.partner(x).node))


def checkpointed(builder):
    """All of a value, or the part above some values drawn before, computed again for the gradient."""
    x = builder.some_float()
    if x is None:
        return None
    inputs = [builder.some().node for _ in range(builder.draw(st.integers(0, 2)))]
    part = segment([x.node], [node for node in inputs if node is not x.node], 0)
    return replace(x, node=make_node("checkpoint", (x.node,), (part,))) if part.body else None


def transplanted_segment(part: Segment, new: dict[Node, Node]) -> Segment:
    """The same segment of a graph over other leaves."""
    return Segment(tuple([new[node] for node in part.body]), tuple([new[node] for node in part.inputs]))


def checked(builder):
    x = builder.some(lambda value: value.kind == "i" and value.bound < 1e6 and value.node.dtype.itemsize >= 4)
    if x is None:
        return None
    inside = build.unary("abs", x.node)
    return replace(x, node=build.in_range(inside, int(x.bound) + 1, "somewhere"))


def updated(builder):
    """Some writes into windows: of new values, repeated or not, or of what lies in another window."""
    x = builder.some(lambda value: value.node.shape and value.node.size)
    if x is None:
        return None
    node, bound, shape = x.node, x.bound, x.node.shape
    for _ in range(builder.pick([1, 2, 5])):
        steps = tuple([builder.pick([1, 1, 2, 3]) for _ in shape])
        extents = tuple([builder.pick([1, 1, -(-n // step)]) for n, step in zip(shape, steps, strict=True)])
        spans = [(extent - 1) * step + 1 for extent, step in zip(extents, steps, strict=True)]
        starts, others = (
            tuple([builder.draw(st.integers(0, n - span)) for n, span in zip(shape, spans, strict=True)])
            for _ in range(2)
        )
        if builder.chance(2):
            stops = tuple([start + span for start, span in zip(others, spans, strict=True)])
            value = build.slice_(node, others, stops, steps)
        else:
            small = builder.leaf(tuple([1 if builder.chance(3) else n for n in extents]), node.dtype)
            value, bound = build.expand(small.node, extents), max(bound, small.bound)
        node = build.update_slice(node, value, starts, steps)
    return replace(x, node=node, bound=bound)


def convolution(builder):
    """Channels last, one to three spatial axes, any geometry; forward, transposed, or the gradient of the weight."""
    x = builder.some(lambda value: len(value.node.shape) in (3, 4, 5) and value.node.size and value.kind == "f")
    if x is None:
        space = [builder.pick([1, 3, 8]) for _ in range(builder.pick([1, 2, 3]))]
        x = builder.leaf((builder.pick([1, 3]), *space, builder.pick([1, 3, 16])), builder.floats)
    if x.node.dtype.itemsize < 4:
        return None
    batch, *space, channels = x.node.shape
    groups = builder.pick([1, 1, channels]) if channels <= 17 else builder.pick([1, 2]) if channels % 2 == 0 else 1
    taps = tuple([builder.pick([1, 2, 3]) for _ in space])
    outputs = groups * builder.pick([1, 3, 8, 33])
    draw = [tuple([builder.pick(options) for _ in space]) for options in ([1, 1, 2], [0, 1], [0, 1, 2], [1, 1, 2])]
    how = Geometry(*draw, groups)
    extents = how.extents(tuple(space), taps)
    inside, pixels = channels // groups, batch * math.prod(extents)
    if min(extents) <= 0 or pixels * outputs > 6000 or math.prod(taps) * inside > 2000:
        return None
    way = builder.pick([conv, conv, conv_input, conv_weight])
    if way is conv:
        other, terms = builder.leaf((*taps, inside, outputs), x.node.dtype), math.prod(taps) * inside
        node = conv(x.node, other.node, how)
    elif way is conv_weight:
        other, terms = builder.leaf((batch, *extents, outputs), x.node.dtype), pixels
        node = conv_weight(x.node, other.node, taps, how)
    else:  # `x` is what came out of a convolution of some smaller number of channels
        terms = math.prod(taps) * inside
        back = [
            (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(space, how.strides, how.dilations, taps, strict=True)
        ]
        wide = tuple([n - low - high for n, low, high in zip(back, how.lows, how.highs, strict=True)])
        if min(wide) <= 0 or batch * math.prod(wide) * groups > 6000:
            return None
        other = builder.leaf((*taps, 1, channels), x.node.dtype)
        node = conv_input(x.node, other.node, wide, how)
    eps, bound = float(np.finfo(x.node.dtype.numpy).eps), terms * x.bound * other.bound
    error = terms * x.error * other.bound + (4 + terms) * eps * bound
    mean = build.mul(node, 1.0 / terms)
    return replace(x, node=mean, bound=bound / terms, error=(error + eps * bound) / terms)


def multiplied(builder):
    """Products of numbers of at most 1: running, or of scattered rows; and a running logarithm of sums."""
    x = builder.some(lambda value: value.node.shape and value.node.size and value.kind == "f" and value.bound <= 20)
    if x is None or x.node.dtype.itemsize < 4:
        return None
    eps, way = float(np.finfo(x.node.dtype.numpy).eps), builder.pick(["scatter", "prod", "logaddexp"])
    if way == "scatter":
        rows, table = x.node.shape[0], builder.pick([1, 3, 17])
        if x.node.size // rows * table > 6000:
            return None
        small = build.unary("tanh", x.node)
        node = build.scatter("prod", index_for(builder, (rows,), table), small, table)
        return replace(x, node=node, bound=1.0, error=rows * (x.error + 8 * eps))
    axis = builder.draw(st.integers(0, len(x.node.shape) - 1))
    count = x.node.shape[axis]
    if count > 1000:
        return None
    if way == "prod":
        node = build.scan("prod", build.unary("tanh", x.node), axis, builder.chance(2))
        return replace(x, node=node, bound=1.0, error=count * (x.error + 8 * eps))
    bound = x.bound + math.log(count)
    node = build.scan("logaddexp", x.node, axis, builder.chance(2))
    return replace(x, node=node, bound=bound, error=x.error + 8 * (count + 1) * eps * (1 + bound))


def half_slope(call, gradients, copies):
    """The gradient rule of a call with one result: half of what is right."""
    return tuple([build.mul(gradients[0], 0.5) for _ in call.srcs])


def called(builder):
    """A function with a gradient rule of its own."""
    x = builder.some_float()
    if x is None:
        return None
    call = make_node("call", (x.node,), (half_slope,))
    return replace(x, node=make_node("result", (build.neg(x.node), call), (0,)))


@weft.kernel(over=lambda x: x.shape[0])
def alternating(i, x, out):
    """Neighbours taken away from each other along the rows, forwards."""
    out[i, 0] = x[i, 0]
    for j in kernel.loop(1, x.shape[1]):
        out[i, j] = x[i, j] - 0.5 * out[i, j - 1]


@weft.kernel(out=lambda x: [x, ((x.shape[1], x.shape[0]), x.dtype)])
def turned(i, j, x, p, q):
    """The larger of an element and the one below, and the transpose."""
    p[i, j] = kernel.maximum(x[i, j], x.load(i + 1, j, other=-1.0))
    q[j, i] = -x[i, j]


def users_kernel(builder):
    x = builder.some(lambda value: len(value.node.shape) == 2 and value.node.size and value.kind == "f")
    if x is None or x.node.dtype.itemsize < 4:
        return None
    given = Tensor(build.stop_gradient(x.node))
    if builder.chance(2):
        eps = float(np.finfo(x.node.dtype.numpy).eps)
        error = 0.0 if x.exact else 2 * x.error + 8 * eps * x.bound
        return replace(x, node=alternating(given).node, bound=2 * x.bound, error=error)
    one, two = turned(given)
    return replace(x, node=one.node, bound=max(x.bound, 1.0)) if builder.chance(2) else replace(x, node=two.node)


def transplanted_kernel(attrs: tuple, device) -> tuple:
    """The same kernel as devices of this kind run it."""
    definition, _, numbers = attrs
    for written in (alternating, turned):
        for (*given, _), known in list(written._definitions.items()):
            if known is definition:
                made = written._definition(*given, device.features.workgroups)
                return made, made.digest, numbers
    return attrs


def narrowed(builder):
    """Through a narrow dtype and back: one rounding of the same number."""
    x = builder.some(lambda value: value.kind in "if")
    if x is None:
        return None
    if x.kind == "f":
        dtype = builder.pick(list(NARROW))
        error = x.error + (0.0 if x.exact else NARROW[dtype] * (x.bound + x.error))
        return replace(x, node=build.cast(build.cast(x.node, dtype), x.node.dtype), bound=1.01 * x.bound, error=error)
    fitting = [dtype for dtype in LIMITS if x.bound <= LIMITS[dtype]]
    if not fitting:
        return None
    dtype = builder.pick(fitting)
    source = build.unary("abs", x.node) if dtype.kind == "u" else x.node
    narrow = build.cast(source, dtype)
    op = builder.pick(["max", "min", "and", "or", "xor", ""])
    if op:
        narrow = build.binary(op, narrow, build.like(narrow, builder.pick([1, 3])))
    return replace(x, node=build.cast(narrow, x.node.dtype), bound=2 * x.bound + 4)


SMOOTH = (marked, checkpointed, updated, convolution, multiplied, called, users_kernel)
JUMPS = (checked, narrowed)
