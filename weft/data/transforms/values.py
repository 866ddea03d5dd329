"""Transforms that change values: noise, brightness, contrast, saturation, hue, and boxes of one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import full
from weft.core.tensor import Tensor
from weft.data.seeds import current_generator
from weft.data.transforms.base import (
    Transform,
    box_mask,
    check_interval,
    check_size,
    draw_integer,
    draw_uniform,
    per_sample,
)
from weft.names.functions import cat, clamp, where
from weft.random.generator import randn

GRAY = (0.2989, 0.587, 0.114)  # shares of red, green and blue


@entry_point
class Cutout(Transform):
    """A square of `size` pixels around a random position set to `value`; it may stick out of the image."""

    def __init__(self, size: int | Sequence[int], value: float = 0.0):
        self.size, self.value = check_size("Cutout", size), value

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return draw_integer(x, x.shape[2]), draw_integer(x, x.shape[3])

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        row, column = parameters
        top, left = row - self.size[0] // 2, column - self.size[1] // 2
        mask = box_mask(x, top, top + self.size[0], left, left + self.size[1])
        return where(mask, full((), self.value, dtype=x.dtype, device=x.device), x)


@entry_point
class GaussianNoise(Transform):
    """x plus normal noise of standard deviation `std`."""

    needs_float = True
    is_for_images = False

    def __init__(self, std: float):
        self.std = check_interval("GaussianNoise", "std", (0.0, std), 0.0, 0.0)[1]

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (randn(*x.shape, generator=current_generator(), device=x.device, dtype=x.dtype),)

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        return x + parameters[0] * self.std


@entry_point
class _Color(Transform):
    """A change of colours from 0 to 1 by a factor for each sample; results are cut to 0 and 1."""

    needs_float = True

    def __init__(self, amount: float | Sequence[float]):
        self.factors = check_interval(type(self).__name__, "amount", amount, 1.0, 0.0)

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (draw_uniform(x, *self.factors),)

    def _need_colors(self, x: Tensor) -> None:
        if x.shape[1] != 3:
            raise problem(ShapeError, type(self).__name__, f"{x.shape[1]} channels", "3: red, green and blue")


def _gray(x: Tensor) -> Tensor:
    """The brightness of each pixel [samples, 1, height, width]."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return sum((x[:, k : k + 1] * share for k, share in enumerate(GRAY)), start=x[:, :1] * 0.0)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    share = per_sample(factor, x)
    return clamp(x * share + other * (1.0 - share), 0.0, 1.0)


class RandomBrightness(_Color):
    """Images times a factor in (low, high), or up to `amount` from 1."""

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        return _blend(x, 0.0, parameters[0])


class RandomContrast(_Color):
    """The distance from the image's mean brightness times a factor."""

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        return _blend(x, _gray(x).mean((1, 2, 3), keepdim=True), parameters[0])


class RandomSaturation(_Color):
    """The distance of colours from gray times a factor."""

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        self._need_colors(x)
        return _blend(x, _gray(x), parameters[0])


@entry_point
class RandomHue(_Color):
    """The hue of colours moved by up to `amount` of a full circle (at most 0.5), or by (low, high)."""

    def __init__(self, amount: float | Sequence[float]):
        self.factors = check_interval("RandomHue", "amount", amount, 0.0, -0.5)
        if self.factors[1] > 0.5:
            raise problem(RangeError, "RandomHue", f"amount={amount}", "at most 0.5")

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        self._need_colors(x)
        red, green, blue = (x[:, k : k + 1] for k in range(3))
        value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        chroma = value - least
        is_gray = chroma == 0
        divisor = where(is_gray, chroma + 1.0, chroma)
        sixth = where(
            value == red,
            (green - blue) / divisor,
            where(value == green, (blue - red) / divisor + 2.0, (red - green) / divisor + 4.0),
        )
        hue = where(is_gray, sixth * 0.0, sixth) + per_sample(parameters[0], x) * 6.0

        def channel(number: float) -> Tensor:
            k = (hue + number) % 6.0
            return value - chroma * clamp(where(k < 4.0 - k, k, 4.0 - k), 0.0, 1.0)

        return cat([channel(5.0), channel(3.0), channel(1.0)], 1)
