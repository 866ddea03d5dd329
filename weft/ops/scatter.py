"""Gathering and scattering along one axis, under PyTorch's names: `out[index[k]]` is reduced with `src[k]`.

One mechanism for all: `_Table` brings index, source and result into rows, or, where every element has an index of its
own, into one long vector of elements. Where several entries go to one place, sums and products take them in order, a
copy keeps the last, and the gradient of a maximum or minimum goes to the first that has it. Indices are not negative;
one outside the axis raises IndexRangeError when the value is computed.
"""

from __future__ import annotations

import math

from weft.base.dtypes import bool_, int64
from weft.base.errors import DTypeError, RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.build import Shape
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops.common import (
    Operand,
    fit_number,
    meet,
    need_integer,
    normal_axis,
    same_device,
)  # fmt: skip
from weft.ops.indexing import user_site, wrap_negative
from weft.ops.registry import operation

REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "prod",
    "multiply": "prod",
    "mean": "add",
    "amax": "max",
    "amin": "min",
}


def _element_index(x: Shape, dim: int, index: Node) -> Node:
    """The positions in a flat array of shape `x` that an index of its rank picks; -1 where it leaves its axis."""
    position = build.full(index.shape, 0, int64, index.device)
    for axis, extent in enumerate(x):
        number = build.cast(index, int64) if axis == dim else build.iota(index.shape, axis, index.device)
        position = build.add(position, build.mul(number, math.prod(x[axis + 1 :]))) if extent != 1 else position
    wide = build.cast(index, int64)
    inside = make_node("and", (make_node("le", (build.like(wide, 0), wide)), build.lt(wide, x[dim])))
    return build.select(inside, position, -1)


def _row_index(dim: int, index: Node) -> Node | None:
    """The vector behind an index that is the same along all axes but `dim`."""
    source = index
    while source.op == "expand":
        source = source.srcs[0]
    if len(source.shape) == len(index.shape) and source.size == index.shape[dim] == source.shape[dim]:
        return build.reshape(source, (source.size,))
    return None


def _to_front(x: Node, dim: int) -> Node:
    return build.permute(x, (dim, *[axis for axis in range(len(x.shape)) if axis != dim]))


def _from_front(x: Node, dim: int) -> Node:
    return build.permute(x, (*range(1, dim + 1), 0, *range(dim + 1, len(x.shape))))


def _check_index(who: str, x: Node, dim: int, index: Node, src: Node | None) -> int:
    """The axis, counted from the front, once index and source are found to fit."""
    axis = normal_axis(who, dim, len(x.shape))
    need_integer(who, index)
    same_device(who, [x, index, *([] if src is None else [src])])
    outer = [extent for k, extent in enumerate(x.shape) if k != axis]
    picked = [extent for k, extent in enumerate(index.shape) if k != axis]
    if len(index.shape) != len(x.shape) or any(a > b for a, b in zip(picked, outer, strict=True)):
        given = f"an index of shape {index.shape} for {x.shape} along axis {axis}"
        raise problem(ShapeError, who, given, "the same rank, and no other axis longer", "expand or slice the index")
    if src is not None and (
        len(src.shape) != len(index.shape) or any(a > b for a, b in zip(index.shape, src.shape, strict=True))
    ):
        raise problem(
            ShapeError, who, f"a source of shape {src.shape} for an index of {index.shape}", "one at least as long"
        )
    return axis


