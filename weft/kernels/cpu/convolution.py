"""Convolution kernels for CPUs: tiles of the result stay in registers while taps and channels are added up.

Channels are contiguous and go to vector lanes; a tile is some pixels by one vector of channels. Each element is one
chain of fused multiply-adds in an order that does not depend on the tile, so tiles are free to fit the machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weft.base.dtypes import DType, int64
from weft.base.tuning import Tuning
from weft.kernels.cpu.schedule import lanes
from weft.kernels.cpu.winograd import PIXELS, RESULTS, SLOPES, signed_sum
from weft.kernels.ir import index as ix
from weft.kernels.ir.index import MAX_EXTENT, Axis, Index
from weft.kernels.ir.language import (
    Accumulator,
    Expr,
    If,
    IndexValue,
    Literal,
    Load,
    Local,
    Loop,
    Reduction,
    Stmt,
    Store,
    Update,
    Var,
)
from weft.kernels.numerics import MAX_WEIGHT_GRADIENT_CHAIN

Shape = tuple[int, ...]
Finish = Callable[[tuple[Index, ...], Expr, Expr | None], list[Stmt]]


@dataclass(frozen=True, slots=True)
class Form:
    """All of a convolution but its batch: x [N, *space, channels] (padded already), result [N, *out, filters].

    `x_steps` and `g_steps` are the distances in memory, in elements, along all axes of x and of the result's gradient
    but the last, whose elements are contiguous. A Winograd convolution (`kernels.cpu.winograd`) has four `parts` of x,
    `part_stride` elements from each other, and as many of the weights; the last axis of `out` counts pairs of pixels.
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
    part_stride: int = 0

    @property
    def per_group(self) -> int:
        return self.channels // self.groups

    def start(self, image: Index, at: Sequence[Index]) -> Index:
        """Where the window of the result at `at` begins in x."""
        position = image * self.x_steps[0]
        for o, stride, step in zip(at, self.strides, self.x_steps[1:], strict=True):
            position = position + o * (stride * step)
        return position

    def tap(self, at: Sequence[Index]) -> Index:
        """How far into the window a tap lies."""
        position = ix.ZERO
        for k, dilation, step in zip(at, self.dilations, self.x_steps[1:], strict=True):
            position = position + k * (dilation * step)
        return position


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
    ((batch block * blocks + channel block) * rounds + round) * groups of rows + group of rows; a batch block holds
    `rounds * images` images, so that the weights of a channel block are used often while they are in the cache.
    """

    block: int
    images: int
    rows: int
    pixels: int
    rounds: int
    unrolled_taps: int  # the innermost ones, at most

    def points(self, form: Form, batch: int) -> int:
        blocks = form.filters // self.block
        return -(-batch // (self.images * self.rounds)) * blocks * self.rounds * (math.prod(form.out[:-1]) // self.rows)


def tiling(form: Form, block: int, registers: int, tuning: Tuning) -> Tiling:
    """Tiles that use three quarters of the registers (given in bytes)."""
    most_pixels = max(1, min(tuning.max_conv_tile_pixels, registers * 3 // 4 // (lanes(block) * form.dtype.itemsize)))
    line = form.out[-1]
    pixels = -(-line // -(-line // most_pixels))
    rows = images = 1
    if pixels == line and len(form.out) > 1:
        above = form.out[-2]
        rows = max(r for r in range(1, above + 1) if above % r == 0 and (r == 1 or r * line <= most_pixels))
    if rows * pixels == math.prod(form.out):
        images = max(1, most_pixels // (rows * pixels))
    rounds = min(16, max(1, tuning.conv_pixels_per_pass // (images * math.prod(form.out))))
    return Tiling(block, images, rows, pixels, rounds, tuning.max_unrolled_taps)


def forward(form: Form, tiles: Tiling, batch: int, finish: Finish) -> tuple[Stmt, dict[str, Expr]]:
    """The kernel's body for points begin..end, and the definitions of loaded axes. Buffers: 'x', and 'w' packed as
    [blocks, parts, channels per group, *kernel, block]; the scalar 'batch'. `finish(at, value, mask)` stores a pixel.
    """
    return _Forward(form, tiles, batch, finish).body()


Pixel = tuple[int, tuple[Index, ...]]  # the number of its image in the tile, and its position in the result


class _Forward:
    """Writes a forward convolution: which pixels a point has, their sums in registers, and the stores."""

    def __init__(self, form: Form, tiles: Tiling, batch: int, finish: Finish):
        self.form, self.tiles, self.finish = form, tiles, finish
        block = tiles.block
        self.point, self.lane = Axis("point", MAX_EXTENT), Axis("lane", block)
        self.channel, self.part = Axis("channel", form.per_group, "reduce"), Axis("pair_part", form.parts)
        lines = (*form.out[:-2], form.out[-2] // tiles.rows) if len(form.out) > 1 else ()
        extents = (MAX_EXTENT, form.filters // block, tiles.rounds, math.prod(lines))
        batch_block, self.blocks, number, line = ix.delinearise(Index(((self.point, 1),), 0), extents)
        self.above = list(ix.delinearise(line, lines)) if lines else []
        self.first = (batch_block * tiles.rounds + number) * tiles.images
        self.images, self.guards, self.definitions = _images(self.first, tiles.images, batch)
        self.group = self.blocks * block // (form.filters // form.groups)
        self.output = self.blocks * block + self.lane

    def body(self) -> tuple[Stmt, dict[str, Expr]]:
        form, tiles = self.form, self.tiles
        body = _along(form.out[-1], tiles.pixels, self.tile)
        if form.parts > 1:
            size = form.parts * tiles.images * tiles.rows * tiles.pixels * tiles.block
            body = (Local("kept", form.dtype, size), *body)
        if tiles.images == 1:
            body = (If(_before_batch(self.first), body),)
        return Loop(self.point, Var("begin", int64), Var("end", int64), "task", body), self.definitions

    def tile(self, start: Index, count: int) -> tuple[Stmt, ...]:
        """One tile: `count` pixels of a line from `start` on, for each of its rows and images."""
        pixels: list[Pixel] = []
        for image, row, pixel in itertools.product(range(self.tiles.images), range(self.tiles.rows), range(count)):
            position = [*self.above]
            if position:
                position[-1] = position[-1] * self.tiles.rows + row
            pixels.append((image, (*position, start + pixel)))
        sums = tuple([Accumulator(f"sum{k}", "sum", self.form.dtype) for k in range(len(pixels))])
        statements = self.store_direct(pixels, sums) if self.form.parts == 1 else self.store_winograd(pixels, sums)
        return (Loop(self.lane, 0, self.tiles.block, "vector", statements, lanes(self.tiles.block)),)

    def reduction(self, pixels: Sequence[Pixel], sums: tuple[Accumulator, ...]) -> Reduction:
        """The sums of products over channels and taps."""
        form, channel, part = self.form, self.channel, self.part
        inner = self.group * form.per_group + channel
        inner = inner + part * form.part_stride
        starts = [form.start(self.images[image], position) + inner for image, position in pixels]

        def step(tap: tuple[Index, ...]) -> list[Stmt]:
            packed = self.blocks * form.parts + part
            row = packed * form.per_group + channel
            number = ix.linearise(tap, form.kernel)
            weight = (row * math.prod(form.kernel) + number) * self.tiles.block + self.lane
            reach = form.tap(tap)
            w = Load("w", weight, form.dtype)
            return [Update(s.name, Load("x", p + reach, form.dtype), w) for s, p in zip(sums, starts, strict=True)]

        return Reduction(
            sums, (Loop(channel, 0, form.per_group, "serial", _over_taps(form.kernel, self.tiles.unrolled_taps, step)),)
        )

    def store(self, image: int, position: tuple[Index, ...], value: Expr) -> list[Stmt]:
        return self.finish((self.images[image], *position, self.output), value, self.guards[image])

    def store_direct(self, pixels: Sequence[Pixel], sums: tuple[Accumulator, ...]) -> tuple[Stmt, ...]:
        """Each sum is a pixel."""
        stores: list[Stmt] = []
        for (image, position), total in zip(pixels, sums, strict=True):
            stores += self.store(image, position, Var(total.name, self.form.dtype))
        return (self.reduction(pixels, sums), *stores)

    def store_winograd(self, pixels: Sequence[Pixel], sums: tuple[Accumulator, ...]) -> tuple[Stmt, ...]:
        """Sums of each part of x, kept in an array, are combined to two pixels."""
        form, part = self.form, self.part

        def offset(number: Index, k: int) -> Index:
            return (number * len(pixels) + k) * self.tiles.block + self.lane

        keep = [Store("kept", offset(ix.axis_index(part), k), Var(s.name, form.dtype)) for k, s in enumerate(sums)]
        stores: list[Stmt] = []
        for k, (image, (*above, pair)) in enumerate(pixels):
            loads = [Load("kept", offset(ix.const(number), k), form.dtype) for number in range(form.parts)]
            for pixel, signs in enumerate(RESULTS):
                stores += self.store(image, (*above, pair * PIXELS + pixel), _sum(signs, loads))
        return (Loop(part, 0, form.parts, "serial", (self.reduction(pixels, sums), *keep)), *stores)


def _sum(row: Sequence[float], values: Sequence[Expr]) -> Expr:
    return signed_sum(row, values, lambda op, a, b: a + b if op == "add" else a - b)


def _images(first: Index, count: int, batch: int) -> tuple[list[Index], list[Expr | None], dict[str, Expr]]:
    """The images of a tile; where there are several, those past the batch read the last one and are not stored.

    They are values with the range of the batch, so that what is computed from the result finds its index again.
    """
    images: list[Index] = []
    guards: list[Expr | None] = []
    definitions: dict[str, Expr] = {}
    last = Var("batch", int64) - 1
    for number in range(count):
        image = first + number
        axis = Axis(f"image{number}", batch, "value")
        if batch > 1:
            value = IndexValue(image, int64)
            definitions[axis.name] = value if count == 1 else value.min(last)
        images.append(ix.axis_index(axis))
        guards.append(_before_batch(image) if count > 1 else None)
    return images, guards, definitions


def _before_batch(image: Index) -> Expr:
    return IndexValue(image, int64) < Var("batch", int64)


def _along(extent: int, step: int, tile: Callable[[Index, int], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """Tiles of `step` along a line, and a shorter one for the rest."""
    whole, rest = divmod(extent, step)
    if whole == 1:
        body = tile(ix.ZERO, step)
    else:
        number = Axis("part", whole)
        body = (Loop(number, 0, whole, "serial", tile(number * step, step)),)
    return (*body, *tile(ix.const(whole * step), rest)) if rest else body


def _over_taps(kernel: Shape, unrolled: int, step: Callable[[tuple[Index, ...]], list[Stmt]]) -> tuple[Stmt, ...]:
    """`step` for every tap in order: at most `unrolled` innermost ones unrolled, loops around them."""
    inner = len(kernel)
    while inner and math.prod(kernel[inner - 1 :]) <= unrolled:
        inner -= 1
    axes = [Axis(f"tap{k}", extent, "reduce") for k, extent in enumerate(kernel[:inner])]
    outer = tuple([ix.axis_index(axis) for axis in axes])
    body: list[Stmt] = []
    for position in itertools.product(*map(range, kernel[inner:])):
        body += step((*outer, *map(ix.const, position)))
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
    """The taps that are counted one by one, and the contiguous elements of x for each."""
    if form.groups == 1 and form.dilations[-1] == 1 and form.x_steps[-1] == form.channels:
        return form.kernel[:-1], form.kernel[-1] * form.channels
    return form.kernel, form.per_group


def weight_block(filters: int, groups: int, dtype: DType) -> int:
    """Channels of the result whose weight gradients are contiguous: one tile's, or all."""
    most = 128 // dtype.itemsize
    return most if groups == 1 and filters % most == 0 else filters


