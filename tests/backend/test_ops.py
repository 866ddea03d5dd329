"""Every record on every device: forward and gradient against torch, gradients against finite differences."""

import importlib.util

import numpy as np
import pytest
import torch

import weft
from tests.records import RECORDS, Inputs, Record, Sample, flat
from weft.graph.spec import check

torch.set_num_threads(1)

HAS_CPU = importlib.util.find_spec("weft.backends.cpu") is not None
DEVICES = [
    "reference",
    pytest.param("cpu", marks=pytest.mark.skipif(not HAS_CPU, reason="the CPU backend is not in the tree yet")),
]
DIFFERENTIABLE = [record for record in RECORDS if record.differentiable]


def by_name(records: list[Record]) -> pytest.MarkDecorator:
    names = [record.name for record in records]
    assert len(set(names)) == len(names), "two records have one name"
    return pytest.mark.parametrize("record", records, ids=names)


def compare(ours: weft.Tensor, theirs: torch.Tensor, record: Record, what: str) -> None:
    """Shape and dtype must be equal; values within the record's tolerance (exactly, if not floats)."""
    expected = theirs.detach().numpy()
    actual = ours.numpy()
    assert actual.shape == expected.shape, what
    assert actual.dtype == expected.dtype, what
    if actual.dtype.kind == "f":
        rtol, atol = record.tolerance[actual.dtype.name]
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol, err_msg=what)
    else:
        np.testing.assert_array_equal(actual, expected, err_msg=what)


@pytest.mark.backend
@pytest.mark.parametrize("device", DEVICES)
@by_name(RECORDS)
def test_forward(record: Record, device: str) -> None:
    with weft.device(device):
        for sample in record.samples:
            for dtype in record.dtypes:
                inputs = Inputs(sample, dtype)
                ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
                theirs = flat(record.torch_fn(*inputs.torch_args, **sample.kwargs))
                check([out.node for out in ours])
                assert len(ours) == len(theirs)
                for one, two in zip(ours, theirs, strict=True):
                    compare(one, two, record, f"{record.name} {sample} {dtype}")


def weights(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Fixed numbers, none zero, by which results are weighed into one scalar."""
    return (1.0 + np.cos(1.0 + np.arange(int(np.prod(shape)), dtype=np.float64)) / 2).reshape(shape).astype(dtype)


@pytest.mark.backend
@pytest.mark.parametrize("device", DEVICES)
@by_name(DIFFERENTIABLE)
def test_gradient(record: Record, device: str) -> None:
    with weft.device(device):
        for sample in record.samples:
            for dtype in set(record.dtypes) & {"float32", "float64"}:
                inputs = Inputs(sample, dtype, requires_grad=True)
                ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
                theirs = flat(record.torch_fn(*inputs.torch_args, **sample.kwargs))
                for one, two in zip(ours, theirs, strict=True):
                    if one.dtype.is_floating_point and two.requires_grad:
                        seed = weights(one.shape, one.numpy().dtype.name)
                        one.backward(weft.tensor(seed), retain_graph=True)
                        two.backward(torch.tensor(seed), retain_graph=True)
                for one, two in zip(inputs.weft_leaves, inputs.torch_leaves, strict=True):
                    assert (one.grad is None) == (two.grad is None) or two.grad.abs().sum() == 0, (
                        f"{record.name} {sample}"
                    )
                    if one.grad is not None:
                        check([one.grad.node])
                        compare(one.grad, two.grad, record, f"{record.name} {sample} {dtype}")


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
        for sample in [sample for sample in record.samples if is_smooth(sample)][:4]:
            inputs = Inputs(sample, "float64")
            floats = [arg for arg in inputs.weft_args if isinstance(arg, (weft.Tensor, list))]
            if not any(isinstance(arg, list) or arg.dtype is weft.float64 for arg in floats):
                continue

            def call(*tensors, sample=sample, args=inputs.weft_args):
                replaced = iter(tensors)
                full = [next(replaced) if isinstance(arg, (weft.Tensor, list)) else arg for arg in args]
                return record.fn(*full, **sample.kwargs)

            assert weft.testing.gradcheck(call, floats, rtol=1e-4, atol=1e-6)
