"""What tests of optimizers share: parameters, a loss of them, and steps."""

import numpy as np
import pytest

import weft

SHAPES = [(5, 3), (4,), (), (3, 4)]
BOTH_WAYS = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
OPTIONS = {
    "SGD": {"lr": 0.05, "momentum": 0.9, "dampening": 0.5},
    "NAG": {"lr": 0.05},
    "ASGD": {"lr": 0.05, "lambd": 0.1},
    "Adam": {"lr": 0.05, "amsgrad": True},
    "AdamW": {"lr": 0.05},
    "NAdam": {"lr": 0.05},
    "RAdam": {"lr": 0.05},
    "Adamax": {"lr": 0.05},
    "RMSprop": {"lr": 0.05, "momentum": 0.5, "centered": True},
    "Adagrad": {"lr": 0.05},
    "Adadelta": {"lr": 1.0},
    "Rprop": {"lr": 0.05},
    "Lion": {"lr": 0.05},
    "LARS": {"lr": 0.05, "trust": 0.1, "weight_decay": 0.1},
    "LAMB": {"lr": 0.05},
    "Adafactor": {"lr": 0.05},
    "Muon": {"lr": 0.05},
}  # fmt: skip
EVERY_KIND = pytest.mark.parametrize("kind", OPTIONS)


def arrays(dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.uniform(-1, 1, shape), dtype) for shape in SHAPES]


def leaves(given=None):
    return [weft.tensor(array, requires_grad=True) for array in (arrays() if given is None else given)]


def for_kind(kind, params):
    return [param for param in params if kind != "Muon" or param.ndim == 2]


def loss_of(params, target):
    return sum([((param - (target + 2.0)) ** 2).sum() * (0.25 + 0.1 * k) for k, param in enumerate(params)])


def make(kind, params, **more):
    return getattr(weft.optim, kind)(params, **OPTIONS[kind], **more)


def one_step(params, optimizer, target):
    optimizer.zero_grad()
    loss = loss_of(params, target)
    loss.backward()
    optimizer.step()
    return loss


def stepping(params, optimizer, compiled):
    def step(target):
        return one_step(params, optimizer, target)

    return weft.compile(step) if compiled else step


def assert_same(ours, expected, **tolerance):
    for one, two in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), **(tolerance or {"rtol": 1e-12, "atol": 1e-12}))
