"""order: scans and sorts in the forms that the fuser knows, by shapes alone.

A scan runs along the last of two axes or the middle of three. A long one with few rows is cut into pieces that are
scanned side by side; what stands before each piece is then combined into it. A sort has rows, and memory of its own for
the passes of a radix sort unless the rows are short. Elements put at places along an axis have rows, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.simplify import reshape
from weft.dtypes import DType, float64, int32, int64
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
from weft.graph.primitives import PRIMITIVES, Primitive, make
from weft.kernels.cascade import CHAIN
from weft.kernels.nest import COMBINE
from weft.kernels.scans import neutral

FEW_ROWS = 16  # fewer rows than this, and long ones, are cut into pieces
LONG = 32768  # elements from which a row is long
PIECE = 8192  # at least this many elements make a piece
PIECES = 64  # at most this many pieces of a row
SHORT = 64  # elements up to which rows are sorted by counting, for each element, those before it
ON_STACK = 32768  # bytes of scratch that a row may take from the stack
ROWS_TO_MEET = 2  # rows for each of a table's, from which the table is small beside them
WIDE_ROW = 8  # elements of a scattered row from which moving rows takes longer than finding where they go

_scratches = itertools.count()


def scan(x: Node, op: str, axis: int, reverse: bool) -> Node:
    """A running reduction over the canonical shape."""
    outer, extent, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
    if extent == 1:
        return x
    shape = (outer, extent) if inner == 1 else (outer, extent, inner)
    rows = reshape(x, shape)
    if inner == 1 and outer < FEW_ROWS and extent >= LONG and op in COMBINE:
        per = -(-extent // min(PIECES, -(-extent // PIECE)))
        return reshape(in_pieces(rows, op, reverse, per, lambda part: _scan(part, op, reverse)), x.shape)
    return reshape(_scan(rows, op, reverse), x.shape)


def _scan(x: Node, op: str, reverse: bool) -> Node:
    return make("scan", (x,), (op, 1, reverse))


def in_pieces(x: Node, op: str, reverse: bool, per: int, scan: Callable[[Node], Node]) -> Node:
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
    joined = _combined(op, spread, reshape(pieces, (rows, count, per, *inner)))
    first = count * per - extent if reverse else 0
    return narrow(reshape(joined, (rows, count * per, *inner)), 1, first, first + extent)


def _combined(op: str, a: Node, b: Node) -> Node:
    """Two results joined, as `kernels.scans.combine` does."""
    if op in COMBINE:
        return make(COMBINE[op], (a, b))
    high, low = make("max", (a, b)), make("min", (a, b))
    total = add(high, unary("log1p", unary("exp", sub(low, high))))
    return select(lt(unary("abs", high), math.inf), total, high)


def argsort(keys: Node) -> Node:
    """The order of each row, as a node of the compiler's own with scratch memory among its sources."""
    extent = keys.shape[-1]
    rows = reshape(keys, (keys.size // max(extent, 1), extent))
    wide = keys.dtype.itemsize == 8
    buffers = 0 if extent <= SHORT or on_stack(rows) else 3 if wide else 1
    scratch = [_scratch((rows.size,), int64, keys.device) for _ in range(buffers)]
    return reshape(make("sort_rows", (rows, *scratch)), keys.shape)


def on_stack(rows: Node) -> bool:
    """Whether the scratch of a row fits the stack; a single row has an extent that may change from run to run."""
    return rows.shape[0] > 1 and rows.shape[1] * (24 if rows.dtype.itemsize == 8 else 8) <= ON_STACK


def along(x: Node, index: Node, axis: int, site: str | None) -> Node:
    """A gather from the flat value: rows do not mix, but their places are plain arithmetic."""
    extent = x.shape[axis]
    places = row_positions(index, axis, extent)
    if site is not None:
        wide = cast(index, int64)
        inside = make("and", (make("le", (like(wide, 0), wide)), lt(wide, extent)))
        places = select(inside, places, -1)  # so that the check at run time sees it
    return gather(reshape(x, (x.size,)), places, 0, site)


def along_add(index: Node, src: Node, axis: int, extent: int) -> Node:
    """Rows of elements added into rows of `extent`: each row has its own table, so rows are done side by side."""
    rank = len(src.shape)
    last = (*[k for k in range(rank) if k != axis], axis)
    outer = tuple([src.shape[k] for k in last[:-1]])
    shape = (math.prod(outer), src.shape[axis])
    rows = [reshape(permute(source, last), shape) for source in (index, src)]
    if src.dtype.kind == "f" and shape[1] > CHAIN:
        rows[1] = cast(rows[1], float64)  # however many elements meet in one place
    table = reshape(cast(make("put_rows", tuple(rows), (extent,)), src.dtype), (*outer, extent))
    return permute(table, sorted(range(rank), key=last.__getitem__))


def scatter(node: Node, index: Node, src: Node) -> Node:
    """Rows folded into a table. Few of them, and folds that do not round, are walked in order. A sum of more has to
    bound its error (`kernels.cascade`), however many rows meet in one: where the table is small beside them, the
    sums of CHAIN rows go to tables of their own; else rows go to buckets, whose rows a segment sum adds up. Narrow
    rows are added in float64: that costs less than to count them."""
    entries, (count,), dtype = src.shape[0], node.attrs, src.dtype
    if node.op != "scatter_add" or dtype.kind != "f" or entries <= CHAIN or not node.size:
        return make(node.op, (index, src), node.attrs, site=node.site)
    if dtype is not float64 and math.prod(node.shape[1:]) < WIDE_ROW:
        return cast(make(node.op, (index, cast(src, float64)), node.attrs, site=node.site), dtype)
    if ROWS_TO_MEET * count <= entries < 1 << 31:
        shapes = (((count,), int32), (node.shape, dtype), (node.shape, dtype))
        tables = [_scratch(shape, kind, node.device) for shape, kind in shapes]
        return make("scatter_parts", (index, src, *tables), node.attrs, site=node.site)
    target = in_range(cast(index, int64), count, node.site)
    inside = make("and", (make("le", (like(target, 0), target)), lt(target, count)))
    buckets = make("bucket_rows", (reshape(select(inside, target, count), (1, entries)),), (count,))
    pointers, order = narrow(buckets, 0, 0, count + 1), narrow(buckets, 0, count + 3, count + 3 + entries)
    return segment("sum", gather(src, order, 0, known=True), pointers, known=True)


def _scratch(shape: tuple[int, ...], dtype: DType, device: Any) -> Node:
    return make("scratch", (), (shape, next(_scratches)), dtype=dtype, device=device)


# --- primitives that only the compiler makes -------------------------------------------------------------------------


def _scratch_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    assert dtype is not None
    return attrs[0], dtype


def _order_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return srcs[0].shape, int64


def _order_of(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.argsort(arrays[0], axis=-1, kind="stable")


def _zeros(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.zeros(node.shape, dtype)


def _table_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return (srcs[1].shape[0], attrs[0]), srcs[1].dtype


def _put_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    index, src = arrays
    out = np.zeros(node.shape, dtype)
    np.add.at(out, (np.arange(len(out))[:, None], np.clip(index, 0, node.attrs[0] - 1)), src)
    return out


def _buckets_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return (attrs[0] + 3 + srcs[0].shape[1],), int64


def _bucket_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (keys,), (count,) = arrays[0], node.attrs
    starts = np.searchsorted(np.sort(keys), np.arange(count + 2))
    return np.concatenate([starts, [np.sum(keys == count)], np.argsort(keys, kind="stable")])


def _parts_shape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[tuple[int, ...], DType]:
    return (attrs[0], *srcs[1].shape[1:]), srcs[1].dtype


def _scatter_parts(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    index, src = arrays[:2]
    out = np.zeros(node.shape, dtype)
    inside = (index >= 0) & (index < len(out))
    np.add.at(out, index[inside], src[inside])
    return out


# `scatter_add` with memory for the number of rows that met in each row of the table, and for sums of CHAIN of them.
PRIMITIVES["scatter_parts"] = Primitive("scatter_parts", "scatter", None, _parts_shape, _scatter_parts)
# Where each of so many buckets begins in the order of all entries by their buckets (one of them may be beyond those,
# and there are two more places, which are the kernel's own), and then that order.
PRIMITIVES["bucket_rows"] = Primitive("bucket_rows", "put", 1, _buckets_shape, _bucket_rows)
PRIMITIVES["put_rows"] = Primitive("put_rows", "put", 2, _table_shape, _put_rows)
PRIMITIVES["scratch"] = Primitive("scratch", "generate", 0, _scratch_shape, _zeros)
PRIMITIVES["sort_rows"] = Primitive("sort_rows", "sort", None, _order_shape, _order_of)
