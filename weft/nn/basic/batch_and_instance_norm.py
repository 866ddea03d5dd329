"""Batch and instance normalization: statistics of channels, over the batch or per sample, with running averages."""

from __future__ import annotations

import warnings
from typing import Any

from weft.base.dtypes import float32, int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, ones, zeros
from weft.core.realize import compute_with
from weft.core.tensor import Tensor
from weft.nn import functional as F
from weft.nn import init
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


class _NormBase(Module):
    """Scale, shift and running statistics of each channel."""

    ranks: tuple[int, ...]  # of inputs: (4,) for [N, C, H, W]

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool,
        device: Any, dtype: Any, bias: bool,
    ):  # fmt: skip
        super().__init__()
        if not isinstance(num_features, int) or num_features < 0:
            raise problem(RangeError, type(self).__name__, f"num_features={num_features!r}", "a whole number")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._make_state(affine, affine and bias, device, dtype)
        if track_running_stats:
            self.register_load_state_dict_pre_hook(_add_counter)

    def _make_state(self, weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        size, like = self.num_features, {"device": device, "dtype": dtype}
        self.register_parameter("weight", Parameter(empty(size, **like)) if weight else None)
        self.register_parameter("bias", Parameter(empty(size, **like)) if bias else None)
        track = self.track_running_stats
        self.register_buffer("running_mean", zeros(size, **like) if track else None)
        self.register_buffer("running_var", ones(size, **like) if track else None)
        self.register_buffer("num_batches_tracked", zeros((), dtype=int64, device=device) if track else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Forget what was averaged: mean 0, variance 1."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1.0)
            if self.num_batches_tracked is not None:
                self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Scale 1 and shift 0, and the running statistics forgotten."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self.ranks:
            given = f"an input of shape {tuple(input.shape)}"
            expected = f"{' or '.join(map(str, self.ranks))} axes"
            raise problem(ShapeError, type(self).__name__, given, expected)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


def _add_counter(module: _NormBase, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a state_dict is loaded: files that PyTorch wrote before 2018 have no num_batches_tracked."""
    if prefix + "running_mean" in state and module.num_batches_tracked is not None:
        state.setdefault(prefix + "num_batches_tracked", module.num_batches_tracked)


class _BatchNorm(_NormBase):
    """Normalization over the batch and all positions; see `BatchNorm2d`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        if input.shape[1] != self.num_features:
            given = f"an input of {input.shape[1]} channels, shape {tuple(input.shape)}"
            raise problem(ShapeError, type(self).__name__, given, f"{self.num_features} channels in axis 1")
        momentum: Any = self.momentum
        counts = self.training and self.track_running_stats and self.num_batches_tracked is not None
        if counts:
            self.num_batches_tracked.add_(1)
            if momentum is None:  # the plain average of all batches
                count_dtype = float32 if self.running_mean.dtype.is_16_bit else self.running_mean.dtype
                momentum = 1.0 / self.num_batches_tracked.to(count_dtype)
        use_batch = self.training or self.running_mean is None
        mean = self.running_mean if not self.training or self.track_running_stats else None
        var = self.running_var if not self.training or self.track_running_stats else None
        factor = 0.0 if momentum is None else momentum
        output = F.batch_norm(input, mean, var, self.weight, self.bias, use_batch, factor, self.eps)
        if counts:
            compute_with([self.num_batches_tracked], output)
        return output


@layer("", aliases=("BatchNorm1D",))
class BatchNorm1d(_BatchNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel over the batch and the length; see `BatchNorm2d`.

    Shape: input and output [B, C] or [B, C, L]; weight γ and bias β [C].

    >>> weft.nn.BatchNorm1d(3)(weft.rand(4, 3)).shape
    (4, 3)
    """

    ranks = (2, 3)


@layer("L038", aliases=("BatchNormalizationLayer", "BatchNorm2D"))
class BatchNorm2d(_BatchNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel over the batch and all positions.

    In training they are those of the batch, and the running statistics become (1 - momentum) times themselves plus
    momentum times the batch's (the variance divided by count - 1); momentum=None keeps the average of all batches. In
    evaluation the running statistics are used, or the batch's without `track_running_stats`.

    Shape: input and output [B, C, H, W]; weight γ (1) and bias β (0) [C]; buffers running_mean (0), running_var (1)
    [C], num_batches_tracked [].

    Ioffe & Szegedy, Batch normalization (2015).

    >>> layer = weft.nn.BatchNorm2d(3)
    >>> layer(weft.rand(2, 3, 4, 4)).shape, layer.num_batches_tracked.item()
    ((2, 3, 4, 4), 1)
    """

    ranks = (4,)


@layer()
class BatchNorm3d(_BatchNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel over the batch and all positions; see `BatchNorm2d`.

    Shape: input and output [B, C, D, H, W]; weight γ and bias β [C].

    >>> weft.nn.BatchNorm3d(3)(weft.rand(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """

    ranks = (5,)


@layer("", oracle="torch.nn.BatchNorm2d")
class SyncBatchNorm(_BatchNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel over the batches of all processes.

    Weft runs a model in one process on one device, where that is `BatchNorm2d` for inputs of any rank: the class is
    there so that programs and state_dicts that name it work. `process_group` must be None.

    Shape: input and output [B, C, *]; weight γ and bias β [C].

    >>> model = weft.nn.Sequential(weft.nn.BatchNorm1d(3))
    >>> weft.nn.SyncBatchNorm.convert_sync_batchnorm(model)[0]
    SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """

    ranks = (2, 3, 4, 5, 6, 7, 8)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        if process_group is not None:
            raise problem(RangeError, "SyncBatchNorm", "a process_group", "None: there is one process")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """`module` with every BatchNorm in it replaced by a SyncBatchNorm that has its parameters and buffers."""
        result = module
        if isinstance(module, _BatchNorm):
            result = cls(
                module.num_features, module.eps, module.momentum, False, module.track_running_stats, process_group
            )
            result.affine = module.affine
            for name, param in module._parameters.items():
                result._parameters[name] = param
            for name, buffer in module._buffers.items():
                result._buffers[name] = buffer
            result.training = module.training
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_group)
            if converted is not child:
                result._modules[name] = converted
        return result


class _InstanceNorm(_NormBase):
    """Normalization of each channel of each sample; see `InstanceNorm2d`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check(input)
        single = input.ndim == self.ranks[0]  # [C, *]: one sample
        channels = input.shape[0 if single else 1]
        if channels != self.num_features:
            given = f"an input of {channels} channels, shape {tuple(input.shape)}"
            error = problem(ShapeError, type(self).__name__, given, f"{self.num_features} channels")
            if self.affine or self.track_running_stats:
                raise error
            warnings.warn(f"{error} Nothing depends on num_features without affine.", stacklevel=3)
        x = input.unsqueeze(0) if single else input
        y = F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return y.squeeze(0) if single else y


@layer()
class InstanceNorm1d(_InstanceNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel of each sample; see `InstanceNorm2d`.

    Shape: input and output [B, C, L] or [C, L].

    >>> weft.nn.InstanceNorm1d(3)(weft.rand(4, 3, 5)).shape
    (4, 3, 5)
    """

    ranks = (2, 3)


@layer("L040", aliases=("InstanceNormalizationLayer",))
class InstanceNorm2d(_InstanceNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² over the positions of each channel of each sample.

    With `affine` there are γ (1) and β (0). With `track_running_stats` evaluation uses running statistics: the mean
    over the batch of those of the samples.

    Shape: input and output [B, C, H, W] or [C, H, W]; weight γ and bias β [C].

    Ulyanov et al., Instance normalization (2016).

    >>> weft.nn.InstanceNorm2d(3)(weft.rand(2, 3, 4, 4)).shape
    (2, 3, 4, 4)
    """

    ranks = (3, 4)


@layer()
class InstanceNorm3d(_InstanceNorm):
    """y = γ (x - μ) / √(σ² + ε) + β, with μ and σ² of each channel of each sample; see `InstanceNorm2d`.

    Shape: input and output [B, C, D, H, W] or [C, D, H, W].

    >>> weft.nn.InstanceNorm3d(3)(weft.rand(2, 3, 2, 2, 2)).shape
    (2, 3, 2, 2, 2)
    """

    ranks = (4, 5)
