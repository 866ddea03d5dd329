"""The GPU cases in Weft: `weft.compile` around each step."""

from __future__ import annotations

import itertools

import numpy as np

import in_weft
import weft
import weft.nn.functional as F
from gpt import Gpt
from gpt_weft import GptRunner
from gpu_cases import Case, Copy, Iterations, Product, Rows, Update
from gpu_common import OPERATIONS


class StepRunner:
    """A compiled step without state, called with the same tensors every time."""

    def __init__(self, step, *arguments: weft.Tensor):
        weft.eval(*arguments)
        self.step, self.arguments = weft.compile(step), arguments

    def reset(self) -> None:
        """There is no state."""

    def run(self, steps: int):
        for _ in range(steps):
            result = None  # given up first, so that its memory can be used again
            result = self.step(*self.arguments)
        return result

    def values(self, result) -> list[float]:
        parts = result if isinstance(result, tuple) else (result,)
        return [part.float().abs().mean().item() for part in parts]

    def memory(self) -> int:
        return self.step.plan.memory().peak


def rows(case: Rows) -> StepRunner:
    x, gradient, weight, bias, classes = case.arrays()
    dtype = getattr(weft, case.dtype)
    again = weft.tensor(np.arange(case.rows) % len(x))
    whole = [weft.tensor(block).to(dtype)[again] for block in (x, gradient)]
    leaves = [whole[0], *(weft.tensor(array).to(dtype) for array in (weight, bias))]
    function, used = OPERATIONS[case.operation]
    if case.part == "forward":
        return StepRunner(lambda *tensors: function(F, *tensors), *leaves, weft.tensor(classes))

    def weighted(x, weight, bias, classes, gradient):
        out = function(F, x, weight, bias, classes)
        return out if case.operation == "cross_entropy" else (out * gradient).sum(), out

    differentiate = weft.value_and_grad(weighted, argnums=used, has_aux=True)

    def step(*tensors):
        (_, out), gradients = differentiate(*tensors)
        return gradients if case.part == "backward" else (out.detach(), *gradients)

    return StepRunner(step, *leaves, weft.tensor(classes), whole[1])


def product(case: Product) -> StepRunner:
    left, right = (weft.tensor(array).bfloat16() for array in case.arrays())
    form = {"nn": lambda a, b: a @ b, "nt": F.linear, "tn": lambda a, b: a.T @ b}[case.form]
    return StepRunner(form, left, right)


class UpdateRunner:
    """AdamW with gradients that a compiled backward pass left behind."""

    def __init__(self, case: Update):
        values, gradients = case.arrays()
        ends = np.cumsum([int(np.prod(shape)) for shape in case.gpt.shapes().values()])[:-1]
        shapes = list(case.gpt.shapes().values())
        parts = [part.reshape(shape) for part, shape in zip(np.split(values, ends), shapes, strict=True)]
        self.parameters = [weft.tensor(part, requires_grad=True) for part in parts]
        optimizer = weft.optim.AdamW(self.parameters, lr=1e-3)
        bounds = [0, *ends.tolist(), len(gradients)]

        @weft.compile
        def backward(flat):
            parts = [flat[start:stop] for start, stop in itertools.pairwise(bounds)]
            pairs = zip(self.parameters, parts, strict=True)
            sum([(parameter.reshape(-1) * part).sum() for parameter, part in pairs]).backward()

        backward(weft.tensor(gradients))
        self.step = weft.compile(optimizer.step)

    def reset(self) -> None:
        """The moments go on; `values` are those of the first steps."""

    def run(self, steps: int):
        for _ in range(steps):
            self.step()
        return self.parameters[0]

    def values(self, result) -> list[float]:
        return [result.detach().abs().mean().item()]

    def memory(self) -> int:
        return self.step.plan.memory().peak


def make(case: Case):
    match case:
        case Copy():
            return StepRunner(lambda x: -x, weft.ones(case.nbytes // 4))
        case Rows():
            return rows(case)
        case Product():
            return product(case)
        case Update():
            return UpdateRunner(case)
        case Iterations():

            def scaled(x):
                return weft.loop(lambda x, _: (x * case.factor, None), x, length=case.count)[0]

            return StepRunner(scaled, weft.tensor(case.array()))
        case Gpt():
            return GptRunner(case)
    return in_weft.make(case)


def prepare(device: str) -> str:
    """Everything is made on `device` from now on. The version of the framework."""
    weft.set_default_device(device)
    return weft.__version__


def describe() -> str:
    return weft.default_device().description


def finish() -> None:
    weft.default_device().backend.synchronise()


def release() -> None:
    """Results and parameters go with their tensors."""
