"""The cases of a record: every sample in every dtype, forward and, where there is one, the gradient.

`results` computes a case on the default device, so that one device can be compared with another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import weft
from tests.records.record import NARROW, Inputs, Record, Sample, extra_dtypes, flat, samples_for

DIFFERENTIATED = (*NARROW, "float32", "float64")


@dataclass(frozen=True)
class Case:
    """One call of an operation; with `gradient`, the gradients in its inputs are what is asked for."""

    record: Record
    sample: Sample
    dtype: str
    gradient: bool

    def __str__(self) -> str:
        return f"{'gradient of ' * self.gradient}{self.record.name} {self.sample} {self.dtype}"


def cases(record: Record) -> Iterator[Case]:
    """All cases of a record."""
    for dtype in (*record.dtypes, *extra_dtypes(record)):
        for sample in samples_for(record, dtype):
            yield Case(record, sample, dtype, False)
            if record.differentiable and dtype in DIFFERENTIATED:
                yield Case(record, sample, dtype, True)


def flushes_subnormals(device: weft.device) -> bool:
    """Whether numbers below the normal range of float32 are 0 there, as WGSL allows."""
    return not (weft.tensor(1e-40, device=device) > 0).item()


def has_subnormals(case: Case) -> bool:
    """Whether an input has numbers below the normal range of float32, in which 16 bits are computed, or of float64."""
    found = [
        array.astype(np.float64) for _, array in Inputs(case.sample, case.dtype).arrays if array.dtype.kind in "fV"
    ]
    least = np.finfo(np.float64 if case.dtype == "float64" else np.float32).smallest_normal
    return any(((array != 0) & (np.abs(array) < least)).any() for array in found)


def weights(shape: tuple[int, ...], dtype: weft.base.dtypes.DType) -> np.ndarray:
    """Fixed numbers, none zero, by which results are weighed into one scalar."""
    return (1.0 + np.cos(1.0 + np.arange(int(np.prod(shape)), dtype=np.float64)) / 2).reshape(shape).astype(dtype.numpy)


def results(case: Case) -> list[weft.Tensor]:
    """What a case computes on the default device, not evaluated yet."""
    inputs = Inputs(case.sample, case.dtype, requires_grad=case.gradient)
    return _outcome(case, inputs, flat(case.record.fn(*inputs.weft_args, **case.sample.kwargs)))


def compiled(case: Case) -> Callable[[], list[weft.Tensor]]:
    """The case as a compiled function of no arguments: the inputs are captured."""
    inputs = Inputs(case.sample, case.dtype, requires_grad=case.gradient)

    def call() -> list[weft.Tensor]:
        args = inputs.arguments(inputs.weft_tensors)
        return _outcome(case, inputs, flat(case.record.fn(*args, **case.sample.kwargs)))

    return weft.compile(call)


def _outcome(case: Case, inputs: Inputs, outputs: list[weft.Tensor]) -> list[weft.Tensor]:
    if not case.gradient:
        return outputs
    for output in outputs:
        if output.dtype.is_floating_point and output.requires_grad:
            output.backward(weft.tensor(weights(output.shape, output.dtype)), retain_graph=True)
    return [leaf.grad for leaf in inputs.weft_leaves if leaf.grad is not None]
