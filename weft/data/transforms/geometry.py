"""Transforms that move pixels: flips, crops, rotations, scales and other affine maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import float32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import arange, full
from weft.core.tensor import Tensor
from weft.data.transforms.base import Transform, check_interval, check_size, draw_integer, draw_uniform, per_sample
from weft.names.functions import stack, where
from weft.nn import functional as F


@entry_point
class RandomHorizontalFlip(Transform):
    """Left and right exchanged with probability `p`."""

    axis = -1

    def __init__(self, p: float = 0.5):
        if not 0 <= p <= 1:
            raise problem(RangeError, type(self).__name__, f"p={p}", "a probability, 0 to 1")
        self.p = p

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (draw_uniform(x, 0.0, 1.0) < self.p,)

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        (is_flipped,) = parameters
        return where(per_sample(is_flipped, x), x.flip(self.axis), x)


class RandomVerticalFlip(RandomHorizontalFlip):
    """Top and bottom exchanged with probability `p`."""

    axis = -2


@entry_point
class RandomCrop(Transform):
    """A window of `size` (height, width) at a random position, of the image with `padding` pixels of `value` around."""

    def __init__(self, size: int | Sequence[int], padding: int = 0, value: float = 0.0):
        self.size, self.padding, self.value = check_size("RandomCrop", size), padding, value

    def _count_windows(self, x: Tensor) -> tuple[int, int]:
        """How many windows there are, vertically and horizontally."""
        counts = tuple(
            extent + 2 * self.padding - size + 1 for extent, size in zip(x.shape[2:], self.size, strict=True)
        )
        if min(counts) < 1:
            given = f"a window {self.size} of images {tuple(x.shape[2:])} with padding {self.padding}"
            raise problem(ShapeError, "RandomCrop", given, "a window that fits")
        return counts[0], counts[1]

    def for_evaluation(self) -> Transform | None:
        """The window in the middle: the size of the images stays the same."""
        return _MiddleCrop(self.size, self.padding, self.value)

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        rows, columns = self._count_windows(x)
        return draw_integer(x, rows), draw_integer(x, columns)

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        top, left = parameters
        if self.padding:
            x = F.pad(x, (self.padding,) * 4, value=self.value)
        sample = arange(x.shape[0], device=x.device)[:, None, None]
        rows = (top[:, None] + arange(self.size[0], device=x.device))[:, :, None]
        columns = (left[:, None] + arange(self.size[1], device=x.device))[:, None, :]
        return x.permute(0, 2, 3, 1)[sample, rows, columns].permute(0, 3, 1, 2)


class _MiddleCrop(RandomCrop):
    """The window of a `RandomCrop` that lies in the middle."""

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        counts = self._count_windows(x)
        return tuple(full((x.shape[0],), (count - 1) // 2, dtype=int64, device=x.device) for count in counts)

    def for_evaluation(self) -> Transform | None:
        return self


@entry_point
class CenterCrop(Transform):
    """The window of `size` (height, width) in the middle."""

    def __init__(self, size: int | Sequence[int]):
        self.size = check_size("CenterCrop", size)

    def apply(self, x: Tensor, *_: Any) -> Tensor:
        (height, width), (rows, columns) = self.size, x.shape[2:]
        if height > rows or width > columns:
            raise problem(ShapeError, "CenterCrop", f"images {(rows, columns)}", f"at least {self.size}")
        top, left = (rows - height) // 2, (columns - width) // 2
        return x[:, :, top : top + height, left : left + width]


def affine_matrices(x: Tensor, degrees: Tensor, right: Tensor, down: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
    """The maps [samples, 2, 3] of `affine_grid` for images that are sheared along the rows (`shear` degrees), scaled,
    rotated counter-clockwise and then moved (by fractions of width and height). They lead from a place in the result to
    the one in the image, in coordinates from -1 to 1; angles are those of square pixels."""
    angle, slant = degrees * (math.pi / 180.0), shear * (math.pi / 180.0)
    cos, sin, tan = angle.cos(), angle.sin(), slant.tan()
    # In pixels, y downwards, the map is scale * [[cos, sin], [-sin, cos]] @ [[1, tan], [0, 1]]; this is its inverse.
    a, b = (cos - tan * sin) / scale, (-sin - tan * cos) / scale
    c, d = sin / scale, cos / scale
    ratio = x.shape[2] / x.shape[3]
    b, c = b * ratio, c / ratio
    shift_x, shift_y = right * 2.0, down * 2.0
    first = stack([a, b, -(a * shift_x + b * shift_y)], 1)
    second = stack([c, d, -(c * shift_x + d * shift_y)], 1)
    return stack([first, second], 1)


@entry_point
class RandomAffine(Transform):
    """Rotation by up to `degrees`, a move by up to `translate` (fractions of width and height), scaling by `scale`
    (low, high) and a shear by up to `shear` degrees, all at random, with bilinear sampling; 0 outside the image."""

    needs_float = True

    def __init__(
        self,
        degrees: float | Sequence[float] = 0.0,
        translate: float | Sequence[float] = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        shear: float | Sequence[float] = 0.0,
        mode: str = "bilinear",
    ):
        who = type(self).__name__
        self.degrees = check_interval(who, "degrees", degrees, 0.0, -math.inf)
        self.shear = check_interval(who, "shear", shear, 0.0, -89.0)
        moves = (translate, translate) if isinstance(translate, (int, float)) else tuple(translate)
        self.right, self.down = (check_interval(who, "translate", one, 0.0, -1.0) for one in moves)
        self.scale = check_interval(who, "scale", tuple(scale), 1.0, 1e-3)
        self.mode = mode

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return tuple(draw_uniform(x, *one) for one in (self.degrees, self.right, self.down, self.scale, self.shear))

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        wide = x.to(float32) if x.dtype.is_16_bit else x  # positions need more digits than 16-bit floats have
        grid = F.affine_grid(affine_matrices(x, *parameters).to(wide.dtype), tuple(x.shape), align_corners=False)
        return F.grid_sample(wide, grid, mode=self.mode, align_corners=False).to(x.dtype)


class RandomRotation(RandomAffine):
    """Rotation about the middle by up to `degrees`, or by (low, high), counter-clockwise."""

    def __init__(self, degrees: float | Sequence[float], mode: str = "bilinear"):
        super().__init__(degrees, mode=mode)


class RandomScale(RandomAffine):
    """Scaling about the middle by a factor in (low, high)."""

    def __init__(self, scale: Sequence[float], mode: str = "bilinear"):
        super().__init__(scale=scale, mode=mode)
