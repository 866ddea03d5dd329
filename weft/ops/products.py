"""Products beyond matmul, and what is measured with them: contractions, norms, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make
from weft.ops import reduce
from weft.ops.common import as_int, broadcast_shapes, meet, need_float, normal_axes, normal_axis, same_device
from weft.ops.elementwise import add, mul
from weft.ops.linalg import matmul
from weft.ops.reduce import Dim
from weft.ops.registry import operation
from weft.ops.scans import cumprod


@operation()
def tensordot(input: Node, other: Node, dims: int | Sequence[Sequence[int]] = 2) -> Node:
    """Products summed over axes of both: the last `dims` of `input` with the first of `other`, or two lists of axes.

    >>> weft.tensordot(weft.ones(2, 3), weft.ones(3, 2), 1)
    tensor([[3., 3.],
            [3., 3.]])
    """
    same_device("tensordot", [input, other])
    if isinstance(dims, (tuple, list)):
        left = [normal_axis("tensordot", axis, len(input.shape)) for axis in dims[0]]
        right = [normal_axis("tensordot", axis, len(other.shape)) for axis in dims[1]]
    else:
        count = as_int("tensordot", dims, "number of axes")
        left, right = list(range(len(input.shape) - count, len(input.shape))), list(range(count))
    if min([*left, *right], default=0) < 0 or [input.shape[k] for k in left] != [
        other.shape[k] for k in right if k < len(other.shape)
    ]:
        raise problem(
            ShapeError, "tensordot", f"shapes {input.shape} and {other.shape} over {dims}", "equal extents there"
        )
    rows = [axis for axis in range(len(input.shape)) if axis not in left]
    columns = [axis for axis in range(len(other.shape)) if axis not in right]
    inner = math.prod(input.shape[axis] for axis in left)
    first, last = tuple([input.shape[k] for k in rows]), tuple([other.shape[k] for k in columns])
    x = build.reshape(build.permute(input, (*rows, *left)), (math.prod(first), inner))
    y = build.reshape(build.permute(other, (*right, *columns)), (inner, math.prod(last)))
    return build.reshape(matmul(x, y), first + last)


@operation()
def inner(input: Node, other: Node) -> Node:
    """Products summed over the last axis of both; with a scalar, plain products."""
    if not input.shape or not other.shape:
        return mul(input, other)
    return tensordot(input, other, ([-1], [-1]))


@operation()
def kron(input: Node, other: Node) -> Node:
    """The Kronecker product: every element of `input` times all of `other`.

    >>> weft.kron(weft.tensor([1, 2]), weft.tensor([1, 10]))
    tensor([ 1, 10,  2, 20])
    """
    rank = max(len(input.shape), len(other.shape))
    left, right = ((1,) * (rank - len(x.shape)) + x.shape for x in (input, other))
    x = build.reshape(input, tuple([n for extent in left for n in (extent, 1)]))
    y = build.reshape(other, tuple([n for extent in right for n in (1, extent)]))
    return build.reshape(mul(x, y), tuple([n * m for n, m in zip(left, right, strict=True)]))


@operation("weft linalg method")
def cross(input: Node, other: Node, dim: int = -1) -> Node:
    """The vector product of vectors of three along `dim`; the other axes broadcast.

    >>> weft.cross(weft.tensor([1.0, 0.0, 0.0]), weft.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    input, other = meet("cross", input, other)
    axis = normal_axis("cross", dim, len(input.shape))
    if not input.shape or input.shape[axis] != 3:
        raise problem(ShapeError, "cross", f"shape {input.shape} along axis {axis}", "an extent of 3 there")

    def turned(x: Node, by: int) -> Node:
        return build.concat([build.narrow(x, axis, by, 3), build.narrow(x, axis, 0, by)], axis)

    return build.sub(build.mul(turned(input, 1), turned(other, 2)), build.mul(turned(input, 2), turned(other, 1)))


def _plus(who: str, x: Node, product: Node, beta: float, alpha: float) -> Node:
    if x.dtype is not product.dtype:
        raise problem(DTypeError, who, f"{x.dtype.name} and {product.dtype.name}", "one dtype", "cast one with .to")
    if broadcast_shapes(who, [x.shape, product.shape]) != product.shape:
        raise problem(ShapeError, who, f"{x.shape} and a product of {product.shape}", "a tensor that broadcasts to it")
    if x.dtype.kind != "f":  # as in PyTorch, factors are cut to the dtype of the result
        alpha, beta = (bool(alpha), bool(beta)) if x.dtype.kind == "b" else (int(alpha), int(beta))
    product = product if alpha == 1 else mul(product, alpha)
    if beta == 0:
        return product
    return add(x if beta == 1 else mul(x, beta), product)


@operation("weft method inplace")
def addmm(input: Node, mat1: Node, mat2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (mat1 @ mat2) of matrices. With beta 0, `input` is ignored, NaN too."""
    return _plus("addmm", input, _ranks("addmm", mat1, mat2, 2, 2), beta, alpha)


@operation("weft method inplace")
def addmv(input: Node, mat: Node, vec: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (mat @ vec)."""
    return _plus("addmv", input, _ranks("addmv", mat, vec, 2, 1), beta, alpha)


@operation("weft method inplace")
def addr(input: Node, vec1: Node, vec2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * the outer product of two vectors."""
    column, row = build.reshape(vec1, (vec1.size, 1)), build.reshape(vec2, (1, vec2.size))
    return _plus("addr", input, mul(column, row), beta, alpha)


@operation("weft method inplace")
def baddbmm(input: Node, batch1: Node, batch2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
    return _plus("baddbmm", input, _ranks("baddbmm", batch1, batch2, 3, 3), beta, alpha)


@operation("weft method inplace")
def addbmm(input: Node, batch1: Node, batch2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * the sum of all products of the batch."""
    product = build.reduce("reduce_sum", _ranks("addbmm", batch1, batch2, 3, 3), (0,))
    return _plus("addbmm", input, product, beta, alpha)


def _ranks(who: str, a: Node, b: Node, first: int, second: int) -> Node:
    if (len(a.shape), len(b.shape)) != (first, second):
        raise problem(ShapeError, who, f"shapes {a.shape} and {b.shape}", f"ranks {first} and {second}")
    return matmul(a, b)


@operation()
def matrix_power(input: Node, n: int) -> Node:
    """The product of `n` square matrices `input`; the identity for 0.

    >>> weft.matrix_power(weft.tensor([[1.0, 1.0], [0.0, 1.0]]), 3)
    tensor([[1., 3.],
            [0., 1.]])
    """
    times = as_int("matrix_power", n, "power")
    if len(input.shape) < 2 or input.shape[-1] != input.shape[-2]:
        raise problem(ShapeError, "matrix_power", f"shape {input.shape}", "square matrices")
    if times < 0:
        raise problem(RangeError, "matrix_power", f"the power {times}", "at least 0", "take weft.linalg.inv first")
    result: Node | None = None
    while times:
        if times % 2:
            result = input if result is None else matmul(result, input)
        times //= 2
        input = matmul(input, input) if times else input
    if result is not None:
        return result
    rank = len(input.shape)
    same = make(
        "eq", (build.iota(input.shape, rank - 2, input.device), build.iota(input.shape, rank - 1, input.device))
    )
    return build.cast(same, input.dtype)


def _root(total: Node, power: float) -> Node:
    """total ** (1 / power), with slope 0 at 0."""
    zero = build.eq(total, 0.0)
    safe = build.select(zero, 1.0, total)
    root = build.unary("sqrt", safe) if power == 2 else make("pow", (safe, build.like(safe, 1.0 / power)))
    return build.select(zero, 0.0, root)


@operation("linalg")
def vector_norm(x: Node, ord: float = 2, dim: Dim = None, keepdim: bool = False) -> Node:
    """(sum of |x| ** ord) ** (1 / ord) over `dim`, or all elements; for inf, -inf and 0 the largest, the smallest and
    the number that is not zero. The gradient at a norm of 0 is 0.

    >>> weft.linalg.vector_norm(weft.tensor([3.0, 4.0]))
    tensor(5.)
    """
    need_float("vector_norm", x)
    axes = normal_axes("vector_norm", dim, len(x.shape))
    if ord == 0:
        return build.reduce("reduce_sum", build.cast(make("ne", (x, build.like(x, 0.0))), x.dtype), axes, keepdim)
    size = build.unary("abs", x)
    if math.isinf(ord):
        return (reduce.amax if ord > 0 else reduce.amin)(size, axes, keepdim)
    if ord == 1:
        return build.reduce("reduce_sum", size, axes, keepdim)
    if ord == 2:
        return _root(build.reduce("reduce_sum", build.mul(x, x), axes, keepdim), 2)
    zero = build.eq(size, 0.0)
    power = make("pow", (build.select(zero, 1.0, size), build.like(size, float(ord))))
    power = build.select(zero, 0.0 if ord > 0 else math.inf, power)
    return _root(build.reduce("reduce_sum", power, axes, keepdim), float(ord))


@operation()
def norm(input: Node, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False) -> Node:
    """The vector norm of order `p` over `dim` ('fro' and None mean 2). Matrix norms are in `weft.linalg`.

    >>> weft.norm(weft.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(5.)
    """
    if isinstance(p, str) and p != "fro":
        raise problem(RangeError, "norm", f"p={p!r}", "'fro' or a number", "use weft.linalg.matrix_norm")
    return vector_norm(input, 2.0 if p is None or isinstance(p, str) else float(p), dim, keepdim)


@operation("weft")
def cdist(x1: Node, x2: Node, p: float = 2.0) -> Node:
    """The distance of order `p` between every row of `x1` [..., P, M] and of `x2` [..., R, M]: [..., P, R]. Its
    gradient at distance 0 is 0.

    >>> weft.cdist(weft.tensor([[0.0, 0.0]]), weft.tensor([[3.0, 4.0]]))
    tensor([[5.]])
    """
    need_float("cdist", x1)
    if len(x1.shape) < 2 or len(x2.shape) < 2 or x1.shape[-1] != x2.shape[-1] or p < 0:
        given = f"shapes {x1.shape} and {x2.shape}, p={p}"
        raise problem(ShapeError, "cdist", given, "[..., P, M] and [..., R, M], and p of at least 0")
    left = build.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = build.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    left, right = meet("cdist", left, right)
    return vector_norm(build.sub(left, right), p, -1)


@operation()
def vander(x: Node, N: int | None = None, increasing: bool = False) -> Node:
    """Powers of a vector's elements as rows, from the highest down to 0, or up if `increasing`.

    >>> weft.vander(weft.tensor([1, 2]), 3)
    tensor([[1, 1, 1],
            [4, 2, 1]])
    """
    if len(x.shape) != 1:
        raise problem(ShapeError, "vander", f"shape {x.shape}", "a vector")
    count = x.size if N is None else as_int("vander", N, "N")
    if count < 0:
        raise problem(RangeError, "vander", f"N={count}", "at least 0")
    shape = (x.size, count)
    factor = build.expand(build.reshape(x, (x.size, 1)), shape)
    factor = (
        build.select(build.eq(build.iota(shape, 1, x.device), 0), build.like(factor, 1), factor) if count else factor
    )
    powers = cumprod(factor, 1) if count else factor
    return powers if increasing else build.flip(powers, (1,))
