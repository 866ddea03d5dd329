"""Dense layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import finfo, float64
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, tensor
from weft.core.tensor import Tensor
from weft.names.functions import einsum, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.named_activation import make_activation
from weft.nn.lazy import LazyModuleMixin, UninitializedParameter, infer_size
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


def _check_features(who: str, name: str, input: Tensor, expected: int) -> None:
    """The last axis has the features that a layer was made for."""
    if not input.ndim or input.shape[-1] != expected:
        raise problem(ShapeError, who, f"{name} of shape {list(input.shape)}", f"[*, {expected}]")


def _draw_uniform(fan_in: int, *params: Parameter | None) -> None:
    """U(-1/√fan_in, 1/√fan_in) for all parameters."""
    bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0.0
    for param in params:
        if param is not None:
            init.uniform_(param, -bound, bound)


@layer("L026 L027", aliases=("DenseLayer", "Dense", "FullyConnected", "FullyConnectedLayer"))
class Linear(Module):
    """y = f(x Wᵀ + b); f is `activation`, a name or a function, and none by default.

    Shape: input [*, in_features], output [*, out_features]; weight [out_features, in_features], bias [out_features].
    Both start as U(-1/√in_features, 1/√in_features).

    >>> layer = weft.nn.Linear(3, 2)
    >>> layer(weft.ones(5, 3)).shape
    (5, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        activation: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.activation = make_activation(activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        _draw_uniform(self.in_features, self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        _check_features("Linear", "an input", input, self.in_features)
        output = F.linear(input, self.weight, self.bias)
        return output if self.activation is None else self.activation(output)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


Dense = FullyConnected = Linear


@layer()
class LazyLinear(LazyModuleMixin, Linear):
    """y = f(x Wᵀ + b), where in_features is the extent of the last axis of the first input; a Linear from then on.

    >>> layer = weft.nn.LazyLinear(2)
    >>> layer(weft.ones(5, 3)).shape, layer.in_features
    ((5, 2), 3)
    """

    cls_to_become = Linear
    weight: Any

    def __init__(
        self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *, activation: Any = None
    ):
        super().__init__(0, 0, False, activation=activation)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draw the parameters again, when they have shapes."""
        if self.in_features and not self.has_uninitialized_params():
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        """Take in_features from an input."""
        infer_size(self, "in_features", input.shape[-1], self.weight, 1)
        if self.has_uninitialized_params():
            self.weight.materialize((self.out_features, self.in_features))
            if self.bias is not None:
                self.bias.materialize((self.out_features,))
            self.reset_parameters()


@layer()
class Bilinear(Module):
    """y_o = x₁ᵀ W_o x₂ + b_o.

    Shape: inputs [*, in1_features] and [*, in2_features], output [*, out_features]; weight [out_features, in1_features,
    in2_features], bias [out_features]. Both start as U(-1/√in1_features, 1/√in1_features).

    >>> weft.nn.Bilinear(3, 4, 2)(weft.ones(5, 3), weft.ones(5, 4)).shape
    (5, 2)
    """

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if in1_features <= 0:
            raise problem(RangeError, "Bilinear", f"in1_features={in1_features}", "a number from 1 on")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(out_features, in1_features, in2_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        _draw_uniform(self.in1_features, self.weight, self.bias)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        _check_features("Bilinear", "a first input", input1, self.in1_features)
        _check_features("Bilinear", "a second input", input2, self.in2_features)
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


@layer("L028", aliases=("LocallyConnectedLayer", "LocallyConnected"), oracle="torch.nn.functional.unfold and einsum")
class LocallyConnected2d(Module):
    """y[b, o, p] = Σ_{c, k} W[p, o, c, k] · patch[b, c, k, p] + bias[o, p]: a convolution whose weights differ from
    position to position; p runs over the OH · OW positions.

    Shape: input [B, in_channels, *input_size], output [B, out_channels, OH, OW], OH = (H + 2 padding - k) / stride + 1;
    weight [OH · OW, out_channels, in_channels, kH · kW], bias [out_channels, OH, OW]. Both start as
    U(-1/√fan_in, 1/√fan_in), fan_in = in_channels · kH · kW.

    >>> weft.nn.LocallyConnected2d(3, 2, input_size=5, kernel_size=3)(weft.ones(1, 3, 5, 5)).shape
    (1, 2, 3, 3)
    """

    def __init__(
        self, in_channels: int, out_channels: int, input_size: int | Sequence[int], kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1, padding: int | Sequence[int] = 0, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        self.input_size, self.kernel_size = _pair(input_size), _pair(kernel_size)
        self.stride, self.padding = _pair(stride), _pair(padding)
        sizes = zip(self.input_size, self.kernel_size, self.stride, self.padding, strict=True)
        self.output_size = tuple((size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in sizes)
        if min(self.output_size) < 1:
            given = f"input_size={self.input_size} and kernel_size={self.kernel_size} with padding={self.padding}"
            raise problem(ShapeError, "LocallyConnected2d", given, "a kernel that fits into the input")
        positions, inside = math.prod(self.output_size), math.prod(self.kernel_size)
        form = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(positions, out_channels, in_channels, inside, **form))
        self.register_parameter("bias", Parameter(empty(out_channels, *self.output_size, **form)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        _draw_uniform(self.in_channels * math.prod(self.kernel_size), self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        if tuple(input.shape)[1:] != (self.in_channels, *self.input_size):
            expected = f"[B, {self.in_channels}, {self.input_size[0]}, {self.input_size[1]}]"
            raise problem(ShapeError, "LocallyConnected2d", f"shape {list(input.shape)}", expected)
        patches = F.unfold(
            input, self.kernel_size, padding=self.padding, stride=self.stride
        )  # [B, C · kH · kW, OH · OW]
        output = einsum("bip,poi->bop", patches, self.weight.flatten(2)).unflatten(-1, self.output_size)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, input_size={self.input_size}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, bias={self.bias is not None}"
        )


def _of_square(square: Tensor, function: Any, series: tuple[float, float]) -> Tensor:
    """function(√u) / √u for u = `square`; near 0 by 1 + series[0] u + series[1] u², whose slope is finite."""
    small = square < 1e-6
    root = where(small, 1.0, square).sqrt()
    return where(small, 1 + square * (series[0] + series[1] * square), function(root) / root)


def expmap0(v: Tensor, c: float = 1.0) -> Tensor:
    """tanh(√c ‖v‖) v / (√c ‖v‖): the point of the ball of curvature -c that the tangent vector v at 0 leads to."""
    square = c * (v * v).sum(-1, keepdim=True)
    return v * _of_square(square, lambda root: root.tanh(), (-1 / 3, 2 / 15))


def logmap0(y: Tensor, c: float = 1.0) -> Tensor:
    """artanh(√c ‖y‖) y / (√c ‖y‖): the inverse of `expmap0`. Points at and beyond the border count as just inside."""
    square = (c * (y * y).sum(-1, keepdim=True)).clamp(max=(1 - finfo(y.dtype).eps) ** 2)
    return y * _of_square(square, lambda root: root.atanh(), (1 / 3, 1 / 5))


def mobius_add(x: Tensor, y: Tensor, c: float = 1.0) -> Tensor:
    """x ⊕ y = ((1 + 2c⟨x, y⟩ + c‖y‖²) x + (1 - c‖x‖²) y) / (1 + 2c⟨x, y⟩ + c²‖x‖²‖y‖²)."""
    inner = 2 * c * (x * y).sum(-1, keepdim=True)
    xx, yy = c * (x * x).sum(-1, keepdim=True), c * (y * y).sum(-1, keepdim=True)
    return ((1 + inner + yy) * x + (1 - xx) * y) / (1 + inner + xx * yy)


def project_to_ball(y: Tensor, c: float = 1.0) -> Tensor:
    """y, shortened to the norm (1 - 4e-3) / √c ((1 - 1e-5) / √c in float64) where it is longer."""
    most = (1 - (1e-5 if y.dtype is float64 else 4e-3)) / math.sqrt(c)
    square = (y * y).sum(-1, keepdim=True)
    outside = square > most * most
    return where(outside, y * (most / where(outside, square, 1.0).sqrt()), y)


@layer("L029", aliases=("HyperbolicLinearLayer",), oracle="the formula in float64 NumPy; W = I, b = 0 is the identity")
class HyperbolicLinear(Module):
    """y = proj(exp₀(W log₀(x)) ⊕ exp₀(b)): a linear layer between Poincaré balls of curvature -c (Ganea et al. 2018).

    exp₀, log₀ and ⊕ are `expmap0`, `logmap0` and `mobius_add` of this file; proj keeps the result inside the ball. With
    tangent_input=True x is a tangent vector at 0, first mapped by exp₀. For c → 0 the layer is Linear.
    Shape: input [*, in_features] with √c ‖x‖ < 1, output [*, out_features]; weight [out_features, in_features], bias
    [out_features], both Euclidean and initialised as those of Linear.

    >>> y = weft.nn.HyperbolicLinear(3, 2)(weft.full((5, 3), 0.5))
    >>> bool((y.norm(dim=-1) < 1).all())
    True
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, c: float = 1.0, tangent_input: bool = False,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        if not c > 0:
            raise problem(RangeError, "HyperbolicLinear", f"c={c!r}", "a number above 0")
        self.in_features, self.out_features, self.c, self.tangent_input = in_features, out_features, c, tangent_input
        self.weight = Parameter(empty(out_features, in_features, device=device, dtype=dtype))
        self.register_parameter("bias", Parameter(empty(out_features, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        _draw_uniform(self.in_features, self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        _check_features("HyperbolicLinear", "an input", input, self.in_features)
        tangent = input if self.tangent_input else logmap0(input, self.c)  # log₀(exp₀(x)) = x
        output = expmap0(F.linear(tangent, self.weight), self.c)
        if self.bias is not None:
            output = mobius_add(output, expmap0(self.bias, self.c), self.c)
        return project_to_ball(output, self.c)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"c={self.c}, tangent_input={self.tangent_input}"
        )


# eᵢeⱼ = eₖ for (i, j, k) in any rotation; eⱼeᵢ = -eₖ; the index of a product is always i ^ j.
_TRIPLES = ((1, 2, 3), (1, 4, 5), (2, 4, 6), (3, 4, 7), (1, 7, 6), (2, 5, 7), (3, 6, 5))


def octonion_signs() -> list[list[float]]:
    """signs[i][j] in eᵢ eⱼ = signs[i][j] e_{i ^ j}."""
    signs = [[1.0 if i == 0 or j == 0 else -1.0 for j in range(8)] for i in range(8)]  # e₀ = 1, eᵢeᵢ = -1
    for triple in _TRIPLES:
        for start in range(3):
            i, j = triple[start], triple[(start + 1) % 3]
            signs[i][j], signs[j][i] = 1.0, -1.0
    return signs


@layer("L030", aliases=("OctonionLinearLayer",), oracle="Cayley-Dickson products in NumPy")
class OctonionLinear(Module):
    """y_o = Σᵢ xᵢ ∘ w_{o,i} + b_o, ∘ the product of octonions with the input on the left (Wu et al. 2020).

    The product is that of quaternion pairs, (a, b) ∘ (c, d) = (ac - d̄b, da + bc̄): e₁e₂ = e₃, e₁e₄ = e₅, e₂e₄ = e₆,
    e₃e₄ = e₇, e₁e₇ = e₆, e₂e₅ = e₇, e₃e₆ = e₅ and rotations of these. It is computed as one product with the real
    matrix [8 out_features, 8 in_features] that the weights stand for.
    Shape: features are counted in octonions, whose 8 numbers are adjacent: input [*, 8 in_features], output
    [*, 8 out_features]; weight [out_features, in_features, 8], bias [out_features, 8]. Both start as
    U(-1/√(8 in_features), 1/√(8 in_features)).

    >>> weft.nn.OctonionLinear(3, 2)(weft.ones(5, 24)).shape
    (5, 16)
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        form = {"device": device, "dtype": dtype}
        self.weight = Parameter(empty(out_features, in_features, 8, **form))
        self.register_parameter("bias", Parameter(empty(out_features, 8, **form)) if bias else None)
        # Number k of x ∘ w is Σₐ xₐ signs[a][a ^ k] w_{a ^ k}.
        signs = octonion_signs()
        table = [[signs[a][a ^ k] for a in range(8)] for k in range(8)]
        self.register_buffer("_signs", tensor(table, **form), persistent=False)
        order = [[a ^ k for a in range(8)] for k in range(8)]
        self.register_buffer("_order", tensor(order, device=device), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        _draw_uniform(8 * self.in_features, self.weight, self.bias)

    def matrix(self) -> Tensor:
        """The real matrix: [8 out_features, 8 in_features]."""
        blocks = self.weight[..., self._order] * self._signs  # [out, in, 8 (k), 8 (a)]
        return blocks.transpose(1, 2).reshape(8 * self.out_features, 8 * self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        _check_features("OctonionLinear", "an input", input, 8 * self.in_features)
        return F.linear(input, self.matrix(), None if self.bias is None else self.bias.flatten())

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
