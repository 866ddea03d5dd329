"""Losses. `reduction` is 'mean', 'sum' or 'none'; shapes of prediction and target must be equal, not only broadcast.
`size_average` and `reduce` are PyTorch's older way to say it, at their places in its parameter lists.

Cross entropy finds the class by comparing an iota with the label, so forward and backward are row reductions over the
class axis and elementwise arithmetic. A label outside the classes that is not `ignore_index` raises IndexRangeError
when the loss is computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from weft.base.dtypes import int32, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.base.state import STATE
from weft.graph import build
from weft.graph.build import add, div, expand, lt, mul, neg, reshape, select, sub, unary
from weft.graph.build import reduce as reduce_axes
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.activation import subtract_maximum
from weft.ops.common import in_float32, meet, need_float, same_device
from weft.ops.indexing import user_site
from weft.ops.linalg import linear
from weft.ops.movement import movedim
from weft.ops.policy import with_policy
from weft.ops.reduce import mean
from weft.ops.registry import operation


def _reduce_loss(who: str, loss: Node, reduction: str) -> Node:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return reduce_axes("reduce_sum", loss, range(len(loss.shape)))
    if reduction == "mean":
        return mean(loss)
    raise problem(RangeError, who, f"reduction={reduction!r}", "'mean', 'sum' or 'none'")


def reduction_of(who: str, size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction that is meant, where PyTorch's older flags may say it."""
    for name, flag in (("size_average", size_average), ("reduce", reduce)):
        if flag is not None and not isinstance(flag, (bool, int)):
            raise problem(RangeError, who, f"{name}={flag!r}", "a bool or None", "pass reduction= by its name")
    if size_average is None and reduce is None:
        return reduction
    if reduce is not None and not reduce:
        return "none"
    return "mean" if size_average is None or size_average else "sum"


def _pair(who: str, input: Node, target: Node) -> tuple[Node, Node]:
    if input.shape != target.shape:
        given = f"input {input.shape} and target {target.shape}"
        raise problem(ShapeError, who, given, "equal shapes", "reshape or expand one of them on purpose")
    input, target = meet(who, input, target)
    need_float(who, input)
    return input, target


@operation("functional")
@in_float32
def mse_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Node:
    """(input - target) squared, times `weight` where one is given; the mean then divides by the sum of weights.

    >>> weft.nn.functional.mse_loss(weft.tensor([1.0, 2.0]), weft.tensor([1.0, 4.0]))
    tensor(2.)
    """
    reduction = reduction_of("mse_loss", size_average, reduce, reduction)
    input, target = _pair("mse_loss", input, target)
    error = sub(input, target)
    return _apply_weight("mse_loss", mul(error, error), weight, reduction)


@operation("functional")
@in_float32
def l1_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Node | None = None,
) -> Node:
    """|input - target|, times `weight` where one is given; the mean then divides by the sum of weights."""
    reduction = reduction_of("l1_loss", size_average, reduce, reduction)
    input, target = _pair("l1_loss", input, target)
    return _apply_weight("l1_loss", unary("abs", sub(input, target)), weight, reduction)


def _apply_weight(who: str, loss: Node, weight: Node | None, reduction: str) -> Node:
    """A loss times the weight of each element, reduced; the mean divides by the sum of weights."""
    if weight is None:
        return _reduce_loss(who, loss, reduction)
    weight = _element_weight(who, loss, weight)
    if reduction != "mean":
        return _reduce_loss(who, mul(loss, weight), reduction)
    return div(_reduce_loss(who, mul(loss, weight), "sum"), _reduce_loss(who, weight, "sum"))


def _element_weight(who: str, loss: Node, weight: Node) -> Node:
    """The weight of each element, in the dtype of the loss."""
    if weight.shape != loss.shape:
        raise problem(ShapeError, who, f"a weight of shape {weight.shape}", f"that of the input, {loss.shape}")
    return meet(who, loss, weight, dtype=loss.dtype)[1]


