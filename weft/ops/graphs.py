"""Operations on graphs: rows gathered along edges and reduced at nodes.

Two ways to say which node an edge belongs to. *By index*: one number per edge, in any order (`scatter_*`,
`edge_softmax`). *By segments*: edges sorted by node, node i owning the edges from `rowptr[i]` to `rowptr[i + 1]`, as in
the CSR format (`segment_*`, `spmm`, `aggregate`); that is the fast way, because nodes are independent of each other and
nothing of the size of all edges' features is ever stored. Sums take edges in order. A node without edges gets 0, also
from a maximum or minimum; the gradient of those goes to the first edge that has the value.
"""

from __future__ import annotations

from weft.base.dtypes import bool_, int32
from weft.base.errors import RangeError, ShapeError, problem
from weft.graph import build
from weft.graph.node import Node
from weft.graph.primitives import make_node
from weft.ops.common import need_float, need_integer, normal_axis, same_device
from weft.ops.indexing import user_site
from weft.ops.reduce import ValuesIndices
from weft.ops.registry import operation
from weft.ops.scans import cumsum
from weft.ops.sorting import argsort

# --- by index --------------------------------------------------------------------------------------------------------


def _entries(who: str, src: Node, index: Node, dim: int) -> tuple[Node, int]:
    """The source with the axis that is scattered in front, and that axis."""
    axis = normal_axis(who, dim, len(src.shape))
    need_integer(who, index)
    same_device(who, [src, index])
    if len(index.shape) != 1 or not src.shape or src.shape[axis] != index.size:
        given = f"an index of shape {index.shape} for a source of {src.shape} along axis {axis}"
        raise problem(ShapeError, who, given, "one number for each slice along that axis")
    return build.permute(src, (axis, *[k for k in range(len(src.shape)) if k != axis])), axis


def _back(out: Node, axis: int) -> Node:
    return build.permute(out, (*range(1, axis + 1), 0, *range(axis + 1, len(out.shape))))


def _repeat_rows(per_row: Node, like: Node) -> Node:
    """One value per row, repeated over the rows of `like`."""
    return build.expand(build.reshape(per_row, (per_row.size, *(1,) * (len(like.shape) - 1))), like.shape)


@operation("weft")
def scatter_sum(src: Node, index: Node, dim_size: int, dim: int = 0) -> Node:
    """Slices of `src` along `dim` added up by number: slice k goes to slice `index[k]` of `dim_size`.

    >>> weft.scatter_sum(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([2, 0, 2]), 3)
    tensor([2., 0., 4.])
    """
    rows, axis = _entries("scatter_sum", src, index, dim)
    return _back(build.scatter_add(index, rows, dim_size, user_site()), axis)


@operation("weft")
def scatter_mean(src: Node, index: Node, dim_size: int, dim: int = 0) -> Node:
    """As `scatter_sum`, divided by how many slices went to each; 0 where none did.

    >>> weft.scatter_mean(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([2, 0, 2]), 3)
    tensor([2., 0., 2.])
    """
    need_float("scatter_mean", src)
    rows, axis = _entries("scatter_mean", src, index, dim)
    total = build.scatter_add(index, rows, dim_size, user_site())
    ones = build.full(index.shape, 1, src.dtype, src.device)
    count = build.binary("max", build.scatter_add(index, ones, dim_size, user_site()), 1)
    return _back(build.div(total, _repeat_rows(count, total)), axis)


@operation("weft")
def scatter_max(src: Node, index: Node, dim_size: int, dim: int = 0) -> ValuesIndices:
    """The largest of the slices that go to each number, element by element, and which slice that was (the first of
    equals). Where none went: 0, and -1.

    >>> weft.scatter_max(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([2, 0, 2]), 3)
    ValuesIndices(values=tensor([2., 0., 3.]), indices=tensor([ 1, -1,  2]))
    """
    return _extremum("scatter_max", "max", src, index, dim_size, dim)


@operation("weft")
def scatter_min(src: Node, index: Node, dim_size: int, dim: int = 0) -> ValuesIndices:
    """The smallest of the slices that go to each number; otherwise as `scatter_max`.

    >>> weft.scatter_min(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([2, 0, 2]), 3).values
    tensor([2., 0., 1.])
    """
    return _extremum("scatter_min", "min", src, index, dim_size, dim)


def _extremum(who: str, reduction: str, src: Node, index: Node, dim_size: int, dim: int) -> ValuesIndices:
    rows, axis = _entries(who, src, index, dim)
    site = user_site()
    table = build.scatter(reduction, index, rows, dim_size, site)
    touched = build.scatter("max", index, build.full(index.shape, True, bool_, src.device), dim_size, site)
    values = build.select(_repeat_rows(touched, table), table, 0)
    number = build.iota(rows.shape, 0, src.device)
    hit = build.eq(rows, build.gather(table, index, 0))
    first = build.scatter("min", index, build.select(hit, number, index.size), dim_size, site)
    found = build.select(build.lt(first, index.size), first, -1)
    return ValuesIndices(_back(values, axis), _back(found, axis))