class _Table:
    """Where entries go: a table of rows (or of elements) with the index of each entry, and the way back to `shape`,
    which has an axis at least."""

    def __init__(self, shape: Shape, axis: int, index: Node):
        self.shape, self.axis = shape, axis
        self.site = user_site()
        outer = shape[:axis] + shape[axis + 1 :]
        vector = _row_index(axis, index) if index.shape[:axis] + index.shape[axis + 1 :] == outer else None
        self.by_rows = vector is not None or len(shape) == 1
        self.picked = index.shape
        if vector is None and self.by_rows:
            vector = build.reshape(index, (index.size,))
        self.index = vector if vector is not None else build.reshape(_element_index(shape, axis, index), (index.size,))
        self.count = shape[axis] if self.by_rows else math.prod(shape)

    def entries(self, src: Node) -> Node:
        """The source in the order of the index: one row, or one element, per entry."""
        src = build.slice_(src, (0,) * len(self.picked), self.picked)
        if not self.by_rows:
            return build.reshape(src, (src.size,))
        return _to_front(src, self.axis)

    def reduce(self, reduction: str, entries: Node) -> Node:
        """Entries reduced into a value of the table's shape; the reduction's identity where there are none."""
        return self.back(build.scatter(reduction, self.index, entries, self.count, self.site))

    def back(self, table: Node) -> Node:
        if not self.by_rows:
            return build.reshape(table, self.shape)
        return _from_front(table, self.axis)

    def spread(self, per_row: Node) -> Node:
        """One number per row (or element) of the table, repeated over `shape`."""
        if not self.by_rows:
            return build.reshape(per_row, self.shape)
        ones = [self.count if axis == self.axis else 1 for axis in range(len(self.shape))]
        return build.expand(build.reshape(per_row, tuple(ones)), self.shape)

    def counts(self, dtype) -> Node:
        """How many entries went to each position."""
        ones = build.full(self.index.shape, 1, dtype, self.index.device)
        return self.spread(build.scatter_add(self.index, ones, self.count, self.site))

    def is_touched(self) -> Node:
        """Whether anything went to a position."""
        ones = build.full(self.index.shape, True, bool_, self.index.device)
        return self.spread(build.scatter("max", self.index, ones, self.count, self.site))

    def write_last(self, x: Node, entries: Node) -> Node:
        """`x` with the last entry of each position written over it."""
        number = build.iota(self.index.shape, 0, self.index.device)
        last = build.scatter("max", self.index, number, self.count, self.site)
        if not self.index.size:
            return x
        some = make_node("le", (build.like(last, 0), last))
        picked = build.gather(entries, build.select(some, last, 0), 0, self.site)
        return build.select(self.spread(some), self.back(picked), x)


@operation()
def gather(input: Node, dim: int, index: Node) -> Node:
    """Elements of `input` along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim=0`. `index` has the rank of `input`.

    >>> weft.gather(weft.tensor([[1, 2], [3, 4]]), 1, weft.tensor([[0, 0], [1, 0]]))
    tensor([[1, 1],
            [4, 3]])
    """
    shape = index.shape
    if not index.size:
        need_integer("gather", index)
        normal_axis("gather", dim, len(input.shape))
        return build.full(shape, 0, input.dtype, input.device)
    input, index = _vectors(input, index)
    axis = _check_index("gather", input, dim, index, None)
    inner = tuple(n if k == axis else m for k, (n, m) in enumerate(zip(input.shape, index.shape, strict=True)))
    input = build.slice_(input, (0,) * len(inner), inner)
    vector = _row_index(axis, index)
    if vector is not None:
        return build.reshape(build.gather(input, vector, axis, user_site()), shape)
    return build.along(input, index, axis, user_site())


def _vectors(*nodes: Node) -> list[Node]:
    """`nodes`, of which those without axes get one: beside a vector they are its only element."""
    return [node if node.shape else build.reshape(node, (1,)) for node in nodes]


@operation()
def take_along_dim(input: Node, indices: Node, dim: int | None = None) -> Node:
    """`gather` with axes of extent 1 repeated, and negative indices counted from the end; without `dim`, of the
    elements in a row, by numbers that are not negative.

    >>> weft.take_along_dim(weft.tensor([[1, 2], [3, 4]]), weft.tensor([[1], [0]]), 1)
    tensor([[2],
            [3]])
    """
    if dim is None:
        return gather(build.reshape(input, (input.size,)), 0, build.reshape(indices, (indices.size,)))
    axis = normal_axis("take_along_dim", dim, len(input.shape))
    if len(indices.shape) != len(input.shape) or not input.shape:
        given = f"indices of shape {indices.shape} for {input.shape}"
        raise problem(ShapeError, "take_along_dim", given, "the same rank, at least 1")
    need_integer("take_along_dim", indices)
    indices = wrap_negative(indices, input.shape[axis])
    common = tuple(max(a, b) if b != 0 else 0 for a, b in zip(input.shape, indices.shape, strict=True))
    input = build.expand(input, (*common[:axis], input.shape[axis], *common[axis + 1 :]))
    return gather(input, axis, build.expand(indices, (*common[:axis], indices.shape[axis], *common[axis + 1 :])))