@operation("functional")
@in_float32
def smooth_l1_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Node:
    """e = |input - target|: e^2 / (2 beta) below beta, e - beta / 2 above."""
    reduction = reduction_of("smooth_l1_loss", size_average, reduce, reduction)
    if beta < 0:
        raise problem(RangeError, "smooth_l1_loss", f"beta={beta}", "0 or more")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    input, target = _pair("smooth_l1_loss", input, target)
    e = unary("abs", sub(input, target))
    loss = select(lt(e, beta), mul(mul(e, e), 0.5 / beta), sub(e, 0.5 * beta))
    return _reduce_loss("smooth_l1_loss", loss, reduction)


@operation("functional")
@in_float32
def huber_loss(
    input: Node, target: Node, reduction: str = "mean", delta: float = 1.0, weight: Node | None = None
) -> Node:
    """e = |input - target|: e^2 / 2 up to delta, delta * (e - delta / 2) above; times `weight` where one is given. The
    mean divides by the number of elements."""
    if delta <= 0:
        raise problem(RangeError, "huber_loss", f"delta={delta}", "a number above 0")
    input, target = _pair("huber_loss", input, target)
    e = unary("abs", sub(input, target))
    loss = select(lt(delta, e), mul(sub(e, 0.5 * delta), delta), mul(mul(e, e), 0.5))
    if weight is None:
        return _reduce_loss("huber_loss", loss, reduction)
    return _reduce_loss("huber_loss", mul(loss, _element_weight("huber_loss", loss, weight)), reduction)


@operation("functional")
@in_float32
def binary_cross_entropy_with_logits(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Node | None = None,
) -> Node:
    """-[w y log s(z) + (1 - y) log(1 - s(z))] from logits z, as (1 - y) z + max(-z, 0) + log(1 + e^-|z|)."""
    who = "binary_cross_entropy_with_logits"
    reduction = reduction_of(who, size_average, reduce, reduction)
    z, y = _pair(who, input, target)
    if pos_weight is not None:
        z, y, pos_weight = meet(who, z, y, pos_weight)
    below = lt(z, 0.0)
    tail = unary("log1p", unary("exp", select(below, z, neg(z))))  # log(1 + e^-|z|), with the right slope at 0
    above = add(tail, select(below, neg(z), 0.0))  # -log s(z)
    if pos_weight is not None:
        above = mul(add(mul(sub(pos_weight, 1.0), y), 1.0), above)  # 1 + (w - 1) y
    loss = add(mul(sub(1.0, y), z), above)
    loss = loss if weight is None else mul(*meet(who, loss, weight))
    return _reduce_loss(who, loss, reduction)


@operation("functional")
@in_float32
def binary_cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """-[y log p + (1 - y) log(1 - p)] from probabilities, the logarithms clamped to at least -100."""
    reduction = reduction_of("binary_cross_entropy", size_average, reduce, reduction)
    p, y = _pair("binary_cross_entropy", input, target)
    value = neg(add(mul(y, _clamped_log(p)), mul(sub(1.0, y), _clamped_log(sub(1.0, p)))))
    loss = build.with_gradient(value, (p, y), _bce_gradient)
    loss = loss if weight is None else mul(*meet("binary_cross_entropy", loss, weight))
    return _reduce_loss("binary_cross_entropy", loss, reduction)


def _clamped_log(p: Node) -> Node:
    """log(p), not below -100."""
    value = unary("log", p)
    return select(lt(value, -100.0), -100.0, value)


def _bce_gradient(sources: tuple[Node, ...], g: Node) -> tuple[Node, Node]:
    """(p - y) / (p (1 - p)) with the denominator clamped to at least 1e-12, and minus the logit of p, as in PyTorch."""
    p, y = sources
    spread = mul(sub(1.0, p), p)
    in_p = mul(g, div(sub(p, y), select(lt(spread, 1e-12), 1e-12, spread)))
    return in_p, mul(g, sub(unary("log", sub(1.0, p)), unary("log", p)))


