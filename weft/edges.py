"""Adjacency: the edges of a graph, sorted once both ways, so that every pass over them runs by segments.

An edge carries values from its source to its target. Edges are kept in order of their targets (then in the given
order): a layer computes one value per edge in that order and folds them at the targets. The order by sources serves
the gradients.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft.errors import DTypeError, IndexRangeError, ShapeError, problem
from weft.ops import graphs
from weft.tensor import Tensor, from_host, lift, wrap

_sources, _targets, _softmax = lift(graphs.neighbours), lift(graphs.targets), lift(graphs.segment_softmax)
_aggregate = lift(graphs.aggregate)


class Adjacency(NamedTuple):
    """A graph's edges; made by `weft.adjacency`. All fields are vectors of int32.

    rowptr [targets + 1]: where the edges into each node begin; col [E]: the source of each edge; colptr [sources + 1]
    and order [E]: the same edges by source; edge [E]: where each edge stood in the list that was given.
    """

    rowptr: Tensor
    col: Tensor
    colptr: Tensor
    order: Tensor
    edge: Tensor

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
    rowptr, perm = _sorted("csr", _host(index), num_rows)
    return _tensor(rowptr), _tensor(perm)


def adjacency(edge_index: Any, num_nodes: int, num_sources: int | None = None) -> Adjacency:
    """The edges `edge_index` [2, E] (sources, targets) of a graph with `num_nodes` nodes, sorted both ways. A graph
    between two kinds of nodes has `num_sources` sources. Sorted on the host, so not inside `weft.compile`.

    >>> weft.adjacency(weft.tensor([[0, 1, 2], [1, 2, 1]]), 3).col
    tensor([0, 2, 1], dtype=weft.int32)
    """
    pairs = _host(edge_index)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise problem(ShapeError, "adjacency", f"an edge index of shape {pairs.shape}", "[2, edges]: sources, targets")
    rowptr, edge = _sorted("adjacency", pairs[1], num_nodes)
    col = pairs[0][edge].astype(np.int32)
    colptr, order = _sorted("adjacency", col, num_nodes if num_sources is None else num_sources)
    return Adjacency(*[_tensor(part) for part in (rowptr, col, colptr, order, edge)])


def _host(index: Any) -> np.ndarray:
    return index.numpy() if isinstance(index, Tensor) else np.asarray(index)


def _tensor(array: np.ndarray) -> Tensor:
    return wrap(from_host(np.ascontiguousarray(array)))


def _sorted(who: str, index: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
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
