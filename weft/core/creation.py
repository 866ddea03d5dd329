"""Tensors from data and from nothing: what users call to begin."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.base import dtypes
from weft.base.dtypes import DType, DTypeLike, as_dtype, int64
from weft.base.errors import DTypeError, ShapeError, problem
from weft.base.state import SETTINGS
from weft.core.device import get
from weft.core.host_arrays import from_host
from weft.core.size_arguments import Size, sized_creation
from weft.core.size_arguments import checked_shape as _shape
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.build import Number
from weft.graph.evaluations import cast_array
from weft.graph.node import Node
from weft.graph.numbers import HostNumber
from weft.ops import creation
from weft.ops.common import as_int, fit_number, number_kind
from weft.plan.device import Device, missing_dtype

DeviceLike = str | Device | None


def make_leaf(node: Node, requires_grad: bool) -> Tensor:
    """A tensor that no operation gave; DTypeError where its device does not have its dtype."""
    if node.dtype not in node.device.dtypes:
        raise missing_dtype("tensor", node.dtype, node.device)
    return Tensor(node).requires_grad_(requires_grad)


def tensor(
    data: Any, *, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A new tensor with a copy of `data`: numbers, nested lists, a NumPy array or a tensor.

    Python floats get the default dtype (float32) and ints int64; arrays keep their dtype unless `dtype` is given.

    >>> weft.tensor([[1, 2], [3, 4]], dtype=weft.float32)
    tensor([[1., 2.],
            [3., 4.]])
    """
    dtype = None if dtype is None else as_dtype("tensor", dtype)
    if isinstance(data, Tensor):
        copied = data.detach().to(device=device or data.device)
        return make_leaf((copied if dtype is None else copied.to(dtype)).node, requires_grad)
    if type(data) is HostNumber:
        number: Any = data
        return full((), number, dtype=dtype, device=device, requires_grad=requires_grad)
    typed = isinstance(data, (np.ndarray, np.generic))
    try:
        array = np.asarray(data)
    except ValueError:
        raise problem(ShapeError, "tensor", "nested lists of unequal length", "a rectangular nesting") from None
    if dtype is not None:
        array = _convert(array, dtype, typed)
    elif not typed and array.dtype == np.float64:
        array = _convert(array, SETTINGS.default_dtype, True)
    return make_leaf(from_host(array, device, "tensor"), requires_grad)


def _convert(array: np.ndarray, dtype: DType, typed: bool) -> np.ndarray:
    """Data in another dtype, by the rules of `Tensor.to`; Python integers must fit."""
    if not typed and array.size and array.dtype.kind in "iu":
        for number in (array.min(), array.max()):
            fit_number("tensor", int(number), dtype)
    if array.dtype == dtype.numpy:
        return array
    have = dtypes.from_numpy(array.dtype)
    with np.errstate(all="ignore"):
        if dtype.is_16_bit or (have is not None and have.is_16_bit):
            array = array.astype(np.float32)
        return array.astype(dtype.numpy) if dtype.is_16_bit else cast_array(array, dtype.numpy)


def as_tensor(data: Any, dtype: DTypeLike | None = None, device: DeviceLike = None) -> Tensor:
    """`data` itself if it is a tensor as requested, else a new tensor."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    return tensor(data, dtype=dtype, device=device)


def full(
    size: Size,
    fill_value: Number | Tensor,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """One number everywhere; its dtype is that of `weft.tensor(fill_value)` unless given.

    >>> weft.full((2,), 7)
    tensor([7, 7])
    """
    if isinstance(fill_value, Tensor):
        return _spread(fill_value, _shape("full", (size,)), dtype, device).requires_grad_(requires_grad)
    if dtype is None:
        dtype = {"b": dtypes.bool_, "i": int64, "f": SETTINGS.default_dtype}[number_kind("full", fill_value)]
    dtype = as_dtype("full", dtype)
    shape = _shape("full", (size,))
    return make_leaf(build.full(shape, fit_number("full", fill_value, dtype), dtype, get(device)), requires_grad)


def _float(who: str, dtype: DTypeLike | None) -> DType:
    """The dtype that is given, or the one of floats made without one."""
    return SETTINGS.default_dtype if dtype is None else as_dtype(who, dtype)


def _spread(value: Tensor, shape: tuple[int, ...], dtype: DTypeLike | None, device: DeviceLike) -> Tensor:
    """The value of a tensor without axes everywhere, without its gradient."""
    if value.ndim:
        raise problem(ShapeError, "full", f"a fill_value of shape {value.shape}", "a number, or a tensor without axes")
    moved = value.detach().to(dtype=dtype, device=get(device) if device is not None else None)
    return Tensor(build.expand_to(moved.node, shape))


@sized_creation
def zeros(
    *size: Size, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros: `zeros(2, 3)` or `zeros((2, 3))`."""
    return full(_shape("zeros", size), 0, dtype=_float("zeros", dtype), device=device, requires_grad=requires_grad)


@sized_creation
def ones(*size: Size, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False) -> Tensor:
    """Ones."""
    return full(_shape("ones", size), 1, dtype=_float("ones", dtype), device=device, requires_grad=requires_grad)


