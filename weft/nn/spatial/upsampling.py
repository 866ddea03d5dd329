"""Layers that change the resolution of images, and windows as columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer

Sizes = int | Sequence[int]
Factors = float | Sequence[float]


def _check_factor(who: str, name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise problem(RangeError, who, f"{name}={value!r}", "a whole number from 1 on")
    return value


@layer("L022", aliases=("PixelShuffleLayer",), learns="-")
class PixelShuffle(Module):
    """y[b, c, h r + i, w r + j] = x[b, c r² + i r + j, h, w]: groups of r² channels become pixels (Shi et al. 2016).

    Shape: input [*, C r², H, W], output [*, C, H r, W r].

    >>> weft.nn.PixelShuffle(2)(weft.ones(1, 8, 3, 3)).shape
    (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int):
        super().__init__()
        self.upscale_factor = _check_factor("PixelShuffle", "upscale_factor", upscale_factor)

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


@layer(learns="-")
class PixelUnshuffle(Module):
    """y[b, c r² + i r + j, h, w] = x[b, c, h r + i, w r + j]: the inverse of PixelShuffle.

    Shape: input [*, C, H r, W r], output [*, C r², H, W].

    >>> weft.nn.PixelUnshuffle(2)(weft.ones(1, 2, 6, 6)).shape
    (1, 8, 3, 3)
    """

    def __init__(self, downscale_factor: int):
        super().__init__()
        self.downscale_factor = _check_factor("PixelUnshuffle", "downscale_factor", downscale_factor)

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


@layer(learns="-")
class ChannelShuffle(Module):
    """y[b, k g + i] = x[b, i (C / g) + k]: the channels of g groups alternate (Zhang et al. 2018).

    Shape: input [B, C, *], output the same.

    >>> weft.nn.ChannelShuffle(2)(weft.arange(4.0).reshape(1, 4, 1)).flatten()
    tensor([0., 2., 1., 3.])
    """

    def __init__(self, groups: int):
        super().__init__()
        self.groups = _check_factor("ChannelShuffle", "groups", groups)

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


