"""Graph convolutions. How edges may be given is said in `weft.nn.graphs.message_passing`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.base.errors import RangeError, ShapeError, problem
from weft.core.creation import empty, tensor
from weft.core.tensor import Tensor
from weft.functional.adjacency import aggregate
from weft.names.functions import segment_reduce, where
from weft.nn import functional as F
from weft.nn import init
from weft.nn.basic.linear import Linear
from weft.nn.basic.named_activation import make_activation
from weft.nn.containers import ModuleDict
from weft.nn.graphs.message_passing import (
    REDUCTIONS,
    MessagePassing,
    apply_activation,
    degrees,
    glorot,
    graph_of,
    last_self_loop,
    make_mlp,
    need_features,
    need_sizes,
)  # fmt: skip
from weft.nn.module import Module
from weft.nn.parameter import Buffer, Parameter
from weft.nn.registry import layer


@layer("L064", aliases=("GraphConvolutionalLayer",), oracle="torch_geometric.nn.GCNConv")
class GCNConv(MessagePassing):
    """Y = D^(-1/2) (A + I) D^(-1/2) X W + b, D the weighted in-degrees of A + I, and 1/√0 = 0 (Kipf & Welling 2017).

    A node that has a self-loop keeps it (the last of several) and gets no other. `normalize=False` leaves out D,
    `add_self_loops=False` leaves out I.
    Shape: x [N, in], edge_index as in MessagePassing, edge_weight [E]; output [N, out]; lin.weight [out, in], bias
    [out]. The weight starts Xavier-uniform, the bias as 0.

    >>> layer = weft.nn.GCNConv(3, 2)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, bias: bool = True, add_self_loops: bool = True,
        normalize: bool = True, activation: Any = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__("sum")
        need_sizes("GCNConv", in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.out_channels = in_channels, out_channels
        self.add_self_loops, self.normalize, self.activation = add_self_loops, normalize, make_activation(activation)
        self.lin = Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype)
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        glorot(self.lin.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor, edge_index: Any, edge_weight: Tensor | None = None) -> Tensor:
        need_features("GCNConv", x, self.in_channels)
        graph, weight = self.graph(edge_index, x)  # weight [E]
        if edge_weight is not None:
            weight = graph.reorder(edge_weight)
        weight = None if weight is None else weight.to(x.dtype)
        own: Any = None  # [N]: weights of the self-loops, which are no edges of the graph here
        if self.add_self_loops:
            is_loop = graph.rows() == graph.col
            own = 1.0 if weight is None else last_self_loop(graph, is_loop, weight, 1.0)
            weight = where(is_loop, 0.0, 1.0 if weight is None else weight).to(x.dtype)
        h = self.lin(x)
        if not self.normalize:
            out = aggregate(h, graph, weight)
            out = out if own is None else out + _per_row(own) * h
        else:
            scale = self._scale(graph, weight, own, x.dtype)
            out = aggregate(h * scale, graph, weight)
            out = scale * (out if own is None else out + _per_row(own) * scale * h)
        return apply_activation(out if self.bias is None else out + self.bias, self.activation)

    def _scale(self, graph: Any, weight: Tensor | None, own: Any, dtype: Any) -> Tensor:
        """D^(-1/2), [N, 1]."""
        into = degrees(graph, dtype) if weight is None else segment_reduce(weight, graph.rowptr)
        degree = into if own is None else into + own
        return where(degree == 0, 0.0, where(degree == 0, 1.0, degree).rsqrt()).unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}"


def _per_row(value: Any) -> Any:
    return value.unsqueeze(-1) if isinstance(value, Tensor) else value