@sized_creation
def empty(
    *size: Size, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros: nothing here is ever uninitialised."""
    return full(_shape("empty", size), 0, dtype=_float("empty", dtype), device=device, requires_grad=requires_grad)


def full_like(
    input: Tensor,
    fill_value: Number,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """One number everywhere, with the shape of `input`, and its dtype and device unless others are given."""
    return new_full(input, input.shape, fill_value, dtype, device, requires_grad)


def zeros_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros with the shape, dtype and device of `input`."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def ones_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Ones with the shape, dtype and device of `input`."""
    return full_like(input, 1, dtype=dtype, device=device, requires_grad=requires_grad)


def empty_like(
    input: Tensor, *, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """Zeros, as `empty`, with the shape, dtype and device of `input`."""
    return full_like(input, 0, dtype=dtype, device=device, requires_grad=requires_grad)


def new_full(
    like: Tensor, size: Any, fill_value: Number, dtype: DTypeLike | None, device: DeviceLike, requires_grad: bool
) -> Tensor:
    """One number everywhere, in the dtype and on the device of `like` unless others are given."""
    dtype = like.dtype if dtype is None else as_dtype("full", dtype)
    if dtype.kind in "iu" and isinstance(fill_value, float) and math.isfinite(fill_value):
        fill_value = int(fill_value)  # as a cast does
    shape = _shape("full", size if isinstance(size, (tuple, list)) else (size,))
    device = like.device if device is None else device
    return full(shape, fill_value, dtype=dtype, device=device, requires_grad=requires_grad)


def new_tensor(like: Tensor, data: Any, dtype: DTypeLike | None, device: DeviceLike, requires_grad: bool) -> Tensor:
    """A copy of `data` in the dtype and on the device of `like` unless others are given."""
    dtype, device = (like.dtype if dtype is None else dtype), (like.device if device is None else device)
    return tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)


def is_tensor(obj: Any, /) -> bool:
    """Whether `obj` is a tensor of Weft's."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Tensor) -> bool:
    """Whether the elements of a tensor are floats."""
    return input.is_floating_point()


def arange(
    start: Number | Tensor | None = None,
    end: Number | Tensor | None = None,
    step: Number | Tensor = 1,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """start, start + step, ... below end; `arange(end)` starts at 0. int64 unless a float is given.

    >>> weft.arange(0.0, 1.0, 0.25)
    tensor([0.0000, 0.2500, 0.5000, 0.7500])
    """
    if end is None:
        start, end = None, start
    first, last, by = (_plain_value(one) for one in (0 if start is None else start, end, step))
    kinds = {number_kind("arange", value) for value in (first, last, by)}
    dtype = (SETTINGS.default_dtype if "f" in kinds else int64) if dtype is None else as_dtype("arange", dtype)
    return make_leaf(creation.arange(first, last, by, dtype, get(device)), requires_grad)


def _plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def linspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included. These are numbers, or tensors without axes.

    >>> weft.linspace(0, 1, 3)
    tensor([0.0000, 0.5000, 1.0000])
    """
    low, high, target = _ends("linspace", start, end, device)
    return make_leaf(creation.linspace(low, high, steps, _float("linspace", dtype), target), requires_grad)


def logspace(
    start: float | Tensor,
    end: float | Tensor,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """`base` to the power of `steps` evenly spaced numbers from start to end, both included.

    >>> weft.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    low, high, target = _ends("logspace", start, end, device)
    return make_leaf(creation.logspace(low, high, steps, base, _float("logspace", dtype), target), requires_grad)


def _ends(who: str, start: Any, end: Any, device: DeviceLike) -> tuple[Any, Any, Device]:
    """Both ends as numbers, or as nodes without gradient, and the device."""
    target = get(device)
    for one in (start, end):
        if not isinstance(one, Tensor):
            number_kind(who, one)
        elif device is None:
            target = one.device
    low, high = (one.detach().to(target).node if isinstance(one, Tensor) else one for one in (start, end))
    return low, high, target


def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:
    """The identity: 1 on the main diagonal of [n, m].

    >>> weft.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    rows, columns = _shape("eye", (n, n if m is None else m))
    return make_leaf(creation.eye(rows, columns, _float("eye", dtype), get(device)), requires_grad)


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: DTypeLike = int64, device: DeviceLike = None) -> Tensor:
    """The indices [2, count] of the elements on and below a diagonal of a [row, col] matrix, row by row.

    >>> weft.tril_indices(2, 2)
    tensor([[0, 1, 1],
            [0, 0, 1]])
    """
    return _indices("tril_indices", np.tril_indices, row, col, offset, dtype, device)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: DTypeLike = int64, device: DeviceLike = None) -> Tensor:
    """The indices [2, count] of the elements on and above a diagonal of a [row, col] matrix, row by row."""
    return _indices("triu_indices", np.triu_indices, row, col, offset, dtype, device)


def _indices(who: str, find: Any, row: int, col: int, offset: int, dtype: DTypeLike, device: DeviceLike) -> Tensor:
    rows, columns = _shape(who, (row, col))
    kind = as_dtype(who, dtype)
    if kind.kind not in "iu":
        raise problem(DTypeError, who, f"dtype {kind.name}", "an integer dtype")
    return tensor(np.stack(find(rows, as_int(who, offset, "offset"), columns)), dtype=kind, device=device)


def scalar_tensor(
    s: Number, *, dtype: DTypeLike | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:
    """A tensor without axes that holds one number.

    >>> weft.scalar_tensor(2)
    tensor(2.)
    """
    return full((), s, dtype=_float("scalar_tensor", dtype), device=device, requires_grad=requires_grad)