@operation(
    "weft method inplace",
    overloads=(
        "(input: Tensor, dim: int, index: Tensor, src: Tensor | float, *, reduce: str | None = None) -> Tensor",
        "(input: Tensor, dim: int, index: Tensor, *, value: float, reduce: str | None = None) -> Tensor",
    ),
)
def scatter(
    input: Node,
    dim: int,
    index: Node,
    src: Operand | None = None,
    reduce: str | None = None,
    *,
    value: Operand | None = None,
) -> Node:
    """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
    entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number,
    which may be given as `value`.

    >>> weft.zeros(4).scatter(0, weft.tensor([2, 0, 2]), weft.tensor([1.0, 2.0, 3.0]))
    tensor([2., 0., 3., 0.])
    """
    src = value if src is None else src
    if src is None:
        raise problem(DTypeError, "scatter", "neither src nor value", "one of them")
    if not isinstance(src, Node):
        src = build.full(index.shape, fit_number("scatter", src, input.dtype), input.dtype, input.device)
    if reduce is not None:
        if reduce not in ("add", "multiply"):
            raise problem(
                RangeError, "scatter", f"reduce={reduce!r}", "None, 'add' or 'multiply'", "use scatter_reduce"
            )
        return scatter_reduce(input, dim, index, src, {"add": "sum", "multiply": "prod"}[reduce])
    shape = input.shape
    input, index, src = _vectors(input, index, src)
    table = _Table(input.shape, _check_index("scatter", input, dim, index, src), index)
    return build.reshape(table.write_last(input, table.entries(_same_dtype("scatter", input, src))), shape)


@operation("weft method inplace")
def scatter_add(input: Node, dim: int, index: Node, src: Node) -> Node:
    """`input` with `src` added at `index` along `dim`, in order.

    >>> weft.zeros(3).scatter_add(0, weft.tensor([2, 0, 2]), weft.tensor([1.0, 2.0, 3.0]))
    tensor([2., 0., 4.])
    """
    return _reduce_rows("scatter_add", input, dim, index, src, "sum", True)


