"""Convolutions as kernels over padded memory and packed weights, or as windows, products and sums of other nodes.

On CPUs a convolution is the template of `kernels.cpu.convolution`, and what is computed from its result element by
element is stored from the registers. Three adjacent taps are computed for two pixels at once, by Winograd's method
(`compiler.templates.winograd`). Where channels do not mix (depthwise), and on devices without the template, it becomes
windows, products and sums of other nodes. Shapes decide which.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from weft.base.dtypes import DType, float32, float64, int64
from weft.compiler.fusion.index_map import row_major
from weft.compiler.fusion.region import Region
from weft.compiler.lowering.expressions import Builder
from weft.compiler.primitives import CONV_TILES, CONV_WEIGHT_TILES, ConvTiles
from weft.compiler.templates.template import ScheduledKernel, Template, view_of
from weft.compiler.templates.winograd import data_parts, tap_gradients, weight_parts
from weft.graph.attributes import Geometry
from weft.graph.build import cast, expand, pad, permute, reduce, reshape, slice_, unfold
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels import numerics
from weft.kernels.cpu.convolution import (
    Form,
    block_of,
    forward,
    tiling,
    weight_block,
    weight_tiling,
    weights,
)
from weft.kernels.cpu.winograd import PARTS, PIXELS, TAPS
from weft.kernels.ir.index import Index
from weft.kernels.ir.language import LAUNCH_RANGES, BufferParam, Expr, Kernel, ScalarParam, Stmt, Store
from weft.kernels.ir.nest import store_after_evaluation
from weft.plan.device import Device
from weft.plan.plan import Scalar

TILES = ("conv_tiles", "conv_weight_tiles")


@dataclass(frozen=True, slots=True)
class _Conv:
    """The parts of a convolution; taps that never see an element of x are gone, and x is padded."""

    x: Node
    other: Node  # weights, or the gradient of the result
    kernel: tuple[int, ...]
    skipped: tuple[tuple[int, int], ...]  # taps cut off at both ends of each kernel axis
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    out: tuple[int, ...]


def decompose_conv(node: Node, srcs: tuple[Node, ...], device: Device) -> Node:
    """`conv` or `conv_weight` over rebuilt sources, as what this device computes."""
    if node.dtype.itemsize < 4:
        wide = make_node(node.primitive, tuple([cast(source, float32) for source in srcs]), node.attrs)
        return cast(decompose_conv(wide, wide.srcs, device), node.dtype)
    if node.op == "conv":
        return _decompose_forward(node, srcs, device)
    return _decompose_weights(node, srcs, device)


def _decompose_forward(node: Node, srcs: tuple[Node, ...], device: Device) -> Node:
    x, w = srcs
    conv = _without_unused_taps(x, w, w.shape[:-2], node.attrs, node.shape[1:-1])
    starts = tuple([low for low, _ in conv.skipped])
    stops = tuple([low + extent for (low, _), extent in zip(conv.skipped, conv.kernel, strict=True)])
    w = slice_(w, (*starts, 0, 0), (*stops, *w.shape[-2:]))
    if x.shape[-1] == conv.groups and conv.groups > 1 and w.shape[-1] // conv.groups <= numerics.MAX_DEPTHWISE_FILTERS:
        return _depthwise(conv, w)
    if device.features.workgroups:
        return _by_windows(conv, w)
    filters = w.shape[-1]
    block = block_of(filters // conv.groups, _most(node.dtype, device))
    if block is None:
        block = _most(node.dtype, device) // 2
        more = -filters % block if conv.groups == 1 else 0
        if not more:
            return _by_windows(conv, w)
        w = pad(w, (0,) * len(w.shape), (*[0] * (len(w.shape) - 1), more))
    rank, total = len(conv.kernel), w.shape[-1]
    packed = permute(
        reshape(w, (*conv.kernel, w.shape[-2], total // block, block)), (rank + 1, rank, *range(rank), rank + 2)
    )
    winograd = _suits_winograd(conv, total)
    if winograd:
        conv, packed = _winograd_parts(conv), weight_parts(packed)
    else:
        packed = reshape(packed, (packed.shape[0], 1, *packed.shape[1:]))
    attrs = ConvTiles(conv.strides, conv.dilations, conv.groups, conv.out, winograd)
    tiles = make_node(CONV_TILES, (conv.x, packed), attrs)
    return slice_(tiles, (0,) * len(tiles.shape), (*node.shape[:-1], filters))


def _suits_winograd(conv: _Conv, filters: int) -> bool:
    """Whether two adjacent pixels are computed together: there must be three adjacent taps along the last axis, and
    enough channels on both sides to outweigh the computation of the parts."""
    steps = conv.kernel[-1], conv.strides[-1], conv.dilations[-1], conv.groups
    return steps == (TAPS, 1, 1, 1) and min(conv.x.shape[-1], filters) >= numerics.MIN_WINOGRAD_CHANNELS


def _winograd_parts(conv: _Conv) -> _Conv:
    """The same convolution over the parts of x: one tap along the last axis, whose extent counts pairs."""
    pairs = -(-conv.out[-1] // PIXELS)
    x = data_parts(_widen(conv.x, PIXELS * pairs + TAPS - 1), pairs)
    return replace(conv, x=x, kernel=(*conv.kernel[:-1], 1), out=(*conv.out[:-1], pairs))


def _decompose_weights(node: Node, srcs: tuple[Node, ...], device: Device) -> Node:
    x, g = srcs
    conv = _without_unused_taps(x, g, node.attrs.kernel, node.attrs.geometry, g.shape[1:-1])
    inside = x.shape[-1] // conv.groups
    if inside == 1 and conv.groups > 1:
        small = _depthwise_weights(conv, g)
    elif device.features.workgroups:
        small = _weights_by_windows(conv, g)
    else:
        small = _weights_by_tiles(conv, g)
    lows, highs = zip(*conv.skipped, strict=True)
    return pad(small, (*lows, 0, 0), (*highs, 0, 0))


def _weights_by_tiles(conv: _Conv, g: Node) -> Node:
    """The weight gradient by its template; the batch in parts where there are few tiles to share."""
    block = weight_block(g.shape[-1], conv.groups, g.dtype)
    winograd = _suits_winograd(conv, g.shape[-1])
    if winograd:
        conv = _winograd_parts(conv)
        g = _widen(g, PIXELS * conv.out[-1])
    attrs = (conv.kernel, conv.strides, conv.dilations, conv.groups, block, winograd)
    batch = g.shape[0]
    whole = make_node(CONV_WEIGHT_TILES, (conv.x, g), (*attrs, batch))
    form = _form(whole, [_as_contiguous(source) for source in whole.srcs])
    tiles = weight_tiling(form, numerics.TILING_REGISTER_BYTES, numerics.TILING_PIXELS).points(form)
    parts = numerics.weight_gradient_parts(batch, tiles)
    if parts == 1:
        blocked = reshape(whole, whole.shape[1:])
    else:
        partial = make_node(CONV_WEIGHT_TILES, (conv.x, g), (*attrs, -(-batch // parts)))
        blocked = reduce("reduce_sum", partial, (0,))
    if winograd:  # [blocks, 4, *kernel with one tap, channels, block]
        blocked = tap_gradients(blocked)
    rank = len(blocked.shape)  # [blocks, *kernel, channels per group, block]
    return reshape(permute(blocked, (*range(1, rank - 1), 0, rank - 1)), (*blocked.shape[1:-1], g.shape[-1]))


def long_product(node: Node, srcs: tuple[Node, ...], device: Device) -> Node | None:
    """A `dot` over many rows of two narrow matrices, as gradients of dense layers are: the weight gradient of a
    convolution with one tap, whose kernel reads rows in place. None where a library is as quick."""
    a, b = srcs
    if (
        len(a.shape) > 2
        or a.op != "permute"
        or node.dtype not in (float32, float64)
        or not device.features.cpu_templates
    ):
        return None
    (m, k), n = a.shape, b.shape[1]
    if not numerics.is_long_product(m, n, k):
        return None
    rows, slopes = reshape(make_node("permute", (a,), ((1, 0),)), (k, 1, m)), reshape(b, (k, 1, n))
    one = (1,)
    return reshape(_weights_by_tiles(_Conv(rows, slopes, one, ((0, 0),), one, one, 1, one), slopes), (m, n))


def _most(dtype: DType, device: Device) -> int:
    """Filters that one tile takes at most: two or four vector registers wide."""
    return (128 if device.limits.vector_register_bytes >= 2048 else 64) // dtype.itemsize


def _without_unused_taps(x: Node, other: Node, kernel: Sequence[int], how: Geometry, out: Sequence[int]) -> _Conv:
    strides, dilations, groups = how.strides, how.dilations, how.groups
    lows, kept, skipped = list(how.lows), list(kernel), []
    highs, firsts = list(how.highs), []
    for k, extent in enumerate(x.shape[1:-1]):
        last = (out[k] - 1) * strides[k]
        before = after = 0
        while kept[k] > 1 and last + before * dilations[k] - lows[k] < 0:
            before, kept[k] = before + 1, kept[k] - 1
        while kept[k] > 1 and (kept[k] - 1 + before) * dilations[k] - lows[k] >= extent:
            after, kept[k] = after + 1, kept[k] - 1
        skipped.append((before, after))
        lows[k] -= before * dilations[k]
        need = last + (kept[k] - 1) * dilations[k] + 1  # elements of the padded axis that are read
        firsts.append(min(max(-lows[k], 0), extent))  # at the end where every tap is beyond it
        highs[k] = max(need - (extent - firsts[k]) - max(lows[k], 0), 0)
    x = slice_(x, (0, *firsts, 0), x.shape)
    x = _pad(x, (0, *[max(low, 0) for low in lows], 0), (0, *highs, 0))
    return _Conv(x, other, tuple(kept), tuple(skipped), strides, dilations, groups, tuple(out))


def _pad(x: Node, lows: tuple[int, ...], highs: tuple[int, ...]) -> Node:
    """x with zeros around it, in the order of its own axes, which is how the kernels read it."""
    return make_node("pad", (x,), (lows, highs, 0.0)) if any(lows) or any(highs) else x


def _widen(x: Node, width: int) -> Node:
    """x with zeros behind its last spatial axis where that has less than `width` elements."""
    none = (0,) * (len(x.shape) - 2)
    return _pad(x, (*none, 0, 0), (*none, max(width - x.shape[-2], 0), 0))


@dataclass(frozen=True, slots=True)
class Shared:
    """A source of a template as a part of `inner` with zeros around it."""

    inner: Node
    lows: tuple[int, ...]
    highs: tuple[int, ...]
    starts: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, inner: Node) -> Node:
        """The same part of another value instead of `inner`."""
        whole = _pad(inner, self.lows, self.highs)
        return slice_(whole, self.starts, tuple(map(operator.add, self.starts, self.shape)))


def share_padding(nodes: Sequence[Node], leaves: Collection[Node]) -> dict[Node, Shared]:
    """The sources of templates among `nodes` that are one value with different padding: padded as much as any of them
    asks for, it is in memory once."""
    wanted: dict[Node, dict[Node, tuple[tuple[int, ...], tuple[int, ...]]]] = {}
    for node in nodes:
        if node.op in TILES:
            for source in node.srcs[: 1 if node.op == "conv_tiles" else 2]:
                inner, lows, highs = source, (0,) * len(source.shape), (0,) * len(source.shape)
                if source.op == "pad" and source not in leaves:
                    inner, (lows, highs, _) = source.srcs[0], source.attrs
                wanted.setdefault(inner, {})[source] = lows, highs
    shared: dict[Node, Shared] = {}
    for inner, uses in wanted.items():
        if len(uses) > 1:
            lows, highs = (tuple(map(max, *sides)) for sides in zip(*uses.values(), strict=True))
            for source, (low, _) in uses.items():
                starts = tuple(map(operator.sub, lows, low))
                shared[source] = Shared(inner, lows, highs, starts, source.shape)
    return shared


# --- by other nodes --------------------------------------------------------------------------------------------------


def _windows(conv: _Conv) -> Node:
    """[N, *out, *kernel, C]: the elements under each tap."""
    x, rank = conv.x, len(conv.kernel)
    for k in reversed(range(rank)):
        x = unfold(x, 1 + k, conv.kernel[k], conv.strides[k], conv.dilations[k])
        x = slice_(x, (0,) * len(x.shape), (*x.shape[: 1 + k], conv.out[k], *x.shape[2 + k :]))
    order = (0, *[1 + 2 * k for k in range(rank)], *[2 + 2 * k for k in range(rank)], 2 * rank + 1)
    return permute(x, order)


def _depthwise(conv: _Conv, w: Node) -> Node:
    seen, rank = _windows(conv), len(conv.kernel)
    per = w.shape[-1] // conv.groups
    full = (*seen.shape, per)
    values = expand(reshape(seen, (*seen.shape, 1)), full)
    taps = expand(reshape(w, (*[1] * (rank + 1), *conv.kernel, conv.groups, per)), full)
    total = reduce("reduce_sum", make_node("mul", (values, taps)), tuple(range(rank + 1, 2 * rank + 1)))
    return reshape(total, (*total.shape[: rank + 1], w.shape[-1]))


def _depthwise_weights(conv: _Conv, g: Node) -> Node:
    seen, rank = _windows(conv), len(conv.kernel)
    per = g.shape[-1] // conv.groups
    full = (*seen.shape, per)
    values = expand(reshape(seen, (*seen.shape, 1)), full)
    slopes = reshape(g, (*g.shape[:-1], *[1] * rank, conv.groups, per))
    total = reduce("reduce_sum", make_node("mul", (values, expand(slopes, full))), tuple(range(rank + 1)))
    return reshape(total, (*conv.kernel, 1, g.shape[-1]))


def _by_windows(conv: _Conv, w: Node) -> Node:
    rows = _grouped_windows(conv)  # [groups, N * out, kernel * C / groups]
    *kernel, inside, filters = w.shape
    grouped = reshape(w, (math.prod(kernel) * inside, conv.groups, filters // conv.groups))
    product = make_node("dot", (rows, permute(grouped, (1, 0, 2))))
    return reshape(permute(product, (1, 0, 2)), (conv.x.shape[0], *conv.out, filters))


def _weights_by_windows(conv: _Conv, g: Node) -> Node:
    rows = permute(_grouped_windows(conv), (0, 2, 1))
    slopes = permute(reshape(g, (rows.shape[2], conv.groups, g.shape[-1] // conv.groups)), (1, 0, 2))
    product = permute(make_node("dot", (rows, slopes)), (1, 0, 2))
    return reshape(product, (*conv.kernel, conv.x.shape[-1] // conv.groups, g.shape[-1]))


def _grouped_windows(conv: _Conv) -> Node:
    seen, groups = _windows(conv), conv.groups
    rows, taps = conv.x.shape[0] * math.prod(conv.out), math.prod(conv.kernel)
    grouped = reshape(seen, (rows, taps, groups, conv.x.shape[-1] // groups))
    return reshape(permute(grouped, (2, 0, 1, 3)), (groups, rows, taps * grouped.shape[-1]))


# --- the templates ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """A source in memory: `steps` are the strides of all its axes but the last, whose elements are contiguous."""

    base: Node
    offset: int
    steps: tuple[int, ...]


def _as_contiguous(node: Node) -> View:
    return View(node, 0, row_major(node.shape)[:-1])


def _view(node: Node, leaves: Collection[Node]) -> View:
    """`node` as part of memory that exists anyway, the padded form of a value included; else on its own."""
    source = node.srcs[0] if node.op == "slice" and node not in leaves else None
    if source is not None and source.op == "pad" and source not in leaves:
        starts, _, _ = node.attrs
        strides = row_major(source.shape)
        return View(source, sum(map(operator.mul, starts, strides)), strides[:-1])
    found = view_of(node, leaves)
    return View(found.base, found.offset, found.strides[:-1])


def _row_major_view(node: Node, leaves: Collection[Node]) -> View:
    """Weights, which must be row-major."""
    view = _view(node, leaves)
    return view if view.steps == row_major(node.shape)[:-1] else _as_contiguous(node)


def _form(node: Node, views: Sequence[View]) -> Form:
    """The form of a `conv_tiles` or `conv_weight_tiles` node whose sources are laid out as `views` say."""
    x, other = node.srcs
    if node.op == "conv_tiles":
        strides, dilations, groups, out, winograd = node.attrs
        kernel, g_steps = other.shape[3:-1], row_major(node.shape)[:-1]
    else:
        kernel, strides, dilations, groups, _, winograd, _ = node.attrs
        out, g_steps = other.shape[1:-1], views[1].steps
    steps, filters = views[0].steps, node.shape[-1] if node.op == "conv_tiles" else other.shape[-1]
    parts, part_stride = 1, 0
    if winograd:
        parts, part_stride, steps = PARTS, steps[-2], (*steps[:-2], steps[-1])
        out = (*out[:-1], x.shape[-2])
    return Form(
        steps, g_steps, x.shape[-1], kernel, out, filters, strides, dilations, groups, node.dtype, parts, part_stride
    )


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The kernel of a `conv_tiles` or `conv_weight_tiles` node."""
    x, other = node.srcs
    forward_ = node.op == "conv_tiles"
    views = (_view(x, leaves), _row_major_view(other, leaves) if forward_ else _view(other, leaves))
    build = _forward if forward_ else _weights
    reads = tuple([view.base for view in views])
    return Template(reads, lambda region, device: build(region, device, views), joins=forward_)


