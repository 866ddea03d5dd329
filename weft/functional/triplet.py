"""The triplet loss with a distance that the user gives, which is a function of tensors."""

from __future__ import annotations

from collections.abc import Callable

from weft.base.errors import RangeError, problem
from weft.core.lift import lift
from weft.core.tensor import Tensor
from weft.ops import margin_losses
from weft.ops.elementwise import minimum
from weft.ops.registry import operation
from weft.ops.similarity import pairwise_distance

WHO = "triplet_margin_with_distance_loss"
_distance, _loss, _minimum = lift(pairwise_distance), lift(margin_losses.margin_loss), lift(minimum)


@operation("functional", of_tensors=True)
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with any distance d of two tensors, that of
    `pairwise_distance` unless given. With `swap` the negative's distance is the smaller of those to the anchor and to
    the positive.

    >>> def manhattan(x, y):
    ...     return (x - y).abs().sum(-1)
    >>> a, b = weft.zeros(1, 2), weft.ones(1, 2)
    >>> weft.nn.functional.triplet_margin_with_distance_loss(a, b, a, distance_function=manhattan)
    tensor(3.)
    """
    if margin <= 0:
        raise problem(RangeError, WHO, f"margin={margin}", "a number above 0")
    margin_losses.need_equal_ranks(WHO, anchor.node, positive.node, negative.node)
    distance = distance_function or _distance
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = _minimum(far, distance(positive, negative))
    return _loss(WHO, near, far, float(margin), reduction)
