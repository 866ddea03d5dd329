"""Losses with margins: of distances between vectors, of rankings, and of classes against each other.

`reduction` is 'mean', 'sum' or 'none', as in `weft.ops.loss`.
"""

from __future__ import annotations

from weft.base.dtypes import int64
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import add, div, lt, mul, neg, select, sub, unary
from weft.graph.build import reduce as reduce_axes
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.activation import logsigmoid
from weft.ops.common import in_float32, meet, need_float, same_device, to_float
from weft.ops.indexing import user_site
from weft.ops.loss import _pair, _reduce_loss, reduction_of
from weft.ops.products import vector_norm
from weft.ops.registry import operation
from weft.ops.similarity import pairwise_distance


def _hinge(x: Node) -> Node:
    """max(x, 0), without slope at 0."""
    return select(make_canonical("le", (x, build.like(x, 0.0))), 0.0, x)


@operation("functional")
@in_float32
def triplet_margin_loss(
    anchor: Node,
    positive: Node,
    negative: Node,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) with the distances of `pairwise_distance`. With `swap`
    the negative's distance is the smaller of those to the anchor and to the positive.

    >>> x = weft.zeros(1, 2)
    >>> weft.nn.functional.triplet_margin_loss(x, x, x, eps=0.0)
    tensor(1.)
    """
    reduction = reduction_of("triplet_margin_loss", size_average, reduce, reduction)
    if margin <= 0:
        raise problem(RangeError, "triplet_margin_loss", f"margin={margin}", "a number above 0")
    need_equal_ranks("triplet_margin_loss", anchor, positive, negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = build.binary("min", far, pairwise_distance(positive, negative, p, eps))
    return margin_loss("triplet_margin_loss", near, far, float(margin), reduction)


def margin_loss(who: str, near: Node, far: Node, margin: float, reduction: str) -> Node:
    """max(0, near - far + margin), reduced; slope 1 at 0."""
    return _reduce_loss(who, _clamp(add(sub(*meet(who, near, far)), margin)), reduction)


def need_equal_ranks(who: str, anchor: Node, positive: Node, negative: Node) -> None:
    """Broadcasting between vectors and batches of them is not meant."""
    shapes = [anchor.shape, positive.shape, negative.shape]
    if len({len(shape) for shape in shapes}) > 1:
        given = f"anchor {shapes[0]}, positive {shapes[1]} and negative {shapes[2]}"
        raise problem(ShapeError, who, given, "as many axes in all three")


@operation("functional")
@in_float32
def contrastive_loss(x1: Node, x2: Node, target: Node, margin: float = 1.0, reduction: str = "mean") -> Node:
    """(target d^2 + (1 - target) max(0, margin - d)^2) / 2 with d = |x1 - x2| over the last axis; `target` is 1 for
    pairs that belong together and 0 for others. The gradient at d = 0 is 0.

    >>> weft.nn.functional.contrastive_loss(weft.zeros(1, 2), weft.tensor([[3.0, 4.0]]), weft.ones(1))
    tensor(12.5000)
    """
    x1, x2 = meet("contrastive_loss", x1, x2)
    need_float("contrastive_loss", x1)
    distance = vector_norm(sub(x1, x2), 2.0, -1)
    if target.shape != distance.shape:
        given = f"a target of shape {target.shape} for pairs {distance.shape}"
        raise problem(ShapeError, "contrastive_loss", given, "one number for each pair")
    y = build.cast(target, distance.dtype)
    short = _hinge(sub(float(margin), distance))
    loss = mul(add(mul(y, mul(distance, distance)), mul(sub(1.0, y), mul(short, short))), 0.5)
    return _reduce_loss("contrastive_loss", loss, reduction)


@operation("functional")
@in_float32
def margin_ranking_loss(
    input1: Node,
    input2: Node,
    target: Node,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """max(0, -target * (input1 - input2) + margin); `target` is 1 where the first should be larger, -1 else."""
    reduction = reduction_of("margin_ranking_loss", size_average, reduce, reduction)
    need_equal_ranks("margin_ranking_loss", input1, input2, target)
    input1, input2, target = meet("margin_ranking_loss", input1, input2, target)
    loss = _clamp(add(to_float(mul(neg(target), sub(input1, input2))), float(margin)))
    return _reduce_loss("margin_ranking_loss", loss, reduction)


def _clamp(x: Node) -> Node:
    """max(x, 0), with slope 1 at 0."""
    return select(lt(x, 0.0), 0.0, x)


@operation("functional")
@in_float32
def hinge_embedding_loss(
    input: Node,
    target: Node,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """input where the target is 1, max(0, margin - input) where it is -1."""
    reduction = reduction_of("hinge_embedding_loss", size_average, reduce, reduction)
    input, target = meet("hinge_embedding_loss", input, target)
    need_float("hinge_embedding_loss", input)
    far = select(build.eq(target, 1.0), 0.0, _clamp(sub(float(margin), input)))
    near = select(build.eq(target, -1.0), 0.0, input)
    return _reduce_loss("hinge_embedding_loss", add(far, near), reduction)


@operation("functional")
@in_float32
def cosine_embedding_loss(
    input1: Node,
    input2: Node,
    target: Node,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """1 - cos where the target is 1, max(0, cos - margin) where it is -1; `cos` is that of the rows [N, D] (or [D])."""
    reduction = reduction_of("cosine_embedding_loss", size_average, reduce, reduction)
    same_device("cosine_embedding_loss", [input1, input2, target])
    if len(target.shape) + 1 != len(input1.shape) or input1.shape != input2.shape:
        given = f"inputs {input1.shape}, {input2.shape} and target {target.shape}"
        raise problem(ShapeError, "cosine_embedding_loss", given, "[N, D], [N, D] and [N], or vectors and a scalar")
    one, other = (to_float(x) for x in meet("cosine_embedding_loss", input1, input2))
    last = (len(one.shape) - 1,)
    powers = [add(reduce_axes("reduce_sum", mul(x, x), last), 1e-12) for x in (one, other)]
    cosine = div(reduce_axes("reduce_sum", mul(one, other), last), unary("sqrt", mul(*powers)))
    y = build.cast(target, cosine.dtype)
    near = select(build.eq(y, 1.0), sub(1.0, cosine), 0.0)
    far = select(build.eq(y, -1.0), _clamp(sub(cosine, float(margin))), 0.0)
    return _reduce_loss("cosine_embedding_loss", add(near, far), reduction)


@operation("functional")
@in_float32
def soft_margin_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """log(1 + e^(-target * input)) with targets of 1 and -1."""
    reduction = reduction_of("soft_margin_loss", size_average, reduce, reduction)
    input, target = _pair("soft_margin_loss", input, target)
    return _reduce_loss("soft_margin_loss", neg(logsigmoid(mul(target, input))), reduction)


@operation("functional")
@in_float32
def multilabel_soft_margin_loss(
    input: Node,
    target: Node,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The mean over classes [..., C] of binary cross entropy from logits."""
    reduction = reduction_of("multilabel_soft_margin_loss", size_average, reduce, reduction)
    z, y = _pair("multilabel_soft_margin_loss", input, target)
    if not z.shape:
        raise problem(ShapeError, "multilabel_soft_margin_loss", "scalars", "[..., classes]")
    loss = neg(add(mul(y, logsigmoid(z)), mul(sub(1.0, y), logsigmoid(neg(z)))))
    loss = loss if weight is None else mul(*meet("multilabel_soft_margin_loss", loss, weight))
    per_sample = mul(reduce_axes("reduce_sum", loss, (len(z.shape) - 1,)), 1.0 / max(z.shape[-1], 1))
    return _reduce_loss("multilabel_soft_margin_loss", per_sample, reduction)


