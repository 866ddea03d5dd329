"""Graph layers that are about aggregation: several aggregators at once, and the nodes of whole graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.base.errors import GraphError, RangeError, problem
from weft.base.state import STATE
from weft.core.creation import tensor
from weft.core.tensor import Tensor
from weft.names.functions import cat, scatter_max, scatter_mean, scatter_sum, segment_reduce, where
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.graphs.message_passing import (
    REDUCTIONS,
    MessagePassing,
    apply_activation,
    degrees,
    edge_linear,
    need_features,
    need_sizes,
)  # fmt: skip
from weft.nn.module import Module
from weft.nn.parameter import Buffer
from weft.nn.registry import export, layer


def _std(messages: Tensor, rowptr: Tensor) -> Tensor:
    """√(E[m²] - E[m]²) where that is above 1e-5, else 0."""
    mean = segment_reduce(messages, rowptr, "mean")
    variance = segment_reduce(messages * messages, rowptr, "mean") - mean * mean
    is_large = variance > 1e-5
    return where(is_large, where(is_large, variance, 1.0).sqrt(), 0.0)


@layer(
    "L070",
    aliases=("PrincipalNeighbourhoodAggregationLayer",),
    oracle="torch_geometric.nn.PNAConv(towers=1, pre_layers=1, post_layers=1)",
)
class PNAConv(MessagePassing):
    """y_i = Linear(Linear([x_i ‖ s ⊗ aggregators of m_ij])), m_ij = Linear([x_i ‖ x_j ‖ Linear(e_ij)]).

    Corso et al. 2020. The aggregators ('sum', 'mean', 'min', 'max', 'std') are concatenated, and that block is
    repeated for each scaler s(d) of the in-degree d: identity 1; amplification log(d + 1)/δ; attenuation
    δ/log(max(d, 1) + 1). δ is the mean of log(d + 1) over the nodes that are trained on: `deg` [largest degree + 1]
    counts the nodes of each in-degree.
    std = √v where v = E[m²] - E[m]² > 1e-5, else 0. A node without edges has 0 in all aggregators.
    Shape: x [N, in], edge_index as in MessagePassing, edge_attr [E, edge_dim]; output [N, out]; buffer avg_deg_log [1].

    >>> layer = weft.nn.PNAConv(3, 2, deg=weft.tensor([1, 3]))
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, deg: Any,
        aggregators: Sequence[str] = ("mean", "min", "max", "std"),
        scalers: Sequence[str] = ("identity", "amplification", "attenuation"), edge_dim: int | None = None,
        activation: Any = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__("sum")
        need_sizes("PNAConv", in_channels=in_channels, out_channels=out_channels, edge_dim=edge_dim)
        for names, known in ((aggregators, {*REDUCTIONS, "std"}), (scalers, _SCALERS)):
            for name in names:
                if name not in known:
                    raise problem(RangeError, "PNAConv", f"{name!r}", f"one of {', '.join(sorted(known))}")
        self.in_channels, self.edge_dim, self.activation = in_channels, edge_dim, make_activation(activation)
        self.aggregators, self.scalers = tuple(aggregators), tuple(scalers)
        counts = [float(count) for count in (deg.tolist() if hasattr(deg, "tolist") else deg)]
        mean = sum(math.log(degree + 1) * count for degree, count in enumerate(counts)) / max(sum(counts), 1.0)
        if mean <= 0 and set(scalers) != {"identity"}:
            given = f"the numbers of nodes by degree {counts}"
            raise problem(RangeError, "PNAConv", given, "nodes that have edges: deg[d] is the number with d of them")
        self.avg_deg_log = Buffer(tensor([mean], device=device, dtype=dtype))
        self.edge_encoder = None
        if edge_dim is not None:
            self.edge_encoder = Linear(edge_dim, in_channels, device=device, dtype=dtype)
        parts = 2 if edge_dim is None else 3
        self.pre = Linear(parts * in_channels, in_channels, device=device, dtype=dtype)
        blocks = len(self.aggregators) * len(self.scalers) + 1
        self.post = Linear(blocks * in_channels, out_channels, device=device, dtype=dtype)
        self.lin = Linear(out_channels, out_channels, device=device, dtype=dtype)

    def forward(self, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        need_features("PNAConv", x, self.in_channels)
        graph, _ = self.graph(edge_index, x)
        parts = [("target", x), ("source", x)]
        if self.edge_encoder is not None:
            need_features("PNAConv", edge_attr, self.edge_dim or 0, "edge features", "edges")
            parts.append(("edge", self.edge_encoder(graph.reorder(edge_attr))))  # type: ignore[arg-type]
        messages = edge_linear(self.pre, graph, *parts)  # [E, in]
        block = cat([
            _std(messages, graph.rowptr) if name == "std" else segment_reduce(messages, graph.rowptr, REDUCTIONS[name])
            for name in self.aggregators
        ], -1)  # fmt: skip
        degree = degrees(graph, x.dtype).unsqueeze(-1)
        scaled = [_SCALERS[name](block, degree, self.avg_deg_log) for name in self.scalers]
        return apply_activation(self.lin(self.post(cat([x, *scaled], -1))), self.activation)

    def extra_repr(self) -> str:
        return f"aggregators={self.aggregators}, scalers={self.scalers}"


_SCALERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "identity": lambda block, degree, mean: block,
    "amplification": lambda block, degree, mean: block * ((degree + 1).log() / mean),
    "attenuation": lambda block, degree, mean: block * (mean / (degree.clamp(min=1) + 1).log()),
}


