"""The primitives that only the compiler makes: rows of the same form as the graph's, in a table of their own.

Passes and templates replace by them primitives of `graph.primitives`; operations and gradients never see one.
Each is made with its row, `make_node(COPY, ...)`, and has a meaning in NumPy that `weft.testing.verify` compares with.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from weft.base.dtypes import DType, int64
from weft.compiler.fusion.index_map import count_fold_terms
from weft.graph import attention, shape_rules
from weft.graph.attributes import Attention, Fold, Geometry, Scatter, Serial
from weft.graph.evaluations import argsort, conv_values, conv_weight_values, first, segments
from weft.graph.gelu import CUBIC, LINEAR
from weft.graph.node import Evaluation, Node, Primitive, Shape, given_rule
from weft.graph.primitives import PRIMITIVES, elementwise, template
from weft.kernels.cpu.winograd import PARTS, PIXELS, RESULTS, SLOPES, signed_sum

Shaped = tuple[Shape, DType]

# --- attributes -----------------------------------------------------------------------------------------------------


class Number(NamedTuple):
    """`number`: which of the numbers that come with each run."""

    slot: int


class Scratch(NamedTuple):
    """`scratch`: memory of a kernel's own; the number makes each its own node."""

    shape: Shape
    number: int


class Partial(NamedTuple):
    """`partial_*`: the axes that are reduced, the one of them that is cut, elements per piece, and pieces."""

    axes: tuple[int, ...]
    cut: int
    per_piece: int
    pieces: int


class PutRows(NamedTuple):
    """`put_rows`: columns of the result."""

    extent: int


class BucketRows(NamedTuple):
    """`bucket_rows`: the number of buckets."""

    buckets: int


class SortRuns(NamedTuple):
    """`sort_runs`: elements of a run that is sorted."""

    per: int


class MergeRuns(NamedTuple):
    """`merge_runs`: elements of a sorted run, two of which are merged, and of what one workgroup merges."""

    per: int
    size: int


class WriteRows(NamedTuple):
    """`write_rows`: rows of the table that is written."""

    rows: int


class LibraryFunction(NamedTuple):
    """`library`: which function of which library, with options of its own, and the shape and dtype of each result."""

    library: str
    function: str
    options: tuple
    results: tuple[Shaped, ...]


class ProductOptions(NamedTuple):
    """`product`, `product_pair`: the result's dtype, whether a bias and a matrix are added, a factor, an activation."""

    dtype: DType
    bias: bool
    add: bool
    alpha: float
    activation: str


class BlockProduct(NamedTuple):
    """`block_product`: the dtype of sums and result."""

    dtype: DType


class AttentionGradients(NamedTuple):
    """`block_attention_backward`: the fields of `Attention`; which of the gradients of q, k and v it computes, by
    number; and whether the logarithms and means of the queries come `packed` in one source, [B, H, 2 Tq]."""

    scale: float
    diagonal: int | None
    masked: bool
    dropout: float
    draw: int
    parts: tuple[int, ...]
    packed: bool


class ConvTiles(NamedTuple):
    """`conv_tiles`: a convolution of packed weights, by Winograd F(2,3) or directly; `out` are its spatial extents."""

    strides: Shape
    dilations: Shape
    groups: int
    out: Shape
    winograd: bool


