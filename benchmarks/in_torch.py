"""The cases in PyTorch, the way its documentation writes them: fused or foreach Adam, gradients set to None,
`torch.compile` in its default mode around the whole step."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from cases import Chain, Training
from networks import Network
from networks_common import dense
from networks_torch import LOSSES, PREPARE
from torch_modes import Mode


def tensors(*arrays: np.ndarray):
    return [torch.tensor(array) for array in arrays]


class TrainingRunner:
    """Holds parameters and optimizer; `reset` puts both back in place, so that a compiled step stays valid."""

    def __init__(self, case: Training | Network, mode: Mode):
        arrays, inputs = case.arrays()
        self.initial = {name: torch.tensor(array) for name, array in arrays.items()}
        parameters = {name: value.clone().requires_grad_() for name, value in self.initial.items()}
        self.parameters = parameters
        self.inputs = PREPARE.get(case.name, tensors)(*inputs)
        # The quicker of the two: the fused kernel when eager, foreach when the compiler sees into it.
        options = {"fused": True} if mode.compile is None else {"foreach": True}
        on_gpu = next(iter(parameters.values())).is_cuda  # where the count of steps may live on the device
        optimizer = torch.optim.Adam(list(parameters.values()), lr=case.learning_rate, capturable=on_gpu, **options)
        self.optimizer = optimizer
        measure = LOSSES[case.name] if isinstance(case, Network) else dense(case, F)

        def step(*inputs: torch.Tensor) -> torch.Tensor:
            loss = measure(parameters, *inputs)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        compiled = mode.compiled(step)
        self.step = mode.captured(lambda: compiled(*self.inputs))

    def reset(self) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(self.initial[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def run(self, steps: int) -> torch.Tensor:
        for _ in range(steps):
            loss = self.step()
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


def make(case: Training | Network | Chain) -> TrainingRunner | ChainRunner:
    return ChainRunner(case, compiled=False) if isinstance(case, Chain) else TrainingRunner(case, Mode())


def make_compiled(case: Training | Network | Chain) -> TrainingRunner | ChainRunner:
    return ChainRunner(case, compiled=True) if isinstance(case, Chain) else TrainingRunner(case, Mode("default"))


def finish(result: object) -> None:
    """Nothing runs behind the caller's back on the CPU."""