def weight_tiling(form: Form, registers: int, max_pixels: int) -> WeightTiling:
    """Tiles of at most `max_pixels` accumulators that use three quarters of the registers (given in bytes)."""
    block = weight_block(form.filters, form.groups, form.dtype)
    width = lanes(min(form.filters // form.groups, 128 // form.dtype.itemsize))
    most_pixels = max(1, min(max_pixels, registers * 3 // 4 // (width * form.dtype.itemsize)))
    lines, line = _lines(form)
    run = max(size for size in range(1, most_pixels + 1) if line % size == 0)
    taps = lines[-1] if lines and run == line and run * lines[-1] <= most_pixels else 1
    return WeightTiling(run, taps, max(1, -(-MAX_WEIGHT_GRADIENT_CHAIN // math.prod(form.out))), block)


def weights(form: Form, tiles: WeightTiling) -> tuple[Stmt, ...]:
    """The kernel's body for points begin..end. Buffers: 'x', 'g' [N, *out, filters] and the result 'y' [parts of the
    batch, blocks, parts, *kernel, channels per group, block]; the scalars 'batch' and 'per_part'. Each sum runs over
    the pixels of some images in order, and over those groups of images in order. All points of a task take a group of
    images before the next, so that it stays in the cache."""
    lines, line = _lines(form)
    outside = form.filters // form.groups
    counted = (*lines[:-1], lines[-1] // tiles.taps) if lines else ()
    point, lane = Axis("point", MAX_EXTENT), Axis("lane", tiles.block)
    extents = (MAX_EXTENT, form.filters // tiles.block, *counted, line // tiles.run)
    piece, blocks, *number, section = ix.delinearise(Index(((point, 1),), 0), extents)
    group = lane // outside if form.groups > 1 else ix.ZERO
    filter_ = blocks * tiles.block + lane
    chunk, image = Axis("chunk", MAX_EXTENT, "reduce"), Axis("image", MAX_EXTENT, "reduce")
    pixels = [Axis(f"pixel{k}", extent, "reduce") for k, extent in enumerate(form.out)]
    at = tuple([ix.axis_index(axis) for axis in pixels])
    start = form.start(Index(((image, 1),), 0), at)
    per_part = Var("per_part", int64)
    start_of = IndexValue(piece, int64) * per_part
    stop = (start_of + per_part).min(Var("batch", int64))
    begin = start_of + IndexValue(Index(((chunk, 1),), 0), int64) * tiles.images
    end = (begin + tiles.images).min(stop)

    count = (per_part + (tiles.images - 1)) // tiles.images
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
            inside = section * tiles.run + k
            reach = form.tap((*above, *[ix.ZERO] * (len(form.kernel) - len(above))))
            reach = reach + part * form.part_stride
            source = start + reach + (inside + group * form.per_group)
            total = Accumulator(f"sum{part}_{len(sums)}", "sum", form.dtype)
            sums.append(total)
            updates.append(Update(total.name, Load("x", source, form.dtype), slope))
            position = ix.linearise(
                (piece, blocks, ix.const(part), *above, inside, ix.axis_index(lane)),
                (MAX_EXTENT, form.filters // tiles.block, form.parts, *lines, line, tiles.block),
            )
            clear.append(Store("y", position, Literal(0.0, form.dtype)))
            grow.append(Store("y", position, Load("y", position, form.dtype) + Var(total.name, form.dtype)))
        body: tuple[Stmt, ...] = tuple(updates)
        for axis in reversed(pixels):
            body = (Loop(axis, 0, axis.extent, "serial", body),)
        steps += (Reduction(tuple(sums), (Loop(image, begin, end, "serial", body),)), *grow)

    def tasks(statements: list[Stmt]) -> Stmt:
        width = lanes(min(outside, 128 // form.dtype.itemsize))
        across = Loop(lane, 0, tiles.block, "vector", tuple(statements), width)
        return Loop(point, Var("begin", int64), Var("end", int64), "task", (across,))

    return tasks(clear), Loop(chunk, 0, count, "serial", (tasks(steps),))


def _slopes(form: Form, filter_: Index, at: Sequence[Index]) -> list[Expr]:
    """What each part of x is multiplied by: the gradient at a pixel, or sums of it over a pair."""
    *steps, last = form.g_steps
    pixels = PIXELS if form.parts > 1 else 1
    position = filter_
    for number, step in zip(at, (*steps, last * pixels), strict=True):
        position = position + number * step
    loads = [Load("g", position + k * last, form.dtype) for k in range(pixels)]
    return [_sum(row, loads) for row in SLOPES] if form.parts > 1 else [*loads]
