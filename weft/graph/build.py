"""Short names for making nodes: what operations and gradient rules are written in.

These builders neither promote nor broadcast: two nodes must have one shape and dtype, and a Python number becomes a
constant like its partner. Movement that changes nothing returns its source.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.base.dtypes import DType, bool_, float32, int64, round_float
from weft.graph import primitives
from weft.graph.layout import make_canonical, permute_value
from weft.graph.node import Node, copy_of
from weft.graph.numbers import HostNumber
from weft.graph.updates import read_slice
from weft.graph.updates import update_slice as update_slice

Number = int | float | bool
Shape = tuple[int, ...]
GradientRule = Callable[[tuple[Node, ...], Node], Sequence[Node | None]]

_CONVERT = {"b": bool, "i": int, "u": int, "f": float}
_variables = itertools.count()


def const(value: Number, dtype: DType, device: Any) -> Node:
    """A scalar, shape (). A number that differs from call to call is an input of the plan."""
    if isinstance(value, HostNumber) and value._tape.records():
        return value._tape.input(value, dtype, device)
    return make_canonical("const", (), (round_to_dtype(value, dtype),), dtype=dtype, device=device)


def round_to_dtype(value: Number, dtype: DType) -> Number:
    """`value` as an attribute of a node of `dtype`; 16-bit floats are rounded here, float32 where it is used."""
    return round_float(value, dtype) if dtype.is_16_bit else _CONVERT[dtype.kind](value)


def full(shape: Shape, value: Number, dtype: DType, device: Any) -> Node:
    """A constant of any shape."""
    return expand_to(const(value, dtype, device), shape)


def like(x: Node, value: Number) -> Node:
    """A constant with the shape, dtype and device of `x`."""
    return full(x.shape, value, x.dtype, x.device)


def iota(shape: Shape, axis: int, device: Any, dtype: DType = int64) -> Node:
    """The index along `axis`, everywhere in `shape`."""
    return make_canonical("iota", (), (shape, axis), dtype=dtype, device=device)


def unary(op: str, x: Node) -> Node:
    return make_canonical(op, (x,))


def binary(op: str, a: Node | Number, b: Node | Number) -> Node:
    """`op(a, b)`; at most one of them is a number."""
    if not isinstance(b, Node):
        assert isinstance(a, Node)
        b = like(a, b)
    elif not isinstance(a, Node):
        a = like(b, a)
    return make_canonical(op, (a, b))


def add(a: Node | Number, b: Node | Number) -> Node:
    return binary("add", a, b)


def sub(a: Node | Number, b: Node | Number) -> Node:
    return binary("sub", a, b)


def mul(a: Node | Number, b: Node | Number) -> Node:
    return binary("mul", a, b)


def div(a: Node | Number, b: Node | Number) -> Node:
    return binary("div", a, b)


def neg(x: Node) -> Node:
    return make_canonical("neg", (x,))


def lt(a: Node | Number, b: Node | Number) -> Node:
    """a < b. No unsigned number is below 0, and compilers warn about the comparison."""
    if isinstance(a, Node) and a.dtype.kind == "u" and not isinstance(b, Node) and b == 0:
        return full(a.shape, False, bool_, a.device)
    return binary("lt", a, b)


def eq(a: Node | Number, b: Node | Number) -> Node:
    return binary("eq", a, b)


def select(condition: Node, a: Node | Number, b: Node | Number) -> Node:
    """`a` where the condition holds, else `b`; at most one of them is a number."""
    if not isinstance(b, Node):
        assert isinstance(a, Node)
        b = like(a, b)
    elif not isinstance(a, Node):
        a = like(b, a)
    return make_canonical("select", (condition, a, b))


def cast(x: Node, dtype: DType) -> Node:
    return x if x.dtype is dtype else make_canonical("cast", (x,), (dtype,))


def stop_gradient(x: Node) -> Node:
    return x if x.op == "stop_gradient" else make_canonical("stop_gradient", (x,))


def surrogate(value: Node, proxy: Node) -> Node:
    """The value of the first with the gradient of the second, which is equal but written for being differentiated."""
    return make_canonical("surrogate", (stop_gradient(value), proxy))


def with_gradient(value: Node, sources: tuple[Node, ...], rule: GradientRule) -> Node:
    """`value`, whose gradient in `sources` is `rule(sources, g)`: one node, or None, for each of them."""
    call = primitives.make_node("call", sources, (_OneResult(rule),))
    return primitives.make_node("result", (stop_gradient(value), call), (0,))


class _OneResult:
    """The rule of a call with one result. Calls of one rule over the same sources are equal."""

    def __init__(self, rule: GradientRule):
        self.rule = rule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _OneResult) and other.rule is self.rule

    def __hash__(self) -> int:
        return hash(self.rule)

    def __call__(self, call: Node, gradients: Mapping[int, Node], copies: Mapping[Node, Node]) -> Sequence[Node | None]:
        return self.rule(call.srcs, gradients[0])


def in_range(x: Node, extent: int, site: str | None) -> Node:
    """`x`; an element outside 0 <= x < extent is an error at the user's line `site`, raised when it is computed."""
    return primitives.make_node("in_range", (x,), (extent,), site=site)


def variable(x: Node) -> Node:
    """`x` as a node of its own, equal to no other."""
    return make_canonical("variable", (x,), (next(_variables),))


def repeat(x: Node) -> Node:
    """The value of `x` as a result of its own: the same operation on the same sources, with a gradient apart."""
    if not x.srcs or x.op in ("result", "pick"):  # these are known by their positions among the results of one node
        return variable(x)
    return surrogate(x, copy_of(x))


def reduce(op: str, x: Node, axes: Sequence[int], keepdim: bool = False) -> Node:
    """`reduce_sum`, `reduce_max`, `reduce_min` or `reduce_prod` over normalised axes; no axes, no change."""
    if not axes:
        return x
    repeated = _split_repeats(x, axes) if op == "reduce_sum" else None
    result = make_canonical(op, (x,), (tuple(sorted(axes)),)) if repeated is None else _times(*repeated, axes)
    return reshape(result, keepdim_shape(x.shape, axes)) if keepdim else result


_OF_REPEATED = frozenset({"add", "sub", "mul", "div", "neg", "cast"})
_MAX_DEPTH = 4  # operations on repeated values that are looked through


def _split_repeats(x: Node, axes: Sequence[int]) -> tuple[Node, int] | None:
    """`x` once, and how often it repeats along some of `axes`; None where it does not. The sum is a product then: it
    takes no time, and no rounding but one. This follows from the expression alone."""
    if (x.op not in _OF_REPEATED and x.op != "expand") or x.dtype.kind == "b":
        return None
    along = [axis for axis in axes if x.shape[axis] > 1 and _repeats(x, axis, _MAX_DEPTH)]
    return (_collapse_repeats(x, along), math.prod(x.shape[axis] for axis in along)) if along else None


def is_repeated(x: Node, axes: Sequence[int]) -> bool:
    """Whether `x` is known to repeat along some of `axes`."""
    return _split_repeats(x, axes) is not None


def _repeats(x: Node, axis: int, depth: int) -> bool:
    if x.op == "expand":
        return x.srcs[0].shape[axis] == 1
    return depth > 0 and x.op in _OF_REPEATED and all(_repeats(source, axis, depth - 1) for source in x.srcs)


def _collapse_repeats(x: Node, axes: Sequence[int]) -> Node:
    """`x` with extent 1 on axes along which it repeats."""
    if x.op == "expand":
        return expand(x.srcs[0], keepdim_shape(x.shape, axes))
    return make_canonical(x.primitive, tuple([_collapse_repeats(source, axes) for source in x.srcs]), x.attrs)


def _times(once: Node, count: int, axes: Sequence[int]) -> Node:
    """The sum of what repeats so often; a 16-bit float may be too small for the count."""
    total = reduce("reduce_sum", once, axes)
    if total.dtype.is_16_bit:
        return cast(mul(cast(total, float32), count), total.dtype)
    if total.dtype.kind in "iu":  # as often as counts after overflow
        bits, low = 8 * total.dtype.itemsize, 0 if total.dtype.kind == "u" else 1 << (8 * total.dtype.itemsize - 1)
        count = (count + low) % (1 << bits) - low
    return mul(total, count)


