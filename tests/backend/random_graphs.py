"""Random graphs over all primitives, for hypothesis.

A graph is drawn over placeholders and transplanted to a device later. Every value carries a bound on its size and on
the error that floating-point arithmetic may leave in it: what involves only exact operations must come out the same to
the last bit everywhere, the rest within its error. Operations are chosen so that neither bound grows large, and
operations with jumps (floor, comparisons, casts to integers) only look at exact values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import weft
from tests.backend import random_elementwise as elementwise
from tests.backend import random_indexing as indexing
from tests.backend import random_loops
from tests.backend import random_movement as movement
from tests.backend import random_operations as more
from tests.backend.random_values import HOME, LARGEST, LEAST_OVERFLOW, Value, broadcasts, unit, whole_bound
from weft.base.dtypes import (
    SIGNED,
    UNSIGNED,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    from_numpy,
    int32,
    int64,
    uint32,
)  # fmt: skip
from weft.graph import build
from weft.graph.node import Node, placeholder, toposort
from weft.graph.primitives import make_node, results_of
from weft.plan.device import Device

EXTENTS = [1, 3, 7, 17, 33, 64, 65]
LARGE_SHAPES = [(130, 33), (300, 17), (40000,), (3, 12000), (2, 70, 33), (260, 260), (70000,)]  # where sums are split
MOST_BOUND, MOST_ERROR = 1e3, 1e-3


@dataclass
class Graph:
    """What was drawn: leaves with their arrays, and the values to compare."""

    leaves: dict[Node, np.ndarray] = field(default_factory=dict)
    outputs: list[Value] = field(default_factory=list)
    writes: dict[Node, Value] = field(default_factory=dict)  # new values for leaves, all from old ones

    def on(self, device: str | Device) -> list[Node]:
        """The outputs over leaves on `device`."""
        return transplant(
            self.outputs, {node: weft.tensor(array, device=device).node for node, array in self.leaves.items()}
        )


def transplant(outputs: list[Value], leaves: dict[Node, Node]) -> list[Node]:
    """The same graph over other leaves, on their device."""
    device = next(iter(leaves.values())).device
    new: dict[Node, Node] = dict(leaves)
    # All nodes, also those that another test has computed: equal nodes are one.
    for node in toposort([value.node for value in outputs], new.__contains__):
        if node not in new:
            sources = tuple(new[source] for source in node.srcs)
            attrs = node.attrs
            if node.op == "checkpoint":
                attrs = (more.transplanted_segment(attrs.segment, new),)
            if node.op == "custom":
                attrs = more.transplanted_kernel(attrs, device)
            if node.op == "loop":
                attrs = attrs._replace(body=random_loops.transplanted_body(attrs.body, device))
            new[node] = make_node(node.op, sources, attrs, dtype=node.dtype, device=device, site=node.site)
    return [new[value.node] for value in outputs]


class Builder:
    """Draws one graph. Each method draws one operation; None where the bounds would be left."""

    def __init__(self, draw, floats: DType, smooth: bool, large: Sequence[tuple[int, ...]]):
        self.draw, self.floats, self.smooth, self.large = draw, floats, smooth, large
        self.graph = Graph()
        self.values: list[Value] = []
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.state = self.leaf_of(np.array([self.rng.integers(2**32), 5], np.uint32), 0.0).node
        self.draws = 0

    # ---- choosing ----------------------------------------------------------------------------------------------

    def pick(self, options):
        return self.draw(st.sampled_from(options))

    def chance(self, one_in: int) -> bool:
        return self.draw(st.integers(1, one_in)) == 1

    def shape(self) -> tuple[int, ...]:
        if self.chance(6):
            return self.pick(self.large)
        shape: list[int] = []
        for _ in range(self.draw(st.integers(0, 4))):
            extent = self.pick(EXTENTS)
            if math.prod(shape) * extent <= LARGEST:
                shape.append(extent)
        return tuple(shape)

    def some(self, accept=lambda value: True) -> Value | None:
        """A value drawn so far, the later ones more often."""
        fitting = [value for value in self.values if accept(value)]
        if not fitting:
            return None
        return self.pick(fitting if self.chance(3) else fitting[-3:])

    def some_float(self) -> Value | None:
        return self.some(lambda value: value.kind == "f")

    # ---- leaves ------------------------------------------------------------------------------------------------

    def leaf_of(self, array: np.ndarray, bound: float) -> Value:
        node = placeholder(array.shape, from_numpy(array.dtype), HOME)
        self.graph.leaves[node] = array
        return Value(node, bound)

    def leaf(self, shape: tuple[int, ...], dtype: DType) -> Value:
        if dtype.kind == "f":
            return self.leaf_of(self.rng.uniform(-2, 2, shape).astype(dtype.numpy), 2.0)
        if dtype is bool_:
            return self.leaf_of(self.rng.random(shape) < 0.5, 1.0)
        numbers = self.rng.integers(-9, 10, shape)
        return self.leaf_of((abs(numbers) if dtype.kind == "u" else numbers).astype(dtype.numpy), 9.0)

    def new_leaf(self) -> Value:
        kinds = [self.floats]
        if not self.smooth:
            kinds += [self.floats] * 4
            kinds += [int32, int64, bool_, float64, self.pick(SIGNED + UNSIGNED), self.pick([float16, bfloat16])]
        return self.leaf(self.shape(), self.pick(kinds))

    def source(self) -> Value | None:
        """A value made from nothing."""
        return self.pick([self.new_leaf, self.new_leaf, self.new_random, self.new_iota, self.new_constant])()

    def new_iota(self) -> Value | None:
        shape = self.shape()
        if not shape:
            return None
        axis = self.draw(st.integers(0, len(shape) - 1))
        node = build.iota(shape, axis, HOME, self.pick([int32, int64]))
        value = Value(node, float(shape[axis]))
        return elementwise.cast_to(self, value, self.floats) if self.smooth else value

    def new_random(self) -> Value:
        width = self.pick([16, 32])
        bits = make_node("random", (self.state,), (self.shape(), self.draws, width))
        self.draws += 1
        count = 8 if self.floats.is_16_bit else min(24, width)
        high = build.cast(build.binary("shr", bits, width - count), self.floats)
        return Value(build.mul(high, 2.0**-count), 1.0)

    def new_constant(self) -> Value:
        number = self.pick([0.0, 1.0, -0.5, 2.0, 0.1])
        return Value(build.full(self.shape(), number, self.floats, HOME), abs(number))

    # ---- a second operand -------------------------------------------------------------------------------------------

    def partner(self, x: Value) -> Value:
        """Another value of the same shape and dtype: drawn before, broadcast, a reduction of `x`, or new."""
        shape, dtype = x.node.shape, x.node.dtype
        way = self.draw(st.integers(0, 4))
        if way == 0:
            other = self.some(lambda value: value.node.shape == shape and value.node.dtype is dtype)
            if other is not None:
                return other
        if way == 1:
            other = self.some(lambda value: value.node.dtype is dtype and broadcasts(value.node.shape, shape))
            if other is not None:
                return Value(build.expand_to(other.node, shape), other.bound, other.error)
        if way == 2 and shape and dtype is not bool_:
            folded = self.reduced(x, keepdim=True)
            if folded is not None:
                return Value(build.expand(folded.node, shape), folded.bound, folded.error)
        if way == 3:
            number = True if dtype is bool_ else self.pick([1, 2, 3 if dtype.kind == "u" else -3])
            return Value(build.full(shape, number, dtype, HOME), 3.0)
        spread = tuple(1 if self.chance(3) else extent for extent in shape)
        small = self.leaf(spread[self.draw(st.integers(0, len(spread))) :], dtype)
        return Value(build.expand_to(small.node, shape), small.bound)

    # ---- reductions and products -------------------------------------------------------------------------------

    def reduce(self) -> Value | None:
        x = self.some(lambda value: value.node.shape and value.kind != "b")
        return None if x is None else self.reduced(x, keepdim=self.chance(2))

    def reduced(self, x: Value, keepdim: bool) -> Value | None:
        shape = x.node.shape
        axes = self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape)))
        count = math.prod(shape[axis] for axis in axes)
        if not count:
            return None
        op = self.pick(["reduce_sum", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod"])
        node = build.reduce(op, x.node, tuple(axes), keepdim)
        if op in ("reduce_max", "reduce_min"):
            return Value(node, x.bound, x.error)
        if x.kind in "iu":
            return Value(node, whole_bound(x.bound * count, x.node.dtype)) if op == "reduce_sum" else None
        eps = unit(x.node.dtype)
        if op == "reduce_sum" and self.overflows(x.node.dtype, x.bound * count):
            return None
        if op == "reduce_sum":  # as a mean, so that it stays small
            bound = x.bound * count
            error = x.error * count + (4 + math.sqrt(count)) * eps * bound
            return Value(build.mul(node, 1.0 / count), x.bound, error / count + eps * x.bound)
        if count > 16 or max(x.bound, 1.0) ** count > MOST_BOUND:
            return None
        bound = max(x.bound, 1.0) ** count
        return Value(node, bound, count * bound * (x.error + 2 * eps))

    @staticmethod
    def overflows(dtype: DType, bound: float) -> bool:
        return dtype is float16 and bound >= LEAST_OVERFLOW

    def softmax(self) -> Value | None:
        """Several reductions over the same rows that need each other."""
        x = self.some(lambda value: value.node.shape and value.node.size and value.kind == "f" and value.bound <= 20.0)
        if x is None:
            return None
        axes = (self.draw(st.integers(0, len(x.node.shape) - 1)),)
        shape, count = x.node.shape, x.node.shape[axes[0]]
        peak = build.stop_gradient(build.reduce("reduce_max", x.node, axes, True))
        e = build.unary("exp", build.sub(x.node, build.expand(peak, shape)))
        total = build.expand(build.reduce("reduce_sum", e, axes, True), shape)
        return Value(build.div(e, total), 1.0, 4 * (x.error + (8 + x.bound + math.sqrt(count)) * unit(x.node.dtype)))

    def attention(self) -> Value | None:
        """Attention of a value to itself, its heads and rows in any order, or with other keys; the result alone."""
        x = self.some(
            lambda value: len(value.node.shape) == 4 and value.node.size and value.kind == "f" and value.bound <= 4.0
        )
        if x is None:
            x = self.leaf((self.pick([1, 3]), self.pick([1, 7, 17]), self.pick([1, 3]), self.pick([3, 8])), self.floats)
        if x.node.dtype.itemsize < 4:
            return None
        q = build.permute(x.node, self.pick([(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2)]))
        batch, heads, queries, width = q.shape
        keys = queries if self.chance(2) else self.pick([1, 17, 70])
        kv_heads = self.pick([1, heads])
        if batch * heads * keys * max(width, queries) > 20 * LARGEST:
            return None
        k = (
            Value(q, x.bound)
            if keys == queries and kv_heads == heads
            else self.leaf((batch, kv_heads, keys, width), q.dtype)
        )
        v = self.leaf((batch, kv_heads, keys, self.pick([1, 5, 33])), q.dtype)
        srcs, masked, causal = [q, k.node, v.node], self.chance(3), self.chance(2)
        if masked:
            mask = self.rng.random((self.pick([1, heads]), queries, keys)) < 0.7
            srcs.append(build.expand_to(self.leaf_of(mask, 1.0).node, (batch, heads, queries, keys)))
        out, _ = results_of(make_node("attention", tuple(srcs), (0.5 / math.sqrt(width), causal, masked, 0.0, 0)))
        spread = math.sqrt(width) * x.bound * max(k.bound, 1.0)  # of the scores
        inexact = 2 * math.sqrt(width) * x.error * max(k.bound, 1.0) + (8 + spread + math.sqrt(width + keys)) * unit(
            q.dtype
        )
        return Value(out, v.bound, 4 * v.bound * inexact)

    def dot(self) -> Value | None:
        x = self.some(lambda value: len(value.node.shape) >= 2 and value.kind == "f")
        if x is None:
            return None
        *batch, rows, inner = x.node.shape
        if not inner:
            return None
        columns = self.pick([1, 3, 17, 33, 64])
        if math.prod(batch) * rows * columns > LARGEST:
            return None
        if self.chance(4) and rows * rows * math.prod(batch) <= LARGEST:
            y = Value(build.swap_last(x.node), x.bound, x.error)
        elif self.chance(2):
            transposed = self.leaf((*batch, columns, inner), x.node.dtype)
            y = Value(build.swap_last(transposed.node), transposed.bound)
        else:
            plain = self.leaf((inner, columns), x.node.dtype)
            y = Value(build.expand_to(plain.node, (*batch, inner, columns)), plain.bound)
        bound, eps = inner * x.bound * y.bound, unit(x.node.dtype)
        if self.overflows(x.node.dtype, bound):
            return None
        error = inner * (x.error * y.bound + y.error * x.bound) + (4 + math.sqrt(inner)) * eps * bound
        product = build.mul(build.dot(x.node, y.node), 1.0 / inner)
        return Value(product, bound / inner, error / inner + eps * bound / inner)

    # ---- the whole graph ---------------------------------------------------------------------------------------

    def build(self, least: int, most: int) -> Graph:
        self.values.append(self.leaf(self.shape(), self.floats))
        common = [elementwise.unary, elementwise.binary, elementwise.binary, Builder.reduce, *[movement.movement] * 3]
        common += [Builder.dot, elementwise.select, Builder.softmax, movement.concat, elementwise.marker]
        common += [Builder.source, movement.fold, Builder.attention]
        common += [*indexing.SMOOTH, *more.SMOOTH, random_loops.looped]
        jumps = [elementwise.whole, elementwise.compare, elementwise.logic, elementwise.cast]
        jumps += [*indexing.JUMPS, *more.JUMPS]
        jumps = [] if self.smooth else jumps
        for _ in range(self.draw(st.integers(least, most))):
            value = self.pick(common + jumps)(self)
            if value is not None and self.is_tame(value):
                self.values.append(value)
        used = {source for value in self.values for source in toposort([value.node])[:-1]}
        ends = [value for value in self.values if value.node not in used and value.node not in self.graph.leaves]
        wanted = ends[-4:] if ends else self.values[-1:]
        others = [value for value in self.values if value.node.srcs]
        if others and self.chance(2):
            wanted = [*wanted, self.pick(others)]
        self.graph.outputs = list({value.node: value for value in wanted}.values())
        return self.graph

    @staticmethod
    def is_tame(value: Value) -> bool:
        """Whether a value and its error stay small; integers may wrap as they like."""
        most = max(MOST_ERROR, 32 * unit(value.node.dtype)) if value.node.dtype.is_16_bit else MOST_ERROR
        return (value.bound <= MOST_BOUND or value.kind in "iu") and value.error <= most * max(value.bound, 1e-3)

    def drop_unused_leaves(self) -> None:
        needed = set(toposort([value.node for value in (*self.graph.outputs, *self.graph.writes.values())]))
        self.graph.leaves = {
            node: array for node, array in self.graph.leaves.items() if node in needed or node in self.graph.writes
        }

    def build_writes(self) -> None:
        """Assign some leaves: values of the graph that fit, or something made of the leaf itself."""
        leaves = [node for node in self.graph.leaves if node.dtype.kind == "f"]
        for node in self.draw(st.permutations(leaves))[:3]:
            fitting = [
                value for value in self.values if value.node.size == node.size and value.node.dtype is node.dtype
            ]
            if fitting and self.chance(2):
                new = build.reshape(self.pick(fitting).node, node.shape)
            else:
                new = self.renewed(node)
            self.graph.writes[node] = Value(new, 1.0)

    def renewed(self, x: Node) -> Node:
        way = self.draw(st.integers(0, 4))
        if way == 0 and x.shape:
            return build.flip(x, (self.draw(st.integers(0, len(x.shape) - 1)),))
        if way == 1 and x.shape:
            mean = build.mul(build.reduce("reduce_sum", x, (len(x.shape) - 1,), True), 1.0 / x.shape[-1])
            return build.sub(x, build.expand(mean, x.shape))
        if way == 2 and len(x.shape) > 1:
            return build.reshape(build.swap_last(x), x.shape)
        if way == 3 and x.shape:
            flat = build.reshape(x, (x.size,))
            cut = self.draw(st.integers(0, x.size))
            return build.reshape(
                build.concat([build.narrow(flat, 0, cut, x.size), build.narrow(flat, 0, 0, cut)], 0), x.shape
            )
        return build.add(build.mul(x, 0.5), 1.0)


def draw_graph(
    draw, least: int = 5, most: int = 25, floats: DType | None = None, smooth: bool = False, writes: bool = False,
    large: Sequence[tuple[int, ...]] = LARGE_SHAPES,
) -> Graph:  # fmt: skip
    """A graph of about `least` to `most` operations, mostly of `floats` (drawn if None). `smooth` leaves out integers
    and jumps, for gradients, and means float32 if `floats` is None; `writes` draws new values for some leaves. One
    shape in six is one of `large`."""
    if floats is None:
        floats = float32 if smooth else draw(st.sampled_from([float32] * 6 + [float64, float16, bfloat16]))
    builder = Builder(draw, floats, smooth, large)
    graph = builder.build(least, most)
    if writes:
        builder.build_writes()
    builder.drop_unused_leaves()
    if not graph.leaves:  # constants only: a leaf gives them a device
        node = placeholder((2,), uint32, HOME)
        graph.leaves[node] = np.zeros(2, np.uint32)
    return graph


graphs = st.composite(draw_graph)