@operation("weft")
def edge_softmax(scores: Node, dst: Node, num_nodes: int) -> Node:
    """A softmax over the edges into each node: `scores` [E] or [E, heads], `dst` [E] the node of each edge.

    >>> weft.edge_softmax(weft.tensor([0.0, 0.0, 5.0]), weft.tensor([1, 1, 0]), 2)
    tensor([0.5000, 0.5000, 1.0000])
    """
    need_float("edge_softmax", scores)
    rows, _ = _entries("edge_softmax", scores, dst, 0)
    site = user_site()
    largest = build.stop_gradient(build.scatter("max", dst, rows, num_nodes, site))
    weights = build.unary("exp_rounded", build.sub(rows, build.gather(largest, dst, 0, site)))
    return build.div(weights, build.gather(build.scatter_add(dst, weights, num_nodes, site), dst, 0, site))


# --- by segments -----------------------------------------------------------------------------------------------------


def _need_segments(who: str, data: Node, rowptr: Node) -> None:
    need_integer(who, rowptr)
    same_device(who, [data, rowptr])
    if len(rowptr.shape) != 1 or not rowptr.size or not data.shape:
        given = f"data of shape {data.shape} and row pointers of {rowptr.shape}"
        raise problem(ShapeError, who, given, "[elements, ...] and a vector of segments + 1")


def _need_reduction(who: str, reduce: str) -> None:
    if reduce not in ("sum", "mean", "max", "min"):
        raise problem(RangeError, who, f"reduce={reduce!r}", "'sum', 'mean', 'max' or 'min'")


def _lengths(rowptr: Node, like: Node) -> Node:
    """How many elements each segment has, repeated over the rows of `like`."""
    count = rowptr.size - 1
    length = build.sub(build.narrow(rowptr, 0, 1, count + 1), build.narrow(rowptr, 0, 0, count))
    return _repeat_rows(length, like)


@operation("weft")
def segment_reduce(data: Node, rowptr: Node, reduce: str = "sum", empty: float = 0.0) -> Node:
    """Rows `rowptr[i]` to `rowptr[i + 1]` of `data` [E, ...] reduced into row i: 'sum', 'mean', 'max' or 'min'.
    `rowptr` rises from 0 to E. A segment without rows gives `empty`; a sum or mean gives 0.

    >>> weft.segment_reduce(weft.tensor([1.0, 2.0, 3.0]), weft.tensor([0, 2, 2, 3]))
    tensor([3., 0., 3.])
    """
    _need_segments("segment_reduce", data, rowptr)
    _need_reduction("segment_reduce", reduce)
    out = build.segment("sum" if reduce == "mean" else reduce, data, rowptr, user_site())
    if reduce == "sum":
        return out
    lengths = _lengths(rowptr, out)
    if reduce == "mean":
        need_float("segment_reduce", data)
        return build.div(out, build.cast(build.binary("max", lengths, 1), out.dtype))
    return build.select(build.lt(build.like(lengths, 0), lengths), out, empty)


@operation("weft")
def segment_rows(rowptr: Node, count: int) -> Node:
    """The segment that each of `count` elements lies in.

    >>> weft.segment_rows(weft.tensor([0, 2, 2, 3]), 3)
    tensor([0, 0, 2])
    """
    need_integer("segment_rows", rowptr)
    return build.segment_rows(rowptr, count, user_site())