@layer("L066", aliases=("GraphSAGELayer",), oracle="torch_geometric.nn.SAGEConv")
class SAGEConv(MessagePassing):
    """y_i = W_l aggr_j x_j + b + W_r x_i; with `normalize`, y / max(‖y‖, 1e-12) (Hamilton et al. 2017).

    Shape: x [N, in] or a pair (of sources, of targets), edge_index as in MessagePassing; output [N, out]; lin_l.weight
    and lin_r.weight [out, in], lin_l.bias [out].

    >>> layer = weft.nn.SAGEConv(3, 2, aggr="max")
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, aggr: str = "mean", normalize: bool = False, bias: bool = True,
        activation: Any = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(aggr)
        need_sizes("SAGEConv", in_channels=in_channels, out_channels=out_channels)
        self.in_channels, self.normalize, self.activation = in_channels, normalize, make_activation(activation)
        self.lin_l = Linear(in_channels, out_channels, bias, device=device, dtype=dtype)
        self.lin_r = Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype)

    def forward(self, x: Any, edge_index: Any) -> Tensor:  # type: ignore[override]
        for part in x if isinstance(x, tuple) else (x,):
            need_features("SAGEConv", part, self.in_channels)
        out = self.lin_l(self.propagate(edge_index, x=x)) + self.lin_r(x[1] if isinstance(x, tuple) else x)
        out = F.normalize(out, p=2.0, dim=-1) if self.normalize else out
        return apply_activation(out, self.activation)

    def extra_repr(self) -> str:
        return f"aggr={self.aggr!r}, normalize={self.normalize}"


@layer("L065", aliases=("GraphIsomorphismLayer",), oracle="torch_geometric.nn.GINConv with the same MLP")
class GINConv(MessagePassing):
    """y_i = make_mlp((1 + ε) x_i + Σ_j x_j), MLP = Linear(in → hidden), ReLU, Linear(hidden → out) (Xu et al. 2019).

    ε is a parameter with `train_eps`, else a buffer; hidden is `out` unless given.
    Shape: x [N, in], edge_index as in MessagePassing; output [N, out]; nn.0.*, nn.2.*: the MLP; eps [1].

    >>> layer = weft.nn.GINConv(3, 2, hidden=8)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, hidden: int | None = None, eps: float = 0.0,
        train_eps: bool = False, activation: Any = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__("sum")
        need_sizes("GINConv", in_channels=in_channels, out_channels=out_channels, hidden=hidden)
        self.in_channels, self.activation = in_channels, make_activation(activation)
        self.first_eps = eps
        start = tensor([eps], device=device, dtype=dtype)
        self.eps = Parameter(start) if train_eps else Buffer(start)
        self.nn = make_mlp(in_channels, hidden or out_channels, out_channels, device, dtype)

    def reset_parameters(self) -> None:
        """Draw the MLP again and set ε to its first value."""
        init.constant_(self.eps, self.first_eps)
        self.nn.reset_parameters()

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:  # type: ignore[override]
        need_features("GINConv", x, self.in_channels)
        return apply_activation(self.nn((1 + self.eps) * x + self.propagate(edge_index, x=x)), self.activation)


