"""A region becomes a nest of loops with expressions in the kernel language.

Parallel axes flatten into one, except the axis whose elements are adjacent in memory; reduced axes become inner
loops. `compiler.lowering.expressions` writes what is computed at a point of these axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.base.dtypes import int64
from weft.compiler.fusion.index_map import Indices
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import TRANSCENDENTAL, Builder
from weft.graph.node import Node
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import Axis, Index
from weft.kernels.ir.language import (
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
from weft.kernels.ir.nest import ColumnSum, Nest, Span
from weft.kernels.numerics import MAX_UNROLLED_TERMS
from weft.plan.plan import Scalar

PER_PIECE = Var("per_piece", int64)  # how much of the cut axis one piece of a split reduction takes

MIN_VECTOR_EXTENT = 8  # contiguous elements that are worth vector lanes


@dataclass(frozen=True, slots=True)
class LoweredNest:
    """A nest, the node behind each of its buffers, the values of its scalars, and how many points it has. The epilogue
    of a matrix product has a `tile`: the axes (batch, row, column) of the product's result."""

    nest: Nest
    uses: tuple[Node, ...]
    scalars: tuple[Scalar, ...]
    points: int
    flops: int
    sites: tuple[str, ...]
    tile: tuple[Axis, Axis, Axis] | None = None


def lower(region: Region) -> LoweredNest:
    """Write a region (of form 'map', 'rows', 'cols' or 'split') as a nest."""
    if region.form == "map":
        return _lower_map(region)
    if region.form == "split":
        return _lower_split(region)
    return _lower_reduction(region)


# --- axes ------------------------------------------------------------------------------------------------------------


