"""Records of the graph convolutions. The oracle is torch_geometric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.geometric import geometric, of_module, utils
from tests.layers.graphs import (
    EDGES,
    FEW_ATTRIBUTES,
    LONELY,
    NO_EDGES,
    NODES,
    WRONG_ATTRIBUTES,
    WRONG_RANK,
    WRONG_WIDTH,
    gradient_of_ties,
    graph_record,
    sum_at,
    two_kinds,
    variants,
    with_attributes,
    with_weights,
    x_and_edges,
)
from tests.layers.instances import arrays_of, assert_close, tensors
from tests.layers.oracles import of_numpy, of_torch, to_torch
from tests.layers.record import Bad, Case, Draw, LayerRecord

# ---- convolutions ---------------------------------------------------------------------------------------------------


def gin_mlp(hidden: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 5))


def gcn_sum(state: Any, x: Any, edges: Any, weights: Any) -> Any:
    """(A + I) X W + b."""
    is_loop = edges[0] == edges[1]
    own = np.ones(len(x))
    own[edges[0][is_loop]] = weights[is_loop]  # the last of several
    out = own[:, None] * x + sum_at(edges[1], np.where(is_loop, 0, weights)[:, None] * x[edges[0]], len(x))
    return out @ state["lin.weight"].T + state["bias"]


def edge_network() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 7), torch.nn.ReLU(), torch.nn.Linear(7, 4 * 5))


def directed(aggr: str, alpha: float, root: bool = True) -> Any:
    def convert(state: Any) -> Any:
        zeros = np.zeros(5)
        found = {f"conv_{side}.lin_l.weight": state[f"lin_{side}.weight"] for side in ("in", "out")}
        found |= {f"conv_{side}.lin_l.bias": zeros for side in ("in", "out")}
        found |= {f"conv_{side}.lin_r.weight": np.zeros((5, 4)) for side in ("in", "out")}
        if root:
            found |= {"lin.weight": state["lin_self.weight"], "lin.bias": state["bias"]}
        return found

    # Their alpha weights the edges that go out.
    return of_module(
        lambda: geometric.DirGNNConv(geometric.SAGEConv(4, 5, aggr=aggr), alpha=1 - alpha, root_weight=root), convert
    )


def directed_maximum(state: Any, x: Any, edges: Any) -> Any:
    """Of what the weights have made of the neighbours; SAGEConv takes the maximum before."""
    x, edges = to_torch((x, edges))
    into, out_of = [x @ to_torch(state[f"lin_{side}.weight"]).T for side in ("in", "out")]
    into = utils.scatter(into[edges[0]], edges[1], 0, len(x), reduce="max")
    out_of = utils.scatter(out_of[edges[1]], edges[0], 0, len(x), reduce="max")
    return x @ to_torch(state["lin_self.weight"]).T + to_torch(state["bias"]) + 0.3 * into + 0.7 * out_of


def learned_alpha(state: Any, inputs: Any, training: bool) -> Any:
    alpha = 1 / (1 + np.exp(-float(state["alpha_logit"])))
    return directed("mean", alpha)(state, inputs, training)


def reversing_edges_exchanges_directions() -> None:
    x, edges = weft.tensor(Draw().normal(NODES, 4)), weft.tensor(EDGES)
    one, other = nn.DirectedGraphConv(4, 5, 0.3).double(), nn.DirectedGraphConv(4, 5, 0.7).double()
    state = one.state_dict()
    state["lin_in.weight"], state["lin_out.weight"] = state["lin_out.weight"], state["lin_in.weight"]
    other.load_state_dict(state)
    assert_close(other(x, edges.flip(0)), one(x, edges), 1e-12, 1e-12, "reversed")


def relu_of(module: Any, *inputs: Any) -> Any:
    return module(*inputs).relu()


NO_LOOPS: dict[str, Any] = {"add_self_loops": False}
PLAIN_SUM: dict[str, Any] = {"add_self_loops": False, "normalize": False}
GCN_OPTIONS: list[Any] = [
    (lambda: nn.GCNConv(4, 5, **NO_LOOPS), of_torch(lambda: geometric.GCNConv(4, 5, **NO_LOOPS)), with_weights),
    (lambda: nn.GCNConv(4, 5, **NO_LOOPS), of_torch(lambda: geometric.GCNConv(4, 5, **NO_LOOPS)), x_and_edges),
    (lambda: nn.GCNConv(4, 5, **PLAIN_SUM), of_torch(lambda: geometric.GCNConv(4, 5, **PLAIN_SUM)), with_weights),
    (lambda: nn.GCNConv(4, 5, **PLAIN_SUM), of_torch(lambda: geometric.GCNConv(4, 5, **PLAIN_SUM)), x_and_edges),
    (lambda: nn.GCNConv(4, 5, normalize=False), of_numpy(gcn_sum), with_weights),
    (
        lambda: nn.GCNConv(4, 5, activation="relu"),
        of_torch(lambda: geometric.GCNConv(4, 5), call=relu_of),
        x_and_edges,
    ),
    (
        lambda: nn.GCNConv(4, 5, activation=weft.tanh),
        of_torch(lambda: geometric.GCNConv(4, 5), call=lambda module, *inputs: module(*inputs).tanh()),
        x_and_edges,
    ),
]

CONVOLUTIONS = [
    graph_record(
        name="GCNConv",
        make=lambda: nn.GCNConv(4, 5),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5)),
        bad=[
            WRONG_RANK,
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.GCNConv(3, -1), match="out_channels=-1", error=weft.RangeError),
        ],
    ),
    graph_record(
        with_weights,
        name="GCNConv",
        variant="edge weights",
        make=lambda: nn.GCNConv(4, 5, bias=False),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5, bias=False)),
        checks={"options": variants("GCNConv", *GCN_OPTIONS)},
    ),
    graph_record(
        name="SAGEConv",
        make=lambda: nn.SAGEConv(4, 5),
        oracle=of_torch(lambda: geometric.SAGEConv(4, 5)),
        checks={
            "options": variants(
                "SAGEConv",
                (
                    lambda: nn.SAGEConv(4, 5, "sum", normalize=True),
                    of_torch(lambda: geometric.SAGEConv(4, 5, "sum", normalize=True)),
                    x_and_edges,
                ),
                (
                    lambda: nn.SAGEConv(4, 5, activation="relu"),
                    of_torch(lambda: geometric.SAGEConv(4, 5), call=relu_of),
                    x_and_edges,
                ),
                (lambda: nn.SAGEConv(4, 5), of_torch(lambda: geometric.SAGEConv(4, 5)), two_kinds),
            )
        },
        bad=[WRONG_RANK, WRONG_WIDTH],
    ),
    graph_record(
        name="SAGEConv",
        variant="maximum",
        make=lambda: nn.SAGEConv(4, 5, "max", bias=False),
        oracle=of_torch(lambda: geometric.SAGEConv(4, 5, "max", bias=False)),
        traits=frozenset({"graph", "order"}),
        edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES))},
        checks={"first of equals": gradient_of_ties(lambda: nn.SAGEConv(1, 1, "max"))},
    ),
    graph_record(
        name="GINConv",
        make=lambda: nn.GINConv(4, 5, hidden=7, train_eps=True),
        oracle=of_torch(lambda: geometric.GINConv(gin_mlp(7), train_eps=True)),
        checks={
            "fixed eps": variants(
                "GINConv",
                (
                    lambda: nn.GINConv(4, 5, eps=0.3, activation="relu"),
                    of_torch(lambda: geometric.GINConv(gin_mlp(5), eps=0.3), call=relu_of),
                    x_and_edges,
                ),
            )
        },
        bad=[WRONG_RANK, WRONG_WIDTH],
    ),
    graph_record(
        with_attributes,
        name="EdgeConditionedConv",
        make=lambda: nn.EdgeConditionedConv(4, 5, 3, hidden=7),
        oracle=of_torch(lambda: geometric.NNConv(4, 5, edge_network())),
        dense=False,
        checks={
            "mean": variants(
                "EdgeConditionedConv",
                (
                    lambda: nn.NNConv(4, 5, 3, hidden=7, aggr="mean", bias=False),
                    of_torch(lambda: geometric.NNConv(4, 5, edge_network(), aggr="mean", bias=False)),
                    with_attributes,
                ),
            )
        },
        bad=[WRONG_ATTRIBUTES, FEW_ATTRIBUTES],
    ),
    graph_record(
        name="DirectedGraphConv",
        make=lambda: nn.DirectedGraphConv(4, 5, alpha=0.3),
        oracle=directed("mean", 0.3),
        checks={
            "reversed": reversing_edges_exchanges_directions,
            "options": variants(
                "DirectedGraphConv",
                (
                    lambda: nn.DirectedGraphConv(4, 5, aggr="sum", root_weight=False, bias=False),
                    directed("sum", 0.5, root=False),
                    x_and_edges,
                ),
                (lambda: nn.DirectedGraphConv(4, 5, 0.3, "max"), of_numpy(directed_maximum), x_and_edges),
            ),
        },
        bad=[
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.DirectedGraphConv(4, 5, alpha=1.5), match="alpha=1.5", error=weft.RangeError),
        ],
    ),
    graph_record(
        name="DirectedGraphConv",
        variant="learned alpha",
        make=lambda: nn.DirectedGraphConv(4, 5, alpha=0.2, learn_alpha=True),
        oracle=learned_alpha,
    ),
]

# ---- several kinds of nodes -----------------------------------------------------------------------------------------

BUYS, KNOWS, SOLD = ("user", "buys", "item"), ("user", "knows", "user"), ("item", "sold by", "user")
RELATIONS = [BUYS, KNOWS, SOLD]


def users_and_items(draw: Draw, empty: bool = False) -> tuple[Any, ...]:
    def pairs(sources: int, targets: int, count: int) -> np.ndarray:
        count = 0 if empty else count
        return np.stack([draw.integers(sources, count), draw.integers(targets, count)])

    x = {"user": draw.normal(4, 3), "item": draw.normal(5, 2)}
    return x, {BUYS: pairs(4, 5, 6), KNOWS: pairs(4, 4, 5), SOLD: pairs(5, 4, 3)}


def hetero(state: Any, inputs: Any, training: bool) -> Any:
    """torch_geometric's HeteroConv of SAGEConv, whose own weight of targets is 0 here, and a Linear for each type."""
    x, edges = to_torch(inputs)
    width = {"user": 3, "item": 2}
    layers = {}
    for relation in RELATIONS:
        layer = geometric.SAGEConv((width[relation[0]], width[relation[2]]), 4, bias=False).double()
        weights = {"lin_l.weight": state[f"lin_rel.{'__'.join(relation)}.weight"]}
        weights["lin_r.weight"] = np.zeros((4, width[relation[2]]))
        layer.load_state_dict(to_torch(weights))
        layers[relation] = layer
    out = geometric.HeteroConv(layers, aggr="sum")(x, edges)
    own = {kind: x[kind] @ to_torch(state[f"lin_self.{kind}.weight"]).T for kind in x}
    return {kind: out[kind] + own[kind] + to_torch(state[f"lin_self.{kind}.bias"]) for kind in x}


