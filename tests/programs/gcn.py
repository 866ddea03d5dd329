"""A graph convolutional network (Kipf & Welling 2017) with message passing written by hand."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter

NODES, FEATURES, CLASSES = 30, 7, 3


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features, bias=True):
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(torch.empty(in_features, out_features))
        if bias:
            self.bias = Parameter(torch.empty(out_features))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        if self.bias is not None:
            self.bias.data.uniform_(-stdv, stdv)

    def forward(self, input, edge_index, norm):
        support = torch.mm(input, self.weight)
        source, target = edge_index[0], edge_index[1]
        messages = support.index_select(0, source) * norm.unsqueeze(-1)
        output = torch.zeros_like(support).index_add(0, target, messages)
        if self.bias is not None:
            return output + self.bias
        return output

    def __repr__(self):
        return self.__class__.__name__ + " (" + str(self.in_features) + " -> " + str(self.out_features) + ")"


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, edge_index, norm):
        x = F.relu(self.gc1(x, edge_index, norm))
        x = F.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, edge_index, norm)
        return F.log_softmax(x, dim=1)


def load_graph():
    rng = np.random.RandomState(0)
    features = torch.tensor(rng.randn(NODES, FEATURES))
    labels = torch.tensor(rng.randint(0, CLASSES, NODES))
    edges = torch.tensor(rng.randint(0, NODES, (2, 80)))
    loops = torch.arange(NODES).unsqueeze(0).repeat(2, 1)
    edge_index = torch.cat([edges, loops], dim=1)
    degree = torch.zeros(NODES, dtype=torch.float64)
    degree = degree.scatter_add(0, edge_index[1], torch.ones(edge_index.size(1), dtype=torch.float64))
    norm = degree.pow(-0.5)
    return features, labels, edge_index, norm[edge_index[0]] * norm[edge_index[1]]


def make_model():
    torch.manual_seed(42)
    return GCN(FEATURES, 8, CLASSES, dropout=0.0).double()


def accuracy(output, labels):
    preds = output.max(1)[1].type_as(labels)
    correct = preds.eq(labels).double()
    return correct.sum() / len(labels)


def train(model, steps):
    features, labels, edge_index, norm = load_graph()
    idx_train = torch.arange(20)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        output = model(features, edge_index, norm)
        loss_train = F.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        optimizer.step()
        losses.append(loss_train.item())
    model.eval()
    losses.append(accuracy(model(features, edge_index, norm), labels).item())
    return losses