@operation("functional")
@in_float32
def nll_loss(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """-input[class] from log-probabilities [N, K, ...] and labels [N, ...]; see `cross_entropy`."""
    reduction = reduction_of("nll_loss", size_average, reduce, reduction)
    need_float("nll_loss", input)
    rows, labels = _class_rows("nll_loss", input, target)
    hit = _hits(rows, labels)
    picked = reduce_axes("reduce_sum", select(hit, rows, 0.0), (len(rows.shape) - 1,))
    return _over_labels("nll_loss", neg(picked), hit, labels, weight, ignore_index, reduction)


@operation("functional")
@in_float32
def cross_entropy(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Node:
    """-log softmax(input)[class]: logits [N, K, ...] (or [K]) with integer labels [N, ...], or with class probabilities
    of the shape of the logits. `weight` [K] scales each class; the mean divides by the weights of the labels used.

    >>> weft.nn.functional.cross_entropy(weft.tensor([[2.0, 0.0]]), weft.tensor([0]))
    tensor(0.1269)
    """
    who = "cross_entropy"
    reduction = reduction_of(who, size_average, reduce, reduction)
    need_float(who, input)
    if not 0.0 <= label_smoothing <= 1.0:
        raise problem(RangeError, who, f"label_smoothing={label_smoothing}", "0 to 1")
    if target.dtype.kind == "f":
        _need_probabilities(who, input, target)
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    rows, labels = _class_rows(who, input, target)
    z, axes = subtract_maximum(who, rows, -1)
    log_total = unary("log", reduce_axes("reduce_sum", unary("exp_rounded", z), axes))
    hit = _hits(rows, labels)
    loss = sub(log_total, reduce_axes("reduce_sum", select(hit, z, 0.0), axes))
    if not label_smoothing:
        return _over_labels(who, loss, hit, labels, weight, ignore_index, reduction)
    classes = rows.shape[-1]
    spread = sub(expand(reshape(log_total, (*labels.shape, 1)), z.shape), z)  # -log softmax
    if weight is not None:
        spread = mul(*meet(who, spread, weight))
    smooth = mul(reduce_axes("reduce_sum", spread, axes), label_smoothing / classes)
    return _over_labels(who, mul(loss, 1.0 - label_smoothing), hit, labels, weight, ignore_index, reduction, smooth)


def _need_probabilities(who: str, input: Node, target: Node) -> None:
    """A float target must have the shape of the input: labels are integers."""
    axis = 0 if len(input.shape) == 1 else 1
    labels = input.shape[:axis] + input.shape[axis + 1 :]
    if target.shape == labels != input.shape:
        given = f"a target of {target.dtype.name} with the shape of labels, {target.shape}, for input {input.shape}"
        expected = f"integer class labels of shape {labels}, or class probabilities of shape {input.shape}"
        raise problem(DTypeError, who, given, expected, "convert labels with .long()")


def _class_rows(who: str, input: Node, target: Node) -> tuple[Node, Node]:
    """Logits with the class axis last, and their labels as int32 or int64, after checking both."""
    same_device(who, [input, target])
    rank = len(input.shape)
    if target.dtype.kind not in "iu":
        raise problem(
            DTypeError, who, f"a target of {target.dtype.name}", "integer class labels", "convert it with .long()"
        )
    axis = 0 if rank == 1 else 1
    if rank == 0 or input.shape[:axis] + input.shape[axis + 1 :] != target.shape:
        given = f"input {input.shape} and target {target.shape}"
        raise problem(
            ShapeError, who, given, "[N, K, ...] and [N, ...], or [K] and []", "classes are axis 1 of the input"
        )
    return movedim(input, axis, -1), build.cast(target, target.dtype if target.dtype is int32 else int64)


def _hits(rows: Node, labels: Node) -> Node:
    """Where the class number equals the label: bool [..., K]."""
    wide = expand(reshape(labels, (*labels.shape, 1)), rows.shape)
    return make_canonical("eq", (build.iota(rows.shape, len(rows.shape) - 1, rows.device, labels.dtype), wide))


def _over_labels(
    who: str,
    loss: Node,
    hit: Node,
    labels: Node,
    weight: Node | None,
    ignore_index: int,
    reduction: str,
    smooth: Node | None = None,
) -> Node:
    """Weigh, drop ignored labels, mark impossible ones, reduce."""
    counted = make_canonical("ne", (labels, build.like(labels, ignore_index)))
    share = build.like(loss, 1.0)
    if weight is not None:
        if weight.shape != hit.shape[-1:]:
            raise problem(ShapeError, who, f"a weight of shape {weight.shape}", f"one per class: {hit.shape[-1:]}")
        per_class = build.expand_to(build.cast(weight, loss.dtype), hit.shape)
        share = reduce_axes("reduce_sum", select(hit, per_class, 0.0), (len(hit.shape) - 1,))
        loss = mul(loss, share)
    loss = loss if smooth is None else add(loss, smooth)
    loss = select(counted, _check_labels(loss, counted, labels, hit.shape[-1]), 0.0)
    if reduction != "mean":
        return _reduce_loss(who, loss, reduction)
    axes = range(len(loss.shape))
    return div(reduce_axes("reduce_sum", loss, axes), reduce_axes("reduce_sum", select(counted, share, 0.0), axes))


def _check_labels(loss: Node, counted: Node, labels: Node, classes: int) -> Node:
    """The loss, which needs labels in range. The gradient does not look at them again."""
    label = build.in_range(select(counted, labels, 0), classes, user_site())
    return build.surrogate(select(lt(label, classes), loss, math.nan), loss)


def _soft_cross_entropy(input: Node, target: Node, weight: Node | None, reduction: str, smoothing: float) -> Node:
    """Cross entropy with class probabilities; the mean divides by the number of samples."""
    who = "cross_entropy"
    input, target = _pair(who, input, target)
    if not input.shape:
        raise problem(ShapeError, who, "scalars", "[N, K, ...] or [K]")
    axis = 0 if len(input.shape) == 1 else 1
    rows, share = movedim(input, axis, -1), movedim(target, axis, -1)
    if smoothing:
        share = add(mul(share, 1.0 - smoothing), smoothing / rows.shape[-1])
    if weight is not None:
        share = mul(*meet(who, share, weight))
    z, axes = subtract_maximum(who, rows, -1)
    log_total = unary("log", reduce_axes("reduce_sum", unary("exp_rounded", z), axes, keepdim=True))
    loss = reduce_axes("reduce_sum", mul(share, sub(expand(log_total, z.shape), z)), axes)
    return _reduce_loss(who, loss, reduction)


_linear, _cross_entropy = with_policy("linear", linear), with_policy("cross_entropy", cross_entropy)


def _in_float32_or_autocast(op: Callable[..., Any]) -> Callable[..., Any]:
    """`in_float32`, but under autocast each part of `op` in the dtype of its own."""
    wide = in_float32(op)

    @functools.wraps(op)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (wide if STATE.autocast is None else op)(*args, **kwargs)

    return call


@operation("functional")
@_in_float32_or_autocast
def linear_cross_entropy(
    input: Node,
    linear_weight: Node,
    target: Node,
    *,
    linear_bias: Node | None = None,
    weight: Node | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> Node:
    """`cross_entropy` of `linear(input, linear_weight, linear_bias)`: input [N, K] (or [K]), linear_weight [C, ..., K],
    target [N, ...]. `options` choose how PyTorch computes it and have no effect.

    >>> x, weight, target = weft.ones(1, 2), weft.tensor([[1.0, 1.0], [0.0, 0.0]]), weft.tensor([0])
    >>> weft.nn.functional.linear_cross_entropy(x, weight, target)
    tensor(0.1269)
    """
    who = "linear_cross_entropy"
    if len(linear_weight.shape) < 2 or len(input.shape) not in (1, 2) or input.shape[-1] != linear_weight.shape[-1]:
        given = f"input {input.shape} and linear_weight {linear_weight.shape}"
        raise problem(ShapeError, who, given, "[N, K] or [K], and [C, ..., K]")
    if len(input.shape) == 1 and len(linear_weight.shape) > 2:
        given = f"input {input.shape} and linear_weight {linear_weight.shape}"
        raise problem(ShapeError, who, given, "a batch [N, K] for a weight [C, ..., K]")
    if ignore_index is not None and target.dtype.kind == "f":
        raise problem(RangeError, who, f"ignore_index={ignore_index} with probabilities as target", "None")
    columns, inner = linear_weight.shape[:-1], linear_weight.shape[-1]
    if linear_bias is not None and linear_bias.shape != columns:
        raise problem(ShapeError, who, f"a linear_bias of shape {linear_bias.shape}", f"{columns}")
    count = math.prod(columns)
    bias = None if linear_bias is None else reshape(linear_bias, (count,))
    logits = _linear(input, reshape(linear_weight, (count, inner)), bias)
    logits = reshape(logits, (*input.shape[:-1], *columns))
    return _cross_entropy(
        logits,
        target,
        weight,
        reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=label_smoothing,
    )
