"""What a record of an operation is, and how its inputs are made for Weft and for torch alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft
from tests.records.oracle import torch

FLOATS = ("float32", "float64")
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")

NARROW = ("float16", "bfloat16")
OTHER_INTEGERS = ("int8", "int16", "uint8", "uint16", "uint32", "uint64")

# Relative and absolute error allowed against torch, for results of size about 1.
TOLERANCE = {"float32": (1e-5, 2e-6), "float64": (1e-10, 1e-12)}
# 16-bit floats: one unit in the last place, and as much as that of 1/8 absolutely.
NARROW_TOLERANCE = {"float16": (2.0**-10, 2.0**-13), "bfloat16": (2.0**-7, 2.0**-10)}


@dataclass(frozen=True)
class T:
    """A tensor input: random in [low, high], in the dtype under test or in a fixed one.

    `layout` is how it comes to its shape: 'plain', 'transposed' (the last two axes exchanged) or 'sliced' (every second
    element of a longer last axis), which on other frameworks are views with strides. `values` fixes the elements.
    """

    shape: tuple[int, ...] = ()
    low: float = -2.0
    high: float = 2.0
    dtype: str | None = None
    layout: str = "plain"
    values: Any = None
    grad: bool = True  # whether torch differentiates in this argument

    def array(self, rng: np.random.Generator, dtype: str) -> np.ndarray:
        """The elements before the layout is applied."""
        dtype = self.dtype or dtype
        if self.values is not None:
            values = np.asarray(self.values)
            if dtype not in (*FLOATS, *NARROW):
                values = np.nan_to_num(values, nan=7, posinf=9, neginf=-9)
            return as_dtype(values, dtype)
        shape = list(self.shape)
        if self.layout == "transposed":
            shape[-2:] = shape[:-3:-1]
        elif self.layout == "sliced":
            shape[-1] *= 2
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype in (*INTEGERS, *OTHER_INTEGERS):
            return as_dtype(rng.integers(int(self.low), int(self.high) + 1, shape), dtype)
        return as_dtype(rng.uniform(self.low, self.high, shape), dtype)

    def laid_out(self, tensor: Any) -> Any:
        """The tensor in its layout; works on Weft's and on torch's."""
        if self.layout == "transposed":
            return tensor.transpose(-1, -2)
        return tensor[..., ::2] if self.layout == "sliced" else tensor


def as_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in a dtype; for unsigned integers their magnitudes."""
    values = np.abs(values) if dtype.startswith("uint") else np.asarray(values)
    return np.asarray(values.astype(weft.base.dtypes.by_name(dtype).numpy))


def to_torch(array: np.ndarray) -> torch.Tensor:
    """The tensor of an array, which may be of bfloat16."""
    if array.dtype == weft.bfloat16.numpy:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(array))


@dataclass(frozen=True)
class Sample:
    """Arguments of one call: `T` stands for a tensor (also inside a list), anything else is passed as it is."""

    args: tuple
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Sample({self.args}, {self.kwargs})"


def sample(*args: Any, **kwargs: Any) -> Sample:
    """A sample, written like the call."""
    return Sample(args, kwargs)


@dataclass(frozen=True)
class Record:
    """One operation: how to call it here and in torch, on what, how close it must be, and what it must refuse."""

    name: str
    fn: Callable[..., Any]
    torch_fn: Callable[..., Any]
    samples: Sequence[Sample]
    dtypes: tuple[str, ...] = FLOATS
    tolerance: dict[str, tuple[float, float]] = field(default_factory=lambda: TOLERANCE)
    differentiable: bool = True
    without: tuple[str, ...] = ()  # extra dtypes (see `extra_dtypes`) that torch treats otherwise or not at all
    finite_differences: bool = True  # whether they say what the gradient should be
    errors: Sequence[tuple[Callable[[], Any], type[Exception], str]] = ()


def extra_dtypes(record: Record) -> tuple[str, ...]:
    """Dtypes that are tried on few samples, beside the record's own: 16-bit floats and the other integers."""
    narrow = NARROW if "float32" in record.dtypes else ()
    integers = OTHER_INTEGERS if set(INTEGERS) <= set(record.dtypes) else ()
    return tuple(dtype for dtype in (*narrow, *integers) if dtype not in (*record.dtypes, *record.without))


def samples_for(record: Record, dtype: str) -> list[Sample]:
    """All samples, or the first two that use the dtype under test where it is an extra one."""
    if dtype in record.dtypes:
        return list(record.samples)
    used = [one for one in record.samples if any(arg.dtype is None for arg in tensors_of(one))]
    return used[:2]


def tensors_of(what: Sample) -> list[T]:
    """The tensor inputs of a sample."""
    parts = [part if isinstance(part, list) else [part] for part in what.args]
    return [arg for part in parts for arg in part if isinstance(arg, T)]


class Inputs:
    """The tensors of one sample in one dtype, for both frameworks: leaves, and the arguments made of them.

    torch's are made when they are asked for.
    """

    def __init__(self, what: Sample, dtype: str, requires_grad: bool = False, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.form, self.requires_grad = what.args, requires_grad
        self.arrays = [(arg, arg.array(rng, dtype)) for arg in tensors_of(what)]
        self.weft_tensors = self._tensors(weft.tensor)
        self.weft_leaves = [tensor for tensor in self.weft_tensors if tensor.requires_grad]
        self.weft_args = self.arguments(self.weft_tensors)

    @functools.cached_property
    def torch_tensors(self) -> list:
        return self._tensors(to_torch)

    @functools.cached_property
    def torch_leaves(self) -> list:
        return [tensor for tensor in self.torch_tensors if tensor.requires_grad]

    @functools.cached_property
    def torch_args(self) -> list:
        return self.arguments(self.torch_tensors)

    def _tensors(self, framework: Callable[[np.ndarray], Any]) -> list:
        floats = ("f", "V")  # ml_dtypes has bfloat16 as 'V'
        return [
            framework(array).requires_grad_(self.requires_grad and arg.grad and array.dtype.kind in floats)
            for arg, array in self.arrays
        ]

    def arguments(self, tensors: Sequence[Any]) -> list:
        """The arguments of the call, with these tensors in their layouts."""
        remaining = iter(tensors)

        def argument(form: Any) -> Any:
            if isinstance(form, list):
                return [argument(one) for one in form]
            return form.laid_out(next(remaining)) if isinstance(form, T) else form

        return [argument(form) for form in self.form]


def flat(result: Any) -> list[Any]:
    """Results as a list of tensors."""
    if isinstance(result, (tuple, list)) or hasattr(result, "_fields"):
        return [one for part in result for one in flat(part)]
    return [result]
