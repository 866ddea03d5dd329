"""What each primitive means, in NumPy: one short function per primitive. The reference backend is made of these.

A function gets the node, the arrays of its sources and the NumPy dtype to answer in (the node's own, or float64 in the
reference's high-precision mode). Conventions that NumPy leaves open: integer division by zero gives 0, and a float
that fits no integer casts to the nearest one. Nodes of 16-bit floats are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.graph.attributes import Geometry
from weft.graph.node import Evaluation, Node

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
    for step in range(10):
        product = word0 * PHILOX_MULTIPLIER
        word0, word1 = (product >> half) ^ np.uint64((key + step * PHILOX_WEYL) & 0xFFFFFFFF) ^ word1, product & low
    return word0.astype(np.uint32), word1.astype(np.uint32)


def random_bits(state: np.ndarray, draw: int, shape: tuple[int, ...], width: int) -> np.ndarray:
    """32 or 16 (`width`) random bits for each element, as uint32. Of 16, a counter serves four adjacent elements."""
    key, base = (int(word) for word in state)
    count, size = (base + draw) & 0xFFFFFFFF, math.prod(shape)
    if width == 32:
        return philox(np.arange(size, dtype=np.uint64).astype(np.uint32), count, key)[0].reshape(shape)
    words = np.stack(philox(np.arange(-(-size // 4), dtype=np.uint64).astype(np.uint32), count, key), 1)
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], 2)  # [counter, word, half]
    return halves.reshape(-1)[:size].reshape(shape)


def random(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    shape, draw, width = node.attrs
    return random_bits(arrays[0], draw, shape, width)


def iota(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    shape, axis = node.attrs
    line = np.arange(shape[axis], dtype=dtype).reshape((-1,) + (1,) * (len(shape) - axis - 1))
    return np.broadcast_to(line, shape)


def div(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.floor_divide(*arrays) if dtype.kind in "iu" else np.divide(*arrays)


def mod(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """With the sign of the divisor. Unlike in NumPy, a zero float has the sign of the dividend, as in PyTorch."""
    a, b = arrays
    if dtype.kind != "f":
        return np.mod(a, b)
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def erf(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(arrays[0])).astype(dtype)


def cast(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
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


def slice_window(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return arrays[0][tuple(slice(*bounds) for bounds in zip(*node.attrs, strict=True))]


def update_slice(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    out = arrays[0].copy()
    windows = zip(*node.attrs, arrays[1].shape, strict=True)
    out[tuple(slice(start, start + (extent - 1) * step + 1, step) for start, step, extent in windows)] = arrays[1]
    return out


def pad(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    lows, _, value = node.attrs
    out = np.full(node.shape, value, dtype)
    out[tuple(slice(low, low + extent) for low, extent in zip(lows, arrays[0].shape, strict=True))] = arrays[0]
    return out


def unfold(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, size, step, dilation = node.attrs
    positions = np.arange(node.shape[axis])[:, None] * step + np.arange(size) * dilation
    return np.take(arrays[0], positions, axis)


def fold(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    axis, _, step, dilation = node.attrs
    windows = np.moveaxis(arrays[0], (axis, axis + 1), (0, 1))
    out = np.zeros(node.shape, dtype)
    target = np.moveaxis(out, axis, 0)
    for k in range(windows.shape[1]):
        target[k * dilation : k * dilation + (len(windows) - 1) * step + 1 : step] += windows[:, k]
    return out


def gather(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    x, index = arrays
    axis = node.attrs.axis
    return np.take(x, np.clip(index, 0, max(x.shape[axis] - 1, 0)), axis=axis)


def identity(reduction: str, dtype: np.dtype) -> float | int | bool:
    """What a reduction ('sum', 'prod', 'max' or 'min') of no elements is."""
    if reduction in ("sum", "prod"):
        return int(reduction == "prod")
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if reduction == "max" else np.iinfo(dtype).max
    low, high = (False, True) if dtype.kind == "b" else (-math.inf, math.inf)
    return low if reduction == "max" else high


_REDUCTIONS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduce_rows(node: Node, reduction: str, rows: np.ndarray, data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`out[rows[k]] = reduction(out[rows[k]], data[k])` in order of k, from its identity; bad rows are clamped."""
    out = np.full(node.shape, identity(reduction, dtype), dtype)
    if out.size:
        _REDUCTIONS[reduction].at(out, np.clip(rows, 0, node.shape[0] - 1), data.astype(dtype, copy=False))
    return out


_ACCUMULATE = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
               "logaddexp": np.logaddexp}  # fmt: skip


