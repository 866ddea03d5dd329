"""lower: a region becomes a nest of loops with expressions in the kernel language.

First the axes: parallel axes flatten into one, except the axis that lies side by side in memory. Then the values: each
sink is written as an expression by following its index down the graph; movement disappears into the index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from weft.kernels.language import (
    Accumulator,
    BufferParam,
    Expr,
    IndexValue,
    Literal,
    Load,
    Op,
    ScalarParam,
    Store,
    Var,
)
from weft.kernels.nest import ColumnSum, Nest, Span

if TYPE_CHECKING:
    from weft.compiler.fuse import Home

STATUS = Node()  # stands for the plan's status words among the buffers of a kernel
STATUS.op, STATUS.dtype, STATUS.shape = "status", int32, ()

PER_PIECE = Var("per_piece", int64)  # how much of the cut axis one piece of a split reduction takes

SHORT = 8  # elements side by side that are too few for vector lanes
EXACT = frozenset({"neg", "abs", "max", "min", "floor", "select"})  # these leave a rounded value rounded
TRANSCENDENTAL = frozenset({"exp", "log", "sin", "cos", "tanh", "erf", "log1p", "expm1", "pow"})


@dataclass(frozen=True, slots=True)
class Lowered:
    """A nest, the node behind each of its buffers, the values of its scalars, and how many points it has."""

    nest: Nest
    uses: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    points: int
    flops: int
    sites: tuple[str, ...]


def lower(region: Region) -> Lowered:
    """Write a region (of form 'map', 'rows', 'cols' or 'split') as a nest."""
    if region.form == "map":
        return _lower_map(region)
    if region.form == "split":
        return _lower_split(region)
    return _lower_fold(region)


# --- axes ------------------------------------------------------------------------------------------------------------


def _lower_map(region: Region) -> Lowered:
    groups = merge(region)
    if len(groups) <= 1:
        points = Axis("i", math.prod(region.shape))
        return Builder(region, ix.delinearise(ix.axis_index(points), region.shape)).nest(points, "points", None, ())
    while len(groups) > 2 and groups[-1].extent < SHORT:  # lanes across both: their pattern is the same in each vector
        groups[-2:] = [Group(groups[-2].first, groups[-2].shape + groups[-1].shape)]
    side = _side_by_side(region, groups)
    lane = Axis("col", groups[side].extent)
    others = [group for k, group in enumerate(groups) if k != side]
    points = Axis("row", math.prod(group.extent for group in others))
    values = dict(
        zip([g.first for g in others], ix.delinearise(_index(points), tuple([g.extent for g in others])), strict=True)
    )
    values[groups[side].first] = ix.axis_index(lane)
    index: list[Index] = []
    for group in groups:
        index.extend(ix.delinearise(values[group.first], group.shape))
    return Builder(region, tuple(index)).nest(points, "lane", lane, ())


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring axes that act as one: every access runs through them as through one longer axis."""

    first: int
    shape: tuple[int, ...]

    @property
    def extent(self) -> int:
        return math.prod(self.shape)


def merge(region: Region, first: int = 0) -> list[Group]:
    """The axes of an elementwise region from `first` on, merged where all accesses allow it."""
    addresses = _addresses(region)
    axes = [Axis(f"d{k}", extent) for k, extent in enumerate(region.shape)]
    groups: list[Group] = []
    open_group: list[int] = []
    for k, axis in enumerate(axes):
        if k < first:
            continue
        if open_group:
            previous = axes[open_group[-1]]
            joins = axis.extent == 1 or previous.extent == 1
            if not joins:
                joins = all(
                    a.linear_in(previous)
                    and a.linear_in(axis)
                    and a.coefficient(previous) == a.coefficient(axis) * axis.extent
                    for a in addresses
                )
            if not joins:
                groups.append(Group(open_group[0], region.shape[open_group[0] : open_group[-1] + 1]))
                open_group = []
        open_group.append(k)
    if open_group:
        groups.append(Group(open_group[0], region.shape[open_group[0] : open_group[-1] + 1]))
    return groups


def _addresses(region: Region) -> list[Index]:
    """Positions that a region's accesses run through, as functions of its axes."""
    found: dict[Index, None] = {}
    for node, at in region.accesses:
        if node.op == "iota" and node not in region.reads:
            found[at[node.attrs[1]]] = None
        else:
            found[ix.linearise(at, node.shape)] = None
    return list(found)


