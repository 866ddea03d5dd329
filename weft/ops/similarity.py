"""How long vectors are, and how far apart: `normalize`, `cosine_similarity`, `pairwise_distance`, `pdist`; and
`bilinear` forms of two vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.base.dtypes import float64, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.layout import make_canonical
from weft.graph.node import Node
from weft.ops.common import in_float32, meet, need_float, same_device, to_float
from weft.ops.creation import widest_float
from weft.ops.products import vector_norm
from weft.ops.reduce import sum
from weft.ops.registry import operation


def _at_least(x: Node, least: float) -> Node:
    """`x` clamped to at least a number, without slope below it."""
    return build.select(build.lt(x, least), least, x)


@operation("functional")
@in_float32
def normalize(input: Node, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12, out: None = None) -> Node:
    """x / max(norm of order `p` over `dim`, eps).

    >>> weft.nn.functional.normalize(weft.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    need_float("normalize", input)
    if out is not None:
        raise problem(RangeError, "normalize", "out=", "None", "write to a tensor with copy_")
    length = vector_norm(input, float(p), dim, True)
    return build.div(input, build.expand(_at_least(length, eps), input.shape))


@operation("weft functional")
@in_float32
def cosine_similarity(x1: Node, x2: Node, dim: int = 1, eps: float = 1e-8) -> Node:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along `dim`; the tensors broadcast.

    >>> weft.nn.functional.cosine_similarity(weft.tensor([1.0, 0.0]), weft.tensor([1.0, 1.0]), dim=0)
    tensor(0.7071)
    """
    x1, x2 = meet("cosine_similarity", x1, x2)
    need_float("cosine_similarity", x1)
    lengths = build.mul(_at_least(vector_norm(x1, 2.0, dim), eps), _at_least(vector_norm(x2, 2.0, dim), eps))
    return build.div(sum(build.mul(x1, x2), dim), lengths)


@operation("weft functional")
@in_float32
def pairwise_distance(x1: Node, x2: Node, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Node:
    """The norm of order `p` of x1 - x2 + eps over the last axis; the tensors broadcast.

    >>> weft.nn.functional.pairwise_distance(weft.tensor([[3.0, 4.0]]), weft.tensor([[0.0, 0.0]]), eps=0.0)
    tensor([5.])
    """
    x1, x2 = (to_float(x) for x in meet("pairwise_distance", x1, x2))
    return vector_norm(build.add(build.sub(x1, x2), eps), float(p), -1, keepdim)


@operation("weft functional")
@in_float32
def pdist(input: Node, p: float = 2.0) -> Node:
    """The distances of order `p` between all pairs of rows of [N, M]: (0, 1), (0, 2), ..., (N - 2, N - 1).

    >>> weft.nn.functional.pdist(weft.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([5.0000, 1.0000, 4.2426])
    """
    need_float("pdist", input)
    if len(input.shape) != 2:
        raise problem(ShapeError, "pdist", f"shape {input.shape}", "[N, M]")
    if p < 0:
        raise problem(RangeError, "pdist", f"p={p}", "0 or more")
    first, second = _pairs(input.shape[0], input.device)
    difference = build.sub(build.gather(input, first, 0, known=True), build.gather(input, second, 0, known=True))
    return vector_norm(difference, float(p), -1)


def _pairs(n: int, device: Any) -> tuple[Node, Node]:
    """The two numbers of each pair i < j of n, in lexicographic order: int64 [n (n - 1) / 2].

    Pairs that begin with i start at s(i) = i (2 n - i - 1) / 2, which is solved for i; a step up or down corrects what
    the square root may have rounded, and several do where n * n is large for a device without float64.
    """
    k = build.iota((n * (n - 1) // 2,), 0, device)
    work, middle = widest_float(device), n - 0.5
    root = build.unary("sqrt", build.sub(middle * middle, build.mul(build.cast(k, work), 2.0)))
    i = build.cast(build.sub(middle, root), int64)

    def start(i: Node) -> Node:
        return build.div(build.mul(i, build.sub(2 * n - 1, i)), 2)

    for _ in range(1 if work is float64 else 1 + (n * n >> 22)):
        i = build.select(build.lt(k, start(i)), build.sub(i, 1), i)
        i = build.select(make_canonical("le", (start(build.add(i, 1)), k)), build.add(i, 1), i)
    return i, build.add(build.sub(k, start(i)), build.add(i, 1))


@operation("weft functional")
@in_float32
def bilinear(input1: Node, input2: Node, weight: Node, bias: Node | None = None) -> Node:
    """y[..., o] = input1[..., i] weight[o, i, j] input2[..., j] + bias[o], summed over i and j.

    >>> weft.nn.functional.bilinear(weft.ones(1, 2), weft.ones(1, 3), weft.ones(1, 2, 3))
    tensor([[6.]])
    """
    nodes = [input1, input2, weight, *([] if bias is None else [bias])]
    same_device("bilinear", nodes)
    if any(node.dtype is not input1.dtype for node in nodes):
        given = ", ".join(node.dtype.name for node in nodes)
        raise problem(DTypeError, "bilinear", given, "tensors of one dtype", "cast with .to")
    lead = input1.shape[:-1]
    fits = len(weight.shape) == 3 and weight.shape[1:] == input1.shape[-1:] + input2.shape[-1:]
    if not input1.shape or input2.shape[:-1] != lead or not fits:
        given = f"input1 {input1.shape}, input2 {input2.shape} and weight {weight.shape}"
        raise problem(ShapeError, "bilinear", given, "[..., I], [..., J] and [O, I, J]")
    outputs, inner, other = weight.shape
    if bias is not None and bias.shape != (outputs,):
        raise problem(ShapeError, "bilinear", f"a bias of shape {bias.shape}", f"({outputs},)")
    rows = math.prod(lead)
    matrix = build.reshape(build.permute(weight, (1, 0, 2)), (inner, outputs * other))
    left = build.reshape(build.dot(build.reshape(input1, (rows, inner)), matrix), (rows, outputs, other))
    right = build.expand(build.reshape(input2, (rows, 1, other)), left.shape)
    out = build.reshape(build.reduce("reduce_sum", build.mul(left, right), (2,)), (*lead, outputs))
    return out if bias is None else build.add(out, build.expand_to(bias, out.shape))