def _lower_map(region: Region) -> LoweredNest:
    groups = merge_axes(region)
    if len(groups) <= 1:
        points = Axis("i", math.prod(region.shape))
        return nest_of(Builder(region, ix.delinearise(ix.axis_index(points), region.shape)), points, "points", None, ())
    while (
        len(groups) > 2 and groups[-1].extent < MIN_VECTOR_EXTENT
    ):  # lanes across both: their pattern is the same in each vector
        groups[-2:] = [Group(groups[-2].first, groups[-2].shape + groups[-1].shape)]
    vector = _vector_group(region, groups)
    lane = Axis("col", groups[vector].extent)
    others = [group for k, group in enumerate(groups) if k != vector]
    points = Axis("row", math.prod(group.extent for group in others))
    values = dict(
        zip(
            [g.first for g in others],
            ix.delinearise(ix.axis_index(points), tuple([g.extent for g in others])),
            strict=True,
        )
    )
    values[groups[vector].first] = ix.axis_index(lane)
    index: list[Index] = []
    for group in groups:
        index.extend(ix.delinearise(values[group.first], group.shape))
    return nest_of(Builder(region, tuple(index)), points, "lane", lane, ())


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent axes that act as one: every access treats them as one longer axis."""

    first: int
    shape: tuple[int, ...]

    @property
    def extent(self) -> int:
        return math.prod(self.shape)


def merge_axes(region: Region, first: int = 0) -> list[Group]:
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
                    a.is_linear_in(previous)
                    and a.is_linear_in(axis)
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
            found[at[node.attrs.axis]] = None
        else:
            found[ix.linearise(at, node.shape)] = None
    return list(found)


def _vector_group(region: Region, groups: Sequence[Group]) -> int:
    """Which group of axes goes to vector lanes: the one along which most accesses are contiguous."""
    addresses = _addresses(region)
    best, best_score = len(groups) - 1, -1.0
    for k in range(len(groups) - 1, -1, -1):
        group = groups[k]
        inner = group.first + len(group.shape) - 1
        axis = Axis(f"d{inner}", region.shape[inner])
        stride = math.prod(region.shape[inner + 1 :])
        score = 2.0 * (stride == 1)
        score += sum(a.is_linear_in(axis) and a.coefficient(axis) in (0, 1) for a in addresses)
        if group.extent < MIN_VECTOR_EXTENT:
            score *= 0.3
        if score > best_score:
            best, best_score = k, score
    return best


def _lower_reduction(region: Region) -> LoweredNest:
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


def _lower_split(region: Region) -> LoweredNest:
    """One piece of a long reduction per point: points count (kept point, piece)."""
    (partial,) = region.roots
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
            start = IndexValue(piece, int64) * PER_PIECE
            spans.append(Span(axis, start, (start + PER_PIECE).min(extent)))
        else:
            spans.append(Span(axis, 0, _bound(region, k)))
    return nest_of(Builder(region, tuple(index)), points, "inner", None, tuple(spans), (piece, *rest))


def _bound(region: Region, k: int) -> Var | int:
    """Where the loop over reduced axis `k` ends: an argument, so that a new extent needs no new kernel.

    A vector loop over an inner axis knows its extent, which spares it the tail; so does a short loop on a GPU, where
    all that a lane adds is then loaded at once, and each load of a tail would be waited for.
    """
    extent = region.shape[k]
    in_lanes = region.form != "cols" and k == len(region.shape) - 1
    at_once = extent <= MAX_UNROLLED_TERMS and (*region.roots, *region.partials)[0].device.features.workgroups
    return extent if (in_lanes and k) or at_once else Var(f"extent{k}", int64)


# --- nests ------------------------------------------------------------------------------------------------------------


def nest_of(
    builder: Builder, points: Axis, side: str, lane: Axis | None, inner: tuple[Span, ...], at: Indices | None = None
) -> LoweredNest:
    """The builder's region over these axes: its roots, sorted into reductions by stage, stores per point and stores per
    inner element. Reductions are known `at` the point of the kept axes, unless something else is given."""
    source = builder.source
    stages = _reduction_stages(builder, at)
    point_stores, inner_stores = _stores(builder)
    columns = tuple([_column(builder, partial) for partial in source.partials])
    first_checks: list[Store] = []
    inner_checks: list[Store] = []
    point_checks: list[Store] = []
    for check, inside in builder.checks:
        early = inside and source.pointers is not None and stages and not _needs_reductions(builder, check)
        (first_checks if early else inner_checks if inside else point_checks).append(check)
    # Checks come first: a store may write in place what they read.
    inner_stores, point_stores = [*inner_checks, *inner_stores], [*point_checks, *point_stores]
    scalars = _scalars(builder, points)
    nest = Nest(
        kernel_name(source), points, side, lane, inner, stages, tuple(point_stores), tuple(inner_stores), columns,
        tuple(builder.buffers.values()), tuple([param for param, _ in scalars]), builder.definitions,
        tuple(first_checks),
    )  # fmt: skip
    extent = source.partials[0].shape[0] if columns else points.extent
    flops = builder.flops * source.volume
    return LoweredNest(
        nest, tuple(builder.buffers), tuple([value for _, value in scalars]), extent, flops, tuple(builder.sites)
    )


def _reduction_stages(builder: Builder, at: Indices | None) -> tuple[tuple[tuple[Accumulator, Expr], ...], ...]:
    """The accumulators of the region's reductions with the values that they add up, those that need no other reduction
    first."""
    domain, source = builder.domain, builder.source
    reductions = [root for root in source.roots if root.primitive.kind in ("reduce", "segment")]
    for reduction in reductions:
        builder.known_at[reduction] = at or tuple([domain.index[k] for k in domain.kept])
    depth: dict[Node, int] = {}  # the stage of each reduction
    stages: dict[int, list[tuple[Accumulator, Expr]]] = {}
    for reduction in reductions:
        value = _at_domain(builder, reduction.srcs[0])
        stage = _stage(reduction, source, depth)
        accumulator = Accumulator(f"acc{len(depth)}", reduction.op.split("_")[1], reduction.dtype)
        depth[reduction] = stage
        builder.memo[(reduction, builder.known_at[reduction], ())] = Var(accumulator.name, reduction.dtype)
        stages.setdefault(stage, []).append((accumulator, value))
    return tuple([tuple(stages[k]) for k in sorted(stages)])


def _stores(builder: Builder) -> tuple[list[Store], list[Store]]:
    """What is stored once per point, and what for each inner element."""
    domain, source = builder.domain, builder.source
    inner_size = math.prod(source.shape[k] for k in source.reduced)
    point_stores: list[Store] = []
    inner_stores: list[Store] = []
    for root in source.roots:
        known_at = builder.known_at.get(root)
        if known_at is not None:
            if builder.is_retained(root):
                value = builder.memo[(root, known_at, ())]
                point_stores.append(builder.store(root, known_at, value))
            continue
        at = domain.reduced_index(root.shape) if root.op == "segment_rows" else domain.indices_for(root.shape)
        assert at is not None
        store = builder.store(root, at, builder.value(root, at, ()))
        if source.pointers is not None:
            per_point = at[0] != domain.index[1]
        else:
            per_point = not source.reduced or (root.size < math.prod(source.shape) or inner_size == 1)
        (point_stores if per_point else inner_stores).append(store)
    return point_stores, inner_stores


def _scalars(builder: Builder, points: Axis) -> list[tuple[ScalarParam, Scalar]]:
    """The scalar parameters of the nest with their values: those of its expressions, then extents."""
    source, scalars = builder.source, list(builder.scalars.values())
    for k in source.reduced:
        bound = _bound(source, k) if source.pointers is None else 0
        if isinstance(bound, Var):
            scalars.append((ScalarParam(bound.name, int64), source.shape[k]))
    if source.form == "split":
        scalars.append((ScalarParam(PER_PIECE.name, int64), source.roots[0].attrs.per_piece))
    if source.partials:
        scalars.append((ScalarParam("points", int64), points.extent))
        scalars.append((ScalarParam("per_chunk", int64), source.partials[0].attrs.per_piece))
    return scalars


def _at_domain(builder: Builder, node: Node) -> Expr:
    at = builder.domain.reduced_index(node.shape)
    assert at is not None
    return builder.value(node, at, ())


def _stage(reduction: Node, region: Region, depth: Mapping[Node, int]) -> int:
    """One more than the deepest reduction of the region that `reduction` uses."""
    deepest, stack, seen = -1, list(reduction.srcs), set()
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
    at = builder.domain.indices_for(partial.srcs[0].shape)
    assert at is not None
    kept = [k for k in range(len(at)) if k not in partial.attrs.axes]
    shape = tuple([partial.srcs[0].shape[k] for k in kept])
    index = ix.linearise(tuple([at[k] for k in kept]), shape)
    accumulator = Accumulator("", partial.op.split("_")[1], partial.dtype)
    return ColumnSum(builder.buffer(partial, written=True), index, math.prod(shape), accumulator, value)


def _needs_reductions(builder: Builder, store: Store) -> bool:
    """Whether a stored value or the condition on it is made of this nest's reductions."""
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


