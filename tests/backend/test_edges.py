"""Edges of every record: values without elements, without axes, and with NaN and infinities, against torch.

Samples are changed rather than written: an extent becomes 0 wherever it occurs, all axes go away, or some elements
become special. What torch refuses then is no case; what it computes, we must compute alike.
"""

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import weft
from tests.backend.test_ops import DEVICES, by_name, compare
from tests.records import RECORDS, Inputs, Record, Sample, T, flat
from tests.records.cases import weights

pytestmark = pytest.mark.backend

torch.set_num_threads(1)

FLOATS = [record for record in RECORDS if "float32" in record.dtypes]
# Where torch's own convention is an accident that we do not follow.
OURS = {"bincount": "torch forgets the dtype of empty weights"}
OURS_AT_INFINITY = {
    "div_floor": "floor(a / b) also at infinity, where torch has NaN",
    "floor_divide": "the same",
    "rfloordiv": "the same; 7 // -inf is -0.0",
    "lerp": "start + weight * (end - start), whichever end is nearer",
    "cast_int32": "NaN becomes 0 and what is too large the largest",
    "cast_int64": "the same",
    "gelu": "gelu(inf) is inf, where torch's vector code has NaN",
    "gelu_errors": "the same",
    "conv1d": "zeros of the padding meet infinite weights",
    "conv2d": "the same",
    "conv3d": "the same",
    "conv_transpose2d": "the same",
    "conv_tbc": "the same",
    "depthwise_conv2d": "the same",
    "dilated_conv2d": "the same",
    "searchsorted": "the sequence must be sorted, NaN last",
    "unique_dim": "NaN sorts last",
    "scaled_dot_product_attention": "a query of NaN gives NaN, where torch gives 0",
    "grouped_query_attention": "the same",
    "attention_over_no_keys": "0 over no keys, whatever the query",
    "spmm": "entries that are not there do not meet infinities",
    "batch_norm_training": "an infinite weight multiplies what is normalised; torch's meets the mean first",
    "batch_norm_of_rows": "the same",
    "instance_norm_training": "the same",
    "instance_norm": "the same",
    "group_norm": "the same",
    "sigmoid_focal_loss": "inf for a certain and wrong answer, where torchvision multiplies 0 and infinity",
    "multi_margin_loss": "NaN stays, where torch counts no margin",
    "multi_margin_loss_one": "the same",
    "multi_margin_loss_flags": "the same",
    "multilabel_margin_loss": "the same",
    "multilabel_margin_loss_none": "the same",
    "var_mean": "the mean of an infinity is infinite, where torch's running mean is NaN",
    "std_mean": "the same",
    "polygamma": "0 at infinity, its limit; torch's series gives NaN there",
    "deform_unfold": "places that are not finite read 0, as all places outside",
} | {record.name: "the same" for record in FLOATS if record.name.startswith("grid_sample")}


def tensors(sample: Sample) -> list[T]:
    return [one for arg in sample.args for one in (arg if isinstance(arg, list) else [arg]) if isinstance(one, T)]


def changed(sample: Sample, change) -> Sample:
    """The sample with every tensor changed."""

    def of(arg):
        return change(arg) if isinstance(arg, T) else arg

    args = tuple([[of(one) for one in arg] if isinstance(arg, list) else of(arg) for arg in sample.args])
    return Sample(args, sample.kwargs)


def emptied(sample: Sample) -> Iterator[Sample]:
    """Each extent of the first tensor made 0, wherever a tensor has it."""
    given = tensors(sample)
    if not given or any(tensor.values is not None for tensor in given):
        return
    for extent in dict.fromkeys(given[0].shape):
        if extent:
            yield changed(sample, lambda t, n=extent: replace(t, shape=tuple(0 if m == n else m for m in t.shape)))


def without_axes(sample: Sample) -> Iterator[Sample]:
    given = tensors(sample)
    if given and all(tensor.values is None for tensor in given) and len({tensor.shape for tensor in given}) == 1:
        yield changed(sample, lambda t: replace(t, shape=(), layout="plain"))


