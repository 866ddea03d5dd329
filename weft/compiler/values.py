"""values: what a region computes, as expressions of the kernel language in given axes.

Each value is written by following its index down the graph to memory; movement disappears into the index, and indices
that were loaded become axes of kind 'value' with a definition of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.compiler.access import MOVEMENT, Condition, Indices, address, filling, row_major, source_index
from weft.compiler.plan import Number, Scalar
from weft.compiler.program import LITERAL
from weft.compiler.region import Region
from weft.dtypes import DType, bool_, float32, int32, int64, uint32
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES
from weft.kernels import index as ix
from weft.kernels import math as kernel_math
from weft.kernels import narrow
from weft.kernels.index import Axis, Index
from weft.kernels.language import BufferParam, Expr, IndexValue, Literal, Load, Op, ScalarParam, Store, Var

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
        self.region = Region(
            region.number, region.form, region.shape, region.reduced, region.anchor, region.pointers, index=index
        )
        self.source = region
        self.buffers: dict[Node, BufferParam] = {}
        self.scalars: dict[tuple[str, DType], tuple[ScalarParam, Scalar]] = {}
        self.definitions: dict[str, Expr] = {}
        self.memo: dict[tuple, Expr] = {}
        self.moved: dict[tuple[Node, Indices], tuple[Indices, tuple[Condition, ...]]] = {}
        self.place: dict[Node, Indices] = {}
        self.flops = 0
        self.sites: list[str] = []
        self.loaded_inside: dict[str, bool] = {}  # loaded indices: whether they vary inside a point
        self.checks: list[tuple[Store, bool]] = []  # records of bad indices, and whether they vary inside a point

    def int64_of(self, value: Expr) -> Expr:
        return value if value.dtype is int64 else Op("cast", (value,), int64)

    def whole(self, name: str, value: int) -> Var:
        """An extent that may differ between runs of one kernel: a scalar parameter."""
        self.scalars[(name, int64)] = (ScalarParam(name, int64), value)
        return Var(name, int64)

    def is_read(self, sink: Node) -> bool:
        """Whether a fold's result has to be in memory (someone outside the region wants it)."""
        return sink in self.source.kept_results

    def store(self, sink: Node, at: Indices, value: Expr) -> Store:
        strides = self.source.strides.get(sink) or row_major(sink.shape)
        if sink.dtype.is_narrow:
            value = narrow.packed(value, sink.dtype)
        if sink.op == "write_rows":
            return self._store_row(sink, at, strides, value)
        return Store(self.buffer(sink, written=True), address(at, strides, 0), value)

    def _store_row(self, sink: Node, at: Indices, strides: tuple[int, ...], value: Expr) -> Store:
        """An element of a row that goes where the index says: nowhere, if that is behind the table."""
        (extent,) = sink.attrs
        row = self.int64_of(self.value(sink.srcs[1], at, ()))
        bound = self.whole(f"limit{len(self.definitions)}", extent)
        loaded = Axis(f"g{len(self.definitions)}", extent, "value")
        last = Op("sub", (bound, Literal(1, int64)), int64)
        self.definitions[loaded.name] = Op("max", (Op("min", (row, last), int64), Literal(0, int64)), int64)
        place = address((Index(((loaded, 1),), 0), *at[1:]), strides, 0)
        return Store(self.buffer(sink, written=True), place, value, Op("lt", (row, bound), bool_))

    def buffer(self, node: Node, written: bool = False) -> str:
        param = self.buffers.get(node)
        if param is None:
            param = self.buffers[node] = BufferParam(f"b{len(self.buffers)}", node.dtype, written)
        return param.name

    def know(self, node: Node, at: Indices, value: Expr) -> None:
        """From here on the region's point is `at`, where `node` is `value`."""
        self.region.index = at
        self.memo[(node, at, ())] = value

    def stores(self) -> list[Store]:
        """What the region stores at its point, besides the anchor where nobody else needs that. Checks of indices come
        first: a store may write in place what they read."""
        found = []
        for sink in self.source.sinks:
            if sink is not self.source.anchor or self.is_read(sink) or len(self.source.sinks) == 1:
                at = self.region.indices_for(sink.shape)
                assert at is not None
                found.append(self.store(sink, at, self.value(sink, at, ())))
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
        if node in self.place or node in self.source.reads or node is self.source.anchor:
            return []
        if node.op in MOVEMENT:
            moved, when = self._moved(node, at)
            return [(node.srcs[0], moved, tuple(dict.fromkeys((*conditions, *when))) if when else conditions)]
        if PRIMITIVES[node.op].kind == "elementwise":
            return [(source, at, conditions) for source in node.srcs]
        return []

    def _moved(self, node: Node, at: Indices) -> tuple[Indices, tuple[Condition, ...]]:
        """`access.source_index`, kept for the second look at the same element."""
        found = self.moved.get((node, at))
        if found is None:
            found = self.moved[(node, at)] = source_index(node, at)
        return found

    def _value(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        if node in self.place:
            place = self.place[node]  # `fuse` saw that nobody reads it elsewhere, in axes that may not be these
            assert ix.agree(place, at), f"{node} is known at {place}, not at {at}"
            return self.memo[(node, place, ())]
        if node is self.source.anchor and self.source.form == "template":
            # `fuse` saw that its own region reads it at the point alone, in plain axes; a template's point is written
            # in tiles, where the same index may look different.
            return self.memo[(node, self.region.index, ())]
        if node in self.source.reads or node is self.source.anchor:
            mask = self._mask(conditions)
            written = node is self.source.anchor
            load = Load(self.buffer(node, written), address(at, row_major(node.shape), 0), node.dtype, mask)
            return narrow.unpacked(load) if node.dtype.is_narrow else load
        op = node.op
        if op == "segment_rows":
            row = self.region.row_of(node, at)
            assert row is not None, f"{node} is not known at {at}"
            return IndexValue(row, node.dtype)
        if op == "const":
            return self._const(node.attrs[0], node.dtype)
        if op == "number":
            return self._scalar(f"number{node.attrs[0]}", node.dtype, Number(node.attrs[0]))
        if op == "iota":
            return IndexValue(at[node.attrs[1]], node.dtype)
        if op == "random":
            return self._random(node, at)
        if op == "gather":
            return self._gather(node, at, conditions)
        if op == "in_range":
            return self._in_range(node, at, conditions)
        if op == "write_rows":
            return self.value(node.srcs[0], at, conditions)
        if op in MOVEMENT:
            moved, when = self._moved(node, at)
            if not when:
                return self.value(node.srcs[0], moved, conditions)
            inside = self.value(node.srcs[0], moved, tuple(dict.fromkeys((*conditions, *when))))
            mask = self._mask(when)
            assert mask is not None
            return Op("select", (mask, inside, self._const(filling(node), node.dtype)), inside.dtype)
        args = tuple([self.value(source, at, conditions) for source in node.srcs])
        self.flops += 1
        held = float32 if node.dtype.is_narrow else node.dtype
        if op == "cast":
            result = args[0] if args[0].dtype is held else Op("cast", args, held)
        elif op == "bitcast" and (node.dtype.is_narrow or node.srcs[0].dtype.is_narrow):
            return narrow.bitcast(args[0], node.srcs[0].dtype, node.dtype)
        elif op in TRANSCENDENTAL and held.kind == "f":
            result = kernel_math.build(op, args, held)
        else:
            result = Op(op, args, held)
        return narrow.rounded(result, node.dtype) if node.dtype.is_narrow and op not in EXACT else result

    def _const(self, value: float | int | bool, dtype: DType) -> Expr:
        dtype = float32 if dtype.is_narrow else dtype
        if dtype.kind != "f" or value in LITERAL or value != value:
            return Literal(value, dtype)
        return self._scalar(repr(value), dtype, value)

    def _scalar(self, name: str, dtype: DType, value: Scalar) -> Expr:
        """A number that is handed over with the launch."""
        key = (name, dtype)
        if key not in self.scalars:
            self.scalars[key] = (ScalarParam(f"{NUMBER_PREFIX}{len(self.scalars)}", dtype), value)
        return Var(self.scalars[key][0].name, dtype)

    def _random(self, node: Node, at: Indices) -> Expr:
        shape, draw, width = node.attrs
        state = self.buffer(node.srcs[0])
        key = Load(state, ix.ZERO, uint32)
        base = Load(state, ix.const(1), uint32)
        count = Op("add", (base, self._scalar(f"draw{draw}", uint32, draw)), uint32)
        wide = math.prod(shape) > kernel_math.served(width) << 32
        return kernel_math.random_bits(key, count, ix.linearise(at, shape), width, wide)

    def _gather(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        """A row picked by a loaded index, clamped into range; out of range is recorded by the plan's checks."""
        source, index = node.srcs
        axis, rank = node.attrs[0], len(index.shape)
        extent = source.shape[axis]
        known = self.region.row_of(index, at[axis : axis + rank])
        if known is not None:
            return self.value(source, (*at[:axis], known, *at[axis + rank :]), conditions)
        row = self.int64_of(self.value(index, at[axis : axis + rank], conditions))
        inside = self._inside(at[axis : axis + rank])
        bound: Expr = Literal(extent, int64)
        if axis == 0 and extent > 1:  # tables of any length are one kernel
            bound = self.whole(f"limit{len(self.definitions)}", extent)
        if len(node.attrs) == 1:  # else the rows are known to exist
            varies = inside or self._inside(tuple([index for index, _ in conditions]))
            self.check(node, row, extent, bound, varies, conditions)
        loaded = Axis(f"g{len(self.definitions)}", extent, "value")
        if extent > 1:
            self.loaded_inside[loaded.name] = inside
            last = Op("sub", (bound, Literal(1, int64)), int64)
            row = Op("max", (Op("min", (row, last), int64), Literal(0, int64)), int64)
            self.definitions[loaded.name] = row
        return self.value(source, (*at[:axis], ix.axis_index(loaded), *at[axis + rank :]), conditions)

    def _in_range(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        value = self.value(node.srcs[0], at, conditions)
        varies = self._inside((*at, *[index for index, _ in conditions]))
        self.check(node, self.int64_of(value), node.attrs[0], Literal(node.attrs[0], int64), varies, conditions)
        return value

    def _inside(self, at: Indices) -> bool:
        """Whether an index changes along the inner axes of a point."""
        axes = [axis for index in at for axis in ix.axes_of(index)]
        return any(axis.kind == "reduce" or self.loaded_inside.get(axis.name, False) for axis in axes)

    def check(
        self, node: Node, row: Expr, extent: int, bound: Expr, varies: bool, conditions: tuple[Condition, ...]
    ) -> None:
        """Record an index outside its axis (`extent` long, which is `bound` in the kernel) for the user's line."""
        inside = Op("and", (Op("le", (Literal(0, int64), row), bool_), Op("lt", (row, bound), bool_)), bool_)
        bad: Expr = Op("not", (inside,), bool_)
        mask = self._mask(conditions)
        if mask is not None:
            bad = Op("and", (bad, mask), bool_)
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
                    parts.append(Op("le", (Literal(0, int64), value), bool_))
                if index.high >= bound:
                    parts.append(Op("lt", (value, Literal(bound, int64)), bool_))
                test = parts[0] if len(parts) == 1 else Op("and", tuple(parts), bool_)
                self.memo[key] = test
            mask = test if mask is None else Op("and", (mask, test), bool_)
        return mask
