"""order_blocks: scans, sorts and scattered rows in the forms that devices with blocks compute, by shapes alone.

Everything is made of few kernels. A scan whose lines are long and few is cut into pieces, scanned side by side. A sort
is one of words (key above position), all different: sorted runs, then passes that merge them; keys of 64 bits are
sorted by their lower and then, stably, by their upper half. Rows that are scattered are sorted by where they go, then
folded in segments: first in pieces of bounded length, so that no thread has much more to do than another, then the
pieces of each row of the table. Each table row thus has one order of additions, whoever computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from weft.backends.base import Device
from weft.compiler.access import row_major
from weft.compiler.order import in_pieces
from weft.compiler.region import Region
from weft.compiler.simplify import reshape
from weft.compiler.template import Built, Template, view_of
from weft.dtypes import DType, int32, int64, uint32
from weft.graph.build import (
    add,
    binary,
    bitcast,
    cast,
    eq,
    full,
    gather,
    in_range,
    iota,
    like,
    lt,
    mul,
    narrow,
    pad,
    permute,
    row_positions,
    segment,
    select,
    sub,
)
from weft.graph.evaluate import segments
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, Primitive, make
from weft.kernels.block_scans import BLOCK, EACH
from weft.kernels.block_sorts import merge_runs, most_words
from weft.kernels.gpu_tile import target_of

POSITION = 2**32 - 1  # the bits of a word that hold the position
RUN = 4096  # words that a block sorts, where it has threads and memory for them
LINES = 32  # elements of a row up to which one thread scans it
MANY = 16384  # lines that keep a device busy with one thread for each
SERIAL = 256  # elements that one thread scans without a thought
ROWS = 256  # rows that keep a device busy with a block for each
TILES = 2  # tiles of a row that a block scans without a thought
WALKED = 256  # scattered rows that every element of a table may look at
LOOKS = 1 << 22  # such looks altogether that cost less than a sort
PIECES = 512  # scattered rows from which they are folded in pieces


# --- scans -----------------------------------------------------------------------------------------------------------


def scan(x: Node, op: str, axis: int, reverse: bool) -> Node:
    """A running reduction: over lines of (outer, extent, inner) that threads walk, or over rows that blocks walk."""
    outer, extent, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if extent == 1:
        return x
    lines = outer * inner
    if inner > 1 or extent <= LINES:
        shape: tuple[int, ...] = (outer, extent, inner)
        per = 1 << max((extent - 1).bit_length() // 2, 5)
        cut = lines < MANY and extent > SERIAL
    else:
        shape = (outer, extent)
        per = max(TILES * BLOCK * EACH, -(-extent // ROWS))
        cut = lines < ROWS and extent > per
    rows = reshape(x, shape)
    if not cut:
        return reshape(make("scan", (rows,), (op, 1, reverse)), x.shape)
    return reshape(in_pieces(rows, op, reverse, per, lambda part: scan(part, op, 1, reverse)), x.shape)


# --- sorts -----------------------------------------------------------------------------------------------------------


def argsort(keys: Node) -> Node:
    """The order of each row."""
    extent = keys.shape[-1]
    rows = reshape(keys, (keys.size // max(extent, 1), extent))
    if keys.dtype.itemsize < 8:
        wide = cast(rows, int64)
        return reshape(_position(_sorted_words(sub(wide, 1 << 31) if keys.dtype is uint32 else wide)), keys.shape)
    signed = rows if keys.dtype is int64 else binary("xor", bitcast(rows, int64), -(1 << 63))
    upper, lower = binary("shr", signed, 32), sub(binary("and", signed, POSITION), 1 << 31)
    first = _position(_sorted_words(lower))
    second = _position(_sorted_words(_along(upper, first)))
    return reshape(_along(first, second), keys.shape)


def _sorted_words(keys: Node) -> Node:
    """Rows of (key, position) in one word each, in order. Keys are int64 in the range of int32."""
    words = binary("or", binary("shl", keys, 32), iota(keys.shape, 1, keys.device))
    extent = keys.shape[1]
    if extent == 1:
        return words
    target = target_of(keys.device.features, keys.device.limits)
    run = min(RUN, most_words(target.threads, target.shared_bytes))
    per = min(1 << max(extent - 1, 0).bit_length(), run)
    words = make("sort_runs", (words,), (per,))
    while per < extent:
        words = make("merge_runs", (words,), (per, run))
        per *= 2
    return words


def _position(words: Node) -> Node:
    return binary("and", words, POSITION)


def _key(words: Node) -> Node:
    return binary("shr", words, 32)


def _along(x: Node, index: Node) -> Node:
    """Elements of rows by their positions, which exist."""
    return gather(reshape(x, (x.size,)), row_positions(index, 1, x.shape[1]), 0, known=True)


# --- scattered rows --------------------------------------------------------------------------------------------------


def scatter(node: Node, index: Node, src: Node) -> Node:
    """Rows folded into a table: by a walk over all of them where there are few, else sorted by where they go."""
    (count,), entries = node.attrs, src.shape[0]
    few = entries <= WALKED and entries * node.size <= LOOKS
    if few or not src.size or not node.size:
        return make(node.op, (index, src), node.attrs, site=node.site)
    target = in_range(cast(index, int64), count, node.site)
    inside = binary("and", make("le", (like(target, 0), target)), lt(target, count))
    keys = select(inside, target, count)
    if count < 1 << 31:
        words = reshape(_sorted_words(reshape(keys, (1, entries))), (entries,))
        where, order = _key(words), _position(words)
    else:
        order = argsort(keys)
        where = gather(keys, order, 0, known=True)
    fold = {"add": "sum"}.get(node.op[len("scatter_") :], node.op[len("scatter_") :])
    return _folded(fold, where, order, src, count)


def along_add(index: Node, src: Node, axis: int, extent: int) -> Node:
    """Rows of elements added into rows of `extent`; each row is sorted for itself."""
    rank = len(src.shape)
    last = (*[k for k in range(rank) if k != axis], axis)
    outer = tuple([src.shape[k] for k in last[:-1]])
    shape = (math.prod(outer), src.shape[axis])
    places, values = [reshape(permute(source, last), shape) for source in (index, src)]
    if not src.size:
        return full((*src.shape[:axis], extent, *src.shape[axis + 1 :]), 0, src.dtype, src.device)
    words = _sorted_words(binary("max", binary("min", cast(places, int64), extent - 1), 0))
    row = iota(shape, 0, src.device)
    where, order = add(_key(words), mul(row, extent)), add(_position(words), mul(row, shape[1]))
    where, order, values = (reshape(source, (src.size,)) for source in (where, order, values))
    table = reshape(_folded("sum", where, order, values, shape[0] * extent), (*outer, extent))
    return permute(table, sorted(range(rank), key=last.__getitem__))


def _folded(fold: str, where: Node, order: Node, src: Node, count: int) -> Node:
    """A table of `count` rows, of which number where[k] (rising) folds row order[k] of `src`."""
    total = where.size
    data = gather(src, order, 0, known=True)
    slots = iota((count + 1,), 0, src.device)
    starts = _first_not_less(where, slots)
    if total < PIECES:
        return segment(fold, data, starts, known=True)
    at = iota((total,), 0, src.device)
    per = 1 << (total.bit_length() // 2)
    before = pad(narrow(where, 0, 0, total - 1), (1,), (0,), -1)
    begins = binary("or", eq(binary("and", at, per - 1), 0), binary("ne", where, before))
    numbers = scan(cast(begins, int32 if total < 1 << 31 else int64), "sum", 0, False)
    pieces = min(total, count + 1) + -(-total // per)
    parts = segment(fold, data, _first_not_less(numbers, add(iota((pieces + 1,), 0, at.device), 1)), known=True)
    exists = lt(starts, total)
    begun = cast(gather(numbers, select(exists, starts, total - 1), 0, known=True), int64)
    return segment(fold, parts, sub(begun, cast(exists, int64)), known=True)


def _first_not_less(rising: Node, values: Node) -> Node:
    """Where each of `values` would go in a rising vector, before its equals."""
    extent = rising.size
    found = like(values, 0)
    step = 1 << (extent.bit_length() - 1)
    while step:
        probe = add(found, step)
        inside = binary("le", probe, like(probe, extent))
        there = cast(gather(rising, select(inside, sub(probe, 1), 0), 0, known=True), int64)
        found = select(binary("and", inside, lt(there, values)), probe, found)
        step //= 2
    return found


# --- primitives that only the compiler makes -------------------------------------------------------------------------


def _words_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return srcs[0].shape, int64


def _runs_of(factor: int) -> Callable[[Node, Sequence[np.ndarray], np.dtype], np.ndarray]:
    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        per, words = node.attrs[0] * factor, arrays[0]
        parts = [np.sort(words[:, at : at + per], axis=1) for at in range(0, words.shape[1], per)]
        return np.concatenate(parts, axis=1) if parts else words

    return run


def merging(node: Node, leaves: Collection[Node]) -> Template:
    """The template of `merge_runs`."""
    view = view_of(node.srcs[0], leaves)
    source = (view.base, view.offset) if view.strides == row_major(node.shape) else (node.srcs[0], 0)
    (rows, extent), (per, size) = node.shape, node.attrs

    def build(region: Region, device: Device) -> Built:
        kernel, tiles = merge_runs(f"merge_{per}_of_{extent}", rows, extent, per, size)
        return Built(kernel, (source, (node, 0)), (), tiles, tiles, 16 * node.size)

    return Template((source[0],), build)


PRIMITIVES["sort_runs"] = Primitive("sort_runs", "sort", 1, _words_shape, _runs_of(1))
PRIMITIVES["merge_runs"] = Primitive("merge_runs", "template", 1, _words_shape, _runs_of(2))
PRIMITIVES["segment_prod"] = replace(PRIMITIVES["segment_sum"], name="segment_prod", evaluate=segments("prod"))
