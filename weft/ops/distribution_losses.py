"""Losses of probabilities: focal losses, divergences of distributions, and negative log-likelihoods.

`reduction` is 'mean', 'sum' or 'none', as in `weft.ops.loss`.
"""

from __future__ import annotations

import math

from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape, add, div, lt, mul, neg, select, sub, unary
from weft.graph.build import reduce as reduce_axes
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.activation import logsigmoid, sigmoid
from weft.ops.common import Operand, in_float32, meet, need_float, to_float
from weft.ops.indexing import user_site
from weft.ops.loss import _pair, _reduce_loss, cross_entropy, reduction_of
from weft.ops.registry import operation


@operation("functional")
@in_float32
def sigmoid_focal_loss(
    input: Node, target: Node, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Node:
    """-a (1 - p)^gamma log p from logits: p is the probability of the right answer, a is `alpha` for targets of 1 and
    1 - alpha for 0 (1 for both where `alpha` is negative). Name and meaning are torchvision's.

    >>> weft.nn.functional.sigmoid_focal_loss(weft.tensor([0.0]), weft.tensor([1.0]))
    tensor([0.0433])
    """
    z, y = _pair("sigmoid_focal_loss", input, target)
    p = sigmoid(z)
    right = add(mul(p, y), mul(sub(1.0, p), sub(1.0, y)))
    cross = neg(add(mul(y, logsigmoid(z)), mul(sub(1.0, y), logsigmoid(neg(z)))))
    loss = mul(cross, _focus(sub(1.0, right), gamma))
    if alpha >= 0:
        loss = mul(loss, add(mul(y, alpha), mul(sub(1.0, y), 1.0 - alpha)))
    return _reduce_loss("sigmoid_focal_loss", loss, reduction)


@operation("functional")
@in_float32
def softmax_focal_loss(
    input: Node,
    target: Node,
    alpha: float | Node | None = 0.25,
    gamma: float = 2.0,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Node:
    """-alpha (1 - p)^gamma log p, where p is the softmax of logits [N, K, ...] (or [K]) at integer labels [N, ...].
    `alpha` is one number for all classes, or one for each class [K]; None is 1. Labels that are `ignore_index` give 0,
    and the mean divides by the number of the others.

    >>> weft.nn.functional.softmax_focal_loss(weft.tensor([[0.0, 0.0]]), weft.tensor([1]), alpha=None)
    tensor(0.1733)
    """
    who = "softmax_focal_loss"
    cross = cross_entropy(input, target, reduction="none", ignore_index=ignore_index)  # -log p
    loss = mul(cross, _focus(neg(unary("expm1", neg(cross))), gamma))  # the miss is 1 - p
    counted = make_canonical("ne", (target, build.like(target, ignore_index)))
    if isinstance(alpha, Node):
        classes = input.shape[0 if len(input.shape) == 1 else 1]
        if alpha.shape != (classes,):
            raise problem(ShapeError, who, f"alpha of shape {alpha.shape}", f"a number, or one per class: ({classes},)")
        label = build.cast(select(counted, target, 0), int64)
        loss = mul(*meet(who, loss, build.gather(build.cast(alpha, loss.dtype), label, 0, user_site())))
    elif alpha is not None:
        loss = mul(loss, float(alpha))
    if reduction != "mean":
        return _reduce_loss(who, loss, reduction)
    return div(_reduce_loss(who, loss, "sum"), _reduce_loss(who, build.cast(counted, loss.dtype), "sum"))


def _focus(miss: Node, gamma: float) -> Node:
    """What is left to learn, to the power `gamma`; 1 for gamma = 0."""
    return mul(miss, miss) if gamma == 2 else build.binary("pow", miss, float(gamma))


@operation("functional")
@in_float32
def gaussian_kl(mean: Node, log_variance: Node, reduction: str = "mean") -> Node:
    """The divergence of N(mean, e^log_variance) from N(0, 1), summed over the last axis: -(1 + log s2 - m^2 - s2) / 2.

    >>> weft.nn.functional.gaussian_kl(weft.ones(1, 2), weft.zeros(1, 2))
    tensor(1.)
    """
    mean, log_variance = _pair("gaussian_kl", mean, log_variance)
    if not mean.shape:
        raise problem(ShapeError, "gaussian_kl", "scalars", "[..., latents]")
    inner = sub(sub(add(log_variance, 1.0), mul(mean, mean)), unary("exp", log_variance))
    return _reduce_loss("gaussian_kl", mul(reduce_axes("reduce_sum", inner, (len(mean.shape) - 1,)), -0.5), reduction)


@operation("functional")
@in_float32
def kl_div(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Node:
    """target * (log target - input), with `input` (and with `log_target` also the target) given as logarithms; 0 where
    the target is 0. 'batchmean' divides the sum by the first extent.

    >>> weft.nn.functional.kl_div(weft.zeros(2), weft.ones(2), reduction="sum")
    tensor(0.)
    """
    reduction = reduction_of("kl_div", size_average, reduce, reduction)
    input, target = meet("kl_div", input, target)
    need_float("kl_div", input)
    if log_target:
        loss = mul(unary("exp", target), sub(target, input))
    else:
        zero = build.eq(target, 0.0)
        entropy = select(zero, 0.0, mul(target, unary("log", select(zero, 1.0, target))))
        loss = sub(entropy, mul(target, input))
    if reduction == "batchmean":
        return mul(_reduce_loss("kl_div", loss, "sum"), 1.0 / max(loss.shape[0], 1) if loss.shape else 1.0)
    return _reduce_loss("kl_div", loss, reduction)


@operation("functional")
@in_float32
def gaussian_nll_loss(
    input: Node, target: Node, var: Operand, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Node:
    """(log var + (input - target)^2 / var) / 2, the variance at least `eps` (without slope there); `full` adds
    log(2 pi) / 2. `var` is a number, or has the shape of `input`, or has one number for each row of it: that shape with
    a last axis of 1, or without it."""
    if isinstance(var, (int, float)):
        if var < 0:
            raise problem(RangeError, "gaussian_nll_loss", f"var={var}", "0 or more")
        var = build.like(input, float(var))
    _need_variance(input.shape, var.shape)
    if var.shape == input.shape[:-1] and input.shape:
        var = build.reshape(var, (*var.shape, 1))
    input, target, var = meet("gaussian_nll_loss", input, target, var)
    need_float("gaussian_nll_loss", input)
    clamped = build.surrogate(select(lt(var, eps), eps, var), var)  # torch lets the gradient through
    error = sub(input, target)
    loss = mul(add(unary("log", clamped), div(mul(error, error), clamped)), 0.5)
    loss = add(loss, 0.5 * math.log(2 * math.pi)) if full else loss
    return _reduce_loss("gaussian_nll_loss", loss, reduction)


def _need_variance(shape: Shape, given: Shape) -> None:
    """A variance for each element, or for all along one axis."""
    if given == shape or given == shape[:-1]:
        return
    differ = [mine for mine, theirs in zip(given, shape, strict=False) if mine != theirs]
    if len(given) != len(shape) or differ != [1]:
        expected = f"{shape}, with an axis of 1, or without the last axis"
        raise problem(ShapeError, "gaussian_nll_loss", f"var of shape {given}", expected)


@operation("functional")
@in_float32
def poisson_nll_loss(
    input: Node,
    target: Node,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-8,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """e^input - target * input, or input - target * log(input + eps) if `log_input` is False; `full` adds Stirling's
    target log target - target + log(2 pi target) / 2 for targets above 1."""
    reduction = reduction_of("poisson_nll_loss", size_average, reduce, reduction)
    input, target = (to_float(x) for x in meet("poisson_nll_loss", input, target))
    if log_input:
        loss = sub(unary("exp", input), mul(target, input))
    else:
        loss = sub(input, mul(target, unary("log", add(input, eps))))
    if full:
        small = make_canonical("le", (target, build.like(target, 1.0)))
        safe = select(small, 1.0, target)
        stirling = add(sub(mul(safe, unary("log", safe)), safe), mul(unary("log", mul(safe, 2 * math.pi)), 0.5))
        loss = add(loss, select(small, 0.0, stirling))
    return _reduce_loss("poisson_nll_loss", loss, reduction)
