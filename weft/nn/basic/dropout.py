"""Dropout and noise: layers that are random while training and the identity in eval mode.

Draws come from the seeded generator of the device: one seed gives one result, compiled or not, on every backend.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.base.errors import RangeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.random.generator import randn_like

_ORACLE = "the values that can occur, the rate, the same mask in the gradient"


class _Dropout(Module):
    """Base of the dropouts: `_function(input, p, training, inplace)`."""

    _function: Callable[..., Tensor]

    def __init__(self, p: float = 0.5, inplace: bool = False):
        super().__init__()
        if not 0 <= p <= 1:
            raise problem(RangeError, type(self).__name__, f"p={p!r}", "a probability from 0 to 1")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


@layer("L005", aliases=("DropoutLayer",), learns="-", oracle=_ORACLE)
class Dropout(_Dropout):
    """y = x · m / (1 - p), every m independently 0 with probability p, otherwise 1. Eval: y = x
    (Srivastava et al. 2014).

    Shape: input [*], output the same. The gradient has the same mask.

    >>> y = weft.nn.Dropout(0.5)(weft.ones(100))
    >>> sorted(set(y.tolist()))
    [0.0, 2.0]
    """

    _function = staticmethod(F.dropout)


@layer(learns="-", oracle=_ORACLE)
class Dropout1d(_Dropout):
    """y = x · m / (1 - p), with one m for each channel (Tompson et al. 2015). Eval: y = x.

    Shape: input [B, C, L] or [C, L], output the same.

    >>> y = weft.nn.Dropout1d()(weft.ones(2, 8, 3))
    >>> bool((y == y[:, :, :1]).all())
    True
    """

    _function = staticmethod(F.dropout1d)


@layer(learns="-", oracle=_ORACLE)
class Dropout2d(_Dropout):
    """y = x · m / (1 - p), with one m for each channel (Tompson et al. 2015). Eval: y = x.

    Shape: input [B, C, H, W], output the same; three axes are [B, C, L], as in torch.

    >>> y = weft.nn.Dropout2d()(weft.ones(2, 8, 3, 3))
    >>> bool((y == y[:, :, :1, :1]).all())
    True
    """

    _function = staticmethod(F.dropout2d)


@layer(learns="-", oracle=_ORACLE)
class Dropout3d(_Dropout):
    """y = x · m / (1 - p), with one m for each channel (Tompson et al. 2015). Eval: y = x.

    Shape: input [B, C, D, H, W] or [C, D, H, W], output the same.

    >>> y = weft.nn.Dropout3d()(weft.ones(2, 8, 2, 2, 2))
    >>> bool((y == y[:, :, :1, :1, :1]).all())
    True
    """

    _function = staticmethod(F.dropout3d)


@layer(learns="-", oracle=_ORACLE)
class AlphaDropout(_Dropout):
    """y = a · (x · m + s (1 - m)) + b, s = -1.7580993... the limit of SELU; a and b keep mean 0 and variance 1. Eval:
    y = x (Klambauer et al. 2017).

    Shape: input [*], output the same.

    >>> len(set(weft.nn.AlphaDropout()(weft.ones(100)).tolist()))
    2
    """

    _function = staticmethod(F.alpha_dropout)


@layer(learns="-", oracle=_ORACLE)
class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels. Eval: y = x (Klambauer et al. 2017).

    Shape: input [B, C, *], output the same.

    >>> y = weft.nn.FeatureAlphaDropout()(weft.ones(2, 8, 3))
    >>> bool((y == y[:, :, :1]).all())
    True
    """

    _function = staticmethod(F.feature_alpha_dropout)


@layer("L007", aliases=("GaussianNoiseLayer",), learns="-", oracle="the moments of y - x; the identity in eval mode")
class GaussianNoise(Module):
    """y = x + mean + std · ε, ε normal with mean 0 and variance 1. Eval: y = x.

    Shape: input [*], output the same. The gradient passes unchanged.

    >>> weft.nn.GaussianNoise(0.5).eval()(weft.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, std: float = 0.1, mean: float = 0.0):
        super().__init__()
        if not std >= 0:
            raise problem(RangeError, "GaussianNoise", f"std={std!r}", "a number from 0 on")
        self.std, self.mean = std, mean

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        return input + (self.mean + self.std * randn_like(input))

    def extra_repr(self) -> str:
        return f"std={self.std}, mean={self.mean}"
