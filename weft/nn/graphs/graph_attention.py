"""Attention over the edges of a graph. How edges may be given is said in `weft.nn.graphs.message_passing`."""

from __future__ import annotations

import math
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty
from weft.core.tensor import Tensor
from weft.functional.adjacency import Adjacency, aggregate
from weft.names.functions import maximum, segment_reduce, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.basic.normalization import LayerNorm
from weft.nn.graphs.message_passing import (
    apply_activation,
    glorot,
    graph_of,
    last_self_loop,
    make_mlp,
    need_features,
    need_sizes,
)  # fmt: skip
from weft.nn.module import Module
from weft.nn.parameter import Parameter
from weft.nn.registry import layer


def attend(graph: Adjacency, scores: Tensor, values: Tensor, own: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """Σ_j alpha_ij values_j with alpha = softmax over the edges j→i of `scores` [E, heads]; `values` [N, heads, d].

    `own` [N, heads] are scores of self-loops that every node has; self-loops among the edges then do not count. They
    are no edges of the graph: each node adds its own term to the reductions over its edges.
    """
    if own is None:
        return aggregate(values, graph, F.dropout(graph.softmax(scores), dropout, dropout > 0))
    is_loop = (graph.rows() == graph.col).unsqueeze(-1)
    scores = where(is_loop, -math.inf, scores)
    largest = maximum(segment_reduce(scores, graph.rowptr, "max", -math.inf), own).detach()  # [N, heads]
    weight, own = (scores - graph.targets(largest)).exp(), (own - largest).exp()
    total = segment_reduce(weight, graph.rowptr) + own
    weight, own = [F.dropout(one, dropout, dropout > 0) for one in (weight, own)]
    return (aggregate(values, graph, weight) + own.unsqueeze(-1) * values) / total.unsqueeze(-1)


class _Attention(Module):
    """What GATConv and GATv2Conv have in common: arguments, heads put together, bias."""

    def __init__(
        self, in_channels: int, out_channels: int, heads: int, concat: bool, negative_slope: float, dropout: float,
        add_self_loops: bool, activation: Any,
    ):  # fmt: skip
        super().__init__()
        need_sizes(type(self).__name__, in_channels=in_channels, out_channels=out_channels, heads=heads)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.add_self_loops = negative_slope, dropout, add_self_loops
        self.activation = make_activation(activation)

    def _attend(self, graph: Adjacency, scores: Tensor, values: Tensor, own: Tensor | None) -> Tensor:
        out = attend(graph, scores, values, own, self.dropout if self.training else 0.0)  # [N, heads, out]
        out = out.flatten(1) if self.concat else out.mean(1)
        return apply_activation(out if self.bias is None else out + self.bias, self.activation)

    def _make_bias(self, bias: bool, device: Any, dtype: Any) -> None:
        width = self.heads * self.out_channels if self.concat else self.out_channels
        self.register_parameter("bias", Parameter(empty(width, device=device, dtype=dtype)) if bias else None)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}"


@layer("L063", aliases=("GraphAttentionLayer",), oracle="torch_geometric.nn.GATConv")
class GATConv(_Attention):
    """s_ij = LeakyReLU(a_src·W x_j + a_dst·W x_i), alpha = softmax of s over edges to i, y_i = Σ_j alpha_ij W x_j + b.

    For each head; heads are concatenated, or averaged with `concat=False` (Veličković et al. 2018). Every node has one
    self-loop unless `add_self_loops=False`. Dropout acts on alpha in training.
    Shape: x [N, in], edge_index as in MessagePassing; output [N, heads · out] or [N, out]; lin.weight
    [heads · out, in], att_src and att_dst [1, heads, out], bias. Weights start Xavier-uniform, the bias as 0.

    >>> layer = weft.nn.GATConv(3, 2, heads=4)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 8)
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, negative_slope: float = 0.2,
        dropout: float = 0.0, add_self_loops: bool = True, bias: bool = True, activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops, activation)
        self.att_src = Parameter(empty(1, heads, out_channels, device=device, dtype=dtype))
        self.att_dst = Parameter(empty(1, heads, out_channels, device=device, dtype=dtype))
        self._make_bias(bias, device, dtype)
        self.lin = Linear(in_channels, heads * out_channels, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for parameter in (self.lin.weight, self.att_src, self.att_dst):
            glorot(parameter)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        need_features("GATConv", x, self.in_channels)
        graph, _ = graph_of("GATConv", edge_index, x.shape[0])
        h = self.lin(x).reshape(-1, self.heads, self.out_channels)
        source, target = (h * self.att_src).sum(-1), (h * self.att_dst).sum(-1)  # [N, heads]
        scores = F.leaky_relu(graph.sources(source) + graph.targets(target), self.negative_slope)
        own = F.leaky_relu(source + target, self.negative_slope) if self.add_self_loops else None
        return self._attend(graph, scores, h, own)


@layer(aliases=("GraphAttentionV2Layer",), oracle="torch_geometric.nn.GATv2Conv")
class GATv2Conv(_Attention):
    """s_ij = a·LeakyReLU(W_l x_j + W_r x_i),  alpha = softmax of s over edges into i,  y_i = Σ_j alpha_ij W_l x_j + b.

    Which neighbour has the largest weight may depend on i, unlike in GATConv (Brody et al. 2022). Otherwise as GATConv.
    Shape: x [N, in], edge_index as in MessagePassing; output [N, heads · out] or [N, out]; lin_l, lin_r: weight
    [heads · out, in] and bias; att [1, heads, out], bias.

    >>> layer = weft.nn.GATv2Conv(3, 2, heads=4, concat=False)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 1, concat: bool = True, negative_slope: float = 0.2,
        dropout: float = 0.0, add_self_loops: bool = True, bias: bool = True, activation: Any = None,
        device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops, activation)
        self.att = Parameter(empty(1, heads, out_channels, device=device, dtype=dtype))
        self._make_bias(bias, device, dtype)
        self.lin_l, self.lin_r = [
            Linear(in_channels, heads * out_channels, bias, device=device, dtype=dtype) for _ in range(2)
        ]
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for parameter in (self.lin_l.weight, self.lin_r.weight, self.att):
            glorot(parameter)
        for bias in (self.lin_l.bias, self.lin_r.bias, self.bias):
            if bias is not None:
                init.zeros_(bias)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        need_features("GATv2Conv", x, self.in_channels)
        graph, _ = graph_of("GATv2Conv", edge_index, x.shape[0])
        left, right = [lin(x).reshape(-1, self.heads, self.out_channels) for lin in (self.lin_l, self.lin_r)]
        scores = self._scores(graph.sources(left) + graph.targets(right))
        return self._attend(graph, scores, left, self._scores(left + right) if self.add_self_loops else None)

    def _scores(self, pairs: Tensor) -> Tensor:
        return (F.leaky_relu(pairs, self.negative_slope) * self.att).sum(-1)


