"""What a region computes, as expressions of the kernel language in given axes.

Each value is written by following its index down the graph to memory; movement disappears into the index, and indices
that were loaded become axes of kind 'value' with a definition of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.base.dtypes import DType, bool_, float32, int32, int64, uint32
from weft.compiler.fusion.index_map import MOVEMENT, Condition, Indices, address, filling, row_major, source_index
from weft.compiler.fusion.region import Domain, Region
from weft.compiler.program import LITERAL
from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import BufferParam, Expr, IndexValue, Literal, Load, Op, ScalarParam, Store, Var
from weft.kernels.math import float16
from weft.kernels.math import functions as kernel_math
from weft.kernels.math.random_bits import elements_per_counter, random_bits
from weft.plan.plan import Number, Scalar

STATUS = Node()  # stands for the plan's status words among the buffers of a kernel
STATUS.op, STATUS.dtype, STATUS.shape = "status", int32, ()

EXACT = frozenset({"neg", "abs", "max", "min", "floor", "select"})  # these leave a rounded value rounded
TRANSCENDENTAL = frozenset(kernel_math.FUNCTIONS)

NUMBER_PREFIX = "s"  # of the scalars that hold constants, numbers and draws; extents have names of their own


def is_number_name(name: str) -> bool:
    """Whether a scalar holds a constant, a number of the run or a draw, by its name."""
    return name.startswith(NUMBER_PREFIX) and name[len(NUMBER_PREFIX) :].isdigit()


class Builder:
    """Writes one region's values as expressions in given axes."""

    def __init__(self, region: Region, index: Indices):
        self.domain = Domain(
            region.number, region.form, region.shape, region.reduced, region.anchor, region.pointers, index=index
        )
        self.source = region
        self.buffers: dict[Node, BufferParam] = {}
        self.scalars: dict[tuple[str, DType], tuple[ScalarParam, Scalar]] = {}
        self.definitions: dict[str, Expr] = {}
        self.memo: dict[tuple, Expr] = {}
        self.moved: dict[tuple[Node, Indices], tuple[Indices, tuple[Condition, ...]]] = {}
        self.known_at: dict[Node, Indices] = {}
        self.flops = 0
        self.sites: list[str] = []
        self.loaded_inside: dict[str, bool] = {}  # loaded indices: whether they vary inside a point
        self.checks: list[tuple[Store, bool]] = []  # records of bad indices, and whether they vary inside a point

    def int64_of(self, value: Expr) -> Expr:
        return value if value.dtype is int64 else value.cast(int64)

    def extent_scalar(self, name: str, value: int) -> Var:
        """An extent that may differ between runs of one kernel: a scalar parameter."""
        self.scalars[(name, int64)] = (ScalarParam(name, int64), value)
        return Var(name, int64)

    def is_retained(self, root: Node) -> bool:
        """Whether the result of a reduction has to be in memory, because it is read outside of the region."""
        return root in self.source.retained

    def store(self, root: Node, at: Indices, value: Expr) -> Store:
        strides = self.source.strides.get(root) or row_major(root.shape)
        if root.dtype.is_16_bit:
            value = float16.pack(value, root.dtype)
        if root.op == "write_rows":
            return self._store_row(root, at, strides, value)
        return Store(self.buffer(root, written=True), address(at, strides, 0), value)

    def _store_row(self, root: Node, at: Indices, strides: tuple[int, ...], value: Expr) -> Store:
        """An element of a row that goes where the index says: nowhere, if that is behind the table."""
        (extent,) = root.attrs
        row = self.int64_of(self.value(root.srcs[1], at, ()))
        bound = self.extent_scalar(f"limit{len(self.definitions)}", extent)
        loaded = Axis(f"g{len(self.definitions)}", extent, "value")
        last = bound - 1
        self.definitions[loaded.name] = row.min(last).max(0)
        place = address((Index(((loaded, 1),), 0), *at[1:]), strides, 0)
        return Store(self.buffer(root, written=True), place, value, row < bound)

    def buffer(self, node: Node, written: bool = False) -> str:
        param = self.buffers.get(node)
        if param is None:
            param = self.buffers[node] = BufferParam(f"b{len(self.buffers)}", node.dtype, written)
        return param.name

    def know(self, node: Node, at: Indices, value: Expr) -> None:
        """From here on the region's point is `at`, where `node` is `value`."""
        self.domain = replace(self.domain, index=at)
        self.memo[(node, at, ())] = value

    def stores(self) -> list[Store]:
        """What the region stores at its point, besides the anchor where that is not needed elsewhere. Checks of indices
        come first: a store may write in place what they read."""
        found = []
        for root in self.source.roots:
            if root is not self.source.anchor or self.is_retained(root) or len(self.source.roots) == 1:
                at = self.domain.indices_for(root.shape)
                assert at is not None
                found.append(self.store(root, at, self.value(root, at, ())))
        found = [*(check for check, _ in self.checks), *found]
        self.checks.clear()
        return found

    # One value. A 16-bit float is held as the float32 of the same value.

    def value(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        """Element `at` of `node`, read only where `conditions` hold. Iterative: chains may be deeper than Python's
        stack."""
        key = (node, at, conditions)
        found = self.memo.get(key)
        if found is not None:
            return found
        pending = [key]
        while pending:
            top = pending[-1]
            if top in self.memo:
                pending.pop()
                continue
            missing = [part for part in self._parts(*top) if part not in self.memo]
            if missing:
                pending.extend(reversed(missing))
            else:
                self.memo[top] = self._value(*top)
                pending.pop()
        return self.memo[key]

    def _parts(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> list[tuple]:
        """The values, as arguments of `value`, that `node` is computed from without a look at memory in between."""
        if node in self.known_at or node in self.source.reads or node is self.source.anchor:
            return []
        if node.op in MOVEMENT:
            moved, when = self._move(node, at)
            return [(node.srcs[0], moved, tuple(dict.fromkeys((*conditions, *when))) if when else conditions)]
        if node.primitive.kind == "elementwise":
            return [(source, at, conditions) for source in node.srcs]
        return []

    def _move(self, node: Node, at: Indices) -> tuple[Indices, tuple[Condition, ...]]:
        """`access.source_index`, kept for the second look at the same element."""
        found = self.moved.get((node, at))
        if found is None:
            found = self.moved[(node, at)] = source_index(node, at)
        return found

    def _value(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        if node in self.known_at:
            known_at = self.known_at[node]  # `fuse` saw that it is not read elsewhere, in axes that may not be these
            assert ix.are_equal(known_at, at), f"{node} is known at {known_at}, not at {at}"
            return self.memo[(node, known_at, ())]
        if node is self.source.anchor and self.source.form == "template":
            # `fuse` saw that its own region reads it at the point alone, in plain axes; a template's point is written
            # in tiles, where the same index may look different.
            return self.memo[(node, self.domain.index, ())]
        if node in self.source.reads or node is self.source.anchor:
            mask = self._mask(conditions)
            written = node is self.source.anchor
            load = Load(self.buffer(node, written), address(at, row_major(node.shape), 0), node.dtype, mask)
            return float16.unpack(load) if node.dtype.is_16_bit else load
        special = _SPECIAL.get(node.op)
        if special is not None:
            return special(self, node, at, conditions)
        if node.op in MOVEMENT:
            return self._movement(node, at, conditions)
        return self._elementwise(node, tuple([self.value(source, at, conditions) for source in node.srcs]))

    def _movement(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        moved, when = self._move(node, at)
        if not when:
            return self.value(node.srcs[0], moved, conditions)
        inside = self.value(node.srcs[0], moved, tuple(dict.fromkeys((*conditions, *when))))
        mask = self._mask(when)
        assert mask is not None
        return mask.select(inside, self._const(filling(node), node.dtype))

    def _elementwise(self, node: Node, args: tuple[Expr, ...]) -> Expr:
        op = node.op
        self.flops += 1
        dtype = float32 if node.dtype.is_16_bit else node.dtype
        if op == "cast":
            result = args[0] if args[0].dtype is dtype else Op("cast", args, dtype)
        elif op == "bitcast" and (node.dtype.is_16_bit or node.srcs[0].dtype.is_16_bit):
            return float16.bitcast(args[0], node.srcs[0].dtype, node.dtype)
        elif op in TRANSCENDENTAL and dtype.kind == "f":
            result = kernel_math.build(op, args, dtype)
        else:
            result = Op(op, args, dtype)
        return float16.round_to(result, node.dtype) if node.dtype.is_16_bit and op not in EXACT else result

    def _segment_row(self, node: Node, at: Indices) -> Expr:
        row = self.domain.row_of(node, at)
        assert row is not None, f"{node} is not known at {at}"
        return IndexValue(row, node.dtype)

    def _const(self, value: float | int | bool, dtype: DType) -> Expr:
        dtype = float32 if dtype.is_16_bit else dtype
        if dtype.kind != "f" or value in LITERAL or value != value:
            return Literal(value, dtype)
        return self._scalar(repr(value), dtype, value)

    def _scalar(self, name: str, dtype: DType, value: Scalar) -> Expr:
        """A number that is passed with the launch."""
        key = (name, dtype)
        if key not in self.scalars:
            self.scalars[key] = (ScalarParam(f"{NUMBER_PREFIX}{len(self.scalars)}", dtype), value)
        return Var(self.scalars[key][0].name, dtype)

    def _random(self, node: Node, at: Indices) -> Expr:
        shape, draw, width = node.attrs
        state = self.buffer(node.srcs[0])
        key = Load(state, ix.ZERO, uint32)
        base = Load(state, ix.const(1), uint32)
        count = base + self._scalar(f"draw{draw}", uint32, draw)
        wide = math.prod(shape) > elements_per_counter(width) << 32
        return random_bits(key, count, ix.linearise(at, shape), width, wide)

    def _gather(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        """A row picked by a loaded index, clamped into range; out of range is recorded by the plan's checks."""
        source, index = node.srcs
        axis, rank = node.attrs.axis, len(index.shape)
        extent = source.shape[axis]
        known = self.domain.row_of(index, at[axis : axis + rank])
        if known is not None:
            return self.value(source, (*at[:axis], known, *at[axis + rank :]), conditions)
        row = self.int64_of(self.value(index, at[axis : axis + rank], conditions))
        inside = self._is_inner(at[axis : axis + rank])
        bound: Expr = Literal(extent, int64)
        if axis == 0 and extent > 1:  # tables of any length are one kernel
            bound = self.extent_scalar(f"limit{len(self.definitions)}", extent)
        if not node.attrs.known:  # else the rows are known to exist
            varies = inside or self._is_inner(tuple([index for index, _ in conditions]))
            self.check(node, row, extent, bound, varies, conditions)
        loaded = Axis(f"g{len(self.definitions)}", extent, "value")
        if extent > 1:
            self.loaded_inside[loaded.name] = inside
            last = bound - 1
            row = row.min(last).max(0)
            self.definitions[loaded.name] = row
        return self.value(source, (*at[:axis], ix.axis_index(loaded), *at[axis + rank :]), conditions)

    def _in_range(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        value = self.value(node.srcs[0], at, conditions)
        varies = self._is_inner((*at, *[index for index, _ in conditions]))
        self.check(node, self.int64_of(value), node.attrs.extent, Literal(node.attrs.extent, int64), varies, conditions)
        return value

    def _is_inner(self, at: Indices) -> bool:
        """Whether an index changes along the inner axes of a point."""
        axes = [axis for index in at for axis in ix.axes_of(index)]
        return any(axis.kind == "reduce" or self.loaded_inside.get(axis.name, False) for axis in axes)

    def check(
        self, node: Node, row: Expr, extent: int, bound: Expr, varies: bool, conditions: tuple[Condition, ...]
    ) -> None:
        """Record an index outside its axis (`extent` long, which is `bound` in the kernel) for the user's line."""
        inside = (0 <= row) & (row < bound)
        bad: Expr = ~inside
        mask = self._mask(conditions)
        if mask is not None:
            bad = bad & mask
        self.record(bad, varies, f"{node.site or 'an unknown line'}: an index outside an axis of extent {extent}")

    def record(self, bad: Expr, varies: bool, message: str) -> None:
        """Set a status word of the plan where `bad` is true; the plan's user sees `message`."""
        site = ix.const(len(self.sites))
        self.sites.append(message)
        self.checks.append((Store(self.buffer(STATUS, written=True), site, Literal(1, int32), bad), varies))

    def _mask(self, conditions: Sequence[Condition]) -> Expr | None:
        mask: Expr | None = None
        for index, bound in conditions:
            key = ("mask", index, bound)
            test = self.memo.get(key)
            if test is None:
                value = IndexValue(index, int64)
                parts: list[Expr] = []
                if index.low < 0:
                    parts.append(0 <= value)
                if index.high >= bound:
                    parts.append(value < bound)
                test = parts[0] if len(parts) == 1 else Op("and", tuple(parts), bool_)
                self.memo[key] = test
            mask = test if mask is None else mask & test
        return mask


# Nodes that are neither movement nor elementwise arithmetic, and how their values are written.
_SPECIAL: dict[str, Callable[[Builder, Node, Indices, tuple[Condition, ...]], Expr]] = {
    "segment_rows": lambda builder, node, at, conditions: builder._segment_row(node, at),
    "const": lambda builder, node, at, conditions: builder._const(node.attrs.value, node.dtype),
    "number": lambda builder, node, at, conditions: builder._scalar(
        f"number{node.attrs.slot}", node.dtype, Number(node.attrs.slot)
    ),
    "iota": lambda builder, node, at, conditions: IndexValue(at[node.attrs.axis], node.dtype),
    "random": lambda builder, node, at, conditions: builder._random(node, at),
    "gather": lambda builder, node, at, conditions: builder._gather(node, at, conditions),
    "in_range": lambda builder, node, at, conditions: builder._in_range(node, at, conditions),
    "write_rows": lambda builder, node, at, conditions: builder.value(node.srcs[0], at, conditions),
}
