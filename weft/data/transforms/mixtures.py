"""Transforms that mix samples and their labels: Mixup and CutMix."""

from __future__ import annotations

import abc
import math
from typing import Any

from weft.base.dtypes import float32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.boundary import entry_point
from weft.core.creation import arange, full
from weft.core.tensor import Tensor
from weft.data.seeds import current_generator
from weft.data.transforms.base import Transform, box_mask, draw_integer, draw_uniform, per_sample
from weft.names.functions import clamp, where
from weft.nn import functional as F
from weft.random.distributions import randperm
from weft.random.generator import rand, randn

GAMMA_ATTEMPTS = 12  # candidates for a gamma variate; all are rejected with a probability below 1e-15


@entry_point
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
        part = per_sample(share, x)
        mixed = x * part + x.index_select(0, partner) * (1.0 - part)
        return mixed, self._mix_labels(labels, share, partner)


class CutMix(_Mixture):
    """A box of another sample in the image, with the labels in proportion to the areas (Yun et al., 2019)."""

    def draw(self, x: Tensor) -> tuple[Any, ...]:
        return (*self._draw_share(x), draw_integer(x, x.shape[2]), draw_integer(x, x.shape[3]))

    def mix(self, x: Tensor, labels: Tensor, *parameters: Any) -> tuple[Tensor, Tensor]:
        share, partner, row, column = parameters
        height, width = x.shape[2:]
        side = clamp(1.0 - share, 0.0, 1.0).sqrt()
        half_rows, half_columns = ((side * extent).to(int64) // 2 for extent in (height, width))
        top, bottom = clamp(row - half_rows, 0, height), clamp(row + half_rows, 0, height)
        left, right = clamp(column - half_columns, 0, width), clamp(column + half_columns, 0, width)
        mixed = where(box_mask(x, top, bottom, left, right), x.index_select(0, partner), x)
        kept = 1.0 - ((bottom - top) * (right - left)).to(float32) / float(height * width)
        return mixed, self._mix_labels(labels, kept, partner)


def draw_beta(x: Tensor, alpha: float) -> Tensor:
    """A number of Beta(alpha, alpha) for each sample of `x`: a share of two gamma variates."""
    if alpha == 1.0:
        return draw_uniform(x, 0.0, 1.0)
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