@layer(
    "L062",
    aliases=("EdgeConditionalConvolutionalLayer", "NNConv"),
    oracle="torch_geometric.nn.NNConv with the same MLP",
)
class EdgeConditionedConv(MessagePassing):
    """y_i = W_root x_i + aggr_j x_j W(e_ij) + b, with W(e) = make_mlp(e) as a matrix [in, out].

    The MLP is Linear(edge_dim → hidden), ReLU, Linear(hidden → in · out) (Simonovsky & Komodakis 2017; Gilmer et al.
    2017). Also called NNConv.
    Shape: x [N, in], edge_index as in MessagePassing, edge_attr [E, edge_dim]; output [N, out]; nn.0.* and nn.2.*: the
    MLP; lin.weight [out, in], bias [out], which starts as 0.

    >>> layer = weft.nn.EdgeConditionedConv(3, 2, edge_dim=4)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1], [1, 2]]), weft.ones(2, 4)).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, edge_dim: int, hidden: int = 64, aggr: str = "sum",
        bias: bool = True, activation: Any = None, device: Any = None, dtype: Any = None,
    ):  # fmt: skip
        super().__init__(aggr)
        need_sizes(
            "EdgeConditionedConv", in_channels=in_channels, out_channels=out_channels, edge_dim=edge_dim, hidden=hidden
        )
        self.in_channels, self.out_channels, self.edge_dim = in_channels, out_channels, edge_dim
        self.activation = make_activation(activation)
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.nn = make_mlp(edge_dim, hidden, in_channels * out_channels, device, dtype)
        self.lin = Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for linear in (self.nn[0], self.nn[2], self.lin):
            linear.reset_parameters()
        if self.bias is not None:
            init.zeros_(self.bias)

    def message(self, x_j: Tensor, edge_attr: Tensor) -> Tensor:  # type: ignore[override]
        weight = self.nn(edge_attr).reshape(-1, self.in_channels, self.out_channels)
        return (x_j.unsqueeze(1) @ weight).squeeze(1)

    def forward(self, x: Tensor, edge_index: Any, edge_attr: Tensor) -> Tensor:  # type: ignore[override]
        need_features("EdgeConditionedConv", x, self.in_channels)
        need_features("EdgeConditionedConv", edge_attr, self.edge_dim, "edge features", "edges")
        out = self.lin(x) + self.propagate(edge_index, x=x, edge_attr=edge_attr)
        return apply_activation(out if self.bias is None else out + self.bias, self.activation)


@layer("L061", aliases=("DirectionalGraphLayer",), oracle="torch_geometric.nn.DirGNNConv of SAGEConv")
class DirectedGraphConv(MessagePassing):
    """y_i = W_s x_i + alpha aggr_{j→i} W_in x_j + (1 - alpha) aggr_{i→j} W_out x_j + b (Dir-GNN, Rossi et al. 2023).

    alpha is `alpha`, or with `learn_alpha` the sigmoid of the parameter `alpha_logit`, which starts there. Turning all
    edges round, with W_in and W_out exchanged and 1 - alpha for alpha, leaves y unchanged.
    Shape: x [N, in], edge_index as in MessagePassing; output [N, out]; lin_in.weight, lin_out.weight, lin_self.weight
    [out, in], bias [out].

    >>> layer = weft.nn.DirectedGraphConv(3, 2, alpha=0.3)
    >>> layer(weft.ones(4, 3), weft.tensor([[0, 1, 2], [1, 2, 3]])).shape
    (4, 2)
    """

    def __init__(
        self, in_channels: int, out_channels: int, alpha: float = 0.5, aggr: str = "mean", root_weight: bool = True,
        bias: bool = True, learn_alpha: bool = False, activation: Any = None, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__(aggr)
        need_sizes("DirectedGraphConv", in_channels=in_channels, out_channels=out_channels)
        if not 0 <= alpha <= 1 or (learn_alpha and alpha in (0, 1)):
            raise problem(RangeError, "DirectedGraphConv", f"alpha={alpha}", "a number between 0 and 1")
        self.in_channels, self.alpha, self.activation = in_channels, alpha, make_activation(activation)
        logit = None
        if learn_alpha:
            logit = Parameter(tensor(math.log(alpha / (1 - alpha)), device=device, dtype=dtype))
        self.register_parameter("alpha_logit", logit)
        self.register_parameter("bias", Parameter(empty(out_channels, device=device, dtype=dtype)) if bias else None)
        self.lin_in, self.lin_out = [
            Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype) for _ in range(2)
        ]
        self.lin_self = (
            Linear(in_channels, out_channels, bias=False, device=device, dtype=dtype) if root_weight else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for linear in (self.lin_in, self.lin_out, self.lin_self):
            if linear is not None:
                linear.reset_parameters()
        if self.bias is not None:
            init.uniform_(self.bias, -1 / math.sqrt(self.in_channels), 1 / math.sqrt(self.in_channels))
        if self.alpha_logit is not None:
            init.constant_(self.alpha_logit, math.log(self.alpha / (1 - self.alpha)))

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:  # type: ignore[override]
        need_features("DirectedGraphConv", x, self.in_channels)
        graph, _ = self.graph(edge_index, x)
        alpha = self.alpha if self.alpha_logit is None else self.alpha_logit.sigmoid()
        into = aggregate(self.lin_in(x), graph, reduce=REDUCTIONS[self.aggr])
        out_of = aggregate(self.lin_out(x), graph.transposed(), reduce=REDUCTIONS[self.aggr])
        out = alpha * into + (1 - alpha) * out_of
        out = out if self.lin_self is None else out + self.lin_self(x)
        return apply_activation(out if self.bias is None else out + self.bias, self.activation)


EdgeType = tuple[str, str, str]


@layer("L068", aliases=("HeterogeneousGraphLayer",), oracle="torch_geometric.nn.RGCNConv; HeteroConv of SAGEConv")
class HeteroGraphConv(Module):
    """y_i = W_self^{type(i)} x_i + b^{type(i)} + Σ_r 1/|N_r(i)| Σ_{j ∈ N_r(i)} W_r x_j.

    R-GCN (Schlichtkrull et al. 2018). in_dims: the number of features of each type of node; edge_types: the
    relations as (source type, name, target type). With `num_bases`, W_r = Σ_b a_rb V_b: needs equal widths.
    Shape: x {type: [N_type, in]}, edge_index {relation: as in MessagePassing}, where a relation may be absent; output
    {type: [N_type, out]}; lin_self.TYPE.*, lin_rel.SOURCE__NAME__TARGET.weight [out, in], or bases [num_bases, out, in]
    and coefficients [relations, num_bases], which start Xavier-uniform.

    >>> layer = weft.nn.HeteroGraphConv({"user": 3, "item": 4}, 2, [("user", "buys", "item")])
    >>> y = layer(
    ...     {"user": weft.ones(5, 3), "item": weft.ones(6, 4)}, {("user", "buys", "item"): weft.tensor([[0], [1]])}
    ... )
    >>> y["item"].shape
    (6, 2)
    """

    def __init__(
        self, in_dims: Mapping[str, int], out_channels: int, edge_types: Sequence[EdgeType],
        num_bases: int | None = None, bias: bool = True, activation: Any = None, device: Any = None,
        dtype: Any = None,
    ):  # fmt: skip
        super().__init__()
        need_sizes("HeteroGraphConv", out_channels=out_channels, num_bases=num_bases, **in_dims)
        self.in_dims, self.out_channels, self.activation = dict(in_dims), out_channels, make_activation(activation)
        self.edge_types = tuple((source, name, target) for source, name, target in edge_types)
        for relation in self.edge_types:
            for kind in (relation[0], relation[2]):
                if kind not in in_dims:
                    given = f"the node type {kind!r} in the relation {relation}"
                    raise problem(RangeError, "HeteroGraphConv", given, f"one of {', '.join(in_dims)}")
        make = {"device": device, "dtype": dtype}
        self.lin_self = ModuleDict({kind: Linear(size, out_channels, bias, **make) for kind, size in in_dims.items()})
        self.num_bases = num_bases
        if num_bases is None:
            self.lin_rel = ModuleDict({
                "__".join(relation): Linear(in_dims[relation[0]], out_channels, bias=False, **make)
                for relation in self.edge_types
            })  # fmt: skip
            return
        widths = {in_dims[source] for source, _, _ in self.edge_types}
        if len(widths) != 1:
            given = f"num_bases={num_bases} and sources of {sorted(widths)} features"
            raise problem(ShapeError, "HeteroGraphConv", given, "one number of features for all sources")
        self.bases = Parameter(empty(num_bases, out_channels, *widths, **make))
        self.coefficients = Parameter(empty(len(self.edge_types), num_bases, **make))
        for parameter in (self.bases, self.coefficients):
            glorot(parameter)

    def reset_parameters(self) -> None:
        """Draw the parameters again."""
        for child in self.children():
            child.reset_parameters()
        for parameter in self._parameters.values():
            glorot(parameter)

    def forward(self, x: Mapping[str, Tensor], edge_index: Mapping[EdgeType, Any]) -> dict[str, Tensor]:
        for kind, size in self.in_dims.items():
            need_features("HeteroGraphConv", x.get(kind), size, f"features of the nodes {kind!r}")
        unknown = set(edge_index) - set(self.edge_types)
        if unknown:
            raise problem(RangeError, "HeteroGraphConv", f"the relation {min(unknown)}", f"one of {self.edge_types}")
        out = {kind: linear(x[kind]) for kind, linear in self.lin_self.items()}
        for number, relation in enumerate(self.edge_types):
            if relation not in edge_index:
                continue
            source, _, target = relation
            graph, _ = graph_of("HeteroGraphConv", edge_index[relation], x[target].shape[0], x[source].shape[0])
            weight = self._weight(number)
            out[target] = out[target] + F.linear(aggregate(x[source], graph, reduce="mean"), weight)
        return {kind: apply_activation(value, self.activation) for kind, value in out.items()}

    def _weight(self, number: int) -> Tensor:
        """W_r of a relation, [out, in]."""
        if self.num_bases is None:
            return self.lin_rel["__".join(self.edge_types[number])].weight
        return (self.coefficients[number].reshape(-1, 1, 1) * self.bases).sum(0)

    def extra_repr(self) -> str:
        return f"{self.in_dims}, {self.out_channels}, num_bases={self.num_bases}"


NNConv = EdgeConditionedConv
