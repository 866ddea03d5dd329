"""Scans, sorts and scattered rows in the forms that CPU kernels compute, chosen by shapes alone.

A scan runs along the last of two axes or the middle of three. A long one with few rows is cut into pieces that are
scanned concurrently; the total before each piece is then combined into it. A sort has rows, and memory of its own for
the passes of a radix sort unless the rows are short. Elements added at positions along an axis have rows, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from weft.base.dtypes import DType, float64, int32, int64
from weft.compiler.passes.simplify import reshape
from weft.compiler.primitives import BUCKET_ROWS, PUT_ROWS, SCATTER_PARTS, SCRATCH, SORT_ROWS
from weft.graph.build import (
    add,
    cast,
    expand,
    gather,
    in_range,
    like,
    lt,
    narrow,
    pad,
    permute,
    row_positions,
    segment,
    select,
    sub,
    unary,
)
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.kernels.cpu.scan import neutral
from weft.kernels.ir.nest import COMBINE
from weft.kernels.numerics import CHAIN, is_small_table, is_wide_row, scan_piece

_scratches = itertools.count()


def scan(x: Node, op: str, axis: int, reverse: bool) -> Node:
    """A running reduction over the canonical shape."""
    outer, extent, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if extent == 1:
        return x
    shape = (outer, extent) if inner == 1 else (outer, extent, inner)
    rows = reshape(x, shape)
    per = scan_piece(outer, extent) if inner == 1 and op in COMBINE else None
    if per is not None:
        return reshape(scan_in_pieces(rows, op, reverse, per, lambda part: _scan(part, op, reverse)), x.shape)
    return reshape(_scan(rows, op, reverse), x.shape)


def _scan(x: Node, op: str, reverse: bool) -> Node:
    return make_node("scan", (x,), (op, 1, reverse))


def scan_in_pieces(x: Node, op: str, reverse: bool, per: int, scan: Callable[[Node], Node]) -> Node:
    """A running reduction of (rows, extent, ...) by one of pieces of `per` elements and one of their totals."""
    rows, extent, *inner = x.shape
    count = -(-extent // per)
    nothing = neutral(op, x.dtype)
    zeros, missing = [0] * len(inner), (0, count * per - extent)
    lows, highs = ((*missing, *zeros), (0, 0, *zeros)) if reverse else ((0, 0, *zeros), (*missing, *zeros))
    pieces = scan(reshape(pad(x, lows, highs, nothing), (rows * count, per, *inner)))
    whole = reshape(narrow(pieces, 1, 0, 1) if reverse else narrow(pieces, 1, per - 1, per), (rows, count, *inner))
    totals = scan(whole)
    if reverse:
        before = pad(narrow(totals, 1, 1, count), (0, 0, *zeros), (0, 1, *zeros), nothing)
    else:
        before = pad(narrow(totals, 1, 0, count - 1), (0, 1, *zeros), (0, 0, *zeros), nothing)
    spread = expand(reshape(before, (rows, count, 1, *inner)), (rows, count, per, *inner))
    combined = _combine(op, spread, reshape(pieces, (rows, count, per, *inner)))
    first = count * per - extent if reverse else 0
    return narrow(reshape(combined, (rows, count * per, *inner)), 1, first, first + extent)


def _combine(op: str, a: Node, b: Node) -> Node:
    """Two results joined, as `kernels.cpu.scan.combine` does."""
    if op in COMBINE:
        return make_node(COMBINE[op], (a, b))
    high, low = make_node("max", (a, b)), make_node("min", (a, b))
    total = add(high, unary("log1p", unary("exp", sub(low, high))))
    return select(lt(unary("abs", high), math.inf), total, high)


def argsort(keys: Node) -> Node:
    """The order of each row, as a node of the compiler's own with scratch memory among its sources."""
    extent = keys.shape[-1]
    rows = reshape(keys, (keys.size // max(extent, 1), extent))
    wide = keys.dtype.itemsize == 8
    buffers = 0 if is_counted(rows) or fits_on_stack(rows) else 3 if wide else 1
    scratch = [_scratch((rows.size,), int64, keys.device) for _ in range(buffers)]
    return reshape(make_node(SORT_ROWS, (rows, *scratch)), keys.shape)


def is_counted(rows: Node) -> bool:
    """Whether rows are sorted by counting, for each element, those before it."""
    return rows.shape[1] <= rows.device.tuning.max_counting_sort


def fits_on_stack(rows: Node) -> bool:
    """Whether the scratch of a row fits the stack; a single row has an extent that may change from run to run."""
    words = 3 if rows.dtype.itemsize == 8 else 1
    return rows.shape[0] > 1 and 8 * words * rows.shape[1] <= rows.device.tuning.max_sort_stack_bytes


def along(x: Node, index: Node, axis: int, site: str | None) -> Node:
    """A gather from the flat value: rows do not mix, and positions are index arithmetic."""
    extent = x.shape[axis]
    positions = row_positions(index, axis, extent)
    if site is not None:
        wide = cast(index, int64)
        inside = make_node("and", (make_node("le", (like(wide, 0), wide)), lt(wide, extent)))
        positions = select(inside, positions, -1)  # so that the check at run time sees it
    return gather(reshape(x, (x.size,)), positions, 0, site)


def along_add(index: Node, src: Node, axis: int, extent: int) -> Node:
    """Rows of elements added into rows of `extent`: each row has its own table, so rows are independent."""
    rank = len(src.shape)
    last = (*[k for k in range(rank) if k != axis], axis)
    outer = tuple([src.shape[k] for k in last[:-1]])
    shape = (math.prod(outer), src.shape[axis])
    rows = [reshape(permute(source, last), shape) for source in (index, src)]
    if src.dtype.kind == "f" and shape[1] > CHAIN:
        rows[1] = cast(rows[1], float64)  # however many elements are added at one position
    table = reshape(cast(make_node(PUT_ROWS, tuple(rows), (extent,)), src.dtype), (*outer, extent))
    return permute(table, sorted(range(rank), key=last.__getitem__))


def scatter(node: Node, index: Node, src: Node) -> Node:
    """Rows reduced into a table. Few of them, and reductions that do not round, are visited in order. A sum of more has
    to bound its error (`kernels.math.summation`), however many rows are added into one: where the table is small, the
    sums of CHAIN rows go to tables of their own; else rows go to buckets, whose rows a segment sum adds up. Rows of
    few elements are added in float64: that costs less than to count them."""
    entries, (count,), dtype = src.shape[0], node.attrs, src.dtype
    if node.op != "scatter_add" or dtype.kind != "f" or entries <= CHAIN or not node.size:
        return make_node(node.primitive, (index, src), node.attrs, site=node.site)
    if dtype is not float64 and not is_wide_row(math.prod(node.shape[1:])):
        return cast(make_node(node.primitive, (index, cast(src, float64)), node.attrs, site=node.site), dtype)
    if is_small_table(count, entries):
        shapes = (((count,), int32), (node.shape, dtype), (node.shape, dtype))
        tables = [_scratch(shape, kind, node.device) for shape, kind in shapes]
        return make_node(SCATTER_PARTS, (index, src, *tables), node.attrs, site=node.site)
    target = in_range(cast(index, int64), count, node.site)
    inside = make_node("and", (make_node("le", (like(target, 0), target)), lt(target, count)))
    buckets = make_node(BUCKET_ROWS, (reshape(select(inside, target, count), (1, entries)),), (count,))
    pointers, order = narrow(buckets, 0, 0, count + 1), narrow(buckets, 0, count + 3, count + 3 + entries)
    return segment("sum", gather(src, order, 0, known=True), pointers, known=True)


def _scratch(shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    return make_node(SCRATCH, (), (shape, next(_scratches)), dtype=dtype, device=device)
