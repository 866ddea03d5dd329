"""The GPU cases in PyTorch, in one of the modes of `torch_modes.py`. TF32 is off everywhere, as it is in Weft."""

from __future__ import annotations

import numpy as np
import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F

import in_torch
from gpt import Gpt
from gpt_torch import GptRunner
from gpu_cases import Case, Copy, Iterations, Product, Rows, Update
from gpu_common import OPERATIONS
from torch_modes import Mode


class StepRunner:
    """A step without state; what it returns stays alive until the next one."""

    def __init__(self, step, mode: Mode):
        self.step = mode.captured(step)

    def reset(self) -> None:
        """There is no state."""

    def run(self, steps: int):
        for _ in range(steps):
            result = None
            result = self.step()
        return result

    def values(self, result) -> list[float]:
        parts = result if isinstance(result, tuple) else (result,)
        return [part.detach().float().abs().mean().item() for part in parts]

    def memory(self) -> int:
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def rows(case: Rows, mode: Mode) -> StepRunner:
    x, gradient, weight, bias, classes = case.arrays()
    dtype = getattr(torch, case.dtype)
    again = torch.arange(case.rows) % len(x)
    x, gradient = (torch.tensor(block).to(dtype)[again] for block in (x, gradient))
    leaves = [x, *(torch.tensor(array).to(dtype) for array in (weight, bias))]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    classes = torch.tensor(classes)
    function, places = OPERATIONS[case.operation]
    used = [leaves[place] for place in places]
    forward = mode.compiled(lambda *tensors: function(F, *tensors))
    upstream = None if case.operation == "cross_entropy" else gradient
    if case.part == "backward":
        out = forward(*leaves, classes)
        return StepRunner(lambda: torch.autograd.grad(out, used, upstream, retain_graph=True), mode)

    def step():
        out = forward(*leaves, classes)
        return out if case.part == "forward" else (out.detach(), *torch.autograd.grad(out, used, upstream))

    return StepRunner(step, mode)


def product(case: Product, mode: Mode) -> StepRunner:
    left, right = (torch.tensor(array).bfloat16() for array in case.arrays())
    form = mode.compiled({"nn": lambda a, b: a @ b, "nt": F.linear, "tn": lambda a, b: a.T @ b}[case.form])
    return StepRunner(lambda: form(left, right), mode)


class UpdateRunner(StepRunner):
    """Fused AdamW; compiled, the foreach form that the compiler sees into."""

    def __init__(self, case: Update, mode: Mode):
        values, gradients = (torch.tensor(array) for array in case.arrays())
        self.parameters, at = [], 0
        for shape in case.gpt.shapes().values():
            size = int(np.prod(shape))
            self.parameters.append(values[at : at + size].reshape(shape).clone().requires_grad_())
            self.parameters[-1].grad = gradients[at : at + size].reshape(shape).clone()
            at += size
        initial = [parameter.detach().clone() for parameter in self.parameters] if mode.graph else []
        options = {"fused": True} if mode.compile is None else {"foreach": True}
        on_gpu = self.parameters[0].is_cuda
        optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, capturable=on_gpu, **options)

        def restore() -> None:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, initial, strict=True):
                    parameter.copy_(value)
                for state in optimizer.state.values():
                    for value in state.values():
                        value.zero_()

        update = mode.compiled(optimizer.step)

        def step() -> torch.Tensor:
            update()
            return self.parameters[0]

        self.step = mode.captured(step, restore)


def make(case: Case, mode: Mode):
    match case:
        case Copy():
            source, target = (torch.ones(case.nbytes // 4) for _ in range(2))
            return StepRunner(lambda: target.copy_(source), mode)
        case Rows():
            return rows(case, mode)
        case Product():
            return product(case, mode)
        case Update():
            return UpdateRunner(case, mode)
        case Iterations():
            start = torch.tensor(case.array())

            def scaled():
                x = start
                for _ in range(case.count):
                    x = x * case.factor
                return x

            return StepRunner(scaled, mode)
        case Gpt():
            return GptRunner(case, mode)
    return in_torch.TrainingRunner(case, mode)


def prepare(device: str) -> str:
    if device != "cpu":
        torch.set_default_device(device)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    functorch_config.donated_buffer = False  # so that a backward pass can run again
    return torch.__version__


def describe() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    """Give memory and compiled code back, for the next case and the other frameworks."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
