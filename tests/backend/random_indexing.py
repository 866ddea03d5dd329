"""Operations for random graphs that gather, sort, scan and scatter.

Each function draws one operation with a `random_graphs.Builder`; None where the bounds would be left.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from tests.backend.random_values import HOME, LARGEST, Value, unit, whole_bound
from weft.base.dtypes import float32, int32, int64
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node


def index_for(builder, shape: tuple[int, ...], extent: int) -> Node:
    if builder.chance(3) and shape:
        counted = build.iota(shape, len(shape) - 1, HOME)
        return build.binary("mod", build.mul(counted, 5), extent)
    array = builder.rng.integers(0, extent, shape).astype(builder.pick([np.int32, np.int64]))
    return builder.leaf_of(array, float(extent)).node


def gather(builder) -> Value | None:
    x = builder.some(lambda value: value.node.shape and value.node.size)
    if x is None:
        return None
    shape = x.node.shape
    axis = builder.draw(st.integers(0, len(shape) - 1))
    picked = builder.pick([(), (1,), (5,), (17,), (2, 3)])
    if x.node.size // shape[axis] * math.prod(picked) > LARGEST:
        return None
    return Value(build.gather(x.node, index_for(builder, picked, shape[axis]), axis), x.bound, x.error)


def scatter(builder) -> Value | None:
    x = builder.some(lambda value: value.node.shape and value.node.size and value.kind == "f")
    if x is None:
        return None
    rows, table = x.node.shape[0], builder.pick([1, 3, 17, 40])
    if x.node.size // rows * table > LARGEST:
        return None
    bound, eps = x.bound * rows, unit(x.node.dtype)
    if builder.overflows(x.node.dtype, bound):
        return None
    index, fold = index_for(builder, (rows,), table), builder.pick(["add", "add", "max", "min"])
    node = build.scatter(fold, index, x.node, table)
    if fold != "add":
        return bounded(fold, node, x)
    error = x.error * rows + (4 + math.sqrt(rows)) * eps * bound
    return Value(build.mul(node, 1.0 / rows), x.bound, error / rows + eps * x.bound)


def scan(builder) -> Value | None:
    x = builder.some(lambda value: value.node.shape and value.node.size and value.kind != "b")
    if x is None:
        return None
    axis = builder.draw(st.integers(0, len(x.node.shape) - 1))
    count, eps = x.node.shape[axis], unit(x.node.dtype)
    node = build.scan(op := builder.pick(["sum", "max", "min"]), x.node, axis, builder.chance(2))
    if op != "sum":
        return Value(node, x.bound, x.error)
    if x.kind in "iu":
        return Value(node, whole_bound(x.bound * count, x.node.dtype))
    bound = x.bound * count
    if builder.overflows(x.node.dtype, bound):
        return None
    error = x.error * count + (4 + count) * eps * bound
    return Value(build.mul(node, 1.0 / count), x.bound, error / count + eps * x.bound)


def along(builder) -> Value | None:
    x = builder.some(lambda value: value.node.shape and value.node.size and value.kind == "f")
    if x is None:
        return None
    axis = builder.draw(st.integers(0, len(x.node.shape) - 1))
    shape, other = x.node.shape, builder.pick([1, 3, 17])
    if x.node.size // shape[axis] * other > LARGEST:
        return None
    picked = (*shape[:axis], other, *shape[axis + 1 :])
    if builder.chance(2):
        return Value(build.along(x.node, index_for(builder, picked, shape[axis]), axis), x.bound, x.error)
    count, eps = shape[axis], unit(x.node.dtype)
    node = build.along_add(index_for(builder, shape, other), x.node, axis, other)
    error = x.error * count + (4 + count) * eps * x.bound * count
    return Value(build.mul(node, 1.0 / count), x.bound, error / count + eps * x.bound)


def argsort(builder) -> Value | None:
    x = builder.some(lambda value: value.node.shape and value.node.size and value.exact and value.kind in "if")
    if x is None:
        return None
    keys = x.node
    if keys.dtype.itemsize < 4:
        keys = build.cast(keys, float32 if x.kind == "f" else int32)
    if x.kind == "f":
        keys = build.bitcast(keys, int32 if keys.dtype.itemsize == 4 else int64)
    return Value(build.argsort(keys), float(keys.shape[-1]))


def bounded(fold: str, node: Node, x: Value) -> Value:
    """A maximum or minimum of some of `x`, where the identity, which is infinite, becomes a bound of `x`."""
    return Value(build.binary(fold, node, -x.bound if fold == "max" else x.bound), x.bound, x.error)


def segments(builder, elements: int) -> Node:
    """Row pointers for that many elements; some rows have none."""
    rows = builder.pick([1, 2, 7, 40])
    inner = np.sort(builder.rng.integers(0, elements + 1, rows - 1))
    pointers = np.concatenate([[0], inner, [elements]]).astype(builder.pick([np.int32, np.int64]))
    return builder.leaf_of(pointers, float(elements)).node


def segment(builder) -> Value | None:
    """Rows folded by segments; their softmax; or neighbours' rows, folded, whose gradient is by segments too."""
    x = builder.some(lambda value: value.node.shape and value.node.size and value.kind == "f")
    if x is None or 40 * x.node.size > LARGEST * x.node.shape[0]:
        return None
    count, eps = x.node.shape[0], unit(x.node.dtype)
    if builder.chance(3) and x.bound <= 20.0:
        pointers = segments(builder, count)
        rows = build.segment_rows(pointers, count)
        peak = build.stop_gradient(build.segment("max", x.node, pointers))
        e = build.unary("exp", build.sub(x.node, build.gather(peak, rows, 0)))
        total = build.gather(build.segment("sum", e, pointers), rows, 0)
        return Value(build.div(e, total), 1.0, 4 * (x.error + (8 + x.bound + math.sqrt(count)) * eps))
    data = x.node
    if builder.chance(2):
        col = builder.rng.integers(0, count, count)
        order = np.argsort(col, kind="stable")
        starts = np.searchsorted(col[order], np.arange(count + 1))
        parts = [builder.leaf_of(part.astype(np.int32), float(count)).node for part in (col, starts, order)]
        data = make_node("gather_neighbors", (x.node, *parts))
    fold = builder.pick(["sum", "sum", "max", "min"])
    node = build.segment(fold, data, segments(builder, count))
    if fold != "sum":
        return bounded(fold, node, x)
    error = x.error * count + (4 + math.sqrt(count)) * eps * x.bound * count
    return Value(build.mul(node, 1.0 / count), x.bound, error / count + eps * x.bound)


SMOOTH = (gather, scatter, scan, along, segment)
JUMPS = (argsort,)
