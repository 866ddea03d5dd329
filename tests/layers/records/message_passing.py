"""Records of message passing. The oracle is torch_geometric, or torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.geometric import geometric, utils
from tests.layers.graphs import (
    COUNT,
    EDGES,
    FEW_ATTRIBUTES,
    NODES,
    WRONG_ATTRIBUTES,
    WRONG_WIDTH,
    gradient_of_ties,
    graph_record,
    variants,
    with_attributes,
    with_weights,
)
from tests.layers.oracles import of_numpy, of_torch, to_torch
from tests.layers.record import Bad, Case, LayerRecord


def simple_options(aggr: str) -> Any:
    return lambda: nn.MessagePassing(aggr), of_torch(lambda: geometric.SimpleConv(aggr=aggr)), with_weights


def simple(aggr: str) -> LayerRecord:
    order = aggr == "max"
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
        checks={
            "first of equals" if order else "mean and min": gradient_of_ties(lambda: nn.MessagePassing(aggr))
            if order
            else variants("MessagePassing", *[simple_options(aggr) for aggr in ("mean", "min")])
        },
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


RECORDS = [
    *[simple(aggr) for aggr in ("sum", "max")],
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
