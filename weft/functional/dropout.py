"""What is random in a network: dropouts of channels, `rrelu` and `gumbel_softmax`. Draws come from `weft.random`."""

from __future__ import annotations

import math

from weft.base.dtypes import float32
from weft.base.errors import RangeError, ShapeError, problem
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.graph import build
from weft.graph.node import Node
from weft.ops import creation
from weft.ops.activation import leaky_relu
from weft.ops.common import in_float32, need_float, normal_axis
from weft.ops.registry import operation
from weft.random.generator import Generator, default_generator

_leaky_relu = lift(leaky_relu)
_surrogate = lift(build.surrogate)
SELU_ALPHA = 1.7580993408473766  # minus the limit of `selu`, which takes the place of an element that is dropped


@operation("functional", of_tensors=True)
def dropout1d(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """While training, each channel of [N, C, L] or [C, L] 0 with probability `p`, otherwise divided by 1 - p."""
    if input.ndim not in (2, 3):
        raise problem(ShapeError, "dropout1d", f"shape {input.shape}", "[N, C, L] or [C, L]")
    return _of_channels("dropout1d", input, p, training, inplace, generator, input.ndim - 1)


@operation("functional", of_tensors=True)
def dropout2d(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """While training, each channel of [N, C, H, W] 0 with probability `p`, otherwise divided by 1 - p. Three axes are
    [N, C, L], as in PyTorch.

    >>> y = weft.nn.functional.dropout2d(weft.ones(1, 8, 2, 2))
    >>> bool((y == y[:, :, :1, :1]).all())
    True
    """
    return _of_channels("dropout2d", input, p, training, inplace, generator, 2)


@operation("functional", of_tensors=True)
def dropout3d(
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """While training, each channel of [N, C, D, H, W] or [C, D, H, W] 0 with probability `p`, otherwise divided by
    1 - p."""
    return _of_channels("dropout3d", input, p, training, inplace, generator, 2 if input.ndim == 5 else 1)


@operation("weft functional", of_tensors=True)
def alpha_dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """While training, each element takes the limit of `selu` at minus infinity with probability `p`; then all are
    scaled and moved so that mean 0 and variance 1 stay what they are."""
    return _alpha_dropout("alpha_dropout", input, p, training, inplace, generator, input.ndim)


@operation("weft functional", of_tensors=True)
def feature_alpha_dropout(
    input: Tensor,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """`alpha_dropout` of whole channels of [N, C, ...]."""
    return _alpha_dropout("feature_alpha_dropout", input, p, training, inplace, generator, 2)


@operation("weft functional", of_tensors=True)
def rrelu(
    input: Tensor,
    lower: float = 1.0 / 8,
    upper: float = 1.0 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """x above 0, a * x below: while training `a` is uniform between `lower` and `upper` for each element, otherwise it
    is their mean.

    >>> weft.nn.functional.rrelu(weft.tensor([-1.0, 2.0]), 0.25, 0.75)
    tensor([-0.5000,  2.0000])
    """
    need_float("rrelu", input.node)
    if not lower <= upper:
        raise problem(RangeError, "rrelu", f"lower={lower} and upper={upper}", "lower <= upper")
    if not training:
        return _result("rrelu", input, _leaky_relu(input, (lower + upper) / 2), inplace)
    state, draw = (generator or default_generator).draw(input.device, 1)
    return _result("rrelu", input, _random_slope(input, float(lower), float(upper), Tensor(state), draw), inplace)


@operation("functional", of_tensors=True)
def gumbel_softmax(
    logits: Tensor,
    tau: float = 1.0,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """A sample of the classes along `dim`: softmax((logits + g) / tau) with draws g of Gumbel's distribution. With
    `hard` it is 1 at the most likely class and 0 elsewhere, with the gradient of the softmax. `eps` has no effect.

    >>> weft.nn.functional.gumbel_softmax(weft.tensor([[0.0, 100.0]]), hard=True)
    tensor([[0., 1.]])
    """
    need_float("gumbel_softmax", logits.node)
    axis = normal_axis("gumbel_softmax", dim, logits.ndim)
    state, draw = (generator or default_generator).draw(logits.device, 1)
    soft = ((logits + Tensor(_gumbel(state, draw, logits))) / tau).softmax(axis)
    if not hard:
        return soft
    best = soft.detach().argmax(axis, keepdim=True)
    number = Tensor(build.iota(logits.shape, axis, logits.device)) if logits.ndim else best
    return _surrogate((number == best).to(soft.dtype), soft)


def _gumbel(state: Node, draw: int, like: Tensor) -> Node:
    """-log(-log(u)) with u of at least 2^-25 and below 1, so that both logarithms are finite."""
    work = float32 if like.dtype.is_16_bit else like.dtype
    u = build.binary("max", creation.uniform(state, draw, like.shape, work), 2.0**-25)
    minus_log = build.neg(build.unary("log", u))
    return build.cast(build.neg(build.unary("log", minus_log)), like.dtype)


@lift
@in_float32
def _random_slope(x: Node, lower: float, upper: float, state: Node, draw: int) -> Node:
    slope = build.add(build.mul(creation.uniform(state, draw, x.shape, x.dtype), upper - lower), lower)
    return build.select(build.binary("le", x, build.like(x, 0.0)), build.mul(x, slope), x)


@lift
@in_float32
def _apply_mask(
    x: Node, shape: tuple[int, ...], p: float, kept: tuple[float, float], dropped: float, state: Node, draw: int
):
    """kept[0] * x + kept[1] with probability 1 - p, else `dropped`; one draw for each element of `shape`, which
    broadcasts to that of x."""
    mask = build.expand(creation.keep_mask(state, draw, shape, 1.0 - p), x.shape)
    value = build.mul(x, kept[0])
    return build.select(mask, build.add(value, kept[1]) if kept[1] else value, dropped)


def _of_channels(
    who: str, input: Tensor, p: float, training: bool, inplace: bool, generator: Generator | None, axes: int
) -> Tensor:
    """Dropout with one draw for all elements behind the first axes."""
    creation.check_probability(who, p)
    if not training or p == 0.0:
        return input
    shape = _channel_shape(who, input, axes)
    if p == 1.0:
        return _result(who, input, input * 0.0, inplace)
    state, draw = (generator or default_generator).draw(input.device, 1)
    need_float(who, input.node)
    result = _apply_mask(input, shape, p, (1.0 / (1.0 - p), 0.0), 0.0, Tensor(state), draw)
    return _result(who, input, result, inplace)


def _alpha_dropout(
    who: str,
    input: Tensor,
    p: float,
    training: bool,
    inplace: bool,
    generator: Generator | None,
    axes: int,
) -> Tensor:
    """`alpha_dropout` with one draw for all elements behind the first axes."""
    creation.check_probability(who, p)
    if not training or p == 0.0:
        return input
    need_float(who, input.node)
    shape = _channel_shape(who, input, axes)
    if p == 1.0:
        return _result(who, input, input * 0.0, inplace)
    scale = 1.0 / math.sqrt((SELU_ALPHA * SELU_ALPHA * p + 1.0) * (1.0 - p))
    state, draw = (generator or default_generator).draw(input.device, 1)
    kept, dropped = (scale, SELU_ALPHA * scale * p), -SELU_ALPHA * scale * (1.0 - p)
    return _result(who, input, _apply_mask(input, shape, p, kept, dropped, Tensor(state), draw), inplace)


def _channel_shape(who: str, input: Tensor, axes: int) -> tuple[int, ...]:
    """The shape of one draw for each of the first axes."""
    if input.ndim < axes:
        raise problem(ShapeError, who, f"shape {input.shape}", "[N, C, ...]")
    return (*input.shape[:axes], *(1,) * (input.ndim - axes))


def _result(who: str, input: Tensor, result: Tensor, inplace: bool) -> Tensor:
    return input._replace(who, result) if inplace else result
