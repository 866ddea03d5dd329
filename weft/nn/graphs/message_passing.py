"""Message passing: what the graph layers have in common.

Edges are given as `edge_index` [2, E] (sources, targets), which is sorted inside the plan; as `weft.Adjacency`, which
was sorted once; or as a dense matrix. Values of edges follow the order in which the edges were given, in all cases.
Every sum over edges is a reduction of segments: nothing is added atomically, so results are the same bits each time.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import arange
from weft.core.tensor import Tensor
from weft.functional.adjacency import Adjacency, adjacency, sort_edges
from weft.functional.dynamic_shapes import nonzero
from weft.names.functions import segment_reduce, stack, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.activation import ReLU
from weft.nn.basic.linear import Linear
from weft.nn.containers import Sequential
from weft.nn.module import Module
from weft.nn.registry import layer
from weft.nn.sequence.recurrent import GRUCell

REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "min": "min"}

# ---- edges ----------------------------------------------------------------------------------------------------------


def graph_of(
    who: str, edges: Tensor | Adjacency, num_targets: int, num_sources: int | None = None
) -> tuple[Adjacency, Tensor | None]:
    """The edges in any of the three forms, sorted; and the weights [E] in that order that a dense matrix holds.

    A matrix of floats or bools [targets, sources] is dense: where it is not 0, there is an edge from the column's node
    to the row's. How many that are depends on the values, so it cannot be used inside `weft.compile`.
    """
    sources = num_targets if num_sources is None else num_sources
    if isinstance(edges, Adjacency):
        if (edges.num_targets, edges.num_sources) != (num_targets, sources):
            given = f"an adjacency of {edges.num_sources} sources and {edges.num_targets} targets"
            raise problem(ShapeError, who, given, f"{sources} and {num_targets}, as the node features have rows")
        return edges, None
    if not isinstance(edges, Tensor):
        expected = "edge_index [2, E] of integers, a weft.Adjacency or a dense matrix"
        raise problem(ShapeError, who, f"edges of type {type(edges).__name__}", expected)
    if edges.dtype.kind in "iu":
        if edges.ndim != 2 or edges.shape[0] != 2:
            given = f"an edge index of shape {tuple(edges.shape)}"
            raise problem(ShapeError, who, given, "[2, E]: sources, targets")
        return sort_edges(edges, num_targets, sources), None
    if tuple(edges.shape) != (num_targets, sources):
        given = f"a dense adjacency of shape {tuple(edges.shape)}"
        raise problem(ShapeError, who, given, f"({num_targets}, {sources}): targets, sources")
    target, source = nonzero(edges, as_tuple=True)  # in order of targets: what `adjacency` keeps
    graph = adjacency(stack([source, target]), num_targets, sources)
    return graph, None if edges.dtype.kind == "b" else edges[target, source]


def last_self_loop(graph: Adjacency, is_loop: Tensor, values: Tensor, fill: float) -> Tensor:
    """For each node the row of `values` [E, ...] at its self-loop (the last of several), or `fill` if it has none."""
    number = arange(is_loop.shape[0], device=is_loop.device)
    last = segment_reduce(where(is_loop, number, -1), graph.rowptr, "max", -1)  # [N]
    trailing = (1,) * (values.ndim - 1)
    chosen = (number == graph.targets(last)).reshape(-1, *trailing)
    own = segment_reduce(where(chosen & is_loop.reshape(-1, *trailing), values, 0.0), graph.rowptr)
    return where((last >= 0).reshape(-1, *trailing), own, fill)


# ---- parts ----------------------------------------------------------------------------------------------------------


def need_features(who: str, x: Any, width: int, what: str = "node features", rows: str = "nodes") -> None:
    """Raise unless `x` is [rows, width]."""
    if not isinstance(x, Tensor) or x.ndim != 2 or x.shape[1] != width:
        given = f"{what} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"{what} of {type(x).__name__}"
        raise problem(ShapeError, who, given, f"[{rows}, {width}]")


def need_sizes(who: str, **sizes: int | None) -> None:
    """Raise unless every size that is given is a positive integer."""
    for name, size in sizes.items():
        if size is not None and (not isinstance(size, int) or size < 1):
            raise problem(RangeError, who, f"{name}={size!r}", "a positive integer")


def glorot(parameter: Tensor) -> None:
    """Xavier-uniform over the last two axes: U(-b, b) with b = √(6 / (rows + columns))."""
    bound = math.sqrt(6.0 / (parameter.shape[-2] + parameter.shape[-1]))
    init.uniform_(parameter, -bound, bound)


def degrees(graph: Adjacency, dtype: Any) -> Tensor:
    """How many edges lead to each node, [N]."""
    return (graph.rowptr[1:] - graph.rowptr[:-1]).to(dtype)


def apply_activation(x: Tensor, activation: Callable[[Tensor], Tensor] | None) -> Tensor:
    """The layer's activation of its result, where it has one."""
    return x if activation is None else activation(x)


