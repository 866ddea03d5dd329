"""Products beyond matmul, and what is measured with them: contractions, norms, distances."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.base.dtypes import DType
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops import reduce
from weft.ops.arrange import diagonal
from weft.ops.common import (
    as_int,
    broadcast_shapes,
    in_float32,
    meet,
    need_float,
    normal_axes,
    normal_axis,
    same_device,
)
from weft.ops.elementwise import add, mul
from weft.ops.elementwise import sub as subtract
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
    if not isinstance(dims, (tuple, list)):
        count = as_int("tensordot", dims, "number of axes")
        if not 0 <= count <= min(len(input.shape), len(other.shape)):
            given = f"{count} axes of shapes {input.shape} and {other.shape}"
            raise problem(ShapeError, "tensordot", given, "at least 0, and no more than either has")
        dims = (range(len(input.shape) - count, len(input.shape)), range(count))
    left, right = (
        [normal_axis("tensordot", axis, len(x.shape)) for axis in ([axes] if isinstance(axes, int) else axes)]
        for x, axes in zip((input, other), dims, strict=True)
    )
    if len(left) != len(right) or len({*left}) != len(left) or len({*right}) != len(right):
        raise problem(ShapeError, "tensordot", f"axes {left} and {right}", "as many different axes of both")
    for axis, partner in zip(left, right, strict=True):  # an extent of 1 meets any other: the other is summed over
        n, m = input.shape[axis], other.shape[partner]
        if n != m:
            if 1 not in (n, m):
                given = f"shapes {input.shape} and {other.shape} over axes {left} and {right}"
                raise problem(ShapeError, "tensordot", given, "equal extents there, or 1")
            if n == 1:
                other = build.reduce("reduce_sum", other, (partner,), True)
            else:
                input = build.reduce("reduce_sum", input, (axis,), True)
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


@operation()
def cross(input: Node, other: Node, dim: int | None = None) -> Node:
    """The vector product of vectors of three along `dim`, or along the first axis of extent 3; other axes broadcast.

    >>> weft.cross(weft.tensor([1.0, 0.0, 0.0]), weft.tensor([0.0, 1.0, 0.0]))
    tensor([0., 0., 1.])
    """
    if dim is None:
        shape = broadcast_shapes("cross", [input.shape, other.shape])
        if 3 not in shape:
            raise problem(ShapeError, "cross", f"shapes {input.shape} and {other.shape}", "an axis of extent 3")
        dim = shape.index(3)
    return linalg_cross(input, other, dim=dim)


def linalg_cross(input: Node, other: Node, *, dim: int = -1) -> Node:
    """The vector product of vectors of three along `dim`; the other axes broadcast."""
    if len(input.shape) != len(other.shape):
        given = f"shapes {input.shape} and {other.shape}"
        raise problem(ShapeError, "cross", given, "as many axes", "add some with unsqueeze")
    axis = normal_axis("cross", dim, len(input.shape))
    if not input.shape or (input.shape[axis], other.shape[axis]) != (3, 3):
        given = f"shapes {input.shape} and {other.shape} along axis {axis}"
        raise problem(ShapeError, "cross", given, "an extent of 3 there")
    input, other = meet("cross", input, other)

    def rotate(x: Node, by: int) -> Node:
        return build.concat([build.narrow(x, axis, by, 3), build.narrow(x, axis, 0, by)], axis)

    return build.sub(build.mul(rotate(input, 1), rotate(other, 2)), build.mul(rotate(input, 2), rotate(other, 1)))


def vecdot(x: Node, y: Node, *, dim: int = -1) -> Node:
    """The sum of products over `dim`; the other axes broadcast.

    >>> weft.linalg.vecdot(weft.ones(2, 3), weft.ones(2, 3))
    tensor([3., 3.])
    """
    if x.dtype is not y.dtype:
        raise problem(DTypeError, "vecdot", f"{x.dtype.name} and {y.dtype.name}", "one dtype", "cast one with .to")
    need_float("vecdot", x)
    product = mul(x, y)
    return reduce.sum(product, normal_axis("vecdot", dim, len(product.shape)))


def matrix_diagonal(A: Node, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Node:
    """`weft.diagonal` of the last two axes."""
    return diagonal(A, offset, dim1, dim2)


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
    if (len(a.shape), len(b.shape)) != (first, second) or (first == 3 and a.shape[0] != b.shape[0]):
        raise problem(ShapeError, who, f"shapes {a.shape} and {b.shape}", f"ranks {first} and {second}")
    return matmul(a, b)


def matrix_power(input: Node, n: int) -> Node:
    """The product of `n` square matrices `input`; the identity for 0."""
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
    same = make_node(
        "eq", (build.iota(input.shape, rank - 2, input.device), build.iota(input.shape, rank - 1, input.device))
    )
    return build.cast(same, input.dtype)


def _root(total: Node, power: float) -> Node:
    """total ** (1 / power), with slope 0 at 0."""
    zero = build.eq(total, 0.0)
    safe = build.select(zero, 1.0, total)
    root = build.unary("sqrt", safe) if power == 2 else make_node("pow", (safe, build.like(safe, 1.0 / power)))
    return build.select(zero, 0.0, root)


def vector_norm(x: Node, ord: float = 2, dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None) -> Node:
    """(sum of |x| ** ord) ** (1 / ord) over `dim`, or all elements; for inf, -inf and 0 the largest, the smallest and
    the number that is not zero. The gradient at a norm of 0 is 0.

    >>> weft.linalg.vector_norm(weft.tensor([3.0, 4.0]))
    tensor(5.)
    """
    need_float("vector_norm", x)
    x = x if dtype is None else build.cast(x, dtype)
    need_float("vector_norm", x)
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise problem(RangeError, "vector_norm", f"ord={ord!r}", "a number")
    axes = normal_axes("vector_norm", dim, len(x.shape))
    if ord == 0:
        return build.reduce("reduce_sum", build.cast(make_node("ne", (x, build.like(x, 0.0))), x.dtype), axes, keepdim)
    size = build.unary("abs", x)
    if math.isinf(ord):
        return (reduce.amax if ord > 0 else reduce.amin)(size, axes, keepdim)
    if ord == 1:
        return build.reduce("reduce_sum", size, axes, keepdim)
    if ord == 2:
        return _root(build.reduce("reduce_sum", build.mul(x, x), axes, keepdim), 2)
    zero = build.eq(size, 0.0)
    power = make_node("pow", (build.select(zero, 1.0, size), build.like(size, float(ord))))
    power = build.select(zero, 0.0 if ord > 0 else math.inf, power)
    return _root(build.reduce("reduce_sum", power, axes, keepdim), float(ord))


def norm(
    input: Node, p: float | str | None = "fro", dim: Dim = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Node:
    """The vector norm of order `p` over `dim` ('fro' and None mean 2)."""
    if isinstance(p, str) and p != "fro":
        raise problem(RangeError, "norm", f"p={p!r}", "'fro', 'nuc' or a number", "use weft.linalg.matrix_norm")
    order = 2.0 if p is None or isinstance(p, str) else float(p)
    return vector_norm(input, order, dim, keepdim, dtype=dtype)


@operation()
def dist(input: Node, other: Node, p: float = 2) -> Node:
    """The norm of order `p` of the difference of two tensors, which broadcast.

    >>> weft.dist(weft.tensor([0.0, 0.0]), weft.tensor([3.0, 4.0]))
    tensor(5.)
    """
    return vector_norm(subtract(input, other), float(p))


@operation("weft method inplace")
def renorm(input: Node, p: float, dim: int, maxnorm: float) -> Node:
    """Slices along `dim` scaled down to the norm `maxnorm` of order `p` where theirs is larger.

    >>> weft.renorm(weft.tensor([[3.0, 4.0], [0.3, 0.4]]), 2, 0, 1)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    need_float("renorm", input)
    axis = normal_axis("renorm", dim, len(input.shape))
    if p <= 0 or maxnorm < 0 or len(input.shape) < 2:
        given = f"p={p}, maxnorm={maxnorm} for shape {input.shape}"
        raise problem(RangeError, "renorm", given, "p above 0, maxnorm of at least 0, and at least two axes")
    return _renorm(input, float(p), axis, float(maxnorm))


