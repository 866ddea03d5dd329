"""How long vectors are, and how far apart: `normalize`, `cosine_similarity`, `pairwise_distance`."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph import build
from weft.graph.node import Node
from weft.ops.common import in_float32, meet, need_float
from weft.ops.products import vector_norm
from weft.ops.reduce import sum
from weft.ops.registry import operation


def _at_least(x: Node, least: float) -> Node:
    """`x` held above a number, without slope below it."""
    return build.select(build.lt(x, least), least, x)


@operation("functional")
@in_float32
def normalize(input: Node, p: float = 2.0, dim: int | Sequence[int] = 1, eps: float = 1e-12) -> Node:
    """x / max(norm of order `p` over `dim`, eps).

    >>> weft.nn.functional.normalize(weft.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    need_float("normalize", input)
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
    x1, x2 = meet("pairwise_distance", x1, x2)
    need_float("pairwise_distance", x1)
    return vector_norm(build.add(build.sub(x1, x2), eps), float(p), -1, keepdim)
