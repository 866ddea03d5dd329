"""Adjacency: the edges of a graph, sorted once both ways, so that every pass over them runs by segments.

An edge carries values from its source to its target. Edges are kept in order of their targets (then in the given
order): a layer computes one value per edge in that order and reduces them at the targets. The order by sources serves
the gradients, and the transposed graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.base.errors import DTypeError, IndexRangeError, ShapeError, problem
from weft.base.state import STATE
from weft.core.host_arrays import from_host
from weft.core.lift import lift
from weft.core.tensor import Tensor, wrap
from weft.ops import graphs

_sources, _targets, _softmax = lift(graphs.gather_neighbors), lift(graphs.targets), lift(graphs.segment_softmax)
_aggregate, _permuted, _rows = lift(graphs.aggregate), lift(graphs.permute_rows), lift(graphs.segment_rows)
_sort_edges = lift(graphs.sort_edges)


class Adjacency(NamedTuple):
    """A graph's edges; made by `weft.adjacency`. All fields are vectors of int32.

    rowptr [targets + 1]: where the edges into each node begin; col [E]: the source of each edge; colptr [sources + 1]
    and order [E]: the same edges by source; edge [E]: the position of each edge in the given list. edge_inverse
    and order_inverse are the inverse permutations of edge and order.
    """

    rowptr: Tensor
    col: Tensor
    colptr: Tensor
    order: Tensor
    edge: Tensor
    edge_inverse: Tensor
    order_inverse: Tensor

    @property
    def num_targets(self) -> int:
        """How many nodes edges may lead to."""
        return self.rowptr.shape[0] - 1

    @property
    def num_sources(self) -> int:
        """How many nodes edges may start from."""
        return self.colptr.shape[0] - 1

    def to(self, device: Any) -> Adjacency:
        """The same graph on another device."""
        return Adjacency(*[part.to(device) for part in self])

    def rows(self) -> Tensor:
        """The target of every edge, int32.

        >>> weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3).rows()
        tensor([1, 1, 2], dtype=weft.int32)
        """
        return _rows(self.rowptr, self.col.shape[0])

    def reorder(self, values: Tensor) -> Tensor:
        """Rows of `values` [E, ...], one for each edge in the list that was given, in the order of the edges here.

        >>> graph = weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3)
        >>> graph.reorder(weft.tensor([1.0, 10.0, 100.0]))
        tensor([  1., 100.,  10.])
        """
        return _permuted(values, self.edge, self.edge_inverse)

    def by_source(self, values: Tensor) -> Tensor:
        """Rows of `values` [E, ...] in the order of the edges here, in that of the edges of `transposed()`."""
        return _permuted(values, self.order, self.order_inverse)

    def transposed(self) -> Adjacency:
        """The graph with every edge turned round.

        >>> graph = weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3).transposed()
        >>> weft.aggregate(weft.tensor([1.0, 10.0, 100.0]), graph)
        tensor([ 10., 100.,  10.])
        """
        col, edge = self.rows()[self.order], self.edge[self.order]
        edge_inverse = self.order_inverse[self.edge_inverse]
        return Adjacency(self.colptr, col, self.rowptr, self.order_inverse, edge, edge_inverse, self.order)

    def sources(self, x: Tensor) -> Tensor:
        """Row `source` of `x` for every edge."""
        return _sources(x, self.col, self.colptr, self.order)

    def targets(self, x: Tensor) -> Tensor:
        """Row `target` of `x` for every edge."""
        return _targets(x, self.rowptr, self.col.shape[0])

    def softmax(self, scores: Tensor) -> Tensor:
        """A softmax over the edges into each node; `scores` [E] or [E, heads]."""
        return _softmax(scores, self.rowptr)


def aggregate(x: Tensor, adjacency: Adjacency, weight: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """For every node, the rows of `x` at the sources of its edges, times the edges' weights, folded: 'sum', 'mean',
    'max' or 'min'. `weight` [E, ...] has leading axes of the picked rows. A node without edges gets 0.

    >>> graph = weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3)
    >>> weft.aggregate(weft.tensor([1.0, 10.0, 100.0]), graph)
    tensor([  0., 101.,  10.])
    """
    return _aggregate(x, adjacency.rowptr, adjacency.col, adjacency.colptr, adjacency.order, weight, reduce)


def csr(index: Any, num_rows: int) -> tuple[Tensor, Tensor]:
    """(rowptr, perm): the order that sorts `index` (stable), and where the entries of each of `num_rows` begin. Sorted
    on the host, so not inside `weft.compile`.

    >>> weft.csr(weft.tensor([2, 0, 2]), 3)
    (tensor([0, 1, 1, 3], dtype=weft.int32), tensor([1, 0, 2], dtype=weft.int32))
    """
    rowptr, perm = _sort_index("csr", _host(index), num_rows)
    return _tensor(rowptr, index), _tensor(perm, index)


def adjacency(edge_index: Any, num_nodes: int, num_sources: int | None = None) -> Adjacency:
    """The edges `edge_index` [2, E] (sources, targets) of a graph with `num_nodes` nodes, sorted both ways. A graph
    between two kinds of nodes has `num_sources` sources. Sorted on the host, and on the device of `edge_index` then;
    inside `weft.compile` the sort is part of the plan (see `sort_edges`).

    >>> weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3).col
    tensor([0, 2, 1], dtype=weft.int32)
    """
    if STATE.trace is not None and isinstance(edge_index, Tensor):
        return sort_edges(edge_index, num_nodes, num_sources)
    pairs = _host(edge_index)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise problem(ShapeError, "adjacency", f"an edge index of shape {pairs.shape}", "[2, edges]: sources, targets")
    rowptr, edge = _sort_index("adjacency", pairs[1], num_nodes)
    col = pairs[0][edge].astype(np.int32)
    colptr, order = _sort_index("adjacency", col, num_nodes if num_sources is None else num_sources)
    parts = (rowptr, col, colptr, order, edge, _inverse(edge), _inverse(order))
    return Adjacency(*[_tensor(part, edge_index) for part in parts])


def sort_edges(edge_index: Tensor, num_nodes: int, num_sources: int | None = None) -> Adjacency:
    """As `adjacency`, recorded as operations: nothing is read by the host, and a plan that uses the result sorts the
    edges on the device each time it runs. Only the fields that are used are computed."""
    return Adjacency(*_sort_edges(edge_index, num_nodes, num_sources))


def _host(index: Any) -> np.ndarray:
    return index.numpy() if isinstance(index, Tensor) else np.asarray(index)


def _tensor(array: np.ndarray, like: Any) -> Tensor:
    """An array on the device of `like`, or where tensors are made if that is none."""
    return wrap(from_host(np.ascontiguousarray(array), like.device if isinstance(like, Tensor) else None))


def _inverse(order: np.ndarray) -> np.ndarray:
    """The permutation that undoes `order`."""
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order), dtype=order.dtype)
    return inverse


def _sort_index(who: str, index: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Row pointers and the stable order of `index`, as int32."""
    if index.dtype.kind not in "iu" and index.size:
        raise problem(DTypeError, who, f"an index of {index.dtype}", "integers", "convert it with .long()")
    index = index.astype(np.int64, copy=False)
    wrong = index[(index < 0) | (index >= count)]
    if wrong.size:
        raise problem(IndexRangeError, who, f"the index {wrong[0]}", f"0 to {count - 1}")
    order = np.argsort(index, kind="stable")
    pointers = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(index, minlength=count), out=pointers[1:])
    return pointers, order.astype(np.int32)
