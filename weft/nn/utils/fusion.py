"""A convolution or dense layer and the BatchNorm after it as one layer, for evaluation.

BN(W x + b) = γ/√(σ² + ε) · (W x + b - μ) + β is again a layer of that kind, with weights of its own.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from weft.base.errors import GraphError, ShapeError, problem
from weft.core.creation import ones_like, zeros_like
from weft.core.tensor import Tensor
from weft.nn.parameter import Parameter

if TYPE_CHECKING:
    from weft.nn.basic.batch_and_instance_norm import _BatchNorm
    from weft.nn.basic.linear import Linear
    from weft.nn.spatial.convolution import _ConvNd

Conv = TypeVar("Conv", bound="_ConvNd")
Dense = TypeVar("Dense", bound="Linear")


def fuse_conv_bn_eval(conv: Conv, bn: _BatchNorm, transpose: bool = False) -> Conv:
    """A copy of `conv` whose results are those of bn(conv(x)); both must be in evaluation mode. `transpose` says that
    it is a transposed convolution.

    >>> conv, bn = weft.nn.Conv2d(2, 3, 3).eval(), weft.nn.BatchNorm2d(3).eval()
    >>> x = weft.rand(1, 2, 5, 5)
    >>> weft.allclose(weft.nn.utils.fuse_conv_bn_eval(conv, bn)(x), bn(conv(x)), atol=1e-6)
    True
    """
    _check("fuse_conv_bn_eval", conv, bn)
    made = copy.deepcopy(conv)
    made.weight, made.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return made


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a convolution followed by BatchNorm with these parameters and statistics."""
    scale = _scale(bn_rm, bn_rv, bn_eps, bn_w)
    ones = (1,) * (conv_w.ndim - 2)
    if transpose:  # [in, out / groups, ...]: every group of inputs has its own outputs
        ins, per_group = conv_w.shape[:2]
        groups = scale.numel() // per_group
        rows = conv_w.reshape(groups, ins // groups, *conv_w.shape[1:]) * scale.reshape(groups, 1, per_group, *ones)
        weight = rows.reshape(conv_w.shape).to(conv_w.dtype)
    else:
        weight = (conv_w * scale.reshape(-1, 1, *ones)).to(conv_w.dtype)
    return _parameters(conv_w, conv_b, bn_rm, bn_b, scale, weight)


def fuse_linear_bn_eval(linear: Dense, bn: _BatchNorm) -> Dense:
    """A copy of `linear` whose results are those of bn(linear(x)); both must be in evaluation mode.

    >>> linear, bn = weft.nn.Linear(2, 3).eval(), weft.nn.BatchNorm1d(3).eval()
    >>> x = weft.rand(4, 2)
    >>> weft.allclose(weft.nn.utils.fuse_linear_bn_eval(linear, bn)(x), bn(linear(x)), atol=1e-6)
    True
    """
    _check("fuse_linear_bn_eval", linear, bn)
    if bn.num_features not in (1, linear.out_features):
        given = f"out_features={linear.out_features} and num_features={bn.num_features}"
        raise problem(ShapeError, "fuse_linear_bn_eval", given, "equal numbers, or num_features=1")
    made = copy.deepcopy(linear)
    made.weight, made.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return made


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a dense layer followed by BatchNorm with these parameters and statistics."""
    bn_rm = bn_rm.expand(linear_w.shape[0])  # one channel stands for all features
    scale = _scale(bn_rm, bn_rv, bn_eps, bn_w)
    weight = (linear_w * scale.unsqueeze(-1)).to(linear_w.dtype)
    return _parameters(linear_w, linear_b, bn_rm, bn_b, scale, weight)


def _check(who: str, layer: Any, bn: Any) -> None:
    if layer.training or bn.training:
        raise problem(GraphError, who, "a module in training mode", "both in evaluation mode", "call eval() on both")
    if bn.running_mean is None or bn.running_var is None:
        raise problem(GraphError, who, "a BatchNorm without running statistics", "track_running_stats=True")


def _scale(mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None) -> Tensor:
    """What each channel is multiplied by."""
    return (ones_like(mean) if weight is None else weight) * (variance + eps).rsqrt()


def _parameters(
    old: Tensor, old_bias: Tensor | None, mean: Tensor, shift: Tensor | None, scale: Tensor, weight: Tensor
) -> tuple[Parameter, Parameter]:
    """The new weight, and (b - μ) · scale + β."""
    bias = (-mean if old_bias is None else old_bias - mean) * scale + (zeros_like(mean) if shift is None else shift)
    needs_grad = old_bias is not None and old_bias.requires_grad
    bias = bias.to(old.dtype if old_bias is None else old_bias.dtype)
    return Parameter(weight.detach(), old.requires_grad), Parameter(bias.detach(), needs_grad)
