"""The networks of `networks.py` in Weft: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import weft
import weft.nn.functional as F
from networks import HIDDEN, NODES, RECURRENT_LAYERS
from networks_common import losses


def lstm(p, x, y):
    x = F.embedding(x, p["tokens"])
    first = weft.zeros(x.shape[1], HIDDEN)
    for layer in range(RECURRENT_LAYERS):
        weight = p[f"{layer}.hidden"]

        def step(state, x, weight=weight):
            h, c = state
            i, f, g, o = (x + h @ weight.T).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            return (h, c), h

        x = F.linear(x, p[f"{layer}.input"], p[f"{layer}.input.bias"] + p[f"{layer}.hidden.bias"])
        _, x = weft.loop(step, (first, first), x)
    return F.cross_entropy(F.linear(x.reshape(-1, HIDDEN), p["head"], p["head.bias"]), y.reshape(-1))


def gcn(p, graph, weights, x, y):
    x = F.relu(weft.aggregate(x @ p["weight0"], graph, weights) + p["bias0"])
    return F.cross_entropy(weft.aggregate(x @ p["weight1"], graph, weights) + p["bias1"], y)


def gat(p, graph, x, y):
    def layer(number, x):
        source, target = p[f"source{number}"], p[f"target{number}"]
        x = (x @ p[f"weight{number}"]).reshape(-1, *source.shape)
        scores = graph.sources((x * source).sum(-1)) + graph.targets((x * target).sum(-1))
        shares = graph.softmax(F.leaky_relu(scores, 0.2))
        return weft.aggregate(x, graph, shares).flatten(1) + p[f"bias{number}"]

    return F.cross_entropy(layer(1, F.elu(layer(0, x))), y)


def prepare_gcn(edges, weights, x, y):
    graph = weft.adjacency(edges, NODES)
    return graph, weft.tensor(weights)[graph.edge], weft.tensor(x), weft.tensor(y)


def prepare_gat(edges, x, y):
    return weft.adjacency(edges, NODES), weft.tensor(x), weft.tensor(y)


PREPARE = {"gcn": prepare_gcn, "gat": prepare_gat}  # inputs that are more than tensors of the arrays
LOSSES = losses(F) | {"lstm": lstm, "gcn": gcn, "gat": gat}
