"""Blocks with a path around them: residual, densely connected and gated ones, and RepVGG's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.autograd import no_grad
from weft.base.errors import GraphError, RangeError, ShapeError, problem
from weft.core.tensor import Tensor
from weft.names.functions import cat
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.batch_and_instance_norm import BatchNorm2d
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.containers import Sequential
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer
from weft.nn.spatial.convolution import Conv2d


def _conv(size: int, in_channels: int, out_channels: int, stride: int = 1, **options: Any) -> Conv2d:
    """A convolution that keeps the extents (divided by the stride), without a bias."""
    return Conv2d(in_channels, out_channels, size, stride, size // 2, bias=False, **options)


def _shortcut(in_channels: int, out_channels: int, stride: int, like: dict[str, Any]) -> Sequential | None:
    """What brings x to the shape of the result: nothing, or a 1×1 convolution with BatchNorm."""
    if stride == 1 and in_channels == out_channels:
        return None
    return Sequential(_conv(1, in_channels, out_channels, stride, **like), BatchNorm2d(out_channels, **like))


@layer("L074", oracle="torchvision's BasicBlock, written with torch.nn modules")
class BasicBlock(Module):
    """y = ReLU(BN(conv3(ReLU(BN(conv3(x))))) + shortcut(x)).

    The first convolution has the stride. The shortcut is x itself, or BN(conv1(x)) where stride or channels change.
    `zero_init_residual` starts the last scale at 0, so that the block starts as its shortcut.

    Shape: input [B, in_channels, H, W], output [B, out_channels, ⌈H/stride⌉, ⌈W/stride⌉]; conv1, bn1, conv2, bn2,
    downsample.0 and .1 as in torchvision.

    He et al., Deep residual learning for image recognition (2016).

    >>> weft.nn.BasicBlock(4, 8, stride=2)(weft.rand(2, 4, 6, 6)).shape
    (2, 8, 3, 3)
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, zero_init_residual: bool = False,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv1 = _conv(3, in_channels, out_channels, stride, **like)
        self.bn1 = BatchNorm2d(out_channels, **like)
        self.conv2 = _conv(3, out_channels, out_channels, **like)
        self.bn2 = BatchNorm2d(out_channels, **like)
        self.downsample = _shortcut(in_channels, out_channels, stride, like)
        if zero_init_residual:
            init.zeros_(self.bn2.weight)

    def forward(self, input: Tensor) -> Tensor:
        shortcut = input if self.downsample is None else self.downsample(input)
        x = F.relu(self.bn1(self.conv1(input)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


@layer("L075", aliases=("BottleneckBlock",), oracle="torchvision's Bottleneck, written with torch.nn modules")
class Bottleneck(Module):
    """y = ReLU(BN(conv1(ReLU(BN(conv3(ReLU(BN(conv1(x)))))))) + shortcut(x)): 1×1, 3×3 with the stride, 1×1.

    The 1×1 convolutions bring the channels to `planes` and then to 4 · planes. The shortcut is as in `BasicBlock`.

    Shape: input [B, in_channels, H, W], output [B, 4·planes, ⌈H/stride⌉, ⌈W/stride⌉]; conv1 to conv3, bn1 to bn3,
    downsample.0 and .1 as in torchvision.

    He et al., Deep residual learning for image recognition (2016).

    >>> weft.nn.Bottleneck(8, 2, stride=2)(weft.rand(2, 8, 6, 6)).shape
    (2, 8, 3, 3)
    """

    expansion = 4

    def __init__(
        self, in_channels: int, planes: int, stride: int = 1, zero_init_residual: bool = False, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        out_channels = self.expansion * planes
        self.conv1 = _conv(1, in_channels, planes, **like)
        self.bn1 = BatchNorm2d(planes, **like)
        self.conv2 = _conv(3, planes, planes, stride, **like)
        self.bn2 = BatchNorm2d(planes, **like)
        self.conv3 = _conv(1, planes, out_channels, **like)
        self.bn3 = BatchNorm2d(out_channels, **like)
        self.downsample = _shortcut(in_channels, out_channels, stride, like)
        if zero_init_residual:
            init.zeros_(self.bn3.weight)

    def forward(self, input: Tensor) -> Tensor:
        shortcut = input if self.downsample is None else self.downsample(input)
        x = F.relu(self.bn1(self.conv1(input)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + shortcut)


@layer("L076", aliases=("DenseBlockLayer",), oracle="torchvision's _DenseLayer, written with torch.nn modules")
class DenseNetLayer(Module):
    """y = dropout(conv3(ReLU(BN(conv1(ReLU(BN(x))))))): `growth_rate` new channels, made through bn_size · growth_rate.

    Shape: input [B, in_channels, H, W], output [B, growth_rate, H, W], the new channels only; norm1, conv1, norm2,
    conv2 as in torchvision.

    Huang et al., Densely connected convolutional networks (2017).

    >>> weft.nn.DenseNetLayer(4, 2)(weft.rand(2, 4, 5, 5)).shape
    (2, 2, 5, 5)
    """

    def __init__(
        self, in_channels: int, growth_rate: int, bn_size: int = 4, drop_rate: float = 0.0, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.drop_rate = drop_rate
        self.norm1 = BatchNorm2d(in_channels, **like)
        self.conv1 = _conv(1, in_channels, bn_size * growth_rate, **like)
        self.norm2 = BatchNorm2d(bn_size * growth_rate, **like)
        self.conv2 = _conv(3, bn_size * growth_rate, growth_rate, **like)

    def forward(self, input: Tensor) -> Tensor:
        x = self.conv1(F.relu(self.norm1(input)))
        x = self.conv2(F.relu(self.norm2(x)))
        return F.dropout(x, self.drop_rate, self.training) if self.drop_rate > 0 else x


@layer("", oracle="torchvision's _DenseBlock, written with torch.nn modules")
class DenseBlock(Module):
    """x_{k+1} = [x_k, DenseNetLayer_k(x_k)]: every layer sees the input and all channels made before it.

    Shape: input [B, in_channels, H, W], output [B, in_channels + num_layers · growth_rate, H, W]; denselayer1,
    denselayer2, ... as in torchvision.

    Huang et al., Densely connected convolutional networks (2017).

    >>> weft.nn.DenseBlock(2, 4, growth_rate=3)(weft.rand(2, 4, 5, 5)).shape
    (2, 10, 5, 5)
    """

    def __init__(
        self, num_layers: int, in_channels: int, growth_rate: int, bn_size: int = 4, drop_rate: float = 0.0,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        for k in range(num_layers):
            made = DenseNetLayer(in_channels + k * growth_rate, growth_rate, bn_size, drop_rate, device, dtype)
            self.add_module(f"denselayer{k + 1}", made)

    def forward(self, input: Tensor) -> Tensor:
        features = [input]
        for one in self.children():
            features.append(one(cat(features, 1)))
        return cat(features, 1)


@layer("L081", aliases=("TransitionLayer",), oracle="torchvision's _Transition, written with torch.nn modules")
class Transition(Module):
    """y = avg_pool2(conv1(ReLU(BN(x)))): between dense blocks, fewer channels and half the extents.

    Shape: input [B, in_channels, H, W], output [B, ⌊in_channels · compression⌋, ⌊H/2⌋, ⌊W/2⌋]; norm, conv as in
    torchvision.

    Huang et al., Densely connected convolutional networks (2017).

    >>> weft.nn.Transition(6)(weft.rand(2, 6, 4, 4)).shape
    (2, 3, 2, 2)
    """

    def __init__(self, in_channels: int, compression: float = 0.5, device: Any = None, dtype: Any = None):
        super().__init__()
        out_channels = int(in_channels * compression)
        if out_channels < 1:
            given = f"in_channels={in_channels} and compression={compression}"
            raise problem(RangeError, "Transition", given, "at least one channel left")
        self.norm = BatchNorm2d(in_channels, device=device, dtype=dtype)
        self.conv = _conv(1, in_channels, out_channels, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(input))), 2)


@layer("L077", aliases=("HighwayLayer",), oracle="the equation, with torch.nn.Linear")
class Highway(Module):
    """y = t ⊙ act(W_H x + b_H) + (1 - t) ⊙ x with the gate t = σ(W_T x + b_T).

    b_T starts at `gate_bias`; below 0, the layer starts near the identity.

    Shape: input and output [*, size]; transform.weight and gate.weight [size, size], transform.bias and gate.bias
    [size].

    Srivastava, Greff & Schmidhuber, Highway networks (2015).

    >>> weft.nn.Highway(4)(weft.ones(2, 4)).shape
    (2, 4)
    """

    def __init__(
        self, size: int, activation: Any = "relu", gate_bias: float = -2.0, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.transform = Linear(size, size, device=device, dtype=dtype)
        self.gate = Linear(size, size, device=device, dtype=dtype)
        self.activation = make_activation(activation)
        init.constant_(self.gate.bias, gate_bias)

    def forward(self, input: Tensor) -> Tensor:
        gate = self.gate(input).sigmoid()
        x = self.transform(input)
        x = x if self.activation is None else self.activation(x)
        return gate * x + (1 - gate) * input


@layer("L078", oracle="basicsr's ResidualDenseBlock, written with torch.nn modules")
class ResidualDenseBlock(Module):
    """y = x + scale · x₅, where x_k = LeakyReLU(conv_k([x, x₁, ..., x_{k-1}])) for k < 5 and x₅ = conv₅([x, ..., x₄]).

    The slope of LeakyReLU is 0.2.

    Shape: input and output [B, nf, H, W]; conv1 to conv5, 3×3 with a bias; the first four make gc channels.

    Wang et al., ESRGAN (2018).

    >>> weft.nn.ResidualDenseBlock(4, 2)(weft.ones(1, 4, 5, 5)).shape
    (1, 4, 5, 5)
    """

    def __init__(self, nf: int = 64, gc: int = 32, scale: float = 0.2, device: Any = None, dtype: Any = None):
        super().__init__()
        self.scale = scale
        for k in range(5):
            made = Conv2d(nf + k * gc, gc if k < 4 else nf, 3, padding=1, device=device, dtype=dtype)
            self.add_module(f"conv{k + 1}", made)

    def forward(self, input: Tensor) -> Tensor:
        *inner, last = self.children()
        features = [input]
        for conv in inner:
            features.append(F.leaky_relu(conv(cat(features, 1)), 0.2))
        return input + self.scale * last(cat(features, 1))


@layer("L080", aliases=("RRDBLayer",), oracle="basicsr's RRDB, written with torch.nn modules")
class RRDB(Module):
    """y = x + scale · RDB₃(RDB₂(RDB₁(x))), a residual block of three `ResidualDenseBlock`s.

    Shape: input and output [B, nf, H, W]; rdb1 to rdb3.

    Wang et al., ESRGAN (2018).

    >>> weft.nn.RRDB(4, 2)(weft.ones(1, 4, 5, 5)).shape
    (1, 4, 5, 5)
    """

    def __init__(self, nf: int = 64, gc: int = 32, scale: float = 0.2, device: Any = None, dtype: Any = None):
        super().__init__()
        self.scale = scale
        self.rdb1 = ResidualDenseBlock(nf, gc, scale, device, dtype)
        self.rdb2 = ResidualDenseBlock(nf, gc, scale, device, dtype)
        self.rdb3 = ResidualDenseBlock(nf, gc, scale, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        return input + self.scale * self.rdb3(self.rdb2(self.rdb1(input)))


@layer("L079", aliases=("ResidualLayer",), oracle="the equation, with torch.nn modules")
class Residual(Module):
    """y = act(shortcut(x) + fn(x)); the shortcut is x unless given.

    Shape: those of `fn` and `shortcut`, whose results must have the same shape.

    >>> weft.nn.Residual(weft.nn.Linear(3, 3), activation="relu")(weft.ones(2, 3)).shape
    (2, 3)
    """

    def __init__(
        self, fn: Callable[[Tensor], Tensor], shortcut: Callable[[Tensor], Tensor] | None = None,
        activation: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.fn, self.shortcut = fn, shortcut
        self.activation = make_activation(activation)

    def forward(self, input: Tensor) -> Tensor:
        x = self.fn(input)
        around = input if self.shortcut is None else self.shortcut(input)
        if x.shape != around.shape:
            given = f"fn(x) of shape {tuple(x.shape)} and shortcut(x) of shape {tuple(around.shape)}"
            raise problem(ShapeError, "Residual", given, "equal shapes", "give a shortcut that changes the shape")
        y = around + x
        return y if self.activation is None else self.activation(y)


@layer("", oracle="the sum of its branches, written with torch.nn modules")
class RepVGGBlock(Module):
    """y = act(BN(conv3(x)) + BN(conv1(x)) + BN(x)), which `fuse()` makes one convolution: y = act(conv3'(x)).

    The branch BN(x) is there where stride is 1 and the channels stay the same. In evaluation every branch is linear:
    BN scales its kernel, the 1×1 kernel is a 3×3 one with zeros around it, and x itself is one with a 1 in the middle.

    Shape: input [B, in_channels, H, W], output [B, out_channels, ⌈H/stride⌉, ⌈W/stride⌉]; conv3, bn3, conv1, bn1, bn
    before `fuse()`, conv with weight [out_channels, in_channels / groups, 3, 3] and bias [out_channels] after it.

    Ding et al., RepVGG: making VGG-style ConvNets great again (2021).

    >>> block = weft.nn.RepVGGBlock(3, 3).eval()
    >>> x = weft.rand(1, 3, 5, 5)
    >>> y = block(x)
    >>> weft.allclose(block.fuse()(x), y, atol=1e-6), [name for name, _ in block.named_children()]
    (True, ['activation', 'conv'])
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int = 1, groups: int = 1, activation: Any = "relu",
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        like: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_channels, self.out_channels, self.stride, self.groups = in_channels, out_channels, stride, groups
        self.activation = make_activation(activation)
        self.conv3 = _conv(3, in_channels, out_channels, stride, groups=groups, **like)
        self.bn3 = BatchNorm2d(out_channels, **like)
        self.conv1 = _conv(1, in_channels, out_channels, stride, groups=groups, **like)
        self.bn1 = BatchNorm2d(out_channels, **like)
        self.bn = BatchNorm2d(out_channels, **like) if stride == 1 and in_channels == out_channels else None

    @property
    def is_fused(self) -> bool:
        """Whether the block is one convolution."""
        return "conv" in self._modules

    def forward(self, input: Tensor) -> Tensor:
        if self.is_fused:
            y = self.conv(input)
        else:
            y = self.bn3(self.conv3(input)) + self.bn1(self.conv1(input))
            y = y if self.bn is None else y + self.bn(input)
        return y if self.activation is None else self.activation(y)

    def fuse(self) -> RepVGGBlock:
        """Replace the branches by one convolution with the results that they have in evaluation; returns the block."""
        if self.is_fused:
            return self
        if self.training:
            raise problem(GraphError, "RepVGGBlock.fuse", "a block in training", "one in evaluation", "call eval()")
        with no_grad():
            kernels = [self._fuse_batch_norm(self.conv3.weight, self.bn3)]
            kernels.append(self._fuse_batch_norm(F.pad(self.conv1.weight, (1, 1, 1, 1)), self.bn1))
            if self.bn is not None:
                kernels.append(
                    self._fuse_batch_norm(init.dirac_(self.conv3.weight.detach().clone(), self.groups), self.bn)
                )
            made = Conv2d(self.in_channels, self.out_channels, 3, self.stride, 1, groups=self.groups)
            made.weight = Parameter(sum([weight for weight, _ in kernels[1:]], kernels[0][0]))
            made.bias = Parameter(sum([bias for _, bias in kernels[1:]], kernels[0][1]))
        for name in ("conv3", "bn3", "conv1", "bn1", "bn"):
            delattr(self, name)
        self.conv = made.eval()
        return self

    @staticmethod
    def _fuse_batch_norm(kernel: Tensor, bn: BatchNorm2d) -> tuple[Tensor, Tensor]:
        """The kernel and bias of BN(conv(x)) in evaluation."""
        from weft.nn.utils.fusion import fuse_conv_bn_weights

        return fuse_conv_bn_weights(kernel, None, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias)
