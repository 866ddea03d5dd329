"""The cases in PyTorch, the way its documentation writes them: fused or foreach Adam, gradients set to None,
`torch.compile` in its default mode around the whole step."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from cases import Chain, Training

ACTIVATIONS = {"tanh": torch.tanh, "relu": F.relu}


class TrainingRunner:
    """Holds parameters and optimizer; `reset` puts both back in place, so that a compiled step stays valid."""

    def __init__(self, case: Training, compiled: bool):
        arrays, x, y = case.arrays()
        self.initial = [torch.tensor(array) for array in arrays]
        parameters = [value.clone().requires_grad_() for value in self.initial]
        self.parameters = parameters
        self.x, self.y = torch.tensor(x), torch.tensor(y)
        # The quicker of the two on the CPU: the fused kernel when eager, foreach when the compiler sees into it.
        options = {"foreach": True} if compiled else {"fused": True}
        optimizer = torch.optim.Adam(parameters, lr=case.learning_rate, **options)
        self.optimizer = optimizer
        activation = ACTIVATIONS[case.hidden]
        measure = F.cross_entropy if case.loss == "cross_entropy" else F.mse_loss
        last = len(parameters) // 2 - 1

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for layer in range(last + 1):
                x = F.linear(x, parameters[2 * layer], parameters[2 * layer + 1])
                if layer != last:
                    x = activation(x)
            loss = measure(x, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss

        self.step = torch.compile(step) if compiled else step

    def reset(self) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.initial, strict=True):
                parameter.copy_(value)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def run(self, steps: int) -> torch.Tensor:
        step, x, y = self.step, self.x, self.y
        for _ in range(steps):
            loss = step(x, y)
        return loss

    def values(self, result: torch.Tensor) -> list[float]:
        return [result.item()]


class ChainRunner:
    """Forward, then the gradient of x (and weight and bias where used) for the given upstream gradient."""

    def __init__(self, case: Chain, compiled: bool):
        arrays, upstream = case.arrays()
        self.leaves = [torch.tensor(array).requires_grad_() for array in arrays]
        self.upstream = torch.tensor(upstream)
        used = self.leaves if case.operations != ("softmax",) else self.leaves[:1]

        def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            for name in case.operations:
                if name == "softmax":
                    x = torch.softmax(x, dim=-1)
                elif name == "layer_norm":
                    x = F.layer_norm(x, (case.columns,), weight, bias)
                elif name == "gelu":
                    x = F.gelu(x)
                else:
                    x = F.gelu(x + bias) * weight
            return x

        forward = torch.compile(function) if compiled else function

        def step() -> tuple[torch.Tensor, ...]:
            out = forward(*self.leaves)
            return out, *torch.autograd.grad(out, used, self.upstream)

        self.step = step

    def run(self, steps: int) -> tuple[torch.Tensor, ...]:
        for _ in range(steps):
            result = None  # given up first, so that its memory can be used again
            result = self.step()
        return result

    def reset(self) -> None:
        pass

    def values(self, result: tuple[torch.Tensor, ...]) -> list[float]:
        return [float(np.abs(part.detach().numpy()).mean(dtype=np.float64)) for part in result]


def prepare(threads: int) -> str:
    torch.set_num_threads(threads)
    return torch.__version__


def make(case: Training | Chain) -> TrainingRunner | ChainRunner:
    return (TrainingRunner if isinstance(case, Training) else ChainRunner)(case, compiled=False)


def make_compiled(case: Training | Chain) -> TrainingRunner | ChainRunner:
    return (TrainingRunner if isinstance(case, Training) else ChainRunner)(case, compiled=True)


def finish(result: object) -> None:
    """Nothing runs behind the caller's back on the CPU."""
