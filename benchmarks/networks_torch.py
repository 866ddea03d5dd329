"""The networks of `networks.py` in PyTorch: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

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
    first = torch.zeros(RECURRENT_LAYERS, x.shape[1], HIDDEN)
    names = ("input", "hidden", "input.bias", "hidden.bias")
    weights = [p[f"{layer}.{name}"] for layer in range(RECURRENT_LAYERS) for name in names]
    # What nn.LSTM calls, with the weights given: biases, layers, dropout, training, bidirectional, batch first.
    x = torch.lstm(x, (first, first), weights, True, RECURRENT_LAYERS, 0.0, True, False, False)[0]
    return F.cross_entropy(F.linear(x.reshape(-1, HIDDEN), p["head"], p["head.bias"]), y.reshape(-1))


class Product(torch.autograd.Function):
    """A sparse product with the transposed matrix ready made: torch's own gradient converts it anew in every step."""

    @staticmethod
    def forward(ctx, matrix, transposed, x):
        ctx.transposed = transposed
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx, g):
        return None, None, torch.sparse.mm(ctx.transposed, g)


def gcn(p, matrix, transposed, x, y):
    x = F.relu(Product.apply(matrix, transposed, x @ p["weight0"]) + p["bias0"])
    return F.cross_entropy(Product.apply(matrix, transposed, x @ p["weight1"]) + p["bias1"], y)


def gat(p, edges, x, y):
    sources, targets = edges

    def softmax(scores):  # as torch_geometric.utils.softmax
        index = targets[:, None].expand(-1, scores.shape[1])
        empty = torch.full((NODES, scores.shape[1]), float("-inf"))
        largest = empty.scatter_reduce(0, index, scores.detach(), "amax")
        raised = (scores - largest.index_select(0, targets)).exp()
        total = torch.zeros(NODES, scores.shape[1]).scatter_add(0, index, raised) + 1e-16
        return raised / total.index_select(0, targets)

    def layer(number, x):
        source, target = p[f"source{number}"], p[f"target{number}"]
        x = (x @ p[f"weight{number}"]).view(-1, *source.shape)
        scores = (x * source).sum(-1).index_select(0, sources) + (x * target).sum(-1).index_select(0, targets)
        shares = softmax(F.leaky_relu(scores, 0.2))
        messages = (shares[:, :, None] * x.index_select(0, sources)).flatten(1)
        return torch.zeros(NODES, messages.shape[1]).index_add(0, targets, messages) + p[f"bias{number}"]

    return F.cross_entropy(layer(1, F.elu(layer(0, x))), y)


def prepare_gcn(edges, weights, x, y):
    edges, weights = torch.tensor(edges), torch.tensor(weights)
    matrices = [
        torch.sparse_coo_tensor(index, weights, (NODES, NODES)).coalesce().to_sparse_csr()
        for index in (edges.flip(0), edges)
    ]
    return *matrices, torch.tensor(x), torch.tensor(y)


PREPARE = {"gcn": prepare_gcn}  # inputs that are more than tensors of the arrays
LOSSES = {
    "cnn": cnn, "conv3d": conv3d, "resnet18": resnet18, "transformer": transformer, "lstm": lstm, "gcn": gcn, "gat": gat
}  # fmt: skip
