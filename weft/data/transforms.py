"""Augmentation of batches on the device: tensor code that traces into the plan of a step.

Images are [samples, channels, height, width]. A random transform has two parts: `draw(x)` draws its parameters, one for
each sample, from the generator of the loader (`seeds.current_generator`), and `apply(x, *parameters)` computes the
result from them, so that it can be compared with any other implementation. Called with more than one tensor, a
transform changes the first and passes on the others (`Mixup` and `CutMix` change the labels, too).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.creation import arange, full
from weft.data.seeds import current_generator
from weft.dtypes import float32, int64
from weft.errors import DTypeError, RangeError, ShapeError, problem
from weft.functions import cat, clamp, stack, where
from weft.nn import functional as F
from weft.random import rand, randint, randn
from weft.sampling import randperm
from weft.tensor import Tensor

GRAY = (0.2989, 0.587, 0.114)  # shares of red, green and blue
GAMMA_ATTEMPTS = 12  # candidates for a gamma variate; all are rejected with a probability below 1e-15


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


# ---- parameters -----------------------------------------------------------------------------------------------------


def _uniform(x: Tensor, low: float, high: float) -> Tensor:
    """A number in [low, high) for each sample."""
    return rand(x.shape[0], generator=current_generator(), device=x.device, dtype=float32) * (high - low) + low


def _whole(x: Tensor, count: int) -> Tensor:
    """A whole number in [0, count) for each sample."""
    return randint(0, count, (x.shape[0],), generator=current_generator(), device=x.device)


def _column(values: Tensor, x: Tensor) -> Tensor:
    """Numbers of samples, to be computed with `x`."""
    values = values if values.dtype.kind == "b" else values.to(x.dtype)
    return values.reshape(x.shape[0], *[1] * (x.ndim - 1))


def _interval(who: str, name: str, value: Any, center: float, least: float) -> tuple[float, float]:
    """(low, high) of a pair, or of a number that says how far from the center."""
    low, high = value if isinstance(value, (tuple, list)) else (max(center - value, least), center + value)
    if not least <= low <= high or not math.isfinite(high):
        raise problem(RangeError, who, f"{name}={value}", f"a number, or (low, high), from {least} on")
    return float(low), float(high)


# ---- geometry -------------------------------------------------------------------------------------------------------


class RandomHorizontalFlip(Transform):
    """Left and right exchanged with probability `p`."""

    axis = -1

    def __init__(self, p: float = 0.5):
        if not 0 <= p <= 1:
            raise problem(RangeError, type(self).__name__, f"p={p}", "a probability, 0 to 1")
        self.p = p

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (_uniform(x, 0.0, 1.0) < self.p,)

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        (is_flipped,) = parameters
        return where(_column(is_flipped, x), x.flip(self.axis), x)


class RandomVerticalFlip(RandomHorizontalFlip):
    """Top and bottom exchanged with probability `p`."""

    axis = -2


def _size(who: str, size: int | Sequence[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise problem(RangeError, who, f"size={size}", "positive numbers")
    return height, width


class RandomCrop(Transform):
    """A window of `size` (height, width) at a random place, of the image with `padding` pixels of `value` around."""

    def __init__(self, size: int | Sequence[int], padding: int = 0, value: float = 0.0):
        self.size, self.padding, self.value = _size("RandomCrop", size), padding, value

    def _places(self, x: Tensor) -> tuple[int, int]:
        """How many windows there are, vertically and horizontally."""
        places = tuple(
            extent + 2 * self.padding - size + 1 for extent, size in zip(x.shape[2:], self.size, strict=True)
        )
        if min(places) < 1:
            given = f"a window {self.size} of images {tuple(x.shape[2:])} with padding {self.padding}"
            raise problem(ShapeError, "RandomCrop", given, "a window that fits")
        return places[0], places[1]

    def for_evaluation(self) -> Transform | None:
        """The window in the middle: the size of the images stays the same."""
        return _MiddleCrop(self.size, self.padding, self.value)

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        rows, columns = self._places(x)
        return _whole(x, rows), _whole(x, columns)

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
        return tuple(full((x.shape[0],), (count - 1) // 2, dtype=int64, device=x.device) for count in self._places(x))

    def for_evaluation(self) -> Transform | None:
        return self


class CenterCrop(Transform):
    """The window of `size` (height, width) in the middle."""

    def __init__(self, size: int | Sequence[int]):
        self.size = _size("CenterCrop", size)

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
    turn, slant = degrees * (math.pi / 180.0), shear * (math.pi / 180.0)
    cos, sin, tan = turn.cos(), turn.sin(), slant.tan()
    # In pixels, y downwards, the map is scale * [[cos, sin], [-sin, cos]] @ [[1, tan], [0, 1]]; this is its inverse.
    a, b = (cos - tan * sin) / scale, (-sin - tan * cos) / scale
    c, d = sin / scale, cos / scale
    ratio = x.shape[2] / x.shape[3]
    b, c = b * ratio, c / ratio
    shift_x, shift_y = right * 2.0, down * 2.0
    first = stack([a, b, -(a * shift_x + b * shift_y)], 1)
    second = stack([c, d, -(c * shift_x + d * shift_y)], 1)
    return stack([first, second], 1)


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
        self.degrees = _interval(who, "degrees", degrees, 0.0, -math.inf)
        self.shear = _interval(who, "shear", shear, 0.0, -89.0)
        moves = (translate, translate) if isinstance(translate, (int, float)) else tuple(translate)
        self.right, self.down = (_interval(who, "translate", one, 0.0, -1.0) for one in moves)
        self.scale = _interval(who, "scale", tuple(scale), 1.0, 1e-3)
        self.mode = mode

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return tuple(_uniform(x, *one) for one in (self.degrees, self.right, self.down, self.scale, self.shear))

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        wide = x.to(float32) if x.dtype.is_narrow else x  # places need more digits than 16-bit floats have
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


class Cutout(Transform):
    """A square of `size` pixels around a random place set to `value`; it may stick out of the image."""

    def __init__(self, size: int | Sequence[int], value: float = 0.0):
        self.size, self.value = _size("Cutout", size), value

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return _whole(x, x.shape[2]), _whole(x, x.shape[3])

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        row, column = parameters
        top, left = row - self.size[0] // 2, column - self.size[1] // 2
        mask = _box(x, top, top + self.size[0], left, left + self.size[1])
        return where(mask, full((), self.value, dtype=x.dtype, device=x.device), x)


def _box(x: Tensor, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Which pixels [samples, 1, height, width] lie in a box of each sample."""
    rows = arange(x.shape[2], device=x.device)[None, :]
    columns = arange(x.shape[3], device=x.device)[None, :]
    is_row = (rows >= top[:, None]) & (rows < bottom[:, None])
    is_column = (columns >= left[:, None]) & (columns < right[:, None])
    return (is_row[:, :, None] & is_column[:, None, :])[:, None]