@layer(
    "L023", aliases=("SubpixelConvolutionalLayer", "SubpixelConv"), oracle="torch.nn.Conv2d and torch.nn.PixelShuffle"
)
class SubpixelConv2d(Module):
    """y = PixelShuffle(r)(Conv2d(x)): a convolution with r² times the channels, which become pixels (Shi et al. 2016).

    Shape: input [B, in_channels, H, W], output [B, out_channels, H r, W r] (with the default padding, an odd kernel);
    weight [out_channels r², in_channels, kH, kW], bias [out_channels r²], initialised as those of Conv2d.

    >>> weft.nn.SubpixelConv2d(3, 2, upscale_factor=2)(weft.ones(1, 3, 5, 5)).shape
    (1, 2, 10, 10)
    """

    def __init__(
        self, in_channels: int, out_channels: int, upscale_factor: int, kernel_size: Sizes = 3,
        padding: Sizes | None = None, bias: bool = True, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.upscale_factor = _check_factor("SubpixelConv2d", "upscale_factor", upscale_factor)
        self.kernel_size = (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
        self.padding = tuple(size // 2 for size in self.kernel_size) if padding is None else padding
        channels, form = out_channels * upscale_factor**2, {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(channels, in_channels, *self.kernel_size, **form))
        self.register_parameter("bias", Parameter(empty(channels, **form)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        bound = 1 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    @no_grad()
    def icnr_init(self) -> SubpixelConv2d:
        """Give the r² filters of each output channel the same values, so that the layer starts as an upsampling by
        nearest neighbours, without a checkerboard (Aitken et al. 2017)."""
        for param in (self.weight, self.bias):
            if param is not None:
                square = self.upscale_factor**2
                param.copy_(param[::square].repeat_interleave(square, 0))
        return self

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4) or input.shape[-3] != self.in_channels:
            expected = f"[B, {self.in_channels}, H, W] or [{self.in_channels}, H, W]"
            raise problem(ShapeError, "SubpixelConv2d", f"shape {list(input.shape)}", expected)
        return F.pixel_shuffle(F.conv2d(input, self.weight, self.bias, padding=self.padding), self.upscale_factor)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, upscale_factor={self.upscale_factor}, "
            f"kernel_size={self.kernel_size}, padding={self.padding}, bias={self.bias is not None}"
        )


@layer("L025", aliases=("UpsamplingLayer", "Upsampling"), learns="-")
class Upsample(Module):
    """y = x at another resolution: given by `size`, or by `scale_factor` times the extents.

    nearest: the pixel ⌊dst · in / out⌋. linear (3 axes), bilinear (4), trilinear (5) and bicubic interpolate at
    (dst + 0.5) · in / out - 0.5, or with align_corners=True at dst · (in - 1) / (out - 1).
    Shape: input [B, C, *], output [B, C, *].

    >>> weft.nn.Upsample(scale_factor=2)(weft.ones(1, 1, 3, 3)).shape
    (1, 1, 6, 6)
    """

    def __init__(
        self, size: Sizes | None = None, scale_factor: Factors | None = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ):  # fmt: skip
        super().__init__()
        self.size, self.mode, self.align_corners = size, mode, align_corners
        self.scale_factor: Any = scale_factor
        if isinstance(scale_factor, (int, float)):
            self.scale_factor = float(scale_factor)
        elif scale_factor is not None:
            self.scale_factor = tuple(map(float, scale_factor))
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        size = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{size}, mode={self.mode!r}"


@layer(learns="-")
class UpsamplingNearest2d(Upsample):
    """y = x at another resolution, by nearest neighbours.

    >>> weft.nn.UpsamplingNearest2d(scale_factor=2)(weft.ones(1, 1, 3, 3)).shape
    (1, 1, 6, 6)
    """

    def __init__(self, size: Sizes | None = None, scale_factor: Factors | None = None):
        super().__init__(size, scale_factor, mode="nearest")


@layer(learns="-")
class UpsamplingBilinear2d(Upsample):
    """y = x at another resolution, by bilinear interpolation with align_corners=True.

    >>> weft.nn.UpsamplingBilinear2d(scale_factor=2)(weft.ones(1, 1, 3, 3)).shape
    (1, 1, 6, 6)
    """

    def __init__(self, size: Sizes | None = None, scale_factor: Factors | None = None):
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


@layer("L024", aliases=("Upsample3DLayer",), learns="-", oracle="torch.nn.Upsample")
class Upsample3d(Upsample):
    """y = x at another resolution, for volumes: mode 'nearest' or 'trilinear', at twice the extents by default.

    Shape: input [B, C, D, H, W], output [B, C, OD, OH, OW].

    >>> weft.nn.Upsample3d()(weft.ones(1, 1, 2, 3, 4)).shape
    (1, 1, 4, 6, 8)
    """

    def __init__(
        self, scale_factor: Factors | None = None, size: Sizes | None = None, mode: str = "nearest",
        align_corners: bool = False,
    ):  # fmt: skip
        if mode not in ("nearest", "trilinear"):
            raise problem(RangeError, "Upsample3d", f"mode={mode!r}", "'nearest' or 'trilinear'")
        factor = 2 if scale_factor is None and size is None else scale_factor
        super().__init__(size, factor, mode, align_corners if mode == "trilinear" else None)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 5:
            raise problem(ShapeError, "Upsample3d", f"shape {list(input.shape)}", "[B, C, D, H, W]")
        return super().forward(input)


@layer(learns="-")
class Unfold(Module):
    """y[b, c kH kW + i kW + j, p] = x[b, c, ·]: every window of an image as a column.

    Shape: input [B, C, H, W] or [C, H, W], output [B, C kH kW, positions] or [C kH kW, positions].

    >>> weft.nn.Unfold(2)(weft.ones(1, 3, 4, 5)).shape
    (1, 12, 12)
    """

    def __init__(self, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1):
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


@layer(learns="-")
class Fold(Module):
    """The adjoint of Unfold: y[b, c, ·] = the sum of all column entries that Unfold would take from there.

    Shape: input [B, C kH kW, positions] or [C kH kW, positions], output [B, C, *output_size] or [C, *output_size].

    >>> weft.nn.Fold((4, 5), 2)(weft.ones(1, 12, 12)).shape
    (1, 3, 4, 5)
    """

    def __init__(
        self, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
    ):
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )
