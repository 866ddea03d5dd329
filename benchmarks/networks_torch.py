"""The networks of `networks.py` in PyTorch: the loss of each as a function of parameters and inputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from networks import HIDDEN, NODES, RECURRENT_LAYERS
from networks_common import losses


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


def prepare_resnet50(x, y):
    return torch.tensor(x).to(memory_format=torch.channels_last), torch.tensor(y)  # as convolutions like it best


PREPARE = {"gcn": prepare_gcn, "resnet50": prepare_resnet50}  # inputs that are more than tensors of the arrays
LOSSES = losses(F) | {"lstm": lstm, "gcn": gcn, "gat": gat}
