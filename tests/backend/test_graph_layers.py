"""Graph layers: what they cost beside plain tensor code, the sort of an edge_index in the plan, and the same bits."""

import numpy as np
import pytest
import torch  # noqa: F401  (as in the records: without it this file is not collected)

import weft
import weft.nn as nn
import weft.nn.functional as F
from tests.backend.test_graph_ops import EDGES, HEADS, NODES, WIDE, WIDTH, edges, stored
from weft.edges import sort_edges

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(NODES, WIDE)).astype(np.float32)
G = RANDOM.normal(size=(NODES, HEADS * WIDTH)).astype(np.float32)


def gat(**options):
    weft.manual_seed(0)
    return nn.GATConv(WIDE, WIDTH, heads=HEADS, **options)


def plain_gat(x, graph, att_src, att_dst, bias, weight):
    """The layer of the benchmark (benchmarks/networks_weft.py), with the shapes of GATConv's parameters."""
    h = F.linear(x, weight).reshape(-1, HEADS, WIDTH)
    scores = graph.sources((h * att_src).sum(-1)) + graph.targets((h * att_dst).sum(-1))
    shares = graph.softmax(F.leaky_relu(scores, 0.2))
    return weft.aggregate(h, graph, shares).flatten(1) + bias


def both_ways(function):
    """A compiled step: the result, and the gradients to x and the four parameters."""

    def step(g, x, graph, *parameters):
        def loss(x, *parameters):
            return (function(x, graph, *parameters) * g).sum()

        return function(x, graph, *parameters), *weft.grad(loss, tuple(range(5)))(x, *parameters)

    return weft.compile(step)


def names(step):
    return [kernel.name for kernel in step.plan.kernels()]


# ---- what it costs --------------------------------------------------------------------------------------------------


def test_a_gat_layer_costs_what_plain_code_costs():
    layer, graph = gat(add_self_loops=False), weft.adjacency(edges(), NODES)
    parameters = [parameter.detach() for parameter in layer.parameters()]
    keys = [name for name, _ in layer.named_parameters()]

    def module(x, graph, *values):
        return nn.utils.functional_call(layer, dict(zip(keys, values, strict=True)), (x, graph))

    x, g = weft.tensor(X), weft.tensor(G)
    plain = both_ways(plain_gat)
    expected = plain(g, x, graph, *parameters)
    step = both_ways(module) if hasattr(nn, "utils") else None
    assert step is not None
    for one, other in zip(step(g, x, graph, *parameters), expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert names(step) == names(plain)
    assert step.plan.bytes == plain.plan.bytes
    assert step.plan.memory().arena_bytes == plain.plan.memory().arena_bytes
    assert len(names(step)) <= 12
