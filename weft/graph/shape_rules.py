"""The shape rules of primitives: each gives the shape and dtype of a node from its sources and attributes.

Rules assert rather than explain: operations have checked what the user gave before they come here.
"""

from __future__ import annotations

from typing import Any

from weft.base.dtypes import DType, bool_, float32, int64, uint32
from weft.graph.attributes import Gather
from weft.graph.node import Node, Results, Rule, Shape


def iota_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape, axis = attrs
    assert dtype is not None and dtype.kind == "i" and 0 <= axis < len(shape)
    return shape, dtype


def random_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].shape == (2,) and srcs[0].dtype is uint32 and attrs.width in (16, 32)
    return attrs.shape, uint32


def same_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    return srcs[0].shape, srcs[0].dtype


def in_range_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "iu" and attrs.extent >= 0, (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def call_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    """A call has no value of its own, and is a float so that gradients pass."""
    return (0,), float32


def float_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind == "f", srcs
    return srcs[0].shape, srcs[0].dtype


def pair_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    a, b = srcs
    assert a.shape == b.shape and a.dtype is b.dtype, srcs
    return a.shape, a.dtype


def float_pair_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind == "f", srcs
    return pair_rule(srcs, attrs, dtype)


def compare_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    return pair_rule(srcs, attrs, dtype)[0], bool_


def bits_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "biu", srcs
    return pair_rule(srcs, attrs, dtype) if len(srcs) == 2 else same_rule(srcs, attrs, dtype)


def select_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    condition, a, b = srcs
    assert condition.dtype is bool_ and condition.shape == a.shape, srcs
    return pair_rule((a, b), attrs, dtype)


def cast_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    return srcs[0].shape, attrs.dtype


def bitcast_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.itemsize == attrs.dtype.itemsize and bool_ not in (srcs[0].dtype, attrs.dtype), (srcs, attrs)
    return srcs[0].shape, attrs.dtype


def scan_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    op, axis, reverse = attrs
    assert op in ("sum", "prod", "max", "min") or (op == "logaddexp" and srcs[0].dtype.kind == "f"), (srcs, attrs)
    assert 0 <= axis < len(srcs[0].shape) and isinstance(reverse, bool), (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def along_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    (x, index), (axis,) = srcs, attrs
    others = (*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :])
    assert index.dtype.kind in "iu" and len(x.shape) == len(index.shape) and index.shape == others, (srcs, attrs)
    return index.shape, x.dtype


def along_add_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    (index, src), (axis, extent) = srcs, attrs
    assert index.dtype.kind in "iu" and index.shape == src.shape and 0 <= axis < len(src.shape), (srcs, attrs)
    return (*src.shape[:axis], extent, *src.shape[axis + 1 :]), src.dtype


def argsort_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "iu" and srcs[0].shape, srcs
    return srcs[0].shape, int64


def reduce_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    axes = attrs.axes
    shape = srcs[0].shape
    assert axes and list(axes) == sorted(set(axes)) and 0 <= axes[0] and axes[-1] < len(shape), (srcs, axes)
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes), srcs[0].dtype


def reshape_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    size = 1
    for extent in attrs.shape:
        size *= extent
    assert size == srcs[0].size, (srcs, attrs)
    return attrs.shape, srcs[0].dtype


def permute_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape, order = srcs[0].shape, attrs.order
    assert sorted(order) == list(range(len(shape))), (srcs, attrs)
    return tuple(shape[axis] for axis in order), srcs[0].dtype


def expand_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape = attrs.shape
    assert len(shape) == len(srcs[0].shape), (srcs, attrs)
    assert all(old in (1, new) for old, new in zip(srcs[0].shape, shape, strict=True)), (srcs, attrs)
    return shape, srcs[0].dtype