class ConvWeightTiles(NamedTuple):
    """`conv_weight_tiles`: the gradient of the weights in blocks of `block` filters, one for each `per_part` images."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    groups: int
    block: int
    winograd: bool
    per_part: int


# --- values that come with a run, copies, partial reductions ---------------------------------------------------------


def _partial_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    kept = [n for position, n in enumerate(srcs[0].shape) if position not in attrs.axes]
    return (attrs.pieces, *kept), srcs[0].dtype


def _partial(name: str, function: Any) -> Primitive:
    """The row of a reduction in pieces, one row of the result for each. Workgroups take strided rows."""

    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        axes, axis, per, count = node.attrs
        (x,) = arrays
        extent = x.shape[axis]
        if node.device.features.workgroups and x.ndim - 1 not in axes:  # strided rows: `kernels.gpu.chunked_rows`
            ranges = [range(chunk, extent, count) for chunk in range(count)]
        else:
            ranges = [range(at, min(at + per, extent)) for at in range(0, extent, per)]
        return np.stack([function(np.take(x, part, axis), axis=axes) for part in ranges]).astype(dtype)

    return Primitive(f"partial_{name}", "reduce", 1, Partial, _partial_rule, run, 0, "none")


def _fold_terms_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    (source,), axis = srcs, attrs.axis
    terms = count_fold_terms(source.shape[axis + 1], attrs.step, attrs.dilation)
    return (*source.shape[:axis], terms, attrs.extent, *source.shape[axis + 2 :]), source.dtype


def _fold_terms(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, _, step, dilation = node.attrs
    windows = np.moveaxis(arrays[0], (axis, axis + 1), (0, 1))
    out = np.zeros(node.shape, dtype)
    target = np.moveaxis(out, (axis, axis + 1), (0, 1))
    for o, k in itertools.product(*map(range, windows.shape[:2])):
        target[k // (step // math.gcd(step, dilation)), o * step + k * dilation] = windows[o, k]
    return out


NUMBER = Primitive("number", "generate", 0, Number, given_rule, None, 0, "none")
COPY = elementwise("copy", 1, shape_rules.same_rule, first, gradient="none", attributes=Serial)
PARTIAL = {
    name: _partial(name, function)
    for name, function in {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}.items()
}
# The terms of overlapping windows, which are divisions, masks and loads behind them.
FOLD_TERMS = Primitive("fold_terms", "movement", 1, Fold, _fold_terms_rule, _fold_terms, 20, "none")

# --- sorting, and rows at positions that are data --------------------------------------------------------------------


def _scratch_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    assert dtype is not None
    return attrs.shape, dtype


def _scratch(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.zeros(node.shape, dtype)


def _int64_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    return srcs[0].shape, int64


def _put_rows_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    return (srcs[1].shape[0], attrs.extent), srcs[1].dtype


def _put_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    index, src = arrays
    out = np.zeros(node.shape, dtype)
    np.add.at(out, (np.arange(len(out))[:, None], np.clip(index, 0, node.attrs.extent - 1)), src)
    return out


def _bucket_rows_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    return (attrs.buckets + 3 + srcs[0].shape[1],), int64


def _bucket_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (keys,), (count,) = arrays[0], node.attrs
    starts = np.searchsorted(np.sort(keys), np.arange(count + 2))
    return np.concatenate([starts, [np.sum(keys == count)], np.argsort(keys, kind="stable")])


def _scatter_parts_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    return (attrs.rows, *srcs[1].shape[1:]), srcs[1].dtype


def _scatter_parts(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    index, src = arrays[:2]
    out = np.zeros(node.shape, dtype)
    inside = (index >= 0) & (index < len(out))
    np.add.at(out, index[inside], src[inside])
    return out


def _runs(factor: int) -> Evaluation:
    """Runs of `factor` times so many elements as the attribute says, each sorted."""

    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        per, words = node.attrs.per * factor, arrays[0]
        parts = [np.sort(words[:, at : at + per], axis=1) for at in range(0, words.shape[1], per)]
        return np.concatenate(parts, axis=1) if parts else words

    return run


SCRATCH = Primitive("scratch", "generate", 0, Scratch, _scratch_rule, _scratch, 0, "none")
SORT_ROWS = Primitive("sort_rows", "sort", None, tuple, _int64_rule, argsort, 0, "none")
PUT_ROWS = Primitive("put_rows", "put", 2, PutRows, _put_rows_rule, _put_rows, 0, "none")
# Where each of so many buckets begins in the order of all entries by their buckets (one of them may be beyond those,
# and there are two more places, which are the kernel's own), and then that order.
BUCKET_ROWS = Primitive("bucket_rows", "put", 1, BucketRows, _bucket_rows_rule, _bucket_rows, 0, "none")
# `scatter_add` with memory for the number of rows that met in each row of the table, and for sums of CHAIN of them.
SCATTER_PARTS = Primitive("scatter_parts", "scatter", None, Scatter, _scatter_parts_rule, _scatter_parts, 0, "none")
SORT_RUNS = Primitive("sort_runs", "sort", 1, SortRuns, _int64_rule, _runs(1), 0, "none")
MERGE_RUNS = Primitive("merge_runs", "template", 1, MergeRuns, _int64_rule, _runs(2), 0, "none")
SEGMENT_PROD = replace(PRIMITIVES["segment_sum"], name="segment_prod", evaluation=segments("prod"), gradient="none")
WRITE_ROWS = elementwise("write_rows", 2, shape_rules.same_rule, first, gradient="none", attributes=WriteRows)

# --- products, attention and calls of libraries -----------------------------------------------------------------------


def _library_results(srcs: tuple[Node, ...], attrs: Any) -> tuple[Shaped, ...]:
    return attrs.results


def _library(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    return node.device.libraries[node.attrs.library].run_reference(node, arrays)


def _product_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    a, b = srcs[:2]
    assert a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2] and a.dtype is b.dtype
    return (*a.shape[:-1], b.shape[-1]), attrs.dtype


def _product_pair_results(srcs: tuple[Node, ...], attrs: Any) -> tuple[Shaped, ...]:
    return (_product_rule(srcs, attrs, None),) * 2


def _product_pair(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """The product with its activation, and what the activation is given."""
    attrs: ProductOptions = node.attrs
    value = attrs.alpha * np.matmul(arrays[0], arrays[1])
    if attrs.add:
        value = value + arrays[-1]
    if attrs.bias:
        value = value + arrays[2]
    if attrs.activation == "relu":
        return np.where(value <= 0, 0, value), value
    if attrs.activation == "gelu":
        return value / (1 + np.exp(-value * (LINEAR + CUBIC * value**2))), value
    return value, value


def _product(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return _product_pair(node, arrays, dtype)[0]


def _block_product_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    return shape_rules.dot_rule(srcs, (), dtype)[0], attrs.dtype


def _block_product(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    wide = [array.astype(node.dtype.numpy) if array.dtype.itemsize < dtype.itemsize else array for array in arrays]
    return np.matmul(*wide)


def _block_attention_backward_results(srcs: tuple[Node, ...], attrs: Any) -> tuple[Shaped, ...]:
    sources = [srcs[part] for part in attrs.parts]
    return tuple([((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype) for x in sources])


def _block_attention_backward(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, ...]:
    *forward, g = arrays
    saved = (None,) if node.attrs.packed else ()  # neither is needed here
    found = attention.evaluate_backward(node, (*forward, *saved, g), dtype)
    return tuple([found[part] for part in node.attrs.parts])


LIBRARY = template("library", LibraryFunction, _library_results, _library, "none")
PRODUCT = Primitive("product", "template", None, ProductOptions, _product_rule, _product, 0, "none")
PRODUCT_PAIR = template("product_pair", ProductOptions, _product_pair_results, _product_pair, "none")
BLOCK_PRODUCT = Primitive("block_product", "template", 2, BlockProduct, _block_product_rule, _block_product, 0, "none")
BLOCK_ATTENTION = template("block_attention", Attention, attention.results, attention.evaluate_attention, "none")
BLOCK_ATTENTION_BACKWARD = template(
    "block_attention_backward", AttentionGradients, _block_attention_backward_results, _block_attention_backward, "none"
)

# --- convolutions -----------------------------------------------------------------------------------------------------


def _conv_tiles_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    x, packed = srcs
    last = attrs.out[-1] * (PIXELS if attrs.winograd else 1)
    return (x.shape[0], *attrs.out[:-1], last, packed.shape[0] * packed.shape[-1]), x.dtype


def _conv_weight_tiles_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> Shaped:
    x, g = srcs
    parts = -(-g.shape[0] // attrs.per_part)
    lead = (PARTS,) if attrs.winograd else ()
    inside = x.shape[-1] // attrs.groups
    return (parts, g.shape[-1] // attrs.block, *lead, *attrs.kernel, inside, attrs.block), x.dtype


def _conv_tiles(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    x, packed = arrays
    rank = packed.ndim - 4
    _, parts, channels, *kernel, _ = packed.shape
    in_order = packed.transpose(1, *range(3, 3 + rank), 2, 0, 3 + rank)
    weights = in_order.reshape(parts, *kernel, channels, -1)
    strides, dilations, groups, out, winograd = node.attrs
    how = Geometry(strides, (0,) * rank, (0,) * rank, dilations, groups)
    if not winograd:
        return conv_values(x, weights[0], out, how, dtype)
    sums = [conv_values(part, w, out, how, dtype) for part, w in zip(np.moveaxis(x, -3, 0), weights, strict=True)]
    return np.stack(_array_sums(RESULTS, sums), -2).reshape(node.shape)


def _array_sums(rows: Sequence[Sequence[float]], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    write = {"add": np.add, "sub": np.subtract}
    return [signed_sum(row, arrays, lambda op, a, b: write[op](a, b)) for row in rows]


def _conv_weight_tiles(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    kernel, strides, dilations, groups, block, winograd, per = node.attrs
    none, (x, g) = (0,) * len(kernel), arrays
    how = Geometry(strides, none, none, dilations, groups)
    xs, gs = [x], [g]
    if winograd:
        apart = g.reshape(*g.shape[:-2], -1, PIXELS, g.shape[-1])
        xs, gs = list(np.moveaxis(x, -3, 0)), _array_sums(SLOPES, [apart[..., k, :] for k in range(PIXELS)])
    parts = [
        [conv_weight_values(x[k : k + per], g[k : k + per], kernel, how, dtype) for x, g in zip(xs, gs, strict=True)]
        for k in range(0, len(g), per)
    ]
    return np.moveaxis(np.array(parts).reshape(len(parts), *node.shape[2:-1], -1, block), -2, 1)


CONV_TILES = Primitive("conv_tiles", "template", 2, ConvTiles, _conv_tiles_rule, _conv_tiles, 0, "none")
CONV_WEIGHT_TILES = Primitive(
    "conv_weight_tiles", "template", 2, ConvWeightTiles, _conv_weight_tiles_rule, _conv_weight_tiles, 0, "none"
)

COMPILER_PRIMITIVES: dict[str, Primitive] = {
    row.name: row
    for row in (
        NUMBER, COPY, *PARTIAL.values(), FOLD_TERMS, SCRATCH, SORT_ROWS, PUT_ROWS, BUCKET_ROWS, SCATTER_PARTS,
        SORT_RUNS, MERGE_RUNS, SEGMENT_PROD, WRITE_ROWS, LIBRARY, PRODUCT, PRODUCT_PAIR, BLOCK_PRODUCT,
        BLOCK_ATTENTION, BLOCK_ATTENTION_BACKWARD, CONV_TILES, CONV_WEIGHT_TILES,
    )
}  # fmt: skip
ALL_PRIMITIVES = PRIMITIVES | COMPILER_PRIMITIVES  # what a graph may consist of while it is compiled
