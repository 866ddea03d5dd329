"""The base of transforms, those that work on any values, and what random ones draw and check."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.dtypes import float32
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import arange, full
from weft.core.tensor import Tensor
from weft.data.seeds import current_generator
from weft.names.functions import cat
from weft.random.generator import rand, randint


@entry_point
class Transform:
    """The base of transforms: subclasses define `apply(x, *parameters)`, and `draw(x)` where they are random."""

    needs_float = False
    is_for_images = True

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        """The parameters for a batch, drawn from the current generator."""
        return ()

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        """The batch after the transform with these parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no apply")

    def for_evaluation(self) -> Transform | None:
        """What takes its place where nothing is trained: itself, or nothing where it is random."""
        return self if type(self).draw is Transform.draw else None

    def __call__(self, x: Tensor, *rest: Any) -> Any:
        self.check(x)
        made = self.apply(x, *self.draw(x))
        return (made, *rest) if rest else made

    def check(self, x: Tensor) -> None:
        who = type(self).__name__
        if self.is_for_images and x.ndim != 4:
            raise problem(ShapeError, who, f"a batch of shape {tuple(x.shape)}", "[samples, channels, height, width]")
        if self.needs_float and x.dtype.kind != "f":
            fix = "put ToFloat() before it"
            raise problem(DTypeError, who, f"a batch of {x.dtype.name}", "floats", fix)


@entry_point
class Compose(Transform):
    """Transforms one after the other; any function of the batch's tensors is one.

    >>> weft.data.transforms.Compose(lambda x: x + 1, lambda x: x * 2)(weft.ones(2))
    tensor([4., 4.])
    """

    def __init__(self, *transforms: Any):
        self.transforms: list[Callable[..., Any]] = []
        for one in transforms:
            self.transforms += one if isinstance(one, (list, tuple)) else [one]

    def for_evaluation(self) -> Compose:
        """The transforms that are not random, with what takes the place of random ones; functions stay."""
        found = [one.for_evaluation() if isinstance(one, Transform) else one for one in self.transforms]
        return Compose(*[one for one in found if one is not None])

    def __call__(self, x: Tensor, *rest: Any) -> Any:
        batch = (x, *rest)
        for one in self.transforms:
            made = one(*batch)
            batch = (made, *batch[1:]) if isinstance(made, Tensor) else tuple(made)
        return batch if rest else batch[0]


class ToFloat(Transform):
    """Whole numbers from 0 to `largest` as floats from 0 to 1; floats stay as they are.

    >>> weft.data.transforms.ToFloat()(weft.tensor([0, 255], dtype=weft.uint8))
    tensor([0., 1.])
    """

    is_for_images = False

    def __init__(self, largest: float = 255.0, dtype: Any = float32):
        self.largest, self.dtype = largest, dtype

    def apply(self, x: Tensor, *_: Any) -> Tensor:
        return x if x.dtype.kind == "f" else x.to(self.dtype) / self.largest


@entry_point
class Normalize(Transform):
    """(x - mean) / std, with numbers or one for each channel."""

    needs_float = True

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]):
        self.mean, self.std = mean, std
        if any(not one > 0 for one in ([std] if isinstance(std, (int, float)) else std)):
            raise problem(RangeError, "Normalize", f"std={std}", "numbers above 0")

    def apply(self, x: Tensor, *_: Any) -> Tensor:
        return (x - _per_channel(self.mean, x)) / _per_channel(self.std, x)


def _per_channel(values: float | Sequence[float], x: Tensor) -> Any:
    """A number, or [channels, 1, 1] made of constants, so that nothing is uploaded."""
    if isinstance(values, (int, float)):
        return values
    if len(values) != x.shape[1]:
        given = f"{len(values)} numbers for {x.shape[1]} channels"
        raise problem(ShapeError, "Normalize", given, "one for each channel")
    return cat([full((1, 1, 1), float(one), dtype=x.dtype, device=x.device) for one in values])


def draw_uniform(x: Tensor, low: float, high: float) -> Tensor:
    """A number in [low, high) for each sample."""
    return rand(x.shape[0], generator=current_generator(), device=x.device, dtype=float32) * (high - low) + low


def draw_integer(x: Tensor, count: int) -> Tensor:
    """A whole number in [0, count) for each sample."""
    return randint(0, count, (x.shape[0],), generator=current_generator(), device=x.device)


def per_sample(values: Tensor, x: Tensor) -> Tensor:
    """Numbers of samples, to be computed with `x`."""
    values = values if values.dtype.kind == "b" else values.to(x.dtype)
    return values.reshape(x.shape[0], *[1] * (x.ndim - 1))


def check_interval(who: str, name: str, value: Any, center: float, least: float) -> tuple[float, float]:
    """(low, high) of a pair, or of a number that says how far from the center."""
    low, high = value if isinstance(value, (tuple, list)) else (max(center - value, least), center + value)
    if not least <= low <= high or not math.isfinite(high):
        raise problem(RangeError, who, f"{name}={value}", f"a number, or (low, high), from {least} on")
    return float(low), float(high)


def check_size(who: str, size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise problem(RangeError, who, f"size={size}", "positive numbers")
    return height, width


def box_mask(x: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Which pixels [samples, 1, height, width] lie in a box of each sample."""
    rows = arange(x.shape[2], device=x.device)[None, :]
    columns = arange(x.shape[3], device=x.device)[None, :]
    is_row = (rows >= top[:, None]) & (rows < bottom[:, None])
    is_column = (columns >= left[:, None]) & (columns < right[:, None])
    return (is_row[:, :, None] & is_column[:, None, :])[:, None]