ONE_KIND = [("node", "a", "node"), ("node", "b", "node")]


def one_kind(draw: Draw, edges: np.ndarray = EDGES) -> tuple[Any, ...]:
    half = edges.shape[1] // 2
    return {"node": draw.normal(NODES, 4)}, {ONE_KIND[0]: edges[:, :half], ONE_KIND[1]: edges[:, half:]}


def relational(num_bases: int | None) -> Any:
    def oracle(state: Any, inputs: Any, training: bool) -> Any:
        x, edges = inputs
        layer = geometric.RGCNConv(4, 5, 2, num_bases=num_bases).double()
        weights = {"root": state["lin_self.node.weight"].T, "bias": state["lin_self.node.bias"]}
        if num_bases is None:
            names = ["__".join(relation) for relation in ONE_KIND]
            weights["weight"] = np.stack([state[f"lin_rel.{name}.weight"].T for name in names])
        else:
            weights["weight"], weights["comp"] = state["bases"].transpose(0, 2, 1), state["coefficients"]
        layer.load_state_dict(to_torch({key: np.ascontiguousarray(value) for key, value in weights.items()}))
        pairs = [edges[relation] for relation in ONE_KIND]
        kinds = np.repeat([0, 1], [one.shape[1] for one in pairs])
        return {"node": layer(*to_torch((x["node"], np.concatenate(pairs, 1), kinds)))}

    return oracle