def scan(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    op, axis, reverse = node.attrs
    x = np.flip(arrays[0], axis) if reverse else arrays[0]
    out = _ACCUMULATE[op].accumulate(x, axis=axis, dtype=dtype)
    return np.flip(out, axis) if reverse else out


def along(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (x, index), axis = arrays, node.attrs.axis
    return np.take_along_axis(x, np.clip(index, 0, max(x.shape[axis] - 1, 0)).astype(np.int64), axis)


def along_add(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    (index, src), (axis, extent) = arrays, node.attrs
    out = np.zeros(node.shape, dtype)
    positions: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    positions[axis] = np.clip(index, 0, max(extent - 1, 0)).astype(np.int64)
    np.add.at(out, tuple(positions), src)
    return out


def bitcast(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    stored = np.ascontiguousarray(arrays[0], node.srcs[0].dtype.numpy)  # as in memory, also in float64 mode
    return stored.reshape(node.shape).view(node.dtype.numpy)


def replace_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    x, index, rows = arrays
    there = index < len(x)
    out = x.copy()
    out[index[there]] = rows[there]
    return out


def scatter(reduction: str) -> Evaluation:
    return lambda node, arrays, dtype: _reduce_rows(node, reduction, arrays[0], arrays[1], dtype)


def rows_of(pointers: np.ndarray, count: int) -> np.ndarray:
    """The segment of each of `count` elements."""
    return np.searchsorted(pointers[1:], np.arange(count), side="right").astype(pointers.dtype)


def segments(reduction: str) -> Evaluation:
    """Rows reduced by segments; elements after the last one are not read."""

    def run(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
        data, pointers = arrays
        data = data[: pointers[-1]]
        return _reduce_rows(node, reduction, rows_of(pointers, len(data)), data, dtype)

    return run


def numpy_function(function: Callable[..., np.ndarray]) -> Evaluation:
    """A primitive that is one NumPy function of its sources."""
    return lambda node, arrays, dtype: function(*arrays)


def reduction(function: Callable[..., np.ndarray]) -> Evaluation:
    return lambda node, arrays, dtype: function(arrays[0], axis=node.attrs.axes)


def typed_reduction(function: Callable[..., np.ndarray]) -> Evaluation:
    """Sums and products, in the given dtype, because NumPy would widen small integers."""
    return lambda node, arrays, dtype: function(arrays[0], axis=node.attrs.axes, dtype=dtype)


def _taps(x: np.ndarray, kernel: tuple[int, ...], out: tuple[int, ...], how: Geometry):
    """For each tap of a kernel its position and the [N, *out, C] elements of the padded x that it reads."""
    padded = np.pad(x, [(0, 0), *zip(how.lows, how.highs, strict=True), (0, 0)]) if any((*how.lows, *how.highs)) else x
    for tap in np.ndindex(*kernel):
        rows = zip(tap, how.strides, how.dilations, out, strict=True)
        yield tap, padded[(slice(None), *[slice(t * d, t * d + s * (n - 1) + 1, s) for t, s, d, n in rows])]


def conv_values(x: np.ndarray, w: np.ndarray, out: tuple[int, ...], how: Geometry, dtype: np.dtype) -> np.ndarray:
    """The convolution of arrays, with the geometry of `conv`."""
    *kernel, inside, outside = w.shape
    groups = how.groups
    total = np.zeros((len(x), *out, groups, outside // groups), dtype)
    for tap, part in _taps(x, tuple(kernel), out, how):
        apart = part.reshape(*part.shape[:-1], groups, inside)
        total += np.einsum("...gc,cgo->...go", apart, w[tap].reshape(inside, groups, -1))
    return total.reshape(len(x), *out, outside)


def conv_weight_values(
    x: np.ndarray, g: np.ndarray, kernel: tuple[int, ...], how: Geometry, dtype: np.dtype
) -> np.ndarray:
    """The gradient of `conv_values` in w."""
    groups = how.groups
    inside, outside = x.shape[-1] // groups, g.shape[-1]
    result = np.zeros((*kernel, inside, outside), dtype)
    rows = g.reshape(math.prod(g.shape[:-1]), groups, outside // groups)
    for tap, part in _taps(x, kernel, g.shape[1:-1], how):
        seen = part.reshape(len(rows), groups, inside)
        result[tap] = np.einsum("ngc,ngo->cgo", seen, rows).reshape(inside, outside)
    return result


def conv_input_values(
    g: np.ndarray, w: np.ndarray, space: tuple[int, ...], how: Geometry, dtype: np.dtype
) -> np.ndarray:
    """The gradient of `conv_values` in x."""
    *kernel, inside, outside = w.shape
    lows, highs, groups = how.lows, how.highs, how.groups
    none = (0,) * len(space)
    extents = [low + extent + high for low, extent, high in zip(lows, space, highs, strict=True)]
    padded = np.zeros((len(g), *extents, inside * groups), dtype)
    rows = g.reshape(*g.shape[:-1], groups, outside // groups)
    for tap, part in _taps(padded, tuple(kernel), g.shape[1:-1], how._replace(lows=none, highs=none)):
        part += np.einsum("...go,cgo->...gc", rows, w[tap].reshape(inside, groups, -1)).reshape(part.shape)
    return padded[(slice(None), *[slice(low, low + extent) for low, extent in zip(lows, space, strict=True)])]


def conv(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return conv_values(arrays[0], arrays[1], node.shape[1:-1], node.attrs, dtype)


def conv_input(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return conv_input_values(arrays[0], arrays[1], node.attrs.space, node.attrs.geometry, dtype)


def conv_weight(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return conv_weight_values(arrays[0], arrays[1], node.attrs.kernel, node.attrs.geometry, dtype)


def first(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """A primitive whose value is that of its first source."""
    return arrays[0]


def const(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.asarray(node.attrs.value, dtype)


def call(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.zeros(0, dtype)


def custom(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return node.attrs.definition.run_reference(arrays, [float.fromhex(text) for text in node.attrs.numbers], dtype)


def logistic(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return 1 / (1 + np.exp(-arrays[0]))


def reshape(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return arrays[0].reshape(node.shape)


def permute(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return arrays[0].transpose(node.attrs.order)


def expand(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.broadcast_to(arrays[0], node.shape)


def flip(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.flip(arrays[0], node.attrs.axes)


def concat(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.concatenate(arrays, node.attrs.axis)


def gather_neighbors(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.take(arrays[0], np.clip(arrays[1], 0, max(len(arrays[0]) - 1, 0)), axis=0)


def segment_rows(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return rows_of(arrays[0], node.attrs.entries)


def argsort(node: Node, arrays: Sequence[np.ndarray], dtype: np.dtype) -> np.ndarray:
    return np.argsort(arrays[0], axis=-1, kind="stable")
