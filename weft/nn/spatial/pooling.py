"""Pooling: the maximum, mean or norm of windows, as in torch, and its inverse.

Arguments for windows are one number for all axes, or one for each; `stride` is the kernel's size where it is None.
Shape of the pools with a kernel: input [B, C, *] or [C, *], output with
(n + 2 padding - dilation (kernel - 1) - 1) / stride + 1 positions along each axis, rounded down (up with
ceil_mode=True, where the last window starts inside the input or its left padding).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.base.errors import RangeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer

Sizes = int | Sequence[int]
OutputSizes = int | None | Sequence[int | None]


class PoolingBase(Module):
    """Base of the pools: `_function` computes; `repr` shows the attributes that `_shown` names."""

    _function: Callable[..., Any]
    _shown: tuple[str, ...] = ("kernel_size", "stride", "padding")

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self._shown)


class _MaxPool(PoolingBase):
    """Base of the maximum pools."""

    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class _AvgPool(PoolingBase):
    """Base of the mean pools of two and three axes."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip


class _LPPool(PoolingBase):
    """Base of the norm pools."""

    _shown = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False):
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)


class _MaxUnpool(PoolingBase):
    """Base of the inverses of the maximum pools."""

    _axes: int

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0):
        super().__init__()
        self.kernel_size, self.stride = self._all(kernel_size), self._all(kernel_size if stride is None else stride)
        self.padding = self._all(padding)

    def _all(self, value: Sizes) -> tuple[int, ...]:
        """One number for each axis."""
        return (value,) * self._axes if isinstance(value, int) else tuple(value)

    def forward(self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return type(self)._function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class _FractionalMaxPool(PoolingBase):
    """Base of the maximum pools with random windows."""

    _shown = ("kernel_size", "output_size", "output_ratio")
    _random_samples: Tensor | None
    _axes: int

    def __init__(
        self, kernel_size: Sizes, output_size: Sizes | None = None, output_ratio: float | Sequence[float] | None = None,
        return_indices: bool = False, _random_samples: Tensor | None = None,
    ):  # fmt: skip
        super().__init__()
        if (output_size is None) == (output_ratio is None):
            given = f"output_size={output_size} and output_ratio={output_ratio}"
            raise problem(RangeError, type(self).__name__, given, "exactly one of them")
        ratios = (output_ratio,) if isinstance(output_ratio, float) else output_ratio
        if ratios is not None and not all(0 < ratio < 1 for ratio in ratios):
            raise problem(RangeError, type(self).__name__, f"output_ratio={output_ratio}", "numbers between 0 and 1")
        self.kernel_size, self.return_indices = kernel_size, return_indices
        self.output_size = output_size
        self.output_ratio = (output_ratio,) * self._axes if isinstance(output_ratio, float) else output_ratio
        self.register_buffer("_random_samples", _random_samples)

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )


@layer(learns="-")
class MaxPool1d(_MaxPool):
    """y = the maximum of every window along L; padding counts as -∞, NaN as the largest. The gradient goes to the
    first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image), for MaxUnpool1d.
    Shape: input [B, C, L] or [C, L].

    >>> weft.nn.MaxPool1d(3, stride=2)(weft.ones(1, 1, 7)).shape
    (1, 1, 3)
    """

    _function = staticmethod(F.max_pool1d)


@layer("L020", aliases=("MaxPoolingLayer", "MaxPooling"), learns="-")
class MaxPool2d(_MaxPool):
    """y = the maximum of every window along H, W; padding counts as -∞, NaN as the largest. The gradient goes to the
    first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image), for MaxUnpool2d.
    Shape: input [B, C, H, W] or [C, H, W].

    >>> weft.nn.MaxPool2d(3, stride=2)(weft.ones(1, 1, 7, 7)).shape
    (1, 1, 3, 3)
    """

    _function = staticmethod(F.max_pool2d)


@layer("L019", aliases=("MaxPool3DLayer",), learns="-")
class MaxPool3d(_MaxPool):
    """y = the maximum of every window along D, H, W; padding counts as -∞, NaN as the largest. The gradient goes to the
    first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image), for MaxUnpool3d.
    Shape: input [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.MaxPool3d(3, stride=2)(weft.ones(1, 1, 7, 7, 7)).shape
    (1, 1, 3, 3, 3)
    """

    _function = staticmethod(F.max_pool3d)


@layer(learns="-")
class AvgPool1d(PoolingBase):
    """y = the mean of every window along L; padded zeros count, unless count_include_pad=False.

    Shape: input [B, C, L] or [C, L].

    >>> weft.nn.AvgPool1d(2)(weft.tensor([[1.0, 3.0, 5.0, 7.0]]))
    tensor([[2., 6.]])
    """

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ):  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = _single(kernel_size), _single(kernel_size if stride is None else stride)
        self.padding, self.ceil_mode, self.count_include_pad = _single(padding), ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


def _single(value: Sizes) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


@layer("L017", aliases=("AveragePoolingLayer", "AveragePooling"), learns="-")
class AvgPool2d(_AvgPool):
    """y = the mean of every window along H, W; padded zeros count, unless count_include_pad=False. divisor_override
    takes the place of the number of elements.

    Shape: input [B, C, H, W] or [C, H, W].

    >>> weft.nn.AvgPool2d(3, stride=2)(weft.ones(1, 1, 7, 7)).shape
    (1, 1, 3, 3)
    """

    _function = staticmethod(F.avg_pool2d)


