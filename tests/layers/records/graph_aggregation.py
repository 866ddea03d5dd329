"""Records of aggregation and readouts. The oracle is torch_geometric."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.geometric import geometric, of_module
from tests.layers.graphs import (
    EDGES,
    FEW_ATTRIBUTES,
    NODES,
    WRONG_ATTRIBUTES,
    WRONG_WIDTH,
    compare,
    graph_record,
    with_attributes,
)
from tests.layers.instances import assert_close, tensors
from tests.layers.oracles import of_numpy, to_torch
from tests.layers.record import Bad, Case, Draw, LayerRecord

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


def pools_alone() -> None:
    """The functions by themselves, without a batch and without the number of graphs."""
    x, batch = Draw().normal(7, 3), BATCH
    for name in ("global_add_pool", "global_mean_pool", "global_max_pool"):
        ours, theirs = getattr(nn, name), getattr(geometric, name)
        for given in ((x, batch), (x, None), (x, batch, 5)):
            assert_close(ours(*tensors(given, weft.float64)), theirs(*to_torch(given)), 1e-12, 1e-12, name)


def readout_options() -> None:
    x = Draw().normal(7, 4)
    for pool, inputs in (("sum", (x, BATCH, 4)), ("sum", (x,)), ("max", (x,)), (None, (x,)), ("mean", (x[:1],))):
        oracle = of_numpy(lambda state, *inputs, pool=pool: readout(pool, state, *inputs))
        make: Any = lambda pool=pool: nn.GraphReadout(4, 3, pool)  # noqa: E731
        compare(LayerRecord(name="GraphReadout", make=make, inputs=lambda draw: (), oracle=oracle), inputs)


RECORDS = [
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
            checks={"pools": pools_alone, "options": readout_options} if pool == "mean" else {},
        )
        for pool in ("mean", "max")
    ],
]