# ---- values ---------------------------------------------------------------------------------------------------------


class GaussianNoise(Transform):
    """x plus normal noise of standard deviation `std`."""

    needs_float = True
    is_for_images = False

    def __init__(self, std: float):
        self.std = _interval("GaussianNoise", "std", (0.0, std), 0.0, 0.0)[1]

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (randn(*x.shape, generator=current_generator(), device=x.device, dtype=x.dtype),)

    def apply(self, x: Tensor, *parameters: Any) -> Tensor:
        return x + parameters[0] * self.std


class _Color(Transform):
    """A change of colours from 0 to 1 by a factor for each sample; results are cut to 0 and 1."""

    needs_float = True

    def __init__(self, amount: float | Sequence[float]):
        self.factors = _interval(type(self).__name__, "amount", amount, 1.0, 0.0)

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (_uniform(x, *self.factors),)

    def _need_colors(self, x: Tensor) -> None:
        if x.shape[1] != 3:
            raise problem(ShapeError, type(self).__name__, f"{x.shape[1]} channels", "3: red, green and blue")


def _gray(x: Tensor) -> Tensor:
    """The brightness of each pixel [samples, 1, height, width]."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return sum((x[:, k : k + 1] * share for k, share in enumerate(GRAY)), start=x[:, :1] * 0.0)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    share = _column(factor, x)
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


class RandomHue(_Color):
    """The hue of colours moved by up to `amount` of a full turn (at most 0.5), or by (low, high)."""

    def __init__(self, amount: float | Sequence[float]):
        self.factors = _interval("RandomHue", "amount", amount, 0.0, -0.5)
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
        place = where(is_gray, sixth * 0.0, sixth) + _column(parameters[0], x) * 6.0

        def channel(number: float) -> Tensor:
            k = (place + number) % 6.0
            return value - chroma * clamp(where(k < 4.0 - k, k, 4.0 - k), 0.0, 1.0)

        return cat([channel(5.0), channel(3.0), channel(1.0)], 1)


# ---- mixtures of samples --------------------------------------------------------------------------------------------


class _Mixture(Transform, abc.ABC):
    """Samples mixed with others of the batch, and their labels with them: numbers of classes become shares
    [samples, classes]. The share is drawn from Beta(alpha, alpha) for each sample."""

    needs_float = True

    def __init__(self, alpha: float = 1.0, classes: int | None = None):
        if not alpha > 0:
            raise problem(RangeError, type(self).__name__, f"alpha={alpha}", "a number above 0")
        self.alpha, self.classes = alpha, classes

    def __call__(self, x: Tensor, *rest: Any) -> Any:
        self.check(x)
        if not rest:
            raise problem(ShapeError, type(self).__name__, "a batch without labels", "images and labels")
        x, labels = self.mix(x, rest[0], *self.draw(x))
        return (x, labels, *rest[1:])

    @abc.abstractmethod
    def mix(self, x: Tensor, labels: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
        """Images and labels for these parameters."""

    def _mix_labels(self, labels: Tensor, share: Tensor, partner: Tensor) -> Tensor:
        if labels.dtype.kind != "f":
            if self.classes is None:
                given = "labels that are numbers of classes"
                raise problem(RangeError, type(self).__name__, given, "classes=, how many there are")
            labels = F.one_hot(labels.to(int64), self.classes).to(float32)
        part = share.to(labels.dtype).reshape(-1, *[1] * (labels.ndim - 1))
        return labels * part + labels.index_select(0, partner) * (1.0 - part)

    def _draw_share(self, x: Tensor) -> tuple[Tensor, Tensor]:
        share = draw_beta(x, self.alpha)
        return share, randperm(x.shape[0], generator=current_generator(), device=x.device)


class Mixup(_Mixture):
    """share * x + (1 - share) * another sample of the batch, for images and labels alike (Zhang et al., 2018)."""

    is_for_images = False

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return self._draw_share(x)

    def mix(self, x: Tensor, labels: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
        share, partner = parameters
        part = _column(share, x)
        mixed = x * part + x.index_select(0, partner) * (1.0 - part)
        return mixed, self._mix_labels(labels, share, partner)


class CutMix(_Mixture):
    """A box of another sample in the image, with the labels in proportion to the areas (Yun et al., 2019)."""

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (*self._draw_share(x), _whole(x, x.shape[2]), _whole(x, x.shape[3]))

    def mix(self, x: Tensor, labels: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
        share, partner, row, column = parameters
        height, width = x.shape[2:]
        side = clamp(1.0 - share, 0.0, 1.0).sqrt()
        half_rows, half_columns = ((side * extent).to(int64) // 2 for extent in (height, width))
        top, bottom = clamp(row - half_rows, 0, height), clamp(row + half_rows, 0, height)
        left, right = clamp(column - half_columns, 0, width), clamp(column + half_columns, 0, width)
        mixed = where(_box(x, top, bottom, left, right), x.index_select(0, partner), x)
        kept = 1.0 - ((bottom - top) * (right - left)).to(float32) / float(height * width)
        return mixed, self._mix_labels(labels, kept, partner)


def draw_beta(x: Tensor, alpha: float) -> Tensor:
    """A number of Beta(alpha, alpha) for each sample of `x`: a share of two gamma variates."""
    if alpha == 1.0:
        return _uniform(x, 0.0, 1.0)
    first, second = _draw_log_gamma(x, alpha), _draw_log_gamma(x, alpha)
    return (first - second).sigmoid()


def _draw_log_gamma(x: Tensor, alpha: float) -> Tensor:
    """The logarithm of a gamma variate for each sample, by Marsaglia and Tsang (2000): the first candidate that is
    accepted. For alpha + 1, times a power of a uniform number."""
    d = alpha + 1.0 - 1.0 / 3.0
    wide = (GAMMA_ATTEMPTS, x.shape[0])
    generator = current_generator()
    normal = randn(*wide, generator=generator, device=x.device)
    uniform = 1.0 - rand(*wide, generator=generator, device=x.device)
    cube = (1.0 + normal * (1.0 / math.sqrt(9.0 * d))) ** 3
    safe = clamp(cube, 1e-12, math.inf)
    is_taken = (cube > 0.0) & (uniform.log() < 0.5 * normal * normal + d - d * cube + d * safe.log())
    number = arange(GAMMA_ATTEMPTS, device=x.device)[:, None].expand(*wide)
    first = where(is_taken, number, full((), GAMMA_ATTEMPTS - 1, dtype=int64, device=x.device)).amin(0)
    chosen = safe.gather(0, first[None])[0]
    small = 1.0 - rand(x.shape[0], generator=generator, device=x.device)
    return chosen.log() + math.log(d) + small.log() / alpha
