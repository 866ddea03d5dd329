"""Records of the graph layers. The oracle is torch_geometric, or NumPy with dense matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.checks import arrays_of, assert_close, floats_of, make_layer, tensors, weighted
from tests.layers.geometric import geometric, of_module, utils
from tests.layers.oracles import of_function, of_numpy, of_torch, to_torch
from tests.layers.record import Bad, Case, Draw, LayerRecord

NODES = 6
# An edge twice, a self-loop, and node 5 without edges.
EDGES = np.array([[0, 1, 0, 2, 3, 4, 2, 0, 1, 4], [1, 0, 1, 2, 2, 3, 4, 3, 4, 0]])
COUNT = EDGES.shape[1]
NO_EDGES = np.zeros((2, 0), np.int64)
LONELY = np.array([[1, 3, 3], [3, 1, 3]])  # of 6 nodes, two have edges

Inputs = Callable[[Draw, int, np.ndarray], tuple[Any, ...]]


def x_and_edges(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges


def with_weights(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges, draw.uniform(edges.shape[1], low=0.3)


def with_attributes(draw: Draw, nodes: int, edges: np.ndarray) -> tuple[Any, ...]:
    return draw.normal(nodes, 4), edges, draw.normal(edges.shape[1], 3)


# ---- properties of all graph layers ---------------------------------------------------------------------------------


def same_with_adjacency(record: LayerRecord) -> None:
    """An Adjacency gives the bits of an edge_index, compiled too, and then nothing is sorted: neither forward nor
    backward, nor for the gradients of edge weights and features."""
    x, edges, *rest = tensors(record.inputs(Draw()), requires_grad=True)
    layer = make_layer(record).eval()
    graph = weft.adjacency(edges, x.shape[0])

    def step(x: Any, edges: Any, *rest: Any) -> Any:
        points = [one for one in (x, *rest) if isinstance(one, weft.Tensor)]

        def loss(*points: Any) -> Any:
            return weighted(layer(points[0], edges, *points[1:]))

        return layer(x, edges, *rest), weft.grad(loss, tuple(range(len(points))))(*points)

    compiled = weft.compile(step)
    expected = arrays_of(step(x, edges, *rest))
    for ours in (step(x, graph, *rest), compiled(x, graph, *rest)):
        for one, other in zip(arrays_of(ours), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    names = [kernel.name for kernel in compiled.plan.kernels()]
    assert not [name for name in names if "sort" in name or "scatter" in name], names

    optimizer = weft.optim.SGD(layer.parameters(), lr=0.1)

    def train(x: Any, graph: Any, *rest: Any) -> Any:
        loss = weighted(layer(x, graph, *rest))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if list(layer.parameters()):
        trained = weft.compile(train)
        trained(x.detach(), graph, *[one.detach() if isinstance(one, weft.Tensor) else one for one in rest])
        names = [kernel.name for kernel in trained.plan.kernels()]
        assert not [name for name in names if "sort" in name or "scatter" in name], names


def same_with_dense(record: LayerRecord) -> None:
    """A dense matrix gives the numbers of its edges; a layer with edge weights takes its values for them."""
    x = weft.tensor(Draw().normal(NODES, 4), dtype=weft.float32)
    dense = np.zeros((NODES, NODES), np.float32)
    dense[EDGES[1], EDGES[0]] = Draw(3).uniform(COUNT, low=0.3)
    target, source = np.nonzero(dense)
    pairs = weft.tensor(np.stack([source, target]))
    layer = make_layer(record).eval()
    rest = [weft.tensor(dense[target, source])] if record.variant == "edge weights" else []
    assert_close(layer(x, weft.tensor(dense)), layer(x, pairs, *rest), 1e-6, 1e-6, record.id)
    assert_close(layer(x, weft.tensor(dense != 0)), layer(x, pairs), 1e-6, 1e-6, record.id)


def one_node(record: LayerRecord, inputs: Inputs) -> None:
    """One node, without edges and with two self-loops."""
    for edges in (NO_EDGES, np.zeros((2, 2), np.int64)):
        compare(record, inputs(Draw(), 1, edges))


def compare(record: LayerRecord, inputs: Any) -> None:
    assert record.oracle is not None
    layer = make_layer(record)
    state = {key: value.double().numpy() for key, value in layer.double().state_dict().items()}
    result = layer(*tensors(inputs, weft.float64))
    assert_close(result, record.oracle(state, inputs, True), 1e-9, 1e-9, record.id)


def graph_record(inputs: Inputs = x_and_edges, dense: bool = True, **fields: Any) -> LayerRecord:
    """A record with the edge cases, wrong inputs and checks that all layers on (x, edge_index, ...) have."""

    def wrong_index(value: int, row: int) -> Bad:
        edges = EDGES.copy()
        edges[row, 3] = value
        return Bad(
            call=lambda layer: layer(*tensors(inputs(Draw(), NODES, edges))),
            match=rf"the index {value}",
            error=weft.IndexRangeError,
        )

    def call(nodes: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
        return lambda layer: layer(*change(list(tensors(inputs(Draw(), nodes, EDGES)))))

    bad = [
        wrong_index(6, 0),
        wrong_index(6, 1),
        wrong_index(-1, 0),
        wrong_index(-2, 1),
        Bad(call=call(NODES, lambda a: [a[0][0], *a[1:]]), match=r"shape \(4,\)", error=weft.ShapeError),
        Bad(call=call(NODES, lambda a: [a[0], a[1][0], *a[2:]]), match=r"edge index of shape", error=weft.ShapeError),
        Bad(
            call=call(NODES, lambda a: [a[0], weft.adjacency(EDGES, 9), *a[2:]]),
            match="9 sources and 9 targets.*expected 6 and 6",
            error=weft.ShapeError,
        ),
        Bad(
            call=call(NODES, lambda a: [a[0], weft.ones(5, 5), *a[2:]]),
            match=r"dense adjacency of shape \(5, 5\); expected \(6, 6\)",
            error=weft.ShapeError,
        ),
        *fields.pop("bad", ()),
    ]
    made = LayerRecord(
        inputs=lambda draw: inputs(draw, NODES, EDGES),
        traits=fields.pop("traits", frozenset({"graph"})),
        edges={
            "empty graph": Case(inputs=lambda draw: inputs(draw, NODES, NO_EDGES)),
            "isolated nodes": Case(inputs=lambda draw: inputs(draw, NODES, LONELY)),
            **fields.pop("edges", {}),
        },
        bad=bad,
        **fields,
    )
    checks: dict[str, Any] = {
        "adjacency": lambda: same_with_adjacency(made),
        "one node": lambda: one_node(made, inputs),
        **made.checks,
    }
    if dense:
        checks["dense"] = lambda: same_with_dense(made)
    return dataclasses.replace(made, checks=checks)


WRONG_WIDTH = Bad(
    call=lambda layer: layer(weft.ones(NODES, 5), weft.tensor(EDGES)),
    match=r"node features of shape \(6, 5\); expected \[nodes, 4\]",
    error=weft.ShapeError,
)
WRONG_ATTRIBUTES = Bad(
    call=lambda layer: layer(weft.ones(NODES, 4), weft.tensor(EDGES), weft.ones(COUNT, 2)),
    match=r"edge features of shape \(10, 2\); expected \[edges, 3\]",
    error=weft.ShapeError,
)
FEW_ATTRIBUTES = Bad(
    call=lambda layer: layer(weft.ones(NODES, 4), weft.tensor(EDGES), weft.ones(COUNT - 1, 3)),
    match=r"values of shape \(9, 3\) for 10 edges",
    error=weft.ShapeError,
)
ONE_NODE_PER_EDGE = "see the check 'first of equals'"


def gradient_of_ties(make: Callable[[], Any]) -> Callable[[], None]:
    """The gradient of a maximum goes to the first edge of equals, in the order that was given."""

    def check() -> None:
        x = weft.tensor([[2.0], [2.0], [2.0], [0.0]], requires_grad=True)
        edges = weft.tensor([[2, 0, 1], [3, 3, 3]])
        layer = make()
        weft.nn.MessagePassing.propagate(layer, edges, x=x, edge_weight=None).sum().backward()
        assert x.grad.tolist() == [[0.0], [0.0], [1.0], [0.0]]

    return check


# ---- message passing ------------------------------------------------------------------------------------------------


def simple(aggr: str) -> LayerRecord:
    order = aggr in ("max", "min")
    return graph_record(
        with_weights,
        name="MessagePassing",
        variant="edge weights" if aggr == "sum" else aggr,
        make=lambda: nn.MessagePassing(aggr),
        oracle=of_torch(lambda: geometric.SimpleConv(aggr=aggr)),
        dense=aggr == "sum",
        traits=frozenset({"graph", "order"} if order else {"graph"}),
        edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES, np.ones(COUNT)))},
        bad=[
            Bad(call=lambda layer: nn.MessagePassing("median"), match="aggr='median'", error=weft.RangeError),
            Bad(
                call=lambda layer: layer(weft.ones(6, 4), weft.tensor(EDGES), weft.ones(3)),
                match=r"values of shape \(3,\) for 10 edges",
                error=weft.ShapeError,
            ),
        ],
        checks={"first of equals": gradient_of_ties(lambda: nn.MessagePassing(aggr))} if order else {},
    )


def mpnn(state: Any, x: Any, edges: Any, attributes: Any, aggr: str) -> Any:
    """The layer in torch: an MLP on every edge, index_add or a maximum, and GRUCell."""
    state = to_torch(dict(state))
    x, edges, attributes = to_torch((x, edges, attributes))
    parts = [x[edges[0]], x[edges[1]]] + ([] if attributes is None else [attributes])
    hidden = torch.nn.functional.linear(torch.cat(parts, -1), state["mlp.0.weight"], state["mlp.0.bias"]).relu()
    messages = torch.nn.functional.linear(hidden, state["mlp.2.weight"], state["mlp.2.bias"])
    gathered = utils.scatter(messages, edges[1], 0, x.shape[0], reduce=aggr)
    previous = x if "lin.weight" not in state else x @ state["lin.weight"].T
    cell = torch.nn.GRUCell(gathered.shape[1], previous.shape[1]).double()
    cell.load_state_dict({key[4:]: value for key, value in state.items() if key.startswith("gru.")})
    return cell(gathered, previous)


MESSAGE_PASSING = [
    *[simple(aggr) for aggr in ("sum", "mean", "max", "min")],
    graph_record(
        with_attributes,
        name="MPNNConv",
        make=lambda: nn.MPNNConv(4, 5, message_dim=6, edge_dim=3),
        oracle=of_numpy(lambda state, *inputs: mpnn(state, *inputs, "sum")),
        dense=False,
        bad=[
            WRONG_ATTRIBUTES,
            FEW_ATTRIBUTES,
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.MPNNConv(0, 3), match="in_channels=0", error=weft.RangeError),
        ],
    ),
    graph_record(
        name="MPNNConv",
        variant="maximum",
        make=lambda: nn.MPNNConv(4, 4, aggr="max"),
        oracle=of_numpy(lambda state, *inputs: mpnn(state, *inputs, None, "max")),
        traits=frozenset({"graph", "order"}),
        edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES))},
        bad=[WRONG_WIDTH],
    ),
]

# ---- convolutions ---------------------------------------------------------------------------------------------------


def gin_mlp(hidden: int) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 5))


def gcn_like_theirs(state: Any, x: Any, edges: Any, weights: Any) -> Any:
    """(A + I) X W + b."""
    dense = np.zeros((len(x), len(x)))
    is_loop = edges[0] == edges[1]
    np.add.at(dense, (edges[1][~is_loop], edges[0][~is_loop]), weights[~is_loop])
    own = np.ones(len(x))
    own[edges[0][is_loop]] = weights[is_loop]  # the last of several
    return (dense + np.diag(own)) @ x @ state["lin.weight"].T + state["bias"]


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


CONVOLUTIONS = [
    graph_record(
        name="GCNConv",
        make=lambda: nn.GCNConv(4, 5),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5)),
        bad=[WRONG_WIDTH, Bad(call=lambda layer: nn.GCNConv(3, -1), match="out_channels=-1", error=weft.RangeError)],
    ),
    graph_record(
        with_weights,
        name="GCNConv",
        variant="edge weights",
        make=lambda: nn.GCNConv(4, 5, bias=False),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5, bias=False)),
    ),
    graph_record(
        with_weights,
        name="GCNConv",
        variant="without self-loops",
        make=lambda: nn.GCNConv(4, 5, add_self_loops=False),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5, add_self_loops=False)),
        dense=False,
    ),
    graph_record(
        with_weights,
        name="GCNConv",
        variant="plain sum",
        make=lambda: nn.GCNConv(4, 5, add_self_loops=False, normalize=False),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5, add_self_loops=False, normalize=False)),
        dense=False,
    ),
    graph_record(
        with_weights,
        name="GCNConv",
        variant="sum with self-loops",
        make=lambda: nn.GCNConv(4, 5, normalize=False),
        oracle=of_numpy(gcn_like_theirs),
        dense=False,
    ),
    graph_record(
        name="GCNConv",
        variant="activation",
        make=lambda: nn.GCNConv(4, 5, activation="relu"),
        oracle=of_torch(lambda: geometric.GCNConv(4, 5), call=lambda layer, *inputs: layer(*inputs).relu()),
    ),
    *[
        graph_record(
            name="SAGEConv",
            variant=aggr,
            make=lambda aggr=aggr: nn.SAGEConv(4, 5, aggr, normalize=aggr == "sum", bias=aggr != "max"),
            oracle=of_torch(
                lambda aggr=aggr: geometric.SAGEConv(4, 5, aggr, normalize=aggr == "sum", bias=aggr != "max")
            ),
            traits=frozenset({"graph", "order"} if aggr == "max" else {"graph"}),
            edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES))},
            checks={"first of equals": gradient_of_ties(lambda: nn.SAGEConv(1, 1, "max"))} if aggr == "max" else {},
            bad=[WRONG_WIDTH],
        )
        for aggr in ("mean", "max", "sum")
    ],
    graph_record(
        name="GINConv",
        make=lambda: nn.GINConv(4, 5, eps=0.3),
        oracle=of_torch(lambda: geometric.GINConv(gin_mlp(5), eps=0.3)),
        bad=[WRONG_WIDTH],
    ),
    graph_record(
        name="GINConv",
        variant="trained eps",
        make=lambda: nn.GINConv(4, 5, hidden=7, train_eps=True),
        oracle=of_torch(lambda: geometric.GINConv(gin_mlp(7), train_eps=True)),
    ),
    graph_record(
        with_attributes,
        name="EdgeConditionedConv",
        make=lambda: nn.EdgeConditionedConv(4, 5, 3, hidden=7),
        oracle=of_torch(lambda: geometric.NNConv(4, 5, edge_network())),
        dense=False,
        bad=[WRONG_ATTRIBUTES, FEW_ATTRIBUTES],
    ),
    graph_record(
        with_attributes,
        name="EdgeConditionedConv",
        variant="mean",
        make=lambda: nn.NNConv(4, 5, 3, hidden=7, aggr="mean", bias=False),
        oracle=of_torch(lambda: geometric.NNConv(4, 5, edge_network(), aggr="mean", bias=False)),
        dense=False,
    ),
    graph_record(
        name="DirectedGraphConv",
        make=lambda: nn.DirectedGraphConv(4, 5, alpha=0.3),
        oracle=directed("mean", 0.3),
        checks={"reversed": reversing_edges_exchanges_directions},
        bad=[
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.DirectedGraphConv(4, 5, alpha=1.5), match="alpha=1.5", error=weft.RangeError),
        ],
    ),
    graph_record(
        name="DirectedGraphConv",
        variant="maximum",
        make=lambda: nn.DirectedGraphConv(4, 5, aggr="max", root_weight=False, bias=False),
        oracle=directed("max", 0.5, root=False),
        traits=frozenset({"graph", "order"}),
        edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES))},
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


def no_own_nan(record: str) -> str:
    return f"the inputs of {record} are dicts: the check 'nan' of SAGEConv covers the aggregation"


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
    *[
        LayerRecord(
            name="HeteroGraphConv",
            variant=f"one kind of nodes, {num_bases} bases",
            make=lambda num_bases=num_bases: nn.HeteroGraphConv({"node": 4}, 5, ONE_KIND, num_bases),
            inputs=one_kind,
            oracle=relational(num_bases),
            traits=frozenset({"graph"}),
            edges={
                "empty graph": Case(inputs=lambda draw: one_kind(draw, NO_EDGES)),
                "isolated nodes": Case(inputs=lambda draw: one_kind(draw, LONELY)),
            },
            no_bad="as with several kinds",
        )
        for num_bases in (None, 3)
    ],
]

# ---- attention ------------------------------------------------------------------------------------------------------


def transformer(state: Any, inputs: Any, training: bool) -> Any:
    """torch_geometric's TransformerConv over edges with self-loops, then torch's layers."""
    x, edges = to_torch(inputs)
    edges, _ = utils.add_self_loops(utils.remove_self_loops(edges)[0], num_nodes=len(x))
    attention = geometric.TransformerConv(4, 3, heads=2, root_weight=False).double()
    names = [f"lin_{name}.{part}" for name in ("key", "query", "value") for part in ("weight", "bias")]
    attention.load_state_dict(to_torch({name: state[name] for name in names}), strict=False)
    own = to_torch(dict(state))
    linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
    mixed = linear(attention(x, edges), own["lin_out.weight"], own["lin_out.bias"])
    h = linear(x, own["lin_skip.weight"], own["lin_skip.bias"]) + mixed
    h = norm(h, (6,), own["norm1.weight"], own["norm1.bias"])
    hidden = linear(h, own["ffn.0.weight"], own["ffn.0.bias"]).relu()
    y = h + linear(hidden, own["ffn.2.weight"], own["ffn.2.bias"])
    return norm(y, (6,), own["norm2.weight"], own["norm2.bias"])


def transformer_with_attributes(loops: bool) -> Callable[..., Any]:
    """One node, one head and one edge at a time, in NumPy."""

    def oracle(state: Any, x: Any, edges: Any, attributes: Any) -> Any:
        heads, width = 2, 2
        q, k, v = [x @ state[f"lin_{name}.weight"].T + state[f"lin_{name}.bias"] for name in ("query", "key", "value")]
        bias = attributes @ state["lin_edge.weight"].T
        mixed = np.zeros((len(x), heads * width))
        for node in range(len(x)):
            into = [e for e in range(edges.shape[1]) if edges[1, e] == node]
            own = [e for e in into if edges[0, e] == node]
            listed = [(edges[0, e], bias[e]) for e in into]
            if loops:
                listed = [(edges[0, e], bias[e]) for e in into if e not in own]
                listed.append((node, bias[own[-1]] if own else np.zeros(heads)))
            for head in range(heads if listed else 0):
                part = slice(head * width, (head + 1) * width)
                score = np.array([q[node, part] @ k[j, part] / np.sqrt(width) + extra[head] for j, extra in listed])
                weight = np.exp(score - score.max())
                values = np.stack([v[j, part] for j, _ in listed])
                mixed[node, part] = (weight / weight.sum()) @ values
        h = x + mixed @ state["lin_out.weight"].T + state["lin_out.bias"]
        hidden = np.maximum(h @ state["ffn.0.weight"].T + state["ffn.0.bias"], 0)
        return h + hidden @ state["ffn.2.weight"].T + state["ffn.2.bias"]

    return oracle


def dropout_of_attention() -> None:
    """In training weights of edges are dropped, the others scaled; in eval mode none."""
    weft.manual_seed(0)
    for make in (nn.GATConv, nn.GATv2Conv):
        for loops in (False, True):
            layer = make(1, 1, dropout=0.5, add_self_loops=loops)
            edges = weft.tensor(np.stack([np.arange(1, 401), np.zeros(400, np.int64)]))
            x = weft.ones(401, 1)
            full = layer.eval()(x, edges)[0].item()
            drawn = [layer.train()(x, edges)[0].item() / full for _ in range(30)]
            assert len(set(drawn)) > 10
            assert abs(np.mean(drawn) - 1) < 0.05, np.mean(drawn)
            assert 0.02 < np.std(drawn) < 0.1, np.std(drawn)  # 1/√400 of one edge's


ATTENTION = [
    graph_record(
        name="GATConv",
        make=lambda: nn.GATConv(4, 3, heads=2),
        oracle=of_torch(lambda: geometric.GATConv(4, 3, heads=2)),
        bad=[WRONG_WIDTH, Bad(call=lambda layer: nn.GATConv(4, 3, heads=0), match="heads=0", error=weft.RangeError)],
        checks={"dropout": dropout_of_attention},
    ),
    graph_record(
        name="GATConv",
        variant="mean of heads",
        make=lambda: nn.GATConv(4, 3, heads=2, concat=False, negative_slope=0.5, bias=False),
        oracle=of_torch(lambda: geometric.GATConv(4, 3, heads=2, concat=False, negative_slope=0.5, bias=False)),
    ),
    graph_record(
        name="GATConv",
        variant="without self-loops",
        make=lambda: nn.GATConv(4, 3, heads=2, add_self_loops=False),
        oracle=of_torch(lambda: geometric.GATConv(4, 3, heads=2, add_self_loops=False)),
    ),
    graph_record(
        name="GATv2Conv",
        make=lambda: nn.GATv2Conv(4, 3, heads=2),
        oracle=of_torch(lambda: geometric.GATv2Conv(4, 3, heads=2)),
        bad=[WRONG_WIDTH],
    ),
    graph_record(
        name="GATv2Conv",
        variant="without self-loops",
        make=lambda: nn.GATv2Conv(4, 3, heads=2, concat=False, add_self_loops=False),
        oracle=of_torch(lambda: geometric.GATv2Conv(4, 3, heads=2, concat=False, add_self_loops=False)),
    ),
    graph_record(
        name="GraphTransformerLayer",
        make=lambda: nn.GraphTransformerLayer(4, 6, heads=2, dropout=0.0),
        oracle=transformer,
        bad=[
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.GraphTransformerLayer(4, 6, heads=4), match="6 channels for 4 heads"),
            Bad(call=lambda layer: nn.GraphTransformerLayer(4, 6, 2, norm="x"), match="norm='x'"),
        ],
        rtol=2e-5,
    ),
    *[
        graph_record(
            with_attributes,
            name="GraphTransformerLayer",
            variant=f"edge features, {'with' if loops else 'without'} self-loops",
            make=lambda loops=loops: nn.GraphTransformerLayer(
                4, 4, 2, edge_dim=3, dropout=0.0, norm=None, add_self_loops=loops
            ),
            oracle=of_numpy(transformer_with_attributes(loops)),
            dense=False,
            bad=[WRONG_ATTRIBUTES, FEW_ATTRIBUTES],
        )
        for loops in (True, False)
    ],
]

# ---- aggregation ----------------------------------------------------------------------------------------------------

HISTOGRAM = np.array([2, 5, 7, 3])


def pna(edge_dim: int | None, aggregators: Any, scalers: Any) -> Any:
    def make() -> Any:
        return geometric.PNAConv(4, 5, list(aggregators), list(scalers), torch.from_numpy(HISTOGRAM), edge_dim)

    def convert(state: Any) -> Any:
        names = {"pre": "pre_nns.0.0", "post": "post_nns.0.0"}
        found = {"aggr_module.avg_deg_log": state["avg_deg_log"], "aggr_module.avg_deg_lin": np.ones(1)}
        for key, value in state.items():
            if key != "avg_deg_log":
                first, _, rest = key.partition(".")
                found[f"{names.get(first, first)}.{rest}"] = value
        return found

    return of_module(make, convert)


DEFAULTS = (("mean", "min", "max", "std"), ("identity", "amplification", "attenuation"))


def readout(pool: str | None, state: Any, x: Any, batch: Any = None, graphs: Any = None) -> Any:
    x, batch = to_torch((x, batch))
    if pool is not None:
        pools = {"mean": "global_mean_pool", "sum": "global_add_pool", "max": "global_max_pool"}
        x = getattr(geometric, pools[pool])(x, batch, graphs)
    return x @ to_torch(state["lin.weight"]).T + to_torch(state["lin.bias"])


BATCH = np.array([0, 0, 2, 1, 2, 2, 0])
INT_BATCH = "batch is a vector of integers: one node is the check 'one graph'"


def pools_alone() -> None:
    """The functions by themselves, without a batch and without the number of graphs."""
    x, batch = Draw().normal(7, 3), BATCH
    for name in ("global_add_pool", "global_mean_pool", "global_max_pool"):
        ours, theirs = getattr(nn, name), getattr(geometric, name)
        for given in ((x, batch), (x, None), (x, batch, 5)):
            assert_close(ours(*tensors(given, weft.float64)), theirs(*to_torch(given)), 1e-12, 1e-12, name)


AGGREGATION = [
    graph_record(
        name="PNAConv",
        make=lambda: nn.PNAConv(4, 5, weft.tensor(HISTOGRAM)),
        oracle=pna(None, *DEFAULTS),
        traits=frozenset({"graph", "order"}),
        edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(NODES, 0), EDGES))},
        bad=[
            WRONG_WIDTH,
            Bad(call=lambda layer: nn.PNAConv(4, 5, HISTOGRAM, ["median"]), match="'median'", error=weft.RangeError),
            Bad(call=lambda layer: nn.PNAConv(4, 5, [9]), match="nodes that have edges", error=weft.RangeError),
        ],
        bf16=0.1,
    ),
    graph_record(
        with_attributes,
        name="PNAConv",
        variant="edge features",
        make=lambda: nn.PNAConv(4, 5, HISTOGRAM, ("sum", "std"), ("attenuation", "identity"), edge_dim=3),
        oracle=pna(3, ("sum", "std"), ("attenuation", "identity")),
        dense=False,
        bad=[WRONG_ATTRIBUTES, FEW_ATTRIBUTES],
        bf16=0.1,
    ),
    *[
        LayerRecord(
            name="GraphReadout",
            variant=pool,
            make=lambda pool=pool: nn.GraphReadout(4, 3, pool),
            inputs=lambda draw: (draw.normal(7, 4), BATCH, 4),  # graph 3 has no nodes
            oracle=of_numpy(lambda state, *inputs, pool=pool: readout(pool, state, *inputs)),
            traits=frozenset({"batch", "order"}),
            edges={"ties": Case(inputs=lambda draw: (draw.normal(1, 4).repeat(7, 0), BATCH, 4))},
            bad=[
                Bad(
                    call=lambda layer: layer(weft.ones(2, 4), weft.tensor([0, 4]), 4),
                    match="the index 4",
                    error=weft.IndexRangeError,
                ),
                Bad(call=lambda layer: layer(weft.ones(2, 5)), match=r"\(2, 5\); expected \[nodes, 4\]"),
                Bad(call=lambda layer: nn.GraphReadout(4, 3, "median"), match="pool='median'", error=weft.RangeError),
            ],
            checks={"pools": pools_alone} if pool == "mean" else {},
        )
        for pool in ("mean", "sum", "max")
    ],
    LayerRecord(
        name="GraphReadout",
        variant="one graph",
        make=lambda: nn.GraphReadout(4, 3, "sum"),
        inputs=lambda draw: (draw.normal(7, 4),),
        oracle=of_numpy(lambda state, x: readout("sum", state, x)),
        no_bad="as with a batch",
    ),
    LayerRecord(
        name="GraphReadout",
        variant="no pool",
        make=lambda: nn.GraphReadout(4, 3, None),
        inputs=lambda draw: (draw.normal(7, 4),),
        oracle=of_numpy(lambda state, x: readout(None, state, x)),
        no_bad="the Linear inside says what is wrong",
    ),
]

# ---- diffusion ------------------------------------------------------------------------------------------------------

PATH = np.array([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]])  # two components: 0 - 1 - 2 and 3 - 4
MASS = np.array([1.0, 2.0, 0.5, 1.5, 1.0])


def path_laplacian() -> np.ndarray:
    dense = np.zeros((5, 5))
    dense[PATH[1], PATH[0]] = 1.0
    return np.diag(dense.sum(1)) - dense


def eigenpairs(mass: np.ndarray | None = MASS) -> tuple[np.ndarray, np.ndarray]:
    """Of L φ = λ M φ, by the eigenvectors of M⁻¹ L, which is not symmetric; brought to Φᵀ M Φ = I."""
    mass = np.ones(5) if mass is None else mass
    root = np.diag(mass**-0.5)
    values, vectors = np.linalg.eigh(root @ path_laplacian() @ root)
    return values, root @ vectors


def expm(matrix: np.ndarray) -> np.ndarray:
    """The matrix exponential by its series, on a matrix that was halved until it is small, then squared again."""
    result, term = np.eye(len(matrix)), np.eye(len(matrix))
    small = matrix / 2**20
    for k in range(1, 8):
        term = term @ small / k
        result = result + term
    for _ in range(20):
        result = result @ result
    return result


def heat(state: Any, x: Any, values: Any, vectors: Any, mass: Any) -> Any:
    """By the matrix exponential: the eigenpairs that were given are not used."""
    operator = path_laplacian() / mass[:, None]
    spread = [expm(-max(time, 1e-8) * operator) @ x for time in state["times"]]
    return np.concatenate(spread, 1) @ state["weight"].T + state["bias"]


def heat_inputs(draw: Draw) -> tuple[Any, ...]:
    return draw.normal(5, 3), *eigenpairs(), MASS


def heat_limits() -> None:
    """No time leaves the input, and a long time gives the mean of each component, weighted by the masses."""
    x = Draw().normal(5, 3)
    layer = nn.DiffusionConv(3, 3, num_times=1, bias=False).double()
    with weft.no_grad():
        layer.weight.copy_(weft.eye(3, dtype=weft.float64))
    means = np.concatenate([
        np.repeat((MASS[part, None] * x[part]).sum(0, keepdims=True) / MASS[part].sum(), part.stop - part.start, 0)
        for part in (slice(0, 3), slice(3, 5))
    ])  # fmt: skip
    inputs = tensors((x, *eigenpairs(), MASS), weft.float64)
    for time, expected in ((-1.0, x), (1e4, means)):
        with weft.no_grad():
            layer.times.fill_(time)
        np.testing.assert_allclose(layer(*inputs).numpy(), expected, atol=1e-6)


def helper_gives_eigenpairs() -> None:
    laplacian = nn.graph_laplacian(weft.tensor(PATH), 5).double()
    np.testing.assert_array_equal(laplacian.numpy(), path_laplacian())
    values, vectors = [one.numpy() for one in nn.laplacian_eigenpairs(laplacian, 4, weft.tensor(MASS))]
    assert values.shape == (4,) and vectors.shape == (5, 4)
    np.testing.assert_allclose(path_laplacian() @ vectors, MASS[:, None] * vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ (MASS[:, None] * vectors), np.eye(4), atol=1e-12)
    assert (np.diff(values) >= 0).all()


def fewer_eigenpairs() -> None:
    weft.manual_seed(0)
    layer = nn.DiffusionConv(3, 4, num_eigen=2).double()
    x, values, vectors, mass = tensors(heat_inputs(Draw()), weft.float64)
    expected = layer(x, values[:2], vectors[:, :2], mass)
    np.testing.assert_array_equal(layer(x, values, vectors, mass).numpy(), expected.numpy())


def random_walk(state: Any, x: Any, edges: Any, weights: Any = None) -> Any:
    """Powers of dense transition matrices. a[i, j] is the weight of the edge i→j."""
    a = np.zeros((len(x), len(x)))
    np.add.at(a, (edges[0], edges[1]), np.ones(edges.shape[1]) if weights is None else weights)
    blocks = [x]
    for matrix in (a, a.T):
        degree = matrix.sum(1, keepdims=True)
        step = np.divide(matrix, degree, out=np.zeros_like(matrix), where=degree != 0)
        blocks += [np.linalg.matrix_power(step, k) @ x for k in (1, 2, 3)]
    return np.concatenate(blocks, 1) @ state["weight"].T + state["bias"]


DIFFUSION = [
    LayerRecord(
        name="DiffusionConv",
        make=lambda: nn.DiffusionConv(3, 4, num_times=3),
        inputs=heat_inputs,
        oracle=of_numpy(heat),
        traits=frozenset({"graph"}),
        edges={
            "empty graph": Case(
                inputs=lambda draw: (draw.normal(5, 3), np.zeros(5), np.eye(5), np.ones(5)),
                oracle=of_numpy(
                    lambda state, x, *rest: np.concatenate([x] * 3, 1) @ state["weight"].T + state["bias"]
                ),
            ),
            "isolated nodes": "the graph of the record has two components; a node by itself is an empty graph",
            "nan": "the oracle ignores the eigenpairs: NaN spreads to the whole component there, here to all nodes",
        },
        checks={"limits": heat_limits, "helper": helper_gives_eigenpairs, "fewer eigenpairs": fewer_eigenpairs},
        bad=[
            Bad(
                call=lambda layer: layer(weft.ones(5, 3), weft.ones(4), weft.ones(5, 3)),
                match=r"eigenvectors of shape \(5, 3\); expected \(5, 4\)",
                error=weft.ShapeError,
            ),
            Bad(call=lambda layer: layer(weft.ones(5, 2), weft.ones(5), weft.ones(5, 5)), match=r"\(5, 2\)"),
            Bad(call=lambda layer: nn.DiffusionConv(3, 4, kind="wave"), match="kind='wave'", error=weft.RangeError),
            Bad(call=lambda layer: nn.DiffusionConv(3, 4, t_min=2.0), match="t_min=2.0", error=weft.RangeError),
            Bad(call=lambda layer: nn.laplacian_eigenpairs(weft.ones(2, 3), 1), match=r"\(2, 3\)"),
            Bad(
                call=lambda layer: nn.laplacian_eigenpairs(weft.eye(2), 1, weft.zeros(2)),
                match="positive",
                error=weft.RangeError,
            ),
        ],
    ),
    *[
        graph_record(
            inputs,
            name="DiffusionConv",
            variant=f"random walk{' of weighted edges' if inputs is with_weights else ''}",
            make=lambda: nn.DiffusionConv(4, 5, kind="random_walk", num_steps=3),
            oracle=of_numpy(random_walk),
            dense=False,
            bad=[WRONG_WIDTH],
            rtol=2e-5,
        )
        for inputs in (x_and_edges, with_weights)
    ],
]

RECORDS = [*MESSAGE_PASSING, *CONVOLUTIONS, *HETERO, *ATTENTION, *AGGREGATION, *DIFFUSION]
