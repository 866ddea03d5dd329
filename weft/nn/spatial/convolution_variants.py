"""Variants of two-dimensional convolutions: dilated, depthwise separable and deformable."""

from __future__ import annotations

import math
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.batch_and_instance_norm import BatchNorm2d
from weft.nn.basic.named_activation import make_activation
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.spatial.convolution import Conv2d, Sizes, repeat_sizes


@layer("L036", aliases=("DilatedConvolutionalLayer",), oracle="torch.nn.Conv2d with dilation")
class DilatedConv2d(Conv2d):
    """`Conv2d` whose taps lie `dilation` elements apart, 2 by default: a wider view with the same weights.

    Shape: as in `Conv2d`. Yu & Koltun, Multi-scale context aggregation by dilated convolutions (2016).

    >>> weft.nn.DilatedConv2d(1, 1, 3)(weft.ones(1, 1, 9, 9)).shape
    (1, 1, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 2,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device,
            dtype, activation=activation,
        )  # fmt: skip


@layer("L035", aliases=("DepthwiseSeparableConvolutionalLayer",), oracle="two torch.nn.Conv2d (and BatchNorm2d)")
class DepthwiseSeparableConv2d(Module):
    """y = pointwise(depthwise(x)): every channel has kernels of its own, then a 1×1 convolution mixes the channels.

    With `norm_act` each of the two is followed by BatchNorm and ReLU, as in MobileNet. The weights are in·m·k² +
    in·m·out instead of in·out·k² numbers, for m = depth_multiplier kernels per channel.

    Shape: input [B, in_channels, H, W], output [B, out_channels, OH, OW]; depthwise.weight [in·m, 1, kH, kW],
    pointwise.weight [out, in·m, 1, 1], pointwise.bias [out].

    Howard et al., MobileNets (2017).

    >>> layer = weft.nn.DepthwiseSeparableConv2d(4, 8, padding=1, norm_act=True)
    >>> layer(weft.rand(2, 4, 5, 5)).shape
    (2, 8, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes = 3,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        depth_multiplier: int = 1,
        bias: bool = True,
        norm_act: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        super().__init__()
        if not isinstance(depth_multiplier, int) or depth_multiplier < 1:
            given = f"depth_multiplier={depth_multiplier!r}"
            raise problem(RangeError, type(self).__name__, given, "a whole number above 0")
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        wide = in_channels * depth_multiplier
        self.depthwise = Conv2d(
            in_channels, wide, kernel_size, stride, padding, dilation, groups=in_channels, bias=False, **like
        )
        self.norm1 = BatchNorm2d(wide, **like) if norm_act else None
        self.pointwise = Conv2d(wide, out_channels, 1, bias=bias, **like)
        self.norm2 = BatchNorm2d(out_channels, **like) if norm_act else None
        self.activation = make_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        x = self.depthwise(input)
        x = x if self.norm1 is None else F.relu(self.norm1(x))
        x = self.pointwise(x)
        x = x if self.norm2 is None else F.relu(self.norm2(x))
        return x if self.activation is None else self.activation(x)


@layer("L037", aliases=("SeparableConvolutionalLayer", "SeparableConv2D"), oracle="two torch.nn.Conv2d")
class SeparableConv2d(DepthwiseSeparableConv2d):
    """y = pointwise(depthwise(x)), with nothing between the two; see `DepthwiseSeparableConv2d`.

    Shape: input [B, in_channels, H, W], output [B, out_channels, OH, OW].

    Chollet, Xception (2017); Keras calls it SeparableConv2D.

    >>> weft.nn.SeparableConv2d(4, 8, 3, stride=2)(weft.ones(1, 4, 7, 7)).shape
    (1, 8, 3, 3)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes = 3,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        depth_multiplier: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, depth_multiplier, bias, False, device,
            dtype, activation=activation,
        )  # fmt: skip


@layer("L034", aliases=("DeformableConvolutionalLayer",), oracle="the sum in float64 NumPy; Conv2d for zero offsets")
class DeformConv2d(Module):
    """y(p) = bias + Σ_k weight_k · m_k(p) · x(p·s - pad + k·d + Δ_k(p)), x between elements bilinear and 0 outside.

    The offsets Δ = conv_off(x) and the mask m = σ(conv_mask(x)) are learned from x: 2 and 1 numbers per tap, per place
    and per group of `deform_groups`; (Δy, Δx) are adjacent. Both convolutions start at 0, so that the layer starts
    as a Conv2d with m = 1/2. Without `modulated` m is 1. A call may give its own `offset` and `mask` instead.

    Shape: input [B, in_channels, H, W], output [B, out_channels, OH, OW]; offset [B, 2·deform_groups·kH·kW, OH, OW],
    mask [B, deform_groups·kH·kW, OH, OW]; weight [out_channels, in_channels / groups, kH, kW], bias [out_channels].

    Dai et al., Deformable convolutional networks (2017); Zhu et al., v2: more deformable, better results (2019).

    >>> weft.nn.DeformConv2d(2, 4)(weft.ones(1, 2, 5, 5)).shape
    (1, 4, 5, 5)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes = 3,
        stride: Sizes = 1,
        padding: Sizes = 1,
        dilation: Sizes = 1,
        groups: int = 1,
        deform_groups: int = 1,
        modulated: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        super().__init__()
        who = type(self).__name__
        for what, number in (("groups", groups), ("deform_groups", deform_groups)):
            if not isinstance(number, int) or number < 1 or in_channels % number:
                given = f"in_channels={in_channels} and {what}={number!r}"
                raise problem(RangeError, who, given, f"channels that divide by {what}")
        if out_channels % groups:
            given = f"out_channels={out_channels} and groups={groups}"
            raise problem(RangeError, who, given, "channels that divide by groups")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = repeat_sizes(who, kernel_size, 2, "kernel_size", 1)
        self.stride = repeat_sizes(who, stride, 2, "stride", 1)
        self.padding = repeat_sizes(who, padding, 2, "padding", 0)
        self.dilation = repeat_sizes(who, dilation, 2, "dilation", 1)
        self.activation = make_activation(activation)
        taps = math.prod(self.kernel_size) * deform_groups
        geometry = (self.kernel_size, self.stride, self.padding, self.dilation)
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(out_channels, in_channels // groups, *self.kernel_size, **like))
        self.register_parameter("bias", Parameter(empty(out_channels, **like)) if bias else None)
        self.conv_off = Conv2d(in_channels, 2 * taps, *geometry, **like)
        self.conv_mask = Conv2d(in_channels, taps, *geometry, **like) if modulated else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias again; offsets and mask start at 0."""
        bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)
        for conv in (self.conv_off, self.conv_mask):
            if conv is not None:
                init.zeros_(conv.weight)
                init.zeros_(conv.bias)

    def forward(self, input: Tensor, offset: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        if input.ndim != 4 or input.shape[1] != self.in_channels:
            expected = f"[B, {self.in_channels}, H, W]"
            raise problem(ShapeError, "DeformConv2d", f"an input of shape {tuple(input.shape)}", expected)
        offset = self.conv_off(input) if offset is None else offset
        if mask is None and self.conv_mask is not None:
            mask = self.conv_mask(input).sigmoid()
        columns = F.deform_unfold(input, offset, mask, self.kernel_size, self.stride, self.padding, self.dilation)
        batch, channels, taps, *space = columns.shape
        inner = channels // self.groups * taps
        rows = columns.reshape(batch, self.groups, inner, math.prod(space))  # [B, g, in/g·k, OH·OW]
        weight = self.weight.reshape(self.groups, self.out_channels // self.groups, inner)  # [g, out/g, in/g·k]
        y = (weight @ rows).reshape(batch, self.out_channels, *space)
        y = y if self.bias is None else y + self.bias.reshape(-1, 1, 1)
        return y if self.activation is None else self.activation(y)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, dilation={self.dilation}, groups={self.groups}"
        )