def keepdim_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` with extent 1 on `axes`."""
    return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))


def shape_without(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` without `axes`."""
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def reshape(x: Node, shape: Shape) -> Node:
    if x.op == "reshape" and x.buffer is None and x.srcs[0].shape == shape:
        return x.srcs[0]
    return x if x.shape == shape else make_canonical("reshape", (x,), (shape,))


def permute(x: Node, order: Sequence[int]) -> Node:
    return permute_value(x, tuple(order))


def swap_last(x: Node) -> Node:
    """The matrix transpose: the last two axes exchanged."""
    rank = len(x.shape)
    return permute_value(x, (*range(rank - 2), rank - 1, rank - 2))


def expand(x: Node, shape: Shape) -> Node:
    """Repeat axes of extent 1; the rank stays."""
    return x if x.shape == shape else make_canonical("expand", (x,), (shape,))


def expand_to(x: Node, shape: Shape) -> Node:
    """Broadcast: add leading axes, then repeat axes of extent 1."""
    return expand(reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def slice_(x: Node, starts: Shape, stops: Shape, steps: Shape | None = None) -> Node:
    steps = steps or (1,) * len(starts)
    if stops == x.shape and not any(starts) and all(step == 1 for step in steps):
        return x
    return read_slice(x, starts, stops, steps)


def narrow(x: Node, axis: int, start: int, stop: int) -> Node:
    """The part [start, stop) of one axis."""
    starts, stops = [0] * len(x.shape), list(x.shape)
    starts[axis], stops[axis] = start, stop
    return slice_(x, tuple(starts), tuple(stops))


def pad(x: Node, lows: Shape, highs: Shape, value: Number = 0) -> Node:
    """Add `lows` and `highs` elements of `value` around every axis."""
    if not any(lows) and not any(highs):
        return x
    return make_canonical("pad", (x,), (lows, highs, round_to_dtype(value, x.dtype)))


def flip(x: Node, axes: Sequence[int]) -> Node:
    return make_canonical("flip", (x,), (tuple(sorted(axes)),)) if axes else x


def unfold(x: Node, axis: int, size: int, step: int = 1, dilation: int = 1) -> Node:
    """Windows along `axis`, which becomes (window o, place k): out[..., o, k, ...] = x[..., o*step + k*dilation, ...].

    Adjacent windows are a reshape.
    """
    count = (x.shape[axis] - dilation * (size - 1) - 1) // step + 1
    if dilation == 1 and size <= step and count * step <= x.shape[axis]:
        apart = narrow(x, axis, 0, count * step)
        split = reshape(apart, (*x.shape[:axis], count, step, *x.shape[axis + 1 :]))
        return narrow(split, axis + 1, 0, size)
    return make_canonical("unfold", (x,), (axis, size, step, dilation))


def fold(x: Node, axis: int, extent: int, step: int = 1, dilation: int = 1) -> Node:
    """Undo `unfold`, adding what overlaps: axes (`axis`, `axis + 1`) = (window, place in it) become one of `extent`."""
    return make_canonical("fold", (x,), (axis, extent, step, dilation))


def concat(xs: Sequence[Node], axis: int) -> Node:
    return xs[0] if len(xs) == 1 else make_canonical("concat", tuple(xs), (axis,))


def gather(x: Node, index: Node, axis: int, site: str | None = None, known: bool = False) -> Node:
    """Rows by number. `site` is the user's line, for the check that they exist; there is none where that is `known`."""
    return make_canonical("gather", (x, index), (axis, known), site=site)


def scatter_add(index: Node, src: Node, count: int, site: str | None = None) -> Node:
    return scatter("add", index, src, count, site)


def scatter(reduction: str, index: Node, src: Node, count: int, site: str | None = None) -> Node:
    """Rows of `src` reduced ('add', 'max', 'min' or 'prod') into a table of `count` rows; identity for rows without
    entries."""
    return make_canonical(f"scatter_{reduction}", (index, src), (count,), site=site)


