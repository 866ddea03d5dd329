"""Every record on every device: forward and gradient against torch, gradients against finite differences."""

import importlib.util
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch

import weft
from tests.backend.random_checks import FUZZ
from tests.quick_code import quick_code
from tests.records import (
    NARROW_TOLERANCE,
    RECORDS,
    Inputs,
    Record,
    Sample,
    extra_dtypes,
    flat,
    samples_for,
    to_torch,
)  # fmt: skip
from tests.records.cases import weights
from weft.graph.spec import check

torch.set_num_threads(1)

HAS_CPU = importlib.util.find_spec("weft.backends.cpu.backend") is not None
DEVICES = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.skipif(not HAS_CPU, reason="the CPU backend is not in the tree yet")),
]
DIFFERENTIABLE = [record for record in RECORDS if record.differentiable]


def by_name(records: list[Record]) -> pytest.MarkDecorator:
    names = [record.name for record in records]
    assert len(set(names)) == len(names), "two records have one name"
    return pytest.mark.parametrize("record", records, ids=names)


def compare(ours: weft.Tensor, theirs: torch.Tensor, record: Record, what: str, slack: int = 1) -> None:
    """Shape and dtype must be equal; values within the record's tolerance (exactly, if not floats), or `slack` times
    that for 16-bit floats."""
    dtype = ours.dtype
    assert ours.shape == tuple(theirs.shape), what
    assert dtype.name == str(theirs.dtype).removeprefix("torch."), what
    expected = (theirs.detach().float() if dtype.is_16_bit else theirs.detach()).numpy()
    actual = (ours.float() if dtype.is_16_bit else ours).numpy()
    if dtype.is_floating_point:
        rtol, atol = {**NARROW_TOLERANCE, **record.tolerance}[dtype.name]
        rtol, atol = (rtol * slack, atol * slack) if dtype.is_16_bit else (rtol, atol)
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)


def torch_results(record: Record, sample: Sample, inputs: Inputs, dtype: str) -> list[torch.Tensor]:
    """What torch computes; with the unsigned dtypes that it hardly supports, in int64 and cast."""
    if dtype not in ("uint16", "uint32", "uint64"):
        return flat(record.torch_fn(*inputs.torch_args, **sample.kwargs))
    unsigned = getattr(torch, dtype)

    def cast(arg, source, target):
        if isinstance(arg, list):
            return [cast(one, source, target) for one in arg]
        return arg.to(target) if isinstance(arg, torch.Tensor) and arg.dtype is source else arg

    args = [cast(arg, unsigned, torch.int64) for arg in inputs.torch_args]
    results = flat(record.torch_fn(*args, **sample.kwargs))
    ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
    # the same op on int64 says nothing about its result's dtype here: int64 where counted or summed, else unsigned
    return [
        cast(two, torch.int64, unsigned) if one.dtype.name == dtype else two
        for one, two in zip(ours, results, strict=True)
    ]


def samples_on(device: str, record: Record, dtype: str) -> list[Sample]:
    """All samples in the record's first dtype, and on the reference, which says whether values are right. In the others
    of its dtypes the first and the last on a device that compiles: shapes and layouts, which further samples add, are
    those of the first dtype. `make fuzz` runs them all."""
    samples = samples_for(record, dtype)
    is_other = dtype in record.dtypes[1:] and device != "reference" and not FUZZ
    return samples[:1] + samples[1:][-1:] if is_other else samples


def code_for(record: Record, what: str, device: str) -> AbstractContextManager[None]:
    """LLVM optimises for results in the record's first dtype; kernels of others, and of gradients, have the same bits
    without (test_quick_code). `make fuzz` has all as users have them."""
    is_quick = device == "cpu" and what != record.dtypes[0] and not FUZZ
    return quick_code() if is_quick else nullcontext()


@pytest.mark.backend
@pytest.mark.parametrize("device", DEVICES)
@by_name(RECORDS)
def test_forward(record: Record, device: str) -> None:
    with weft.device(device):
        for dtype in (*record.dtypes, *extra_dtypes(record)):
            for sample in samples_on(device, record, dtype):
                inputs = Inputs(sample, dtype)
                ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
                theirs = torch_results(record, sample, inputs, dtype)
                check([out.node for out in ours])
                assert len(ours) == len(theirs)
                with code_for(record, dtype, device):
                    for one, two in zip(ours, theirs, strict=True):
                        compare(one, two, record, f"{record.name} {sample} {dtype}")


def widened(arg):
    """16-bit floats as float32, of which torch's gradients are the better ones: it rounds on the way more than once."""
    if isinstance(arg, list):
        return [widened(one) for one in arg]
    return arg.float() if isinstance(arg, torch.Tensor) and arg.dtype in (torch.float16, torch.bfloat16) else arg


@pytest.mark.backend
@pytest.mark.parametrize("device", DEVICES)
@by_name(DIFFERENTIABLE)
def test_gradient(record: Record, device: str) -> None:
    with weft.device(device), code_for(record, "gradient", device):
        floats = {"float16", "bfloat16", "float32", "float64"}
        for dtype in sorted({*record.dtypes, *extra_dtypes(record)} & floats):
            for sample in samples_on(device, record, dtype):
                inputs = Inputs(sample, dtype, requires_grad=True)
                ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
                theirs = flat(record.torch_fn(*[widened(arg) for arg in inputs.torch_args], **sample.kwargs))
                for one, two in zip(ours, theirs, strict=True):
                    if one.dtype.is_floating_point and two.requires_grad:
                        seed = weights(one.shape, one.dtype)
                        one.backward(weft.tensor(seed), retain_graph=True)
                        two.backward(to_torch(seed).to(two.dtype), retain_graph=True)
                for one, two in zip(inputs.weft_leaves, inputs.torch_leaves, strict=True):
                    assert (one.grad is None) == (two.grad is None) or two.grad.abs().sum() == 0, (
                        f"{record.name} {sample}"
                    )
                    if one.grad is not None:
                        check([one.grad.node])
                        compare(one.grad, two.grad, record, f"{record.name} {sample} {dtype}", slack=2)


def is_smooth(sample: Sample) -> bool:
    """Whether finite differences make sense: random inputs, not chosen kinks, ties and infinities; and few of them."""
    tensors = [
        arg for part in sample.args for arg in (part if isinstance(part, list) else [part]) if hasattr(arg, "layout")
    ]
    size = sum(int(np.prod(tensor.shape)) for tensor in tensors)
    return all(tensor.values is None or tensor.dtype for tensor in tensors) and 0 < size <= 64


@pytest.mark.unit
@by_name([record for record in DIFFERENTIABLE if record.finite_differences])
def test_finite_differences(record: Record) -> None:
    with weft.device("reference"):
        # One: that the gradient is torch's, in float64 too, is seen for all samples above.
        for sample in [sample for sample in record.samples if is_smooth(sample)][:1]:
            inputs = Inputs(sample, "float64")
            floats = [arg for arg in inputs.weft_args if isinstance(arg, (weft.Tensor, list))]
            if not any(isinstance(arg, list) or arg.dtype is weft.float64 for arg in floats):
                continue

            def call(*tensors, sample=sample, args=inputs.weft_args):
                replaced = iter(tensors)
                full = [next(replaced) if isinstance(arg, (weft.Tensor, list)) else arg for arg in args]
                return record.fn(*full, **sample.kwargs)

            assert weft.testing.gradcheck(call, floats, rtol=1e-4, atol=1e-6)
