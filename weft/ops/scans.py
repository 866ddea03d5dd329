"""Running sums, products and extrema along an axis, and differences of adjacent elements.

NaN stays from where it first occurs. Sums and products of bool and integer tensors are int64.
"""

from __future__ import annotations

from weft.base.dtypes import DType, int64
from weft.base.errors import ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.ops import reduce
from weft.ops.common import as_int, need_float, normal_axis
from weft.ops.elementwise import add, div, mul
from weft.ops.elementwise import sub as subtract
from weft.ops.logic import logical_xor
from weft.ops.movement import cat
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation


def _scan(who: str, op: str, x: Node, dim: int, dtype: DType | None) -> Node:
    axis = normal_axis(who, dim, len(x.shape))
    if dtype is None:
        dtype = x.dtype if x.dtype.kind == "f" else int64
    x = build.cast(x, dtype)
    return build.scan(op, x, axis) if x.shape else x


@operation("weft method inplace")
def cumsum(input: Node, dim: int, *, dtype: DType | None = None) -> Node:
    """The sum of each element and all before it along `dim`.

    >>> weft.cumsum(weft.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 3., 6.])
    """
    return _scan("cumsum", "sum", input, dim, dtype)


@operation("weft method inplace")
def cumprod(input: Node, dim: int, *, dtype: DType | None = None) -> Node:
    """The product of each element and all before it along `dim`. The gradient is right at zeros (of first order).

    >>> weft.cumprod(weft.tensor([1.0, 2.0, 3.0]), 0)
    tensor([1., 2., 6.])
    """
    return _scan("cumprod", "prod", input, dim, dtype)


@operation()
def logcumsumexp(input: Node, dim: int) -> Node:
    """log(cumsum(exp(x))) without overflow.

    >>> weft.logcumsumexp(weft.tensor([1000.0, 1000.0]), 0)
    tensor([1000.0000, 1000.6932])
    """
    need_float("logcumsumexp", input)
    return _scan("logcumsumexp", "logaddexp", input, dim, None)


def _extremum(who: str, op: str, x: Node, dim: int) -> ValuesIndices:
    axis = normal_axis(who, dim, len(x.shape))
    if not x.shape or x.shape[axis] == 1:
        return ValuesIndices(x, build.full(x.shape, 0, int64, x.device))
    numbers = build.cast(x, int64) if x.dtype.kind == "b" else x
    values = build.scan(op, numbers, axis)
    return ValuesIndices(build.cast(values, x.dtype), build.scan_winners(values))


@operation()
def cummax(input: Node, dim: int) -> ValuesIndices:
    """The largest element so far, and its index: the latest of equal ones. NaN counts as largest. The gradient
    goes to that element.

    >>> weft.cummax(weft.tensor([1.0, 3.0, 2.0]), 0).indices
    tensor([0, 1, 1])
    """
    return _extremum("cummax", "max", input, dim)


@operation()
def cummin(input: Node, dim: int) -> ValuesIndices:
    """The smallest element so far, and its index: the latest of equal ones; once there was a NaN, that."""
    return _extremum("cummin", "min", input, dim)


@operation()
def diff(input: Node, n: int = 1, dim: int = -1, prepend: Node | None = None, append: Node | None = None) -> Node:
    """Each element less the one before it along `dim`, `n` times over; of bools, whether they differ.

    >>> weft.diff(weft.tensor([1, 4, 9]))
    tensor([3, 5])
    """
    if not input.shape:
        raise problem(ShapeError, "diff", "a scalar", "at least one axis")
    axis, times = normal_axis("diff", dim, len(input.shape)), as_int("diff", n, "order")
    if times < 0:
        raise problem(ShapeError, "diff", f"the order {times}", "at least 0")
    if times == 0:
        return input  # as it is, as in PyTorch: nothing is put around it
    parts = [part for part in (prepend, input, append) if part is not None]
    input = cat(parts, axis) if len(parts) > 1 else input
    for _ in range(min(times, input.shape[axis])):
        extent = input.shape[axis]
        high, low = build.narrow(input, axis, min(1, extent), extent), build.narrow(input, axis, 0, max(extent - 1, 0))
        input = logical_xor(high, low) if input.dtype.kind == "b" else subtract(high, low)
    return input


# --- integrals -------------------------------------------------------------------------------------------------------


def _trapezoids(who: str, y: Node, x: Node | None, dx: float | None, dim: int) -> tuple[Node, int]:
    """Twice the areas between adjacent elements along `dim`, and the axis."""
    if x is not None and dx is not None:
        raise problem(ShapeError, who, "both x and dx", "one of them")
    if not y.shape or y.dtype.kind == "b" or (x is not None and x.dtype.kind == "b"):
        raise problem(ShapeError, who, f"a {y.dtype.name} tensor of shape {y.shape}", "numbers with at least one axis")
    axis = normal_axis(who, dim, len(y.shape))

    def adjacent_pair(values: Node) -> tuple[Node, Node]:
        extent = values.shape[axis]
        return build.narrow(values, axis, min(1, extent), extent), build.narrow(values, axis, 0, max(extent - 1, 0))

    both = add(*adjacent_pair(y))
    if x is None:
        return (both if dx is None else mul(both, dx)), axis
    if len(x.shape) == 1:
        if x.shape[0] != y.shape[axis]:
            raise problem(ShapeError, who, f"x of shape {x.shape} for y of {y.shape}", "one x for each y along dim")
        x = build.reshape(x, tuple([x.shape[0] if k == axis else 1 for k in range(len(y.shape))]))
    elif len(x.shape) < len(y.shape):
        x = build.reshape(x, (1,) * (len(y.shape) - len(x.shape)) + x.shape)
    if axis >= len(x.shape):
        raise problem(ShapeError, who, f"x of shape {x.shape} for y of {y.shape}", "shapes that broadcast")
    return mul(both, subtract(*adjacent_pair(x))), axis


@operation("weft", aliases="trapz")
def trapezoid(y: Node, x: Node | None = None, *, dx: float | None = None, dim: int = -1) -> Node:
    """The integral along `dim` by the trapezoidal rule: over points `x`, or over steps `dx` (1 unless given).

    >>> weft.trapezoid(weft.tensor([1.0, 2.0, 3.0]))
    tensor(4.)
    """
    areas, axis = _trapezoids("trapezoid", y, x, dx, dim)
    return div(reduce.sum(areas, axis), 2)


@operation("weft")
def cumulative_trapezoid(y: Node, x: Node | None = None, *, dx: float | None = None, dim: int = -1) -> Node:
    """`trapezoid` up to each point but the first.

    >>> weft.cumulative_trapezoid(weft.tensor([1.0, 2.0, 3.0]))
    tensor([1.5000, 4.0000])
    """
    areas, axis = _trapezoids("cumulative_trapezoid", y, x, dx, dim)
    return div(cumsum(areas, axis), 2)
