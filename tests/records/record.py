"""What a record of an operation is, and how its inputs are made for Weft and for torch alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import weft

FLOATS = ("float32", "float64")
INTEGERS = ("int32", "int64")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")

# Relative and absolute error allowed against torch, for results of size about 1.
TOLERANCE = {"float32": (1e-5, 2e-6), "float64": (1e-10, 1e-12)}


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
            return (values if dtype in FLOATS else np.nan_to_num(values, nan=7, posinf=9, neginf=-9)).astype(dtype)
        shape = list(self.shape)
        if self.layout == "transposed":
            shape[-2:] = shape[:-3:-1]
        elif self.layout == "sliced":
            shape[-1] *= 2
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype in INTEGERS:
            return rng.integers(int(self.low), int(self.high) + 1, shape).astype(dtype)
        return rng.uniform(self.low, self.high, shape).astype(dtype)

    def laid_out(self, tensor: Any) -> Any:
        """The tensor in its layout; works on Weft's and on torch's."""
        if self.layout == "transposed":
            return tensor.transpose(-1, -2)
        return tensor[..., ::2] if self.layout == "sliced" else tensor


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
    finite_differences: bool = True  # whether they say what the gradient should be
    errors: Sequence[tuple[Callable[[], Any], type[Exception], str]] = ()


class Inputs:
    """The tensors of one sample in one dtype, for both frameworks: leaves, and the arguments made of them."""

    def __init__(self, what: Sample, dtype: str, requires_grad: bool = False, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.dtype, self.requires_grad = dtype, requires_grad
        self.weft_leaves: list[weft.Tensor] = []
        self.torch_leaves: list[torch.Tensor] = []
        pairs = [self._pair(arg) for arg in what.args]
        self.weft_args = [one for one, _ in pairs]
        self.torch_args = [two for _, two in pairs]

    def _pair(self, arg: Any) -> tuple[Any, Any]:
        if isinstance(arg, list) and any(isinstance(one, T) for one in arg):
            pairs = [self._pair(one) for one in arg]
            return [one for one, _ in pairs], [two for _, two in pairs]
        if not isinstance(arg, T):
            return arg, arg
        array = arg.array(self.rng, self.dtype)
        floating = self.requires_grad and arg.grad and array.dtype.kind == "f"
        ours = weft.tensor(array, requires_grad=floating)
        theirs = torch.tensor(array, requires_grad=floating)
        if floating:
            self.weft_leaves.append(ours)
            self.torch_leaves.append(theirs)
        return arg.laid_out(ours), arg.laid_out(theirs)


def flat(result: Any) -> list[Any]:
    """Results as a list of tensors."""
    if isinstance(result, (tuple, list)) or hasattr(result, "_fields"):
        return [one for part in result for one in flat(part)]
    return [result]
