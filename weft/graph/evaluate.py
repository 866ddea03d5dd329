"""What each primitive means, in NumPy: one short function per primitive. The reference backend is made of these.

A function gets the node, the arrays of its sources and the NumPy dtype to answer in (the node's own, or float64 in the
reference's high-precision mode). Conventions that NumPy leaves open: integer division by zero gives 0, and a float
that fits no integer casts to the nearest one. Nodes of 16-bit floats are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.graph.node import Node

Evaluation = Callable[[Node, Sequence[np.ndarray], np.dtype], np.ndarray]

PHILOX_MULTIPLIER = np.uint64(0xD256D193)
PHILOX_WEYL = 0x9E3779B9


def philox(counter0: np.ndarray, counter1: int, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Both words of Philox2x32-10 for each counter (counter0[i], counter1) under `key`; all words are uint32.

    >>> [hex(word[0]) for word in philox(np.array([0], np.uint32), 0, 0)]
    ['0xff1dae59', '0x6cd10df2']
    """
    word0 = counter0.astype(np.uint64)
    word1 = np.full(word0.shape, counter1, np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    for turn in range(10):
        product = word0 * PHILOX_MULTIPLIER
        word0, word1 = (product >> half) ^ np.uint64((key + turn * PHILOX_WEYL) & 0xFFFFFFFF) ^ word1, product & low
    return word0.astype(np.uint32), word1.astype(np.uint32)


def random_bits(state: np.ndarray, draw: int, shape: tuple[int, ...], width: int) -> np.ndarray:
    """32 or 16 (`width`) random bits for each element, as uint32. Of 16, a counter serves four neighbours."""
    key, base = (int(word) for word in state)
    count, size = (base + draw) & 0xFFFFFFFF, math.prod(shape)
    if width == 32:
        return philox(np.arange(size, dtype=np.uint64).astype(np.uint32), count, key)[0].reshape(shape)
    words = np.stack(philox(np.arange(-(-size // 4), dtype=np.uint64).astype(np.uint32), count, key), 1)
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], 2)  # [counter, word, half]
    return halves.reshape(-1)[:size].reshape(shape)


def _random(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    shape, draw, width = node.attrs
    return random_bits(arrays[0], draw, shape, width)


def _iota(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    shape, axis = node.attrs
    line = np.arange(shape[axis], dtype=dtype).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return np.broadcast_to(line, shape)


def _div(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.floor_divide(*arrays) if dtype.kind in "iu" else np.divide(*arrays)


def _mod(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """With the sign of the divisor. Unlike in NumPy, a zero float has the sign of the dividend, as in PyTorch."""
    a, b = arrays
    if dtype.kind != "f":
        return np.mod(a, b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _erf(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(arrays[0])).astype(dtype)


def _cast(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return cast_array(arrays[0], dtype)


def cast_array(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats outside an integer's range become its nearest value and NaN becomes 0, as on every backend; integers wrap
    around. `dtype` is not a 16-bit float: those are reached by way of float32."""
    if x.dtype.kind != "f" or dtype.kind not in "iu":
        return x.astype(dtype)
    low, high = dtype.type(np.iinfo(dtype).min), dtype.type(np.iinfo(dtype).max)
    inside = (x > float(low)) & (x < float(high))
    beyond = np.where(np.isnan(x), dtype.type(0), np.where(x > 0, high, low))
    return np.where(inside, np.where(inside, x, 0).astype(dtype), beyond)


def _slice(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return arrays[0][tuple(slice(*bounds) for bounds in zip(*node.attrs, strict=True))]


def _update_slice(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    out = arrays[0].copy()
    windows = zip(*node.attrs, arrays[1].shape, strict=True)
    out[tuple(slice(start, start + (extent - 1) * step + 1, step) for start, step, extent in windows)] = arrays[1]
    return out


def _pad(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    lows, _, value = node.attrs
    out = np.full(node.shape, value, dtype)
    out[tuple(slice(low, low + extent) for low, extent in zip(lows, arrays[0].shape, strict=True))] = arrays[0]
    return out


def _unfold(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, size, step, dilation = node.attrs
    places = np.arange(node.shape[axis])[:, None] * step + np.arange(size) * dilation
    return np.take(arrays[0], places, axis)


def _fold(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, _, step, dilation = node.attrs
    windows = np.moveaxis(arrays[0], (axis, axis + 1), (0, 1))
    out = np.zeros(node.shape, dtype)
    target = np.moveaxis(out, axis, 0)
    for k in range(windows.shape[1]):
        target[k * dilation : k * dilation + (len(windows) - 1) * step + 1 : step] += windows[:, k]
    return out


def _gather(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    x, index = arrays
    axis = node.attrs[0]
    return np.take(x, np.clip(index, 0, max(x.shape[axis] - 1, 0)), axis=axis)


def identity(fold: str, dtype: np.dtype) -> float | int | bool:
    """What a fold ('sum', 'prod', 'max' or 'min') of no elements is."""
    if fold in ("sum", "prod"):
        return int(fold == "prod")
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if fold == "max" else np.iinfo(dtype).max
    low, high = (False, True) if dtype.kind == "b" else (-math.inf, math.inf)
    return low if fold == "max" else high


_FOLDS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _fold_rows(node: Node, fold: str, rows: np.ndarray, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`out[rows[k]] = fold(out[rows[k]], data[k])` in order of k, from the fold's identity; bad rows are clamped."""
    out = np.full(node.shape, identity(fold, dtype), dtype)
    if out.size:
        _FOLDS[fold].at(out, np.clip(rows, 0, node.shape[0] - 1), data.astype(dtype, copy=False))
    return out


_ACCUMULATE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
               "logaddexp": np.logaddexp}  # fmt: skip


def _scan(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    op, axis, reverse = node.attrs
    x = np.flip(arrays[0], axis) if reverse else arrays[0]
    out = _ACCUMULATE[op].accumulate(x, axis=axis, dtype=dtype)
    return np.flip(out, axis) if reverse else out


def _along(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (x, index), axis = arrays, node.attrs[0]
    return np.take_along_axis(x, np.clip(index, 0, max(x.shape[axis] - 1, 0)).astype(np.int64), axis)


def _along_add(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (index, src), (axis, extent) = arrays, node.attrs
    out = np.zeros(node.shape, dtype)
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[axis] = np.clip(index, 0, max(extent - 1, 0)).astype(np.int64)
    np.add.at(out, tuple(places), src)
    return out


def _bitcast(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    stored = np.ascontiguousarray(arrays[0], node.srcs[0].dtype.numpy)  # as in memory, also in float64 mode
    return stored.reshape(node.shape).view(node.dtype.numpy)


def _replace_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    x, index, rows = arrays
    there = index < len(x)
    out = x.copy()
    out[index[there]] = rows[there]
    return out


def _scatter(fold: str) -> Evaluation:
    return lambda node, arrays, dtype: _fold_rows(node, fold, arrays[0], arrays[1], dtype)


def _rows_of(pointers: np.ndarray, count: int) -> np.ndarray:
    """The segment that each of `count` elements lies in."""
    return np.searchsorted(pointers[1:], np.arange(count), side="right").astype(pointers.dtype)


def segments(fold: str) -> Evaluation:
    """Rows folded by segments; what lies behind the last one is not looked at."""

    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        data, pointers = arrays
        data = data[: pointers[-1]]
        return _fold_rows(node, fold, _rows_of(pointers, len(data)), data, dtype)

    return run


def _plain(function: Callable[..., np.ndarray]) -> Evaluation:
    """A primitive that is one NumPy function of its sources."""
    return lambda node, arrays, dtype: function(*arrays)


def _reduce(function: Callable[..., np.ndarray]) -> Evaluation:
    return lambda node, arrays, dtype: function(arrays[0], axis=node.attrs[0])


def _typed_reduce(function: Callable[..., np.ndarray]) -> Evaluation:
    """Sums and products: told the dtype, because NumPy would widen small integers."""
    return lambda node, arrays, dtype: function(arrays[0], axis=node.attrs[0], dtype=dtype)


def _taps(x: np.ndarray, kernel: tuple[int, ...], out: tuple[int, ...], attrs: tuple):
    """For each tap of a kernel its position and the [N, *out, C] elements of the padded x that it reads."""
    strides, lows, highs, dilations, _ = attrs
    padded = np.pad(x, [(0, 0), *zip(lows, highs, strict=True), (0, 0)]) if any((*lows, *highs)) else x
    for tap in np.ndindex(*kernel):
        rows = zip(tap, strides, dilations, out, strict=True)
        yield tap, padded[(slice(None), *[slice(t * d, t * d + s * (n - 1) + 1, s) for t, s, d, n in rows])]


def conv_values(x: np.ndarray, w: np.ndarray, out: tuple[int, ...], attrs: tuple, dtype: np.dtype) -> np.ndarray:
    """The convolution of arrays, with the attributes of `conv`."""
    *kernel, inside, outside = w.shape
    groups = attrs[4]
    total = np.zeros((len(x), *out, groups, outside // groups), dtype)
    for tap, part in _taps(x, tuple(kernel), out, attrs):
        apart = part.reshape(*part.shape[:-1], groups, inside)
        total += np.einsum("...gc,cgo->...go", apart, w[tap].reshape(inside, groups, -1))
    return total.reshape(len(x), *out, outside)


def conv_weight_values(
    x: np.ndarray, g: np.ndarray, kernel: tuple[int, ...], attrs: tuple, dtype: np.dtype
) -> np.ndarray:
    """The gradient of `conv_values` in w."""
    groups = attrs[4]
    inside, outside = x.shape[-1] // groups, g.shape[-1]
    result = np.zeros((*kernel, inside, outside), dtype)
    rows = g.reshape(math.prod(g.shape[:-1]), groups, outside // groups)
    for tap, part in _taps(x, kernel, g.shape[1:-1], attrs):
        seen = part.reshape(len(rows), groups, inside)
        result[tap] = np.einsum("ngc,ngo->cgo", seen, rows).reshape(inside, outside)
    return result


def conv_input_values(
    g: np.ndarray, w: np.ndarray, space: tuple[int, ...], attrs: tuple, dtype: np.dtype
) -> np.ndarray:
    """The gradient of `conv_values` in x."""
    *kernel, inside, outside = w.shape
    lows, highs, groups = attrs[1], attrs[2], attrs[4]
    extents = [low + extent + high for low, extent, high in zip(lows, space, highs, strict=True)]
    padded = np.zeros((len(g), *extents, inside * groups), dtype)
    rows = g.reshape(*g.shape[:-1], groups, outside // groups)
    for tap, part in _taps(padded, tuple(kernel), g.shape[1:-1], (attrs[0], *[(0,) * len(space)] * 2, *attrs[3:])):
        part += np.einsum("...go,cgo->...gc", rows, w[tap].reshape(inside, groups, -1)).reshape(part.shape)
    return padded[(slice(None), *[slice(low, low + extent) for low, extent in zip(lows, space, strict=True)])]


def _floats(texts: Sequence[str]) -> list[float]:
    return [float.fromhex(text) for text in texts]


EVALUATIONS: dict[str, Evaluation] = {
    "const": lambda node, arrays, dtype: np.asarray(node.attrs[0], dtype),
    "iota": _iota,
    "random": _random,
    "variable": lambda node, arrays, dtype: arrays[0],
    "stop_gradient": lambda node, arrays, dtype: arrays[0],
    "checkpoint": lambda node, arrays, dtype: arrays[0],
    "after": lambda node, arrays, dtype: arrays[0],
    "in_range": lambda node, arrays, dtype: arrays[0],
    "call": lambda node, arrays, dtype: np.zeros(0, dtype),
    "custom": lambda node, arrays, dtype: node.attrs[0].evaluate(arrays, _floats(node.attrs[2]), dtype),
    "result": lambda node, arrays, dtype: arrays[0],
    "surrogate": lambda node, arrays, dtype: arrays[0],
    "keep": lambda node, arrays, dtype: arrays[0],
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "exp": _plain(np.exp),
    "log": _plain(np.log),
    "sqrt": _plain(np.sqrt),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "tanh": _plain(np.tanh),
    "erf": _erf,
    "floor": _plain(np.floor),
    "log1p": _plain(np.log1p),
    "expm1": _plain(np.expm1),
    "exp_rounded": _plain(np.exp),
    "logistic": _plain(lambda x: 1 / (1 + np.exp(-x))),
    "not": _plain(np.invert),
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _div,
    "pow": _plain(np.power),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "mod": _mod,
    "floor_divide": _plain(np.floor_divide),
    "lt": _plain(np.less),
    "le": _plain(np.less_equal),
    "eq": _plain(np.equal),
    "ne": _plain(np.not_equal),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "shl": _plain(np.left_shift),
    "shr": _plain(np.right_shift),
    "select": _plain(np.where),
    "cast": _cast,
    "reduce_sum": _typed_reduce(np.sum),
    "reduce_prod": _typed_reduce(np.prod),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reshape": lambda node, arrays, dtype: arrays[0].reshape(node.shape),
    "permute": lambda node, arrays, dtype: arrays[0].transpose(node.attrs[0]),
    "expand": lambda node, arrays, dtype: np.broadcast_to(arrays[0], node.shape),
    "slice": _slice,
    "update_slice": _update_slice,
    "pad": _pad,
    "flip": lambda node, arrays, dtype: np.flip(arrays[0], node.attrs[0]),
    "unfold": _unfold,
    "fold": _fold,
    "concat": lambda node, arrays, dtype: np.concatenate(arrays, node.attrs[0]),
    "gather": _gather,
    "neighbours": lambda node, arrays, dtype: np.take(
        arrays[0], np.clip(arrays[1], 0, max(len(arrays[0]) - 1, 0)), axis=0
    ),
    "replace_rows": _replace_rows,
    "scatter_add": _scatter("sum"),
    "scatter_max": _scatter("max"),
    "scatter_min": _scatter("min"),
    "scatter_prod": _scatter("prod"),
    "segment_sum": segments("sum"),
    "segment_max": segments("max"),
    "segment_min": segments("min"),
    "segment_rows": lambda node, arrays, dtype: _rows_of(arrays[0], node.attrs[0]),
    "dot": _plain(np.matmul),
    "conv": lambda node, arrays, dtype: conv_values(arrays[0], arrays[1], node.shape[1:-1], node.attrs, dtype),
    "conv_input": lambda node, arrays, dtype: conv_input_values(
        arrays[0], arrays[1], node.attrs[0], node.attrs[1:], dtype
    ),
    "conv_weight": lambda node, arrays, dtype: conv_weight_values(
        arrays[0], arrays[1], node.attrs[0], node.attrs[1:], dtype
    ),
    "bitcast": _bitcast,
    "scan": _scan,
    "along": _along,
    "along_add": _along_add,
    "argsort": lambda node, arrays, dtype: np.argsort(arrays[0], axis=-1, kind="stable"),
}
# Primitives with several results, in order; their nodes have no value of their own.
SEVERAL: dict[str, Callable[[Node, Sequence[np.ndarray]], tuple[np.ndarray, ...]]] = {}


def evaluate(node: Node, arrays: Sequence[np.ndarray], float64: bool = False) -> np.ndarray:
    """The value of `node` given the values of its sources, in its dtype (every float as float64 if asked)."""
    wide = float64 and node.dtype.kind == "f"
    work = np.dtype(np.float64) if wide else np.dtype(np.float32) if node.dtype.is_narrow else node.dtype.numpy
    with np.errstate(all="ignore"):
        if not float64:
            arrays = [
                array.astype(np.float32) if source.dtype.is_narrow else array
                for source, array in zip(node.srcs, arrays, strict=True)
            ]
        result = np.asarray(EVALUATIONS[node.op](node, arrays, work), work)
        if node.dtype.is_narrow and not wide:
            result = result.astype(node.dtype.numpy)
    assert result.shape == node.shape, (node, result.shape)
    return result


def evaluate_all(
    order: Sequence[Node], known: dict[Node, np.ndarray], float64: bool = False,
    check: Callable[[Node, Sequence[np.ndarray]], None] | None = None,
) -> dict[Node, np.ndarray]:  # fmt: skip
    """The values of all nodes of `order` (sources first), given those in `known`. Loops run here, with all their picks.

    `check`, if given, is called with each node before it is evaluated.
    """
    values = dict(known)
    for node in order:
        if node in values:
            continue
        arrays = [values[src] for src in node.srcs]
        if check is not None:
            check(node, arrays)
        if node.op == "loop" or node.op in SEVERAL:
            values[node] = np.zeros((), np.float32)
            picks = [pick for pick in order if pick.op == "pick" and pick.srcs[0] is node]
            if node.op == "loop":
                values.update(_evaluate_loop(node, arrays, picks, float64, check))
            else:
                values.update(_evaluate_several(node, arrays, picks, float64))
        else:
            values[node] = evaluate(node, arrays, float64)
    return values


def _evaluate_several(
    node: Node, arrays: Sequence[np.ndarray], picks: Sequence[Node], float64: bool
) -> dict[Node, np.ndarray]:
    """The picked results of a node that has several; 16-bit floats are computed in float32."""
    wide = [array.astype(np.float32) if array.dtype.itemsize < 4 and array.dtype != bool else array for array in arrays]
    with np.errstate(all="ignore"):
        found = SEVERAL[node.op](node, wide)
    values = {}
    for pick in picks:
        value = found[pick.attrs[0]]
        values[pick] = value.astype(np.float64 if float64 else pick.dtype.numpy)
        assert value.shape == pick.shape, (node, pick, value.shape)
    return values


def _evaluate_loop(
    loop: Node, arrays: Sequence[np.ndarray], picks: Sequence[Node], float64: bool, check: Any
) -> dict[Node, np.ndarray]:
    body, length, reverse = loop.attrs
    states, first = list(arrays[: len(body.states)]), len(body.states) + len(body.xs)
    xs, constants = arrays[len(body.states) : first], arrays[first:]
    stacks: dict[Node, list[np.ndarray]] = {pick: [] for pick in picks if pick.attrs[0] == "stack"}
    blocks = {pick: [states[pick.attrs[1]]] for pick in picks if pick.attrs[0] == "block"}
    for turn in reversed(range(length)) if reverse else range(length):
        known = dict(zip(body.inputs, (*states, *[x[turn] for x in xs], *constants), strict=True))
        values = evaluate_all(body.nodes, known, float64, check)
        for pick, stack in stacks.items():
            stack.append(values[body.nodes[pick.attrs[1]]])
        states = [values[result] for result in body.results]
        for pick, stack in blocks.items():
            stack.append(states[pick.attrs[1]])
    found = {pick: np.stack(stack[::-1] if reverse else stack) for pick, stack in (stacks | blocks).items()}
    return found | {pick: states[pick.attrs[1]] for pick in picks if pick.attrs[0] == "final"}
