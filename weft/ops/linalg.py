"""Matrix products. Everything ends in the primitive `dot`; transposed operands are permutations, not copies."""

from __future__ import annotations

import math

from weft.base.dtypes import bool_
from weft.base.errors import DTypeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops.common import broadcast_shapes, in_float32, same_device
from weft.ops.elementwise import add, mul
from weft.ops.registry import operation


def _check(who: str, a: Node, b: Node) -> None:
    same_device(who, [a, b])
    if a.dtype is not b.dtype or a.dtype is bool_:
        raise problem(
            DTypeError,
            who,
            f"{a.dtype.name} and {b.dtype.name}",
            "two tensors of one number type",
            "cast one of them, as x.float() or array.astype(np.float32)",
        )


@operation(operators="__matmul__")
def matmul(input: Node, other: Node) -> Node:
    """The matrix product of the last two axes; the axes before them broadcast. A vector is a row on the left and a
    column on the right, and that axis is dropped from the result.

    >>> weft.matmul(weft.tensor([[1.0, 2.0], [3.0, 4.0]]), weft.tensor([1.0, 1.0]))
    tensor([3., 7.])
    """
    _check("matmul", input, other)
    if not input.shape or not other.shape:
        raise problem(
            ShapeError,
            "matmul",
            f"shapes {input.shape} and {other.shape}",
            "at least one axis each",
            "use * for scalars",
        )
    if input.shape[-1] != other.shape[-2 if len(other.shape) > 1 else 0]:
        given = f"shapes {input.shape} and {other.shape}"
        raise problem(ShapeError, "matmul", given, "[..., M, K] and [..., K, N] with one K", "transpose one with .mT")
    if len(input.shape) == len(other.shape) == 1:
        return _inner(input, other)
    if len(input.shape) == 1:
        product = matmul(build.reshape(input, (1, *input.shape)), other)
        return build.reshape(product, product.shape[:-2] + product.shape[-1:])
    if len(other.shape) == 1:
        product = matmul(input, build.reshape(other, (*other.shape, 1)))
        return build.reshape(product, product.shape[:-1])
    if len(other.shape) == 2:  # all leading axes of `a` are rows of one product
        rows = build.reshape(input, (math.prod(input.shape[:-1]), input.shape[-1]))
        return build.reshape(build.dot(rows, other), (*input.shape[:-1], other.shape[-1]))
    batch = broadcast_shapes("matmul", [input.shape[:-2], other.shape[:-2]])
    return build.dot(build.expand_to(input, batch + input.shape[-2:]), build.expand_to(other, batch + other.shape[-2:]))


@in_float32
def _inner(a: Node, b: Node) -> Node:
    return build.reduce("reduce_sum", build.mul(a, b), (0,))


@operation("", operators="__rmatmul__")
def rmatmul(b: Node, a: Node) -> Node:
    """a @ b with the operands exchanged."""
    return matmul(a, b)


def _with_ranks(who: str, a: Node, b: Node, ranks: tuple[int, int]) -> Node:
    if (len(a.shape), len(b.shape)) != ranks:
        raise problem(
            ShapeError, who, f"shapes {a.shape} and {b.shape}", f"ranks {ranks[0]} and {ranks[1]}", "use matmul"
        )
    return matmul(a, b)


@operation()
def mm(input: Node, mat2: Node) -> Node:
    """[M, K] @ [K, N]."""
    return _with_ranks("mm", input, mat2, (2, 2))


@operation()
def bmm(input: Node, mat2: Node) -> Node:
    """[B, M, K] @ [B, K, N]."""
    if input.shape[:1] != mat2.shape[:1]:
        raise problem(ShapeError, "bmm", f"shapes {input.shape} and {mat2.shape}", "one batch size", "use matmul")
    return _with_ranks("bmm", input, mat2, (3, 3))


@operation()
def mv(input: Node, vec: Node) -> Node:
    """[M, K] @ [K]."""
    return _with_ranks("mv", input, vec, (2, 1))


@operation()
def dot(input: Node, tensor: Node) -> Node:
    """The sum of products of two vectors."""
    return _with_ranks("dot", input, tensor, (1, 1))


@operation()
def vdot(input: Node, other: Node) -> Node:
    """The sum of products of two vectors: `dot`, since numbers are real."""
    return _with_ranks("vdot", input, other, (1, 1))


@operation(aliases="ger")
def outer(input: Node, vec2: Node) -> Node:
    """[M] and [N] to the [M, N] products of each with each."""
    same_device("outer", [input, vec2])
    if len(input.shape) != 1 or len(vec2.shape) != 1:
        raise problem(ShapeError, "outer", f"shapes {input.shape} and {vec2.shape}", "two vectors")
    return mul(build.reshape(input, (*input.shape, 1)), vec2)


@operation("functional")
def linear(input: Node, weight: Node, bias: Node | None = None) -> Node:
    """input [..., K] times the transpose of weight [N, K] plus bias [N]: [..., N]. A weight [K] with a scalar
    bias gives [...].

    >>> weft.nn.functional.linear(weft.ones(1, 2), weft.tensor([[1.0, 2.0], [3.0, 4.0]]), weft.tensor([0.5, 0.5]))
    tensor([[3.5000, 7.5000]])
    """
    if not input.shape or len(weight.shape) not in (1, 2) or input.shape[-1] != weight.shape[-1]:
        given = f"input {input.shape} and weight {weight.shape}"
        raise problem(ShapeError, "linear", given, "[..., K] and [N, K]", "the weight is stored as [out, in]")
    if bias is not None and bias.shape != weight.shape[:-1]:
        raise problem(ShapeError, "linear", f"a bias of shape {bias.shape}", f"{weight.shape[:-1]}")
    product = matmul(input, build.swap_last(weight) if len(weight.shape) == 2 else weight)
    return product if bias is None else add(product, bias)
