"""The primitives: one row each, and `make`, the only way to a new node.

A row is the primitive's name, its kind, how many sources it takes, the rule that gives shape and dtype, and its meaning
in NumPy. Rules assert rather than explain: operations have checked what the user gave before they come here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.dtypes import DType, bool_, float32, int64, uint32
from weft.errors import DeviceError, problem
from weft.graph import attention
from weft.graph.evaluate import EVALUATIONS, Evaluation, evaluate
from weft.graph.node import Node, intern_node

__all__ = ["PRIMITIVES", "Primitive", "evaluate", "make"]

Shape = tuple[int, ...]
Rule = Callable[[tuple[Node, ...], tuple, "DType | None"], tuple[Shape, DType]]
Results = Callable[[tuple[Node, ...], tuple], tuple[tuple[Shape, DType], ...]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One row of the table. `arity` is the number of sources, None for any number above zero.

    `results`, if any, says that a node has several, and gives the shape and dtype of each. Such a node has no value of
    its own: `pick` (number,) is one of its results.
    """

    name: str
    kind: (
        str  # leaf, generate, elementwise, movement, reduce, fold, gather, scatter, segment, concat, dot, template, ...
    )
    arity: int | None
    shape_rule: Rule
    evaluate: Evaluation | None  # None for leaves, whose value lives in a buffer, loops, and nodes with several results
    results: Results | None = None