@in_float32
def _renorm(x: Node, p: float, axis: int, maxnorm: float) -> Node:
    others = [k for k in range(len(x.shape)) if k != axis]
    size = vector_norm(x, p, others, True)
    factor = build.select(build.lt(maxnorm, size), build.div(maxnorm, build.add(size, RENORM_EPSILON)), 1.0)
    return build.mul(x, build.expand(factor, x.shape))


RENORM_EPSILON = 1e-7  # as in PyTorch, added to the norm that is divided by
COMPUTE_MODES = tuple(
    f"{word}use_mm_for_euclid_dist{end}" for word, end in (("", "_if_necessary"), ("", ""), ("donot_", ""))
)


@operation("weft")
def cdist(x1: Node, x2: Node, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Node:
    """The distance of order `p` between every row of `x1` [..., P, M] and of `x2` [..., R, M]: [..., P, R]. Its
    gradient at distance 0 is 0. Always computed from differences, whatever the `compute_mode`.

    >>> weft.cdist(weft.tensor([[0.0, 0.0]]), weft.tensor([[3.0, 4.0]]))
    tensor([[5.]])
    """
    need_float("cdist", x1)
    if compute_mode not in COMPUTE_MODES:
        raise problem(RangeError, "cdist", f"compute_mode={compute_mode!r}", f"one of {COMPUTE_MODES}")
    if len(x1.shape) < 2 or len(x2.shape) < 2 or x1.shape[-1] != x2.shape[-1] or p < 0:
        given = f"shapes {x1.shape} and {x2.shape}, p={p}"
        raise problem(ShapeError, "cdist", given, "[..., P, M] and [..., R, M], and p of at least 0")
    left = build.reshape(x1, (*x1.shape[:-1], 1, x1.shape[-1]))
    right = build.reshape(x2, (*x2.shape[:-2], 1, *x2.shape[-2:]))
    left, right = meet("cdist", left, right)
    return vector_norm(build.sub(left, right), p, -1)


@operation("weft")
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
    found = _powers(x, count)
    return found if increasing else build.flip(found, (1,))


def powers(x: Node, N: int | None = None) -> Node:
    """Powers of the elements from 0 up to N - 1 (as many as elements along the last axis) in a new last axis. A scalar
    counts as a vector of one.

    >>> weft.linalg.vander(weft.tensor([1, 2]), N=3)
    tensor([[1, 1, 1],
            [1, 2, 4]])
    """
    if not x.shape and N is None:
        raise problem(ShapeError, "vander", "a scalar", "at least one axis, or N")
    count = x.shape[-1] if N is None else as_int("vander", N, "N")
    if count < 2 and N is not None:
        raise problem(RangeError, "vander", f"N={count}", "at least 2")
    return _powers(x if x.shape else build.reshape(x, (1,)), count)


def _powers(x: Node, count: int) -> Node:
    """Powers 0 to count - 1 in a new last axis."""
    shape = (*x.shape, count)
    factor = build.expand(build.reshape(x, (*x.shape, 1)), shape)
    if not count:
        return factor
    first = build.eq(build.iota(shape, len(shape) - 1, x.device), 0)
    return cumprod(build.select(first, build.like(factor, 1), factor), -1)
