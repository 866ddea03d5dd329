"""The networks of `networks.py` in Weft: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import weft
import weft.nn.functional as F
from networks import HEADS, HIDDEN, LAYERS, NODES, RECURRENT_LAYERS, RESNET_STAGES, WIDTH


def cnn(p, x, y):
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv1"], p["bias1"], padding=1)), 2)
    x = F.max_pool2d(F.relu(F.conv2d(x, p["conv2"], p["bias2"], padding=1)), 2)
    return F.cross_entropy(F.linear(x.flatten(1), p["linear"], p["bias3"]), y)


def conv3d(p, x, y):
    x = F.relu(F.conv3d(x, p["conv1"], p["bias1"], padding=1))
    x = F.relu(F.conv3d(x, p["conv2"], p["bias2"], padding=1))
    return F.cross_entropy(F.linear(x.mean((2, 3, 4)), p["linear"], p["bias3"]), y)


def resnet18(p, x, y):
    def unit(name, x, stride=1):
        size = p[f"{name}.conv"].shape[-1]
        x = F.conv2d(x, p[f"{name}.conv"], stride=stride, padding=size // 2)
        return F.batch_norm(x, None, None, p[f"{name}.scale"], p[f"{name}.shift"], training=True)

    x = F.relu(unit("stem", x))
    for number, (_, stride) in enumerate(RESNET_STAGES):
        name = f"block{number}"
        skip = x if stride == 1 else unit(f"{name}.skip", x, stride)
        x = F.relu(unit(f"{name}.2", F.relu(unit(f"{name}.1", x, stride))) + skip)
    return F.cross_entropy(F.linear(x.mean((2, 3)), p["linear"], p["bias"]), y)


def transformer(p, x, y):
    batch, length = x.shape

    def norm(name, x):
        return F.layer_norm(x, (WIDTH,), p[name], p[f"{name}.bias"])

    def linear(name, x):
        return F.linear(x, p[name], p[f"{name}.bias"])

    x = F.embedding(x, p["tokens"]) + p["positions"]
    for layer in range(LAYERS):
        qkv = linear(f"{layer}.qkv", norm(f"{layer}.norm1", x)).reshape(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = (qkv[:, :, part].transpose(1, 2) for part in range(3))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + linear(f"{layer}.out", seen)
        x = x + linear(f"{layer}.down", F.gelu(linear(f"{layer}.up", norm(f"{layer}.norm2", x))))
    logits = F.linear(norm("norm", x), p["head"])
    return F.cross_entropy(logits.reshape(batch * length, -1), y.reshape(-1))


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
LOSSES = {
    "cnn": cnn, "conv3d": conv3d, "resnet18": resnet18, "transformer": transformer, "lstm": lstm, "gcn": gcn, "gat": gat
}  # fmt: skip
