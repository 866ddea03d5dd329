"""A linear model, three batches, and the Trainer of them."""

import numpy as np

import weft
import weft.nn as nn
from weft.train import Trainer

X = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
Y = X.sum(1, keepdims=True)
BATCHES = [(X[k : k + 4], Y[k : k + 4]) for k in (0, 4, 8)]


def make(device, model=None, loss=None, optimizer=None, **options):
    weft.manual_seed(0)
    model = model or nn.Linear(2, 1)
    optimizer = optimizer or weft.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, loss or nn.MSELoss(), optimizer, device=device, **options)