def slice_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape = []
    for extent, start, stop, step in zip(srcs[0].shape, *attrs, strict=True):
        assert 0 <= start <= stop <= extent and step > 0, (srcs, attrs)
        shape.append((stop - start + step - 1) // step)
    return tuple(shape), srcs[0].dtype


def update_slice_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, value = srcs
    assert x.dtype is value.dtype and value.size, (srcs, attrs)
    for extent, part, start, step in zip(x.shape, value.shape, *attrs, strict=True):
        assert start >= 0 and step > 0 and start + (part - 1) * step < extent and (part > 1 or step == 1), (srcs, attrs)
    return x.shape, x.dtype


def pad_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    lows, highs, _ = attrs
    assert min(lows, default=0) >= 0 and min(highs, default=0) >= 0, attrs
    return tuple(low + extent + high for extent, low, high in zip(srcs[0].shape, lows, highs, strict=True)), srcs[
        0
    ].dtype


def flip_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    assert attrs.axes and all(0 <= axis < len(srcs[0].shape) for axis in attrs.axes), (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def unfold_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape, (axis, size, step, dilation) = srcs[0].shape, attrs
    span = dilation * (size - 1) + 1
    assert 0 <= axis < len(shape) and min(size, step, dilation) > 0 and shape[axis] >= span, (srcs, attrs)
    return (*shape[:axis], (shape[axis] - span) // step + 1, size, *shape[axis + 1 :]), srcs[0].dtype


def fold_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    shape, (axis, extent, step, dilation) = srcs[0].shape, attrs
    assert 0 <= axis < len(shape) - 1 and min(step, dilation, *shape[axis : axis + 2]) > 0, (srcs, attrs)
    count, size = shape[axis : axis + 2]
    assert (count - 1) * step + (size - 1) * dilation < extent, (srcs, attrs)
    return (*shape[:axis], extent, *shape[axis + 2 :]), srcs[0].dtype


def concat_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    axis, first = attrs.axis, srcs[0]
    rest = first.shape[:axis], first.shape[axis + 1 :]
    for src in srcs:
        assert src.dtype is first.dtype and (src.shape[:axis], src.shape[axis + 1 :]) == rest, (srcs, attrs)
    return rest[0] + (sum(src.shape[axis] for src in srcs),) + rest[1], first.dtype


def gather_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, index = srcs
    axis = attrs.axis
    assert index.dtype.kind in "iu" and 0 <= axis < len(x.shape), (srcs, attrs)
    return x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype


def gather_neighbors_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, index, pointers, order = srcs
    assert pointers.shape == (x.shape[0] + 1,) and order.shape == index.shape and len(index.shape) == 1, srcs
    assert pointers.dtype.kind in "iu" and order.dtype.kind in "iu", srcs
    return gather_rule((x, index), Gather(0, True), dtype)


def segment_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    data, pointers = srcs
    assert pointers.dtype.kind in "iu" and len(pointers.shape) == 1 and pointers.size and data.shape, srcs
    return (pointers.size - 1, *data.shape[1:]), data.dtype


def segment_rows_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    (pointers,) = srcs
    assert pointers.dtype.kind in "iu" and len(pointers.shape) == 1 and pointers.size, srcs
    return (attrs.entries,), pointers.dtype


def scatter_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    index, src = srcs
    assert index.dtype.kind in "iu" and index.shape == src.shape[:1], (srcs, attrs)
    return (attrs.rows, *src.shape[1:]), src.dtype


def replace_rows_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, index, rows = srcs
    assert index.dtype.kind in "iu" and rows.shape == (index.size, *x.shape[1:]) and rows.dtype is x.dtype, srcs
    return x.shape, x.dtype


def dot_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    a, b = srcs
    assert a.dtype is b.dtype and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2], srcs
    return (*a.shape[:-1], b.shape[-1]), a.dtype


def conv_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, w = srcs
    *kernel, inside, outside = w.shape
    assert x.dtype is w.dtype and len(x.shape) == len(w.shape), srcs
    assert x.shape[-1] == inside * attrs.groups and outside % attrs.groups == 0, (srcs, attrs)
    return (x.shape[0], *attrs.extents(x.shape[1:-1], tuple(kernel)), outside), x.dtype


def conv_weight_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    x, g = srcs
    extents = attrs.geometry.extents(x.shape[1:-1], attrs.kernel)
    assert x.dtype is g.dtype and g.shape[:-1] == (x.shape[0], *extents), (srcs, attrs)
    return (*attrs.kernel, x.shape[-1] // attrs.groups, g.shape[-1]), x.dtype


def conv_input_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    g, w = srcs
    *kernel, inside, outside = w.shape
    extents = attrs.geometry.extents(attrs.space, tuple(kernel))
    assert g.dtype is w.dtype and g.shape == (g.shape[0], *extents, outside), (srcs, attrs)
    return (g.shape[0], *attrs.space, inside * attrs.groups), g.dtype


def loop_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    """A loop has no value; it counts as a float so that gradients pass through it."""
    body, length, _ = attrs
    assert len(srcs) == len(body.inputs) and length > 0 and len(body.results) == len(body.states), (srcs, attrs)
    steps = range(len(body.states), len(body.states) + len(body.xs))
    for number, (src, inner) in enumerate(zip(srcs, body.inputs, strict=True)):
        assert src.dtype is inner.dtype and src.shape == ((length,) if number in steps else ()) + inner.shape, src
    for state, result in zip(body.states, body.results, strict=True):
        assert state.shape == result.shape and state.dtype is result.dtype, (state, result)
    return (), float32


def several_rule(results: Results) -> Rule:
    """The rule of a node with several results: it counts as a float so that gradients pass through it."""

    def rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
        results(srcs, attrs)  # which checks the sources
        return (), float32

    return rule


def pick_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    source = srcs[0]
    if attrs.part == "result":
        results = source.primitive.results
        assert results is not None, srcs
        return results(source.srcs, source.attrs)[attrs.number]
    body, length, _ = source.attrs
    value = body.nodes[attrs.number] if attrs.part == "stack" else body.states[attrs.number]
    before = {"stack": (length,), "final": (), "block": (length + 1,)}[attrs.part]
    return (*before, *value.shape), value.dtype


def custom_rule(srcs: tuple[Node, ...], attrs: Any, dtype: DType | None) -> tuple[Shape, DType]:
    return attrs.definition.form
