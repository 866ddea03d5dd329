"""Convolution kernels for CPUs: tiles of the result stay in registers while taps and channels are added up.

Channels lie side by side and go to vector lanes; a tile is some pixels by one vector of channels. Each element is one
chain of fused multiply-adds in an order that does not depend on the tile, so tiles are free to fit the machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.dtypes import DType, bool_, int64
from weft.kernels import index as ix
from weft.kernels.cpu import lanes
from weft.kernels.index import MANY, Axis, Index
from weft.kernels.language import (
    Accumulator,
    Expr,
    Fold,
    If,
    IndexValue,
    Literal,
    Load,
    Local,
    Loop,
    Op,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.pairs import PIXELS, RESULTS, SLOPES, signed_sum

Shape = tuple[int, ...]
Finish = Callable[[tuple[Index, ...], Expr, Expr | None], list[Stmt]]

MOST_PIXELS = 16  # accumulators of a tile
UNROLLED = 9  # taps that are written out one by one; further out there are loops
PER_PASS = 256  # pixels worth of work for each pass over the weights of a block of channels
PER_SUM = 128  # pixels that one chain of additions of a weight gradient takes


@dataclass(frozen=True, slots=True)
class Form:
    """All of a convolution but its batch: x [N, *space, channels] (padded already), result [N, *out, filters].

    `x_steps` and `g_steps` are the distances in memory, in elements, along all axes of x and of the result's gradient
    but the last, whose elements are neighbours. A convolution by pairs (`kernels.pairs`) has four `parts` of x, `apart`
    from each other, and as many of the weights; the last axis of `out` counts pairs of pixels.
    """

    x_steps: Shape
    g_steps: Shape
    channels: int
    kernel: Shape
    out: Shape
    filters: int
    strides: Shape
    dilations: Shape
    groups: int
    dtype: DType
    parts: int = 1
    apart: int = 0

    @property
    def per_group(self) -> int:
        return self.channels // self.groups

    def start(self, image: Index, at: Sequence[Index]) -> Index:
        """Where the window of the result at `at` begins in x."""
        place = ix.scale(image, self.x_steps[0])
        for o, stride, step in zip(at, self.strides, self.x_steps[1:], strict=True):
            place = ix.add(place, ix.scale(o, stride * step))
        return place

    def tap(self, at: Sequence[Index]) -> Index:
        """How far into the window a tap lies."""
        place = ix.ZERO
        for k, dilation, step in zip(at, self.dilations, self.x_steps[1:], strict=True):
            place = ix.add(place, ix.scale(k, dilation * step))
        return place


def block_of(filters: int, most: int) -> int | None:
    """Channels of the result that one vector takes: all of them, or a divisor; None where padding is better."""
    if filters <= most:
        return filters
    sizes = [size for size in range(most, most // 4 - 1, -1) if filters % size == 0]
    even = [size for size in sizes if size & (size - 1) == 0]
    return even[0] if even else sizes[0] if sizes else None


@dataclass(frozen=True, slots=True)
class Tiling:
    """How points of a launch stand for tiles.

    A tile is `images` x `rows` x `pixels` (the last block of a line may be shorter) by `block` channels. Point number =
    ((batch block * blocks + channel block) * turns + turn) * groups of rows + group of rows; a batch block holds
    `turns * images` images, so that the weights of a channel block are used often while they are in the cache.
    """

    block: int
    images: int
    rows: int
    pixels: int
    turns: int

    def points(self, form: Form, batch: int) -> int:
        blocks = form.filters // self.block
        return -(-batch // (self.images * self.turns)) * blocks * self.turns * (math.prod(form.out[:-1]) // self.rows)


def tiling(form: Form, block: int, registers: int) -> Tiling:
    """Tiles that use three quarters of the registers (given in bytes)."""
    room = max(1, min(MOST_PIXELS, registers * 3 // 4 // (lanes(block) * form.dtype.itemsize)))
    line = form.out[-1]
    pixels = -(-line // -(-line // room))
    rows = images = 1
    if pixels == line and len(form.out) > 1:
        above = form.out[-2]
        rows = max(r for r in range(1, above + 1) if above % r == 0 and (r == 1 or r * line <= room))
    if rows * pixels == math.prod(form.out):
        images = max(1, room // (rows * pixels))
    turns = min(16, max(1, PER_PASS // (images * math.prod(form.out))))
    return Tiling(block, images, rows, pixels, turns)


def forward(form: Form, tiles: Tiling, batch: int, finish: Finish) -> tuple[Stmt, dict[str, Expr]]:
    """The kernel's body for points begin..end, and the definitions of loaded axes. Buffers: 'x', and 'w' packed as
    [blocks, parts, channels per group, *kernel, block]; the scalar 'batch'. `finish(at, value, mask)` stores a pixel.
    """
    rank, block = len(form.out), tiles.block
    point, lane, channel = Axis("point", MANY), Axis("lane", block), Axis("channel", form.per_group, "reduce")
    lines = (*form.out[:-2], form.out[-2] // tiles.rows) if rank > 1 else ()
    extents = (MANY, form.filters // block, tiles.turns, math.prod(lines))
    batch_block, blocks, turn, line = ix.delinearise(Index(((point, 1),), 0), extents)
    above = list(ix.delinearise(line, lines)) if lines else []
    first = ix.scale(ix.add(ix.scale(batch_block, tiles.turns), turn), tiles.images)
    images, guards, definitions = _images(first, tiles.images, batch)
    group = ix.floordiv(ix.scale(blocks, block), form.filters // form.groups)
    output = ix.add(ix.scale(blocks, block), ix.axis_index(lane))
    part = Axis("pair_part", form.parts)

    def tile(start: Index, pixels: int) -> tuple[Stmt, ...]:
        at = []
        for image, row, pixel in itertools.product(range(tiles.images), range(tiles.rows), range(pixels)):
            place = [*above]
            if rank > 1:
                place[-1] = ix.add(ix.scale(place[-1], tiles.rows), ix.const(row))
            at.append((image, (*place, ix.add(start, ix.const(pixel)))))
        sums = tuple([Accumulator(f"sum{k}", "sum", form.dtype) for k in range(len(at))])
        inner = ix.add(ix.scale(group, form.per_group), ix.axis_index(channel))
        inner = ix.add(inner, ix.scale(ix.axis_index(part), form.apart))
        places = [ix.add(form.start(images[image], where), inner) for image, where in at]

        def step(tap: tuple[Index, ...]) -> list[Stmt]:
            number = ix.linearise(tap, form.kernel)
            packed = ix.add(ix.scale(blocks, form.parts), ix.axis_index(part))
            row = ix.add(ix.scale(packed, form.per_group), ix.axis_index(channel))
            weight = ix.add(ix.scale(ix.add(ix.scale(row, math.prod(form.kernel)), number), block), ix.axis_index(lane))
            reach = form.tap(tap)
            w = Load("w", weight, form.dtype)
            return [
                Update(s.name, Load("x", ix.add(p, reach), form.dtype), w) for s, p in zip(sums, places, strict=True)
            ]

        fold = Fold(sums, (Loop(channel, 0, form.per_group, "serial", _over_taps(form.kernel, step)),))
        stores: list[Stmt] = []
        if form.parts == 1:
            for (image, where), total in zip(at, sums, strict=True):
                stores += finish((images[image], *where, output), Var(total.name, form.dtype), guards[image])
            return (Loop(lane, 0, block, "vector", (fold, *stores), lanes(block)),)

        def kept(number: Index, pair: int) -> Index:
            return ix.add(ix.scale(ix.add(ix.scale(number, len(at)), ix.const(pair)), block), ix.axis_index(lane))

        keep = [Store("kept", kept(ix.axis_index(part), k), Var(s.name, form.dtype)) for k, s in enumerate(sums)]
        for k, (image, (*place, pair)) in enumerate(at):
            found = [Load("kept", kept(ix.const(number), k), form.dtype) for number in range(form.parts)]
            for pixel, signs in enumerate(RESULTS):
                where = (*place, ix.add(ix.scale(pair, PIXELS), ix.const(pixel)))
                stores += finish((images[image], *where, output), _sum(signs, found), guards[image])
        each = Loop(part, 0, form.parts, "serial", (fold, *keep))
        return (Loop(lane, 0, block, "vector", (each, *stores), lanes(block)),)

    body = _along(form.out[-1], tiles.pixels, tile)
    if form.parts > 1:
        body = (Local("kept", form.dtype, form.parts * tiles.images * tiles.rows * tiles.pixels * block), *body)
    if tiles.images == 1:
        body = (If(_before_batch(first), body),)
    return Loop(point, Var("begin", int64), Var("end", int64), "task", body), definitions


def _sum(row: Sequence[float], values: Sequence[Expr]) -> Expr:
    dtype = values[0].dtype
    return signed_sum(row, values, lambda op, a, b: Op(op, (a, b), dtype))


def _images(first: Index, count: int, batch: int) -> tuple[list[Index], list[Expr | None], dict[str, Expr]]:
    """The images of a tile; where there are several, those past the batch read the last one and are not stored.

    They are values with the range of the batch, so that what is computed from the result finds its index again.
    """
    images: list[Index] = []
    guards: list[Expr | None] = []
    definitions: dict[str, Expr] = {}
    last = Op("sub", (Var("batch", int64), Literal(1, int64)), int64)
    for number in range(count):
        image = ix.add(first, ix.const(number))
        axis = Axis(f"image{number}", batch, "value")
        if batch > 1:
            value = IndexValue(image, int64)
            definitions[axis.name] = value if count == 1 else Op("min", (value, last), int64)
        images.append(ix.axis_index(axis))
        guards.append(_before_batch(image) if count > 1 else None)
    return images, guards, definitions


def _before_batch(image: Index) -> Expr:
    return Op("lt", (IndexValue(image, int64), Var("batch", int64)), bool_)


def _along(extent: int, step: int, tile: Callable[[Index, int], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """Tiles of `step` along a line, and a shorter one for the rest."""
    whole, rest = divmod(extent, step)
    if whole == 1:
        body = tile(ix.ZERO, step)
    else:
        number = Axis("part", whole)
        body = (Loop(number, 0, whole, "serial", tile(ix.scale(ix.axis_index(number), step), step)),)
    return (*body, *tile(ix.const(whole * step), rest)) if rest else body


def _over_taps(kernel: Shape, step: Callable[[tuple[Index, ...]], list[Stmt]]) -> tuple[Stmt, ...]:
    """`step` for every tap in order: the innermost ones written out, loops around them."""
    inner = len(kernel)
    while inner and math.prod(kernel[inner - 1 :]) <= UNROLLED:
        inner -= 1
    axes = [Axis(f"tap{k}", extent, "reduce") for k, extent in enumerate(kernel[:inner])]
    outer = tuple([ix.axis_index(axis) for axis in axes])
    body: list[Stmt] = []
    for place in itertools.product(*map(range, kernel[inner:])):
        body += step((*outer, *map(ix.const, place)))
    statements = tuple(body)
    for axis in reversed(axes):
        statements = (Loop(axis, 0, axis.extent, "serial", statements),)
    return statements


# --- weight gradients ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WeightTiling:
    """A tile of the weight gradient is `taps` x `run` consecutive elements of a window's line by one vector of channels
    of the result; `run` divides a line (the last axis of the kernel with its channels) and `taps` is 1 or the extent of
    the axis above."""

    run: int
    taps: int
    images: int  # that one chain of additions takes
    block: int

    def points(self, form: Form) -> int:
        """How many tiles the gradient has."""
        lines, line = _lines(form)
        return form.filters // self.block * (math.prod(lines) // self.taps) * (line // self.run)


def _lines(form: Form) -> tuple[Shape, int]:
    """The taps that are counted one by one, and the elements side by side in x behind each."""
    if form.groups == 1 and form.dilations[-1] == 1 and form.x_steps[-1] == form.channels:
        return form.kernel[:-1], form.kernel[-1] * form.channels
    return form.kernel, form.per_group


def weight_block(filters: int, groups: int, dtype: DType) -> int:
    """Channels of the result whose weight gradients lie side by side: one tile's, or all."""
    most = 128 // dtype.itemsize
    return most if groups == 1 and filters % most == 0 else filters