Views = tuple[View, ...]


def _forward(region: Region, device: Device, views: Views) -> ScheduledKernel:
    node = region.anchor
    assert node is not None
    form = _form(node, views)
    tiles = tiling(form, node.srcs[1].shape[-1], device.limits.vector_register_bytes, device.tuning)
    builder = Builder(region, region.index)

    def finish(at: tuple[Index, ...], value: Expr, mask: Expr | None) -> list[Stmt]:
        builder.know(node, at, value)
        return [_with_mask(store, mask) for store in store_after_evaluation(builder.stores())]

    batch = node.shape[0]
    body, definitions = forward(form, tiles, batch, finish)
    params = [BufferParam(name, node.dtype, False) for name in ("x", "w")]
    flops = 2 * form.parts * batch * math.prod(form.out) * form.filters * math.prod(form.kernel) * form.per_group
    points = tiles.points(form, batch)
    name = f"conv_{_label(node, form)}"
    tuning = device.tuning
    limits = tuning.conv_task_flops, tuning.max_conv_tasks
    return _build(name, params, views, (body,), definitions, points, {"batch": batch}, flops, limits, builder)


def _with_mask(statement: Stmt, mask: Expr | None) -> Stmt:
    """A store that happens only where `mask` holds too."""
    if mask is None or not isinstance(statement, Store):
        return statement
    both = mask if statement.mask is None else mask & statement.mask
    return Store(statement.buffer, statement.index, statement.value, both)


