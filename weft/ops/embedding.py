"""Rows of a table by number: one for each number, or reduced by bags of numbers."""

from __future__ import annotations

from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import as_int, need_float, need_integer, same_device
from weft.ops.indexing import user_site
from weft.ops.products import vector_norm
from weft.ops.reduce import ValuesIndices
from weft.ops.reduce import max as largest


def embedding(input: Node, weight: Node, padding_idx: int | None, scale_grad_by_freq: bool) -> Node:
    """Rows of `weight` by number; see `weft.nn.functional.embedding`."""
    _need_table("embedding", input, weight)
    padding = _padding_row("embedding", padding_idx, weight)
    if padding is not None:
        is_padding = build.eq(build.iota(weight.shape, 0, weight.device), padding)
        weight = build.select(is_padding, build.stop_gradient(weight), weight)
    return _rows(weight, input, scale_grad_by_freq)


def embedding_bag(
    input: Node,
    weight: Node,
    offsets: Node | None,
    scale_grad_by_freq: bool,
    mode: str,
    per_sample_weights: Node | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> Node:
    """Sums, means or maxima of the rows of each bag; see `weft.nn.functional.embedding_bag`."""
    who = "embedding_bag"
    _need_table(who, input, weight)
    _check_bags(input, offsets, mode, scale_grad_by_freq, per_sample_weights)
    padding = _padding_row(who, padding_idx, weight)
    rows = _rows(weight, input, scale_grad_by_freq)
    counts = None if padding is None else build.binary("ne", input, build.like(input, padding))  # bool, [...]
    if counts is not None:
        counted = _over_columns(counts, rows)
        rows = build.select(counted, rows, -float("inf") if mode == "max" else 0.0)
    if per_sample_weights is not None:
        same_device(who, [input, per_sample_weights])
        scale = _over_columns(build.cast(per_sample_weights, rows.dtype), rows)
        scaled = build.mul(rows, scale)
        rows = scaled if counts is None else build.select(_over_columns(counts, rows), scaled, 0.0)
    pointers = None if offsets is None else _pointers(input, offsets, include_last_offset)
    if mode == "max":
        return _maxima(rows, pointers)
    total = _reduce_bags(rows, pointers)
    if mode == "sum":
        return total
    ones = build.full(input.shape, 1, int64, input.device) if counts is None else build.cast(counts, int64)
    length = build.cast(build.binary("max", _reduce_bags(ones, pointers), 1), total.dtype)
    return build.div(total, build.expand(build.reshape(length, (*length.shape, 1)), total.shape))


def with_bounded_norms(weight: Node, input: Node, max_norm: float, norm_type: float) -> Node:
    """`weight` with those rows that `input` names scaled down to a norm of at most `max_norm`."""
    need_integer("embedding", input)
    flat = build.reshape(input, (input.size,))
    named = build.scatter("max", flat, build.full(flat.shape, 1, int64, input.device), weight.shape[0], user_site())
    norm = vector_norm(weight, float(norm_type), 1)
    is_long = make_canonical("and", (build.eq(named, 1), build.lt(float(max_norm), norm)))
    scale = build.select(is_long, build.div(float(max_norm), build.add(norm, 1e-7)), 1.0)
    return build.mul(weight, build.expand(build.reshape(scale, (weight.shape[0], 1)), weight.shape))


def _need_table(who: str, input: Node, weight: Node) -> None:
    need_integer(who, input)
    need_float(who, weight)
    same_device(who, [input, weight])
    if len(weight.shape) != 2:
        raise problem(ShapeError, who, f"a weight of shape {weight.shape}", "[count, width]")


def _padding_row(who: str, padding_idx: int | None, weight: Node) -> int | None:
    if padding_idx is None:
        return None
    row, count = as_int(who, padding_idx, "padding_idx"), weight.shape[0]
    if not -count <= row < count:
        raise problem(RangeError, who, f"padding_idx={row} for {count} rows", f"{-count} to {count - 1}")
    return row % count


def _rows(weight: Node, input: Node, by_frequency: bool) -> Node:
    """weight[input]; on request the gradient of a row is divided by how often it was named."""
    site = user_site()
    rows = build.gather(weight, input, 0, site)
    if not by_frequency:
        return rows
    flat = build.reshape(input, (input.size,))
    ones = build.full(flat.shape, 1.0, weight.dtype, weight.device)
    share = build.div(1.0, build.binary("max", build.scatter_add(flat, ones, weight.shape[0], site), 1.0))
    scaled = build.mul(weight, build.expand(build.reshape(share, (weight.shape[0], 1)), weight.shape))
    return build.surrogate(rows, build.gather(scaled, input, 0, site))


def _check_bags(
    input: Node, offsets: Node | None, mode: str, scale_grad_by_freq: bool, per_sample_weights: Node | None
) -> None:
    who = "embedding_bag"
    if mode not in ("sum", "mean", "max"):
        raise problem(RangeError, who, f"mode={mode!r}", "'sum', 'mean' or 'max'")
    if mode == "max" and scale_grad_by_freq:
        raise problem(RangeError, who, "scale_grad_by_freq=True with mode='max'", "mode 'sum' or 'mean'")
    if per_sample_weights is not None and mode != "sum":
        raise problem(RangeError, who, f"per_sample_weights with mode={mode!r}", "mode='sum'")
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        given = f"per_sample_weights of shape {per_sample_weights.shape}"
        raise problem(ShapeError, who, given, f"that of the input, {input.shape}")
    if len(input.shape) == 2 and offsets is None:
        return
    if len(input.shape) != 1 or offsets is None or len(offsets.shape) != 1:
        given = f"input {input.shape} and offsets {None if offsets is None else offsets.shape}"
        raise problem(ShapeError, who, given, "[bags, length] without offsets, or a vector and a vector of offsets")
    need_integer(who, offsets)
    same_device(who, [input, offsets])


def _pointers(input: Node, offsets: Node, include_last_offset: bool) -> Node:
    """Where each bag begins, and where the last one ends."""
    if include_last_offset:
        if not offsets.size:
            raise problem(ShapeError, "embedding_bag", "no offsets with include_last_offset=True", "at least one")
        return offsets
    return build.concat([offsets, build.full((1,), input.size, offsets.dtype, offsets.device)], 0)


def _over_columns(value: Node, rows: Node) -> Node:
    """A value for each row, at every column."""
    return build.expand(build.reshape(value, (*value.shape, 1)), rows.shape)


def _reduce_bags(rows: Node, pointers: Node | None) -> Node:
    """Sums over bags: [bags, length, ...] along axis 1, or [elements, ...] by pointers."""
    return (
        build.reduce("reduce_sum", rows, (1,))
        if pointers is None
        else build.segment("sum", rows, pointers, user_site())
    )


def _maxima(rows: Node, pointers: Node | None) -> Node:
    """The largest elements of each bag, 0 for bags without rows; the gradient goes to the first of equals."""
    if pointers is not None:
        best = build.segment("max", rows, pointers, user_site())
    elif rows.shape[1]:
        found = largest(rows, 1)
        assert isinstance(found, ValuesIndices)
        best = found.values
    else:
        return build.reduce("reduce_sum", rows, (1,))
    return build.select(build.eq(best, -float("inf")), 0.0, best)