def weight_tiling(form: Form, registers: int) -> WeightTiling:
    block = weight_block(form.filters, form.groups, form.dtype)
    width = lanes(min(form.filters // form.groups, 128 // form.dtype.itemsize))
    room = max(1, min(MOST_PIXELS, registers * 3 // 4 // (width * form.dtype.itemsize)))
    lines, line = _lines(form)
    run = max(size for size in range(1, room + 1) if line % size == 0)
    taps = lines[-1] if lines and run == line and run * lines[-1] <= room else 1
    return WeightTiling(run, taps, max(1, -(-PER_SUM // math.prod(form.out))), block)


def weights(form: Form, tiles: WeightTiling) -> tuple[Stmt, ...]:
    """The kernel's body for points begin..end. Buffers: 'x', 'g' [N, *out, filters] and the result 'y' [parts of the
    batch, blocks, parts, *kernel, channels per group, block]; the scalars 'batch' and 'per_part'. Each sum runs over
    the pixels of some images in order, and over those groups of images in order. All points of a task take a group of
    images before the next, so that it stays in the cache."""
    lines, line = _lines(form)
    outside = form.filters // form.groups
    counted = (*lines[:-1], lines[-1] // tiles.taps) if lines else ()
    point, lane = Axis("point", MANY), Axis("lane", tiles.block)
    extents = (MANY, form.filters // tiles.block, *counted, line // tiles.run)
    piece, blocks, *number, section = ix.delinearise(Index(((point, 1),), 0), extents)
    group = ix.floordiv(ix.axis_index(lane), outside) if form.groups > 1 else ix.ZERO
    filter_ = ix.add(ix.scale(blocks, tiles.block), ix.axis_index(lane))
    chunk, image = Axis("chunk", MANY, "reduce"), Axis("image", MANY, "reduce")
    pixels = [Axis(f"pixel{k}", extent, "reduce") for k, extent in enumerate(form.out)]
    at = tuple([ix.axis_index(axis) for axis in pixels])
    start = form.start(Index(((image, 1),), 0), at)
    per_part, step = Var("per_part", int64), Literal(tiles.images, int64)
    start_of = Op("mul", (IndexValue(piece, int64), per_part), int64)
    stop = Op("min", (Op("add", (start_of, per_part), int64), Var("batch", int64)), int64)
    begin = Op("add", (start_of, Op("mul", (IndexValue(Index(((chunk, 1),), 0), int64), step), int64)), int64)
    end = Op("min", (Op("add", (begin, step), int64), stop), int64)

    count = Op("div", (Op("add", (per_part, Literal(tiles.images - 1, int64)), int64), step), int64)
    slopes = _slopes(form, filter_, (Index(((image, 1),), 0), *at))
    clear: list[Stmt] = []
    steps: list[Stmt] = []
    for part, slope in enumerate(slopes):
        sums: list[Accumulator] = []
        updates: list[Stmt] = []
        grow: list[Stmt] = []
        for tap, k in itertools.product(range(tiles.taps), range(tiles.run)):
            above = list(number)
            if tiles.taps > 1:
                above[-1] = ix.const(tap)
            inside = ix.add(ix.scale(section, tiles.run), ix.const(k))
            reach = form.tap((*above, *[ix.ZERO] * (len(form.kernel) - len(above))))
            reach = ix.add(reach, ix.const(part * form.apart))
            source = ix.add(ix.add(start, reach), ix.add(inside, ix.scale(group, form.per_group)))
            total = Accumulator(f"sum{part}_{len(sums)}", "sum", form.dtype)
            sums.append(total)
            updates.append(Update(total.name, Load("x", source, form.dtype), slope))
            place = ix.linearise(
                (piece, blocks, ix.const(part), *above, inside, ix.axis_index(lane)),
                (MANY, form.filters // tiles.block, form.parts, *lines, line, tiles.block),
            )
            clear.append(Store("y", place, Literal(0.0, form.dtype)))
            both = (Load("y", place, form.dtype), Var(total.name, form.dtype))
            grow.append(Store("y", place, Op("add", both, form.dtype)))
        body: tuple[Stmt, ...] = tuple(updates)
        for axis in reversed(pixels):
            body = (Loop(axis, 0, axis.extent, "serial", body),)
        steps += (Fold(tuple(sums), (Loop(image, begin, end, "serial", body),)), *grow)

    def tasks(statements: list[Stmt]) -> Stmt:
        width = lanes(min(outside, 128 // form.dtype.itemsize))
        across = Loop(lane, 0, tiles.block, "vector", tuple(statements), width)
        return Loop(point, Var("begin", int64), Var("end", int64), "task", (across,))

    return tasks(clear), Loop(chunk, 0, count, "serial", (tasks(steps),))


def _slopes(form: Form, filter_: Index, at: Sequence[Index]) -> list[Expr]:
    """What each part of x is multiplied by: the gradient at a pixel, or sums of it over a pair."""
    *steps, last = form.g_steps
    pixels = PIXELS if form.parts > 1 else 1
    place = filter_
    for number, step in zip(at, (*steps, last * pixels), strict=True):
        place = ix.add(place, ix.scale(number, step))
    loads = [Load("g", ix.add(place, ix.const(k * last)), form.dtype) for k in range(pixels)]
    return [_sum(row, loads) for row in SLOPES] if form.parts > 1 else [*loads]
