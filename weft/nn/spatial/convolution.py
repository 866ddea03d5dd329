"""Convolutions and transposed convolutions of one to three axes.

For a kernel of k taps, stride s, padding p and dilation d an extent n becomes ⌊(n + 2p - d(k-1) - 1) / s⌋ + 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.named_activation import make_activation
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer

Sizes = int | Sequence[int]
PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def repeat_sizes(who: str, value: Sizes, rank: int, what: str, least: int) -> tuple[int, ...]:
    """One number per axis."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(numbers) != rank or any(not isinstance(one, int) or one < least for one in numbers):
        expected = f"a whole number of at least {least}, or {rank} of them"
        raise problem(RangeError, who, f"{what}={value!r}", expected)
    return numbers


class _ConvNd(Module):
    """What plain and transposed convolutions have in common: their arguments, checked, and their parameters."""

    rank: int
    transposed: bool

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes, padding: Sizes | str,
        dilation: Sizes, output_padding: Sizes, groups: int, bias: bool, padding_mode: str, device: Any, dtype: Any,
        activation: Any,
    ):  # fmt: skip
        super().__init__()
        who = type(self).__name__
        for what, number in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
            if not isinstance(number, int) or number < (0 if what == "in_channels" else 1):
                raise problem(RangeError, who, f"{what}={number!r}", "a whole number above 0")
        if in_channels % groups or out_channels % groups:
            given = f"in_channels={in_channels}, out_channels={out_channels} and groups={groups}"
            raise problem(RangeError, who, given, "numbers of channels that divide by groups")
        if padding_mode not in PADDING_MODES:
            raise problem(RangeError, who, f"padding_mode={padding_mode!r}", f"one of {', '.join(PADDING_MODES)}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = repeat_sizes(who, kernel_size, self.rank, "kernel_size", 1)
        self.stride = repeat_sizes(who, stride, self.rank, "stride", 1)
        self.dilation = repeat_sizes(who, dilation, self.rank, "dilation", 1)
        self.output_padding = repeat_sizes(who, output_padding, self.rank, "output_padding", 0)
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise problem(RangeError, who, f"padding={padding!r}", "'same', 'valid' or numbers")
            if padding == "same" and any(one != 1 for one in self.stride):
                raise problem(RangeError, who, f"padding='same' with stride {self.stride}", "stride 1")
            self.padding: Any = padding
        else:
            self.padding = repeat_sizes(who, padding, self.rank, "padding", 0)
        self.padding_mode = padding_mode
        self.activation = make_activation(activation)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty(*channels, *self.kernel_size, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        fan_in = math.prod(self.weight.shape[1:])
        bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        defaults = {"padding": 0, "dilation": 1, "output_padding": 0}
        for name, default in defaults.items():
            if getattr(self, name) != (default,) * self.rank:
                text += f", {name}={getattr(self, name)}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode}"
        return text


class _Conv(_ConvNd):
    """A cross-correlation; see `Conv2d`."""

    transposed = False
    function: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, device,
            dtype, activation,
        )  # fmt: skip

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._pads(), self.padding_mode), 0
        function = type(self).function
        y = function(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
        return y if self.activation is None else self.activation(y)

    def _pads(self) -> list[int]:
        """The padding of each axis before and after, in `F.pad`'s order: the last axis first."""
        if self.padding == "valid":
            return [0] * (2 * self.rank)
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [pad for total in reversed(totals) for pad in (total // 2, total - total // 2)]
        return [pad for one in reversed(self.padding) for pad in (one, one)]


class _ConvTranspose(_ConvNd):
    """The adjoint of a convolution; see `ConvTranspose2d`."""

    transposed = True
    function: Callable[..., Tensor]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: Any = None,
    ):
        who = type(self).__name__
        if padding_mode != "zeros":
            raise problem(RangeError, who, f"padding_mode={padding_mode!r}", "'zeros', the only one it has")
        if isinstance(padding, str):
            raise problem(RangeError, who, f"padding={padding!r}", "numbers")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias,
            padding_mode, device, dtype, activation,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        function = type(self).function
        y = function(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)
        return y if self.activation is None else self.activation(y)

    def _extra(self, input: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output padding that gives `output_size`: several sizes have the same convolution."""
        wanted = tuple(output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[-self.rank :]
        columns = zip(
            tuple(input.shape)[-self.rank :], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
        )
        least = tuple([(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in columns])
        most = tuple([low + s - 1 for low, s in zip(least, self.stride, strict=True)])
        if len(wanted) != self.rank or any(
            not low <= one <= high for low, one, high in zip(least, wanted, most, strict=True)
        ):
            given = f"output_size={tuple(output_size)} for an input of {tuple(input.shape)}"
            raise problem(ShapeError, type(self).__name__, given, f"{self.rank} numbers from {least} to {most}")
        return tuple([one - low for one, low in zip(wanted, least, strict=True)])


@layer("X07", aliases=("Conv1DLayer",))
class Conv1d(_Conv):
    """y[b, o, t] = bias[o] + Σ_{c, i} weight[o, c, i] · x[b, c, t·s + i·d - p].

    Shape: input [B, in_channels, L] or [in_channels, L], output [B, out_channels, OL]; weight [out_channels,
    in_channels / groups, k], bias [out_channels]. Arguments as in `Conv2d`.

    >>> weft.nn.Conv1d(2, 4, kernel_size=3, padding="same")(weft.ones(1, 2, 7)).shape
    (1, 4, 7)
    """

    rank = 1
    function = staticmethod(F.conv1d)


@layer("L031", aliases=("ConvolutionalLayer", "Convolution2d"))
class Conv2d(_Conv):
    """y[b, o, v, u] = bias[o] + Σ_{c, i, j} weight[o, c, i, j] · x[b, c, v·s + i·d - p, u·s + j·d - p].

    A cross-correlation: the kernel is not mirrored. `groups` splits the channels: group g of the results reads group g
    of the input only. `padding` is a number per axis, 'same' (stride 1) or 'valid'; `padding_mode` says what lies
    there. `activation`, a name or a function, is applied to the result.

    Shape: input [B, in_channels, H, W] or [in_channels, H, W], output [B, out_channels, OH, OW]; weight [out_channels,
    in_channels / groups, kH, kW], bias [out_channels]. Both start as U(-1/√n, 1/√n), n = in_channels / groups · kH·kW.

    LeCun et al., Gradient-based learning applied to document recognition (1998).

    >>> weft.nn.Conv2d(3, 8, 3, stride=2, padding=1)(weft.ones(2, 3, 9, 9)).shape
    (2, 8, 5, 5)
    """

    rank = 2
    function = staticmethod(F.conv2d)


@layer("L032", aliases=("Conv3DLayer",))
class Conv3d(_Conv):
    """y[b, o, ·] = bias[o] + Σ_{c, h, i, j} weight[o, c, h, i, j] · x[b, c, ·]: `Conv2d` over three axes.

    Shape: input [B, in_channels, D, H, W] or without B, output [B, out_channels, OD, OH, OW]; weight [out_channels,
    in_channels / groups, kD, kH, kW], bias [out_channels].

    >>> weft.nn.Conv3d(1, 2, 3)(weft.ones(1, 1, 4, 5, 6)).shape
    (1, 2, 2, 3, 4)
    """

    rank = 3
    function = staticmethod(F.conv3d)


@layer()
class ConvTranspose1d(_ConvTranspose):
    """The adjoint of `Conv1d`: ⟨conv(x), y⟩ = ⟨x, conv_transpose(y)⟩. Arguments as in `ConvTranspose2d`.

    Shape: input [B, in_channels, L], output [B, out_channels, (L - 1)s - 2p + d(k - 1) + output_padding + 1]; weight
    [in_channels, out_channels / groups, k], bias [out_channels].

    >>> weft.nn.ConvTranspose1d(2, 4, 3, stride=2)(weft.ones(1, 2, 5)).shape
    (1, 4, 11)
    """

    rank = 1
    function = staticmethod(F.conv_transpose1d)


@layer("L033", aliases=("DeconvolutionalLayer", "Deconvolution2d"))
class ConvTranspose2d(_ConvTranspose):
    """The adjoint of `Conv2d`: every element of the input adds weight · x to the positions that Conv2d would read.

    With a stride s several inputs of Conv2d have an output of the same size; `output_padding`, or `output_size` in the
    call, says which of them is meant.

    Shape: input [B, in_channels, H, W] or without B, output [B, out_channels, OH, OW] with OH = (H - 1)s - 2p +
    d(kH - 1) + output_padding + 1; weight [in_channels, out_channels / groups, kH, kW], bias [out_channels].

    Zeiler et al., Deconvolutional networks (2010).

    >>> layer = weft.nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1)
    >>> layer(weft.ones(1, 3, 4, 4)).shape, layer(weft.ones(1, 3, 4, 4), output_size=(8, 8)).shape
    ((1, 2, 7, 7), (1, 2, 8, 8))
    """

    rank = 2
    function = staticmethod(F.conv_transpose2d)


@layer()
class ConvTranspose3d(_ConvTranspose):
    """The adjoint of `Conv3d`. Arguments as in `ConvTranspose2d`.

    Shape: input [B, in_channels, D, H, W], output [B, out_channels, OD, OH, OW]; weight [in_channels, out_channels /
    groups, kD, kH, kW], bias [out_channels].

    >>> weft.nn.ConvTranspose3d(1, 2, 2, stride=2)(weft.ones(1, 1, 2, 2, 2)).shape
    (1, 2, 4, 4, 4)
    """

    rank = 3
    function = staticmethod(F.conv_transpose3d)
