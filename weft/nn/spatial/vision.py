"""Layers that move pixels: spatial transformers and optical flow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange, tensor
from weft.core.tensor import Tensor
from weft.names.functions import cat, stack
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.linear import LazyLinear, Linear
from weft.nn.containers import ModuleList
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.spatial.convolution import Conv2d

SPYNET_WIDTHS = (32, 64, 32, 16)


class _Localization(Module):
    """The affine map of an image: channel mean, Linear(H·W, 32), tanh, Linear(32, 6), which starts as the identity."""

    def __init__(self, size: tuple[int, int] | None, device: Any = None, dtype: Any = None):
        super().__init__()
        if size is None:
            self.fc1: Linear = LazyLinear(32, device=device, dtype=dtype)
        else:
            self.fc1 = Linear(size[0] * size[1], 32, device=device, dtype=dtype)
        self.fc2 = Linear(32, 6, device=device, dtype=dtype)
        init.zeros_(self.fc2.weight)
        identity = tensor([1.0, 0.0, 0.0, 0.0, 1.0, 0.0], device=device, dtype=dtype)
        self.fc2.bias = Parameter(identity.to(self.fc2.weight.dtype))

    def forward(self, input: Tensor) -> Tensor:
        return self.fc2(self.fc1(input.mean(1).flatten(1)).tanh())


@layer("L104", aliases=("SpatialTransformerLayer",), oracle="torch: affine_grid, grid_sample")
class SpatialTransformer(Module):
    """y = grid_sample(x, affine_grid(θ)) with θ = localization(x): the image seen through an affine map that is learned
    (Jaderberg et al. 2015).

    Shape: input [B, C, H, W], output [B, C, *output_size], by default [B, C, H, W]. `localization` is a module that
    gives [B, 2, 3] or [B, 6]; None stands for the mean over channels, Linear(H·W, 32), tanh and Linear(32, 6), which
    starts as the identity. The first Linear is for images of `input_size`, or, without one, lazy: it takes the size
    of the first input.

    >>> layer = weft.nn.SpatialTransformer(input_size=(4, 4))
    >>> x = weft.rand(1, 2, 4, 4)
    >>> weft.allclose(layer(x), x, atol=1e-6)
    True
    """

    def __init__(
        self,
        localization: Module | None = None,
        output_size: tuple[int, int] | None = None,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
        input_size: tuple[int, int] | None = None,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        self.output_size, self.mode, self.padding_mode = output_size, mode, padding_mode
        self.align_corners = align_corners
        self.localization = _Localization(input_size, device, dtype) if localization is None else localization

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4:
            raise problem(ShapeError, "SpatialTransformer", f"shape {tuple(input.shape)}", "[B, C, H, W]")
        theta = self.localization(input)
        if tuple(theta.shape) not in ((len(input), 2, 3), (len(input), 6)):
            given = f"{tuple(theta.shape)} from the localization"
            raise problem(ShapeError, "SpatialTransformer", given, f"[{len(input)}, 2, 3] or [{len(input)}, 6]")
        size = (*input.shape[:2], *(self.output_size or input.shape[2:]))
        grid = F.affine_grid(theta.reshape(-1, 2, 3), size, align_corners=self.align_corners)
        return F.grid_sample(input, grid, self.mode, self.padding_mode, align_corners=self.align_corners)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, mode={self.mode!r}, padding_mode={self.padding_mode!r}"


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """`image` [B, C, H, W] at (x + flow_x, y + flow_y), bilinear, with the nearest edge outside; flow is [B, 2, H, W],
    x first. A flow of whole numbers is an exact shift.

    >>> flow = weft.tensor([1.0, 0.0]).reshape(1, 2, 1, 1).expand(1, 2, 1, 3)
    >>> weft.nn.spatial.vision.warp(weft.tensor([[[[1.0, 2.0, 3.0]]]]), flow)
    tensor([[[[2., 3., 3.]]]])
    """
    height, width = image.shape[2:]
    x = arange(width, device=flow.device).to(flow.dtype)
    y = arange(height, device=flow.device).to(flow.dtype).unsqueeze(1)
    moved_x = (x + flow[:, 0]).clamp(0, width - 1) - x  # in elements, so that whole numbers stay whole
    moved_y = (y + flow[:, 1]).clamp(0, height - 1) - y
    return F.deform_unfold(image, stack([moved_y, moved_x], 1), kernel_size=1).squeeze(2)


class _FlowBlock(ModuleList):
    """7 x 7 convolutions with ReLU between them: the residual flow of one level."""

    def __init__(self, in_channels: int, hidden: Sequence[int], device: Any, dtype: Any):
        widths = (in_channels, *hidden, 2)
        super().__init__(
            Conv2d(before, after, 7, padding=3, device=device, dtype=dtype)
            for before, after in itertools.pairwise(widths)
        )

    def forward(self, input: Tensor) -> Tensor:
        for number, conv in enumerate(self):
            input = conv(F.relu(input) if number else input)
        return input


@layer("L105", aliases=("SpyNetLayer",), oracle="torch: avg_pool2d, interpolate, grid_sample, conv2d")
class SpyNet(Module):
    """Optical flow from a spatial pyramid (Ranjan & Black 2017). The frames are halved by 2 x 2 averages `levels` - 1
    times; from the coarsest level to the finest, f↑ = 2 · bilinear_up(f) (0 at the coarsest; pixels are areas,
    align_corners=False) and f = f↑ + G_l([I1, warp(I2, f↑), f↑]), where G_l is five 7 x 7 convolutions
    (2C+2 → 32 → 64 → 32 → 16 → 2, or the `hidden` widths given) with ReLU between them. warp(I, f) is I at (x + f_x, y
    + f_y), bilinear, with border padding.

    Shape: two frames [B, C, H, W], or one input [B, 2 C, H, W]; H and W are multiples of 2^(levels - 1). Output
    [B, 2, H, W]: the way of every pixel of frame 1 to where it is in frame 2, x first. blocks[0] is the coarsest level.

    >>> net = weft.nn.SpyNet(levels=2, in_channels=1)
    >>> net(weft.rand(1, 1, 8, 8), weft.rand(1, 1, 8, 8)).shape
    (1, 2, 8, 8)
    """

    def __init__(
        self,
        levels: int = 5,
        in_channels: int = 3,
        hidden: Sequence[int] = SPYNET_WIDTHS,
        device: Any = None,
        dtype: Any = None,
    ):
        super().__init__()
        if min(levels, in_channels) < 1:
            given = f"levels={levels} and in_channels={in_channels}"
            raise problem(RangeError, "SpyNet", given, "at least 1 of each")
        self.levels, self.in_channels = levels, in_channels
        self.blocks = ModuleList(_FlowBlock(2 * in_channels + 2, hidden, device, dtype) for _ in range(levels))

    def forward(self, first: Tensor, second: Tensor | None = None) -> Tensor:
        if second is None:
            if first.ndim != 4 or first.shape[1] != 2 * self.in_channels:
                given = f"one input of shape {tuple(first.shape)}"
                raise problem(ShapeError, "SpyNet", given, f"two frames, or [B, {2 * self.in_channels}, H, W]")
            first, second = first.chunk(2, 1)
        self._check(first, second)
        pyramid = [(first, second)]
        for _ in range(self.levels - 1):
            pyramid.append(tuple([F.avg_pool2d(frame, 2) for frame in pyramid[-1]]))  # type: ignore[arg-type]
        coarsest = pyramid[-1][0]
        flow = coarsest[:, :1].expand(-1, 2, -1, -1) * 0.0
        for number, (one, other) in enumerate(reversed(pyramid)):
            if number:
                flow = 2.0 * F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=False)
            flow = flow + self.blocks[number](cat([one, warp(other, flow), flow], 1))
        return flow

    def _check(self, first: Tensor, second: Tensor) -> None:
        step = 2 ** (self.levels - 1)
        fits = first.ndim == 4 and first.shape[1] == self.in_channels and first.shape == second.shape
        if not fits or first.shape[2] % step or first.shape[3] % step or 0 in first.shape[2:]:
            given = f"frames of shapes {tuple(first.shape)} and {tuple(second.shape)}"
            expected = f"both [B, {self.in_channels}, H, W], H and W multiples of {step}"
            raise problem(ShapeError, "SpyNet", given, expected, "resize the frames, or use fewer levels")

    def extra_repr(self) -> str:
        return f"levels={self.levels}, in_channels={self.in_channels}"