def segment(reduction: str, data: Node, pointers: Node, site: str | None = None, known: bool = False) -> Node:
    """Rows of `data` from pointers[i] to pointers[i + 1] reduced ('sum', 'max', 'min' or 'prod') into row i. It is
    checked that pointers rise from 0 to the end of the data unless they are `known` to rise."""
    return make_canonical(f"segment_{reduction}", (data, pointers), (known,), site=site)


def segment_rows(pointers: Node, count: int, site: str | None = None) -> Node:
    """For each of `count` elements in segments, the number of its segment."""
    return make_canonical("segment_rows", (pointers,), (count,), site=site)


def dot(a: Node, b: Node) -> Node:
    return make_canonical("dot", (a, b))


def bitcast(x: Node, dtype: DType) -> Node:
    """The same bits read as another dtype of that size."""
    return x if x.dtype is dtype else make_canonical("bitcast", (x,), (dtype,))


def scan(op: str, x: Node, axis: int, reverse: bool = False) -> Node:
    """The running 'sum', 'prod', 'max' or 'min' along `axis`, from its end if `reverse`."""
    return x if x.shape[axis] == 1 else make_canonical("scan", (x,), (op, axis, reverse))


def argsort(keys: Node) -> Node:
    """The ascending order of the elements of each row (last axis) of integers; equal ones keep theirs."""
    return make_canonical("argsort", (keys,))


def scan_winners(node: Node) -> Node:
    """For a running extremum, the position along its axis of the element that it shows: the latest of equal ones."""
    (x,), (_, axis, reverse) = node.srcs, node.attrs
    at = iota(x.shape, axis, x.device)
    none = x.shape[axis] - 1 if reverse else 0
    shown = binary("eq", x, node)
    if x.dtype.kind == "f":
        shown = binary("or", shown, binary("ne", x, x))
    return scan("min" if reverse else "max", select(shown, at, none), axis, reverse)


def row_positions(index: Node, axis: int, extent: int) -> Node:
    """Positions in a tensor with `extent` along `axis`, flattened, of elements that `index` counts along that axis."""
    shape = (*index.shape[:axis], extent, *index.shape[axis + 1 :])
    out, stride = None, 1
    for k in range(len(shape) - 1, -1, -1):
        at = cast(index, int64) if k == axis else iota(index.shape, k, index.device)
        term = mul(at, stride) if stride > 1 else at
        out = term if out is None else add(out, term)
        stride *= shape[k]
    assert out is not None
    return out


def along(x: Node, index: Node, axis: int, site: str | None = None) -> Node:
    """`x` at `index` along `axis`, the other indices staying: shape of `index`. Without `site` it is in range."""
    return make_canonical("along", (x, index), (axis,), site=site)


def along_add(index: Node, src: Node, axis: int, extent: int) -> Node:
    """Elements of `src` added, in order, at `index` along `axis`, which gets `extent`: undoes `along`."""
    return make_canonical("along_add", (index, src), (axis, extent))


def embed_slice(x: Node, shape: Shape, starts: Shape, steps: Shape, value: Number = 0) -> Node:
    """Undo a slice: `x` put at `starts`, every `steps`, into a field of `value` with the given shape."""
    for axis, step in enumerate(steps):
        if step > 1 and x.shape[axis] > 1:
            x = _spread(x, axis, step, value)
    highs = tuple(extent - start - have for extent, start, have in zip(shape, starts, x.shape, strict=True))
    return pad(x, starts, highs, value)


def _spread(x: Node, axis: int, step: int, value: Number) -> Node:
    """`step - 1` elements of `value` between adjacent elements: [n, 1] padded to [n, step], laid out flat, trimmed."""
    count, rank = x.shape[axis], len(x.shape)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    highs = [0] * (rank + 1)
    highs[axis + 1] = step - 1
    apart = pad(reshape(x, (*before, count, 1, *after)), (0,) * (rank + 1), tuple(highs), value)
    return narrow(reshape(apart, (*before, count * step, *after)), axis, 0, (count - 1) * step + 1)
