"""The cases in Weft: `weft.compile` around the whole step."""

from __future__ import annotations

import numpy as np

import weft
import weft.nn.functional as F
from cases import Chain, Training

ACTIVATIONS = {"tanh": weft.tanh, "relu": F.relu}


class TrainingRunner:
    """`reset` makes fresh parameters, optimizer and compiled step: the plan comes from memory, its trace is untimed."""

    def __init__(self, case: Training):
        self.case = case
        self.arrays, x, y = case.arrays()
        self.x, self.y = weft.tensor(x), weft.tensor(y)

    def reset(self) -> None:
        case = self.case
        parameters = [weft.tensor(array, requires_grad=True) for array in self.arrays]
        optimizer = weft.optim.Adam(parameters, lr=case.learning_rate)
        activation = ACTIVATIONS[case.hidden]
        measure = F.cross_entropy if case.loss == "cross_entropy" else F.mse_loss
        last = len(parameters) // 2 - 1

        @weft.compile
        def step(x, y):
            for layer in range(last + 1):
                x = F.linear(x, parameters[2 * layer], parameters[2 * layer + 1])
                if layer != last:
                    x = activation(x)
            loss = measure(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.step = step

    def run(self, steps: int):
        step, x, y = self.step, self.x, self.y
        for _ in range(steps):
            loss = step(x, y)
        return loss

    def values(self, result) -> list[float]:
        return [result.item()]


class ChainRunner:
    def __init__(self, case: Chain):
        arrays, upstream = case.arrays()
        leaves = [weft.tensor(array) for array in arrays]
        upstream = weft.tensor(upstream)
        used = (0,) if case.operations == ("softmax",) else (0, 1, 2)

        def function(x, weight, bias):
            for name in case.operations:
                if name == "softmax":
                    x = F.softmax(x, dim=-1)
                elif name == "layer_norm":
                    x = F.layer_norm(x, (case.columns,), weight, bias)
                elif name == "gelu":
                    x = F.gelu(x)
                else:
                    x = F.gelu(x + bias) * weight
            return x

        def weighted(*leaves):
            out = function(*leaves)
            return (out * upstream).sum(), out  # the gradient of this sum is that of `out` for the given upstream

        differentiate = weft.value_and_grad(weighted, argnums=used, has_aux=True)

        @weft.compile
        def step():
            (_, out), gradients = differentiate(*leaves)
            return out.detach(), *gradients

        self.step = step

    def run(self, steps: int):
        for _ in range(steps):
            result = None  # given up first, so that its memory can be used again
            result = self.step()
        return result

    def reset(self) -> None:
        pass

    def values(self, result) -> list[float]:
        return [float(np.abs(part.numpy()).mean(dtype=np.float64)) for part in result]


def prepare(threads: int) -> str:
    """The thread count came with the environment."""
    return getattr(weft, "__version__", "checkout")


def make(case: Training | Chain) -> TrainingRunner | ChainRunner:
    return (TrainingRunner if isinstance(case, Training) else ChainRunner)(case)


def finish(result: object) -> None:
    """A replay on the CPU returns when it is done."""