def lower_epilogue(region: Region) -> LoweredNest:
    """The elementwise roots of a matrix product, over (batch, row, col) of its result: tile by tile on a CPU, as one
    launch after the product on a GPU."""
    product = region.anchor
    assert product is not None
    *batch_shape, m, n = region.shape
    batch, row, col = Axis("batch", math.prod(batch_shape)), Axis("row", m), Axis("col", n)
    index = (*ix.delinearise(ix.axis_index(batch), tuple(batch_shape)), ix.axis_index(row), ix.axis_index(col))
    builder = Builder(region, index)
    stores = []
    for root in region.roots:
        if root is not product:
            at = builder.domain.indices_for(root.shape)
            assert at is not None
            stores.append(builder.store(root, at, builder.value(root, at, ())))
    stores = [*(check for check, _ in builder.checks), *stores]  # a store may write in place what a check reads
    scalars = list(builder.scalars.values())
    nest = Nest(
        kernel_name(region), row, "lane", col, (), (), tuple(stores), (), (), tuple(builder.buffers.values()),
        tuple([param for param, _ in scalars]), builder.definitions,
    )  # fmt: skip
    flops = builder.flops * math.prod(region.shape)
    values = tuple([value for _, value in scalars])
    points = product.size if product.device.features.workgroups else m
    return LoweredNest(nest, tuple(builder.buffers), values, points, flops, tuple(builder.sites), (batch, row, col))


def kernel_name(region: Region) -> str:
    """What the kernel does, in a few words: form, main operations, shape."""
    words: dict[str, None] = {}
    for node in (*region.inlined, *region.roots, *region.partials):
        kind = node.primitive.kind
        if kind in ("reduce", "dot", "scatter", "segment"):
            words[node.op.replace("reduce_", "").replace("partial_", "part_")] = None
        elif node.op in TRANSCENDENTAL or node.op in ("div", "sqrt", "random", "gather"):
            words[node.op] = None
    if not words:
        words = {node.op: None for node in region.roots}
    return "_".join([region.form, *list(words)[:5], "x".join(map(str, region.shape)) or "scalar"])
