"""Pooling to a given size: adaptive pooling, as in torch, and the maximum, mean or norm of whole images."""

from __future__ import annotations

from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.nn.spatial.pooling import OutputSizes, PoolingBase


class _AdaptiveAvgPool(PoolingBase):
    """Base of the mean pools with a given output size."""

    _shown = ("output_size",)

    def __init__(self, output_size: OutputSizes):
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return type(self)._function(input, self.output_size)


class _AdaptiveMaxPool(PoolingBase):
    """Base of the maximum pools with a given output size."""

    _shown = ("output_size",)

    def __init__(self, output_size: OutputSizes, return_indices: bool = False):
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self)._function(input, self.output_size, return_indices=self.return_indices)


@layer(learns="-")
class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """y = the mean of windows of which there are `output_size` along L: window i of o covers the elements from
    ⌊i n / o⌋ to ⌈(i + 1) n / o⌉ of n. None keeps an axis.

    Shape: input [B, C, L] or [C, L].

    >>> weft.nn.AdaptiveAvgPool1d(2)(weft.ones(1, 1, 5)).shape
    (1, 1, 2)
    """

    _function = staticmethod(F.adaptive_avg_pool1d)


@layer("L016", aliases=("AdaptiveAveragePoolingLayer", "AdaptiveAveragePooling"), learns="-")
class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """y = the mean of windows of which there are `output_size` along H, W: window i of o covers the elements from
    ⌊i n / o⌋ to ⌈(i + 1) n / o⌉ of n. None keeps an axis.

    Shape: input [B, C, H, W] or [C, H, W].

    >>> weft.nn.AdaptiveAvgPool2d(2)(weft.ones(1, 1, 5, 5)).shape
    (1, 1, 2, 2)
    """

    _function = staticmethod(F.adaptive_avg_pool2d)


@layer(learns="-")
class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """y = the mean of windows of which there are `output_size` along D, H, W: window i of o covers the elements from
    ⌊i n / o⌋ to ⌈(i + 1) n / o⌉ of n. None keeps an axis.

    Shape: input [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.AdaptiveAvgPool3d(2)(weft.ones(1, 1, 5, 5, 5)).shape
    (1, 1, 2, 2, 2)
    """

    _function = staticmethod(F.adaptive_avg_pool3d)


@layer(learns="-")
class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """y = the maximum of windows as those of AdaptiveAvgPool1d. The gradient goes to the first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image).
    Shape: input [B, C, L] or [C, L].

    >>> weft.nn.AdaptiveMaxPool1d(2)(weft.ones(1, 1, 5)).shape
    (1, 1, 2)
    """

    _function = staticmethod(F.adaptive_max_pool1d)


@layer(learns="-")
class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """y = the maximum of windows as those of AdaptiveAvgPool2d. The gradient goes to the first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image).
    Shape: input [B, C, H, W] or [C, H, W].

    >>> weft.nn.AdaptiveMaxPool2d(2)(weft.ones(1, 1, 5, 5)).shape
    (1, 1, 2, 2)
    """

    _function = staticmethod(F.adaptive_max_pool2d)


@layer(learns="-")
class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """y = the maximum of windows as those of AdaptiveAvgPool3d. The gradient goes to the first maximum.

    With return_indices=True the result is (y, positions of the maxima in the flattened image).
    Shape: input [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.AdaptiveMaxPool3d(2)(weft.ones(1, 1, 5, 5, 5)).shape
    (1, 1, 2, 2, 2)
    """

    _function = staticmethod(F.adaptive_max_pool3d)


@layer(
    "L018",
    aliases=("GlobalPoolingLayer", "GlobalPooling"),
    learns="-",
    oracle="torch.nn.AdaptiveAvgPool2d(1) and AdaptiveMaxPool2d(1)",
)
class GlobalPool(Module):
    """y = the mean (mode='avg') or the maximum (mode='max') of each channel. The gradient of a maximum goes to
    the first.

    Shape: input [B, C, *], output [B, C], with keepdim [B, C, 1, ...].

    >>> weft.nn.GlobalPool()(weft.ones(2, 3, 4, 4)).shape
    (2, 3)
    """

    def __init__(self, mode: str = "avg", keepdim: bool = False):
        super().__init__()
        if mode not in ("avg", "max"):
            raise problem(RangeError, type(self).__name__, f"mode={mode!r}", "'avg' or 'max'")
        self.mode, self.keepdim = mode, keepdim

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim < 3:
            raise problem(ShapeError, type(self).__name__, f"shape {list(input.shape)}", "[B, C, *]")
        flat = input.flatten(2)  # [B, C, positions]
        pooled = flat.mean(-1) if self.mode == "avg" else flat.max(-1).values
        return pooled.reshape(*pooled.shape, *[1] * (input.ndim - 2)) if self.keepdim else pooled

    def extra_repr(self) -> str:
        return f"mode={self.mode!r}, keepdim={self.keepdim}"


@layer(learns="-", oracle="torch.nn.AdaptiveAvgPool2d(1)")
class GlobalAvgPool2d(GlobalPool):
    """y = the mean of each channel: GlobalPool(mode='avg').

    >>> weft.nn.GlobalAvgPool2d()(weft.ones(2, 3, 4, 4)).shape
    (2, 3)
    """

    def __init__(self, keepdim: bool = False):
        super().__init__("avg", keepdim)


@layer(learns="-", oracle="torch.nn.AdaptiveMaxPool2d(1)")
class GlobalMaxPool2d(GlobalPool):
    """y = the maximum of each channel: GlobalPool(mode='max').

    >>> weft.nn.GlobalMaxPool2d()(weft.ones(2, 3, 4, 4)).shape
    (2, 3)
    """

    def __init__(self, keepdim: bool = False):
        super().__init__("max", keepdim)