def _side_by_side(region: Region, groups: Sequence[Group]) -> int:
    """Which group of axes goes to vector lanes: the one along which most accesses touch neighbours."""
    addresses = _addresses(region)
    best, best_score = len(groups) - 1, -1.0
    for k in range(len(groups) - 1, -1, -1):
        group = groups[k]
        inner = group.first + len(group.shape) - 1
        axis = Axis(f"d{inner}", region.shape[inner])
        stride = math.prod(region.shape[inner + 1 :])
        score = 2.0 * (stride == 1)
        score += sum(a.linear_in(axis) and a.coefficient(axis) in (0, 1) for a in addresses)
        if group.extent < SHORT:
            score *= 0.3
        if score > best_score:
            best, best_score = k, score
    return best


def _lower_fold(region: Region) -> Lowered:
    """Forms 'rows' and 'cols': parallel axes flatten, reduce axes become inner loops."""
    shape, kept = region.shape, region.kept
    index: list[Index] = [ix.ZERO] * len(shape)
    spans = []
    for k in region.reduced:
        axis = Axis(f"r{k}", shape[k], "reduce")
        index[k] = ix.axis_index(axis)
        spans.append(Span(axis, 0, _bound(region, k)))
    lane = None
    outer = list(kept)
    if region.form == "cols":
        last = outer.pop()
        if outer:
            lane = Axis("col", shape[last])
            index[last] = ix.axis_index(lane)
            side = "lane"
        else:
            outer = [last]
            side = "points"
    else:
        side = "inner"
    points = Axis("row" if side != "points" else "i", math.prod(shape[k] for k in outer))
    for k, value in zip(outer, ix.delinearise(_index(points), tuple([shape[k] for k in outer])), strict=True):
        index[k] = value
    return Builder(region, tuple(index)).nest(points, side, lane, tuple(spans))


def _lower_split(region: Region) -> Lowered:
    """One piece of a long reduction per point: points count (kept point, piece)."""
    (partial,) = region.sinks
    axes, cut, _ = partial.attrs
    shape, kept = region.shape, region.kept
    pieces = partial.shape[0]
    points = Axis("row", math.prod(partial.shape))
    piece, *rest = ix.delinearise(_index(points), partial.shape)
    index: list[Index] = [ix.ZERO] * len(shape)
    for k, value in zip(kept, rest, strict=True):
        index[k] = value
    spans = []
    for k in axes:
        axis = Axis(f"r{k}", shape[k], "reduce")
        index[k] = ix.axis_index(axis)
        if k == cut and pieces > 1:
            bound = _bound(region, k)
            extent = Literal(bound, int64) if isinstance(bound, int) else bound
            start = Op("mul", (IndexValue(piece, int64), PER_PIECE), int64)
            spans.append(Span(axis, start, Op("min", (Op("add", (start, PER_PIECE), int64), extent), int64)))
        else:
            spans.append(Span(axis, 0, _bound(region, k)))
    return Builder(region, tuple(index), (piece, *rest)).nest(points, "inner", None, tuple(spans))


def _bound(region: Region, k: int) -> Var | int:
    """Where the loop over reduced axis `k` ends: an argument, so that a new extent needs no new kernel.

    Only a vector loop over an inner axis knows its extent, which spares it the tail.
    """
    in_lanes = region.form != "cols" and k == len(region.shape) - 1
    return region.shape[k] if in_lanes and k else Var(f"extent{k}", int64)


def _index(axis: Axis) -> Index:
    return Index(((axis, 1),), 0) if axis.extent != 1 else ix.ZERO


# --- values ----------------------------------------------------------------------------------------------------------


