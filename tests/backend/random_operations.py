"""More operations for random graphs: markers, checkpoints, convolutions, kernels of users, narrow dtypes.

Each function draws one operation with a `random_graphs.Builder`; None where the bounds would be left.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

import weft
from weft import kernel
from weft.dtypes import bfloat16, float16, int8, int16, uint8, uint16, uint64
from weft.grad.checkpoint import Segment, segment
from weft.graph import build
from weft.graph.convolve import Geometry, conv
from weft.graph.node import Node
from weft.graph.primitives import make
from weft.tensor import Tensor

NARROW = {float16: 2.0**-10, bfloat16: 2.0**-7}  # the step at 1
LIMITS = {int8: 127, uint8: 255, int16: 2**15 - 1, uint16: 2**16 - 1, uint64: 2**62}


def marked(builder):
    """A value that waits for another, or stands in front of a proxy of which only the derivative counts."""
    x = builder.some_float()
    if x is None:
        return None
    if builder.chance(2):
        other = builder.some()
        return replace(x, node=make("after", (x.node, other.node)))
    return replace(x, node=build.surrogate(x.node, builder.partner(x).node))


def checkpointed(builder):
    """All of a value, or the part above some values drawn before, computed again for the gradient."""
    x = builder.some_float()
    if x is None:
        return None
    inputs = [builder.some().node for _ in range(builder.draw(st.integers(0, 2)))]
    part = segment([x.node], [node for node in inputs if node is not x.node], 0)
    return replace(x, node=make("checkpoint", (x.node,), (part,))) if part.body else None


def transplanted_segment(part: Segment, new: dict[Node, Node]) -> Segment:
    """The same segment of a graph over other leaves."""
    return Segment(tuple([new[node] for node in part.body]), tuple([new[node] for node in part.inputs]))


def checked(builder):
    x = builder.some(lambda value: value.kind == "i" and value.bound < 1e6 and value.node.dtype.itemsize >= 4)
    if x is None:
        return None
    inside = build.unary("abs", x.node)
    return replace(x, node=build.in_range(inside, int(x.bound) + 1, "somewhere"))


def convolution(builder):
    """Channels last, one or two spatial axes, any geometry."""
    x = builder.some(lambda value: len(value.node.shape) in (3, 4) and value.node.size and value.kind == "f")
    if x is None or x.node.dtype.itemsize < 4:
        return None
    *_, channels = x.node.shape
    space = x.node.shape[1:-1]
    groups = builder.pick([1, 1, channels]) if channels <= 17 else 1
    taps = tuple([builder.pick([1, 2, 3]) for _ in space])
    outputs = groups * builder.pick([1, 3, 8])
    draw = [tuple([builder.pick(options) for _ in space]) for options in ([1, 1, 2], [0, 1], [0, 1, 2], [1, 1, 2])]
    how = Geometry(*draw, groups)
    extents = how.extents(space, taps)
    terms = math.prod(taps) * channels // groups
    if min(extents) <= 0 or x.node.shape[0] * math.prod(extents) * outputs > 6000 or terms > 2000:
        return None
    w = builder.leaf((*taps, channels // groups, outputs), x.node.dtype)
    eps, bound = float(np.finfo(x.node.dtype.numpy).eps), terms * x.bound * w.bound
    error = terms * x.error * w.bound + (4 + terms) * eps * bound
    mean = build.mul(conv(x.node, w.node, how), 1.0 / terms)
    return replace(x, node=mean, bound=bound / terms, error=(error + eps * bound) / terms)


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


SMOOTH = (marked, checkpointed, convolution, users_kernel)
JUMPS = (checked, narrowed)
