"""Records of attention over edges. The oracle is torch_geometric, or NumPy with a loop over edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.geometric import geometric, utils
from tests.layers.graphs import (
    FEW_ATTRIBUTES,
    WRONG_ATTRIBUTES,
    WRONG_RANK,
    WRONG_WIDTH,
    graph_record,
    variants,
    with_attributes,
    x_and_edges,
)
from tests.layers.oracles import of_numpy, of_torch, to_torch
from tests.layers.record import Bad


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


def transformer_of_options(loops: bool) -> Any:
    return nn.GraphTransformerLayer(4, 4, 2, edge_dim=3, dropout=0.0, norm=None, add_self_loops=loops)


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


def gat_options(name: str, loops: bool) -> Any:
    options = {"heads": 2, "concat": False, "negative_slope": 0.5, "bias": False, "add_self_loops": loops}
    make = [getattr(module, name) for module in (nn, geometric)]
    return lambda: make[0](4, 3, **options), of_torch(lambda: make[1](4, 3, **options))


RECORDS = [
    graph_record(
        name="GATConv",
        make=lambda: nn.GATConv(4, 3, heads=2),
        oracle=of_torch(lambda: geometric.GATConv(4, 3, heads=2)),
        bad=[WRONG_WIDTH, Bad(call=lambda layer: nn.GATConv(4, 3, heads=0), match="heads=0", error=weft.RangeError)],
        checks={"dropout": dropout_of_attention},
    ),
    graph_record(
        name="GATConv",
        variant="without self-loops",
        make=lambda: nn.GATConv(4, 3, heads=2, add_self_loops=False),
        oracle=of_torch(lambda: geometric.GATConv(4, 3, heads=2, add_self_loops=False)),
        checks={
            "options": variants("GATConv", *[(*gat_options("GATConv", loops), x_and_edges) for loops in (True, False)])
        },
    ),
    graph_record(
        name="GATv2Conv",
        make=lambda: nn.GATv2Conv(4, 3, heads=2),
        oracle=of_torch(lambda: geometric.GATv2Conv(4, 3, heads=2)),
        checks={
            "options": variants(
                "GATv2Conv", *[(*gat_options("GATv2Conv", loops), x_and_edges) for loops in (True, False)]
            )
        },
        bad=[WRONG_WIDTH],
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
    graph_record(
        with_attributes,
        name="GraphTransformerLayer",
        variant="edge features",
        make=lambda: transformer_of_options(True),
        oracle=of_numpy(transformer_with_attributes(True)),
        dense=False,
        checks={
            "without self-loops": variants(
                "GraphTransformerLayer",
                (
                    lambda: transformer_of_options(False),
                    of_numpy(transformer_with_attributes(False)),
                    with_attributes,
                ),
            )
        },
        bad=[WRONG_RANK, WRONG_ATTRIBUTES, FEW_ATTRIBUTES],
    ),
]