def make_mlp(inputs: int, hidden: int, outputs: int, device: Any = None, dtype: Any = None) -> Sequential:
    """Linear, ReLU, Linear."""
    make = {"device": device, "dtype": dtype}
    return Sequential(Linear(inputs, hidden, **make), ReLU(), Linear(hidden, outputs, **make))


def edge_linear(linear: Linear, graph: Adjacency, *parts: tuple[str, Tensor]) -> Tensor:
    """`linear` of the concatenation of its parts at every edge: ('source', x), ('target', x) or ('edge', values in the
    order of the graph). Each part is multiplied by its columns of the weight before it goes to the edges, so there is a
    product for each node and not for each edge."""
    total, start = None, 0
    for kind, value in parts:
        columns = linear.weight[:, start : start + value.shape[1]]
        bias = linear.bias if start == 0 else None
        product = F.linear(value, columns, bias)
        if kind != "edge":
            product = graph.sources(product) if kind == "source" else graph.targets(product)
        total, start = product if total is None else total + product, start + value.shape[1]
    assert total is not None
    return total


# ---- the base class -------------------------------------------------------------------------------------------------


@functools.cache
def _arguments(function: Callable[..., Any]) -> tuple[tuple[str, bool], ...]:
    """What a method takes, without self: names, and whether they have a default."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return tuple((one.name, one.default is not one.empty) for one in parameters)


@layer(oracle="torch_geometric.nn.SimpleConv")
class MessagePassing(Module):
    """y_i = update(aggregate over edges j→i of message(x_j, x_i, e_ij)).

    Base class of graph layers (Gilmer et al. 2017; the interface of torch_geometric). A subclass overrides `message`,
    `aggregate` or `update` and calls `propagate`. `message` names what it needs: `x_j` is the row of `x` at each edge's
    source, `x_i` that at its target, for every `x` given to `propagate`; arguments `edge_*` are given in the order of
    `edge_index` and arrive in the order of the messages, other arguments arrive as they are. `x` may be a pair (of
    sources, of targets). The messages are in the order of `weft.Adjacency`.

    As it is, it adds up neighbours: y_i = aggr_j w_ij x_j. aggr: 'sum' (or 'add'), 'mean', 'max' or 'min'; a node
    without edges gets 0; on ties the gradient of a maximum goes to the first edge.
    Shape: x [N, F], edge_index [2, E] or an Adjacency or a dense matrix [N, N] (not in weft.compile), edge_weight [E];
    output [N, F].

    >>> class Difference(weft.nn.MessagePassing):
    ...     def message(self, x_i, x_j, edge_weight):
    ...         return (x_j - x_i) * edge_weight.unsqueeze(-1)
    >>> edges = weft.tensor([[0, 1, 2], [1, 2, 1]])
    >>> Difference("max")(weft.tensor([[1.0], [2.0], [4.0]]), edges, weft.tensor([1.0, 1.0, 0.5]))
    tensor([[ 0.],
            [ 1.],
            [-2.]])
    """

    def __init__(self, aggr: str = "sum"):
        super().__init__()
        if aggr not in REDUCTIONS:
            raise problem(RangeError, type(self).__name__, f"aggr={aggr!r}", "'sum', 'mean', 'max' or 'min'")
        self.aggr = aggr

    def forward(self, x: Any, edge_index: Any, edge_weight: Tensor | None = None) -> Any:
        return self.propagate(edge_index, x=x, edge_weight=edge_weight)

    def propagate(self, edge_index: Tensor | Adjacency, **values: Any) -> Any:
        """Messages along all edges, aggregated at the targets. One of the values is `x`, the features of the nodes."""
        graph, weights = self.graph(edge_index, values["x"])
        if weights is not None and values.get("edge_weight", self) is None:
            values["edge_weight"] = weights  # a matrix lists its edges in the order of the graph
        needed = self._select_arguments("message", values)
        messages = self.message(**{name: self._at_edges(graph, name, values) for name in needed})
        kept = {name: values[name] for name in self._select_arguments("update", values)}
        return self.update(self.aggregate(messages, graph), **kept)

    def graph(self, edge_index: Tensor | Adjacency, x: Any) -> tuple[Adjacency, Tensor | None]:
        """The sorted edges between nodes with the features `x` (or a pair), and the weights that a dense matrix has."""
        source, target = x if isinstance(x, tuple) else (x, x)
        return graph_of(type(self).__name__, edge_index, target.shape[0], source.shape[0])

    def _select_arguments(self, method: str, values: dict[str, Any]) -> list[str]:
        """The arguments of `message` or `update` that are among the values, under the name or at one end of edges."""
        found = []
        for name, has_default in _arguments(getattr(type(self), method))[method == "update" :]:
            if name in values or (method == "message" and name[-2:] in ("_i", "_j") and name[:-2] in values):
                found.append(name)
            elif not has_default:
                given, fix = f"values named {', '.join(values)}", f"give propagate() what {method}() calls {name!r}"
                raise problem(RangeError, f"{type(self).__name__}.propagate", given, f"one for {name!r}", fix)
        return found

    def _at_edges(self, graph: Adjacency, name: str, values: dict[str, Any]) -> Any:
        if name in values:
            value = values[name]
            return graph.reorder(value) if name.startswith("edge_") and isinstance(value, Tensor) else value
        value = values[name[:-2]]
        source, target = value if isinstance(value, tuple) else (value, value)
        return graph.sources(source) if name.endswith("_j") else graph.targets(target)

    def message(self, x_j: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """One row for every edge. Override it; see the class for the names of its arguments."""
        if edge_weight is None:
            return x_j
        return x_j * edge_weight.to(x_j.dtype).reshape(-1, *(1,) * (x_j.ndim - 1))

    def aggregate(self, messages: Tensor, graph: Adjacency) -> Tensor:
        """One row for every node, from the messages into it: those from graph.rowptr[i] to graph.rowptr[i + 1]."""
        return segment_reduce(messages, graph.rowptr, REDUCTIONS[self.aggr])

    def update(self, aggregated: Tensor) -> Any:
        """The result, from what was aggregated and any values that were given to `propagate`, by their names."""
        return aggregated


# ---- a network of its own for messages, a GRU for updates -----------------------------------------------------------


@layer("L069", aliases=("MessagePassingLayer",), oracle="torch: MLP, index_add and GRUCell")
class MPNNConv(MessagePassing):
    """m_i = aggr_j MLP([x_j ‖ x_i ‖ e_ij]),  y_i = GRUCell(m_i, h_i),  h_i = x_i if in == out else W_p x_i.

    The MLP is Linear(2 in + edge_dim → message_dim), ReLU, Linear(message_dim → message_dim) (Gilmer et al. 2017).
    Shape: x [N, in], edge_index as in MessagePassing, edge_attr [E, edge_dim]; output [N, out].

    >>> layer = weft.nn.MPNNConv(3, 4, edge_dim=2)
    >>> layer(weft.ones(5, 3), weft.tensor([[0, 1], [1, 2]]), weft.ones(2, 2)).shape
    (5, 4)
    """

    def __init__(
        self, in_channels: int, out_channels: int, message_dim: int | None = None, edge_dim: int = 0,
        aggr: str = "sum", device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(aggr)
        need_sizes("MPNNConv", in_channels=in_channels, out_channels=out_channels, message_dim=message_dim)
        self.in_channels, self.out_channels, self.edge_dim = in_channels, out_channels, edge_dim
        width = message_dim or out_channels
        self.mlp = make_mlp(2 * in_channels + edge_dim, width, width, device, dtype)
        self.lin = None
        if in_channels != out_channels:
            self.lin = Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype)
        self.gru = GRUCell(width, out_channels, device=device, dtype=dtype)

    def forward(self, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        need_features("MPNNConv", x, self.in_channels)
        graph, _ = self.graph(edge_index, x)
        parts = [("source", x), ("target", x)]
        if self.edge_dim:
            need_features("MPNNConv", edge_attr, self.edge_dim, "edge features", "edges")
            parts.append(("edge", graph.reorder(edge_attr)))  # type: ignore[arg-type]
        hidden = F.relu(edge_linear(self.mlp[0], graph, *parts))  # [E, message_dim]
        messages = self.aggregate(self.mlp[2](hidden), graph)
        return self.gru(messages, x if self.lin is None else self.lin(x))

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, edge_dim={self.edge_dim}, aggr={self.aggr!r}"
