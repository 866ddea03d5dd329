"""Scans, sorts and scattered rows in the forms that GPUs compute, chosen by `kernels.numerics`.

Each takes few kernels. A scan whose lines are long and few is cut into pieces that are scanned concurrently. A sort
is one of words (key above position), all different: sorted runs, then passes that merge them; keys of 64 bits are
sorted by their lower and then, stably, by their upper half. Rows that are scattered are sorted by their target, then
reduced in segments: first in pieces of bounded length, so that lanes have similar work, then the pieces of each row of
the table. Each table row thus has one order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from weft.base.dtypes import int32, int64, uint32
from weft.compiler.fusion.index_map import row_major
from weft.compiler.fusion.region import Region
from weft.compiler.passes.simplify import reshape
from weft.compiler.passes.sorting import scan_in_pieces
from weft.compiler.primitives import MERGE_RUNS, SEGMENT_PROD, SORT_RUNS
from weft.compiler.templates.template import ScheduledKernel, Template, view_of
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
    select,
    sub,
)
from weft.graph.node import Node
from weft.graph.primitives import PRIMITIVES, make_node
from weft.kernels import numerics
from weft.kernels.gpu.sort import WORDS_PER_LANE, max_tile_words, merge_runs
from weft.plan.device import Device

POSITION = 2**32 - 1  # the bits of a word that hold the position


# --- scans -----------------------------------------------------------------------------------------------------------


def scan(x: Node, op: str, axis: int, reverse: bool) -> Node:
    """A running reduction: over lines of (outer, extent, inner) with one lane each, or over rows with one workgroup
    each."""
    outer, extent, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if extent == 1:
        return x
    rows = reshape(x, (outer, extent, inner) if numerics.is_line_scan(extent, inner) else (outer, extent))
    per = numerics.gpu_scan_piece(outer, extent, inner)
    if per is None:
        return reshape(make_node("scan", (rows,), (op, 1, reverse)), x.shape)
    return reshape(scan_in_pieces(rows, op, reverse, per, lambda part: scan(part, op, 1, reverse)), x.shape)


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
    limits = keys.device.limits
    static_bytes = min(limits.shared_bytes, limits.static_shared_bytes)
    run = min(keys.device.tuning.max_sorted_run, max_tile_words(limits.workgroup_size, static_bytes))
    run = max(run, WORDS_PER_LANE)
    per = min(1 << max(extent - 1, 0).bit_length(), run)
    words = make_node(SORT_RUNS, (words,), (per,))
    while per < extent:
        words = make_node(MERGE_RUNS, (words,), (per, run))
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
    """Rows reduced into a table: by a visit of all of them where there are few, else sorted by their target."""
    (count,), entries = node.attrs, src.shape[0]
    if numerics.is_scattered_by_visits(entries, node.size) or not src.size or not node.size:
        return make_node(node.primitive, (index, src), node.attrs, site=node.site)
    target = in_range(cast(index, int64), count, node.site)
    inside = binary("and", make_node("le", (like(target, 0), target)), lt(target, count))
    keys = select(inside, target, count)
    if count < 1 << 31:
        words = reshape(_sorted_words(reshape(keys, (1, entries))), (entries,))
        where, order = _key(words), _position(words)
    else:
        order = argsort(keys)
        where = gather(keys, order, 0, known=True)
    reduction = {"add": "sum"}.get(node.op[len("scatter_") :], node.op[len("scatter_") :])
    return _reduce_sorted(reduction, where, order, src, count)


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
    table = reshape(_reduce_sorted("sum", where, order, values, shape[0] * extent), (*outer, extent))
    return permute(table, sorted(range(rank), key=last.__getitem__))


def _reduce_sorted(reduction: str, where: Node, order: Node, src: Node, count: int) -> Node:
    """A table of `count` rows, of which number where[k] (rising) reduces row order[k] of `src`."""
    total = where.size
    data = gather(src, order, 0, known=True)
    slots = iota((count + 1,), 0, src.device)
    starts = _first_not_less(where, slots)
    per = numerics.scatter_piece(total)
    if per is None:
        return _segment(reduction, data, starts)
    at = iota((total,), 0, src.device)
    before = pad(narrow(where, 0, 0, total - 1), (1,), (0,), -1)
    begins = binary("or", eq(binary("and", at, per - 1), 0), binary("ne", where, before))
    numbers = scan(cast(begins, int32 if total < 1 << 31 else int64), "sum", 0, False)
    pieces = min(total, count + 1) + -(-total // per)
    parts = _segment(reduction, data, _first_not_less(numbers, add(iota((pieces + 1,), 0, at.device), 1)))
    exists = lt(starts, total)
    first = cast(gather(numbers, select(exists, starts, total - 1), 0, known=True), int64)
    return _segment(reduction, parts, sub(first, cast(exists, int64)))


def _segment(reduction: str, data: Node, pointers: Node) -> Node:
    """Rows reduced by segments whose pointers are known to rise."""
    row = SEGMENT_PROD if reduction == "prod" else PRIMITIVES[f"segment_{reduction}"]
    return make_node(row, (data, pointers), (True,))


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


def template(node: Node, leaves: Collection[Node]) -> Template:
    """The template of `merge_runs`."""
    view = view_of(node.srcs[0], leaves)
    source = (view.base, view.offset) if view.strides == row_major(node.shape) else (node.srcs[0], 0)
    (rows, extent), (per, size) = node.shape, node.attrs

    def build(region: Region, device: Device) -> ScheduledKernel:
        kernel, tiles = merge_runs(f"merge_{per}_of_{extent}", rows, extent, per, size)
        return ScheduledKernel(kernel, (source, (node, 0)), (), tiles, tiles, 16 * node.size)

    return Template((source[0],), build)