class Builder:
    """Writes one region's values as expressions in given axes."""

    def __init__(self, region: Region, index: Indices, split_place: Indices | None = None):
        self.region = Region(
            region.number, region.form, region.shape, region.reduced, region.anchor, region.pointers, index=index
        )
        self.source = region
        self.split_place = split_place
        self.buffers: dict[Node, BufferParam] = {}
        self.scalars: dict[tuple[str, DType], tuple[ScalarParam, Scalar]] = {}
        self.definitions: dict[str, Expr] = {}
        self.memo: dict[tuple, Expr] = {}
        self.place: dict[Node, Indices] = {}
        self.flops = 0
        self.depth: dict[Node, int] = {}
        self.sites: list[str] = []
        self.loaded_inside: dict[str, bool] = {}  # loaded indices: whether they vary inside a point
        self.checks: list[tuple[Store, bool]] = []  # records of bad indices, and whether they vary inside a point

    # A region's sinks, sorted into folds by stage, stores per point and stores per inner element.

    def nest(self, points: Axis, side: str, lane: Axis | None, inner: tuple[Span, ...]) -> Lowered:
        region, source = self.region, self.source
        folds = [sink for sink in source.sinks if PRIMITIVES[sink.op].kind in ("reduce", "segment")]
        for fold in folds:
            self.place[fold] = self.split_place or tuple([region.index[k] for k in region.kept])
        inner_size = math.prod(source.shape[k] for k in source.reduced)
        stages: dict[int, list[tuple[Accumulator, Expr]]] = {}
        point_stores: list[Store] = []
        inner_stores: list[Store] = []
        for fold in folds:
            value = self._at_domain(fold.srcs[0])
            stage = self._stage(fold)
            accumulator = Accumulator(f"acc{len(self.depth)}", fold.op.split("_")[1], fold.dtype)
            self.depth[fold] = stage
            self.memo[(fold, self.place[fold], ())] = Var(accumulator.name, fold.dtype)
            stages.setdefault(stage, []).append((accumulator, value))
        for sink in source.sinks:
            if sink in self.place:
                if self._is_read(sink):
                    value = self.memo[(sink, self.place[sink], ())]
                    point_stores.append(self._store(sink, self.place[sink], value))
                continue
            at = region.folded_index(sink.shape) if sink.op == "segment_rows" else region.indices_for(sink.shape)
            assert at is not None
            store = self._store(sink, at, self.value(sink, at, ()))
            if source.pointers is not None:
                per_point = at[0] != region.index[1]
            else:
                per_point = not source.reduced or (sink.size < math.prod(source.shape) or inner_size == 1)
            (point_stores if per_point else inner_stores).append(store)
        columns = tuple([self._column(partial) for partial in source.partials])
        first_walk: list[Store] = []
        for check, inside in self.checks:
            early = inside and source.pointers is not None and stages and not self._needs_folds(check)
            (first_walk if early else inner_stores if inside else point_stores).append(check)
        scalars = list(self.scalars.values())
        for k in source.reduced:
            bound = _bound(source, k) if source.pointers is None else 0
            if isinstance(bound, Var):
                scalars.append((ScalarParam(bound.name, int64), source.shape[k]))
        if source.form == "split":
            scalars.append((ScalarParam(PER_PIECE.name, int64), source.sinks[0].attrs[2]))
        if columns:
            scalars.append((ScalarParam("points", int64), points.extent))
            scalars.append((ScalarParam("per_chunk", int64), source.partials[0].attrs[2]))
        ordered = tuple([tuple(stages[k]) for k in sorted(stages)])
        nest = Nest(
            _name(source), points, side, lane, inner, ordered, tuple(point_stores), tuple(inner_stores), columns,
            tuple(self.buffers.values()), tuple([param for param, _ in scalars]), self.definitions, tuple(first_walk),
        )  # fmt: skip
        extent = source.partials[0].shape[0] if columns else points.extent
        flops = self.flops * source.volume
        return Lowered(
            nest, tuple(self.buffers), tuple([value for _, value in scalars]), extent, flops, tuple(self.sites)
        )

    def _at_domain(self, node: Node) -> Expr:
        at = self.region.folded_index(node.shape)
        assert at is not None
        return self.value(node, at, ())

    def _needs_folds(self, store: Store) -> bool:
        """Whether a stored value or the condition on it is made of this nest's folds."""
        stack: list[Expr] = [store.value, *([] if store.mask is None else [store.mask])]
        seen: set[int] = set()
        while stack:
            expr = stack.pop()
            if id(expr) in seen:
                continue
            seen.add(id(expr))
            if isinstance(expr, Var) and expr.name.startswith("acc"):
                return True
            if isinstance(expr, Op):
                stack.extend(expr.args)
            elif isinstance(expr, Load | IndexValue):
                names = [axis.name for axis in ix.axes_of(expr.index) if axis.kind == "value"]
                stack.extend([self.definitions[name] for name in names])
                if isinstance(expr, Load) and expr.mask is not None:
                    stack.append(expr.mask)
        return False

    def int64_of(self, value: Expr) -> Expr:
        return value if value.dtype is int64 else Op("cast", (value,), int64)

    def whole(self, name: str, value: int) -> Var:
        """An extent that may differ between runs of one kernel: a scalar parameter."""
        self.scalars[(name, int64)] = (ScalarParam(name, int64), value)
        return Var(name, int64)

    def _stage(self, fold: Node) -> int:
        """One more than the deepest fold of this region that `fold` uses."""
        deepest, stack, seen = -1, list(fold.srcs), set()
        while stack:
            node = stack.pop()
            if node in seen or node in self.source.reads:
                continue
            seen.add(node)
            if node in self.depth:
                deepest = max(deepest, self.depth[node])
            else:
                stack.extend(node.srcs)
        return deepest + 1

    def _is_read(self, sink: Node) -> bool:
        """Whether a fold's result has to be in memory (someone outside the region wants it)."""
        return sink in self.source.kept_results

    def _store(self, sink: Node, at: Indices, value: Expr) -> Store:
        strides = self.source.strides.get(sink) or row_major(sink.shape)
        if sink.dtype.is_narrow:
            value = narrow.packed(value, sink.dtype)
        return Store(self._buffer(sink, written=True), address(at, strides, 0), value)

    def _column(self, partial: Node) -> ColumnSum:
        value = self._at_domain(partial.srcs[0])
        at = self.region.indices_for(partial.srcs[0].shape)
        assert at is not None
        kept = [k for k in range(len(at)) if k not in partial.attrs[0]]
        shape = tuple([partial.srcs[0].shape[k] for k in kept])
        index = ix.linearise(tuple([at[k] for k in kept]), shape)
        accumulator = Accumulator("", partial.op.split("_")[1], partial.dtype)
        return ColumnSum(self._buffer(partial, written=True), index, math.prod(shape), accumulator, value)

    def _buffer(self, node: Node, written: bool = False) -> str:
        param = self.buffers.get(node)
        if param is None:
            param = self.buffers[node] = BufferParam(f"b{len(self.buffers)}", node.dtype, written)
        return param.name

    def know(self, node: Node, at: Indices, value: Expr) -> None:
        """From here on the region's point is `at`, where `node` is `value`."""
        self.region.index = at
        self.memo[(node, at, ())] = value

    def stores(self) -> list[Store]:
        """What the region stores at its point, besides the anchor where nobody else needs that."""
        found = []
        for sink in self.source.sinks:
            if sink is not self.source.anchor or self._is_read(sink) or len(self.source.sinks) == 1:
                at = self.region.indices_for(sink.shape)
                assert at is not None
                found.append(self._store(sink, at, self.value(sink, at, ())))
        found += [check for check, _ in self.checks]
        self.checks.clear()
        return found

    # One value. A 16-bit float is held as the float32 of the same value.

    def value(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        """Element `at` of `node`, read only where `conditions` hold."""
        key = (node, at, conditions)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self._value(node, at, conditions)
        return found

    def _value(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        if node in self.place:
            assert self.place[node] == at, f"{node} is not known at {at}"
            return self.memo[(node, at, ())]
        if node in self.source.reads or node is self.source.anchor:
            assert node is not self.source.anchor or self.source.form == "dot", f"{node} is not known at {at}"
            mask = self._mask(conditions)
            written = node is self.source.anchor
            load = Load(self._buffer(node, written), address(at, row_major(node.shape), 0), node.dtype, mask)
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
        if op in MOVEMENT:
            moved, when = source_index(node, at)
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
        elif op in TRANSCENDENTAL:
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
            self.scalars[key] = (ScalarParam(f"s{len(self.scalars)}", dtype), value)
        return Var(self.scalars[key][0].name, dtype)

    def _random(self, node: Node, at: Indices) -> Expr:
        shape, draw = node.attrs
        state = self._buffer(node.srcs[0])
        key = Load(state, ix.ZERO, uint32)
        base = Load(state, ix.const(1), uint32)
        count = Op("add", (base, self._draw(draw)), uint32)
        position = ix.linearise(at, shape)
        if math.prod(shape) > 2**32:
            high = IndexValue(ix.floordiv(position, 2**32), uint32)
            key = Op("add", (key, Op("mul", (high, Literal(0x9E3779B9, uint32)), uint32)), uint32)  # type: ignore[assignment]
        return kernel_math.philox(key, IndexValue(position, uint32), count)

    def _draw(self, draw: int) -> Expr:
        key = (f"draw{draw}", uint32)
        if key not in self.scalars:
            self.scalars[key] = (ScalarParam(f"s{len(self.scalars)}", uint32), draw)
        return Var(self.scalars[key][0].name, uint32)

    def _gather(self, node: Node, at: Indices, conditions: tuple[Condition, ...]) -> Expr:
        """A row picked by a loaded index, clamped into range; out of range is recorded by the plan's checks."""
        source, index = node.srcs
        axis, rank = node.attrs[0], len(index.shape)
        extent = source.shape[axis]
        known = self.region.row_of(index, at[axis : axis + rank])
        if known is not None:
            return self.value(source, (*at[:axis], known, *at[axis + rank :]), conditions)
        row = self.value(index, at[axis : axis + rank], conditions)
        row = self.int64_of(row)
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
        wide = value if value.dtype is int64 else Op("cast", (value,), int64)
        varies = self._inside((*at, *[index for index, _ in conditions]))
        self.check(node, wide, node.attrs[0], Literal(node.attrs[0], int64), varies, conditions)
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
        self.checks.append((Store(self._buffer(STATUS, written=True), site, Literal(1, int32), bad), varies))

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


def lower_epilogue(region: Region) -> tuple[Lowered, tuple[Axis, Axis, Axis]]:
    """The elementwise sinks of a matrix product, over (batch, row, col) of its result."""
    *batch_shape, m, n = region.shape
    batch, row, col = Axis("batch", math.prod(batch_shape)), Axis("row", m), Axis("col", n)
    index = (*ix.delinearise(_index(batch), tuple(batch_shape)), ix.axis_index(row), ix.axis_index(col))
    builder = Builder(region, index)
    stores = []
    for sink in region.sinks:
        if sink is not region.anchor:
            at = builder.region.indices_for(sink.shape)
            assert at is not None
            stores.append(builder._store(sink, at, builder.value(sink, at, ())))
    stores.extend([check for check, _ in builder.checks])
    scalars = list(builder.scalars.values())
    nest = Nest(
        _name(region), row, "lane", col, (), (), tuple(stores), (), (), tuple(builder.buffers.values()),
        tuple([param for param, _ in scalars]), builder.definitions,
    )  # fmt: skip
    flops = builder.flops * math.prod(region.shape)
    values = tuple([value for _, value in scalars])
    lowered = Lowered(nest, tuple(builder.buffers), values, m, flops, tuple(builder.sites))
    return lowered, (batch, row, col)


def _name(region: Region) -> str:
    """What the kernel does, in a few words: form, main operations, shape."""
    words: dict[str, None] = {}
    for node in (*region.inlined, *region.sinks, *region.partials):
        kind = PRIMITIVES[node.op].kind
        if kind in ("reduce", "dot", "scatter", "segment"):
            words[node.op.replace("reduce_", "").replace("partial_", "part_")] = None
        elif node.op in TRANSCENDENTAL or node.op in ("div", "sqrt", "random", "gather"):
            words[node.op] = None
    if not words:
        words = {node.op: None for node in region.sinks}
    return "_".join([region.form, *list(words)[:5], "x".join(map(str, region.shape)) or "scalar"])


def result_nodes(regions: Sequence[Region], outputs: Sequence[Node], homes: Mapping[Node, Home]) -> None:
    """Note in each region which results somebody outside needs in memory, and which have strides of their own."""
    wanted = set(outputs) | set(homes)
    for region in regions:
        wanted.update(region.reads)
    for region in regions:
        region.kept_results = {sink for sink in region.sinks if sink in wanted}
        region.strides = {sink: homes[sink].strides for sink in region.sinks if sink in homes}