@layer("X06", learns="-")
class AvgPool3d(_AvgPool):
    """y = the mean of every window along D, H, W; padded zeros count, unless count_include_pad=False. divisor_override
    takes the place of the number of elements.

    Shape: input [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.AvgPool3d(3, stride=2)(weft.ones(1, 1, 7, 7, 7)).shape
    (1, 1, 3, 3, 3)
    """

    _function = staticmethod(F.avg_pool3d)


@layer(learns="-")
class LPPool1d(_LPPool):
    """y = (Σ xᵖ)^(1/p) over every window along L, p = norm_type: p = 1 is the sum, p → ∞ the maximum.

    Shape: input [B, C, L] or [C, L].

    >>> weft.nn.LPPool1d(2, 2)(weft.ones(1, 1, 4)).shape
    (1, 1, 2)
    """

    _function = staticmethod(F.lp_pool1d)


@layer(learns="-")
class LPPool2d(_LPPool):
    """y = (Σ xᵖ)^(1/p) over every window along H, W, p = norm_type: p = 1 is the sum, p → ∞ the maximum.

    Shape: input [B, C, H, W] or [C, H, W].

    >>> weft.nn.LPPool2d(2, 2)(weft.ones(1, 1, 4, 4)).shape
    (1, 1, 2, 2)
    """

    _function = staticmethod(F.lp_pool2d)


@layer(learns="-")
class LPPool3d(_LPPool):
    """y = (Σ xᵖ)^(1/p) over every window along D, H, W, p = norm_type: p = 1 is the sum, p → ∞ the maximum.

    Shape: input [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.LPPool3d(2, 2)(weft.ones(1, 1, 4, 4, 4)).shape
    (1, 1, 2, 2, 2)
    """

    _function = staticmethod(F.lp_pool3d)


@layer(learns="-", oracle="torch.nn.FractionalMaxPool2d with the same samples")
class FractionalMaxPool2d(_FractionalMaxPool):
    """y = the maximum of windows of kernel_size whose positions are drawn, as many as output_size (or output_ratio
    times the input's extents) along H, W (Graham 2014). It draws in eval mode, too.

    Shape: input [B, C, H, W] or [C, H, W]; `_random_samples` [B, C, 2] fixes the positions.

    >>> weft.nn.FractionalMaxPool2d(2, output_size=3)(weft.ones(1, 1, 5, 5)).shape
    (1, 1, 3, 3)
    """

    _axes = 2
    _function = staticmethod(F.fractional_max_pool2d)


@layer(learns="-", oracle="torch.nn.FractionalMaxPool3d with the same samples")
class FractionalMaxPool3d(_FractionalMaxPool):
    """y = the maximum of windows of kernel_size whose positions are drawn, as many as output_size (or output_ratio
    times the input's extents) along D, H, W (Graham 2014). It draws in eval mode, too.

    Shape: input [B, C, D, H, W] or [C, D, H, W]; `_random_samples` [B, C, 3] fixes the positions.

    >>> weft.nn.FractionalMaxPool3d(2, output_size=3)(weft.ones(1, 1, 5, 5, 5)).shape
    (1, 1, 3, 3, 3)
    """

    _axes = 3
    _function = staticmethod(F.fractional_max_pool3d)


@layer(learns="-")
class MaxUnpool1d(_MaxUnpool):
    """y = zeros, with the inputs at the positions that MaxPool1d(return_indices=True) gave.

    Shape: input and indices [B, C, L] or [C, L]; output_size chooses among the extents that
    a pool would make the input's.

    >>> x = weft.ones(1, 1, 4)
    >>> weft.nn.MaxUnpool1d(2)(*weft.nn.MaxPool1d(2, return_indices=True)(x)).shape
    (1, 1, 4)
    """

    _axes = 1
    _function = staticmethod(F.max_unpool1d)


@layer(learns="-")
class MaxUnpool2d(_MaxUnpool):
    """y = zeros, with the inputs at the positions that MaxPool2d(return_indices=True) gave.

    Shape: input and indices [B, C, H, W] or [C, H, W]; output_size chooses among the extents that
    a pool would make the input's.

    >>> x = weft.ones(1, 1, 4, 4)
    >>> weft.nn.MaxUnpool2d(2)(*weft.nn.MaxPool2d(2, return_indices=True)(x)).shape
    (1, 1, 4, 4)
    """

    _axes = 2
    _function = staticmethod(F.max_unpool2d)


@layer(learns="-")
class MaxUnpool3d(_MaxUnpool):
    """y = zeros, with the inputs at the positions that MaxPool3d(return_indices=True) gave.

    Shape: input and indices [B, C, D, H, W] or [C, D, H, W]; output_size chooses among the extents that
    a pool would make the input's.

    >>> x = weft.ones(1, 1, 4, 4, 4)
    >>> weft.nn.MaxUnpool3d(2)(*weft.nn.MaxPool3d(2, return_indices=True)(x)).shape
    (1, 1, 4, 4, 4)
    """

    _axes = 3
    _function = staticmethod(F.max_unpool3d)