# ---- readouts -------------------------------------------------------------------------------------------------------


@export
def global_add_pool(x: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
    """The sum of the nodes of each graph: row g is the sum of the rows of `x` [N, ...] whose `batch` [N] is g. `size`
    is the number of graphs; inside `weft.compile` it must be given. Without a batch all nodes are one graph.

    >>> weft.nn.global_add_pool(weft.tensor([[1.0], [2.0], [4.0]]), weft.tensor([0, 0, 1]), 2)
    tensor([[3.],
            [4.]])
    """
    return _pool("sum", x, batch, size)


@export
def global_mean_pool(x: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
    """The mean of the nodes of each graph; 0 for a graph without nodes. Otherwise as `global_add_pool`.

    >>> weft.nn.global_mean_pool(weft.tensor([[1.0], [2.0], [4.0]]), weft.tensor([0, 0, 1]), 2)
    tensor([[1.5000],
            [4.0000]])
    """
    return _pool("mean", x, batch, size)


@export
def global_max_pool(x: Tensor, batch: Tensor | None = None, size: int | None = None) -> Tensor:
    """The maximum over the nodes of each graph, element by element; 0 for a graph without nodes. The gradient goes to
    the first node that has it. Otherwise as `global_add_pool`.

    >>> weft.nn.global_max_pool(weft.tensor([[1.0], [2.0], [4.0]]), weft.tensor([0, 0, 1]), 2)
    tensor([[2.],
            [4.]])
    """
    return _pool("max", x, batch, size)


def _pool(reduce: str, x: Tensor, batch: Tensor | None, size: int | None) -> Tensor:
    if batch is None:
        rowptr = tensor([0, x.shape[0]], device=x.device)
        return segment_reduce(x, rowptr, reduce)
    if size is None:
        if STATE.trace is not None:
            given = "a batch without the number of graphs inside a compiled function"
            raise problem(GraphError, f"{reduce} pool", given, "a number", "pass size (num_graphs of GraphReadout)")
        size = int(batch.max()) + 1 if batch.numel() else 0
    if reduce == "max":
        return scatter_max(x, batch, size).values
    return (scatter_sum if reduce == "sum" else scatter_mean)(x, batch, size)


@layer("L071", aliases=("ReadoutLayer",), oracle="torch_geometric.nn.global_*_pool and torch.nn.Linear")
class GraphReadout(Module):
    """y_g = W r_g + b, r_g the 'mean', 'sum' or 'max' of the x_i with batch_i = g; pool=None: every row by itself.

    Shape: x [N, in], batch [N] of integers (all one graph without), num_graphs (needed inside weft.compile with a
    batch); output [G, out]; lin.weight [out, in], lin.bias [out].

    >>> layer = weft.nn.GraphReadout(3, 2)
    >>> layer(weft.ones(4, 3), weft.tensor([0, 0, 1, 1]), 2).shape
    (2, 2)
    """

    def __init__(
        self, in_features: int, out_features: int, pool: str | None = "mean", activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        need_sizes("GraphReadout", in_features=in_features, out_features=out_features)
        if pool not in ("mean", "sum", "max", None):
            raise problem(RangeError, "GraphReadout", f"pool={pool!r}", "'mean', 'sum', 'max' or None")
        self.in_features, self.pool, self.activation = in_features, pool, make_activation(activation)
        self.lin = Linear(in_features, out_features, device=device, dtype=dtype)

    def forward(self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        if self.pool is not None:
            need_features("GraphReadout", x, self.in_features)
            x = _pool(self.pool, x, batch, num_graphs)
        return apply_activation(self.lin(x), self.activation)

    def extra_repr(self) -> str:
        return f"pool={self.pool!r}"
