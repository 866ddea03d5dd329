"""Lazy convolutions and normalizations: the number of channels comes from the first input (see `weft.nn.lazy`)."""

from __future__ import annotations

from typing import Any

from weft.base.dtypes import int64
from weft.base.errors import ShapeError, problem
from weft.core.creation import zeros
from weft.core.tensor import Tensor
from weft.nn.basic.batch_and_instance_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    _InstanceNorm,
)
from weft.nn.lazy import LazyModuleMixin, UninitializedBuffer, UninitializedParameter, infer_size
from weft.nn.registry import layer
from weft.nn.spatial.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Sizes,
)


class _LazyConvNd(LazyModuleMixin):
    """A convolution that takes in_channels from its first input."""

    weight: Any
    bias: Any

    def _leave_open(self, bias: bool, device: Any, dtype: Any) -> None:
        """Put parameters without a shape in place of those for no channels."""
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the parameters again, when they have shapes."""
        if self.in_channels and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor, *_: Any, **__: Any) -> None:
        """Take in_channels from an input."""
        who, channels = type(self).__name__, input.shape[-self.rank - 1] if input.ndim > self.rank else 0
        if input.ndim not in (self.rank + 1, self.rank + 2):
            expected = f"{self.rank + 1} or {self.rank + 2} axes"
            raise problem(ShapeError, who, f"an input of shape {tuple(input.shape)}", expected)
        if not channels or channels % self.groups:
            given = f"an input of {channels} channels and groups={self.groups}"
            raise problem(ShapeError, who, given, "channels that divide by groups")
        inner = channels // self.groups
        if self.transposed:
            infer_size(self, "in_channels", channels, self.weight, 0)
            shape = (channels, self.out_channels // self.groups)
        else:
            infer_size(self, "in_channels", inner, self.weight, 1)
            shape = (self.out_channels, inner)
        self.in_channels = channels
        if self.has_uninitialized_params():
            self.weight.materialize((*shape, *self.kernel_size))
            if self.bias is not None:
                self.bias.materialize((self.out_channels,))
            self.reset_parameters()


class _LazyConv(_LazyConvNd):
    def __init__(
        self,
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
            0, out_channels, kernel_size, stride, padding, dilation, groups, False, padding_mode, device, dtype,
            activation=activation,
        )  # fmt: skip
        self._leave_open(bias, device, dtype)


class _LazyConvTranspose(_LazyConvNd):
    def __init__(
        self,
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
        super().__init__(
            0, out_channels, kernel_size, stride, padding, output_padding, groups, False, dilation, padding_mode,
            device, dtype, activation=activation,
        )  # fmt: skip
        self._leave_open(bias, device, dtype)


@layer()
class LazyConv1d(_LazyConv, Conv1d):
    """`Conv1d` that takes in_channels from its first input, and is a Conv1d from then on.

    >>> layer = weft.nn.LazyConv1d(4, 3)
    >>> layer(weft.ones(1, 2, 5)).shape, layer.in_channels
    ((1, 4, 3), 2)
    """

    cls_to_become = Conv1d


@layer()
class LazyConv2d(_LazyConv, Conv2d):
    """`Conv2d` that takes in_channels from its first input, and is a Conv2d from then on.

    >>> layer = weft.nn.LazyConv2d(4, 3)
    >>> layer(weft.ones(1, 2, 5, 5)).shape, layer.in_channels
    ((1, 4, 3, 3), 2)
    """

    cls_to_become = Conv2d


@layer()
class LazyConv3d(_LazyConv, Conv3d):
    """`Conv3d` that takes in_channels from its first input, and is a Conv3d from then on.

    >>> layer = weft.nn.LazyConv3d(4, 3)
    >>> layer(weft.ones(1, 2, 5, 5, 5)).shape, layer.in_channels
    ((1, 4, 3, 3, 3), 2)
    """

    cls_to_become = Conv3d


@layer()
class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """`ConvTranspose1d` that takes in_channels from its first input, and is a ConvTranspose1d from then on.

    >>> layer = weft.nn.LazyConvTranspose1d(4, 3)
    >>> layer(weft.ones(1, 2, 5)).shape, layer.in_channels
    ((1, 4, 7), 2)
    """

    cls_to_become = ConvTranspose1d


@layer()
class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """`ConvTranspose2d` that takes in_channels from its first input, and is a ConvTranspose2d from then on.

    >>> layer = weft.nn.LazyConvTranspose2d(4, 3)
    >>> layer(weft.ones(1, 2, 5, 5)).shape, layer.in_channels
    ((1, 4, 7, 7), 2)
    """

    cls_to_become = ConvTranspose2d


@layer()
class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """`ConvTranspose3d` that takes in_channels from its first input, and is a ConvTranspose3d from then on.

    >>> layer = weft.nn.LazyConvTranspose3d(4, 3)
    >>> layer(weft.ones(1, 2, 5, 5, 5)).shape, layer.in_channels
    ((1, 4, 7, 7, 7), 2)
    """

    cls_to_become = ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    """A normalization that takes num_features from its first input."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__(0, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _make_state(self, weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.register_parameter("weight", UninitializedParameter(**like) if weight else None)
        self.register_parameter("bias", UninitializedParameter(**like) if bias else None)
        track = self.track_running_stats
        self.register_buffer("running_mean", UninitializedBuffer(**like) if track else None)
        self.register_buffer("running_var", UninitializedBuffer(**like) if track else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype=int64, device=device) if track else None)

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0, and the running statistics forgotten, when they have shapes."""
        if self.num_features and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Take num_features from an input."""
        self._check(input)
        channels = input.shape[self._channel_axis(input)]
        known = [one for one in (self.weight, self.running_mean) if one is not None]
        if known:
            infer_size(self, "num_features", channels, known[0], 0)
        self.num_features = channels
        if self.has_uninitialized_params():
            for value in (self.weight, self.bias, self.running_mean, self.running_var):
                if value is not None:
                    value.materialize((channels,))
            self.reset_parameters()

    def _channel_axis(self, input: Tensor) -> int:
        return 0 if isinstance(self, _InstanceNorm) and input.ndim == self.ranks[0] else 1