@layer("L067", oracle="torch_geometric.nn.TransformerConv, torch.nn.LayerNorm and Linear; NumPy with edge features")
class GraphTransformerLayer(Module):
    """h = Norm(P x + O·concat over heads of Σ_j alpha_ij v_j),  y = Norm(h + W₂ ReLU(W₁ h)).

    alpha_ij = softmax over the edges j→i of q_i·k_j/√d + w·e_ij, for each head; d = out/heads; P is the identity if
    in == out, else a Linear (Dwivedi & Bresson 2021). Every node has one self-loop unless `add_self_loops=False`: the
    one it has (the last of several), or one without edge features. Dropout acts before O and before W₂. norm: 'layer'
    or None.
    Shape: x [N, in], edge_index as in MessagePassing, edge_attr [E, edge_dim]; output [N, out]; lin_query, lin_key,
    lin_value [out, in], lin_out [out, out], lin_edge [heads, edge_dim], lin_skip [out, in], ffn.0, ffn.2, norm1, norm2.

    >>> layer = weft.nn.GraphTransformerLayer(6, 8, heads=2)
    >>> layer(weft.ones(4, 6), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 8)
    """

    def __init__(
        self, in_channels: int, out_channels: int, heads: int = 8, edge_dim: int | None = None, dropout: float = 0.1,
        ffn_mult: int = 4, norm: str | None = "layer", add_self_loops: bool = True, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        who = "GraphTransformerLayer"
        need_sizes(who, in_channels=in_channels, out_channels=out_channels, heads=heads, edge_dim=edge_dim)
        if out_channels % heads:
            raise problem(ShapeError, who, f"{out_channels} channels for {heads} heads", "a multiple of the heads")
        if norm not in ("layer", None):
            raise problem(RangeError, who, f"norm={norm!r}", "'layer' or None")
        self.in_channels, self.out_channels, self.heads, self.edge_dim = in_channels, out_channels, heads, edge_dim
        self.dropout, self.add_self_loops = dropout, add_self_loops
        make = {"device": device, "dtype": dtype}
        self.lin_query, self.lin_key, self.lin_value = [Linear(in_channels, out_channels, **make) for _ in range(3)]
        self.lin_out = Linear(out_channels, out_channels, **make)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, heads, bias=False, **make)
        self.lin_skip = None if in_channels == out_channels else Linear(in_channels, out_channels, **make)
        self.ffn = make_mlp(out_channels, ffn_mult * out_channels, out_channels, **make)
        self.norm1, self.norm2 = [LayerNorm(out_channels, **make) if norm else None for _ in range(2)]

    def forward(self, x: Tensor, edge_index: Any, edge_attr: Tensor | None = None) -> Tensor:
        need_features("GraphTransformerLayer", x, self.in_channels)
        graph, _ = graph_of("GraphTransformerLayer", edge_index, x.shape[0])
        query, key, value = [
            lin(x).reshape(-1, self.heads, self.out_channels // self.heads)
            for lin in (self.lin_query, self.lin_key, self.lin_value)
        ]
        query = query / math.sqrt(query.shape[-1])
        scores = (graph.targets(query) * graph.sources(key)).sum(-1)  # [E, heads]
        own = (query * key).sum(-1) if self.add_self_loops else None  # [N, heads]
        if self.lin_edge is not None:
            need_features("GraphTransformerLayer", edge_attr, self.edge_dim or 0, "edge features", "edges")
            bias = self.lin_edge(graph.reorder(edge_attr))  # type: ignore[arg-type]
            scores = scores + bias
            own = None if own is None else own + last_self_loop(graph, graph.rows() == graph.col, bias, 0.0)
        mixed = attend(graph, scores, value, own).flatten(1)
        skip = x if self.lin_skip is None else self.lin_skip(x)
        h = self._normalize(self.norm1, skip + self.lin_out(self._apply_dropout(mixed)))
        return self._normalize(self.norm2, h + self.ffn[2](self._apply_dropout(F.relu(self.ffn[0](h)))))

    def _apply_dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _normalize(self, norm: LayerNorm | None, x: Tensor) -> Tensor:
        return x if norm is None else norm(x)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, heads={self.heads}, edge_dim={self.edge_dim}"