def hetero_with_adjacency() -> None:
    weft.manual_seed(0)
    layer = nn.HeteroGraphConv({"user": 3, "item": 2}, 4, RELATIONS)
    x, edges = tensors(users_and_items(Draw()))
    counts = {"user": 4, "item": 5}
    graphs = {one: weft.adjacency(edges[one], counts[one[2]], counts[one[0]]) for one in RELATIONS}
    step = weft.compile(lambda x, *graphs: layer(x, dict(zip(RELATIONS, graphs, strict=True))))
    for one, other in zip(arrays_of(step(x, *graphs.values())), arrays_of(layer(x, edges)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not [kernel.name for kernel in step.plan.kernels() if "sort" in kernel.name]
    del edges[KNOWS]  # a relation that is absent is one without edges
    without = {**edges, KNOWS: weft.tensor(NO_EDGES)}
    assert_close(layer(x, edges), layer(x, without), 0, 0, "absent")


HETERO = [
    LayerRecord(
        name="HeteroGraphConv",
        make=lambda: nn.HeteroGraphConv({"user": 3, "item": 2}, 4, RELATIONS),
        inputs=users_and_items,
        oracle=hetero,
        traits=frozenset({"graph"}),
        edges={
            "empty graph": Case(inputs=lambda draw: users_and_items(draw, empty=True)),
            "isolated nodes": Case(inputs=lambda draw: users_and_items(Draw(4))),
        },
        checks={"adjacency": hetero_with_adjacency},
        bad=[
            Bad(
                call=lambda layer: layer({"user": weft.ones(4, 3), "item": weft.ones(5, 9)}, {}),
                match=r"nodes 'item' of shape \(5, 9\); expected \[nodes, 2\]",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer({"user": weft.ones(4, 3)}, {}), match="nodes 'item' of NoneType"),
            Bad(
                call=lambda layer: layer({"user": weft.ones(4, 3), "item": weft.ones(5, 2)}, {("a", "b", "c"): None}),
                match="the relation",
                error=weft.RangeError,
            ),
            Bad(
                call=lambda layer: layer(
                    {"user": weft.ones(4, 3), "item": weft.ones(5, 2)}, {BUYS: weft.tensor([[4], [0]])}
                ),
                match="the index 4",
                error=weft.IndexRangeError,
            ),
            Bad(
                call=lambda layer: nn.HeteroGraphConv({"user": 3}, 4, [BUYS]),
                match="node type 'item'",
                error=weft.RangeError,
            ),
            Bad(
                call=lambda layer: nn.HeteroGraphConv({"user": 3, "item": 2}, 4, RELATIONS, num_bases=2),
                match="one number of features",
                error=weft.ShapeError,
            ),
        ],
    ),
    LayerRecord(
        name="HeteroGraphConv",
        variant="bases",
        make=lambda: nn.HeteroGraphConv({"node": 4}, 5, ONE_KIND, num_bases=3),
        inputs=one_kind,
        oracle=relational(3),
        traits=frozenset({"graph"}),
        edges={
            "empty graph": Case(inputs=lambda draw: one_kind(draw, NO_EDGES)),
            "isolated nodes": Case(inputs=lambda draw: one_kind(draw, LONELY)),
        },
        checks={
            "no bases": variants(
                "HeteroGraphConv",
                (
                    lambda: nn.HeteroGraphConv({"node": 4}, 5, ONE_KIND),
                    relational(None),
                    lambda draw, nodes, edges: one_kind(draw, edges),
                ),
            )
        },
        no_bad="as without bases",
    ),
]

RECORDS = [*CONVOLUTIONS, *HETERO]