def torch_says(record: Record, sample: Sample, gradients: bool):
    """Torch's results and gradients, or None where it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = Inputs(sample, "float32", requires_grad=gradients)
            results = flat(record.torch_fn(*inputs.torch_args, **sample.kwargs))
            for two in results:
                if gradients and two.requires_grad:
                    two.backward(
                        torch.tensor(weights(tuple(two.shape), two.detach().numpy().dtype.name)), retain_graph=True
                    )
            return inputs, results
    except Exception:
        return None


def check(record: Record, sample: Sample) -> bool:
    gradients = record.differentiable
    said = torch_says(record, sample, gradients)
    if said is None:
        return False
    inputs, theirs = said
    what = f"{record.name} {sample}"
    ours = flat(record.fn(*inputs.weft_args, **sample.kwargs))
    assert len(ours) == len(theirs), what
    for one, two in zip(ours, theirs, strict=True):
        compare(one, two, record, what)
        if gradients and two.requires_grad and one.dtype.is_floating_point:
            one.backward(weft.tensor(weights(one.shape, one.numpy().dtype.name)), retain_graph=True)
    for one, two in zip(inputs.weft_leaves, inputs.torch_leaves, strict=True):
        if one.grad is not None and two.grad is not None:
            compare(one.grad, two.grad, record, f"gradient of {what}")
    return True


@pytest.mark.parametrize("device", DEVICES)
@by_name([record for record in FLOATS if record.name not in OURS])
def test_values_without_elements_or_axes(record: Record, device: str) -> None:
    with weft.device(device):
        for sample in record.samples:
            for edge in (*emptied(sample), *without_axes(sample)):
                check(record, edge)


def test_the_sweep_has_cases():
    cases = [
        torch_says(record, edge, False) is not None
        for record in FLOATS
        for sample in record.samples
        for edge in (*emptied(sample), *without_axes(sample))
    ]
    assert sum(cases) > 2000


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, -2.5, 0.5])


def special(sample: Sample) -> Iterator[Sample]:
    """NaN and infinities among the elements of each float tensor in turn."""
    given = tensors(sample)
    for number, tensor in enumerate(given):
        if tensor.values is None and tensor.dtype in (None, "float32") and tensor.layout == "plain" and tensor.shape:
            size = int(np.prod(tensor.shape))
            values = np.random.default_rng(number).uniform(tensor.low, tensor.high, size)
            places = np.random.default_rng(number + 1).permutation(size)[: min(len(SPECIAL), size // 2 + 1)]
            values[places] = SPECIAL[: len(places)]
            fixed = replace(tensor, values=values.reshape(tensor.shape), dtype="float32")
            yield changed(sample, lambda t, one=tensor, new=fixed: new if t is one else t)


@pytest.mark.parametrize("device", DEVICES)
@by_name([record for record in FLOATS if record.name not in OURS_AT_INFINITY])
def test_nan_and_infinities(record: Record, device: str) -> None:
    plain = replace(record, differentiable=False)
    with weft.device(device):
        for sample in record.samples[:3]:
            for edge in special(sample):
                check(plain, edge)


EMPTY = {
    "sum": lambda x: x.sum(1),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1, correction=0),
    "logsumexp": lambda x: x.logsumexp(1),
    "any": lambda x: (x > 0).any(1),
    "all": lambda x: (x > 0).all(1),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "sum of all": lambda x: x.sum(),
    "prod of all": lambda x: x.prod(),
    "mean of all": lambda x: x.mean(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", EMPTY)
def test_reductions_over_nothing(name, device):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = EMPTY[name](torch.zeros(3, 0)).numpy()
    x = weft.zeros(3, 0, device=device)
    np.testing.assert_array_equal(EMPTY[name](x).numpy(), expected, strict=True)
    if device == "cpu":
        np.testing.assert_array_equal(weft.compile(EMPTY[name])(x).numpy(), expected, strict=True)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        *itertools.product(["max", "min", "amax", "amin", "argmax", "argmin"], [(1,), ()]),
        ("median", (1,)),  # without an axis it is NaN, as in PyTorch
    ],
)
def test_extremes_of_nothing_are_refused(name, dims):
    x = weft.zeros(3, 0)
    with pytest.raises(weft.ShapeError, match=rf"{name}: given shape.*expected at least one element"):
        getattr(x, name)(*dims)
    if dims:
        assert getattr(weft.zeros(0, 3), name)(1) is not None  # nothing to choose, but nobody asks