@operation("functional")
@in_float32
def multi_margin_loss(
    input: Node,
    target: Node,
    p: int = 1,
    margin: float = 1.0,
    weight: Node | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The sum over wrong classes k of max(0, margin - x[y] + x[k])^p over the number of classes, times the weight of
    class y: [N, C] and labels [N], or [C] and one label. A label that is no class raises IndexRangeError when the loss
    is computed."""
    who = "multi_margin_loss"
    reduction = reduction_of(who, size_average, reduce, reduction)
    need_float(who, input)
    same_device(who, [input, target])
    single = len(input.shape) < 2
    rows = build.reshape(input, (1, input.size)) if single else input
    fits = target.shape in ((), (1,)) if single else target.shape == input.shape[:1]
    if len(rows.shape) != 2 or not rows.shape[1] or not fits or target.dtype.kind not in "iu":
        given = f"input {input.shape} and a target {target.dtype.name}{list(target.shape)}"
        raise problem(ShapeError, who, given, "[N, C] and integer labels [N], or [C] and one label")
    if p not in (1, 2):
        raise problem(RangeError, who, f"p={p}", "1 or 2")
    shape = rows.shape
    if weight is not None and weight.shape != shape[1:]:
        raise problem(ShapeError, who, f"a weight of shape {weight.shape}", f"one number per class: {shape[1:]}")
    known = build.in_range(build.cast(target, int64), shape[1], user_site())
    labels = build.expand(build.reshape(known, (shape[0], 1)), shape)
    hit = build.eq(build.iota(shape, 1, input.device), labels)
    right = reduce_axes("reduce_sum", select(hit, rows, 0.0), (1,), True)
    short = _hinge(add(sub(rows, build.expand(right, shape)), float(margin)))
    short = mul(short, short) if p == 2 else short
    if weight is not None:
        own = reduce_axes(
            "reduce_sum", select(hit, build.expand_to(build.cast(weight, input.dtype), shape), 0.0), (1,), True
        )
        short = mul(short, build.expand(own, shape))
    loss = mul(reduce_axes("reduce_sum", select(hit, 0.0, short), (1,)), 1.0 / shape[1])
    return _reduce_loss(who, build.reshape(loss, target.shape) if single else loss, reduction)


@operation("functional")
@in_float32
def multilabel_margin_loss(
    input: Node,
    target: Node,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Node:
    """The sum over right classes y and wrong ones k of max(0, 1 - x[y] + x[k]), over the number of classes: [N, C] or
    [C]. The target has the shape of the input and lists the right classes of each row, up to the first -1.

    >>> weft.nn.functional.multilabel_margin_loss(weft.tensor([0.1, 0.2, 0.4, 0.8]), weft.tensor([3, 0, -1, 1]))
    tensor(0.8500)
    """
    who = "multilabel_margin_loss"
    reduction = reduction_of(who, size_average, reduce, reduction)
    need_float(who, input)
    same_device(who, [input, target])
    classes = input.shape[-1] if input.shape else 1
    if len(input.shape) > 2 or target.shape != input.shape or target.dtype.kind not in "iu" or not classes:
        given = f"input {input.shape} and a target {target.dtype.name}{list(target.shape)}"
        raise problem(ShapeError, who, given, "[N, C] or [C], and integer labels of the same shape")
    rows = build.reshape(input, (input.size // classes, classes))
    labels = build.cast(build.reshape(target, rows.shape), int64)
    ended = build.scan("max", build.cast(build.eq(labels, -1), int64), 1)
    listed = build.eq(ended, 0)
    known = build.in_range(select(listed, labels, 0), classes, user_site())
    cube = (rows.shape[0], classes, classes)  # [row, position in the list, class]
    in_list = build.expand(build.reshape(listed, (*rows.shape, 1)), cube)
    own = build.expand(build.reshape(known, (*rows.shape, 1)), cube)
    hit = make_canonical("and", (in_list, build.eq(build.iota(cube, 2, input.device), own)))
    right = reduce_axes("reduce_max", build.cast(hit, int64), (1,))  # [row, class]
    scores = build.expand(build.reshape(rows, (rows.shape[0], 1, classes)), cube)
    picked = build.expand(reduce_axes("reduce_sum", select(hit, scores, 0.0), (2,), True), cube)
    is_wrong = build.expand(build.reshape(build.eq(right, 0), (rows.shape[0], 1, classes)), cube)
    short = _hinge(add(sub(scores, picked), 1.0))
    loss = reduce_axes("reduce_sum", select(make_canonical("and", (in_list, is_wrong)), short, 0.0), (1, 2))
    loss = mul(loss, 1.0 / classes)
    return _reduce_loss(who, build.reshape(loss, input.shape[:-1]), reduction)


@operation("functional")
@in_float32
def capsule_margin_loss(
    lengths: Node,
    target: Node,
    positive: float = 0.9,
    negative: float = 0.1,
    weight: float = 0.5,
    reduction: str = "mean",
) -> Node:
    """T max(0, positive - v)^2 + weight (1 - T) max(0, v - negative)^2 summed over classes: lengths v and targets T
    [..., classes].

    >>> weft.nn.functional.capsule_margin_loss(weft.tensor([[0.9, 0.1]]), weft.tensor([[1.0, 0.0]]))
    tensor(0.)
    """
    v, t = _pair("capsule_margin_loss", lengths, target)
    if not v.shape:
        raise problem(ShapeError, "capsule_margin_loss", "scalars", "[..., classes]")
    present, absent = _hinge(sub(positive, v)), _hinge(sub(v, negative))
    loss = add(mul(t, mul(present, present)), mul(mul(sub(1.0, t), weight), mul(absent, absent)))
    return _reduce_loss("capsule_margin_loss", reduce_axes("reduce_sum", loss, (len(v.shape) - 1,)), reduction)