def _given(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert dtype is not None
    return (), dtype


def _iota(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape, axis = attrs
    assert dtype is not None and dtype.kind == "i" and 0 <= axis < len(shape)
    return shape, dtype


def _random(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].shape == (2,) and srcs[0].dtype is uint32 and attrs[2] in (16, 32)
    return attrs[0], uint32


def _same(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    return srcs[0].shape, srcs[0].dtype


def _in_range(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "iu" and attrs[0] >= 0, (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def _call(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    """A call has no value of its own, and is a float so that gradients pass."""
    return (0,), float32


def _float(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind == "f", srcs
    return srcs[0].shape, srcs[0].dtype


def _pair(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    a, b = srcs
    assert a.shape == b.shape and a.dtype is b.dtype, srcs
    return a.shape, a.dtype


def _float_pair(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind == "f", srcs
    return _pair(srcs, attrs, dtype)


def _compare(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    return _pair(srcs, attrs, dtype)[0], bool_


def _bits(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "biu", srcs
    return _pair(srcs, attrs, dtype) if len(srcs) == 2 else _same(srcs, attrs, dtype)


def _select(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    condition, a, b = srcs
    assert condition.dtype is bool_ and condition.shape == a.shape, srcs
    return _pair((a, b), attrs, dtype)


def _cast(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    return srcs[0].shape, attrs[0]


def _bitcast(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.itemsize == attrs[0].itemsize and bool_ not in (srcs[0].dtype, attrs[0]), (srcs, attrs)
    return srcs[0].shape, attrs[0]


def _scan(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    op, axis, reverse = attrs
    assert op in ("sum", "prod", "max", "min") or (op == "logaddexp" and srcs[0].dtype.kind == "f"), (srcs, attrs)
    assert 0 <= axis < len(srcs[0].shape) and isinstance(reverse, bool), (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def _along(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    (x, index), (axis,) = srcs, attrs
    others = (*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :])
    assert index.dtype.kind in "iu" and len(x.shape) == len(index.shape) and index.shape == others, (srcs, attrs)
    return index.shape, x.dtype


def _along_add(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    (index, src), (axis, extent) = srcs, attrs
    assert index.dtype.kind in "iu" and index.shape == src.shape and 0 <= axis < len(src.shape), (srcs, attrs)
    return (*src.shape[:axis], extent, *src.shape[axis + 1 :]), src.dtype


def _argsort(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert srcs[0].dtype.kind in "iu" and srcs[0].shape, srcs
    return srcs[0].shape, int64


def _reduce(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    axes = attrs[0]
    shape = srcs[0].shape
    assert axes and list(axes) == sorted(set(axes)) and 0 <= axes[0] and axes[-1] < len(shape), (srcs, axes)
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes), srcs[0].dtype


def _reshape(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    size = 1
    for extent in attrs[0]:
        size *= extent
    assert size == srcs[0].size, (srcs, attrs)
    return attrs[0], srcs[0].dtype


def _permute(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape, order = srcs[0].shape, attrs[0]
    assert sorted(order) == list(range(len(shape))), (srcs, attrs)
    return tuple(shape[axis] for axis in order), srcs[0].dtype


def _expand(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape = attrs[0]
    assert len(shape) == len(srcs[0].shape), (srcs, attrs)
    assert all(old in (1, new) for old, new in zip(srcs[0].shape, shape, strict=True)), (srcs, attrs)
    return shape, srcs[0].dtype


def _slice(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape = []
    for extent, start, stop, step in zip(srcs[0].shape, *attrs, strict=True):
        assert 0 <= start <= stop <= extent and step > 0, (srcs, attrs)
        shape.append((stop - start + step - 1) // step)
    return tuple(shape), srcs[0].dtype


def _update_slice(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, value = srcs
    assert x.dtype is value.dtype and value.size, (srcs, attrs)
    for extent, part, start, step in zip(x.shape, value.shape, *attrs, strict=True):
        assert start >= 0 and step > 0 and start + (part - 1) * step < extent and (part > 1 or step == 1), (srcs, attrs)
    return x.shape, x.dtype


def _pad(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    lows, highs, _ = attrs
    assert min(lows, default=0) >= 0 and min(highs, default=0) >= 0, attrs
    return tuple(low + extent + high for extent, low, high in zip(srcs[0].shape, lows, highs, strict=True)), srcs[
        0
    ].dtype


def _flip(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    assert attrs[0] and all(0 <= axis < len(srcs[0].shape) for axis in attrs[0]), (srcs, attrs)
    return srcs[0].shape, srcs[0].dtype


def _unfold(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape, (axis, size, step, dilation) = srcs[0].shape, attrs
    span = dilation * (size - 1) + 1
    assert 0 <= axis < len(shape) and min(size, step, dilation) > 0 and shape[axis] >= span, (srcs, attrs)
    return (*shape[:axis], (shape[axis] - span) // step + 1, size, *shape[axis + 1 :]), srcs[0].dtype


def _fold(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    shape, (axis, extent, step, dilation) = srcs[0].shape, attrs
    assert 0 <= axis < len(shape) - 1 and min(step, dilation, *shape[axis : axis + 2]) > 0, (srcs, attrs)
    count, size = shape[axis : axis + 2]
    assert (count - 1) * step + (size - 1) * dilation < extent, (srcs, attrs)
    return (*shape[:axis], extent, *shape[axis + 2 :]), srcs[0].dtype


def _concat(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    axis, first = attrs[0], srcs[0]
    rest = first.shape[:axis], first.shape[axis + 1 :]
    for src in srcs:
        assert src.dtype is first.dtype and (src.shape[:axis], src.shape[axis + 1 :]) == rest, (srcs, attrs)
    return rest[0] + (sum(src.shape[axis] for src in srcs),) + rest[1], first.dtype


def _gather(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, index = srcs
    axis = attrs[0]
    assert index.dtype.kind in "iu" and 0 <= axis < len(x.shape), (srcs, attrs)
    return x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.dtype


def _neighbours(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, index, pointers, order = srcs
    assert pointers.shape == (x.shape[0] + 1,) and order.shape == index.shape and len(index.shape) == 1, srcs
    assert pointers.dtype.kind in "iu" and order.dtype.kind in "iu", srcs
    return _gather((x, index), (0,), dtype)


def _segment(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    data, pointers = srcs
    assert pointers.dtype.kind in "iu" and len(pointers.shape) == 1 and pointers.size and data.shape, srcs
    return (pointers.size - 1, *data.shape[1:]), data.dtype


def _segment_rows(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    (pointers,) = srcs
    assert pointers.dtype.kind in "iu" and len(pointers.shape) == 1 and pointers.size, srcs
    return (attrs[0],), pointers.dtype


def _scatter(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    index, src = srcs
    assert index.dtype.kind in "iu" and index.shape == src.shape[:1], (srcs, attrs)
    return (attrs[0], *src.shape[1:]), src.dtype


def _replace_rows(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, index, rows = srcs
    assert index.dtype.kind in "iu" and rows.shape == (index.size, *x.shape[1:]) and rows.dtype is x.dtype, srcs
    return x.shape, x.dtype


def _dot(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    a, b = srcs
    assert a.dtype is b.dtype and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2], srcs
    return (*a.shape[:-1], b.shape[-1]), a.dtype


def _conv(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, w = srcs
    *kernel, inside, outside = w.shape
    assert x.dtype is w.dtype and len(x.shape) == len(w.shape), srcs
    assert x.shape[-1] == inside * attrs[4] and outside % attrs[4] == 0, (srcs, attrs)
    return (x.shape[0], *windows(x.shape[1:-1], tuple(kernel), *attrs[:4]), outside), x.dtype


def _conv_weight(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    x, g = srcs
    kernel, *rest, groups = attrs
    assert x.dtype is g.dtype and g.shape[:-1] == (x.shape[0], *windows(x.shape[1:-1], kernel, *rest)), (srcs, attrs)
    return (*kernel, x.shape[-1] // groups, g.shape[-1]), x.dtype


def _conv_input(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    g, w = srcs
    space, *rest, groups = attrs
    *kernel, inside, outside = w.shape
    assert g.dtype is w.dtype and g.shape == (g.shape[0], *windows(space, tuple(kernel), *rest), outside), (srcs, attrs)
    return (g.shape[0], *space, inside * groups), g.dtype


def windows(space: Shape, kernel: Shape, strides: Shape, lows: Shape, highs: Shape, dilations: Shape) -> Shape:
    """How often a kernel fits into each spatial axis."""
    rows = zip(space, kernel, strides, lows, highs, dilations, strict=True)
    return tuple([(n + low + high - d * (k - 1) - 1) // s + 1 for n, k, s, low, high, d in rows])


def _loop(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    """A loop has no value; it counts as a float so that gradients pass through it."""
    body, length, _ = attrs
    assert len(srcs) == len(body.inputs) and length > 0 and len(body.results) == len(body.states), (srcs, attrs)
    steps = range(len(body.states), len(body.states) + len(body.xs))
    for number, (src, inner) in enumerate(zip(srcs, body.inputs, strict=True)):
        assert src.dtype is inner.dtype and src.shape == ((length,) if number in steps else ()) + inner.shape, src
    for state, result in zip(body.states, body.results, strict=True):
        assert state.shape == result.shape and state.dtype is result.dtype, (state, result)
    return (), float32


def several(results: Results) -> Rule:
    """The rule of a node with several results: it counts as a float so that gradients pass through it."""

    def rule(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
        results(srcs, attrs)  # which checks the sources
        return (), float32

    return rule


def _pick(srcs: tuple[Node, ...], attrs: tuple, dtype: DType | None) -> tuple[Shape, DType]:
    source = srcs[0]
    if source.op != "loop":
        results = PRIMITIVES[source.op].results
        assert results is not None, srcs
        return results(source.srcs, source.attrs)[attrs[0]]
    body, length, _ = source.attrs
    kind, number = attrs
    value = body.nodes[number] if kind == "stack" else body.states[number]
    before = {"stack": (length,), "final": (), "block": (length + 1,)}[kind]
    return (*before, *value.shape), value.dtype


_ROWS: list[tuple[str, str, int | None, Rule]] = [
    ("buffer input", "leaf", 0, _given),
    ("const", "generate", 0, _given),
    ("iota", "generate", 0, _iota),
    ("random", "generate", 1, _random),
    ("variable stop_gradient", "elementwise", 1, _same),
    ("checkpoint", "elementwise", 1, _same),
    ("after", "order", 2, _same),
    ("call", "generate", None, _call),
    ("result", "elementwise", 2, _same),
    ("surrogate", "elementwise", 2, _pair),
    ("keep", "elementwise", 2, _same),
    ("custom", "template", None, lambda srcs, attrs, dtype: attrs[0].form),
    ("in_range", "elementwise", 1, _in_range),
    ("neg abs", "elementwise", 1, _same),
    ("exp log sqrt sin cos tanh erf floor log1p expm1 exp_rounded logistic", "elementwise", 1, _float),
    ("not", "elementwise", 1, _bits),
    ("add sub mul div max min mod", "elementwise", 2, _pair),
    ("pow floor_divide", "elementwise", 2, _float_pair),
    ("lt le eq ne", "elementwise", 2, _compare),
    ("and or xor shl shr", "elementwise", 2, _bits),
    ("select", "elementwise", 3, _select),
    ("cast", "elementwise", 1, _cast),
    ("bitcast", "elementwise", 1, _bitcast),
    ("reduce_sum reduce_max reduce_min reduce_prod", "reduce", 1, _reduce),
    ("reshape", "movement", 1, _reshape),
    ("permute", "movement", 1, _permute),
    ("expand", "movement", 1, _expand),
    ("slice", "movement", 1, _slice),
    ("update_slice", "update", 2, _update_slice),
    ("pad", "movement", 1, _pad),
    ("flip", "movement", 1, _flip),
    ("unfold", "movement", 1, _unfold),
    ("fold", "fold", 1, _fold),
    ("concat", "concat", None, _concat),
    ("gather", "gather", 2, _gather),
    ("neighbours", "gather", 4, _neighbours),
    ("scatter_add scatter_max scatter_min scatter_prod", "scatter", 2, _scatter),
    ("replace_rows", "update", 3, _replace_rows),
    ("segment_sum segment_max segment_min", "segment", 2, _segment),
    ("segment_rows", "rows", 1, _segment_rows),
    ("dot", "dot", 2, _dot),
    ("conv", "conv", 2, _conv),
    ("conv_weight", "conv", 2, _conv_weight),
    ("conv_input", "conv", 2, _conv_input),
    ("scan", "scan", 1, _scan),
    ("argsort", "sort", 1, _argsort),
    ("along", "gather", 2, _along),
    ("along_add", "put", 2, _along_add),
    ("loop", "loop", None, _loop),
    ("pick", "pick", 1, _pick),
]

PRIMITIVES: dict[str, Primitive] = {
    name: Primitive(name, kind, arity, rule, EVALUATIONS.get(name))
    for names, kind, arity, rule in _ROWS
    for name in names.split()
}
for _name, _results in attention.RESULTS.items():
    PRIMITIVES[_name] = Primitive(_name, "template", None, several(_results), None, _results)


def make(
    op: str,
    srcs: tuple[Node, ...] = (),
    attrs: tuple = (),
    *,
    dtype: DType | None = None,
    device: Any = None,
    site: str | None = None,
) -> Node:
    """The node `op(srcs, attrs)`. `dtype` and `device` are for nodes without sources; others take them from these."""
    shape, result = PRIMITIVES[op].shape_rule(srcs, attrs, dtype)
    if srcs:
        device = srcs[0].device
        for source in srcs[:1] if op == "result" else srcs:  # a history may lie on another device
            if source.device is not device:  # an address there means nothing here
                given = f"tensors on {device} and {source.device}"
                raise problem(DeviceError, op, given, "all on one device", "move one with .to(device)")
    return intern_node(op, srcs, attrs, shape, result, device, site)


def results_of(node: Node) -> list[Node]:
    """The results of a node that has several, in order; nothing for any other."""
    several = PRIMITIVES[node.op].results
    found = () if several is None else several(node.srcs, node.attrs)
    return [make("pick", (node,), (number,)) for number in range(len(found))]
