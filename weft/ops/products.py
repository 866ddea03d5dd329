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
from weft.ops.scans import cumprod


def tensordot(a: Node, b: Node, dims: int | Sequence[Sequence[int]] = 2) -> Node:
    """Products summed over axes of both: the last `dims` of `a` with the first of `b`, or two lists of axes.

    >>> weft.tensordot(weft.ones(2, 3), weft.ones(3, 2), 1)
    tensor([[3., 3.],
            [3., 3.]])
    """
    same_device("tensordot", [a, b])
    if isinstance(dims, (tuple, list)):
        left = [normal_axis("tensordot", axis, len(a.shape)) for axis in dims[0]]
        right = [normal_axis("tensordot", axis, len(b.shape)) for axis in dims[1]]
    else:
        count = as_int("tensordot", dims, "number of axes")
        left, right = list(range(len(a.shape) - count, len(a.shape))), list(range(count))
    if min([*left, *right], default=0) < 0 or [a.shape[k] for k in left] != [
        b.shape[k] for k in right if k < len(b.shape)
    ]:
        raise problem(ShapeError, "tensordot", f"shapes {a.shape} and {b.shape} over {dims}", "equal extents there")
    rows = [axis for axis in range(len(a.shape)) if axis not in left]
    columns = [axis for axis in range(len(b.shape)) if axis not in right]
    inner = math.prod(a.shape[axis] for axis in left)
    first, last = tuple([a.shape[k] for k in rows]), tuple([b.shape[k] for k in columns])
    x = build.reshape(build.permute(a, (*rows, *left)), (math.prod(first), inner))
    y = build.reshape(build.permute(b, (*right, *columns)), (inner, math.prod(last)))
    return build.reshape(matmul(x, y), first + last)


def inner(a: Node, b: Node) -> Node:
    """Products summed over the last axis of both; with a scalar, plain products."""
    if not a.shape or not b.shape:
        return mul(a, b)
    return tensordot(a, b, ([-1], [-1]))


def kron(a: Node, b: Node) -> Node:
    """The Kronecker product: every element of `a` times all of `b`.

    >>> weft.kron(weft.tensor([1, 2]), weft.tensor([1, 10]))
    tensor([ 1, 10,  2, 20])
    """
    rank = max(len(a.shape), len(b.shape))
    left, right = ((1,) * (rank - len(x.shape)) + x.shape for x in (a, b))
    x = build.reshape(a, tuple([n for extent in left for n in (extent, 1)]))
    y = build.reshape(b, tuple([n for extent in right for n in (1, extent)]))
    return build.reshape(mul(x, y), tuple([n * m for n, m in zip(left, right, strict=True)]))


def cross(a: Node, b: Node, dim: int = -1) -> Node:
    """The vector product of vectors of three along `dim`; the other axes broadcast.

    >>> weft.cross(weft.tensor([1.0, 0.0, 0.0]), weft.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    a, b = meet("cross", a, b)
    axis = normal_axis("cross", dim, len(a.shape))
    if not a.shape or a.shape[axis] != 3:
        raise problem(ShapeError, "cross", f"shape {a.shape} along axis {axis}", "an extent of 3 there")

    def turned(x: Node, by: int) -> Node:
        return build.concat([build.narrow(x, axis, by, 3), build.narrow(x, axis, 0, by)], axis)

    return build.sub(build.mul(turned(a, 1), turned(b, 2)), build.mul(turned(a, 2), turned(b, 1)))


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


def addmm(x: Node, mat1: Node, mat2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (mat1 @ mat2) of matrices. With beta 0, `x` is ignored, NaN too."""
    return _plus("addmm", x, _ranks("addmm", mat1, mat2, 2, 2), beta, alpha)


def addmv(x: Node, mat: Node, vec: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (mat @ vec)."""
    return _plus("addmv", x, _ranks("addmv", mat, vec, 2, 1), beta, alpha)


def addr(x: Node, vec1: Node, vec2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * the outer product of two vectors."""
    column, row = build.reshape(vec1, (vec1.size, 1)), build.reshape(vec2, (1, vec2.size))
    return _plus("addr", x, mul(column, row), beta, alpha)


def baddbmm(x: Node, batch1: Node, batch2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
    return _plus("baddbmm", x, _ranks("baddbmm", batch1, batch2, 3, 3), beta, alpha)


def addbmm(x: Node, batch1: Node, batch2: Node, *, beta: float = 1, alpha: float = 1) -> Node:
    """beta * x + alpha * the sum of all products of the batch."""
    product = build.reduce("reduce_sum", _ranks("addbmm", batch1, batch2, 3, 3), (0,))
    return _plus("addbmm", x, product, beta, alpha)


def _ranks(who: str, a: Node, b: Node, first: int, second: int) -> Node:
    if (len(a.shape), len(b.shape)) != (first, second):
        raise problem(ShapeError, who, f"shapes {a.shape} and {b.shape}", f"ranks {first} and {second}")
    return matmul(a, b)


def matrix_power(x: Node, n: int) -> Node:
    """The product of `n` square matrices `x`; the identity for 0.

    >>> weft.matrix_power(weft.tensor([[1.0, 1.0], [0.0, 1.0]]), 3)
    tensor([[1., 3.],
            [0., 1.]])
    """
    times = as_int("matrix_power", n, "power")
    if len(x.shape) < 2 or x.shape[-1] != x.shape[-2]:
        raise problem(ShapeError, "matrix_power", f"shape {x.shape}", "square matrices")
    if times < 0:
        raise problem(RangeError, "matrix_power", f"the power {times}", "at least 0", "take weft.linalg.inv first")
    result: Node | None = None
    while times:
        if times % 2:
            result = x if result is None else matmul(result, x)
        times //= 2
        x = matmul(x, x) if times else x
    if result is not None:
        return result
    rank = len(x.shape)
    same = make("eq", (build.iota(x.shape, rank - 2, x.device), build.iota(x.shape, rank - 1, x.device)))
    return build.cast(same, x.dtype)


def _root(total: Node, power: float) -> Node:
    """total ** (1 / power), with slope 0 at 0."""
    zero = build.eq(total, 0.0)
    safe = build.select(zero, 1.0, total)
    root = build.unary("sqrt", safe) if power == 2 else make("pow", (safe, build.like(safe, 1.0 / power)))
    return build.select(zero, 0.0, root)


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


def norm(x: Node, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False) -> Node:
    """The vector norm of order `p` over `dim` ('fro' and None mean 2). Matrix norms are in `weft.linalg`.

    >>> weft.norm(weft.tensor([[1.0, 2.0], [2.0, 4.0]]))
    tensor(5.)
    """
    if isinstance(p, str) and p != "fro":
        raise problem(RangeError, "norm", f"p={p!r}", "'fro' or a number", "use weft.linalg.matrix_norm")
    return vector_norm(x, 2.0 if p is None or isinstance(p, str) else float(p), dim, keepdim)


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
