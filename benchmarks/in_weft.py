"""The cases in Weft: `weft.compile` around the whole step."""

from __future__ import annotations

import numpy as np

import weft
import weft.nn.functional as F
from cases import Chain, Training
from networks import Network
from networks_common import dense
from networks_weft import LOSSES, PREPARE


def tensors(*arrays: np.ndarray):
    return [weft.tensor(array) for array in arrays]


class TrainingRunner:
    """`reset` makes fresh parameters, optimizer and compiled step: the plan comes from memory, its trace is untimed."""

    def __init__(self, case: Training | Network):
        self.case = case
        self.arrays, inputs = case.arrays()
        self.inputs = PREPARE.get(case.name, tensors)(*inputs)
        self.loss = LOSSES[case.name] if isinstance(case, Network) else dense(case, F)

    def reset(self) -> None:
        parameters = {name: weft.tensor(array, requires_grad=True) for name, array in self.arrays.items()}
        optimizer = weft.optim.Adam(list(parameters.values()), lr=self.case.learning_rate)

        @weft.compile
        def step(*inputs):
            loss = self.loss(parameters, *inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.step = step

    def run(self, steps: int):
        step, inputs = self.step, self.inputs
        for _ in range(steps):
            loss = step(*inputs)
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


def make(case: Training | Network | Chain) -> TrainingRunner | ChainRunner:
    return ChainRunner(case) if isinstance(case, Chain) else TrainingRunner(case)


def finish(result: object) -> None:
    """A replay on the CPU returns when it is done."""