@operation("weft")
def segment_softmax(scores: Node, rowptr: Node) -> Node:
    """A softmax within each segment: `scores` [E] or [E, heads].

    >>> weft.segment_softmax(weft.tensor([0.0, 0.0, 5.0]), weft.tensor([0, 2, 3]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    need_float("segment_softmax", scores)
    _need_segments("segment_softmax", scores, rowptr)
    site = user_site()
    rows = build.segment_rows(rowptr, scores.shape[0], site)
    largest = build.stop_gradient(build.segment("max", scores, rowptr, site))
    weights = build.unary("exp_rounded", build.sub(scores, build.gather(largest, rows, 0, site)))
    return build.div(weights, build.gather(build.segment("sum", weights, rowptr, site), rows, 0, site))


@operation("weft")
def spmm(rowptr: Node, col: Node, val: Node | None, x: Node) -> Node:
    """The product of a sparse matrix in CSR form and `x` [columns, ...]: row i is the sum of `val[e] * x[col[e]]` over
    its elements e. Without `val` all are 1. `aggregate` has the faster gradient.

    >>> x = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> weft.spmm(weft.tensor([0, 1, 3]), weft.tensor([1, 0, 1]), weft.tensor([1.0, 1.0, 0.5]), x)
    tensor([[3.0000, 4.0000],
            [2.5000, 4.0000]])
    """
    _need_segments("spmm", col, rowptr)
    need_integer("spmm", col)
    same_device("spmm", [rowptr, col, x, *([] if val is None else [val])])
    picked = build.gather(x, col, 0, user_site())
    return build.segment("sum", _apply_weights("spmm", picked, val), rowptr, user_site())


def gather_neighbors(x: Node, col: Node, colptr: Node, order: Node, who: str = "sources") -> Node:
    """`x[col]` for a graph whose transposed structure is known: `order` sorts the edges by `col`, and `colptr` says
    where the edges of each begin. The gradient is summed by segments."""
    for index in (col, colptr, order):
        need_integer(who, index)
    if not x.shape or colptr.shape != (x.shape[0] + 1,):
        nodes = colptr.size - 1
        raise problem(ShapeError, who, f"a tensor of shape {x.shape}", f"one row for each of {nodes} nodes")
    return make_node("gather_neighbors", (x, col, colptr, order), site=user_site())


def permute_rows(x: Node, order: Node, inverse: Node) -> Node:
    """Rows of `x` in an order whose inverse is known: the gradient is picked by the inverse, not scattered."""
    need_integer("reorder", order)
    if not x.shape or x.shape[0] != order.size:
        given = f"values of shape {x.shape} for {order.size} edges"
        raise problem(ShapeError, "reorder", given, "one row for each edge")
    return gather_neighbors(x, order, build.iota((order.size + 1,), 0, x.device, int32), inverse, "reorder")


def sort_edges(edge_index: Node, num_nodes: int, num_sources: int | None = None) -> tuple[Node, ...]:
    """The fields of `weft.Adjacency` for `edge_index` [2, E] (sources, targets), in their order."""
    need_integer("sort_edges", edge_index)
    if len(edge_index.shape) != 2 or edge_index.shape[0] != 2:
        given = f"an edge index of shape {edge_index.shape}"
        raise problem(ShapeError, "sort_edges", given, "[2, edges]: sources, targets")
    source, target = [
        build.reshape(build.narrow(edge_index, 0, row, row + 1), edge_index.shape[1:]) for row in range(2)
    ]
    edge = build.cast(argsort(_as_int32(target)), int32)
    col = build.gather(_as_int32(source), edge, 0)
    order = build.cast(argsort(col), int32)
    rowptr = _pointers(target, num_nodes)
    colptr = _pointers(source, num_nodes if num_sources is None else num_sources)
    return rowptr, col, colptr, order, edge, _inverse(edge), _inverse(order)


def _as_int32(index: Node) -> Node:
    """As int32, for keys of half the size. What does not fit becomes the nearest that does, and stays out of range."""
    if index.dtype.itemsize <= int32.itemsize:
        return build.cast(index, int32)
    return build.cast(build.binary("min", build.binary("max", index, -(2**31)), 2**31 - 1), int32)


def _pointers(index: Node, count: int) -> Node:
    """Where the entries of each of `count` rows begin when `index` is sorted; checks the range of the index."""
    ones = build.full(index.shape, 1, int32, index.device)
    lengths = build.scatter_add(index, ones, count, user_site())
    first = build.full((1,), 0, int32, index.device)
    return build.concat([first, cumsum(lengths, 0, dtype=int32)], 0)


def _inverse(order: Node) -> Node:
    """The permutation that undoes `order`."""
    return build.scatter("max", order, build.iota(order.shape, 0, order.device, int32), order.size)


def targets(x: Node, rowptr: Node, count: int) -> Node:
    """Row i of `x` repeated for each of its edges."""
    _need_segments("targets", x, rowptr)
    if x.shape[0] != rowptr.size - 1:
        nodes = rowptr.size - 1
        raise problem(ShapeError, "targets", f"a tensor of shape {x.shape}", f"one row for each of {nodes} nodes")
    return build.gather(x, build.segment_rows(rowptr, count, user_site()), 0, user_site())


def aggregate(
    x: Node, rowptr: Node, col: Node, colptr: Node, order: Node, weight: Node | None = None, reduce: str = "sum"
) -> Node:
    """Rows of `x` at the sources of each node's edges, times the edges' weights, reduced at the node."""
    _need_reduction("aggregate", reduce)
    picked = gather_neighbors(x, col, colptr, order, "aggregate")
    return segment_reduce(_apply_weights("aggregate", picked, weight), rowptr, reduce)


def _apply_weights(who: str, picked: Node, weight: Node | None) -> Node:
    """Rows times one weight each, or one for each of their leading axes."""
    if weight is None:
        return picked
    rank = len(weight.shape)
    if weight.dtype is not picked.dtype or not weight.shape or weight.shape != picked.shape[:rank]:
        given = f"{weight.dtype.name} weights of shape {weight.shape}"
        raise problem(ShapeError, who, given, f"{picked.dtype.name}, the leading axes of {picked.shape}")
    full = build.reshape(weight, (*weight.shape, *(1,) * (len(picked.shape) - rank)))
    return build.mul(picked, build.expand(full, picked.shape))