@layer()
class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """`BatchNorm1d` that takes num_features from its first input, and is a BatchNorm1d from then on.

    >>> layer = weft.nn.LazyBatchNorm1d()
    >>> layer(weft.rand(4, 3)).shape, layer.num_features
    ((4, 3), 3)
    """

    cls_to_become = BatchNorm1d


@layer()
class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """`BatchNorm2d` that takes num_features from its first input, and is a BatchNorm2d from then on.

    >>> layer = weft.nn.LazyBatchNorm2d()
    >>> layer(weft.rand(2, 3, 4, 4)).shape, layer.num_features
    ((2, 3, 4, 4), 3)
    """

    cls_to_become = BatchNorm2d


@layer()
class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """`BatchNorm3d` that takes num_features from its first input, and is a BatchNorm3d from then on.

    >>> layer = weft.nn.LazyBatchNorm3d()
    >>> layer(weft.rand(2, 3, 2, 2, 2)).shape, layer.num_features
    ((2, 3, 2, 2, 2), 3)
    """

    cls_to_become = BatchNorm3d


@layer()
class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """`InstanceNorm1d` that takes num_features from its first input, and is an InstanceNorm1d from then on.

    >>> layer = weft.nn.LazyInstanceNorm1d()
    >>> layer(weft.rand(4, 3, 5)).shape, layer.num_features
    ((4, 3, 5), 3)
    """

    cls_to_become = InstanceNorm1d


@layer()
class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """`InstanceNorm2d` that takes num_features from its first input, and is an InstanceNorm2d from then on.

    >>> layer = weft.nn.LazyInstanceNorm2d()
    >>> layer(weft.rand(2, 3, 4, 4)).shape, layer.num_features
    ((2, 3, 4, 4), 3)
    """

    cls_to_become = InstanceNorm2d


@layer()
class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """`InstanceNorm3d` that takes num_features from its first input, and is an InstanceNorm3d from then on.

    >>> layer = weft.nn.LazyInstanceNorm3d()
    >>> layer(weft.rand(2, 3, 2, 2, 2)).shape, layer.num_features
    ((2, 3, 2, 2, 2), 3)
    """

    cls_to_become = InstanceNorm3d
