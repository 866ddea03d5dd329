"""lower: a region becomes a nest of loops with expressions in the kernel language.

Parallel axes flatten into one, except the axis that lies side by side in memory; reduced axes become inner loops. What
is computed at a point of these axes `compiler.values` writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.compiler.access import Indices
from weft.compiler.plan import Scalar
from weft.compiler.region import Region
from weft.compiler.values import TRANSCENDENTAL, Builder
from weft.dtypes import int64
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES
from weft.kernels import index as ix
from weft.kernels.index import Axis, Index
from weft.kernels.language import (
    Accumulator,
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

PER_PIECE = Var("per_piece", int64)  # how much of the cut axis one piece of a split reduction takes

SHORT = 8  # elements side by side that are too few for vector lanes
AT_ONCE = 31  # elements that one thread of a GPU loads at once: with more, several threads share a sum


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
        return nest_of(Builder(region, ix.delinearise(ix.axis_index(points), region.shape)), points, "points", None, ())
    while len(groups) > 2 and groups[-1].extent < SHORT:  # lanes across both: their pattern is the same in each vector
        groups[-2:] = [Group(groups[-2].first, groups[-2].shape + groups[-1].shape)]
    side = _side_by_side(region, groups)
    lane = Axis("col", groups[side].extent)
    others = [group for k, group in enumerate(groups) if k != side]
    points = Axis("row", math.prod(group.extent for group in others))
    values = dict(
        zip(
            [g.first for g in others],
            ix.delinearise(ix.axis_index(points), tuple([g.extent for g in others])),
            strict=True,
        )
    )
    values[groups[side].first] = ix.axis_index(lane)
    index: list[Index] = []
    for group in groups:
        index.extend(ix.delinearise(values[group.first], group.shape))
    return nest_of(Builder(region, tuple(index)), points, "lane", lane, ())


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
    for k, value in zip(outer, ix.delinearise(ix.axis_index(points), tuple([shape[k] for k in outer])), strict=True):
        index[k] = value
    return nest_of(Builder(region, tuple(index)), points, side, lane, tuple(spans))


def _lower_split(region: Region) -> Lowered:
    """One piece of a long reduction per point: points count (kept point, piece)."""
    (partial,) = region.sinks
    axes, cut, _, _ = partial.attrs
    shape, kept = region.shape, region.kept
    pieces = partial.shape[0]
    points = Axis("row", math.prod(partial.shape))
    piece, *rest = ix.delinearise(ix.axis_index(points), partial.shape)
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
    return nest_of(Builder(region, tuple(index)), points, "inner", None, tuple(spans), (piece, *rest))


def _bound(region: Region, k: int) -> Var | int:
    """Where the loop over reduced axis `k` ends: an argument, so that a new extent needs no new kernel.

    A vector loop over an inner axis knows its extent, which spares it the tail; so does a short loop on devices with
    blocks, where all that a thread adds is then loaded at once, and each load of a tail would be waited for.
    """
    extent = region.shape[k]
    in_lanes = region.form != "cols" and k == len(region.shape) - 1
    at_once = extent <= AT_ONCE and "blocks" in (*region.sinks, *region.partials)[0].device.features
    return extent if (in_lanes and k) or at_once else Var(f"extent{k}", int64)


# --- nests ------------------------------------------------------------------------------------------------------------


def nest_of(
    builder: Builder, points: Axis, side: str, lane: Axis | None, inner: tuple[Span, ...], place: Indices | None = None
) -> Lowered:
    """The builder's region over these axes: its sinks, sorted into folds by stage, stores per point and stores per
    inner element. Folds are known at `place`, which is the point of the kept axes unless something else is said."""
    depth: dict[Node, int] = {}  # the stage of each fold
    region, source = builder.region, builder.source
    folds = [sink for sink in source.sinks if PRIMITIVES[sink.op].kind in ("reduce", "segment")]
    for fold in folds:
        builder.place[fold] = place or tuple([region.index[k] for k in region.kept])
    inner_size = math.prod(source.shape[k] for k in source.reduced)
    stages: dict[int, list[tuple[Accumulator, Expr]]] = {}
    point_stores: list[Store] = []
    inner_stores: list[Store] = []
    for fold in folds:
        value = _at_domain(builder, fold.srcs[0])
        stage = _stage(fold, source, depth)
        accumulator = Accumulator(f"acc{len(depth)}", fold.op.split("_")[1], fold.dtype)
        depth[fold] = stage
        builder.memo[(fold, builder.place[fold], ())] = Var(accumulator.name, fold.dtype)
        stages.setdefault(stage, []).append((accumulator, value))
    for sink in source.sinks:
        if sink in builder.place:
            if builder.is_read(sink):
                value = builder.memo[(sink, builder.place[sink], ())]
                point_stores.append(builder.store(sink, builder.place[sink], value))
            continue
        at = region.folded_index(sink.shape) if sink.op == "segment_rows" else region.indices_for(sink.shape)
        assert at is not None
        store = builder.store(sink, at, builder.value(sink, at, ()))
        if source.pointers is not None:
            per_point = at[0] != region.index[1]
        else:
            per_point = not source.reduced or (sink.size < math.prod(source.shape) or inner_size == 1)
        (point_stores if per_point else inner_stores).append(store)
    columns = tuple([_column(builder, partial) for partial in source.partials])
    first_walk: list[Store] = []
    inner_checks: list[Store] = []
    point_checks: list[Store] = []
    for check, inside in builder.checks:
        early = inside and source.pointers is not None and stages and not _needs_folds(builder, check)
        (first_walk if early else inner_checks if inside else point_checks).append(check)
    # Checks come first: a store may write in place what they read.
    inner_stores, point_stores = [*inner_checks, *inner_stores], [*point_checks, *point_stores]
    scalars = list(builder.scalars.values())
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
        kernel_name(source), points, side, lane, inner, ordered, tuple(point_stores), tuple(inner_stores), columns,
        tuple(builder.buffers.values()), tuple([param for param, _ in scalars]), builder.definitions, tuple(first_walk),
    )  # fmt: skip
    extent = source.partials[0].shape[0] if columns else points.extent
    flops = builder.flops * source.volume
    return Lowered(
        nest, tuple(builder.buffers), tuple([value for _, value in scalars]), extent, flops, tuple(builder.sites)
    )


def _at_domain(builder: Builder, node: Node) -> Expr:
    at = builder.region.folded_index(node.shape)
    assert at is not None
    return builder.value(node, at, ())


def _stage(fold: Node, region: Region, depth: Mapping[Node, int]) -> int:
    """One more than the deepest fold of the region that `fold` uses."""
    deepest, stack, seen = -1, list(fold.srcs), set()
    while stack:
        node = stack.pop()
        if node in seen or node in region.reads:
            continue
        seen.add(node)
        if node in depth:
            deepest = max(deepest, depth[node])
        else:
            stack.extend(node.srcs)
    return deepest + 1


def _column(builder: Builder, partial: Node) -> ColumnSum:
    value = _at_domain(builder, partial.srcs[0])
    at = builder.region.indices_for(partial.srcs[0].shape)
    assert at is not None
    kept = [k for k in range(len(at)) if k not in partial.attrs[0]]
    shape = tuple([partial.srcs[0].shape[k] for k in kept])
    index = ix.linearise(tuple([at[k] for k in kept]), shape)
    accumulator = Accumulator("", partial.op.split("_")[1], partial.dtype)
    return ColumnSum(builder.buffer(partial, written=True), index, math.prod(shape), accumulator, value)


def _needs_folds(builder: Builder, store: Store) -> bool:
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
            stack.extend([builder.definitions[name] for name in names])
            if isinstance(expr, Load) and expr.mask is not None:
                stack.append(expr.mask)
    return False


def lower_epilogue(region: Region) -> tuple[Lowered, tuple[Axis, Axis, Axis]]:
    """The elementwise sinks of a matrix product, over (batch, row, col) of its result."""
    *batch_shape, m, n = region.shape
    batch, row, col = Axis("batch", math.prod(batch_shape)), Axis("row", m), Axis("col", n)
    index = (*ix.delinearise(ix.axis_index(batch), tuple(batch_shape)), ix.axis_index(row), ix.axis_index(col))
    builder = Builder(region, index)
    stores = []
    for sink in region.sinks:
        if sink is not region.anchor:
            at = builder.region.indices_for(sink.shape)
            assert at is not None
            stores.append(builder.store(sink, at, builder.value(sink, at, ())))
    stores = [*(check for check, _ in builder.checks), *stores]  # a store may write in place what a check reads
    scalars = list(builder.scalars.values())
    nest = Nest(
        kernel_name(region), row, "lane", col, (), (), tuple(stores), (), (), tuple(builder.buffers.values()),
        tuple([param for param, _ in scalars]), builder.definitions,
    )  # fmt: skip
    flops = builder.flops * math.prod(region.shape)
    values = tuple([value for _, value in scalars])
    lowered = Lowered(nest, tuple(builder.buffers), values, m, flops, tuple(builder.sites))
    return lowered, (batch, row, col)


def kernel_name(region: Region) -> str:
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