def _weights(region: Region, device: Device, views: Views) -> ScheduledKernel:
    node = region.anchor
    assert node is not None
    form = _form(node, views)
    tiles = weight_tiling(form, device.limits.vector_register_bytes, device.tuning.max_conv_tile_pixels)
    batch = node.srcs[0].shape[0]
    params = [BufferParam(name, node.dtype, name == "y") for name in ("x", "g", "y")]
    flops = 2 * form.parts * batch * math.prod(form.out) * form.filters * math.prod(form.kernel) * form.per_group
    name, points = f"conv_weight_{_label(node, form)}", node.shape[0] * tiles.points(form)
    if form.kernel == form.out == (1,):
        name = f"gemm_{form.channels}x{form.filters}_rows"
    numbers = {"batch": batch, "per_part": node.attrs.per_part}
    tuning = device.tuning
    limits = tuning.conv_task_flops, tuning.conv_tasks_per_thread * device.limits.cpu_threads
    places = (*views, _as_contiguous(node))
    return _build(name, params, places, weights(form, tiles), {}, points, numbers, flops, limits)


def _build(
    name: str,
    buffers: list[BufferParam],
    views: Views,
    body: tuple[Stmt, ...],
    definitions: dict[str, Expr],
    points: int,
    numbers: dict[str, int],
    flops: int,
    task_limits: tuple[int, int],
    builder: Builder | None = None,
) -> ScheduledKernel:
    """The kernel with its operands; `task_limits` are the least operations of a task, and the most tasks."""
    task_flops, max_tasks = task_limits
    uses = [(view.base, view.offset) for view in views]
    scalars = [ScalarParam(key, int64) for key in numbers]
    sites: tuple[str, ...] = ()
    values: list[Scalar] = [*numbers.values()]
    if builder is not None:
        buffers += builder.buffers.values()
        uses += [(node, 0) for node in builder.buffers]
        scalars += [param for param, _ in builder.scalars.values()]
        values += [value for _, value in builder.scalars.values()]
        definitions = {**definitions, **builder.definitions}
        sites = tuple(builder.sites)
    kernel = Kernel(name, tuple(buffers), tuple(scalars), LAUNCH_RANGES, body, definitions)
    least = -(-task_flops * points // max(flops, 1))
    chunk = max(1, least, points // max_tasks)
    return ScheduledKernel(kernel, tuple(uses), tuple(values), points, chunk, flops, sites)


def _label(node: Node, form: Form) -> str:
    parts = (form.channels, *node.srcs[0].shape[1:-1]), form.kernel, (form.filters, *form.out)
    return "_".join("x".join(map(str, part)) for part in parts)