@operation("weft method inplace")
def scatter_reduce(input: Node, dim: int, index: Node, src: Node, reduce: str, include_self: bool = True) -> Node:
    """`input` reduced with `src` at `index` along `dim`. `reduce`: 'sum', 'prod', 'mean', 'amax' or 'amin'. Without
    `include_self` the elements of `input` that something goes to do not count; the others stay.

    >>> weft.zeros(3).scatter_reduce(0, weft.tensor([2, 0, 2]), weft.tensor([-1.0, 2.0, -3.0]), "amax", False)
    tensor([ 2.,  0., -1.])
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        expected = "'sum', 'prod', 'mean', 'amax' or 'amin'"
        raise problem(RangeError, "scatter_reduce", f"reduce={reduce!r}", expected)
    return _reduce_rows("scatter_reduce", input, dim, index, src, reduce, include_self)


def _same_dtype(who: str, x: Node, src: Node) -> Node:
    if src.dtype is not x.dtype:
        given = f"a {src.dtype.name} source for {x.dtype.name}"
        raise problem(DTypeError, who, given, "one dtype", f"convert the source with .to(weft.{x.dtype.name})")
    return src


def _reduce_rows(who: str, x: Node, dim: int, index: Node, src: Node, reduce: str, include_self: bool) -> Node:
    shape = x.shape
    x, index, src = _vectors(x, index, src)
    table = _Table(x.shape, _check_index(who, x, dim, index, src), index)
    entries = table.entries(_same_dtype(who, x, src))
    return build.reshape(_reduce_entries(table, x, entries, reduce, include_self), shape)


def _reduce_entries(table: _Table, x: Node, entries: Node, reduce: str, include_self: bool) -> Node:
    """Entries reduced with the elements of `x`, or, without `include_self`, in place of those that some go to."""
    reduced = table.reduce(REDUCTIONS[reduce], entries)
    if include_self:
        combine = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}[reduce]
        reduced = build.binary(combine, x, reduced)
    if reduce == "mean":
        count = table.counts(x.dtype)
        reduced = build.div(reduced, build.add(count, 1) if include_self else build.binary("max", count, 1))
    return reduced if include_self else build.select(table.is_touched(), reduced, x)


# --- whole slices ----------------------------------------------------------------------------------------------------


def _slices(who: str, x: Node, dim: int, index: Node, source: Node) -> tuple[_Table, Node]:
    """The table and entries of an operation that writes slices of `source` to the slices `index` of `x`."""
    axis = normal_axis(who, dim, len(x.shape))
    need_integer(who, index)
    same_device(who, [x, index, source])
    expected = (*x.shape[:axis], index.size, *x.shape[axis + 1 :]) if x.shape else ()
    if len(index.shape) > 1 or (source.shape != expected and not (not x.shape and source.size == index.size == 1)):
        given = f"{index.shape} indices and a source of shape {source.shape} for {x.shape} along axis {axis}"
        raise problem(ShapeError, who, given, f"a vector and {expected}")
    shape = x.shape or (1,)
    ones = tuple(index.size if k == axis else 1 for k in range(len(shape)))
    spread = build.expand(build.reshape(index, ones), (*shape[:axis], index.size, *shape[axis + 1 :]))
    table = _Table(shape, axis, spread)
    return table, table.entries(build.reshape(_same_dtype(who, x, source), spread.shape))


@operation("weft method inplace")
def index_add(input: Node, dim: int, index: Node, source: Node, alpha: float = 1) -> Node:
    """`input` with slices of `source`, times `alpha`, added to its slices `index` along `dim`.

    >>> weft.zeros(2, 2).index_add(0, weft.tensor([1, 1]), weft.ones(2, 2))
    tensor([[0., 0.],
            [2., 2.]])
    """
    table, entries = _slices("index_add", input, dim, index, source)
    if alpha != 1:
        entries = build.mul(entries, fit_number("index_add", alpha, input.dtype))
    return build.add(input, build.reshape(table.reduce("add", entries), input.shape))


@operation("weft method inplace")
def index_reduce(input: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True) -> Node:
    """`input` with slices of `source` reduced into its slices `index` along `dim`. `reduce`: 'prod', 'mean', 'amax' or
    'amin'. Without `include_self` slices of `input` that something goes to do not count.

    >>> weft.ones(3).index_reduce(0, weft.tensor([2, 2]), weft.tensor([2.0, 3.0]), "prod")
    tensor([1., 1., 6.])
    """
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise problem(RangeError, "index_reduce", f"reduce={reduce!r}", "'prod', 'mean', 'amax' or 'amin'")
    table, entries = _slices("index_reduce", input, dim, index, source)
    return build.reshape(
        _reduce_entries(table, build.reshape(input, table.shape), entries, reduce, include_self), input.shape
    )


@operation("weft method inplace")
def index_copy(input: Node, dim: int, index: Node, source: Node) -> Node:
    """`input` with slices of `source` written over its slices `index` along `dim`; the last one stays.

    >>> weft.zeros(3).index_copy(0, weft.tensor([2, 0]), weft.tensor([1.0, 2.0]))
    tensor([2., 0., 1.])
    """
    table, entries = _slices("index_copy", input, dim, index, source)
    return build.reshape(table.write_last(build.reshape(input, table.shape), entries), input.shape)


@operation("weft method inplace")
def index_fill(input: Node, dim: int, index: Node, value: Operand) -> Node:
    """`input` with its slices `index` along `dim` filled with one number.

    >>> weft.ones(3).index_fill(0, weft.tensor([1]), 7)
    tensor([1., 7., 1.])
    """
    axis = normal_axis("index_fill", dim, len(input.shape))
    need_integer("index_fill", index)
    if len(index.shape) > 1 or (isinstance(value, Node) and value.shape):
        raise problem(ShapeError, "index_fill", f"{index.shape} indices", "a vector, and a number to fill with")
    shape = input.shape or (1,)
    ones = tuple(index.size if k == axis else 1 for k in range(len(shape)))
    spread = build.expand(build.reshape(index, ones), (*shape[:axis], index.size, *shape[axis + 1 :]))
    touched = build.reshape(_Table(shape, axis, spread).is_touched(), input.shape)
    _, filling = meet("index_fill", input, value, dtype=input.dtype)
    return build.select(touched, filling, input)
